"""Which edges of a planted model are its circuit, and which methods find them.

The models of `models.planted` are made by hand, so it is known which feature each head writes and which it reads. An
edge of the circuit, a route, carries a feature from a part that writes it to a part that reads it.

A route can be silent: it carries something, and the metric would not change if it alone were corrupted. So it is with
a backup head, which does nothing while the other works, and with what both prompts of a pair have in common. Silent
routes are named here with the reason, and are neither right nor wrong where scores are compared with the circuit.

The attention of a planted head is saturated: its weights are 0 or 1 up to about 1e-7. So first-order scores of what
queries and keys read are all but 0, whatever these edges carry. That makes planted models a negative control of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.components import Components
from util.models.planted import HEADS, Head, Planted
from util.prompts.ioi import Corruption
from util.scores.attribution import edge_scores, metric
from util.scores.evaluation import Overlap, auroc, precision_and_recall
from util.scores.exact import exact_scores
from util.scores.graph import Bools, ComponentGraph, Floats, Place
from util.stats.intervals import Interval, mean_interval

METHODS = ("exact", "EAP", "EAP-IG inputs", "EAP-IG activations")
FOUND = 0.1  # the least share of an exact effect that counts as seen
ROUNDING = 1e-6  # of the whole effect: first-order scores of edges that do nothing, in float32
Batch = tuple[Tensor, Tensor, Tensor]  # base and source prompts [N, T] and answers [N, 2]


class Route(NamedTuple):
    """What one part of a circuit reads of another.

    sender, reader: roles of heads, "input" or "logits". letter: q, k or v where the reader is a head.
    """

    sender: str
    reader: str
    letter: str = ""

    def __str__(self) -> str:
        return f"{self.sender} -> {self.reader}" + (f" <{self.letter}>" if self.letter else "")


@dataclass(frozen=True)
class KnownCircuit:
    """The circuit of a planted model. A route has a place for each copy of the circuit.

    routes: where each route is in arrays of edges [U, V]. silent: the routes without an effect of their own, and why.
    """

    graph: ComponentGraph
    routes: Mapping[Route, tuple[Place, ...]]
    silent: Mapping[Route, str]

    @property
    def edges(self) -> Bools:
        """The edges that a score has to find [U, V]: all routes that are not silent."""
        return self._where(route for route in self.routes if route not in self.silent)

    @property
    def compared(self) -> Bools:
        """The edges that tell right scores from wrong ones [U, V]: all but the silent routes."""
        return self.graph.edges & ~self._where(self.silent)

    @property
    def nodes(self) -> Bools:
        """The nodes that a score has to find [U + 1]."""
        return self.graph.nodes_of(self.edges)

    def _where(self, routes: Any) -> Bools:
        chosen = np.zeros(self.graph.shape, bool)
        for route in routes:
            for place in self.routes[route]:
                chosen[place] = True
        return chosen

    def auroc(self, scores: Floats) -> float:
        """The area under the receiver operating characteristic of absolute scores [U, V], see `evaluation.auroc`."""
        return auroc(scores[self.compared], self.edges[self.compared], absolute=True)

    def at_known_size(self, scores: Floats) -> Overlap:
        """Precision and recall of as many edges as the circuit has, by absolute scores [U, V]: they are the same."""
        known = self.edges[self.compared]
        return precision_and_recall(scores[self.compared], known, int(known.sum()), absolute=True)


# ------------------------------------------------------------------------------------------------ the IOI circuit

DUPLICATE, COPIER, MOVER, BACKUP = "duplicate token", "copier", "mover", "backup mover"
IOI_ROUTES = (
    Route("input", DUPLICATE, "q"),  # the token that may have occurred before
    Route("input", DUPLICATE, "k"),  # the tokens before it
    Route("input", DUPLICATE, "v"),  # that it is a name
    Route("input", COPIER, "k"),  # which tokens are names
    Route("input", COPIER, "v"),  # the names
    Route("input", MOVER, "v"),  # the name that is marked
    Route(DUPLICATE, COPIER, "k"),  # the mark
    Route(DUPLICATE, MOVER, "k"),  # the mark
    Route(COPIER, "logits"),
    Route(MOVER, "logits"),
)
BACKUP_ROUTES = (
    Route(DUPLICATE, MOVER, "v"),  # the mark, which becomes the word that the mover is done
    Route(MOVER, BACKUP, "q"),  # this word
    Route(DUPLICATE, BACKUP, "k"),
    Route("input", BACKUP, "v"),
    Route(BACKUP, "logits"),
)
_ALIKE = "the copier adds as much to one answer as to the other"
_FLAG = "every name is marked as a name, whichever it is"
_SILENT = {
    Route("input", DUPLICATE, "v"): _FLAG,
    Route("input", COPIER, "k"): _FLAG,
    Route("input", COPIER, "v"): _ALIKE,
    Route(COPIER, "logits"): _ALIKE,
}
_BACKUP_RESTS = "the backup does nothing while the mover works"
_SILENT_WITH_BACKUP = {
    Route(DUPLICATE, MOVER, "k"): "the backup does the mover's work",
    Route(DUPLICATE, BACKUP, "k"): _BACKUP_RESTS,
    Route("input", BACKUP, "v"): _BACKUP_RESTS,
    Route(BACKUP, "logits"): _BACKUP_RESTS,
}
_SAME_MARK = "the same token is marked in both runs"


def ioi_circuit(planted: Planted, corruption: Corruption) -> KnownCircuit:
    """The circuit of a model that `models.planted.ioi` made, for pairs with this corruption.

    Raises ValueError for a model without its roles, and for a corruption other than "s2_swap", "s2_rand" and "abc".
    """
    heads = dict(planted.heads)
    if {*heads} != {DUPLICATE, COPIER, MOVER}:
        raise ValueError(f"a planted IOI model has the roles {DUPLICATE}, {COPIER} and {MOVER}, not {', '.join(heads)}")
    if corruption not in ("s2_swap", "s2_rand", "abc"):
        raise ValueError(f"corruption = {corruption!r}: the silent routes are known of s2_swap, s2_rand and abc")
    layers = 1 + max(layer for layer, _ in (*planted.names, *planted.decoys))
    with_backup = layers == 3
    if with_backup:
        heads[BACKUP] = tuple(head for head in heads[MOVER] if head[0] == 2)
        heads[MOVER] = tuple(head for head in heads[MOVER] if head[0] < 2)
    routes = IOI_ROUTES + (BACKUP_ROUTES if with_backup else ())
    silent = _SILENT | (_SILENT_WITH_BACKUP if with_backup else {})
    if corruption == "s2_rand":
        silent = {Route("input", DUPLICATE, "k"): "no later token looks for the second name"} | silent
    if corruption == "s2_swap":
        effective = (Route("input", MOVER, "v"), Route(MOVER, "logits"))
        silent = {route: _SAME_MARK for route in routes if route not in effective} | silent
    graph = ComponentGraph(layers, HEADS)
    return KnownCircuit(graph, {route: _places(graph, route, heads) for route in routes}, silent)


def _places(graph: ComponentGraph, route: Route, heads: Mapping[str, Sequence[Head]]) -> tuple[Place, ...]:
    """Where a route is, for each copy: copies of heads have slots of their own, so the first reads only the first."""
    copies = max(len(heads.get(role, ())) for role in (route.sender, route.reader))
    found = []
    for copy in range(copies):
        names = []
        for role in (route.sender, route.reader):
            names.append("a{}.h{}".format(*heads[role][copy]) if role in heads else role)
        found.append(graph.place("->".join(names) + (f"<{route.letter}>" if route.letter else "")))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ what methods find


def all_scores(model: PreTrainedModel, graph: ComponentGraph, batches: Sequence[Batch]) -> tuple[Floats, float]:
    """Returns the scores of every method, means over prompts [4, U, V], and the mean whole effect.

    Methods are in the order of METHODS; EAP-IG has 5 steps. batches: prompts that differ in length are in different
    ones. The whole effect is the metric of the base run minus that of the source run.
    """
    edges = [(int(sender), int(reader)) for sender, reader in np.argwhere(graph.edges)]
    senders, readers = np.array(edges).T
    found: list[list[NDArray[np.floating]]] = [[] for _ in METHODS]
    whole: list[float] = []
    for base, source, answers in batches:
        exact = np.zeros((len(base), *graph.shape))
        exact[:, senders, readers] = exact_scores(model, base, source, answers, edges).numpy()
        found[0].append(exact)
        found[1].append(edge_scores(model, base, source, answers).numpy())
        found[2].append(edge_scores(model, base, source, answers, "EAP-IG inputs").numpy())
        found[3].append(edge_scores(model, base, source, answers, "EAP-IG activations", first=1).numpy())
        whole += (_metric(model, base, answers) - _metric(model, source, answers)).tolist()
    means = [np.concatenate(parts).mean(axis=0, dtype=np.float64) for parts in found]
    return np.stack(means), float(np.mean(whole))


@torch.no_grad()
def _metric(model: PreTrainedModel, ids: Tensor, answers: Tensor) -> Tensor:
    """The metric [N] of plain runs."""
    parts = Components(model, ids)
    return metric(parts, parts.base.hidden[-1], answers)


@dataclass(frozen=True)
class Recovery:
    """What methods find of the circuits of M planted models, which differ by their seed.

    circuits [M]: what is known. scores [K, M, U, V]: of each method, in the order of METHODS, means over prompts.
    whole [M]: the whole effect, base minus source, in the same unit. setting: model and corruption, for titles.
    Raises ValueError for arrays that do not fit, and for fewer than two models, which give no interval.
    """

    circuits: tuple[KnownCircuit, ...]
    scores: Floats
    whole: Floats
    setting: str

    def __post_init__(self) -> None:
        count = len(self.circuits)
        if count < 2:
            raise ValueError(f"{count} models: an interval needs at least two")
        wanted = (len(METHODS), count, *self.circuits[0].graph.shape)
        if self.scores.shape != wanted or self.whole.shape != (count,):
            raise ValueError(f"scores {self.scores.shape}, whole {self.whole.shape}: give {wanted} and {(count,)}")

    def auroc(self, method: str) -> Interval:
        """How often a method's scores put an edge of the circuit above another; the interval is over models."""
        return self._over_models([circuit.auroc(scores) for circuit, scores in self._of(method)])

    def at_known_size(self, method: str) -> Interval:
        """Precision of as many edges as the circuit has, which is their recall too; the interval is over models."""
        return self._over_models([circuit.at_known_size(scores).recall for circuit, scores in self._of(method)])

    def share(self, method: str, route: Route) -> Interval:
        """A method's score of a route as a share of the whole effect, all copies together; interval over models."""
        sums = [sum(scores[place] for place in circuit.routes[route]) for circuit, scores in self._of(method)]
        return mean_interval(np.array(sums) / self.whole)

    def found(self, method: str) -> list[Route]:
        """The routes that have a score of at least a tenth of their exact effect and of its sign, in every model.

        What a score is worth beside those of other edges, `auroc` says; this is whether it sees the effect at all.
        """
        return [route for route in self.effective if self._sees(method, route)]

    @property
    def effective(self) -> list[Route]:
        """The routes that are not silent."""
        first = self.circuits[0]
        return [route for route in first.routes if route not in first.silent]

    def _sees(self, method: str, route: Route) -> bool:
        exact = [scores for _, scores in self._of("exact")]
        pairs = zip(self._of(method), exact, strict=True)
        return all(
            scores[place] / referee[place] >= FOUND
            for (circuit, scores), referee in pairs
            for place in circuit.routes[route]
        )

    def _of(self, method: str) -> list[tuple[KnownCircuit, Floats]]:
        """The scores of each model; where they are what rounding leaves of 0, they are 0, so that none ranks by it."""
        given = zip(self.circuits, self.scores[METHODS.index(method)], self.whole, strict=True)
        return [(circuit, np.where(np.abs(own) < ROUNDING * abs(whole), 0, own)) for circuit, own, whole in given]

    def _over_models(self, values: Sequence[float]) -> Interval:
        return mean_interval(np.array(values), within=(0, 1))

    def table(self) -> pd.DataFrame:
        """A row for each method: how well its ranking finds the circuit, and which routes it does not see."""
        rows = {
            method: {
                "AUROC": str(self.auroc(method)),
                "precision = recall": str(self.at_known_size(method)),
                "not seen": ", ".join(str(route) for route in self.effective if route not in self.found(method)),
            }
            for method in METHODS
        }
        return pd.DataFrame(rows).T.rename_axis("method")

    def routes_table(self) -> pd.DataFrame:
        """A row for each route: each method's score of it as a share of the whole effect; silent routes say why."""
        silent = self.circuits[0].silent
        rows = {
            str(route): {method: str(self.share(method, route)) for method in METHODS}
            | {"silent": silent.get(route, "")}
            for route in self.circuits[0].routes
        }
        return pd.DataFrame(rows).T.rename_axis("route")

    def values(self) -> dict[str, Any]:
        return {
            method: {
                "AUROC": self.auroc(method),
                "at known size": self.at_known_size(method),
                "routes": {str(route): self.share(method, route) for route in self.circuits[0].routes},
            }
            for method in METHODS
        }

    def lines(self) -> list[str]:
        count = len(self.effective)
        return [
            f"{self.setting}: {method} sees {len(self.found(method))} of {count} routes; AUROC {self.auroc(method)}, "
            f"precision and recall at the known size {self.at_known_size(method)}"
            for method in METHODS
        ]
