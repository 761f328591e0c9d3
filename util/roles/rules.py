"""Which roles heads have: a rule on arrays, the same for every role and every model.

A head has a role where both of two conditions hold on prompts that did not choose it: its *score* (where it attends, or
what it writes) lies above what attention without a pattern gives, and its *effect* (what the model loses without just
this) lies above that of a control. The score alone is what heads are usually named after, and it does not say that the
model uses them; the effect alone does not say what they do.

The steps: the prompts are split into halves. On the first, heads are chosen whose score passes. On the second, both
conditions are tested for the chosen heads. Both must hold, so that a head's p is the larger of the two (Berger 1982,
intersection-union test). Heads that were not chosen have p = 1. The chosen heads are corrected together, and they
alone: other prompts chose them, so that the tests are as good as of heads that were named in advance (data splitting,
Cox 1975, Biometrika 62). The correction is Bonferroni's, two-sided, because its intervals are those that are shown: a
head has a role just where the intervals of its score and effect, which hold together for all tested heads, lie above
what they have to exceed. A head may have several roles. This file needs no model.

Counts of different roles are not comparable: the independent units of their tests differ, and so do the effects that so
many units show. `Evidence.n` and `Evidence.detectable` say both, beside every count.

The level holds where noise is symmetric, or skewed to the right as costs mostly are. Where a few prompts gain very much
from the cut that costs all others a little, no test of a mean holds it on few prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Head, head_name, heads_where
from util.stats.intervals import Interval, detectable, halves, mean_interval
from util.stats.tests import holm, mean_p

Floats = NDArray[np.floating]

LEVEL = 0.05  # the chance that any head of a model has a role by mistake, for each role
FACTOR = 3.0  # times uniform attention is what a pattern must exceed; Cho et al. 2025 have 5, on longer prompts
LEAST = 0.01  # nats, or probability: smaller effects are none; 0.01 nats change a probability by one hundredth of it


class Role(StrEnum):
    """What a head can be, in the order of the figure."""

    PREVIOUS_TOKEN = "previous-token"
    DUPLICATE_TOKEN = "duplicate-token"
    INDUCTION = "induction"
    FORERUNNER = "forerunner"
    LABEL_READER = "label reader"
    FUNCTION_VECTOR = "function vector"
    INHIBITION = "inhibition"
    MOVER = "mover"
    NEGATIVE_MOVER = "negative mover"


UNITS = {  # what confirms heads of a role, if not IOI prompts, which count once for each frame and names
    Role.PREVIOUS_TOKEN: "sequences",
    Role.INDUCTION: "sequences",
    Role.FORERUNNER: "prompts",
    Role.LABEL_READER: "prompts",
    Role.FUNCTION_VECTOR: "prompts of each task",
}


def units_of(role: str, n: int) -> str:
    """The n independent units that confirm heads of a role, in words."""
    return f"{n} {UNITS.get(Role(role), 'pairs of names')}"


@dataclass(frozen=True)
class Score:
    """How far all heads do on N prompts what a role asks.

    value [N, L, H]; null [N, L, H], or an array that broadcasts to it: what a head without the pattern has; unit: what
    is measured, in words; clusters [N]: prompts of one cluster are no independent units, None where all are.
    """

    value: Floats
    null: Floats
    unit: str
    clusters: NDArray[np.integer] | None = None

    @property
    def halves(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The prompts that choose heads, and those that confirm them: sorted indices [N / 2] each."""
        return halves(len(self.value), clusters=self.clusters)

    def excess(self, prompts: NDArray[np.int64]) -> Floats:
        """The score above its null on some prompts [P], as [P, L, H]."""
        return np.asarray(self.value - self.null, np.float64)[prompts]

    def clusters_of(self, prompts: NDArray[np.int64]) -> NDArray[np.integer] | None:
        """The clusters of some prompts [P], as [P]."""
        return None if self.clusters is None else self.clusters[prompts]

    def chosen(self) -> list[Head]:
        """The heads whose score passes on the first half; Holm's correction is over all heads."""
        first = self.halves[0]
        p = mean_p(self.excess(first), self.clusters_of(first))
        return heads_where(np.reshape(holm(p.ravel().tolist()), p.shape) <= LEVEL)

    def no_effect(self, unit: str) -> Effect:
        """The effect where no head passes."""
        return Effect((), np.empty((len(self.halves[1]), 0)), np.zeros(1), unit)


