"""What the parts of the study give: frozen results with their numbers, tables, sentences and figures. No model needed.

Everywhere here L is the number of layers that have attention, H the number of heads of each, T the number of tokens, N
the number of pairs of prompts. A head is its position (layer, head) in arrays [L, H], from 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.ioi_patching import measures, plots
from util.figures.ioi_patching.measures import Agreement, Floats, Kind, SetName, carriers, normalised, signed
from util.roles.rules import Role
from util.show import files
from util.show.circuit_diagram import LABELLED, LOGITS, Edge, Node, circuit_figure, circuit_graph
from util.show.style import WIDTH
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval, Intervals, accuracy, mean_interval, mean_intervals
from util.stats.splits import halves

KEPT = 0.9  # share of the logit difference that a faithful set keeps
LISTED = 8  # heads in tables and in the check
STRONGEST_PATHS = 10  # paths in the table and the figure


def published_roles(model: str) -> dict[Head, str]:
    """The published role of heads of this model, such as "name mover"; none for others."""
    return measures.roles(files.published(measures.STEM)["circuit"], model)


@dataclass(frozen=True)
class Setting:
    """What titles say: the model as the study names it and its title, and the corruption of the data set."""

    model: str
    model_title: str
    corruption: str


@dataclass(frozen=True)
class Result:
    """The base of all results. subject: what was measured. `unstored`: fields that are no part of the values file."""

    subject: Setting

    unstored: ClassVar[tuple[str, ...]] = ("subject",)

    def values(self) -> dict[str, Any]:
        """Returns what the values file has of this result, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.unstored}

    def lines(self) -> list[str]:
        """Returns what a fresh run must say again."""
        return []


# ------------------------------------------------------------------------------------------------ one pair


