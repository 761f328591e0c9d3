"""Head patching in indirect object identification: from arrays to numbers. No model is needed.

Everywhere L is the number of layers with attention, H that of the heads of each, N that of pairs of prompts. A head is
its position (layer, head) in arrays [L, H]. A logit difference is the logit of the answer IO minus that of the repeated
name S, both of the base prompt, whatever is patched. Effects are shares of the whole effect: 0 is the base run, 1 the
source run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from util.scores.evaluation import SHARES, Curve, spearman
from util.scores.graph import ComponentGraph
from util.stats.heads import layer_alike, top
from util.stats.intervals import (
    Intervals,
    accuracy,
    bootstrap_interval,
    halves,
    mean_interval,
    mean_intervals,
    ratio_of_means,
    resampled,
)

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]
Arrays = Mapping[str, Any]
Numbers = dict[str, Any]

SHOWN = 12  # layers in one row of panels
CARRIES = 0.01  # share of the whole effect that counts, of heads, paths and edges: see `carriers`
KEPT = 0.9  # share of the logit difference that a faithful set keeps
CHANNELS = ("query", "key", "value")  # through which a receiver hears
EAP: Final = "EAP"
EAP_IG: Final = "EAP-IG inputs"
METHODS: Final = (EAP, EAP_IG)
EXACT: Final = "exact"
BANDS = 5  # of edges by the size of their scores, from each of which equally many are drawn
LISTED = 10  # edges
DRAWS = 1000  # bootstrap samples of clusters
MAPS = ("noised", "base", "source", "clusters")


# ------------------------------------------------------------------------------------------------ one pair


def check_layer(layers: int, shown_layer: int | None) -> None:
    """Raises ValueError for a layer that a model of so many layers does not have; None is allowed."""
    if shown_layer is not None and shown_layer >= layers:
        raise ValueError(f"shown_layer = {shown_layer}: the model has {layers} layers, 0 to {layers - 1}")


def places_of_name(source: Ints, token: int, name: str) -> tuple[int, int]:
    """Returns the two positions of a name's token in the source's tokens [T].

    Raises ValueError unless there are exactly two: the project compares the heads' outputs at these.
    """
    places = np.flatnonzero(source == token)
    if len(places) != 2:
        raise ValueError(f"names and texts: the source must have the token of {name!r} twice, not {len(places)} times")
    return int(places[0]), int(places[1])


def selectivity(difference: Floats) -> Floats:
    """Returns how unequally heads take part in a difference [L, H, D] of two tokens' head outputs, [L].

    It is the mean absolute difference of the two heads with the largest over that of the two heads with the smallest;
    NaN where the latter is 0. Raises ValueError for fewer than four heads.
    """
    if difference.shape[1] < 4:
        raise ValueError(f"{difference.shape[1]} heads: the two largest and the two smallest of at least 4 are needed")
    means = np.sort(np.abs(difference).mean(axis=2, dtype=np.float64), axis=1)
    low, high = means[:, :2].mean(axis=1), means[:, -2:].mean(axis=1)
    return np.divide(high, low, out=np.full(len(low), np.nan), where=low > 0)


def example(arrays: Arrays, settings: Any) -> Numbers:
    """One pair of prompts: what it changes to shuffle or to patch single heads, and what is drawn of their outputs.

    layer: whose outputs z [T, H, dv] are shown; lengths [L, T]: mean norms of a layer's heads; differences: of outputs
    at the two places of the answer's name, in every so many layers, [layers, H, dv].
    """
    scores, z = arrays["scores"], arrays["z"]
    check_layer(len(z), settings.shown_layer)
    permuted, patched = arrays["permuted"] - scores[0], arrays["patched"] - scores[0]
    first, second = places_of_name(arrays["source"], int(arrays["answers"][0]), settings.names[0])
    difference, every = z[:, first] - z[:, second], -(-len(z) // SHOWN)
    layer = top(np.abs(patched), 1)[0][0] if settings.shown_layer is None else settings.shown_layer
    shown = {
        **{name: arrays[name] for name in ("tokens", "answers", "words", "log_softmax", "norms")},
        "layer": layer,
        "z": z[layer],
        "lengths": np.linalg.norm(z, axis=3).mean(axis=2),
        "every": every,
        "differences": difference[::every],
    }
    effects = {"scores": scores, "permuted": permuted, "patched": patched, "selectivity": selectivity(difference)}
    return {**effects, "example": shown}


# ------------------------------------------------------------------------------------------------ many pairs


def normalised(patched: Floats, base: Floats, source: Floats, clusters: Ints) -> Intervals:
    """Returns the mean change by a patch [N, ...] over the mean change to the source: 0 is the base, 1 the source.

    The interval of this ratio of means is that of the mean of its linearised values (the delta method), one for each
    cluster [N]: prompts that share a frame and a pair of names are one unit. The intervals hold together for all heads
    (Bonferroni). Raises ValueError for fewer than two clusters.
    """
    change = (patched - base.reshape(-1, *[1] * (patched.ndim - 1))).astype(np.float64)
    return ratios(change, source.astype(np.float64) - base, clusters)


def ratios(change: Floats, whole: Floats, clusters: Ints | None = None) -> Intervals:
    """Returns mean changes [N, ...] over the mean of the whole [N], with intervals that hold together, as above."""
    value, linearised = ratio_of_means(change, whole, clusters)
    around = mean_intervals(linearised, comparisons=max(1, value.size))
    return Intervals(value, around.low, around.high)


def carriers(effect: Intervals) -> Bools:
    """Which heads, paths or edges [...] carry more than a hundredth of the whole effect for certain.

    That is, either way: the whole interval lies beyond CARRIES. False where it is NaN.
    """
    return (effect.low > CARRIES) | (effect.high < -CARRIES)


def intervals(entry: Mapping[str, Any]) -> Intervals:
    """Returns values and intervals as arrays, NaN where the values file has null."""
    return Intervals(*(np.array(entry[name], dtype=np.float64) for name in ("value", "low", "high")))


def _halves(maps: Arrays, seed: int) -> list[Intervals]:
    """The noised effects on the half that chooses heads and on the other one, which share no cluster."""
    parts = halves(len(maps["base"]), seed, maps["clusters"])
    return [normalised(*(maps[name][half] for name in MAPS)) for half in parts]


def chosen_on_a_half(maps: Arrays, settings: Any) -> Floats:
    """Returns the effects [L, H] by which heads are chosen: those on one half of the pairs."""
    return _halves(maps, settings.seed)[0].value


def population(arrays: Arrays, settings: Any) -> Numbers:
    """What many pairs say, in shares of the whole effect, and what the untrained twin's heads change, in logits.

    noised, denoised [L, H]: effects towards the source and back. estimate, direct [L, H]: the first-order estimate of
    noised, and the part of it that is told to the output itself (NaN where a class has none). agreement: of the
    estimate with noised: Spearman's correlation over heads; signs, of the heads that have at least a hundredth, the
    share with the same sign. chosen [L, H]: noised on one half of the pairs, by which heads are chosen; measured
    [L, H]: noised on the other half.
    """
    maps = arrays["trained"]
    base, source, clusters = (maps[name] for name in MAPS[1:])
    noised = normalised(maps["noised"], base, source, clusters)
    whole = float((source - base).mean())
    estimate = maps["attribution"].mean(axis=0) / whole
    chosen, measured = _halves(maps, settings.seed)
    signs = np.sign(noised.value) == np.sign(estimate)
    found = {
        "intact": mean_interval(base, clusters=clusters),
        "corrupted": mean_interval(source, clusters=clusters),
        "accuracy": accuracy(base > 0, len(set(clusters.tolist()))),
        "pairs": len(base),
        "noised": vars(noised),
        "denoised": vars(normalised(maps["denoised"], source, base, clusters)),
        "estimate": estimate,
        "direct": maps["direct"].mean(axis=0) / whole,
        "agreement": {
            "spearman": spearman(noised.value.ravel(), estimate.ravel()),
            "signs": float(signs[np.abs(noised.value) >= CARRIES].mean()),
        },
        "chosen": chosen.value,
        "measured": vars(measured),
    }
    return {"population": found, "untrained": arrays["untrained"] and untrained(arrays["untrained"])}


def untrained(maps: Arrays) -> Numbers:
    """What the heads [L, H] of the untrained twin change, in logits. Raises ValueError for fewer than two clusters."""
    change = maps["noised"] - maps["base"][:, None, None]
    return {"heads": vars(mean_intervals(change, comparisons=change[0].size, clusters=maps["clusters"]))}


def published(maps: Arrays) -> dict[str, tuple[float, float]]:
    """Returns the numbers that Wang et al. print, of these maps: value and standard error by id of data/published.

    They are the mean logit difference, accuracy and probability of IO; pairs of one cluster are one unit.
    """
    base = maps["base"]
    rows = {"logit_difference": base, "accuracy": base > 0, "probability": maps["probability"]}
    units = {name: ratio_of_means(row, np.ones(len(row)), maps["clusters"])[1] for name, row in rows.items()}
    return {
        name: (float(row.mean()), float(units[name].std(ddof=1) / len(units[name]) ** 0.5))
        for name, row in rows.items()
    }


def tutorial_values(data: Arrays, ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Returns the nnsight tutorial's numbers, (value, 0) by id, from the arrays of its pair.

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


# ------------------------------------------------------------------------------------------------ sets of heads


def curve_sets(chosen: Floats, draws: int, seed: int = 0) -> tuple[list[list[Any]], Bools]:
    """Returns the sets of heads of the curve, their kinds and sizes and maps [K, L, H], for a map that chooses heads.

    For sizes 1, 2, 4, ... there are the "strongest" heads, all "without" these, and different "random" sets with as
    many heads in the same layers, see `controls.layer_alike`.
    """
    order, names, sets = top(np.abs(chosen), chosen.size), list[list[Any]](), []
    for size in (2**power for power in range(chosen.size.bit_length()) if 2**power < chosen.size):
        drawn = layer_alike(order[:size], (chosen.shape[0], chosen.shape[1]), draws, seed)
        names += [["strongest", size], ["without", size], *([["random", size]] * len(drawn))]
        for heads in (order[:size], order[size:], *drawn):
            sets.append(np.zeros(chosen.shape, bool))
            sets[-1][tuple(np.transpose(heads))] = True
    return names, np.stack(sets)


def circuit(arrays: Arrays, settings: Any) -> Numbers:
    """Mean logit differences where some heads work alone, by how many.

    whole: of all heads. without: of all but the strongest. surplus: of the strongest alone minus whole, on the same
    prompts. random: of random sets. faithfulness: the share of the whole logit difference that the strongest heads
    alone keep; 1 is the whole model; intervals are as for `normalised`, for all sizes together.
    """
    whole, clusters = arrays["whole"], arrays["clusters"]
    sets: dict[str, dict[str, list[Floats]]] = {"strongest": {}, "without": {}, "random": {}}
    for (kind, size), values in zip(arrays["names"], arrays["alone"], strict=True):
        sets[kind].setdefault(str(size), []).append(values)
    alone = {size: values for size, [values] in sets["strongest"].items()}
    share = normalised(np.stack([*alone.values()], axis=1), np.zeros_like(whole), whole, clusters)
    mean = partial(mean_interval, clusters=clusters)
    found = {
        "whole": mean(whole),
        "without": {size: mean(values) for size, [values] in sets["without"].items()},
        "surplus": {size: mean(values - whole) for size, values in alone.items()},
        "random": {size: [float(one.mean()) for one in several] for size, several in sets["random"].items()},
        "faithfulness": {size: share[place] for place, size in enumerate(alone)},
        "pairs": len(whole),
    }
    return {"circuit": found}


# ------------------------------------------------------------------------------------------------ paths


def paths(arrays: Arrays, settings: Any) -> Numbers:
    """What K heads tell each other and the output, in shares of the whole effect.

    edges [K, K]: of sender to receiver, through the receiver's query, key and value together; query, key, value [K, K]:
    through one of them alone; NaN where the receiver is in no later layer. direct [K]: to the output, by itself and
    through MLPs. Intervals hold for all that are no NaN together (Bonferroni).
    """
    if arrays["refused"]:
        return {"paths": {"refused": arrays["refused"]}}
    direct, edges, base = arrays["direct"], arrays["edges"], arrays["base"]
    heads = direct.shape[1]
    flat = np.concatenate([edges.reshape(len(base), -1), direct], axis=1)
    there = ~np.isnan(flat).any(axis=0)
    effect = normalised(base[:, None] + flat[:, there], base, arrays["source"], arrays["clusters"])
    found: dict[str, Numbers] = {name: {} for name in (*CHANNELS, "edges", "direct")}
    for end, shares in vars(effect).items():
        every = np.full(flat.shape[1], np.nan)
        every[there] = shares
        square = every[:-heads].reshape(heads, heads, -1)
        for at, name in enumerate((*CHANNELS, "edges")):
            found[name][end] = square[..., at]
        found["direct"][end] = every[-heads:]
    return {"paths": {**found, "heads": arrays["heads"], "pairs": len(base)}}


# ------------------------------------------------------------------------------------------------ edges


def drawn_edges(graph: ComponentGraph, means: Mapping[str, Floats], count: int, seed: int) -> Ints:
    """The edges [E, 2] whose exact effects are measured: all, where there are no more than `count`.

    Otherwise equally many of each band: the highest by absolute scores of EAP-IG; those of EAP that are not among
    them; and the rest, by rank, in bands that grow by a constant factor, drawn without repetition. Where bands have
    fewer edges than that, all other edges fill up to `count`.
    """
    places = np.argwhere(graph.edges)
    if len(places) <= count:
        return places
    ranked = {name: np.argsort(-np.abs(scores[graph.edges]), kind="stable") for name, scores in means.items()}
    band = count // BANDS
    chosen = [*ranked[EAP_IG][:band]]
    chosen += [*ranked[EAP][~np.isin(ranked[EAP], chosen)][:band]]
    rest = ranked[EAP_IG][~np.isin(ranked[EAP_IG], chosen)]
    bounds = np.geomspace(band, len(rest), BANDS - 1).round().astype(int)
    draw = np.random.default_rng(seed)
    for start, stop in zip((0, *bounds[1:-1]), bounds[1:], strict=True):
        chosen += [*draw.choice(rest[start:stop], min(band, stop - start), replace=False)]
    left = rest[~np.isin(rest, chosen)]
    chosen += [*draw.choice(left, count - len(chosen), replace=False)]
    return places[np.sort(chosen)]


def shares(effects: Floats, whole: Floats, clusters: Ints | None = None) -> Intervals:
    """Effects [N, E] as shares of the whole effect [N]: [E], see `ratios`; NaN where the whole is not above 0."""
    if not whole.mean() > 0:
        return Intervals(*np.full((3, effects.shape[1]), np.nan))
    return ratios(effects, whole, clusters)


def redrawn_shares(effects: Floats, whole: Floats, clusters: Ints) -> tuple[Floats, Bools]:
    """The `shares` [E] of bootstrap samples of the clusters, [D, E], and which of them matter there [D, E]."""
    units = [np.flatnonzero(clusters == cluster) for cluster in np.unique(clusters)]
    sums = np.stack([effects[pairs].sum(0, dtype=np.float64) for pairs in units])
    wholes = np.array([whole[pairs].sum() for pairs in units])
    samples = [np.repeat(np.arange(len(units)), times) for times in resampled(len(units), DRAWS)]
    redrawn = [shares(sums[sample], wholes[sample]) for sample in samples]
    return np.stack([exact.value for exact in redrawn]), np.stack([carriers(exact) for exact in redrawn])


def share_found(order: Ints, matter: Bools) -> float:
    """Of the edges that matter [E], the share among equally many of those that come first in an order [E]."""
    number = int(matter.sum())
    return float(matter[order[:number]].mean()) if number else np.nan


def correlations(scores: Floats, redrawn: Floats) -> Floats:
    """Spearman's correlation of scores [E] with each of several effects [D, E]: [D], NaN where one is constant."""
    ranked = stats.rankdata(scores), stats.rankdata(redrawn, axis=1)
    first, second = (ranks - ranks.mean(-1, keepdims=True) for ranks in ranked)
    with np.errstate(invalid="ignore"):
        return (second @ first) / np.sqrt((second**2).sum(1) * (first @ first))


