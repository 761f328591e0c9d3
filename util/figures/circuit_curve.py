"""The curve of faithfulness over the size of circuits, with its CPR or CMD: one drawing for all figures."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from util.scores.evaluation import Curve
from util.show.style import (
    BLUE,
    GREEN,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    PURPLE,
    WIDTH,
    columns_of,
    headline,
    headline_height,
    new_figure,
    style,
)

COLOURS = (BLUE, LIGHT_BLUE, GREEN, ORANGE, PURPLE)  # of methods, in the order in which they are given
MARKERS = "osv^DPX"  # not as many as colours, so that more methods than either differ
HEIGHT, LINE = 2.2, 0.17  # inches: of the panels with their titles; of a row of areas


def circuit_curve(ax: Axes, curves: Mapping[str, Curve], controls: Collection[str] = ()) -> None:
    """Draw the faithfulness of circuits over their nominal size, by method.

    Bands are 95 % intervals that hold together for a curve. controls: names of curves that are drawn grey. Lines mark
    the whole model (1) and the model with all edges corrupted (0). What is not defined is not drawn.
    Raises ValueError for curves of different rankings: CPR and CMD have an axes each.
    """
    measures = {curve.measure for curve in curves.values()}
    if len(measures) != 1:
        raise ValueError(f"curves of one ranking belong together, not those of {sorted(measures)}")
    for level in (0, 1):
        ax.axhline(level, color="0.8", lw=0.7, zorder=0)
    for (name, curve), (colour, marker) in zip(curves.items(), _looks(curves, controls), strict=True):
        f, order = curve.faithfulness, 2.5 if name in controls else 3  # controls do not hide what is asked of methods
        ax.plot(curve.shares, f.value, marker=marker, ms=3, lw=1.2, color=colour, label=name, zorder=order)
        ax.fill_between(curve.shares, f.low, f.high, color=colour, alpha=0.18, lw=0, zorder=2)
    ax.set_xscale("log")
    ax.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    ax.set_xlim(min(curve.shares[0] for curve in curves.values()) / 1.15, 1.15)
    ax.margins(y=0.08)
    ax.set(xlabel="edges kept, nominally", ylabel="faithfulness")


def _looks(names: Collection[str], controls: Collection[str]) -> list[tuple[str, str]]:
    """The colour and the marker of every curve; controls are grey."""
    methods = [name for name in names if name not in controls]
    looks = {name: (COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]) for n, name in enumerate(methods)}
    return [looks.get(name, (GREY, ".")) for name in names]


def circuit_curves(
    signed: Mapping[str, Curve],
    absolute: Mapping[str, Curve],
    finding: str | None,
    setting: str,
    controls: Collection[str] = (),
    width: float = WIDTH,
) -> Figure:
    """The curves of signed rankings above their CPR, and those of absolute ones above their CMD, by method.

    A method has the same colour in all panels if both are in the same order; the areas say which is whose. controls:
    see `circuit_curve`. Raises ValueError for curves of the other ranking.
    """
    rankings = (
        ("CPR", signed, "A) by signed scores", "CPR; above 1 is overshoot"),
        ("CMD", absolute, "B) by absolute scores", "CMD; 0 is the whole model"),
    )
    for measure, curves, _, _ in rankings:
        wrong = [name for name, curve in curves.items() if curve.measure != measure]
        if wrong:
            raise ValueError(f"{wrong} are not ranked as {measure} asks")
    below = 0.55 + LINE * max(len(signed), len(absolute))
    with style():
        columns = columns_of(2, width, 2.4)
        heights = [HEIGHT, below] * (2 // columns)
        figure = new_figure(width, headline_height(finding, setting, width) + sum(heights))
        axes = figure.subplots(len(heights), columns, height_ratios=heights, squeeze=False)
        for place, (_, curves, title, better) in enumerate(rankings):
            row, column = 2 * (place // columns), place % columns
            circuit_curve(axes[row, column], curves, controls)
            axes[row, column].set_title(title)
            _areas(axes[row + 1, column], curves, controls, better)
            if column and [*signed] == [*absolute]:
                axes[row + 1, column].tick_params(labelleft=False)  # the names stand at the left
        headline(figure, finding, setting)
    return figure


def _areas(ax: Axes, curves: Mapping[str, Curve], controls: Collection[str], label: str) -> None:
    """The CPR or CMD of every curve with its interval, a row for each method, in the colours of the curves."""
    for row, (curve, (colour, marker)) in enumerate(zip(curves.values(), _looks(curves, controls), strict=True)):
        area, said = curve.area, "not defined"
        if curve.defined:
            reach = np.abs([[area.value - area.low], [area.high - area.value]])  # rounding may leave less than 0
            ax.errorbar([area.value], [row], xerr=reach, fmt=marker, color=colour, ms=3.5, lw=1)
            said = f"{area.value:.2f}"
        at: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "textcoords": "offset points",
            "annotation_clip": False,
        }
        ax.annotate(said, (1, row), (3, 0), va="center", fontsize=6.5, **at)
    ax.set_yticks(range(len(curves)), list(curves))
    ax.set_ylim(len(curves) - 0.5, -0.5)
    ax.set_xlabel(label)
