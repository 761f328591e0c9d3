"""The claims about edges, measured at length on the embedded model, by the command line, and again from records."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from util import __main__ as command_line
from util.edges import names
from util.figures import report
from util.figures.edge_ablation import more_queries
from util.figures.edge_ablation.claims import AMBIGUOUS, RULE, Rule, judge
from util.figures.edge_ablation.more_queries import claims, task_study
from util.figures.edge_ablation.study import Study
from util.figures.induction_scores.study import Study as InductionStudy
from util.prompts import word_pairs
from util.records.model import Model
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS, NOT_DONE, Claim, Verdicts


def small(model, folder, tasks=("country_capital", "capitalization")):
    return claims(Study(model, "capitalization", prompts=3, donor_seeds=(0, 1), folder=folder), tasks, search_prompts=2)


def no_model():
    raise AssertionError("a model was loaded")


def test_claims_are_measured_in_order_and_loaded_again_without_a_model(tmp_path):
    values = small(Model("embedded", device="cpu", verbose=False), tmp_path)
    measured = values["claims"]
    assert [claim.number for claim in measured] == [1, 2, 3, 4, 5] and values["model"] == "embedded"
    second = measured[1]
    assert [part.name for part in second.parts] == ["country_capital", "capitalization"]
    assert all(part.queries == 3 for part in second.parts), "each prompt asks a query of its own"
    assert [part.available for part in second.parts] == [40, 103]
    assert measured[0].parts[0].name == f"{len(values['kept'])} of 31 pairs"
    assert values["settings"] == {
        "prompts": 3, "k": 10, "donor_seeds": [0, 1], "primary": "capitalization", "search_prompts": 2,
    }  # fmt: skip
    table = Verdicts(measured).table()
    assert len(table) == sum(max(1, len(claim.parts)) for claim in measured)
    assert small(Model("embedded", loader=no_model), tmp_path) == values
    apart = small(Model("embedded", loader=no_model), tmp_path, ("country_capital",))
    assert apart["claims"][0] == measured[0], "the primary task need not be among the tasks"


def test_no_more_prompts_than_queries_are_asked():
    for model, copying, verbs in (("embedded", 103, 87), ("given:other", 250, 250)):
        study = Study(model, "copying", prompts=250)
        prompts = [task_study(study, task).prompts for task in ("copying", "country_capital", AMBIGUOUS)]
        assert prompts == [copying, 40, verbs] and task_study(study, "copying", 64, "search").prompts == 64


def test_the_requests_of_claims_are_those_of_the_records():
    study = Study("given:toy", "copying", prompts=7, donor_seeds=(4, 5))
    given = Study(
        "given:toy", AMBIGUOUS, prompts=7, donor_seeds=(4,), ambiguous=4, split="test", two_pass=True, in_turn=True
    )
    assert task_study(study, AMBIGUOUS, ambiguous=4).request == given.request


@pytest.mark.parametrize("margin", [0, 1, -0.1, "a", True])
def test_a_margin_is_a_share(margin):
    with pytest.raises(ValueError, match="^margin = "):
        Rule(margin=margin)


def test_250_distinct_queries_can_be_asked_where_english_has_them():
    counts = {name: len(word_pairs.find(name).queries("test")) for name in word_pairs.names()}
    assert min(counts[name] for name in ("copying", "capitalization", "present_past")) >= 250


def judged(rule, tasks, rows, counts, layers, askable):
    return judge(
        rule, dict.fromkeys(tasks, rows), primary=tasks[0], circuit=rows, kept=2, ambiguous=dict.fromkeys(counts, rows),
        halves=rows, layers=layers, askable=askable, trained=True,
    )  # fmt: skip


def test_verdicts_follow_the_rule_that_is_handed_over():
    number = np.arange(40)

    def row(wrong):
        return {"right": np.tile(number >= wrong, (2, 1)), "query": number}

    rows = {"FULL": row(0), "AGG-ONLY": row(0), "CTX+AGG": row(0), "found": row(0)}
    rows |= dict.fromkeys(names.halves(5), row(4))
    there = {"copying": 103, AMBIGUOUS: 87}
    loose, strict = (judged(Rule(margin=margin), ("copying",), rows, [0, 4], 5, there).claims for margin in (0.3, 0.01))
    assert [claim.verdict for claim in loose][:2] == [HOLDS, DOES_NOT_HOLD] and loose[4].verdict == HOLDS
    assert strict[4].verdict != HOLDS and names.halves(5) == ("CONTEXT from 2", "AGG below 2")


@pytest.mark.parametrize(
    ("arguments", "output", "words"),
    [
        (["claims", "./no/model"], "", "could not load './no/model'"),
        (["claims", "embedded/none"], "", "no embedded model 'none'"),
        (["claims", "embedded"], "file", "cannot make .*choose another folder with ICL_OUTPUT"),
        (["edges", "none.json"], "", "cannot run none.json"),
    ],
)
def test_what_a_user_can_mend_is_said_without_a_traceback(arguments, output, words, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path / output))
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))
    monkeypatch.setattr(sys, "argv", ["util", *arguments])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 1 and re.search(words, capsys.readouterr().err)
    assert not [*tmp_path.rglob("*.pickle")]


def test_the_command_writes_values_with_every_part(monkeypatch, tmp_path, capsys):
    def measured(study):
        settings = (study.model.name, study.task, study.prompts, study.donor_seeds, study.k, study.model.dtype)
        assert settings == ("embedded", "capitalization", 7, (0, 1, 2), 10, "auto")
        number = np.arange(40)
        rows = {
            name: {"right": number[None] >= 0, "query": number} for name in ("FULL", "AGG-ONLY", "CTX+AGG", "found")
        }
        rows |= dict.fromkeys(names.halves(4), rows["FULL"])
        tasks = ("capitalization", "copying")
        return {"claims": judged(RULE, tasks, rows, [0], 4, dict.fromkeys((*tasks, AMBIGUOUS), 100)).claims}

    def no_benefits(study):
        assert (study.prompts, study.text_tasks, study.untrained_control) == (7, (), False)
        return SimpleNamespace(claims=lambda: {"claims": (Claim(1, "a claim", NOT_DONE, ()),)})

    monkeypatch.setattr(more_queries, "claims", measured)
    monkeypatch.setattr(InductionStudy, "benefits", no_benefits)
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    file = report.save_values({"request": 1, "verdicts": []}, "edge_ablation")
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--prompts", "7", "--text-tasks"])
    command_line.main()
    printed = capsys.readouterr().out
    assert "1. few edges explain 90% " in printed and " holds " in printed and "2. without contextualisation" in printed
    values = json.loads(file.read_text())
    assert [*values] == ["request", "verdicts", "claims"]
    stored = values["claims"]["claims"]
    assert [claim["verdict"] for claim in stored][:2] == ["holds", "does not hold in this model"]
    part = stored[1]["parts"][0]
    assert {"value", "low", "high", "bound", "queries", "needed", "available", "verdict"} <= {*part}
    induction = json.loads(file.with_name("induction_scores.json").read_text())
    assert induction["claims"]["claims"][0]["text"] == "a claim"
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--text-tasks", "nothing"])
    with pytest.raises(SystemExit):
        command_line.main()
