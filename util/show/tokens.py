"""A prompt as coloured tokens, each shaded by the attention that it gets (Crosbie & Shutova 2024, Figs. 6 and 7).

This file knows nothing of models, prompts or caches.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from util.show.head_map import short_number
from util.show.style import FINDING, SETTING, WIDTH, broken, columns_of, headline, ink, new_figure, style

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


@dataclass(frozen=True)
class TokenRows:
    """The attention from some of a prompt's tokens, a row for each.

    tokens [T]: as text. weights: [rows, T], from 0 on. names: of the rows. queries: the position that each row is seen
    from, which is framed, and whose later tokens are pale. finding, setting: of the headline.
    """

    tokens: Sequence[str]
    weights: NDArray[np.floating]
    names: Sequence[str]
    queries: Sequence[int]
    finding: str | None
    setting: str

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns the prompt in lines that fit the width, once for each row; line ends of the prompt end a line.

        The lines of all rows are at the same heights.
        """
        columns = columns_of(len(self.names), width, LEAST)
        lines = -(-len(self.names) // columns)
        room = 72 * (width / columns - 0.14)
        pieces, height = self._placed(room)
        above = (FINDING + SETTING) * 3 + 14  # points: of the headline and the key
        with style():
            figure = new_figure(width, (lines * (height + 18) + above) / 72)
            axes = figure.subplots(lines, columns, squeeze=False).ravel()
            for ax in axes:
                ax.set_axis_off()
            for row, (ax, name) in enumerate(zip(axes, self.names, strict=False)):
                ax.set(xlim=(0, room), ylim=(height, 0))
                ax.set_title(broken(name, 8, room), loc="left")
                self._draw(ax, row, pieces)
            key = f"shade: attention from the framed token, 0 to {self._largest:.2f}; printed from {PRINTED} on"
            figure.supxlabel(broken(key, 7, 72 * width - 12), fontsize=7)
            headline(figure, self.finding, self.setting)
        return figure

    @property
    def _largest(self) -> float:
        """The weight of the darkest shade: the largest of all rows, 1 where all are 0."""
        return float(self.weights.max()) or 1.0

    def _placed(self, room: float) -> tuple[list[_Piece], float]:
        """The pieces of the prompt in lines of at most so many points, and the height of all lines.

        There is room for a weight where any of the rows prints one, so that all rows have the same lines.
        """
        most = max(1, int(room / LETTER))
        pieces: list[_Piece] = []
        left, top, printed = 0.0, 0.0, False  # printed: whether the line has a weight below it
        for number, token in enumerate(self.tokens):
            text = visible(token)
            parts = [text[i : i + most] for i in range(0, len(text), most)]
            for i, part in enumerate(parts):
                is_last = i + 1 == len(parts)
                has_weight = is_last and self.weights[:, number].max() >= PRINTED
                wide = max(len(part) * LETTER, NUMBER if has_weight else 0.0)
                if left + wide > room:
                    left, top, printed = 0.0, top + self._advance(printed), False
                pieces.append(_Piece(number, part, left, top, wide, is_last))
                left, printed = left + wide, printed or has_weight
            if self._ends_line(number):
                left, top, printed = 0.0, top + self._advance(printed), False
        return pieces, top + (self._advance(printed) if left else 0.0)

    def _ends_line(self, number: int) -> bool:
        """Whether a token is the last of one or several with line ends: blank lines take no room."""
        return "\n" in self.tokens[number] and not any("\n" in token for token in self.tokens[number + 1 : number + 2])

    @staticmethod
    def _advance(printed: bool) -> float:
        return BOX + GAP + (BELOW if printed else 0.0)

    def _draw(self, ax: Axes, row: int, pieces: Sequence[_Piece]) -> None:
        colours = mpl.colormaps["Blues"]
        query = self.queries[row]
        for piece in pieces:
            weight, wide = float(self.weights[row, piece.number]), piece.wide
            face, seen = colours(weight / self._largest), piece.number <= query
            corner = (piece.left, piece.top)
            ax.add_patch(Rectangle(corner, wide, BOX, facecolor=face if seen else "white", edgecolor="0.88", lw=0.5))
            colour = PALE if not seen else ink(face)
            self._write(ax, piece.text, piece.left + wide / 2, piece.top + BOX / 2, SIZE, colour)
            if piece.number == query:
                ax.add_patch(Rectangle(corner, wide, BOX, fill=False, edgecolor="black", lw=1.4, zorder=3))
            if weight >= PRINTED and piece.is_last:
                self._write(ax, short_number(weight), piece.left + wide / 2, piece.top + BOX + 3.6, SMALL, "black")

    @staticmethod
    def _write(ax: Axes, text: str, x: float, y: float, size: float, colour: str) -> None:
        written = ax.text(
            x, y, text, fontsize=size, color=colour, family=FONT, ha="center", va="center", parse_math=False
        )
        written.set_in_layout(False)  # or the axes would shrink around it, and points no longer be points
