"""Confidence intervals of means and shares, and tests: rank among controls, McNemar, means above 0, Holm.

What other numbers have is bootstrapped where it is measured. What is chosen on some of the sampled units is measured on
others: `halves`. Why a number may be NaN stands at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from util.stats.heads import Bools, Ints

Floats = NDArray[np.float64]
Ends = tuple[float, float]

POWER = 0.8  # of samples show the smallest effect that is named beside a count
POWERED = f"{100 * POWER:.0f} % power"

ERROR = 0.025  # of a verdict, in either direction; it goes with intervals of 95 %


class Interval(NamedTuple):
    """A value and its 95 % interval; written as 0.44 [0.28, 0.59]."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The standard error, by the shorter side: the other one allows for skewness."""
        return min(self.value - self.low, self.high - self.value) / stats.norm.ppf(0.975)

    def __str__(self) -> str:
        # first to the 6 decimals of values files: an interval read from one is written as the one that was measured
        value, low, high = (f"{round(round(number, 6), 2) + 0.0:.2f}" for number in self)  # + 0.0 turns -0.0 into 0.0
        return f"{value} [{low}, {high}]"


def signed(interval: Sequence[float], decimals: int = 3) -> str:
    """A difference with its interval: -0.015 [-0.177, +0.146]."""
    value, low, high = (f"{number:+.{decimals}f}" for number in interval)
    return f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class Intervals:
    """Values and their 95 % intervals, three arrays of one shape."""

    value: Floats
    low: Floats
    high: Floats

    def __getitem__(self, place: Any) -> Interval:
        """The interval at one index of the arrays."""
        return Interval(float(self.value[place]), float(self.low[place]), float(self.high[place]))


def resampled(units: int, draws: int) -> Ints:
    """How often each bootstrap sample holds each unit, [draws, units]: drawn with replacement, as many as there are."""
    return np.random.default_rng(0).multinomial(units, np.full(units, 1 / units), size=draws)


ANYTHING = (-np.inf, np.inf)  # no bound on what a quantity can be


def mean_intervals(
    values: ArrayLike,
    comparisons: float = 1,
    within: Ends = ANYTHING,
    clusters: ArrayLike | None = None,
) -> Intervals:
    """Means over the first axis of values [N, ...], with intervals that allow for skewed values; each array is [...].

    An interval reaches to either side as far as the farther of two: Student's t interval, and that with Hall's (1992,
    "On the removal of skewness by transformation", J. R. Statist. Soc. B 54) correction for the skewness of the sample.
    The first is too narrow where values are skewed, the second where a few large values happen to lie on one side.
    Values that are all equal have an interval without width. The first axis runs over the independent units (prompts).
    Differences that are formed before the call are paired.

    comparisons: how many intervals are to hold together (Bonferroni's correction), for maps of many cells.
    within: the least and the most that the quantity can be; intervals end there. clusters [N]: the cluster of each
    value, where values of one cluster are not independent; the units are the clusters then, see `ratio_of_means`.
    Raises ValueError for fewer than two units.
    """
    mean, error, k, units = _moments(values, clusters)
    quantile = stats.t.ppf(1 - (1 - 0.95) / (2 * comparisons), len(units) - 1)
    symmetric = np.abs(k) < 1e-6  # the difference to the limit is below 1e-5 there, that of rounding grows
    k = np.where(symmetric, 1.0, k)

    def halls(tail: float) -> Floats:
        """Where the t statistic has this quantile if it is corrected by t + k t^2 / 3 + k^2 t^3 / 27 + k / 6.

        As k goes to 0, the inverse of the cubic goes to the quantile itself.
        """
        return np.where(symmetric, tail, 3 / k * (np.cbrt(1 + k * (tail - k / 6)) - 1))

    reach = np.maximum(quantile, halls(quantile)), np.minimum(-quantile, halls(-quantile))
    low, high = (np.clip(mean - far * error, *within) for far in reach)
    return Intervals(mean, low, high)


def mean_interval(
    values: ArrayLike,
    comparisons: float = 1,
    within: Ends = ANYTHING,
    clusters: ArrayLike | None = None,
) -> Interval:
    """The mean of values [N] with its interval, see `mean_intervals`. Raises ValueError for fewer than two units."""
    return mean_intervals(values, comparisons, within, clusters)[()]


def detectable(interval: Interval, n: int, comparisons: float = 1) -> float:
    """How far above a bound a mean must lie for its interval to lie above the bound in POWER of samples.

    interval: of `mean_intervals`, of n units as these, with so many comparisons (half as many for one-sided tests). It
    is exact for normal values: the non-centrality of Student's t at which the test has this power (Cohen 1988,
    Statistical Power Analysis).
    """
    quantile = stats.t.isf(0.025 / comparisons, n - 1)
    return float((interval.value - interval.low) / quantile * special.nctdtrinc(n - 1, 1 - POWER, quantile))


