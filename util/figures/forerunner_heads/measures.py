"""Forerunner token heads (Cho et al. 2025, section 4, Fig. 5 middle and Fig. 22-25), from arrays alone.

magnitude [N, L, H] is the copy magnitude A[y_q, s_q] of one condition and n_t [N] the prompt's number of tokens; a head
is a forerunner token head on a prompt when its magnitude exceeds c / n_t (strictly), c = 5 times uniform attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Head, top
from util.stats.intervals import Interval, Intervals, mean_interval, mean_intervals, resampled, signed

Floats = NDArray[np.floating]

THRESHOLD = 5.0
SHARE = 0.75  # of the prompts on which a head must exceed the threshold, to be called frequent


class Series(StrEnum):
    """What heads are counted in: behind three endings of a prompt, and the first of them with untrained weights."""

    CORRECT = "correct"
    WRONG = "wrong"
    OTHER_WORD = "other word"
    UNTRAINED = "untrained"

    @property
    def label(self) -> str:
        """How figures call it."""
        return _LABELS[self]


_LABELS = {
    Series.CORRECT: "correct label",
    Series.WRONG: "wrong label",
    Series.OTHER_WORD: "another word",
    Series.UNTRAINED: "untrained weights",
}


ENDINGS: dict[Series, int | str] = {Series.CORRECT: 0, Series.WRONG: 1, Series.OTHER_WORD: "the"}  # what is appended


def threshold(n_t: NDArray[np.integer], c: float = THRESHOLD, dtype: np.dtype | type = np.float64) -> Floats:
    """c / n_t of every prompt, [N]. In the magnitudes' own dtype: 0.1 as float32 exceeds 0.1 as float64."""
    return (np.asarray(c, dtype) / n_t.astype(dtype)).astype(dtype)


