"""The figures of head patching in indirect object identification (Cohen, project 41; Wang et al. 2022)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from util.figures.head_map import colour_bar, colour_limit, count_ticks, head_map, print_in_cells, short_number
from util.figures.ioi_patching.measures import DIRECT, SHOWN, THROUGH_MLPS, carriers
from util.figures.style import BLUE, GREY, RED, WIDTH, new_figure, points, style
from util.stats.heads import Head, head_name, heads_where, top
from util.stats.intervals import Interval, Intervals

Floats = NDArray[np.floating]
COLOURS = ("#2c7d59", RED)  # the answer of the base, the other name
NAMED = 5  # heads named in panels of dots
PRINTED = 12  # cells of a map whose value is printed
READABLE = 36  # layers of a map in whose cells a value can be read
RANKED = 12  # heads shown with intervals
CHANNEL_COLOURS = ("#2c7d59", "#c98a00", "#7b3294")  # query, key, value
Edge = tuple[int, int]  # the places of sender and receiver


def predictions(log_softmax: Floats, answers: Sequence[int], names: Sequence[str], titles: Sequence[str]) -> Figure:
    """Returns P1: the log-probabilities [2, V] after both prompts, the two names marked, and one against the other."""
    with style():
        figure = new_figure(WIDTH, 1.9)
        axes = figure.subplots(1, 3, width_ratios=(2, 2, 1.4))
        for ax, values, title in zip(axes, log_softmax, titles, strict=False):
            ax.plot(values, ".", color="0.3", alpha=0.2, ms=2, rasterized=True)
            ax.set(xlabel="token of the vocabulary", title=f"...{title[-21:]}")
            for token, colour, marker in zip(answers, COLOURS, "os", strict=True):
                ax.plot(token, values[token], marker, color=colour, ms=5)
        lowest, highest = float(log_softmax.min()), float(log_softmax.max())
        edge = 0.05 * (highest - lowest)
        for ax in axes[:2]:  # one scale for both prompts
            ax.set_ylim(lowest - edge, highest + edge)
        axes[0].set_ylabel("log-probability")
        axes[2].plot(log_softmax[1], log_softmax[0], ".", color="0.3", alpha=0.2, ms=2, rasterized=True)
        for token, name, colour, marker in zip(answers, names, COLOURS, "os", strict=True):
            x, y = log_softmax[1, token], log_softmax[0, token]
            axes[2].plot(x, y, marker, color=colour, ms=5, label=name)
        axes[2].set(xlabel="after the source", ylabel="after the base", title="both")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


# ------------------------------------------------------------------------------------------------ shared panels


def _wide(layers: int) -> bool:
    """Whether a map of so many layers takes the whole width."""
    return layers > SHOWN


def _map(ax: Axes, effects: Floats, width: float, label: str) -> None:
    """A map of effects [L, H], the values of its strongest heads printed where there is room; label: their unit."""
    image = head_map(ax, effects, label=label, width=width)
    if len(effects) <= READABLE:
        print_in_cells(image, {head: short_number(effects[head]) for head in _strongest(effects, PRINTED)})
        cell = 72 * width / len(effects)  # points; a minus and two digits take twice their size, and are to fit in
        for text in ax.texts:
            text.set_fontsize(min(text.get_fontsize(), 0.38 * cell))


def _by_layer(ax: Axes, effects: Floats, unit: str) -> None:
    """A dot for every head, the strongest named, and the mean of the heads of every layer."""
    x = np.arange(len(effects))
    ax.plot(np.repeat(x, effects.shape[1]), effects.ravel(), "o", color=BLUE, ms=2.5, alpha=0.5, mew=0)
    ax.plot(x, effects.mean(axis=1), "_", color=RED, ms=6, mew=1.2)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.set_xticks(count_ticks(len(effects), 8))
    ax.set(xlabel="layer", ylabel=unit)
    _name(ax, {head: (head[0], float(effects[head])) for head in _strongest(effects, NAMED)})


def _strongest(effects: Floats, count: int) -> list[Head]:
    """The strongest heads of a map, at most so many: none below a twentieth of the largest effect."""
    strongest = top(np.abs(effects), min(count, effects.size))
    return [head for head in strongest if abs(effects[head]) >= 0.05 * colour_limit(effects)]


def _name(ax: Axes, named: Mapping[Head, tuple[float, float]], others: Floats | None = None) -> None:
    """Write the names of heads beside their points, none on another.

    A name is on the side where it covers fewer of the points others [P, 2], else on that of the panel's middle. A line
    leads from a point to its name where there was no room beside it.
    """
    low, high = ax.get_xlim()
    taken = list[tuple[float, float]]()
    width, height = 0.3 * (high - low), 0.085 * np.ptp(ax.get_ylim())

    def covered(x: float, y: float, to_the_left: bool) -> int:
        """How many points a name beside (x, y) covers; more than there are where it does not fit."""
        start, end = (x - width, x) if to_the_left else (x, x + width)
        if others is None or start < low or end > high:
            return 0 if others is None else len(others)
        beside = (others[:, 0] > start) & (others[:, 0] < end) & (np.abs(others[:, 1] - y) < height / 2)
        return int(beside.sum())

    for head, (x, y) in sorted(named.items(), key=lambda point: point[1][1]):
        middle = x > (low + high) / 2
        left = min((middle, not middle), key=lambda to_the_left: covered(x, y, to_the_left))
        place = y
        for at, below in taken:
            if abs(at - x) < width and place - below < height:
                place = below + height
        taken.append((x, place))
        if place > y:
            ax.plot([x, x], [y, place], color="0.6", lw=0.6, zorder=0)
        name = head_name(head)
        ax.text(
            x,
            place,
            f"{name} " if left else f" {name}",
            fontsize=6,
            va="center",
            ha="right" if left else "left",
        )


# ------------------------------------------------------------------------------------------------ one pair


def permutation(effects: Floats, norms: Floats, title: str) -> Figure:
    """Returns P2: the change of the logit difference [L, H] by shuffling one head; by layer; and by its norm [L, H]."""
    with style():
        wide = _wide(len(effects))
        figure = new_figure(WIDTH, 3.7 if wide else 2.1)
        axes = figure.subplot_mosaic("AA;BC" if wide else "ABC")
        _map(axes["A"], effects, 4.6 if wide else 1.2, "logits")
        axes["A"].set_title("A) shuffled - base")
        _by_layer(axes["B"], effects, "change, logits")
        axes["B"].set_title("B) by layer; red: mean")
        ax = axes["C"]
        ax.plot(norms.ravel(), effects.ravel(), "o", color=BLUE, ms=3, alpha=0.5, mew=0)
        ax.axhline(0, color="0.8", lw=0.7, zorder=0)
        ax.set(xlabel="norm of the outputs", ylabel="change, logits", title="C) by norm")
        _name(ax, {head: (float(norms[head]), float(effects[head])) for head in _strongest(effects, NAMED)})
        figure.suptitle(title)
    return figure


def activations(
    z: Floats, layer: int, tokens: Sequence[str], title: str, bounds: tuple[float, float] = (2.5, 97.5)
) -> Figure:
    """Returns P3: the head outputs [L, T, H, dv] of one layer, token by token; mean norms of all layers.

    bounds: the percentiles between which colours lie.
    """
    with style():
        figure = new_figure(WIDTH, 3.6)
        axes = figure.subplots(2, 1, sharex=True)
        count = len(tokens)
        strip = z[layer].reshape(count * z.shape[2], -1).T  # [dv, T H]
        low, high = np.percentile(strip, bounds)
        around = (-0.5, count - 0.5, -0.5, len(strip) - 0.5)
        options = {"aspect": "auto", "interpolation": "nearest", "origin": "lower"}
        image = axes[0].imshow(strip, extent=around, cmap="plasma", vmin=low, vmax=high, **options)
        for edge in range(1, count):
            axes[0].axvline(edge - 0.5, color="white", lw=1)
        axes[0].set(ylabel="dimension", title=f"A) layer {layer} (from 0): the heads of every token, side by side")
        figure.colorbar(image, ax=axes[0], pad=0.01, extend="both", label="output z")
        lengths = np.linalg.norm(z, axis=3).mean(axis=2)
        low, high = np.percentile(lengths, bounds)
        image = axes[1].imshow(lengths, aspect="auto", vmin=low, vmax=high, interpolation="nearest")
        axes[1].set_xticks(np.arange(count), [_shown(token) for token in tokens], rotation=45, ha="right")
        axes[1].set_yticks(count_ticks(len(lengths), 8))
        axes[1].set(ylabel="layer", title="B) all layers: norm of z, mean of the layer's heads")
        figure.colorbar(image, ax=axes[1], pad=0.01, extend="both", label="norm")
        for ax in axes:
            ax.spines[:].set_visible(True)
        figure.suptitle(title)
    return figure


def _shown(token: str) -> str:
    return f'"{token}"'.replace("\n", "\\n").replace("$", r"\$")


def token_differences(difference: Floats, ratio: Floats, title: str, step: int) -> Figure:
    """Returns P4: the difference [L, H, dv] of two tokens' head outputs in every `step`-th layer; their ratio [L]."""
    with style():
        shown = range(0, len(difference), step)
        figure = new_figure(WIDTH, 3.2)
        grid = figure.add_gridspec(2, 1, height_ratios=(1.15, 1))
        above, below = (figure.add_subfigure(grid[row]) for row in range(2))
        axes = above.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        limit = float(np.percentile(np.abs(difference[list(shown)]), 99)) or 1.0
        colours = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        for ax, layer in zip(axes, shown, strict=True):
            image = ax.imshow(difference[layer].T, aspect="auto", interpolation="nearest", origin="lower", **colours)
            ax.set(title=str(layer), xticks=[])
            ax.spines[:].set_visible(True)
        axes[0].set(ylabel="dimension")
        above.supxlabel("heads", fontsize=8)
        above.suptitle("A) difference of the outputs z, in layer")
        above.colorbar(image, ax=axes, pad=0.01, extend="both", label="difference")
        ax = below.subplots()
        ax.plot(np.arange(len(ratio)), ratio, "h-", color=BLUE, markerfacecolor=(0.7, 0.9, 0.9), ms=6, lw=0.8)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=12))
        ax.margins(y=0.12)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if str(value)[0] in "25" else "")
        ax.set_xticks(count_ticks(len(ratio), 8))
        ax.set(
            xlabel="layer", ylabel="selectivity ratio", title="B) two heads that differ most / two that differ least"
        )
        figure.suptitle(title)
    return figure


