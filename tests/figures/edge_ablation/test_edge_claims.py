"""The claims about edges, measured at length on the embedded model, by the command line, and again from records."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.figures.induction_scores.made_up_shots import arrays
from tests.unloaded import unloaded
from util import __main__ as command_line
from util.figures.edge_ablation import measure
from util.figures.edge_ablation.numbers import AMBIGUOUS
from util.figures.induction_scores import measure as induction_measure
from util.show import files
from util.stats.verdicts import HOLDS, NO_PREMISE, NOT_DONE, Claim, Effect, judged
from util.study.study import Study


def study_of(model, folder=None, tasks=("country_capital", "capitalization"), **settings):
    given = {"prompts": 3, "donor_seeds": (0, 1), "search_prompts": 2, "untrained_control": False, **settings}
    return Study("edge_ablation", model, folder=folder, tasks=tasks, **given)


@pytest.mark.slow
def test_claims_are_measured_in_order_and_loaded_again_without_a_model(embedded, tmp_path, monkeypatch):
    undone = measure.judge(study_of(embedded, tmp_path))
    # the embedded model says the same with permuted demonstrations: it looks up what it was trained on
    assert {claim.verdict for claim in undone["claims"]} == {NOT_DONE} and undone["kept by draw"] == []
    assert {check.done for check in undone["checks"].values()} == {False}
    monkeypatch.setattr(measure.PairTask, "check", lambda study, candidates: SimpleNamespace(done=True))
    values = measure.judge(study_of(embedded, tmp_path))
    measured = values["claims"]
    assert [claim.number for claim in measured] == [1, 2, 3, 4, 5] and values["model"] == "embedded"
    assert NOT_DONE not in {claim.verdict for claim in measured}
    third = measured[2].parts[0]
    assert third.name == "country_capital, capitalization"
    assert (third.queries, third.available) == (3, 40), "each prompt asks a query of its own"
    assert measured[3].parts[0].name == "7 against 0 ambiguous"
    assert measured[0].parts[1].name == "beyond 20 random circuits"
    assert len(values["kept by draw"]) == 2, "a circuit for each draw of donors"
    assert all("query->last_separator" in kept for kept in values["kept by draw"])
    assert values["published"]["1"]["value"] == pytest.approx(0.1)
    assert measure.judge(unloaded(study_of(embedded, tmp_path))) == values


def test_no_more_prompts_than_queries_are_asked():
    for model, copying, verbs in (("embedded", 103, 87), ("given:other", 250, 250)):
        study = study_of(model, prompts=250)
        prompts = [measure.own_queries(study, task)["prompts"] for task in ("copying", "country_capital", AMBIGUOUS)]
        assert prompts == [copying, 40, verbs] and measure.own_queries(study, "copying", 64, "search")["prompts"] == 64


def test_the_command_writes_the_verdicts_into_the_values_file(output, monkeypatch, capsys):
    def judged_of(study):
        asked = study.settings
        assert (asked.primary_task, asked.prompts, asked.donor_seeds) == ("capitalization", 7, (0, 1, 2))
        part = judged("copying", Effect.of((np.ones(40), 1.0)), 0.1, above=True)
        return {"claims": (Claim(1, "circuits explain", HOLDS, (part,)), Claim(2, "tasks differ", NO_PREMISE))}

    def no_tasks(study):
        asked = study.settings
        assert (asked.prompts, asked.shots, asked.control_sets, asked.other_sets) == (7, (0, 10), 20, 20)
        return arrays()

    monkeypatch.setattr(measure, "judge", judged_of)
    monkeypatch.setattr(induction_measure, "shots", no_tasks)
    file = files.save_values({"request": 1}, "edge_ablation")
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--prompts", "7"])
    command_line.main()
    printed, values = capsys.readouterr().out, json.loads(file.read_text())
    assert "1. circuits explain" in printed and " holds " in printed
    assert [*values] == ["request", "claims"]
    stored = values["claims"]["claims"]
    assert [claim["verdict"] for claim in stored] == ["holds", "premise not met"]
    induction = json.loads(file.with_name("induction_scores.json").read_text())
    assert [claim["verdict"] for claim in induction["claims"]["claims"]].count("task not done") == 3
