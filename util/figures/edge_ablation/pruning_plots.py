"""The figures of pruned heads and edges: accuracy by units left, and which units are left.

`finding` and `setting` are the two parts of a headline, see `style.headline`; `width` is that of the figure, in inches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from util.figures.edge_ablation.plots import dot
from util.figures.edge_ablation.type_circuit import arrow
from util.show.head_map import TICK, count_ticks, print_in_cells
from util.show.style import (
    BLUE,
    GREY,
    RED,
    WIDTH,
    columns_of,
    headline,
    headline_height,
    legend_below,
    new_figure,
    points,
    style,
)
from util.stats.intervals import Interval

Counts = NDArray[np.integer]
KINDS = 6  # of units: those that a panel names; the rest are counted together
LABELS = 0.85  # inches that the names of kinds need
ROW = 0.13  # inches between two kinds
DIGIT = 3.2  # points: the width of a digit of 5 points


@dataclass(frozen=True)
class Pruned:
    """A panel of `pruning`: accuracy by units left.

    kept: the share of the accuracy that the result keeps, in words; accuracy: on the test split, with intervals;
    search: on the search split; whole: of the whole model on the test split; floor: what had to be kept on the search
    split; result: units left; random: accuracies of random prunings of that size on the test split.
    """

    title: str
    kept: str
    accuracy: Mapping[int, Interval]
    search: Mapping[int, float]
    whole: Interval
    floor: float
    result: int
    random: Sequence[float]


def pruning(panels: Sequence[Pruned], finding: str | None, setting: str, *, width: float = WIDTH) -> Figure:
    """Accuracy by units left: on the test split with intervals, on the search split by a thin line.

    Blue: the whole model on the test split, with its interval; dashed: what had to be kept on the search split; a
    vertical line: the result, with the accuracy of random prunings of that size in grey.
    """
    columns = columns_of(len(panels), width, 2.4)
    lines = -(-len(panels) // columns)
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 0.45 + 1.5 * lines)
        axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
        for ax, panel, letter in zip(axes.flat, panels, LETTERS, strict=False):
            _pruned(ax, panel)
            ax.set_title(f"{letter}) {panel.title}\n{panel.kept}")
        for ax in axes.flat[len(panels) :]:
            ax.remove()
        for ax in axes[:, 0]:
            ax.set_ylabel("accuracy")
        for ax in axes[-1]:
            ax.set_xlabel("units left")
        handles = [
            Line2D([], [], color=RED, marker="o", ms=3, label="test split"),
            Line2D([], [], color=RED, lw=0.7, label="search split"),
            Line2D([], [], color=RED, lw=0.7, ls="--", label="floor, search split"),
            Line2D([], [], color=BLUE, lw=0.9, ls=":", label="whole model, test split"),
            dot(GREY, "random, as many left"),
            Line2D([], [], color="0.3", lw=0.7, label="result"),
        ]
        legend_below(figure, handles)
        headline(figure, finding, setting)
    return figure


def _pruned(ax: Axes, panel: Pruned) -> None:
    left = np.array(list(panel.accuracy), dtype=float)
    ax.axhspan(panel.whole.low, panel.whole.high, color=BLUE, alpha=0.1, lw=0)
    ax.axhline(panel.whole.value, color=BLUE, lw=0.9, ls=":")
    ax.axhline(panel.floor, color=RED, lw=0.7, ls="--")
    ax.axvline(panel.result, color="0.3", lw=0.7)
    ax.plot(np.full(len(panel.random), panel.result), panel.random, "o", ms=2.5, color=GREY, alpha=0.7)
    ax.plot(list(panel.search), list(panel.search.values()), color=RED, lw=0.7)
    points(ax, left, panel.accuracy.values(), fmt="o-", color=RED, lw=1, elinewidth=0.8)
    ax.set_xscale("symlog", linthresh=1)
    ticks = _of_them(left, 5)
    ax.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set(xlim=(1.15 * left.max(), max(0.0, 0.6 * left.min())), ylim=(-0.04, 1.06))


def _of_them(sizes: NDArray[np.float64], most: int) -> list[float]:
    """At most so many of some sizes [N], the largest and the smallest among them, by equal factors where there are."""
    wanted = np.geomspace(max(sizes.min(), 1), max(sizes.max(), 1), most)
    return sorted({float(sizes[np.argmin(np.abs(np.log1p(sizes) - np.log1p(size)))]) for size in wanted})


def survivors(
    panels: Sequence[tuple[str, Mapping[str, Counts]]],
    layers: int,
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """How many units of each kind are left in each layer: panels with a title and, by kind, counts [L].

    Of more than `KINDS` kinds, those with the fewest units share a row.
    """
    columns = columns_of(len(panels), width, 2.4)
    rows_of = [_with_others(kinds) for _, kinds in panels]
    heights = [0.42 + ROW * max(2, len(kinds)) for kinds in rows_of]
    stacks = [heights[column::columns] for column in range(columns)]
    across = width / columns - LABELS  # inches: of a panel
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 0.25 + max(map(sum, stacks)))
        grid = figure.add_gridspec(1, columns)
        for column, stack in enumerate(stacks):
            spare = max(map(sum, stacks)) - sum(stack)
            ratios = [*stack, spare] if spare > 0.05 else stack
            below = grid[0, column].subgridspec(len(ratios), 1, height_ratios=ratios)
            for row in range(len(stack)):
                number = row * columns + column
                ax = figure.add_subplot(below[row])
                _survivors(ax, rows_of[number], layers, across)
                ax.set_title(f"{LETTERS[number]}) {panels[number][0]}")
                if row == len(stack) - 1:
                    ax.set_xlabel("layer")
        headline(figure, finding, setting)
    return figure


def _with_others(kinds: Mapping[str, Counts]) -> dict[str, Counts]:
    """Kinds, typeset, and their counts; those with the fewest units are added up."""
    order = sorted(kinds, key=lambda kind: -kinds[kind].sum())
    shown = order if len(order) <= KINDS else order[: KINDS - 1]
    rows = {arrow(kind): kinds[kind] for kind in shown}
    if len(shown) < len(order):
        others = order[len(shown) :]
        rows[f"{len(others)} others"] = np.sum([kinds[kind] for kind in others], axis=0)
    return rows


def _survivors(ax: Axes, kinds: Mapping[str, Counts], layers: int, across: float) -> None:
    if not kinds:
        ax.text(0.5, 0.5, "no unit is left", transform=ax.transAxes, ha="center", va="center", fontsize=6.5)
        ax.set(xticks=[], yticks=[])
        return
    counts = np.array([*kinds.values()])
    image = ax.imshow(
        np.sqrt(counts), cmap="Blues", vmin=0, vmax=2.2 * np.sqrt(counts.max(initial=1)), aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    cell = 72 * across / layers  # points
    printed = {(x, y): str(counts[y, x]) for y, x in np.argwhere(counts)}
    print_in_cells(image, {place: text for place, text in printed.items() if DIGIT * len(text) < cell})
    ax.set_yticks(range(len(kinds)), list(kinds), fontsize=6.5)
    ax.set_xticks(count_ticks(layers, max(2, int(across / TICK))))
    ax.spines[:].set_visible(True)
