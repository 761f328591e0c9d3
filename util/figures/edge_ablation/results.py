"""What the parts of edge ablation give: numbers, tables, figures and sentences, without a model.

Rows are what `measures.aligned` gives: by the name of an ablation (see `edges.names`), query [N] and measures [D, N] of
N prompts under D draws of donors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.edges import names
from util.edges.edge import ALWAYS, TYPE_PAIRS, Edge
from util.figures.edge_ablation import measures, plots
from util.figures.edge_ablation.measures import Cost, Row, Rows, queries_of, sure_losses
from util.figures.edge_ablation.type_circuit import Pair
from util.prompts import word_pairs
from util.show.style import WIDTH
from util.stats.intervals import Interval, Intervals, accuracy
from util.stats.tests import holm, mcnemar, rank_p

COMPLETENESS = ("WITHIN", "CONTEXT", "AGG", "QUERY")  # families whose loss a complete circuit feels as the model does


@dataclass(frozen=True)
class Setting:
    """What was measured, for headlines. model: as it is shown; prompts: as many as were asked for."""

    model: str
    task: str
    k: int
    prompts: int
    donor_seeds: tuple[int, ...]

    @property
    def extent(self) -> str:
        """Prompts and draws of donors, in words."""
        return f"{self.prompts} prompts, donors {', '.join(map(str, self.donor_seeds))}"

    def __str__(self) -> str:
        return f"{self.model}, {self.task}, {self.k} demonstrations, {self.extent}"


def right_of(row: Row) -> Interval:
    """Accuracy of the first token, with an interval by Wilson over distinct queries."""
    return accuracy(row["right"], queries_of(row))


def _triple(edge: Edge) -> Pair:
    """An edge as figures take it."""
    return edge.source, edge.target, edge.relation


def in_words(names_: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    *first, last = names_
    return f"{', '.join(first)} and {last}" if first else last


def in_text(edge: str) -> str:
    """The name of an edge in a sentence: y → last separator."""
    return edge.replace("->", " → ").replace("_", " ")


# ------------------------------------------------------------------------------------------------ circuits compared


def lost_by_circuit(circuits: Mapping[str, Circuits]) -> dict[str, dict[str, Interval]]:
    """Where accuracy surely falls without demonstrations and without contextualisation, and by how much.

    circuits: by task or model. By circuit, then by task or model, see `measures.sure_losses`.
    """
    return {
        circuit: sure_losses({name: (one.rows[names.FULL], one.rows[circuit]) for name, one in circuits.items()})
        for circuit in (names.QUERY_ONLY, names.AGG_ONLY)
    }


def what_is_needed(circuits: Mapping[str, Circuits], things: str) -> str | None:
    """`lost_by_circuit` in a sentence; None where accuracy surely falls in neither.

    things: what the circuits are of, "tasks" or "models".
    """
    bare, without = lost_by_circuit(circuits).values()
    said = []
    if bare:
        count = f"{len(bare)} of {len(circuits)} {things}"
        said.append(f"without demonstrations (QUERY-ONLY) accuracy surely falls in {count}")
    if without:
        name, loss = max(without.items(), key=lambda item: item[1].value)
        falls = "" if bare else "accuracy surely falls "
        most = f", most in {name}, by {loss}" if len(without) > 1 else f", {name}, by {loss}"
        said.append(f"without those read by each other or the query (AGG-ONLY) {falls}in {len(without)}{most}")
    return f"W{', '.join(said)[1:]}" if said else None


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

    def sure_losses(self) -> dict[str, dict[str, Interval]]:
        """By circuit and task, see `lost_by_circuit`."""
        return lost_by_circuit(self.by_task)

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

    @property
    def finding(self) -> str | None:
        """In how many tasks demonstrations, and contextualisation, are needed."""
        return what_is_needed(self.by_task, "tasks")

    @property
    def setting(self) -> str:
        """The model, and what each task has."""
        one = self.first.setting
        return f"{one.model}, {one.k} demonstrations, of each task {one.extent}"

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Accuracy and divergence by task and circuit."""
        return plots.circuits(
            self.accuracy(),
            {task: circuits.draws() for task, circuits in self.by_task.items()},
            {task: circuits.chance for task, circuits in self.by_task.items()},
            self.finding,
            self.setting,
            {task: circuits.kl() for task, circuits in self.by_task.items()},
            width=width,
        )


