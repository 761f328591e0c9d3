"""Confidence intervals. Every plotted number of the suite has an interval from this file."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


class Interval(NamedTuple):
    """A value and its 95 % interval; written as 0.44 [0.28, 0.59]."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (f"{round(number, 2) + 0.0:.2f}" for number in self)  # + 0.0 turns -0.0 into 0.0
        return f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class Intervals:
    """Values and their 95 % intervals, three arrays of one shape."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __getitem__(self, place: Any) -> Interval:
        """The interval at one index of the arrays."""
        return Interval(float(self.value[place]), float(self.low[place]), float(self.high[place]))


def resampled(units: int, draws: int, seed: int = 0) -> NDArray[np.int64]:
    """How often each bootstrap sample holds each unit, [draws, units]: drawn with replacement, as many as there are."""
    return np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=draws)


def bootstrap_mean(
    values: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the first axis of values [N, ...] and its percentile bootstrap interval: (mean, low, high), each [...].

    The first axis runs over the sampled units (prompts). A unit is resampled with all of its values, so differences
    that were formed before the call are paired. Raises ValueError for fewer than two units.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        raise ValueError(f"an interval needs at least two sampled units, got {len(array)}")
    flat = array.reshape(len(array), -1)
    weights = resampled(len(array), draws, seed)
    means = (weights @ flat) / len(array)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    shape = array.shape[1:]
    return array.mean(axis=0), low.reshape(shape), high.reshape(shape)


def t_interval(
    values: ArrayLike, level: float = 0.95, comparisons: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the first axis of values [N, ...] with a Student-t interval: (mean, low, high), each [...].

    comparisons: how many intervals are to hold together at `level` (Bonferroni correction), for maps of many cells.
    Raises ValueError for fewer than two units.
    """
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    if n < 2:
        raise ValueError(f"an interval needs at least two sampled units, got {n}")
    mean, error = array.mean(axis=0), array.std(axis=0, ddof=1) / np.sqrt(n)
    width = stats.t.ppf(1 - (1 - level) / (2 * comparisons), n - 1) * error
    return mean, mean - width, mean + width


def wilson(successes: ArrayLike, n: int, level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson score intervals (low, high), each [...], of the proportions successes [...] / n (Wilson 1927).

    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError("a proportion needs at least one trial")
    share, z = np.asarray(successes, dtype=np.float64) / n, stats.norm.ppf((1 + level) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    width = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # For 0 or n successes the interval ends exactly at the share; minimum and maximum undo rounding errors.
    return np.minimum(np.clip(centre - width, 0, 1), share), np.maximum(np.clip(centre + width, 0, 1), share)


def accuracy(right: NDArray[np.bool_], units: int | None = None) -> Interval:
    """The share of right answers and its 95 % Wilson interval.

    right: answers to N prompts [N], or of several runs on the same prompts [R, N]. The share is the mean over all runs;
    the interval counts each prompt once, because runs that share prompts are not independent. units: how many of the
    prompts are independent; default all. Raises ValueError if there is no prompt.
    """
    right = np.atleast_2d(right)
    n = right.shape[1] if units is None else units
    low, high = wilson(right.mean() * n, n)
    return Interval(float(right.mean()), float(low), float(high))
