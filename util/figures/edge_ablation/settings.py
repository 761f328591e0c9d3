"""Settings of edge ablation: what is measured, and which prompts and donors an answer is to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from util.prompts import word_pair_prompts, word_pairs
from util.study.checked import AsList, Count, Counts, Distinct, Int, Natural, Share, Text, checked

TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")


Task = Annotated[
    Text, AfterValidator(lambda name: word_pairs.find(name) and name)  # which names all tasks in its error
]
Tasks = Annotated[tuple[Task, ...], AsList, Distinct]
Seeds = Annotated[tuple[Natural, ...], AsList, Distinct]
Layout = Mapping[Literal["separator", "join", "end", "header"], str]  # fields of `prompts.prompt.Layout`


@checked
class Draw:
    """Prompts of one word-pair task and one draw of donors, see `word_pair_prompts.prompts`.

    task: by its name, or a folder with a data set of pairs, see `word_pairs.pairs_from_saved`. layout: what differs
    from the task's own, such as {"separator": ":", "join": " "}. token_budget: None for that of `engine.batches`.
    in_turn: no query comes again before all came. trained: the words that the embedded model was trained on, not the
    longer lists. Raises ValueError for an unknown task, split, order or corruption, and for a number that the task does
    not have.
    """

    task: Task = "country_capital"
    k: Count = 10
    prompts: Count = 200
    seed: Natural = 0
    donor_seed: Natural = 0
    split: Literal["all", "search", "test"] = "test"
    corruptions: Seeds = (0,)
    ambiguous: Natural | None = None
    order: Literal["random", "ambiguous first", "ambiguous last"] = "random"
    layout: Layout | None = None
    token_budget: Count | None = None
    in_turn: bool = False
    trained: bool = False

    def __post_init__(self) -> None:
        task = word_pairs.find(self.task, trained=self.trained)
        word_pair_prompts.marked_demonstrations(
            task, self.prompts, self.k, self.corruptions, self.split, self.ambiguous
        )


@checked
class Settings:
    """What is measured, see notebook 04; what one of its parts would refuse is refused beforehand.

    tasks: in which circuits are compared; primary_task: one of them, of the map, the search, the windows and the
    probes. k: demonstrations; prompts: of each task; donor_seeds: draws of donors. random_circuits: with as many type
    pairs, or units, as the one found. corruptions: of the probes, from 1 on. pruned_tasks: in which heads and edges are
    pruned; search_prompts: on which they are scored; per_round: the share of the living units that goes in a round.
    layout: see `Draw`. untrained_control: also the untrained twin, a second model in memory.
    """

    tasks: Tasks = TASKS
    primary_task: Task = "capitalization"
    k: Count = 10
    prompts: Annotated[Int, Field(ge=2)] = 32  # an interval needs two
    seed: Natural = 0
    donor_seeds: Seeds = (0, 1, 2)
    random_circuits: Natural = 20
    corruptions: Counts = (1, 2, 3, 4, 5)
    pruned_tasks: Tasks = ("copying", "capitalization")
    search_prompts: Count = 64
    per_round: Share = 0.2
    layout: Layout | None = None
    untrained_control: bool = True

    def __post_init__(self) -> None:
        if self.primary_task not in self.tasks:
            raise ValueError(f"tasks = {list(self.tasks)}: the primary task, {self.primary_task!r}, is to be one")
        for task in (*self.tasks, *self.pruned_tasks):
            self.draws(task=task)
        self.draws(corruptions=(0, *self.corruptions))

    def draws(self, **changes: Any) -> list[Draw]:
        """Prompts of the primary task, with each draw of donors. changes: fields of `Draw`, such as another task."""
        shared = {name: getattr(self, name) for name in ("k", "prompts", "seed", "layout")}
        options = {"task": self.primary_task, **shared, **changes}
        return [Draw(**options, donor_seed=seed) for seed in self.donor_seeds]
