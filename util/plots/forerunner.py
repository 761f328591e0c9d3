"""The figures of forerunner token heads (Cho et al. 2025) and of their controls."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from util.measures.forerunner import VERDICTS, Contrast, LayerCurve
from util.plots import WIDTH, layer_axis, name_point, new_figure, style

COLOURS = {"correct": "#023858", "wrong": "#ff7f0e", "other word": "#2c7d59", "untrained": "#8a8a8a"}
MAPS = {"correct": "Blues", "wrong": "Purples", "other word": "Greens", "untrained": "Greys"}
CONDITION = {
    "correct": "correct label",
    "wrong": "wrong label",
    "other word": "no label",
    "untrained": "untrained weights",
}
MARKS = dict(zip(VERDICTS, (("#c02d45", "o"), ("#257ab6", "s"), ("#8a8a8a", ".")), strict=True))


def _map(ax: Axes, counts: NDArray[np.integer], n: int, name: str, numbers: bool = False) -> mpl.image.AxesImage:
    image = ax.imshow(counts, cmap=MAPS[name], vmin=n / 4, vmax=n, aspect="auto", interpolation="nearest")
    layer_axis(ax.yaxis, len(counts))
    step = max(1, round(counts.shape[1] / 8))
    ax.xaxis.set_ticks(np.arange(0, counts.shape[1], step))
    ax.spines[:].set_visible(True)
    if numbers and counts.shape[1] <= 8:  # few enough heads for three digits
        for layer, head in zip(*counts.nonzero(), strict=True):
            count = counts[layer, head]
            ax.text(
                head, layer, count, ha="center", va="center", fontsize=5, color="white" if count > 0.7 * n else "black"
            )
    return image


def count_maps(counts: Mapping[str, NDArray[np.integer]], n: int, title: str) -> Figure:
    """Heat maps of forerunner-head counts [L, H], one per condition (keys of CONDITION) (Fig. 22-25).

    The colour scale runs from a quarter of the n prompts to all of them, as in the paper.
    """
    with style():
        figure = new_figure(WIDTH, 2.3)
        axes = figure.subplots(1, len(counts), squeeze=False)[0]
        for ax, (name, values) in zip(axes, counts.items(), strict=True):
            image = _map(ax, values, n, name, numbers=True)
            ax.set_title(CONDITION[name])
            ax.set_xlabel("head (from 0)")
            bar = figure.colorbar(image, ax=ax, shrink=0.8, extend="min", ticks=[n // 4, n // 2, 3 * n // 4, n])
            bar.outline.set_visible(False)
        axes[0].set_ylabel("transformer block (from 1)")
        figure.suptitle(title)
    return figure


def layer_curves(
    heads: Mapping[str, LayerCurve], largest: Mapping[str, LayerCurve], threshold: float, uniform: float, title: str
) -> Figure:
    """Forerunner heads per layer (line, left axis) and the largest copy magnitude (area, right axis) (Fig. 5 middle).

    One panel per condition; bars and bands are 95 % intervals. Dotted: the mean threshold c / n_t, and below it uniform
    attention 1 / n_t.
    """
    with style():
        figure = new_figure(WIDTH, 2.2)
        panels = figure.subplots(1, len(heads), squeeze=False, sharey=True)[0]
        layers = len(next(iter(heads.values())).mean)
        x = np.arange(1, layers + 1)
        for left, (name, curve) in zip(panels, heads.items(), strict=True):
            right, area, colour = left.twinx(), largest[name], COLOURS[name]
            right.fill_between(x, area.mean, color=colour, alpha=0.15, lw=0)
            right.fill_between(x, area.low, area.high, color=colour, alpha=0.4, lw=0)
            for level, text in ((threshold, "$c/n_t$"), (uniform, "")):
                right.axhline(level, color="0.35", lw=0.7, ls=":")
                at_edge = right.get_yaxis_transform()
                right.text(0.98, level, text, fontsize=6, color="0.35", transform=at_edge, ha="right", va="bottom")
            error = np.abs(np.stack([curve.mean - curve.low, curve.high - curve.mean]))
            left.errorbar(x, curve.mean, error, color=colour, marker="o", ms=3 if layers < 20 else 0, capsize=2)
            left.set_zorder(right.get_zorder() + 1)
            left.patch.set_visible(False)
            left.set(xlim=(0.6, layers + 0.4), xlabel="transformer block", title=CONDITION[name])
            left.set_ylim(bottom=0, top=1.1 * max(0.2, *(float(c.high.max()) for c in heads.values())))
            left.xaxis.set_major_locator(MaxNLocator(integer=True))
            right.set_ylim(0, 1.1)
            right.spines.right.set_visible(True)
            if left is not panels[-1]:
                right.set_yticklabels([])
            else:
                right.set_ylabel("largest copy magnitude (area)")
        panels[0].set_ylabel("forerunner token heads (line)")
        figure.suptitle(title)
    return figure


class Panel(NamedTuple):
    """Heads by what they read; names: what is written beside which (layer, head), None for the most specific ones."""

    title: str
    found: Contrast
    verdicts: NDArray[np.str_]
    names: Mapping[tuple[int, int], str] | None = None


def specificity(panels: Sequence[Panel], name_at_most: int = 8) -> Figure:
    """Each head's attention to the previous token at the query's label against that at other tokens.

    On the diagonal a head attends to the previous token wherever it is; above it, more so before a label. Bars:
    95 % interval of the difference, for all heads together. The `name_at_most` most specific heads of a panel without
    names are named layer.head, from 0.
    """
    with style():
        figure = new_figure(WIDTH, 3.4)
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for ax, (title, found, verdicts, names) in zip(axes, panels, strict=True):
            ax.plot([0, 1], [0, 1], color="0.7", lw=0.8, zorder=0)
            for verdict, (colour, marker) in MARKS.items():
                chosen = verdicts == verdict
                low, high = (found.difference - found.low)[chosen], (found.high - found.difference)[chosen]
                error = np.maximum(np.stack([low, high]), 0)
                points = found.second[chosen], found.first[chosen]
                ax.errorbar(*points, error, fmt=marker, color=colour, ms=4, lw=0.8, label=verdict)
            if names is None:
                order = np.argsort(-np.where(verdicts == VERDICTS[0], found.difference, -np.inf), axis=None)
                best = order[: min(name_at_most, int((verdicts == VERDICTS[0]).sum()))]
                places = zip(*np.unravel_index(best, verdicts.shape), strict=True)
                names = {(int(layer), int(head)): f"{layer}.{head}" for layer, head in places}
            for place, name in names.items():
                name_point(ax, name, found.second[place], found.first[place])
            ticks = np.linspace(0, 1, 5)
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xticks=ticks, yticks=ticks)
            ax.set_xlabel(r"at other tokens: mean $A[t,\,t-1]$")
            ax.set_title(title)
        axes[0].set_ylabel(r"at the label: mean $A[y_q,\,s_q]$")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def count_grid(grid: Mapping[str, Mapping[str, NDArray[np.integer]]], n: int, title: str) -> Figure:
    """Count maps of many data sets: grid[data set][condition] is [L, H] (the layout of Fig. 22-25, transposed)."""
    with style():
        conditions: Sequence[str] = list(next(iter(grid.values())))
        figure = new_figure(WIDTH, 0.55 + 1.15 * len(conditions))
        axes = figure.subplots(len(conditions), len(grid), squeeze=False, sharex=True, sharey=True)
        for column, (dataset, maps) in enumerate(grid.items()):
            axes[0, column].set_title(dataset.replace("_", "\n", 1), fontsize=7)
            for row, name in enumerate(conditions):
                image = _map(axes[row, column], maps[name], n, name)
                axes[row, 0].set_ylabel(f"{CONDITION[name]}\nblock")
                if column == len(grid) - 1:
                    bar = figure.colorbar(
                        image, ax=axes[row], shrink=0.9, pad=0.01, extend="min", ticks=[n // 4, n // 2, n]
                    )
                    bar.outline.set_visible(False)
            axes[-1, column].set_xlabel("head")
        figure.suptitle(title)
    return figure


def changes(
    found: Mapping[str, Mapping[str, tuple[float, float, float]]],
    controls: Mapping[str, Mapping[str, tuple[float, float, float]]],
    title: str,
    unit: str,
) -> Figure:
    """What each ablation changes: found[part of the layers][ablation] is (value, low, high), one panel per part.

    controls, the mean of the matched random cells, are drawn beside the parts in which they were measured.
    """
    with style():
        names = list(next(iter(found.values())))
        figure = new_figure(WIDTH, 0.75 + 0.24 * len(names))
        axes = figure.subplots(1, len(found), squeeze=False, sharey=True, sharex=True)[0]
        places = np.arange(len(names))
        for ax, (part, values) in zip(axes, found.items(), strict=True):
            drawn = controls.get(part)
            series = [("cut", np.array([values[name] for name in names]), -0.12 * bool(drawn), "#c02d45", "o")]
            if drawn:
                series.append(("as many random cells", np.array([drawn[name] for name in names]), 0.18, "0.55", "s"))
            for label, points, shift, colour, marker in series:
                value, low, high = points.T
                error = np.maximum([value - low, high - value], 0)
                ax.errorbar(value, places + shift, xerr=error, fmt=marker, ms=3, lw=0.9, color=colour, label=label)
            ax.axvline(0, color="0.7", lw=0.7, zorder=0)
            ax.set_title(part)
        axes[0].set_yticks(places, names)
        axes[0].set_ylim(len(names) - 0.5, -0.5)
        axes[len(axes) // 2].set_xlabel(unit)
        figure.suptitle(title)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def induction_layers(
    counts: Mapping[str, LayerCurve], likelihoods: Mapping[str, LayerCurve], levels: Mapping[str, float], title: str
) -> Figure:
    """Induction heads per layer (Fig. 6 left) and the share of the query's label in what is read (Fig. 6 middle).

    levels: named horizontal lines of the right panel, such as the null of uniform attention. Bands: 95 % intervals.
    """
    with style():
        figure = new_figure(WIDTH, 2.3)
        left, right = figure.subplots(1, 2)
        for ax, curves in ((left, counts), (right, likelihoods)):
            for (name, curve), colour in zip(curves.items(), ("#257ab6", "#2c7d59", "#ff7f0e"), strict=False):
                x = np.arange(1, len(curve.mean) + 1)
                ax.plot(x, curve.mean, color=colour, marker="o", ms=3 if len(x) < 20 else 0, label=name)
                ax.fill_between(x, curve.low, curve.high, color=colour, alpha=0.25, lw=0)
            ax.set_xlabel("transformer block")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_ylim(bottom=0, top=1.25 * max(curve.high.max() for curve in curves.values()))
            ax.legend(loc="upper right")
        right.set_ylim(0, 1.05)
        right.legend(loc="lower left")
        for name, level in levels.items():
            right.axhline(level, color="0.35", lw=0.7, ls=":")
            right.text(0.02, level, name, fontsize=6, color="0.35", transform=right.get_yaxis_transform(), va="bottom")
        left.set_ylabel("heads on a prompt, mean")
        right.set_ylabel("share of the query's label")
        figure.suptitle(title)
    return figure


def head_effects(counts: NDArray[np.integer], n: int, moved: NDArray[np.floating], cut: Contrast, title: str) -> Figure:
    """Attention is not copying: counts [L, H] on n prompts, beside them what the heads move, and what that is worth.

    moved: mean length of the vector that a head adds at the label because of the forerunner; cut: the gold label's
    log-probability, in nats, with other cells of the labels cut (first) and with those to their forerunners cut
    (second). A dot: the 95 % interval of the difference excludes 0, for all heads together.
    """
    with style():
        figure = new_figure(WIDTH, 2.2)
        axes = figure.subplots(1, 3)
        bars = [_map(axes[0], counts, n, "correct")]
        bars.append(axes[1].imshow(moved, cmap="Greens", vmin=0, aspect="auto", interpolation="nearest"))
        largest = np.abs(cut.difference).max() or 1
        colours = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
        bars.append(axes[2].imshow(cut.difference, aspect="auto", interpolation="nearest", **colours))
        layers, heads = ((cut.low > 0) | (cut.high < 0)).nonzero()
        axes[2].plot(heads, layers, ".", color="black", ms=4)
        names = ("prompts above the threshold", "length of what is moved", "nats lost without its cells")
        for ax, bar, name in zip(axes, bars, names, strict=True):
            layer_axis(ax.yaxis, len(counts))
            ax.xaxis.set_ticks(np.arange(0, counts.shape[1], max(1, round(counts.shape[1] / 8))))
            ax.set(title=name, xlabel="head (from 0)")
            ax.spines[:].set_visible(True)
            figure.colorbar(bar, ax=ax, shrink=0.8).outline.set_visible(False)
        axes[0].set_ylabel("transformer block (from 1)")
        figure.suptitle(title)
    return figure
