"""The figures of head patching in indirect object identification (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from util.figures.ioi_patching.measures import DIRECT, THROUGH_MLPS, carriers
from util.show.head_map import colour_bar, colour_limit, count_ticks, head_map, print_in_cells, short_number
from util.show.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    WIDTH,
    columns_of,
    headline,
    headline_height,
    legend_below,
    new_figure,
    points,
    style,
)
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval, Intervals, mean_interval

Floats = NDArray[np.floating]
Edge = tuple[int, int]  # the places of sender and receiver

COLOURS = (BLUE, ORANGE)  # the answer of the base, the other name
NAMED = 5  # heads named in panels of dots
PRINTED = 12  # cells of a map whose value is printed
RANKED = 12  # heads shown with intervals
CHANNEL_COLOURS = (GREEN, ORANGE, PURPLE)  # query, key, value
CELL = (10.5, 6.5)  # points: the width and height of a cell in which a value can be read
FRAME = (0.85, 0.5)  # inches that a map's colour bar and labels take of its width and height
HALO = [withStroke(linewidth=1.5, foreground="white")]
NAMED_PATH = 34  # points that the name of a path needs, in two lines
HALF_WIDE = 5  # layers numbered below a panel of half a column's width
NAME = 6  # points: the names of heads in panels


def _figure(width: float, panels: float, finding: str | None, setting: str) -> Figure:
    """An empty figure whose panels are so many inches high, with room for its headline."""
    return new_figure(width, panels + headline_height(finding, setting, width))


# ------------------------------------------------------------------------------------------------ names of points


class Names:
    """The names that panels of a figure want beside their points; they are written once the panels have their places.

    A name is put where it is on no other name, inside of its panel, and on as few other points as can be; a line leads
    to it where that is not beside its point.
    """

    def __init__(self) -> None:
        self.wanted: list[tuple[Axes, dict[str, tuple[float, float]], Floats, Mapping[str, str]]] = []

    def add(
        self,
        ax: Axes,
        named: Mapping[str, tuple[float, float]],
        others: Floats,
        colours: Mapping[str, str] | None = None,
    ) -> None:
        """named: points (x, y) by name. others [P, 2]: all points of the panel. colours: of names, if not black."""
        self.wanted.append((ax, dict(named), others, colours or {}))

    def write(self, figure: Figure) -> None:
        """Write them all, behind the headline."""
        figure.draw_without_rendering()  # gives panels their places
        to_points = 72 / figure.dpi
        for ax, named, others, colours in self.wanted:
            box = np.array(ax.get_window_extent().get_points()) * to_points
            dots = ax.transData.transform(others) * to_points
            taken: list[Floats] = []
            for name, place in sorted(named.items(), key=lambda item: item[1][1]):
                at = ax.transData.transform(place) * to_points
                offset = _room(at, name, box, dots, taken)
                if offset is None:
                    continue
                ax.annotate(
                    name, place, tuple(offset), textcoords="offset points", fontsize=NAME, ha="center", va="center",
                    path_effects=HALO, annotation_clip=False, zorder=6, color=colours.get(name, "black"),
                    arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkA": 0, "shrinkB": 1},
                ).set_in_layout(False)  # fmt: skip


def _room(at: Floats, name: str, box: Floats, dots: Floats, taken: list[Floats]) -> Floats | None:
    """How far the middle of a name is from its point (x, y), in points; None where there is no room at all.

    box [2, 2]: the corners of the panel. taken: the corners [2, 2] of names that are written; this one joins them.
    """
    half = np.array([0.31 * NAME * len(name) + 1, 0.62 * NAME])
    best, least = None, np.inf
    ways = [np.array(way) for way in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))]
    for distance, way in product((3.0, 9.0, 16.0, 26.0, 38.0), ways):
        offset = way * (half + distance)
        corners = np.array([at + offset - half, at + offset + half])
        inside = (corners[0] >= box[0]).all() and (corners[1] <= box[1]).all()
        if not inside or any((corners[0] < other[1]).all() and (other[0] < corners[1]).all() for other in taken):
            continue
        covered = ((dots > corners[0] - 1) & (dots < corners[1] + 1)).all(axis=1).sum()
        cost = 4 * covered + distance + 2 * abs(way[1])
        if cost < least:
            best, least = (offset, corners), cost
    if best is None:
        return None
    taken.append(best[1])
    return best[0]


# ------------------------------------------------------------------------------------------------ one pair


def predictions(
    log_softmax: Floats,
    answers: Sequence[int],
    names: Sequence[str],
    texts: Sequence[str],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Returns P1: the log-probabilities [2, V] after both prompts, the two names marked, and one against the other."""
    with style():
        columns = columns_of(3, width, 1.5)
        rows = -(-3 // columns)
        figure = _figure(width, 1.75 * rows, finding, setting)
        grid = figure.add_gridspec(rows, columns)
        axes = [figure.add_subplot(grid[divmod(place, columns)]) for place in range(3)]
        low, high = float(log_softmax.min()), float(log_softmax.max())
        edge = 0.08 * (high - low)
        written = Names()
        tokens = np.arange(log_softmax.shape[1], dtype=float)
        panels = ((tokens, log_softmax[0]), (tokens, log_softmax[1]), (log_softmax[1], log_softmax[0]))
        for ax, (x, y) in zip(axes, panels, strict=True):
            ax.plot(x, y, ".", color="0.45", alpha=0.2, ms=2, rasterized=True)
            ax.set_ylim(low - edge, high + 2.5 * edge)  # names stand above the points
            named = {name: (float(x[token]), float(y[token])) for name, token in zip(names, answers, strict=True)}
            for (name, (across, up)), colour, marker in zip(named.items(), COLOURS, "os", strict=True):
                ax.plot(across, up, marker, color=colour, ms=4, label=name)
            written.add(ax, named, np.stack([x, y], axis=1), dict(zip(names, COLOURS, strict=True)))
        for ax, letter, text in zip(axes, "AB", texts, strict=False):
            ax.set_title(f"{letter}) ...{text[-21:].strip()}", fontsize=6.5)
            ax.set_xlabel("token's number")
        axes[0].set_ylabel("log-probability")
        axes[2].plot([low, high], [low, high], color="0.8", lw=0.8, zorder=0)
        axes[2].set(xlabel="after the source", ylabel="after the base")
        axes[2].set_title("C) both, log-probabilities", fontsize=6.5)
        headline(figure, finding, setting)
        written.write(figure)
    return figure


def _map(ax: Axes, effects: Floats, size: tuple[float, float], label: str) -> None:
    """A map of effects [L, H], the values of its strongest heads printed where there is room.

    size: of the panel in inches, with its labels and its bar. label: their unit.
    """
    room = (size[0] - FRAME[0], size[1] - FRAME[1])
    image = head_map(ax, effects, label=label, width=room[0])
    if all(72 * inches / count >= least for inches, count, least in zip(room, effects.shape, CELL, strict=True)):
        print_in_cells(image, {head: short_number(effects[head]) for head in _strongest(effects, PRINTED)})


def _by_layer(ax: Axes, effects: Floats, unit: str, written: Names, most: int) -> None:
    """A dot for every head, the strongest named, and the mean of each layer's heads. most: layers with a number."""
    x = np.arange(len(effects))
    across = np.repeat(x, effects.shape[1])
    ax.plot(across, effects.ravel(), "o", color=BLUE, ms=2.5, alpha=0.5, mew=0)
    ax.plot(x, effects.mean(axis=1), "_", color="black", ms=6, mew=1.2)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.margins(x=0.06, y=0.12)
    ax.set_xticks(count_ticks(len(effects), most))
    ax.set(xlabel="layer", ylabel=unit, title="B) by layer; dash: mean")
    named = {head_name(head): (float(head[0]), float(effects[head])) for head in _strongest(effects, NAMED)}
    written.add(ax, named, np.stack([across, effects.ravel()], axis=1))


def _strongest(effects: Floats, count: int) -> list[Head]:
    """The strongest heads of a map, at most so many: none below a twentieth of the largest effect."""
    strongest = top(np.abs(effects), min(count, effects.size))
    return [head for head in strongest if abs(effects[head]) >= 0.05 * colour_limit(effects)]


def _wide(layers: int, width: float, share: float) -> bool:
    """Whether a map takes the whole width of a figure: in that share of it, its cells have no room for values."""
    return width < WIDTH or 72 * (share * width - FRAME[0]) / layers < CELL[0]


def permutation(effects: Floats, norms: Floats, finding: str | None, setting: str, width: float = WIDTH) -> Figure:
    """Returns P2: the change of the logit difference [L, H] by shuffling one head; by layer; and by its norm [L, H]."""
    with style():
        wide, written = _wide(len(effects), width, 0.4), Names()
        figure = _figure(width, 3.5 if wide else 1.9, finding, setting)
        axes = figure.subplot_mosaic("AA;BC" if wide else "ABC", width_ratios=(1, 1) if wide else (1.35, 1, 1))
        _map(axes["A"], effects, (width, 1.75) if wide else (0.4 * width, 1.9), "logits")
        axes["A"].set_title("A) shuffled - base")
        _by_layer(axes["B"], effects, "change, logits", written, HALF_WIDE)
        ax = axes["C"]
        ax.plot(norms.ravel(), effects.ravel(), "o", color=BLUE, ms=2.5, alpha=0.5, mew=0)
        named = {head_name(h): (float(norms[h]), float(effects[h])) for h in _strongest(effects, NAMED)}
        written.add(ax, named, np.stack([norms.ravel(), effects.ravel()], axis=1))
        ax.axhline(0, color="0.8", lw=0.7, zorder=0)
        ax.margins(x=0.08, y=0.12)
        ax.set(xlabel="norm of z", ylabel="change, logits", title="C) by norm")
        headline(figure, finding, setting)
        written.write(figure)
    return figure


def activations(
    z: Floats,
    layer: int,
    tokens: Sequence[str],
    finding: str | None,
    setting: str,
    bounds: tuple[float, float] = (2.5, 97.5),
    width: float = WIDTH,
) -> Figure:
    """Returns P3: the head outputs [L, T, H, dv] of one layer, token by token; mean norms of all layers.

    bounds: the percentiles between which colours lie.
    """
    with style():
        figure = _figure(width, 3.5, finding, setting)
        above, below = figure.subplots(2, 1, sharex=True)
        _strip(above, z[layer], bounds)
        above.set_title(f"A) layer {layer}: the heads of every token, side by side")
        lengths = np.linalg.norm(z, axis=3).mean(axis=2)
        low, high = np.percentile(lengths, bounds)
        image = below.imshow(lengths, aspect="auto", vmin=low, vmax=high, interpolation="nearest")
        below.set_xticks(np.arange(len(tokens)), [quoted(token) for token in tokens], rotation=90)
        below.set_yticks(count_ticks(len(lengths), 8))
        below.set(ylabel="layer", title="B) all layers: norm of z, mean of the layer's heads")
        figure.colorbar(image, ax=below, pad=0.01, extend="both", label="norm")
        below.spines[:].set_visible(True)
        headline(figure, finding, setting)
    return figure


def _strip(ax: Axes, z: Floats, bounds: tuple[float, float]) -> None:
    """The outputs of all heads [T, H, dv] at every token, side by side, on one scale of colours."""
    strip = z.reshape(len(z) * z.shape[1], -1).T  # [dv, T H]
    low, high = np.percentile(strip, bounds)
    around = (-0.5, len(z) - 0.5, -0.5, len(strip) - 0.5)
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "origin": "lower"}
    image = ax.imshow(strip, extent=around, cmap="plasma", vmin=low, vmax=high, **options)
    for edge in range(1, len(z)):
        ax.axvline(edge - 0.5, color="white", lw=1)
    ax.tick_params(labelbottom=False)
    ax.set(ylabel="dimension")
    ax.spines[:].set_visible(True)
    colour_bar(image, ax, pad=0.01, extend="both", label="output z")


