"""What of a figure cannot be read: texts that are too small, cut off, or that lie on other texts or on data."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from numpy.typing import NDArray

LONG_NAME = "Mixtral-8x22B-Instruct-v0.1-dequantised"
SMALLEST = 5.0  # points: smaller letters are not read in print
DPI = 144
SLACK = 0.6  # points by which boxes may overlap: they are a little larger than their letters


class _Box(NamedTuple):
    """A rectangle that may be turned: its middle [2], its half sides [2] and its directions [2, 2], in pixels."""

    middle: NDArray[np.float64]
    half: NDArray[np.float64]
    axes: NDArray[np.float64]

    @property
    def corners(self):
        """[4, 2]."""
        signs = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
        return self.middle + (signs * self.half) @ self.axes

    def holds(self, points):
        """Which of the points [N, 2] lie inside, [N]."""
        return np.all(np.abs((points - self.middle) @ self.axes.T) < self.half, axis=1)

    def meets(self, other):
        """Whether the two overlap: no direction of either separates them."""
        for axis in (*self.axes, *other.axes):
            mine, others = self.corners @ axis, other.corners @ axis
            if mine.max() <= others.min() or others.max() <= mine.min():
                return False
        return True


def faults(figure, smallest=SMALLEST):
    """Returns what cannot be read of a figure, in words; nothing if all can be."""
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    figure.draw_without_rendering()
    texts = _texts(figure)
    boxes = [_box(text, canvas) for text in texts]
    sizes = [float(text.get_fontsize()) for text in texts]
    found = [f"{_name(text)} has {size:.1f} points" for text, size in zip(texts, sizes, strict=True) if size < smallest]
    edge = np.array([figure.bbox.width, figure.bbox.height])
    for text, box in zip(texts, boxes, strict=True):
        if (box.corners < -1).any() or (box.corners > edge + 1).any():
            found.append(f"{_name(text)} is cut off at the figure's edge")
    for (first, one), (second, other) in combinations(zip(texts, boxes, strict=True), 2):
        if one.meets(other):
            found.append(f"{_name(first)} lies on {_name(second)}")
    for ax in figure.findobj(Axes):
        if not ax.get_visible():
            continue
        drawn = _data(ax)
        for text, box in zip(texts, boxes, strict=True):
            if _on_purpose(text, ax):
                continue
            for what, points in drawn:
                if box.holds(points).any():
                    found.append(f"{_name(text)} lies on {what}")
                    break
    return found


def _texts(figure):
    """The texts of a figure that are drawn."""
    hidden = {id(text) for ax in figure.findobj(Axes) for text in _not_drawn(ax)}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in hidden
    ]


def _not_drawn(ax):
    """The texts of axes that matplotlib keeps and does not draw: those of hidden axes, and of ticks outside limits."""
    if not ax.get_visible():
        return ax.findobj(Text)
    found: list[Text] = []
    for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        low, high = sorted(limits)
        margin = 1e-9 * (high - low)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            outside = not low - margin <= tick.get_loc() <= high + margin
            if outside or not ax.axison or not axis.get_visible() or not tick.get_visible():
                found += [tick.label1, tick.label2]
        if not ax.axison or not axis.get_visible():
            found += [axis.label, axis.get_offset_text()]
    return found


def _box(text, canvas):
    renderer, slack = canvas.get_renderer(), SLACK * DPI / 72
    around = Text.get_window_extent(text, renderer)
    angle = text.get_rotation()
    text.set_rotation(0)
    flat = Text.get_window_extent(text, renderer)
    text.set_rotation(angle)
    turn = np.radians(angle)
    axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    half = np.maximum(np.array([flat.width, flat.height]) / 2 - slack, 1)
    return _Box(np.array([(around.x0 + around.x1) / 2, (around.y0 + around.y1) / 2]), half, axes)


def _data(ax):
    """What is drawn in the axes, as pixels [N, 2] that lie densely on it, inside the axes."""
    found = []
    for line in ax.get_lines():
        if line.get_visible() and len(line.get_xydata()):
            pixels = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
            joined = line.get_linestyle() not in ("None", "none", "", " ")
            found.append((f"a line {line.get_label()!r}", _dense(pixels) if joined else pixels))
    for many in ax.collections:
        if many.get_visible():
            found += _of_collection(many)
    for patch in ax.patches:
        if patch.get_visible() and patch.get_transform() is not None and not _background(patch, ax):
            path = patch.get_path().transformed(patch.get_transform())
            found.append((f"a {type(patch).__name__}", _dense(path.interpolated(4).vertices)))
    box = ax.bbox.padded(1)
    inside = [(what, p[np.isfinite(p).all(1)]) for what, p in found]
    inside = [(what, p[(p >= box.min).all(1) & (p <= box.max).all(1)]) for what, p in inside]
    return [(what, p) for what, p in inside if len(p)]


def _of_collection(many):
    if isinstance(many, LineCollection):
        segments = [many.get_transform().transform(np.asarray(segment)) for segment in many.get_segments()]
        return [("a bar of an interval", np.concatenate([_dense(s) for s in segments]))] if segments else []
    if isinstance(many, PathCollection):
        return [("a point", np.ma.filled(many.get_offset_transform().transform(many.get_offsets()), np.nan))]
    return []  # bands are light: letters on them can be read


def _background(patch, ax):
    """Whether a rectangle is light enough to be written on: a band or a frame without a face."""
    if not isinstance(patch, Rectangle):
        return False
    red, green, blue, alpha = to_rgba(patch.get_facecolor())
    return (red + green + blue) / 3 * alpha + (1 - alpha) > 0.8


def _on_purpose(text, ax):
    """Whether a text belongs on what it lies on: it has an outline, or a box of its own, or it is a map's cell."""
    in_cell = text.axes is ax and any(isinstance(image, AxesImage) for image in ax.get_images()) and text in ax.texts
    framed = text.get_bbox_patch() is not None
    return in_cell or framed or bool(text.get_path_effects())


def _dense(pixels):
    """Points [M, 2] on the line through points [N, 2], at most a pixel apart."""
    pixels = pixels[np.isfinite(pixels).all(1)]
    parts = [pixels[:1]]
    for start, end in zip(pixels[:-1], pixels[1:], strict=True):
        steps = int(min(max(1, np.abs(end - start).max()), 5000))
        parts.append(start + (end - start) * np.linspace(0, 1, steps + 1)[1:, None])
    return np.concatenate(parts)


def _name(text):
    return f"{'the note ' if isinstance(text, Annotation) else ''}{text.get_text()!r}"
