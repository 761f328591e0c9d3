"""Function-vector heads by score and effect, on word pairs (Todd et al. 2024, section 2.3).

What a head writes at the last token of intact prompts, its mean over prompts of one task, is patched into prompts whose
demonstrations do not show the task: by so much more probable the answer becomes (the causal indirect effect of the
paper). That alone does not say that the head tells the task: what it writes after any demonstrations may help as much.
So the control is the mean of another task, patched into the same head of the same prompts. The paper has no score
either. Here it says that the task decides what the head writes, more than the single prompt does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY
from functools import cached_property, reduce
from itertools import chain
from typing import get_args

import numpy as np
import pandas as pd

from util.prompts.prompt import UnsupportedTokenizer
from util.roles.effects import Blocks, Numbers, evidence
from util.roles.function_vectors import (
    TASKS,
    Corruption,
    FunctionVectorStudy,
    TaskNames,
    answer_probabilities,
    each_last_output,
    probabilities_under,
    why_no_prompts,
)
from util.roles.rules import ROOM, Evidence, Floats, Role, Score
from util.study.checked import AtLeastFour, Count, Natural, checked
from util.study.records import Fields, Measurement, chunks, joined

BLOCK = 8  # prompts that are measured before what was measured is kept


@checked
class VectorRoles(Measurement):
    """Which heads of a model tell it the task.

    tasks, k, prompts, intact: see `FunctionVectorStudy`; two tasks at least. The units are means over the tasks of one
    prompt each. The outputs of demonstrations are shuffled, or, where that leaves the answer as probable as it was (by
    less than ROOM), those of other lists.

    The score is the likeness (cosine) of what a head writes at the last token of an intact prompt to its mean over
    other prompts of the task. Its null lies midway between 1 and the likeness to the means of the other tasks: there
    the prompt decides as much of what the head writes as the task does. (By squared distances of unit vectors: the
    other means are twice as far away as the own one, so that between tasks there is as much variance as within.)

    The effect is how much more probable the answer becomes when the mean of the task is written into the head. The
    control is the mean of one other task, of each other task in turn (by the number of the prompt).

    Raises ValueError for one task alone, and what `FunctionVectorStudy` raises.
    """

    tasks: TaskNames = TASKS
    k: Count = 10
    prompts: AtLeastFour = 24
    seed: Natural = 0
    _: KW_ONLY
    intact: Count = 32

    stem = "role_atlas"

    def __post_init__(self) -> None:
        if len(self.tasks) < 2:
            raise ValueError(f"tasks = {list(self.tasks)}: give two or more; a task is told from the others")
        self._studies  # noqa: B018  # it checks all arguments

    @cached_property
    def _studies(self) -> dict[Corruption, list[FunctionVectorStudy]]:
        """The study of every task, by corruption: they draw the prompts and keep the mean outputs."""
        return {
            corruption: [
                FunctionVectorStudy(
                    self.model, task, self.k, self.prompts, self.seed,
                    intact=self.intact, corruption=corruption, **self.places,
                )
                for task in self.tasks
            ]
            for corruption in get_args(Corruption)
        }  # fmt: skip

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 1,
            "method_version": 2,
            "tasks": [study.own_request for study in self._studies["shuffled"]],
        }

    @property
    def texts(self) -> list[str]:
        return [text for study in self._studies["shuffled"] for text in study.texts]

    def with_prompts(self) -> tuple[VectorRoles, list[str]]:
        """Returns the same of the tasks that the tokenizer has prompts of, and why others are left out.

        The model is loaded. Raises UnsupportedTokenizer where fewer than two tasks are left.
        """
        reasons: dict[str, UnsupportedTokenizer] = {}
        for study in chain(*self._studies.values()):
            try:
                study.corrupted, study.intact_prompts  # noqa: B018  # they raise it
            except UnsupportedTokenizer as error:
                reasons.setdefault(study.task, error)
                if len(self.tasks) - len(reasons) < 2:
                    raise
        rest = [task for task in self.tasks if task not in reasons]
        return self.replace(tasks=rest), [f"left out, {why_no_prompts(error)}" for error in reasons.values()]

    # -------------------------------------------------------------------------------------------- the prompts

    @cached_property
    def _corruption(self) -> Corruption:
        """How demonstrations are corrupted: the first way that leaves ROOM, else the last."""
        *first, last = get_args(Corruption)
        return next((corruption for corruption in first if self._room(corruption) >= ROOM), last)

    def _room(self, corruption: Corruption) -> float:
        """How much more probable the answer is after intact demonstrations, the mean of the tasks."""

        def measure() -> Fields:
            lost = []
            for prompts in self._drawn(corruption):
                answers = prompts["answer"].tolist()
                intact, corrupted = (
                    answer_probabilities(self.pair[0], prompts[name].tolist(), answers)
                    for name in ("intact", "corrupted")
                )
                lost.append((intact - corrupted).mean(dtype=np.float64))
            return {"room": np.array(lost)}

        return float(self.measured(measure, part="room", corruption=corruption).data["room"].mean())

    def _drawn(self, corruption: Corruption) -> list[pd.DataFrame]:
        """The prompts of every task: those whose number every task has."""
        tokens = [study.tokens for study in self._studies[corruption]]
        common = reduce(np.intersect1d, [of_task.index for of_task in tokens])
        return [of_task.loc[common] for of_task in tokens]

    @cached_property
    def _prompts(self) -> list[pd.DataFrame]:
        return self._drawn(self._corruption)

    @cached_property
    def _means(self) -> Floats:
        """What heads write, the mean over intact prompts of every task, [T, L, H, dv]."""
        return np.stack([study.means for study in self._studies[self._corruption]])

    # -------------------------------------------------------------------------------------------- score

    @cached_property
    def _score(self) -> Score:
        data = self.measured(self._measure_likeness, part="likeness", corruption=self._corruption).data
        return Score(data["own"], (1 + data["other"]) / 2)

    def _measure_likeness(self) -> Fields:
        """The likeness to the own task's mean and to those of the others, means over tasks [P, L, H] each."""
        means = self._means.astype(np.float64)
        means /= np.linalg.norm(means, axis=-1, keepdims=True)
        own, other = [], []
        for number, prompts in enumerate(self._prompts):
            z = each_last_output(self.pair[0], prompts["intact"].tolist())
            z /= np.linalg.norm(z, axis=-1, keepdims=True)
            likeness = np.einsum("nlhd,tlhd->tnlh", z, means)
            own.append(likeness[number])
            other.append(np.delete(likeness, number, axis=0).mean(axis=0))
        return {"own": np.mean(own, axis=0), "other": np.mean(other, axis=0)}

    # -------------------------------------------------------------------------------------------- effect

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of the role."""
        second = self._score.halves[1]
        count, tasks = len(second), len(self.tasks)

        def blocks() -> Blocks:
            """Prompts of one task together: prompt i of task t has the number t * count + i."""
            return [block for task in range(tasks) for block in chunks(range(task * count, (task + 1) * count), BLOCK)]

        def measure(numbers: Numbers) -> Fields:
            """What the own task's mean and another task's add to the answer's probability, [P, C] each."""
            task = numbers[0] // count
            prompts = self._prompts[task].iloc[second[np.array(numbers) % count]]
            # the control is one other task, each in turn
            others = (task + 1 + prompts.index.to_numpy() % (tasks - 1)) % tasks
            means_of = np.full(len(others), task), others
            writes = [(head, self._means[(of, *head)]) for of in means_of for head in self._score.chosen]
            ids, answers = prompts["corrupted"].tolist(), prompts["answer"].tolist()
            corrupted, patched = probabilities_under(self.pair[0], ids, answers, writes)
            own, other = np.split((patched - corrupted[:, None]).astype(np.float64), 2, axis=1)
            return {"own": own, "other": other}

        def mean_of_tasks(added: Fields) -> Iterator[Floats]:
            return (added[name].reshape(tasks, count, -1).mean(axis=0) for name in ("own", "other"))

        join, corruption = joined("own", "other"), self._corruption
        role = Role.FUNCTION_VECTOR
        return (evidence(self, role, self._score, measure, blocks, join, mean_of_tasks, corruption=corruption),)
