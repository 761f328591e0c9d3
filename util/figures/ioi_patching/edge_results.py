"""What edges of the component graph say about indirect object identification: exact effects, estimates, circuits.

E is the number of edges whose exact effects were measured, N the number of fresh pairs of prompts. No model is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.circuit_curve import circuit_curves
from util.figures.ioi_patching import edge_plots
from util.figures.ioi_patching.results import Result
from util.scores.evaluation import Curve, spearman
from util.scores.graph import LETTERS, ComponentGraph
from util.stats.intervals import Intervals, mean_intervals, ratio_of_means

EAP: Final = "EAP"
EAP_IG: Final = "EAP-IG inputs"
METHODS: Final = (EAP, EAP_IG)
EXACT = "exact"
BANDS = 5  # of edges by the size of their scores, from each of which equally many are drawn
KINDS = (*LETTERS, "MLP", "logits")  # what reads
LISTED = 10
SMALLEST = 0.01  # share of the whole effect

Floats = NDArray[np.floating]


def drawn_edges(graph: ComponentGraph, means: Mapping[str, Floats], count: int, seed: int) -> NDArray[np.int64]:
    """The edges [E, 2] whose exact effects are measured: all, where there are no more than `count`.

    Otherwise equally many of each band: the highest by absolute scores of EAP-IG; those of EAP that are not among
    them; and the rest, by rank, in bands that grow by a constant factor, drawn without repetition.
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
    return places[np.sort(chosen)]


def rankings(
    graph: ComponentGraph,
    means: Mapping[str, Floats],
    drawn: NDArray[np.integer],
    effects: Floats,
    random: int,
    seed: int,
) -> dict[str, Floats]:
    """The scores of all edges [U, V] that rank them, by name: of the methods, the exact ones if all were measured,
    and random ones."""
    ranked = dict(means)
    if len(drawn) == graph.size:
        exact = np.zeros(graph.shape)
        exact[drawn[:, 0], drawn[:, 1]] = effects.mean(0)
        ranked = {EXACT: exact, **ranked}
    for number in range(1, random + 1):
        ranked[random_name(number)] = np.random.default_rng((seed, number)).standard_normal(graph.shape)
    return ranked


def random_name(number: int) -> str:
    """The name of a random ranking, counted from 1."""
    return f"random {number}"


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

    def figure(self) -> None:
        """There is none."""

    curve_figure = figure


@dataclass(frozen=True)
class EdgeScores(Result):
    """Scores of edges, exact effects of some of them on fresh pairs, and the circuits that scores choose.

    means: by method, the mean score of every edge [U, V] over the pairs that were scored. drawn [E, 2]: sender and
    reader of the edges whose exact effects were measured; effects [N, E]: how far the logit difference falls. full,
    empty [N]: the logit differences of the base run, and of the corrupted one. clusters [N]. curves: by ranking, and
    whether it is by absolute scores.
    """

    graph: ComponentGraph
    means: Mapping[str, Floats]
    drawn: NDArray[np.integer]
    effects: Floats
    full: Floats
    empty: Floats
    clusters: NDArray[np.integer]
    curves: Mapping[tuple[str, bool], Curve]

    unstored: ClassVar[tuple[str, ...]] = ("setting",)

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
        whole = self.full.astype(np.float64) - self.empty
        if not whole.mean() > 0:
            return Intervals(*np.full((3, len(self.drawn)), np.nan))
        value, linearised = ratio_of_means(self.effects, whole, self.clusters)
        around = mean_intervals(linearised, comparisons=len(value))
        return Intervals(value, around.low, around.high)

    def estimate(self, method: str) -> NDArray[np.float64]:
        """The scores of the drawn edges [E] as shares of the whole effect."""
        scores = self.means[method][self.drawn[:, 0], self.drawn[:, 1]].astype(np.float64)
        whole = float(np.mean(self.full, dtype=np.float64) - np.mean(self.empty, dtype=np.float64))
        return scores / whole if whole > 0 else np.full(len(scores), np.nan)

    @property
    def matter(self) -> NDArray[np.bool_]:
        """Which drawn edges [E] matter: at least SMALLEST of the whole effect, by an interval that excludes 0."""
        exact = self.exact
        return ((exact.low > 0) | (exact.high < 0)) & (np.abs(exact.value) >= SMALLEST)

    def found(self, method: str) -> float:
        """Of the edges that matter, the share that is among equally many with the highest absolute scores.

        NaN where no edge does.
        """
        number = int(self.matter.sum())
        if not number:
            return float("nan")
        highest = np.argsort(-np.abs(self.estimate(method)), kind="stable")[:number]
        return float(self.matter[highest].mean())

    def agreement(self, method: str) -> dict[str, float]:
        """Spearman's correlation of scores with exact effects: of all drawn edges, and by what reads.

        NaN where fewer than two edges were drawn, or the whole effect is not above 0.
        """
        scores, exact = self.estimate(method), self.exact.value
        chosen = {"all": np.ones(len(exact), bool), **{kind: self.kinds == kind for kind in KINDS}}
        return {
            kind: spearman(scores[own], exact[own]) if own.sum() > 1 and np.isfinite(exact).all() else float("nan")
            for kind, own in chosen.items()
        }

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
                "rank correlation": f"{self.agreement(name)['all']:.2f}" if method else "",
                "edges found": f"{self.found(name):.0%}" if method else "",
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
        number, matter = len(self.drawn), int(self.matter.sum())
        lines = [f"{matter} of {number} edges carry a hundredth of the whole effect or more"]
        for method in METHODS:
            kinds = ", ".join(
                f"{kind} {value:.2f}" for kind, value in self.agreement(method).items() if np.isfinite(value)
            )
            lines.append(f"{method}: finds {self.found(method):.0%} of them; rank correlation {kinds}")
        return lines

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
            "found": {method: self.found(method) for method in METHODS},
            "agreement": {method: self.agreement(method) for method in METHODS},
            "curves": curves,
        }

    @property
    def title(self) -> str:
        """What was measured, in words."""
        return f"{self.setting.model_title}, {self.setting.corruption}, {len(self.full)} pairs"

    def figure(self) -> Figure:
        """Exact effects against both estimates, by what reads."""
        estimates = {method: self.estimate(method) for method in METHODS}
        return edge_plots.estimates(self.exact, estimates, self.kinds, KINDS, self.title)

    def curve_figure(self) -> Figure:
        """The faithfulness of circuits against their size."""
        signed = {name: curve for (name, absolute), curve in self.curves.items() if not absolute}
        absolute = {name: curve for (name, absolute), curve in self.curves.items() if absolute}
        controls = [name for name in signed if name.startswith("random")]
        return circuit_curves(signed, absolute, self.title, controls)
