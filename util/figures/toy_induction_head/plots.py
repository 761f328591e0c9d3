"""The figures of induction in the small: one head by hand, two layers by hand, and how training finds them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Rectangle
from numpy.typing import NDArray

from util.figures.style import BLUE, GREY, ORANGE, ROLES, WIDTH, columns_of, headline, new_figure, style
from util.roles.rules import Role

Floats = NDArray[np.floating]
TEXT = 6  # points: small print
WIDE = 4.5  # inches: from here on there is room for names beside each other
VISIBLE = LinearSegmentedColormap.from_list("visible", mpl.colormaps["Blues"](np.linspace(0.45, 1, 64)))  # no white end


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


def shifts(patterns: Mapping[str, Floats], finding: str | None, setting: str, width: float = WIDTH) -> Figure:
    """Attention [T, T] by what was shifted; titles say how far back the last query reads."""
    columns = columns_of(len(patterns), width, 1.0)
    rows = -(-len(patterns) // columns)
    with style():
        figure = new_figure(width, 0.5 + 1.6 * rows)
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for ax in axes.flat[len(patterns) :]:
            ax.set_axis_off()
        for ax, (shifted, values) in zip(axes.flat, patterns.items(), strict=False):
            offset = reads_back(values)
            _matrix(ax, values, f"reads {offset} back\n({shifted})" if offset else f"reads itself\n({shifted})")
            ticks = np.arange(0, len(values), 2)
            ax.xaxis.set_ticks(ticks, list(map(str, ticks)))
            ax.yaxis.set_ticks(ticks, list(map(str, ticks)))
        figure.supxlabel("key position")
        figure.supylabel("query position")
        headline(figure, finding, setting)
    return figure


def reads_back(pattern: Floats) -> int:
    """How many tokens back the last query of a pattern [T, T] reads."""
    return len(pattern) - 1 - int(pattern[-1].argmax())


def residual_stream(
    attention: Floats,
    parts: Mapping[str, Floats],
    tokens: Sequence[str],
    vocabulary: Sequence[str],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """The weights of one head [T, T], and the stream [T, d] at each step, d named by the vocabulary.

    In the last step the largest entry of a row is framed, dashed where several are equal (to 1e-6).
    """
    panels = 1 + len(parts)
    columns = columns_of(panels, width, 1.2)
    rows = -(-panels // columns)
    with style():
        figure = new_figure(width, 0.6 + 1.5 * rows)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes[panels:]:
            ax.set_axis_off()
        _matrix(axes[0], attention, "attention", tokens, tokens, "auto")
        _numbers(axes[0], attention)
        axes[0].set(xlabel="key", ylabel="query")
        for ax, (title, values) in zip(axes[1:], parts.items(), strict=False):
            _matrix(ax, values, title, tokens, vocabulary, "auto")
            _numbers(ax, values)
            ax.set_xlabel("dimension")
        last = axes[panels - 1]
        largest = predictions(list(parts.values())[-1])
        for row, column in zip(*np.nonzero(largest), strict=True):
            dashes = "--" if largest[row].sum() > 1 else "-"
            frame: dict[str, Any] = {"fill": False, "edgecolor": ORANGE, "linewidth": 1.8, "linestyle": dashes}
            last.add_patch(Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, **frame))
        headline(figure, finding, setting)
    return figure


def predictions(logits: Floats) -> NDArray[np.bool_]:
    """Which tokens are predicted, [T, V]: those of a row's largest logit, several where they are equal (to 1e-6)."""
    return logits >= logits.max(axis=1, keepdims=True) - 1e-6


