"""The role atlas as a picture: heads by layer, each in the colours of its roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from util.roles.rules import Role
from util.show.head_map import TICK, count_ticks
from util.show.style import NO_ROLE, ROLES, WIDTH, columns_of, headline, ink, new_figure, style
from util.stats.heads import Head

LETTERS = (7.5, 5.5)  # points: the width and height that two letters need
BAR = (0.07, 0.16)  # shares of a tile: the room around its bar, and the bar's height
ABOVE = sum(BAR)  # where the letters begin
ROW = 0.26  # inches: the height of a head, where there are few
HEIGHTS = (1.2, 3.4)  # inches: the least and the largest height of all heads
LEGEND = 1.55  # inches that an entry of the legend needs
MARGIN = 0.6  # inches beside the heads

Strengths = Mapping[Head, Sequence[tuple[Role, float]]]


class Tile(NamedTuple):
    """What a role has of a head's cell: its left lower corner, width and height, where a cell is 1 x 1."""

    role: Role
    strength: float
    left: float
    bottom: float
    width: float
    height: float

    @property
    def bar(self) -> Rectangle:
        """The bar at the bottom, inside of the tile: as long as the role is strong."""
        room, height = BAR
        corner = self.left + room * self.width, self.bottom + room * self.height
        return Rectangle(corner, self.strength * (1 - 2 * room) * self.width, height * self.height)


def atlas(
    shape: tuple[int, int],
    strengths: Strengths,
    tested: Mapping[Role, tuple[int, float | None]],
    *,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """All heads (L, H), those with roles in the colours of these.

    strengths: the roles of each head that has any, with a strength from 0 to 1, which is the length of the bar; a head
    with several roles has a tile of each. tested: the roles that were tested, each with its number of heads and the
    effect from which on they would be seen (None: no head was tested), for the legend.
    """
    layers, heads = shape
    columns = columns_of(len(tested), width, LEGEND)
    rows = -(-len(tested) // columns)
    height = float(np.clip(ROW * heads, *HEIGHTS))
    cell = 72 * (width - MARGIN) / layers, 72 * height / heads
    with style():
        figure = new_figure(width, 1.42 + 0.15 * rows + height)
        ax = figure.subplots()
        ax.set(facecolor=NO_ROLE, xlim=(-0.5, layers - 0.5), ylim=(-0.5, heads - 0.5))
        ax.set_xticks(count_ticks(layers, max(2, int((width - MARGIN) / TICK))))
        ax.set_yticks(count_ticks(heads, 9))
        ax.set_xticks(np.arange(0.5, layers - 1), minor=True)
        ax.set_yticks(np.arange(0.5, heads - 1), minor=True)
        ax.grid(which="minor", color="white", lw=0.6)
        ax.tick_params(which="minor", length=0)
        ax.set(xlabel="layer", ylabel="head")
        ax.spines[:].set_visible(False)
        _draw(ax, list(_tiles(strengths, beside=cell[0] > cell[1])), cell)
        entries = [
            Patch(
                color=ROLES[role].colour,
                label=f"{ROLES[role].letters} {role}: {count}" + (f" ({seen_from:.2f})" if seen_from else ""),
            )
            for role, (count, seen_from) in tested.items()
        ]
        told = "role: heads (from which effect on they would be seen)\nbar: effect beside the role's largest"
        spaces: dict[str, Any] = {"handlelength": 0.7, "handletextpad": 0.4, "columnspacing": 0.7, "alignment": "left"}
        figure.legend(
            handles=entries, title=told, title_fontsize=7, loc="outside lower center", ncols=columns, **spaces
        )
        headline(figure, finding, setting)
    return figure


def _tiles(strengths: Strengths, *, beside: bool) -> Iterator[Tile]:
    """The tiles of all heads with roles. beside: those of one head lie beside each other, else below each other."""
    for (layer, head), roles in strengths.items():
        share = 1 / len(roles)
        for number, (role, strength) in enumerate(roles):
            if beside:
                yield Tile(role, strength, layer - 0.5 + number * share, head - 0.5, share, 1.0)
            else:
                yield Tile(role, strength, layer - 0.5, head + 0.5 - (number + 1) * share, 1.0, share)


def _draw(ax: Axes, tiles: Sequence[Tile], cell: tuple[float, float]) -> None:
    """Draw tiles, with letters where there is room. cell: its width and height in points."""
    if not tiles:
        return
    colours = [ROLES[tile.role].colour for tile in tiles]
    faces = [Rectangle((tile.left, tile.bottom), tile.width, tile.height) for tile in tiles]
    ax.add_collection(PatchCollection(faces, facecolors=colours, edgecolors="white", linewidths=0.6, zorder=3))
    ax.add_collection(PatchCollection([tile.bar for tile in tiles], facecolors=[*map(ink, colours)], zorder=4))
    for tile, colour in zip(tiles, colours, strict=True):
        width, height = tile.width * cell[0], tile.height * (1 - ABOVE) * cell[1]
        if width >= LETTERS[0] and height >= LETTERS[1]:
            x, y = tile.left + tile.width / 2, tile.bottom + tile.height * (1 + BAR[1]) / 2
            ax.text(x, y, ROLES[tile.role].letters, fontsize=5, ha="center", va="center", color=ink(colour), zorder=5)
