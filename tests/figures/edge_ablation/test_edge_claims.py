"""The claims about edges, measured at length on the embedded model, by the command line, and again from records."""

import json
import sys
from functools import partial

import numpy as np
import pytest

from util import __main__ as command_line
from util.figures.edge_ablation import claims_study as edge_claims
from util.figures.edge_ablation.claims import HOLDS, REFUTED, Rule
from util.load_model_and_data import load_ICL_model
from util.prompts import word_pairs


def small(source, folder, say=lambda line: None):
    return edge_claims.measure(
        tasks=("country_capital", "capitalization"),
        prompts=3,
        donor_seeds=(0, 1),
        search_prompts=2,
        source=source,
        folder=folder,
        say=say,
    )


def test_claims_are_measured_in_order_and_loaded_again_without_a_model(tmp_path):
    told: list[str] = []
    values = small(load_ICL_model("embedded", device="cpu", verbose=False), tmp_path, told.append)
    assert [claim.number for claim in values["claims"]] == [1, 2, 3, 4, 5] and values["model"] == "embedded"
    assert len(told) == 2 * 2 + 4 * 2 + 2 and told[-1].startswith("[14/14] capitalization, circuit and layers")
    second = values["claims"][1]
    assert [part.name for part in second.parts] == ["country_capital", "capitalization"]
    assert all(part.queries == 3 for part in second.parts), "each prompt asks a query of its own"
    assert [part.available for part in second.parts] == [40, 103]
    assert values["claims"][0].parts[0].name == f"{len(values['kept'])} of 31 pairs"

    def no_model():
        raise AssertionError("a model was loaded")

    assert small(no_model, tmp_path) == values


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
            edge_claims.measure(model, ("copying", "country_capital"), donor_seeds=(0,))
        assert asked["sizes"][:-2] == [3 * copying, 3 * 40, *[2 * verbs] * 4]


def test_250_distinct_queries_can_be_asked_where_english_has_them():
    counts = {name: len(word_pairs.find(name).queries("test")) for name in word_pairs.names()}
    assert min(counts[name] for name in ("copying", "capitalization", "present_past")) >= 250


def test_verdicts_follow_the_rule_that_is_handed_over():
    number = np.arange(40)

    def row(wrong):
        return {"right": np.tile(number >= wrong, (2, 1)), "query": number}

    rows = {"FULL": row(0), "AGG-ONLY": row(0), "CTX+AGG": row(0), "found": row(0)}
    rows |= dict.fromkeys(edge_claims.half_windows(5), row(4))
    asked = ("embedded", {"copying": rows}, rows, 2, {0: rows, 4: rows}, rows, 5, "copying")
    loose, strict = (edge_claims.verdicts(*asked, rule=Rule(margin=margin)) for margin in (0.3, 0.01))
    assert [claim.verdict for claim in loose][:2] == [HOLDS, REFUTED] and loose[4].verdict == HOLDS
    assert strict[4].verdict != HOLDS and edge_claims.half_windows(5) == ("CONTEXT from 2", "AGG below 2")


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
    def measured(model, tasks, prompts, donors, primary, search_prompts, **options):
        assert (model, prompts, donors, search_prompts) == ("embedded", 7, [4], 64) and options["dtype"] == "auto"
        number = np.arange(40)
        rows = {
            name: {"right": number[None] >= 0, "query": number} for name in ("FULL", "AGG-ONLY", "CTX+AGG", "found")
        }
        rows |= dict.fromkeys(edge_claims.half_windows(4), rows["FULL"])
        return {"claims": edge_claims.verdicts(model, dict.fromkeys(tasks, rows), rows, 2, {0: rows}, rows, 4, primary)}

    monkeypatch.setattr(edge_claims, "measure", measured)
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--prompts", "7", "--donors", "4"])
    command_line.main()
    printed = capsys.readouterr().out
    assert "1. few edges explain 90%: holds" in printed and "2. without contextualisation" in printed
    values = json.loads((tmp_path / "data" / "values" / "edge_claims.json").read_text())
    assert [claim["verdict"] for claim in values["claims"]][:2] == ["holds", "refuted"]
    part = values["claims"][1]["parts"][0]
    assert {"value", "low", "high", "bound", "queries", "needed", "available", "verdict"} <= {*part}
    monkeypatch.setattr(sys, "argv", ["util", "claims", "embedded", "--tasks", "nothing"])
    with pytest.raises(SystemExit):
        command_line.main()
