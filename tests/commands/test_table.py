"""The table of the reference repositories' commands and ours: every line of it runs, and gives the study's numbers."""

import json
import shlex
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from tests import authors_clone
from tests.clone import text
from tests.commands.test_edge_configs import contents, result
from util.commands import edge_configs as configs
from util.commands.frame import COMMANDS, main
from util.figures.edits import INTACT, Edit
from util.figures.task_study import TaskStudy
from util.roles.sequences_study import SequenceStudy
from util.show.files import plain
from util.stats.heads import layer_matched, top
from util.stats.intervals import accuracy
from util.study import model as model_room
from util.study import records
from util.study.checked import as_list
from util.study.study import Study

PAGE = text("util/commands/README.md")
TABLE = PAGE.split("\n## ")[1]  # the first section
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.splitlines() if line[:2] == "| "][1:]
OURS = [ours.strip("`") for _, _, ours, _ in ROWS]
SMALL = {  # flags that make a run small; the last one of a kind counts
    "scores": ["--sequences", "2"],
    "means": ["--reference-prompts", "8"],
    "ablate": ["--prompts", "4", "--reference-prompts", "8"],
    "knockout": ["--prompts", "4"],
    "forerunner": ["--prompts", "4"],
    "ioi": ["--prompts", "8"],
    "evaluate": ["--limit", "2"],  # the harness's own, behind its --
}
MODELS = {"meta-llama/Meta-Llama-3-8B", "gpt2-large"}  # that the embedded model stands for


def words_of(command):
    program, util, name, *words = shlex.split(command)[1:]
    assert (program, util) == ("-m", "util")
    for model in MODELS:
        words = [word.replace(model, "embedded") for word in words]
    return name, words


