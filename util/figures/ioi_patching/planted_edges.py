"""Which methods find the edges of planted IOI circuits: the positive and the negative control of edge scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from util.figures.circuit_diagram import Edge, Node, circuit_graph
from util.figures.ioi_patching.measures import CARRIES
from util.figures.ioi_patching.pairs import Pairs
from util.figures.ioi_patching.results import Result, Setting
from util.figures.planted_controls import name_tokens, planted_control
from util.models import planted
from util.prompts.ioi import Corruption, group_by_shape
from util.records.model import Model
from util.roles.rules import Role
from util.scores.attribution import STEPS
from util.scores.planted import METHODS, Recovery, Route, all_scores, ioi_circuit

KINDS: Mapping[str, Mapping[str, Any]] = {  # of planted circuits, see `models.planted.ioi`
    "plain": {},
    "two copies": {"copies": 2},
    "backup": {"backup": True},
    "noise": {"noise": 0.05},
}
PAIRS = 2  # for each model
SEEDS = range(4)  # of the models of each kind


def planted_ioi(**options: Any) -> tuple[Model, planted.Planted]:
    """Returns the model with planted heads on the embedded model's tokenizer, and the truth about it."""
    return planted_control(planted.ioi, options, name_tokens)


def planted_edges(
    corruption: Corruption = "abc",
    prompts: int = 4,
    seeds: Sequence[int] = range(4),
    folder: Path | None = None,
    *,
    redo: bool = False,
    **options: Any,
) -> Recovery:
    """Returns what every method of `scores.planted` finds of planted circuits.

    corruption, prompts: pairs for each model. seeds: one model each, at least two; a seed decides the model's weights,
    which heads play which role, and the pairs. redo: measure again although a record is there. options: of the planted
    circuit (backup, family, copies, noise), see `models.planted.ioi`. Each model has a record of its own. Raises
    ValueError for fewer than two seeds.
    """
    if len(seeds) < 2:
        raise ValueError(f"seeds = {[*seeds]}: an interval over models needs two of them or more")

    def of_model(seed: int) -> tuple[Any, Mapping[str, Any]]:
        model, truth = planted_ioi(seed=seed, **options)
        circuit = ioi_circuit(truth, corruption)
        pairs = Pairs(model, corruption, prompts, seed, held_out=True, folder=folder, redo=redo)

        def measure() -> dict[str, Any]:
            batches = [pairs.batch(numbers) for numbers in group_by_shape(pairs.tokens).values()]
            found, effect = all_scores(pairs.pair[0], circuit.graph, batches)
            return {"scores": found, "whole": effect}

        part = {"part": "scores of edges", "methods": list(METHODS), "steps": STEPS}
        return circuit, pairs.record(part, measure).data

    circuits, measured = zip(*map(of_model, seeds), strict=True)
    scores, whole = ([data[name] for data in measured] for name in ("scores", "whole"))
    said = "".join(f", {name} {value}" for name, value in sorted(options.items()))
    return Recovery(tuple(circuits), np.stack(scores, axis=1), np.array(whole), f"planted IOI{said}, {corruption}")


@dataclass(frozen=True)
class PlantedEdges(Result):
    """What methods find of planted IOI circuits of several kinds. recoveries: by kind, such as "plain"."""

    recoveries: Mapping[str, Recovery]

    def seen(self, kind: str, method: str, *, attention: bool) -> tuple[int, int]:
        """How many edges of a circuit a method sees, see `Recovery.found`, and how many there are.

        attention: of the edges that queries and keys read; else of those that values and the logits read. Copies count
        once. Silent edges do not count.
        """
        recovery = self.recoveries[kind]
        asked = [route for route in recovery.effective if _of_attention(route) == attention]
        return len({*asked} & {*recovery.found(method)}), len(asked)

    def graph(self, kind: str = "plain") -> nx.MultiDiGraph:
        """Returns a planted circuit with the exact effects of its edges, as shares of the whole effect.

        A node is a part of the circuit. Edges are those whose effect is certain, see `measures.carriers`: silent ones
        are left out. Raises KeyError for a kind that there is not.
        """
        recovery = self.recoveries[kind]
        shares = {route: recovery.share("exact", route) for route in recovery.circuits[0].routes}
        sure = {route: share for route, share in shares.items() if share.low > CARRIES or share.high < -CARRIES}
        order = nx.DiGraph([(route.sender, route.reader) for route in sure])
        layers = enumerate(nx.topological_generations(order))
        nodes = [Node(name, layer, ROLES_OF_PARTS.get(name, ())) for layer, names in layers for name in names]
        edges = [
            Edge(route.sender, route.reader, share.value, LETTERS.get(route.letter, ""), share)
            for route, share in sure.items()
        ]
        return circuit_graph(nodes, edges)

    def table(self) -> pd.DataFrame:
        """A row for each kind and method: how well scores rank the circuit's edges, and which of these they see."""
        rows = {}
        for kind, recovery in self.recoveries.items():
            for method in METHODS:
                rows[kind, method] = {
                    "AUROC": str(recovery.auroc(method)),
                    "precision = recall": str(recovery.at_known_size(method)),
                    "q, k seen": "{} of {}".format(*self.seen(kind, method, attention=True)),
                    "v, logits seen": "{} of {}".format(*self.seen(kind, method, attention=False)),
                }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["circuit", "method"])

    def silent_sentences(self) -> list[str]:
        """Returns the edges that no method can find, since nothing changes if they alone are corrupted, by reason."""
        edges: dict[str, dict[str, list[str]]] = {}
        for kind, recovery in self.recoveries.items():
            for route, reason in recovery.circuits[0].silent.items():
                edges.setdefault(reason, {}).setdefault(str(route), []).append(kind)
        said = []
        for reason, kinds in edges.items():
            everywhere = all(len(those) == len(self.recoveries) for those in kinds.values())
            where = "" if everywhere else f" ({', '.join(dict.fromkeys(sum(kinds.values(), [])))})"
            said.append(f"{', '.join(kinds)}{where}: {reason}")
        return said

    def values(self) -> dict[str, Any]:
        """Returns what the values file has, by kind."""
        return {kind: recovery.values() for kind, recovery in self.recoveries.items()}

    def lines(self) -> list[str]:
        """Returns the lines that a fresh run must reproduce.

        They tell what is seen: order among scores that are all but 0, as AUROC has it, differs between machines.
        """
        lines = []
        for kind in self.recoveries:
            seen = [
                "{} {} of {}, {} of {}".format(
                    method, *self.seen(kind, method, attention=True), *self.seen(kind, method, attention=False)
                )
                for method in METHODS
            ]
            lines.append(f"planted edges seen, {kind}, where queries and keys read, and elsewhere: {'; '.join(seen)}")
        return lines


ROLES_OF_PARTS = {"duplicate token": [Role.DUPLICATE_TOKEN], "mover": [Role.MOVER]}  # other parts have no role
LETTERS = {"q": "query", "k": "key", "v": "value"}


def _of_attention(route: Route) -> bool:
    return route.letter in ("q", "k")


def planted_circuits(folder: Path | None = None, *, redo: bool = False) -> PlantedEdges:
    """Returns what methods find of the planted circuits of KINDS: of four models each, on two pairs with "abc"."""
    found = [planted_edges("abc", PAIRS, SEEDS, folder, redo=redo, **options) for options in KINDS.values()]
    recoveries = dict(zip(KINDS, found, strict=True))
    return PlantedEdges(Setting("planted", "planted IOI", "abc"), recoveries)
