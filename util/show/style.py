"""The matplotlib style of all figures. This file knows nothing of models, prompts or caches."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.typing import ColorType
from numpy.typing import ArrayLike

from util.stats.intervals import Interval

SETTING_ID = "setting"  # names the text below the finding, so that it is found in a figure
WIDTH = 5.5  # inches: the text width of a one-column paper (ICLR, NeurIPS)
COLUMN = 3.3  # inches: a column of a two-column paper (ACL, ICML)
BLUE, RED, GREY = "#023858", "#c02d45", "0.55"  # the base or whole model, what is ablated, controls
PALE_RED = "#e08a97"  # what is ablated in a second way, in a figure in which RED is the first
ORANGE = "#d99a2b"  # frames and arrows that point at something; published values; answers that are not the right one
PAPER_ORANGE = "#ff7f0e"  # of wrong labels in the notebooks of Cho et al.
LIGHT_BLUE, GREEN, PURPLE = "#3690c0", "#2c7d59", "#7b5aa6"  # of further lines of one figure
BRIGHTNESS = (0.299, 0.587, 0.114)  # of red, green and blue, as the eye sees them (ITU-R BT.601)
FINDING, SETTING = 8.5, 7.0  # points: the two parts of a headline
MARGIN = 4  # points between a headline and the edge
ON_PIXELS = 1.03  # times as wide as its outlines is a text whose letters are set on whole pixels

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


def ink(colour: ColorType) -> str:
    """Black on light colours, white on dark ones: what letters on a colour are read in."""
    return "black" if np.array(to_rgb(colour)) @ BRIGHTNESS > 0.5 else "white"


@contextmanager
def style() -> Iterator[None]:
    """Use the suite's matplotlib settings inside a with block."""
    with mpl.rc_context(STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with a constrained layout; width and height are in inches.

    It is saved whole by whoever crops to what is in the layout, as Jupyter does: titles are not.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_in_layout(True)
    return figure


def headline(figure: Figure, finding: str | None, setting: str) -> None:
    """Write what a figure shows above it, and below that, smaller, the setting: model, data, number of prompts.

    Both are broken into lines that are no wider than the figure. finding: None where the values show none; then the
    setting stands alone. To be called once, when the figure has its panels.
    """
    width, height = figure.get_size_inches()
    centred: dict[str, Any] = {"x": 0.5, "ha": "center", "va": "top", "linespacing": 1.2, "parse_math": False}
    if finding:
        text = broken(finding, FINDING, 72 * width - 2 * MARGIN)
        figure.suptitle(text, y=1 - MARGIN / 72 / height, fontsize=FINDING, **centred)
    below = headline_height(finding, "", width)
    text = broken(setting, SETTING, 72 * width - 2 * MARGIN)
    figure.text(y=1 - below / height, s=text, fontsize=SETTING, color="0.35", gid=SETTING_ID, **centred)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0, 1, 1 - headline_height(finding, setting, width) / height))  # the panels share what is left


def headline_height(finding: str | None, setting: str, width: float) -> float:
    """The height in inches that a headline takes of a figure of a width in inches."""
    parts = [(text, size) for text, size in ((finding, FINDING), (setting, SETTING)) if text]
    lines = [size * (broken(text, size, 72 * width - 2 * MARGIN).count("\n") + 1) for text, size in parts]
    return (MARGIN + 1.45 * sum(lines)) / 72


def text_width(text: str, size: float) -> float:
    """The width in points of the ink of a text in letters of so many points."""
    font = get_font(findfont(FontProperties(family=STYLE["font.family"])))
    font.set_size(100, 72)
    font.set_text(text, 0, flags=LoadFlags.NO_HINTING)
    first, last = (font.load_char(ord(letter), flags=LoadFlags.NO_HINTING) for letter in (text[0], text[-1]))
    around = first.horiBearingX + last.horiAdvance - last.horiBearingX - last.width
    return (font.get_width_height()[0] - around) / 64 * size / 100


def legend_below(figure: Figure, handles: Sequence[Any]) -> int:
    """Write what labelled lines and patches are below a figure, in as many columns as fit; returns how many lines."""
    if not handles:
        return 0
    size, room = STYLE["legend.fontsize"], 72 * figure.get_figwidth() - 2 * MARGIN
    widths = [text_width(handle.get_label(), size) + 5.5 * size for handle in handles]  # with a line and a space
    columns = len(handles)
    while columns > 1 and sum(map(max, np.array_split(widths, columns))) > room:
        columns -= 1
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=size)
    return -(-len(handles) // columns)


def broken(text: str, size: float, width: float) -> str:
    """A text broken into lines that are at most `width` points wide in a font of `size` points.

    It is broken at spaces, but for those of an interval: [0.90, 0.96] stays on one line.
    """
    lines = [""]
    for word in re.split(r"\s+(?![^[]*\])", text.strip()):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and ON_PIXELS * text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def columns_of(panels: int, width: float, least: float) -> int:
    """How many of these panels fit side by side into `width` inches, if each needs `least`: as even rows as can be."""
    most = max(1, min(panels, int(width / least)))
    return -(-panels // -(-panels // most))


def headline_of(figure: Figure) -> tuple[str, str]:
    """The finding and the setting that stand above a figure, each in one line; "" for what does not stand there."""
    below = [text.get_text() for text in figure.texts if text.get_gid() == SETTING_ID]
    finding, setting = (" ".join(text.split()) for text in (figure.get_suptitle(), " ".join(below)))
    return finding, setting


def points(ax: Axes, x: ArrayLike, intervals: Iterable[Interval], **options: Any) -> None:
    """Draw values with their 95 % intervals at x [N]. options: of matplotlib's `Axes.errorbar`."""
    value, low, high = np.array(list(intervals)).T
    ax.errorbar(x, value, np.abs([low - value, high - value]), **{"ms": 3, "lw": 0.9, **options})


def name_at_right(ax: Axes, levels: Mapping[str, tuple[float, str]], least: float) -> None:
    """Write the names of lines at the right of the axes, beside their levels.

    levels: the height of each, in data, and its colour. least: how far apart names have to be, as a share of the axes;
    names of closer lines are moved up, in the order of their levels.
    """
    bottom, top = ax.get_ylim()
    last = -np.inf
    for name, (level, colour) in sorted(levels.items(), key=lambda item: item[1][0]):
        last = max((level - bottom) / (top - bottom), last + least)
        ax.annotate(
            name, (1, last), (3, 0), xycoords="axes fraction", textcoords="offset points",
            fontsize=6, color=colour, va="center", annotation_clip=False,
        )  # fmt: skip
