"""What edges of the component graph say about indirect object identification: exact effects, estimates, circuits.

E is the number of edges whose exact effects were measured, N the number of fresh pairs of prompts. No model is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import rankdata

from util.figures.circuit_curve import circuit_curves
from util.figures.ioi_patching import edge_plots
from util.figures.ioi_patching.measures import carriers
from util.figures.ioi_patching.results import KEPT, Result
from util.scores.evaluation import Curve, spearman
from util.scores.graph import LETTERS, ComponentGraph
from util.show.style import WIDTH
from util.stats.heads import head_name
from util.stats.intervals import (
    Interval,
    Intervals,
    bootstrap_interval,
    mean_intervals,
    ratio_of_means,
    resampled,
)

EAP: Final = "EAP"
EAP_IG: Final = "EAP-IG inputs"
METHODS: Final = (EAP, EAP_IG)
EXACT: Final = "exact"
BANDS = 5  # of edges by the size of their scores, from each of which equally many are drawn
KINDS = (*LETTERS, "MLP", "logits")  # what reads
CALLED = {"q": "query", "k": "key", "v": "value", "MLP": "MLP", "logits": "logits"}  # KINDS in legends
LISTED = 10
DRAWS = 1000  # bootstrap samples of clusters

Floats = NDArray[np.floating]


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
    each = count // BANDS
    chosen = [*ranked[EAP_IG][:each]]
    chosen += [*ranked[EAP][~np.isin(ranked[EAP], chosen)][:each]]
    rest = ranked[EAP_IG][~np.isin(ranked[EAP_IG], chosen)]
    bounds = np.geomspace(each, len(rest), BANDS - 1).round().astype(int)
    draw = np.random.default_rng(seed)
    for start, stop in zip((0, *bounds[1:-1]), bounds[1:], strict=True):
        chosen += [*draw.choice(rest[start:stop], min(each, stop - start), replace=False)]
    left = rest[~np.isin(rest, chosen)]
    chosen += [*draw.choice(left, count - len(chosen), replace=False)]
    return places[np.sort(chosen)]


def random_rankings(graph: ComponentGraph, number: int, seed: int) -> dict[str, Floats]:
    """Random scores of all edges [U, V], by name."""
    return {
        f"random {place}": np.random.default_rng((seed, place)).standard_normal(graph.shape)
        for place in range(1, number + 1)
    }


def _shares(effects: Floats, whole: Floats, clusters: NDArray[np.integer] | None = None) -> Intervals:
    """Effects [N, E] as shares of the whole effect [N]: [E], with intervals that hold together (Bonferroni).

    NaN where the whole effect is not above 0.
    """
    if not whole.mean() > 0:
        return Intervals(*np.full((3, effects.shape[1]), np.nan))
    value, linearised = ratio_of_means(effects, whole, clusters)
    around = mean_intervals(linearised, comparisons=len(value))
    return Intervals(value, around.low, around.high)


def _share_found(order: NDArray[np.integer], matter: NDArray[np.bool_]) -> float:
    """Of the edges that matter [E], the share among equally many of those that come first in an order [E]."""
    number = int(matter.sum())
    return float(matter[order[:number]].mean()) if number else np.nan


def _correlations(scores: Floats, redrawn: Floats) -> NDArray[np.float64]:
    """Spearman's correlation of scores [E] with each of several effects [D, E]: [D], NaN where one is constant."""
    first, second = (ranks - ranks.mean(-1, keepdims=True) for ranks in (rankdata(scores), rankdata(redrawn, axis=1)))
    with np.errstate(invalid="ignore"):
        return (second @ first) / np.sqrt((second**2).sum(1) * (first @ first))


@dataclass(frozen=True)
class NoEdges(Result):
    """There are no edges: the layers of the model's class cannot be taken apart. refused: why."""

    refused: str

    def table(self) -> pd.DataFrame:
        """An empty table."""
        return pd.DataFrame()

    edge_table = table

    def lines(self) -> list[str]:
        """What stands in the notebook's check."""
        return [f"edges: {self.refused}"]

    def agreement_lines(self) -> list[str]:
        """There are none."""
        return []

    def figure(self, width: float = WIDTH) -> None:
        """There is none."""

    curve_figure = figure