@dataclass(frozen=True)
class Effect:
    """What the model loses on the M prompts of the second half without what C heads do in a role.

    heads [C]; value [M, C]; control [M, C], or an array that broadcasts to it: what it loses by a control; unit: of
    what, in words.
    """

    heads: Sequence[Head]
    value: Floats
    control: Floats
    unit: str

    @property
    def excess(self) -> Floats:
        """The effect beyond its control, [M, C]."""
        return np.asarray(self.value - self.control, np.float64)


@dataclass(frozen=True)
class RoleOfHead:
    """A head tested for a role: its score and effect (beyond the control) on the second half, with 95 % intervals.

    null: of the score. p: the larger of the two p-values, corrected for all heads that were tested, as intervals are.
    """

    role: Role
    head: Head
    score: Interval
    null: float
    effect: Interval
    p: float

    @property
    def name(self) -> str:
        """The head's name, such as L3H5."""
        return head_name(self.head)


@dataclass(frozen=True)
class Evidence:
    """Score and effect of one role, and what follows from them.

    Raises ValueError for effects of other prompts than those of the second half, and for heads that were not chosen.
    """

    role: Role
    score: Score
    effect: Effect

    def __post_init__(self) -> None:
        second, chosen = self.score.halves[1], self.score.chosen()
        if self.effect.value.shape != (len(second), len(self.effect.heads)):
            raise ValueError(
                f"{self.role}: effects of shape {self.effect.value.shape}; the second half has {len(second)} prompts, "
                f"and there are {len(self.effect.heads)} heads"
            )
        if set(self.effect.heads) != set(chosen):
            raise ValueError(f"{self.role}: effects of {list(self.effect.heads)}; the first half chooses {chosen}")

    @property
    def n(self) -> int:
        """The number of independent units that confirm heads: prompts of one cluster are one."""
        second = self.score.halves[1]
        clusters = self.score.clusters_of(second)
        return len(second if clusters is None else np.unique(clusters))

    @property
    def detectable(self) -> float | None:
        """The effect from which on every tested head would have been seen, in POWER of samples; None if none is tested.

        The spread is the largest of the tested heads without the role, which alone can have been missed; of all tested
        heads where each has it. It is the power of the effect's test, for heads whose score passes.
        """
        with_role = {one.head for one in self.heads()}
        missed = [place for place, head in enumerate(self.effect.heads) if head not in with_role]
        spread = [
            detectable(self._interval(self.effect.excess[:, place]), self.n, len(self.effect.heads))
            for place in missed or range(len(self.effect.heads))
        ]
        return LEAST + max(spread) if spread else None

    def _interval(self, values: Floats) -> Interval:
        """The mean [M] of the second half with its interval, which holds for all tested heads together."""
        clusters = self.score.clusters_of(self.score.halves[1])
        return mean_interval(values, comparisons=len(self.effect.heads), clusters=clusters)

    def p(self) -> NDArray[np.float64]:
        """The p of every head [L, H]: the larger of score's and effect's, two-sided, corrected for the tested heads.

        It is at most 0.05 just where the intervals of `heads` lie above the null of the score, and above LEAST. It is 1
        for a head that was not tested.
        """
        second = self.score.halves[1]
        clusters = self.score.clusters_of(second)
        p = np.ones(self.score.value.shape[1:])
        if self.effect.heads:
            layers, heads = np.array(self.effect.heads).T
            of_score = mean_p(self.score.excess(second)[:, layers, heads], clusters)
            larger = np.maximum(of_score, mean_p(self.effect.excess - LEAST, clusters))
            p[layers, heads] = np.minimum(1.0, 2 * len(self.effect.heads) * larger)
        return p

    def heads(self) -> list[RoleOfHead]:
        """The heads that have the role, those with the largest effect first.

        Their intervals hold together for all heads that were tested, those without the role among them.
        """
        return self._tested(heads_where(self.p() <= LEVEL))

    def not_confirmed(self) -> list[RoleOfHead]:
        """The heads that the first half chose and that do not have the role; else as `heads`."""
        p = self.p()
        return self._tested([head for head in self.effect.heads if p[head] > LEVEL])

    def _tested(self, chosen: Sequence[Head]) -> list[RoleOfHead]:
        second, p = self.score.halves[1], self.p()
        null = np.broadcast_to(self.score.null, self.score.value.shape)
        listed = [
            RoleOfHead(
                self.role,
                head,
                self._interval(self.score.value[(second, *head)]),
                float(null[(second, *head)].mean()),
                self._interval(self.effect.excess[:, list(self.effect.heads).index(head)]),
                float(p[head]),
            )
            for head in chosen
        ]
        return sorted(listed, key=lambda one: -one.effect.value)
