"""The map of heads that all figures use: layers from left to right, heads from bottom to top, both from 0."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.image import AxesImage
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from util.show.style import ink
from util.stats.heads import Head

TICK = 0.24  # inches that a tick label of two digits needs


def colour_limit(values: NDArray[Any]) -> float:
    """The end of a colour scale that is symmetric around 0: the largest |value| of [...], so that none saturates.

    It is 1 where all values are 0 or NaN.
    """
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max(initial=0)) or 1.0


def count_ticks(count: int, most: int) -> NDArray[np.int64]:
    """The numbers from 0 to below `count` in equal steps, at most so many of them, [ticks]."""
    return np.arange(0, count, -(-count // most))


def head_map(
    ax: Axes,
    values: NDArray[Any],
    limits: tuple[float, float] | None = None,
    *,
    colours: str = "Blues",
    width: float = 2.5,
) -> AxesImage:
    """Draw a map of heads [L, H] and return the image, which a colour bar of several maps needs.

    limits: the ends of the colour scale. Without them it is red and blue, symmetric around 0, for values of both signs.
    colours: of a scale with limits. width: of the axes in inches; it decides how many tick labels fit.
    """
    if limits is None:
        limits, colours = (-colour_limit(values), colour_limit(values)), "RdBu_r"
    image = ax.imshow(
        values.T, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower", interpolation="nearest"
    )
    layers, heads = values.shape
    ax.set_xticks(count_ticks(layers, max(2, int(width / TICK))))
    ax.set_yticks(count_ticks(heads, 4))
    ax.set(xlabel="layer", ylabel="head")
    ax.spines[:].set_visible(True)
    return image


def colour_bar(shades: ScalarMappable, axes: Axes | Sequence[Axes], **options: Any) -> None:
    """Draw the colour bar of an image or of points beside its axes, or of several maps beside all of them.

    options: of matplotlib's `Figure.colorbar`.
    """
    figure: Any = (axes[0] if isinstance(axes, Sequence) else axes).get_figure(root=True)
    figure.colorbar(shades, ax=axes, **{"pad": 0.02, **options}).outline.set_visible(False)


def short_number(value: float) -> str:
    """A value in three characters and a sign, such as .44, -2.5 and 12."""
    return without_zero(value, 2 if abs(value) < 1 else 1 if abs(value) < 9.95 else 0)


def without_zero(value: float, digits: int) -> str:
    """A value with so many decimals, without the zero before its point: .44, -.03, 10.00."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.{digits}f}")


def print_in_cells(image: AxesImage, texts: Mapping[Head, str]) -> None:
    """Print texts in the cells of heads, black on light colours and white on dark ones.

    A text has an outline in its cell's colour, so that it can be read where it is a little wider than the cell.
    """
    values: NDArray[Any] = np.ma.asarray(image.get_array())
    for (layer, head), text in texts.items():
        cell = image.to_rgba(values[head : head + 1, layer])[0]
        outline = [withStroke(linewidth=1, foreground=cell)]
        image.axes.text(layer, head, text, fontsize=5, ha="center", va="center", color=ink(cell), path_effects=outline)
