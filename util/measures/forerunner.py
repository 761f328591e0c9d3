"""Forerunner token heads (Cho et al. 2025, section 4, Fig. 5 middle and Fig. 22-25), from arrays alone.

magnitude [N, L, H] is the copy magnitude A[y_q, s_q] of one condition and n_t [N] the prompt's number of tokens; a head
is a forerunner token head on a prompt when its magnitude exceeds c / n_t (strictly), c = 5 times uniform attention.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.measures.statistics import bootstrap_mean, t_interval

Floats = NDArray[np.floating]

THRESHOLD = 5.0


def threshold(n_t: NDArray[np.integer], c: float = THRESHOLD, dtype: np.dtype | type = np.float64) -> Floats:
    """c / n_t of every prompt, [N]. In the magnitudes' own dtype: 0.1 as float32 exceeds 0.1 as float64."""
    return (np.asarray(c, dtype) / n_t.astype(dtype)).astype(dtype)


def is_forerunner(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> NDArray[np.bool_]:
    """Whether each head is a forerunner token head on each prompt, [N, L, H]."""
    return magnitude > threshold(n_t, c, magnitude.dtype)[:, None, None]


def head_counts(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> NDArray[np.int64]:
    """On how many of the N prompts each head is one: the heat map of Fig. 22-25, [L, H]."""
    return is_forerunner(magnitude, n_t, c).sum(axis=0)


@dataclass(frozen=True)
class LayerCurve:
    """A per-layer mean over prompts with its bootstrap interval, each [L]."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def mean_head_count(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> LayerCurve:
    """Forerunner token heads per layer, averaged over prompts (Fig. 5 middle, left axis)."""
    return LayerCurve(*bootstrap_mean(is_forerunner(magnitude, n_t, c).sum(axis=2)))


def mean_max_magnitude(magnitude: Floats) -> LayerCurve:
    """The largest copy magnitude of a layer's heads, averaged over prompts (Fig. 5 middle, right axis)."""
    return LayerCurve(*bootstrap_mean(magnitude.max(axis=2)))


@dataclass(frozen=True)
class Specificity:
    """How much more a head reads the previous token at a label than elsewhere, each [L, H].

    Positive: it reads forerunners because a label follows. About 0 with a large `control`: any previous-token head.
    The intervals hold together for all heads (Bonferroni).
    """

    magnitude: NDArray[np.float64]
    control: NDArray[np.float64]
    difference: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def label_specificity(magnitude: Floats, control: Floats) -> Specificity:
    """A[y_q, s_q] minus the mean A[t, t-1] of other tokens of the same prompt; both [N, L, H], paired by prompt."""
    heads = int(np.prod(magnitude.shape[1:]))
    difference = magnitude.astype(np.float64) - control.astype(np.float64)
    return Specificity(magnitude.mean(0), control.mean(0), *t_interval(difference, comparisons=heads))


def uniform_magnitude(n_t: NDArray[np.integer]) -> float:
    """The copy magnitude of uniform attention, averaged over prompts: the null line of Fig. 5's right axis."""
    return float((1 / n_t).mean())


VERDICTS = ("label-specific", "any token", "neither")


def verdicts(
    magnitude: Floats, control: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD, share: float = 0.75
) -> NDArray[np.str_]:
    """One of VERDICTS for every head, [L, H].

    A head that exceeds c / n_t on at least `share` of the prompts is label-specific when its specificity's corrected
    interval lies above 0 and it reads forerunners at least twice as strongly as other previous tokens, else any-token.
    """
    found = label_specificity(magnitude, control)
    frequent = head_counts(magnitude, n_t, c) >= share * len(magnitude)
    specific = frequent & (found.low > 0) & (found.magnitude >= 2 * found.control)
    return np.where(specific, VERDICTS[0], np.where(frequent, VERDICTS[1], VERDICTS[2]))
