"""The figures of induction in the small: one head by hand, two layers by hand, and how training finds them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle
from numpy.typing import NDArray

from util.figures.style import WIDTH, new_figure, style

Floats = NDArray[np.floating]
EARLY, LATE, TEXT = "#c02d45", "#2c7d59", 6  # colours of layers 0 and 1 and of what they do; points of small print
VISIBLE = LinearSegmentedColormap.from_list("visible", mpl.colormaps["Greys"](np.linspace(0.4, 1, 64)))  # no white end


def _matrix(
    ax: Axes,
    values: Floats,
    title: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    aspect: Literal["equal", "auto"] = "equal",
) -> None:
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
    ax.set(title=title, xticks=[], yticks=[])
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        axis.set_ticks(np.arange(len(names)), list(names))
        axis.set_tick_params(length=0)
    ax.spines[:].set_visible(True)


def _numbers(ax: Axes, values: Floats, decimals: int = 2) -> None:
    """Writes every value that is not 0 into its cell."""
    for (row, column), value in np.ndenumerate(values):
        if value:
            colour = "white" if value > 0.6 else "black"
            text = f"{value:.{decimals}f}".rstrip("0").rstrip(".")
            ax.text(column, row, text, ha="center", va="center", fontsize=TEXT, color=colour)


def shifts(patterns: Mapping[str, Floats]) -> Figure:
    """Attention [T, T] by what was shifted, side by side; titles say how far back the last query reads."""
    with style():
        figure = new_figure(WIDTH, 1.75)
        axes = figure.subplots(1, len(patterns), sharey=True, squeeze=False)[0]
        for ax, (shifted, values) in zip(axes, patterns.items(), strict=True):
            offset = len(values) - 1 - int(values[-1].argmax())
            _matrix(ax, values, f"reads {offset} back\n({shifted})" if offset else f"reads itself\n({shifted})")
            ticks = np.arange(0, len(values), 2)
            ax.xaxis.set_ticks(ticks, list(map(str, ticks)))
            ax.set_xlabel("key position")
        axes[0].yaxis.set_ticks(ticks, list(map(str, ticks)))
        axes[0].set_ylabel("query position")
    return figure


def residual_stream(
    attention: Floats, parts: Mapping[str, Floats], tokens: Sequence[str], vocabulary: Sequence[str]
) -> Figure:
    """The weights of one head [T, T], and the stream [T, d] at each step, d named by the vocabulary.

    In the last step the largest entry of a row is framed, dashed where several are equal (to 1e-6).
    """
    with style():
        figure = new_figure(WIDTH, 1.65)
        axes = figure.subplots(1, 1 + len(parts))
        _matrix(axes[0], attention, "attention", tokens, tokens, "auto")
        _numbers(axes[0], attention)
        axes[0].set(xlabel="key", ylabel="query")
        for ax, (title, values) in zip(axes[1:], parts.items(), strict=True):
            _matrix(ax, values, title, tokens, vocabulary, "auto")
            _numbers(ax, values)
            ax.set_xlabel("dimension")
        largest = predictions(list(parts.values())[-1])
        for row, column in zip(*np.nonzero(largest), strict=True):
            dashes = "--" if largest[row].sum() > 1 else "-"
            frame: dict[str, Any] = {"fill": False, "edgecolor": EARLY, "linewidth": 1.4, "linestyle": dashes}
            axes[-1].add_patch(Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, **frame))
    return figure


def predictions(logits: Floats) -> NDArray[np.bool_]:
    """Which tokens are predicted, [T, V]: those of a row's largest logit, several where they are equal (to 1e-6)."""
    return logits >= logits.max(axis=1, keepdims=True) - 1e-6


