"""What pruning of heads and edges gives: numbers, a table and a figure, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.edge_ablation import measures, pruning_plots
from util.figures.edge_ablation.measures import Row
from util.figures.edge_ablation.results import Setting, in_text, in_words, right_of
from util.scores.units import SORTS, HeadUnit, Sort, unit_of
from util.show.style import WIDTH
from util.stats.intervals import Interval
from util.stats.tests import rank_p

WORDS = {"head": "head units", "edge": "edge units"}


@dataclass(frozen=True)
class PruningCurve:
    """Units of one sort pruned, round by round.

    settings: what decided the pruning, see `PruningStudy.settings`. layers: of the model. units: how many there are at
    first; left: after each round; search: the accuracy of each round on the search split; floor: what had to be kept
    there. whole: the row of the whole model on the test split; rows: those of some rounds, by units left. result: how
    many units are left before the accuracy falls below the floor; kept: their names. random: rows of random prunings
    that leave as many; random_kept: the names of what these leave. Rows are what `measures.aligned` gives, those of
    random prunings are of the first draw of donors.
    """

    setting: Setting
    sort: Sort
    settings: Mapping[str, Any]
    layers: int
    units: int
    left: tuple[int, ...]
    search: tuple[float, ...]
    floor: float
    whole: Row
    rows: Mapping[int, Row]
    result: int
    kept: tuple[str, ...]
    random: tuple[Row, ...]
    random_kept: tuple[tuple[str, ...], ...]

    def accuracy(self) -> dict[int, Interval]:
        """The accuracy on the test split by units left, see `results.right_of`."""
        return {left: right_of(row) for left, row in self.rows.items()}

    def explained(self) -> dict[int, Interval]:
        """acc(circuit) / acc(whole) on the test split by units left, with intervals over prompts."""
        return {
            left: measures.ratio(row["right"], self.whole["right"], self.whole["query"])
            for left, row in self.rows.items()
        }

    @property
    def share_left(self) -> str:
        """The result's share of the units that there were at first, "" where there were none."""
        return f"{self.result / self.units:.1%}" if self.units else ""

    @property
    def share_kept(self) -> str:
        """The accuracy that the result keeps, in words; a model that answers nothing right has none to keep."""
        share = self.explained()[self.result]
        return f"keep {share}" if np.isfinite(share.value) else "are left: the model answers nothing"

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

    def fewest(self, share: float = 0.9) -> int | None:
        """How few units keep this share of the accuracy on the test split, as all measured larger circuits do.

        None where not even the largest one does. The size is chosen on the test split: it describes, and tests nothing.
        """
        found = None
        for left, explained in self.explained().items():
            if not explained.value >= share:
                break
            found = left
        return found

    def survivors(self) -> dict[str, int]:
        """How many units of each kind are left, the most frequent kind first."""
        return {kind: int(counts.sum()) for kind, counts in self.by_layer().items()}

    def by_layer(self) -> dict[str, NDArray[np.int64]]:
        """How many units of each kind are left in each layer [L], the most frequent kind first."""
        counts: dict[str, NDArray[np.int64]] = {}
        for unit in map(unit_of, self.kept):
            kind = unit.target if isinstance(unit, HeadUnit) else str(unit.edge)
            counts.setdefault(kind, np.zeros(self.layers, np.int64))[unit.layer] += 1
        return dict(sorted(counts.items(), key=lambda item: -item[1].sum()))

    def overlap(self, other: PruningCurve) -> tuple[float, list[float]]:
        """The share of units that two results have in common, of all that either of them has.

        And the same of their random prunings: what sets of these sizes share by chance. A draw meets the other's next
        one, because draws of one number are one set where both begin with the same units. With a single draw there is
        nothing to compare with.
        """
        following = (*other.random_kept[1:], *other.random_kept[:1]) if len(other.random_kept) > 1 else ()
        drawn = zip(self.random_kept, following, strict=False)
        return _shared(self.kept, other.kept), [_shared(*pair) for pair in drawn]

    def lines(self) -> list[str]:
        """What there is to say of it."""
        drawn = self.random_accuracy()
        chance = (
            f"{len(drawn)} random prunings of that size: accuracy {np.mean(drawn):.2f}, from {min(drawn):.2f} to "
            f"{max(drawn):.2f}, p = {self.p:.3f}, at least {1 / (1 + len(drawn)):.3f}"
            if drawn
            else "no random prunings of that size"
        )
        fewest = self.fewest()
        on_test = "none of the sizes keeps" if fewest is None else f"{fewest} or more keep"
        return [
            f"{self.setting.task}: {self.result} of {self.units} {WORDS[self.sort]} ({self.share_left}) "
            f"keep {self.explained()[self.result]} of the accuracy of {right_of(self.whole)}",
            f"  by draw of donors {', '.join(f'{share:.2f}' for share in self.by_draw())}; on the test split {on_test} "
            "nine tenths",
            f"  {chance}",
            "  left: " + ", ".join(f"{kind} {count}" for kind, count in self.survivors().items()),
        ]

    def values(self) -> dict[str, Any]:
        """The numbers of the figure, for `files.save_values`."""
        return {
            "settings": self.settings,
            "units": self.units,
            "left": self.left,
            "search": self.search,
            "floor": self.floor,
            "whole": right_of(self.whole),
            "accuracy": {str(left): right for left, right in self.accuracy().items()},
            "explained": {str(left): share for left, share in self.explained().items()},
            "result": self.result,
            "fewest": self.fewest(),
            "by_draw": self.by_draw(),
            "random": self.random_accuracy(),
            "p": self.p,
            "survivors": self.survivors(),
            "kept": list(self.kept),
        }

    def check_line(self) -> str:
        """What a fresh run has to reproduce."""
        drawn = self.random_accuracy()
        best = f", the best of {len(drawn)} random prunings has {max(drawn):.2f}" if drawn else ""
        return (
            f"{self.setting.task}: {self.result} of {self.units} {WORDS[self.sort]} keep "
            f"{self.explained()[self.result].value:.2f} of the accuracy{best}"
        )

    @property
    def panel(self) -> pruning_plots.Pruned:
        """What the figure shows."""
        return pruning_plots.Pruned(
            f"{self.setting.task}, {WORDS[self.sort]}",
            f"{self.result} of {self.units} {self.share_kept}",
            self.accuracy(),
            dict(zip(self.left, self.search, strict=True)),
            right_of(self.whole),
            self.floor,
            self.result,
            self.random_accuracy(),
        )