@dataclass(frozen=True)
class Example(Result):
    """The project's pair of prompts.

    described: the model in words. texts: base and source; names: the base's answer, and the name that it repeats.
    log_softmax [2, V]: log-probabilities after base and source. scores [2]: their logit differences. answers [2]: the
    tokens of the names. next_words [2]: the most probable next tokens. source_ids [T], tokens [T]: of the source, as
    numbers and as text. first: the position from which on the prompts differ. z [L, T, H, dv]: the outputs of all heads
    on the source. norms [L, H]: of the heads' outputs on the base. permuted, patched [L, H]: the changes of the logit
    difference of the base run by shuffling one head, and by taking it from the source.
    shown_layer, layer_skip: which layers are shown, see `measures.layer_to_show` and `measures.layer_step`.
    """

    described: str
    texts: tuple[str, str]
    names: tuple[str, str]
    log_softmax: Floats
    scores: Floats
    answers: NDArray[np.integer]
    next_words: Sequence[str]
    source_ids: NDArray[np.integer]
    tokens: Sequence[str]
    first: int
    z: Floats
    norms: Floats
    permuted: Floats
    patched: Floats
    shown_layer: int | None = None
    layer_skip: int | None = None

    @classmethod
    def of(
        cls, data: Mapping[str, Any], setting: Setting, described: str, texts: tuple[str, str], names: tuple[str, str],
        shown_layer: int | None = None, layer_skip: int | None = None,
    ) -> Example:  # fmt: skip
        """Returns the result of a record's data, see `ExamplePair.measured`."""
        base = data["scores"][0]
        same = ("log_softmax", "scores", "answers", "next_words", "tokens", "first", "z", "norms")
        return cls(
            setting,
            described=described,
            texts=texts,
            names=names,
            source_ids=data["source"],
            permuted=data["permuted"] - base,
            patched=data["patched"] - base,
            shown_layer=shown_layer,
            layer_skip=layer_skip,
            **{name: data[name] for name in same},
        )

    def values(self) -> dict[str, Any]:
        """Returns what the values file has of this result, by name."""
        return {
            "scores": self.scores,
            "permuted": self.permuted,
            "patched": self.patched,
            "selectivity": self.selectivity,
        }

    @property
    def differences(self) -> Floats:
        """The source's head outputs at the first place of the answer's name minus those at the second, [L, H, dv]."""
        first, second = measures.places_of_name(self.source_ids, int(self.answers[0]), self.names[0])
        return self.z[:, first] - self.z[:, second]

    @property
    def selectivity(self) -> NDArray[np.float64]:
        """How unequally heads tell these two places apart, by layer [L], see `measures.selectivity`."""
        return measures.selectivity(self.differences)

    def sentences(self) -> list[str]:
        """Returns which model was measured, and what it says after either prompt."""
        prompts = zip(self.texts, self.scores, self.next_words, strict=True)
        said = [f"{text} ...{word!r}; logit difference {score:+.3f}" for text, score, word in prompts]
        return [self.described, *said]

    @property
    def shape_sentence(self) -> str:
        """The shape of the activations, in words."""
        layers, tokens, heads, dimensions = self.z.shape
        return f"{layers} layers, each of {tokens} tokens, {heads} heads, {dimensions} dimensions"

    @property
    def selectivity_sentence(self) -> str:
        """The selectivity ratios, in words."""
        return "selectivity ratio by layer: " + " ".join(f"{value:.1f}" for value in self.selectivity)

    @property
    def setting(self) -> str:
        """The model and the pair of prompts, for titles."""
        return f"{self.subject.model_title}, one pair of prompts of {len(self.tokens)} tokens"

    @property
    def predictions_finding(self) -> str:
        """Which of the two names is the more probable after either prompt, and by how much."""
        first, second = (
            " above ".join(self.names if score > 0 else self.names[::-1]) + f" by {abs(score):.1f}"
            for score in self.scores
        )
        return f"After the base the model puts {first} logits, after the source {second}"

    @property
    def permutation_finding(self) -> str | None:
        """Which head's shuffling changes most; None where no head's changes anything."""
        head, change = self._largest(self.permuted)
        return f"Of single heads, shuffling {head} changes the logit difference most: {change}" if head else None

    @property
    def patching_finding(self) -> str | None:
        """Which head from the source changes most; None where no head changes anything."""
        head, change = self._largest(self.patched)
        base, source = self.scores
        said = (
            f"{head} alone from the source moves the logit difference by {change}, all together by {source - base:+.1f}"
        )
        return said if head else None

    @property
    def activations_finding(self) -> str:
        """In which layer head outputs are longest, and by how much."""
        norms = np.linalg.norm(self.z, axis=3).mean(axis=(1, 2))
        rest = f"{norms.mean():.2g} over all layers"
        return f"Head outputs are longest in layer {norms.argmax()}: mean norm {norms.max():.2g}, {rest}"

    @property
    def differences_finding(self) -> str | None:
        """In which layer heads differ most in how far they tell the places apart; None where no ratio is defined."""
        ratio = self.selectivity
        if not np.isfinite(ratio).any():
            return None
        layer = int(np.nanargmax(ratio))
        times = f"by a factor of {ratio[layer]:.0f}"
        return f'Heads tell the two "{self.names[0]}" apart most unequally in layer {layer}: {times}'

    def _largest(self, effects: Floats) -> tuple[str, str]:
        """The name of the head with the largest effect, and the effect; empty where there is none."""
        [head] = top(np.abs(effects), 1)
        return (head_name(head), f"{effects[head]:+.1f}") if effects[head] else ("", "")

    def predictions_figure(self, width: float = WIDTH) -> Figure:
        """Returns P1: the log-probabilities of all tokens after both prompts."""
        answers = [int(token) for token in self.answers]
        said = (self.predictions_finding, self.setting)
        return plots.predictions(self.log_softmax, answers, self.names, self.texts, *said, width)

    def permutation_figure(self, width: float = WIDTH) -> Figure:
        """Returns P2: what shuffling one head changes."""
        said = (self.permutation_finding, f"{self.setting}; one head of the base shuffled")
        return plots.permutation(self.permuted, self.norms, *said, width)

    def activations_figure(self, width: float = WIDTH) -> Figure:
        """Returns P3: the head outputs of one layer, and mean norms of all layers."""
        layer = measures.layer_to_show(self.patched, self.shown_layer)
        said = (self.activations_finding, f"{self.setting}; outputs on the source, shown for layer {layer}")
        return plots.activations(self.z, layer, self.tokens, *said, width=width)

    def differences_figure(self, width: float = WIDTH) -> Figure:
        """Returns P4: how the head outputs at the two places of the answer's name differ."""
        step = measures.layer_step(len(self.z), self.layer_skip)
        said = (self.differences_finding, f'{self.setting}; first minus second "{self.names[0]}" of the source')
        return plots.token_differences(self.differences, self.selectivity, step, *said, width)

    def patching_figure(self, width: float = WIDTH) -> Figure:
        """Returns P5: what taking one head from the source changes."""
        return plots.patching(self.patched, self.patching_finding, self.setting, width)


