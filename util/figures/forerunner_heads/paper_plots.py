"""The figures in the arrangement and the colours of the paper (Cho et al. 2025), as its authors' notebooks draw them.

Layers are counted from 1, as there; everywhere else in this suite they are counted from 0.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from util.figures.forerunner_heads.measures import Inducing, Reader, Series
from util.figures.forerunner_heads.plots import SHARES, SMALL, WIDE, curve
from util.figures.head_map import colour_bar, count_ticks
from util.figures.style import WIDTH, columns_of, headline, new_figure, style
from util.stats.intervals import Intervals

COLOURS = {Series.CORRECT: "#023858", Series.WRONG: "#ff7f0e"}
MAPS = {Series.CORRECT: "Blues", Series.WRONG: "Purples"}
NAMES = {Series.CORRECT: "Correct Label", Series.WRONG: "Wrong Label"}
INDUCTION = {Inducing.ANY: ("#257ab6", "Induction Heads"), Inducing.CORRECT: ("#2c7d59", "Correct Induction Heads")}
READERS = {
    Reader.SIMILARITY: ("#ff7f0e", "Vanilla Attention"),
    Reader.BEST: ("#2c7d59", "Best Ind. Head"),
    Reader.MEAN: ("#257ab6", "Head Average"),
}
LOWEST = 0.17  # of the share of the query's label, where nothing lies below


def count_maps(
    maps: Mapping[str, Mapping[Series, NDArray[np.integer]]],
    n: int,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Fig. 22-25: counts [L, H] of n prompts by data set and condition, layers down from 1, heads across from 1.

    The colours run from a quarter of the prompts to all of them: blue behind the correct label, purple behind a wrong
    one. Other conditions are not drawn.
    """
    layers = len(next(iter(next(iter(maps.values())).values())))
    shown = [name for name in MAPS if name in next(iter(maps.values()))]
    columns = columns_of(len(maps), width - 1.2, 0.68)
    blocks, height = -(-len(maps) // columns), min(1.7 if width >= WIDE else 1.3, max(0.8, 0.05 * layers))
    with style():
        figure = new_figure(width, 1.1 + blocks * len(shown) * (height + 0.35))
        axes = figure.subplots(blocks * len(shown), columns, squeeze=False, sharex=True, sharey=True)
        for place, (dataset, by_condition) in enumerate(maps.items()):
            column = place % columns
            for row, name in enumerate(shown, start=place // columns * len(shown)):
                image = _map(axes[row, column], by_condition[name] / n, MAPS[name])
                if column == 0:
                    axes[row, 0].set_ylabel(f"{NAMES[name]}\nlayer", fontsize=7)
                if column == columns - 1 or place == len(maps) - 1:
                    percent = {"ticks": [0.25, 0.5, 0.75, 1], "format": PercentFormatter(1, symbol=" %")}
                    colour_bar(image, list(axes[row]), aspect=12, **percent)
            top = place // columns * len(shown)
            axes[top, column].set_title(dataset.replace("_", "\n", 1), fontsize=SMALL)
        for ax in axes[-len(shown) :, (len(maps) - 1) % columns + 1 :].flat:
            ax.set_axis_off()
        figure.supxlabel("head")
        headline(figure, finding, setting)
    return figure


def _map(ax: Axes, shares: NDArray[np.floating], colours: str) -> AxesImage:
    """Shares of prompts [L, H]: layers down, heads across, both named from 1; every tenth layer has a number."""
    layers, heads = shares.shape
    image = ax.imshow(shares, cmap=colours, vmin=SHARES[0], vmax=1, aspect="auto", interpolation="nearest")
    ax.set_xticks(count_ticks(heads, 2), list(map(str, count_ticks(heads, 2) + 1)))
    ticks = np.arange(0, layers, 10 if layers > 10 else 2)
    ax.set_yticks(ticks, list(map(str, ticks + 1)))
    ax.spines[:].set_visible(True)
    return image


def layer_curves(
    heads: Mapping[Series, Intervals],
    largest: Mapping[Series, Intervals],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Fig. 5 middle: forerunner heads per layer [L] (lines, left axis), largest copy magnitudes (areas, right axis).

    Behind the correct and a wrong label alone. Bands, which the paper does not have, are 95 % intervals.
    """
    with style():
        figure = new_figure(width, 3.0 if width >= WIDE else 3.4)
        ax = figure.subplots()
        right = ax.twinx()
        for name, colour in COLOURS.items():
            if name in heads:
                x = np.arange(1, len(heads[name].value) + 1)
                curve(ax, x, heads[name], color=colour, label=f"{NAMES[name]}: head count")
                right.fill_between(
                    x, largest[name].value, color=colour, alpha=0.2, lw=0, label=f"{NAMES[name]}: max. magnitude"
                )
        ax.set(xlabel="block number", ylabel="mean head count", ylim=(0, None))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(ylabel="mean max.\ncopy magnitude", ylim=(0, 1.1))
        right.spines["right"].set_visible(True)
        ax.set_zorder(right.get_zorder() + 1)  # lines above areas
        ax.patch.set_visible(False)
        parts = [one for axes in (ax, right) for one in zip(*axes.get_legend_handles_labels(), strict=True)]
        handles, labels = zip(*parts, strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=SMALL)
        headline(figure, finding, setting)
    return figure


def induction_layers(
    counts: Mapping[Inducing, Intervals],
    likelihoods: Mapping[Reader, Intervals],
    classes: int,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Fig. 6 left, middle: induction heads per block, and the likelihood of the query's label; dashed: 1 / classes.

    Values by layer [L]. Bands, which the paper does not have, are 95 % intervals.
    """
    wide = width >= WIDE
    with style():
        figure = new_figure(width, 2.9 if wide else 4.9)
        left, right = figure.subplots(1, 2) if wide else figure.subplots(2, 1)
        x = np.arange(1, len(next(iter(counts.values())).value) + 1)
        for which, (colour, name) in INDUCTION.items():
            curve(left, x, counts[which], color=colour, label=name)
        for reader, (colour, name) in READERS.items():
            curve(right, x, likelihoods[reader], color=colour, label=name)
        right.axhline(1 / classes, color="0.35", lw=0.9, ls="--", label="Random")
        left.set(ylabel="mean head count", ylim=(0, None))
        lowest = min(LOWEST, *(float(values.low.min()) for values in likelihoods.values()))
        right.set(ylabel="label assignment likelihood", ylim=(lowest, None))
        for ax in (left, right):
            ax.set_xlabel("block number")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            _legend_under(ax)
        headline(figure, finding, setting)
    return figure


def _legend_under(ax: Axes) -> None:
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, fontsize=SMALL)
