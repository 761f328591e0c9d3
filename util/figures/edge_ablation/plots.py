"""The figures of edge ablation and of circuits of edges (Bakalova et al., COLM 2025).

The figures of the paper were not available to us: none of these has an arrangement of theirs. `finding` and `setting`
are the two parts of a headline, see `style.headline`; `width` is that of the figure, in inches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from util.edges import names as ablations
from util.figures.edge_ablation.type_circuit import Pair, arrow, draw_type_pairs, short_name
from util.show.head_map import short_number, without_zero
from util.show.style import (
    BLUE,
    GREY,
    PALE_RED,
    RED,
    WIDTH,
    broken,
    columns_of,
    headline,
    headline_height,
    legend_below,
    new_figure,
    points,
    style,
)
from util.stats.intervals import Interval, Intervals

Bools = NDArray[np.bool_]
NAMES = 1.05  # inches that the names of circuits need
ROW = 0.135  # inches between the names of circuits
SOURCES = ("x", "t", "y", "n", "query")
TARGETS = (
    *((name, "same") for name in ("t", "y", "n")),
    *((name, "earlier") for name in ("x", "t", "y", "n")),
    ("query", "any"),
    ("last_separator", "any"),
)


def dot(colour: str, label: str, marker: str = "o") -> Line2D:
    """A marker with its name, for a legend."""
    return Line2D([], [], ls="", marker=marker, ms=4, mew=0.9, color=colour, label=label)


# ------------------------------------------------------------------------------------------------ circuits


def circuits(
    accuracy: Mapping[str, Mapping[str, Interval]],
    draws: Mapping[str, Mapping[str, Sequence[float]]],
    chance: Mapping[str, float],
    finding: str | None,
    setting: str,
    kl: Mapping[str, Mapping[str, Interval]] | None = None,
    *,
    width: float = WIDTH,
) -> Figure:
    """Accuracy by task (or model) and circuit, grey ticks for single draws of donors, dotted at chance.

    kl: below it, the divergence of each circuit from the whole model, nats, on a scale that is linear up to 0.1.
    """
    rows = list(dict.fromkeys(name for row in accuracy.values() for name in row))
    across = columns_of(len(accuracy), width - NAMES, 0.65) == len(accuracy)  # whether all tasks fit side by side
    measures = 1 if kl is None else 2
    lines, columns = (measures, len(accuracy)) if across else (len(accuracy), measures)
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 0.7 + lines * (0.4 + ROW * len(rows)))
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True, sharex="row" if across else "col")
        panels = grid if across else grid.T  # [measures, tasks]
        for ax, (task, values) in zip(panels[0], accuracy.items(), strict=True):
            ax.axvline(chance[task], color="0.6", lw=0.8, ls=":")
            for y, name in enumerate(rows):
                drawn = draws[task].get(name, ())
                ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
            _dots(ax, values, rows)
            ax.set_xlim(-0.06, 1.06)
            ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
            ax.set_title(_broken(task, 72 * (width - NAMES) / columns), fontsize=7.5)
        if kl is not None:
            largest = max(10.0, *(value.high for row in kl.values() for value in row.values()))
            for ax, values in zip(panels[1], kl.values(), strict=True):
                _dots(ax, {name: value for name, value in values.items() if name != ablations.FULL}, rows)
                ax.set_xscale("symlog", linthresh=0.1)
                ax.set_xlim(-0.02, 1.6 * largest)
                ax.set_xticks([0, 0.1, 1, 10], ["0", ".1", "1", "10"])
                ax.minorticks_off()
        for ax in grid[:, 0]:
            ax.set_yticks(range(len(rows)), rows, fontsize=6.5)
        for line, name in zip(panels, ("A) accuracy", "B) KL, nats"), strict=False):
            if across:
                line[0].set_ylabel(name)
            else:
                line[-1].set_xlabel(name)
        kinds = [dot(BLUE, "whole model"), dot(RED, "circuit, rest ablated"), dot(GREY, "one draw of donors", "|")]
        if ablations.ALONE in rows:
            kinds.insert(2, dot(GREY, "whole, bare query"))
        legend_below(figure, [*kinds, Line2D([], [], ls=":", lw=0.8, color="0.6", label="chance")])
        headline(figure, finding, setting)
    return figure


def _broken(name: str, room: float) -> str:
    """The name of a task or model over as many lines as fit into so many points."""
    return broken(name.replace("_", " ").replace("-", "- "), 7.5, room).replace("- ", "-")


def _dots(ax: Axes, values: Mapping[str, Interval], names: Sequence[str]) -> None:
    """Values with intervals, one below the other, and the number at the right end."""
    for y, name in enumerate(names):
        if name not in values:
            continue
        value, low, high = values[name]
        colour = {ablations.FULL: BLUE, ablations.ALONE: GREY}.get(name, RED)
        ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=colour)
        ax.text(1.04, y, short_number(value), transform=ax.get_yaxis_transform(), va="center", fontsize=5.5)
    ax.set_ylim(len(names) - 0.5, -0.5)


# ------------------------------------------------------------------------------------------------ single edges


def edge_map(
    log_prob: Mapping[Pair, Interval],
    accuracy: Mapping[Pair, float],
    beyond_chance: set[Pair],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """What every type pair costs when it alone is ablated: the colour says nats, the number accuracy.

    The colour is proportional to the square root of nats, so that small costs are seen beside large ones; its bar says
    so. Grey: the interval of nats includes 0. Framed: pairs whose loss of accuracy is beyond chance.
    """
    values = np.full((len(SOURCES), len(TARGETS)), np.nan)
    sure = np.zeros(values.shape, bool)
    places = {pair: (SOURCES.index(pair[0]), TARGETS.index((pair[1], pair[2]))) for pair in log_prob}
    for pair, cost in log_prob.items():
        values[places[pair]] = cost.value
        sure[places[pair]] = cost.low > 0 or cost.high < 0
    limit = float(np.nanmax(np.abs(values))) or 1.0
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 2.4)
        ax = figure.subplots()
        ax.imshow(np.where(np.isfinite(values), 0.9, np.nan), cmap="gray", vmin=0, vmax=1, aspect="auto")
        shown = np.where(sure, np.sign(values) * np.sqrt(np.abs(values)), np.nan)
        image = ax.imshow(shown, cmap="RdBu_r", vmin=-np.sqrt(limit), vmax=np.sqrt(limit), aspect="auto")
        for pair, (row, column) in places.items():
            _number(ax, row, column, accuracy[pair], light=sure[row, column] and abs(values[row, column]) > 0.4 * limit)
            if pair in beyond_chance:
                _frame(ax, row, column)
        ax.set_yticks(range(len(SOURCES)), SOURCES)
        ax.set_xticks(range(len(TARGETS)), [short_name(name) for name, _ in TARGETS])
        for border in (2.5, 6.5, 7.5):
            ax.axvline(border, color="black", lw=0.8)
        for place, name in ((1, "same example"), (4.5, "later example")):
            ax.text(place, -0.62, name, ha="center", va="bottom", fontsize=7)
        ax.set(xlabel="reads", ylabel="is read")
        ax.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=ax, location="bottom", aspect=45, pad=0.03)
        ticks = [-limit, -limit / 4, 0, limit / 4, limit]
        bar.set_ticks([float(np.sign(t) * np.sqrt(abs(t))) for t in ticks], labels=[f"{t:.1f}" for t in ticks])
        bar.set_label("colour: nats lost (square-root scale)\nnumber: accuracy lost", fontsize=7)
        bar.ax.tick_params(labelsize=6)
        unsure = Patch(fc="0.9", label="interval of nats includes 0")
        legend_below(figure, [unsure, _framed("accuracy lost beyond chance")])
        headline(figure, finding, setting)
    return figure


def _number(ax: Axes, row: int, column: int, value: float, *, light: bool) -> None:
    colour = "white" if light else "black"
    ax.text(column, row, short_number(value), ha="center", va="center", fontsize=6, color=colour)


def _frame(ax: Axes, row: int, column: int) -> None:
    """A frame around a cell of a map: what it shows is beyond chance."""
    ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, lw=1, ec="black"))


def _framed(label: str) -> Patch:
    """A frame with its meaning, for a legend."""
    return Patch(fill=False, ec="black", lw=1, label=label)


# ------------------------------------------------------------------------------------------------ a circuit searched


def circuit(
    kept: Sequence[Pair],
    costs: Mapping[Pair, Interval],
    steps: Sequence[tuple[int, float, bool]],
    floor: float,
    scores: Mapping[str, Interval],
    random: Sequence[float],
    planted: tuple[Sequence[Pair], Sequence[Pair]],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """A circuit of type pairs: drawn, how it was searched, and its score among random circuits.

    A: token types from left to right, kept pairs as arrows, as wide as what each costs alone (costs, nats). B: the same
    search on a model whose circuit is known: kept, true pairs. C: the costs with their intervals. D: accuracy by pairs
    left, (pairs, accuracy, whether the last pair stays out) at each step; those put back are crosses; with the floor.
    E: scores on the test split.
    """
    low = max(1.5, 0.6 + 0.1 * len(kept))  # inches: of the panel that has a line for each pair
    wide = width >= WIDTH
    rows = ("AB", "CDE") if wide else ("A", "B", "C", "DE")
    heights = (1.2, low) if wide else (1.2, 1.0, low, 1.5)
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + sum(heights))
        axes: dict[str, Axes] = {}
        grid = figure.add_gridspec(len(rows), 1, height_ratios=heights)
        for number, names in enumerate(rows):
            row = grid[number].subgridspec(1, len(names), width_ratios=(11, 6) if names == "AB" else None)
            axes |= {name: figure.add_subplot(row[place]) for place, name in enumerate(names)}
        nats = {pair: costs[pair].value for pair in kept if pair in costs}
        draw_type_pairs(axes["A"], kept, nats, examples=2)
        axes["A"].set_title("A) what is kept, as wide as C")
        found, true = map(set, planted)
        draw_type_pairs(axes["B"], planted[1], {}, examples=1, missed=true - found)
        wrong = f", {len(found - true)} wrong" if found - true else ""
        axes["B"].set_title(f"B) planted: {len(found & true)} of {len(true)} found{wrong}")
        _costs(axes["C"], {pair: costs[pair] for pair in kept if pair in costs})
        _steps(axes["D"], steps, floor)
        _scores(axes["E"], scores, random)
        headline(figure, finding, setting)
    return figure


def _costs(ax: Axes, costs: Mapping[Pair, Interval]) -> None:
    """What pairs cost alone, one below the other, those that cost most first."""
    order = sorted(costs, key=lambda pair: -costs[pair].value)
    for y, pair in enumerate(order):
        value, low, high = costs[pair]
        ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=RED)
        ax.text(1.03, y, short_number(value), transform=ax.get_yaxis_transform(), va="center", fontsize=5.5)
    ax.axvline(0, color="0.7", lw=0.7, zorder=0)
    ax.set_yticks(range(len(order)), [arrow(*pair) for pair in order], fontsize=6)
    ax.set(ylim=(len(order) - 0.4, -0.6) if order else (1, 0), xlabel="nats lost", title="C) each ablated alone")
    if not order:
        ax.text(0.5, 0.5, "nothing is kept", transform=ax.transAxes, ha="center", fontsize=6)
        ax.set_xticks([])


def _steps(ax: Axes, steps: Sequence[tuple[int, float, bool]], floor: float) -> None:
    gone = np.array([(left, right) for left, right, out in steps if out], dtype=float).reshape(-1, 2).T
    back = np.array([(left, right) for left, right, out in steps if not out], dtype=float).reshape(-1, 2).T
    ax.plot(*gone, ".-", color=RED, ms=4, lw=0.8, label="left out")
    ax.plot(*back, "x", color="black", ms=4, mew=0.9, label="put back")
    ax.axhline(floor, color="black", lw=0.7, ls="--", label="floor")
    ax.invert_xaxis()
    ax.legend(loc="lower left", fontsize=6, handlelength=1.2, borderaxespad=0.2)
    ax.set(xlabel="type pairs left", ylabel="accuracy", ylim=(-0.05, 1.05), title="D) search split")


def _scores(ax: Axes, scores: Mapping[str, Interval], random: Sequence[float]) -> None:
    for y, (value, low, high) in enumerate(scores.values()):
        ax.errorbar(value, y, xerr=[[value - low], [high - value]], fmt="o", ms=3, lw=0.9, color=RED)
        ax.text(1.03, y, short_number(value), transform=ax.get_yaxis_transform(), va="center", fontsize=5.5)
    spread = np.random.default_rng(0).uniform(-0.2, 0.2, len(random))
    ax.plot(random, len(scores) + spread, "o", ms=2.5, color=GREY, alpha=0.7)
    labels = [*(name.replace(" ", "\n", 1) for name in scores), f"{len(random)}\nrandom"]
    ax.set_yticks(range(len(labels)), labels, fontsize=6.5)
    ax.set(ylim=(len(scores) + 0.5, -0.5), xlabel="score", title="E) test split")


# ------------------------------------------------------------------------------------------------ layers and donors


def windows(
    layers: int,
    at: Sequence[int],
    context: Sequence[Interval],
    aggregation: Sequence[Interval],
    whole: Interval,
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """Accuracy with contextualisation removed from a layer on, and aggregation below it, at each of the layers `at`.

    A blue band: the whole model.
    """
    columns = columns_of(2, width, 2.4)
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 0.25 + 1.65 * (2 // columns))
        axes = figure.subplots(2 // columns, columns, sharey=True, squeeze=False)
        for ax, values, name in zip(
            axes.flat,
            (context, aggregation),
            (r"A) contextualisation removed, layers $\geq L$", "B) aggregation removed, layers $< L$"),
            strict=True,
        ):
            ax.axhspan(whole.low, whole.high, color=BLUE, alpha=0.12, lw=0)
            ax.axhline(whole.value, color=BLUE, lw=0.8, ls=":")
            points(ax, at, values, fmt="o-", color=RED)
            ax.set(xlabel="L", ylim=(-0.04, 1.08), xlim=(-0.03 * layers, 1.03 * layers), title=name)
            ax.set_xticks(at)
            ax.set_yticks([0, 0.5, 1])
        for ax in axes[:, 0]:
            ax.set_ylabel("accuracy")
        band = Patch(fc=BLUE, alpha=0.2, label="whole model, 95 %")
        legend_below(figure, [Line2D([], [], color=RED, marker="o", ms=3, label="ablated"), band])
        headline(figure, finding, setting)
    return figure


def probes(
    accuracy: Intervals,
    inside: float,
    beyond_chance: Bools,
    edges: Sequence[str],
    donors: Sequence[str],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """Accuracy inside a circuit [edges, donors] where one edge is read from another prompt that keeps some things.

    inside: where none is. The colour is the difference from it. Framed: where the accuracy is lower beyond chance.
    """
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 1.15 + 0.31 * len(edges))
        ax = figure.subplots()
        image = ax.imshow(inside - accuracy.value, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        for row, column in np.ndindex(accuracy.value.shape):
            value, low, high = accuracy[row, column]
            cell: dict[str, Any] = {"ha": "center", "color": "white" if inside - value > 0.6 else "black"}
            ax.text(column, row + 0.04, without_zero(value, 2), va="bottom", fontsize=7, **cell)
            between = f"[{without_zero(low, 2)}, {without_zero(high, 2)}]"
            ax.text(column, row + 0.08, between, va="top", fontsize=5, **cell)
            if beyond_chance[row, column]:
                _frame(ax, row, column)
        ax.set_yticks(range(len(edges)), [arrow(edge) for edge in edges])
        ax.set_xticks(range(len(donors)), [name.replace("_", "\n") for name in donors])
        ax.set(xlabel="the edge is read from")
        ax.spines[:].set_visible(True)
        bar = figure.colorbar(image, ax=ax, location="bottom", aspect=45, pad=0.03)
        bar.set_ticks([-1, -0.5, 0, 0.5, 1])
        bar.set_label("colour: accuracy lost; number: accuracy", fontsize=7)
        bar.ax.tick_params(labelsize=6)
        legend_below(figure, [_framed("lower than inside the circuit, beyond chance")])
        headline(figure, finding, setting)
    return figure


def ambiguous(
    counts: Sequence[int],
    right: Mapping[str, Sequence[Interval]],
    copied: Mapping[str, Sequence[Interval]],
    other: Mapping[str, Sequence[Interval]],
    finding: str | None,
    setting: str,
    *,
    width: float = WIDTH,
) -> Figure:
    """By how many demonstrations fit two rules: answers of the rule that only the others show, copies, neither."""
    panels = ((right, "A) past tense"), (copied, "B) the query again"), (other, "C) something else"))
    columns = columns_of(len(panels), width, 1.7)
    step = 0.025 * (max(counts) - min(counts) or 1)
    looks = {ablations.FULL: (BLUE, "o"), ablations.CTX_AGG: (PALE_RED, "s"), ablations.AGG_ONLY: (RED, "v")}
    with style():
        lines = -(-len(panels) // columns)
        figure = new_figure(width, headline_height(finding, setting, width) + 0.3 + 1.45 * lines)
        axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
        for ax, (values, name) in zip(axes.flat, panels, strict=False):
            for number, (circuit_name, shares) in enumerate(values.items()):
                x = np.array(counts) + step * (number - (len(values) - 1) / 2)
                colour, marker = looks[circuit_name]
                points(ax, x, shares, fmt=f"{marker}-", color=colour, lw=1, elinewidth=0.8)
            ax.set(xlabel="ambiguous demonstrations", title=name, ylim=(-0.05, 1.05))
            ax.set_xticks(counts)
        for ax in axes.flat[len(panels) :]:
            ax.remove()
        for ax in axes[:, 0]:
            ax.set_ylabel("share of prompts")
        lines_of = [
            Line2D([], [], color=looks[name][0], marker=looks[name][1], ms=3, lw=1, label=name) for name in right
        ]
        legend_below(figure, lines_of)
        headline(figure, finding, setting)
    return figure
