"""Parts 2 to 5 as the project draws them (Cohen, project 41); part 1 is `plots.predictions`.

Colours of effects end at three times the mean absolute effect; each panel of head outputs has colours of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from util.figures.ioi_patching import measures
from util.figures.ioi_patching.plots import Floats, quoted
from util.figures.ioi_patching.results import Example
from util.show.head_map import count_ticks, head_map
from util.show.style import BLUE, WIDTH, headline, headline_height, new_figure, style

COLUMNS = 9  # panels of head outputs side by side


def permutation(example: Example) -> Figure:
    """Part 2: the change by shuffling one head; by layer, with SD; by the norm of the head's output."""
    effects, finding = example.permuted, example.permutation_finding
    with style():
        figure, axes = _effects(effects, "A) shuffled - base", finding, example.setting)
        limit = _limit(effects)
        colours: dict[str, Any] = {"c": effects.ravel(), "cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        axes[2].scatter(example.norms.ravel(), effects.ravel(), 12, ec="black", lw=0.3, alpha=0.7, **colours)
        axes[2].set(xlabel="norm of z", ylabel="change, logits", title="C) by norm")
        headline(figure, finding, example.setting)
    return figure


def activations(example: Example) -> Figure:
    """Part 3: the outputs of one layer's heads, a panel for each token of the source."""
    layer = measures.layer_to_show(example.patched, example.shown_layer)
    finding, setting = example.activations_finding, f"{example.setting}; outputs on the source in layer {layer}"
    with style():
        figure = new_figure(WIDTH, _outputs_height(len(example.tokens)) + headline_height(finding, setting, WIDTH))
        panels = zip(_outputs_axes(figure, len(example.tokens)), example.z[layer], example.tokens, strict=True)
        for ax, z, token in panels:
            low, high = np.percentile(z, (2.5, 97.5))
            _outputs(ax, z, quoted(token), "plasma", low, high)
        headline(figure, finding, setting)
    return figure


def differences(example: Example) -> Figure:
    """Part 4: how head outputs at the name's two places differ, a panel for each layer shown; the selectivity ratio."""
    shown = range(0, len(example.z), measures.layer_step(len(example.z), example.layer_skip))
    finding, height = example.differences_finding, _outputs_height(len(shown))
    with style():
        figure = new_figure(WIDTH, height + 1.6 + headline_height(finding, example.setting, WIDTH))
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(height, 1.6))[:, 0]
        for ax, layer in zip(_outputs_axes(above, len(shown)), shown, strict=True):
            limit = float(np.percentile(np.abs(example.differences[layer]), 99)) or 1.0
            _outputs(ax, example.differences[layer], f"layer {layer}", "RdBu_r", -limit, limit)
        ax = below.subplots()
        ax.plot(example.selectivity, "h", color="black", markerfacecolor=(0.7, 0.9, 0.9), ms=6)
        ax.set_xticks(count_ticks(len(example.z), 12))
        ax.set(xlabel="layer", ylabel="selectivity ratio")
        headline(figure, finding, example.setting)
    return figure


def patching(example: Example) -> Figure:
    """Part 5: the change when one head comes from the source; by layer, with SD; the SD alone."""
    effects, finding = example.patched, example.patching_finding
    with style():
        figure, axes = _effects(effects, "A) patched - base", finding, example.setting)
        axes[2].plot(effects.std(axis=1), "o-", color=BLUE, ms=3, lw=0.9)
        axes[2].set_xticks(count_ticks(len(effects), 5))
        axes[2].set(xlabel="layer", ylabel="SD, logits", title="C) SD of heads")
        headline(figure, finding, example.setting)
    return figure


def _effects(effects: Floats, title: str, finding: str | None, setting: str) -> tuple[Figure, Sequence[Axes]]:
    """A figure of three panels: a map of effects [L, H], the mean and SD of each layer's heads, an empty one."""
    figure, limit = new_figure(WIDTH, 2.0 + headline_height(finding, setting, WIDTH)), _limit(effects)
    axes = figure.subplots(1, 3, width_ratios=(1.35, 1, 1))
    head_map(axes[0], effects, (-limit, limit), colours="RdBu_r", label="logits", width=1.4)
    axes[0].set_title(title)
    axes[1].errorbar(range(len(effects)), effects.mean(axis=1), effects.std(axis=1), fmt="o-", color=BLUE, ms=3, lw=0.9)
    axes[1].axhline(0, color="0.8", lw=0.7, zorder=0)
    axes[1].set_xticks(count_ticks(len(effects), 5))
    axes[1].set(xlabel="layer", ylabel="mean change, logits", title="B) mean of heads; bar: SD")
    return figure, axes


def _limit(effects: Floats) -> float:
    return float(3 * np.abs(effects).mean()) or 1.0


def _outputs_height(panels: int) -> float:
    return 0.3 + 0.8 * -(-panels // COLUMNS)


def _outputs_axes(figure: FigureBase, panels: int) -> Sequence[Axes]:
    """Axes for so many panels of head outputs, and none beyond them."""
    axes = figure.subplots(-(-panels // COLUMNS), min(panels, COLUMNS), squeeze=False).ravel()
    for ax in axes[panels:]:
        ax.set_axis_off()
    axes[0].set_ylabel("dimension", fontsize=6)
    axes[0].set_xlabel("head", fontsize=6)
    return [*axes[:panels]]


def _outputs(ax: Axes, z: Floats, title: str, colours: str, low: float, high: float) -> None:
    """Outputs [H, dv] of the heads of a layer: heads across, dimensions up."""
    ax.imshow(z.T, cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest", origin="lower")
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=6, pad=2)
