"""Edges of the component graph in indirect object identification: scores, exact effects, and circuits chosen by them.

Edges are scored on some pairs of prompts and judged on fresh ones.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.engine.call import UnsupportedModel
from util.engine.components import Components
from util.figures.ioi_patching.edge_results import (
    BANDS,
    EXACT,
    METHODS,
    EdgeScores,
    NoEdges,
    drawn_edges,
    random_rankings,
)
from util.figures.ioi_patching.pairs import Pairs, in_order
from util.figures.ioi_patching.patching import logit_difference
from util.figures.ioi_patching.results import Setting
from util.prompts.ioi import group_by_shape
from util.records import cache
from util.records.checked import Count, Natural, checked
from util.records.provenance import digest
from util.scores.attribution import Method, edge_scores, graph_of
from util.scores.circuits import circuit_metrics
from util.scores.evaluation import Circuits
from util.scores.exact import exact_scores
from util.scores.graph import ComponentGraph

EDGES = 128  # whose exact effects on all pairs are measured in one cached block
CIRCUITS = 4  # that are run on all pairs in one cached block
PROMPTS = 16  # scored in one cached block


@checked
class EdgePairs(Pairs):
    """Pairs of prompts, with records of what edges of the component graph do on them."""

    def _groups(self, size: int) -> list[list[int]]:
        """The numbers of the pairs that are measured together: of one shape, so many at most."""
        self.check()
        groups = group_by_shape(self.tokens).values()
        return [numbers[start : start + size] for numbers in groups for start in range(0, len(numbers), size)]

    def edge_scores(self, method: Method, steps: int) -> cache.Record:
        """The mean score of every edge over all pairs, see `scores.attribution.edge_scores`.

        Its data: scores [U, V], of senders and readers in the order of a `ComponentGraph`; layers, heads, parallel: of
        that graph; refused: "". For a class whose layers cannot be taken apart, refused alone, which says why.
        """

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            if refused := self._refused:
                return {"refused": refused}
            scores = edge_scores(self.pair[0], *self.batch(numbers), method, steps)
            return {"sum": scores.double().sum(0).numpy(), "count": len(numbers)}

        def joined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
            if self._refused:
                return {"refused": self._refused}
            total = sum(block["sum"] for block in measured) / sum(block["count"] for block in measured)
            return {"scores": np.asarray(total, np.float32), **self._shape, "refused": ""}

        part = {"part": "edge scores", "method": method, "steps": 1 if method == "EAP" else steps, "first": 0}
        return self.record_in_blocks(part, partial(self._groups, PROMPTS), measure, joined)

    @cached_property
    def _refused(self) -> str:
        """Why the layers of the model's class cannot be taken apart, "" where they can."""
        try:
            self._shape  # noqa: B018  # it takes the layers apart
        except UnsupportedModel as error:
            return str(error)
        return ""

    @property
    def _shape(self) -> dict[str, Any]:
        graph = graph_of(Components(self.pair[0], self.batch([0])[0]))
        return {"layers": graph.layers, "heads": graph.heads, "parallel": graph.parallel}

    def exact_effects(self, edges: NDArray[np.integer]) -> cache.Record:
        """How far the logit difference falls where one edge alone is corrupted, see `scores.exact.exact_scores`.

        edges [E, 2]: sender and reader. Its data: effects [N, E]; clusters [N].
        """

        def chunks() -> list[list[int]]:
            self.check()
            return [list(range(start, min(start + EDGES, len(edges)))) for start in range(0, len(edges), EDGES)]

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            chosen = [(int(sender), int(reader)) for sender, reader in edges[list(numbers)]]
            found = [
                {"effects": exact_scores(self.pair[0], *self.batch(some), chosen).numpy(), "numbers": some}
                for some in group_by_shape(self.tokens).values()
            ]
            return in_order(found, ["effects"])

        def joined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
            return {"effects": np.concatenate([block["effects"] for block in measured], 1), "clusters": self.clusters}

        part = {"part": "exact effects of edges", "edges": _digest(edges), "count": len(edges)}
        return self.record_in_blocks(part, chunks, measure, joined)

    def circuit_runs(self, circuits: NDArray[np.bool_]) -> cache.Record:
        """The logit differences where all edges outside of a circuit are corrupted, see `scores.circuits`.

        circuits [K, U, V]. Its data: circuit [K, N]; full, empty [N], of all edges and of none; clusters [N].
        """
        nothing = np.zeros_like(circuits[:1])

        def chunks() -> list[list[int]]:
            self.check()
            count = len(circuits) + 1
            return [list(range(start, min(start + CIRCUITS, count))) for start in range(0, count, CIRCUITS)]

        def measure(numbers: Sequence[int]) -> dict[str, Any]:
            chosen = [np.concatenate([circuits, nothing])[number] for number in numbers]
            found = []
            for some in group_by_shape(self.tokens).values():
                base, source, answers = self.batch(some)
                runs = circuit_metrics(self.pair[0], base, source, answers, chosen)
                found.append({"runs": runs.T.numpy(), "numbers": some})
            return in_order(found, ["runs"])

        def joined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
            runs = np.concatenate([block["runs"] for block in measured], 1).T
            return {"circuit": runs[:-1], "empty": runs[-1], "full": self._intact(), "clusters": self.clusters}

        part = {"part": "circuits of edges", "circuits": _digest(np.packbits(circuits)), "count": len(circuits)}
        return self.record_in_blocks(part, chunks, measure, joined)

    def _intact(self) -> NDArray[np.float32]:
        """The logit differences [N] of the base run."""
        found = []
        for some in group_by_shape(self.tokens).values():
            base, _, answers = self.batch(some)
            full = logit_difference(self.pair[0], base, answers).numpy()
            found.append({"full": full, "numbers": some})
        return in_order(found, ["full"])["full"]


