"""One task at several numbers of demonstrations, with and without some heads: right answers, as arrays alone.

Each number of demonstrations has means of its own, over prompts with as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.figures.induction_scores.edits import Group, Row
from util.stats.answers import TaskCheck

Bools = NDArray[np.bool_]
WHOLE = Row(Group.WHOLE)
KNOCKED_OUT = Row(Group.KNOCKED_OUT)


@dataclass(frozen=True, order=True)
class Labelled:
    """A task, with its own labels or with Foo and Bar, which are unrelated to its classes."""

    task: str
    unrelated: bool = False

    @property
    def name(self) -> str:
        """How figures, tables and values files call it."""
        return f"{self.task}, Foo/Bar" if self.unrelated else self.task


@dataclass(frozen=True)
class TaskShots:
    """One task at several numbers of demonstrations.

    right: answers by the number of demonstrations and by row, [R, N]; controls: the control sets among its rows.
    chance: what guessing and always answering with the most frequent class have at most. text: whether people wrote its
    texts. check: whether the whole model does the task, on other queries with the most demonstrations. available: how
    many queries there are.
    """

    labelled: Labelled
    right: Mapping[int, Mapping[Row, Bools]]
    ablated: Row
    controls: tuple[Row, ...]
    chance: float
    text: bool
    check: TaskCheck
    available: int
    does_bare: bool = False

    @property
    def does(self) -> bool:
        """Whether the whole model does the task from its demonstrations."""
        return self.check.done

    @property
    def most(self) -> int:
        """The largest number of demonstrations."""
        return max(self.right)

    @property
    def queries(self) -> int:
        """How many queries were asked."""
        return self.right[self.most][WHOLE].shape[1]

    def by_query(self, shots: int, row: Row) -> NDArray[np.float64]:
        """Returns how often each query is answered right, [N]; the mean of all runs."""
        return np.asarray(self.right[shots][row], dtype=np.float64).mean(axis=0)

    @property
    def benefit(self) -> NDArray[np.float64]:
        """What demonstrations are worth to the whole model, by query [N]."""
        return self.by_query(self.most, WHOLE) - self.by_query(0, WHOLE)

    @property
    def has_zero_shot(self) -> bool:
        """Whether it was also measured without demonstrations."""
        return 0 in self.right


def without_others(task: TaskShots, shots: int) -> NDArray[np.float64]:
    """Returns how often each query is answered right without other heads, [N]; the mean of all control sets."""
    return np.mean([task.by_query(shots, row) for row in task.controls], axis=0)
