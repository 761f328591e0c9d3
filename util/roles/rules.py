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

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Floats, Head, Ints, heads_where
from util.stats.intervals import detectable, halves, holm, mean_interval, mean_p

Tested = dict[Head, dict[str, Any]]

LEVEL = 0.05  # the chance that any head of a model has a role by mistake, for each role
FACTOR = 3.0  # times uniform attention is what a pattern must exceed; Cho et al. 2025 have 5, on longer prompts
ROOM = 0.05  # how much more probable intact demonstrations must make an answer, for function vectors to be measured
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


@dataclass(frozen=True)
class Score:
    """How far all heads do on N prompts what a role asks.

    value [N, L, H]; null [N, L, H], or an array that broadcasts to it: what a head without the pattern has; clusters
    [N]: prompts of one cluster are no independent units, None where all are.
    """

    value: Floats
    null: Floats
    clusters: NDArray[np.integer] | None = None

    @cached_property
    def halves(self) -> tuple[Ints, Ints]:
        """The prompts that choose heads, and those that confirm them: sorted indices [N / 2] each."""
        return halves(len(self.value), clusters=self.clusters)

    def clusters_of(self, half: int) -> NDArray[np.integer] | None:
        """The clusters of the prompts of a half."""
        return None if self.clusters is None else self.clusters[self.halves[half]]

    def excess(self, half: int) -> Floats:
        """The score above its null on the P prompts of a half, [P, L, H]."""
        return np.asarray(self.value - self.null, np.float64)[self.halves[half]]

    @cached_property
    def chosen(self) -> list[Head]:
        """The heads whose score passes on the first half; Holm's correction is over all heads."""
        p = mean_p(self.excess(0), self.clusters_of(0))
        return heads_where(np.reshape(holm(p.ravel().tolist()), p.shape) <= LEVEL)


@dataclass(frozen=True)
class Evidence:
    """Score and effect of one role, and what follows from them.

    effect [M, C]: what the model loses on the M prompts of the second half without what one of the C heads that the
    score chooses does in the role; control [M, C], or an array that broadcasts to it: what it loses by a control.
    """

    role: Role
    score: Score
    effect: Floats
    control: Floats

    @property
    def heads(self) -> list[Head]:
        """The C heads that are tested."""
        return self.score.chosen

    @property
    def n(self) -> int:
        """The number of independent units that confirm heads: prompts of one cluster are one."""
        second, clusters = self.score.halves[1], self.score.clusters_of(1)
        return len(second if clusters is None else np.unique(clusters))

    @cached_property
    def tested(self) -> Tested:
        """What the second half says of each tested head, those with the largest effect first.

        score, and effect beyond the control: their 95 % intervals, which hold together for all tested heads; null: of
        the score, its mean over prompts; p: the larger of the two p-values, two-sided and corrected for the tested
        heads. It is at most 0.05 just where the interval of score minus null lies above 0, and that of the effect above
        LEAST. Where the null is not the same on all prompts, the interval of the score alone may hold its mean.
        """
        if not self.heads:
            return {}
        second, clusters, comparisons = self.score.halves[1], self.score.clusters_of(1), len(self.heads)
        layers, places = np.transpose(self.heads)
        interval = partial(mean_interval, comparisons=comparisons, clusters=clusters)
        null = np.broadcast_to(self.score.null, self.score.value.shape)
        beyond = np.asarray(self.effect - self.control, np.float64)
        of_score = mean_p(self.score.excess(1)[:, layers, places], clusters)
        p = np.minimum(1.0, 2 * comparisons * np.maximum(of_score, mean_p(beyond - LEAST, clusters)))
        tested: Tested = {}
        for place, head in enumerate(self.heads):
            tested[head] = {
                "score": interval(self.score.value[(second, *head)]),
                "null": float(null[(second, *head)].mean()),
                "effect": interval(beyond[:, place]),
                "p": float(p[place]),
            }
        return dict(sorted(tested.items(), key=lambda measured: -measured[1]["effect"].value))

    @property
    def confirmed(self) -> Tested:
        """The heads that have the role."""
        return {head: measured for head, measured in self.tested.items() if measured["p"] <= LEVEL}

    @property
    def not_confirmed(self) -> Tested:
        """The heads that the first half chose and that do not have the role."""
        return {head: measured for head, measured in self.tested.items() if measured["p"] > LEVEL}

    @property
    def detectable(self) -> float | None:
        """The effect from which on every tested head would have been seen, in POWER of samples; None if none is tested.

        The spread is the largest of the tested heads without the role, which alone can have been missed; of all tested
        heads where each has it. It is the power of the effect's test, for heads whose score passes.
        """
        missed = (self.not_confirmed or self.tested).values()
        spread = [detectable(measured["effect"], self.n, len(self.tested)) for measured in missed]
        return LEAST + max(spread) if spread else None
