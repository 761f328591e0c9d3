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
class Contrast:
    """Two attentions of every head, averaged over prompts, and their paired difference with its interval, each [L, H].

    The 95 % intervals hold together for all heads (Bonferroni).
    """

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    difference: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def contrast(first: Floats, second: Floats) -> Contrast:
    """First minus second, both [N, L, H], paired by prompt.

    With the copy magnitude and its control A[t, t-1] at other tokens this is a head's specificity: positive where it
    reads forerunners more than other previous tokens. With two conditions it is the effect of what is appended.
    """
    difference = first.astype(np.float64) - second.astype(np.float64)
    interval = t_interval(difference, comparisons=int(np.prod(first.shape[1:])))
    return Contrast(first.mean(0, dtype=np.float64), second.mean(0, dtype=np.float64), *interval)


def uniform_magnitude(n_t: NDArray[np.integer]) -> float:
    """The copy magnitude of uniform attention, averaged over prompts: the null line of Fig. 5's right axis."""
    return float((1 / n_t).mean())


VERDICTS = ("forerunner head", "previous-token head", "neither")


def verdicts(
    magnitude: Floats, control: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD, share: float = 0.75
) -> NDArray[np.str_]:
    """One of VERDICTS for every head, [L, H].

    A head that exceeds c / n_t on at least `share` of the prompts reads the token before the label. It is a forerunner
    head when it does so more than at other tokens: the corrected interval of the contrast with `control` lies above 0,
    and its magnitude is at least twice the control. Else it is, as far as these prompts tell, a previous-token head.
    """
    found = contrast(magnitude, control)
    frequent = head_counts(magnitude, n_t, c) >= share * len(magnitude)
    specific = frequent & (found.low > 0) & (found.first >= 2 * found.second)
    return np.where(specific, VERDICTS[0], np.where(frequent, VERDICTS[1], VERDICTS[2]))


# ------------------------------------------------------------------------------------------------ answers


def gold_log_probability(log_prob: Floats, gold: NDArray[np.integer]) -> Floats:
    """The gold label's log-probability, [N] in nats, of those of all labels [N, C]."""
    return np.take_along_axis(log_prob, gold[:, None], axis=1)[:, 0]


def right(log_prob: Floats, gold: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether the gold label is the likeliest of all labels [N, C], [N]."""
    return log_prob.argmax(axis=1) == gold


def majority_right(gold: NDArray[np.integer]) -> NDArray[np.float64]:
    """How right the label is that most queries have, [N]; labels that are equally frequent share the answer."""
    counts = np.bincount(gold)
    return (counts[gold] == counts.max()) / (counts == counts.max()).sum()


def vote_right(gold: NDArray[np.integer], demonstrations: NDArray[np.integer], classes: int) -> NDArray[np.float64]:
    """How right the label is that most demonstrations [N, k] of a prompt have, [N]; equal ones share the answer."""
    votes = (demonstrations[:, :, None] == np.arange(classes)).sum(axis=1)
    winners = votes == votes.max(axis=1, keepdims=True)
    return np.take_along_axis(winners / winners.sum(axis=1, keepdims=True), gold[:, None], axis=1)[:, 0]


# ------------------------------------------------------------------------------------------------ induction heads


@dataclass(frozen=True)
class Induction:
    """Induction heads as Cho et al. count them (Fig. 6 left, middle). reads [N, L, H, k]: A[s_q, y_i].

    magnitude: the sum of the reads; correctness: that of demonstrations with the query's own label minus the others;
    likelihood: the share of the query's label in what is read, 0 where nothing is. Each [N, L, H].
    """

    magnitude: Floats
    correctness: Floats
    likelihood: Floats


def induction(reads: Floats, gold: NDArray[np.integer], demonstrations: NDArray[np.integer]) -> Induction:
    """The magnitudes of every head on every prompt; demonstrations [N, k] are the labels' indices."""
    same = (demonstrations == gold[:, None])[:, None, None, :]
    total, own = reads.sum(axis=-1), np.where(same, reads, 0).sum(axis=-1)
    return Induction(total, 2 * own - total, own / (total + 1e-5))


def similarity_likelihood(
    similarity: Floats, gold: NDArray[np.integer], demonstrations: NDArray[np.integer]
) -> NDArray[np.float64]:
    """The share of the query's label in the similarity [N, L, k] of the forerunners s_i to s_q, [N, L].

    "Vanilla attention" of Fig. 6 middle. Negative similarities count as none; with them a share would have no meaning.
    """
    weight = np.maximum(similarity, 0)
    own = np.where((demonstrations == gold[:, None])[:, None, :], weight, 0).sum(axis=-1)
    return own / (weight.sum(axis=-1) + 1e-5)


def induction_counts(
    found: Induction, n_t: NDArray[np.integer], classes: int, k: int, c: float = THRESHOLD, scaled: bool = False
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each head is an induction head, and a correct one, on each prompt, two of [N, L, H].

    The thresholds are c / n_t for the magnitude and c / (n_t classes) for correctness. They are not scaled by k in the
    authors' code, although uniform attention gives k / n_t: from k = c on it passes. scaled: k times these thresholds.
    """
    least = threshold(n_t, c * (k if scaled else 1), found.magnitude.dtype)[:, None, None]
    return found.magnitude > least, found.correctness > least / classes


def uniform_likelihood(gold: NDArray[np.integer], demonstrations: NDArray[np.integer]) -> tuple[float, float]:
    """The likelihood of attention that is uniform over the demonstrations, and the largest one that is possible.

    The null line and the ceiling of Fig. 6 middle: where no demonstration has the query's label, no head has any.
    """
    same = demonstrations == gold[:, None]
    return float(same.mean()), float(same.any(axis=1).mean())
