"""Control sets: for a given set of heads, sets of the same number of other heads.

A head is (layer, head), an index into an array [L, H]. Layers are counted from 0, among those that have attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Head, heads_where

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
ENUMERATED = 20  # control sets are all taken where there are fewer


def shortage(heads: Sequence[Head], eligible: Bools) -> dict[int, tuple[int, int]]:
    """The layers that have too few eligible [L, H] heads for a control set, with (needed, available) of each.

    needed: how many heads of the set are in the layer. available: how many eligible heads of the layer are not in it.
    Raises ValueError for heads that there are not.
    """
    layers, size = eligible.shape
    wrong = [head for head in heads if not (0 <= head[0] < layers and 0 <= head[1] < size)]
    if wrong:
        raise ValueError(f"the model has {layers} layers of {size} heads, not {wrong}")
    short = {}
    for layer in sorted({layer for layer, _ in heads}):
        needed = sum(other == layer for other, _ in heads)
        available = len(_free(heads, eligible, layer))
        if needed > available:
            short[layer] = (needed, available)
    return short


def _free(heads: Sequence[Head], eligible: Bools, layer: int) -> list[Head]:
    """The eligible heads of a layer that are not in the set."""
    return [(layer, int(h)) for h in np.flatnonzero(eligible[layer]) if (layer, int(h)) not in heads]


def layer_matched(heads: Sequence[Head], eligible: Bools, draws: int, seed: int = 0) -> list[list[Head]]:
    """Control sets of other eligible [L, H] heads, with as many heads in each layer as the set has there.

    All control sets differ. If there are at most `draws` of them, all are returned. Raises ValueError for heads that
    there are not, and, naming the layers, if a layer has too few eligible heads.
    """
    short = shortage(heads, eligible)
    if short:
        places = ", ".join(
            f"layer {layer} has {available} heads for {needed}" for layer, (needed, available) in short.items()
        )
        raise ValueError(
            f"no layer-matched controls: {places}; take fewer heads, or a higher bound on what is no induction head"
        )
    counts = {layer: sum(at == layer for at, _ in heads) for layer, _ in sorted(heads)}
    free = {layer: _free(heads, eligible, layer) for layer in counts}
    if prod(comb(len(free[layer]), count) for layer, count in counts.items()) <= draws:
        choices = product(*(combinations(free[layer], count) for layer, count in counts.items()))
        return [[head for layer_heads in choice for head in layer_heads] for choice in choices]
    rng = np.random.default_rng(seed)

    def draw() -> list[Head]:
        drawn = []
        for layer, count in counts.items():
            indices = sorted(rng.choice(len(free[layer]), count, replace=False))
            drawn += [free[layer][index] for index in indices]
        return drawn

    return _different(draw, draws)


def norm_matched(
    heads: Sequence[Head], eligible: Bools, norms: Floats, draws: int, seed: int = 0, nearest: int = 6
) -> list[list[Head]]:
    """Control sets from any layer: each head of the set is replaced by an eligible [L, H] head of similar norm.

    norms: length of what each head writes [L, H]. The replacement is drawn from the `nearest` eligible heads, by the
    difference in log norm, that are not in this control set yet. Heads with larger norms choose first. All control sets
    differ; there are fewer than `draws` if no more are found. Raises ValueError if there are fewer eligible heads than
    the set has.
    """
    free = [head for head in heads_where(eligible) if head not in heads]
    if len(free) < len(heads):
        raise ValueError(f"no norm-matched controls: {len(free)} eligible heads for a set of {len(heads)}")
    rng = np.random.default_rng(seed)
    order = sorted(heads, key=lambda head: -norms[head])

    def draw() -> list[Head]:
        drawn: list[Head] = []
        for head in order:
            candidates = [other for other in free if other not in drawn]
            candidates.sort(key=lambda other: abs(np.log(norms[other] / norms[head])))
            drawn.append(candidates[rng.integers(min(nearest, len(candidates)))])
        return sorted(drawn)

    return _different(draw, draws)


def layer_alike(heads: Sequence[Head], shape: tuple[int, int], draws: int, seed: int = 0) -> list[list[Head]]:
    """Random sets that have, in every layer, as many heads as the set has there.

    shape: (L, H), the shape of the model's head maps [L, H]. Heads outside of the set are taken first; if a layer has
    too few of them, heads of the set fill it up. So a set of any size has controls, but they share heads with it if it
    holds more than half of a layer. All control sets differ from each other and from the set. Where there are fewer
    than ENUMERATED of them, all are returned, in order; else `draws`, or fewer if no more are found.
    """
    rng = np.random.default_rng(seed)
    chosen = set(heads)
    counts = {layer: sum(at == layer for at, _ in chosen) for layer in sorted({layer for layer, _ in chosen})}
    own = {layer: [head for head in sorted(chosen) if head[0] == layer] for layer in counts}
    others = {layer: [(layer, h) for h in range(shape[1]) if (layer, h) not in chosen] for layer in counts}
    if prod(_ways(len(others[layer]), count) for layer, count in counts.items()) < ENUMERATED:
        choices = product(
            *(
                [sorted(others[layer] + list(few)) for few in combinations(own[layer], count - len(others[layer]))]
                if count > len(others[layer])
                else [list(some) for some in combinations(others[layer], count)]
                for layer, count in counts.items()
            )
        )
        every = [[head for layer_heads in choice for head in layer_heads] for choice in choices]
        return [one for one in every if set(one) != chosen]

    def draw() -> list[Head]:
        drawn: list[Head] = []
        for layer, count in counts.items():
            order = [(layer, int(head)) for head in rng.permutation(shape[1])]
            order.sort(key=lambda head: head in chosen)  # a stable sort: both groups stay in random order
            drawn += order[:count]
        return sorted(drawn)

    return [drawn for drawn in _different(draw, draws) if set(drawn) != chosen]


def _ways(others: int, count: int) -> int:
    """In how many ways `count` heads of a layer are drawn where its `others` are taken first, `count` fill it up."""
    return comb(others, count) if count <= others else comb(count, count - others)


def _different(draw: Callable[[], list[Head]], draws: int) -> list[list[Head]]:
    """Up to `draws` different sets, out of at most 200 * draws calls of draw()."""
    sets: list[list[Head]] = []
    for _ in range(200 * draws):
        drawn = draw()
        if drawn not in sets:
            sets.append(drawn)
        if len(sets) == draws:
            break
    return sets
