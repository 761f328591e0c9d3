"""The rooms of the house and who may know whom, checked on the source. CONTRIBUTING.md has the map."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.clone import ROOT
from util.figures import FIGURES

FILES = sorted((ROOT / "util").rglob("*.py"))

# Rooms from the ground up: a room may import those before it, and itself.
ROOMS = (
    "paths", "stats", "prompts", "models", "show", "engine", "load_model_and_data", "study",
    "edges", "roles", "scores", "inference", "figures", "look", "card", "extras", "commands", "__main__",
)  # fmt: skip

MODELS = {"torch", "transformers", "StaICC", "accelerate", "bitsandbytes", "tokenizers", "huggingface_hub"}
# Files that turn arrays into numbers, tables and figures: a cached figure is drawn where no model can be loaded.
NO_MODEL = (
    "util.paths", "util.stats", "util.models.table", "util.show",
    "util.scores.graph", "util.scores.pruning",
    "util.roles.attention_scores", "util.roles.rules",
    *(f"util.figures.{stem}.{file}" for stem in FIGURES for file in ("claims", "numbers", "pictures", "show")),
)  # fmt: skip
INTERNALS = tuple(f"transformers.{part}" for part in ("integrations", "masking_utils", "models", "modeling_utils"))


def name_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(file): file for file in FILES}
each_file = pytest.mark.parametrize("name", NAMES)


@cache
def imports(file):
    """What a file imports, as dotted names; of `from a import b` both a and a.b."""
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(imported)


def files_imported(name):
    """The files of util that a file imports, without packages that it only passes through."""
    found = imports(NAMES[name]) & {*NAMES} - {name}
    return {one for one in found if NAMES[one].name != "__init__.py" or not any(o.startswith(f"{one}.") for o in found)}


def room(name):
    return name.split(".")[1] if "." in name else "util"


def within(name, places):
    return any(name == place or name.startswith(f"{place}.") for place in places)


def test_every_file_is_in_a_room():
    assert {room(name) for name in NAMES} - {"util"} == set(ROOMS)


@each_file
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


@pytest.mark.parametrize("stem", FIGURES)
def test_figures_do_not_know_each_other(stem):
    own, others = f"util.figures.{stem}", [f"util.figures.{other}" for other in FIGURES if other != stem]
    known = {imported for name in NAMES if within(name, [own]) for imported in files_imported(name)}
    assert not [one for one in known if within(one, others)], "what two figures need belongs in a shared room"


@pytest.mark.parametrize("name", [name for name in NAMES if within(name, NO_MODEL)])
def test_what_needs_no_model_imports_none(name):
    """Not even through other files."""
    seen, ahead = set(), [name]
    while ahead:
        seen.add(here := ahead.pop())
        packages = {imported.split(".")[0] for imported in imports(NAMES[here])}
        assert not packages & MODELS, f"{name} imports {packages & MODELS} by way of {here}"
        ahead += [imported for imported in files_imported(here) if imported not in seen]


@each_file
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


def definitions(tree):
    """Public functions, classes and methods of a file, each with the class that a method is of."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node, None
            methods = [] if isinstance(node, ast.FunctionDef) else node.body
            yield from ((one, node) for one in methods if isinstance(one, ast.FunctionDef) and one.name[0] != "_")


@each_file
def test_public_names_say_what_they_are(name):
    """And which errors they raise. What a subclass overrides is said above it; `Part` says what is made of `values`."""
    for node, of in definitions(ast.parse(NAMES[name].read_text(encoding="utf-8"))):
        doc, is_class = ast.get_docstring(node), isinstance(node, ast.ClassDef)
        known = of and of.bases or not is_class and ast.unparse(node.args).partition(":")[0] == "values"
        assert doc or known, f"{node.name} has no docstring"
        raised = [one.exc for one in ast.walk(node) if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call)]
        errors = [error for error in (ast.unparse(call.func) for call in raised) if error[0].isupper()]
        unsaid = [error for error in errors if doc and error not in doc]
        assert is_class or not unsaid, f"{node.name} does not say that it raises {unsaid}"
