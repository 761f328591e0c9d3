"""The frame of the command lines: help, flags from JSON, wrong input, caches, and folders that hold something else."""

import csv
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from torch import OutOfMemoryError

from tests.clone import ROOT
from util import paths
from util.commands.arguments import ModelFlags
from util.commands.frame import COMMANDS, main
from util.engine.finite import NotFinite
from util.figures.edits import named_heads
from util.load_model_and_data import staicc_version
from util.roles.sequences_study import SequenceStudy
from util.study import model as model_room

ALL = {name: purpose for commands in COMMANDS.values() for name, purpose in commands.items()}
FEW = ["--prompts", "3", "--k", "2", "--reference-prompts", "4"]


def ends(argv, capsys):
    """The status and the message that a command ends with."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in argv])
    return end.value.code, capsys.readouterr().err


def written(folder):
    with (folder / "rows.csv").open(newline="", encoding="utf-8") as file:
        return json.loads((folder / "result.json").read_text()), list(csv.DictReader(file))


# ------------------------------------------------------------------------------------------------ help


def test_neither_help_nor_a_wrong_flag_nor_completion_imports_torch():
    code = """
import sys
from util.commands.arguments import ModelFlags
from util.commands.frame import COMMANDS, main
names = [name for commands in COMMANDS.values() for name in commands]
for argv in ([], *([name, "--help"] for name in names), *([name, "--no-flag"] for name in names), ["--completion", "bash"]):
    try:
        main(argv)
    except SystemExit as end:
        print("status", end.code)