@dataclass(frozen=True)
class NextWords(Result):
    """The most probable next tokens after base and source.

    words: two lists, most probable first. probability [2, count]: of these.
    """

    words: Sequence[Sequence[str]]
    probability: Floats

    def table(self) -> pd.DataFrame:
        """Returns a row for each rank: the token after either prompt, and its probability."""
        columns = {}
        for run, words, probability in zip(("base", "source"), self.words, self.probability, strict=True):
            columns[f"after the {run}"] = [repr(word) for word in words]
            columns[f"probability, {run}"] = [f"{value:.3g}" for value in probability]
        return pd.DataFrame(columns, index=pd.RangeIndex(1, len(self.words[0]) + 1, name="rank"))


# ------------------------------------------------------------------------------------------------ many pairs


@dataclass(frozen=True)
class Population(Result):
    """What many pairs say, in shares of the whole effect (base 0, source 1).

    intact, corrupted: the mean logit differences of base and source runs. accuracy: of the base runs. probability: of
    IO after the base. pairs: how many there are. noised, denoised [L, H]: effects towards the source and back, with
    intervals for all heads together. estimate, direct [L, H]: the first-order estimate of noised, and the part of it
    that is told to the output itself, all later layers frozen (NaN where a class has none). agreement: of estimate and
    noised. chosen [L, H]: noised on one half of the prompts, by which heads are chosen; measured [L, H]: noised on the
    other half.
    differences, probabilities [N]: the logit difference and the probability of IO of every base prompt. clusters [N]:
    the number of its frame and names; all intervals count prompts that share them as one.
    """

    intact: Interval
    corrupted: Interval
    accuracy: Interval
    probability: Interval
    pairs: int
    noised: Intervals
    denoised: Intervals
    estimate: Floats
    direct: Floats
    agreement: Agreement
    chosen: Floats
    measured: Intervals
    differences: Floats
    probabilities: Floats
    clusters: NDArray[np.integer]

    unstored = ("subject", "differences", "probabilities", "clusters")

    @classmethod
    def of(cls, data: Mapping[str, Any], setting: Setting, seed: int = 0) -> Population:
        """Returns the result of a record's data, see `Pairs.maps`.

        seed: of the split into two halves, which share no cluster. Raises ValueError for fewer than two clusters in
        either of them.
        """
        base, source, clusters = data["base"], data["source"], data["clusters"]
        noised = normalised(data["noised"], base, source, clusters)
        whole = float((source - base).mean())
        estimate = data["attribution"].mean(axis=0) / whole
        choosing, measuring = halves(len(base), seed, clusters)
        chosen, measured = (
            normalised(data["noised"][half], base[half], source[half], clusters[half]) for half in (choosing, measuring)
        )
        return cls(
            setting,
            intact=mean_interval(base, clusters=clusters),
            corrupted=mean_interval(source, clusters=clusters),
            accuracy=accuracy(base > 0, len(set(clusters.tolist()))),
            probability=mean_interval(data["probability"], within=(0, 1), clusters=clusters),
            pairs=len(base),
            noised=noised,
            denoised=normalised(data["denoised"], source, base, clusters),
            estimate=estimate,
            direct=data["direct"].mean(axis=0) / whole,
            agreement=measures.agreement(noised.value, estimate, least=measures.CARRIES),
            chosen=chosen.value,
            measured=measured,
            differences=base,
            probabilities=data["probability"],
            clusters=clusters,
        )

    @property
    def whole(self) -> float:
        """The whole effect in logits."""
        return self.corrupted.value - self.intact.value

    def strongest(self, count: int) -> list[Head]:
        """Returns the heads of the largest |effect| on the half that chooses, strongest first.

        There are at most as many as the model has.
        """
        return top(np.abs(self.chosen), min(count, self.chosen.size))

    def parts(self, count: int = 6) -> dict[str, tuple[float, float]]:
        """Returns, by name, the whole effect and its direct part of heads that carry more than a hundredth for certain.

        They are `count` at most, strongest first.
        """
        sure = [head for head in self.strongest(self.chosen.size) if carriers(self.noised)[head]]
        return {head_name(head): (self.noised.value[head], self.direct[head]) for head in sure[:count]}

    def share(self, head: Head) -> Interval:
        """Returns a head's share on the half that did not choose it; such intervals hold for all heads together."""
        return self.measured[head]

    @property
    def carriers(self) -> int:
        """How many heads carry more than a hundredth of the whole effect for certain."""
        return int(carriers(self.noised).sum())

    def remarks(self, untrained: Untrained | None = None) -> list[str]:
        """Returns in words what the figure shows of the direct part, the estimate and the untrained twin."""
        [best] = self.strongest(1)
        if np.isfinite(self.direct).all():
            direct, exact = signed(self.direct[best]), signed(self.noised.value[best])
            said = [f"{head_name(best)} carries {exact}; {measures.DIRECT}: {direct}"]
        else:
            said = ["direct effects: not measured, layers of this class cannot be taken apart"]
        alike = self.agreement
        shared = ", ".join(f"{share:.1f} of the top {k}" for k, share in alike.overlap.items())
        said.append(
            f"first-order estimate: Spearman {alike.spearman:.2f}, shares {shared}, same sign {alike.signs:.2f}"
        )
        return said if untrained is None else said + untrained.sentences(self.whole)

    def table(self, count: int = LISTED) -> pd.DataFrame:
        """Returns the strongest heads, a row each: their share on the other half, and what all pairs say."""
        heads = self.strongest(count)
        columns = {
            "lost without it": self.noised.value,
            "restored by it alone": self.denoised.value,
            "first-order estimate": self.estimate,
            measures.DIRECT: self.direct,
        }
        table = pd.DataFrame({"head": [head_name(head) for head in heads]})
        table["share, other half"] = [str(self.share(head)) for head in heads]
        for name, effects in columns.items():
            table[name] = [signed(effects[head]) for head in heads]
        return table.set_index("head")

    def published(self) -> dict[str, tuple[float, float]]:
        """Returns the numbers that Wang et al. print, measured here: (value, standard error) by id."""
        return measures.wang_values(self.differences, self.probabilities, self.clusters)

    @property
    def setting(self) -> str:
        """The model, the data and the number of pairs, for titles."""
        return f"{self.subject.model_title}, {self.subject.corruption}, {self.pairs} pairs"

    @property
    def finding(self) -> str | None:
        """How many heads carry anything, and the strongest with its share; None without an effect to share."""
        if not np.isfinite(self.noised.value).all():
            return None
        if not self.carriers:
            return f"None of {self.noised.value.size} heads carries more than a hundredth of the effect for certain"
        [head] = self.strongest(1)
        return (
            f"{self.carriers} of {self.noised.value.size} heads carry more than a hundredth of the effect for certain; "
            f"{head_name(head)} carries {self.share(head)}"
        )

    def figure(self, untrained: Untrained | None = None, width: float = WIDTH) -> Figure:
        """Returns the figure of many pairs, with the untrained twin's heads where it is given."""
        return plots.population(
            self.noised,
            self.denoised.value,
            self.estimate,
            self.direct,
            self.strongest(plots.RANKED),
            self.measured,
            None if untrained is None else untrained.heads,
            self.whole,
            published_roles(self.subject.model),
            self.finding,
            self.setting,
            width,
        )