def patching(effects: Floats, whole: float, title: str) -> Figure:
    """Returns P5: the change of the logit difference [L, H] when one head comes from the source; head by head.

    whole: the change of all, from base to source.
    """
    with style():
        wide = _wide(len(effects))
        figure = new_figure(WIDTH, 3.7 if wide else 2.2)
        axes = figure.subplots(2, 1) if wide else figure.subplots(1, 2)
        _map(axes[0], effects, 4.6 if wide else 2.1, "logits")
        axes[0].set_title("A) patched - base")
        _by_layer(axes[1], effects, "change, logits")
        axes[1].set_title("B) by layer; red: mean")
        figure.suptitle(f"{title}; source - base: {whole:+.1f}")
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
    title: str,
    roles: Mapping[Head, str],
) -> Figure:
    """Returns the figure of many pairs: the map, the strongest heads, both directions, the estimate, the direct part.

    noised, denoised, estimate, direct [L, H]: in shares of the whole effect; frames in the map mark heads whose
    interval, for all heads together, lies beyond a hundredth. strongest: heads that one half of the pairs chose;
    measured [L, H]: shares on the other half. untrained [L, H]: effects of the untrained twin's heads in logits, shown
    in shares of `whole`, the trained model's whole effect in logits. roles: published ones, by head.
    """
    with style():
        effects = noised.value
        wide = _wide(len(effects))
        figure = new_figure(WIDTH, 5.6 if wide else 4.2)
        grid = figure.add_gridspec(2, 1, height_ratios=(2.1 if wide else 1.2, 1))
        rows = [figure.add_subfigure(grid[row]) for row in range(2)]
        above = rows[0].subplots(2, 1) if wide else rows[0].subplots(1, 2)
        _map(above[0], effects, 4.6 if wide else 2.0, "share")
        for layer, head in heads_where(carriers(noised)):
            frame = Rectangle((layer - 0.5, head - 0.5), 1, 1, fill=False, edgecolor="black", lw=0.6, clip_on=False)
            above[0].add_patch(frame)
        above[0].set_title("A) patched from the source")
        _ranked(above[1], strongest, measured, untrained, whole, roles)
        both, approximate, told = rows[1].subplots(1, 3)
        both.set(title="C) both directions", xlabel="restored by it alone", ylabel="lost without it")
        approximate.set(title="D) attribution", xlabel="exact", ylabel="first-order estimate")
        told.set(title="E) direct part", xlabel="exact", ylabel=DIRECT)
        named = _strongest(effects, NAMED)
        _against(both, denoised, effects, named)
        _against(approximate, effects, estimate, named)
        if np.isfinite(direct).all():
            _against(told, effects, direct, named)
        else:
            text = "not measured:\nlayers of this class\ncannot be taken apart"
            told.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, transform=told.transAxes)
            told.set_axis_off()
        figure.suptitle(title)
    return figure


