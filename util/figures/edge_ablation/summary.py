"""All that notebook 04 measures of one model, together: what is stored of it, and what a fresh run has to reproduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from util.edges import names
from util.figures.edge_ablation.pruning_results import PruningByTask
from util.figures.edge_ablation.results import (
    Ambiguity,
    CircuitsByModel,
    CircuitsByTask,
    PlantedSearch,
    Probes,
    SingleEdges,
    VerifiedCircuit,
    Windows,
)

WORTH = 0.1  # of accuracy: an edge that the check of a notebook names


@dataclass(frozen=True)
class Summary:
    """All results of one model: what is stored as values, and what a fresh run has to reproduce."""

    circuits: CircuitsByTask
    single: SingleEdges
    circuit: VerifiedCircuit
    planted: PlantedSearch
    windows: Windows
    probes: Probes
    pruning: PruningByTask
    ambiguity: Ambiguity
    models: CircuitsByModel

    def values(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Every number of the figures, for `files.save_values`. request: that of the study."""
        circuit, probes, ambiguity = self.circuit, self.probes, self.ambiguity
        return {
            "request": request,
            "model": self.circuits.first.about,
            "accuracy": self.circuits.accuracy(),
            "sure losses": self.circuits.sure_losses(),
            "scores": self.circuits.scores(),
            "costs": self.single.costs(),
            "search": {
                "kept": circuit.names,
                "steps": circuit.search.steps(),
                "scores": circuit.scores,
                "random": circuit.random,
                "by_draw": circuit.by_draw,
            },
            "windows": {
                "at": self.windows.at,
                "CONTEXT from": self.windows.context(),
                "AGG below": self.windows.aggregation(),
            },
            "probes": {"edges": probes.edges, "corruptions": probes.corruptions, "accuracy": probes.accuracy()},
            "ambiguous": {
                "counts": ambiguity.counts,
                "past": ambiguity.shares("right"),
                "copied": ambiguity.shares("copied"),
                "other": ambiguity.shares("other"),
            },
            "pruning": self.pruning.values(),
            "models": self.models.accuracy(),
            "planted": {
                "kept": list(map(str, self.planted.search.pairs)),
                "true": sorted(map(str, self.planted.truth)),
            },
        }

    def measured(self) -> dict[str, tuple[float, float]]:
        """What has a published counterpart, with its standard error, see `files.comparison`."""
        return {"explained": (self.circuit.explained.value, self.circuit.explained_error)}

    def check_lines(self) -> list[str]:
        """What a fresh run has to reproduce."""
        circuits, circuit = self.circuits.by_task, self.circuit
        sizes = ", ".join(str(one.rows[names.FULL]["right"].shape[1]) for one in circuits.values())
        dear = [edge for edge, cost in self.single.costs().items() if cost.accuracy >= WORTH]
        return [
            f"layers {self.circuits.first.layers}; prompts {sizes}",
            *(one.line(task) for task, one in circuits.items()),
            *(one.line(model, alone=False) for model, one in self.models.beside.items()),
            f"edges that cost {WORTH:g} or more: {', '.join(dear)}",
            f"kept by the search: {', '.join(circuit.names)}",
            f"score {circuit.score.value:.2f}; without it {circuit.scores[names.without(names.FOUND)].value:.2f}",
            f"best of {len(circuit.random)} random circuits {max(circuit.random, default=0):.2f}",
            *self.pruning.check_lines(),
            f"past tense with {self.ambiguity.past_tense()} ambiguous",
            f"planted circuit found exactly: {self.planted.exact}",
        ]
