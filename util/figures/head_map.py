"""The map of heads that all figures use: layers from left to right, heads from bottom to top, both from 0."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

TICK = 0.24  # inches that a tick label of two digits needs


def head_map(
    ax: Axes, values: NDArray[Any], limits: tuple[float, float], *, colours: str = "Blues", width: float = 2.5
) -> AxesImage:
    """Draw a map of heads [L, H] and return the image, which a colour bar needs.

    limits: the ends of the colour scale. colours: "Blues" for values with a minimum such as 0, "RdBu_r" for values of
    both signs. width: the width of the axes in inches; it decides how many tick labels fit.
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
