"""The matplotlib style of all figures. This file knows nothing of models, prompts or caches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from util.stats.intervals import Interval

WIDTH = 5.5  # inches: the text width of a one-column paper (ICLR, NeurIPS)
BLUE, RED, GREY = "#023858", "#c02d45", "0.55"  # the base or whole model, what is ablated, controls
ORANGE = "#d99a2b"

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
