"""Induction heads: what the query's forerunner reads of the labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import causal_plots, measures
from util.figures.forerunner_heads.measures import Floats, Inducing, Reader
from util.figures.forerunner_heads.results.ablation import Task
from util.figures.forerunner_heads.results.setting import Setting, curve
from util.show.style import WIDTH
from util.stats.intervals import Intervals, mean_intervals


@dataclass(frozen=True)
class LabelReads:
    """What the query's forerunner reads of the labels (Fig. 6 left, middle).

    reads [N, L, H, k]: A[s_q, y_i]; similarity [N, L, k]: of the forerunners' states; gold, n_t [N]; demonstrations
    [N, k]; classes: number of labels.
    """

    reads: Floats
    similarity: Floats
    gold: NDArray[np.int64]
    demonstrations: NDArray[np.int64]
    n_t: NDArray[np.int64]
    classes: int


@dataclass(frozen=True)
class InductionHeads:
    """Induction heads by layer [L], and the share of the query's own label in what is read.

    heads: how many on a prompt; shares: of each reader; null: what the best head has by chance; levels: the share of
    uniform attention, and the largest one that is possible; correct [N, L, H]: whether each head prefers the query's
    own label. about: what it was measured on; request: of the record.
    """

    about: Setting
    task: Task
    heads: Mapping[Inducing, Intervals]
    shares: Mapping[Reader, Intervals]
    null: Intervals
    levels: Mapping[str, float]
    correct: NDArray[np.bool_]
    request: dict[str, Any]

    @classmethod
    def of(cls, about: Setting, task: Task, reads: LabelReads, c: float, request: dict[str, Any]) -> InductionHeads:
        gold, shown = reads.gold, reads.demonstrations
        induction = measures.induction(reads.reads, gold, shown)
        some, correct = measures.induction_counts(induction, reads.n_t, reads.classes, c)
        shares = {
            Reader.BEST: induction.likelihood.max(axis=2),
            Reader.MEAN: induction.likelihood.mean(axis=2),
            Reader.SIMILARITY: measures.similarity_likelihood(reads.similarity, gold, shown),
        }
        uniform, ceiling = measures.uniform_likelihood(gold, shown)
        return cls(
            about,
            task,
            heads={
                Inducing.ANY: mean_intervals(some.sum(axis=2), within=(0, some.shape[2])),
                Inducing.CORRECT: mean_intervals(correct.sum(axis=2), within=(0, correct.shape[2])),
            },
            shares={name: mean_intervals(values, within=(0, 1)) for name, values in shares.items()},
            null=measures.best_head_null(reads.reads, gold, shown),
            levels={"uniform": uniform, "ceiling": ceiling},
            correct=correct,
            request=request,
        )

    @property
    def beyond_chance(self) -> list[int]:
        """The layers whose best head prefers the query's label beyond chance."""
        return measures.beyond_chance(self.shares[Reader.BEST], self.null)

    def __str__(self) -> str:
        beyond, layers = self.beyond_chance, len(self.null.value)
        return f"layers whose best head prefers the query's label beyond chance: {len(beyond)} of {layers}: {beyond}"

    @property
    def finding(self) -> str:
        """In how many layers the best head prefers the query's label."""
        beyond, layers = len(self.beyond_chance), len(self.null.value)
        if not beyond:
            return f"In none of {layers} layers does the best head prefer the query's label beyond chance"
        return f"In {beyond} of {layers} layers the best head prefers the query's label beyond chance"

    @property
    def setting(self) -> str:
        """What it was measured on."""
        return f"{self.about}{self.task.mark}"

    def figure(self, width: float = WIDTH) -> Figure:
        """Curves over the layers."""
        lines = self.heads, self.shares, self.null, self.levels
        return causal_plots.induction_layers(*lines, self.finding, self.setting, width)

    def values(self) -> dict[str, Any]:
        return {
            "induction": {
                "heads": {name: curve(values) for name, values in self.heads.items()},
                "likelihood": {name: curve(values) for name, values in self.shares.items()},
                "null": curve(self.null),
                "levels": self.levels,
            }
        }
