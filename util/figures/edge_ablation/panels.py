"""The pictures of edge ablation, made of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from util.edges import names
from util.edges.edge import TYPE_PAIRS, Edge
from util.prompts.word_pairs import CORRUPTIONS
from util.show.draw import Floats, Grid
from util.show.panels import colour_bar, excludes_0, ink, intervals, name_rows, points, short_number
from util.show.part import Values
from util.show.style import BLUE, GREY, PALE_RED, RED

SOURCES = [*dict.fromkeys(edge.source for edge in TYPE_PAIRS)]
TARGETS = [*dict.fromkeys((edge.target, edge.relation) for edge in TYPE_PAIRS)]
LOOKS = {names.FULL: (BLUE, "o"), names.CTX_AGG: (PALE_RED, "s"), names.AGG_ONLY: (RED, "v")}
IN_WORDS = {
    names.FULL: "whole model",
    names.CTX_AGG: "with contextualisation",
    names.CTX_IO_AGG: "inputs and outputs",
    names.AGG_ONLY: "no contextualisation",
    names.QUERY_ONLY: "query alone is read",
    names.NONE: "nothing is read",
    names.ALONE: "bare query",
}


def short(name: str) -> str:
    """A type of tokens as it is typeset."""
    return f"${name}$" if len(name) == 1 else name.removesuffix("_separator")


def arrow(edge: str) -> str:
    """An edge as it is typeset: x, an arrow and y, and its relation in brackets."""
    pair, _, relation = edge.partition(":")
    return r" $\to$ ".join(map(short, pair.split("->"))) + (f" ({relation})" if relation else "")


# ------------------------------------------------------------------------------------------------ circuits


def circuits(values: Values) -> Grid:
    """Accuracy by task and circuit; dotted: chance."""
    panels = [partial(_accuracy, task, rows, values["chance"][task]) for task, rows in values["accuracy"].items()]
    return Grid(panels, least=1.0, height=2.6, share="y")


def _accuracy(task: str, rows: Mapping[str, Any], chance: float, ax: Axes) -> None:
    name_rows(ax, [f"{IN_WORDS[name]}\n{name}" for name in rows], zero=False)
    for row, (name, triple) in enumerate(rows.items()):
        colour = {names.FULL: BLUE, names.ALONE: GREY}.get(name, RED)
        intervals(ax, [triple], row, colour, hollow=False)
    ax.axvline(chance, color="0.6", lw=0.8, ls=":", label="chance")
    ax.tick_params(axis="y", labelsize=6.5)
    ax.set(xlim=(-0.06, 1.06), xticks=[0, 0.5, 1], xlabel="accuracy")
    ax.set_title(task.replace("_", " "), fontsize=7)


# ------------------------------------------------------------------------------------------------ maps of edges


def _cells(ax: Axes, shown: Floats, norm: Normalize, numbers: Floats, framed: Any, label: str, **bar: Any) -> None:
    """A map of colours [R, C] with its colour bar below it, and a number in each cell that has one; some are framed."""
    image = ax.imshow(shown, cmap="RdBu_r", norm=norm, aspect="auto")
    for row, column in np.argwhere(~np.isnan(numbers)):
        colour = ink(tuple(image.to_rgba(shown)[row, column]))
        text = short_number(numbers[row, column])
        ax.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
        if framed[row][column]:
            ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, ec="black"))
    ax.spines[:].set_visible(True)
    figure = ax.get_figure(root=True)
    assert figure is not None
    colour_bar(figure, [ax], label, location="bottom", aspect=45, pad=0.03, **bar)


def _framed(label: str) -> Patch:
    return Patch(fill=False, ec="black", label=label)


def edge_map(values: Values) -> Grid:
    """What every type pair costs when it alone is ablated: the colour says nats, the number accuracy.

    Coloured are pairs whose interval of nats excludes 0, framed those whose loss of accuracy is beyond chance. Small
    costs are seen beside large ones, as the scale is that of asinh.
    """
    return Grid([partial(_edge_map, values["costs"])], height=2.4, legend=[_framed("accuracy lost beyond chance")])


def _edge_map(costs: Mapping[str, Mapping[str, float]], ax: Axes) -> None:
    nats, right, p = np.full((3, len(SOURCES), len(TARGETS)), np.nan)
    for name, cost in costs.items():
        edge = Edge.of(name)
        place = SOURCES.index(edge.source), TARGETS.index((edge.target, edge.relation))
        sure = excludes_0((cost["log_prob"], cost["low"], cost["high"]))
        nats[place], right[place], p[place] = cost["log_prob"] * sure, cost["accuracy"], cost["p"]
    limit = float(np.nanmax(np.abs(nats))) or 1.0
    label = "colour: nats lost, where the interval excludes 0\nnumber: accuracy lost"
    ticks = [limit * part for part in (-1, -0.1, 0, 0.1, 1)]
    _cells(ax, nats, AsinhNorm(limit / 40, -limit, limit), right, p < 0.05, label, ticks=ticks, format="%.1f")
    ax.set_yticks(range(len(SOURCES)), [*map(short, SOURCES)])
    ax.set_xticks(range(len(TARGETS)), [short(name) for name, _ in TARGETS])
    for border in (2.5, 6.5, 7.5):
        ax.axvline(border, color="black", lw=0.8)
    for at, name in ((1, "same example"), (4.5, "later example")):
        ax.text(at, -0.62, name, ha="center", va="bottom", fontsize=7)
    ax.set(xlabel="reads", ylabel="is read")


def probes(values: Values) -> Grid:
    """Accuracy inside a circuit [edges, donors] where one edge is read from another prompt that keeps some things.

    The colour is the difference from the circuit. Framed: where the accuracy is lower beyond chance.
    """
    legend = [_framed("lower than inside the circuit, beyond chance")]
    return Grid([partial(_probes, values["probes"])], height=2.6, legend=legend)


def _probes(found: Values, ax: Axes) -> None:
    right = np.array(found["intervals"], dtype=float)[..., 0]
    label = "colour: accuracy lost; number: accuracy"
    _cells(ax, found["inside"][0] - right, Normalize(-1, 1), right, found["lower"], label)
    ax.set_yticks(range(len(right)), [*map(arrow, found["edges"])])
    donors = [CORRUPTIONS[number].replace("_", "\n") for number in found["corruptions"]]
    ax.set_xticks(range(len(donors)), donors)
    ax.set_xlabel("the edge is read from")


# ------------------------------------------------------------------------------------------------ a circuit searched


def circuit(values: Values) -> Grid:
    """A circuit of type pairs: drawn, what each pair costs alone, and its score among random circuits."""
    search, costs = values["search"], values["costs"]
    order = sorted(search["kept"], key=lambda name: -costs[name]["log_prob"])
    kept = {name: [costs[name][end] for end in ("log_prob", "low", "high")] for name in order}
    panels = [partial(_type_pairs, order), partial(_costs, kept), partial(_scores, search)]
    low = max(1.5, 0.6 + 0.12 * len(kept))  # it has a line for each pair
    return Grid(panels, least=1.5, wide=(0,), height=[1.2, low, low])


def _type_pairs(pairs: Sequence[str], ax: Axes) -> None:
    """Two demonstrations and the query, an arrow wherever a pair is read: within an example below, others above."""
    places = [(kind, example, x + 0.4 * example) for example in (1, 2) for x, kind in enumerate("xtyn", 4 * example)]
    places += [("query", 3, 13.5), ("last_separator", 3, 15.3)]  # longer names
    for edge in map(Edge.of, pairs):
        for (source, example, start), (target, other, end) in combinations(places, 2):
            relation, bent = ("same", 0.3) if example == other else ("earlier", -0.2)
            if (source, target) == (edge.source, edge.target) and edge.relation in ("any", relation):
                look: dict[str, Any] = {"color": BLUE, "mutation_scale": 8, "shrinkA": 8, "shrinkB": 8}
                ends = (start, 0.0), (end, 0.0)
                ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", connectionstyle=f"arc3,rad={bent}", **look))
    for kind, example, x in places:
        box = {"boxstyle": "round", "fc": "white", "ec": "0.6", "pad": 0.2}
        text = f"${kind}_{example}$" if len(kind) == 1 else short(kind)
        ax.text(x, 0, text, ha="center", va="center", fontsize=7, bbox=box)
    ax.set(xlim=(places[0][2] - 0.5, places[-1][2] + 0.7), ylim=(-0.5, 0.85), title="A) what is kept")
    ax.axis("off")


def _costs(costs: Mapping[str, Sequence[float]], ax: Axes) -> None:
    """What pairs cost alone."""
    intervals(ax, [*costs.values()], hollow=False)
    name_rows(ax, [*map(arrow, costs)])
    ax.set(xlabel="nats lost", title="B) each ablated alone")


def _scores(search: Values, ax: Axes) -> None:
    random = search["random"]
    intervals(ax, [search["scores"][name] for name in (names.FOUND, names.without(names.FOUND))], hollow=False)
    ax.plot(random, 2 + np.linspace(-0.2, 0.2, len(random)), "o", ms=2.5, color=GREY, alpha=0.7)
    name_rows(ax, ["found", "all but it", f"{len(random)} random"])
    ax.set(xlabel="score", title="C) test split")


# ------------------------------------------------------------------------------------------------ lines


def _whole(ax: Axes, whole: Sequence[float]) -> None:
    """A blue band: the accuracy of the whole model, with its interval."""
    ax.axhspan(whole[1], whole[2], color=BLUE, alpha=0.1, lw=0)
    ax.axhline(whole[0], color=BLUE, lw=0.9, ls=":", label="whole model, 95 %")


def windows(values: Values) -> Grid:
    """Accuracy with contextualisation removed from a layer on, and aggregation below it, at each of the layers `at`."""
    titles = {
        "CONTEXT from": r"A) contextualisation removed, layers $\geq L$",
        "AGG below": "B) aggregation removed, layers $< L$",
    }
    panels = [partial(_window, values, name, title) for name, title in titles.items()]
    return Grid(panels, least=2.4, height=1.65, share="y")


def _window(values: Values, name: str, title: str, ax: Axes) -> None:
    found = values["windows"]
    _whole(ax, values["accuracy"][values["request"]["primary_task"]][names.FULL])
    points(ax, found["at"], found[name], fmt="o-", color=RED, label="ablated")
    ax.set(xlabel="layer $L$", ylabel="accuracy", title=title, ylim=(-0.05, 1.08), xticks=found["at"])


def ambiguous(values: Values) -> Grid:
    """By how many demonstrations fit two rules: answers of the rule that only the others show, and copies."""
    titles = {"past": "A) past tense", "copied": "B) the query again"}
    panels = [partial(_shares, values["ambiguous"], name, title) for name, title in titles.items()]
    return Grid(panels, least=2.4, height=1.45, share="y")


def _shares(found: Values, name: str, title: str, ax: Axes) -> None:
    for number, (circuit, (colour, marker)) in enumerate(LOOKS.items(), -1):
        at = np.array(found["counts"]) + 0.2 * number  # a little apart
        points(ax, at, found[name][circuit], fmt=f"{marker}-", color=colour, lw=1, label=IN_WORDS[circuit])
    ax.set(xlabel="ambiguous demonstrations", ylabel="share of prompts", title=title, ylim=(-0.05, 1.08))
    ax.set_xticks(found["counts"])


# ------------------------------------------------------------------------------------------------ pruning


def curves_of(values: Values) -> dict[tuple[str, str], Any]:
    """What pruning leaves, by task and sort of units."""
    by_task = values["pruning"]["by_task"]
    return {(task, sort): curve for task, curves in by_task.items() for sort, curve in curves.items()}


def pruning(values: Values) -> Grid:
    """Accuracy on the test split by units left, with intervals.

    Blue: the whole model, with its interval; a vertical line: the result, with the accuracy of random prunings of that
    size in grey.
    """
    panels = [partial(_pruned, f"{task}, {sort} units", curve) for (task, sort), curve in curves_of(values).items()]
    return Grid(panels, least=2.4, height=1.6, share="y")


def _pruned(title: str, curve: Mapping[str, Any], ax: Axes) -> None:
    result, random = curve["result"], curve["random"]
    _whole(ax, curve["whole"])
    ax.axvline(result, color="0.3", lw=0.7, label="result")
    ax.plot([result] * len(random), random, "o", ms=2.5, color=GREY, alpha=0.7, label="random, as many left")
    left = [*map(int, curve["accuracy"])]
    points(ax, left, curve["accuracy"].values(), fmt="o-", color=RED, lw=1, label="pruned")
    ax.set_xscale("symlog", linthresh=1)
    ax.set(xlim=(1.15 * max(left), 0.6 * min(left)), ylim=(-0.04, 1.06), xlabel="units left", ylabel="accuracy")
    ax.set_xticks(left[::4], [*curve["accuracy"]][::4])
    ax.minorticks_off()
    ax.set_title(f"{title}\n{result} of {curve['units']} left")
