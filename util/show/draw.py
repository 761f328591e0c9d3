"""Pictures of panels: one look, one layout, one headline, one legend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

# ------------------------------------------------------------------------------------------------ sizes, colours

WIDTH = 5.5  # inches: the text width of a one-column paper (ICLR, NeurIPS)
COLUMN = 3.3  # inches: a column of a two-column paper (ACL, ICML)
BLUE, RED, GREY = "#023858", "#c02d45", "0.55"  # the base or whole model, what is ablated, controls
PALE_RED = "#e08a97"  # what is ablated in a second way, in a figure in which RED is the first
ORANGE = "#d99a2b"  # frames and arrows that point at something; published values; answers that are not the right one
PAPER_ORANGE = "#ff7f0e"  # of wrong labels in the notebooks of Cho et al.
LIGHT_BLUE, GREEN, PURPLE = "#3690c0", "#2c7d59", "#7b5aa6"  # of further lines of one figure

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.titlesize": 8,
    "figure.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.4,
    "figure.dpi": 88,
}


class RoleLook(NamedTuple):
    """How a role of heads is drawn: the colour, and two letters where there is room."""

    colour: str
    letters: str


ROLES: Mapping[str, RoleLook] = {  # no two are alike, also to colour-blind readers; nothing else has these colours
    "previous-token": RoleLook("#5cc2fc", "PT"),
    "duplicate-token": RoleLook("#ddd95f", "DT"),
    "induction": RoleLook("#3ab77e", "IN"),
    "forerunner": RoleLook("#0f798e", "FR"),
    "label reader": RoleLook("#8e9d4d", "LR"),
    "function vector": RoleLook("#db7fc6", "FV"),
    "inhibition": RoleLook("#7f53bc", "SI"),  # the name of Wang et al.: S-inhibition
    "mover": RoleLook("#c75f1d", "MV"),
    "negative mover": RoleLook("#6e2d13", "NM"),
}
NO_ROLE = "0.95"


# ------------------------------------------------------------------------------------------------ panels

Panel = Callable[[Axes], object]
Floats = NDArray[np.floating]
HEADLINE = (8.5, 7.0)  # points: letters of its two parts, the title and the setting
MARGIN = 4  # points between a headline and the edge
ON_PIXELS = 1.03  # times as wide as its outlines is a text whose letters are set on whole pixels
A_LINE, WITHIN = 10, 0.2  # what a line of a broken text costs, its length at most 1, and an end within a part of it
BREAKS = {";": 0, ",": 0.05, **dict.fromkeys(":0123456789", 0.4)}  # that it ends so; a number goes with what it counts
LEGEND, LINE = 0.25, 0.14  # inches below the panels: of a legend of up to two lines, and of each further one


@dataclass(frozen=True)
class Grid:
    """Panels, each a function that draws into axes, and how they are laid out.

    least: inches that a panel needs: as many stand side by side as fit, `columns` at most. height: inches of a row, or
    those of every panel, or a function from the width of a panel to either; a row is as high as its highest panel.
    wide: numbers of panels that have a row of their own. share: axes that all panels share, "x", "y" or "xy". x, y:
    labels of all panels together. legend: labelled lines and patches; what panels label stands before them. finish:
    draws what spans panels, with the figure and the axes [panels].
    """

    panels: Sequence[Panel]
    least: float = 1.2
    height: float | Sequence[float] | Callable[[float], float | Sequence[float]] = 1.5
    columns: int = 9
    wide: Sequence[int] = ()
    share: str = ""
    x: str = ""
    y: str = ""
    legend: Sequence[Any] = ()
    finish: Callable[[Figure, Sequence[Axes]], object] | None = None


def draw(grid: Grid, title: str, subtitle: str, width: float = WIDTH) -> Figure:
    """A picture of a grid, `width` inches wide. title: what it shows; "" where the numbers show nothing."""
    rows = _rows(grid, width)
    size = grid.height(width / len(rows[0])) if callable(grid.height) else grid.height
    heights = [max(size[number] for number in {*row} - {-1}) if isinstance(size, Sequence) else size for row in rows]
    headline = [
        broken(text, points, 72 * width - 2 * MARGIN) for text, points in zip((title, subtitle), HEADLINE, strict=True)
    ]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, headline_height(headline) + sum(heights)), layout="constrained")
        figure.patch.set_in_layout(True)  # saved whole by whoever crops to what is in the layout, as Jupyter does
        mosaic: Any = rows  # numbers, where matplotlib's types want strings
        by_number = figure.subplot_mosaic(
            mosaic, sharex="x" in grid.share, sharey="y" in grid.share, height_ratios=heights, empty_sentinel=-1
        )
        axes = [by_number[number] for number in range(len(grid.panels))]
        for panel, ax in zip(grid.panels, axes, strict=True):
            panel(ax)
        _hide_inner_labels(grid.share, rows, axes)
        figure.supxlabel(broken(grid.x, 8, 72 * width - 10))
        figure.supylabel(grid.y)
        if grid.finish is not None:
            grid.finish(figure, axes)
        labelled = {
            label: handle for ax in figure.axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        if lines := legend_below(figure, [*labelled.values(), *grid.legend]):
            figure.set_figheight(figure.get_figheight() + LEGEND + LINE * max(0, lines - 2))
        write_headline(figure, headline)
        place_names(figure, axes)
    return figure


def _rows(grid: Grid, width: float) -> list[list[int]]:
    """The numbers of the panels, row by row, as even as can be; -1 where there is none."""
    narrow = len(grid.panels) - len(grid.wide)
    most = max(1, min(narrow, int(width / grid.least)))
    columns = min(grid.columns, -(-narrow // -(-narrow // most)))
    rows: list[list[int]] = []
    for number in range(len(grid.panels)):
        if number in grid.wide:
            rows.append([number] * columns)
        elif rows and len(rows[-1]) < columns:
            rows[-1].append(number)
        else:
            rows.append([number])
    return [row + [-1] * (columns - len(row)) for row in rows]


def _hide_inner_labels(share: str, rows: Sequence[Sequence[int]], axes: Sequence[Axes]) -> None:
    """Of axes that are shared, only the panels at the left and those with none below keep their labels."""
    grid = np.array(rows)
    for number in grid[:-1][grid[1:] != -1] if "x" in share else ():
        axes[number].tick_params(labelbottom=False)
        axes[number].set_xlabel("")
    for number in {*grid[:, 1:].flat} - {-1, *grid[:, 0]} if "y" in share else ():
        axes[number].tick_params(labelleft=False)
        axes[number].set_ylabel("")


def room(ax: Axes) -> tuple[float, float]:
    """The inches, across and up, that a panel of a picture has, its labels and title included."""
    place, figure = ax.get_subplotspec(), ax.get_figure(root=True)
    assert place is not None and figure is not None
    grid = place.get_gridspec()
    heights = np.asarray(grid.get_height_ratios(), dtype=float)[place.rowspan]
    return figure.get_figwidth() * len(place.colspan) / grid.ncols, float(heights.sum())


def matrix(
    ax: Axes,
    values: Floats,
    title: str = "",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    *,
    x: str = "",
    y: str = "",
    numbers: bool = False,
) -> None:
    """Values [R, C] from 0 to 1 as shades. rows, columns: names. numbers: whether those that are not 0 are written."""
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    ax.set(title=title, xlabel=x, ylabel=y)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(True)
    for (row, column), value in np.ndenumerate(values) if numbers else ():
        colour = "white" if value > 0.6 else "black"
        if value:
            ax.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=6.5, color=colour)


# ------------------------------------------------------------------------------------------------ names of points

NAMED, NAME = "named point", 7  # marks the names that `place_names` moves; their points
HALO = [withStroke(linewidth=1.5, foreground="white")]
OTHERS = 20  # what it costs a name to stand closer to another point
DOT = 2.5  # points around the middle of a dot, which a name should not cover
WAYS = [np.array(way) for way in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))]


def name_beside(ax: Axes, named: Mapping[str, tuple[float, float]]) -> None:
    """Name points (x, y) of a panel of `draw`, which puts the names where there is room."""
    for name, point in named.items():
        ax.annotate(
            name, point, (0, 0), textcoords="offset points", fontsize=NAME, ha="center", va="center", gid=NAMED,
            path_effects=HALO, annotation_clip=False, zorder=6,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkA": 0, "shrinkB": 1},
        ).set_in_layout(False)  # fmt: skip


def place_names(figure: Figure, axes: Sequence[Axes]) -> None:
    """Move names beside their points: on no other name, inside of their panel, and on as few points as can be.

    A line leads to a name that is not beside its point. Names without any room go.
    """
    named: list[list[Any]] = [[text for text in ax.texts if text.get_gid() == NAMED] for ax in axes]
    point = figure.dpi / 72
    if any(named):
        figure.draw_without_rendering()  # gives panels their places
    for ax, names in zip(axes, named, strict=True):
        dots, taken = [line.get_xydata() for line in ax.lines if line.get_marker() != "None"], list[Bbox]()
        covered = ax.transData.transform(np.concatenate([np.empty((0, 2)), *dots]))
        for text in sorted(names, key=lambda one: one.xy):
            half = np.array([0.31 * NAME * len(text.get_text()) + 1, 0.62 * NAME])
            places = list[tuple[float, Any, Bbox]]()
            points = np.concatenate([ax.transData.transform([text.xy, *(one.xy for one in names)]), covered])
            for far, way in product((3.0, 9.0, 16.0, 26.0, 38.0), WAYS):
                middle = points[0] + way * (half + far) * point
                away = np.hypot(*np.maximum(abs(points - middle) - half * point, 0).T)
                box = Bbox([middle - half * point, middle + half * point])
                if ax.bbox.count_contains(box.get_points()) == 2 and not box.count_overlaps(taken):
                    cost = 4 * box.padded(DOT * point).count_contains(covered) + OTHERS * (away.argmin() > 0)
                    places.append((cost + far + 2 * abs(way[1]), way * (half + far), box))
            if places:
                _, text.xyann, box = min(places, key=itemgetter(0))
                taken.append(box)
            else:
                text.remove()


# ------------------------------------------------------------------------------------------------ texts around panels


def headline_height(lines: Sequence[str]) -> float:
    """The inches that the parts of a headline take, each broken into lines."""
    points = [size * (text.count("\n") + 1) for text, size in zip(lines, HEADLINE, strict=False) if text]
    return (MARGIN + 1.45 * sum(points)) / 72


def write_headline(figure: Figure, headline: Sequence[str]) -> None:
    """Write what a figure shows above it, and below that, smaller, the setting: model, data, number of prompts.

    To be called once, when the figure has its panels, which share what is left.
    """
    height = figure.get_figheight()
    centred: dict[str, Any] = {"x": 0.5, "ha": "center", "va": "top", "linespacing": 1.2, "parse_math": False}
    title, setting = headline
    if title:
        figure.suptitle(title, y=1 - MARGIN / 72 / height, fontsize=HEADLINE[0], **centred)
    figure.text(y=1 - headline_height([title]) / height, s=setting, fontsize=HEADLINE[1], color="0.35", **centred)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0, 1, 1 - headline_height(headline) / height))


def text_width(text: str, size: float) -> float:
    """The width in points of the ink of a text in letters of so many points."""
    font = get_font(findfont(STYLE["font.family"]))
    font.set_size(100, 72)
    font.set_text(text, 0, flags=LoadFlags.NO_HINTING)
    first, last = (font.load_char(ord(letter), flags=LoadFlags.NO_HINTING) for letter in (text[0], text[-1]))
    around = first.horiBearingX + last.horiAdvance - last.horiBearingX - last.width
    return (font.get_width_height()[0] - around) / 64 * size / 100


def legend_below(figure: Figure, handles: Sequence[Any]) -> int:
    """Write what labelled lines and patches are below a figure, in few lines of about as many; returns how many."""
    if not handles:
        return 0
    size, room = STYLE["legend.fontsize"], 72 * figure.get_figwidth() - 2 * MARGIN
    widths = [text_width(handle.get_label(), size) + 5.5 * size for handle in handles]  # with a line and a space
    lines, columns = 1, len(handles)
    while columns > 1 and sum(map(max, np.array_split(widths, columns))) > room:
        lines += 1
        columns = -(-len(handles) // lines)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=size)
    return lines


def broken(text: str, size: float, width: float) -> str:
    """A text broken into as few lines as can be, `width` points wide at most in letters of `size` points.

    Of ways to break it that is taken whose lines are about as long and end where its parts do, see BREAKS. It is broken
    at spaces, but for those of an interval or equation: [0.90, 0.96] and k = 4 stay on one line.
    """
    words = re.split(r"(?<!=)\s+(?!=)(?![^[]*\])", text.strip())
    best: list[Any] = [(0.0, [])]  # of the first so many words: what their lines cost, and these
    for end in range(1, len(words) + 1):
        ways: list[Any] = []
        for start in reversed(range(end)):
            line = " ".join(words[start:end])
            share = ON_PIXELS * text_width(line, size) / width if line else 0
            if share > 1 and ways:
                break
            cost, lines = best[start]
            ways.append((cost + A_LINE + share**2 + BREAKS.get(line[-1:], WITHIN), [*lines, line]))
        best.append(min(ways))
    return "\n".join(best[-1][1])
