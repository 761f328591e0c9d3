"""The figures of what cuts of attention cost, and of induction heads (Cho et al. 2025, Tables 1, 2 and Fig. 6)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from util.figures.forerunner_heads.cuts import EVERYWHERE, Part
from util.figures.forerunner_heads.measures import Contrast, Inducing, Reader
from util.figures.forerunner_heads.plots import SHARES, SMALL, WIDE, curve, level
from util.show.head_map import colour_bar, head_map
from util.show.style import (
    BLUE,
    GREY,
    LIGHT_BLUE,
    PURPLE,
    RED,
    WIDTH,
    broken,
    columns_of,
    headline,
    new_figure,
    style,
)
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval, Intervals

Table = Mapping[Part, Mapping[str, Interval]]  # by part of the layers and cut

READER_COLOURS = {Reader.BEST: BLUE, Reader.MEAN: LIGHT_BLUE, Reader.SIMILARITY: PURPLE}
INDUCTION_COLOURS = {Inducing.ANY: BLUE, Inducing.CORRECT: LIGHT_BLUE}
SCORE_COLOURS = (RED, BLUE)  # which label, label mass
NAME = 0.13  # inches that the upright name of a head needs


def cut_table(
    changes: Mapping[Any, tuple[Table, Table]],
    names: Mapping[str, str],
    finding: str,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """What each cut changes of which label and of label mass: rows and columns are those of the paper's Table 1.

    A panel for each part of the layers, a row for each cut. changes: by score, intervals by part and cut, and those of
    as many random cells (the smaller points below), where they were cut. A full point has an interval that excludes 0,
    and its value is printed. names: of the cuts.
    """
    lost = next(iter(changes.values()))[0]
    cuts = list(next(iter(lost.values())))
    columns = columns_of(len(lost), width - 0.8, 0.85 if width >= WIDE else 1.1)
    rows = -(-len(lost) // columns)
    tables = [table for pair in changes.values() for table in pair]
    ends = [end for table in tables for cells in table.values() for one in cells.values() for end in one]
    span = max(*ends, 0) - min(*ends, 0) or 1.0
    with style():
        figure = new_figure(width, 1.15 + rows * (0.5 + 0.36 * len(cuts)))
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(lost) :]:
            ax.set_axis_off()
        for ax, part in zip(axes.flat, lost, strict=False):
            ax.axvline(0, color="0.7", lw=0.7, zorder=0)
            for (values, controls), colour, row in zip(changes.values(), SCORE_COLOURS, (-0.18, 0.24), strict=True):
                _dots(ax, cuts, controls.get(part, {}), row + 0.16, colour, size=2.0)
                _dots(ax, cuts, values[part], row, colour)
                for number, cut in enumerate(cuts):
                    if cut in values[part] and _significant(values[part][cut]):
                        value = values[part][cut].value
                        _print(ax, value, number + row - 0.1, f"{value:+.2f}", colour)
            ax.set_title(_part_name(part), fontsize=7)
            ax.xaxis.set_major_locator(MaxNLocator(3))
        axes.flat[0].set(xlim=(min(*ends, 0) - 0.2 * span, max(*ends, 0) + 0.2 * span), ylim=(len(cuts) - 0.4, -0.75))
        for ax in axes[:, 0]:
            ax.set_yticks(range(len(cuts)), [_typeset(names[cut]) for cut in cuts])
        for ax in axes.flat[: len(lost)]:
            ax.set_xlabel("nats")
            ax.label_outer()
        handles = [
            axes.flat[0].plot([], [], "o", color=colour, ms=3.5, label=f"{score} (full: interval excludes 0)")[0]
            for score, colour in zip(changes, SCORE_COLOURS, strict=True)
        ]
        handles += axes.flat[0].plot([], [], "o", color=GREY, ms=2, label="small: random cells")
        figure.legend(handles=handles, loc="outside lower center", ncols=3 if width >= WIDE else 1, fontsize=SMALL)
        headline(figure, finding, setting)
    return figure


def _print(ax: Axes, x: float, y: float, text: str, colour: str, rotation: float = 0) -> None:
    """Write a value above a point, with an outline, so that it can be read on lines."""
    outline = [withStroke(linewidth=1.5, foreground="white")]
    place: dict[str, Any] = {"ha": "center", "va": "bottom", "rotation": rotation}
    ax.text(x, y, text, fontsize=SMALL, color=colour, path_effects=outline, **place)


def _significant(interval: Interval) -> bool:
    return interval.low > 0 or interval.high < 0


def _dots(
    ax: Axes, cuts: list[str], values: Mapping[str, Interval], lower: float, colour: str, size: float = 3.5
) -> None:
    """A point with its interval in the row of each cut, `lower` rows below its middle; empty where it holds 0."""
    for row, cut in enumerate(cuts):
        if cut in values:
            value, low, high = values[cut]
            face = colour if _significant(values[cut]) else "white"
            reach = [[value - low], [high - value]]
            ax.errorbar([value], [row + lower], xerr=reach, fmt="o", ms=size, lw=0.9, color=colour, mfc=face, mew=0.8)


def _typeset(name: str) -> str:
    return "$" + name.replace("->", r"\to").replace("<=", r"\leq").replace(", ", r",\; ") + "$"


def _part_name(part: Part) -> str:
    return "all layers" if part == EVERYWHERE else f"{part[0]:.0%} to {part[1]:.0%}"


def induction_layers(
    counts: Mapping[Inducing, Intervals],
    likelihoods: Mapping[Reader, Intervals],
    null: Intervals,
    levels: Mapping[str, float],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Induction heads per layer (Fig. 6 left), below them the share of the query's label in what is read (middle).

    counts, likelihoods: by `Inducing` and by `Reader`; null: what the best head has by chance; levels: named
    horizontal lines of the lower panel, such as that of uniform attention. Bands: 95 % intervals.
    """
    with style():
        figure = new_figure(width, 3.9 if width >= WIDE else 4.9)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.3))
        x = np.arange(len(null.value))
        for which, values in counts.items():
            label = "above: induction heads" if which == Inducing.ANY else "above: those for the query's label"
            curve(above, x, values, color=INDUCTION_COLOURS[which], label=label)
        below.fill_between(x, null.low, null.high, color=GREY, alpha=0.45, lw=0)
        for reader, values in likelihoods.items():
            curve(below, x, values, color=READER_COLOURS[reader], label=f"below: {reader}")
        below.plot(x, null.value, color="black", lw=0.9, ls="--", label="below: best head, labels shuffled")
        above.set_ylim(0, 1.05 * max(0.1, *(float(values.high.max()) for values in counts.values())))
        below.set(ylim=(0, 1), xlabel="layer", ylabel="share of the query's label\nin what is read")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        for name, value in levels.items():
            level(below, value, name)
        above.set_ylabel("heads\non a prompt")
        lines = [line for ax in (above, below) for line in zip(*ax.get_legend_handles_labels(), strict=True)]
        handles, labels = zip(*lines, strict=True)
        columns = 3 if width >= WIDE else 1
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=SMALL)
        headline(figure, finding, setting)
    return figure


