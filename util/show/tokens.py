"""A prompt as coloured tokens, each shaded by the attention that it gets (Crosbie & Shutova 2024, Figs. 6 and 7).

This file knows nothing of models, prompts or caches.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from util.show.draw import Grid
from util.show.draw import room as room_of
from util.show.head_map import short_number
from util.show.style import broken, ink

PRINTED = 0.05  # weights from here on are printed below their tokens
MARKS = {" ": "·", "\n": "↵", "\t": "⇥"}  # what would not be seen
FONT, SIZE = "DejaVu Sans Mono", 6.5  # points: of tokens, and of the weights below them
LETTER = 0.62 * SIZE  # points: the width of a letter, and a little room
NUMBER = 14.0  # points: the width of a weight below a token
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


class _Box(NamedTuple):
    """The place of a token: in points, from the upper left corner."""

    left: float
    top: float
    wide: float


def token_grid(
    tokens: Sequence[str], weights: NDArray[np.floating], names: Sequence[str], queries: Sequence[int]
) -> Grid:
    """The attention from some of a prompt's tokens, a panel for each: the prompt in lines that fit the panel.

    tokens [T]: as text. weights: [rows, T], from 0 on. names: of the rows. queries: the position that each row is seen
    from, which is framed, and whose later tokens are pale. Line ends of the prompt end a line.
    """
    largest = float(weights.max()) or 1.0  # of the darkest shade
    printed = weights.max(axis=0) >= PRINTED
    rows = zip(names, weights, queries, strict=True)
    panels = [partial(_draw, tokens, printed, largest, name, row, query) for name, row, query in rows]
    key = f"shade: attention from the framed token, 0 to {largest:.2f}; printed from {PRINTED} on"

    def height(width: float) -> float:
        lines = _placed(tokens, printed, 72 * width - 10)[-1].top + LINE
        return (lines + 38) / 72  # and the title, and the key below all

    return Grid(panels, least=LEAST, height=height, x=key)


def _placed(tokens: Sequence[str], printed: NDArray[np.bool_], room: float) -> list[_Box]:
    """The places of tokens in lines of at most so many points, the same for all rows. printed: in any of these."""
    boxes, left, top = list[_Box](), 0.0, 0.0
    for number, token in enumerate(tokens):
        wide = max(len(visible(token)) * LETTER, NUMBER * printed[number])
        if left + wide > room or (number and "\n" in tokens[number - 1] and "\n" not in token):
            left, top = 0.0, top + LINE * (left > 0)
        boxes.append(_Box(left, top, wide))
        left += wide
    return boxes


def _draw(
    tokens: Sequence[str],
    printed: NDArray[np.bool_],
    largest: float,
    name: str,
    row: NDArray[np.floating],
    query: int,
    ax: Axes,
) -> None:
    width = 72 * room_of(ax)[0] - 10
    boxes = _placed(tokens, printed, width)
    ax.set_axis_off()
    ax.set(xlim=(0, width), ylim=(boxes[-1].top + LINE, 0))
    ax.set_title(broken(name, 8, width), loc="left")
    colours = mpl.colormaps["Blues"]
    for number, (token, (left, top, wide)) in enumerate(zip(tokens, boxes, strict=True)):
        weight, seen = float(row[number]), number <= query
        face = colours(weight / largest) if seen else "white"
        ax.add_patch(Rectangle((left, top), wide, BOX, facecolor=face, edgecolor="0.88", lw=0.5))
        _write(ax, visible(token), left + wide / 2, top + BOX / 2, ink(face) if seen else PALE)
        if number == query:
            ax.add_patch(Rectangle((left, top), wide, BOX, fill=False, edgecolor="black", lw=1.4, zorder=3))
        if weight >= PRINTED:
            _write(ax, short_number(weight), left + wide / 2, top + BOX + 4, "black")


def _write(ax: Axes, text: str, x: float, y: float, colour: str) -> None:
    written = ax.text(x, y, text, fontsize=SIZE, color=colour, family=FONT, ha="center", va="center", parse_math=False)
    written.set_in_layout(False)  # or the axes would shrink around it, and points no longer be points