def _against(ax: Axes, x: Floats, y: Floats, named: Sequence[Head]) -> None:
    """A dot for every head of two maps [L, H], one against the other, on equal scales; some heads with their names."""
    low, high = float(min(x.min(), y.min(), 0)), float(max(x.max(), y.max(), 0))
    edge = 0.08 * (high - low) or 0.1
    ax.plot([low, high], [low, high], color="0.8", lw=0.8, zorder=0)
    ax.plot(x.ravel(), y.ravel(), "o", color=BLUE, ms=2.5, alpha=0.6, mew=0)
    ax.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge))
    others = np.stack([x.ravel(), y.ravel()], axis=1)
    _name(ax, {head: (float(x[head]), float(y[head])) for head in named}, others)


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
        points(ax, x + 0.25, shares, fmt="o", color=GREY, label="untrained")
    names = [head_name(h) + (f"\n{roles[h]}" if h in roles else "") for h in strongest]
    ax.set_xticks(x, names, rotation=60 if not roles else 90, fontsize=6)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.set(ylabel="share", title="B) strongest heads, other half")
    if untrained is not None:
        ax.legend(loc="best")


def circuit(
    whole: Interval,
    faithfulness: Mapping[int, Interval],
    without: Mapping[int, Interval],
    random: Mapping[int, Sequence[float]],
    levels: Sequence[float],
    title: str,
) -> Figure:
    """Returns the figure of faithfulness: the share of the logit difference that some heads keep alone, by how many.

    whole: the mean logit difference of all heads. faithfulness: by size, the share that the strongest heads keep.
    without, random: by size, mean logit differences of all but these, and of random sets. levels: shares to mark.
    """
    with style():
        figure = new_figure(WIDTH, 2.5)
        ax = figure.subplots()
        sizes = list(faithfulness)
        points(ax, sizes, faithfulness.values(), fmt="o-", color=BLUE, label="strongest alone")
        rest = [Interval(*(number / whole.value for number in without[size])) for size in sizes]
        points(ax, sizes, rest, fmt="s-", color=RED, label="all but these")
        x = [size for size, values in random.items() for _ in values]
        ax.plot(x, [v / whole.value for values in random.values() for v in values], ".", color=GREY, ms=4)
        means = [np.mean(values) / whole.value for values in random.values()]
        ax.plot(list(random), means, "-", color=GREY, lw=0.9, label="random, same layers")
        ax.axhspan(whole.low / whole.value, whole.high / whole.value, color="0.9", zorder=0)
        ax.axhline(1, color="0.6", lw=0.8, zorder=0)
        ax.annotate(
            f"all heads: {whole.value:.2f} logits", (1, 1), (0, 2), textcoords="offset points", fontsize=7, color="0.4"
        )
        for level in levels:
            ax.axhline(level, color="0.8", lw=0.7, ls=":", zorder=0)
        ax.axhline(0, color="0.8", lw=0.7, zorder=0)
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        ax.set(xlabel="heads in the set", ylabel="faithfulness", title=title)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def paths(
    heads: Sequence[Head],
    edges: Intervals,
    split: Mapping[str, Intervals],
    channels: Mapping[Edge, str | None],
    direct: Intervals,
    whole: Intervals,
    strongest: Sequence[Edge],
    title: str,
) -> Figure:
    """Returns the figure of what K senders tell receivers, through which channel, and the output.

    All in shares of the whole effect. edges [K, K]: from sender (row) to receiver (column), NaN where there is none;
    split: by channel, the part through it alone. channels: by edge, the channel that carries most of it, or None.
    direct [K]: to the output, MLPs taking part. whole [K]: each head's whole effect. strongest: edges that are shown
    with intervals.

    Printed in the map are edges whose interval, for all together, lies beyond a hundredth, with the channel's initial.
    """
    with style():
        count, names = len(heads), [head_name(head) for head in heads]
        figure = new_figure(WIDTH, 1.1 + 0.2 * max(count, 5) + 1.9)
        grid = figure.add_gridspec(2, 1, height_ratios=(0.6 + 0.2 * max(count, 5), 1.9))
        rows = [figure.add_subfigure(grid[row]) for row in range(2)]
        axes = rows[0].subplots(1, 2, sharey=True, width_ratios=(3.4, 1))
        _path_map(axes[0], names, edges, channels)
        _beside(axes[1], direct, whole)
        _split_paths(rows[1].subplots(), names, edges, split, strongest)
        figure.suptitle(title)
    return figure


