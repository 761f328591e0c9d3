"""All that notebook 04 measures of one model: its settings, checked together, and a method for each of its sections."""

from __future__ import annotations

from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from util.edges.ablation import cuts
from util.figures.edge_ablation import claims
from util.figures.edge_ablation.claims import AMBIGUOUS, Evidence, Margin, Rule, Verdicts
from util.figures.edge_ablation.results import (
    Ambiguity,
    Circuits,
    CircuitsByModel,
    CircuitsByTask,
    PlantedSearch,
    Probes,
    Search,
    SingleEdges,
    Summary,
    VerifiedCircuit,
    Windows,
)
from util.figures.edge_ablation.study import DONOR_SEEDS, STEM, Seeds, Study, check_seeds, is_trained, planted_control
from util.load_model_and_data import shown_name
from util.prompts import word_pairs
from util.records.checked import AsList, Count, Natural, Share, Text, checked
from util.records.model import AsModel, Model

TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
Names = Annotated[tuple[Text, ...], AsList]


@checked
class Plan:
    """The settings of all studies of one model; everything that one of them would refuse is refused here, beforehand.

    primary_task: one of tasks, of the map, the search, the windows and the probes. random_circuits: with as many type
    pairs as the one found. share: of the accuracy, what a search has to keep. margin: of accuracy, what claims call a
    loss. layer_cuts: layers where windows begin or end. ambiguous_counts: demonstrations, of k, that fit two rules.
    corruptions: of the probes, from 1 on. other_models: names of further models. untrained_control: also the untrained
    twin. layout, two_pass: see `Study`. folder, redo: see `records.study.Study`.
    """

    model: AsModel = field(default_factory=Model)
    tasks: Names = TASKS
    k: Count = 10
    prompts: Count = 32
    seed: Natural = 0
    _: KW_ONLY
    primary_task: Text = "capitalization"
    donor_seeds: Seeds = DONOR_SEEDS
    random_circuits: Natural = 20
    share: Share = 0.9
    margin: Margin = 0.1
    layer_cuts: Count = 9
    ambiguous_counts: Seeds = (0, 4, 7, 9, 10)
    corruptions: Seeds = (1, 2, 3, 4, 5)
    other_models: Names = ()
    untrained_control: bool = True
    layout: dict[str, str] | None = None
    two_pass: bool = True
    folder: Path | None = field(default=None, compare=False, repr=False)
    redo: bool = field(default=False, compare=False, repr=False)

    stem: ClassVar[str] = STEM

    def __post_init__(self) -> None:
        for name in ("donor_seeds", "corruptions", "ambiguous_counts"):
            check_seeds(name, getattr(self, name))
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks = {list(self.tasks)}: give one task or more, none of them twice")
        for name, task in [*(("tasks", task) for task in self.tasks), ("primary_task", self.primary_task)]:
            try:
                word_pairs.find(task)
            except ValueError as error:
                raise ValueError(f"{name} = {task!r}: {error}") from error
        if self.primary_task not in self.tasks:
            raise ValueError(f"primary_task = {self.primary_task!r}: choose one of tasks = {list(self.tasks)}")
        if self.prompts < 2:
            raise ValueError(f"prompts = {self.prompts}: give two prompts or more; one has no interval")
        if 0 in self.corruptions:
            raise ValueError(f"corruptions = {list(self.corruptions)}: give corruptions from 1 on")
        try:
            cuts(2, self.layer_cuts)
        except ValueError as error:
            raise ValueError(f"layer_cuts = {self.layer_cuts}: {error}") from error
        self._refuse_what_studies_refuse()

    def _refuse_what_studies_refuse(self) -> None:
        for task in self.tasks:
            self.study(task)
        try:
            self.primary.replace(corruptions=(0, *self.corruptions))
        except ValueError as error:
            raise ValueError(f"corruptions = {list(self.corruptions)}: {error}") from error
        for count in self.ambiguous_counts:
            try:
                self.primary.replace(task=AMBIGUOUS, ambiguous=count)
            except ValueError as error:
                raise ValueError(f"ambiguous_counts = {list(self.ambiguous_counts)}: {error}") from error

    def study(self, task: str) -> Study:
        """The study of one task."""
        return Study(
            self.model,
            task,
            self.k,
            self.prompts,
            self.seed,
            donor_seeds=self.donor_seeds,
            layout=self.layout,
            two_pass=self.two_pass,
            folder=self.folder,
            redo=self.redo,
        )

    @cached_property
    def primary(self) -> Study:
        """The study of the primary task."""
        return self.study(self.primary_task)

    def circuits(self) -> CircuitsByTask:
        """The circuits in every task."""
        return CircuitsByTask({task: self.study(task).compare() for task in self.tasks}, self.margin)

    def single_edges(self) -> SingleEdges:
        """What each type pair costs alone."""
        return self.primary.single_edges()

    def search(self) -> Search:
        """A circuit of the primary task."""
        return self.primary.search(self.share)

    def verified(self, search: Search) -> VerifiedCircuit:
        """That circuit on the test split."""
        return self.primary.verified(search, self.random_circuits)

    def planted(self) -> PlantedSearch:
        """The same search on a model whose circuit is known."""
        return planted_control(12, self.folder)

    def windows(self) -> Windows:
        """Contextualisation and aggregation by layer."""
        return self.primary.windows(self.layer_cuts)

    def probes(self) -> Probes:
        """What edges carry."""
        return self.primary.probes(self.corruptions)

    def ambiguity(self) -> Ambiguity:
        """Verbs with ambiguous demonstrations."""
        return self.primary.ambiguity(self.ambiguous_counts)

    def models(self, circuits: CircuitsByTask) -> CircuitsByModel:
        """The circuits of the primary task with this model, its untrained twin, and the other models.

        Other models are loaded as this one is, but for the revision, which is this model's.
        """
        by_model: dict[str, Circuits] = {self.model.title: circuits.by_task[self.primary_task]}
        if self.untrained_control:
            by_model["untrained"] = self.primary.twin().compare(written=False)
        for name in self.other_models:
            other = replace(self.model, name=name, revision=None, loader=None)
            by_model[shown_name(name)] = self.primary.replace(model=other).compare(written=False)
        return CircuitsByModel(by_model)

    def verdicts(
        self, circuits: CircuitsByTask, circuit: VerifiedCircuit, windows: Windows, ambiguity: Ambiguity
    ) -> Verdicts:
        """The claims, judged by what was measured. Raises ValueError where an old record lacks the count of queries."""
        evidence = Evidence(
            tasks={task: one.rows for task, one in circuits.by_task.items()},
            circuit=circuit.rows,
            kept=len(circuit.names),
            ambiguous=ambiguity.rows,
            halves=windows.rows,
            layers=windows.layers,
            primary=self.primary_task,
            askable={task: one.askable for task, one in circuits.by_task.items()} | {AMBIGUOUS: ambiguity.askable},
            trained=is_trained(self.model.name),
            k=self.k,
        )
        return claims.judge(evidence, Rule(share=self.share, margin=self.margin))

    def summary(
        self,
        circuits: CircuitsByTask,
        single: SingleEdges,
        circuit: VerifiedCircuit,
        planted: PlantedSearch,
        windows: Windows,
        probes: Probes,
        ambiguity: Ambiguity,
        models: CircuitsByModel,
        verdicts: Verdicts,
    ) -> Summary:
        """All results together, to be stored and checked."""
        return Summary(
            self.primary.request, circuits, single, circuit, planted, windows, probes, ambiguity, models, verdicts
        )
