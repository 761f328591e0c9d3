"""Head patching in indirect object identification: from arrays to numbers. No model is needed.

Everywhere L is the number of layers with attention, H that of the heads of each, N that of pairs of prompts. A head is
its position (layer, head) in arrays [L, H]. A logit difference is the logit of the answer IO minus that of the repeated
name S, both of the base prompt, whatever is patched. Effects are shares of the whole effect: 0 is the base run, 1 the
source run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from util.scores.graph import SHARES, ComponentGraph, area, faithfulness
from util.stats.heads import Bools, Floats, layer_alike, top
from util.stats.intervals import (
    Intervals,
    accuracy,
    halves,
    mean_interval,
    mean_intervals,
    ratio_of_means,
)

Ints = NDArray[np.integer]
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
MAPS = ("noised", "base", "source", "clusters")


# ------------------------------------------------------------------------------------------------ one pair


def selectivity(difference: Floats) -> Floats:
    """How unequally heads take part in a difference [L, H, D] of two tokens' head outputs, [L].

    It is the mean absolute difference of the two heads with the largest over that of the two heads with the smallest;
    NaN where the latter is 0.
    """
    means = np.sort(np.abs(difference).mean(axis=2, dtype=np.float64), axis=1)
    low, high = means[:, :2].mean(axis=1), means[:, -2:].mean(axis=1)
    return np.divide(high, low, out=np.full(len(low), np.nan), where=low > 0)


def most_unequal(ratio: Floats) -> int:
    """The layer with the largest selectivity ratio [L]."""
    return int(np.nan_to_num(ratio).argmax())


def drawn_layers(ratio: Floats, every: int) -> range:
    """Every so many of the layers, the most unequal one among them. ratio [L]: see `selectivity`."""
    return range(most_unequal(ratio) % every, len(ratio), every)


def example(arrays: Arrays, settings: Any) -> Numbers:
    """One pair of prompts: what it changes to shuffle or to patch single heads, and what is drawn of their outputs.

    layer: whose outputs z [T, H, dv] are shown; lengths [L, T]: mean norms of a layer's heads; differences: of outputs
    at the two places of the answer's name, in every so many layers, the most unequal one among them, [layers, H, dv].
    Raises ValueError for a layer to show that there is not, and unless the source has the token of the answer's name
    twice.
    """
    scores, z, layer = arrays["scores"], arrays["z"], settings.shown_layer
    if layer is not None and layer >= len(z):
        raise ValueError(f"shown_layer = {layer}: the model has {len(z)} layers, 0 to {len(z) - 1}")
    places = np.flatnonzero(arrays["source"] == arrays["answers"][0])
    if len(places) != 2:
        name = settings.names[0]
        raise ValueError(f"names and texts: the source must have the token of {name!r} twice, not {len(places)} times")
    effects = {name: arrays[name] for name in ("permuted", "patched")}
    if layer is None:
        layer = top(np.abs(effects["patched"]), 1)[0][0]
    difference, every = z[:, places[0]] - z[:, places[1]], -(-len(z) // SHOWN)
    ratio = selectivity(difference)
    shown = {
        **{name: arrays[name] for name in ("tokens", "answers", "words", "log_softmax", "norms")},
        "layer": layer,
        "z": z[layer],
        "lengths": np.linalg.norm(z, axis=3).mean(axis=2),
        "every": every,
        "differences": difference[drawn_layers(ratio, every)],
    }
    return {"scores": scores, **effects, "selectivity": ratio, "example": shown}


def streams(arrays: Arrays, settings: Any) -> Numbers:
    """What streams carry, as shares of the whole effect [3, layers, T], from the first token that carries anything."""
    if arrays["refused"]:
        return {"streams": {"refused": arrays["refused"]}}
    shares = arrays["effects"] / (arrays["source"] - arrays["base"])
    first = int(shares.any((0, 1)).argmax())
    return {"streams": {"shares": shares[:, :, first:], "tokens": arrays["tokens"][first:]}}


# ------------------------------------------------------------------------------------------------ many pairs


def normalised(patched: Floats, base: Floats, source: Floats, clusters: Ints) -> Intervals:
    """The mean change by a patch [N, ...] over the mean change to the source: 0 is the base, 1 the source.

    The interval of this ratio of means is that of the mean of its linearised values (the delta method), one for each
    cluster [N]: prompts that share a frame and a pair of names are one unit. The intervals hold together for all
    entries that are not NaN (Bonferroni). Raises ValueError for fewer than two clusters.
    """
    change = (patched - base.reshape(-1, *[1] * (patched.ndim - 1))).astype(np.float64)
    return _ratios(change, source.astype(np.float64) - base, clusters)


def _ratios(change: Floats, whole: Floats, clusters: Ints | None) -> Intervals:
    value, linearised = ratio_of_means(change, whole, clusters)
    around = mean_intervals(linearised, comparisons=max(1, np.isfinite(value).sum()))
    return Intervals(value, around.low, around.high)


def carriers(effect: Intervals) -> Bools:
    """Which heads, paths or edges [...] carry significantly more than a hundredth of the whole effect.

    That is, either way: the whole interval lies beyond CARRIES. False where it is NaN.
    """
    return (effect.low > CARRIES) | (effect.high < -CARRIES)


def intervals(entry: Mapping[str, Any]) -> Intervals:
    """Values and intervals [...] of an entry as arrays, NaN where the values file has null."""
    return Intervals(*(np.array(entry[name], dtype=np.float64) for name in ("value", "low", "high")))


def population(arrays: Arrays, settings: Any) -> Numbers:
    """What many pairs say, in shares of the whole effect, and what the untrained twin's heads change, in logits.

    noised, denoised [L, H]: effects towards the source and back. direct [L, H]: the part of noised that is told to the
    output itself (NaN where a class has none). chosen [L, H]: noised on one half of the pairs, by which heads are
    chosen; measured [L, H]: noised on the other half, which shares no cluster. heads: of the untrained twin, [L, H].
    """
    maps, twin, untrained = arrays["trained"], arrays["untrained"], None
    base, source, clusters = (maps[name] for name in MAPS[1:])
    parts = halves(len(base), settings.seed, clusters)
    chosen, measured = (normalised(*(maps[name][half] for name in MAPS)) for half in parts)
    if twin is not None:
        change = twin["noised"] - twin["base"][:, None, None]
        untrained = {"heads": vars(mean_intervals(change, comparisons=change[0].size, clusters=twin["clusters"]))}
    trained = {
        "intact": mean_interval(base, clusters=clusters),
        "corrupted": mean_interval(source, clusters=clusters),
        "accuracy": accuracy(base > 0, len(set(clusters.tolist()))),
        "pairs": len(base),
        "noised": vars(normalised(maps["noised"], base, source, clusters)),
        "denoised": vars(normalised(maps["denoised"], source, base, clusters)),
        "direct": maps["direct"].mean(axis=0) / float((source - base).mean()),
        "chosen": chosen.value,
        "measured": vars(measured),
    }
    return {"population": trained, "untrained": untrained}


def published(maps: Arrays) -> dict[str, tuple[float, float]]:
    """The numbers that Wang et al. print, of these maps: value and standard error by id of data/published.

    They are the mean logit difference, accuracy and probability of IO; pairs of one cluster are one unit.
    """
    base, numbers = maps["base"], {}
    rows = {"logit_difference": base, "accuracy": base > 0, "probability": maps["probability"]}
    for name, row in rows.items():
        value, units = ratio_of_means(row, np.ones(len(row)), maps["clusters"])
        numbers[name] = float(value), float(stats.sem(units))
    return numbers


# ------------------------------------------------------------------------------------------------ sets of heads


def curve_sets(chosen: Floats, draws: int, seed: int = 0) -> tuple[list[list[Any]], Bools]:
    """The sets of heads of the curve, their kinds and sizes and maps [K, L, H], for a map that chooses heads.

    For sizes 1, 2, 4, ... there are the "strongest" heads, all "without" these, and different "random" sets with as
    many heads in the same layers, see `stats.heads.layer_alike`.
    """
    order, names, sets = top(np.abs(chosen), chosen.size), list[list[Any]](), []
    for size in (2**power for power in range(chosen.size.bit_length()) if 2**power < chosen.size):
        drawn = layer_alike(order[:size], chosen.shape, draws, seed)
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
    by_kind: dict[str, dict[str, list[Floats]]] = {"strongest": {}, "without": {}, "random": {}}
    for (kind, size), values in zip(arrays["names"], arrays["alone"], strict=True):
        by_kind[kind].setdefault(str(size), []).append(values)
    strongest = {size: values for size, [values] in by_kind["strongest"].items()}
    share = normalised(np.stack([*strongest.values()], axis=1), np.zeros_like(whole), whole, clusters)
    mean = partial(mean_interval, clusters=clusters)
    numbers = {
        "whole": mean(whole),
        "without": {size: mean(values) for size, [values] in by_kind["without"].items()},
        "surplus": {size: mean(values - whole) for size, values in strongest.items()},
        "random": {size: [float(one.mean()) for one in values] for size, values in by_kind["random"].items()},
        "faithfulness": {size: share[place] for place, size in enumerate(strongest)},
        "pairs": len(whole),
    }
    return {"circuit": numbers}


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
    patched = base[:, None] + np.concatenate([edges.reshape(len(base), -1), direct], axis=1)
    ends = vars(normalised(patched, base, arrays["source"], arrays["clusters"])).items()
    shares = {end: values[: edges[0].size].reshape(edges.shape[1:]) for end, values in ends}
    numbers: Numbers = {
        name: {end: values[..., at] for end, values in shares.items()} for at, name in enumerate((*CHANNELS, "edges"))
    }
    numbers["direct"] = {end: values[edges[0].size :] for end, values in ends}
    return {"paths": {**numbers, "heads": arrays["heads"], "pairs": len(base)}}


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
    by_ig, by_eap = (np.argsort(-np.abs(means[method][graph.edges]), kind="stable") for method in (EAP_IG, EAP))
    band = count // BANDS
    chosen = [*by_ig[:band]]
    chosen += [*by_eap[~np.isin(by_eap, chosen)][:band]]
    rest = by_ig[~np.isin(by_ig, chosen)]
    bounds = np.geomspace(band, len(rest), BANDS - 1).round().astype(int)
    draw = np.random.default_rng(seed)
    for some in np.split(rest, bounds[1:-1]):
        chosen += [*draw.choice(some, min(band, len(some)), replace=False)]
    left = rest[~np.isin(rest, chosen)]
    chosen += [*draw.choice(left, count - len(chosen), replace=False)]
    return places[np.sort(chosen)]


def edges(arrays: Arrays, settings: Any) -> Numbers:
    """Edges of the component graph: how estimates compare with exact effects on fresh pairs, and circuits of edges.

    strongest: those with the largest exact effects, with their estimates. matter: of so many `drawn` edges, how many
    are `carriers`. curves: by score, the circuits of signed rankings with their CPR, and of absolute ones with their
    CMD. Where a class has no edges, refused alone.
    """
    if arrays["refused"]:
        return {"component graph": {"refused": arrays["refused"]}}
    graph, drawn, circuits = ComponentGraph(*arrays["graph"]), arrays["drawn"], arrays["circuits"]
    full, clusters = arrays["full"], arrays["clusters"]
    whole = full.astype(np.float64) - [*circuits.values()][-1]["CMD"]["empty"]
    if not whole.mean() > 0:
        whole = np.full_like(whole, np.nan)  # nothing is a share of it
    exact = _ratios(arrays["effects"], whole, clusters)
    strongest = {}
    for place in sorted(np.argsort(-np.abs(exact.value), kind="stable")[:LISTED]):
        estimates = {method: float(arrays["means"][method][tuple(drawn[place])]) / whole.mean() for method in METHODS}
        strongest[graph.name(drawn[place].tolist())] = {EXACT: exact[place], **estimates}

    def curve(by: str, run: Arrays) -> Numbers:
        metrics = run["runs"], full, run["empty"], clusters
        return {
            by: area(*metrics, absolute=by == "CMD"),
            "faithfulness": vars(faithfulness(*metrics)),
            "shares": list(SHARES),
            "sizes": run["sizes"],
        }

    curves = {name: {by: curve(by, run) for by, run in runs.items()} for name, runs in circuits.items()}
    counts = {"drawn": len(drawn), "matter": int(carriers(exact).sum()), "pairs": len(full)}
    return {"component graph": {"strongest": strongest, "curves": curves, **counts}}
