"""Verdicts on the claims of Crosbie & Shutova, on made-up answers and on the paper's own numbers."""

from dataclasses import replace

import numpy as np
import pytest

from tests.figures.induction_scores.made_up_shots import ABLATED, PATTERN, UNDONE, arrays, task
from util.figures.induction_scores import numbers
from util.figures.induction_scores.show import Settings
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, NO_PREMISE, NOT_ASKED, NOT_DONE, table

# as the paper has it: whole, ablated, pattern knocked out, control sets
TEXT = task("sst2", {0: 0.6, 10: (0.9, 0.62, 0.7, 0.9)}, bare=True)
OWN = task("subj", {0: 0.5, 10: (0.9, 0.85, 0.9, 0.9)})
UNRELATED = task("subj", {10: (0.9, 0.52, 0.6, 0.88)}, unrelated=True)


def verdict(number, *tasks):
    return numbers.judge(tasks)[number - 1]


def test_of_a_model_without_induction_heads_no_claim_holds():
    same = task("wordseq1", {0: 0.5, 10: 0.95})
    text = task("sst2", {0: (0.7, 0.4, 0.4, 0.7), 10: 0.95}, bare=True, n=400)
    own, unrelated = (task("sst2", {10: 0.9}, unrelated=to) for to in (False, True))
    verdicts = [claim.verdict for claim in numbers.judge([same, text])]
    assert verdicts == [*[DOES_NOT_HOLD] * 2, NO_PREMISE, *[DOES_NOT_HOLD] * 2, NOT_ASKED, DOES_NOT_HOLD]
    assert verdict(3, same).note == "claim 1 does not hold in this model"
    assert verdict(6, own, unrelated).verdict == DOES_NOT_HOLD


def test_the_papers_own_numbers_pass_what_they_were_said_of():
    """Llama-3-8B, Tables 1 and 3: the share that is lost, by hand for claims 1 and 3."""
    full, top, random, out = np.array(
        [(91.3, 59.7, 85.9, 65.3), (91.5, 67.9, 86.5, 68.7), (80.4, 53.0, 74.6, 56.5), (99.4, 96.2, 99.3, 97.3),
         (99.4, 94.9, 98.8, 96.4)]
    ).T  # fmt: skip
    found = numbers.verdicts_on_paper()
    assert found["1"]["value"] == pytest.approx((random - top).sum() / (random - 50).sum())
    assert found["3"]["value"] == pytest.approx((out - top).sum() / (full - top).sum())
    assert found["2"]["value"] == pytest.approx((59.7 - 50) / (91.3 - 50))
    assert {number: entry["verdict"] for number, entry in found.items()} == dict.fromkeys("1234567", HOLDS)


def test_a_claim_is_about_the_mean_over_tasks_in_the_unit_of_the_paper():
    """One task that loses nothing does not contradict it; the share is one of what is above chance."""
    kept = task("wordseq2", {0: 0.5, 10: 0.95})
    claim = verdict(1, PATTERN, kept)
    assert claim.verdict == HOLDS and claim.parts[0].value == pytest.approx((0.44 + 0) / (0.44 + 0.45))
    assert [(part.name, part.verdict) for part in claim.beside] == [("wordseq1", ""), ("wordseq2", "")]
    assert verdict(1, PATTERN).beside == ()


def test_the_task_that_loses_most_is_chosen_and_measured_on_different_queries():
    """Of answers that alternate by class every other query would be one class alone."""
    right = np.arange(200) % 2 == 0
    alternating = task("wordseq1", {0: 0.5, 10: (1.0, 0.0, 0.5, 1.0)})
    alternating.right[10][ABLATED] = right[None]
    [part] = verdict(2, alternating).parts
    assert part.value == pytest.approx(0.0, abs=0.2) and part.queries == 100 and part.available == 256
    below = verdict(2, task("wordseq1", {0: 0.5, 10: (1.0, 0.1, 0.1, 1.0)}))
    assert below.verdict == HOLDS and below.note == "accuracy falls below chance"


def test_the_loss_of_benefit_is_a_difference_of_differences():
    """What is lost without demonstrations, too, is no loss of benefit."""
    hurt = task("sst2", {0: (0.7, 0.4, 0.4, 0.7), 10: (0.9, 0.6, 0.7, 0.9)}, bare=True, n=1000)
    claim = verdict(4, hurt)
    assert claim.parts[0].value == pytest.approx(-0.5) or claim.parts[0].value == pytest.approx(0.0)
    assert claim.verdict == DOES_NOT_HOLD and verdict(7, hurt).verdict == DOES_NOT_HOLD


def test_control_sets_that_differ_widen_the_interval():
    apart = task("wordseq1", {0: 0.5, 10: (0.95, 0.5, 0.52, 0.8)})
    apart.right[10][apart.controls[0]] = np.ones((1, 200), bool)
    apart.right[10][apart.controls[1]] = np.zeros((1, 200), bool)
    spread, alike = (verdict(1, one).parts[0] for one in (apart, PATTERN))
    assert spread.high - spread.low > 3 * (alike.high - alike.low) or np.isnan(spread.low)


def test_few_queries_leave_it_open_and_say_how_many_would_do():
    shots = {0: 0.5, 10: (0.9, 0.8, 0.8, 0.9)}
    few = task("wordseq1", shots, n=20)
    claim = verdict(1, few)
    assert claim.verdict == CANNOT_BE_TOLD and claim.parts[0].queries == 20
    assert claim.parts[0].needed > 20 and "would do; there are 512" in claim.parts[0].enough
    more = task("wordseq1", shots, n=20 * claim.parts[0].needed)
    assert verdict(1, more).verdict == HOLDS


def test_tasks_that_are_not_done_have_no_verdict():
    assert verdict(1, UNDONE).verdict == NOT_DONE and verdict(1, UNDONE, PATTERN).verdict == HOLDS
    text = task("sst2", {0: 0.5, 10: 0.5}, does=False)
    unrelated = task("sst2", {10: 0.5}, does=False, unrelated=True)
    assert [claim.verdict for claim in numbers.judge([UNDONE, text, unrelated])] == [*[NOT_DONE] * 6, NO_PREMISE]
    measured = replace(PATTERN, check=replace(PATTERN.check, p=0.5))  # with `all_tasks`
    assert verdict(1, measured).verdict == NOT_DONE


def test_all_claims_hold_of_a_model_like_the_papers_and_what_is_stored_says_what_it_is_about():
    found = numbers.stored("a model", arrays(PATTERN, TEXT, OWN, UNRELATED), Settings())
    assert found["model"] == "a model" and [claim.verdict for claim in found["claims"]] == [HOLDS] * 7
    assert not table(found["claims"])["value"].str.contains("nan").any()
    assert found["setting"] == "mean ablation of 3 heads, 2 control sets" and found["settings"]["prompts"] == 200
    assert found["margins"]["1"] == numbers.MARGINS[1] and found["published"]["1"]["verdict"] == HOLDS