print("torch" in sys.modules)
"""  # noqa: E501
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("False\n") and shown.stdout.count("status 2") == len(ALL), shown.stderr
    assert all(f"  {name}: {purpose}\n" in shown.stdout for name, purpose in ALL.items())
    assert "--reference-prompts" in shown.stdout.rpartition("Bash completion")[2]


# ------------------------------------------------------------------------------------------------ wrong input

WRONG_FLAGS = [
    ("score", 'Unknown command "score". Did you mean "scores"'),
    ("scores --sequences 1", "--sequences. Must be >= 2"),
    ("scores --device-map {", 'Choose from: "auto"'),
    ("ablate --mode median", 'Choose from: "mean", "zero"'),
    ("ablate --top 1.5", "--top. Must be <= 1"),
    ("ablate --heads 5.1,L2H", "'L2H' is no head; write L5H1,L11H3"),
    ("ablate --heads [[1,-2]]", "a head is (layer, head)"),
    ("ablate --heads []", "names no head; write L5H1,L11H3"),
    ("ablate --seed 42,x", "'42,x': give one or more with commas between"),
    ("ablate --task wordseq1,wordseq1", "none twice"),
    ("ablate --k 2.7", 'unable to convert "2.7" into int'),
    ("ablate --controls=-1", "--controls. Must be >= 0"),
    (f"card --untrained {2**70}", "--untrained. Must be < 9223372036854775808"),
]
CARDS = ROOT / "data/cards"
WRONG_INPUT = [
    ("ablate --heads none.json", "none.json"),
    ("ablate --random 1 --controls 2", "--controls or --random, not both"),
    ("ablate --heads L2H6 --top 0.01", "give --heads or --top"),
    ("edges", "name a CONFIG.json"),
    ("scores --length 1", "--length 1"),
    ("scores embedded --revision main", "--revision 'main'"),
    (f"scores --out {__file__}", "name a folder that can be written to"),
    ("ablate --task wordseq3", "--task 'wordseq3': unknown classification task 'wordseq3'; there are "),
    ("ablate --task none.csv", "none.csv"),
    ("ablate --task sorts.csv,./sorts.csv --labels +1,Yes! --k 2", "--task sorts.csv,./sorts.csv: give each task once"),
    ("ablate --task words.csv", "the columns text and label; it has input, output, and its first row red, der"),
    ("ablate --task my_tasks.py", "my_tasks.py:plural"),
    ("ablate --task labels.csv", "labels.csv, row 2: label 'Up' is 'up' before"),
    ("edges config.json", "words.csv, row 2: 'red' is an input twice, also of row 1"),
    ("ablate --k -1", "--k -1"),
    ("ablate --reference mnli --reference-data /nowhere", "--reference-data '/nowhere': there is no"),
    ("means --reference-data /nowhere", "leave it out with reference 'task'"),
    ("ablate --task sst2 --data /nowhere", "there is no folder"),
    ("ablate --task wordseq1 --data /nowhere", "no configuration there has the task 'f_a_f_p'; give a clone"),
    ("scores --frequent-exclude 0.5", "--frequent-exclude 0.5"),
    ("ablate --labels Foo", "give each a word of its own"),
    ("forerunner --dataset trek", "trek"),
    ("forerunner --prompts 3", "--prompts 3"),
    ("ioi --prompts 4", "--prompts 4: input should be greater than or equal to 8"),
    ("ioi --names Mike,Anna", "texts and names"),
    ("draw embedded --figure none", "--figure none: there are toy_induction_head"),
    ("draw gpt2", "no values of toy_induction_head of gpt2 are stored"),
    (f"card --out {__file__}", "name a folder that can be written to"),
    (f"atlas {CARDS} {CARDS}", "give one of each model"),
    ("look --text a --task ioi", "give one of --text, --file and --task"),
    ("claims embedded --prompts 0", "prompts"),
    ("claims embedded/none", "no embedded model 'none'"),
    ("edges none.json", "cannot run none.json"),
    ("replication data/values data", "no figure of which both have a values file"),
    (f"replication {CARDS.parent}/values {CARDS.parent}/values/smollm2", "give two runs of one model"),
    ("scores --out /proc", "name a folder that can be written to"),
    ("evaluate --mode mean --pattern induction", "--mode or --pattern, not both"),
    ("evaluate --heads L0H0", "say what is done to heads"),
    ("atlas deep.json", "recursion depth"),
    ("scores --config list.json", "is no object of flags"),
]


@pytest.mark.parametrize(
    "status, line, said",
    [(2, *row) for row in WRONG_FLAGS] + [(1, *row) for row in WRONG_INPUT],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else None,
)
def test_what_a_user_can_mend_ends_with_one_sentence_before_a_model_is_loaded(
    status, line, said, tmp_path, monkeypatch, no_model, capsys
):
    if "data/values" not in line:
        monkeypatch.chdir(tmp_path)
    for name, text in {"deep": "[" * 100_000, "list": "[1]"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "labels.csv").write_text("text,label\na,up\nb,Up\n")
    (tmp_path / "sorts.csv").write_text(
        "text,label\n" + "".join(f"{i},{'up' if i % 2 else 'Up!'}\n" for i in range(99))
    )
    (tmp_path / "words.csv").write_text("red,der\nred,dre\n")
    (tmp_path / "config.json").write_text('{"action": "accuracy", "request": {"task": "words.csv"}}')
    found, message = ends(line.split(), capsys)
    assert found == status and said in message and message.count("\n") == 1 and len(message) < 600


@pytest.mark.parametrize(
    "error, status, said",
    [
        (NotFinite("the logits are NaN"), 1, "the logits are NaN\n"),
        (MemoryError(), 1, "needs more memory than there is"),
        (OutOfMemoryError("CUDA out of memory. Tried"), 1, "ask for less (CUDA out of memory)"),
        (ImportError("pip install datasets"), 1, "pip install datasets\n"),
        (KeyboardInterrupt(), 130, "not measured again"),
    ],
    ids=["not finite", "no memory", "no memory of a GPU", "no package", "interrupted"],
)
def test_what_a_run_meets_ends_with_a_message(error, status, said, monkeypatch, capsys):
    def scores(_):
        raise error

    monkeypatch.setattr(SequenceStudy, "scores", scores)
    found, message = ends(["scores"], capsys)
    assert found == status and said in message


@pytest.mark.parametrize("others", ["", "--random 1"])
def test_heads_that_the_model_has_not_end_with_1(others, tmp_path, capsys):
    """Random heads stand for the named ones, which are then not edited themselves."""
    status, message = ends(["ablate", "--heads", "L4H0", *others.split(), *FEW, "--out", tmp_path], capsys)
    assert status == 1 and "the model has 4 layers of 8 heads" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argv, status", [(["--completion", "bash"], 141), ([], 1)], ids=["completion", "overview"])
def test_a_closed_pipe_ends_a_command_quietly(argv, status):
    """As behind `| head -1`: without a message, with the status that shells give other programs."""
    reader, writer = os.pipe()
    os.close(reader)  # before the command starts, so that its first write fails
    command = [sys.executable, "-m", "util", *argv]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (status, "")


# ------------------------------------------------------------------------------------------------ flags from JSON


def test_a_file_stands_for_flags_and_a_flag_wins(tmp_path, monkeypatch):
    given = {"model": "smollm2", "task": ["wordseq1", "recursion"], "k": 3, "heads": [[2, 6]], "labels": None}
    (tmp_path / "config.json").write_text(json.dumps(given | {"seed": 7, "reference-prompts": 9, "redo": True}))
    (tmp_path / "heads.json").write_text("[[2, 6]]")
    flags = "smollm2 --task wordseq1,recursion --k 3 --seed 7 --reference-prompts 9 --redo --heads heads.json"
    taken = []
    monkeypatch.setattr(
        "util.commands.evaluate._compare", lambda *given, **reference: taken.append((*given, reference))
    )
    monkeypatch.chdir(tmp_path)
    for line in (flags, "--config config.json", "embedded --config config.json --k 4 --heads L2H4"):
        main(["ablate", *line.split()])
    by_flags, by_file, mixed = ([one for one in call if not callable(one)] for call in taken)
    assert by_file == by_flags
    _, model, queries, chosen, *_ = mixed
    assert (model.model, queries.k, chosen.heads, queries.seed) == ("embedded", 4, ((2, 4),), (7,))


def test_the_hubs_cache_can_be_moved(monkeypatch):
    taken = []
    monkeypatch.setattr(model_room, "load_ICL_model", lambda *_, **options: taken.append(options["cache_dir"]))
    for flags in (ModelFlags("gpt2", cache_dir="cache"), ModelFlags("gpt2")):
        with pytest.raises(TypeError):
            flags.source.pair  # noqa: B018  # there is no model
    assert taken == ["cache", None] and ModelFlags("gpt2").source == ModelFlags("gpt2", cache_dir="cache").source


def test_heads_have_one_spelling_everywhere():
    assert named_heads("L2H4,1.6") == named_heads("2.4, L1H6") == named_heads("[[2, 4], [1, 6]]")
    for wrong in ("L2.4", "2H4", "2.4.1"):
        with pytest.raises(ValueError, match="is no head; write L5H1,L11H3"):
            named_heads(wrong)


@pytest.mark.parametrize("given", [{"promts": 3}, {"out=x --seed": 3}, {"model": None}, {"length": "x"}])
def test_a_wrong_key_or_value_is_refused_by_name(given, tmp_path, no_model, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"device": "cpu", **given}))
    status, message = ends(["scores", "--config", tmp_path / "config.json"], capsys)
    assert status == 2 and f"[{next(iter(given))}]" in message and f"from {tmp_path}/config.json" in message


# ------------------------------------------------------------------------------------------------ results


def test_a_result_says_what_it_is_made_of_and_every_request_has_a_folder_of_its_own(material, output):
    main(["ablate", "--heads", "L2H6", *FEW, "--controls", "2", "--task", "wordseq1,repetition"])
    [folder] = paths.output("commands").iterdir()
    result, rows = written(folder)
    assert folder.name.startswith("ablate-embedded-") and result["provenance"]["code_digest"]
    assert len({*result["records"]}) == 2 * 4 + 1  # the answers of each task under each edit; the scores
    assert list(rows[0]) == ["task", "edit", "seed", "query", "gold", "right", "log_prob Foo", "log_prob Bar"]
    _, *others = result["results"]["heads"].values()
    assert all(len(heads) == 1 and heads[0][0] == 2 and heads != [[2, 6]] for heads in others)
    assert result["results"]["tasks"]["wordseq1"]["chosen heads"]["least_rank_p"] == 1 / 3


def test_data_sets_of_staicc_and_tasks_of_files_are_ablated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["red", "blue", "green", "black", "one", "two", "three", "four"]
    rows = [f"{word},{'colour' if number < 4 else 'number'}" for number, word in enumerate(words)]
    (tmp_path / "kinds.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "mine.py").write_text(
        "from util.prompts.classification import Task\n"
        "rows = [(x + 'b', 'Foo') for x in 'acde'] + [('b' + x, 'Bar') for x in 'acde']\n"
        "ends = Task('ends', tuple(rows), ('Foo', 'Bar'))\n"
    )
    few = [*FEW, "--heads", "L2H6", "--out"]
    main(["ablate", "--task", "trec,kinds.csv,mine.py:ends", *few, str(tmp_path / "out")])
    result, rows = written(tmp_path / "out")
    assert [*result["results"]["tasks"]] == ["trec", "kinds", "ends"] and len(rows) == 3 * 2 * 3
    trec, kinds, _ = result["request"]["studies"]
    assert (trec["data_version"], trec["task"]) == (f"StaICC {staicc_version()}", "trec")
    assert kinds["task"] == kinds["dataset"] == "kinds" and str(tmp_path) not in json.dumps(result["request"])


@pytest.mark.slow
def test_roles_are_told_of_the_heads_that_are_asked_for(tmp_path):
    main(["roles", "--heads", "L2H6,L0H0", "--out", str(tmp_path)])
    rows = pd.read_csv(tmp_path / "rows.csv").set_index(["head", "role"])
    assert len(rows) == 18 and rows.loc[("L2H6", "induction"), "verdict"] == "has the role"
    assert rows.loc[("L2H6", "induction"), "score low"] > 0.5 and (rows.loc["L0H0", "verdict"] != "has the role").all()
    main(["roles", "--out", str(tmp_path / "all")])
    every = pd.read_csv(tmp_path / "all" / "rows.csv")
    assert (every["verdict"] == "has the role").all() and {"L2H6", "L0H2"} < {*every["head"]}
