"""Head patching in indirect object identification: from logit differences to effects (numpy arrays alone).

A logit difference is that of the answer IO minus that of the repeated name S, of the base prompt, whatever is patched.
base [N]: without a patch; source [N]: of the run that activations are taken from; patched [N, L, H]: of the base run
with one head from the source. A head is its place (layer, head) in such an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from util.stats.controls import layer_alike
from util.stats.heads import Head, head_name, top
from util.stats.intervals import Interval, bootstrap_mean, t_interval, wilson
from util.stats.tests import halves

Floats = NDArray[np.floating]

SHOWN = 12  # layers in one row of panels
CARRIES = 0.01  # share of the whole effect from which on a head is marked, if its interval lies beyond
RANDOM_SETS = 3


def signed(value: float) -> str:
    """A value with its sign and two digits, 0 as +0.00."""
    return f"{round(float(value), 2) + 0.0:+.2f}"


# ------------------------------------------------------------------------------------------------ what is shown


def colour_limit(effects: Floats) -> float:
    """Symmetric limits of a colour scale: the largest |effect|, so that no cell saturates; 1 where all are 0 or NaN."""
    sizes = np.abs(effects[np.isfinite(effects)])
    return float(sizes.max(initial=0)) or 1.0


def layer_to_show(effects: Floats, wanted: int | None = None) -> int:
    """The layer whose activations are shown: the one wanted, by default that of the strongest head of a map [L, H].

    Raises ValueError for a layer that there is not, TypeError for what is no integer.
    """
    if wanted is None:
        return top(np.abs(effects), 1)[0][0]
    if not 0 <= int(wanted) == wanted < len(effects):
        raise ValueError(f"shown_layer = {wanted}: the model has {len(effects)} layers, 0 to {len(effects) - 1}")
    return int(wanted)


def layer_step(layers: int, wanted: int | None = None) -> int:
    """Which layers are shown, every how many: by default so that at most SHOWN are. Raises ValueError below 1."""
    if wanted is None:
        return -(-layers // SHOWN)
    if int(wanted) != wanted or wanted < 1:
        raise ValueError(f"layer_skip = {wanted}: give a number of layers from 1 on")
    return int(wanted)


def selectivity(difference: Floats) -> NDArray[np.float64]:
    """How unequally heads take part in a difference [L, H, D] of two tokens' head outputs, [L].

    The mean absolute difference of the two heads with the largest over that of the two with the smallest; NaN where the
    latter is 0. Raises ValueError for fewer than four heads.
    """
    if difference.shape[1] < 4:
        raise ValueError(f"{difference.shape[1]} heads: the two largest and the two smallest of at least 4 are needed")
    means = np.sort(np.abs(difference).mean(axis=2, dtype=np.float64), axis=1)
    low, high = means[:, :2].mean(axis=1), means[:, -2:].mean(axis=1)
    return np.divide(high, low, out=np.full(len(low), np.nan), where=low > 0)


@dataclass(frozen=True)
class Effect:
    """A normalised effect of heads and its 95 % interval, each of one shape; 0 is the base run, 1 the source run."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def normalised(
    patched: Floats, base: Floats, source: Floats, clusters: NDArray[np.integer], draws: int = 1000, seed: int = 0
) -> Effect:
    """The mean change by a patch [N, ...] over the mean change to the source: a ratio of means.

    Its standard error is bootstrapped by cluster [N]: prompts that share one (a frame and a pair of names) are drawn
    together. The normal intervals hold together for all heads (Bonferroni). Raises ValueError for fewer than two
    clusters.
    """
    names, number = np.unique(clusters, return_inverse=True)
    if len(names) < 2:
        raise ValueError("an interval needs at least two clusters of prompts")
    change = (patched - base.reshape(-1, *[1] * (patched.ndim - 1))).astype(np.float64)
    sums = np.zeros((len(names), *change.shape[1:]))
    whole = np.zeros(len(names))
    np.add.at(sums, number, change)
    np.add.at(whole, number, source.astype(np.float64) - base)
    weights = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    drawn = np.tensordot(weights, sums, 1) / (weights @ whole).reshape(-1, *[1] * (change.ndim - 1))
    width = stats.norm.ppf(1 - 0.025 / max(1, change[0].size)) * drawn.std(axis=0, ddof=1)
    value = sums.sum(0) / whole.sum()
    return Effect(value, value - width, value + width)