def circuits(
    panels: Mapping[str, tuple[Floats, str, str]],
    slots: Sequence[str],
    tokens: Sequence[str],
    composed: tuple[str, str, str] | None = None,
) -> Figure:
    """Weight matrices [D, D] by title, each with its (down, across) labels; up to three in a row.

    A matrix over the residual stream has a block for each slot, one over tokens a row for each of them; others are
    over positions. composed: two titles and a slot; an arrow leads from that column of the one to that of the other.
    """
    with style():
        rows = -(-len(panels) // 3)
        figure = new_figure(WIDTH, 2.0 * rows)
        axes = figure.subplots(rows, 3, squeeze=False).ravel()
        for ax, (title, (values, down, across)) in zip(axes, panels.items(), strict=False):
            if len(values) == len(slots) * len(tokens):
                _matrix(ax, values, title)
                edges = np.arange(1, len(slots)) * len(tokens) - 0.5
                centres = (np.arange(len(slots)) + 0.5) * len(tokens) - 0.5
                for edge in edges:
                    ax.axhline(edge, color="0.7", lw=0.7)
                    ax.axvline(edge, color="0.7", lw=0.7)
                ax.set_xticks(centres, list(slots))
                ax.set_yticks(centres, list(slots), rotation=90, va="center")
            else:
                names = tokens if len(values) == len(tokens) else []
                _matrix(ax, values, title, names, names)
            ax.set(xlabel=across, ylabel=down)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        if composed is not None:
            start, end, slot = composed
            titles = list(panels)
            column = (list(slots).index(slot) + 0.5) * len(tokens) - 0.5
            rows_of_token, rows_below = len(tokens) / 2, len(slots) * len(tokens) - 0.8
            figure.add_artist(
                ConnectionPatch(
                    (column, rows_of_token),
                    (column, rows_below),
                    axes[titles.index(start)].transData,
                    axes[titles.index(end)].transData,
                    arrowstyle="-|>",
                    mutation_scale=9,
                    color=EARLY,
                    lw=1.2,
                    zorder=5,
                )
            )
    return figure


def patterns(panels: Mapping[str, Floats], length: int, least: float = 0.1) -> Figure:
    """Attention [T, T] by title, two in a row; every weight of at least `least` is a dot, lines part the copies."""
    with style():
        rows = -(-len(panels) // 2)
        figure = new_figure(WIDTH, 2.55 * rows)
        axes = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
        dots = None
        for ax, (title, values) in zip(axes.flat, panels.items(), strict=False):
            total = len(values)
            query, key = np.nonzero(values >= least)
            for edge in np.arange(total - length, 0, -length) - 0.5:
                ax.axhline(edge, color="0.85", lw=0.6, zorder=0)
                ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
            order = np.argsort(values[query, key])  # strong ones lie above weak ones
            query, key = query[order], key[order]
            dots = ax.scatter(key, query, 1.8, c=values[query, key], cmap=VISIBLE, vmin=least, vmax=1, linewidths=0)
            ax.set(title=title, xlim=(-1, total), ylim=(total, -1), aspect="equal")
            ax.spines[:].set_visible(True)
        for ax in axes[:, 0]:
            ax.set_ylabel("query position")
        for ax in axes[-1]:
            ax.set_xlabel("key position")
        assert dots is not None
        figure.colorbar(
            dots, ax=list(axes.flat), shrink=0.6 / rows**0.5, pad=0.02, label=f"attention, {least:g} or more"
        )
    return figure


def phase_change(
    runs: Sequence[Mapping[str, Any]], title: str, guesses: Mapping[str, float], level: float = 0.5, top: float = 6.0
) -> Figure:
    """Losses (above) and scores of heads (below) against the tokens read; a run is what `train` returns.

    Of the first run every head is drawn, of the others, thin, the best head of each score. guesses: losses that mark
    what guessing costs, by name. Losses above `top` are cut off.
    """
    losses = (("first_copy", "first copy", "0.5"), ("later_copies", "later copies", "#023858"))
    scores = (("prefix_matching", "prefix matching", LATE), ("previous_token", "previous token", EARLY))
    with style():
        figure = new_figure(WIDTH, 3.6)
        above, below = figure.subplots(2, 1, sharex=True)
        last = max(run["tokens"][-1] for run in runs) / 1e6
        for number, run in enumerate(runs):
            tokens = np.array(run["tokens"]) / 1e6
            line: dict[str, Any] = {"lw": 0.7, "alpha": 0.5} if number else {"lw": 1.6}
            for key, name, colour in losses:
                above.plot(tokens, run[key], color=colour, label=None if number else name, **line)
            for key, name, colour in scores:
                heads = np.array(run[key]).reshape(len(tokens), -1)
                best = int(heads[-1].argmax())
                below.plot(tokens, heads[:, best], color=colour, label=None if number else f"{name}, best head", **line)
                if number == 0:
                    below.plot(tokens, np.delete(heads, best, axis=1), ":", color=colour, lw=0.8)
        for name, loss in guesses.items():
            above.axhline(loss, color="0.6", lw=0.7, ls="--", zorder=0)
            above.annotate(name, (last, loss), (-2, 2), textcoords="offset points", fontsize=TEXT, ha="right")
        below.axhline(level, color="0.8", lw=0.7, zorder=0)
        above.set(ylabel="loss, nats per token", title=title, ylim=(0, top))
        below.set(xlabel="tokens read, millions", ylabel="score of a head", ylim=(-0.02, 1.02), xlim=(0, last))
        below.plot([], [], ":", color="0.4", lw=0.8, label="other heads of this run")
        for ax, place in ((above, "lower left"), (below, "center left")):
            if len(runs) > 1:
                ax.plot([], [], color="0.4", lw=0.7, alpha=0.5, label="the other seeds")
            ax.legend(loc=place, fontsize=TEXT)
    return figure
