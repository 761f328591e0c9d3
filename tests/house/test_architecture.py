"""The rooms of the house and who may know whom, checked on the source. CONTRIBUTING.md has the map."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from util.figures import FIGURES

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "util").rglob("*.py"))

# Rooms from the ground up: a room may import those before it, and itself.
ROOMS = (
    "paths", "stats", "prompts", "models", "show", "engine", "load_model_and_data", "study",
    "edges", "roles", "scores", "inference", "figures", "look", "card", "extras", "commands", "__main__",
)  # fmt: skip

MODELS = {"torch", "transformers", "StaICC", "accelerate", "bitsandbytes", "tokenizers", "huggingface_hub"}
# Files that turn arrays into numbers, tables and figures: a cached figure is drawn where no model can be loaded.
NO_MODEL = (
    "util.paths", "util.stats", "util.models.table",
    "util.show", "util.show.files",
    "util.scores.graph", "util.scores.evaluation", "util.roles.attention_scores",
    "util.roles.rules", "util.scores.units", "util.scores.pruning",
    *(f"util.figures.{stem}.{file}" for stem in FIGURES
      for file in ("measures", "plots", "claims", "results", "conclusions", "numbers", "show")),
    *(f"util.card.{file}" for file in ("topics", "page", "atlas")),
    "util.figures.edge_ablation.settings",
    "util.figures.ioi_patching.pictures",
)  # fmt: skip
INTERNALS = (
    "transformers.integrations",
    "transformers.masking_utils",
    "transformers.models",
    "transformers.modeling_utils",
)


def name_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(file): file for file in FILES}


@cache
def imports(file):
    """What a file imports, as dotted names; of `from a import b` both a and a.b."""
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["util", *file.relative_to(ROOT / "util").parts][: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            imported |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return frozenset(imported)


def files_imported(name):
    """The files of util that a file imports, without packages that it only passes through."""
    found = {imported for imported in imports(NAMES[name]) if imported in NAMES} - {name}
    return {one for one in found if NAMES[one].name != "__init__.py" or not any(o.startswith(f"{one}.") for o in found)}


def room(name):
    return name.split(".")[1] if "." in name else "util"


def within(name, places):
    return any(name == place or name.startswith(f"{place}.") for place in places)


def test_every_file_is_in_a_room():
    assert {room(name) for name in NAMES} - {"util"} == set(ROOMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_room_imports_only_rooms_below_it(name):
    if name == "util":
        return
    below = set(ROOMS[: ROOMS.index(room(name)) + 1])
    above = {imported for imported in files_imported(name) if room(imported) not in below | {"util"}}
    assert not above, f"{name} is in the room {room(name)}, which lies below {sorted(above)}"


def test_no_file_imports_itself_through_others():
    graph = {name: files_imported(name) for name in NAMES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("util.figures.")])
def test_figures_do_not_know_each_other(name):
    stem = name.split(".")[2]
    others = {i for i in files_imported(name) if i.startswith("util.figures.") and i.split(".")[2] in FIGURES}
    others = {imported for imported in others if imported.split(".")[2] != stem}
    assert not others, f"{name} knows {sorted(others)}; what two figures need belongs in a shared room"


@pytest.mark.parametrize("name", [name for name in NAMES if within(name, NO_MODEL)])
def test_what_needs_no_model_imports_none(name):
    """Not even through other files."""
    seen, ahead = set(), [name]
    while ahead:
        seen.add(here := ahead.pop())
        packages = {imported.split(".")[0] for imported in imports(NAMES[here])}
        assert not packages & MODELS, f"{name} imports {packages & MODELS} by way of {here}"
        ahead += [imported for imported in files_imported(here) if imported not in seen]


@pytest.mark.parametrize("name", NAMES)
def test_models_and_data_come_in_through_one_door(name):
    file, packages = NAMES[name], {imported.split(".")[0] for imported in imports(NAMES[name])}
    if name != "util.load_model_and_data":
        assert "StaICC" not in packages, f"{name}: data come in through load_model_and_data"
    if not within(name, ("util.load_model_and_data", "util.models")):
        assert "from_pretrained" not in file.read_text(), f"{name}: models come in through load_model_and_data"
    if name not in {"util.engine.attention", "util.engine.adapters", "util.engine.call"}:
        inside = [imported for imported in imports(file) if imported.startswith(INTERNALS)]
        assert not inside, f"{name}: only the engine knows transformers' insides"
    if room(name) == "prompts":
        assert not packages & MODELS, f"{name}: prompts are text; a tokenizer comes as an argument"


# ------------------------------------------------------------------------------------------------ docstrings

# What every result has, said once in CONTRIBUTING.md.
RESULT_METHODS = {"of", "table", "figure", "values", "lines", "check_lines", "title"}
ARRAYS = ("NDArray", "Tensor", "ndarray", "Floats", "Bools", "Cells", "ArrayLike")


def definitions(tree):
    """Public functions, classes and methods of a file: (name, node, the class that a method is of)."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node, None
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                        yield f"{node.name}.{method.name}", method, node


@pytest.mark.parametrize("name", NAMES)
def test_public_names_say_what_they_are(name):
    """What they give, the shapes of arrays, and which errors they raise. What a subclass overrides is said above it."""
    lacking = []
    for place, node, of in definitions(ast.parse(NAMES[name].read_text(encoding="utf-8"))):
        said, about = ast.get_docstring(node) or "", (ast.get_docstring(of) or "") if of else ""
        if not said:
            of_part = isinstance(node, ast.FunctionDef) and [part.arg for part in node.args.args] == ["values"]
            if not (
                of_part or (of and (of.bases or node.name in RESULT_METHODS))
            ):  # `Part` says what such functions are
                lacking.append(f"{place} has no docstring")
            continue
        if isinstance(node, ast.ClassDef):
            continue
        hints = [part.annotation for part in (*node.args.args, *node.args.kwonlyargs)] + [node.returns]
        hints = [ast.unparse(hint) for hint in hints if hint is not None]
        if any(array in hint for hint in hints for array in ARRAYS) and "[" not in said + about:
            lacking.append(f"{place} says no shapes")
        raised = [
            n.exc.func if isinstance(n.exc, ast.Call) else n.exc for n in ast.walk(node) if isinstance(n, ast.Raise)
        ]
        for error in {ast.unparse(part) for part in raised if part is not None}:
            if error[0].isupper() and error != "NotImplementedError" and error not in said + about:
                lacking.append(f"{place} does not say that it raises {error}")
    assert not lacking, f"{name}: {lacking}"
