"""What pruning of heads and edges gives: numbers, a table and a figure, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from util.figures.edge_ablation import measures, plots
from util.figures.edge_ablation.measures import Row
from util.figures.edge_ablation.results import Setting, right_of
from util.scores.units import HeadUnit, Sort, unit_of
from util.stats.intervals import Interval
from util.stats.tests import rank_p

WORDS = {"head": "head units", "edge": "edge units"}


@dataclass(frozen=True)
class PruningCurve:
    """Units of one sort pruned, round by round.

    method: the scores, in words; units: how many there are at first; left: after each round; search: the accuracy of
    each round on the search split; floor: what had to be kept there. whole: the row of the whole model on the test
    split; rows: those of some rounds, by units left. result: how many units are left before the accuracy falls below
    the floor; kept: their names; random: rows of random prunings that leave as many. Rows are what `measures.aligned`
    gives, those of random prunings are of the first draw of donors.
    """

    setting: Setting
    sort: Sort
    method: str
    units: int
    left: tuple[int, ...]
    search: tuple[float, ...]
    floor: float
    whole: Row
    rows: Mapping[int, Row]
    result: int
    kept: tuple[str, ...]
    random: tuple[Row, ...]

    def accuracy(self) -> dict[int, Interval]:
        """The accuracy on the test split by units left, see `results.right_of`."""
        return {left: right_of(row) for left, row in self.rows.items()}

    def explained(self) -> dict[int, Interval]:
        """acc(circuit) / acc(whole) on the test split by units left, with intervals over prompts."""
        return {
            left: measures.ratio(row["right"], self.whole["right"], self.whole["query"])
            for left, row in self.rows.items()
        }

    def by_draw(self) -> list[float]:
        """acc(circuit) / acc(whole) of the result, by draw of donors."""
        draws = zip(self.rows[self.result]["right"], self.whole["right"], strict=True)
        return [float(own.mean() / whole.mean()) if whole.any() else np.nan for own, whole in draws]

    def random_accuracy(self) -> list[float]:
        """The accuracy of each random pruning on the test split."""
        return [float(row["right"].mean()) for row in self.random]

    @property
    def p(self) -> float:
        """How rare it is among random prunings to be as accurate as the result with the same donors."""
        return rank_p(float(self.rows[self.result]["right"][0].mean()), self.random_accuracy(), tail="high").p

    def survivors(self) -> dict[str, int]:
        """How many units of each kind are left, the most frequent kind first."""
        units = map(unit_of, self.kept)
        kinds = Counter(unit.target if isinstance(unit, HeadUnit) else str(unit.edge) for unit in units)
        return dict(kinds.most_common())

    def overlap(self, other: PruningCurve) -> float:
        """The share of units that two results have in common, of all that either of them has."""
        both, either = {*self.kept} & {*other.kept}, {*self.kept} | {*other.kept}
        return len(both) / len(either) if either else np.nan

    def table(self) -> pd.DataFrame:
        """One line for each round that was measured on the test split."""
        explained, search = self.explained(), dict(zip(self.left, self.search, strict=True))
        lines = [
            {
                "units left": left,
                "share": f"{left / self.units:.1%}",
                "accuracy, search": f"{search[left]:.2f}",
                "accuracy, test": str(right),
                "of the whole": str(explained[left]),
            }
            for left, right in self.accuracy().items()
        ]
        return pd.DataFrame(lines).set_index("units left")

    def lines(self) -> list[str]:
        """What there is to say of it."""
        drawn = self.random_accuracy()
        chance = (
            f"{len(drawn)} random prunings of that size: accuracy {np.mean(drawn):.2f}, from {min(drawn):.2f} to "
            f"{max(drawn):.2f}, p = {self.p:.3f}, at least {1 / (1 + len(drawn)):.3f}"
            if drawn
            else "no random prunings of that size"
        )
        return [
            f"{self.result} of {self.units} {WORDS[self.sort]} ({self.result / self.units:.1%}) keep "
            f"{self.explained()[self.result]} of the accuracy of {right_of(self.whole)}",
            "by draw of donors " + ", ".join(f"{share:.2f}" for share in self.by_draw()),
            chance,
            "left: " + ", ".join(f"{kind} {count}" for kind, count in self.survivors().items()),
        ]

    def values(self) -> dict[str, Any]:
        """The numbers of the figure, for `report.save_values`."""
        return {
            "units": self.units,
            "left": self.left,
            "search": self.search,
            "floor": self.floor,
            "whole": right_of(self.whole),
            "accuracy": {str(left): right for left, right in self.accuracy().items()},
            "explained": {str(left): share for left, share in self.explained().items()},
            "result": self.result,
            "by_draw": self.by_draw(),
            "random": self.random_accuracy(),
            "survivors": self.survivors(),
            "kept": list(self.kept),
        }

    def check_lines(self) -> list[str]:
        """What a fresh run has to reproduce."""
        return [
            f"{self.sort} units left: {', '.join(map(str, self.left))}",
            f"accuracy on the search split: {', '.join(f'{right:.2f}' for right in self.search)}",
            f"result {self.result}: {self.explained()[self.result].value:.2f} of the accuracy; best of "
            f"{len(self.random)} random prunings {max(self.random_accuracy(), default=0):.2f}",
        ]

    def figure(self) -> Figure:
        """The accuracy against units left."""
        setting, share = self.setting, self.explained()[self.result]
        return plots.pruning(
            self.accuracy(),
            dict(zip(self.left, self.search, strict=True)),
            right_of(self.whole).value,
            self.floor,
            self.result,
            self.random_accuracy(),
            WORDS[self.sort],
            f"{self.result} of {self.units} {WORDS[self.sort]} keep {share.value:.0%} of the accuracy\n"
            f"{setting.model}, {setting.task}, {setting.k} shots ({setting.extent})",
        )