def _digest(array: NDArray[Any]) -> str:
    return digest([str(array.shape), array.tobytes().hex()])


@checked
class Edges:
    """The component graph of a model on indirect object identification: which edges carry it.

    scored: the pairs on which edges are scored; judged: fresh ones, on which exact effects are measured and circuits
    run. steps: of integrated gradients. exact: of how many edges exact effects are measured; of all, where there are no
    more, and then on the scored pairs, too: the means of these rank edges as other scores do. random: how many random
    rankings of all edges stand beside the methods'; seed: of these, and of the edges that are drawn.
    """

    scored: EdgePairs
    judged: EdgePairs
    _: KW_ONLY
    setting: Setting
    steps: Count = 5
    exact: Count = 2000
    random: Natural = 2
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.judged != self.scored.replace(seed=self.judged.seed, prompts=self.judged.prompts):
            raise ValueError("judged: give pairs of the same model and data set as `scored`")
        if self.scored.seed == self.judged.seed:
            raise ValueError("judged: give fresh pairs, of another seed")
        if min(self.scored.prompts, self.judged.prompts) < 2 or self.exact < BANDS:
            raise ValueError(f"give two pairs or more, and exact = {BANDS} edges or more")

    @cached_property
    def means(self) -> dict[str, NDArray[np.float32]]:
        """The mean scores of all edges [U, V], by method."""

        def scores(name: Method) -> NDArray[np.float32]:
            mean: NDArray[np.float32] = self.scored.edge_scores(name, self.steps).data["scores"]
            return mean

        methods: tuple[Method, ...] = METHODS
        return {method: scores(method) for method in methods}

    @cached_property
    def graph(self) -> ComponentGraph:
        """The component graph."""
        data = self.scored.edge_scores(METHODS[0], self.steps).data
        return ComponentGraph(int(data["layers"]), int(data["heads"]), bool(data["parallel"]))

    def measured(self) -> EdgeScores | NoEdges:
        """Scores, exact effects and circuits, measured or loaded; or why there are none."""
        if refused := self.scored.edge_scores(METHODS[0], self.steps).data["refused"]:
            return NoEdges(self.setting, refused)
        drawn = drawn_edges(self.graph, self.means, self.exact, self.seed)
        effects = self.judged.exact_effects(drawn).data
        means: dict[str, NDArray[np.floating]] = {**self.means}
        if len(drawn) == self.graph.size:
            means[EXACT] = self._exact_means(drawn)
        ranked = means | random_rankings(self.graph, self.random, self.seed)
        kinds = [(name, absolute) for absolute in (False, True) for name in ranked]
        chosen = [Circuits.of(self.graph, ranked[name], absolute=absolute) for name, absolute in kinds]
        records = [self.judged.circuit_runs(circuits.edges) for circuits in chosen]
        curves, runs = {}, {}
        for kind, circuits, record in zip(kinds, chosen, records, strict=True):
            runs = record.data
            ends = runs["full"], runs["empty"], runs["clusters"]
            curves[kind] = circuits.measured(runs["circuit"], *ends)
        return EdgeScores(
            self.setting,
            graph=self.graph,
            means=means,
            drawn=drawn,
            effects=effects["effects"],
            full=runs["full"],
            empty=runs["empty"],
            clusters=runs["clusters"],
            curves=curves,
        )

    def _exact_means(self, edges: NDArray[np.integer]) -> NDArray[np.float64]:
        """The mean exact effects [U, V] of edges [E, 2] on the scored pairs; 0 elsewhere."""
        means = np.zeros(self.graph.shape)
        means[edges[:, 0], edges[:, 1]] = self.scored.exact_effects(edges).data["effects"].mean(0, dtype=np.float64)
        return means
