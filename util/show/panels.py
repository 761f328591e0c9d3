"""Kinds of panel that several figures have: plain functions that draw into axes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.font_manager import findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType
from numpy.typing import ArrayLike, NDArray

from util.show.draw import GREY, RED, Grid, broken, room
from util.show.part import interval_at, sign
from util.stats.heads import Head
from util.stats.intervals import Interval

Curve = Mapping[str, ArrayLike]  # "mean", "low" and "high", [X] each
Triple = Sequence[float]  # value, low, high
Rows = Mapping[str, Triple]
BRIGHTNESS = (0.299, 0.587, 0.114)  # of red, green and blue, as the eye sees them (ITU-R BT.601)
SMALL = 6  # points of small print
BAR = 4.5  # inches: narrower figures have their colour bars below
MARGIN = 0.5  # inches of a panel that its labels and title take, on either axis
AXIS = 0.35  # of a map among others, that share its labels
ROW = 0.2  # inches: the height of a row of shares
DRAW = re.compile(r"(, control)? \d+$")  # what the names of draws of a control end with
DIAMOND: dict[str, Any] = {"marker": "D", "mfc": "none", "ms": 3.2, "mew": 0.8}
HERE = Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label="measured (95 %)")
CONTROLS = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets")
CHANCE = Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance")
TICK = 0.24  # inches that a tick label of two digits needs


def ink(colour: ColorType) -> str:
    """Black on light colours, white on dark ones: what letters on a colour are read in."""
    return "black" if np.array(to_rgb(colour)) @ BRIGHTNESS > 0.5 else "white"


# ------------------------------------------------------------------------------------------------ maps of heads


def colour_limit(values: NDArray[Any]) -> float:
    """The end of a colour scale that is symmetric around 0: the largest |value| of [...], so that none saturates.

    It is 1 where all values are 0 or NaN.
    """
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max(initial=0)) or 1.0


def count_ticks(count: int, most: int) -> NDArray[np.int64]:
    """The numbers from 0 to below `count` in equal steps, at most so many of them, [ticks]."""
    return np.arange(0, count, -(-count // most))


def heads(
    ax: Axes,
    values: ArrayLike,
    limits: tuple[float, float],
    title: str = "",
    *,
    bar: str,
    texts: Mapping[Head, str] | None = None,
    colours: str = "Blues",
    **options: Any,
) -> None:
    """A map of heads [L, H]: layers from left to right, heads from bottom to top, both from 0.

    limits: the ends of the colour scale; colours: its name. texts: in cells, where these are large enough for three
    digits. bar: the label of a colour bar for this map alone; options: of the bar.
    """
    cells = np.asarray(values, dtype=float)
    layers, count = cells.shape
    width, height = room(ax)
    low, high = limits
    image = ax.imshow(
        cells.T, cmap=colours, vmin=low, vmax=high, aspect="auto", origin="lower", interpolation="nearest"
    )
    ax.set_xticks(count_ticks(layers, max(2, int((width - AXIS) / TICK))))
    ax.set_yticks(count_ticks(count, 4))
    ax.set(xlabel="layer", ylabel="head")
    ax.spines[:].set_visible(True)
    if texts and (width - AXIS) / layers >= 0.24 and (height - MARGIN) / count >= 0.1:
        print_in_cells(image, texts)
    ax.set_title(title, fontsize=7)
    colour_bar(ax.figure, [ax], bar, **options)


def colour_bar(figure: Any, axes: Sequence[Axes], label: str, **options: Any) -> None:
    """Draw one colour bar for panels, by the image or the points of the first: beside them, below in narrow figures.

    options: of matplotlib's `Figure.colorbar`.
    """
    place = "right" if figure.get_figwidth() >= BAR else "bottom"
    look = {"pad": 0.02, "location": place, "aspect": 25, "label": label, **options}
    shades = (axes[0].images or axes[0].collections)[0]
    figure.colorbar(shades, ax=list(axes), **look).outline.set_visible(False)


def short_number(value: float) -> str:
    """A value in three characters and a sign, such as .44, -2.5 and 12."""
    return without_zero(value, 2 if abs(value) < 0.995 else 1 if abs(value) < 9.95 else 0)


def without_zero(value: float, digits: int) -> str:
    """A value with so many decimals, without the zero before its point: .44, -.03, 10.00."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")


