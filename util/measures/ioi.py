"""Head patching in indirect object identification: from logit differences to effects (numpy arrays alone).

A logit difference is that of the answer IO minus that of the repeated name S, of the base prompt, whatever is patched.
base [N]: without a patch; source [N]: of the run that activations are taken from; patched [N, L, H]: of the base run
with one head from the source.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.floating]


def colour_limit(effects: Floats, factor: float = 3.0) -> float:
    """Symmetric limits of a colour scale, `factor` times the mean of |effects|; 1 where there are none."""
    return float(factor * np.abs(effects).mean()) or 1.0


def selectivity(difference: Floats) -> NDArray[np.float64]:
    """How unequally heads take part in a difference [L, H, D] of two tokens' head outputs, [L].

    The mean absolute difference of the two heads with the largest over that of the two with the smallest; NaN where the
    latter is 0. Raises ValueError for fewer than four heads.
    """
    if difference.shape[1] < 4:
        raise ValueError(f"{difference.shape[1]} heads: the two largest and the two smallest of at least 4 are needed")
    means = np.sort(np.abs(difference).mean(axis=2, dtype=np.float64), axis=1)
    low, high = means[:, :2].mean(axis=1), means[:, -2:].mean(axis=1)
    return np.divide(high, low, out=np.full(len(low), np.nan), where=low > 0)


@dataclass(frozen=True)
class Effect:
    """A normalised effect of heads and its 95 % interval, each of one shape; 0 is the base run, 1 the source run."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def normalised(
    patched: Floats, base: Floats, source: Floats, clusters: NDArray[np.integer], draws: int = 1000, seed: int = 0
) -> Effect:
    """The mean change by a patch [N, ...] over the mean change to the source: a ratio of means.

    Its standard error is bootstrapped by cluster [N]: prompts that share one (a frame and a pair of names) are drawn
    together. The normal intervals hold together for all heads (Bonferroni). Raises ValueError for fewer than two
    clusters.
    """
    names, number = np.unique(clusters, return_inverse=True)
    if len(names) < 2:
        raise ValueError("an interval needs at least two clusters of prompts")
    change = (patched - base.reshape(-1, *[1] * (patched.ndim - 1))).astype(np.float64)
    sums = np.zeros((len(names), *change.shape[1:]))
    whole = np.zeros(len(names))
    np.add.at(sums, number, change)
    np.add.at(whole, number, source.astype(np.float64) - base)
    weights = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    drawn = np.tensordot(weights, sums, 1) / (weights @ whole).reshape(-1, *[1] * (change.ndim - 1))
    width = stats.norm.ppf(1 - 0.025 / max(1, change[0].size)) * drawn.std(axis=0, ddof=1)
    value = sums.sum(0) / whole.sum()
    return Effect(value, value - width, value + width)


@dataclass(frozen=True)
class Agreement:
    """How well an approximate map [L, H] stands for the exact one.

    overlap: by k, the share of the k strongest heads (by size) that both have; worst: the head whose rank by size falls
    most in the approximation, and by how many places; signs: the share with the same sign of the heads whose exact
    effect is at least `least`.
    """

    spearman: float
    pearson: float
    overlap: dict[int, float]
    worst: tuple[int, int, int]
    signs: float


def agreement(exact: Floats, approximate: Floats, top: tuple[int, ...] = (5, 10), least: float = 0.0) -> Agreement:
    """Compare two maps of effects. Raises ValueError for different shapes."""
    if exact.shape != approximate.shape:
        raise ValueError(f"maps of different shapes, {exact.shape} and {approximate.shape}")
    a, b = exact.ravel().astype(np.float64), approximate.ravel().astype(np.float64)
    first, second = (np.argsort(np.argsort(-np.abs(x), kind="stable"), kind="stable") for x in (a, b))
    overlap = {k: float(((first < k) & (second < k)).sum() / k) for k in top if k <= len(a)}
    fall = np.where(first < max(top), second - first, -len(a))
    layer, head = np.unravel_index(fall.argmax(), exact.shape)
    strong = np.abs(a) >= least
    return Agreement(
        float(stats.spearmanr(a, b).statistic),
        float(stats.pearsonr(a, b).statistic),
        overlap,
        (int(layer), int(head), int(fall.max())),
        float((np.sign(a) == np.sign(b))[strong].mean()),
    )