def is_forerunner(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> NDArray[np.bool_]:
    """Whether each head is a forerunner token head on each prompt, [N, L, H]."""
    return magnitude > threshold(n_t, c, magnitude.dtype)[:, None, None]


def head_counts(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> NDArray[np.int64]:
    """On how many of the N prompts each head is one: the heat map of Fig. 22-25, [L, H]."""
    return is_forerunner(magnitude, n_t, c).sum(axis=0)


def mean_head_count(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> Intervals:
    """Forerunner token heads per layer, the mean of the prompts [L] (Fig. 5 middle, left axis)."""
    return mean_intervals(is_forerunner(magnitude, n_t, c).sum(axis=2), within=(0, magnitude.shape[2]))


def mean_max_magnitude(magnitude: Floats) -> Intervals:
    """The largest copy magnitude of a layer's heads, the mean of the prompts [L] (Fig. 5 middle, right axis)."""
    return mean_intervals(magnitude.max(axis=2), within=(0, 1))


def frequent_heads(
    magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD, share: float = SHARE, draws: int = 2000
) -> Interval:
    """How many heads exceed c / n_t [N] on at least `share` of the prompts, three whole numbers.

    The 95 % interval is a percentile bootstrap over prompts, widened to hold the number itself. Raises ValueError for
    fewer than two prompts.
    """
    if len(magnitude) < 2:
        raise ValueError(f"an interval needs at least two prompts, got {len(magnitude)}")
    passes = is_forerunner(magnitude, n_t, c).reshape(len(magnitude), -1).astype(np.float64)
    weights = resampled(len(passes), draws)
    number = int((passes.sum(axis=0) >= share * len(passes)).sum())
    redrawn = (weights @ passes >= share * len(passes)).sum(axis=1)
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return Interval(number, min(number, int(np.floor(low))), max(number, int(np.ceil(high))))


def heads_on_a_prompt(magnitude: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD) -> Interval:
    """How many heads exceed c / n_t [N] on a prompt: the mean over prompts with its interval."""
    return mean_interval(is_forerunner(magnitude, n_t, c).sum(axis=(1, 2)), within=(0, magnitude[0].size))


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
    found = mean_intervals(difference, comparisons=int(np.prod(first.shape[1:])))
    return Contrast(
        first.mean(0, dtype=np.float64), second.mean(0, dtype=np.float64), found.value, found.low, found.high
    )


def on_map(contrast: Contrast, heads: Sequence[Head], shape: tuple[int, int]) -> Contrast:
    """The contrast of some heads [M] as maps of all heads [L, H]: NaN where a head is not among them."""

    parts = (contrast.first, contrast.second, contrast.difference, contrast.low, contrast.high)
    layers, places = np.array(heads, int).reshape(-1, 2).T
    maps = np.full((len(parts), *shape), np.nan)
    maps[:, layers, places] = parts
    return Contrast(*maps)


def uniform_magnitude(n_t: NDArray[np.integer]) -> float:
    """The copy magnitude of uniform attention, averaged over prompts of n_t [N] tokens: Fig. 5's null line."""
    return float((1 / n_t).mean())


class Verdict(StrEnum):
    """What a head is, as far as its prompts tell."""

    FORERUNNER = "forerunner head"
    PREVIOUS_TOKEN = "previous-token head"
    NEITHER = "neither"


def verdicts(
    magnitude: Floats, control: Floats, n_t: NDArray[np.integer], c: float = THRESHOLD, share: float = SHARE
) -> NDArray[np.str_]:
    """The `Verdict` on every head, as text [L, H].

    A head that exceeds c / n_t on at least `share` of the prompts reads the token before the label. It is a forerunner
    head when it does so more than at other tokens: the corrected interval of the contrast with `control` lies above 0,
    and its magnitude is at least twice the control. Else it is, as far as these prompts tell, a previous-token head.
    """
    more = contrast(magnitude, control)
    frequent = head_counts(magnitude, n_t, c) >= share * len(magnitude)
    specific = frequent & (more.low > 0) & (more.first >= 2 * more.second)
    otherwise = np.where(frequent, Verdict.PREVIOUS_TOKEN.value, Verdict.NEITHER.value)
    return np.where(specific, Verdict.FORERUNNER.value, otherwise)


@dataclass(frozen=True)
class Specificity:
    """What the heads that were chosen as forerunner heads do on prompts that did not choose them.

    chosen, confirmed: number of heads with that verdict on the first half, and on both; than_wrong, than_other: of the
    confirmed ones, those that read the forerunner more behind the correct label than behind a wrong one, and than
    behind another word (the corrected interval of the difference lies above 0). strongest: the most specific heads.
    """

    chosen: int
    confirmed: int
    than_wrong: int
    than_other: int
    strongest: tuple[Head, ...]

    def __str__(self) -> str:
        return (
            f"forerunner heads: {self.chosen} chosen, {self.confirmed} confirmed on the held-out half; of these "
            f"{self.than_wrong} read more with the correct label than with a wrong one, {self.than_other} more than "
            "with another word"
        )


def specificity(
    chosen: NDArray[np.str_],
    kept: NDArray[np.str_],
    than_control: Contrast,
    than_wrong: Contrast,
    than_other: Contrast,
    most: int = 5,
) -> Specificity:
    """Judge heads with verdicts `chosen` [L, H] by what they do on the held-out prompts.

    kept [L, H]: their verdicts there. The contrasts are those of the magnitude behind the correct label with that of
    other previous tokens, of a wrong label and of another word; the most specific heads are those of the first.
    """
    confirmed = (chosen == Verdict.FORERUNNER) & (kept == Verdict.FORERUNNER)
    difference = np.where(confirmed, than_control.difference, np.nan)
    return Specificity(
        chosen=int((chosen == Verdict.FORERUNNER).sum()),
        confirmed=int(confirmed.sum()),
        than_wrong=int((confirmed & (than_wrong.low > 0)).sum()),
        than_other=int((confirmed & (than_other.low > 0)).sum()),
        strongest=tuple(top(difference, min(most, int(confirmed.sum())))),
    )


def difference_text(contrast: Contrast, head: Head) -> str:
    """The difference of one head with its interval: +0.95 [+0.94, +0.96]."""
    return signed(Interval(contrast.difference[head], contrast.low[head], contrast.high[head]), 2)


# ------------------------------------------------------------------------------------------------ induction heads


class Reader(StrEnum):
    """Whose reads of the labels are compared."""

    BEST = "best head"
    MEAN = "mean of heads"
    SIMILARITY = "similarity of states"


class Inducing(StrEnum):
    """Which induction heads are counted."""

    ANY = "induction heads"
    CORRECT = "of the query's label"


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
    total, of_same = reads.sum(axis=-1), np.where(same, reads, 0).sum(axis=-1)
    return Induction(total, 2 * of_same - total, of_same / (total + 1e-5))


def similarity_likelihood(
    similarity: Floats, gold: NDArray[np.integer], demonstrations: NDArray[np.integer]
) -> NDArray[np.float64]:
    """The share of the query's label in the similarity [N, L, k] of the forerunners s_i to s_q, [N, L].

    "Vanilla attention" of Fig. 6 middle. Negative similarities count as none; with them a share would have no meaning.
    """
    weight = np.maximum(similarity, 0)
    of_same = np.where((demonstrations == gold[:, None])[:, None, :], weight, 0).sum(axis=-1)
    return of_same / (weight.sum(axis=-1) + 1e-5)


def induction_counts(
    induction: Induction, n_t: NDArray[np.integer], classes: int, c: float = THRESHOLD
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each head is an induction head, and a correct one, on each prompt, two of [N, L, H].

    The thresholds are c / n_t for the magnitude and c / (n_t classes) for correctness. They are not scaled by k in the
    authors' code, although uniform attention gives k / n_t: from k = c on it passes.
    """
    least = threshold(n_t, c, induction.magnitude.dtype)[:, None, None]
    return induction.magnitude > least, induction.correctness > least / classes


def best_head_null(
    reads: Floats, gold: NDArray[np.integer], demonstrations: NDArray[np.integer], draws: int = 100, seed: int = 0
) -> Intervals:
    """The likelihood of a layer's best head on each prompt, were it blind to labels: its mean and 95 % range, [L].

    The maximum over heads is large by chance alone. In each draw the labels of every prompt's demonstrations are
    shuffled, so that their composition and what the heads read stay as they are.
    """
    rng = np.random.default_rng(seed)
    same = demonstrations == gold[:, None]
    total = reads.sum(axis=-1) + 1e-5
    best = []
    for _ in range(draws):
        of_same = np.einsum("nlhk,nk->nlh", reads, rng.permuted(same, axis=1).astype(reads.dtype))
        best.append((of_same / total).max(axis=2).mean(axis=0, dtype=np.float64))
    low, high = np.quantile(best, [0.025, 0.975], axis=0)
    return Intervals(np.mean(best, axis=0), low, high)


def beyond_chance(best: Intervals, null: Intervals) -> list[int]:
    """The layers whose interval lies above the null's range."""
    return [int(layer) for layer in np.flatnonzero(best.low > null.high)]


def best_correct_share(correct: NDArray[np.bool_]) -> tuple[float, float]:
    """The share of prompts on which the most frequent correct induction head is one, and its standard error.

    correct [N, L, H]: whether each head is one, see `induction_counts`.
    """
    share = float(correct.mean(axis=0).max())
    return share, float(np.sqrt(share * (1 - share) / len(correct)))


def uniform_likelihood(gold: NDArray[np.integer], demonstrations: NDArray[np.integer]) -> tuple[float, float]:
    """The likelihood of attention that is uniform over the demonstrations [N, k], and the largest that is possible.

    The null line and the ceiling of Fig. 6 middle: where no demonstration has the query's label, no head has any.
    """
    same = demonstrations == gold[:, None]
    return float(same.mean()), float(same.any(axis=1).mean())