def ratio_of_means(
    numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """The mean of a numerator [N, ...] over that of a denominator [N]: [...], and its linearised values, [C, ...].

    The linearised values are what `mean_intervals` wants (the delta method): their mean is the ratio, and it spreads
    as the ratio does. clusters [N]: prompts of one cluster are one unit together; without it each prompt is one. The
    denominator's mean must be well away from 0. Raises ValueError for fewer than two units. Source: Cochran 1977,
    Sampling Techniques, section 9A.
    """
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    names, number = np.unique(np.arange(len(above)) if clusters is None else clusters, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"an interval needs at least two sampled units, got {len(names)}")
    sums, whole = np.zeros((len(names), *above.shape[1:])), np.zeros(len(names))
    np.add.at(sums, number, above)
    np.add.at(whole, number, below)
    value = sums.sum(axis=0) / whole.sum()
    return value, value + (sums - value * whole.reshape(-1, *[1] * (above.ndim - 1))) / whole.mean()


def _moments(values: ArrayLike, clusters: ArrayLike | None) -> tuple[Floats, Floats, Floats, Floats]:
    """What intervals and tests of means need of values [N, ...]; clusters: see `mean_intervals`.

    The mean and its standard error, [...]; k [...]: the sample skewness (the third central moment over the 3/2 power of
    the second, 0 where values are equal but for rounding) over the root of the number of units; the independent values
    [C, ...]. Raises ValueError for fewer than two units.
    """
    array = np.asarray(values, dtype=np.float64)
    units = array if clusters is None else ratio_of_means(array, np.ones(len(array)), clusters)[1]
    root = np.sqrt(len(units))
    if len(units) < 2:
        raise ValueError(f"an interval needs at least two sampled units, got {len(units)}")
    deviation = units - units.mean(axis=0)
    variance = np.square(deviation).mean(axis=0)
    equal = variance <= _rounding(units) ** 2
    skewness = np.where(equal, 0.0, (deviation**3).mean(axis=0) / np.where(equal, 1.0, variance) ** 1.5)
    return array.mean(axis=0), units.std(axis=0, ddof=1) / root, skewness / root, units


def _rounding(values: Floats) -> Floats:
    """How much values [N, ...] that are equal may differ by rounding, [...]."""
    return 8 * np.finfo(np.float64).eps * np.abs(values).max(axis=0)


def wilson(successes: ArrayLike, n: int, level: float = 0.95) -> tuple[Floats, Floats]:
    """Wilson score intervals (low, high), each [...], of the proportions successes [...] / n (Wilson 1927).

    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError("a proportion needs at least one trial")
    share, z = np.asarray(successes, dtype=np.float64) / n, stats.norm.ppf((1 + level) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    width = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # For 0 or n successes the interval ends exactly at the share, whatever rounding does.
    return np.clip(centre - width, 0, share), np.clip(centre + width, share, 1)


def accuracy(right: Bools, units: int | None = None) -> Interval:
    """The share of right answers and its 95 % Wilson interval.

    right: answers to N prompts [N], or of several runs on the same prompts [R, N]. The share is the mean over all runs;
    the interval counts each prompt once, because runs that share prompts are not independent. units: how many of the
    prompts are independent; default all. Raises ValueError if there is no prompt.
    """
    right = np.atleast_2d(right)
    n = right.shape[1] if units is None else units
    low, high = wilson(right.mean() * n, n)
    return Interval(float(right.mean()), float(low), float(high))


def paired_moments(differences: ArrayLike) -> Ends:
    """The mean of paired differences of right answers [N] and its variance, with a value of 1 and one of -1 added.

    Source: Bonett & Price 2012.
    """
    array = np.asarray(differences, dtype=np.float64)
    n, mean, square = len(array), float(array.mean()), float((array**2).mean())
    shrunk = n * mean / (n + 2)
    return shrunk, max(0.0, (n * square + 2) / (n + 2) - shrunk**2) / (n + 2)


def paired_interval(differences: ArrayLike) -> Interval:
    """The mean of paired differences of right answers [N], each in [-1, 1], with its interval, which ends there.

    It reaches to either side as far as the farther of two: Wald's interval of `paired_moments`, and the exact one of a
    share, as if all changes went in one direction (Clopper & Pearson 1934). Unlike Student's interval it has width
    where all differences are equal.
    """
    array = np.asarray(differences, dtype=np.float64)
    mean, variance = paired_moments(array)
    n, raw = len(array), float(array.mean())
    width, net = float(stats.norm.isf(ERROR) * np.sqrt(variance)), n * raw

    def most(count: float) -> float:
        return float(stats.beta.isf(ERROR, max(count, 0) + 1, n - max(count, 0))) if count < n else 1.0

    low = float(stats.beta.ppf(ERROR, net, n - net + 1)) if net > 0 else -most(-net)
    return Interval(raw, max(min(mean - width, low), -1.0), min(max(mean + width, most(net)), 1.0))


def halves(n: int, seed: int = 0, clusters: NDArray[np.integer] | None = None) -> tuple[Ints, Ints]:
    """A seeded random split of n units into two halves: sorted indices [n // 2] and [n - n // 2].

    Choose heads or edges on the first half and measure them on the second. clusters [N]: units of one cluster are not
    independent, so that all of them go where the first of them goes; the halves may then differ in size. Raises
    ValueError where one of them would be empty.
    """
    order = np.random.default_rng(seed).permutation(n)
    in_first = np.isin(np.arange(n), order[: n // 2])
    if clusters is not None:
        _, first_of, cluster = np.unique(clusters, return_index=True, return_inverse=True)
        in_first = in_first[first_of[cluster]]
        if in_first.all() or not in_first.any():
            raise ValueError(f"{len(first_of)} clusters all fall into one half: give more prompts, or another seed")
    return np.flatnonzero(in_first), np.flatnonzero(~in_first)


def rank_p(value: float, controls: Sequence[float]) -> tuple[float, float]:
    """The one-sided Monte-Carlo p of a value among n controls, and the smallest p that so many can give.

    It is (1 + number of controls that are at most the value) / (1 + n). Source: Davison & Hinkley 1997, equation 4.11.
    """
    as_low = sum(control <= value for control in controls)
    return (1 + as_low) / (1 + len(controls)), 1 / (1 + len(controls))


def mcnemar(before: Bools, after: Bools, units: ArrayLike | None = None) -> float:
    """The two-sided p of McNemar's exact test that prompts are answered right equally often before and after.

    before, after: right answers to the same prompts, [N], or [R, N] for R runs. The null hypothesis: the change of each
    unit is as likely in the other direction. p is the probability of a total change at least as large. A prompt with
    all its runs is one unit; prompts with the same entry in `units` [N] are one unit together, because they are not
    independent.
    """
    first, second = np.broadcast_arrays(np.atleast_2d(before), np.atleast_2d(after))
    change = first.sum(axis=0) - second.sum(axis=0)
    if units is not None:
        change = np.bincount(np.unique(units, return_inverse=True)[1], change).astype(int)
    probability = np.ones(1)  # of every possible total change, from the most negative to the most positive
    for size in np.abs(change):
        step = np.zeros(2 * size + 1)
        step[0] += 0.5
        step[-1] += 0.5  # for size 0 both are the same entry, which becomes 1
        probability = np.convolve(probability, step)
    totals = np.abs(np.arange(len(probability)) - len(probability) // 2)
    return min(1.0, float(probability[totals >= abs(change.sum())].sum()))


def mean_p(values: ArrayLike, clusters: ArrayLike | None = None) -> Floats:
    """The one-sided p-values [...] that means over the first axis of values [N, ...] are not above 0.

    It is the larger of two: that of Student's t test, and that with Hall's correction for skewness. So it is at most
    alpha just where the interval of `mean_intervals` for 0.025 / alpha comparisons lies above 0. Values that are all
    equal have the p 0 above 0, and else 1. clusters [N]: see `mean_intervals`. Raises ValueError for fewer than two
    units.
    """
    mean, error, k, units = _moments(values, clusters)
    flat = error <= _rounding(units)
    t = mean / np.where(flat, 1.0, error)
    hall = t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6
    p = stats.t.sf(np.minimum(t, hall), len(units) - 1)
    return np.where(flat, np.where(mean > 0, 0.0, 1.0), p)


def paired_p(differences: ArrayLike) -> float:
    """The one-sided p that the mean of paired differences of right answers [N] is not above 0, see `paired_moments`."""
    mean, variance = paired_moments(differences)
    return float(stats.norm.sf(mean / np.sqrt(variance))) if mean > 0 else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """The p-values corrected by Holm's method (1979), in the order given."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.arange(len(p), 0, -1) * np.take(p, order))
    return np.minimum(corrected, 1.0).tolist()


# ------------------------------------------------------------------------------------------------ NaN

# Why a number may be NaN, by the name of its entry of records. Infinity is allowed nowhere.
NAN_IN_RECORDS = {
    "edges": "the receiver is in no later layer than the sender",
    **dict.fromkeys(("attribution", "direct"), "what a head of this class writes to the output by itself is not known"),
}

# The same for entries of values files, or entries around them.
NAN_IN_VALUES = {
    **NAN_IN_RECORDS,
    "paths": NAN_IN_RECORDS["edges"],
    **dict.fromkeys(
        ("scores", "search", "models", "faithfulness", "CPR", "CMD", "strongest", "explained", "by_draw", "points"),
        "a share of what the whole model does, where that is not above nothing",
    ),
    "claims": "there is not shown to be anything that could be lost, so that a share of it has no interval",
    "shared": "a share of the units that pruning leaves, where it leaves none",
    "random": "a share of the units that random prunings leave, where they leave none",
    "selectivity": "a ratio whose denominator is 0",
}
