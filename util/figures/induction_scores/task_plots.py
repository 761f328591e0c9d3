"""The figures of what tasks lose without induction heads, beside what Crosbie & Shutova (2024) report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from util.show.head_map import without_zero
from util.show.style import (
    BLUE,
    GREY,
    PALE_RED,
    RED,
    SERIES,
    WIDTH,
    broken,
    columns_of,
    headline,
    legend_below,
    name_at_right,
    new_figure,
    points,
    style,
)
from util.stats.intervals import Interval

NAMES = 1.2  # inches that the names of rows need
ROW = 0.2  # inches: the height of a row
LINES = {"whole model": BLUE, "without induction heads": RED, "pattern knocked out": PALE_RED}
BAND = "0.85"  # of control sets, from the least to the most
PAPER = "published, Llama-3-8B, 1 % of heads"


@dataclass(frozen=True)
class RowPanel:
    """Shares by the names of rows, each with its interval.

    controls: those of the control sets of a row. chance: of guessing, where it is known. published: what a paper
    reports of another model.
    """

    title: str
    rows: Mapping[str, Interval]
    controls: Mapping[str, Sequence[float]] = field(default_factory=dict)
    chance: float | None = None
    published: Mapping[str, float] = field(default_factory=dict)


def lines_of(panels: int, width: float) -> tuple[int, int]:
    """How many lines of panels with rows there are, and how many panels a line has."""
    columns = columns_of(panels, width - NAMES, 0.95)
    return -(-panels // columns), columns


def row_panels(
    figure: Figure | SubFigure, panels: Sequence[RowPanel], width: float, colours: Mapping[str, str], label: str
) -> list[Axes]:
    """Draw panels side by side, in as many lines as the width wants; the rows of all are the same.

    Every value stands beside its row. colours: of the rows by name; other rows are red. label: what the shares are.
    """
    names = list(dict.fromkeys(name for panel in panels for name in (*panel.rows, *panel.controls)))
    lines, columns = lines_of(len(panels), width)
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=False):
        if panel.chance is not None:
            ax.axvline(panel.chance, color="0.6", lw=0.8, ls=":")
        for y, name in enumerate(names):
            colour = colours.get(name, RED)
            drawn = panel.controls.get(name, ())
            ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
            if name in panel.published:
                ax.plot(panel.published[name], y + 0.28, "D", mfc="none", mec=colour, ms=3.2, mew=0.8)
            if name in panel.rows and np.isfinite(panel.rows[name].value):
                _dot(ax, panel.rows[name], y, colour)
                _value(ax, panel.rows[name].value, y)
        ax.set(xlim=(-0.03, 1.05), ylim=(len(names) - 0.5, -0.5), title=panel.title)
        ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    for ax in axes[max(0, len(panels) - columns) : len(panels)]:
        ax.set_xlabel(label)
    axes[0].set_yticks(range(len(names)), names)
    return list(axes[: len(panels)])


def _dot(ax: Axes, interval: Interval, y: float, colour: str) -> None:
    """A value with its interval from left to right."""
    value, low, high = interval
    ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=colour)


def _value(ax: Axes, value: float, y: float) -> None:
    """A value in digits, at the right of its row."""
    ax.annotate(without_zero(value, 2), (1.09, y), fontsize=6, va="center", annotation_clip=False)


@dataclass(frozen=True)
class NotDone:
    """A task that the whole model does not do.

    by_shots: its accuracies by the number of demonstrations; published: that with most of them, of another model.
    """

    name: str
    by_shots: Mapping[int, Interval]
    chance: float
    published: float | None = None


def _not_done(figure: SubFigure, tasks: Sequence[NotDone]) -> None:
    """The whole model alone, a row for each task; more demonstrations are below fewer, and darker."""
    ax = figure.subplots()
    for y, task in enumerate(tasks):
        ax.plot([task.chance] * 2, [y - 0.45, y + 0.45], color="0.6", lw=0.8, ls=":")
        places = y + 0.24 * (np.arange(len(task.by_shots)) - (len(task.by_shots) - 1) / 2)
        shades = np.linspace(1, 0.35, len(task.by_shots))[::-1]
        for place, interval, shade in zip(places, task.by_shots.values(), shades, strict=True):
            ax.plot([interval.low, interval.high], [place, place], color=BLUE, lw=0.9, alpha=shade)
            ax.plot(interval.value, place, "o", color=BLUE, ms=2.5, alpha=shade)
        _value(ax, task.by_shots[max(task.by_shots)].value, y)
        if task.published is not None:
            ax.plot(task.published, y, "D", mfc="none", mec=BLUE, ms=4, mew=0.8)
    ax.set(xlim=(-0.03, 1.05), ylim=(len(tasks) - 0.5, -0.5))
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.set_yticks(range(len(tasks)), [task.name for task in tasks])
    shots = sorted({number for task in tasks for number in task.by_shots})
    several = f", {', '.join(map(str, shots))} demonstrations (fewer: paler)" if len(shots) > 1 else ""
    ax.set_xlabel("accuracy")
    room = 72 * figure.get_figure(root=True).get_figwidth() - 10
    figure.suptitle(broken(f"not done: the whole model alone{several}", 7, room), fontsize=7)


def _key(figure: Figure, model: str, controls: Line2D | Patch, *, published: bool, more: Sequence[Line2D] = ()) -> None:
    """The legend of what has no name beside it, below the panels. controls: what control sets look like."""
    handles = [
        *more,
        Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label=f"here, {model} (95 %)"),
        *([Line2D([], [], color="black", marker="D", mfc="none", ms=4, ls="", label=PAPER)] if published else []),
        controls,
        Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance"),
    ]
    legend_below(figure, handles)


def accuracies(
    panels: Sequence[RowPanel],
    not_done: Sequence[NotDone],
    finding: str | None,
    setting: str,
    *,
    model: str,
    colours: Mapping[str, str],
    width: float = WIDTH,
) -> Figure:
    """Accuracy by task: a panel for each that the model does, and the whole model alone in those that it does not.

    model: the name of the model, beside that of the paper. colours: of the rows by name; other rows are red.
    """
    rows = len({name for panel in panels for name in (*panel.rows, *panel.controls)})
    lines = lines_of(len(panels), width)[0]
    heights = [lines * (0.5 + ROW * rows) + 0.15, *([0.7 + ROW * len(not_done)] if not_done else [])]
    with style():
        figure = new_figure(width, 1.4 + sum(heights))
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        row_panels(parts[0], panels, width, colours, "accuracy")
        if not_done:
            _not_done(parts[1], not_done)
        known = [panel.published for panel in panels], [task.published for task in not_done]
        ticks = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets, here")
        _key(figure, model, ticks, published=any(known[0]) or any(value is not None for value in known[1]))
        headline(figure, finding, setting)
    return figure


def doses(
    accuracy: Mapping[str, Sequence[Interval]],
    sizes: Sequence[int],
    zero_shot: Mapping[str, Interval],
    losses: Mapping[str, Interval],
    finding: str | None,
    setting: str,
    *,
    task: str,
    chance: float,
    uniform: float,
    width: float = WIDTH,
) -> Figure:
    """How much is lost with how many heads: accuracy by task at each of `sizes`; without demonstrations; plain text.

    zero_shot: of `task`, by what is ablated: nothing, the chosen heads, other heads; losses: of plain text, likewise.
    chance: of the task; uniform: the loss of equal probabilities for all tokens, in nats.
    """
    with style():
        columns = columns_of(2, width, 2.6)
        heights = (1.9, 0.75 + ROW * len(zero_shot))
        figure = new_figure(width, 0.5 + (max(heights) + 0.1 if columns == 2 else sum(heights)))
        shape: dict[str, Any] = {"width_ratios": (1, 1.45)} if columns == 2 else {"height_ratios": heights}
        left, right = figure.subfigures(2 // columns, columns, **shape).ravel()
        _by_size(left.subplots(), accuracy, sizes, chance, 72 * (heights[0] - 0.95))
        names = list(zero_shot)
        colours = dict(zip(names, (BLUE, RED, *[GREY] * (len(names) - 2)), strict=True))
        axes = right.subplots(1, 2, sharey=True)
        for ax, rows, label, title, level, of in (
            (axes[0], zero_shot, "accuracy", f"B) {task},\nno demonstrations", chance, "chance"),
            (axes[1], losses, "nats per token", "C) loss of plain text", uniform, "uniform"),
        ):
            ax.axvline(level, color="0.6", lw=0.8, ls=":")
            for y, name in enumerate(names):
                _dot(ax, rows[name], y, colours[name])
            ax.set(xlabel=label, ylim=(len(names) - 0.5, -0.5))
            ax.set_title(f"{title}\n(dotted: {of})", fontsize=7)
        axes[0].set_xlim(-0.05, 1.05)
        axes[0].set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        axes[0].set_yticks(range(len(names)), names)
        axes[1].margins(x=0.08)
        headline(figure, finding, setting)
    return figure


def _by_size(
    ax: Axes, accuracy: Mapping[str, Sequence[Interval]], sizes: Sequence[int], chance: float, height: float
) -> None:
    """Accuracies by the number of ablated heads, the tasks with their names. height: of the axes, in points."""
    aside = 0.06 * (len(sizes) - 1)
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    ends = {}
    for number, ((task, by_size), colour, marker) in enumerate(zip(accuracy.items(), SERIES, "os^Dvx+", strict=False)):
        x = np.arange(len(sizes)) + aside * (number - (len(accuracy) - 1) / 2)  # or their intervals hide each other
        points(ax, x, by_size, fmt=f"{marker}-", color=colour)
        ends[task.replace("_", " ")] = (by_size[-1].value, colour)
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    ax.set(xlabel="best heads ablated", ylabel="accuracy", ylim=(-0.05, 1.05), yticks=(0, 0.5, 1))
    ax.set_title("A) with demonstrations\n(dotted: chance)", fontsize=7)
    name_at_right(ax, ends, 7.5 / height)


@dataclass(frozen=True)
class ShotsPanel:
    """A task by its numbers of demonstrations, shots.

    lines: accuracies by name, then by number of demonstrations; controls: those of each control set. chance: the
    accuracy of guessing. published: by name, then by number of demonstrations, of another model.
    """

    name: str
    shots: Sequence[int]
    lines: Mapping[str, Mapping[int, Interval]]
    controls: Mapping[int, Sequence[float]]
    chance: float
    published: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


def shots(
    panels: Sequence[ShotsPanel],
    not_done: Sequence[NotDone],
    finding: str | None,
    setting: str,
    *,
    model: str,
    width: float = WIDTH,
) -> Figure:
    """Accuracies by the number of demonstrations: a panel for each task that is done, the others in rows below.

    Grey: from the least to the most of the control sets. model: the name of the model, beside that of the paper.
    """
    columns = columns_of(len(panels), width, 1.3) if panels else 1
    heights = [1.7 * -(-len(panels) // columns)] if panels else []
    heights += [0.7 + 0.24 * len(not_done)] if not_done else []
    with style():
        figure = new_figure(width, 1.7 + sum(heights))
        parts = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        if panels:
            axes = parts[0].subplots(-(-len(panels) // columns), columns, sharey=True, squeeze=False).ravel()
            for ax, panel in zip(axes, panels, strict=False):
                _by_shots(ax, panel)
            for ax in axes[len(panels) :]:
                ax.set_axis_off()
            for ax in axes[::columns]:
                ax.set_ylabel("accuracy")
        if not_done:
            _not_done(parts[-1], not_done)
        used = {name for panel in panels for name, by_shots in panel.lines.items() if by_shots}
        lines = [Line2D([], [], color=colour, label=name) for name, colour in LINES.items() if name in used]
        reported = [by_shots for panel in panels for by_shots in panel.published.values() if by_shots]
        known = bool(reported) or any(task.published is not None for task in not_done)
        band = Patch(color=BAND, label="control sets, here: least to most")
        _key(figure, model, band, published=known, more=lines)
        headline(figure, finding, setting)
    return figure


def _by_shots(ax: Axes, panel: ShotsPanel) -> None:
    place = {k: x for x, k in enumerate(panel.shots)}
    ax.axhline(panel.chance, color="0.6", lw=0.8, ls=":")
    for k, drawn in panel.controls.items():
        low, high = min(drawn), max(drawn)
        ax.bar(place[k], max(high - low, 0.015), 0.7, low, color=BAND, zorder=0)
    for number, (name, colour) in enumerate(LINES.items()):
        aside = 0.14 * (number - 1)  # or intervals hide each other
        by_shots, reported = panel.lines.get(name, {}), panel.published.get(name, {})
        if by_shots:
            points(ax, [place[k] + aside for k in by_shots], by_shots.values(), fmt="o-", color=colour)
        known = {k: value for k, value in reported.items() if k in place}
        looks: dict[str, Any] = {
            "marker": "D",
            "mfc": "white",
            "ms": 3.5,
            "mew": 0.8,
            "lw": 0.6,
            "ls": ":",
            "zorder": 1.5,
        }
        if known:
            ax.plot([place[k] + aside for k in known], list(known.values()), color=colour, **looks)
    ax.set_xticks(range(len(panel.shots)), list(map(str, panel.shots)))
    ax.set(xlim=(-0.6, len(panel.shots) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1), xlabel="demonstrations")
    ax.set_title(panel.name.replace("_", " "), fontsize=7)
