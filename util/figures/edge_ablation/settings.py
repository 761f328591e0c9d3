"""Settings of edge ablation: what is measured, and which prompts and donors an answer is to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from util.prompts import prompt, word_pair_prompts, word_pairs
from util.prompts.word_pairs import LAYOUTS, WordPairTask
from util.study.checked import AsList, Count, Counts, Distinct, Int, Natural, Share, Text, checked

TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
PRIMARY, PRUNED = "capitalization", ("copying", "capitalization")


def layout_fields(value: Any) -> Any:
    """A layout by its name as its fields; other values are returned unchanged."""
    return asdict(LAYOUTS[value]) if isinstance(value, str) and value in LAYOUTS else value


Task = Annotated[Text, AfterValidator(lambda name: word_pairs.find(name).name)]  # which names all tasks in its error
Tasks = Annotated[tuple[Task, ...], AsList, Distinct]
Seeds = Annotated[tuple[Natural, ...], AsList, Distinct]
Layout = Annotated[  # a name, or fields of `prompts.prompt.Layout`
    Mapping[Literal["separator", "join", "end", "header"], str], BeforeValidator(layout_fields)
]


@checked
class Draw:
    """Prompts of one word-pair task and one draw of donors, see `word_pair_prompts.prompts`.

    task: by its name, or a file or folder of pairs, see `prompts.own_tasks`. layout: one of `LAYOUTS`, or what differs
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
        word_pair_prompts.marked_demonstrations(
            self.pairs, self.prompts, self.k, self.corruptions, self.split, self.ambiguous
        )

    @cached_property
    def pairs(self) -> WordPairTask:
        """The task in this layout, read once: a file that is changed later changes nothing here.

        Raises ValueError for words that the layout cannot hold.
        """
        task = word_pairs.find(self.task, trained=self.trained)
        if self.layout is None:
            return task
        return replace(task, layout=prompt.Layout(**self.layout))  # type: ignore[arg-type]  # its keys are str

    def drawn(self, tokenizer: Any) -> word_pair_prompts.WordPairPrompts:
        """The prompts and their donors. Raises what `word_pair_prompts.prompts` raises."""
        fields = ("k", "seed", "donor_seed", "corruptions", "split", "ambiguous", "order", "in_turn")
        options = {field: getattr(self, field) for field in fields}
        return word_pair_prompts.prompts(self.pairs, tokenizer, self.prompts, **options)


@checked
class Settings:
    """What is measured, see notebook 04; what one of its parts would refuse is refused beforehand.

    tasks: in which circuits are compared, see `Draw`; primary_task: one of them, of the map, the search, the windows
    and the probes, by default PRIMARY, else the first. k: demonstrations; prompts: of each task; donor_seeds: draws of
    donors. random_circuits: with as many type pairs, or units, as the one found. corruptions: of the probes, from 1 on,
    by default all that the primary task has. pruned_tasks: in which heads and edges are pruned, by default PRUNED,
    where tasks have none of these the primary task; search_prompts: on which they are scored; per_round: the share of
    the living units that goes in a round.
    layout: see `Draw`. untrained_control: also the untrained twin, a second model in memory.
    """

    tasks: Tasks = TASKS
    primary_task: Task | None = None
    k: Count = 10
    prompts: Annotated[Int, Field(ge=2)] = 32  # an interval needs two
    seed: Natural = 0
    donor_seeds: Seeds = (0, 1, 2)
    random_circuits: Natural = 20
    corruptions: Counts | None = None
    pruned_tasks: Tasks | None = None
    search_prompts: Count = 64
    per_round: Share = 0.2
    layout: Layout | None = None
    untrained_control: bool = True

    def __post_init__(self) -> None:
        primary = self.primary_task or (PRIMARY if PRIMARY in self.tasks else self.tasks[0])
        pruned = self.pruned_tasks or (PRUNED if {*PRUNED} & {*self.tasks} else (primary,))
        probed = self.corruptions or word_pairs.find(primary).corruptions[1:]
        for name, value in (("primary_task", primary), ("pruned_tasks", pruned), ("corruptions", probed)):
            object.__setattr__(self, name, value)
        if self.primary_task not in self.tasks:
            raise ValueError(f"tasks = {list(self.tasks)}: the primary task, {self.primary_task!r}, is to be one")
        for task in (*self.tasks, *pruned):
            self.draws(task=task)
        self.draws(corruptions=(0, *probed))

    def draws(self, **changes: Any) -> list[Draw]:
        """Prompts of the primary task, with each draw of donors. changes: fields of `Draw`, such as another task."""
        shared = {name: getattr(self, name) for name in ("k", "prompts", "seed", "layout")}
        options = {"task": self.primary_task, **shared, **changes}
        return [Draw(**options, donor_seed=seed) for seed in self.donor_seeds]
