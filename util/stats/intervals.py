"""Intervals, of which every plotted number of the suite gets one from here; a test; a split."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


def bootstrap_mean(
    values: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the first axis of values [N, ...] and its percentile bootstrap interval: (mean, low, high), each [...].

    The first axis is the unit that was sampled (prompts). All other axes are resampled together, so differences formed
    before the call are paired. Raises ValueError for fewer than two units.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        raise ValueError(f"an interval needs at least two sampled units, got {len(array)}")
    flat = array.reshape(len(array), -1)
    weights = np.random.default_rng(seed).multinomial(len(array), np.full(len(array), 1 / len(array)), size=draws)
    means = (weights @ flat) / len(array)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    shape = array.shape[1:]
    return array.mean(axis=0), low.reshape(shape), high.reshape(shape)


def t_interval(
    values: ArrayLike, level: float = 0.95, comparisons: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the first axis of values [N, ...] with a Student-t interval: (mean, low, high), each [...].

    comparisons: Bonferroni correction, for maps over many cells. With it, all intervals hold together at `level`.
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
    """Wilson score interval (low, high) of a proportion successes / n (Wilson 1927). Raises ValueError for n < 1."""
    if n < 1:
        raise ValueError("a proportion needs at least one trial")
    share, z = np.asarray(successes, dtype=np.float64) / n, stats.norm.ppf((1 + level) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    width = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # at 0 and n the interval ends at the share itself, but for rounding
    return np.minimum(np.clip(centre - width, 0, 1), share), np.maximum(np.clip(centre + width, 0, 1), share)


def accuracy(right: NDArray[np.bool_], units: int | None = None) -> tuple[float, float, float]:
    """The share of right answers [N] and its 95 % interval by Wilson; of several runs [R, N], their mean's, as of one.

    So runs that share their prompts make the interval no narrower. units: how many of the prompts are independent, by
    default all.
    """
    right = np.atleast_2d(right)
    n = right.shape[1] if units is None else units
    low, high = wilson(right.mean() * n, n)
    return float(right.mean()), float(low), float(high)


def mcnemar(before: NDArray[np.bool_], after: NDArray[np.bool_], units: ArrayLike | None = None) -> float:
    """McNemar's exact test (two-sided p) that the same prompts are answered right as often, [N] or, in runs, [R, N].

    How rare is it that as many answers change in sum, were each unit's change as likely in the other direction? All the
    runs of a prompt are one unit, and so are prompts that share one of `units` [N]: they are not independent.
    """
    first, second = np.broadcast_arrays(np.atleast_2d(before), np.atleast_2d(after))
    change = first.sum(axis=0) - second.sum(axis=0)
    if units is not None:
        change = np.bincount(np.unique(units, return_inverse=True)[1], change).astype(int)
    likely = np.ones(1)  # of every sum of the changes with either sign, the smallest first
    for size in np.abs(change):
        step = np.zeros(2 * size + 1)
        step[0] += 0.5
        step[-1] += 0.5
        likely = np.convolve(likely, step)
    sums = np.abs(np.arange(len(likely)) - len(likely) // 2)
    return min(1.0, float(likely[sums >= abs(change.sum())].sum()))


def halves(n: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A seeded split of n units into two halves: choose on the first, measure on the second."""
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])
