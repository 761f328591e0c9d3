"""`collect`: studies from JSON, the parts that notebooks ask for, and what the command says."""

import ast
import json
from dataclasses import replace

import pytest

from tests.commands.test_commands import ends, unloaded  # noqa: F401  # a fixture
from util import paths
from util.commands import collect
from util.commands.frame import main
from util.commands.studies import STUDIES, collection
from util.figures import FIGURES
from util.records import shards
from util.records.model import Model
from util.records.shards import Shard

TINY = {"study": "toy_induction_head", "model": "embedded", "length": 8, "copies": 2, "sequences": 4}


@pytest.fixture
def file(tmp_path):
    """Writes a study to a file, which it returns."""

    def written(study):
        place = tmp_path / "study.json"
        place.write_text(study if isinstance(study, str) else json.dumps(study))
        return place

    return written


# ------------------------------------------------------------------------------------------------ studies from JSON


def test_every_figure_and_the_card_can_be_collected():
    assert {*FIGURES, "card"} <= {*STUDIES}
    for name in STUDIES:
        asked = collection({"study": name, "model": "smollm2"})
        assert asked.study.model.name == "smollm2" and asked.parts and asked.study.model.loaded is None


def test_a_study_has_the_arguments_of_its_file_and_the_parts_in_their_order():
    given = {"study": "forerunner_heads", "model": "smollm2", "dataset": "trec", "k": 2, "prompts": 8}
    asked = collection({**given, "parts": ["growth", "counts"], "plan": {"grid_k": [0, 1], "grid_prompts": 8}})
    assert [asked.study.request[name] for name in ("dataset", "k", "prompts")] == ["trec", 2, 8]
    assert list(asked.parts) == ["counts", "growth"]


def test_a_model_may_be_an_object_of_its_arguments():
    asked = collection({**TINY, "model": {"name": "embedded", "dtype": "float64", "untrained_seed": 3}})
    assert asked.study.model == Model("embedded", dtype="float64", untrained_seed=3)