def _shared(one: Sequence[str], other: Sequence[str]) -> float:
    both, either = {*one} & {*other}, {*one} | {*other}
    return len(both) / len(either) if either else np.nan


@dataclass(frozen=True)
class PruningByTask:
    """What pruning leaves in several tasks. by_task: the curves of head units and of edge units, by task."""

    by_task: Mapping[str, Mapping[Sort, PruningCurve]]

    @property
    def curves(self) -> list[PruningCurve]:
        """All curves, task after task."""
        return [curve for curves in self.by_task.values() for curve in curves.values()]

    def lines(self) -> list[str]:
        """What there is to say of each, and what tasks share."""
        return [line for curve in self.curves for line in curve.lines()] + self.overlap_lines()

    def overlaps(self) -> dict[Sort, dict[str, tuple[float, list[float]]]]:
        """By sort of units and pair of tasks, what their results share, see `PruningCurve.overlap`."""
        pairs = list(combinations(self.by_task, 2))
        return {
            sort: {f"{a}, {b}": self.by_task[a][sort].overlap(self.by_task[b][sort]) for a, b in pairs}
            for sort in SORTS
        }

    def overlap_lines(self) -> list[str]:
        """What pairs of tasks share, in words."""
        return [
            f"{pair}: {shared:.2f} of their {WORDS[sort]} are shared"
            + (f"; random prunings of these sizes {np.mean(drawn):.2f}, at most {max(drawn):.2f}" if drawn else "")
            for sort, by_pair in self.overlaps().items()
            for pair, (shared, drawn) in by_pair.items()
        ]

    def table(self) -> pd.DataFrame:
        """A line for each curve: its result, and random prunings of that size."""
        lines = {}
        for curve in self.curves:
            drawn = curve.random_accuracy()
            lines[curve.setting.task, WORDS[curve.sort]] = {
                "at first": curve.units,
                "left": f"{curve.result} ({curve.share_left})",
                "accuracy, test": str(right_of(curve.rows[curve.result])),
                "of the whole": str(curve.explained()[curve.result]),
                "nine tenths from": curve.fewest() or "",
                "random": f"{np.mean(drawn):.2f}, at most {max(drawn):.2f}" if drawn else "",
                "p": f"{curve.p:.3f}" if drawn else "",
            }
        return pd.DataFrame.from_dict(lines, orient="index")

    def values(self) -> dict[str, Any]:
        """The numbers of the figures, for `files.save_values`."""
        return {
            "by_task": {
                task: {sort: curve.values() for sort, curve in curves.items()} for task, curves in self.by_task.items()
            },
            "overlap": {
                sort: {pair: {"shared": shared, "random": drawn} for pair, (shared, drawn) in by_pair.items()}
                for sort, by_pair in self.overlaps().items()
            },
        }

    def check_lines(self) -> list[str]:
        """What a fresh run has to reproduce."""
        return [curve.check_line() for curve in self.curves]

    @property
    def finding(self) -> str | None:
        """How few units keep how much accuracy, beside random ones; None unless every result is surely better."""
        kept, drawn = [], []
        for curve in self.curves:
            by_chance = curve.random_accuracy()
            if not by_chance or right_of(curve.rows[curve.result]).low <= max(by_chance):
                return None
            kept.append(curve.explained()[curve.result].value)
            drawn.append(max(by_chance))
        shares = [curve.result / curve.units for curve in self.curves]
        return (
            f"{_range([100 * share for share in shares], '.0f')} % of the units keep {_range(kept, '.2f')} of the "
            f"accuracy; as many random units answer {max(drawn):.2f} right at most"
        )

    @property
    def setting(self) -> str:
        """The model, the tasks, and the prompts of both splits."""
        one = self.curves[0]
        return (
            f"{one.setting.model}, {in_words(list(self.by_task))}, {one.setting.k} demonstrations; tested on "
            f"{one.setting.extent}; pruned on {one.settings['search_prompts']} others"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """The accuracy against units left, a panel for each task and sort of units."""
        panels = [curve.panel for curve in self.curves]
        return pruning_plots.pruning(panels, self.finding, self.setting, width=width)

    @property
    def where(self) -> str | None:
        """Which kind of edge units is most frequent among all that are left, and in which layers; None without any."""
        left: dict[str, NDArray[np.int64]] = {}
        for curves in self.by_task.values():
            for kind, counts in curves["edge"].by_layer().items():
                left[kind] = left.get(kind, np.zeros_like(counts)) + counts
        if not left:
            return None
        total = sum(int(counts.sum()) for counts in left.values())
        kind, counts = max(left.items(), key=lambda item: item[1].sum())
        layers = np.flatnonzero(counts)
        into = sum(int(counts.sum()) for name, counts in left.items() if name.endswith("->last_separator"))
        return (
            f"{into} of the {total} edge units that are left lead to the last separator; the most frequent is "
            f"{in_text(kind)} ({counts.sum()}, layer{'s' * (len(layers) > 1)} {_range(list(layers), 'd')})"
        )

    def survivors_figure(self, *, width: float = WIDTH) -> Figure:
        """Which units are left, by kind and layer."""
        panels = [
            (f"{task}, {WORDS[sort]}", curve.by_layer())
            for task, curves in self.by_task.items()
            for sort, curve in curves.items()
        ]
        return pruning_plots.survivors(panels, self.curves[0].layers, self.where, self.setting, width=width)


def _range(numbers: Sequence[float], form: str) -> str:
    """The least and the largest of some numbers, as one where they are written alike."""
    low, high = format(min(numbers), form), format(max(numbers), form)
    return low if low == high else f"{low} to {high}"
