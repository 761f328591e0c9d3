"""The figures of induction in the small: one head by hand, two layers by hand, and how training finds them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from util.plots import WIDTH, new_figure, style

Floats = NDArray[np.floating]
EARLY, LATE, TEXT = "#c02d45", "#2c7d59", 6  # colours of layers 0 and 1 and of what they do; points of small print


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


def attention_and_copy(attention: Floats, sequence: Floats, copied: Floats, tokens: Sequence[str]) -> Figure:
    """The weights of one head [T, T], the token vectors [T, d] it reads, and what it makes of them [T, d]."""
    with style():
        figure = new_figure(WIDTH * 0.85, 1.75)
        axes = figure.subplots(1, 3)
        for ax, values, title, across in (
            (axes[0], attention, "attention", "key"),
            (axes[1], sequence, "tokens", "dimension"),
            (axes[2], copied, "attention @ tokens", "dimension"),
        ):
            _matrix(ax, values, title, tokens, tokens if across == "key" else [])
            _numbers(ax, values)
            ax.set_xlabel(across)
        axes[0].set_ylabel("query")
    return figure


def shifts(patterns: Mapping[str, Floats]) -> Figure:
    """Attention [T, T] by what was shifted, side by side."""
    with style():
        figure = new_figure(WIDTH, 1.5)
        axes = figure.subplots(1, len(patterns), squeeze=False)[0]
        for ax, (title, values) in zip(axes, patterns.items(), strict=True):
            _matrix(ax, values, title)
            ax.set_xlabel("key")
        axes[0].set_ylabel("query")
    return figure


def residual_stream(
    parts: Mapping[str, Floats], predicted: NDArray[np.integer], tokens: Sequence[str], vocabulary: Sequence[str]
) -> Figure:
    """The stream [T, d] at each step, d named by the vocabulary, the predicted token [T] framed in the last one."""
    with style():
        figure = new_figure(WIDTH, 1.5)
        axes = figure.subplots(1, len(parts), squeeze=False)[0]
        for ax, (title, values) in zip(axes, parts.items(), strict=True):
            _matrix(ax, values, title, tokens, vocabulary, "auto")
            _numbers(ax, values, 8 if ax is axes[-1] else 2)
        frame: dict[str, Any] = {"fill": False, "edgecolor": EARLY, "linewidth": 1.4, "clip_on": False}
        for row, column in enumerate(predicted):
            axes[-1].add_patch(Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, **frame))
    return figure


def circuits(panels: Mapping[str, tuple[Floats, str, str]], slots: Sequence[str], tokens: Sequence[str]) -> Figure:
    """Weight matrices by title, each with its (down, across) labels; up to three in a row.

    A matrix over the residual stream has a part for each slot, one over tokens a row for each of them; others are
    over positions.
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
    return figure


def patterns(panels: Mapping[str, Floats], length: int, least: float = 0.1) -> Figure:
    """Attention [T, T] by title; every weight of at least `least` is a dot, lines part the copies of `length`."""
    with style():
        figure = new_figure(WIDTH, 2.75)
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        dots = None
        for ax, (title, values) in zip(axes, panels.items(), strict=True):
            total = len(values)
            query, key = np.nonzero(values >= least)
            for edge in np.arange(total - length, 0, -length) - 0.5:
                ax.axhline(edge, color="0.85", lw=0.6, zorder=0)
                ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
            dots = ax.scatter(key, query, 1.5, c=values[query, key], cmap="viridis_r", vmin=0, vmax=1, linewidths=0)
            ax.set(title=title, xlabel="key", xlim=(-1, total), ylim=(total, -1), aspect="equal")
            ax.spines[:].set_visible(True)
        axes[0].set_ylabel("query")
        assert dots is not None
        figure.colorbar(dots, ax=list(axes), shrink=0.8, pad=0.02, label="attention")
    return figure


def phase_change(runs: Sequence[Mapping[str, Any]], title: str, level: float = 0.5) -> Figure:
    """Losses (above) and scores of heads (below) against the tokens read; a run is what `train` returns.

    Of the first run every head is drawn, of the others, thin, the best head of each score.
    """
    losses = (("first_copy", "first copy", "0.5"), ("later_copies", "later copies", "#023858"))
    scores = (("prefix_matching", "prefix matching", LATE), ("previous_token", "previous token", EARLY))
    with style():
        figure = new_figure(WIDTH, 3.2)
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
        below.axhline(level, color="0.8", lw=0.7, zorder=0)
        above.set(ylabel="loss, nats per token", title=title)
        above.set_ylim(bottom=0)
        below.set(xlabel="tokens read, millions", ylabel="score of a head", ylim=(-0.02, 1.02), xlim=(0, last))
        for ax in (above, below):
            ax.legend(loc="upper left")
    return figure
