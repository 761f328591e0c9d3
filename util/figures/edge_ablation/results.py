"""What the parts of edge ablation give: numbers, tables, figures and sentences, without a model.

Rows are what `measures.aligned` gives: by the name of an ablation (see `edges.names`), query [N] and measures [D, N] of
N prompts under D draws of donors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.edges import names
from util.edges.edge import ALWAYS, TYPE_PAIRS, Edge
from util.figures.edge_ablation import measures, plots
from util.figures.edge_ablation.measures import Cost, Row, Rows, queries_of
from util.prompts import word_pairs
from util.stats.intervals import Interval, accuracy
from util.stats.tests import rank_p

COMPLETENESS = ("WITHIN", "CONTEXT", "AGG", "QUERY")  # families whose loss a complete circuit feels as the model does


@dataclass(frozen=True)
class Setting:
    """What was measured, for titles. model: as it is shown; prompts: as many as were asked for."""

    model: str
    task: str
    k: int
    prompts: int
    donor_seeds: tuple[int, ...]

    @property
    def extent(self) -> str:
        """Prompts and draws of donors, in words."""
        return f"{self.prompts} prompts, donors {', '.join(map(str, self.donor_seeds))}"


def right_of(row: Row) -> Interval:
    """Accuracy of the first token, with an interval by Wilson over distinct queries."""
    return accuracy(row["right"], queries_of(row))


def _triple(edge: Edge) -> plots.Pair:
    """An edge as figures take it."""
    return edge.source, edge.target, edge.relation


# ------------------------------------------------------------------------------------------------ circuits compared


@dataclass(frozen=True)
class Circuits:
    """What the circuits of `edges.CIRCUITS` answer in one task.

    rows: by circuit; alone: the row of the whole model after queries without demonstrations, None where that was not
    measured; written: by circuit the shares of prompts whose first line is the answer, and that begin with it (first
    draw of donors); chance: of the task; about: the model in words; layers: those that have attention; askable: how
    many queries the list has for the tokenizer, None in records from before they were counted.
    """

    setting: Setting
    rows: Rows
    alone: Row | None
    written: Mapping[str, tuple[float, float]]
    chance: float
    about: str
    layers: int
    askable: int | None

    @property
    def queries(self) -> int:
        """Distinct queries that were asked."""
        return queries_of(self.rows[names.FULL])

    def accuracy(self, *, alone: bool = True) -> dict[str, Interval]:
        """Accuracy by circuit, see `right_of`; without demonstrations the last, unless that is left out."""
        rows = {**self.rows, **({} if self.alone is None or not alone else {names.ALONE: self.alone})}
        return {name: right_of(row) for name, row in rows.items()}

    def kl(self) -> dict[str, Interval]:
        """Divergence from the whole model's next token, nats, with intervals by bootstrap over distinct queries."""
        return {name: measures.mean(row["kl"], row["query"], within=(0, np.inf)) for name, row in self.rows.items()}

    def draws(self) -> dict[str, list[float]]:
        """Accuracy by draw of donors, [D] by circuit."""
        return {name: row["right"].mean(1).tolist() for name, row in self.rows.items()}

    def scores(self) -> dict[str, Interval]:
        """(acc(C) - acc(NONE)) / (acc(FULL) - acc(NONE)) by circuit, see `measures.score`."""
        ends = self.rows[names.FULL]["right"], self.rows[names.NONE]["right"]
        return {name: measures.score(row["right"], *ends, row["query"]) for name, row in self.rows.items()}

    def loss(self, name: str) -> Interval:
        """acc(FULL) - acc(C) of a circuit, see `measures.deficit`."""
        full = self.rows[names.FULL]
        return measures.deficit(self.rows[name]["right"], full["right"], full["query"])

    def table(self) -> pd.DataFrame:
        """One line for each circuit: accuracies, divergence, agreement and score."""
        kl, scores, lines = self.kl(), self.scores(), []
        for name, right in self.accuracy().items():
            line, begins = self.written.get(name, (np.nan, np.nan))
            there = name in self.rows
            lines.append(
                {
                    "task": self.setting.task,
                    "circuit": name,
                    "first token": str(right),
                    "line": f"{line:.2f}",
                    "begins": f"{begins:.2f}",
                    "KL": str(kl[name]) if there else "",
                    "same": f"{self.rows[name]['agrees'].mean():.2f}" if there else "",
                    "score": str(scores[name]) if there else "",
                }
            )
        return pd.DataFrame(lines).set_index(["task", "circuit"])

    def line(self, label: str, *, alone: bool = True) -> str:
        """The accuracies in a line."""
        return f"{label}: " + ", ".join(
            f"{name} {right.value:.2f}" for name, right in self.accuracy(alone=alone).items()
        )


