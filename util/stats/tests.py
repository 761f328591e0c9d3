"""Statistical tests: rank among controls, McNemar's test, means above 0, Holm's correction."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from util.stats.intervals import Floats, Sample, paired_moments


class Rank(NamedTuple):
    """The p of a value among controls, and the smallest p that this number of controls can give."""

    p: float
    least: float


def rank_p(value: float, controls: Sequence[float], *, tail: Literal["low", "high"]) -> Rank:
    """The one-sided Monte-Carlo p of a value among n controls: (1 + number of controls as extreme) / (1 + n).

    tail: "low" counts controls that are at most the value, "high" those that are at least the value.
    Source: Davison & Hinkley 1997, equation 4.11.
    """
    sign = {"low": 1, "high": -1}[tail]
    extreme = sum(sign * control <= sign * value for control in controls)
    return Rank((1 + extreme) / (1 + len(controls)), 1 / (1 + len(controls)))


def mcnemar(before: NDArray[np.bool_], after: NDArray[np.bool_], units: ArrayLike | None = None) -> float:
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
    alpha just where the interval of `mean_intervals` at the level 1 - 2 alpha lies above 0. Values that are all equal
    have the p 0 above 0, and else 1. clusters [N]: see `mean_intervals`. Raises ValueError for fewer than two units.
    """
    mean, error, k, units = Sample.of(values, clusters)
    flat = error <= 8 * np.finfo(np.float64).eps * np.abs(units).max(axis=0)
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
