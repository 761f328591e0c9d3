"""What a model answers, from its label log-probabilities; baselines that need no model; whether a task is done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Bools, Floats
from util.stats.intervals import Interval, mean_interval, mean_p, signed, wilson

Labels = NDArray[np.integer]
TERMS = ("which label", "label mass")  # the halves of log P(right label): `which_label`, `label_mass`
LEVEL = 0.05  # of a task check
DATASETS, KS = ("trec", "subjective", "agnews"), (16, 4)  # to try, in order: all data sets with one k before the next k


def label_mass(log_prob: Floats) -> Floats:
    """The log-probability that any of the labels follows, [N] in nats, from those of all labels [N, C].

    No label may be the beginning of another, as `label_scores.scoring` demands.
    """
    return np.logaddexp.reduce(log_prob, axis=1)


def which_label(log_prob: Floats, gold: Labels) -> Floats:
    """The log-probability of each prompt's gold label, given that a label follows: log P(gold | labels), [N] in nats.

    log_prob: of all labels [N, C]; gold [N]: the index of the gold one. `label_mass` is the rest of log P(gold).
    """
    return log_prob[np.arange(len(gold)), gold] - label_mass(log_prob)


def right(log_prob: Floats, gold: Labels) -> Bools:
    """Whether the gold label [N] has the highest log-probability of all labels [N, C]: booleans [N]."""
    return log_prob.argmax(axis=1) == gold


def majority_right(gold: Labels) -> Floats:
    """The credit [N] of a baseline that always answers with the most frequent gold label [N].

    Credit is 1 where the answer is right and 0 where it is wrong. If m labels are equally frequent, each of them gets
    the credit 1 / m.
    """
    counts = np.bincount(gold)
    return (counts[gold] == counts.max()) / (counts == counts.max()).sum()


def vote_right(gold: Labels, demonstrations: Labels, classes: int) -> Floats:
    """The credit [N] of a baseline that answers with the most frequent label of the prompt's demonstrations [N, k].

    gold: index of the gold label [N]; classes: how many labels there are. Credit is 1 where the answer is right and 0
    where it is wrong. If m labels are equally frequent in a prompt, each of them gets the credit 1 / m.
    """
    votes = (demonstrations[:, :, None] == np.arange(classes)).sum(axis=1)
    winners = votes == votes.max(axis=1, keepdims=True)
    return (winners / winners.sum(axis=1, keepdims=True))[np.arange(len(gold)), gold]


# ------------------------------------------------------------------------------------------------ task check


@dataclass(frozen=True)
class TaskCheck:
    """Whether a model does a task from its demonstrations: three conditions on n queries, which have to hold together.

    The rule is one for all figures, see data/published/VERDICTS.md.

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
        why = "teach which label" if self.bound > self.baseline else "bring accuracy above chance"
        verdict = "task done" if self.done else f"task not done (demonstrations are not shown to {why})"
        over_none, over_permuted = signed(self.over_none, 2), signed(self.over_permuted, 2)
        return (
            f"{self.name}, k = {self.k}: {verdict}, accuracy {self.accuracy:.3f} (lower bound {self.bound:.3f}; chance "
            f"or majority {self.baseline:.3f}) of {self.n} prompts; which label, in nats: {over_none} over no "
            f"demonstrations, {over_permuted} over permuted ones (the largest p, corrected: {self.p:.2g})"
        )


def task_check(
    name: str,
    k: int,
    right: Bools,
    shown: Floats,
    bare: Floats,
    permuted: Floats,
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