@dataclass(frozen=True)
class CircuitsByTask:
    """`Circuits` of several tasks with one model. margin: the loss of accuracy that counts as one."""

    by_task: Mapping[str, Circuits]
    margin: float

    @property
    def first(self) -> Circuits:
        """Those of the first task."""
        return next(iter(self.by_task.values()))

    def accuracy(self) -> dict[str, dict[str, Interval]]:
        """Accuracies by task and circuit."""
        return {task: circuits.accuracy() for task, circuits in self.by_task.items()}

    def scores(self) -> dict[str, dict[str, Interval]]:
        """Scores by task and circuit."""
        return {task: circuits.scores() for task, circuits in self.by_task.items()}

    def lines(self) -> list[str]:
        """The model, what can be tested on it, how much the query alone tells, and how many queries were asked."""
        model = self.first.setting.model
        losses = {task: circuits.loss(names.AGG_ONLY) for task, circuits in self.by_task.items()}
        queries = {task: circuits.queries for task, circuits in self.by_task.items()}
        return [
            self.first.about,
            measures.without_context(losses, self.margin, model),
            measures.query_alone(self.accuracy(), model),
            f"distinct queries: {queries}",
        ]

    def table(self) -> pd.DataFrame:
        """`Circuits.table` of all tasks."""
        return pd.concat(circuits.table() for circuits in self.by_task.values())

    def figure(self) -> Figure:
        """Accuracy and divergence by task and circuit."""
        setting = self.first.setting
        return plots.circuits(
            self.accuracy(),
            {task: circuits.draws() for task, circuits in self.by_task.items()},
            {task: circuits.chance for task, circuits in self.by_task.items()},
            f"{setting.model}: {setting.k} shots, {setting.extent} (dotted: chance)",
            {task: circuits.kl() for task, circuits in self.by_task.items()},
        )


@dataclass(frozen=True)
class CircuitsByModel:
    """`Circuits` of one task with several models, by their names; the study's own model is the first."""

    by_model: Mapping[str, Circuits]

    @property
    def several(self) -> bool:
        """Whether there is another model to compare with."""
        return len(self.by_model) > 1

    def accuracy(self) -> dict[str, dict[str, Interval]]:
        """Accuracies by model and circuit."""
        return {model: circuits.accuracy(alone=False) for model, circuits in self.by_model.items()}

    def figure(self) -> Figure:
        """Accuracy by model and circuit."""
        setting = next(iter(self.by_model.values())).setting
        return plots.circuits(
            self.accuracy(),
            {model: circuits.draws() for model, circuits in self.by_model.items()},
            {model: circuits.chance for model, circuits in self.by_model.items()},
            f"{setting.task}, {setting.k} shots, {setting.prompts} prompts (dotted: chance)",
        )


# ------------------------------------------------------------------------------------------------ single edges


@dataclass(frozen=True)
class SingleEdges:
    """What each type pair costs when it alone is ablated, on the search split. rows: FULL, and each pair by name."""

    setting: Setting
    rows: Rows

    def costs(self) -> dict[str, Cost]:
        """By edge, corrected for the map, see `measures.costs`."""
        whole = self.rows[names.FULL]
        singles = {name: row for name, row in self.rows.items() if name != names.FULL}
        return measures.costs(whole, singles, whole["query"])

    @property
    def whole_first(self) -> float:
        """The whole model's accuracy with the first draw of donors, which a search uses."""
        return float(self.rows[names.FULL]["right"][0].mean())

    def nats(self) -> dict[plots.Pair, float]:
        """The log-probability of the answer that is lost, by (source, target, relation)."""
        return {_triple(Edge.of(name)): cost.log_prob for name, cost in self.costs().items()}

    def figure(self) -> Figure:
        """The map of type pairs."""
        costs, setting = self.costs(), self.setting
        return plots.edge_map(
            self.nats(),
            {_triple(Edge.of(name)): cost.accuracy for name, cost in costs.items()},
            {_triple(Edge.of(name)) for name, cost in costs.items() if cost.p < 0.05},
            f"{setting.model}, {setting.task}: lost without one edge. Colour: nats; number: accuracy\n"
            f"(search split, {setting.extent}; framed: beyond chance)",
        )


