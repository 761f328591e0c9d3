"""The five claims about edges on a model, with many distinct queries.

The rules are those of `claims`. Every ablation of every task and draw of donors is a cached record, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, windows
from util.edges.edge import CIRCUITS, TYPE_PAIRS
from util.edges.splicing import Store
from util.figures.edge_ablation import claims, measures
from util.figures.edge_ablation.claims import AMBIGUOUS, RULE, Evidence, Rule, Verdicts
from util.figures.edge_ablation.measures import Rows
from util.figures.edge_ablation.plan import TASKS, Names
from util.figures.edge_ablation.results import Search, counted_queries
from util.figures.edge_ablation.study import DONOR_SEEDS, Data, Seeds, Split, Study, check_seeds, is_trained
from util.prompts import word_pairs
from util.records import study as base
from util.records.checked import Count, Natural, checked

STEM = "edge_claims"
COUNTS = (0, 4, 7, 9)  # ambiguous of 10 demonstrations; with 10 nothing asks for the past tense
THREE = (names.FULL, names.CTX_AGG, names.AGG_ONLY)  # circuits of every task
TWO = (names.FULL, names.AGG_ONLY)  # circuits of ambiguous demonstrations
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31
QUIET = 1.0  # seconds: what takes less was cached, and says nothing about what is left


class Progress:
    """Says which step is next, how long they took, and about how long all that are left will take.

    sizes: how many prompts each step runs, in order.
    """

    def __init__(self, sizes: Sequence[int], say: Callable[[str], None] = print) -> None:
        self.sizes, self.say, self.place = list(sizes), say, 0
        self.measured, self.seconds = 0, 0.0

    def run(self, title: str, work: Callable[[], Any]) -> Any:
        """The result of the next step."""
        start = time.monotonic()
        result = work()
        took = time.monotonic() - start
        if took >= QUIET:
            self.measured, self.seconds = self.measured + self.sizes[self.place], self.seconds + took
        self.place += 1
        self.say(f"[{self.place}/{len(self.sizes)}] {title}: {took:.0f} s{self.left()}")
        return result

    def left(self) -> str:
        """About how long the steps that are left take, at the pace of those that were not cached."""
        if not self.measured or self.place == len(self.sizes):
            return ""
        minutes = sum(self.sizes[self.place :]) * self.seconds / self.measured / 60
        return f"; at most about {minutes:.0f} min left" if minutes >= 1 else "; less than a minute left"


@dataclass(frozen=True)
class Measured:
    """What a study of the claims gives. about: the model in words."""

    study: ClaimsStudy
    about: str
    search: Search
    verdicts: Verdicts

    def values(self) -> dict[str, Any]:
        """What is stored of it, for `report.save_values`."""
        study = self.study
        return {
            "model": study.model.shown_name,
            "about": self.about,
            "settings": study.own_request,
            "rule": study.rule,
            "kept": [str(edge) for edge in self.search.pairs],
            "claims": self.verdicts.claims,
        }


def _counted(study: Study, answers: Mapping[str, Data]) -> int:
    """How many queries a task has for the tokenizer, by its answers."""
    return counted_queries(answers[names.FULL].get("askable"), study.task)


@checked
class ClaimsStudy(base.Study):
    """What the claims ask for, measured in several tasks.

    prompts: of each task, each with a query of its own, or as many as the list has. primary: the task of claims 1 and
    5; search_prompts: those that claim 1's circuit is searched on. say: is called with lines of progress.
    Raises ValueError for tasks and numbers that there are not, before a model is loaded.
    """

    tasks: Names = TASKS
    k: Count = 10
    prompts: Count = 250
    seed: Natural = 0
    _: KW_ONLY
    donor_seeds: Seeds = DONOR_SEEDS
    primary: str = "capitalization"
    search_prompts: Count = 64
    rule: Rule = RULE
    say: Callable[[str], None] = field(default=print, compare=False, repr=False)

    stem: ClassVar[str] = STEM

    def __post_init__(self) -> None:
        check_seeds("donor_seeds", self.donor_seeds)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks = {list(self.tasks)}: give one task or more, none of them twice")
        for name, task in [*(("tasks", task) for task in self.tasks), ("primary", self.primary)]:
            if task not in TASKS:
                raise ValueError(f"{name} = {task!r}: choose from {', '.join(TASKS)}")
        if self.k != 10:
            raise ValueError(f"k = {self.k}: the ambiguous demonstrations of claim 4 are counted out of 10")

    @property
    def own_request(self) -> dict[str, Any]:
        """The settings; the records are those of the studies of each task."""
        return {
            "prompts": self.prompts,
            "k": self.k,
            "donor_seeds": list(self.donor_seeds),
            "primary": self.primary,
            "search_prompts": self.search_prompts,
        }

    @property
    def texts(self) -> Iterable[str]:
        """The tasks."""
        return self.tasks

    def study(self, task: str, prompts: int | None = None, split: Split = "test", **options: Any) -> Study:
        """The study of one task, of as many prompts as there are queries, or fewer."""
        there = len(word_pairs.find(task, trained=is_trained(self.model.name)).queries(split))
        return Study(
            self.model,
            task,
            self.k,
            min(self.prompts if prompts is None else prompts, there),
            self.seed,
            donor_seeds=self.donor_seeds,
            split=split,
            two_pass=True,
            in_turn=True,
            folder=self.folder,
            redo=self.redo,
            **options,
        )

    @cached_property
    def searching(self) -> Study:
        """The study whose circuit is searched."""
        return self.study(self.primary, self.search_prompts, "search")

    def measure(self) -> Measured:
        """All that the claims ask for, and their verdicts."""
        by_task = {task: self.study(task) for task in self.tasks}
        by_count = {count: self.study(AMBIGUOUS, ambiguous=count) for count in COUNTS}
        progress = self._progress([*by_task.values()], [*by_count.values()])
        askable: dict[str, int] = {}

        def answered(study: Study, title: str, circuits: Sequence[str]) -> Rows:
            ablations = {name: WHOLE if name == names.FULL else Ablation(kept=CIRCUITS[name]) for name in circuits}
            store, draws = Store(ROOM), list[dict[str, Data]]()  # draws of donors share the runs of the prompts
            for draw in study.draws:
                told = f"{title}, donors {draw.donor_seeds[0]}"
                draws.append(progress.run(told, partial(draw.answers, ablations, store=store)))
            askable[study.task] = _counted(study, draws[-1])
            return measures.aligned(draws)

        tasks = {task: answered(study, task, THREE) for task, study in by_task.items()}
        ambiguous = {count: answered(study, f"{count} ambiguous", TWO) for count, study in by_count.items()}
        search: Search = progress.run(f"{self.primary}, search", partial(self.searching.search, self.rule.share))
        record = self.searching.records({names.FULL: WHOLE})[names.FULL]
        layers = int(record.data["layers"])
        rows: Rows = progress.run(f"{self.primary}, circuit and layers", partial(self._last, search, layers))
        if self.primary not in askable:
            study = self.study(self.primary)
            askable[self.primary] = _counted(study, study.answers({names.FULL: WHOLE}))
        evidence = Evidence(
            tasks=tasks,
            circuit=rows,
            kept=len(search.pairs),
            ambiguous=ambiguous,
            halves=rows,
            layers=layers,
            primary=self.primary,
            askable=askable,
            trained=is_trained(self.model.name),
            k=self.k,
        )
        return Measured(self, record.provenance["model"], search, claims.judge(evidence, self.rule))

    def _last(self, search: Search, layers: int) -> Rows:
        """The circuit that was found, and each of the two families in its half of the layers."""
        half = {name: ablation for name, ablation in windows(layers).items() if name in names.halves(layers)}
        ablations = half | {names.FULL: WHOLE, names.FOUND: Ablation(kept=search.kept)}
        return self.study(self.primary).over_donors(ablations, store=Store(ROOM))

    def _progress(self, by_task: Sequence[Study], by_count: Sequence[Study]) -> Progress:
        """Of all steps, the search and what comes after it the last."""
        draws = len(self.donor_seeds)
        sizes = [study.prompts * len(THREE) for study in by_task for _ in range(draws)]
        sizes += [study.prompts * len(TWO) for study in by_count for _ in range(draws)]
        searching = self.searching.prompts * (2 * len(TYPE_PAIRS) + 1)
        last = draws * self.study(self.primary).prompts * 4  # FULL, the circuit found, and two windows
        return Progress([*sizes, searching, last], self.say)
