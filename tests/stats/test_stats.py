"""Intervals, ranks among controls, splits, and whether a task is done."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

from util.stats.answers import label_mass, right, task_check, which_label
from util.stats.intervals import (
    Interval,
    accuracy,
    halves,
    holm,
    mean_interval,
    mean_intervals,
    paired_interval,
    paired_p,
    rank_p,
    ratio_of_means,
    wilson,
)


@pytest.mark.parametrize(
    "controls, p",
    [
        ([0.9] * 19, 1 / 20),  # no control is as low
        ([0.1] * 19, 1),
        ([0.5, 0.4, 0.6, 0.9], 3 / 5),  # a control that is equal counts
        ([], 1),
    ],
)
def test_rank_counts_controls_that_are_as_low(controls, p):
    assert rank_p(0.5, controls) == (p, 1 / (1 + len(controls)))


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


def test_the_standard_error_of_an_interval_is_of_its_shorter_side():
    assert Interval(0.5, 0.304, 0.9).error == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("comparisons", [1, 100])
def test_an_interval_of_skewed_values_reaches_where_halls_cubic_has_the_quantiles_of_t_and_as_far_as_students(
    comparisons,
):
    """Of symmetric values both are one: the skewness is 0."""
    values = np.random.default_rng(1).exponential(size=9)
    n, k = len(values), scipy.stats.skew(values) / 3

    def distance(mean, quantile):
        t = (values.mean() - mean) / (values.std(ddof=1) / np.sqrt(n))
        return t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6 - quantile

    quantile = scipy.stats.t.ppf(1 - 0.025 / comparisons, n - 1)
    low, high = (scipy.optimize.brentq(distance, -50, 50, (tail,), xtol=1e-12) for tail in (quantile, -quantile))
    students = scipy.stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / comparisons)
    assert low > students.low and high > students.high  # a long tail above: Student's reaches too far down
    interval = mean_interval(values, comparisons=comparisons)
    assert interval == pytest.approx((values.mean(), students.low, high), abs=1e-9)
    mirrored = mean_interval(-values, comparisons=comparisons)
    assert mirrored == pytest.approx((-values.mean(), -high, -students.low), abs=1e-9)
    even = np.r_[values, -values]
    low, high = scipy.stats.ttest_1samp(even, 0).confidence_interval(1 - 0.05 / comparisons)
    assert mean_interval(even, comparisons=comparisons) == pytest.approx((0, low, high), abs=1e-12)


def covered(values, truth, **options):
    """The share of intervals that hold the truth."""
    intervals = mean_intervals(values, **options)
    return ((intervals.low <= truth) & (truth <= intervals.high)).mean()


def test_intervals_cover_at_their_level():
    """Of clusters of one to eight values that share much; those of skewed and rare values: data/benchmarks."""
    random, clusters = np.random.default_rng(4), np.repeat(np.arange(24), np.arange(24) % 8 + 1)
    samples = random.normal(2, 1, (24, 2000))[clusters] + random.normal(0, 0.5, (len(clusters), 2000))
    assert covered(samples, 2) < 0.7 and 0.92 < covered(samples, 2, clusters=clusters) < 0.97
    alone = mean_intervals(samples, clusters=np.arange(len(samples)))  # each value a cluster: nothing changes
    assert_allclose(alone.low, mean_intervals(samples).low)


def test_an_interval_ends_where_its_quantity_does():
    values = np.random.default_rng(2).random((5, 3)) ** 6
    free, within = mean_intervals(values), mean_intervals(values, within=(0, 0.3))
    assert (free.low < 0).any() and (free.high > 0.3).any()
    assert_array_equal([within.low, within.high], np.clip([free.low, free.high], 0, 0.3))
    equal = mean_intervals(100 * values + 1 - 100 * values)  # but for rounding
    assert (equal.high - equal.low).max() < 1e-12
    for value in (-1.0, 0.0, 1.0):  # of paired differences that are equal: they have width
        interval = paired_interval(np.full(2, value))
        assert interval.value == value and -1 <= interval.low < interval.high <= 1


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: mean_intervals(np.ones((1, 3))), "at least two sampled units, got 1"),
        (lambda: mean_interval([1.0, 2.0], clusters=[3, 3]), "at least two sampled units"),
        (lambda: ratio_of_means(np.ones(5), np.ones(5), np.zeros(5)), "two sampled units, got 1"),
        (lambda: accuracy(np.zeros(3, bool), units=0), "at least one trial"),
        (lambda: halves(8, clusters=np.zeros(8, int)), "1 clusters all fall into one half"),
    ],
)
def test_too_few_units_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_ratio_of_means_and_its_linearised_values():
    """Their mean is the ratio, and they spread as its jackknife does; units count once."""
    random = np.random.default_rng(0)
    above, below = random.normal(3, 1, (400, 2)), random.normal(5, 1, 400)
    value, linearised = ratio_of_means(above, below)
    assert_allclose(value, above.mean(axis=0) / below.mean(), atol=1e-14)
    assert_allclose(linearised.mean(axis=0), value, atol=1e-14)
    without = [np.delete(above, i, 0).mean(axis=0) / np.delete(below, i).mean() for i in range(400)]
    jackknife = np.sqrt(399 / 400 * ((np.array(without) - value) ** 2).sum(axis=0))
    assert_allclose(linearised.std(axis=0, ddof=1) / 20, jackknife, rtol=0.01)
    assert ratio_of_means([1.0, 3.0], [1.0, 1.0])[0] == 2  # two units are enough
    value, linearised = ratio_of_means([1.0, 2, 3, 4, 5], [2.0, 2, 2, 3, 4], [7, 7, 3, 3, 1])
    sums = ratio_of_means([5.0, 7, 3], [4.0, 5, 4])  # in the order of the units
    assert value == sums[0] == 15 / 13 and linearised.tolist() == sums[1].tolist()


def test_halves_are_disjoint_seeded_and_complete_and_share_no_cluster():
    """Units of one cluster in both halves would be chosen and measured by the same draw."""
    clusters = np.random.default_rng(0).integers(0, 60, 128)
    assert np.isin(*(clusters[half] for half in halves(128))).any()
    for a, b in (halves(128), halves(128, clusters=clusters)):
        assert sorted([*a, *b]) == list(range(128)) and min(len(a), len(b)) > 40
    assert not np.isin(clusters[a], clusters[b]).any()
    assert_array_equal(halves(128)[0], halves(128, clusters=np.arange(128))[0])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.01]) == [0.5, 0.02] and holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize("n, gained", [(20, 0.0), (60, 0.05)])
def test_paired_differences_without_a_mean_are_refused_in_one_of_forty(n, gained):
    """All outcomes of n pairs of answers of which as many are lost as are gained, weighed by how likely they are."""
    wrong = 0.0
    for down in range(n + 1):
        for up in range(min(down, n - down) if gained else 1):
            likely = scipy.stats.multinomial.pmf([down, up, n - down - up], n, [gained, gained, 1 - 2 * gained])
            values = np.repeat([1.0, -1.0, 0.0], [down, up, n - down - up])
            wrong += likely * (paired_p(values) <= 0.025) if likely > 1e-12 else 0.0
    assert wrong <= 0.036


# ------------------------------------------------------------------------------------------------ tasks


def check(right=90, n=128, over_none=0.5, over_permuted=0.5, candidates=1, seed=0):
    """A task of which so many queries are answered right, and gains with a spread of 1."""
    random = np.random.default_rng(seed)
    shown = random.standard_normal(n)
    bare, permuted = (shown - gain - random.standard_normal(n) for gain in (over_none, over_permuted))
    return task_check("trec", 4, np.arange(n) < right, shown, bare, permuted, 0.5, candidates)


@pytest.mark.parametrize(
    "changes, done",
    [
        ({}, True),
        ({"right": 70}, False),  # not surely above the baseline
        ({"over_none": 0.0}, False),  # knows it without demonstrations
        ({"over_permuted": 0.0}, False),  # wrong demonstrations do as well
        ({"over_none": -1.0}, False),  # demonstrations hurt
        ({"over_none": 0.22}, True),
        ({"over_none": 0.22, "candidates": 6}, False),  # corrected
    ],
)
def test_all_three_conditions_of_a_task_have_to_hold(changes, done):
    result = check(**changes)
    why = "to bring accuracy above chance" if "right" in changes else "to teach which label"
    assert result.done == done and (
        "task done" if done else f"task not done (demonstrations are not shown {why})"
    ) in str(result)
    bound = wilson(changes.get("right", 90), 128, 1 - 0.1 / changes.get("candidates", 1))[0]
    assert result.bound == pytest.approx(float(bound))


def test_a_model_that_does_as_well_with_permuted_labels_passes_in_one_of_twenty_samples():
    passed = [check(over_permuted=0.0, seed=seed).done for seed in range(400)]
    assert np.mean(passed) <= 0.05 + 2 * 0.011  # two standard errors


def test_the_gold_labels_log_probability_is_mass_and_which_label():
    log_prob, gold = np.log(np.random.default_rng(0).dirichlet(np.ones(4), 20)[:, :3]), np.arange(20) % 3
    mass, which = label_mass(log_prob), which_label(log_prob, gold)
    assert_allclose(mass + which, [row[label] for row, label in zip(log_prob, gold, strict=True)])
    assert_allclose(np.exp(mass), np.exp(log_prob).sum(1))
    highest = [all(row <= row[label]) for row, label in zip(log_prob, gold, strict=True)]
    assert right(log_prob, gold).tolist() == highest and 0 < sum(highest) < 20
