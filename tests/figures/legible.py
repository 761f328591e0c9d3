"""What of a figure cannot be read: texts that are too small, cut off, or that lie on other texts or on data."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from matplotlib.text import Annotation, Text
from numpy.typing import NDArray

SHAPES = [(4, 8), (48, 32)]  # of models: layers and heads, the smallest and the largest
LONG_NAME = "Mixtral-8x22B-Instruct-v0.1-dequantised"
SMALLEST = 5.0  # points: smaller letters are not read in print
DPI = 144
SLACK = 0.6  # points by which boxes may overlap: they are a little larger than their letters
CORNERS = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1], [1, 1]])


def faults(figure: Figure, smallest: float = SMALLEST) -> list[str]:
    """Returns what cannot be read of a figure, in words; nothing if all can be."""
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    canvas.draw()
    boxes = {text: _box(text, canvas) for text in _texts(figure)}
    found = [f"{_name(text)} has {size:.1f} points" for text in boxes if (size := text.get_fontsize()) < smallest]
    edge = np.array([figure.bbox.width, figure.bbox.height])
    for text, box in boxes.items():
        if (box.vertices < -1).any() or (box.vertices > edge + 1).any():
            found.append(f"{_name(text)} is cut off at the figure's edge")
    for (first, one), (second, other) in combinations(boxes.items(), 2):
        if one.intersects_path(other):
            found.append(f"{_name(first)} lies on {_name(second)}")
    for ax in figure.findobj(Axes):
        drawn = _data(ax) if ax.get_visible() else []
        for text, box in boxes.items():
            if not _on_purpose(text, ax):
                found += [f"{_name(text)} lies on {what}" for what, path in drawn if _lies_on(box, path)][:1]
    return found


def _texts(figure: Figure) -> list[Text]:
    """The texts of a figure that are drawn."""
    hidden = {text for ax in figure.findobj(Axes) for text in _not_drawn(ax)}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return [text for text in texts if text not in hidden]


def _not_drawn(ax: Axes) -> list[Text]:
    """The texts of axes that matplotlib keeps and does not draw: those of hidden axes, and of ticks outside limits."""
    if not ax.get_visible():
        return ax.findobj(Text)
    found: list[Text] = []
    for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        low, high = sorted(limits)
        margin = 1e-9 * (high - low)
        hidden = not ax.axison or not axis.get_visible()
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if hidden or not tick.get_visible() or not low - margin <= tick.get_loc() <= high + margin:
                found += [tick.label1, tick.label2]
        found += [axis.label, axis.get_offset_text()] if hidden else []
    return found


def _box(text: Text, canvas: FigureCanvasAgg) -> Path:
    """The rectangle that a text fills, turned as it is, in pixels."""
    renderer, slack, angle = canvas.get_renderer(), SLACK * DPI / 72, text.get_rotation()
    around = Text.get_window_extent(text, renderer)
    text.set_rotation(0)
    flat = Text.get_window_extent(text, renderer)
    text.set_rotation(angle)
    half = np.maximum(np.array([flat.width, flat.height]) / 2 - slack, 1)
    cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return Path((CORNERS * half) @ [[cos, sin], [-sin, cos]] + (around.min + around.max) / 2, closed=True)


def _data(ax: Axes) -> list[tuple[str, Path]]:
    """What is drawn in the axes, in pixels, cut off where they end; single points have no lines between them."""
    found = []
    for line in ax.get_lines():
        if line.get_visible() and len(line.get_xydata()):
            path = line.get_transform().transform_path(line.get_path())
            joined = line.get_linestyle() not in ("None", "none", "", " ")
            found.append((f"a line {line.get_label()!r}", path if joined else _points(path.vertices, ax)))
    for many in ax.collections:  # bands are light: letters on them can be read
        if many.get_visible() and isinstance(many, LineCollection):
            found += [("a bar of an interval", many.get_transform().transform_path(path)) for path in many.get_paths()]
        elif many.get_visible() and isinstance(many, PathCollection):
            places = many.get_offset_transform().transform(many.get_offsets())
            found.append(("a point", _points(np.ma.filled(places, np.nan), ax)))
    for patch in ax.patches:
        if patch.get_visible() and patch.get_transform() is not None and not _background(patch):
            found.append((f"a {type(patch).__name__}", patch.get_path().transformed(patch.get_transform())))
    return [(what, path.cleaned(remove_nans=True, clip=ax.bbox.extents)) for what, path in found]


def _points(places: NDArray[np.float64], ax: Axes) -> Path:
    """The places [N, 2] that lie in the axes."""
    box = ax.bbox.padded(1)
    inside = places[((places >= box.min) & (places <= box.max)).all(1)]
    return Path(inside, np.full(len(inside), Path.MOVETO))


def _lies_on(box: Path, path: Path) -> bool:
    """Whether a text lies on an outline, or around a part of it."""
    return bool(box.intersects_path(path, filled=False) or box.contains_points(path.vertices).any())


def _background(patch: object) -> bool:
    """Whether a rectangle is light enough to be written on: a band or a frame without a face."""
    if not isinstance(patch, Rectangle):
        return False
    red, green, blue, alpha = to_rgba(patch.get_facecolor())
    return (red + green + blue) / 3 * alpha + (1 - alpha) > 0.8


def _on_purpose(text: Text, ax: Axes) -> bool:
    """Whether a text belongs on what it lies on: it has an outline, or a box of its own, or it is a map's cell."""
    in_cell = text.axes is ax and bool(ax.get_images()) and text in ax.texts
    return in_cell or text.get_bbox_patch() is not None or bool(text.get_path_effects())


def _name(text: Text) -> str:
    return f"{'the note ' if isinstance(text, Annotation) else ''}{text.get_text()!r}"
