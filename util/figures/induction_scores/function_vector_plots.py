"""The figure of function-vector heads beside induction heads."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from util.figures.head_map import head_map
from util.figures.style import BLUE, GREY, RED, WIDTH, name_point, new_figure, style
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval

Floats = NDArray[np.floating]


def function_vectors(
    matching: Floats,
    effect: Floats,
    induction: Sequence[Head],
    function_vector: Sequence[Head],
    names: Sequence[str],
    accuracies: Mapping[str, Sequence[Interval]],
    controls: Mapping[str, Sequence[Sequence[float]]],
    chance: Mapping[str, float],
    title: str,
) -> Figure:
    """A: prefix matching against AIE, [L, H] each; B: the map of AIE; C: accuracies of `names` by what is measured.

    induction, function_vector: the best heads of either kind, marked in A and B. controls: the accuracies of the
    control sets of each name. chance: the accuracy of guessing, where it is known.
    """
    with style():
        figure = new_figure(WIDTH, 4.4)
        above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1), squeeze=False)[:, 0]
        left, right = above.subplots(1, 2, width_ratios=(1, 1.15))
        _scatter(left, matching, effect, induction, function_vector)
        head_map(right, effect, label="AIE")
        for heads, marker, colour in ((induction, "o", BLUE), (function_vector, "s", RED)):
            layers, places = np.array(heads).T
            size = 5 if marker == "o" else 8
            edge = [withStroke(linewidth=2.2, foreground="white")]  # or it cannot be seen on a dark cell
            right.plot(layers, places, marker, mfc="none", mec=colour, ms=size, mew=0.9, path_effects=edge)
        right.set_title("B) AIE by layer and head")
        axes = below.subplots(1, len(accuracies), sharey=True)
        for ax, (measure, row) in zip(axes, accuracies.items(), strict=True):
            if measure in chance:
                ax.axvline(chance[measure], color="0.6", lw=0.8, ls=":")
            for y, (interval, drawn) in enumerate(zip(row, controls[measure], strict=True)):
                ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=8, mew=0.8)
                value, low, high = interval
                colour = RED if y else BLUE
                ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=colour)
            ax.set(xlim=(-0.03, 1.05), ylim=(len(row) - 0.5, -0.5), title=measure)
            ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_title(f"C) {axes[0].get_title()}")
        below.supxlabel("share right when these heads are ablated (dotted: chance; grey: control sets)")
        figure.suptitle(title)
    return figure


def _scatter(
    ax: Axes, matching: Floats, effect: Floats, induction: Sequence[Head], function_vector: Sequence[Head]
) -> None:
    """All heads by both scores; the best of either kind are marked, and those with the largest effects named."""
    marked = {*induction, *function_vector}
    others = [head for head in np.ndindex(matching.shape) if head not in marked]
    for heads, style_of in (
        (others, {"marker": ".", "color": "0.7", "ms": 4}),
        (induction, {"marker": "o", "mfc": "none", "mec": BLUE, "ms": 5, "label": "best by prefix matching"}),
        (function_vector, {"marker": "s", "mfc": "none", "mec": RED, "ms": 8, "label": "best by AIE"}),
    ):
        x, y = ([float(score[head]) for head in heads] for score in (matching, effect))
        ax.plot(x, y, ls="", mew=0.9, **style_of)  # type: ignore[arg-type]
    last, apart = np.inf, 0.1 * (effect.max() - effect.min())  # or names lie on each other
    for head in function_vector:
        if last - effect[head] > apart:
            name_point(ax, head_name(head), float(matching[head]), float(effect[head]))
            last = float(effect[head])
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set(xlim=(-0.03, 1.03), xlabel="prefix matching", ylabel="AIE", title="A) two scores of each head")
    ax.legend(loc="best")