@dataclass(frozen=True)
class Untrained(Result):
    """The untrained twin: whether it does the task, what the corruption changes, and what its heads do, in logits.

    heads [L, H]: the mean changes by patching, with intervals for all heads together. Intervals count prompts that
    share a frame and names as one.
    """

    pairs: int
    accuracy: Interval
    swap: Interval
    heads: Intervals

    @classmethod
    def of(cls, data: Mapping[str, Any], setting: Setting) -> Untrained:
        """Returns the result of a record's data, see `Pairs.maps`. Raises ValueError for fewer than two clusters."""
        base, clusters = data["base"], data["clusters"]
        change = data["noised"] - base[:, None, None]
        return cls(
            setting,
            pairs=len(base),
            accuracy=accuracy(base > 0, len(set(clusters.tolist()))),
            swap=mean_interval(data["source"] - base, clusters=clusters),
            heads=mean_intervals(change, comparisons=change[0].size, clusters=clusters),
        )

    @property
    def beyond_chance(self) -> int:
        """How many heads' intervals exclude 0; at most 1 time in 20 any, where no head carries anything."""
        return int(((self.heads.low > 0) | (self.heads.high < 0)).sum())

    def sentences(self, whole: float) -> list[str]:
        """Returns the control in words. whole: the trained model's whole effect, in logits."""
        largest = float(np.abs(self.heads.value).max() / abs(whole))
        return [
            f"untrained, {self.pairs} pairs: the answer above the other name {self.accuracy}",
            f"untrained: the corruption changes the logit difference by {self.swap}",
            f"untrained: {self.beyond_chance} of {self.heads.value.size} heads beyond chance, the largest effect "
            f"{largest:.1g} of the trained model's whole effect",
        ]


# ------------------------------------------------------------------------------------------------ sets of heads


