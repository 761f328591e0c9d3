"""The figures of forerunner token heads (Cho et al. 2025, Fig. 5 middle, Fig. 22-25) and of their controls.

Maps have layers across and heads up, both from 0, as the data count; a head is written L3H5. `paper_plots` draws two
of them as the paper does, `causal_plots` what cuts cost.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from util.figures.forerunner_heads.measures import Contrast, Series, Verdict
from util.roles.rules import Role
from util.show.head_map import colour_bar, count_ticks, head_map, print_in_cells, short_number
from util.show.style import (
    BLUE,
    GREEN,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    ROLES,
    WIDTH,
    columns_of,
    headline,
    new_figure,
    points,
    style,
)
from util.stats.heads import Head, head_name, heads_where
from util.stats.intervals import Interval, Intervals

COLOURS = {Series.CORRECT: BLUE, Series.WRONG: ORANGE, Series.OTHER_WORD: GREEN, Series.UNTRAINED: GREY}
LINES = {Series.CORRECT: "-", Series.WRONG: "--", Series.OTHER_WORD: ":", Series.UNTRAINED: "-"}
MARKS = {
    Verdict.FORERUNNER: (ROLES[Role.FORERUNNER].colour, "o"),
    Verdict.PREVIOUS_TOKEN: (ROLES[Role.PREVIOUS_TOKEN].colour, "s"),
    Verdict.NEITHER: (GREY, "."),
}
SHARES = (0.25, 1.0)  # of prompts, which colours are for, as in the paper
FLOOR = 1e-4  # attention that is smaller is drawn as this much
SMALL = 6  # points of small print
WIDE = 4.5  # inches: from here on there is room for a colour bar or for numbers beside the panels


def bar_place(width: float) -> Literal["right", "bottom"]:
    """Where a figure of so many inches has room for a colour bar."""
    return "right" if width >= WIDE else "bottom"


def legend_below(figure: Figure, ax: Axes, width: float, wide: int) -> None:
    """The legend of the axes below the figure, in `wide` columns, or in two where the figure is narrow."""
    columns = wide if width >= WIDE else 2
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=SMALL)


def interval_text(interval: Interval) -> str:
    """An interval in few characters: 116 [115, 118], and 4.8 [4.7, 4.9] below ten."""
    digits = 0 if interval.high >= 10 else 1
    value, low, high = (f"{number:.{digits}f}" for number in interval)
    return f"{value} [{low}, {high}]"


# ------------------------------------------------------------------------------------------------ maps


class _Sheet(NamedTuple):
    """How many maps of L x H heads stand beside and above each other, and how large one of them is, in inches."""

    columns: int
    rows: int
    width: float
    height: float

    @classmethod
    def of(cls, maps: int, layers: int, heads: int, width: float) -> "_Sheet":
        room = width - (1.1 if width >= WIDE else 0.5)
        columns = columns_of(maps, room, min(2.1, max(1.0, 0.068 * layers)))
        return cls(
            columns, -(-maps // columns), room / columns, min(1.7 if width >= WIDE else 1.1, max(0.8, 0.1 * heads))
        )

    def digits(self, layers: int, heads: int) -> bool:
        """Whether numbers of three digits can be read in the cells."""
        return self.width / layers >= 0.24 and self.height / heads >= 0.1


def _count_bar(image: AxesImage, axes: list[Axes], width: float) -> None:
    percent = {"ticks": [0.25, 0.5, 0.75, 1], "format": PercentFormatter(1, symbol=" %")}
    place = {"location": bar_place(width), "aspect": 25}
    colour_bar(image, axes, label="prompts above threshold", extend="min", **percent, **place)


def count_maps(
    counts: Mapping[Series, NDArray[np.integer]],
    n: Mapping[Series, int],
    frequent: Mapping[Series, Interval],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Heat maps of forerunner-head counts [L, H], one per `Series` (Fig. 22-25).

    n: prompts of each condition; frequent: how many heads pass on most of them, with an interval. The colour scale runs
    from a quarter of the prompts to all of them, as in the paper. The counts are printed where the cells are large
    enough to read them.
    """
    layers, heads = next(iter(counts.values())).shape
    sheet = _Sheet.of(len(counts), layers, heads, width)
    with style():
        figure = new_figure(width, 0.95 + 0.5 * (width < WIDE) + sheet.rows * (sheet.height + 0.45))
        axes = figure.subplots(sheet.rows, sheet.columns, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(counts) :]:
            ax.set_axis_off()
        for ax, (name, values) in zip(axes.flat, counts.items(), strict=False):
            image = head_map(ax, values / n[name], SHARES, width=sheet.width)
            ax.label_outer()
            if sheet.digits(layers, heads):
                print_in_cells(image, {head: str(values[head]) for head in heads_where(values > 0)})
            value, low, high = frequent[name]
            ax.set_title(f"{name.label}\n{value} [{low}, {high}] heads", fontsize=7)
        _count_bar(image, list(axes.flat), width)
        headline(figure, finding, setting)
    return figure