def flag(words, name, default=None):
    return words[words.index(f"--{name}") + 1] if f"--{name}" in words else default


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the config that a line reads, and the clone."""
    folder = tmp_path_factory.mktemp("table")
    config = {**configs.EXAMPLES[0], "out_dir": str(folder / "edges")}
    (folder / "CONFIG.json").write_text(json.dumps(config))
    authors_clone.write(folder / "Induction_Heads_ICL")
    return folder


@pytest.mark.parametrize("number", [
    pytest.param(number, id=command[:60], marks=[pytest.mark.slow] * ("ablate" in command and "repetition" in command))
    for number, command in enumerate(OURS)
])  # fmt: skip
def test_every_line_of_the_table_runs(number, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    name, words = words_of(OURS[number])
    out = place / ("edges" if name == "edges" else f"{number}")
    if name == "evaluate":
        pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: make test-harness")
        main([name, "--seed", "42", *words, *SMALL[name], "--output_path", str(out)])
        assert json.loads((out / "means.json").read_text())["acc"].keys() >= {*flag(words, "tasks").split(",")}
        return  # the numbers: tests/extras/test_harness_numbers.py
    if name == "means":
        main([name, *words, *SMALL[name]])
        lines = capsys.readouterr().out.splitlines()
        made = [records.decode(Path(line).read_bytes()).request for line in lines if line.endswith(".pickle")]
        assert [(one["part"], one["mode"], one["reference_prompts"]) for one in made] == [
            ("means", "mean", 8), ("means", "input_mean", 8)
        ]  # fmt: skip
        return
    argv = [name, *words] if name == "edges" else [name, *words, *SMALL[name], "--out", str(out)]
    main(argv)
    found = result(out)
    assert found["results"] and found["provenance"]["revision"] and capsys.readouterr().out
    CHECKS[name](words, found, pd.read_csv(out / "rows.csv", float_precision="round_trip"))
    first = contents(out)
    assert any(file.endswith(".png") for file in first) == ("--figure" in words)
    monkeypatch.setattr(model_room, "load_ICL_model", None)  # the second time, no model is loaded
    main(argv)
    assert contents(out) == first


def test_every_command_that_measures_is_in_the_table():
    named = {words_of(command)[0] for command in OURS}
    assert named | {"look", "roles"} == {
        name for module, commands in COMMANDS.items() for name in commands if module != "stored"
    }
    assert all(theirs and differs for _, theirs, _, differs in ROWS)


# ------------------------------------------------------------------------------------------------ the same numbers


def check_scores(words, result, rows):
    scores = SequenceStudy("embedded", sequences=2).scores()
    assert result["results"]["scores"]["bansal"]["value"] == scores.intervals("bansal").value.tolist()
    assert result["results"]["best"]["0.01"] == [list(head) for head in top(scores.mean(), 1)]
    assert rows["prefix_matching"].tolist() == scores.mean().ravel().tolist()
    assert [*zip(rows["layer"], rows["head"], strict=True)] == list(np.ndindex(4, 8))


def chosen_heads(words):
    score = SequenceStudy("embedded").scores().mean()
    chosen = top(score, {"0.01": 1, "0.03": 1}[flag(words, "top")])
    seed = flag(words, "random")
    return chosen if seed is None else layer_matched(chosen, score < 0.3, 1, int(seed))[0]


def check_answers(words, result, rows, edit, **means):
    heads = chosen_heads(words)
    ((name, edited),) = result["results"]["heads"].items()
    assert edited == [list(head) for head in heads]
    seeds = [int(seed) for seed in flag(words, "seed", "42").split(",")]
    for task, (title, made) in product(
        as_list(flag(words, "task")), {"whole model": INTACT, name: edit(heads)}.items()
    ):
        right = []
        for seed in seeds:
            study = TaskStudy("embedded", task, int(flag(words, "k", 10)), 4, seed, **means)
            answers, labels = study.answers({"one": made})["one"], study.classes.labels
            lines = rows[(rows["task"] == task) & (rows["edit"] == title) & (rows["seed"] == seed)]
            columns = [f"log_prob {label}" for label in labels]
            assert_array_equal(lines[columns], answers["log_prob"].astype(np.float64))
            assert lines["right"].tolist() == answers["right"].tolist()
            assert lines["gold"].tolist() == [labels[place] for place in answers["gold"]]
            right.append(answers["right"])
        assert result["results"]["tasks"][task][title]["accuracy"] == list(accuracy(np.stack(right)))


def check_ablate(words, result, rows):
    check_answers(
        words, result, rows, lambda heads: Edit.ablate(heads, flag(words, "mode")),
        reference_prompts=8, reference=flag(words, "reference", "task"), data=flag(words, "data"),
    )  # fmt: skip


def check_knockout(words, result, rows):
    check_answers(words, result, rows, Edit.knock_out)


def check_forerunner(words, result, rows):
    study = Study("forerunner_heads", prompts=4, untrained_control=False)
    values = plain(study.values_of("counts", "paper_layers"))
    for series, counts in values["counts"].items():
        assert rows.loc[rows["series"] == series, "count"].tolist() == np.ravel(counts).tolist()
    assert result["results"] == {name: values.get(name, numbers) for name, numbers in result["results"].items()}
    assert result["results"]["mean_head_count"]["correct"].keys() >= {"mean", "low", "high"}


def check_ioi(words, result, rows):
    own = {}
    if "--base" in words:
        own = {"texts": (flag(words, "base"), flag(words, "source")), "names": flag(words, "names").split(",")}
    study = Study("ioi_patching", "embedded", prompts=8, untrained_control=False, **own)
    example, population = study.numbers("p1"), study.numbers("population")["population"]
    columns = {"noised": population["noised"]["value"], "example patched": example["patched"]}
    for column, values in columns.items():
        assert rows[column].tolist() == values.astype(np.float64).ravel().tolist()
    assert result["results"]["example"]["scores"] == example["scores"].tolist()


def check_edges(words, result, rows):
    (config,) = configs.load(Path("CONFIG.json"))
    assert result["request"] == {**result["request"], **json.loads(json.dumps(config.plain()))}
    assert {*rows["ablation"]} == {"FULL"}


CHECKS = {
    "scores": check_scores,
    "ablate": check_ablate,
    "knockout": check_knockout,
    "forerunner": check_forerunner,
    "ioi": check_ioi,
    "edges": check_edges,
}
