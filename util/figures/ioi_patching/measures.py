"""Head patching in indirect object identification: from logit differences to effects (numpy arrays alone).

A logit difference is the logit of the answer IO minus that of the repeated name S, both of the base prompt, whatever is
patched. base [N]: without a patch; source [N]: of the run that activations are taken from; patched [N, L, H]: of the
base run with one head from the source. A head is its position (layer, head) in such an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from util.stats.controls import layer_alike
from util.stats.heads import Head, top
from util.stats.intervals import Interval, Intervals, mean_intervals, ratio_of_means

Floats = NDArray[np.floating]

STEM = "ioi_patching"
METHOD = {"schema": 3, "method_version": 1}  # part of every request; a new method gets a new version
SHOWN = 12  # layers in one row of panels
CARRIES = 0.01  # share of the whole effect that counts, of heads, paths and edges: see `carriers`
RANDOM_SETS = 5  # of each size; all where there are fewer than 20, see `controls.layer_alike`
LEVELS = (0.5, 0.8, 0.9)  # of faithfulness
CHANNELS = ("query", "key", "value")  # through which a receiver hears
# Two measures of what a head tells the output, no other head taking part: MLPs are frozen as well, or they take part.
DIRECT = "direct (all frozen)"
THROUGH_MLPS = "through MLPs"


def signed(value: float) -> str:
    """Returns a value with its sign and two digits, 0 as +0.00."""
    return f"{round(float(value), 2) + 0.0:+.2f}"


# ------------------------------------------------------------------------------------------------ what is shown


def check_layer(layers: int, shown_layer: int | None) -> None:
    """Raises ValueError for a layer that a model of so many layers does not have; None is allowed."""
    if shown_layer is not None and not 0 <= int(shown_layer) == shown_layer < layers:
        raise ValueError(f"shown_layer = {shown_layer}: the model has {layers} layers, 0 to {layers - 1}")


def layer_to_show(effects: Floats, shown_layer: int | None = None) -> int:
    """Returns the layer whose activations are shown: `shown_layer`, by default that of the strongest head [L, H].

    Raises ValueError for a layer that there is not.
    """
    check_layer(len(effects), shown_layer)
    return top(np.abs(effects), 1)[0][0] if shown_layer is None else int(shown_layer)


def layer_step(layers: int, layer_skip: int | None = None) -> int:
    """Returns every how many layers one is shown: `layer_skip`, by default so that at most SHOWN are.

    Raises ValueError for a step below 1.
    """
    if layer_skip is None:
        return -(-layers // SHOWN)
    if int(layer_skip) != layer_skip or layer_skip < 1:
        raise ValueError(f"layer_skip = {layer_skip}: give a number of layers from 1 on")
    return int(layer_skip)


def places_of_name(source: NDArray[np.integer], token: int, name: str) -> tuple[int, int]:
    """Returns the two positions of a name's token in the source's tokens [T].

    Raises ValueError unless there are exactly two: the project compares the heads' outputs at these.
    """
    places = np.flatnonzero(source == token)
    if len(places) != 2:
        raise ValueError(f"names and texts: the source must have the token of {name!r} twice, not {len(places)} times")
    return int(places[0]), int(places[1])


def selectivity(difference: Floats) -> NDArray[np.float64]:
    """Returns how unequally heads take part in a difference [L, H, D] of two tokens' head outputs, [L].

    It is the mean absolute difference of the two heads with the largest over that of the two heads with the smallest;
    NaN where the latter is 0. Raises ValueError for fewer than four heads.
    """
    if difference.shape[1] < 4:
        raise ValueError(f"{difference.shape[1]} heads: the two largest and the two smallest of at least 4 are needed")
    means = np.sort(np.abs(difference).mean(axis=2, dtype=np.float64), axis=1)
    low, high = means[:, :2].mean(axis=1), means[:, -2:].mean(axis=1)
    return np.divide(high, low, out=np.full(len(low), np.nan), where=low > 0)


# ------------------------------------------------------------------------------------------------ effects


def normalised(patched: Floats, base: Floats, source: Floats, clusters: NDArray[np.integer]) -> Intervals:
    """Returns the mean change by a patch [N, ...] over the mean change to the source: 0 is the base, 1 the source.

    The interval of this ratio of means is that of the mean of its linearised values (the delta method), one for each
    cluster [N]: prompts that share a frame and a pair of names are one unit. The intervals hold together for all heads
    (Bonferroni). Raises ValueError for fewer than two clusters.
    """
    change = (patched - base.reshape(-1, *[1] * (patched.ndim - 1))).astype(np.float64)
    value, linearised = ratio_of_means(change, source.astype(np.float64) - base, clusters)
    around = mean_intervals(linearised, comparisons=max(1, change[0].size))
    return Intervals(value, around.low, around.high)


@dataclass(frozen=True)
class Agreement:
    """How well an approximate map [L, H] stands for the exact one.

    spearman, pearson: correlations over heads. overlap: by k, the share of the k strongest heads (by size) that both
    maps have. worst: the layer and number of the head whose rank by size falls most in the approximation, and by how
    many places it falls. signs: of the heads whose exact effect is at least `least`, the share with the same sign.
    """

    spearman: float
    pearson: float
    overlap: dict[int, float]
    worst: tuple[int, int, int]
    signs: float


def agreement(exact: Floats, approximate: Floats, top: tuple[int, ...] = (5, 10), least: float = 0.0) -> Agreement:
    """Returns how well one map [L, H] of effects agrees with another. Raises ValueError for different shapes."""
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


def carriers(effect: Intervals) -> NDArray[np.bool_]:
    """Which heads, paths or edges [...] carry more than a hundredth of the whole effect for certain.

    That is, either way: the whole interval lies beyond CARRIES. False where it is NaN.
    """
    return (effect.low > CARRIES) | (effect.high < -CARRIES)


# ------------------------------------------------------------------------------------------------ paths


def split_paths(data: Mapping[str, Any]) -> dict[str, Intervals]:
    """Returns the paths of a record, see `patching.all_paths`, as shares of the whole effect, by name.

    edges, query, key, value [K, K]: from sender to receiver, through all three together and through each alone; direct
    [K]: to the output. NaN where a record has NaN. Intervals hold for all that are no NaN together (Bonferroni).
    """
    direct, edges = data["direct"], data["edges"]
    count, heads = direct.shape
    flat = np.concatenate([edges.reshape(count, -1), direct], axis=1)
    there = ~np.isnan(flat).any(axis=0)
    parts = [np.full(flat.shape[1], np.nan) for _ in range(3)]
    if there.any():
        base = data["base"]
        effect = normalised(base[:, None] + flat[:, there], base, data["source"], data["clusters"])
        for part, values in zip(parts, (effect.value, effect.low, effect.high), strict=True):
            part[there] = values
    square = [part[: edges[0].size].reshape(edges.shape[1:]) for part in parts]
    found = {name: Intervals(*(part[..., at] for part in square)) for at, name in enumerate((*CHANNELS, "edges"))}
    return found | {"direct": Intervals(*(part[-heads:] for part in parts))}


# ------------------------------------------------------------------------------------------------ sets of heads


class Kind(Enum):
    """Which heads a set of the curve has: the strongest, all but these, or random ones in the same layers."""

    STRONGEST = "strongest"
    WITHOUT = "without"
    RANDOM = "random"


@dataclass(frozen=True)
class SetName:
    """Which set of the curve: its kind, how many strongest heads it is about, and of random sets its number."""

    kind: Kind
    size: int
    number: int = 0


def set_sizes(heads: int) -> list[int]:
    """Returns 1, 2, 4, ... as far as there are more heads."""
    return [2**power for power in range(heads.bit_length()) if 2**power < heads]


def curve_sets(chosen: Floats, draws: int = RANDOM_SETS, seed: int = 0) -> dict[SetName, list[Head]]:
    """Returns the sets of heads of the curve, for a map [L, H] by which heads are chosen.

    For every size there are the strongest heads, all but these, and different random sets with as many heads in the
    same layers, see `controls.layer_alike`.
    """
    order = top(np.abs(chosen), chosen.size)
    sets: dict[SetName, list[Head]] = {}
    for size in set_sizes(chosen.size):
        heads = order[:size]
        sets[SetName(Kind.STRONGEST, size)] = heads
        sets[SetName(Kind.WITHOUT, size)] = order[size:]
        for number, drawn in enumerate(layer_alike(heads, (chosen.shape[0], chosen.shape[1]), draws, seed)):
            sets[SetName(Kind.RANDOM, size, number)] = drawn
    return sets


def faithfulness(whole: Floats, alone: Mapping[int, Floats], clusters: NDArray[np.integer]) -> dict[int, Interval]:
    """Returns, by size of a set, its mean logit difference over that of all heads; 1 is the whole model.

    whole [N]: all heads work; alone: by size [N], only the heads of a set. Intervals are as for `normalised`, and hold
    for all sizes together.
    """
    if not alone:
        return {}
    share = normalised(np.stack(list(alone.values()), axis=1), np.zeros_like(whole), whole, clusters)
    return {size: share[place] for place, size in enumerate(alone)}


def dip(faithful: Mapping[int, Interval]) -> tuple[int, int] | None:
    """Returns the sizes of two sets of which the larger surely keeps less than the smaller; None without such sets.

    The larger is the one that keeps least; the smaller is, of those before it, the one that keeps most.
    """
    for low in sorted(faithful, key=lambda size: faithful[size].value):
        best = max((size for size in faithful if size < low), key=lambda size: faithful[size].value, default=low)
        if faithful[low].high < faithful[best].low:
            return best, low
    return None


def reached(faithful: Mapping[int, Interval], level: float) -> int | None:
    """Returns the smallest size of a set whose faithfulness is `level` or more, None where there is none."""
    return min((size for size, share in faithful.items() if share.value >= level), default=None)


# ------------------------------------------------------------------------------------------------ published


def tutorial_values(data: Mapping[str, Any], ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Returns the nnsight tutorial's numbers, (value, 0) by id, from the record of its pair.

    Of `ids` the tutorial has those such as nnsight_8.10. Its base is our source: of either prompt it gives the logit
    difference of that prompt's own answer.
    """
    base, source = map(float, data["scores"])
    share = (data["patched"] - base) / (source - base)
    values = {"nnsight_base": -source, "nnsight_source": -base, "nnsight_sum": float(share.sum())}
    for name in ids:
        if name.startswith("nnsight_") and "." in name:
            layer, head = map(int, name.removeprefix("nnsight_").split("."))
            values[name] = float(share[layer, head])
    return {name: (value, 0.0) for name, value in values.items()}


def wang_values(base: Floats, probability: Floats, clusters: NDArray[np.integer]) -> dict[str, tuple[float, float]]:
    """Returns the mean logit difference, accuracy and probability of IO, each with its standard error.

    They are named by the ids of data/published. base [N]: the logit differences without a patch. probability [N]: of
    IO. clusters [N]: prompts of one cluster are one unit.
    """
    arrays = {"logit_difference": base, "accuracy": base > 0, "probability": probability}
    return {name: (float(values.mean()), _standard_error(values, clusters)) for name, values in arrays.items()}


def _standard_error(values: NDArray[Any], clusters: NDArray[np.integer]) -> float:
    by_cluster = ratio_of_means(values, np.ones(len(values)), clusters)[1]
    return float(by_cluster.std(ddof=1) / len(by_cluster) ** 0.5)


def roles(circuit: Mapping[str, Any], model: str) -> dict[Head, str]:
    """Returns the published role of heads, such as "name mover"; none if `circuit` is not that of this model."""
    if circuit["model"] != model:
        return {}
    named = {}
    for role, heads in circuit["heads"].items():
        for head in heads:
            layer, number = map(int, head.split("."))
            named[layer, number] = role
    return named