def _layer_rows(
    ax: Axes, rows: Mapping[str, NDArray[np.floating]], most: float, width: float, totals: Sequence[str] = ()
) -> AxesImage:
    """A map with one row for each name: values [L] by layer; totals: what stands at the right of each row.

    most: the end of the colour scale; width: of the axes in inches. Values are printed where they fit.
    """
    values = np.array(list(rows.values()))
    layers = values.shape[1]
    image = ax.imshow(values, cmap="Blues", vmin=0, vmax=most, aspect="auto", interpolation="nearest")
    ax.set_xticks(count_ticks(layers, max(2, int(width / 0.24))))
    ax.set_yticks(range(len(rows)), list(rows))
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("layer")
    ax.spines[:].set_visible(True)
    for row, text in enumerate([*totals, "all layers"] if totals else []):
        ax.text(1.02, row, text, fontsize=SMALL, va="center", transform=ax.get_yaxis_transform())
    if width / layers >= 0.2:
        for (row, layer), value in np.ndenumerate(values):
            colour = "white" if value > 0.6 * most else "black"
            ax.text(layer, row, short_number(value), fontsize=SMALL, ha="center", va="center", color=colour)
    return image


def data_set_rows(
    shared: NDArray[np.integer],
    by_layer: Mapping[Series, Mapping[str, NDArray[np.floating]]],
    totals: Mapping[Series, Mapping[str, Interval]],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Whether data sets have the same heads: above, on how many of them each head [L, H] is one; below, the layers.

    by_layer: heads of each layer [L] above the threshold on a prompt, by condition and data set; totals: of all layers,
    with intervals, which stand at the right.
    """
    layers, heads = shared.shape
    sets = len(next(iter(by_layer.values())))
    most = max(float(values.max()) for rows in by_layer.values() for values in rows.values()) or 1.0
    inside = width - (2.8 if width >= WIDE else 1.9)  # inches that the cells have
    heights = [min(1.5, max(0.8, 0.09 * heads)), *(0.16 * sets + 0.15 for _ in by_layer)]
    with style():
        figure = new_figure(width, sum(heights) + 0.5 * len(heights) + 0.6 + 1.0 * (width < WIDE))
        above, *below = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        image = head_map(above, shared, (0, sets), width=inside)
        place = {"location": bar_place(width), "aspect": 12 if width >= WIDE else 25}
        ticks = np.arange(0, sets + 1, max(1, sets // 3))
        above.set_title("correct label: on how many data sets a head is frequent", fontsize=7)
        colour_bar(image, above, label="data sets", ticks=ticks, **place)
        for ax, (name, rows) in zip(below, by_layer.items(), strict=True):
            names = {dataset.replace("_", " "): values for dataset, values in rows.items()}
            image = _layer_rows(ax, names, most, inside, [interval_text(totals[name][one]) for one in rows])
            ax.set_title(f"{name.label}: heads on a prompt", fontsize=7)
            ax.label_outer()
        colour_bar(image, below, label="heads of a layer", **{**place, "aspect": 25})
        headline(figure, finding, setting)
    return figure


# ------------------------------------------------------------------------------------------------ curves


def curve(ax: Axes, x: NDArray[np.number] | Sequence[int], values: Intervals, **options: Any) -> None:
    """Draw a line [L] with the band of its intervals; points as well where they are few."""
    few = len(values.value) < 20
    ax.plot(x, values.value, marker="o" if few else None, ms=3, lw=1.2, **options)
    ax.fill_between(x, values.low, values.high, color=options["color"], alpha=0.25, lw=0)


def level(ax: Axes, value: float, text: str) -> None:
    """Draw a dotted line at a value, and name it at the right of the axes."""
    ax.axhline(value, color="0.35", lw=0.7, ls=":")
    ax.text(1.01, value, text, fontsize=SMALL, color="0.35", transform=ax.get_yaxis_transform(), va="center")


def layer_curves(
    heads: Mapping[Series, Intervals],
    largest: Mapping[Series, Intervals],
    on_a_prompt: Mapping[Series, Interval],
    threshold: float,
    uniform: float,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Forerunner heads per layer (above) and the largest copy magnitude of a layer (below) (Fig. 5 middle).

    One line per `Series`; bands are 95 % intervals. on_a_prompt: heads of all layers, for the legend. Magnitudes are
    logarithmic; dotted: the mean threshold c / n_t, and uniform attention 1 / n_t.
    """
    with style():
        figure = new_figure(width, 3.6 if width >= WIDE else 4.2)
        above, below = figure.subplots(2, 1, sharex=True)
        x = np.arange(len(next(iter(heads.values())).value))
        for name, values in heads.items():
            label = f"{name.label}: {interval_text(on_a_prompt[name])} heads"
            curve(above, x, values, color=COLOURS[name], label=label, linestyle=LINES[name])
        for name, values in largest.items():
            drawn = Intervals(*(np.maximum(part, FLOOR) for part in (values.value, values.low, values.high)))
            curve(below, x, drawn, color=COLOURS[name], linestyle=LINES[name])
        above.set_ylabel("heads\non a prompt")
        above.set_ylim(0, 1.1 * max(0.2, *(float(one.high.max()) for one in heads.values())))
        least = min(uniform, *(float(np.maximum(one.low, FLOOR).min()) for one in largest.values()))
        below.set(yscale="log", ylim=(least / 1.6, 1.4), xlabel="layer", ylabel="largest\ncopy magnitude")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        level(below, threshold, f"threshold {threshold:.3f}")
        level(below, uniform, f"uniform {uniform:.3f}")
        columns = 2 if width >= WIDE else 1
        figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=SMALL)
        headline(figure, finding, setting)
    return figure