def head_effects(
    counts: NDArray[np.integer],
    n: int,
    moved: NDArray[np.floating],
    cut: Contrast,
    what: str,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Attention is not copying: counts [L, H] on n prompts, beside them what the heads move, below what that is worth.

    moved: mean length of the vector that a head adds at the label because of the forerunner; cut: of a score in nats,
    named `what`, with other cells of the labels cut (first) and with those to their forerunners cut (second); NaN
    where a head was not cut. Below, the heads that were cut, the one that moves most first, with 95 % intervals for all
    of them together; a full point has one that excludes 0.
    """
    layers, heads = counts.shape
    columns = 2 if width >= WIDE else 1
    inside = width / columns - 0.9
    maps, below = (min(1.4, max(0.8, 0.09 * heads)) + 0.5, 1.35)
    with style():
        figure = new_figure(width, 0.85 + (2 // columns) * maps + below + 0.35)
        parts = figure.add_gridspec(2 // columns + 1, columns, height_ratios=[maps] * (2 // columns) + [below + 0.35])
        above = [figure.add_subplot(parts[place // columns, place % columns]) for place in range(2)]
        top = float(np.nanmax(moved)) if np.isfinite(moved).any() else 1.0
        images = [
            head_map(above[0], counts / n, SHARES, width=inside),
            head_map(above[1], moved, (0, top), colours="Greens", width=inside),
        ]
        for ax, image, name in zip(
            above, images, ("share of prompts above threshold", "length of what is moved"), strict=True
        ):
            ax.set_title(name, fontsize=7)
            colour_bar(image, ax)
        _losses(figure.add_subplot(parts[-1, :]), moved, cut, what, width - 0.8)
        headline(figure, finding, setting)
    return figure


def _losses(ax: Axes, moved: NDArray[np.floating], cut: Contrast, what: str, width: float) -> None:
    """What each head that was cut costs, with intervals, by what it moves [L, H]; width: of the axes in inches."""
    tested: list[Head] = [(int(layer), int(head)) for layer, head in np.argwhere(np.isfinite(cut.difference))]
    tested.sort(key=lambda head: -moved[head])
    step = max(1, -(-len(tested) // int(width / NAME)))
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    for place, head in enumerate(tested):
        value, low, high = cut.difference[head], cut.low[head], cut.high[head]
        face = RED if low > 0 or high < 0 else "white"
        reach = [[value - low], [high - value]]
        ax.errorbar([place], [value], yerr=reach, fmt="o", ms=3.5, lw=0.9, color=RED, mfc=face, mew=0.8)
        if face == RED and step == 1:
            _print(ax, place, high, f" {value:.2f}", RED, rotation=90)
    ax.set_xticks(
        range(0, len(tested), step), [head_name(head) for head in tested[::step]], rotation=90, fontsize=SMALL
    )
    ax.set_xlim(-0.7, max(len(tested), 1) - 0.3)
    ax.margins(y=0.4)  # room for the values
    title = f"{what}, lost when one head is cut, beyond other cells"
    ax.set_title(broken(title, 7, 72 * width), fontsize=7)
    ax.set_ylabel("nats lost")
