"""The figure of edges of the component graph: what estimates say of them against what they do."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from util.figures.ioi_patching.measures import CARRIES, carriers
from util.figures.ioi_patching.plots import CHANNEL_COLOURS, Names
from util.show.style import (
    BLUE,
    BROWN,
    GREY,
    WIDTH,
    columns_of,
    headline,
    headline_height,
    legend_below,
    new_figure,
    style,
)
from util.stats.intervals import Intervals

COLOURS = (*CHANNEL_COLOURS, BROWN, BLUE)  # of what reads: query, key, value, MLP, logits
MARKERS = "osv^D"
TICKS = (-1, -0.1, 0, 0.1, 1)
NAMED = 3  # edges named in each panel


def estimates(
    exact: Intervals,
    scores: Mapping[str, NDArray[np.float64]],
    kinds: NDArray[np.str_],
    order: Mapping[str, str],
    names: Sequence[str],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Exact effects [E] of edges against estimates [E], a panel for each method, coloured by what reads the edge.

    kinds [E]; order: the kinds in the order of the legend, and how they are called there. names [E]: of the edges; the
    strongest are named. Intervals are those of edges that carry more than CARRIES, a hundredth of the whole effect, for
    certain. Both axes are linear up to CARRIES and logarithmic beyond.
    """
    with style():
        columns = columns_of(len(scores), width, 2.2)
        rows = -(-len(scores) // columns)
        figure = new_figure(width, headline_height(finding, setting, width) + 2.75 * rows + 0.3)
        axes = figure.subplots(rows, columns, sharey=True, sharex=True, squeeze=False).ravel()
        together = np.abs(np.concatenate([exact.value, *scores.values()]))
        together = together[np.isfinite(together)]
        widest = max(float(together.max(initial=0)), CARRIES)
        sure, written = carriers(exact), Names()
        strongest = [place for place in np.argsort(-np.abs(exact.value), kind="stable")[:NAMED] if sure[place]]
        for ax, (method, score) in zip(axes, scores.items(), strict=False):
            diagonal = np.linspace(-1.3 * widest, 1.3 * widest, 401)
            ax.plot(diagonal, diagonal, color="0.8", lw=0.7, zorder=0)
            for level in (ax.axhline, ax.axvline):
                level(0, color="0.9", lw=0.7, zorder=0)
            reach = np.abs([exact.low - exact.value, exact.high - exact.value])[:, sure]
            ax.errorbar(score[sure], exact.value[sure], reach, fmt="none", ecolor=GREY, elinewidth=0.5, zorder=1)
            for kind, colour, marker in zip(order, COLOURS, MARKERS, strict=False):
                own = kinds == kind
                dots = {"color": colour, "ms": 2.2, "mew": 0, "alpha": 0.6, "rasterized": True}
                ax.plot(score[own], exact.value[own], marker, **dots)
            for scale, ticks in ((ax.set_xscale, ax.set_xticks), (ax.set_yscale, ax.set_yticks)):
                scale("symlog", linthresh=CARRIES, linscale=0.5)
                ticks(TICKS, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in TICKS])
                ticks([], minor=True)
            ax.set(title=method, xlabel="estimated share of the effect", aspect="equal")
            ax.set(xlim=(-1.3 * widest, 1.3 * widest), ylim=(-1.3 * widest, 1.3 * widest))
            dots_there = np.stack([score, exact.value], axis=1)
            named = {names[place]: (float(score[place]), float(exact.value[place])) for place in strongest}
            written.add(ax, named, dots_there[np.isfinite(dots_there).all(axis=1)])
        for row in range(rows):
            axes[row * columns].set_ylabel("exact share of the effect")
        key = zip(order.values(), COLOURS, MARKERS, strict=False)
        legend_below(figure, [Line2D([], [], ls="", marker=m, color=c, ms=4, label=name) for name, c, m in key])
        headline(figure, finding, setting)
        written.write(figure)
    return figure
