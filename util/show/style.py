"""The look of all figures: sizes, colours, letters."""

from collections.abc import Mapping
from typing import Any, NamedTuple

WIDTH = 5.5  # inches: the text width of a one-column paper (ICLR, NeurIPS)
COLUMN = 3.3  # inches: a column of a two-column paper (ACL, ICML)
BLUE, RED, GREY = "#023858", "#c02d45", "0.55"  # the base or whole model, what is ablated, controls
PALE_RED = "#e08a97"  # what is ablated in a second way, in a figure in which RED is the first
ORANGE = "#d99a2b"  # frames and arrows that point at something; published values; answers that are not the right one
PAPER_ORANGE = "#ff7f0e"  # of wrong labels in the notebooks of Cho et al.
LIGHT_BLUE, GREEN, PURPLE = "#3690c0", "#2c7d59", "#7b5aa6"  # of further lines of one figure

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


class RoleLook(NamedTuple):
    """How a role of heads is drawn: the colour, and two letters where there is room."""

    colour: str
    letters: str


ROLES: Mapping[str, RoleLook] = {  # no two are alike, also to colour-blind readers; nothing else has these colours
    "previous-token": RoleLook("#5cc2fc", "PT"),
    "duplicate-token": RoleLook("#ddd95f", "DT"),
    "induction": RoleLook("#3ab77e", "IN"),
    "forerunner": RoleLook("#0f798e", "FR"),
    "label reader": RoleLook("#8e9d4d", "LR"),
    "function vector": RoleLook("#db7fc6", "FV"),
    "inhibition": RoleLook("#7f53bc", "SI"),  # the name of Wang et al.: S-inhibition
    "mover": RoleLook("#c75f1d", "MV"),
    "negative mover": RoleLook("#6e2d13", "NM"),
}
NO_ROLE = "0.95"