@dataclass(frozen=True)
class Agreement:
    """How well an approximate map [L, H] stands for the exact one.

    overlap: by k, the share of the k strongest heads (by size) that both have; worst: the head whose rank by size falls
    most in the approximation, and by how many places; signs: the share with the same sign of the heads whose exact
    effect is at least `least`.
    """

    spearman: float
    pearson: float
    overlap: dict[int, float]
    worst: tuple[int, int, int]
    signs: float


def agreement(exact: Floats, approximate: Floats, top: tuple[int, ...] = (5, 10), least: float = 0.0) -> Agreement:
    """Compare two maps of effects. Raises ValueError for different shapes."""
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


# ------------------------------------------------------------------------------------------------ many pairs


@dataclass(frozen=True)
class Population:
    """What many pairs say, in shares of the whole effect (base 0, source 1).

    intact, corrupted: the mean logit differences of base and source runs; accuracy: of the base runs, by Wilson;
    probability: of IO after the base; pairs: how many; noised, denoised: maps [L, H] with intervals for all heads
    together, towards the source and back; estimate, direct [L, H]: the first-order estimate of noised, and that part of
    it that is told the output directly (NaN where a class has none); agreement: of estimate and noised. chosen [L, H]:
    noised on one half of the prompts, which chooses heads; measured: on the other half.
    """

    intact: Interval
    corrupted: Interval
    accuracy: Interval
    probability: Interval
    pairs: int
    noised: Effect
    denoised: Effect
    estimate: Floats
    direct: Floats
    agreement: Agreement
    chosen: Floats
    measured: Effect

    @property
    def whole(self) -> float:
        """The whole effect in logits."""
        return self.corrupted.value - self.intact.value

    def strongest(self, count: int) -> list[Head]:
        """The heads of the largest |effect| on the half that chooses, strongest first; at most as many as there are."""
        return top(np.abs(self.chosen), min(count, self.chosen.size))

    def share(self, head: Head) -> Interval:
        """The share of a head on the half that did not choose it; such intervals hold for all heads together."""
        return Interval(*(float(part[head]) for part in (self.measured.value, self.measured.low, self.measured.high)))


def population(data: Mapping[str, Any], seed: int = 0) -> Population:
    """The measures of a record of `study.population`. Raises ValueError for fewer than two clusters."""
    base, source, clusters = data["base"], data["source"], data["clusters"]
    noised = normalised(data["noised"], base, source, clusters)
    whole = float((source - base).mean())
    estimate = data["attribution"].mean(axis=0) / whole
    choose, measure = halves(len(base), seed)
    some, others = ((data["noised"][n], base[n], source[n], clusters[n]) for n in (choose, measure))
    right = int((base > 0).sum())
    return Population(
        intact=_mean(base),
        corrupted=_mean(source),
        accuracy=Interval(right / len(base), *map(float, wilson(right, len(base)))),
        probability=_mean(data["probability"]),
        pairs=len(base),
        noised=noised,
        denoised=normalised(data["denoised"], source, base, clusters),
        estimate=estimate,
        direct=data["direct"].mean(axis=0) / whole,
        agreement=agreement(noised.value, estimate, least=CARRIES),
        chosen=normalised(*some).value,
        measured=normalised(*others),
    )


def _mean(values: Floats) -> Interval:
    return Interval(*map(float, bootstrap_mean(values)))


def effect(data: Mapping[str, Any]) -> Effect:
    """The normalised map of a record of `study.population`, the base run with one head from the source."""
    return normalised(data["noised"], data["base"], data["source"], data["clusters"])


def carriers(effect: Effect, least: float = CARRIES) -> NDArray[np.bool_]:
    """Which heads carry more than `least` of the whole effect, either way: those whose interval lies beyond it."""
    return (effect.low > least) | (effect.high < -least)


@dataclass(frozen=True)
class Untrained:
    """The untrained twin: whether it does the task, what the swap changes in logits, and its heads' effects in logits.

    heads: of the mean change by patching [L, H], with t-intervals for all heads together.
    """

    pairs: int
    accuracy: Interval
    swap: Interval
    heads: Effect

    @property
    def beyond_chance(self) -> int:
        """How many heads' intervals exclude 0; at most 1 time in 20 any, where no head carries anything."""
        return int(((self.heads.low > 0) | (self.heads.high < 0)).sum())


