"""Verdicts: their errors by simulation, the queries they need by repetition, all on made-up answers."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from util.stats import verdicts
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, Claim, Effect

MARGIN = 0.1


def judged(effect, bound=MARGIN):
    return verdicts.judged("", effect, bound, above=True)


def answers(rng, n, whole, kept, gained=0.05):
    """What each of n queries loses, and whether the whole model has it right."""
    right = rng.random(n) < whole
    edited = rng.random(n) < np.where(right, kept, gained)
    return right.astype(float) - edited, right.astype(float)


def test_control_sets_are_a_sample_too():
    """The same queries with control sets that differ: without their spread far more verdicts would be wrong."""
    rng, wrong = np.random.default_rng(0), {True: 0, False: 0}
    for _ in range(300):
        whole = np.ones(4000)
        without = rng.random((20, 4000)) < 0.9 + rng.normal(0, 0.04, (20, 1))
        others = without.mean(axis=0)
        edited = rng.random(4000) < 0.9 - MARGIN
        sets = [((one - edited).mean(), 1.0) for one in without.astype(float)]
        for counted in (True, False):
            effect = Effect.of((others - edited, whole), sets=sets if counted else ())
            wrong[counted] += judged(effect).verdict != CANNOT_BE_TOLD
    assert wrong[True] <= 30 < 60 < wrong[False]


def test_the_interval_is_what_the_test_does_not_refuse():
    rng, sides = np.random.default_rng(0), set()
    for _ in range(300):
        effect = Effect.of(answers(rng, 60, 0.8, rng.uniform(0.5, 1)), sets=rng.normal([0.1, 0.8], 0.02, (5, 2)))
        value, low, high = effect.interval()
        assert low < value < high
        bound = rng.uniform(0, 0.5)
        part = judged(effect, bound)
        assert part.verdict == (HOLDS if low >= bound else DOES_NOT_HOLD if high <= bound else CANNOT_BE_TOLD)
        opposite = verdicts.judged("", effect, bound, above=False)
        assert opposite.p == part.p[::-1]
        sides.add(part.verdict)
    assert len(sides) == 3


def test_the_interval_of_a_mean_is_walds_with_a_gain_and_a_loss_more():
    values = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 50, p=[0.1, 0.6, 0.3])
    value, low, high = Effect.of((values, 1.0)).interval()
    width = stats.norm.isf(0.025) * np.sqrt(values.var(ddof=1) / 50 + 2 / 52**2)
    assert (value, low, high) == pytest.approx((values.mean(), values.mean() - width, values.mean() + width))
    lost, whole = np.array([[1.0, 0, 0, 0], [1.0, 1, 0, 0]]), np.array([[1.0, 1, 0, 0], [1.0, 1, 1, 1]])
    tasks = Effect.of(*zip(lost, whole, strict=True))
    assert tasks.interval().value == pytest.approx(0.75 / 1.5) and tasks.queries == 4  # sums over tasks
    _, low, high = Effect.of((np.zeros(50), 1.0)).interval()
    assert low < 0 < high, "nothing that changes is no certainty"


def test_with_nothing_to_lose_nothing_is_told():
    """A denominator that is not shown to be above 0 has no verdict, whatever the numerator is."""
    rng = np.random.default_rng(0)
    noise = rng.choice([-1.0, 1.0], 100)
    for top in (np.ones(100), -np.ones(100)):
        part = judged(Effect.of((top, noise)))
        assert part.verdict == CANNOT_BE_TOLD and part.needed is None and np.isnan(part.low)
        assert part.queries == 100 and part.enough == "no number of queries would do"
        assert part.number.endswith(", no interval")


def test_as_many_queries_as_are_needed_decide_and_one_less_does_not():
    """Queries with this effect and this spread, more of them or fewer; control sets stay as they are."""
    rng = np.random.default_rng(0)
    effect = Effect.of(answers(rng, 100, 0.8, 0.7), sets=rng.normal([0.2, 0.8], 0.005, (20, 2)))
    for bound in (0.1, 0.15, 0.3, 0.4):
        part = judged(effect, bound)
        assert part.needed is not None
        decided = [
            judged(replace(effect, over_queries=effect.over_queries * 100 / n), bound).verdict
            for n in (part.needed, part.needed - 1)
        ]
        assert decided[0] != CANNOT_BE_TOLD == decided[1]
    unsure = judged(replace(effect, over_sets=effect.over_sets * 1e4))
    assert unsure.needed is None, "more queries do not help where control sets are too few"
    assert judged(Effect.of((np.tile([0.0, 0.2], 50), 1.0))).needed is None


def part(*p):
    verdict = HOLDS if p[0] <= 0.025 else DOES_NOT_HOLD if p[1] <= 0.025 else CANNOT_BE_TOLD
    return verdicts.Part(str(p), verdict, 0.0, 0.0, 0.0, 0.1, True, 10, None, None, p)


YES, NO, OPEN = part(0.001, 0.9), part(0.9, 0.001), part(0.5, 0.5)


@pytest.mark.parametrize(
    "judge, parts, verdict",
    [
        (verdicts.any_of, [YES, NO, OPEN], HOLDS),
        (verdicts.any_of, [NO, NO], DOES_NOT_HOLD),
        (verdicts.any_of, [part(0.02, 0.9), NO, OPEN], CANNOT_BE_TOLD),  # corrected
        (verdicts.all_of, [part(0.02, 0.9), YES], HOLDS),
        (verdicts.all_of, [YES, NO], DOES_NOT_HOLD),
        (verdicts.all_of, [YES, OPEN], CANNOT_BE_TOLD),
        (verdicts.all_of, [part(0.9, 0.02), YES], CANNOT_BE_TOLD),  # corrected
    ],
)
def test_one_of_several_is_corrected_and_all_of_them_are_not(judge, parts, verdict):
    assert judge(parts)[0] == verdict


def test_parts_that_hold_together_are_as_weak_as_the_weakest():
    assert verdicts.weakest([YES, part(0.02, 0.9)]).p[0] == 0.02
    assert verdicts.weakest([YES, NO]).verdict == DOES_NOT_HOLD
    assert verdicts.weakest([YES, part(0.9, 0.02)]).verdict == CANNOT_BE_TOLD


def test_the_table_has_a_row_for_each_comparison_and_for_claims_without_one():
    beside = verdicts.shown("alone", Effect.of((np.ones(4), 1.0)))
    found = Claim(1, "so", HOLDS, (YES,), beside=(beside,)), Claim(2, "not", verdicts.NO_PREMISE, note="why")
    table = verdicts.table(found).reset_index()
    assert list(table["comparison"]) == [YES.name, "alone", "why"] and list(table["bound"]) == ["> 0.1", "", ""]
