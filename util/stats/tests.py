"""Tests: McNemar's, the rank among controls, Holm's correction; and the split into a half that chooses and one that
measures."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Rank(NamedTuple):
    """How rare a value is among controls, and the least p that so many controls can give."""

    p: float
    least: float


def rank_p(value: float, controls: Sequence[float], *, tail: Literal["low", "high"]) -> Rank:
    """The one-sided Monte-Carlo p of a value among n controls: (1 + #{controls as extreme}) / (1 + n).

    tail: "low" where a low value would be remarkable (controls as low count), "high" where a high one would be.
    Raises ValueError for another tail. Source: Davison & Hinkley 1997, equation 4.11.
    """
    if tail not in ("low", "high"):
        raise ValueError(f'tail = {tail!r}: give "low" or "high"')
    extreme = sum(control <= value if tail == "low" else control >= value for control in controls)
    return Rank((1 + extreme) / (1 + len(controls)), 1 / (1 + len(controls)))


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


def holm(p: Sequence[float]) -> list[float]:
    """Holm's (1979) corrected p-values, in the order given: for claims that one of several tests is enough for."""
    order = sorted(range(len(p)), key=lambda place: p[place])
    corrected, largest = [1.0] * len(p), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = largest
    return corrected


def halves(n: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A seeded split of n units into two halves [n / 2]: choose on the first, measure on the second."""
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])