def _path_map(ax: Axes, names: Sequence[str], edges: Intervals, channels: Mapping[Edge, str | None]) -> None:
    """The map of edges; only receivers that somebody can tell anything have a column."""
    listening = [column for column in range(len(names)) if np.isfinite(edges.value[:, column]).any()]
    shown = edges.value[:, listening]
    limit = colour_limit(shown)
    ax.set_facecolor("0.9")
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for row, column in np.argwhere(carriers(edges)[:, listening]):
        edge = (int(row), listening[column])
        value, channel = edges.value[edge], channels[edge]
        text = short_number(value) + (f"\n{channel[0]}" if channel else "")
        colour = "white" if abs(value) > 0.6 * limit else "black"
        ax.text(column, row, text, fontsize=5, ha="center", va="center", color=colour, linespacing=0.85)
    ax.set_xticks(range(len(listening)), [names[column] for column in listening], rotation=90, fontsize=6)
    ax.set_yticks(range(len(names)), names, fontsize=6)
    ax.set(xlabel="receiver", ylabel="sender", title="A) to heads, mostly by query (q), key (k), value (v)")
    ax.spines[:].set_visible(True)
    colour_bar(image, ax, location="left", fraction=0.05)


def _beside(ax: Axes, direct: Intervals, whole: Intervals) -> None:
    """What each sender tells the output by itself and through MLPs, and its whole effect, in the rows of the map."""
    for part, colour, marker, label, shift in (
        (direct, BLUE, "o", THROUGH_MLPS, -0.15), (whole, GREY, "s", "in all", 0.15),
    ):  # fmt: skip
        y = np.arange(len(part.value)) + shift
        reach = np.abs([part.low - part.value, part.high - part.value])
        ax.errorbar(part.value, y, xerr=reach, fmt=marker, color=colour, ms=2.5, lw=0.8, label=label)
    ax.axvline(0, color="0.8", lw=0.7, zorder=0)
    ax.tick_params(left=False, labelleft=False)
    ax.set_title("B) to the output")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), handletextpad=0.1)


def _split_paths(
    ax: Axes, names: Sequence[str], edges: Intervals, split: Mapping[str, Intervals], strongest: Sequence[Edge]
) -> None:
    """The strongest edges with their intervals, through all channels together and through each alone."""
    x = np.arange(len(strongest))
    parts = {"all three": edges, **split}
    for number, (name, part) in enumerate(parts.items()):
        options = {"fmt": "sov^"[number], "color": ("black", *CHANNEL_COLOURS)[number], "ms": 2.5, "lw": 0.8}
        if strongest:
            points(ax, x + 0.18 * (number - 1.5), [part[edge] for edge in strongest], label=name, **options)
    ax.axhline(0, color="0.8", lw=0.7, zorder=0)
    ax.set_xticks(x, [f"{names[row]}\n{names[column]}" for row, column in strongest], fontsize=6)
    ax.set(ylabel="share", xlabel="sender, receiver", title="C) strongest paths, all three channels or one alone")
    if strongest:
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