# ------------------------------------------------------------------------------------------------ circuits searched


@dataclass(frozen=True)
class Search:
    """A circuit that was searched.

    kept: `ALWAYS` and the type pairs that stay; alone: the accuracy that each pair costs when it alone is removed;
    trace: step by step the pair that was tried, whether it stays out, and the accuracy without it; share: of the whole
    model's accuracy, what had to be kept.
    """

    kept: tuple[Edge, ...]
    alone: Mapping[Edge, float]
    trace: tuple[tuple[Edge, bool, float], ...]
    share: float = 0.9

    def steps(self) -> list[tuple[int, float, bool]]:
        """Pairs left, accuracy on the search split, and whether the pair stays out, step by step."""
        left, steps = len(self.trace), []
        for _, gone, right in self.trace:
            steps.append((left - 1, right, gone))
            left -= gone
        return steps

    @property
    def pairs(self) -> tuple[Edge, ...]:
        """The type pairs that are kept."""
        return self.kept[len(ALWAYS) :]


@dataclass(frozen=True)
class PlantedSearch:
    """A search on a model whose circuit is known: truth has its type pairs."""

    search: Search
    truth: frozenset[Edge]

    @property
    def exact(self) -> bool:
        """Whether the search kept the true pairs, and no others."""
        return set(self.search.pairs) == self.truth


@dataclass(frozen=True)
class VerifiedCircuit:
    """A circuit on prompts that it was not searched on.

    rows: of FULL, NONE, the circuit, the model without it, random circuits, and both the model and the circuit without
    each family of COMPLETENESS; scores: of those but the random ones; random: scores of random circuits with as many
    pairs; by_draw: its score with each draw of donors; explained: acc(circuit) / acc(FULL).
    """

    setting: Setting
    search: Search
    rows: Rows
    scores: Mapping[str, Interval]
    random: tuple[float, ...]
    by_draw: tuple[float, ...]
    explained: Interval

    @property
    def names(self) -> tuple[str, ...]:
        """Its type pairs."""
        return tuple(map(str, self.search.pairs))

    @property
    def score(self) -> Interval:
        """The score of the circuit."""
        return self.scores[names.FOUND]

    @property
    def p(self) -> float:
        """How rare it is among random circuits to score as high."""
        return rank_p(self.score.value, self.random, tail="high").p

    @property
    def explained_error(self) -> float:
        """The standard error of the share that is explained, from its interval."""
        return self.explained.error

    def gaps(self) -> dict[str, float]:
        """Score without a family of edges, in the circuit minus in the model: 0 where the circuit is complete."""
        return {
            family: self.scores[names.without(family, names.FOUND)].value - self.scores[names.without(family)].value
            for family in COMPLETENESS
        }

    def lines(self) -> list[str]:
        """What there is to say of it."""
        drawn, gaps = ", ".join(f"{score:.2f}" for score in self.by_draw), self.gaps()
        return [
            f"kept {len(self.names)} of {len(TYPE_PAIRS)} type pairs: {', '.join(self.names) or 'none'}",
            f"score {self.score}; by draw of donors {drawn}",
            f"random circuits: p = {self.p:.3f}, at least {1 / (1 + len(self.random)):.3f}",
            "completeness, score without a family, in the circuit minus in the model: "
            + ", ".join(f"{family} {gap:.2f}" for family, gap in gaps.items()),
        ]

    def figure(self, single: SingleEdges, planted: PlantedSearch) -> Figure:
        """The circuit, how it was searched, its score among random circuits, and the same search on a planted circuit.

        single: what its edges cost alone: the widths of arrows.
        """
        setting, known = self.setting, (planted.search.pairs, sorted(planted.truth))
        return plots.circuit(
            [_triple(edge) for edge in self.search.pairs],
            single.nats(),
            self.search.steps(),
            self.search.share * single.whole_first,
            {name: self.scores[name] for name in (names.FOUND, names.without(names.FOUND))},
            self.random,
            ([_triple(edge) for edge in known[0]], [_triple(edge) for edge in known[1]]),
            f"{setting.model}, {setting.task}: {len(self.names)} of {len(TYPE_PAIRS)} type pairs, "
            f"{self.explained.value:.0%} of the accuracy\n({setting.extent})",
        )


