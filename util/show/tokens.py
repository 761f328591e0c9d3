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
FONT, SIZE, SMALL = "DejaVu Sans Mono", 6.5, 5.0  # points: of tokens, and of the weights below them
LETTER = 0.62 * SIZE  # points: the width of a letter, and a little room
NUMBER = 11.0  # points: the width of a weight below a token
BOX, GAP, BELOW = 9.5, 2.0, 6.5  # points: the height of a token, the room between lines, the room for weights
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


class _Piece(NamedTuple):
    """A token, or a part of one that is longer than a line, in its place: in points, from the upper left corner."""

    number: int
    text: str
    left: float
    top: float
    wide: float
    is_last: bool


def token_grid(
    tokens: Sequence[str], weights: NDArray[np.floating], names: Sequence[str], queries: Sequence[int]
) -> Grid:
    """The attention from some of a prompt's tokens, a panel for each: the prompt in lines that fit the panel.

    tokens [T]: as text. weights: [rows, T], from 0 on. names: of the rows. queries: the position that each row is seen
    from, which is framed, and whose later tokens are pale. Line ends of the prompt end a line; the lines of all rows
    are at the same heights.
    """
    largest = float(weights.max()) or 1.0  # of the darkest shade
    printed = weights.max(axis=0) >= PRINTED
    rows = zip(names, weights, queries, strict=True)
    panels = [partial(_draw, tokens, printed, largest, name, row, query) for name, row, query in rows]
    key = f"shade: attention from the framed token, 0 to {largest:.2f}; printed from {PRINTED} on"

    def height(width: float) -> float:
        return (_placed(tokens, printed, _room(width))[1] + 38) / 72  # and the title, and the key below all

    return Grid(panels, least=LEAST, height=height, x=key)


def _room(width: float) -> float:
    """The points that lines have in a panel of so many inches."""
    return 72 * (width - 0.14)


def _placed(tokens: Sequence[str], printed: NDArray[np.bool_], room: float) -> tuple[list[_Piece], float]:
    """The pieces of the prompt in lines of at most so many points, and the height of all lines.

    There is room for a weight where any of the rows prints one, so that all rows have the same lines.
    """
    most = max(1, int(room / LETTER))
    pieces: list[_Piece] = []
    left, top, below = 0.0, 0.0, False  # below: whether the line has a weight below it
    for number, token in enumerate(tokens):
        text = visible(token)
        parts = [text[i : i + most] for i in range(0, len(text), most)]
        for i, part in enumerate(parts):
            is_last = i + 1 == len(parts)
            has_weight = is_last and bool(printed[number])
            wide = max(len(part) * LETTER, NUMBER if has_weight else 0.0)
            if left + wide > room:
                left, top, below = 0.0, top + _advance(below), False
            pieces.append(_Piece(number, part, left, top, wide, is_last))
            left, below = left + wide, below or has_weight
        if "\n" in token and not any("\n" in later for later in tokens[number + 1 : number + 2]):  # one blank line
            left, top, below = 0.0, top + _advance(below), False
    return pieces, top + (_advance(below) if left else 0.0)


def _advance(below: bool) -> float:
    return BOX + GAP + (BELOW if below else 0.0)


def _draw(
    tokens: Sequence[str],
    printed: NDArray[np.bool_],
    largest: float,
    name: str,
    row: NDArray[np.floating],
    query: int,
    ax: Axes,
) -> None:
    width = _room(room_of(ax)[0])
    pieces, height = _placed(tokens, printed, width)
    ax.set_axis_off()
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_title(broken(name, 8, width), loc="left")
    colours = mpl.colormaps["Blues"]
    for piece in pieces:
        weight, wide = float(row[piece.number]), piece.wide
        face, seen = colours(weight / largest), piece.number <= query
        corner = (piece.left, piece.top)
        ax.add_patch(Rectangle(corner, wide, BOX, facecolor=face if seen else "white", edgecolor="0.88", lw=0.5))
        _write(ax, piece.text, piece.left + wide / 2, piece.top + BOX / 2, SIZE, ink(face) if seen else PALE)
        if piece.number == query:
            ax.add_patch(Rectangle(corner, wide, BOX, fill=False, edgecolor="black", lw=1.4, zorder=3))
        if weight >= PRINTED and piece.is_last:
            _write(ax, short_number(weight), piece.left + wide / 2, piece.top + BOX + 3.6, SMALL, "black")


def _write(ax: Axes, text: str, x: float, y: float, size: float, colour: str) -> None:
    written = ax.text(x, y, text, fontsize=size, color=colour, family=FONT, ha="center", va="center", parse_math=False)
    written.set_in_layout(False)  # or the axes would shrink around it, and points no longer be points
