"""Head patching in indirect object identification: from arrays to numbers. No model is needed.

Everywhere L is the number of layers with attention, H that of the heads of each, N that of pairs of prompts. A head is
its position (layer, head) in arrays [L, H]. A logit difference is the logit of the answer IO minus that of the repeated
name S, both of the base prompt, whatever is patched. Effects are shares of the whole effect: 0 is the base run, 1 the
source run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from util.scores.evaluation import SHARES, Curve, spearman
from util.scores.graph import LETTERS, ComponentGraph
from util.stats.controls import layer_alike
from util.stats.heads import top
from util.stats.intervals import (
    Interval,
    Intervals,
    accuracy,
    bootstrap_interval,
    mean_interval,
    mean_intervals,
    ratio_of_means,
    resampled,
)
from util.stats.splits import halves

Floats = NDArray[np.floating]
Arrays = Mapping[str, Any]
Numbers = dict[str, Any]

SHOWN = 12  # layers in one row of panels
CARRIES = 0.01  # share of the whole effect that counts, of heads, paths and edges: see `carriers`
LEVELS = (0.5, 0.8, 0.9)  # of faithfulness
KEPT = 0.9  # share of the logit difference that a faithful set keeps
CHANNELS = ("query", "key", "value")  # through which a receiver hears
TOP = (5, 10)  # strongest heads that an approximate map should share
EAP: Final = "EAP"
EAP_IG: Final = "EAP-IG inputs"
METHODS: Final = (EAP, EAP_IG)
EXACT: Final = "exact"
BANDS = 5  # of edges by the size of their scores, from each of which equally many are drawn
KINDS = (*LETTERS, "MLP", "logits")  # what reads
LISTED = 10  # edges
DRAWS = 1000  # bootstrap samples of clusters


# ------------------------------------------------------------------------------------------------ one pair


def check_layer(layers: int, shown_layer: int | None) -> None:
    """Raises ValueError for a layer that a model of so many layers does not have; None is allowed."""
    if shown_layer is not None and shown_layer >= layers:
        raise ValueError(f"shown_layer = {shown_layer}: the model has {layers} layers, 0 to {layers - 1}")


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


def carriers(effect: Intervals) -> NDArray[np.bool_]:
    """Which heads, paths or edges [...] carry more than a hundredth of the whole effect for certain.

    That is, either way: the whole interval lies beyond CARRIES. False where it is NaN.
    """
    return (effect.low > CARRIES) | (effect.high < -CARRIES)


def intervals(entry: Mapping[str, Any]) -> Intervals:
    """Returns values and intervals as arrays, NaN where the values file has null."""
    return Intervals(*(np.array(entry[name], dtype=np.float64) for name in ("value", "low", "high")))


def agreement(exact: Floats, approximate: Floats, top: Sequence[int] = TOP, least: float = 0.0) -> Numbers:
    """Returns how well one map [L, H] of effects stands for another.

    spearman, pearson: correlations over heads. overlap: by k, the share of the k strongest heads (by size) that both
    maps have. worst: the layer and number of the head whose rank by size falls most in the approximation, and by how
    many places it falls. signs: of the heads whose exact effect is at least `least`, the share with the same sign.
    """
    a, b = exact.ravel().astype(np.float64), approximate.ravel().astype(np.float64)
    first, second = (np.argsort(np.argsort(-np.abs(x), kind="stable"), kind="stable") for x in (a, b))
    fall = np.where(first < max(top), second - first, -len(a))
    layer, head = np.unravel_index(fall.argmax(), exact.shape)
    return {
        "spearman": float(stats.spearmanr(a, b).statistic),
        "pearson": float(stats.pearsonr(a, b).statistic),
        "overlap": {str(k): float(((first < k) & (second < k)).sum() / k) for k in top if k <= len(a)},
        "worst": [int(layer), int(head), int(fall.max())],
        "signs": float((np.sign(a) == np.sign(b))[np.abs(a) >= least].mean()),
    }


def _halves(maps: Arrays, seed: int) -> list[Intervals]:
    """The noised effects on the half that chooses heads and on the other one, which share no cluster."""
    parts = [{name: maps[name][half] for name in MAPS} for half in halves(len(maps["base"]), seed, maps["clusters"])]
    return [normalised(*(part[name] for name in MAPS)) for part in parts]


MAPS = ("noised", "base", "source", "clusters")


def chosen_on_a_half(maps: Arrays, settings: Any) -> Floats:
    """Returns the effects [L, H] by which heads are chosen: those on one half of the pairs."""
    return _halves(maps, settings.seed)[0].value


def population(arrays: Arrays, settings: Any) -> Numbers:
    """What many pairs say, in shares of the whole effect, and what the untrained twin's heads change, in logits.

    noised, denoised [L, H]: effects towards the source and back. estimate, direct [L, H]: the first-order estimate of
    noised, and the part of it that is told to the output itself (NaN where a class has none). chosen [L, H]: noised on
    one half of the pairs, by which heads are chosen; measured [L, H]: noised on the other half.
    """
    maps = arrays["trained"]
    base, source, clusters = (maps[name] for name in MAPS[1:])
    noised, denoised = (normalised(maps[name], *ends, clusters) for name, ends in (
        ("noised", (base, source)), ("denoised", (source, base))
    ))  # fmt: skip
    whole = float((source - base).mean())
    estimate = maps["attribution"].mean(axis=0) / whole
    chosen, measured = _halves(maps, settings.seed)
    found = {
        "intact": mean_interval(base, clusters=clusters),
        "corrupted": mean_interval(source, clusters=clusters),
        "accuracy": accuracy(base > 0, len(set(clusters.tolist()))),
        "probability": mean_interval(maps["probability"], within=(0, 1), clusters=clusters),
        "pairs": len(base),
        "noised": vars(noised),
        "denoised": vars(denoised),
        "estimate": estimate,
        "direct": maps["direct"].mean(axis=0) / whole,
        "agreement": agreement(noised.value, estimate, least=CARRIES),
        "chosen": chosen.value,
        "measured": vars(measured),
    }
    return {"population": found, "untrained": arrays["untrained"] and untrained(arrays["untrained"])}


def untrained(maps: Arrays) -> Numbers:
    """Whether the untrained twin does the task, what the corruption changes, and what its heads [L, H] do, in logits.

    Raises ValueError for fewer than two clusters.
    """
    base, clusters = maps["base"], maps["clusters"]
    change = maps["noised"] - base[:, None, None]
    return {
        "pairs": len(base),
        "accuracy": accuracy(base > 0, len(set(clusters.tolist()))),
        "swap": mean_interval(maps["source"] - base, clusters=clusters),
        "heads": vars(mean_intervals(change, comparisons=change[0].size, clusters=clusters)),
    }


def planted(arrays: Arrays, settings: Any) -> Numbers:
    """The effects of the heads of a planted circuit, and the roles of those that carry anything."""
    effect, roles = normalised(*(arrays[name] for name in MAPS)), {tuple(row[:2]): row[2] for row in arrays["roles"]}
    carried = [roles.get((layer, head), "a decoy") for layer, head in np.argwhere(carriers(effect)).tolist()]
    return {"planted": vars(effect), "planted heads": carried}


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


def curve_sets(chosen: Floats, draws: int, seed: int = 0) -> tuple[list[list[Any]], NDArray[np.bool_]]:
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

    whole: of all heads. alone, without: of the strongest heads alone, and of all but these. surplus: alone minus whole
    on the same prompts. random: of random sets. faithfulness: the share of the whole logit difference that the
    strongest heads alone keep, with intervals for all sizes together. reached: by level of faithfulness, the least
    number of strongest heads that reach it alone.
    """
    whole, clusters = arrays["whole"], arrays["clusters"]
    scores: dict[str, dict[str, list[Floats]]] = {"strongest": {}, "without": {}, "random": {}}
    for (kind, size), values in zip(arrays["names"], arrays["alone"], strict=True):
        scores[kind].setdefault(str(size), []).append(values)
    strongest = {size: values for size, [values] in scores["strongest"].items()}

    def means(kind: str, less: Floats | float = 0.0) -> dict[str, Interval]:
        return {size: mean_interval(values - less, clusters=clusters) for size, [values] in scores[kind].items()}

    faithful = faithfulness(whole, strongest, clusters)
    found = {
        "whole": mean_interval(whole, clusters=clusters),
        "alone": means("strongest"),
        "without": means("without"),
        "surplus": means("strongest", whole),
        "random": {size: [float(one.mean()) for one in values] for size, values in scores["random"].items()},
        "faithfulness": faithful,
        "reached": {str(level): reached(faithful, level) for level in LEVELS},
        "pairs": len(whole),
    }
    return {"circuit": found}


