"""The claims about edges, measured at length on the embedded model, by the command line, and again from records."""

import json
import re
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from util.figures.edge_ablation.more_queries import claims, own_queries

from tests.figures.induction_scores.made_up_shots import arrays
from util import __main__ as command_line
from util.figures.edge_ablation import more_queries
from util.figures.edge_ablation.claims import AMBIGUOUS
from util.figures.forerunner_heads import more_prompts as more_labels
from util.figures.induction_scores import measure
from util.prompts import word_pairs
from util.show import files
from util.stats.verdicts import HOLDS, NO_PREMISE, NOT_DONE, Claim, Effect, judged
from util.study.model import Model
from util.study.study import Study


def study_of(model, folder=None, tasks=("country_capital", "capitalization"), **settings):
    given = {"prompts": 3, "donor_seeds": (0, 1), "search_prompts": 2, "untrained_control": False, **settings}
    return Study("edge_ablation", model, folder=folder, tasks=tasks, **given)


def small(model, folder):
    return claims(study_of(model, folder))


def no_model():
    raise AssertionError("a model was loaded")


def test_claims_are_measured_in_order_and_loaded_again_without_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr(more_queries.PairTask, "check", lambda study, candidates: SimpleNamespace(done=True))
    values = small(Model("embedded", device="cpu", verbose=False), tmp_path)
    measured = values["claims"]
    assert [claim.number for claim in measured] == [1, 2, 3, 4, 5] and values["model"] == "embedded"
    assert NOT_DONE not in {claim.verdict for claim in measured}
    third = measured[2].parts[0]
    assert third.name == "country_capital, capitalization"
    assert (third.queries, third.available) == (3, 40), "each prompt asks a query of its own"
    assert [part.name for part in measured[3].beside] == ["0 ambiguous", "7 ambiguous"]
    assert measured[0].parts[1].name == "beyond 20 random circuits"
    assert values["settings"] == {
        "prompts": 3, "k": 10, "donor_seeds": (0, 1), "primary": "capitalization", "search_prompts": 2,
        "random_circuits": 20,
    }  # fmt: skip
    assert len(values["kept by draw"]) == 2, "a circuit for each draw of donors"
    assert all("query->last_separator" in kept for kept in values["kept by draw"])
    assert values["published"]["1"]["value"] == pytest.approx(0.1)
    assert small(Model("embedded", loader=no_model), tmp_path) == values


def test_without_a_task_that_is_done_nothing_more_is_measured(tmp_path):
    """The embedded model says the same with permuted demonstrations: it looks up what it was trained on."""
    found = small(Model("embedded", device="cpu", verbose=False), tmp_path)
    assert {claim.verdict for claim in found["claims"]} == {NOT_DONE} and found["kept by draw"] == []
    assert {check.done for check in found["checks"].values()} == {False}


def test_no_more_prompts_than_queries_are_asked():
    for model, copying, verbs in (("embedded", 103, 87), ("given:other", 250, 250)):
        study = study_of(model, prompts=250)
        prompts = [own_queries(study, task)["prompts"] for task in ("copying", "country_capital", AMBIGUOUS)]
        assert prompts == [copying, 40, verbs] and own_queries(study, "copying", 64, "search")["prompts"] == 64


def test_250_distinct_queries_can_be_asked_where_english_has_them():
    counts = {name: len(word_pairs.find(name).queries("test")) for name in word_pairs.names()}
    assert min(counts[name] for name in ("copying", "capitalization", "present_past")) >= 250


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
        given = study.settings
        settings = (study.model.name, given.primary_task, given.prompts, given.donor_seeds, given.k, study.model.dtype)
        assert settings == ("embedded", "capitalization", 7, (0, 1, 2), 10, "auto")
        part = judged("copying", Effect.of((np.ones(40), 1.0)), 0.1, above=True)
        return {"claims": (Claim(1, "circuits explain", HOLDS, (part,)), Claim(2, "tasks differ", NO_PREMISE))}

    def no_tasks(study):
        asked = study.settings
        assert (asked.prompts, asked.untrained_control, asked.shots) == (7, False, (0, 10))
        assert (asked.control_sets, asked.other_sets) == (20, 20)
        return arrays()

    monkeypatch.setattr(more_queries, "claims", measured)
    monkeypatch.setattr(measure, "shots", no_tasks)
    monkeypatch.setattr(more_labels, "copying", partial(more_labels.copying, choice_prompts=8))
    for name, value in {"DATASETS": ("agnews",), "MOST": 4, "KS": (1,), "SEEDS": 1}.items():
        monkeypatch.setattr(more_labels, name, value)
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    file = files.save_values({"request": 1}, "edge_ablation")
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--prompts", "7"])
    command_line.main()
    printed = capsys.readouterr().out
    assert "1. circuits explain" in printed and " holds " in printed and "2. tasks differ" in printed
    values = json.loads(file.read_text())
    assert [*values] == ["request", "claims"]
    stored = values["claims"]["claims"]
    assert [claim["verdict"] for claim in stored] == ["holds", "premise not met"]
    part = stored[0]["parts"][0]
    assert {"value", "low", "high", "bound", "queries", "needed", "available", "verdict"} <= {*part}
    induction = json.loads(file.with_name("induction_scores.json").read_text())
    assert [claim["verdict"] for claim in induction["claims"]["claims"]].count("task not done") == 4
    copied = json.loads(file.with_name("forerunner_heads.json").read_text())["claims"]
    assert copied["settings"] == {"prompts": 7, "seeds": [0]} and "agnews, k = 4" in copied["changes"]
