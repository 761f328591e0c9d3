"""The matplotlib style of all figures. This file knows nothing of models, prompts or caches."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import TextPath
from numpy.typing import ArrayLike

from util.stats.intervals import Interval

WIDTH = 5.5  # inches: the text width of a one-column paper (ICLR, NeurIPS)
COLUMN = 3.3  # inches: a column of a two-column paper (ACL, ICML)
BLUE, RED, GREY = "#023858", "#c02d45", "0.55"  # the base or whole model, what is ablated, controls
ORANGE = "#d99a2b"
FINDING, SETTING = 8.5, 7.0  # points: the two parts of a headline
MARGIN = 4  # points between a headline and the edge
Layout = Literal["suite", "paper"]  # of a figure: the suite's own, or that of the published one

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


@contextmanager
def style() -> Iterator[None]:
    """Use the suite's matplotlib settings inside a with block."""
    with mpl.rc_context(STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with a constrained layout; width and height are in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def check_layout(layout: str) -> None:
    """Raises ValueError, with the names that there are, for a layout that there is not."""
    if layout not in get_args(Layout):
        raise ValueError(f"layout = {layout!r}: it is {' or '.join(get_args(Layout))}")


def headline(figure: Figure, finding: str | None, setting: str) -> None:
    """Write what a figure shows above it, and below that, smaller, the setting: model, data, number of prompts.

    Both are broken into lines that are no wider than the figure. finding: None where the values show none; then the
    setting stands alone. To be called once, when the figure has its panels.
    """
    height, room = 72 * figure.get_figheight(), 72 * figure.get_figwidth() - 2 * MARGIN  # in points
    at = height - MARGIN
    centred: dict[str, Any] = {"x": 0.5, "ha": "center", "va": "top", "linespacing": 1.2}
    if finding:
        text = broken(finding, FINDING, room)
        figure.suptitle(text, y=at / height, fontsize=FINDING, **centred).set_in_layout(False)
        at -= 1.45 * FINDING * (text.count("\n") + 1)
    text = broken(setting, SETTING, room)
    figure.text(y=at / height, s=text, fontsize=SETTING, color="0.35", **centred).set_in_layout(False)
    at -= 1.45 * SETTING * (text.count("\n") + 1)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, 0, 1, at / height))  # the panels share what is left


def headline_height(finding: str | None, setting: str, width: float) -> float:
    """The height in inches that a headline takes of a figure of a width in inches."""
    room = 72 * width - 2 * MARGIN
    parts = [(text, size) for text, size in ((finding, FINDING), (setting, SETTING)) if text]
    return (MARGIN + sum(1.45 * size * (broken(text, size, room).count("\n") + 1) for text, size in parts)) / 72


def text_width(text: str, size: float) -> float:
    """The width in points of a text in letters of so many points."""
    font = FontProperties(family=STYLE["font.family"], size=size)
    return float(TextPath((0, 0), text, prop=font).get_extents().width)


def legend_columns(labels: Sequence[str], size: float, width: float) -> int:
    """How many columns of a legend, in letters of so many points, fit into a width in inches; at least 1."""
    widths = [text_width(label, size) + 5.5 * size for label in labels]  # with the line before it, and a space
    fitting = (
        columns
        for columns in range(len(widths), 1, -1)
        if sum(max(column) for column in np.array_split(widths, columns)) <= 72 * width - 2 * MARGIN
    )
    return next(fitting, 1)


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Write what labelled lines and patches are below a figure, in as many columns as fit."""
    size, labels = STYLE["legend.fontsize"], [str(handle.get_label()) for handle in handles]
    if handles:
        columns = legend_columns(labels, size, figure.get_figwidth())
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=size)


def broken(text: str, size: float, width: float) -> str:
    """A text broken into lines, at spaces, that are at most `width` points wide in a font of `size` points."""
    font, lines = FontProperties(family=STYLE["font.family"], size=size), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and TextPath((0, 0), longer, prop=font).get_extents().width > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def columns_of(panels: int, width: float, least: float) -> int:
    """How many of these panels fit side by side into `width` inches, if each needs `least`: as even rows as can be."""
    most = max(1, min(panels, int(width / least)))
    return -(-panels // -(-panels // most))


def points(ax: Axes, x: ArrayLike, intervals: Iterable[Interval], **options: Any) -> None:
    """Draw values with their 95 % intervals at x [N]. options: of matplotlib's `Axes.errorbar`."""
    value, low, high = np.array(list(intervals)).T
    ax.errorbar(x, value, np.abs([low - value, high - value]), **{"ms": 3, "lw": 0.9, **options})


def name_point(ax: Axes, name: str, x: float, y: float) -> None:
    """Write a name beside the point (x, y), on the side where there is room, if the x axis runs from 0 to 1."""
    left = x > 0.5  # write to the left of the point
    ax.annotate(
        name,
        (x, y),
        (-7 if left else 7, 0),
        textcoords="offset points",
        fontsize=6,
        ha="right" if left else "left",
        va="center",
    )
