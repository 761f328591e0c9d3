"""The figure of function-vector heads beside induction heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from util.figures.induction_scores.task_plots import ROW, RowPanel, lines_of, row_panels
from util.roles.rules import Role
from util.show.head_map import head_map
from util.show.style import BLUE, ROLES, WIDTH, columns_of, headline, name_point, new_figure, points, style
from util.stats.heads import Head, head_name
from util.stats.intervals import Intervals

Floats = NDArray[np.floating]
INDUCTION = ("o", ROLES[Role.INDUCTION].colour, 4.5)  # marker, colour and size
FUNCTION_VECTOR = ("s", ROLES[Role.FUNCTION_VECTOR].colour, 7.5)


def function_vectors(
    matching: Floats,
    effect: Intervals,
    induction: Sequence[Head],
    function_vector: Sequence[Head],
    panels: Sequence[RowPanel],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """A: prefix matching against AIE, [L, H] each; B: the map of AIE; C: what is answered right, by what is ablated.

    induction, function_vector: the best heads of either kind, marked in A and B. panels: of C, the whole model first.
    """
    columns = columns_of(2, width, 2.4)
    lines = lines_of(len(panels), width)[0]
    heights = (2.5 if columns == 2 else 4.6, lines * (0.5 + ROW * len(panels[0].rows)) + 0.25)
    with style():
        figure = new_figure(width, 0.5 + sum(heights))
        above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
        left, right = above.subplots(2 // columns, columns).ravel()
        _scatter(left, matching, effect, induction, function_vector)
        head_map(right, effect.value, label="AIE", width=width / columns - 1)
        for heads, (marker, colour, size) in ((induction, INDUCTION), (function_vector, FUNCTION_VECTOR)):
            edge = [withStroke(linewidth=2.2, foreground="white")]  # or it cannot be seen on a dark cell
            options: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": size, "mew": 0.9, "path_effects": edge}
            right.plot(*np.array(heads).T, marker, **options)
        right.set_title("B) AIE by layer and head")
        axes = row_panels(below, panels, width, {next(iter(panels[0].rows)): BLUE}, "share right")
        axes[0].set_title(f"C) {axes[0].get_title()}")
        below.supxlabel("rows: without these heads; grey: control sets; dotted: chance", fontsize=6.5)
        headline(figure, finding, setting)
    return figure


def _scatter(
    ax: Axes, matching: Floats, effect: Intervals, induction: Sequence[Head], function_vector: Sequence[Head]
) -> None:
    """All heads by both scores; the best of either kind are marked, with intervals, and named where there is room."""
    marked = {*induction, *function_vector}
    others = [head for head in np.ndindex(matching.shape) if head not in marked]
    ax.plot(*_places(others, matching, effect), ".", color="0.7", ms=4)
    for heads, (marker, colour, size), label in (
        (induction, INDUCTION, "best by prefix matching"),
        (function_vector, FUNCTION_VECTOR, "best by AIE"),
    ):
        options: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": size, "mew": 0.9, "label": label}
        ax.plot(*_places(heads, matching, effect), marker, **options)
    reach = float(np.ptp(effect.value))
    named: list[tuple[float, float, float]] = []
    for head in function_vector:
        x, y = float(matching[head]), float(effect.value[head])
        points(ax, [x], [effect[head]], fmt="none", color=FUNCTION_VECTOR[1], lw=0.7)
        side = -1 if x > 0.5 else 1  # where `name_point` writes
        beside = [(float(matching[other]), *effect[other][1:]) for other in marked if other != head]
        near = [marks for marks in (*beside, *named) if -0.03 < side * (marks[0] - x) < 0.4]
        if all(high < y - 0.07 * reach or low > y + 0.07 * reach for _, low, high in near):
            name_point(ax, head_name(head), x, y)  # elsewhere the name would lie on a mark
            named.append((x, y, y))
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.margins(y=0.1)
    ax.set(xlim=(-0.06, 1.06), xlabel="prefix matching", ylabel="AIE", title="A) two scores of each head")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), ncols=2, fontsize=6.5, columnspacing=1, handletextpad=0.2)


def _places(heads: Sequence[Head], matching: Floats, effect: Intervals) -> tuple[list[float], list[float]]:
    return [float(matching[head]) for head in heads], [float(effect.value[head]) for head in heads]
