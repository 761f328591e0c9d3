"""Numbers of two runs beside each other."""

import json
import math
import re

import pytest

from tests.clone import ROOT
from util.commands.frame import main
from util.commands.stored import compared, intervals, standard_errors
from util.stats.intervals import Interval


def test_every_interval_is_found_and_lists_of_runs_are_not():
    values = {
        "accuracy": {"task": [0.5, 0.25, 0.75]},
        "map": {"value": [[1.0, None]], "low": [[0.5, None]], "high": [[2.0, None]]},
        "cost": {"accuracy": 0.5, "p": 1.0, "log_prob": 2.0, "low": 1.0, "high": 3.0},
        "curve": [[0.1, 0.0, 0.2], [3, 3, 4]],
        "random": {"1": [0.1, 0.0, 0.2]},
        "by_draw": [1.0, 1.0, 1.0],
        "shape": [1, 2, 3],
        "flags": [True, False, True],
        "paths": {"heads": [[0, 2], [1, 0]], "direct": {"value": [0.1, 0.2], "low": [0, 0.1], "high": [0.2, 0.3]}},
        "sets": dict.fromkeys(("norm-matched 1", "random 2", "FV, control 3", "top"), [0.5, 0.4, 0.6]),
    }
    assert dict(intervals(values)) == {
        ("accuracy", "task"): (0.5, 0.25, 0.75),
        ("map", 0, 0): (1.0, 0.5, 2.0),
        ("cost",): (2.0, 1.0, 3.0),
        ("curve", 0): (0.1, 0.0, 0.2),
        ("curve", 1): (3.0, 3.0, 4.0),
        ("paths", "direct", "L0H2"): (0.1, 0.0, 0.2),
        ("paths", "direct", "L1H0"): (0.2, 0.1, 0.3),
        ("sets", "top"): (0.5, 0.4, 0.6),
    }


@pytest.mark.parametrize(
    "first, second, errors",
    [
        ((0, -1.96, 1.96), (3, 3 - 1.96, 9), 3 / math.sqrt(2)),  # the sides that face each other have error 1
        ((3, 3 - 1.96, 9), (0, -1.96, 1.96), 3 / math.sqrt(2)),
        ((1, 1, 1), (1, 1, 1), 0),
        ((1, 1, 1), (2, 2, 2), math.inf),
    ],
)
def test_how_far_two_numbers_are_apart(first, second, errors):
    assert standard_errors(Interval(*first), Interval(*second)) == pytest.approx(errors)


def test_what_moved_and_which_claims_changed():
    def claims(*verdicts):
        return [{"number": number, "text": f"text {number}", "verdict": v} for number, v in enumerate(verdicts, 1)]

    judged, again = claims("holds", "cannot be told"), claims("holds", "does not hold in this model")
    first = {"a": [0.5, 0.4, 0.6], "b": [0.1, 0.0, 0.2], "only": [0, 0, 0], "claims": {"claims": judged}}
    second = {"a": [0.9, 0.8, 1.0], "b": [0.1, 0.05, 0.2], "claims": {"claims": again}}
    lines, moved = compared("figure", first, second)
    assert lines == [
        "figure: 1 of 2 numbers held; by chance at most 1 in 20 moves.",
        "  claim 2, text 2: cannot be told, now does not hold in this model",
        "  in one of the runs alone: 1",
    ]
    assert moved.to_dict("index") == {
        "a": {"first": "0.50 [0.40, 0.60]", "again": "0.90 [0.80, 1.00]", "standard errors": 5.5}
    }
    more = {"claims": {"claims": claims("holds", "holds"), "c": [0.5, 0.4, 0.6]}}
    assert compared("figure", first | more, second | more)[0][0].startswith("figure: 2 of 3 numbers held")


def test_the_command_compares_two_folders_and_names_one_without_values(tmp_path, capsys):
    """And what is said otherwise: a circuit of other pairs has numbers that hold."""
    first = ROOT / "data/values/smollm2"
    again = json.loads((first / "edge_ablation.json").read_text())
    again["search"]["kept"][0] = "y->y:earlier"
    again["search"]["scores"]["found"] = [0.2, 0.1, 0.3]
    (tmp_path / "edge_ablation.json").write_text(json.dumps(again))
    main(["replication", str(first), str(tmp_path)])
    [held, *moved, said, kept, _, circuit, draws] = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"edge_ablation: (\d+) of (?!\1)\d+ numbers held; .*", held)
    assert re.search(r"0.91 \[0.78, 1.03\] +0.20 \[0.10, 0.30\]", moved[-1])
    assert (
        said == "  said otherwise now:"
        and "keep 0.20 [0.10, 0.30]" in kept
        and "the search keeps `y->y:earlier`, `x->y:same`" in circuit
    )
    assert draws.endswith("always keeps `y->y:earlier`, `x->y:same`, `y->last_separator` and `query->last_separator`.")


def test_parts_that_chose_something_else_are_not_compared():
    part = {"effect": [1.0, 0.9, 1.1]}
    first = {"chosen": {"causal": "agnews", "other": "trec"}, "causal": part, "other": part}
    second = {"chosen": {"causal": "trec", "other": "trec"}, "causal": {"effect": [3.0, 2.9, 3.1]}, "other": part}
    held = "figure: 1 of 1 numbers held; by chance at most 1 in 20 moves."
    lines, moved = compared("figure", first, second)
    assert lines == [held, "  not compared: causal: measured on agnews, now on trec"] and moved.empty


@pytest.mark.parametrize("file", sorted((ROOT / "data/values").rglob("*.json")), ids=str)
def test_every_figures_values_can_be_compared(file):
    values = json.loads(file.read_text(encoding="utf-8"))
    lines, moved = compared(file.stem, values, values)
    assert len(lines) == 1 and moved.empty