def untrained(data: Mapping[str, Any]) -> Untrained:
    """The measures of a record of `study.untrained`."""
    base, count = data["base"], len(data["base"])
    change = data["noised"] - base[:, None, None]
    right = int((base > 0).sum())
    return Untrained(
        count,
        Interval(right / count, *map(float, wilson(right, count))),
        Interval(*map(float, t_interval(data["source"] - base))),
        Effect(*t_interval(change, comparisons=change[0].size)),
    )


def remarks(found: Population, control: Untrained | None) -> list[str]:
    """What the figure of many pairs says, in words: the direct part, the estimate, the untrained twin."""
    [best], alike = found.strongest(1), found.agreement
    name, exact = head_name(best), found.noised.value[best]
    said = [f"{name} tells the output directly {signed(found.direct[best])} of its {signed(exact)}"]
    if not np.isfinite(found.direct).all():
        said = ["direct effects: not measured, this class changes what heads write"]
    shared = ", ".join(f"{share:.1f} of the top {k}" for k, share in alike.overlap.items())
    said.append(f"first-order estimate: Spearman {alike.spearman:.2f}, shares {shared}, same sign {alike.signs:.2f}")
    if control is not None:
        largest = float(np.abs(control.heads.value).max() / abs(found.whole))
        said.append(f"untrained, {control.pairs} pairs: the answer above the other name {control.accuracy}")
        said.append(f"untrained: the corruption changes the logit difference by {control.swap}")
        said.append(
            f"untrained: {control.beyond_chance} of {control.heads.value.size} heads beyond chance, the largest effect "
            f"{largest:.1g} of the trained model's whole effect"
        )
    return said


# ------------------------------------------------------------------------------------------------ circuits and paths

STRONGEST, WITHOUT, RANDOM = "strongest", "without", "random"
SetName = tuple[str, int] | tuple[str, int, int]  # kind and size, of random sets their number besides


def set_sizes(heads: int) -> list[int]:
    """1, 2, 4, ... as far as there are more heads."""
    return [2**power for power in range(heads.bit_length()) if 2**power < heads]


def curve_sets(chosen: Floats, draws: int = RANDOM_SETS, seed: int = 0) -> dict[SetName, list[Head]]:
    """The sets of heads of `Curve`, of a map [L, H] by which heads are chosen: for every size the strongest, all but
    these, and random sets with as many heads in the same layers."""
    order = top(np.abs(chosen), chosen.size)
    sets: dict[SetName, list[Head]] = {}
    for size in set_sizes(chosen.size):
        heads = order[:size]
        sets[STRONGEST, size] = heads
        sets[WITHOUT, size] = order[size:]
        for number, drawn in enumerate(layer_alike(heads, (chosen.shape[0], chosen.shape[1]), draws, seed)):
            sets[RANDOM, size, number] = drawn
    return sets


@dataclass(frozen=True)
class Curve:
    """Faithfulness against size: mean logit differences where only some heads work, all others ablated.

    whole: of all heads; alone, without: by size of the set, of the strongest heads alone, and of all but these;
    surplus: by size, alone minus whole on the same prompts; random: by size, of random sets.
    """

    whole: Interval
    alone: dict[int, Interval]
    without: dict[int, Interval]
    surplus: dict[int, Interval]
    random: dict[int, list[float]]

    @property
    def enough(self) -> int | None:
        """The least size from which on the strongest heads alone keep nine tenths of the logit difference, or more."""
        low = [size for size, interval in self.alone.items() if interval.value < 0.9 * self.whole.value]
        sizes = [size for size in self.alone if size > max(low, default=0)]
        return min(sizes, default=None)

    def sentences(self) -> list[str]:
        """What the curve says, in words."""
        said = [f"all heads: logit difference {self.whole}"]
        alone = ", ".join(f"{size}: {round(interval.value, 2) + 0.0:.2f}" for size, interval in self.alone.items())
        said.append(f"the strongest alone, by their number: {alone}")
        if self.enough is None:
            largest = max(self.alone)
            said.append(f"even the {largest} strongest heads alone keep less than nine tenths: {self.alone[largest]}")
        else:
            heads = _heads(self.enough)
            said.append(f"from the strongest {heads} on nine tenths are kept by these alone: {self.alone[self.enough]}")
            if self.enough in self.random:
                rest = ", ".join(f"{value:.2f}" for value in sorted(self.random[self.enough]))
                said.append(f"random sets of {heads} from the same layers keep {rest}")
            said.append(f"all heads but these keep {self.without[self.enough]}")
        above = {size: interval for size, interval in self.surplus.items() if interval.low > 0}
        if above:
            size = max(above, key=lambda s: above[s].value)
            more = f"{_heads(size)} alone give {self.alone[size]}, more than all heads, by {above[size]}"
            said.append(f"{more}: other heads work against the answer")
        return said


