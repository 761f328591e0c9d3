"""The figures of forerunner token heads (Cho et al. 2025) and of their controls.

Maps have layers across and heads up, both from 0, as the data count; a head is written L3H5.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from util.figures.forerunner_heads.cuts import EVERYWHERE, Part
from util.figures.forerunner_heads.measures import Contrast, Inducing, Reader, Series, Verdict
from util.figures.head_map import colour_bar, colour_limit, head_map, print_in_cells, short_number
from util.figures.style import WIDTH, new_figure, points, style
from util.stats.heads import Head, heads_where
from util.stats.intervals import Interval, Intervals

Table = Mapping[Part, Mapping[str, Interval]]  # by part of the layers and cut

COLOURS = {
    Series.CORRECT: "#023858",
    Series.WRONG: "#ff7f0e",
    Series.OTHER_WORD: "#2c7d59",
    Series.UNTRAINED: "#8a8a8a",
}
MARKS = {
    Verdict.FORERUNNER: ("#c02d45", "o"),
    Verdict.PREVIOUS_TOKEN: ("#257ab6", "s"),
    Verdict.NEITHER: ("#8a8a8a", "."),
}
READER_COLOURS = {Reader.BEST: "#2c7d59", Reader.MEAN: "#257ab6", Reader.SIMILARITY: "#ff7f0e"}  # as in the paper
INDUCTION_COLOURS = {Inducing.ANY: "#257ab6", Inducing.CORRECT: "#2c7d59"}
NOT_SIGNIFICANT = "0.88"
SHARES = (0.25, 1.0)  # of prompts, which colours are for, as in the paper
PANEL = 0.9  # inches: the width of one map of many side by side
FLOOR = 1e-4  # attention that is smaller is drawn as this much


# ------------------------------------------------------------------------------------------------ maps


class _Sheet(NamedTuple):
    """How many maps of L x H heads stand beside and above each other, and how large one of them is, in inches."""

    columns: int
    rows: int
    width: float
    height: float

    @classmethod
    def of(cls, maps: int, layers: int, heads: int) -> "_Sheet":
        columns = 1 if layers > 2 * heads else min(maps, 4)
        width = (WIDTH - 0.9) / columns
        return cls(columns, -(-maps // columns), width, min(1.5, max(0.75, 0.13 * heads)))

    def digits(self, layers: int, heads: int) -> bool:
        """Whether numbers of three digits can be read in the cells."""
        return self.width / layers >= 0.24 and self.height / heads >= 0.11


def _count_bar(image: AxesImage, axes: list[Axes], **options: Any) -> None:
    percent = {"ticks": [0.25, 0.5, 0.75, 1], "format": PercentFormatter(1, symbol=" %")}
    colour_bar(image, axes, label="prompts above threshold", extend="min", **percent, **options)


def count_maps(
    counts: Mapping[Series, NDArray[np.integer]],
    n: Mapping[Series, int],
    frequent: Mapping[Series, Interval],
    title: str,
) -> Figure:
    """Heat maps of forerunner-head counts [L, H], one per `Series` (Fig. 22-25).

    n: prompts of each condition; frequent: how many heads pass on most of them, with an interval. The colour scale runs
    from a quarter of the prompts to all of them, as in the paper. The counts are printed where the cells are large
    enough to read them.
    """
    layers, heads = next(iter(counts.values())).shape
    sheet = _Sheet.of(len(counts), layers, heads)
    with style():
        figure = new_figure(WIDTH, 0.75 + sheet.rows * (sheet.height + 0.35))
        axes = figure.subplots(sheet.rows, sheet.columns, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(counts) :]:
            ax.set_axis_off()
        for ax, (name, values) in zip(axes.flat, counts.items(), strict=False):
            image = head_map(ax, values / n[name], SHARES, width=sheet.width)
            ax.label_outer()
            if sheet.digits(layers, heads):
                print_in_cells(image, {head: str(values[head]) for head in heads_where(values > 0)})
            between = ": " if sheet.columns == 1 else "\n"
            ax.set_title(f"{name.label}{between}{frequent[name][0]} {list(frequent[name][1:])} heads", fontsize=7)
        _count_bar(image, list(axes.flat), shrink=0.9)
        figure.suptitle(title)
    return figure


def count_grid(grid: Mapping[str, Mapping[Series, NDArray[np.integer]]], n: Mapping[str, int], title: str) -> Figure:
    """Count maps by data set and condition: grid[data set][condition] is [L, H] (the layout of Fig. 22-25, transposed).

    n: prompts of each data set.
    """
    with style():
        conditions: Sequence[Series] = list(next(iter(grid.values())))
        figure = new_figure(WIDTH, 0.6 + 1.15 * len(conditions))
        axes = figure.subplots(len(conditions), len(grid), squeeze=False, sharex=True, sharey=True)
        for column, (dataset, maps) in enumerate(grid.items()):
            axes[0, column].set_title(dataset.replace("_", "\n", 1), fontsize=7)
            for row, name in enumerate(conditions):
                image = head_map(axes[row, column], maps[name] / n[dataset], SHARES, width=PANEL)
                axes[row, column].set_ylabel(f"{name.label}\nhead")
                axes[row, column].label_outer()
        _count_bar(image, list(axes.flat), shrink=0.9, pad=0.01)
        figure.suptitle(title)
    return figure


# ------------------------------------------------------------------------------------------------ curves


def _curve(ax: Axes, x: NDArray[np.number] | Sequence[int], curve: Intervals, **options: Any) -> None:
    few = len(curve.value) < 20
    ax.plot(x, curve.value, marker="o" if few else None, ms=3, lw=1.2, **options)
    ax.fill_between(x, curve.low, curve.high, color=options["color"], alpha=0.25, lw=0)


def _level(ax: Axes, value: float, text: str) -> None:
    ax.axhline(value, color="0.35", lw=0.7, ls=":")
    ax.text(1.01, value, text, fontsize=6, color="0.35", transform=ax.get_yaxis_transform(), va="center")


def layer_curves(
    heads: Mapping[Series, Intervals], largest: Mapping[Series, Intervals], threshold: float, uniform: float, title: str
) -> Figure:
    """Forerunner heads per layer (above) and the largest copy magnitude of a layer (below) (Fig. 5 middle).

    One line per `Series`; bands are 95 % intervals. Dotted: the mean threshold c / n_t, and
    uniform attention 1 / n_t.
    """
    with style():
        figure = new_figure(WIDTH, 3.2)
        above, below = figure.subplots(2, 1, sharex=True)
        layers = len(next(iter(heads.values())).value)
        x = np.arange(layers)
        for ax, curves in ((above, heads), (below, largest)):
            for name, curve in curves.items():
                style_of = "--" if name == Series.WRONG else ":" if name == Series.OTHER_WORD else "-"
                _curve(ax, x, curve, color=COLOURS[name], label=name.label, linestyle=style_of)
        above.set(ylabel="forerunner token\nheads of a prompt")
        above.set_ylim(0, 1.1 * max(0.2, *(float(curve.high.max()) for curve in heads.values())))
        below.set(ylim=(0, 1.05), xlabel="layer", ylabel="largest\ncopy magnitude")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        for level in (threshold, uniform):
            below.axhline(level, color="0.35", lw=0.7, ls=":")
        said = f"dotted: threshold $c / n_t$ = {threshold:.3f}, uniform {uniform:.3f}"
        below.text(0.99, 0.97, said, transform=below.transAxes, fontsize=6, color="0.35", ha="right", va="top")
        figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle(title)
    return figure


def by_demonstrations(
    counts: Mapping[Series, Mapping[int, Interval]],
    fixed: Mapping[int, Interval],
    maps: Mapping[int, NDArray[np.integer]],
    n: int,
    title: str,
) -> Figure:
    """How many heads exceed the threshold on a prompt, by the number of demonstrations k, and which ones.

    counts[condition][k]: (mean, low, high) with c / n_t, which falls as prompts grow; fixed[k]: the same with the
    correct label and one threshold for all k; maps[k]: counts [L, H] of the correct label, of n prompts.
    """
    with style():
        figure = new_figure(WIDTH, 3.6)
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.25, 1), squeeze=False)[:, 0]
        ax = upper.subplots()
        shift = {name: 0.08 * place for place, name in enumerate([*counts, "fixed"])}
        for name, values in counts.items():
            x, label = np.array(list(values)) + shift[name], f"{name.label}, c / n_t"
            points(ax, x, values.values(), fmt="o-", color=COLOURS[name], label=label, capsize=1.5)
        x, label = np.array(list(fixed)) + shift["fixed"], "correct label, one threshold"
        points(ax, x, fixed.values(), fmt="s:", color="black", label=label, capsize=1.5)
        top = 1.1 * max(high for values in [*counts.values(), fixed] for _, _, high in values.values())
        ax.set(xlabel="demonstrations k", ylabel="heads above threshold\non a prompt, mean", ylim=(0, top or 1))
        ax.set_xticks(list(maps))
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6)
        axes = lower.subplots(1, len(maps), squeeze=False, sharey=True)[0]
        for part, (k, one) in zip(axes, maps.items(), strict=True):
            image = head_map(part, one / n, SHARES, width=PANEL)
            part.set_title(f"k = {k}")
            part.label_outer()
        _count_bar(image, list(axes), pad=0.01)
        figure.suptitle(title)
    return figure


# ------------------------------------------------------------------------------------------------ specificity


class Panel(NamedTuple):
    """Heads by what they read; names: what is written beside which (layer, head)."""

    title: str
    found: Contrast
    verdicts: NDArray[np.str_]
    names: Mapping[Head, str]


def specificity(panels: Sequence[Panel], threshold: float, title: str) -> Figure:
    """Each head's attention to the previous token at the query's label against that at other tokens, both logarithmic.

    On the diagonal a head attends to the previous token wherever it is; above it, more so before a label; dotted: the
    mean threshold. Bars, of the named heads: 95 % interval of the difference, for all heads together. What is smaller
    than FLOOR stands at it. Names stand in a column on the left, in the order of their heads' heights.
    """
    with style():
        figure = new_figure(WIDTH, 3.7)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (name, found, verdicts, names) in zip(axes, panels, strict=True):
            x, y = np.maximum(found.second, FLOOR), np.maximum(found.first, FLOOR)
            ax.plot([FLOOR, 1], [FLOOR, 1], color="0.7", lw=0.8, zorder=0)
            for verdict, (colour, marker) in MARKS.items():
                chosen = verdicts == verdict
                size = 3 if verdict == Verdict.NEITHER else 3.5
                ax.plot(x[chosen], y[chosen], marker, color=colour, ms=size, mew=0, alpha=0.8, label=verdict)
            for place in names:
                low = np.maximum(found.second[place] + found.low[place], FLOOR)
                high = np.maximum(found.second[place] + found.high[place], FLOOR)
                ax.plot([x[place]] * 2, [low, high], color="black", lw=0.8)
            ax.axhline(threshold, color="0.35", lw=0.7, ls=":")
            limits = (0.7 * FLOOR, 1.5)
            ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=name)
            ax.set_xlabel(r"at other tokens: mean $A[t,\,t-1]$")
            _name_column(ax, {text: (x[place], y[place]) for place, text in names.items()}, limits)
        at = axes[0].get_yaxis_transform()
        axes[0].text(0.99, threshold, "threshold", transform=at, fontsize=6, color="0.35", ha="right", va="top")
        axes[0].set_ylabel(r"at the label: mean $A[y_q,\,s_q]$")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(title)
    return figure


def _name_column(ax: Axes, named: Mapping[str, tuple[float, float]], limits: tuple[float, float]) -> None:
    """Write the names one below the other at the left edge, a line from each to its point."""
    low, high = np.log(limits)
    gap, at = 0.055, 1.0
    for name, (x, y) in sorted(named.items(), key=lambda entry: -entry[1][1]):
        across, up = (np.log([x, y]) - low) / (high - low)
        at = min(at - gap, up)
        place = (across + 0.05, up) if across < 0.25 else (0.03, at)  # beside a point that stands in the column's way
        line = {"arrowstyle": "-", "lw": 0.4, "color": "0.5", "shrinkA": 0, "shrinkB": 1}
        ax.annotate(name, (x, y), place, textcoords="axes fraction", fontsize=6, va="center", arrowprops=line)


# ------------------------------------------------------------------------------------------------ what it is worth


def ablation_map(lost: Table, controls: Table, names: Mapping[str, str], title: str) -> Figure:
    """What each cut changes of the gold label's log-probability, by part of the layers: a map with its values.

    lost and controls: intervals by part of the layers and cut; beside a part that has controls stand as many random
    cells. A value in bold with an asterisk: the interval excludes 0; all others are grey. names: of the cuts.
    """
    with style():
        cuts = list(next(iter(lost.values())))
        columns = []
        for part, values in lost.items():
            columns.append((_part_name(part), values))
            if part in controls:
                columns.append(("random\ncells", controls[part]))
        figure = new_figure(WIDTH, 0.85 + 0.27 * len(cuts))
        ax = figure.subplots()
        table = np.array([[values.get(cut, (np.nan,) * 3) for _, values in columns] for cut in cuts])
        significant = (table[..., 1] > 0) | (table[..., 2] < 0)
        limit = colour_limit(table[..., 0][significant])
        shown = np.where(significant, table[..., 0], np.nan)
        ax.set_facecolor(NOT_SIGNIFICANT)
        image = ax.imshow(shown, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        for row, column in np.ndindex(*table.shape[:2]):
            value, mark = table[row, column, 0], significant[row, column]
            if np.isfinite(value):
                colour = "white" if mark and abs(value) > 0.6 * limit else "black" if mark else "0.35"
                text = f"{value:+.2f}{'*' if mark else ''}".replace("-0.00", "0.00").replace("+0.00", "0.00")
                weight = "bold" if mark else "normal"
                ax.text(column, row, text, ha="center", va="center", fontsize=6, color=colour, weight=weight)
        ax.set_xticks(range(len(columns)), [name for name, _ in columns])
        ax.set_yticks(range(len(cuts)), [_typeset(names[cut]) for cut in cuts])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=ax, pad=0.01, label="change, nats")
        bar.outline.set_visible(False)
        figure.suptitle(title)
    return figure


def _typeset(name: str) -> str:
    return "$" + name.replace("->", r"\to").replace("<=", r"\leq").replace(", ", r",\; ") + "$"


def _part_name(part: Part) -> str:
    return "all\nlayers" if part == EVERYWHERE else f"{part[0]:.0%} to\n{part[1]:.0%}"


def induction_layers(
    counts: Mapping[Inducing, Intervals],
    likelihoods: Mapping[Reader, Intervals],
    null: Intervals,
    levels: Mapping[str, float],
    title: str,
) -> Figure:
    """Induction heads per layer (Fig. 6 left) and the share of the query's label in what is read (Fig. 6 middle).

    counts, likelihoods: by `Inducing` and by `Reader`; null: what the best head has by chance; levels: named
    horizontal lines of the right panel, such as that of uniform attention. Bands: 95 % intervals.
    """
    with style():
        figure = new_figure(WIDTH, 2.6)
        left, right = figure.subplots(1, 2)
        x = np.arange(len(null.value))
        for which, curve in counts.items():
            _curve(left, x, curve, color=INDUCTION_COLOURS[which], label=which)
        for reader, curve in likelihoods.items():
            _curve(right, x, curve, color=READER_COLOURS[reader], label=reader)
        for ax in (left, right):
            ax.set_xlabel("layer")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.fill_between(x, null.low, null.high, color="0.6", alpha=0.6, lw=0)
        right.plot(x, null.value, color="0.45", lw=0.8, ls="--", label="best head, labels shuffled")
        left.set_ylim(0, 1.05 * max(0.1, *(float(curve.high.max()) for curve in counts.values())))
        right.set_ylim(0, 1.0)
        for name, level in levels.items():
            _level(right, level, name)
        left.set_ylabel("heads on a prompt, mean")
        right.set_ylabel("share of the query's label")
        for ax in (left, right):
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=1 + (ax is right), fontsize=6)
        figure.suptitle(title)
    return figure


def head_effects(counts: NDArray[np.integer], n: int, moved: NDArray[np.floating], cut: Contrast, title: str) -> Figure:
    """Attention is not copying: counts [L, H] on n prompts, below them what the heads move, and what that is worth.

    moved: mean length of the vector that a head adds at the label because of the forerunner; cut: the gold label's
    log-probability, in nats, with other cells of the labels cut (first) and with those to their forerunners cut
    (second); NaN where a head was not cut (white). Grey: the 95 % interval of the difference, for all cut heads
    together, holds 0. The values of the others are printed.
    """
    layers, heads = counts.shape
    sheet = _Sheet.of(3, layers, heads)
    with style():
        figure = new_figure(WIDTH, 0.55 + sheet.rows * (sheet.height + 0.35))
        axes = figure.subplots(sheet.rows, sheet.columns, squeeze=False, sharex=True, sharey=True).ravel()
        significant = (cut.low > 0) | (cut.high < 0)
        top = float(np.nanmax(moved)) if np.isfinite(moved).any() else 1.0
        tested = np.where(np.isfinite(cut.difference), 1.0, np.nan)
        lost = np.where(significant, cut.difference, np.nan)
        images = [
            head_map(axes[0], counts / n, SHARES, width=sheet.width),
            head_map(axes[1], moved, (0, top), colours="Greens", width=sheet.width),
        ]
        head_map(axes[2], tested, (0, 8), colours="Greys")
        images.append(head_map(axes[2], lost, width=sheet.width))
        titles = ("share of prompts above threshold", "length of what is moved", "nats lost without its cells")
        for ax, image, name in zip(axes, images, titles, strict=True):
            ax.set_title(name, fontsize=7)
            ax.label_outer()
            colour_bar(image, ax)
        print_in_cells(images[-1], {head: short_number(lost[head]) for head in heads_where(significant)})
        figure.suptitle(title)
    return figure