@dataclass(frozen=True)
class Circuit(Result):
    """The logit differences of fresh base prompts where only some heads work, and all others are ablated.

    whole [N]: all heads work. alone: by the name of each set, the logit differences [N] where only its heads work.
    clusters [N]: the number of a prompt's frame and names.
    """

    whole: Floats
    alone: Mapping[Any, Floats]
    clusters: NDArray[np.integer]

    def mean(self, scores: Floats) -> Interval:
        """Returns the mean of numbers [N] about the prompts; those that share a frame and names count as one."""
        return mean_interval(scores, clusters=self.clusters)

    def table(self) -> pd.DataFrame:
        """Returns the mean logit difference with its interval, a row for each set and one for all heads."""
        rows: dict[Hashable, str] = {"all heads": str(self.mean(self.whole))}
        rows |= {name: str(self.mean(scores)) for name, scores in self.alone.items()}
        return pd.DataFrame({"logit difference": pd.Series(rows)})


@dataclass(frozen=True)
class Curve(Result):
    """Faithfulness against size: mean logit differences where only some heads work, and all others are ablated.

    whole: of all heads. alone, without: by size of the set, of the strongest heads alone, and of all but these.
    surplus: by size, alone minus whole on the same prompts. random: by size, of random sets. faithfulness: by size, the
    share of the whole logit difference that the strongest heads alone keep, see `measures.faithfulness`. pairs: how
    many prompts. heads: how many the model has.
    """

    whole: Interval
    alone: dict[int, Interval]
    without: dict[int, Interval]
    surplus: dict[int, Interval]
    random: dict[int, list[float]]
    faithfulness: dict[int, Interval]
    pairs: int
    heads: int

    unstored = ("subject", "pairs", "heads")

    def values(self) -> dict[str, Any]:
        """Returns what the values file has of this result, by name."""
        return {**super().values(), "reached": self.reached}

    @classmethod
    def of(cls, circuit: Circuit, heads: int) -> Curve:
        """Returns the curve of the scores of `measures.curve_sets`, for a model of so many heads."""
        scores: Mapping[SetName, Floats] = circuit.alone
        strongest = {name.size: values for name, values in scores.items() if name.kind is Kind.STRONGEST}
        without = {name.size: values for name, values in scores.items() if name.kind is Kind.WITHOUT}
        random: dict[int, list[float]] = {}
        for name, values in scores.items():
            if name.kind is Kind.RANDOM:
                random.setdefault(name.size, []).append(float(values.mean()))
        return cls(
            circuit.subject,
            whole=circuit.mean(circuit.whole),
            alone={size: circuit.mean(values) for size, values in strongest.items()},
            without={size: circuit.mean(values) for size, values in without.items()},
            surplus={size: circuit.mean(values - circuit.whole) for size, values in strongest.items()},
            random=random,
            faithfulness=measures.faithfulness(circuit.whole, strongest, circuit.clusters),
            pairs=len(circuit.whole),
            heads=heads,
        )

    @property
    def reached(self) -> dict[float, int | None]:
        """By level of faithfulness, the least number of strongest heads that reach it alone; None where none do."""
        return {level: measures.reached(self.faithfulness, level) for level in measures.LEVELS}

    @property
    def enough(self) -> int | None:
        """The least size from which on the strongest heads alone keep nine tenths of the logit difference, or more."""
        low = [size for size, interval in self.alone.items() if interval.value < KEPT * self.whole.value]
        sizes = [size for size in self.alone if size > max(low, default=0)]
        return min(sizes, default=None)

    def sentences(self) -> list[str]:
        """Returns what the curve says, in words."""
        said = [f"all heads: logit difference {self.whole}"]
        alone = ", ".join(f"{size}: {round(share.value, 2) + 0.0:.2f}" for size, share in self.faithfulness.items())
        said.append(f"faithfulness, the share of this that the strongest keep alone, by their number: {alone}")
        for level, size in self.reached.items():
            if size is None:
                said.append(f"faithfulness of {level} is reached by no set of the strongest heads")
            else:
                after = [n for n, share in self.faithfulness.items() if n > size and share.value < level]
                lost = f", and lost again with {min(after)}" if after else ""
                heads = f"{size} head" + "s" * (size > 1)
                said.append(f"faithfulness of {level} is first reached by {heads}, {self.faithfulness[size]}{lost}")
        if self.enough is None:
            largest = max(self.alone)
            said.append(f"even the {largest} strongest heads alone keep less than nine tenths: {self.alone[largest]}")
        else:
            heads = _count_of_heads(self.enough)
            said.append(f"from the strongest {heads} on nine tenths are kept by these alone: {self.alone[self.enough]}")
            if self.enough in self.random:
                rest = ", ".join(f"{value:.2f}" for value in sorted(self.random[self.enough]))
                said.append(f"random sets of {heads} from the same layers keep {rest}")
            said.append(f"all heads but these keep {self.without[self.enough]}")
        above = {size: interval for size, interval in self.surplus.items() if interval.low > 0}
        if above:
            size = max(above, key=lambda s: above[s].value)
            more = f"{_count_of_heads(size)} alone give {self.alone[size]}, more than all heads, by {above[size]}"
            said.append(f"{more}: other heads work against the answer")
        return said

    def table(self) -> pd.DataFrame:
        """Returns the mean logit differences, a row for each size."""
        random = {size: ", ".join(f"{value:.2f}" for value in sorted(values)) for size, values in self.random.items()}
        table = pd.DataFrame(
            {
                "strongest alone": {size: str(interval) for size, interval in self.alone.items()},
                "faithfulness": {size: str(share) for size, share in self.faithfulness.items()},
                "all but these": {size: str(interval) for size, interval in self.without.items()},
                "random, same layers": {size: random.get(size, "") for size in self.alone},
            }
        )
        return table.rename_axis("heads in the set")

    @property
    def setting(self) -> str:
        """The model and the number of prompts, for titles."""
        return f"{self.subject.model_title}, {self.pairs} fresh pairs; all other heads ablated"

    @property
    def finding(self) -> str | None:
        """Whether a small part of the heads is enough, or a larger set keeps less than a smaller one.

        None where the model does not do the task for certain.
        """
        if not self.whole.low > 0:
            return None
        dip = measures.dip(self.faithfulness)
        if dip:
            few, more = (self.faithfulness[size] for size in dip)
            kept = f"{dip[0]} of {self.heads} keep {few}, {dip[1]} keep {more.value:.2f}"
            return f"Mean ablation of most heads breaks the model: {kept}"
        small = {size: share for size, share in self.faithfulness.items() if size <= self.heads / 2}
        if not small:
            return None
        enough = measures.reached(small, KEPT)
        if enough is None:
            best = max(small, key=lambda size: small[size].value)
            return (
                f"No set of up to half of the heads keeps nine tenths of the logit difference: "
                f"the best, {best} of {self.heads}, keeps {small[best]}"
            )
        return f"{enough} of {self.heads} heads alone keep {self.faithfulness[enough]} of the logit difference"

    def figure(self, width: float = WIDTH) -> Figure:
        """Returns the figure of faithfulness by the number of heads."""
        levels, said = measures.LEVELS, (self.finding, self.setting)
        return plots.circuit(self.whole, self.faithfulness, self.without, self.random, levels, *said, width)


