"""Whether heads read forerunners rather than any previous token, and the control with planted heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import measures, plots
from util.figures.forerunner_heads.measures import Contrast, Series, Specificity
from util.figures.forerunner_heads.results.copy_magnitudes import Reading
from util.figures.forerunner_heads.results.setting import Setting
from util.stats.heads import Head, head_name


@dataclass(frozen=True)
class HeldOut:
    """Heads that were chosen on one half of the prompts, and what they do on the other.

    judged: how many of them are confirmed; against: by what the magnitude is compared with, the contrasts on the
    held-out half; verdicts [L, H]: on the half that chooses, of `chosen_on` prompts; frequent: heads above the
    threshold on three of four of all prompts; level: the mean threshold.
    """

    setting: Setting
    judged: Specificity
    against: Mapping[str, Contrast]
    verdicts: NDArray[np.str_]
    chosen_on: int
    frequent: int
    level: float

    @classmethod
    def of(
        cls,
        setting: Setting,
        series: Mapping[Series, Reading],
        c: float,
        choose: NDArray[np.int64],
        measure: NDArray[np.int64],
    ) -> HeldOut:
        """choose, measure: the numbers of the prompts in the halves. Raises ValueError where a series is missing."""
        if missing := {Series.CORRECT, Series.WRONG, Series.OTHER_WORD} - set(series):
            raise ValueError(f"specificity needs what is not appended: {', '.join(sorted(missing))}")
        whole = series[Series.CORRECT]
        chosen = whole.half(choose).verdicts(c)
        correct = whole.half(measure)
        than_control = measures.contrast(correct.magnitude, correct.control)
        than_wrong = measures.contrast(correct.magnitude, series[Series.WRONG].half(measure).magnitude)
        than_other = measures.contrast(correct.magnitude, series[Series.OTHER_WORD].half(measure).magnitude)
        judged = measures.specificity(chosen, correct.verdicts(c), than_control, than_wrong, than_other)
        against = {
            "than at other tokens": than_control,
            "than with a wrong label": than_wrong,
            "than with another word": than_other,
        }
        return cls(
            setting,
            judged,
            against,
            verdicts=chosen,
            chosen_on=len(choose),
            frequent=int(whole.frequent(c).value),
            level=c * measures.uniform_magnitude(whole.n_t),
        )

    def __str__(self) -> str:
        return str(self.judged)

    def table(self) -> pd.DataFrame:
        """The most specific heads, one row each: the magnitude on the held-out half, and how much more that is."""
        rows = {
            head_name(head): {
                "magnitude": f"{next(iter(self.against.values())).first[head]:.2f}",
                **{name: measures.difference_text(contrast, head) for name, contrast in self.against.items()},
            }
            for head in self.judged.strongest
        }
        return pd.DataFrame.from_dict(rows, orient="index", columns=["magnitude", *self.against])

    def figure(self, planted: Planted) -> Figure:
        """Beside the model's heads the planted ones."""
        judged = self.judged
        title = (
            f"{self.frequent} of {self.verdicts.size} heads read the token before the label, {judged.confirmed} more "
            f"than elsewhere;\nof these {judged.than_other} read it more than behind another word, "
            f"{judged.than_wrong} more than behind a wrong label\n{self.setting}"
        )
        panels = [
            plots.Panel(
                f"{self.setting.model}, held-out half",
                self.against["than at other tokens"],
                self.verdicts,
                {head: head_name(head) for head in judged.strongest},
            ),
            plots.Panel("planted heads, by what they read", planted.contrast, planted.verdicts, planted.roles),
        ]
        return plots.specificity(panels, self.level, title)

    def values(self) -> dict[str, Any]:
        return {
            "judged": self.judged,
            "held out": self.against,
            "chosen on": self.chosen_on,
            "verdicts": self.verdicts,
        }


@dataclass(frozen=True)
class Planted:
    """Heads whose role is known: the contrast of label and other tokens, and the verdicts [L, H]."""

    contrast: Contrast
    verdicts: NDArray[np.str_]
    roles: Mapping[Head, str]

    @classmethod
    def of(cls, reading: Reading, c: float, roles: Mapping[Head, str]) -> Planted:
        return cls(measures.contrast(reading.magnitude, reading.control), reading.verdicts(c), roles)

    def __str__(self) -> str:
        return "planted heads: " + "; ".join(f"{role} -> {self.verdicts[head]}" for head, role in self.roles.items())


@dataclass(frozen=True)
class PlantedErrors:
    """How often planted heads are misjudged, by the noise on their weights: times and number of each kind of error."""

    by_noise: Mapping[float, Mapping[str, tuple[int, int]]]

    def table(self) -> pd.DataFrame:
        """One row for each noise: how many of the planted heads are misjudged, by kind of error."""
        texts = {
            noise: {kind: f"{times} of {number}" for kind, (times, number) in errors.items()}
            for noise, errors in self.by_noise.items()
        }
        return pd.DataFrame.from_dict(texts, orient="index").rename_axis("noise on the weights")
