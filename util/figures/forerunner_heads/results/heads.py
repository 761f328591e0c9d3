"""Attention is not copying: single heads, what they move and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import causal_plots, measures
from util.figures.forerunner_heads.measures import Contrast, Floats
from util.figures.forerunner_heads.results.ablation import Score, Task
from util.figures.forerunner_heads.results.setting import Setting
from util.show.style import WIDTH
from util.stats.answers import label_mass, which_label
from util.stats.heads import Head


@dataclass(frozen=True)
class HeadCuts:
    """Log-probabilities of all labels, in nats, over the whole vocabulary; of a label of several tokens, its first.

    whole [N, C]: of the whole model; cut [N, M, C]: where in one head alone no label of the demonstrations may read its
    forerunner; control [N, M, C]: where each may not read another token, drawn at random. heads: those M; gold [N].
    """

    heads: tuple[Head, ...]
    gold: NDArray[np.integer]
    whole: Floats
    cut: Floats
    control: Floats

    def scores(self, name: Score) -> tuple[Floats, Floats]:
        """A score of every prompt where each head is cut, and where its control is, [N, M] in nats."""
        every = [np.asarray(array, np.float64).reshape(-1, array.shape[-1]) for array in (self.cut, self.control)]
        gold = np.repeat(self.gold, len(self.heads))
        found = [which_label(one, gold) if name == Score.WHICH_LABEL else label_mass(one) for one in every]
        cut, control = (one.reshape(len(self.gold), -1) for one in found)
        return cut, control


@dataclass(frozen=True)
class HeadEffects:
    """Attention is not copying: what heads read, what they move, and what labels lose without them.

    counts, moved [L, H]: on the prompts of `about`; worth: by score, maps [L, H], NaN where a head was not cut; number:
    heads that were cut, each on `prompts` prompts.
    """

    about: Setting
    task: Task
    counts: NDArray[np.int64]
    moved: Floats
    worth: Mapping[Score, Contrast]
    number: int
    prompts: int

    @classmethod
    def of(cls, about: Setting, task: Task, counts: NDArray[np.int64], moved: Floats, cut: HeadCuts) -> HeadEffects:
        worth = {}
        for name in (Score.WHICH_LABEL, Score.LABEL_MASS):
            without, control = cut.scores(name)
            contrast = measures.contrast(control, without)
            worth[name] = measures.on_map(contrast, cut.heads, (moved.shape[0], moved.shape[1]))
        return cls(about, task, counts, moved, worth, len(cut.heads), len(cut.whole))

    @property
    def finding(self) -> str:
        """How many heads cost something when they are cut: of which label it is, or of label mass."""
        costly = int((self.worth[self.task.endpoint].low > 0).sum())
        said = f"Cut alone, {costly or 'none'} of the {self.number} heads that move most"
        what = "the right label" if self.task.check.done else "label mass"
        return f"{said} {'costs' if costly < 2 else 'cost'} {what} more than other cells do, on {self.prompts} prompts"

    @property
    def setting(self) -> str:
        """What the maps were measured on, and what the cuts."""
        return f"{self.about}; cut on {self.prompts} prompts of {self.task.name}"

    def figure(self, width: float = WIDTH) -> Figure:
        n = self.about.prompts
        shown = self.worth[self.task.endpoint]
        what = str(self.task.endpoint)
        return causal_plots.head_effects(self.counts, n, self.moved, shown, what, self.finding, self.setting, width)

    def values(self) -> dict[str, Any]:
        return {"head effects": self.worth}