def _count_of_heads(count: int) -> str:
    return "head" if count == 1 else f"{count} heads"


# ------------------------------------------------------------------------------------------------ paths


@dataclass(frozen=True)
class Paths(Result):
    """What heads tell each other and the output, in shares of the whole effect.

    heads: K of them. edges [K, K]: of sender to receiver, through the receiver's query, key and value together; query,
    key, value [K, K]: through one of them alone; NaN where the receiver is in no later layer. direct [K]: to the
    output, by itself and through MLPs. Intervals hold for all of these together. pairs: how many prompts. refused: why
    a class has no paths, or empty.
    """

    heads: list[Head]
    edges: Intervals
    query: Intervals
    key: Intervals
    value: Intervals
    direct: Intervals
    pairs: int
    refused: str = ""

    unstored = ("subject", "pairs", "refused")

    @classmethod
    def of(cls, data: Mapping[str, Any], heads: Sequence[Head], setting: Setting) -> Paths:
        """Returns the result of a record's data for these heads, see `Pairs.paths`."""
        shares = measures.split_paths(data)
        return cls(setting, list(heads), **shares, pairs=len(data["base"]), refused=data["refused"])

    @property
    def channels(self) -> dict[str, Intervals]:
        """The paths [K, K] through query, key and value alone."""
        return {name: getattr(self, name) for name in measures.CHANNELS}

    def channel(self, edge: tuple[int, int]) -> str | None:
        """The one of query, key and value that carries most of an edge, None if that is no hundredth for certain."""
        name = max(measures.CHANNELS, key=lambda channel: abs(self.channels[channel].value[edge]))
        return name if carriers(self.channels[name])[edge] else None

    def strongest(self, count: int = STRONGEST_PATHS) -> list[tuple[int, int]]:
        """Returns the places (sender, receiver) of the largest edges, by size, largest first."""
        there = [(int(row), int(column)) for row, column in np.argwhere(np.isfinite(self.edges.value))]
        return sorted(there, key=lambda edge: -abs(self.edges.value[edge]))[:count]

    def certain(self, count: int = STRONGEST_PATHS) -> list[tuple[int, int]]:
        """Returns the strongest of the edges that carry more than a hundredth for certain, largest first."""
        sure = carriers(self.edges)
        return [edge for edge in self.strongest(self.edges.value.size) if sure[edge]][:count]

    def edge_name(self, edge: tuple[int, int]) -> str:
        """An edge as text, such as L0H1 to L2H2."""
        return " to ".join(head_name(self.heads[place]) for place in edge)

    def sentences(self) -> list[str]:
        """Returns by sender, in words, the paths that carry more than a hundredth for certain, those to the output too.

        Each edge is told with the channel that carries most of it. Edges whose channels cancel each other are told too.
        """
        if self.refused:
            return [f"paths: not measured, {self.refused}"]
        sure = np.any([carriers(part) for part in (self.edges, *self.channels.values())], axis=0)
        told, silent, said = carriers(self.direct), list[str](), list[str]()
        for row, sender in enumerate(self.heads):
            listeners = [self._told((row, int(column))) for column in np.flatnonzero(sure[row])]
            if told[row]:
                listeners.append(f"the output {signed(self.direct.value[row])} ({measures.THROUGH_MLPS})")
            if listeners:
                said.append(f"{head_name(sender)} tells " + ", ".join(listeners))
            else:
                silent.append(head_name(sender))
        return said + ([f"nothing for certain is told by {', '.join(silent)}"] if silent else [])

    def _told(self, edge: tuple[int, int]) -> str:
        name, channel = head_name(self.heads[edge[1]]), self.channel(edge)
        through = "no channel alone" if channel is None else f"{channel} {signed(self.channels[channel].value[edge])}"
        return f"{name} {signed(self.edges.value[edge])} ({through})"

    def table(self, count: int = STRONGEST_PATHS) -> pd.DataFrame:
        """Returns the strongest paths between heads, a row each: in all, and through each channel alone."""
        edges = self.strongest(count)
        columns = {"share": self.edges, **self.channels}
        shown = {name: [str(part[edge]) for edge in edges] for name, part in columns.items()}
        return pd.DataFrame(shown, index=[self.edge_name(edge) for edge in edges]).rename_axis("path")

    @property
    def setting(self) -> str:
        """The model and the number of prompts, for titles."""
        return f"{self.subject.model_title}, {self.subject.corruption}, {self.pairs} fresh pairs"

    @property
    def finding(self) -> str | None:
        """How many paths between heads carry anything, and the strongest of them; None without paths."""
        there = int(np.isfinite(self.edges.value).sum())
        if not there:
            return None
        sure = self.certain(there)
        if not sure:
            return f"None of {there} paths between heads carries more than a hundredth of the effect for certain"
        channel = self.channel(sure[0])
        by = f" (mostly by {channel})" if channel else ""
        said = f"{len(sure)} of {there} paths between heads count for certain (beyond a hundredth of the effect)"
        return f"{said}; the strongest, {self.edge_name(sure[0])}{by}: {self.edges[sure[0]]}"

    def figure(self, population: Population, width: float = WIDTH) -> Figure | None:
        """Returns the figure of paths, beside the heads' whole effects, which `population` has; None without paths."""
        if self.refused:
            return None
        shares = [population.share(head) for head in self.heads]
        whole = Intervals(*np.array(shares).T)
        count = len(self.heads)
        channels = {
            (row, column): self.channel((row, column))
            for row in range(count)
            for column in range(count)
            if np.isfinite(self.edges.value[row, column])
        }
        said = (self.finding, self.setting)
        shown = self.certain() or self.strongest()
        return plots.paths(self.heads, self.edges, self.channels, channels, self.direct, whole, shown, *said, width)

    def graph(self, roles: Mapping[Head, Sequence[Role]] | None = None, *, by_channel: bool = True) -> nx.MultiDiGraph:
        """Returns the circuit: heads, the logits, and the paths that carry more than a hundredth for certain.

        A path between heads is an edge for each channel that does so alone; where only all three together do, it is one
        edge without a channel. Heads that have no edge are left out. roles: by head, see `stored_roles`. by_channel:
        False for one edge without a channel for each path that all three together carry.
        """
        edges = list[Edge]()
        for row, column in np.argwhere(np.isfinite(self.edges.value)):
            ends = (head_name(self.heads[row]), head_name(self.heads[column]))
            sure = {name: part[row, column] for name, part in self.channels.items() if carriers(part)[row, column]}
            sure = sure if by_channel else {}
            if not sure and carriers(self.edges)[row, column]:
                sure = {"": self.edges[row, column]}
            edges += [Edge(*ends, share.value, channel, share) for channel, share in sure.items()]
        for row in np.flatnonzero(carriers(self.direct)):
            share = self.direct[row]
            edges.append(Edge(head_name(self.heads[row]), LOGITS, share.value, "", share))
        there = {name for edge in edges for name in (edge.sender, edge.reader)}
        known = roles or {}
        nodes = [Node(head_name(head), head[0], known.get(head, ())) for head in self.heads if head_name(head) in there]
        if LOGITS in there:
            nodes.append(Node(LOGITS, 1 + max(layer for layer, _ in self.heads)))
        return circuit_graph(nodes, edges)

    @property
    def diagram_finding(self) -> str | None:
        """How many paths the diagram has, and the strongest of them; None where paths are not measured."""
        graph = self.graph()
        if self.refused:
            return None
        if not graph.size():
            return "No path carries more than a hundredth of the effect for certain"
        sender, reader, shares = max(graph.edges(data=True), key=lambda edge: abs(edge[2]["weight"]))
        heads = sum(name != LOGITS for name in graph)
        share = Interval(shares["weight"], shares["low"], shares["high"])
        paths = f"{graph.size()} path{'s' * (graph.size() > 1)} of {heads} head{'s' * (heads > 1)}"
        return f"{paths} count for certain, most of all {sender} to {'the ' * (reader == LOGITS)}{reader}: {share}"

    def diagram(
        self,
        roles: Mapping[Head, Sequence[Role]] | None = None,
        width: float = WIDTH,
        *,
        by_channel: bool = True,
    ) -> Figure | None:
        """Returns the circuit as a diagram in the manner of Wang et al. 2022, Fig. 2; None without paths.

        roles: by head, see `stored_roles`; None where they are not known. by_channel: see `graph`; without channels the
        title counts paths as `finding` does, each of which is one line then.
        """
        if self.refused:
            return None
        finding = self.diagram_finding if by_channel else self.finding
        said = f"{self.setting}; numbers: on cards to the {LOGITS}, on lines the {LABELLED} strongest"
        no_role = "roles not measured" if roles is None else "no role"
        circuit = {"": self.graph(roles, by_channel=by_channel)}
        return circuit_figure(circuit, finding, said, no_role=no_role, width=width)


