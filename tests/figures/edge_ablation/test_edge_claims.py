"""The claims about edges, measured at length on the embedded model, by the command line, and again from records."""

import json
import sys
from functools import partial

import numpy as np
import pytest

from util import __main__ as command_line
from util.edges import names
from util.figures.edge_ablation import claims_study as edge_claims
from util.figures.edge_ablation.claims import AMBIGUOUS, HOLDS, REFUTED, Evidence, Rule, judge
from util.figures.edge_ablation.claims_study import ClaimsStudy
from util.figures.edge_ablation.results import Search
from util.prompts import word_pairs
from util.records.model import Model


def small(model, folder, say=lambda line: None):
    return ClaimsStudy(
        model,
        ("country_capital", "capitalization"),
        prompts=3,
        donor_seeds=(0, 1),
        search_prompts=2,
        folder=folder,
        say=say,
    )


def no_model():
    raise AssertionError("a model was loaded")


def test_claims_are_measured_in_order_and_loaded_again_without_a_model(tmp_path):
    told: list[str] = []
    measured = small(Model("embedded", device="cpu", verbose=False), tmp_path, told.append).measure()
    values, claims = measured.values(), measured.verdicts.claims
    assert [claim.number for claim in claims] == [1, 2, 3, 4, 5] and values["model"] == "embedded"
    assert len(told) == 2 * 2 + 4 * 2 + 2 and told[-1].startswith("[14/14] capitalization, circuit and layers")
    second = claims[1]
    assert [part.name for part in second.parts] == ["country_capital", "capitalization"]
    assert all(part.queries == 3 for part in second.parts), "each prompt asks a query of its own"
    assert [part.available for part in second.parts] == [40, 103]
    assert claims[0].parts[0].name == f"{len(values['kept'])} of 31 pairs"
    table = measured.verdicts.table()
    assert len(table) == sum(max(1, len(claim.parts)) for claim in claims)
    again = small(Model("embedded", loader=no_model), tmp_path).measure()
    assert again.values() == values
    apart = small(Model("embedded", loader=no_model), tmp_path).replace(tasks=("country_capital",)).measure()
    assert apart.verdicts.claims[0] == claims[0], "the primary task need not be among the tasks"


