"""Verdicts on the claims about edges, on made-up answers."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from util.figures.edge_ablation import claims
from util.figures.edge_ablation.claims import Rule
from util.stats.intervals import wilson
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS, NOT_DONE, UNDECIDED

RULE = Rule(margin=0.1)


def rows(n, wrong=0, draws=3, **ablated):
    """Answers to n queries: the whole model has the first `wrong` wrong, each ablation as many more as it says."""
    number = np.arange(n)

    def row(first):
        return {"right": np.tile(number >= first, (draws, 1)), "query": number}

    return {"FULL": row(wrong), **{name.replace("_", "-"): row(wrong + more) for name, more in ablated.items()}}


def test_few_edges_can_hold_from_36_right_answers_on():
    """27 of 27 cannot: even Wilson's bound of the accuracy is .875; for 36 the chance of .9 each is below 1 in 40."""
    for n, verdict in ((27, UNDECIDED), (35, UNDECIDED), (36, HOLDS), (250, HOLDS)):
        claim = claims.few_edges(rows(n, found=0), 2, 31, RULE, available=100)
        (part,) = claim.parts
        assert claim.verdict == verdict == part.verdict and part.queries == n and part.needed == 36
        assert part.value == pytest.approx(1) and part.bound == 0.9 and (part.low > 0.9) == (n >= 36)
    assert wilson(27, 27)[0] < 0.9 and 0.9**36 < 0.025 < 0.9**35
    for available, told in ((100, "needs 36, has 100"), (None, "needs 36, has unknown")):
        [part] = claims.few_edges(rows(27, found=0), 2, 31, RULE, available=available).parts
        assert part.extent == f"27 queries; {told}"


def test_few_edges_do_not_hold_by_value_and_by_size():
    assert claims.few_edges(rows(200, found=60), 2, 31, RULE).verdict == DOES_NOT_HOLD
    large = claims.few_edges(rows(200, found=0), 16, 31, RULE)
    assert large.verdict == DOES_NOT_HOLD and "16 of 31" in large.note
    assert claims.few_edges(rows(200, found=0), 15, 31, RULE).verdict == HOLDS


def test_the_ratio_is_that_of_accuracies():
    claim = claims.few_edges(rows(100, wrong=20, found=8), 2, 31, RULE)
    assert claim.parts[0].value == pytest.approx(72 / 80)
    assert claim.verdict == UNDECIDED and claim.parts[0].needed is None