def edges(arrays: Arrays, settings: Any) -> Numbers:
    """Edges of the component graph: how estimates agree with exact effects on fresh pairs, and circuits of them.

    strongest: those with the largest exact effects, with their estimates. found: by method, of the edges that matter,
    the share among equally many with the highest absolute scores, NaN where none does. agreement: by method, Spearman's
    correlation of scores with the exact effects of all drawn edges, NaN where the whole effect is not above 0.
    Intervals are over clusters of the fresh pairs, with the scores as they are. curves: by score, the circuits of
    signed rankings with their CPR, and of absolute ones with their CMD. Where a class has no edges, refused alone.
    """
    if arrays["refused"]:
        return {"component graph": {"refused": arrays["refused"]}}
    graph, drawn, circuits = ComponentGraph(*arrays["graph"]), arrays["drawn"], arrays["circuits"]
    full, clusters = arrays["full"], arrays["clusters"]
    whole = full.astype(np.float64) - [*circuits.values()][-1]["CMD"]["empty"]
    exact = shares(arrays["effects"], whole, clusters)
    redrawn, matters = redrawn_shares(arrays["effects"], whole, clusters)
    unit = whole.mean() if whole.mean() > 0 else np.nan
    estimates = {name: mean[tuple(drawn.T)].astype(np.float64) / unit for name, mean in arrays["means"].items()}
    matter, found, agreed = carriers(exact), {}, {}
    for method, scores in estimates.items():
        order = np.argsort(-np.abs(scores), kind="stable")
        again = np.array([share_found(order, some) for some in matters])
        found[method] = bootstrap_interval(share_found(order, matter), again, within=(0, 1))
        value = float(correlations(scores, exact.value[None])[0])
        agreed[method] = {"all": bootstrap_interval(value, correlations(scores, redrawn), within=(-1, 1))}
    strongest = {
        graph.name(drawn[place].tolist()): {
            EXACT: exact[place], **{method: float(estimates[method][place]) for method in METHODS}
        }
        for place in sorted(np.argsort(-np.abs(exact.value), kind="stable")[:LISTED])
    }  # fmt: skip
    curves: dict[str, Numbers] = {name: {} for name in circuits}
    for name, runs in circuits.items():
        for measure, run in runs.items():
            curve = Curve(SHARES, run["sizes"], measure == "CMD", run["runs"], full, run["empty"], clusters)
            curves[name][measure] = curve.values() | {"faithfulness": vars(curve.faithfulness)}
    return {
        "component graph": {
            "strongest": strongest,
            "drawn": len(drawn),
            "matter": int(matter.sum()),
            "found": found,
            "agreement": agreed,
            "curves": curves,
            "pairs": len(full),
        }
    }
