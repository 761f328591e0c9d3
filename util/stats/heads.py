"""Attention heads as (layer, head): an index, from 0, into arrays [L, H] over the layers that have attention.

Control sets: for a given set of heads, sets of the same number of other heads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Head = tuple[int, int]  # (layer, head)
Heads = list[Head]
HeadSets = list[Heads]
ENUMERATED = 20  # random sets are all taken where there are fewer


def head_name(head: Head) -> str:
    """The name of a head in figures and texts, such as L3H5; both numbers count from 0."""
    return f"L{head[0]}H{head[1]}"


def place_of(name: str) -> Head:
    """The place of a head by its name, such as (3, 5) of L3H5."""
    layer, head = map(int, re.findall(r"\d+", name))
    return layer, head


def check_heads(heads: Iterable[Sequence[int]], layers: int, size: int) -> None:
    """Raises ValueError, which names them, for heads that a model of so many layers, each of `size` heads, has not."""
    if wrong := [head for head in heads if not (0 <= head[0] < layers and 0 <= head[1] < size)]:
        raise ValueError(f"the model has {layers} layers of {size} heads, not {wrong}")


def top(score: Floats, n: int) -> Heads:
    """The n heads with the highest score [L, H], highest first; ties are in the order of layer, then head.

    Raises ValueError for a negative n or more heads than there are.
    """
    if not 0 <= n <= score.size:
        raise ValueError(f"n = {n}: the model has {score.size} heads")
    order = np.argsort(-score, axis=None, kind="stable")[:n]
    return [divmod(place, score.shape[1]) for place in order.tolist()]


def heads_where(chosen: Bools) -> Heads:
    """The heads that are True in a map [L, H], in the order of layer, then head."""
    return [(layer, head) for layer, head in np.argwhere(chosen).tolist()]


# ------------------------------------------------------------------------------------------------ control sets


def shortage(heads: Heads, eligible: Bools) -> dict[int, tuple[int, int]]:
    """The layers that have too few eligible [L, H] heads for a control set, with (needed, available) of each.

    needed: how many heads of the set are in the layer. available: how many eligible heads of the layer are not in it.
    Raises ValueError for heads that the model does not have.
    """
    check_heads(heads, *eligible.shape)
    pools = _pools(heads, eligible)
    return {layer: (needed, len(pool)) for layer, (pool, needed) in pools.items() if needed > len(pool)}


def _pools(heads: Heads, eligible: Bools) -> dict[int, tuple[Heads, int]]:
    """By layer: the eligible heads that are not in the set, and how many the set has there."""
    free = [head for head in heads_where(eligible) if head not in heads]
    counts = Counter(layer for layer, _ in sorted(heads))
    return {layer: ([head for head in free if head[0] == layer], count) for layer, count in counts.items()}


def layer_matched(heads: Heads, eligible: Bools, draws: int, seed: int = 0) -> HeadSets:
    """Control sets of other eligible [L, H] heads, with as many heads in each layer as the set has there.

    All control sets differ. If there are at most `draws` of them, all are returned. Raises ValueError, naming the
    layers, if a layer has too few eligible heads.
    """
    if short := shortage(heads, eligible):
        places = ", ".join(
            f"layer {layer} has {available} heads for {needed}" for layer, (needed, available) in short.items()
        )
        raise ValueError(
            f"no layer-matched controls: {places}; take fewer heads, or a higher bound on what is no induction head"
        )
    rng, pools = np.random.default_rng(seed), _pools(heads, eligible).values()

    def draw() -> Heads:
        return [pool[place] for pool, n in pools for place in sorted(rng.choice(len(pool), n, replace=False))]

    return _every([([], *pool) for pool in pools], draws) or _different(draw, draws)


def norm_matched(heads: Heads, eligible: Bools, norms: Floats, draws: int, seed: int = 0, nearest: int = 6) -> HeadSets:
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

    def draw() -> Heads:
        drawn: Heads = []
        for head in order:
            candidates = [other for other in free if other not in drawn]
            candidates.sort(key=lambda other: abs(np.log(norms[other] / norms[head])))
            drawn.append(candidates[rng.integers(min(nearest, len(candidates)))])
        return sorted(drawn)

    return _different(draw, draws)


def layer_alike(heads: Heads, shape: tuple[int, ...], draws: int, seed: int = 0) -> HeadSets:
    """Random sets that have, in every layer, as many heads as the set has there.

    shape: (L, H), the shape of the model's head maps [L, H]. Heads outside of the set are taken first; if a layer has
    too few of them, heads of the set fill it up. So a set of any size has controls, but they share heads with it if it
    holds more than half of a layer. All control sets differ from each other and from the set. Where there are fewer
    than ENUMERATED of them, all are returned, in order; else `draws`, or fewer if no more are found.
    """
    rng, chosen, layers = np.random.default_rng(seed), set(heads), _pools(heads, np.ones(shape, bool))
    pools = []
    for layer, (others, count) in layers.items():
        inside = [head for head in sorted(chosen) if head[0] == layer]
        missing = count - len(others)
        pools.append((others, inside, missing) if missing > 0 else ([], others, count))

    def draw() -> Heads:
        drawn: Heads = []
        for layer, (_, count) in layers.items():
            order = [(layer, head) for head in rng.permutation(shape[1]).tolist()]
            drawn += sorted(order, key=chosen.__contains__)[:count]  # stable: either kind stays in random order
        return sorted(drawn)

    sets = _every(pools, ENUMERATED - 1) or _different(draw, draws)
    return [drawn for drawn in sets if set(drawn) != chosen]


def _every(layers: Sequence[tuple[Heads, Heads, int]], most: int) -> HeadSets:
    """All sets that have, of each layer, the first list and so many of the second; none where they are too many."""
    if prod(comb(len(pool), count) for _, pool, count in layers) > most:
        return []
    choices = product(*([sorted([*fixed, *few]) for few in combinations(pool, count)] for fixed, pool, count in layers))
    return [[head for of_layer in choice for head in of_layer] for choice in choices]


def _different(draw: Callable[[], Heads], draws: int) -> HeadSets:
    """Up to `draws` different sets, out of at most 200 * draws calls of draw()."""
    sets: HeadSets = []
    for _ in range(200 * draws):
        drawn = draw()
        if drawn not in sets:
            sets.append(drawn)
        if len(sets) == draws:
            break
    return sets
