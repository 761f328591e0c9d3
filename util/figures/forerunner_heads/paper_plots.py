"""Fig. 5 middle and Fig. 22-25 as the notebooks of the paper's authors draw them (Cho et al. 2025).

Layers are counted from 1 here; everywhere else in this suite they are counted from 0.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from util.figures.forerunner_heads.measures import Series
from util.figures.forerunner_heads.plots import SHARES, SMALL, curve
from util.figures.forerunner_heads.results import Counts, Layers
from util.show.head_map import colour_bar, count_ticks
from util.show.style import WIDTH, headline, new_figure, style

COLOURS = {Series.CORRECT: "#023858", Series.WRONG: "#ff7f0e"}
MAPS = {Series.CORRECT: "Blues", Series.WRONG: "Purples"}
NAMES = {Series.CORRECT: "correct label", Series.WRONG: "wrong label"}


def count_maps(counts: Counts) -> Figure:
    """Fig. 22-25: on how many prompts each head exceeds the threshold, layers down, behind either label.

    Colours run from a quarter of the prompts to all of them.
    """
    shown = [name for name in MAPS if name in counts.maps]
    with style():
        figure = new_figure(WIDTH, 3.0)
        for ax, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            values, n = counts.maps[name], counts.prompts[name]
            low, high = (share * n for share in SHARES)
            image = ax.imshow(values, cmap=MAPS[name], vmin=low, vmax=high, aspect="auto", interpolation="nearest")
            for axis, count in ((ax.xaxis, values.shape[1]), (ax.yaxis, values.shape[0])):
                ticks = count_ticks(count, 8)
                axis.set_ticks(ticks, [str(tick + 1) for tick in ticks])
            ax.set(xlabel="head", ylabel="transformer block", title=NAMES[name])
            ax.spines[:].set_visible(True)
            colour_bar(image, ax, shrink=0.7, label="prompts")
        headline(figure, counts.finding, counts.setting)
    return figure


def layer_curves(layers: Layers) -> Figure:
    """Fig. 5 middle: forerunner heads (lines, left) and largest copy magnitude (areas, right) of each layer.

    Bands, which the paper does not have, are 95 % intervals.
    """
    with style():
        figure = new_figure(WIDTH, 3.0)
        ax = figure.subplots()
        right = ax.twinx()
        for name in [name for name in COLOURS if name in layers.counts]:
            colour, x = COLOURS[name], np.arange(1, len(layers.counts[name].value) + 1)
            curve(ax, x, layers.counts[name], color=colour, label=f"{NAMES[name]}: heads")
            largest = layers.largest[name].value
            right.fill_between(x, largest, color=colour, alpha=0.2, lw=0, label=f"{NAMES[name]}: magnitude")
        ax.set(xlabel="transformer block", ylabel="forerunner token heads", ylim=(0, None))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(ylabel="maximum copy magnitude", ylim=(0, 1.1))
        right.spines["right"].set_visible(True)
        figure.legend(loc="outside lower center", ncols=4, fontsize=SMALL)
        headline(figure, layers.finding, layers.setting)
    return figure