# ------------------------------------------------------------------------------------------------ all together


@dataclass(frozen=True)
class Planted:
    """A model whose circuit is known: its heads' effects [L, H], and the role of every head of the circuit."""

    effect: Intervals
    names: Mapping[Head, str]

    @cached_property
    def carried(self) -> list[Head]:
        """The heads that carry more than a hundredth of the whole effect for certain."""
        return heads_where(carriers(self.effect))

    @property
    def sentence(self) -> str:
        """Which heads carry anything, in words."""
        names = [self.names.get(head, "a decoy") for head in self.carried]
        return f"planted heads that carry anything: {', '.join(names)}"


@dataclass(frozen=True)
class Findings:
    """All results of the figure; untrained is None where the control was not asked for."""

    example: Example
    population: Population
    untrained: Untrained | None
    curve: Curve
    paths: Paths
    edges: Result
    planted: Planted

    def values(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the values file has, by name."""
        return {
            "request": request,
            "model": self.example.described,
            **self.example.values(),
            "population": self.population.values(),
            "untrained": None if self.untrained is None else self.untrained.values(),
            "circuit": self.curve.values(),
            "paths": self.paths.values(),
            "component graph": self.edges.values(),
            "planted": self.planted.effect,
        }

    def check_lines(self) -> list[str]:
        """Returns the lines that a fresh run must reproduce."""
        example, population = self.example, self.population
        layers, heads = example.patched.shape
        base, source = example.scores
        return [
            f"heads {layers} x {heads}; tokens {len(example.tokens)}, prompts differ from token {example.first} on",
            f"logit difference: base {base:+.1f}, source {source:+.1f}",
            f"{population.pairs} pairs: the answer above the other name {population.accuracy}",
            f"logit difference, mean: intact {population.intact}, corrupted {population.corrupted}",
            "share of the whole effect, chosen on one half, measured on the other, intervals for all heads together:",
            *(f"  {head_name(head)} {population.share(head)}" for head in population.strongest(LISTED)),
            f"heads that carry more than a hundredth for certain: {population.carriers}",
            *population.remarks(self.untrained),
            *self.curve.sentences(),
            *self.paths.sentences(),
            *self.edges.lines(),
            self.planted.sentence,
        ]