def circuits(
    panels: Mapping[str, tuple[Floats, str, str]],
    slots: Sequence[str],
    tokens: Sequence[str],
    composed: tuple[str, str, str] | None,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Weight matrices [D, D] by title, each with its (down, across) labels; three in a row, or in a column if narrow.

    A matrix over the residual stream has a block for each slot, one over tokens a row for each of them; others are
    over positions. composed: two titles and a slot; its column is framed in both, and an arrow leads down from the one,
    in the first row, to the other, in the second.
    """
    wide = width >= WIDE
    rows = -(-len(panels) // 3)
    ordered = list(panels.items())
    if not wide:  # rows become columns
        ordered = [ordered[place] for start in range(3) for place in range(start, len(panels), 3)]
    columns = 3 if wide else rows
    with style():
        figure = new_figure(width, 0.55 + 2.0 * rows if wide else 0.8 + 1.7 * 3)
        axes = figure.subplots(rows if wide else 3, columns, squeeze=False, gridspec_kw={"hspace": 0.12}).ravel()
        for number, (ax, (title, (values, down, across))) in enumerate(zip(axes, ordered, strict=False)):
            if len(values) == len(slots) * len(tokens):
                _matrix(ax, values, "")
                edges = np.arange(1, len(slots)) * len(tokens) - 0.5
                centres = (np.arange(len(slots)) + 0.5) * len(tokens) - 0.5
                for edge in edges:
                    ax.axhline(edge, color="0.7", lw=0.7)
                    ax.axvline(edge, color="0.7", lw=0.7)
                ax.set_xticks(centres, list(slots))
                ax.set_yticks(centres, list(slots), rotation=90, va="center")
            else:
                names = tokens if len(values) == len(tokens) else []
                _matrix(ax, values, "", names, names)
            ax.set(xlabel=across, ylabel=down)
            ax.tick_params(labelsize=TEXT)
            if number < columns and rows > 1:  # the space between the rows is the arrow's
                ax.xaxis.tick_top()
                ax.xaxis.set_label_position("top")
                ax.tick_params(length=0)
            ax.set_title(title, loc="right", fontsize=7)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        if composed is not None:
            _compose(figure, dict(zip(dict(ordered), axes, strict=False)), composed, slots, len(tokens))
        headline(figure, finding, setting)
    return figure


def _compose(
    figure: Figure, axes: Mapping[str, Axes], composed: tuple[str, str, str], slots: Sequence[str], tokens: int
) -> None:
    """Frame the column of a slot in two matrices, and draw an arrow from the one to the other."""
    start, end, slot = composed
    left = list(slots).index(slot) * tokens - 0.5
    bottom = len(slots) * tokens - 0.5
    for title in (start, end):
        frame = Rectangle((left, -0.5), tokens, bottom + 0.5, fill=False, edgecolor=ORANGE, linewidth=1.6, zorder=4)
        axes[title].add_patch(frame)
    middle = left + tokens / 2
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": ORANGE, "lw": 1.6, "zorder": 5}
    ends = axes[start].transData, axes[end].transData
    figure.add_artist(ConnectionPatch((middle, bottom), (middle, -0.5), *ends, **arrow))


def patterns(
    panels: Mapping[str, Floats],
    length: int,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
    least: float = 0.1,
) -> Figure:
    """Attention [T, T] by title, two in a row; every weight of at least `least` is a dot, lines part the copies."""
    with style():
        rows = -(-len(panels) // 2)
        place = "right" if width >= WIDE else "bottom"
        figure = new_figure(width, 0.6 + 2.35 * rows if width >= WIDE else 1.7 + 1.6 * rows)
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
            dots = ax.scatter(key, query, 2.2, c=values[query, key], cmap=VISIBLE, vmin=least, vmax=1, linewidths=0)
            ax.set(xlim=(-1, total), ylim=(total, -1))
            ax.set_title(title, fontsize=7)
            ax.spines[:].set_visible(True)
        for ax in axes[:, 0]:
            ax.set_ylabel("query position")
        for ax in axes[-1]:
            ax.set_xlabel("key position")
        assert dots is not None
        label = f"attention, {least:g} or more"
        bar = figure.colorbar(dots, ax=list(axes.flat), location=place, shrink=0.6, aspect=25, pad=0.02, label=label)
        bar.outline.set_visible(False)
        headline(figure, finding, setting)
    return figure


def phase_change(
    runs: Sequence[Mapping[str, Any]],
    guesses: Mapping[str, float],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
    top: float = 6.0,
) -> Figure:
    """Losses (above) and scores of heads (below) against the tokens read; a run: see `results.PhaseChange`.

    Of the first run every head is drawn, of the others, pale, the best head of each score. guesses: losses that mark
    what guessing costs, by name. Losses above `top` are cut off.
    """
    losses = (("first_copy", "loss on the first copy", GREY), ("later_copies", "loss on later copies", BLUE))
    scores = (
        ("prefix_matching", "prefix matching", ROLES[Role.INDUCTION].colour),
        ("previous_token", "previous token", ROLES[Role.PREVIOUS_TOKEN].colour),
    )
    with style():
        figure = new_figure(width, 4.2 if width >= WIDE else 4.6)
        above, below = figure.subplots(2, 1, sharex=True)
        last = max(run["tokens"][-1] for run in runs) / 1e6
        for number, run in reversed(list(enumerate(runs))):
            tokens = np.array(run["tokens"]) / 1e6
            for key, name, colour in losses:
                above.plot(tokens, run[key], **_line(colour, number, name))
            for key, name, colour in scores:
                heads = np.array(run[key]).reshape(len(tokens), -1)
                best = int(heads[-1].argmax())
                below.plot(tokens, heads[:, best], **_line(colour, number, f"{name}, best head"))
                if number == 0:
                    below.plot(tokens, np.delete(heads, best, axis=1), color=colour, lw=0.6)
        for name, loss in guesses.items():
            above.axhline(loss, color="0.6", lw=0.7, ls="--", zorder=0)
            if loss == min(guesses.values()):  # below the line, on the left of where losses fall below it
                place: dict[str, Any] = {"xy": (0, loss), "xytext": (3, -2), "ha": "left", "va": "top"}
            else:
                place = {"xy": (last, loss), "xytext": (-2, 2), "ha": "right"}
            above.annotate(name, textcoords="offset points", fontsize=TEXT, **place)
        above.set(ylabel="loss,\nnats per token", ylim=(0, top))
        below.set(xlabel="tokens read, millions", ylabel="score of a head", ylim=(-0.02, 1.02), xlim=(0, last))
        below.plot([], [], color="0.2", lw=0.6, label="thin: other heads of this run")
        if len(runs) > 1:
            below.plot([], [], color="0.7", lw=0.7, label="pale: the other seeds")
        lines = [line for ax in (above, below) for line in zip(*ax.get_legend_handles_labels(), strict=True)]
        handles, labels = zip(*lines, strict=True)
        columns = 3 if width >= WIDE else 2
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=TEXT)
        headline(figure, finding, setting)
    return figure


def _line(colour: str, number: int, name: str) -> dict[str, Any]:
    """How the line of a run is drawn: the first one full and with its name, the others thin and half as strong."""
    if number == 0:
        return {"color": colour, "lw": 1.6, "label": name}
    pale = tuple((1 + part) / 2 for part in to_rgb(colour))
    return {"color": pale, "lw": 0.8, "zorder": 1}