# ------------------------------------------------------------------------------------------------ layers and donors


@dataclass(frozen=True)
class Windows:
    """Contextualisation taken out from a layer on, aggregation below a layer, at each of the layers `at`; and FULL."""

    setting: Setting
    layers: int
    at: tuple[int, ...]
    rows: Rows

    def context(self) -> list[Interval]:
        """Accuracy without contextualisation from each of the layers on."""
        return [right_of(self.rows[names.context_from(layer)]) for layer in self.at]

    def aggregation(self) -> list[Interval]:
        """Accuracy without aggregation below each of the layers."""
        return [right_of(self.rows[names.aggregation_below(layer)]) for layer in self.at]

    def figure(self) -> Figure:
        """Accuracy by layer."""
        whole = float(self.rows[names.FULL]["right"].mean())
        title = (
            f"{self.setting.model}, {self.setting.task}: by layers\n({self.setting.extent}; dotted: nothing removed)"
        )
        return plots.windows(self.layers, self.at, self.context(), self.aggregation(), whole, title)


@dataclass(frozen=True)
class Probes:
    """Inside a circuit, accuracy where one edge is read from one corruption. rows: see `edges.probes`."""

    setting: Setting
    circuit: str
    edges: tuple[str, ...]
    corruptions: tuple[int, ...]
    rows: Rows

    def accuracy(self) -> NDArray[np.float64]:
        """Accuracy by edge and corruption, [E, C]."""
        return np.array(
            [[self.rows[names.read_from(edge, c)]["right"].mean() for c in self.corruptions] for edge in self.edges]
        )

    @property
    def widest(self) -> float:
        """Half of the widest of the intervals (Wilson, 95 %)."""
        return max((interval.high - interval.low) / 2 for interval in map(right_of, self.rows.values()))

    def lines(self) -> list[str]:
        """How exact the cells of the figure are."""
        return [f"95 % intervals of the cells (Wilson): +- {self.widest:.2f} or less"]

    def figure(self) -> Figure:
        """The accuracies as a map."""
        inside = float(self.rows[names.CIRCUIT]["right"].mean())
        title = (
            f"{self.setting.model}, {self.setting.task}: inside {self.circuit} ({inside:.2f})\n({self.setting.extent})"
        )
        donors = [word_pairs.CORRUPTIONS[c] for c in self.corruptions]
        return plots.probes(self.accuracy(), self.edges, donors, title)


@dataclass(frozen=True)
class Ambiguity:
    """Answers by how many demonstrations fit two rules.

    rows: by count and circuit, with `copied`; askable: how many queries the list has, see `Circuits`.
    """

    setting: Setting
    rows: Mapping[int, Rows]
    askable: int | None

    @property
    def counts(self) -> list[int]:
        """How many demonstrations were ambiguous."""
        return list(self.rows)

    def shares(self, what: str) -> dict[str, list[Interval]]:
        """By circuit, for every count, the share of prompts that are "right", "copied", or "other" than both."""
        shares: dict[str, list[Interval]] = {}
        for by_circuit in self.rows.values():
            for name, row in by_circuit.items():
                is_so = ~(row["right"] | row["copied"]) if what == "other" else row[what]
                shares.setdefault(name, []).append(accuracy(is_so, queries_of(row)))
        return shares

    def solved(self) -> dict[int, NDArray[np.bool_]]:
        """By count, the prompts that the whole model solves, [N]."""
        return {count: by_circuit[names.FULL]["right"][0] for count, by_circuit in self.rows.items()}

    def lines(self) -> list[str]:
        """How many prompts the whole model solves."""
        solved = {count: f"{prompts.sum()} of {prompts.size}" for count, prompts in self.solved().items()}
        return [f"prompts that the whole model solves: {solved}"]

    def past_tense(self) -> dict[int, float]:
        """By count, the share of prompts that the whole model answers by the past tense, to one decimal."""
        shares = self.shares("right")[names.FULL]
        return {count: round(share.value, 1) for count, share in zip(self.rows, shares, strict=True)}

    def figure(self) -> Figure:
        """Past tenses, copies, and other answers."""
        setting = self.setting
        title = f"{setting.model}: verbs, {setting.k} shots, {setting.extent}"
        right, copied, other = (self.shares(what) for what in ("right", "copied", "other"))
        return plots.ambiguous(self.counts, right, copied, other, title)
