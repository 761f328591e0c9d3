"""Copy magnitudes: the arrays that the counts and the specificity of heads are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from util.figures.forerunner_heads import measures
from util.figures.forerunner_heads.measures import Floats
from util.figures.forerunner_heads.results.setting import Setting
from util.prompts.prompt import Appended
from util.stats.intervals import Interval


@dataclass(frozen=True)
class Reading:
    """The attention of all heads to the previous token, behind one ending of the prompts.

    magnitude [N, L, H]: of the ending to the forerunner; control [N, L, H]: of other tokens; moved [N, L, H]: the
    value-weighted magnitude, how long a vector the head adds at the ending because of what it reads at the forerunner;
    n_t [N]: tokens of the prompt with its ending.
    """

    magnitude: Floats
    control: Floats
    moved: Floats
    n_t: NDArray[np.int64]

    def counts(self, c: float = measures.THRESHOLD) -> NDArray[np.int64]:
        """On how many prompts each head exceeds c / n_t, [L, H]."""
        return measures.head_counts(self.magnitude, self.n_t, c)

    def frequent(self, c: float = measures.THRESHOLD) -> Interval:
        """How many heads exceed c / n_t on three of four prompts."""
        return measures.frequent_heads(self.magnitude, self.n_t, c)

    def passing(self, c: float = measures.THRESHOLD) -> NDArray[np.int64]:
        """How many heads exceed c / n_t on each prompt, [N]."""
        return measures.is_forerunner(self.magnitude, self.n_t, c).sum(axis=(1, 2))

    def on_a_prompt(self, c: float = measures.THRESHOLD) -> Interval:
        """How many heads exceed c / n_t on a prompt, the mean over prompts."""
        return measures.heads_on_a_prompt(self.magnitude, self.n_t, c)

    def verdicts(self, c: float = measures.THRESHOLD) -> NDArray[np.str_]:
        """The verdict on each head, [L, H]."""
        return measures.verdicts(self.magnitude, self.control, self.n_t, c)

    def half(self, chosen: NDArray[np.int64]) -> Reading:
        """The same of some of the prompts."""
        return Reading(self.magnitude[chosen], self.control[chosen], self.moved[chosen], self.n_t[chosen])


@dataclass(frozen=True)
class Magnitudes:
    """The copy magnitudes of a study, of N prompts with each of C endings.

    magnitude [N, C, L, H]: A[y_q, s_q] (float32); control [N, L, H]: mean of A[t, t-1] over other tokens of the prompt;
    value_norm [N, L, H]: |W_O^h v| of the forerunner (NaN where `Support.projections` has none); n_t and label_lengths
    [N, C]: tokens of the labelled prompt, and of the label. origin: the model in words.
    """

    setting: Setting
    request: dict[str, Any]
    origin: str
    appended: tuple[Appended, ...]
    magnitude: Floats
    control: Floats
    value_norm: Floats
    n_t: NDArray[np.int64]
    label_lengths: NDArray[np.int64]

    ARRAYS: ClassVar[tuple[str, ...]] = ("magnitude", "control", "value_norm", "n_t", "label_lengths")

    def reading(self, appended: Appended = 0) -> Reading:
        """The arrays of one ending. Raises ValueError for one that the study does not append."""
        if appended not in self.appended:
            raise ValueError(f"appended = {appended!r}: the study appends {list(self.appended)}")
        place = self.appended.index(appended)
        magnitude = self.magnitude[:, place]
        return Reading(magnitude, self.control, magnitude * self.value_norm, self.n_t[:, place])

    @cached_property
    def moved(self) -> Floats:
        """How long a vector each head adds at the correct label, the mean of the prompts [L, H]."""
        return self.reading(0).moved.mean(axis=0)

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the shortest and the longest prompt with its correct label."""
        n_t = self.reading(0).n_t
        return int(n_t.min()), int(n_t.max())

    def __str__(self) -> str:
        fewest, most = self.tokens
        return (
            f"{self.origin}\n{self.setting}; tokens per prompt {fewest} to {most}\n"
            f"labels of several tokens, read at the first: {(self.label_lengths > 1).mean():.0%}"
        )
