"""The command line, and the Python entry: what they run, write and print, and what they refuse."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")

import lm_eval.evaluator  # noqa: E402
import lm_eval.tasks  # noqa: E402

from util.commands.frame import app  # noqa: E402
from util.figures.edits import Edit  # noqa: E402
from util.figures.task_study import TaskStudy  # noqa: E402

HEADS = [[2, 1], [2, 2], [3, 0]]
HARNESS = ["--", "--model_args", "pretrained=embedded", "--batch_size", "4", "--limit", "4", "--num_fewshot", "3"]


@pytest.fixture
def quick(monkeypatch):
    """Without the harness's own tasks, which it takes seconds to list, and its report on the machine."""
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", partial(lm_eval.tasks.TaskManager, include_defaults=False))
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)


@pytest.fixture
def heads(material, tmp_path):
    """A file of heads, in a folder that also gets the records."""
    file = tmp_path / "heads.json"
    file.write_text(json.dumps(HEADS))
    return str(file)


def run(*argv):
    app(["evaluate", *argv], exit_on_error=False, print_error=False)


def results_in(folder):
    (file,) = folder.rglob("results_*.json")
    return json.loads(file.read_text())


def test_a_run_prints_the_harnesss_tables_and_means_over_seeds_and_writes_what_was_done(
    heads, embedded, tmp_path, capsys, quick
):
    out = tmp_path / "out"
    harness = [*HARNESS, "--tasks", "icl_wordseq1,icl_repetition", "--output_path", str(out)]
    run("--heads", heads, "--mode", "mean", *harness)
    printed = capsys.readouterr().out
    assert printed.count("|icl_wordseq1  |") == 3  # the harness's own tables
    edit = Edit.ablate(HEADS)
    means = json.loads((out / "means.json").read_text())
    for task in ("wordseq1", "repetition"):
        studies = [TaskStudy(embedded, task, 3, 4, seed) for seed in (42, 43, 44)]
        right = [study.answers({"": edit})[""]["right"].mean() for study in studies]
        row = means["acc"][f"icl_{task}"]
        assert [row[f"seed {seed}"] for seed in (42, 43, 44)] == right
        assert_allclose(row["mean"], np.mean(right))
        assert f"icl_{task}" in printed.splitlines()[-1] + printed.splitlines()[-2]
    for seed in (42, 43, 44):
        written = results_in(out / f"seed_{seed}")
        assert written["config"]["fewshot_seed"] == seed
        intervention = written["config"]["intervention"]
        assert intervention["edit"] == {"ablate": HEADS, "mode": "mean"} and intervention["model"] == "embedded"
        assert intervention["reference"]["seed"] == seed and intervention["reference"]["k"] == 3
        assert intervention["provenance"]["versions"]["lm_eval"] and intervention["provenance"]["weights"]


def test_the_harness_as_it_is(heads, capsys):
    """The one run with all of its own tasks and reports."""
    run("--seed", "9", *HARNESS, "--tasks", "icl_wordseq1")
    assert "seed 9" in capsys.readouterr().out.splitlines()[-2]


@pytest.mark.parametrize(
    "ours, harness, said",
    [
        (["--heads", "L2H1"], [], "say what is done to heads"),
        (["--random", "3"], [], "say what is done to heads"),
        (["--reference-data", "/nowhere", "--reference", "mnli"], [], "there is no"),
        ([], ["--use_cache", "answers"], "use_cache: .* leave it out"),
        ([], ["--cache_requests", "true"], "cache_requests: .* leave it out"),
        ([], ["--model", "hf"], "--model hf: leave it out"),
        ([], ["--seed", "3"], "the harness's --seed: leave it out"),
    ],
)
def test_flags_that_do_not_fit_together(ours, harness, said, counted, quick):
    with pytest.raises(ValueError, match=said):
        run(*ours, *HARNESS, "--tasks", "icl_wordseq1", *harness)
    with pytest.raises(ValueError, match="--model_args pretrained=smollm2"):
        run("--", "--tasks", "icl_wordseq1")
    assert not counted