def faithfulness(whole: Floats, alone: Mapping[str, Floats], clusters: NDArray[np.integer]) -> dict[str, Interval]:
    """Returns, by size of a set, its mean logit difference [N] over that of all heads; 1 is the whole model.

    Intervals are as for `normalised`, and hold for all sizes together.
    """
    share = normalised(np.stack(list(alone.values()), axis=1), np.zeros_like(whole), whole, clusters)
    return {size: share[place] for place, size in enumerate(alone)}


def reached(faithful: Mapping[str, Sequence[float]], level: float) -> int | None:
    """Returns the smallest size of a set whose faithfulness is `level` or more, None where there is none."""
    return min((int(size) for size, share in faithful.items() if share[0] >= level), default=None)


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
    there, shares = ~np.isnan(flat).any(axis=0), np.full((3, flat.shape[1]), np.nan)
    effect = normalised(base[:, None] + flat[:, there], base, arrays["source"], arrays["clusters"])
    shares[:, there] = effect.value, effect.low, effect.high
    square = shares[:, :-heads].reshape(3, heads, heads, -1)
    named = {name: square[..., at] for at, name in enumerate((*CHANNELS, "edges"))} | {"direct": shares[:, -heads:]}
    found: Numbers = {name: vars(Intervals(*part)) for name, part in named.items()}
    found |= {"heads": arrays["heads"], "pairs": len(base)}
    return {"paths": found}