def by_demonstrations(
    counts: Mapping[Series, Mapping[int, Interval]],
    fixed: Mapping[int, Interval],
    maps: Mapping[int, NDArray[np.integer]],
    n: int,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """How many heads exceed the threshold on a prompt, by the number of demonstrations k, and in which layers.

    counts[condition][k]: (mean, low, high) with c / n_t, which falls as prompts grow; fixed[k]: the same with the
    correct label and one threshold for all k; maps[k]: counts [L, H] of the correct label, of n prompts.
    """
    with style():
        rows = {f"k = {k}": one.sum(axis=1) / n for k, one in maps.items()}
        heights = (1.5, 0.17 * len(rows) + 0.15)
        figure = new_figure(width, sum(heights) + 1.6 + 0.6 * (width < WIDE))
        ax, below = figure.subplots(2, 1, height_ratios=heights)
        shift = {name: 0.08 * place for place, name in enumerate([*counts, "fixed"])}
        for name, values in counts.items():
            x, label = np.array(list(values)) + shift[name], f"{name.label}, c / n_t"
            form = {"fmt": "o", "ls": LINES[name], "color": COLOURS[name]}
            points(ax, x, values.values(), label=label, capsize=1.5, **form)
        x, label = np.array(list(fixed)) + shift["fixed"], "correct label, one threshold"
        points(ax, x, fixed.values(), fmt="s-.", color=LIGHT_BLUE, label=label, capsize=1.5)
        top = 1.1 * max(high for values in [*counts.values(), fixed] for _, _, high in values.values())
        ax.set(xlabel="demonstrations k", ylabel="heads above\nthreshold on a prompt", ylim=(0, top or 1))
        ax.set_xticks(list(maps))
        most = max(float(values.max()) for values in rows.values()) or 1.0
        image = _layer_rows(below, rows, most, width - (1.5 if width >= WIDE else 0.8))
        below.set_title("correct label, c / n_t: heads of each layer on a prompt", fontsize=7)
        colour_bar(image, below, label="heads", location=bar_place(width), aspect=12 if width >= WIDE else 25)
        legend_below(figure, ax, width, 2)
        headline(figure, finding, setting)
    return figure


# ------------------------------------------------------------------------------------------------ specificity


class Scatter(NamedTuple):
    """Heads by what they read: the contrast of the label with other tokens, and the verdict on each head [L, H]."""

    found: Contrast
    verdicts: NDArray[np.str_]


def specificity(
    heads: Scatter,
    planted: Scatter,
    roles: Mapping[Head, str],
    strongest: Sequence[Head],
    against: Mapping[str, Contrast],
    threshold: float,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Left, each head's attention to the previous token at the query's label against that at other tokens.

    Both are logarithmic; what is smaller than FLOOR stands at it. On the diagonal a head attends to the previous token
    wherever it is; above it, more so before a label; dotted: the mean threshold. Large, named: planted heads with their
    roles, coloured by the verdict on them. Ringed: the `strongest` heads, which stand on the right by name: how much
    more of their attention the forerunner has, by what that is compared with; 95 % intervals, for all heads together.
    """
    wide = width >= WIDE
    with style():
        figure = new_figure(width, 3.4 if wide else 5.6)
        left, right = figure.subplots(1, 2) if wide else figure.subplots(2, 1, height_ratios=(1.5, 1))
        _scatter(left, heads, planted, roles, threshold)
        x, y = (
            np.maximum([part[head] for head in strongest], FLOOR) for part in (heads.found.second, heads.found.first)
        )
        left.plot(x, y, "o", ms=6.5, mfc="none", mec="black", mew=0.7)
        _differences(right, strongest, against)
        lines = [line for ax in (left, right) for line in zip(*ax.get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*lines, strict=True), loc="outside lower center", ncols=2, fontsize=SMALL)
        headline(figure, finding, setting)
    return figure


def _scatter(ax: Axes, heads: Scatter, planted: Scatter, roles: Mapping[Head, str], threshold: float) -> None:
    ax.plot([FLOOR, 1], [FLOOR, 1], color="0.7", lw=0.8, zorder=0)
    x, y = np.maximum(heads.found.second, FLOOR), np.maximum(heads.found.first, FLOOR)
    for verdict, (colour, marker) in MARKS.items():
        chosen = heads.verdicts == verdict
        size = 3 if verdict == Verdict.NEITHER else 3.5
        ax.plot(x[chosen], y[chosen], marker, color=colour, ms=size, mew=0, alpha=0.8, label=verdict)
    for head, role in roles.items():
        at = max(planted.found.second[head], FLOOR), max(planted.found.first[head], FLOOR)
        colour, marker = MARKS[Verdict(planted.verdicts[head])]
        ax.plot(
            *at, "o" if marker == "." else marker, color=colour, ms=7, mec="black", mew=0.7, zorder=4, clip_on=False
        )
        right = at[0] > 0.01  # of the middle
        ax.annotate(
            f"planted: {role}",
            at,
            (4 if right else -4, 5),
            textcoords="offset points",
            fontsize=SMALL,
            ha="right" if right else "left",
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )
    ax.axhline(threshold, color="0.35", lw=0.7, ls=":")
    outline = [withStroke(linewidth=1.5, foreground="white")]
    said: dict[str, Any] = {"fontsize": SMALL, "color": "0.35", "va": "bottom", "path_effects": outline}
    ax.text(0.01, threshold, "threshold", transform=ax.get_yaxis_transform(), **said)
    ax.set(xscale="log", yscale="log", xlim=(0.6 * FLOOR, 1.9), ylim=(0.6 * FLOOR, 4))
    ax.set_title("attention to the previous token")
    ax.set(xlabel=r"at other tokens: mean $A[t,\,t-1]$", ylabel=r"at the label: mean $A[y_q,\,s_q]$")


def _differences(ax: Axes, strongest: Sequence[Head], against: Mapping[str, Contrast]) -> None:
    """The differences of some heads, a row for each, with intervals; a colour for what the label is compared with."""
    rows = np.arange(len(strongest))
    ax.axvline(0, color="0.7", lw=0.8, zorder=0)
    for place, (name, contrast) in enumerate(against.items()):
        colour = (BLUE, ORANGE, GREEN)[place]
        value, low, high = (
            np.array([part[head] for head in strongest]) for part in (contrast.difference, contrast.low, contrast.high)
        )
        bars = np.abs([low - value, high - value]).reshape(2, -1)
        ax.errorbar(value, rows + 0.2 * (place - 1), xerr=bars, fmt="o", ms=3, lw=0.9, color=colour, label=name)
    ax.set_yticks(rows, [head_name(head) for head in strongest])
    ax.set_ylim(max(len(strongest), 1) - 0.4, -0.6)
    ax.set_title("ringed heads: how much more" if strongest else "no head is confirmed")
    ax.set_xlabel("difference of attention at the label")