@dataclass(frozen=True)
class CircuitsByModel:
    """`Circuits` of one task with several models, by their names; the study's own model is the first.

    untrained: those of the untrained twin, None where it was not asked.
    """

    by_model: Mapping[str, Circuits]
    untrained: Circuits | None = None

    @property
    def beside(self) -> dict[str, Circuits]:
        """Those of the untrained twin and of the other models."""
        twin = {} if self.untrained is None else {"untrained": self.untrained}
        return twin | dict(list(self.by_model.items())[1:])

    def accuracy(self) -> dict[str, dict[str, Interval]]:
        """Accuracies by model and circuit."""
        first, one = next(iter(self.by_model.items()))
        return {model: circuits.accuracy(alone=False) for model, circuits in {first: one, **self.beside}.items()}

    def lines(self) -> list[str]:
        """What the untrained twin answers right."""
        if self.untrained is None:
            return ["no untrained twin was asked"]
        best, right = max(self.untrained.accuracy(alone=False).items(), key=lambda item: item[1].value)
        return [f"untrained twin, {self.untrained.setting.task}: accuracy {right} at most (in {best})"]

    @property
    def finding(self) -> str | None:
        """In how many models demonstrations, and contextualisation, are needed."""
        return what_is_needed(self.by_model, "models")

    @property
    def setting(self) -> str:
        """The task, and what each model was asked."""
        one = next(iter(self.by_model.values())).setting
        return f"{one.task}, {one.k} demonstrations, {one.extent}"

    def figure(self, *, width: float = WIDTH) -> Figure | None:
        """Accuracy by model and circuit; None where there is no other model: the twin's zeros need no panel."""
        if len(self.by_model) == 1:
            return None
        return plots.circuits(
            {model: circuits.accuracy(alone=False) for model, circuits in self.by_model.items()},
            {model: circuits.draws() for model, circuits in self.by_model.items()},
            {model: circuits.chance for model, circuits in self.by_model.items()},
            self.finding,
            self.setting,
            width=width,
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

    def nats(self) -> dict[Pair, Interval]:
        """The log-probability of the answer that is lost, by (source, target, relation)."""
        return {
            _triple(Edge.of(name)): Interval(cost.log_prob, cost.low, cost.high) for name, cost in self.costs().items()
        }

    def beyond_chance(self) -> list[str]:
        """The edges whose loss of accuracy is beyond chance, those that cost most nats first."""
        costs = self.costs()
        return sorted((name for name in costs if costs[name].p < 0.05), key=lambda name: -costs[name].log_prob)

    @property
    def finding(self) -> str | None:
        """How many edges cost accuracy alone, and which of them costs most; None where none does."""
        costs, dear = self.costs(), self.beyond_chance()
        if not dear:
            return None
        most = costs[dear[0]]
        cost = "cost" if len(dear) > 1 else "costs"
        return (
            f"Ablated alone, {len(dear)} of {len(costs)} type pairs {cost} accuracy beyond chance, "
            f"most {in_text(dear[0])}: {Interval(most.log_prob, most.low, most.high)} nats"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """The map of type pairs."""
        return plots.edge_map(
            self.nats(),
            {_triple(Edge.of(name)): cost.accuracy for name, cost in self.costs().items()},
            {_triple(Edge.of(name)) for name in self.beyond_chance()},
            self.finding,
            f"{self.setting}, search split",
            width=width,
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

    @property
    def finding(self) -> str | None:
        """How well the kept pairs perform, beside random circuits; None where nothing is kept or there is no score."""
        if not self.names or not np.isfinite(self.score.value):
            return None
        keep = f"keep{'s' * (len(self.names) == 1)}"
        said = f"{len(self.names)} of {len(TYPE_PAIRS)} type pairs {keep} {self.score} of the performance"
        beside = f"; of {len(self.random)} random circuits as large the best keeps {max(self.random, default=0):.2f}"
        return said + beside * bool(self.random)

    def figure(self, single: SingleEdges, planted: PlantedSearch, *, width: float = WIDTH) -> Figure:
        """The circuit, how it was searched, its score among random circuits, and the same search on a planted circuit.

        single: what its edges cost alone: the widths of arrows.
        """
        known = planted.search.pairs, sorted(planted.truth)
        return plots.circuit(
            [_triple(edge) for edge in self.search.pairs],
            single.nats(),
            self.search.steps(),
            self.search.share * single.whole_first,
            {name: self.scores[name] for name in (names.FOUND, names.without(names.FOUND))},
            self.random,
            ([_triple(edge) for edge in known[0]], [_triple(edge) for edge in known[1]]),
            self.finding,
            str(self.setting),
            width=width,
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

    @property
    def finding(self) -> str | None:
        """From which layers on either is surely missed, all windows tested together; None where neither is."""
        full = self.rows[names.FULL]
        late = {names.context_from(layer): layer for layer in self.at}
        early = {names.aggregation_below(layer): layer for layer in self.at}
        lost = sure_losses({name: (full, self.rows[name]) for name in (*late, *early)})
        said = []
        if missed := [name for name in early if name in lost]:
            said.append(f"aggregation is removed below layer {early[missed[0]]} (by {lost[missed[0]]})")
        if missed := [name for name in late if name in lost]:
            said.append(f"contextualisation is removed from layer {late[missed[-1]]} on (by {lost[missed[-1]]})")
        return f"Accuracy surely falls where {', '.join(said)}" if said else None

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Accuracy by layer."""
        whole = right_of(self.rows[names.FULL])
        return plots.windows(
            self.layers,
            self.at,
            self.context(),
            self.aggregation(),
            whole,
            self.finding,
            str(self.setting),
            width=width,
        )


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

    def intervals(self) -> Intervals:
        """Accuracy by edge and corruption, [E, C], with intervals by Wilson over distinct queries."""
        cells = [[right_of(self.rows[names.read_from(edge, c)]) for c in self.corruptions] for edge in self.edges]
        return Intervals(*np.moveaxis(np.array(cells), -1, 0))

    def beyond_chance(self) -> NDArray[np.bool_]:
        """Where the accuracy is lower than inside the circuit, [E, C]: McNemar over queries, corrected by Holm."""
        inside = self.rows[names.CIRCUIT]
        rows = [self.rows[names.read_from(edge, c)] for edge in self.edges for c in self.corruptions]
        p = holm([mcnemar(inside["right"], row["right"], inside["query"]) for row in rows])
        lower = [row["right"].mean() < inside["right"].mean() for row in rows]
        return (np.array(lower) & (np.array(p) < 0.05)).reshape(len(self.edges), -1)

    @property
    def widest(self) -> float:
        """Half of the widest of the intervals (Wilson, 95 %)."""
        return max((interval.high - interval.low) / 2 for interval in map(right_of, self.rows.values()))

    def lines(self) -> list[str]:
        """How exact the cells of the figure are."""
        return [f"95 % intervals of the cells (Wilson): +- {self.widest:.2f} or less"]

    @property
    def finding(self) -> str | None:
        """Which edges carry something that a donor changes, and the donor that costs most; None where none does."""
        sure, accuracy = self.beyond_chance(), self.intervals()
        if not sure.any():
            return None
        carry = [in_text(edge) for edge, cells in zip(self.edges, sure, strict=True) if cells.any()]
        row, column = np.unravel_index(np.argmin(np.where(sure, accuracy.value, np.inf)), sure.shape)
        donor = word_pairs.CORRUPTIONS[self.corruptions[column]].replace("_", " ")
        return (
            f"{len(carry)} of {len(self.edges)} edges carr{'y' if len(carry) > 1 else 'ies'} what donors change "
            f"({in_words(carry)}): accuracy falls to {accuracy[row, column]} ({donor})"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """The accuracies as a map."""
        inside = right_of(self.rows[names.CIRCUIT])
        donors = [word_pairs.CORRUPTIONS[c] for c in self.corruptions]
        return plots.probes(
            self.intervals(),
            inside.value,
            self.beyond_chance(),
            self.edges,
            donors,
            self.finding,
            f"accuracy inside {self.circuit} (nothing exchanged: {inside}); {self.setting}",
            width=width,
        )


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

    @property
    def finding(self) -> str | None:
        """How far the whole model's past tenses fall, and what it says instead; None where they surely fall nowhere.

        Surely: the interval is below that of the fewest ambiguous demonstrations.
        """
        right, copied, other = (self.shares(what)[names.FULL] for what in ("right", "copied", "other"))
        least = min(range(len(right)), key=lambda place: right[place].value)
        if not right[least].high < right[0].low:
            return None
        says, share = max(
            (("the query again", copied[least]), ("something else", other[least])), key=lambda item: item[1].value
        )
        return (
            f"With {self.counts[least]} of {self.setting.k} demonstrations ambiguous, past tenses fall from {right[0]} "
            f"to {right[least]}: the model says {says} ({share})"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Past tenses, copies, and other answers."""
        right, copied, other = (self.shares(what) for what in ("right", "copied", "other"))
        return plots.ambiguous(self.counts, right, copied, other, self.finding, str(self.setting), width=width)