def _heads(count: int) -> str:
    return "head" if count == 1 else f"{count} heads"


def curve(scores: Mapping[Any, Floats]) -> Curve:
    """The curve, of the logit differences [N] of `curve_sets` and "whole", as `study.circuit` gives them."""
    parts: dict[str, dict[int, Interval]] = {STRONGEST: {}, WITHOUT: {}}
    surplus: dict[int, Interval] = {}
    random: dict[int, list[float]] = {}
    for name, values in scores.items():
        if not isinstance(name, tuple):
            continue
        kind, size = name[:2]
        if kind == RANDOM:
            random.setdefault(size, []).append(float(values.mean()))
            continue
        parts[kind][size] = _mean(values)
        if kind == STRONGEST:
            surplus[size] = _mean(values - scores["whole"])
    return Curve(_mean(scores["whole"]), parts[STRONGEST], parts[WITHOUT], surplus, random)


@dataclass(frozen=True)
class Paths:
    """What heads tell each other and the output, in shares of the whole effect.

    heads: K of them, by layer; edges [K, K]: of sender to receiver, NaN where the receiver is in no later layer;
    direct [K]: to the output. Intervals hold for all edges together.
    """

    heads: list[Head]
    edges: Effect
    direct: Effect

    def sentences(self) -> list[str]:
        """By sender, its direct path and all edges that carry more than a hundredth for certain, in words."""
        sure, told, silent = carriers(self.edges), carriers(self.direct), list[str]()
        said = []
        for row, sender in enumerate(self.heads):
            at = [f"{head_name(self.heads[c])} {signed(self.edges.value[row, c])}" for c in np.flatnonzero(sure[row])]
            at += [f"the output {signed(self.direct.value[row])}"] if told[row] else []
            if at:
                said.append(f"{head_name(sender)} tells " + ", ".join(at))
            else:
                silent.append(head_name(sender))
        return said + ([f"nothing for certain is told by {', '.join(silent)}"] if silent else [])


def paths(data: Mapping[str, Any], heads: Sequence[Head]) -> Paths:
    """The measures of a record of `study.path_patching` for these heads."""
    base, source, clusters = data["base"], data["source"], data["clusters"]
    both = np.concatenate([data["edges"], data["direct"][:, :, None]], axis=2)
    none = np.isnan(both).any(axis=0)
    found = normalised(base[:, None, None] + np.where(none, 0, both), base, source, clusters)
    found = Effect(*(np.where(none, np.nan, part) for part in (found.value, found.low, found.high)))
    parts = [Effect(*(getattr(found, name)[..., cut] for name in ("value", "low", "high"))) for cut in (slice(-1), -1)]
    return Paths(list(heads), *parts)


# ------------------------------------------------------------------------------------------------ published


def tutorial_values(data: Mapping[str, Any], ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The nnsight tutorial's numbers from a record of its pair, (value, 0) by id: of `ids`, those such as nnsight_8.10.

    Its base is our source: of either prompt it gives the logit difference of that prompt's own answer.
    """
    base, source = map(float, data["scores"])
    share = (data["patched"] - base) / (source - base)
    values = {"nnsight_base": -source, "nnsight_source": -base, "nnsight_sum": float(share.sum())}
    for name in ids:
        if name.startswith("nnsight_") and "." in name:
            layer, head = map(int, name.removeprefix("nnsight_").split("."))
            values[name] = float(share[layer, head])
    return {name: (value, 0.0) for name, value in values.items()}


def wang_values(data: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Logit difference, accuracy and probability of IO, each with its standard error, by id of data/published."""
    arrays = {"logit_difference": data["base"], "accuracy": data["base"] > 0, "probability": data["probability"]}
    return {name: (float(a.mean()), float(a.std(ddof=1) / len(a) ** 0.5)) for name, a in arrays.items()}


def roles(circuit: Mapping[str, Any], model: str) -> dict[Head, str]:
    """The published role of heads, such as "name mover", where `circuit` of data/published is this model's."""
    if circuit["model"] != model:
        return {}
    named = {}
    for role, heads in circuit["heads"].items():
        for head in heads:
            layer, number = map(int, head.split("."))
            named[layer, number] = role
    return named