# ------------------------------------------------------------------------------------------------ edges


def drawn_edges(graph: ComponentGraph, means: Mapping[str, Floats], count: int, seed: int) -> NDArray[np.int64]:
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


def shares(effects: Floats, whole: Floats, clusters: NDArray[np.integer] | None = None) -> Intervals:
    """Effects [N, E] as shares of the whole effect [N]: [E], with intervals that hold together (Bonferroni).

    NaN where the whole effect is not above 0.
    """
    if not whole.mean() > 0:
        return Intervals(*np.full((3, effects.shape[1]), np.nan))
    value, linearised = ratio_of_means(effects, whole, clusters)
    around = mean_intervals(linearised, comparisons=len(value))
    return Intervals(value, around.low, around.high)


def redrawn_shares(arrays: Arrays) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The exact effects of bootstrap samples of the clusters [D, E], and which of them matter there [D, E].

    NaN, and False, where the whole effect is not above 0.
    """
    places = [np.flatnonzero(arrays["clusters"] == cluster) for cluster in np.unique(arrays["clusters"])]
    difference = arrays["full"].astype(np.float64) - arrays["empty"]
    whole = np.array([difference[pairs].sum() for pairs in places])
    effects = np.stack([arrays["effects"][pairs].sum(0, dtype=np.float64) for pairs in places])
    samples = [np.repeat(np.arange(len(places)), times) for times in resampled(len(places), DRAWS)]
    redrawn = [shares(effects[sample], whole[sample]) for sample in samples]
    return np.stack([exact.value for exact in redrawn]), np.stack([carriers(exact) for exact in redrawn])


def share_found(order: NDArray[np.integer], matter: NDArray[np.bool_]) -> float:
    """Of the edges that matter [E], the share among equally many of those that come first in an order [E]."""
    number = int(matter.sum())
    return float(matter[order[:number]].mean()) if number else np.nan


def correlations(scores: Floats, redrawn: Floats) -> NDArray[np.float64]:
    """Spearman's correlation of scores [E] with each of several effects [D, E]: [D], NaN where one is constant."""
    ranked = stats.rankdata(scores), stats.rankdata(redrawn, axis=1)
    first, second = (ranks - ranks.mean(-1, keepdims=True) for ranks in ranked)
    with np.errstate(invalid="ignore"):
        return (second @ first) / np.sqrt((second**2).sum(1) * (first @ first))


