"""The figure of edges of the component graph: what estimates say of them against what they do."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.ioi_patching.measures import CARRIES
from util.figures.style import BLUE, RED, WIDTH, new_figure, style
from util.stats.intervals import Intervals

COLOURS = (BLUE, RED, "#2c7d59", "#d99a2b", "#7b5aa6")  # of what reads
MARKERS = "osv^D"
TICKS = (-1, -0.1, 0, 0.1, 1)


def estimates(
    exact: Intervals,
    scores: Mapping[str, NDArray[np.float64]],
    kinds: NDArray[np.str_],
    order: Sequence[str],
    title: str,
) -> Figure:
    """Exact effects [E] of edges against estimates [E], a panel for each method, coloured by what reads the edge.

    kinds [E]; order: of the kinds in the legend. Both axes are linear up to CARRIES, a hundredth of the whole effect,
    and logarithmic beyond.
    """
    with style():
        figure = new_figure(WIDTH, 3.1)
        axes = figure.subplots(1, len(scores), sharey=True, sharex=True, squeeze=False)[0]
        together = np.abs(np.concatenate([exact.value, *scores.values()]))
        together = together[np.isfinite(together)]
        widest = max(float(together.max(initial=0)), CARRIES)
        for ax, (method, score) in zip(axes, scores.items(), strict=True):
            diagonal = np.linspace(-1.3 * widest, 1.3 * widest, 401)
            ax.plot(diagonal, diagonal, color="0.8", lw=0.7, zorder=0)
            for level in (ax.axhline, ax.axvline):
                level(0, color="0.9", lw=0.7, zorder=0)
            for kind, colour, marker in zip(order, COLOURS, MARKERS, strict=False):
                own = kinds == kind
                ax.plot(
                    score[own],
                    exact.value[own],
                    marker,
                    color=colour,
                    ms=2.2,
                    mew=0,
                    alpha=0.6,
                    label=kind,
                    rasterized=True,
                )
            for scale, ticks in ((ax.set_xscale, ax.set_xticks), (ax.set_yscale, ax.set_yticks)):
                scale("symlog", linthresh=CARRIES, linscale=0.5)
                ticks(TICKS, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in TICKS])
                ticks([], minor=True)
            ax.set(title=method, xlabel="estimated share of the whole effect", aspect="equal")
            ax.set(xlim=(-1.3 * widest, 1.3 * widest), ylim=(-1.3 * widest, 1.3 * widest))
        axes[0].set_ylabel("exact share of the whole effect")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(order), markerscale=2)
        figure.suptitle(title)
    return figure
