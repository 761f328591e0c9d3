"""Ranks among controls, and how intervals are written and indexed."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from util.stats.intervals import (
    Interval,
    accuracy,
    mean_interval,
    mean_intervals,
    paired_interval,
    ratio_of_means,
    wilson,
)
from util.stats.splits import halves
from util.stats.tests import holm, paired_p, rank_p


@pytest.mark.parametrize(
    "value, controls, low, high",
    [
        (0.5, [0.9] * 19, 1 / 20, 1),  # no control is as low, all are as high
        (0.5, [0.1] * 19, 1, 1 / 20),
        (0.5, [0.5, 0.4, 0.6, 0.9], 3 / 5, 4 / 5),  # a control that is equal counts in both tails
        (0.5, [], 1, 1),
    ],
)
def test_rank_counts_controls_as_extreme_in_its_tail(value, controls, low, high):
    least = 1 / (1 + len(controls))
    assert rank_p(value, controls, tail="low") == (low, least)
    assert rank_p(value, controls, tail="high") == (high, least)


def test_tails_mirror_each_other():
    rng = np.random.default_rng(0)
    for value, *controls in rng.integers(0, 5, (50, 12)).tolist():
        mirrored = [-control for control in controls]
        assert rank_p(value, controls, tail="low") == rank_p(-value, mirrored, tail="high")


@pytest.mark.parametrize("tail", ["lower", "LOW", "", None, "two-sided"])
def test_another_tail_is_refused(tail):
    with pytest.raises(ValueError, match='give "low" or "high"'):
        rank_p(0.5, [0.1, 0.9], tail=tail)


@pytest.mark.parametrize("arguments", [(0.5, [0.1, 0.9]), (0.5, [0.1, 0.9], "low")])
def test_the_tail_must_be_named(arguments):
    call: Any = rank_p
    with pytest.raises(TypeError, match="positional|tail"):
        call(*arguments)


@pytest.mark.parametrize(
    "interval, text",
    [
        (Interval(0.4375, 0.2812, 0.5938), "0.44 [0.28, 0.59]"),
        (Interval(1.0, 0.985, 1.0), "1.00 [0.98, 1.00]"),  # 0.985 is slightly below 0.985 in binary
        (Interval(0.2850004, 0.07, 0.51), "0.28 [0.07, 0.51]"),  # as the 0.285 that a values file has of it
        (Interval(-0.001, -0.004, 0.002), "0.00 [0.00, 0.00]"),  # never -0.00
        (Interval(-0.5, -12.0, 0.25), "-0.50 [-12.00, 0.25]"),
    ],
)
def test_an_interval_is_written_with_two_decimals(interval, text):
    assert str(interval) == text


def test_an_interval_is_a_tuple_of_value_low_high():
    value, low, high = Interval(0.5, 0.25, 0.75)
    assert (value, low, high) == Interval(value=0.5, low=0.25, high=0.75) == (0.5, 0.25, 0.75)


def test_one_place_of_intervals_is_an_interval():
    values = np.random.default_rng(0).normal(size=(20, 3, 4))
    intervals = mean_intervals(values)
    assert intervals.value.shape == intervals.low.shape == intervals.high.shape == (3, 4)
    for place in np.ndindex(3, 4):
        interval = intervals[place]
        assert isinstance(interval, Interval) and all(type(number) is float for number in interval)
        assert interval == pytest.approx(mean_interval(values[(slice(None), *place)]), abs=1e-12)
        assert interval.low < interval.value < interval.high


def test_an_interval_of_symmetric_values_is_students():
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.4841, 4.4841), abs=1e-4)
    values = np.random.default_rng(0).normal(size=12)
    values = np.r_[values, -values]
    for level in (0.5, 0.95):
        low, high = scipy.stats.ttest_1samp(values, 0).confidence_interval(level)
        assert mean_interval(values, level) == pytest.approx((0, low, high), abs=1e-12)


def test_an_interval_of_skewed_values_reaches_where_halls_cubic_has_the_quantiles_of_t_and_as_far_as_students():
    values = np.random.default_rng(1).exponential(size=9)
    n, k = len(values), scipy.stats.skew(values) / 3

    def distance(mean: float, quantile: float) -> float:
        t = (values.mean() - mean) / (values.std(ddof=1) / np.sqrt(n))
        return t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6 - quantile

    for comparisons in (1, 100):
        quantile = scipy.stats.t.ppf(1 - 0.025 / comparisons, n - 1)
        low = scipy.optimize.brentq(distance, -50, 50, (quantile,), xtol=1e-12)
        high = scipy.optimize.brentq(distance, -50, 50, (-quantile,), xtol=1e-12)
        students = scipy.stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / comparisons)
        assert low > students.low and high > students.high  # a long tail above: Student's reaches too far down
        low = students.low
        found = mean_interval(values, comparisons=comparisons)
        assert found == pytest.approx((values.mean(), low, high), abs=1e-9)
        mirrored = mean_interval(-values, comparisons=comparisons)
        assert mirrored == pytest.approx((-values.mean(), -high, -low), abs=1e-9)


def test_intervals_of_skewed_means_cover_at_their_level():
    random = np.random.default_rng(4)
    samples = random.lognormal(0, 1, (20, 2000))
    intervals = mean_intervals(samples)
    covered = ((intervals.low <= np.exp(0.5)) & (np.exp(0.5) <= intervals.high)).mean()
    low, high = scipy.stats.ttest_1samp(samples, np.exp(0.5)).confidence_interval()
    students = ((low <= np.exp(0.5)) & (np.exp(0.5) <= high)).mean()
    assert students < 0.88 < 0.9 < covered


def test_intervals_of_rare_large_values_of_both_signs_cover_at_their_level():
    """A sample of these is skewed although their distribution is not."""
    random = np.random.default_rng(5)
    samples = random.normal(0, 0.02, (64, 2000))
    samples += random.choice([-1, 1], samples.shape) * (random.random(samples.shape) < 0.04)
    intervals = mean_intervals(samples)
    assert ((intervals.low <= 0) & (intervals.high >= 0)).mean() > 0.95


def test_intervals_over_clusters_cover_at_their_level():
    """Clusters of one to eight values share most of what they say; intervals that take no notice are too narrow."""
    random = np.random.default_rng(6)
    clusters = np.repeat(np.arange(24), np.arange(24) % 8 + 1)
    samples = random.normal(2, 1, (24, 2000))[clusters] + random.normal(0, 0.5, (len(clusters), 2000))
    found, naive = mean_intervals(samples, clusters=clusters), mean_intervals(samples)
    np.testing.assert_array_equal(found.value, naive.value)
    covered, naively = (((each.low <= 2) & (each.high >= 2)).mean() for each in (found, naive))
    assert naively < 0.7 and 0.92 < covered < 0.97
    single = mean_interval(samples[:, 0], clusters=clusters)
    assert single == pytest.approx((found.value[0], found.low[0], found.high[0]))
    alone = mean_intervals(samples, clusters=np.arange(len(samples)))  # each value a cluster: nothing changes
    np.testing.assert_allclose([alone.low, alone.high], [naive.low, naive.high])
    with pytest.raises(ValueError, match="at least two sampled units"):
        mean_interval([1.0, 2.0], clusters=[3, 3])


def test_values_that_are_all_equal_have_an_interval_without_width():
    base = np.random.default_rng(0).random((50, 1)) * 100
    intervals = mean_intervals(base + 1 - base)
    assert intervals.high[0] - intervals.low[0] < 1e-12
    assert mean_interval(np.full(9, 0.1)) == pytest.approx((0.1, 0.1, 0.1), abs=1e-15)


def test_an_interval_ends_where_its_quantity_does():
    values = np.random.default_rng(2).random((5, 3)) ** 6
    free, within = mean_intervals(values), mean_intervals(values, within=(0, 0.3))
    assert (free.low < 0).any() and (free.high > 0.3).any()
    np.testing.assert_array_equal(within.low, free.low.clip(0, 0.3))
    np.testing.assert_array_equal(within.high, free.high.clip(0, 0.3))


def test_the_error_of_an_interval_is_that_of_its_shorter_side():
    values = np.random.default_rng(3).exponential(size=200)
    interval = mean_interval(values)
    assert interval.high - interval.value > interval.value - interval.low
    assert interval.error == pytest.approx(scipy.stats.sem(values), rel=0.01)


def test_one_unit_has_no_interval():
    with pytest.raises(ValueError, match="at least two"):
        mean_intervals(np.ones((1, 3)))


def test_wilsons_interval_against_known_values():
    low, high = wilson(15, 20)
    assert (round(float(low), 4), round(float(high), 4)) == (0.5313, 0.8881)
    assert (wilson(0, 10)[0], wilson(10, 10)[1]) == pytest.approx((0, 1))


def test_a_place_outside_or_of_several_intervals_is_refused():
    intervals = mean_intervals(np.random.default_rng(0).normal(size=(20, 3)))
    with pytest.raises(IndexError):
        intervals[3]
    with pytest.raises(TypeError):
        intervals[:2]


def test_accuracy_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one trial"):
        accuracy(np.zeros(3, bool), units=0)


def test_a_ratio_of_means_and_its_linearised_values():
    """Their mean is the ratio, and they spread as its jackknife does."""
    random = np.random.default_rng(0)
    above, below = random.normal(3, 1, (400, 2)), random.normal(5, 1, 400)
    value, linearised = ratio_of_means(above, below)
    np.testing.assert_allclose(value, above.mean(axis=0) / below.mean(), atol=1e-14)
    np.testing.assert_allclose(linearised.mean(axis=0), value, atol=1e-14)
    without = [np.delete(above, i, 0).mean(axis=0) / np.delete(below, i).mean() for i in range(400)]
    jackknife = np.sqrt(399 / 400 * ((np.array(without) - value) ** 2).sum(axis=0))
    np.testing.assert_allclose(linearised.std(axis=0, ddof=1) / 20, jackknife, rtol=0.01)


def test_a_ratio_of_means_counts_units_once():
    above, below, units = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 2, 2, 3, 4]), np.array([7, 7, 3, 3, 1])
    value, linearised = ratio_of_means(above, below, units)
    sums = ratio_of_means([5.0, 7, 3], [4.0, 5, 4])  # in the order of the units
    assert value == sums[0] == 15 / 13 and linearised.tolist() == sums[1].tolist()
    with pytest.raises(ValueError, match="two sampled units, got 1"):
        ratio_of_means(above, below, np.zeros(5))


# ------------------------------------------------------------------------------------------------ splits


def test_halves_are_disjoint_seeded_and_complete():
    a, b = halves(511, seed=1)
    assert sorted([*a, *b]) == list(range(511)) and abs(len(a) - len(b)) == 1
    np.testing.assert_array_equal(a, halves(511, seed=1)[0])


def test_halves_share_no_cluster():
    """Units of one cluster in both halves would be chosen and measured by the same draw."""
    clusters = np.random.default_rng(0).integers(0, 60, 128)
    assert np.isin(*(clusters[half] for half in halves(128))).any()
    a, b = halves(128, clusters=clusters)
    assert sorted([*a, *b]) == list(range(128)) and not np.isin(clusters[a], clusters[b]).any()
    assert min(len(a), len(b)) > 40
    for half, own in zip(halves(128), halves(128, clusters=np.arange(128)), strict=True):
        np.testing.assert_array_equal(half, own)
    with pytest.raises(ValueError, match="1 clusters all fall into one half"):
        halves(8, clusters=np.zeros(8, int))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.01]) == [0.5, 0.02] and holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_paired_differences_that_are_equal_have_an_interval_with_width():
    for value in (-1.0, 0.0, 1.0):
        interval = paired_interval(np.full(2, value))
        assert interval.value == value and -1 <= interval.low < interval.high <= 1
    for n in (5, 27, 100):
        value, low, high = paired_interval(np.zeros(n))
        assert value == 0 and high == -low == pytest.approx(1 - 0.025 ** (1 / n))


@pytest.mark.parametrize("gained", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("n", [20, 60, 150])
def test_paired_differences_without_a_mean_are_refused_in_one_of_forty(n, gained):
    """All outcomes of n pairs of answers of which as many are lost as are gained, weighed by how likely they are."""
    wrong = 0.0
    for down in range(n + 1):
        for up in range(min(down, n - down) if gained else 1):
            likely = scipy.stats.multinomial.pmf([down, up, n - down - up], n, [gained, gained, 1 - 2 * gained])
            values = np.repeat([1.0, -1.0, 0.0], [down, up, n - down - up])
            wrong += likely * (paired_p(values) <= 0.025) if likely > 1e-12 else 0.0
    assert wrong <= 0.036