def edges(arrays: Arrays, settings: Any) -> Numbers:
    """Edges of the component graph: how estimates agree with exact effects on fresh pairs, and circuits of them.

    strongest: those with the largest exact effects, and those that matter and that EAP ranks below as many others.
    found: by method, of the edges that matter, the share among equally many with the highest absolute scores, NaN where
    none does. agreement: by method, Spearman's correlation of scores with exact effects, of all drawn edges, and by
    what reads, NaN where fewer than two were drawn or the whole effect is not above 0. Intervals are over clusters of
    the fresh pairs, with the scores as they are. points [6, E]: exact value, low and high, EAP, EAP-IG, and the number
    of what reads in KINDS. Where a class has no edges, refused alone.
    """
    if arrays["refused"]:
        return {"component graph": {"refused": arrays["refused"]}}
    graph, drawn, circuits = ComponentGraph(*arrays["graph"]), arrays["drawn"], arrays["circuits"]
    ends = {**arrays, "empty": list(circuits.values())[-1]["CMD"]["empty"]}
    whole = ends["full"].astype(np.float64) - ends["empty"]
    exact, redrawn = shares(arrays["effects"], whole, arrays["clusters"]), redrawn_shares(ends)
    unit = float(np.mean(ends["full"], dtype=np.float64) - np.mean(ends["empty"], dtype=np.float64))
    estimates = {
        method: scores[drawn[:, 0], drawn[:, 1]].astype(np.float64) / (unit if unit > 0 else np.nan)
        for method, scores in arrays["means"].items()
    }
    kinds = np.array([_kind(graph.readers[reader]) for reader in drawn[:, 1]])
    matter = carriers(exact)
    largest = np.argsort(-np.abs(exact.value), kind="stable")
    ranks = np.argsort(np.argsort(-np.abs(estimates[EAP]), kind="stable"))
    missed = [place for place in largest if matter[place] and ranks[place] >= matter.sum()][:LISTED]
    strongest = {
        graph.name((int(drawn[place, 0]), int(drawn[place, 1]))): {
            EXACT: exact[place], **{method: float(estimates[method][place]) for method in METHODS}
        }
        for place in sorted({*largest[:LISTED], *missed})
    }  # fmt: skip
    found, agreed = {}, {}
    for method, scores in estimates.items():
        order = np.argsort(-np.abs(scores), kind="stable")
        again = np.array([share_found(order, some) for some in redrawn[1]])
        found[method] = bootstrap_interval(share_found(order, matter), again, within=(0, 1))
        chosen = {"all": np.ones(len(kinds), bool), **{kind: kinds == at for at, kind in enumerate(KINDS)}}
        agreed[method] = {
            name: _agreed(scores[own], exact.value[own], redrawn[0][:, own]) for name, own in chosen.items()
        }
    return {
        "component graph": {
            "strongest": strongest,
            "drawn": len(drawn),
            "matter": int(matter.sum()),
            "found": found,
            "agreement": agreed,
            "curves": {name: _curves(runs, arrays) for name, runs in circuits.items()},
            "points": np.stack([exact.value, exact.low, exact.high, *(estimates[method] for method in METHODS), kinds]),
            "pairs": len(whole),
        }
    }


def _kind(reader: str) -> int:
    """The number in KINDS of what reads: q, k, v of a head, an MLP or the logits."""
    return KINDS.index(reader[-2] if reader.endswith(">") else "logits" if reader == "logits" else "MLP")


def _agreed(scores: Floats, exact: Floats, redrawn: Floats) -> Interval:
    if len(scores) < 2 or not np.isfinite(exact).all():
        return Interval(np.nan, np.nan, np.nan)
    return bootstrap_interval(spearman(scores, exact), correlations(scores, redrawn), within=(-1, 1))


def _curves(runs: Arrays, arrays: Arrays) -> Numbers:
    """The curves of circuits by one score: of signed rankings with their CPR, of absolute ones with their CMD."""
    found = {}
    for measure, run in runs.items():
        ends = arrays["full"], run["empty"], arrays["clusters"]
        curve = Curve(SHARES, run["sizes"], measure == "CMD", run["runs"], *ends)
        found[measure] = curve.values() | {"faithfulness": vars(curve.faithfulness)}
    return found
