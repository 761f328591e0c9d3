"""Results of the study of repeated sequences: arrays and what follows from them, without any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.roles import attention_scores
from util.roles.attention_scores import ROLES, Bools, Floats, ScoredHead
from util.stats.heads import Head
from util.stats.intervals import Intervals, mean_intervals


@dataclass(frozen=True)
class HeadScores:
    """Attention scores of all heads on repeated random sequences.

    scores: [N, L, H] by name, see `attention_scores.cells`. ids: [N, T], the sequences. layers: the model's own numbers
    of the L layers that have attention. ranking: how the frequency of tokens was ranked. model_title: see
    `records.model.Model.title`; description: what the model is, in words.
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

    def head(self, head: Head, names: Sequence[str] = ROLES) -> ScoredHead:
        """Returns one head's scores with intervals over all sequences."""
        return attention_scores.scored_head(self.scores, head, names)

    def best_heads(self) -> dict[str, ScoredHead]:
        """Returns the best head of each role; see `attention_scores.best_heads`, which raises ValueError."""
        return attention_scores.best_heads(self.scores)


@dataclass(frozen=True)
class Patterns:
    """The whole attention [heads, T, T], query by key, of some heads on one sequence, ids [T]."""

    heads: tuple[Head, ...]
    attention: Floats
    ids: NDArray[np.int64]

    def without_bos(self, head: Head) -> Floats:
        """Returns the attention [T - 1, T - 1] of one of the heads among all tokens but the first."""
        return self.attention[self.heads.index(head)][1:, 1:]