def print_in_cells(image: AxesImage, texts: Mapping[Head, str]) -> None:
    """Print texts in the cells of heads, black on light colours and white on dark ones.

    A text has an outline in its cell's colour, so that it can be read where it is a little wider than the cell.
    """
    values: NDArray[Any] = np.ma.asarray(image.get_array())
    for (layer, head), text in texts.items():
        cell = image.to_rgba(values[head : head + 1, layer])[0]
        outline = [withStroke(linewidth=1, foreground=cell)]
        image.axes.text(layer, head, text, fontsize=7, ha="center", va="center", color=ink(cell), path_effects=outline)


# ------------------------------------------------------------------------------------------------ curves and intervals


def curve(ax: Axes, values: Curve, first: int = 0, **options: Any) -> None:
    """A line [X] over whole numbers from `first` on, with the band of its intervals, and points where they are few."""
    mean, low, high = (np.asarray(values[name], dtype=float) for name in ("mean", "low", "high"))
    x = np.arange(first, first + len(mean))
    ax.plot(x, mean, **{"marker": "o" if len(x) < 20 else None, "ms": 3, "lw": 1.2, **options})
    ax.fill_between(x, low, high, color=options["color"], alpha=0.25, lw=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def level(ax: Axes, value: float, text: str) -> None:
    """A dotted line at a value, with its name at the right of the axes."""
    ax.axhline(value, color="0.35", lw=0.7, ls=":")
    ax.text(1.01, value, text, fontsize=SMALL, color="0.35", transform=ax.get_yaxis_transform(), va="center")


def intervals(
    ax: Axes,
    triples: Sequence[Triple],
    shift: float = 0.0,
    colour: str = RED,
    *,
    upright: bool = False,
    size: float = 3.5,
    label: str = "_",
    digits: str | None = None,
    hollow: bool = True,
) -> None:
    """A point with its interval for each row, or upright for each column.

    shift: how far below its row a point lies. Points are empty where the interval holds 0, unless `hollow` is False;
    digits: how the values of the others are printed above them in rows, such as "+.2f", None for not at all.
    """
    for place, triple in enumerate(triples):
        (value, low, high), full = triple, sign(triple) != 0
        reach = [[abs(value - low)], [abs(high - value)]]  # rounding may leave less than 0
        look: dict[str, Any] = {"fmt": "o", "ms": size, "lw": 0.9, "color": colour, "mew": 0.8, "label": label}
        look |= {"mfc": colour if full or not hollow else "white", "yerr" if upright else "xerr": reach}
        x, y = (place + shift, value) if upright else (value, place + shift)
        ax.errorbar(x, y, **look)
        label = "_"  # once is enough for a legend
        if full and digits is not None:
            ax.annotate(
                f"{value:{digits}}", (x, y - 0.1), fontsize=SMALL, color=colour, ha="center",
                va="bottom", path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )  # fmt: skip


def name_rows(ax: Axes, names: Sequence[str], *, zero: bool = True) -> None:
    """The names of rows, the first on top, and a grey line at 0."""
    if zero:
        ax.axvline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_yticks(range(len(names)), list(names))
    ax.set_ylim(max(len(names), 1) - 0.4, -0.75)
    ax.xaxis.set_major_locator(MaxNLocator(3))


def name_columns(ax: Axes, names: Sequence[str]) -> None:
    """The upright names of columns, each needs 0.13 inches: as many as fit, and a grey line at 0."""
    step = max(1, -(-len(names) // int((room(ax)[0] - MARGIN) / 0.13)))
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_xticks(range(0, len(names), step), list(names)[::step], rotation=90, fontsize=SMALL)
    ax.set_xlim(-0.7, max(len(names), 1) - 0.3)


def triples(entries: Mapping[str, Any], heads: Sequence[Head], value: str = "value") -> list[Interval]:
    """The intervals of some heads, of maps [L, H] of values, lower and upper ends."""
    return [interval_at(entries, *head, value=value) for head in heads]


def points(ax: Axes, x: ArrayLike, intervals: Iterable[Sequence[float]], **options: Any) -> None:
    """Draw values with their 95 % intervals at x [N]. options: of matplotlib's `Axes.errorbar`."""
    value, low, high = np.array(list(intervals)).T
    ax.errorbar(x, value, np.abs([low - value, high - value]), **{"ms": 3, "lw": 0.9, **options})


def name_at_right(ax: Axes, levels: Mapping[str, tuple[float, str]]) -> None:
    """Write the names of lines at the right of the axes, beside their levels.

    levels: the height of each, in data, and its colour. Names of close lines are moved up, in the order of these.
    """
    bottom, top = ax.get_ylim()
    last = -np.inf
    for name, (level, colour) in sorted(levels.items(), key=lambda item: item[1][0]):
        last = max((level - bottom) / (top - bottom), last + 0.085)
        ax.annotate(
            name, (1, last), (3, 0), xycoords="axes fraction", textcoords="offset points",
            fontsize=6, color=colour, va="center", annotation_clip=False,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------ tokens

PRINTED = 0.05  # weights from here on are printed below their tokens
MARKS = {" ": "·", "\n": "↵", "\t": "⇥"}  # what would not be seen
FONT, SIZE = "DejaVu Sans Mono", 6.5  # points: of tokens, and of the weights below them
LETTER = 0.62 * SIZE  # points: the width of a letter, and a little room
NUMBER, APART = 14.0, 3  # points: the width of a weight below a token; more tokens apart no two meet
BOX, LINE = 9.5, 18.0  # points: the height of a token, and of a line with the weights below it
LEAST = 2.5  # inches that a row needs
PALE = "0.75"  # tokens that a query cannot see


@cache
def visible(token: str) -> str:
    """Returns a token as it is shown: blanks, line ends and tabs as signs, all that cannot be drawn as \\u...

    That is control signs, marks of direction, accents without a letter, and letters that the font does not have.
    """
    return "".join(MARKS.get(letter) or (letter if _is_drawn(letter) else f"\\u{ord(letter):04x}") for letter in token)


def _is_drawn(letter: str) -> bool:
    has_shape = letter.isprintable() and not unicodedata.category(letter).startswith("M")
    return has_shape and get_font(findfont(FONT)).get_char_index(ord(letter)) > 0


def token_grid(
    tokens: Sequence[str], weights: NDArray[np.floating], names: Sequence[str], queries: Sequence[int]
) -> Grid:
    """The attention from some of a prompt's tokens, a panel for each: the prompt in lines that fit the panel.

    tokens [T]: as text. weights: [rows, T], from 0 on. names: of the rows. queries: the position that each row is seen
    from, which is framed, and whose later tokens are pale. Line ends of the prompt end a line.
    """
    largest = float(weights.max()) or 1.0  # of the darkest shade
    printed = weights.max(axis=0) >= PRINTED

    def height(width: float) -> float:
        lines = _placed(tokens, printed, 72 * width - 10)[-1][1] + LINE
        return (lines + 38) / 72  # and the title, and the key below all

    def panel(ax: Axes, name: str, row: NDArray[np.floating], query: int) -> None:
        width = 72 * room(ax)[0] - 10
        boxes = _placed(tokens, printed, width)
        ax.set_axis_off()
        ax.set(xlim=(0, width), ylim=(boxes[-1][1] + LINE, 0))
        ax.set_title(broken(name, 8, width), loc="left")
        for number, (token, weight, (left, top, wide)) in enumerate(zip(tokens, row.tolist(), boxes, strict=True)):
            seen = number <= query
            face = mpl.colormaps["Blues"](weight / largest) if seen else "white"
            ax.add_patch(Rectangle((left, top), wide, BOX, facecolor=face, edgecolor="0.88", lw=0.5))
            _write(ax, visible(token), left + wide / 2, top + BOX / 2, ink(face) if seen else PALE)
            if number == query:
                ax.add_patch(Rectangle((left, top), wide, BOX, fill=False, edgecolor="black", lw=1.4, zorder=3))
            if weight >= PRINTED:
                _write(ax, short_number(weight), left + wide / 2, top + BOX + 4, "black")

    rows = zip(names, weights, queries, strict=True)
    panels = [partial(panel, name=name, row=row, query=query) for name, row, query in rows]
    key = f"shade: attention from the framed token, 0 to {largest:.2f}; printed from {PRINTED} on"
    return Grid(panels, least=LEAST, height=height, x=key)


def _placed(tokens: Sequence[str], printed: NDArray[np.bool_], room: float) -> list[tuple[float, float, float]]:
    """Left end, upper end and width of tokens, in points, in lines that fit the room, the same for all rows.

    printed: whether a weight is printed below it in any row. It makes its token wider only where another is near, since
    a wide box tears a word of several tokens.
    """
    boxes, left, top = list[tuple[float, float, float]](), 0.0, 0.0
    for number, token in enumerate(tokens):
        crowded = printed[number] and printed[max(0, number - APART) : number + APART + 1].sum() > 1
        wide = max(len(visible(token)) * LETTER, NUMBER * crowded)
        if left + wide > room or (number and "\n" in tokens[number - 1] and "\n" not in token):
            left, top = 0.0, top + LINE * (left > 0)
        boxes.append((left, top, wide))
        left += wide
    return boxes


def _write(ax: Axes, text: str, x: float, y: float, colour: str) -> None:
    written = ax.text(x, y, text, fontsize=SIZE, color=colour, family=FONT, ha="center", va="center", parse_math=False)
    written.set_in_layout(False)  # or the axes would shrink around it, and points no longer be points


# ------------------------------------------------------------------------------------------------ rows of shares


def row_panel(
    ax: Axes,
    rows: Rows,
    heading: str,
    label: str,
    chance: float | None,
    colours: Mapping[str, str],
    reported: Mapping[str, float] = {},
) -> None:
    """Shares by name, each with its interval and its value beside it, and all draws of a control in one row.

    chance: of guessing, where it is known; colours: of rows, by default red; reported: what a paper reports of another
    model. Only the panels at the left have the names.
    """
    if chance is not None:
        ax.axvline(chance, color="0.6", lw=0.8, ls=":")
    names = row_names(rows)
    for y, name in enumerate(names):
        colour = colours.get(name, RED)
        drawn = [triple[0] for draw, triple in rows.items() if draw != name and DRAW.sub("", draw) == name]
        ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
        if name in reported:
            ax.plot(reported[name], y + 0.28, color=colour, **DIAMOND)
        if name in rows:
            intervals(ax, [rows[name]], y, colour, size=3, hollow=False)
            ax.annotate(without_zero(rows[name][0], 2), (1.09, y), fontsize=7, va="center", annotation_clip=False)
    ax.set(xlim=(-0.03, 1.05), ylim=(len(names) - 0.5, -0.5), xlabel=label)
    ax.set_title(heading, fontsize=7)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    place = ax.get_subplotspec()
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(labelleft=place is None or place.is_first_col())


def row_names(rows: Rows) -> list[str]:
    """The names of the rows that draws stand in, too."""
    return list(dict.fromkeys(DRAW.sub("", name) for name in rows))
