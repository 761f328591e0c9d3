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
from util.show.style import WIDTH
from util.stats.heads import Head, head_name


@dataclass(frozen=True)
class HeldOut:
    """Heads that were chosen on one half of the prompts, and what they do on the other.

    about: what it was measured on; judged: how many of them are confirmed; against: by what the magnitude is compared
    with, the contrasts on the held-out half; verdicts [L, H]: on the half that chooses, of `chosen_on` prompts;
    frequent: how many heads are frequent, on all prompts; level: the mean threshold.
    """

    about: Setting
    judged: Specificity
    against: Mapping[str, Contrast]
    verdicts: NDArray[np.str_]
    chosen_on: int
    frequent: int
    level: float

    @classmethod
    def of(
        cls,
        about: Setting,
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
            about,
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

    @property
    def finding(self) -> str:
        """How many frequent heads are forerunner heads, and how many of these know the label."""
        judged = self.judged
        if not self.frequent:
            return "No head is frequent: none reads the token before the label on three of four prompts"
        if not judged.confirmed:
            return f"None of {self.frequent} frequent heads reads the token before the label more than elsewhere"
        are = "are forerunner heads: they read" if judged.confirmed > 1 else "is a forerunner head: it reads"
        return (
            f"{judged.confirmed} of {self.frequent} frequent heads {are} the token before the label more than other "
            f"previous tokens; {judged.than_wrong or 'none'} more than before a wrong label"
        )

    @property
    def setting(self) -> str:
        """What it was measured on."""
        return f"{self.about}; heads chosen on one half, measured on the other"

    def figure(self, planted: Planted, width: float = WIDTH) -> Figure:
        """The model's heads and among them the planted ones."""
        return plots.specificity(
            plots.Scatter(self.against["than at other tokens"], self.verdicts),
            plots.Scatter(planted.contrast, planted.verdicts),
            planted.roles,
            self.judged.strongest,
            self.against,
            self.level,
            self.finding,
            self.setting,
            width,
        )

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