def quoted(token: str) -> str:
    """A token as text that matplotlib writes as it is."""
    return f'"{token}"'.replace("\n", "\\n").replace("$", r"\$")


def token_differences(
    difference: Floats,
    ratio: Floats,
    step: int,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Returns P4: the difference [L, H, dv] of two tokens' head outputs in every `step`-th layer; their ratio [L].

    The panels of layers have one scale of colours, which reaches to the 99th percentile of what is shown.
    """
    with style():
        shown = range(0, len(difference), step)
        columns = columns_of(len(shown), width - 0.8, 0.68)
        rows = -(-len(shown) // columns)
        high = 0.3 + (0.95 * rows if rows > 1 else 1.25)
        figure = _figure(width, high + 1.6, finding, setting)
        grid = figure.add_gridspec(2, 1, height_ratios=(high, 1.6))
        panels = grid[0].subgridspec(rows, columns)
        axes = [figure.add_subplot(panels[divmod(place, columns)]) for place in range(len(shown))]
        limit = float(np.percentile(np.abs(difference[list(shown)]), 99)) or 1.0
        colours: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        for place, (ax, layer) in enumerate(zip(axes, shown, strict=True)):
            image = ax.imshow(difference[layer].T, aspect="auto", interpolation="nearest", origin="lower", **colours)
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"{'A) ' if place == 0 else ''}layer {layer}", fontsize=7, pad=2)
            ax.spines[:].set_visible(True)
        axes[0].set_ylabel("dimension", fontsize=7)
        axes[0].set_xlabel("head", fontsize=7)
        figure.colorbar(image, ax=axes, pad=0.01, extend="both", label="difference of z")
        ax = figure.add_subplot(grid[1])
        ax.plot(np.arange(len(ratio)), ratio, "h-", color=BLUE, markerfacecolor=(0.7, 0.9, 0.9), ms=5, lw=0.8)
        ax.margins(y=0.12)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=12))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if str(value)[0] in "25" else "")
        ax.set_xticks(count_ticks(len(ratio), 8))
        ax.set(xlabel="layer", ylabel="ratio", title="B) two heads that differ most / two that differ least")
        headline(figure, finding, setting)
    return figure


def patching(effects: Floats, finding: str | None, setting: str, width: float = WIDTH) -> Figure:
    """Returns P5: the change of the logit difference [L, H] when one head comes from the source; head by head."""
    with style():
        wide, written = _wide(len(effects), width, 0.5), Names()
        figure = _figure(width, 3.5 if wide else 1.9, finding, setting)
        axes = figure.subplot_mosaic("A;B" if wide else "AB")
        _map(axes["A"], effects, (width, 1.75) if wide else (width / 2, 1.9), "logits")
        _by_layer(axes["B"], effects, "change, logits", written, 8)
        axes["A"].set_title("A) patched - base")
        headline(figure, finding, setting)
        written.write(figure)
    return figure


# ------------------------------------------------------------------------------------------------ many pairs


def population(
    noised: Intervals,
    denoised: Floats,
    estimate: Floats,
    direct: Floats,
    strongest: Sequence[Head],
    measured: Intervals,
    untrained: Intervals | None,
    whole: float,
    roles: Mapping[Head, str],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Returns the figure of many pairs: the map, the strongest heads, both directions, the estimate, the direct part.

    noised, denoised, estimate, direct [L, H]: in shares of the whole effect; frames in the map mark heads whose
    interval, for all heads together, lies beyond a hundredth. strongest: heads that one half of the pairs chose;
    measured [L, H]: shares on the other half. untrained [L, H]: effects of the untrained twin's heads in logits, shown
    in shares of `whole`, the trained model's whole effect in logits. roles: published ones, by head.
    """
    with style():
        effects, written = noised.value, Names()
        wide = _wide(len(effects), width, 1 / 2)
        ranked = 1.75 if not roles else 2.6
        columns = columns_of(3, width, 1.5)
        dots = [1.75] * -(-3 // columns)
        heights = [1.75, ranked, *dots] if wide else [max(1.9, ranked), *dots]
        figure = _figure(width, sum(heights), finding, setting)
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        if wide:
            above = [figure.add_subplot(grid[0]), figure.add_subplot(grid[1])]
        else:
            halves = grid[0].subgridspec(1, 2)
            above = [figure.add_subplot(halves[place]) for place in range(2)]
        _map(above[0], effects, (width, 1.75) if wide else (width / 2, heights[0]), "share")
        for layer, head in heads_where(carriers(noised)):
            frame = Rectangle((layer - 0.5, head - 0.5), 1, 1, fill=False, edgecolor="black", lw=0.6, clip_on=False)
            above[0].add_patch(frame)
        above[0].set_title("A) patched from the source")
        _ranked(above[1], strongest, measured, untrained, whole, roles)
        first = len(heights) - len(dots)
        rows = [grid[first + row].subgridspec(1, columns) for row in range(len(dots))]
        both, approximate, told = (figure.add_subplot(rows[place // columns][place % columns]) for place in range(3))
        both.set(title="C) both directions", xlabel="restored by it alone", ylabel="lost without it")
        approximate.set(title="D) attribution", xlabel="exact", ylabel="first-order estimate")
        told.set(title="E) direct part", xlabel="exact", ylabel=DIRECT)
        named = _strongest(effects, NAMED)
        _against(both, denoised, effects, named, written)
        _against(approximate, effects, estimate, named, written)
        if np.isfinite(direct).all():
            _against(told, effects, direct, named, written)
        else:
            text = "not measured:\nlayers of this class\ncannot be taken apart"
            told.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, transform=told.transAxes)
            told.set_axis_off()
        headline(figure, finding, setting)
        written.write(figure)
    return figure


def _against(ax: Axes, x: Floats, y: Floats, named: Sequence[Head], written: Names) -> None:
    """A dot for every head of two maps [L, H], one against the other, on equal scales; some heads with their names."""
    low, high = float(min(x.min(), y.min(), 0)), float(max(x.max(), y.max(), 0))
    edge = 0.12 * (high - low) or 0.1
    ax.plot([low, high], [low, high], color="0.8", lw=0.8, zorder=0)
    ax.plot(x.ravel(), y.ravel(), "o", color=BLUE, ms=2.5, alpha=0.6, mew=0)
    ax.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge))
    ax.locator_params(nbins=4)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_fontsize(7)
    places = {head_name(head): (float(x[head]), float(y[head])) for head in named}
    written.add(ax, places, np.stack([x.ravel(), y.ravel()], axis=1))


def _ranked(
    ax: Axes,
    strongest: Sequence[Head],
    measured: Intervals,
    untrained: Intervals | None,
    whole: float,
    roles: Mapping[Head, str],
) -> None:
    """The strongest heads of one half with their intervals on the other, and those of the untrained twin."""
    x = np.arange(len(strongest))
    points(ax, x, [measured[head] for head in strongest], fmt="o", color=BLUE, label="trained")
    if untrained is not None:
        largest = top(np.abs(untrained.value), len(x))
        shares = np.array([untrained[head] for head in largest]) / whole  # whole may be negative
        points(ax, x + 0.25, shares, fmt="o", color=GREY, label="untrained twin")
    names = [f"{head_name(h)} {roles.get(h, '')}".strip() for h in strongest]
    ax.set_xticks(x, names, rotation=90, fontsize=NAME)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.set(ylabel="share", title="B) strongest heads, other half")
    ax.margins(y=0.1)
    if untrained is not None:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.22 * (high - low))  # the legend has a row of its own
        ax.legend(loc="upper right", ncols=2, handletextpad=0.1, columnspacing=0.8, borderaxespad=0)


def circuit(
    whole: Interval,
    faithfulness: Mapping[int, Interval],
    without: Mapping[int, Interval],
    random: Mapping[int, Sequence[float]],
    levels: Sequence[float],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Returns the figure of faithfulness: the share of the logit difference that some heads keep alone, by how many.

    whole: the mean logit difference of all heads. faithfulness: by size, the share that the strongest heads keep.
    without, random: by size, mean logit differences of all but these, and of random sets; of the latter the mean with
    its interval over sets, where there are two or more, behind a dot for each. levels: shares to mark.
    """
    with style():
        figure = _figure(width, 2.4, finding, setting)
        ax = figure.subplots()
        sizes = list(faithfulness)
        shares = {size: np.array(values) / whole.value for size, values in random.items()}
        x = [size for size, values in shares.items() for _ in values]
        ax.plot(x, np.concatenate([*shares.values(), []]), ".", color=GREY, ms=3, alpha=0.5)
        means = [
            mean_interval(values) if len(values) > 1 else Interval(*3 * [float(values[0])])
            for values in shares.values()
        ]
        options: dict[str, Any] = {"lw": 0.9, "zorder": 2}
        points(ax, np.array(list(shares)) * 1.06, means, fmt="^-", color=GREY, **options)
        rest = [Interval(*(number / whole.value for number in without[size])) for size in sizes]
        points(ax, np.array(sizes) / 1.06, rest, fmt="s-", color=RED)
        points(ax, sizes, faithfulness.values(), fmt="o-", color=BLUE)
        ax.axhspan(whole.low / whole.value, whole.high / whole.value, color="0.93", zorder=0)
        ax.axhline(1, color="0.6", lw=0.8, zorder=0)
        for level in levels:
            ax.axhline(level, color="0.8", lw=0.7, ls=":", zorder=0)
        ax.axhline(0, color="0.8", lw=0.7, zorder=0)
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        ax.margins(x=0.04)
        ax.set(xlabel="heads in the set", ylabel=f"faithfulness (1: {whole.value:.2f} logits)")
        ends = {"strongest alone": ("o", BLUE), "all but these": ("s", RED), "random, same layers": ("^", GREY)}
        legend_below(figure, [Line2D([], [], marker=m, color=c, lw=1, ms=3, label=n) for n, (m, c) in ends.items()])
        headline(figure, finding, setting)
    return figure


def paths(
    heads: Sequence[Head],
    edges: Intervals,
    split: Mapping[str, Intervals],
    channels: Mapping[Edge, str | None],
    direct: Intervals,
    whole: Intervals,
    strongest: Sequence[Edge],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Returns the figure of what K senders tell receivers, through which channel, and the output.

    All in shares of the whole effect. edges [K, K]: from sender (row) to receiver (column), NaN where there is none;
    split: by channel, the part through it alone. channels: by edge, the channel that carries most of it, or None.
    direct [K]: to the output, MLPs taking part. whole [K]: each head's whole effect. strongest: edges that are shown
    with intervals, and by channel.

    Printed in the map are edges whose interval, for all together, lies beyond a hundredth, with the channel's initial.
    """
    with style():
        names, rows = [head_name(head) for head in heads], max(len(heads), 5)
        narrow = width < WIDTH
        high = 1.15 + 0.2 * rows
        heights = [high, 0.5 + 0.15 * rows, 2.0] if narrow else [high, 2.0]
        figure = _figure(width, sum(heights) + (0.45 if narrow else 0.3), finding, setting)
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        if narrow:
            matrix, beside = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
        else:
            both = grid[0].subgridspec(1, 2, width_ratios=(3, 1))
            matrix = figure.add_subplot(both[0])
            beside = figure.add_subplot(both[1], sharey=matrix)
        _path_map(matrix, names, edges, channels, width - 0.6 if narrow else 0.7 * (width - 0.6))
        _beside(beside, names, direct, whole, named=narrow)
        _split_paths(figure.add_subplot(grid[-1]), names, edges, split, strongest, width)
        legend_below(figure, _path_key(split, named=bool(strongest)))
        headline(figure, finding, setting)
    return figure


def _path_map(
    ax: Axes, names: Sequence[str], edges: Intervals, channels: Mapping[Edge, str | None], width: float
) -> None:
    """The map of edges, so many inches wide; only receivers that somebody can tell anything have a column."""
    listening = [column for column in range(len(names)) if np.isfinite(edges.value[:, column]).any()]
    shown = edges.value[:, listening]
    limit = colour_limit(shown)
    ax.set_facecolor("0.9")
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    if 72 * width / max(len(listening), 1) >= CELL[0]:
        for row, column in np.argwhere(carriers(edges)[:, listening]):
            edge = (int(row), listening[column])
            value, channel = edges.value[edge], channels[edge]
            text = short_number(value) + (f"\n{channel[0]}" if channel else "")
            colour = "white" if abs(value) > 0.6 * limit else "black"
            ax.text(column, row, text, fontsize=5, ha="center", va="center", color=colour, linespacing=0.85)
    ax.set_xticks(range(len(listening)), [names[column] for column in listening], rotation=90, fontsize=NAME)
    ax.set_yticks(range(len(names)), names, fontsize=NAME)
    ax.set(xlabel="receiver", ylabel="sender", title="A) to heads, mostly by query, key or value")
    ax.spines[:].set_visible(True)
    colour_bar(image, ax, location="bottom", fraction=0.05, aspect=40, label="share of the whole effect")


def _beside(ax: Axes, names: Sequence[str], direct: Intervals, whole: Intervals, *, named: bool) -> None:
    """What each sender tells the output by itself and through MLPs, and its whole effect, in the rows of the map."""
    for part, colour, marker, shift in ((direct, BLUE, "o", -0.15), (whole, GREY, "s", 0.15)):
        y = np.arange(len(part.value)) + shift
        reach = np.abs([part.low - part.value, part.high - part.value])
        ax.errorbar(part.value, y, xerr=reach, fmt=marker, color=colour, ms=2.5, lw=0.8)
    ax.axvline(0, color="0.8", lw=0.7, zorder=0)
    if named:
        ax.set_yticks(range(len(names)), names, fontsize=NAME)
        ax.invert_yaxis()
    else:
        ax.tick_params(left=False, labelleft=False)
    ax.locator_params(axis="x", nbins=4)
    ax.set(title="B) to the output", xlabel="share of the effect")


def _path_key(split: Mapping[str, Intervals], *, named: bool) -> list[Line2D]:
    """What the dots of B and C are."""
    marks = [(f"B: path {THROUGH_MLPS}", "o", BLUE), ("B: whole effect of the head", "s", GREY)]
    if named:
        marks += [
            (f"C: {name}", m, c)
            for name, m, c in zip(("all three", *split), "sov^", ("black", *CHANNEL_COLOURS), strict=False)
        ]
    return [Line2D([], [], ls="", marker=marker, color=colour, ms=3, label=name) for name, marker, colour in marks]


def _split_paths(
    ax: Axes,
    names: Sequence[str],
    edges: Intervals,
    split: Mapping[str, Intervals],
    strongest: Sequence[Edge],
    width: float,
) -> None:
    """The strongest edges with their intervals, through all channels together and each alone, so many inches wide."""
    x = np.arange(len(strongest))
    for number, part in enumerate((edges, *split.values())):
        options: dict[str, Any] = {"fmt": "sov^"[number], "color": ("black", *CHANNEL_COLOURS)[number]}
        if strongest:
            points(ax, x + 0.18 * (number - 1.5), [part[edge] for edge in strongest], ms=2.5, lw=0.8, **options)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    flat = 72 * (width - FRAME[0]) >= NAMED_PATH * len(strongest)
    labels = [f"{names[row]}\nto {names[column]}" for row, column in strongest]
    ax.set_xticks(x, labels, fontsize=NAME, rotation=0 if flat else 90)
    ax.set_xlim(-0.6, max(len(strongest), 1) - 0.4)
    ax.set(ylabel="share of the effect", title="C) strongest paths, by channel")
