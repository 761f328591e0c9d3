"""Function-vector heads by score and effect, on word pairs (Todd et al. 2024, section 2.3).

What a head writes at the last token of intact prompts, its mean over prompts of one task, is patched into prompts whose
demonstrations do not show the task: by so much more probable the answer becomes (the causal indirect effect of the
paper). That alone does not say that the head tells the task: what it writes after any demonstrations may help as much.
So the control is the mean of another task, patched into the same head of the same prompts. The paper has no score
either. Here it says that the task decides what the head writes, more than the single prompt does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from util.engine.handshake import prepare
from util.engine.replay import replay
from util.prompts.prompt import UnsupportedTokenizer
from util.roles.effects import Blocks, chunks, evidence, last_write
from util.roles.function_vectors import (
    TASKS,
    Corruption,
    FunctionVectorStudy,
    TaskNames,
    TaskPrompt,
    answer_probabilities,
    each_last_output,
    why_no_prompts,
)
from util.roles.rules import Evidence, Floats, Role, Score
from util.stats.heads import Head
from util.study.checked import AtLeastFour, Count, Natural, checked
from util.study.records import Measurement, joined

ROOM = 0.05  # by how much more probable intact demonstrations make the answer, at least
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
                    intact=self.intact, corruption=corruption, folder=self.folder, redo=self.redo,
                )
                for task in self.tasks
            ]
            for corruption in get_args(Corruption)
        }  # fmt: skip

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "method_version": 2,
            "tasks": [study.own_request for study in self._studies["shuffled"]],
        }

    @property
    def texts(self) -> list[str]:
        return [text for study in self._studies["shuffled"] for text in study.texts]

    def tasks_left_out(self) -> dict[str, str]:
        """Returns the tasks that the tokenizer has no prompts of, each with the reason. The model is loaded."""
        reasons: dict[str, str] = {}
        for study in (study for studies in self._studies.values() for study in studies):
            try:
                study.corrupted, study.intact_prompts  # noqa: B018  # they raise it
            except UnsupportedTokenizer as error:
                reasons.setdefault(study.task, why_no_prompts(error))
        return reasons

    def evidence(self) -> tuple[Evidence, ...]:
        """Returns score and effect of the role."""
        return (self._evidence(),)

    # -------------------------------------------------------------------------------------------- the prompts

    @cached_property
    def _corruption(self) -> Corruption:
        """How demonstrations are corrupted: the first way that leaves ROOM, else the last."""
        *first, last = get_args(Corruption)
        return next((corruption for corruption in first if self._room(corruption) >= ROOM), last)

    def _room(self, corruption: Corruption) -> float:
        """How much more probable the answer is after intact demonstrations, the mean of the tasks."""

        def measure() -> dict[str, Any]:
            lost = []
            for _, prompts in self._drawn(corruption):
                answers = [prompt.answer for prompt in prompts]
                intact = answer_probabilities(self.pair[0], [prompt.intact for prompt in prompts], answers)
                corrupted = answer_probabilities(self.pair[0], [prompt.corrupted for prompt in prompts], answers)
                lost.append((intact - corrupted).mean(dtype=np.float64))
            return {"room": np.array(lost)}

        return float(self.measured(measure, part="room", corruption=corruption).data["room"].mean())

    def _drawn(self, corruption: Corruption) -> list[tuple[FunctionVectorStudy, list[TaskPrompt]]]:
        """Every task with its prompts: those whose number every task has."""
        studies = self._studies[corruption]
        common = set.intersection(*({prompt.index for prompt in study.tokens} for study in studies))
        return [(study, [prompt for prompt in study.tokens if prompt.index in common]) for study in studies]

    @cached_property
    def _tasks(self) -> list[tuple[FunctionVectorStudy, list[TaskPrompt]]]:
        return self._drawn(self._corruption)

    # -------------------------------------------------------------------------------------------- score

    @cached_property
    def _score(self) -> Score:
        data = self.measured(self._measure_likeness, part="likeness", corruption=self._corruption).data
        return Score(data["own"], (1 + data["other"]) / 2)

    def _measure_likeness(self) -> dict[str, Any]:
        """The likeness to the own task's mean and to those of the others, means over tasks [P, L, H] each."""
        means = np.stack([study.means for study, _ in self._tasks]).astype(np.float64)
        means /= np.linalg.norm(means, axis=-1, keepdims=True)
        own, other = [], []
        for number, (_, prompts) in enumerate(self._tasks):
            z = each_last_output(self.pair[0], [prompt.intact for prompt in prompts])
            z /= np.linalg.norm(z, axis=-1, keepdims=True)
            likeness = np.einsum("nlhd,tlhd->tnlh", z, means)
            own.append(likeness[number])
            other.append(np.delete(likeness, number, axis=0).mean(axis=0))
        return {"own": np.mean(own, axis=0), "other": np.mean(other, axis=0)}

    # -------------------------------------------------------------------------------------------- effect

    def _evidence(self) -> Evidence:
        second = self._score.halves[1]
        count, tasks = len(second), len(self.tasks)

        def blocks(heads: Sequence[Head]) -> Blocks:
            """Prompts of one task together: prompt i of task t has the number t * count + i."""
            return [block for task in range(tasks) for block in chunks(range(task * count, (task + 1) * count), BLOCK)]

        def measure(numbers: Sequence[int], heads: Sequence[Head]) -> dict[str, Any]:
            return self._measure_effects(numbers[0] // count, second[np.array(numbers) % count], heads)

        def of_tasks(added: Mapping[str, Any], heads: Sequence[Head]) -> tuple[Floats, Floats]:
            own, other = (added[name].reshape(tasks, count, -1).mean(axis=0) for name in ("own", "other"))
            return own, other

        return evidence(
            self, Role.FUNCTION_VECTOR, self._score, measure, blocks, joined("own", "other"), of_tasks,
            part={"part": "effects", "corruption": self._corruption},
        )  # fmt: skip

    def _measure_effects(self, task: int, numbers: NDArray[np.int64], heads: Sequence[Head]) -> dict[str, Any]:
        """What the own task's mean and another task's add to the answer's probability, [P, C] each.

        task: its number; numbers [P]: places among the task's prompts; heads [C].
        """
        prompts, layers = [self._tasks[task][1][number] for number in numbers], prepare(self.pair[0]).layers
        added = np.empty((len(prompts), 2, len(heads)))
        lengths = np.array([len(prompt.corrupted) for prompt in prompts])
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            alike = [prompts[row] for row in rows]
            sources = [task] * len(alike), [self._other_task(task, prompt.index) for prompt in alike]
            edits = [
                last_write(layers[layer], head, self._means(tasks, (layer, head)))
                for tasks in sources
                for layer, head in heads
            ]
            ids = torch.tensor([prompt.corrupted for prompt in alike])
            answers = torch.tensor([[prompt.answer] for prompt in alike])
            runs = replay(self.pair[0], ids, edits, answers, length - 1, log_probabilities=True)
            more = (runs.logits[..., 0].exp() - runs.base[:, 0].exp()).T.double().numpy()  # [N, 2 C]
            added[rows] = more.reshape(len(rows), 2, -1)
        return {"own": added[:, 0], "other": added[:, 1]}

    def _other_task(self, task: int, index: int) -> int:
        """The number of the task that is the control for prompt `index` of a task: each other one in turn."""
        return (task + 1 + index % (len(self.tasks) - 1)) % len(self.tasks)

    def _means(self, tasks: Sequence[int], head: Head) -> torch.Tensor:
        """The mean output of one head on each of some tasks, [N, dv]."""
        return torch.from_numpy(np.stack([self._tasks[task][0].means[head] for task in tasks]))
