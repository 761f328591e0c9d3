"""The figures of edge ablation and of circuits of edges (Bakalova et al., COLM 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy.typing import NDArray

from util.plots import WIDTH, new_figure, style

Floats = NDArray[np.floating]
Interval = tuple[float, ...]  # value, low, high
Pair = tuple[str, str, str]  # source, target, relation
DARK, RED, GREY = "#023858", "#c02d45", "0.55"
SHADES = ("#023858", "#3690c0", "#2c7d59", "#d99a2b", "#c02d45")
SOURCES = ("x", "t", "y", "n", "query")
TARGETS = (
    *((name, "same") for name in ("t", "y", "n")),
    *((name, "earlier") for name in ("x", "t", "y", "n")),
    ("query", "any"),
    ("last_separator", "any"),
)
SHORT = {"last_separator": "last", "query": "query"}


def _points(ax: Axes, x: Floats, found: Sequence[Interval], **looks: Any) -> None:
    value, low, high = np.array(found, dtype=float).T
    ax.errorbar(x, value, yerr=[value - low, high - value], ms=3, lw=1, elinewidth=0.8, capsize=1.5, **looks)


def edge_map(
    log_prob: Mapping[Pair, float], accuracy: Mapping[Pair, float], beyond_chance: set[Pair], title: str
) -> Figure:
    """What every type pair costs when it alone is ablated: by colour in nats, written beside it in accuracy.

    Framed: those whose loss of accuracy is beyond chance.
    """
    with style():
        figure = new_figure(WIDTH, 2.3)
        ax = figure.subplots()
        values = np.full((len(SOURCES), len(TARGETS)), np.nan)
        for (source, target, relation), cost in log_prob.items():
            values[SOURCES.index(source), TARGETS.index((target, relation))] = cost
        limit = float(np.nanmax(np.abs(values))) or 1.0
        # the square root leaves small costs visible beside the large ones
        image = ax.imshow(np.sign(values) * np.sqrt(np.abs(values)), cmap="RdBu_r", aspect="auto")
        image.set_clim(-np.sqrt(limit), np.sqrt(limit))
        for pair, cost in accuracy.items():
            row, column = SOURCES.index(pair[0]), TARGETS.index((pair[1], pair[2]))
            _number(ax, row, column, cost, light=abs(values[row, column]) > 0.4 * limit)
            if pair in beyond_chance:
                ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, lw=1, ec="black"))
        ax.set_yticks(range(len(SOURCES)), SOURCES)
        ax.set_xticks(range(len(TARGETS)), [SHORT.get(name, name) for name, _ in TARGETS])
        for border in (2.5, 6.5, 7.5):
            ax.axvline(border, color="black", lw=0.8)
        for place, name in ((1, "same example"), (4.5, "later example")):
            ax.annotate(name, (place, len(SOURCES) - 0.5), (0, -18), textcoords="offset points", ha="center", va="top")
        ax.set(ylabel="is read", title=title)
        ax.set_xlabel("reads", labelpad=20)
        ax.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=ax, pad=0.02)
        ticks = [-limit, -limit / 4, 0, limit / 4, limit]
        bar.set_ticks([float(np.sign(t) * np.sqrt(abs(t))) for t in ticks], labels=[f"{t:.1f}" for t in ticks])
        bar.set_label("nats lost")
        bar.ax.tick_params(labelsize=6)
    return figure


def _number(ax: Axes, row: int, column: int, value: float, light: bool) -> None:
    colour = "white" if light else "black"
    ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)


def circuit(
    kept: Sequence[Pair],
    widths: Mapping[Pair, float],
    steps: Sequence[tuple[int, float]],
    floor: float,
    scores: Mapping[str, Interval],
    random: Sequence[float],
    title: str,
) -> Figure:
    """A circuit of type pairs: drawn, how it was searched, and its score among random circuits.

    A: token types from left to right, kept pairs as arrows, as wide as what each costs alone (widths, nats).
    B: accuracy by pairs left, (pairs, accuracy) at each step, with the floor. C: scores on the other split.
    """
    with style():
        figure = new_figure(WIDTH, 3.2)
        axes = figure.subplot_mosaic([["draw", "draw"], ["steps", "scores"]], height_ratios=(1.25, 1))
        _draw(axes["draw"], kept, widths)
        left, accuracy = np.array(steps).T
        axes["steps"].plot(left, accuracy, ".-", color=DARK, ms=3, lw=0.8)
        axes["steps"].axhline(floor, color=RED, lw=0.8, ls="--")
        axes["steps"].invert_xaxis()
        axes["steps"].set(xlabel="type pairs left", ylabel="accuracy", ylim=(-0.05, 1.05), title="B) search")
        ax, y = axes["scores"], np.arange(len(scores))
        value, low, high = np.array(list(scores.values()), dtype=float).T
        ax.errorbar(value, y, xerr=[value - low, high - value], fmt="o", ms=3, lw=0.9, color=DARK)
        spread = np.random.default_rng(0).uniform(-0.2, 0.2, len(random))
        ax.plot(random, len(scores) + spread, "o", ms=2.5, color=GREY, alpha=0.7)
        ax.set_yticks(range(len(scores) + 1), [*scores, "random"])
        ax.set(ylim=(len(scores) + 0.5, -0.5), xlabel="score", title="C) other split")
        figure.suptitle(title)
    return figure


def _draw(ax: Axes, kept: Sequence[Pair], widths: Mapping[Pair, float]) -> None:
    """Two demonstrations and the query: reading within an example below, across examples and to the end above."""
    slots = [(kind, example) for example in (1, 2) for kind in "xtyn"] + [("query", 3), ("last_separator", 3)]
    place = {slot: i + 0.5 * slot[1] + 0.6 * (slot[0] == "last_separator") for i, slot in enumerate(slots)}
    largest = max([widths.get(pair, 0.0) for pair in kept], default=1.0) or 1.0
    for pair in kept:
        source, target, relation = pair
        for a in slots:
            for b in slots:
                lag = b[1] - a[1]
                related = {"same": lag == 0, "earlier": lag > 0, "any": True}[relation]
                if (a[0], b[0]) != (source, target) or not related or place[a] >= place[b]:
                    continue
                width = 0.6 + 3.4 * max(0.0, widths.get(pair, 0.0)) / largest
                bend = 0.5 if lag == 0 else -0.33
                arrow = FancyArrowPatch(
                    (place[a], 0.0),
                    (place[b], 0.0),
                    connectionstyle=f"arc3,rad={bend}",
                    arrowstyle=f"simple,tail_width={width},head_width={width + 3},head_length={width + 3}",
                    lw=0,
                    color=RED if target == "last_separator" else DARK,
                    alpha=0.75,
                    shrinkA=11,
                    shrinkB=11,
                )
                ax.add_patch(arrow)
    for (kind, example), x in place.items():
        box = {"boxstyle": "round", "fc": "white", "ec": "0.6"}
        ax.text(x, 0, SHORT.get(kind, f"${kind}_{example}$"), ha="center", va="center", fontsize=8, bbox=box)
    ax.set(xlim=(0, max(place.values()) + 0.5), ylim=(-1.3, 2.7))
    ax.set_title("A) what is kept, as wide as what it costs alone")
    ax.axis("off")


def windows(context: Sequence[Interval], aggregation: Sequence[Interval], whole: float, title: str) -> Figure:
    """Accuracy with contextualisation removed from a layer on, and aggregation below a layer, [L + 1] each."""
    with style():
        figure = new_figure(WIDTH * 0.7, 2.1)
        ax = figure.subplots()
        layers = np.arange(len(context))
        _points(ax, layers - 0.04, context, fmt="o-", color=DARK, label="contextualisation removed in layers ≥ L")
        _points(ax, layers + 0.04, aggregation, fmt="s-", color=RED, label="aggregation removed in layers < L")
        ax.axhline(whole, color="0.6", lw=0.8, ls=":")
        ax.set(xlabel="L (layers from 0; dotted: nothing removed)", ylabel="accuracy", ylim=(-0.05, 1.05), title=title)
        ax.set_xticks(layers[:: max(1, len(layers) // 10)])
        figure.legend(loc="outside lower left")
    return figure


def probes(kept: Floats, edges: Sequence[str], donors: Sequence[str], title: str) -> Figure:
    """Accuracy inside a circuit [edges, donors] where one edge is read from another prompt that keeps some things."""
    with style():
        figure = new_figure(WIDTH * 0.8, 0.9 + 0.24 * len(edges))
        ax = figure.subplots()
        image = ax.imshow(kept, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(kept):
            _number(ax, row, column, float(value), light=bool(value < 0.6))
        ax.set_yticks(range(len(edges)), edges)
        ax.set_xticks(range(len(donors)), [name.replace("_", "\n") for name in donors])
        ax.set(xlabel="donor", title=title)
        ax.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=ax, pad=0.02)
        bar.set_label("accuracy")
        bar.ax.tick_params(labelsize=6)
    return figure


def ambiguous(
    counts: Sequence[int], right: Mapping[str, Sequence[Interval]], copied: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """By how many demonstrations fit two rules: answers of the rule that only the others show, and copies."""
    with style():
        figure = new_figure(WIDTH, 2.2)
        left, other = figure.subplots(1, 2, sharey=True)
        for number, (name, found) in enumerate(right.items()):
            x = np.array(counts) + 0.12 * (number - (len(right) - 1) / 2)
            _points(left, x, found, fmt="osv^D"[number % 5] + "-", color=SHADES[number % 5], label=name)
            other.plot(x, copied[name], "osv^D"[number % 5] + "-", color=SHADES[number % 5], ms=3, lw=1)
        left.set(ylabel="share of prompts", ylim=(-0.05, 1.05), title="A) past tense")
        other.set_title("B) the query said again")
        for ax in (left, other):
            ax.set_xlabel("ambiguous demonstrations")
            ax.set_xticks(counts)
        figure.legend(loc="outside lower left", ncols=len(right))
        figure.suptitle(title)
    return figure
