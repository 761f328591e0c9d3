"""One map of heads for all figures: layers across, heads up, both counted from 0."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

TICK = 0.24  # inches: two digits that stand side by side


def head_map(
    ax: Axes, values: NDArray[Any], limits: tuple[float, float], *, colours: str = "Blues", width: float = 2.5
) -> AxesImage:
    """Draw a map of heads [L, H] and return its image, for a colour bar.

    limits: the ends of the colour scale; colours: "Blues" for what has a floor, "RdBu_r" for what has two signs; width:
    of the axes in inches, so that tick labels do not run into each other.
    """
    image = ax.imshow(
        values.T, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower", interpolation="nearest"
    )
    layers, heads = values.shape
    most = max(2, int(width / TICK))
    ax.xaxis.set_ticks(np.arange(0, layers, -(-layers // most)))
    ax.yaxis.set_ticks(np.arange(0, heads, max(1, round(heads / 4))))
    ax.set(xlabel="layer", ylabel="head")
    ax.spines[:].set_visible(True)
    return image
