"""Pictures of panels: one layout, one headline, one legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.show.style import WIDTH, columns_of, headline, headline_height, legend_below, new_figure, style

Panel = Callable[[Axes], object]
Floats = NDArray[np.floating]
LEGEND = 0.25  # inches below the panels


@dataclass(frozen=True)
class Grid:
    """Panels, each a function that draws into axes, and how they are laid out.

    least: inches that a panel needs: as many stand side by side as fit, `columns` at most. height: inches of a row.
    share: axes that all panels share, "x", "y" or "xy". x, y: labels of all panels together. legend: labelled lines and
    patches. finish: draws what spans panels, with the figure and the axes [panels].
    """

    panels: Sequence[Panel]
    least: float = 1.2
    height: float = 1.5
    columns: int = 9
    share: str = ""
    x: str = ""
    y: str = ""
    legend: Sequence[Any] = ()
    finish: Callable[[Figure, Sequence[Axes]], object] | None = None


def draw(grid: Grid, title: str | None, subtitle: str, width: float = WIDTH) -> Figure:
    """A picture of a grid, `width` inches wide. title: what it shows; None where the numbers show nothing."""
    panels = len(grid.panels)
    columns = min(grid.columns, columns_of(panels, width, grid.least))
    rows = -(-panels // columns)
    height = headline_height(title, subtitle, width) + rows * grid.height + LEGEND * bool(grid.legend)
    with style():
        figure = new_figure(width, height)
        axes = figure.subplots(rows, columns, squeeze=False, sharex="x" in grid.share, sharey="y" in grid.share).ravel()
        for ax in axes[panels:]:
            ax.set_axis_off()
        for panel, ax in zip(grid.panels, axes, strict=False):
            panel(ax)
        figure.supxlabel(grid.x)
        figure.supylabel(grid.y)
        if grid.finish is not None:
            grid.finish(figure, list(axes[:panels]))
        legend_below(figure, grid.legend)
        headline(figure, title, subtitle)
    return figure


def matrix(
    ax: Axes,
    values: Floats,
    title: str = "",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    *,
    x: str = "",
    y: str = "",
    every: int = 1,
    decimals: int | None = None,
    aspect: Literal["equal", "auto"] = "equal",
) -> None:
    """Values [R, C] from 0 to 1 as shades. rows, columns: names, every so many are written; decimals: of the numbers
    that are written into cells that are not 0, None for no numbers."""
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
    ax.set(title=title, xlabel=x, ylabel=y)
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        axis.set_ticks(np.arange(0, len(names), every), list(names)[::every])
        axis.set_tick_params(length=0)
    ax.spines[:].set_visible(True)
    if decimals is not None:
        for (row, column), value in np.ndenumerate(values):
            if value:
                text = f"{value:.{decimals}f}".rstrip("0").rstrip(".")
                ax.text(
                    column, row, text, ha="center", va="center", fontsize=6, color="white" if value > 0.6 else "black"
                )
