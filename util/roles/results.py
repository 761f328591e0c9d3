"""Results of the study of repeated sequences: arrays and what follows from them, without any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from util.roles import attention_scores
from util.roles.attention_scores import Bools, Floats
from util.stats.intervals import Intervals, mean_intervals


@dataclass(frozen=True)
class HeadScores:
    """Attention scores of all heads on repeated random sequences.

    scores: [N, L, H] by name, see `attention_scores.cells`. ids: [N, T], the sequences. layers: the model's own numbers
    of the L layers that have attention. ranking: how the frequency of tokens was ranked. model_title: see
    `study.model.Model.title`; description: what the model is, in words.
    """

    scores: Mapping[str, Floats]
    ids: NDArray[np.int64]
    layers: Sequence[int]
    ranking: str
    length: int
    copies: int
    bos: bool
    model_title: str
    description: str

    def mean(self, name: str = "prefix_matching") -> NDArray[np.float64]:
        """Returns one score [L, H], the mean of the sequences."""
        return self.scores[name].mean(0)

    def intervals(self, name: str = "prefix_matching") -> Intervals:
        """Returns one score [L, H] with its 95 % interval over sequences."""
        return mean_intervals(self.scores[name], within=(0, 1))

    @property
    def induction_heads(self) -> Bools:
        """Which heads have a prefix-matching score of at least 0.3, [L, H]."""
        return self.mean() >= attention_scores.INDUCTION_HEAD

    @property
    def uniform(self) -> float:
        """The prefix-matching score of uniform attention on these sequences."""
        return attention_scores.uniform_prefix_matching(self.length, self.copies, self.bos)

    def variants(self) -> dict[str, NDArray[np.float64]]:
        """Returns what other definitions make of the prefix-matching scores [L, H], by name."""
        return attention_scores.variants(self.mean(), self.length, self.copies, self.bos)


@dataclass(frozen=True)
class IndirectEffects:
    """What patching single heads does to the answers of one task, see `roles.function_vectors`; all are probabilities.

    index [P]: the numbers of the prompts; intact, corrupted [P]: of the answer, after intact demonstrations of a prompt
    and after corrupted ones; patched [P, L, H]: after corrupted ones, with one head patched.
    """

    task: str
    corruption: str
    index: NDArray[np.integer]
    intact: Floats
    corrupted: Floats
    patched: Floats

    @property
    def effects(self) -> NDArray[np.float64]:
        """The causal indirect effect of every head on every prompt, [P, L, H]."""
        return self.patched.astype(np.float64) - self.corrupted.astype(np.float64)[:, None, None]

    @property
    def room(self) -> float:
        """How much more probable the answer is after intact demonstrations: what patching could give back."""
        return float(self.intact.mean(dtype=np.float64) - self.corrupted.mean(dtype=np.float64))


@dataclass(frozen=True)
class FunctionVectorHeads:
    """The indirect effects of a model's heads on several tasks. left_out: why other tasks have none."""

    tasks: tuple[IndirectEffects, ...]
    model_title: str
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def corruption(self) -> str:
        """What was done to the demonstrations, see `roles.function_vectors.FunctionVectorStudy`."""
        return self.tasks[0].corruption

    @property
    def room(self) -> float:
        """How much more probable the answer is after intact demonstrations, the mean of the tasks."""
        return float(np.mean([task.room for task in self.tasks]))

    @property
    def effects(self) -> NDArray[np.float64]:
        """The effects [P, T, L, H] on T tasks, of the P prompts whose number every task has."""
        common = sorted(set.intersection(*({*effects.index.tolist()} for effects in self.tasks)))
        return np.stack([task.effects[np.isin(task.index, common)] for task in self.tasks], axis=1)

    @property
    def units(self) -> NDArray[np.float64]:
        """The effects [P, L, H], each the mean of one prompt of every task.

        Tasks are given and prompts are sampled within each. Such means are independent and spread as the mean over all
        prompts does, so that they are the units of its interval.
        """
        return self.effects.mean(axis=1)

    def mean(self) -> NDArray[np.float64]:
        """Returns the average indirect effect (AIE) [L, H]: the mean over prompts and tasks."""
        return self.units.mean(axis=0)

    def intervals(self) -> Intervals:
        """Returns the AIE [L, H] with 95 % intervals over prompts within tasks."""
        return mean_intervals(self.units, within=(-1, 1))
