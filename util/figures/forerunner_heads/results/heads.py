"""Attention is not copying: single heads, what they move and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import causal_plots, measures
from util.figures.forerunner_heads.measures import Contrast, Floats
from util.figures.forerunner_heads.results.ablation import Task
from util.figures.forerunner_heads.results.setting import Setting
from util.figures.style import WIDTH
from util.stats.heads import Head


@dataclass(frozen=True)
class HeadCuts:
    """The gold label's log-probability, in nats, over the whole vocabulary; of a label of several tokens, its first.

    whole [N]: of the whole model; cut [N, M]: where in one head alone no label of the demonstrations may read its
    forerunner; control [N, M]: where each may not read another token, drawn at random. heads: those M.
    """

    heads: tuple[Head, ...]
    whole: Floats
    cut: Floats
    control: Floats


@dataclass(frozen=True)
class HeadEffects:
    """Attention is not copying: what heads read, what they move, and what the gold label loses without them.

    counts, moved [L, H]: on the prompts of `about`; worth: maps [L, H], NaN where a head was not cut; number: heads
    that were cut, each on `prompts` prompts.
    """

    about: Setting
    task: Task
    counts: NDArray[np.int64]
    moved: Floats
    worth: Contrast
    number: int
    prompts: int

    @classmethod
    def of(cls, about: Setting, task: Task, counts: NDArray[np.int64], moved: Floats, cut: HeadCuts) -> HeadEffects:
        contrast = measures.contrast(cut.control, cut.cut)
        worth = measures.on_map(contrast, cut.heads, (moved.shape[0], moved.shape[1]))
        return cls(about, task, counts, moved, worth, len(cut.heads), len(cut.whole))

    @property
    def finding(self) -> str | None:
        """How many heads cost the gold label something when they are cut; None where the task is not done."""
        if not self.task.check.done:
            return None
        costly = int((self.worth.low > 0).sum())
        said = f"Cut alone, {costly or 'none'} of the {self.number} heads that move most"
        return f"{said} {'costs' if costly < 2 else 'cost'} the gold label more than other cells do"

    @property
    def setting(self) -> str:
        """What the maps were measured on, and what the cuts."""
        return f"{self.about}; cut on {self.prompts} prompts of {self.task.name}"

    def figure(self, width: float = WIDTH) -> Figure:
        n = self.about.prompts
        return causal_plots.head_effects(self.counts, n, self.moved, self.worth, self.finding, self.setting, width)

    def values(self) -> dict[str, Any]:
        return {"head effects": self.worth}
