"""All that notebook 01 measures of one model: its settings, checked together, and a method for each of its sections."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated

from util.figures.forerunner_heads.ablation import AblationStudy, CausalStudy, CellLists
from util.figures.forerunner_heads.results import (
    DataSets,
    Growth,
    HeadEffects,
    InductionHeads,
    Tables,
    Task,
)
from util.figures.forerunner_heads.study import ByDemonstrations, Grid, Study
from util.records.checked import AsList, Count, Counts, Distinct, Natural, checked
from util.records.staicc import Dataset, Datasets, Prompts
from util.roles import label_task

GRID = ("glue_sst2", "rotten_tomatoes", "financial_phrasebank", "sst5", "trec", "agnews")


@checked
class Plan:
    """The settings of all sections beside those of the study; what one of them would refuse is refused beforehand.

    causal_datasets, causal_k, choice_prompts, read_prompts, single_heads, heads_cut: see `CausalStudy`. ablated:
    prompts of the ablations; random_sets, cell_lists, full_grid: see draws, cell_lists and every_part of
    `AblationStudy`. grid_datasets: see `Grid`; grid_k: see `ByDemonstrations`, on k_dataset. grid_prompts: of each
    entry of both.
    """

    study: Study
    _: KW_ONLY
    causal_datasets: Datasets = label_task.DATASETS
    causal_k: Counts = label_task.KS
    choice_prompts: Prompts = 128
    ablated: Prompts = 24
    read_prompts: Prompts = 64
    random_sets: Count = 1
    single_heads: Prompts = 8
    heads_cut: Count = 16
    cell_lists: CellLists = "corrected"
    full_grid: bool = False
    grid_datasets: Datasets = GRID
    grid_k: Annotated[tuple[Natural, ...], AsList, Distinct] = (0, 1, 2, 4, 8, 12)
    k_dataset: Dataset = "trec"
    grid_prompts: Prompts = 64

    def __post_init__(self) -> None:
        self.causal, self.grid, self.by_k  # noqa: B018  # they refuse what they cannot measure

    @cached_property
    def causal(self) -> CausalStudy:
        """The causal parts."""
        ablation = AblationStudy.like(
            self.study,
            prompts=self.ablated,
            cell_lists=self.cell_lists,
            draws=self.random_sets,
            every_part=self.full_grid,
        )
        return CausalStudy(
            ablation,
            self.causal_datasets,
            self.causal_k,
            choice_prompts=self.choice_prompts,
            read_prompts=self.read_prompts,
            single_heads=self.single_heads,
            heads_cut=self.heads_cut,
        )

    @cached_property
    def grid(self) -> Grid:
        """The study on several data sets."""
        return Grid(self.study.replace(prompts=self.grid_prompts), self.grid_datasets)

    @cached_property
    def by_k(self) -> ByDemonstrations:
        """The study with several numbers of demonstrations."""
        return ByDemonstrations(self.study.replace(prompts=self.grid_prompts, dataset=self.k_dataset), self.grid_k)

    # -------------------------------------------------------------------------------------------- the sections

    def task(self) -> Task:
        """Which data set the model does."""
        return self.causal.task()

    def tables(self) -> Tables:
        """What the model loses when a step of the circuit is cut."""
        return self.causal.tables()

    def induction_heads(self) -> InductionHeads:
        """Whose labels the query's forerunner reads."""
        return self.causal.induction_heads()

    def head_effects(self) -> HeadEffects:
        """What the heads that move most are worth."""
        return self.causal.head_effects(self.study)

    def datasets(self) -> DataSets:
        """How often heads exceed the threshold, by data set."""
        return self.grid.counts()

    def growth(self) -> Growth:
        """How many heads exceed the threshold, by k."""
        return self.by_k.growth()
