"""Verdicts: their errors by enumeration, the queries they need by repetition, all on made-up answers."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from util.stats import verdicts
from util.stats.tests import holm
from util.stats.verdicts import ERROR, Sample

MARGIN = 0.1


@pytest.mark.parametrize("n", [20, 36, 60, 150])
@pytest.mark.parametrize("gained", [0.0, 0.02, 0.05])
def test_a_verdict_at_the_bound_is_wrong_in_one_of_forty(n, gained):
    """All outcomes of n pairs of answers whose true loss is the margin, weighed by how likely they are."""
    lost = MARGIN + gained
    wrong = [0.0, 0.0]
    most = [int(stats.binom.isf(1e-9, n, share)) + 1 if share else 0 for share in (lost, gained)]
    for down, up in product(range(most[0] + 1), range(most[1] + 1)):
        if down + up <= n:
            sample = Sample(n, (down - up) / n, (down + up) / n)
            likely = stats.multinomial.pmf([down, up, n - down - up], n, [lost, gained, 1 - lost - gained])
            over, under = verdicts.tail_p([sample], MARGIN)
            wrong[0] += likely * (over <= ERROR)
            wrong[1] += likely * (under <= ERROR)
    assert max(wrong) > 0 and max(wrong) <= 0.036  # the nominal error is 0.025


def test_p_values_and_intervals_say_the_same():
    rng = np.random.default_rng(0)
    sides = set()
    for _ in range(300):
        n, m = rng.integers(3, 80, 2)
        first = Sample.of(rng.choice([-1, 0, 1, 1 / 3], n, p=[0.05, 0.6, 0.25, 0.1]))
        second = Sample.of(rng.choice([0, 1], m, p=[0.9, 0.1]))
        for samples in ([first], [first, second]):
            bound = rng.uniform(0.01, 0.6)
            value, low, high = verdicts.interval(samples)
            assert low < value < high
            over, under = verdicts.tail_p(samples, bound)
            assert (over <= 0.025) == (low >= bound) and (under <= 0.025) == (high <= bound)
            sides.add((over <= 0.025, under <= 0.025))
    assert sides == {(True, False), (False, True), (False, False)}


def test_without_any_change_the_interval_is_that_of_nothing_seen():
    for n in (5, 27, 100):
        value, low, high = verdicts.interval([Sample.of(np.zeros(n))])
        assert value == 0 and high == -low == pytest.approx(1 - 0.025 ** (1 / n))


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 6])  # of the others' values some are at the bound
def test_as_many_queries_as_are_needed_decide_and_one_less_does_not(seed):
    """The same values again and again are more queries with this effect and this spread."""
    rng = np.random.default_rng(seed)
    values = rng.choice([-1, 0, 1], 20, p=[0.1, 0.6, 0.3])
    bound = 0.1
    needed = verdicts.queries_needed([Sample.of(values)], bound)
    assert needed is not None
    sums = {times: verdicts.tail_p([Sample.of(np.tile(values, times))], bound) for times in range(1, needed // 20 + 3)}
    decided = {times for times, p in sums.items() if min(p) <= 0.025}
    assert needed > 2 and decided == {times for times in sums if 20 * times >= needed}
    exact = [verdicts.tail_p([Sample(n, values.mean(), (values**2).mean())], bound) for n in (needed - 1, needed)]
    assert min(exact[0]) > 0.025 >= min(exact[1])


def test_the_number_of_queries_decides_half_of_the_time():
    """By simulation: queries of a loss of 0.25 with gains, as many as a sample of exactly these shares says."""
    shares = [0.05, 0.65, 0.30]
    needed = verdicts.queries_needed([Sample(100, 0.25, 0.35)], 0.1)
    rng = np.random.default_rng(0)
    decided = [
        verdicts.tail_p([Sample.of(np.repeat([-1, 0, 1], rng.multinomial(needed, shares)))], 0.1)[0] <= 0.025
        for _ in range(2000)
    ]
    assert 0.4 < np.mean(decided) < 0.65


def test_nothing_decides_at_the_bound():
    assert verdicts.queries_needed([Sample(50, 0.1, 0.1)], 0.1) is None
    assert verdicts.queries_needed([Sample(50, 0.1, 0.1), Sample(50, 0.0, 0.0)], 0.1) is None


def test_of_two_samples_each_keeps_its_share_of_the_queries():
    first, second = Sample(20, 0.4, 0.4), Sample(40, 0.1, 0.1)
    needed = verdicts.queries_needed([first, second], 0.1, queries=80)
    assert needed is not None
    larger = [replace(first, n=needed // 4), replace(second, n=needed // 2)]
    fewer = [replace(first, n=(needed - 1) // 4), replace(second, n=(needed - 1) // 2)]
    assert verdicts.tail_p(larger, 0.1)[0] <= 0.025 < verdicts.tail_p(fewer, 0.1)[0]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.01]) == [0.5, 0.02] and holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_paired_differences_that_are_equal_have_an_interval_with_width():
    for value in (-1.0, 0.0, 1.0):
        interval = verdicts.paired_interval(np.full(2, value))
        assert interval.value == value and -1 <= interval.low < interval.high <= 1
    narrow = verdicts.paired_interval(np.zeros(40))
    assert narrow == verdicts.interval([verdicts.Sample.of(np.zeros(40))]) and narrow.high - narrow.low > 0.1
