"""The figures of edge ablation and of circuits of edges (Bakalova et al., COLM 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase as LETTERS
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy.typing import NDArray

from util.edges import names as ablations
from util.figures.head_map import count_ticks, print_in_cells
from util.figures.style import WIDTH, new_figure, style
from util.stats.intervals import Interval

Floats = NDArray[np.floating]
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


def _points(ax: Axes, x: Floats, intervals: Sequence[Interval], **looks: Any) -> None:
    value, low, high = np.array(intervals, dtype=float).T
    ax.errorbar(x, value, yerr=[value - low, high - value], ms=3, lw=1, elinewidth=0.8, capsize=1.5, **looks)


def circuits(
    accuracy: Mapping[str, Mapping[str, Interval]],
    draws: Mapping[str, Mapping[str, Sequence[float]]],
    chance: Mapping[str, float],
    title: str,
    kl: Mapping[str, Mapping[str, Interval]] | None = None,
) -> Figure:
    """Accuracy by task (or model) and circuit, grey ticks for single draws of donors, dotted at chance.

    kl: below it, the divergence of each circuit from the whole model, nats, on a scale that is linear up to 0.1.
    """
    with style():
        names = list(dict.fromkeys(name for row in accuracy.values() for name in row))
        rows = 1 if kl is None else 2
        figure = new_figure(min(WIDTH, 1.6 + 1.2 * len(accuracy)), 0.8 + rows * (0.25 + 0.15 * len(names)))
        axes = figure.subplots(rows, len(accuracy), sharey="row", squeeze=False)
        for column, task in enumerate(accuracy):
            ax = axes[0, column]
            ax.axvline(chance[task], color="0.6", lw=0.8, ls=":")
            for y, name in enumerate(names):
                drawn = draws[task].get(name, ())
                ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
            _dots(ax, accuracy[task], names)
            ax.set(xlim=(-0.04, 1.04), title=task.replace("_", "\n"))
            ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
            if kl is not None:
                ax = axes[1, column]
                measured = {name: value for name, value in kl[task].items() if name != ablations.FULL}
                _dots(ax, measured, list(measured))
                largest = max(10.0, *(value[2] for row in kl.values() for value in row.values()))
                ax.set_xscale("symlog", linthresh=0.1)
                ax.set_xlim(-0.02, 1.6 * largest)
                ax.set_xticks([0, 0.1, 1, 10], ["0", ".1", "1", "10"])
                ax.minorticks_off()
                axes[1, 0].set_yticks(range(len(measured)), list(measured))
        axes[0, 0].set_yticks(range(len(names)), names)
        middle = (len(accuracy) - 1) // 2, 0.5 if len(accuracy) % 2 else 1.1  # column, and where in it
        axes[0, middle[0]].set_xlabel("A) accuracy, first token" if kl is not None else "accuracy", x=middle[1])
        if kl is not None:
            axes[1, middle[0]].set_xlabel("B) divergence from the whole model, nats", x=middle[1])
        figure.suptitle(title)
    return figure


def _dots(ax: Axes, values: Mapping[str, Interval], names: Sequence[str]) -> None:
    for y, name in enumerate(names):
        if name in values:
            value, low, high = values[name]
            colour = {ablations.FULL: DARK, ablations.ALONE: GREY}.get(name, RED)
            ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=colour)
    ax.set_ylim(len(names) - 0.5, -0.5)


def edge_map(
    log_prob: Mapping[Pair, float], accuracy: Mapping[Pair, float], beyond_chance: set[Pair], title: str
) -> Figure:
    """What every type pair costs when it alone is ablated: the colour says nats, the number accuracy.

    The colour is proportional to the square root of nats, so that small costs are seen beside large ones; its bar says
    so. Framed: pairs whose loss of accuracy is beyond chance.
    """
    with style():
        figure = new_figure(WIDTH, 2.3)
        ax = figure.subplots()
        values = np.full((len(SOURCES), len(TARGETS)), np.nan)
        for (source, target, relation), cost in log_prob.items():
            values[SOURCES.index(source), TARGETS.index((target, relation))] = cost
        limit = float(np.nanmax(np.abs(values))) or 1.0
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
        bar.set_label("colour: nats lost\n(square-root scale)")
        bar.ax.tick_params(labelsize=6)
    return figure


def _number(ax: Axes, row: int, column: int, value: float, light: bool) -> None:
    colour = "white" if light else "black"
    ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)


def circuit(
    kept: Sequence[Pair],
    widths: Mapping[Pair, float],
    steps: Sequence[tuple[int, float, bool]],
    floor: float,
    scores: Mapping[str, Interval],
    random: Sequence[float],
    planted: tuple[Sequence[Pair], Sequence[Pair]],
    title: str,
) -> Figure:
    """A circuit of type pairs: drawn, how it was searched, and its score among random circuits.

    A: token types from left to right, kept pairs as arrows, as wide as what each costs alone (widths, nats). B:
    accuracy by pairs left, (pairs, accuracy, whether the last pair stays out) at each step; those put back are crosses;
    with the floor. C: scores on the test split. D: the same search on a model whose circuit is known: kept, true pairs.
    """
    with style():
        figure = new_figure(WIDTH, 3.5)
        axes = figure.subplot_mosaic(
            [["draw"] * 6, [*["steps"] * 2, *["scores"] * 2, *["planted"] * 2]], height_ratios=(1.3, 1)
        )
        _draw(axes["draw"], kept, widths)
        axes["draw"].set_title("A) what is kept")
        ax = axes["steps"]
        gone = np.array([(left, right) for left, right, out in steps if out], dtype=float).reshape(-1, 2).T
        back = np.array([(left, right) for left, right, out in steps if not out], dtype=float).reshape(-1, 2).T
        ax.plot(*gone, ".-", color=DARK, ms=4, lw=0.8, label="pair left out")
        ax.plot(*back, "x", color=RED, ms=4, mew=0.9, label="put back")
        ax.axhline(floor, color=GREY, lw=0.8, ls="--")
        ax.invert_xaxis()
        ax.legend(loc="lower left", fontsize=6, handlelength=1)
        ax.set(xlabel="type pairs left", ylabel="accuracy", ylim=(-0.05, 1.05), title="B) search split")
        ax, y = axes["scores"], np.arange(len(scores))
        value, low, high = np.array(list(scores.values()), dtype=float).T
        ax.errorbar(value, y, xerr=[value - low, high - value], fmt="o", ms=3, lw=0.9, color=DARK)
        spread = np.random.default_rng(0).uniform(-0.2, 0.2, len(random))
        ax.plot(random, len(scores) + spread, "o", ms=2.5, color=GREY, alpha=0.7)
        ax.set_yticks(
            range(len(scores) + 1), [*(name.replace(" ", "\n", 1) for name in scores), f"{len(random)}\nrandom"]
        )
        ax.set(ylim=(len(scores) + 0.5, -0.5), xlabel="score", title="C) test split")
        found, true = map(set, planted)
        _draw(axes["planted"], [pair for pair in planted[0] if pair in true], {}, small=True)
        wrong = f", {len(found - true)} wrong" if found - true else ""
        axes["planted"].set_title(f"D) planted: {len(found & true)} of {len(true)} found{wrong}")
        figure.suptitle(title)
    return figure


def _draw(ax: Axes, kept: Sequence[Pair], widths: Mapping[Pair, float], small: bool = False) -> None:
    """Two demonstrations and the query: reading within an example below, across examples and to the end above.

    small: one demonstration, for circuits that do not read across them.
    """
    examples = (1,) if small else (1, 2)
    slots = [(kind, example) for example in examples for kind in "xtyn"] + [("query", 3), ("last_separator", 3)]
    place = {slot: i + 0.5 * slot[1] + 0.6 * (slot[0] == "last_separator") for i, slot in enumerate(slots)}
    largest = max(0.0, *(widths.get(pair, 0.0) for pair in [*kept, ("", "", "")])) or 1.0
    for pair in kept:
        source, target, relation = pair
        for a in slots:
            for b in slots:
                lag = b[1] - a[1]
                related = {"same": lag == 0, "earlier": lag > 0, "any": True}[relation]
                if (a[0], b[0]) != (source, target) or not related or place[a] >= place[b]:
                    continue
                width = _width(widths.get(pair, 0.0), largest)
                bend = 0.5 if lag == 0 else -0.33
                arrow = FancyArrowPatch(
                    (place[a], 0.0),
                    (place[b], 0.0),
                    connectionstyle=f"arc3,rad={bend}",
                    arrowstyle=f"simple,tail_width={width},head_width={width + 3},head_length={width + 3}",
                    lw=0,
                    color=RED if target == "last_separator" else DARK,
                    alpha=0.75,
                    shrinkA=5 if small else 11,
                    shrinkB=5 if small else 11,
                )
                ax.add_patch(arrow)
    for (kind, example), x in place.items():
        box = {"boxstyle": "round", "fc": "white", "ec": "0.6", "pad": 0.15 if small else 0.3}
        name = SHORT.get(kind, f"${kind}_{example}$")
        ax.text(x, 0, name, ha="center", va="center", fontsize=6 if small else 8, bbox=box)
    ax.set(xlim=(-0.5 if small else 0, max(place.values()) + 0.5), ylim=(-1.3, 2.2 if small else 2.7))
    ax.axis("off")
    if widths and kept:
        for row, nats in enumerate((largest, largest / 4)):
            y = 2.5 - 0.4 * row
            ax.plot((0.1, 0.9), (y, y), color=GREY, lw=_width(nats, largest), solid_capstyle="butt")
            ax.text(1.05, y, f"{nats:.2g} nats lost without it" if row == 0 else f"{nats:.2g}", va="center", fontsize=6)


def _width(nats: float, largest: float) -> float:
    """Of an arrow, points."""
    return 0.6 + 3.4 * max(0.0, nats) / largest


def windows(
    layers: int,
    at: Sequence[int],
    context: Sequence[Interval],
    aggregation: Sequence[Interval],
    whole: float,
    title: str,
) -> Figure:
    """Accuracy with contextualisation removed from a layer on, and aggregation below it, at each of the layers `at`.

    Shaded is what the claim is about: contextualisation in the upper half, aggregation in the lower half.
    """
    with style():
        figure = new_figure(WIDTH, 2.15)
        axes = figure.subplots(1, 2, sharey=True)
        half = layers / 2
        for ax, values, colour, name, shade in (
            (axes[0], context, DARK, r"A) contextualisation removed in layers $\geq L$", (half, layers)),
            (axes[1], aggregation, RED, "B) aggregation removed in layers $< L$", (0, half)),
        ):
            ax.axvspan(*shade, color="0.93", lw=0)
            ax.axhline(whole, color="0.6", lw=0.8, ls=":")
            _points(ax, np.array(at), values, fmt="o-", color=colour)
            ax.set(xlabel="L (layers from 0)", ylim=(-0.05, 1.08), xlim=(-0.03 * layers, 1.03 * layers), title=name)
            ax.set_xticks(at)
        axes[0].set_ylabel("accuracy")
        axes[0].text(0.99 * layers, -0.02, "claim: little is lost here", ha="right", fontsize=6, color="0.35")
        axes[1].text(0.01 * layers, -0.02, "and here", ha="left", fontsize=6, color="0.35")
        figure.suptitle(title)
    return figure


def arrow(edge: str) -> str:
    """An edge as it is typeset: "x->y:earlier" as x, an arrow and y, "earlier" in brackets; a type of tokens alike."""
    pair, _, relation = edge.partition(":")
    names = (SHORT.get(name, f"${name}$" if len(name) == 1 else name) for name in pair.split("->"))
    return r" $\to$ ".join(names) + (f" ({relation})" if relation else "")


def probes(kept: Floats, edges: Sequence[str], donors: Sequence[str], title: str) -> Figure:
    """Accuracy inside a circuit [edges, donors] where one edge is read from another prompt that keeps some things."""
    with style():
        figure = new_figure(WIDTH * 0.8, 1.0 + 0.24 * len(edges))
        ax = figure.subplots()
        image = ax.imshow(kept, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(kept):
            _number(ax, row, column, float(value), light=bool(value < 0.6))
        ax.set_yticks(range(len(edges)), [arrow(edge) for edge in edges])
        ax.set_xticks(range(len(donors)), [name.replace("_", "\n") for name in donors])
        ax.set(xlabel="donor", title=title)
        ax.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=ax, pad=0.02)
        bar.set_label("accuracy")
        bar.ax.tick_params(labelsize=6)
    return figure


def ambiguous(
    counts: Sequence[int],
    right: Mapping[str, Sequence[Interval]],
    copied: Mapping[str, Sequence[Interval]],
    other: Mapping[str, Sequence[Interval]],
    title: str,
) -> Figure:
    """By how many demonstrations fit two rules: answers of the rule that only the others show, copies, neither."""
    with style():
        figure = new_figure(WIDTH, 2.2)
        axes = figure.subplots(1, 3, sharey=True)
        step = 0.025 * (max(counts) - min(counts) or 1)
        for ax, values, name in zip(
            axes,
            (right, copied, other),
            ("A) past tense", "B) the query said again", "C) something else"),
            strict=True,
        ):
            for number, (circuit_name, found) in enumerate(values.items()):
                x = np.array(counts) + step * (number - (len(values) - 1) / 2)
                look = {"fmt": "osv^D"[number % 5] + "-", "color": SHADES[number % 5]}
                _points(ax, x, found, label=circuit_name if ax is axes[0] else None, **look)
            ax.set(xlabel="ambiguous demonstrations", title=name, ylim=(-0.05, 1.05))
            ax.set_xticks(counts)
        axes[0].set_ylabel("share of prompts")
        figure.legend(loc="outside lower center", ncols=len(right))
        figure.suptitle(title)
    return figure


def _of_them(sizes: NDArray[np.float64], most: int) -> list[float]:
    """At most so many of some sizes [N], the largest and the smallest among them, by equal factors where there are."""
    wanted = np.geomspace(max(sizes.min(), 1), max(sizes.max(), 1), most)
    return sorted({float(sizes[np.argmin(np.abs(np.log1p(sizes) - np.log1p(size)))]) for size in wanted})


@dataclass(frozen=True)
class Pruned:
    """A panel of `pruning`: accuracy by units left.

    accuracy: on the test split, with intervals; search: on the search split; whole: of the whole model on the test
    split; floor: what had to be kept on the search split; result: units left; random: accuracies of random prunings of
    that size on the test split.
    """

    title: str
    accuracy: Mapping[int, Interval]
    search: Mapping[int, float]
    whole: float
    floor: float
    result: int
    random: Sequence[float]


def pruning(rows: Sequence[Sequence[Pruned]], title: str) -> Figure:
    """Accuracy by units left: on the test split with intervals, on the search split by a thin line.

    Dotted: the whole model on the test split; dashed: what had to be kept on the search split; a vertical line: the
    result, with the accuracy of random prunings of that size in grey.
    """
    with style():
        figure = new_figure(WIDTH, 0.9 + 1.5 * len(rows))
        axes = figure.subplots(len(rows), len(rows[0]), sharey=True, squeeze=False)
        for ax, panel, letter in zip(axes.flat, [panel for row in rows for panel in row], LETTERS, strict=False):
            _pruned(ax, panel)
            ax.set_title(f"{letter}) {panel.title}")
        for ax in axes[:, 0]:
            ax.set_ylabel("accuracy")
        for ax in axes[-1]:
            ax.set_xlabel("units left")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(title)
    return figure


def _pruned(ax: Axes, panel: Pruned) -> None:
    left = np.array(list(panel.accuracy), dtype=float)
    ax.axhline(panel.whole, color="0.6", lw=0.8, ls=":", label="whole model")
    ax.axhline(panel.floor, color=RED, lw=0.6, ls="--", label="to be kept, search split")
    ax.axvline(panel.result, color=GREY, lw=0.6, label="result")
    random = np.full(len(panel.random), panel.result)
    ax.plot(random, panel.random, "o", ms=2.5, color=GREY, alpha=0.7, label="random, as large")
    ax.plot(list(panel.search), list(panel.search.values()), color=RED, lw=0.8, label="search split")
    _points(ax, left, list(panel.accuracy.values()), fmt="o-", color=DARK, label="test split")
    ax.set_xscale("symlog", linthresh=1)
    ticks = _of_them(left, 5)
    ax.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set(xlim=(1.15 * left.max(), max(0.0, 0.6 * left.min())), ylim=(-0.04, 1.06))


def survivors(
    rows: Sequence[Sequence[tuple[str, Mapping[str, NDArray[np.integer]]]]], layers: int, title: str
) -> Figure:
    """How many units of each kind are left in each layer: panels with a title and, by kind, counts [L]."""
    with style():
        heights = [max(2, *(len(kinds) for _, kinds in row)) for row in rows]
        figure = new_figure(WIDTH, 0.8 + sum(0.55 + 0.14 * height for height in heights))
        axes = figure.subplots(len(rows), len(rows[0]), squeeze=False, height_ratios=heights)
        panels = [panel for row in rows for panel in row]
        for ax, (name, kinds), letter in zip(axes.flat, panels, LETTERS, strict=False):
            counts = np.array([*kinds.values()]).reshape(-1, layers)
            image = ax.imshow(counts, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
            print_in_cells(image, {(x, y): str(counts[y, x]) for y, x in np.argwhere(counts)})
            ax.set_yticks(range(len(kinds)), [arrow(kind) for kind in kinds], fontsize=6)
            ax.set_xticks(count_ticks(layers, 8))
            ax.set_title(f"{letter}) {name}")
            ax.spines[:].set_visible(True)
        for ax in axes[-1]:
            ax.set_xlabel("layer")
        figure.suptitle(title)
    return figure