WRONG = {
    "[1]": "is no object such as",
    "{": "Expecting",
    '{"model": "embedded"}': "study = None: choose from toy_induction_head, forerunner_heads",
    '{"study": "forerunners"}': "study = 'forerunners': choose from",
    '{"study": "card", "minuts": 3}': "Study has no argument 'minuts'; it has model, ",
    '{"study": "card", "minutes": 0}': "minutes = 0: ",
    '{"study": "card", "model": {"nam": "embedded"}}': "Model has no argument 'nam'",
    '{"study": "card", "model": 3}': "model = 3: give an object",
    '{"study": "card", "redo": true}': "redo is no argument here: give another --folder",
    '{"study": "card", "folder": "x"}': "folder is no argument here: name it with --folder",
    '{"study": "card", "plan": {"tasks": ["copying"]}}': "plan: card has none beside its study",
    '{"study": "card", "parts": ["roles"]}': "parts = ['roles']: give a list of card",
    '{"study": "card", "parts": "card"}': "parts = 'card': give a list",
    '{"study": "edge_ablation", "plan": {"task": 1}}': "Plan has no argument 'task'",
    '{"study": "edge_ablation", "plan": 1}': "plan = 1: give an object",
    '{"study": "forerunner_heads", "plan": {"grid_k": [99999]}}': "k = 99999",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_study_is_refused_before_a_model_is_loaded(text, file, unloaded, capsys):  # noqa: F811
    status, message = ends(["collect", file(text)], capsys)
    assert status == 1 and WRONG[text] in message and "study.json: " in message and "Traceback" not in message


WRONG_FLAGS = [
    (["--shard", "0/3"], "give a number from 1 to 3"),
    (["--shard", "4/3"], "give a number from 1 to 3"),
    (["--shard", "a/b"], "write it like 3/16"),
    (["--wait", "3"], "--wait: give minutes above 0, and --shard"),
    (["--shard", "1/2", "--wait", "0"], "--wait: give minutes above 0"),
    (["--status", "--merge"], "not allowed with"),
]


@pytest.mark.parametrize(("flags", "said"), WRONG_FLAGS, ids=lambda value: " ".join(value) if value else None)
def test_wrong_flags_end_with_2(flags, said, file, unloaded, capsys):  # noqa: F811
    status, message = ends(["collect", file(TINY), *flags], capsys)
    assert status == 2 and said in message


# ------------------------------------------------------------------------------------------------ the command


def test_shards_are_measured_looked_at_merged_and_read_without_the_model(file, tmp_path, capsys, monkeypatch):
    study, folder = str(file(TINY)), str(tmp_path / "records")

    def said(*flags):
        main(["collect", study, "--folder", folder, *flags])
        return capsys.readouterr().out

    first = said("--shard", "1/2")
    assert "shard 1/2 of toy_induction_head, embedded" in first
    assert "what is missing takes about " in first and "GB of memory" in first and "shared by 2 shards" in first
    status = said("--status")
    assert "shards seen: 1/2" in status and "not known yet" in status
    assert ends(["collect", study, "--folder", folder, "--merge"], capsys)[0] == 1
    for _ in range(4):
        said("--shard", "2/2"), said("--shard", "1/2")
    monkeypatch.setattr("util.records.model.load_ICL_model", lambda *_, **__: pytest.fail("a model is loaded"))
    assert "what is missing" not in said("--shard", "1/2")
    assert "all is there" in said("--status")
    assert "2 parts, 4 records, all there" in said("--merge")
    read = collection(TINY, tmp_path / "records")
    assert read.parts["heads"]().shown and read.parts["patterns"]() and read.study.model.loaded is None


def test_without_a_shard_everything_is_measured_and_no_block_is_left(file, tmp_path, capsys):
    asked = {"study": "forerunner_heads", "dataset": "agnews", "k": 1, "prompts": 4, "parts": ["counts"]}
    main(["collect", str(file(asked)), "--folder", str(tmp_path / "records")])
    assert "counts: 1 block measured; all is there" in capsys.readouterr().out
    assert len(list((tmp_path / "records").rglob("*.pickle"))) == 1


def test_the_status_tells_blocks_and_the_seconds_that_they_take(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("util.figures.forerunner_heads.study.BLOCK", 4)
    asked = {"study": "forerunner_heads", "dataset": "agnews", "k": 1, "prompts": 16, "parts": ["counts"]}
    study, folder = str(file(asked)), str(tmp_path / "records")
    main(["collect", study, "--folder", folder, "--shard", "3/3"])
    mine = sum(path.name.count("pickle") for path in (tmp_path / "records").rglob("*.pickle")) - 1  # and the plan
    capsys.readouterr()
    main(["collect", study, "--folder", folder, "--status"])
    told = capsys.readouterr().out
    assert f"0 of 1 record, {mine} of 4 blocks; not known yet: what depends on missing ones" in told
    assert f"{4 - mine} blocks to measure, " in told and " s each" in told and "minutes with 3 shards" in told


def test_a_part_that_a_model_refuses_is_named_and_the_others_are_measured(tmp_path, monkeypatch, capsys):
    asked = collection(TINY, tmp_path)

    def refuse():
        raise ValueError("no such heads")

    asked = replace(asked, parts={"heads": refuse, "patterns": asked.parts["patterns"]})
    with pytest.raises(ValueError, match="heads cannot be measured: no such heads"):
        collect.measure(asked, Shard(1, 1))
    assert "patterns: 2 records measured; all is there" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ notebooks

# What notebooks ask of their studies that measures nothing, or puts together what other parts have measured.
NO_PART = {"replace", "check", "results", "findings", "verdicts", "claims_beside"}
# Names in notebooks of what measures.
MEASURED_BY = {"study", "plan"}


def notebook(stem):
    """The code cells of a figure's notebook, without magics: whether a cell has the parameters, and its source."""
    place = next((paths.root() / "notebooks").glob(f"*_{stem}.ipynb"))
    for cell in json.loads(place.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            source = "\n".join(line for line in lines if not line.startswith("%"))
            yield "parameters" in cell["metadata"].get("tags", []), source


def asked_methods(tree):
    """The calls `name.method(...)` of what measures."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if isinstance(of, ast.Name) and of.id in MEASURED_BY:
                yield node, f"{of.id}.{node.func.attr}"


@pytest.mark.parametrize("stem", FIGURES)
def test_the_parts_of_a_figure_are_what_its_notebook_asks_for(stem):
    calls = [call for _, source in notebook(stem) for _, call in asked_methods(ast.parse(source))]
    asked = {call.partition(".")[2] for call in calls}
    parts = {*collection({"study": stem}).parts}
    assert asked - NO_PART == parts - {*ALSO.get(stem, ())}


# Parts that notebooks ask for by way of `results` or `findings`.
ALSO = {
    "induction_scores": ("planted_check", "claims_beside"),
    "role_atlas": ("planted",),
}


def test_a_notebook_is_served_by_what_all_parts_have_kept(tmp_path, monkeypatch):
    """The cells of a notebook, as they stand there, ask a study whose model cannot be loaded."""
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path))
    collect.measure(collection(TINY), Shard(1, 1))
    names = dict(TINY)
    with shards.looking():
        for has_parameters, source in notebook("toy_induction_head"):
            for statement in ast.parse(source).body:
                built = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("study", "model")
                if has_parameters or built or isinstance(statement, ast.Import | ast.ImportFrom):
                    exec(ast.unparse(statement), names)
                    continue
                for node, call in asked_methods(statement):
                    if call != "study.results":  # it puts together what was made by hand
                        eval(ast.unparse(node), names)
            if has_parameters:
                names |= TINY


def test_what_was_not_collected_is_missed(tmp_path, monkeypatch):
    """The test above would notice."""
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path))
    collect.measure(collection({**TINY, "parts": ["heads"]}), Shard(1, 1))
    with shards.looking(), pytest.raises(shards.NotYet):
        collection(TINY).parts["patterns"]()