def test_a_task_that_the_whole_model_does_not_do_gets_no_verdict():
    undone = rows(100, wrong=55, found=0, AGG_ONLY=30, late=0, early=0)
    assert claims.few_edges(undone, 2, 31, RULE).verdict == NOT_DONE
    assert claims.some_lose({"a": undone}, RULE).verdict == NOT_DONE
    assert claims.more_if_ambiguous({0: undone, 4: undone}, 10, RULE).verdict == NOT_DONE
    assert claims.more_if_ambiguous({0: undone}, 10, RULE).note == "the whole model: 0.45 of 100 queries"
    assert claims.first_then(undone, "late", "early", RULE).verdict == NOT_DONE
    assert claims.comes_back({}, claims.some_lose({"a": undone}, RULE), RULE).verdict == NOT_DONE
    done = rows(100, wrong=30)
    right, query = done["FULL"]["right"], done["FULL"]["query"]
    assert claims.does_it(right, query, 0.2, RULE) and not claims.does_it(right, query, 0.65, RULE)
    assert not claims.does_it(right[:, :5], query[:5], 0.2, RULE)
    assert not claims.does_it(right, query // 10, 0.2, RULE), "ten queries, however often they are asked"


def test_some_task_loses_as_soon_as_one_does_and_none_where_all_do_not():
    loses, keeps, few = rows(100, AGG_ONLY=40), rows(100, AGG_ONLY=1), rows(12, AGG_ONLY=2)
    undone = rows(100, wrong=90, AGG_ONLY=0)
    one = claims.some_lose({"keeps": keeps, "loses": loses, "undone": undone}, RULE)
    assert one.verdict == HOLDS and [part.verdict for part in one.parts] == [DOES_NOT_HOLD, HOLDS, NOT_DONE]
    assert claims.some_lose({"a": keeps, "b": keeps, "undone": undone}, RULE).verdict == DOES_NOT_HOLD
    assert claims.some_lose({"a": keeps, "b": few}, RULE).verdict == UNDECIDED


def test_one_of_five_tasks_that_loses_can_be_chance():
    weak = rows(100, AGG_ONLY=19)
    alone = claims.some_lose({"a": weak}, RULE)
    assert alone.verdict == HOLDS and alone.parts[0].p[0] > RULE.error / 5
    five = claims.some_lose({"a": weak, **{name: rows(100, AGG_ONLY=0) for name in "bcde"}}, RULE)
    assert five.verdict == UNDECIDED and five.parts[0].verdict == UNDECIDED


def test_contextualisation_brings_it_back_in_every_task_that_loses():
    back, gone = rows(100, AGG_ONLY=40), rows(100, AGG_ONLY=40)
    back["CTX+AGG"], gone["CTX+AGG"] = back["FULL"], gone["AGG-ONLY"]
    kept = rows(100, AGG_ONLY=0)  # of which nothing is asked
    losing = claims.some_lose({"back": back, "kept": kept}, RULE)
    claim = claims.comes_back({"back": back, "kept": kept}, losing, RULE)
    assert claim.verdict == HOLDS and [part.name for part in claim.parts] == ["back"]
    both = {"back": back, "gone": gone}
    assert claims.comes_back(both, claims.some_lose(both, RULE), RULE).verdict == DOES_NOT_HOLD
    nothing = claims.comes_back({"kept": kept}, claims.some_lose({"kept": kept}, RULE), RULE)
    assert nothing.verdict == UNDECIDED and nothing.parts == ()
    assert nothing.note == "nothing to bring back: no task above the floor is shown to lose 0.1"


def test_ambiguity_is_judged_on_prompts_that_the_whole_model_solves():
    counts = {0: rows(100, AGG_ONLY=0), 4: rows(100, wrong=40, AGG_ONLY=40), 7: rows(100, wrong=95, AGG_ONLY=5)}
    claim = claims.more_if_ambiguous({**counts, 10: rows(100, AGG_ONLY=90)}, 10, RULE)
    assert claim.verdict == HOLDS and claim.parts[0].name == "4 against 0 (60, 100 solved)"
    assert claim.parts[0].value == pytest.approx(40 / 60)
    assert claims.more_if_ambiguous({0: counts[0], 4: rows(100, AGG_ONLY=0)}, 10, RULE).verdict == DOES_NOT_HOLD
    few = claims.more_if_ambiguous({0: counts[0], 7: counts[7]}, 10, RULE)
    assert few.verdict == UNDECIDED and "fewer than 10" in few.note


def test_layers_need_both_halves():
    parts = {"late": 0, "early": 0}
    assert claims.first_then(rows(100, **parts), "late", "early", RULE).verdict == HOLDS
    assert claims.first_then(rows(100, **parts | {"early": 60}), "late", "early", RULE).verdict == DOES_NOT_HOLD
    assert claims.first_then(rows(100, **parts | {"early": 10}), "late", "early", RULE).verdict == UNDECIDED


def test_prompts_of_one_query_are_one_unit():
    once = rows(36, found=0)
    again = {name: {"right": np.tile(row["right"], 5), "query": np.tile(row["query"], 5)} for name, row in once.items()}
    assert claims.few_edges(again, 2, 31, RULE) == claims.few_edges(once, 2, 31, RULE)


def test_a_claim_cannot_be_changed():
    claim = claims.few_edges(rows(36, found=0), 2, 31, RULE)
    with pytest.raises(FrozenInstanceError):
        claim.verdict = DOES_NOT_HOLD  # type: ignore[misc]
    assert Rule().floor >= 2 * Rule().margin
