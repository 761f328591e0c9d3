"""The five claims about edges on a model, with many distinct queries.

The rules are those of `claims`. Every ablation of every task and draw of donors is a cached record, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from tqdm import tqdm

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, windows
from util.edges.edge import CIRCUITS
from util.edges.splicing import Store
from util.figures.edge_ablation import claims
from util.figures.edge_ablation.claims import AMBIGUOUS, RULE, Rule
from util.figures.edge_ablation.measures import Rows
from util.figures.edge_ablation.plan import TASKS
from util.figures.edge_ablation.results import Search
from util.figures.edge_ablation.study import Split, Study, Tasks
from util.prompts import word_pairs
from util.records.checked import Count, checked
from util.stats.verdicts import Verdicts

COUNTS = (0, 4, 7, 9)  # ambiguous of 10 demonstrations; with 10 nothing asks for the past tense
THREE = (names.FULL, names.CTX_AGG, names.AGG_ONLY)  # circuits of every task
TWO = (names.FULL, names.AGG_ONLY)  # circuits of ambiguous demonstrations
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31


@dataclass(frozen=True)
class Measured:
    """What a study of the claims gives. about: the model in words."""

    study: ClaimsStudy
    about: str
    search: Search
    verdicts: Verdicts

    def values(self) -> dict[str, Any]:
        """What is stored of it, for `report.save_values`."""
        return {
            "model": self.study.study.model.shown_name,
            "about": self.about,
            "settings": self.study.settings,
            "rule": self.study.rule,
            "kept": [str(edge) for edge in self.search.pairs],
            "claims": self.verdicts.claims,
        }


@checked
class ClaimsStudy:
    """What the claims ask for, measured in several tasks.

    study: its model, seed and draws of donors, and its prompts of each task: each with a query of its own, or as many
    as the list has. Its task, the primary one, is that of claims 1 and 5. search_prompts: those that claim 1's circuit
    is searched on.
    Raises ValueError for tasks and numbers that there are not, before a model is loaded.
    """

    study: Study
    tasks: Tasks = TASKS
    _: KW_ONLY
    search_prompts: Count = 64
    rule: Rule = RULE

    stem: ClassVar[str] = "edge_claims"

    def __post_init__(self) -> None:
        for name, task in [*(("tasks", task) for task in self.tasks), ("task", self.study.task)]:
            if task not in TASKS:
                raise ValueError(f"{name} = {task!r}: choose from {', '.join(TASKS)}")
        if self.study.k != 10:
            raise ValueError(f"k = {self.study.k}: the ambiguous demonstrations of claim 4 are counted out of 10")

    @property
    def settings(self) -> dict[str, Any]:
        """What is stored of the settings; the records are those of the studies of each task."""
        return {
            "prompts": self.study.prompts,
            "k": self.study.k,
            "donor_seeds": list(self.study.donor_seeds),
            "primary": self.study.task,
            "search_prompts": self.search_prompts,
        }

    def task_study(
        self, task: str, prompts: int | None = None, split: Split = "test", ambiguous: int | None = None
    ) -> Study:
        """The study of one task, of as many prompts as there are queries, or fewer."""
        there = len(word_pairs.find(task, trained=word_pairs.is_trained(self.study.model.name)).queries(split))
        return self.study.replace(
            task=task,
            prompts=min(self.study.prompts if prompts is None else prompts, there),
            split=split,
            ambiguous=ambiguous,
            two_pass=True,
            in_turn=True,
        )

    def measure(self) -> Measured:
        """All that the claims ask for, and their verdicts."""
        primary = self.task_study(self.study.task)
        searching = self.task_study(self.study.task, self.search_prompts, "search")
        by_task = {task: self.task_study(task) for task in self.tasks}
        by_count = {count: self.task_study(AMBIGUOUS, ambiguous=count) for count in COUNTS}
        of_tasks = [answered(study, THREE) for study in tqdm(by_task.values(), "tasks")]
        tasks = dict(zip(by_task, of_tasks, strict=True))
        bar = tqdm(by_count.values(), "ambiguous demonstrations")
        ambiguous = dict(zip(by_count, [answered(study, TWO) for study in bar], strict=True))
        search = searching.search(self.rule.share)
        whole = searching.records({names.FULL: WHOLE})[names.FULL]
        layers = int(whole.data["layers"])
        half = {name: ablation for name, ablation in windows(layers).items() if name in names.halves(layers)}
        found = {names.FULL: WHOLE, names.FOUND: Ablation(kept=search.kept)}
        rows = primary.over_donors(half | found, store=Store(ROOM))
        counting = (primary, *by_task.values(), by_count[0])
        whole_alone = [study.answers({names.FULL: WHOLE}) for study in counting]
        counted = dict(zip([study.task for study in counting], whole_alone, strict=True))
        verdicts = claims.judge(
            self.rule,
            tasks,
            primary=primary.task,
            circuit=rows,
            kept=len(search.pairs),
            ambiguous=ambiguous,
            halves=rows,
            layers=layers,
            askable={task: answers[names.FULL].get("askable") for task, answers in counted.items()},
            trained=word_pairs.is_trained(primary.model.name),
            k=primary.k,
        )
        return Measured(self, whole.provenance["model"], search, verdicts)


def answered(study: Study, circuits: Sequence[str]) -> Rows:
    """The answers with some circuits and all draws of donors, which share the runs of the prompts."""
    ablations = {name: WHOLE if name == names.FULL else Ablation(kept=CIRCUITS[name]) for name in circuits}
    return study.over_donors(ablations, store=Store(ROOM))
