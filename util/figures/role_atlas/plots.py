"""The role atlas as a picture: heads by layer, each in the colours of its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from util.figures.head_map import BRIGHTNESS, TICK, count_ticks
from util.figures.style import WIDTH, columns_of, headline, new_figure, style
from util.roles.rules import Role
from util.stats.heads import Head

COLOURS = {
    Role.PREVIOUS_TOKEN: "#56b4e9",
    Role.DUPLICATE_TOKEN: "#35978f",
    Role.INDUCTION: "#e69f00",
    Role.FORERUNNER: "#2e9e3f",
    Role.LABEL_READER: "#9acd32",
    Role.FUNCTION_VECTOR: "#cc79a7",
    Role.INHIBITION: "#7b5bb0",
    Role.MOVER: "#d55e00",
    Role.NEGATIVE_MOVER: "#6b4226",
}
LETTERS = {
    Role.PREVIOUS_TOKEN: "PT",
    Role.DUPLICATE_TOKEN: "DT",
    Role.INDUCTION: "IN",
    Role.FORERUNNER: "FR",
    Role.LABEL_READER: "LR",
    Role.FUNCTION_VECTOR: "FV",
    Role.INHIBITION: "SI",  # the name of Wang et al.: S-inhibition
    Role.MOVER: "MV",
    Role.NEGATIVE_MOVER: "NM",
}
EMPTY = "0.95"
LIGHTEST = 0.4  # the share of a role's colour in the head with the least effect
PARTS = 60  # into which a cell is divided: 1 to 6 roles share it equally
LETTER = 8.0  # points that two letters need
LEGEND = 1.55  # inches that an entry of the legend needs

Strengths = Mapping[Head, Sequence[tuple[Role, float]]]


def atlas(
    shape: tuple[int, int],
    strengths: Strengths,
    tested: Mapping[Role, int],
    *,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """All heads (L, H), those with roles in the colours of these.

    strengths: the roles of each head that has any, with a strength from 0 to 1, which is the depth of the colour; a
    head with several roles has a stripe of each. tested: the roles that were tested, each with its number of heads, for
    the legend.
    """
    layers, heads = shape
    columns = columns_of(len(tested), width, LEGEND)
    rows = -(-len(tested) // columns)
    with style():
        figure = new_figure(width, 1.3 + 0.15 * rows + min(2.6, max(1.2, 0.13 * heads)))
        ax = figure.subplots()
        ax.imshow(
            _image(shape, strengths),
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            extent=(-0.5, layers - 0.5, -0.5, heads - 0.5),
        )
        ax.set_xticks(count_ticks(layers, max(2, int((width - 0.6) / TICK))))
        ax.set_yticks(count_ticks(heads, 9))
        ax.set_xticks(np.arange(0.5, layers - 1), minor=True)
        ax.set_yticks(np.arange(0.5, heads - 1), minor=True)
        ax.grid(which="minor", color="white", lw=0.6)
        ax.tick_params(which="minor", length=0)
        ax.set(xlabel="layer", ylabel="head")
        ax.spines[:].set_visible(False)
        _letters(ax, strengths, 72 * (width - 0.6) / layers)
        entries = [
            Patch(color=COLOURS[role], label=f"{LETTERS[role]} {role}: {count}") for role, count in tested.items()
        ]
        options: dict[str, Any] = {
            "loc": "outside lower center",
            "ncols": columns,
            "handlelength": 1,
            "columnspacing": 1,
        }
        figure.legend(handles=entries, title="role: heads (darker: larger effect)", title_fontsize=7, **options)
        headline(figure, finding, setting)
    return figure


def _image(shape: tuple[int, int], strengths: Strengths) -> NDArray[np.float64]:
    """The picture [H, PARTS L, 3] of all heads, red, green and blue."""
    layers, heads = shape
    image = np.empty((heads, PARTS * layers, 3))
    image[:] = to_rgb(EMPTY)
    for (layer, head), roles in strengths.items():
        for (role, strength), (start, stop) in zip(roles, _stripes(len(roles)), strict=True):
            image[head, PARTS * layer + start : PARTS * layer + stop] = _shade(role, strength)
    return image


def _stripes(count: int) -> list[tuple[int, int]]:
    """Where the stripes of a cell begin and end, in parts of it."""
    ends = np.linspace(0, PARTS, count + 1).round().astype(int).tolist()
    return list(zip(ends[:-1], ends[1:], strict=True))


def _shade(role: Role, strength: float) -> NDArray[np.float64]:
    """The colour [3] of a role, mixed with white: the less the stronger."""
    share = LIGHTEST + (1 - LIGHTEST) * strength
    return share * np.array(to_rgb(COLOURS[role])) + (1 - share)


def _letters(ax: Axes, strengths: Strengths, cell: float) -> None:
    """Write the letters of roles into stripes that are wide enough. cell: the width of a cell in points."""
    for (layer, head), roles in strengths.items():
        if cell / len(roles) < LETTER:
            continue
        for (role, strength), (start, stop) in zip(roles, _stripes(len(roles)), strict=True):
            light = _shade(role, strength) @ BRIGHTNESS > 0.55
            middle = layer - 0.5 + (start + stop) / (2 * PARTS)
            colour = "black" if light else "white"
            ax.text(middle, head, LETTERS[role], fontsize=5, ha="center", va="center", color=colour)
