"""All that notebook 04 measures of one model: its settings, checked together, and a method for each of its sections."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Annotated

from pydantic import Field

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, circuit_ablations, completeness, cuts, probes, single_edges, windows
from util.edges.edge import CIRCUITS, FAMILIES
from util.figures.edge_ablation import measures
from util.figures.edge_ablation.claims import AMBIGUOUS
from util.figures.edge_ablation.pruning_results import PruningByTask
from util.figures.edge_ablation.pruning_study import PruningStudy
from util.figures.edge_ablation.results import (
    COMPLETENESS,
    Ambiguity,
    Circuits,
    CircuitsByModel,
    CircuitsByTask,
    PlantedSearch,
    Probes,
    Search,
    SingleEdges,
    VerifiedCircuit,
    Windows,
)
from util.figures.edge_ablation.study import Seeds, Study, Tasks, planted_control
from util.load_model_and_data import shown_name
from util.records.checked import AsList, Count, Distinct, Natural, Share, Text, checked

TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
PROBED = (*FAMILIES["CONTEXT_IO"], *(edge for edge in FAMILIES["AGG"] if edge.source in ("x", "y")))
DOUBTED = (names.FULL, names.CTX_AGG, names.AGG_ONLY)  # circuits that ambiguous demonstrations are shown to


@checked
class Plan:
    """The settings of all sections; everything that one of their studies would refuse is refused here, beforehand.

    study: of the primary task, which is one of tasks: of the map, the search, the windows and the probes. share: of the
    accuracy, that a search has to keep; margin: the loss of accuracy that counts as one. random_circuits: with as many
    type pairs as the one found. layer_cuts: layers where windows begin or end. ambiguous_counts: demonstrations, of k,
    that fit two rules. corruptions: of the probes, from 1 on. other_models: names of further models. untrained_control:
    also the untrained twin. pruned_tasks: in which heads and edges are pruned; search_prompts: of the split "search",
    on which they are scored; per_round: the share of the living units that goes in a round.
    """

    study: Study
    tasks: Tasks = TASKS
    _: KW_ONLY
    share: Share = 0.9
    margin: Share = 0.1
    random_circuits: Natural = 20
    layer_cuts: Annotated[Count, Field(ge=3)] = 9
    ambiguous_counts: Seeds = (0, 4, 7, 9, 10)
    corruptions: Annotated[tuple[Count, ...], AsList, Distinct] = (1, 2, 3, 4, 5)
    other_models: Annotated[tuple[Text, ...], AsList] = ()
    untrained_control: bool = True
    pruned_tasks: Tasks = ("copying", "capitalization")
    search_prompts: Count = 64
    per_round: Share = 0.2

    def __post_init__(self) -> None:
        if self.study.task not in self.tasks:
            raise ValueError(f"tasks = {list(self.tasks)}: the primary task, {self.study.task!r}, is to be one of them")
        if self.study.prompts < 2:
            raise ValueError(f"prompts = {self.study.prompts}: give two prompts or more; one has no interval")
        if max(self.ambiguous_counts) > self.study.k:
            raise ValueError(f"ambiguous_counts = {list(self.ambiguous_counts)}: give numbers up to k = {self.study.k}")
        self.by_task, self.by_count, self.probing  # noqa: B018  # they refuse what they cannot measure
        if self.untrained_control:
            self.study.model.expect_twin()
        for task in self.pruned_tasks:
            self.pruner(task)

    @property
    def by_task(self) -> dict[str, Study]:
        """The study of each task."""
        return {task: self.study.replace(task=task) for task in self.tasks}

    @property
    def by_count(self) -> dict[int, Study]:
        """The studies of verbs, by how many demonstrations are ambiguous."""
        return {count: self.study.replace(task=AMBIGUOUS, ambiguous=count) for count in self.ambiguous_counts}

    @property
    def probing(self) -> Study:
        """The study of the primary task with donors of all corruptions."""
        return self.study.replace(corruptions=(0, *self.corruptions))

    def pruner(self, task: str) -> PruningStudy:
        """The study of pruning in a task. It holds what donors leave: drop it before the next one."""
        return PruningStudy(
            self.study.replace(task=task),
            per_round=self.per_round,
            share=self.share,
            random=self.random_circuits,
            search_prompts=self.search_prompts,
        )

    # -------------------------------------------------------------------------------------------- the sections

    def circuits(self, *, written: bool = True) -> CircuitsByTask:
        """The circuits in every task. written: see `Study.compare`."""
        compared = [study.compare(written=written) for study in self.by_task.values()]
        return CircuitsByTask(dict(zip(self.by_task, compared, strict=True)), self.margin)

    def single_edges(self) -> SingleEdges:
        """Each type pair removed alone, on the split "search": queries that no other part asks."""
        rows = self.study.replace(split="search").over_donors({names.FULL: WHOLE, **single_edges()})
        return SingleEdges(self.study.setting, rows)

    def search(self) -> Search:
        """A circuit of the primary task."""
        return self.study.search(self.share)

    def verified(self, search: Search | None = None) -> VerifiedCircuit:
        """A searched circuit on the study's prompts, beside random ones; its split should not be the search's.

        search: by default that of `search`.
        """
        search = self.search() if search is None else search
        tried = circuit_ablations({names.FOUND: search.kept}, self.random_circuits, self.study.seed, like=names.FOUND)
        rows = self.study.over_donors(tried | completeness(search.kept, COMPLETENESS))
        full, none, found = (rows[name]["right"] for name in (names.FULL, names.NONE, names.FOUND))
        query = rows[names.FULL]["query"]
        scores = {name: measures.score(row["right"], full, none, query) for name, row in rows.items()}
        by_chance = tuple(scores.pop(name).value for name in names.random_names(rows))
        by_draw = tuple(measures.score(*draw).value for draw in zip(found, full, none, strict=True))
        explained = measures.ratio(found, full, query)
        return VerifiedCircuit(self.study.setting, search, rows, scores, by_chance, by_draw, explained)

    def pruning(self) -> PruningByTask:
        """Head units pruned, and edge units of the heads that are left, in each of pruned_tasks."""
        pruned = [self.pruner(task).both() for task in self.pruned_tasks]
        return PruningByTask(dict(zip(self.pruned_tasks, pruned, strict=True)))

    def planted(self) -> PlantedSearch:
        """The same search on a model whose circuit is known."""
        return planted_control(12, self.study.folder)

    def windows(self) -> Windows:
        """Contextualisation taken out from a layer on, aggregation below it, at up to `layer_cuts` layers."""
        full = {names.FULL: Ablation(kept=CIRCUITS[names.FULL])}  # as circuits are compared, see `Study.compare`
        layers = int(self.study.answers(full)[names.FULL]["layers"])
        at = cuts(layers, self.layer_cuts)
        return Windows(self.study.setting, layers, at, self.study.over_donors(full | windows(layers, at)))

    def probes(self) -> Probes:
        """Inside CTX+AGG, each edge of PROBED read from each corruption."""
        rows = self.probing.over_donors(probes(CIRCUITS[names.CTX_AGG], PROBED, self.corruptions))
        return Probes(self.study.setting, names.CTX_AGG, tuple(map(str, PROBED)), self.corruptions, rows)

    def ambiguity(self) -> Ambiguity:
        """Circuits on verbs with ambiguous demonstrations, by their number."""
        doubted = {name: Ablation(kept=CIRCUITS[name]) for name in DOUBTED}
        by_draw = [study.by_draw(doubted) for study in self.by_count.values()]
        rows = {}
        for count, found in zip(self.by_count, by_draw, strict=True):
            draws = [
                {name: {**data, "copied": data["top"] == data["copy"]} for name, data in draw.items()} for draw in found
            ]
            rows[count] = measures.aligned(draws)
        last = self.by_count[self.ambiguous_counts[-1]]
        return Ambiguity(last.setting, rows, draws[-1][names.FULL].get("askable"))

    def models(self, circuits: CircuitsByTask | None = None) -> CircuitsByModel:
        """The circuits of the primary task with this model, its untrained twin, and the other models.

        circuits: of this model, by default those of `circuits`. Other models are loaded as this one is, but for the
        revision, which is this model's.
        """
        circuits = self.circuits() if circuits is None else circuits
        model = self.study.model
        others = [replace(model, name=name, revision=None, loader=None) for name in self.other_models]
        studies = [self.study.twin()] if self.untrained_control else []
        studies += [self.study.replace(model=other) for other in others]
        compared = [study.compare(written=False) for study in studies]
        twin = compared.pop(0) if self.untrained_control else None
        by_model: dict[str, Circuits] = {model.title: circuits.by_task[self.study.task]}
        by_model |= dict(zip(map(shown_name, self.other_models), compared, strict=True))
        return CircuitsByModel(by_model, twin)
