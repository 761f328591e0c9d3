"""The rooms of the house and who may know whom, checked on the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "util").rglob("*.py"))
MODELS = {"torch", "transformers", "StaICC", "accelerate", "bitsandbytes", "tokenizers", "huggingface_hub"}
INTERNALS = (
    "transformers.integrations",
    "transformers.masking_utils",
    "transformers.models",
    "transformers.modeling_utils",
)


def name_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file):
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["util", *file.relative_to(ROOT / "util").parts][: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def rooms(file):
    """The rooms of util that a file imports: "cache", "measures.forerunner" -> "measures", ..."""
    return {name.split(".")[1] for name in imports(file) if name.startswith("util.")}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_import_rules(file):
    name, found = name_of(file), imports(file)
    packages = {imported.split(".")[0] for imported in found}
    if name.split(".")[1:2] and name.split(".")[1] in {"measures", "plots", "cache", "report", "paths"}:
        pure = {"measures": {"measures"}, "plots": {"measures", "plots"}, "report": {"paths", "models"}}
        allowed = pure.get(name.split(".")[1], set())
        assert not packages & MODELS, f"{name} needs no model: {packages & MODELS}"
        assert rooms(file) <= allowed, f"{name} may import {allowed} of util, not {rooms(file) - allowed}"
    if name in {"util.report", "util.models.table"}:  # names of models are no models
        assert {i for i in found if i.startswith("util.models")} <= {"util.models.table", "util.models.table.PACKAGED"}
        assert not packages & MODELS
    if name.startswith("util.tasks"):
        assert not packages & MODELS, f"{name}: prompts are text; a tokenizer comes as an argument"
        assert rooms(file) <= {"tasks", "prompts", "paths"}, f"{name} may not import {rooms(file)}"
    if name != "util.load_model_and_data":
        assert "StaICC" not in packages, f"{name}: data come in through load_model_and_data"
    if not name.startswith(("util.load_model_and_data", "util.embedded", "util.models")):
        assert "from_pretrained" not in file.read_text(), f"{name}: models come in through load_model_and_data"
    if name not in {"util.attention", "util.adapters"}:
        assert not [i for i in found if i.startswith(INTERNALS)], f"{name}: only the engine knows transformers' insides"
    if not name.startswith(("util.experiments", "util.embedded", "util.__main__")):
        both = rooms(file) & {"measures", "plots", "cache"} and rooms(file) & {"inference", "attention"}
        assert not both, f"{name}: only experiments see both halves"
