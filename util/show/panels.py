"""Kinds of panel that several figures have: plain functions that draw into axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from util.show.draw import room
from util.show.head_map import colour_bar as bar_of
from util.show.head_map import head_map, print_in_cells
from util.show.style import RED
from util.stats.heads import Head

SMALL = 6  # points of small print
BAR = 4.5  # inches: narrower figures have their colour bars below
MARGIN = 0.5  # inches of a panel that its labels and title take, on either axis
AXIS = 0.35  # of a map among others, that share its labels
Curve = Mapping[str, ArrayLike]  # "mean", "low" and "high", [X] each
Triple = Sequence[float]  # value, low, high


def colour_bar(figure: Figure, axes: Sequence[Axes], label: str = "", **options: Any) -> None:
    """Draw one colour bar for panels, by the image or the points of the first: beside them, below in narrow figures.

    options: of matplotlib's `Figure.colorbar`.
    """
    place = "right" if figure.get_figwidth() >= BAR else "bottom"
    shades = (axes[0].images or axes[0].collections)[0]
    bar_of(shades, list(axes), **{"location": place, "aspect": 25, "label": label, **options})


def heads(
    ax: Axes,
    values: ArrayLike,
    limits: tuple[float, float] | None = None,
    title: str = "",
    *,
    texts: Mapping[Head, str] | None = None,
    bar: str | None = None,
    colours: str = "Blues",
    **options: Any,
) -> None:
    """A map of heads [L, H], see `head_map`. texts: in cells, where these are large enough for three digits.

    bar: the label of a colour bar for this map alone, None for no bar; options: of the bar.
    """
    shown = np.asarray(values, dtype=float)
    width, height = room(ax)
    image = head_map(ax, shown, limits, colours=colours, width=width - AXIS)
    if texts and (width - AXIS) / shown.shape[0] >= 0.24 and (height - MARGIN) / shown.shape[1] >= 0.1:
        print_in_cells(image, texts)
    ax.set_title(title, fontsize=7)
    if bar is not None:
        figure: Any = ax.get_figure(root=True)
        colour_bar(figure, [ax], bar, **options)


def curve(ax: Axes, found: Curve, least: float = -np.inf, first: int = 0, **options: Any) -> None:
    """A line [X] over whole numbers from `first` on, with the band of its intervals, and points where they are few.

    What is smaller than `least` is drawn as this much.
    """
    mean, low, high = (np.maximum(np.asarray(found[name], dtype=float), least) for name in ("mean", "low", "high"))
    x = np.arange(first, first + len(mean))
    ax.plot(x, mean, **{"marker": "o" if len(x) < 20 else None, "ms": 3, "lw": 1.2, **options})
    ax.fill_between(x, low, high, color=options["color"], alpha=0.25, lw=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def level(ax: Axes, value: float, text: str) -> None:
    """A dotted line at a value, with its name at the right of the axes."""
    ax.axhline(value, color="0.35", lw=0.7, ls=":")
    ax.text(1.01, value, text, fontsize=SMALL, color="0.35", transform=ax.get_yaxis_transform(), va="center")


def excludes_0(triple: Triple) -> bool:
    """Whether an interval lies above or below 0."""
    return triple[1] > 0 or triple[2] < 0


def intervals(
    ax: Axes,
    triples: Sequence[Triple | None],
    shift: float = 0.0,
    colour: str = RED,
    *,
    upright: bool = False,
    size: float = 3.5,
    label: str = "_",
    digits: str | None = None,
    hollow: bool = True,
) -> None:
    """A point with its interval for each row, or upright for each column; None for no point.

    shift: how far below its row a point lies. Points are empty where the interval holds 0, unless `hollow` is False;
    digits: how the values of the others are printed beside them, such as "+.2f", None for not at all.
    """
    for place, triple in enumerate(triples):
        if triple is None:
            continue
        (value, low, high), full = triple, excludes_0(triple)
        reach = [[abs(value - low)], [abs(high - value)]]  # rounding may leave less than 0
        look: dict[str, Any] = {"fmt": "o", "ms": size, "lw": 0.9, "color": colour, "mew": 0.8, "label": label}
        look["mfc"] = colour if full or not hollow else "white"
        if upright:
            ax.errorbar(place + shift, value, yerr=reach, **look)
        else:
            ax.errorbar(value, place + shift, xerr=reach, **look)
        label = "_"  # once is enough for a legend
        if full and digits is not None:
            text, over = f"{value:{digits}}", (place, high) if upright else (value, place + shift - 0.1)
            ax.annotate(
                f" {text}" if upright else text, over, fontsize=SMALL, color=colour, ha="center", va="bottom",
                rotation=90 * upright, path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )  # fmt: skip


def name_rows(ax: Axes, names: Sequence[str], *, zero: bool = True) -> None:
    """The names of rows, the first on top, and a grey line at 0."""
    if zero:
        ax.axvline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_yticks(range(len(names)), list(names))
    ax.set_ylim(max(len(names), 1) - 0.4, -0.75)
    ax.xaxis.set_major_locator(MaxNLocator(3))


def name_columns(ax: Axes, names: Sequence[str], least: float = 0.13) -> None:
    """The upright names of columns, each needs `least` inches: as many as fit, and a grey line at 0."""
    step = max(1, -(-len(names) // int((room(ax)[0] - MARGIN) / least)))
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_xticks(range(0, len(names), step), list(names)[::step], rotation=90, fontsize=SMALL)
    ax.set_xlim(-0.7, max(len(names), 1) - 0.3)


def triples(found: Mapping[str, Any], heads: Sequence[Head], value: str = "value") -> list[Triple]:
    """The intervals of some heads, of maps [L, H] of values, lower and upper ends."""
    parts = [np.asarray(found[name], dtype=float) for name in (value, "low", "high")]
    return [[float(part[layer, head]) for part in parts] for layer, head in heads]
