"""Sets of function-vector heads and of induction heads, and control sets of either.

Sources: Todd et al. 2024, "Function Vectors in Large Language Models", for the scores; Yin & Steinhardt 2025, "Which
Attention Heads Matter for In-Context Learning?", sections 4 and 5, for the comparison. They exclude the best 2 % of the
heads of one kind from the other; here the best n of either kind are excluded from the other, n being the size of all
sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Head, layer_matched, norm_matched, shortage, top

Floats = NDArray[np.floating]

WHOLE = "whole model"
INDUCTION, FUNCTION_VECTOR = "induction", "FV"
INDUCTION_ALONE, FUNCTION_VECTOR_ALONE = "induction, not FV", "FV, not induction"
KINDS = (INDUCTION, FUNCTION_VECTOR, INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
PAIRS, COPIES = "word pairs", "copied tokens"  # what is measured, beside the classification task
ROOM = 0.05  # how much more probable intact demonstrations must make the answer, for indirect effects to be measured


class Ablated(NamedTuple):
    """A set of heads that is ablated: of a kind, or (draw from 1 on) a control set of that kind. WHOLE: none is."""

    kind: str = WHOLE
    draw: int = 0

    @property
    def name(self) -> str:
        """How values files call it."""
        return f"{self.kind}, control {self.draw}" if self.draw else self.kind


@dataclass(frozen=True)
class HeadSets:
    """Sets of n heads by kind, and control sets of each.

    sets: the best heads by prefix matching and by AIE, and the best that are not among the best n of the other.
    controls: other heads, as many, that are in neither list of the best n. matched: "layers" where every layer has as
    many of them as of the set, "norms" where there are too few such sets: they write as much as the set then.
    """

    n: int
    sets: Mapping[str, list[Head]]
    controls: Mapping[str, list[list[Head]]]
    matched: Mapping[str, str]

    @property
    def ablations(self) -> dict[Ablated, list[Head]]:
        """The heads that are ablated, those of the whole model, none, first."""
        kinds = {Ablated(kind): heads for kind, heads in self.sets.items()}
        draws = {Ablated(kind, i): heads for kind in self.sets for i, heads in enumerate(self.controls[kind], 1)}
        return {Ablated(): [], **kinds, **draws}


def check_size(n: int, heads: int) -> None:
    """Raises ValueError for sets of n heads that are too large for control sets, in a model of so many heads."""
    if not 1 <= n <= heads // 3:
        raise ValueError(f"n = {n}: give 1 to {heads // 3}, a third of the heads, so that there are others as controls")


def head_sets(matching: Floats, effect: Floats, norms: Floats, n: int, draws: int, seed: int = 0) -> HeadSets:
    """Returns the sets of n heads by prefix matching [L, H] and AIE [L, H], and control sets of each.

    norms [L, H]: how long what each head writes is. Raises what `check_size` raises.
    """
    check_size(n, matching.size)
    best = {INDUCTION: top(matching, n), FUNCTION_VECTOR: top(effect, n)}
    sets = best | {
        INDUCTION_ALONE: _top_without(matching, n, best[FUNCTION_VECTOR]),
        FUNCTION_VECTOR_ALONE: _top_without(effect, n, best[INDUCTION]),
    }
    eligible = np.ones(matching.shape, bool)
    eligible[tuple(np.array(best[INDUCTION] + best[FUNCTION_VECTOR]).T)] = False
    controls, matched = {}, {}
    for kind, heads in sets.items():
        drawn = [] if shortage(heads, eligible) else layer_matched(heads, eligible, draws, seed)
        by_layer = len(drawn) == draws
        matched[kind] = "layers" if by_layer else "norms"
        controls[kind] = drawn if by_layer else norm_matched(heads, eligible, norms, draws, seed)
    return HeadSets(n, sets, controls, matched)


def _top_without(score: Floats, n: int, others: list[Head]) -> list[Head]:
    """The n heads with the highest score that are none of the others."""
    return [head for head in top(score, n + len(others)) if head not in others][:n]