@dataclass(frozen=True)
class EdgeScores(Result):
    """Scores of edges, exact effects of some of them on fresh pairs, and the circuits that scores choose.

    means: by method, the mean score of every edge [U, V] over the pairs that were scored; "exact" is among them where
    the exact effects of all edges were measured on these, too. drawn [E, 2]: sender and reader of the edges whose exact
    effects were measured on the fresh pairs; effects [N, E]: how far the logit difference falls. full, empty [N]: the
    logit differences of the base run, and of the corrupted one. clusters [N]. curves: by ranking, and whether it is by
    absolute scores.

    Whether scores are right is judged by exact effects on the fresh pairs alone. The intervals of such judgements are
    over clusters of these pairs, with the scores as they are.
    """

    graph: ComponentGraph
    means: Mapping[str, Floats]
    drawn: NDArray[np.integer]
    effects: Floats
    full: Floats
    empty: Floats
    clusters: NDArray[np.integer]
    curves: Mapping[tuple[str, bool], Curve]

    unstored: ClassVar[tuple[str, ...]] = ("subject",)

    @property
    def names(self) -> list[str]:
        """The names of the drawn edges [E]."""
        return [self.graph.name((int(sender), int(reader))) for sender, reader in self.drawn]

    @property
    def kinds(self) -> NDArray[np.str_]:
        """What reads each of the drawn edges [E]: q, k, v of a head, an MLP or the logits."""
        readers = [self.graph.readers[reader] for reader in self.drawn[:, 1]]
        kinds = [name[-2] if name.endswith(">") else "logits" if name == "logits" else "MLP" for name in readers]
        return np.array(kinds)

    @cached_property
    def exact(self) -> Intervals:
        """The exact effects as shares of the whole effect [E]: of the base run's metric above the corrupted run's.

        The intervals hold together for all drawn edges (Bonferroni). NaN where the whole effect is not above 0.
        """
        return _shares(self.effects, self.full.astype(np.float64) - self.empty, self.clusters)

    @cached_property
    def _redrawn(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The exact effects of bootstrap samples of the clusters [D, E], and which of them matter there [D, E].

        NaN, and False, where the whole effect is not above 0.
        """
        places = [np.flatnonzero(self.clusters == cluster) for cluster in np.unique(self.clusters)]
        whole = np.array([(self.full[pairs].astype(np.float64) - self.empty[pairs]).sum() for pairs in places])
        effects = np.stack([self.effects[pairs].sum(0, dtype=np.float64) for pairs in places])
        samples = [np.repeat(np.arange(len(places)), times) for times in resampled(len(places), DRAWS)]
        redrawn = [_shares(effects[sample], whole[sample]) for sample in samples]
        return np.stack([exact.value for exact in redrawn]), np.stack([carriers(exact) for exact in redrawn])

    def estimate(self, method: str) -> NDArray[np.float64]:
        """The scores of the drawn edges [E] as shares of the whole effect."""
        scores = self.means[method][self.drawn[:, 0], self.drawn[:, 1]].astype(np.float64)
        whole = float(np.mean(self.full, dtype=np.float64) - np.mean(self.empty, dtype=np.float64))
        return scores / whole if whole > 0 else np.full(len(scores), np.nan)

    @property
    def matter(self) -> NDArray[np.bool_]:
        """Which drawn edges [E] carry more than a hundredth of the whole effect for certain, see `carriers`."""
        return carriers(self.exact)

    @cached_property
    def found(self) -> dict[str, Interval]:
        """By method: of the edges that matter, the share that is among equally many with the highest absolute scores.

        NaN where no edge does.
        """
        found = {}
        for method in self.means:
            order = np.argsort(-np.abs(self.estimate(method)), kind="stable")
            redrawn = np.array([_share_found(order, matter) for matter in self._redrawn[1]])
            found[method] = bootstrap_interval(_share_found(order, self.matter), redrawn, within=(0, 1))
        return found

    @cached_property
    def agreement(self) -> dict[str, dict[str, Interval]]:
        """By method: Spearman's correlation of scores with exact effects, of all drawn edges, and by what reads.

        NaN where fewer than two edges were drawn, or the whole effect is not above 0.
        """
        exact, redrawn = self.exact.value, self._redrawn[0]
        chosen = {"all": np.ones(len(exact), bool), **{kind: self.kinds == kind for kind in KINDS}}
        agreement: dict[str, dict[str, Interval]] = {method: {} for method in self.means}
        for kind, own in chosen.items():
            for method in self.means:
                if own.sum() < 2 or not np.isfinite(exact).all():
                    agreement[method][kind] = Interval(np.nan, np.nan, np.nan)
                    continue
                scores = self.estimate(method)[own]
                correlations = _correlations(scores, redrawn[:, own])
                agreement[method][kind] = bootstrap_interval(spearman(scores, exact[own]), correlations, within=(-1, 1))
        return agreement

    @property
    def strongest(self) -> NDArray[np.int64]:
        """The places of the LISTED drawn edges with the largest exact effects."""
        return np.argsort(-np.abs(self.exact.value), kind="stable")[:LISTED]

    @property
    def missed(self) -> NDArray[np.int64]:
        """The places of up to LISTED edges that matter and that EAP ranks below as many others, largest first."""
        ranks = np.argsort(np.argsort(-np.abs(self.estimate(EAP)), kind="stable"))
        missed = np.flatnonzero(self.matter & (ranks >= self.matter.sum()))
        return missed[np.argsort(-np.abs(self.exact.value[missed]), kind="stable")][:LISTED]

    def table(self) -> pd.DataFrame:
        """The methods: how they agree with exact effects, and how faithful the circuits are that they choose."""
        rows = {}
        for name in dict.fromkeys(name for name, _ in self.curves):
            method = name in self.means
            rows[name] = {
                "rank correlation": str(self.agreement[name]["all"]) if method else "",
                "edges found": str(self.found[name]) if method else "",
                "CPR": str(self.curves[name, False].area),
                "CMD": str(self.curves[name, True].area),
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def edge_table(self, places: NDArray[np.integer] | None = None) -> pd.DataFrame:
        """Drawn edges with exact effects and estimates, all as shares of the whole effect; default: the strongest."""
        chosen = self.strongest if places is None else places
        columns = {EXACT: [str(self.exact[place]) for place in chosen]}
        columns |= {method: [f"{self.estimate(method)[place]:.3f}" for place in chosen] for method in METHODS}
        return pd.DataFrame(columns, index=[self.names[place] for place in chosen])

    def lines(self) -> list[str]:
        """What stands in the notebook's check."""
        lines = [f"{self.counted} carry more than a hundredth of the whole effect for certain"]
        for method in self.means:
            name = "exact effects on the scored pairs" if method == EXACT else method
            if self.matter.any():
                lines.append(f"{name}: finds {self.found[method]} of them")
        return lines

    def agreement_lines(self) -> list[str]:
        """Rank correlations by what reads, with the effects as they were measured on these pairs, noise included.

        Most edges have next to no effect, so that rounding can move the last digit: they are in no notebook's check.
        """
        lines, pairs = [], f"effects as measured on {len(self.full)} pairs"
        for method, by_kind in self.agreement.items():
            kinds = [f"{kind} {value}" for kind, value in by_kind.items() if np.isfinite(value.value)]
            if kinds:
                lines.append(f"{method}: rank correlation with {pairs}, by what reads: {', '.join(kinds)}")
        return lines

    @property
    def counted(self) -> str:
        """How many edges matter, of which, in words."""
        matter, number = int(self.matter.sum()), len(self.drawn)
        if number == self.graph.size:
            return f"{matter} of all {number:,} edges"
        return f"{matter} of the {number:,} edges measured, which were drawn by rank from {self.graph.size:,},"

    def values(self) -> dict[str, Any]:
        """What the values file has of this result, by name."""
        listed = {
            self.names[place]: {
                EXACT: self.exact[place], **{method: float(self.estimate(method)[place]) for method in METHODS}
            }
            for place in sorted({*self.strongest, *self.missed})
        }  # fmt: skip
        curves: dict[str, Any] = {}
        for (name, _), curve in self.curves.items():
            curves.setdefault(name, {})[curve.measure] = curve.values()
        return {
            "strongest": listed,
            "drawn": len(self.drawn),
            "matter": int(self.matter.sum()),
            "found": self.found,
            "agreement": self.agreement,
            "curves": curves,
        }

    @property
    def setting(self) -> str:
        """The model, the data and the number of pairs, for titles."""
        return f"{self.subject.model_title}, {self.subject.corruption}, {len(self.full)} fresh pairs"

    @property
    def finding(self) -> str | None:
        """Which share of the edges that matter each method finds; None where the whole effect is not above 0."""
        if not np.isfinite(self.exact.value).all():
            return None
        matter = int(self.matter.sum())
        if not matter:
            return "No edge carries more than a hundredth of the effect for certain"
        shares = ", ".join(f"{method} {self.found[method]}" for method in METHODS)
        edges = f"{matter} edges that carry" if matter > 1 else "one edge that carries"
        return f"Share found of the {edges} more than a hundredth: {shares}"

    @property
    def curve_finding(self) -> str | None:
        """How many edges keep nine tenths of the effect, the fewest of the sizes that were run, by absolute scores.

        None where there is no effect to keep.
        """
        curves = {method: self.curves[method, True] for method in self.means}
        if not all(curve.defined for curve in curves.values()):
            return None
        fewest = {}
        for method, curve in curves.items():
            enough = np.flatnonzero(curve.faithfulness.value >= KEPT)
            fewest[method] = f"{100 * curve.shares[enough[0]]:g} %" if len(enough) else "none of the sizes"
        if len({*fewest.values()}) == 1:
            return f"Nine tenths of the effect pass through {fewest[EAP]} of the edges, by any absolute score"
        shares = ", ".join(f"{share} ({method})" for method, share in fewest.items())
        return f"Nine tenths of the effect pass through {shares} of the edges, by absolute scores"

    def figure(self, width: float = WIDTH) -> Figure:
        """Exact effects against both estimates, by what reads."""
        estimates = {method: self.estimate(method) for method in METHODS}
        said = (self.finding, self.setting)
        names = [
            re.sub(r"a(\d+)\.h(\d+)", lambda head: head_name((int(head[1]), int(head[2]))), name) for name in self.names
        ]
        return edge_plots.estimates(self.exact, estimates, self.kinds, CALLED, names, *said, width)

    def curve_figure(self, width: float = WIDTH) -> Figure:
        """The faithfulness of circuits against their size."""
        signed = {name: curve for (name, absolute), curve in self.curves.items() if not absolute}
        absolute = {name: curve for (name, absolute), curve in self.curves.items() if absolute}
        controls = [name for name in signed if name.startswith("random")]
        return circuit_curves(signed, absolute, self.curve_finding, self.setting, controls, width)