def test_no_more_prompts_than_queries_are_asked(monkeypatch):
    asked = {}

    class Planned(Exception):
        pass

    def plan(sizes, say):
        asked["sizes"] = sizes
        raise Planned

    monkeypatch.setattr(edge_claims, "Progress", plan)
    for model, copying, verbs in (("embedded", 103, 87), ("given:other", 250, 250)):
        with pytest.raises(Planned):
            ClaimsStudy(model, ("copying", "country_capital"), donor_seeds=(0,)).measure()
        assert asked["sizes"][:-2] == [3 * copying, 3 * 40, *[2 * verbs] * 4]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tasks": ()}, "tasks = .*one task or more"),
        ({"tasks": ("copying", "copying")}, "tasks = .*twice"),
        ({"tasks": ("coping",)}, "tasks = 'coping': choose from copying"),
        ({"tasks": (AMBIGUOUS,)}, "tasks = 'ambiguous_present_past': choose from"),
        ({"primary": "nothing"}, "primary = 'nothing': choose from"),
        ({"prompts": 0}, "prompts = 0"),
        ({"search_prompts": 0}, "search_prompts = 0"),
        ({"k": 4}, "k = 4: .*out of 10"),
        ({"k": True}, "k = True"),
        ({"seed": -1}, "seed = -1"),
        ({"donor_seeds": ()}, "donor_seeds = .*one number or more"),
        ({"donor_seeds": (1, 1)}, "donor_seeds = .*twice"),
        ({"rule": 5}, "rule = 5"),
    ],
)
def test_what_cannot_be_measured_is_refused_when_a_study_is_built(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ClaimsStudy("given:toy", **wrong)


@pytest.mark.parametrize("margin", [0, 1, -0.1, "a", True])
def test_a_margin_is_a_share(margin):
    with pytest.raises(ValueError, match="^margin = "):
        Rule(margin=margin)


def test_250_distinct_queries_can_be_asked_where_english_has_them():
    counts = {name: len(word_pairs.find(name).queries("test")) for name in word_pairs.names()}
    assert min(counts[name] for name in ("copying", "capitalization", "present_past")) >= 250


def test_verdicts_follow_the_rule_that_is_handed_over():
    number = np.arange(40)

    def row(wrong):
        return {"right": np.tile(number >= wrong, (2, 1)), "query": number}

    rows = {"FULL": row(0), "AGG-ONLY": row(0), "CTX+AGG": row(0), "found": row(0)}
    rows |= dict.fromkeys(names.halves(5), row(4))
    there = {"copying": 103, AMBIGUOUS: 87}
    evidence = Evidence({"copying": rows}, rows, 2, {0: rows, 4: rows}, rows, 5, "copying", there, trained=True)
    loose, strict = (judge(evidence, Rule(margin=margin)).claims for margin in (0.3, 0.01))
    assert [claim.verdict for claim in loose][:2] == [HOLDS, REFUTED] and loose[4].verdict == HOLDS
    assert strict[4].verdict != HOLDS and names.halves(5) == ("CONTEXT from 2", "AGG below 2")


def test_progress_counts_only_what_was_not_cached(monkeypatch):
    told: list[str] = []
    clock = [0.0]
    monkeypatch.setattr(edge_claims.time, "monotonic", lambda: clock[0])
    progress = edge_claims.Progress([100, 100, 200, 50], told.append)

    def takes(seconds):
        clock[0] += seconds
        return seconds

    assert [progress.run(name, partial(takes, s)) for name, s in (("a", 0.1), ("b", 60), ("c", 120))] == [
        0.1,
        60,
        120,
    ]
    progress.run("d", lambda: takes(30))
    assert told == [
        "[1/4] a: 0 s",
        "[2/4] b: 60 s; at most about 2 min left",
        "[3/4] c: 120 s; less than a minute left",
        "[4/4] d: 30 s",
    ]


def test_the_command_writes_values_with_every_part(monkeypatch, tmp_path, capsys):
    def measure(study):
        asked = (study.model.name, study.prompts, study.donor_seeds, study.search_prompts, study.model.dtype)
        assert asked == ("embedded", 7, (4,), 64, "auto")
        number = np.arange(40)
        rows = {
            name: {"right": number[None] >= 0, "query": number} for name in ("FULL", "AGG-ONLY", "CTX+AGG", "found")
        }
        rows |= dict.fromkeys(names.halves(4), rows["FULL"])
        there = dict.fromkeys((*study.tasks, AMBIGUOUS), 100)
        tasks = dict.fromkeys(study.tasks, rows)
        evidence = Evidence(tasks, rows, 2, {0: rows}, rows, 4, study.primary, there, trained=True)
        return edge_claims.Measured(study, "a model", Search((), {}, ()), judge(evidence))

    monkeypatch.setattr(ClaimsStudy, "measure", measure)
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--prompts", "7", "--donors", "4"])
    command_line.main()
    printed = capsys.readouterr().out
    assert "1. few edges explain 90%: holds" in printed and "2. without contextualisation" in printed
    values = json.loads((tmp_path / "data" / "values" / "edge_claims.json").read_text())
    assert [claim["verdict"] for claim in values["claims"]][:2] == ["holds", "refuted"]
    part = values["claims"][1]["parts"][0]
    assert {"value", "low", "high", "bound", "queries", "needed", "available", "verdict"} <= {*part}
    assert [*values] == ["model", "about", "settings", "rule", "kept", "claims"]
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--tasks", "nothing"])
    with pytest.raises(SystemExit):
        command_line.main()
