"""A prompt as coloured tokens: each is shaded by the weight that a row gives it.

A row is whatever was captured for one query or one head: the attention of the last token, for example. Source of the
picture: Crosbie & Shutova 2024, Figs. 6 and 7. This file knows nothing of models, prompts or caches.
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

from util.figures.head_map import short_number
from util.figures.style import FINDING, SETTING, WIDTH, broken, columns_of, headline, ink, new_figure, style

PRINTED = 0.05  # weights from here on are printed below their tokens
MARKS = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}  # what would not be seen
FONT, SIZE, SMALL = "DejaVu Sans Mono", 6.5, 5.0  # points: of tokens, and of the weights below them
LETTER = 0.62 * SIZE  # points: the width of a letter, and a little room
NUMBER = 11.0  # points: the width of a weight below a token
BOX, GAP, BELOW = 9.5, 2.0, 6.5  # points: the height of a token, the room between lines, the room for weights
LEAST = 2.5  # inches that a row needs
PALE = "0.75"  # tokens that a query cannot see


def visible(token: str) -> str:
    """Returns a token as it is shown: blanks, line ends and tabs as signs, all that has no shape of its own as \\u...

    What has no shape of its own: control signs, marks of direction, accents without a letter.
    """
    return "".join(MARKS.get(letter) or (letter if _has_shape(letter) else _code(letter)) for letter in token)


def _has_shape(letter: str) -> bool:
    return letter.isprintable() and not unicodedata.category(letter).startswith("M")


def _code(letter: str) -> str:
    return f"\\u{ord(letter):04x}"


@cache
def _drawable(token: str) -> str:
    """A visible token without letters that the font of figures does not have."""
    font = get_font(findfont(FONT))
    return "".join(letter if font.get_char_index(ord(letter)) else _code(letter) for letter in visible(token))


class _Piece(NamedTuple):
    """A token, or a part of one that is longer than a line, in its place: in points, from the upper left corner."""

    number: int
    text: str
    left: float
    top: float
    wide: float
    is_last: bool


@dataclass(frozen=True, repr=False)
class TokenRows:
    """Weights of a prompt's tokens, a row for each query or head.

    tokens [T]: as text. weights: [rows, T], or [T] for one row; from 0 on. names: of the rows. queries: the position
    that each row is seen from, which is framed, and whose later tokens are pale; none, if rows have no position.
    finding, setting: of the headline. label: what the weights are. Raises ValueError for arguments that do not fit.
    """

    tokens: Sequence[str]
    weights: NDArray[np.floating]
    names: Sequence[str]
    queries: Sequence[int] = ()
    finding: str | None = None
    setting: str = ""
    label: str = "attention"

    def __post_init__(self) -> None:
        weights = np.atleast_2d(np.asarray(self.weights, dtype=np.float64))
        rows, tokens = len(self.names), len(self.tokens)
        if not rows or not tokens or weights.shape != (rows, tokens):
            raise ValueError(
                f"weights of shape {np.shape(self.weights)}: give one for each of the {tokens} tokens, and a row for "
                f"each of the {rows} names"
            )
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ValueError("weights below 0, infinite or NaN have no shade: give numbers from 0 on")
        if len(self.queries) not in (0, rows) or not all(0 <= query < tokens for query in self.queries):
            raise ValueError(f"queries = {list(self.queries)}: give a position below {tokens} for each of {rows} rows")
        object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        return f"{len(self.names)} rows of {self.label} over {len(self.tokens)} tokens: {', '.join(self.names)}"

    @property
    def largest(self) -> float:
        """The weight of the darkest shade: the largest of all rows, 1 where all are 0."""
        return float(self.weights.max()) or 1.0

    @property
    def key(self) -> str:
        """What the shades mean, in words."""
        framed = " from the framed token" if self.queries else ""
        return f"shade: {self.label}{framed}, 0 to {self.largest:.2f}; printed from {PRINTED} on"

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
            figure.supxlabel(broken(self.key, 7, 72 * width - 12), fontsize=7)
            headline(figure, self.finding, self.setting)
        return figure

    def _placed(self, room: float) -> tuple[list[_Piece], float]:
        """The pieces of the prompt in lines of at most so many points, and the height of all lines.

        There is room for a weight where any of the rows prints one, so that all rows have the same lines.
        """
        most = max(1, int(room / LETTER))
        pieces: list[_Piece] = []
        left, top, printed = 0.0, 0.0, False  # printed: whether the line has a weight below it
        for number, token in enumerate(self.tokens):
            text = _drawable(token)
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
        query = self.queries[row] if self.queries else len(self.tokens) - 1
        for piece in pieces:
            weight, wide = float(self.weights[row, piece.number]), piece.wide
            face, seen = colours(weight / self.largest), piece.number <= query
            corner = (piece.left, piece.top)
            ax.add_patch(Rectangle(corner, wide, BOX, facecolor=face if seen else "white", edgecolor="0.88", lw=0.5))
            colour = PALE if not seen else ink(face)
            self._write(ax, piece.text, piece.left + wide / 2, piece.top + BOX / 2, SIZE, colour)
            if self.queries and piece.number == query:
                ax.add_patch(Rectangle(corner, wide, BOX, fill=False, edgecolor="black", lw=1.4, zorder=3))
            if weight >= PRINTED and piece.is_last:
                self._write(ax, short_number(weight), piece.left + wide / 2, piece.top + BOX + 3.6, SMALL, "black")

    @staticmethod
    def _write(ax: Axes, text: str, x: float, y: float, size: float, colour: str) -> None:
        written = ax.text(
            x, y, text, fontsize=size, color=colour, family=FONT, ha="center", va="center", parse_math=False
        )
        written.set_in_layout(False)  # or the axes would shrink around it, and points no longer be points
