"""Whether a model does a task from its demonstrations: one rule for all figures, see data/published/VERDICTS.md."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.stats.intervals import Interval, mean_interval, signed, wilson
from util.stats.tests import mean_p

LEVEL = 0.05


@dataclass(frozen=True)
class TaskCheck:
    """Three conditions on n queries, which have to hold together.

    accuracy, its lower bound, and the baseline that this has to exceed: the larger of chance and majority; gains of
    log P(right answer | answers) in nats: of demonstrations over none, and over permuted ones; p: the larger one-sided
    p of the gains. Bound and p are corrected for all candidates that might be tried.
    """

    name: str
    k: int
    accuracy: float
    bound: float
    baseline: float
    over_none: Interval
    over_permuted: Interval
    p: float
    n: int

    @property
    def done(self) -> bool:
        """Whether the model does the task from its demonstrations."""
        return self.bound > self.baseline and self.p <= LEVEL

    def __str__(self) -> str:
        verdict = "task done" if self.done else "task not done"
        over_none, over_permuted = signed(self.over_none, 2), signed(self.over_permuted, 2)
        return (
            f"{self.name}, k = {self.k}: {verdict}, accuracy {self.accuracy:.3f} (at least {self.bound:.3f}; chance or "
            f"majority {self.baseline:.3f}) of {self.n} prompts; which label, in nats: {over_none} over no "
            f"demonstrations, {over_permuted} over permuted ones (p {self.p:.2g})"
        )


def task_check(
    name: str,
    k: int,
    right: NDArray[np.bool_],
    shown: NDArray[np.floating],
    bare: NDArray[np.floating],
    permuted: NDArray[np.floating],
    baseline: float,
    candidates: int = 1,
) -> TaskCheck:
    """Judges one task. right [N]: which queries are answered right with k demonstrations.

    shown, bare, permuted [N]: log P(right answer | answers) with demonstrations, without, and with their answers
    permuted; baseline: the larger of chance and the share of the most frequent answer; candidates: how many tasks, or
    numbers of demonstrations, may be tried.
    """
    low, _ = wilson(right.sum(), len(right), 1 - 2 * LEVEL / candidates)  # its lower end is the one-sided bound
    gains = [np.subtract(shown, other, dtype=np.float64) for other in (bare, permuted)]
    p = min(1.0, candidates * max(float(mean_p(gain)) for gain in gains))
    over_none, over_permuted = map(mean_interval, gains)
    accuracy = float(right.mean())
    return TaskCheck(name, k, accuracy, float(low), float(baseline), over_none, over_permuted, p, len(right))


def chosen(checks: Sequence[TaskCheck]) -> TaskCheck:
    """The check of the task to be measured, where tasks are tried until one is done: that one, else the first."""
    return checks[-1] if checks[-1].done else checks[0]
