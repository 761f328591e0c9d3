"""What titles say of a measurement, and how numbers are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.stats.intervals import Intervals


@dataclass(frozen=True)
class Setting:
    """What titles say of a measurement."""

    model: str
    dataset: str
    k: int
    prompts: int

    def __str__(self) -> str:
        return f"{self.model}, {self.dataset}, k = {self.k}, {self.prompts} prompts"


def curve(intervals: Intervals) -> dict[str, NDArray[np.float64]]:
    """A curve as the values file has it, [L] each."""
    return {"mean": intervals.value, "low": intervals.low, "high": intervals.high}
