"""The frame of the command lines: help, flags from JSON, wrong input, caches, and folders that hold something else."""

import csv
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from util import paths
from util.commands import arguments, frame
from util.commands.frame import COMMANDS, main
from util.commands.results import Destination
from util.engine.finite import NotFinite
from util.figures.induction_scores.task_study import TaskStudy
from util.roles.sequences_study import SequenceStudy
from util.study import model as model_room

NAMES = [command.name for command in COMMANDS]
CONFIGURED = [command.name for command in COMMANDS if command.takes_config]
FEW = ["--prompts", "3", "--k", "2", "--reference-prompts", "4"]


def ends(argv, capsys):
    """The status and the message that a command ends with."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in argv])
    return end.value.code, capsys.readouterr().err


@pytest.fixture
def unloaded(monkeypatch):
    """No model can be loaded."""

    def never(*_, **__):
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(model_room, "load_ICL_model", never)


def written(folder):
    with (folder / "rows.csv").open(newline="", encoding="utf-8") as file:
        return json.loads((folder / "result.json").read_text()), list(csv.DictReader(file))


# ------------------------------------------------------------------------------------------------ help


def test_all_commands_are_listed_with_an_example_and_without_torch():
    code = "import sys; from util.commands.frame import main; main([]); main(['--help']); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for command in COMMANDS:
        assert shown.count(f"\n{command.name} ") == 2 and command.lines[0] in shown


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_has_its_examples(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"  {line}\n" in shown for line in frame.BY_NAME[name].lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_command_are_flags_that_it_has(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heads.json").write_text("[[2, 6]]")
    command = frame.BY_NAME[name]
    for example in command.examples:
        if example != "--examples":
            assert frame.parsed(command, example.split()).run


def test_an_unknown_command_ends_with_2_and_names_all(capsys):
    status, message = ends(["score"], capsys)
    assert status == 2 and "'score'" in message and "scores, means, ablate" in message


# ------------------------------------------------------------------------------------------------ wrong input

WRONG_FLAGS = [
    (["scores", "--lengths", "3"], "unrecognized arguments: --lengths"),
    (["scores", "--length", "three"], "--length"),
    (["ablate", "--mode", "median"], "invalid choice: 'median'"),
    (["ablate", "--top", "1.5"], "'1.5' is no share"),
    (["ablate", "--heads", "5"], "'5' is no head: write layer.head"),
    (["ablate", "--heads", "[[1, 2"], "Expecting"),
    (["ablate", "--heads", "[[1, -2]]"], "a head is (layer, head)"),
    (["ablate", "--heads", "[]"], "names no head"),
    (["ablate", "--heads", "none.json"], "none.json"),
    (["ablate", "--seed", "42,x"], "give whole numbers with commas"),
    (["ablate", "--task", "wordseq1,wordseq1"], "none of them twice"),
    (["ablate", "--random", "1", "--controls", "2"], "not allowed with"),
    (["ablate", "--heads", "2.6", "--top", "0.01"], "argument --top: not allowed with argument --heads"),
    (["knockout", "--pattern", "all"], "invalid choice: 'all'"),
    (["scores", "--device-map", "{"], "is no JSON object"),
    (["scores", "--show", "0"], "from 1 on"),
    (["edges"], "CONFIG.json"),
]


@pytest.mark.parametrize(("argv", "said"), WRONG_FLAGS, ids=lambda value: " ".join(value) if value else None)
def test_wrong_flags_end_with_2(argv, said, unloaded, capsys):
    status, message = ends(argv, capsys)
    assert status == 2 and said in message


WRONG_INPUT = [
    (["scores", "--sequences", "1"], "sequences = 1: two or more"),
    (["scores", "--length", "1"], "length = 1"),
    (["scores", "embedded", "--revision", "main"], "revision = 'main'"),
    (["scores", "--dtype", "float8"], "float8"),
    (["scores", "--out", __file__], "is a file; name a folder"),
    (["means", "--mode", "mean,median"], "mode = median: there are mean, mean_pos, input_mean"),
    (["ablate", "--task", "wordseq3"], "task = 'wordseq3': there are "),
    (["ablate", "--k", "-1"], "k = -1"),
    (["ablate", "--prompts", "1"], "prompts = 1: two or more"),
    (["ablate", "--controls", "-1"], "controls"),
    (["ablate", "--reference", "mnli", "--reference-data", "/nowhere"], "reference_data = '/nowhere': there is no"),
    (["means", "--reference", "mnli", "--reference-data", "/nowhere"], "give a folder with train.jsonl"),
    (["means", "--reference-data", "/nowhere"], "leave it out with reference 'staicc'"),
    (["ablate", "--labels", "Foo"], "give each a word of its own"),
    (["knockout", "--key-seed", "-1"], "seed = -1"),
    (["forerunner", "--dataset", "trek"], "trek"),
    (["forerunner", "--prompts", "3"], "prompts = 3"),
    (["forerunner", "--threshold", "0"], "threshold"),
    (["ioi", "--prompts", "4"], "prompts = 4: input should be greater than or equal to 8"),
    (["ioi", "--names", "Mike,Anna"], "texts and names"),
    (["edges", "none.json"], "none.json"),
    (["claims", "embedded", "--prompts", "0"], "prompts"),
    (["replication", "data/values", "data"], "no values file"),
]


@pytest.mark.parametrize(("argv", "said"), WRONG_INPUT, ids=lambda value: " ".join(value) if value else None)
def test_what_a_user_can_mend_ends_with_1_before_a_model_is_loaded(argv, said, unloaded, capsys):
    status, message = ends(argv, capsys)
    assert status == 1 and said in message and "Traceback" not in message


@pytest.mark.parametrize(
    "argv",
    [
        ["ablate", "--config", "deep.json"],
        ["ablate", "--heads", "deep.json"],
        ["scores", "--device-map", "deep"],
        ["edges", "deep.json"],
        ["atlas", "deep.json"],
    ],
    ids=" ".join,
)
def test_json_that_is_nested_too_deeply_ends_with_a_message(argv, tmp_path, monkeypatch, unloaded, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    last = argv[-1] if argv[-1] != "deep" else '{"a":' * 30_000
    status, message = ends([*argv[:-1], last], capsys)
    assert status in (1, 2) and "maximum recursion depth exceeded while decoding" in message and len(message) < 9000


@pytest.mark.parametrize(
    ("error", "said"),
    [(NotFinite("the logits are NaN"), "the logits are NaN\n"), (MemoryError(), "needs more memory than there is")],
    ids=["not finite", "no memory"],
)
def test_what_a_run_meets_ends_with_a_message(error, said, monkeypatch, capsys):
    def run(_):
        raise error

    monkeypatch.setattr("util.commands.scores.run", run)
    status, message = ends(["scores"], capsys)
    assert status == 1 and said in message


@pytest.mark.parametrize("controls", [[], ["--controls", "2"], ["--random", "1"]])
@pytest.mark.parametrize("head", ["4.0", "9.9", "0.99"])
def test_heads_that_the_model_has_not_end_with_1(head, controls, tmp_path, capsys):
    status, message = ends(["ablate", "--heads", head, *controls, *FEW, "--out", tmp_path], capsys)
    assert status == 1 and "the model has 4 layers of 8 heads" in message
    assert not list(tmp_path.iterdir())


def test_without_the_harness_its_command_says_how_to_get_it(monkeypatch, unloaded, capsys):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    status, message = ends(["evaluate", "--", "--tasks", "icl_wordseq1"], capsys)
    assert status == 1 and 'pip install "icl-circuits-suite[harness]"' in message


@pytest.mark.parametrize("argv", [["edges", "--examples"], []], ids=["edges", "overview"])
def test_a_closed_pipe_ends_a_command_quietly(argv):
    """As behind `| head -1`: without a message, with the status that shells give other programs."""
    reader, writer = os.pipe()
    os.close(reader)  # before the command starts, so that its first write fails
    command = [sys.executable, "-m", "util", *argv]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_an_interrupted_command_says_that_it_goes_on(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("util.commands.scores.run", interrupted)
    status, message = ends(["scores"], capsys)
    assert status == 130 and "not measured again" in message


# ------------------------------------------------------------------------------------------------ heads


def test_a_pair_of_ones_own_is_printed_before_the_population(tmp_path, capsys):
    texts = [f"When Emma and Mike went to the cafe, {name} gave a coffee to" for name in ("Mike", "Emma")]
    asked = ["--prompts", "8", "--base", texts[0], "--source", texts[1], "--names", "Emma,Mike"]
    main(["ioi", *asked, "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.index(f"{texts[0]} ...") < said.index(f"{texts[1]} ...") < said.index("from the source moves")
    assert said.index("from the source moves") < said.index("share, other half")


def test_heads_are_named_in_four_ways(tmp_path):
    (tmp_path / "heads.json").write_text("[[2, 6], [1, 0]]")
    names = ("2.6,1.0", "L2H6 L1H0", "[[2, 6], [1, 0]]", str(tmp_path / "heads.json"), '["L2H6", "1.0"]')
    assert {arguments.heads(name) for name in names} == {((1, 0), (2, 6))}
    many = [(layer, head) for layer in range(40) for head in range(40)]
    assert arguments.heads(",".join(f"{layer}.{head}" for layer, head in many)) == tuple(many)


# ------------------------------------------------------------------------------------------------ flags from JSON


def test_a_file_stands_for_flags_and_a_flag_wins(tmp_path):
    file, command = tmp_path / "config.json", frame.BY_NAME["ablate"]
    given = {"model": "smollm2", "task": ["wordseq1", "recursion"], "k": 3, "heads": [[2, 6]], "hard_negatives": False}
    file.write_text(json.dumps({**given, "seed": 7, "reference_prompts": 9, "device-map": {"": "cpu"}, "labels": None}))
    flags = "smollm2 --task wordseq1,recursion --k 3 --heads 2.6 --seed 7 --reference-prompts 9".split()
    by_flags = vars(frame.parsed(command, [*flags, "--device-map", '{"": "cpu"}']))
    by_file = vars(frame.parsed(command, ["--config", str(file)]))
    assert by_file.pop("config") == str(file) and by_flags.pop("config") is None
    assert by_file == by_flags
    mixed = frame.parsed(command, ["embedded", "--config", str(file), "--k", "4", "--heads", "2.4"])
    assert (mixed.model, mixed.k, mixed.heads, mixed.seed) == ("embedded", 4, ((2, 4),), (7,))


@pytest.mark.parametrize("name", CONFIGURED)
def test_an_unknown_key_is_refused_by_name(name, tmp_path, unloaded, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"device": "cpu", "promts": 3, "no": True}))
    status, message = ends([name, "--config", file], capsys)
    assert status == 2 and f"{file}: there is no flag promts, no;" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ("[1]", "is no object"), ('{"k": "x"}', "--k: invalid"), ('{"redo": 1}', "--redo")],
)
def test_a_wrong_file_is_refused(text, said, tmp_path, unloaded, capsys):
    file = tmp_path / "config.json"
    file.write_text(text)
    status, message = ends(["ablate", "--config", file], capsys)
    assert status == 2 and said in message
    assert ends(["ablate", "--config", tmp_path / "none.json"], capsys)[0] == 2


# ------------------------------------------------------------------------------------------------ results


def test_the_same_request_is_read_from_the_cache_and_another_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))
    out = tmp_path / "out"
    main(["ablate", "--heads", "2.6", *FEW, "--controls", "2", "--out", str(out)])
    first = written(out)
    (out / "rows.csv").unlink()
    monkeypatch.setattr(model_room, "load_ICL_model", None)  # what would measure again fails
    main(["ablate", "--heads", "2.6", *FEW, "--controls", "2", "--out", str(out)])
    assert written(out) == first
    capsys.readouterr()
    status, message = ends(["ablate", "--heads", "2.4", *FEW, "--controls", "2", "--out", out], capsys)
    assert status == 1 and "of another request (heads)" in message and "--overwrite" in message
    status, message = ends(["knockout", "--prompts", "3", "--out", out], capsys)
    assert status == 1 and "of another request (measure" in message
    assert written(out) == first
    monkeypatch.undo()
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))
    main(["ablate", "--heads", "2.4", *FEW, "--out", str(out), "--overwrite"])
    assert written(out)[0]["request"]["heads"] == [[2, 4]]
    (out / "result.json").write_text("{")
    status, message = ends(["ablate", "--heads", "2.4", *FEW, "--out", out], capsys)
    assert status == 1 and "of another request" in message


def test_an_interruption_keeps_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))
    measured, score = [], sys.modules[TaskStudy.__module__].label_log_probs

    def third_fails(*given, **named):
        measured.append(1)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return score(*given, **named)

    monkeypatch.setattr(sys.modules[TaskStudy.__module__], "label_log_probs", third_fails)
    argv = ["ablate", "--heads", "2.6", *FEW, "--controls", "2", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(argv)
    assert not (tmp_path / "out").exists()
    main(argv)
    assert len(measured) == 5  # four edits, one of them twice
    assert len(written(tmp_path / "out")[0]["results"]["heads"]) == 3


def test_every_request_has_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    for seed in ("0", "1"):
        main(["scores", "--sequences", "2", "--seed", seed])
    folders = sorted(paths.output("commands").iterdir())
    assert len(folders) == 2 and all(folder.name.startswith("scores-embedded-") for folder in folders)
    shown = capsys.readouterr().out
    assert all(str(folder / name) in shown for folder in folders for name in ("result.json", "rows.csv"))


def test_a_result_says_what_it_is_made_of(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))  # where no other code has measured anything
    main(["ablate", "--heads", "2.6", *FEW, "--controls", "2", "--task", "wordseq1,repetition", "--out", str(tmp_path)])
    result, rows = written(tmp_path)
    assert result["request"]["mode"] == "mean" and result["request"]["heads"] == [[2, 6]]
    assert result["provenance"]["device"] == "cpu" and result["provenance"]["code_digest"]
    assert len({*result["records"]}) == 2 * 4 + 1  # the answers of each task under each edit; the scores
    assert list(rows[0]) == ["task", "edit", "seed", "query", "gold", "right", "log_prob Foo", "log_prob Bar"]
    assert len(rows) == 2 * 4 * 3
    others = {name: heads for name, heads in result["results"]["heads"].items() if name != "chosen heads"}
    assert all(len(heads) == 1 and heads[0][0] == 2 and heads != [[2, 6]] for heads in others.values())
    chosen = result["results"]["tasks"]["wordseq1"]["chosen heads"]
    assert chosen["least_rank_p"] == 1 / 3 and set(chosen) >= {"accuracy", "change", "mcnemar_p", "rank_p"}


def test_what_is_not_defined_is_null_with_a_reason_and_an_empty_cell(tmp_path, capsys):
    study = SequenceStudy("embedded", sequences=2)
    study.scores()
    rows = pd.DataFrame({"head": [0, 1], "direct": np.array([np.nan, 0.1], np.float32)})
    destination = Destination(tmp_path, {"stem": "ioi"})
    destination.write({"direct": np.array([np.nan, 0.5])}, rows, rows, [study])
    result, lines = written(tmp_path)
    assert result["results"]["direct"] == [None, 0.5] and "not known" in result["results"]["undefined"]["direct"]
    assert [line["direct"] for line in lines] == ["", repr(float(np.float32(0.1)))]


def test_texts_of_a_folder_are_answered(tmp_path, monkeypatch, capsys):
    """A text task read from files, with labels that say nothing; its queries stand in rows.csv."""
    rows = [{"sentence": f"a {word} film", "label": n % 2} for n, word in enumerate("dull good flat warm".split())]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    argv = ["ablate", "--task", "sst2", "--labels", "Foo,Bar", "--k", "2", "--prompts", "4", "--heads", "2.6"]
    main([*argv, "--mode", "zero", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    _, lines = written(tmp_path / "out")
    assert {line["gold"] for line in lines} == {"Foo", "Bar"}
    assert {line["query"] for line in lines} == {f"Review: {row['sentence']}" for row in rows}
    status, message = ends([*argv, "--data", tmp_path / "none"], capsys)
    assert status == 1 and "there is no folder" in message and "train.jsonl" in message


def test_a_missing_package_is_a_message(monkeypatch, capsys):
    def missing(*_):
        raise ImportError("pip install datasets")

    monkeypatch.setattr("util.commands.scores.run", missing)
    assert ends(["scores"], capsys) == (1, "pip install datasets\n")


def test_what_heads_write_stands_beside_their_scores(tmp_path):
    main(["scores", "--sequences", "2", "--copying", "--out", str(tmp_path)])
    result, rows = written(tmp_path)
    column = [float(row["weights_copying"]) for row in rows]
    assert column == np.ravel(result["results"]["weights_copying"]).tolist()
    assert max(column) > 0.9 and "attribution low" in rows[0]


# ------------------------------------------------------------------------------------------------ means


def test_premises_are_a_reference_of_both_commands(tmp_path, capsys, monkeypatch):
    """What `means` has measured, `ablate` finds."""
    lines = [json.dumps({"premise": f"Report {number} says that the tower is old."}) for number in range(600)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))
    reference = ["--reference", "mnli", "--reference-data", str(tmp_path), "--reference-prompts", "2"]
    main(["means", *reference])
    file = Path(capsys.readouterr().out.splitlines()[-1])
    kept = file.stat().st_mtime_ns
    few = ["ablate", "--heads", "2.6", "--prompts", "3", "--k", "2"]
    main([*few, *reference, "--out", str(tmp_path / "one")])
    _, rows = written(tmp_path / "one")
    assert rows[0] != rows[3]
    assert [one.stat().st_mtime_ns for one in (tmp_path / "material").glob(file.name)] == [kept]


@pytest.mark.parametrize("head", ["9.9", "0.99"])
@pytest.mark.parametrize("others", ["--controls", "--random"])
def test_heads_that_are_not_there_have_no_others(head, others, tmp_path, monkeypatch, capsys):
    """Random heads stand for the named ones, which are then not edited themselves."""
    monkeypatch.setattr(SequenceStudy, "scores", lambda study: SimpleNamespace(mean=lambda: np.zeros((4, 8))))
    status, message = ends(["ablate", "--heads", head, *FEW, others, "1", "--out", tmp_path / "out"], capsys)
    assert status == 1 and "the model has 4 layers of 8 heads, not [(" in message
