"""Control sets: as many other heads as a set has. Heads are (layer, head).

Both numbers are places in an array [L, H]: the layer counts the layers that have attention, from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Head

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


def shortage(heads: Sequence[Head], eligible: Bools) -> dict[int, tuple[int, int]]:
    """Layers in which there are fewer eligible [L, H] heads outside of a set than it has: (needed, there) by layer."""
    layers = sorted({layer for layer, _ in heads})
    counts = {at: (sum(layer == at for layer, _ in heads), len(_free(heads, eligible, at))) for at in layers}
    return {at: count for at, count in counts.items() if count[0] > count[1]}


def _free(heads: Sequence[Head], eligible: Bools, layer: int) -> list[Head]:
    return [(layer, int(h)) for h in np.flatnonzero(eligible[layer]) if (layer, int(h)) not in heads]


def layer_matched(heads: Sequence[Head], eligible: Bools, draws: int, seed: int = 0) -> list[list[Head]]:
    """Control sets: in each layer as many other heads, of those eligible [L, H], as the set has there.

    No set comes twice. Where there are no more than `draws` such sets, all of them. Raises ValueError that names the
    layers with too few.
    """
    if short := shortage(heads, eligible):
        places = ", ".join(f"layer {at} has {there} heads for {needed}" for at, (needed, there) in short.items())
        raise ValueError(
            f"no layer-matched controls: {places}; take fewer heads, or a higher bound on what is no induction head"
        )
    counts = {layer: sum(at == layer for at, _ in heads) for layer, _ in sorted(heads)}
    free = {layer: _free(heads, eligible, layer) for layer in counts}
    if prod(comb(len(free[layer]), count) for layer, count in counts.items()) <= draws:
        parts = product(*(combinations(free[layer], count) for layer, count in counts.items()))
        return [[head for part in parts_ for head in part] for parts_ in parts]
    rng = np.random.default_rng(seed)

    def one() -> list[Head]:
        return [
            free[layer][i]
            for layer, count in counts.items()
            for i in sorted(rng.choice(len(free[layer]), count, replace=False))
        ]

    return _different(one, draws)


def norm_matched(
    heads: Sequence[Head], eligible: Bools, norms: Floats, draws: int, seed: int = 0, nearest: int = 6
) -> list[list[Head]]:
    """Control sets from any layer: for each head of the set one whose writes are as long, by norms [L, H].

    It is drawn from the `nearest` eligible ones, in the logarithm of the norm, that this control has not yet; heads
    of longer writes choose first. No set comes twice; fewer where no more are found. Raises ValueError where there are
    fewer eligible heads than the set has.
    """
    free = [(int(a), int(b)) for a, b in np.argwhere(eligible) if (int(a), int(b)) not in heads]
    if len(free) < len(heads):
        raise ValueError(f"no norm-matched controls: {len(free)} eligible heads for a set of {len(heads)}")
    rng, order = np.random.default_rng(seed), sorted(heads, key=lambda head: -norms[head])

    def one() -> list[Head]:
        drawn: list[Head] = []
        for head in order:
            left = [other for other in free if other not in drawn]
            left.sort(key=lambda other: abs(np.log(norms[other] / norms[head])))
            drawn.append(left[rng.integers(min(nearest, len(left)))])
        return sorted(drawn)

    return _different(one, draws)


def layer_alike(heads: Sequence[Head], shape: tuple[int, int], draws: int, seed: int = 0) -> list[list[Head]]:
    """Random sets with as many heads in every layer as the set has there, of a model with heads [L, H].

    Heads outside of the set come first; where a layer has too few of them, heads of the set fill it up. So sets of any
    size have controls, which share heads with the set once it holds more than half of a layer. No set comes twice, nor
    the set itself; fewer where no more are found.
    """
    rng, chosen = np.random.default_rng(seed), set(heads)
    counts = {layer: sum(at == layer for at, _ in chosen) for layer in sorted({layer for layer, _ in chosen})}

    def one() -> list[Head]:
        drawn: list[Head] = []
        for layer, count in counts.items():
            order = [(layer, int(h)) for h in rng.permutation(shape[1])]
            order.sort(key=lambda head: head in chosen)  # stable: at random among others, then among its own
            drawn += order[:count]
        return sorted(drawn)

    return [drawn for drawn in _different(one, draws) if set(drawn) != chosen]


def _different(one: Callable[[], list[Head]], draws: int) -> list[list[Head]]:
    found: list[list[Head]] = []
    for _ in range(200 * draws):
        drawn = one()
        if drawn not in found:
            found.append(drawn)
        if len(found) == draws:
            break
    return found
