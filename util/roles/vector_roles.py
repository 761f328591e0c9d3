"""Function-vector heads by score and effect, on word pairs (Todd et al. 2024, section 2.3).

The effect is the head's average indirect effect (AIE): by how much its mean output over intact prompts makes the answer
more probable in prompts whose demonstrations do not show the task. That is what the paper has. It does not say that
this output depends on the task; so the score is how much more a head's output at the last token of an intact prompt is
like its mean over other prompts of the same task than like its means over the other tasks (cosine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from util.edges.splicing import groups_of
from util.engine.batches import TOKEN_BUDGET
from util.records.checked import AtLeastFour, Count, Natural, checked
from util.records.study import Study
from util.roles.function_vectors import (
    TASKS,
    Corruption,
    FunctionVectorStudy,
    TaskNames,
    each_last_output,
    function_vector_heads,
)
from util.roles.results import FunctionVectorHeads
from util.roles.rules import Effect, Evidence, Role, Score

ROOM = 0.05  # by how much more probable intact demonstrations make the answer, at least


@checked
class VectorRoles(Study):
    """Which heads of a model tell it the task.

    tasks, k, prompts, intact: see `FunctionVectorStudy`; two tasks at least. The units are means over the tasks of one
    prompt each. The outputs of demonstrations are shuffled, or, where that leaves the answer as probable as it was (by
    less than ROOM), those of other lists. Raises ValueError for one task alone, and what `FunctionVectorStudy` raises.
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
        self._studies("shuffled")

    def _studies(self, corruption: Corruption) -> list[FunctionVectorStudy]:
        return [
            FunctionVectorStudy(
                self.model, task, self.k, self.prompts, self.seed,
                intact=self.intact, corruption=corruption, folder=self.folder, redo=self.redo,
            )
            for task in self.tasks
        ]  # fmt: skip

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 1,
            "tasks": [study.own_request for study in self._studies("shuffled")],
        }

    @property
    def texts(self) -> list[str]:
        return [text for study in self._studies("shuffled") for text in study.texts]

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of the role."""
        index, effects = self._effects
        score = self._score(index)
        heads, second = score.chosen(), score.halves[1]
        layers, places = (np.array([head[i] for head in heads], dtype=int) for i in (0, 1))
        effect = Effect(heads, effects[second][:, layers, places], np.zeros(1), "probability of the answer")
        return (Evidence(Role.FUNCTION_VECTOR, score, effect),)

    @cached_property
    def _effects(self) -> tuple[list[int], NDArray[np.float64]]:
        """The numbers [P] of the prompts that every task has, and the effects [P, L, H]."""
        for corruption in get_args(Corruption):
            found: FunctionVectorHeads = function_vector_heads(self._studies(corruption))
            if found.room >= ROOM:
                break
        common = set.intersection(*({*task.index.tolist()} for task in found.tasks))
        return sorted(common), found.units

    def _score(self, index: Sequence[int]) -> Score:
        """The likeness to the own task's mean, and as its null to the other tasks', means over tasks [P, L, H]."""
        data = self.record({"part": "likeness"}, self._measure_likeness).data
        chosen = [np.isin(data[f"index {task}"], index) for task in range(len(self.tasks))]
        values = [
            np.mean([data[f"{name} {task}"][which] for task, which in enumerate(chosen)], axis=0)
            for name in ("own", "other")
        ]
        return Score(values[0], values[1], "cosine")

    def _measure_likeness(self) -> dict[str, Any]:
        studies = self._studies("shuffled")
        means = np.stack([study.means for study in studies]).astype(np.float64)
        means /= np.linalg.norm(means, axis=-1, keepdims=True)
        data: dict[str, Any] = {}
        for task, study in enumerate(studies):
            ids = [group.base.ids[: group.length] for group in groups_of(study.corrupted.items, self.pair[1])]
            z = each_last_output(self.pair[0], ids, TOKEN_BUDGET)
            z /= np.linalg.norm(z, axis=-1, keepdims=True)
            likeness = np.einsum("nlhd,tlhd->tnlh", z, means)
            data[f"index {task}"] = np.array([item.index for item in study.corrupted.items])
            data[f"own {task}"] = likeness[task].astype(np.float32)
            data[f"other {task}"] = np.delete(likeness, task, axis=0).mean(axis=0).astype(np.float32)
        return data
