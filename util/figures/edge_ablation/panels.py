"""The pictures of edge ablation, made of its numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from string import ascii_uppercase as LETTERS
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from util.edges import names
from util.edges.edge import Edge
from util.figures.edge_ablation.numbers import kinds
from util.prompts.word_pairs import CORRUPTIONS
from util.show.draw import Grid, Panel, room
from util.show.head_map import TICK, count_ticks, print_in_cells, short_number, without_zero
from util.show.panels import colour_bar, intervals
from util.show.part import Values
from util.show.style import BLUE, GREY, PALE_RED, RED, broken, points
from util.show.words import written

SOURCES = ("x", "t", "y", "n", "query")
TARGETS = (
    *((name, "same") for name in ("t", "y", "n")),
    *((name, "earlier") for name in ("x", "t", "y", "n")),
    ("query", "any"),
    ("last_separator", "any"),
)
SHORT = {"last_separator": "last", "query": "query"}
THINNEST, WIDEST = 0.6, 4.0  # points: of arrows
LARGEST_KINDS = 6  # of units: those that a panel names; the rest are counted together
LABELS = 0.85  # inches that the names of kinds need
ROW = 0.135  # inches between two names
DIGIT = 3.2  # points: the width of a digit of 5 points
LOOKS = {names.FULL: (BLUE, "o"), names.CTX_AGG: (PALE_RED, "s"), names.AGG_ONLY: (RED, "v"), "ablated": (RED, "o")}
WHOLE = {names.FULL: (BLUE, "whole model"), names.ALONE: (GREY, "whole, bare query")}


def arrow(edge: str) -> str:
    """An edge as it is typeset: x, an arrow and y, and its relation in brackets; a type of tokens alike."""
    pair, _, relation = edge.partition(":")
    types = (SHORT.get(name, f"${name}$" if len(name) == 1 else name) for name in pair.split("->"))
    return r" $\to$ ".join(types) + (f" ({relation})" if relation else "")


def whole_of(values: Values) -> Sequence[float]:
    """The accuracy of the whole model in the primary task, which requests without settings name "dataset"."""
    request = values["request"]
    return values["accuracy"][request.get("primary_task") or request["dataset"]][names.FULL]


def _rows(ax: Axes, rows: Mapping[str, Any], title: str, x: str, label: str = "", **look: Any) -> None:
    """Values with intervals, one below the other, and the number at the right end; None for no value."""
    for y, (name, triple) in enumerate(rows.items()):
        if triple is not None and triple[0] is not None:
            colour, of_row = WHOLE.get(name, (RED, label))
            intervals(ax, [triple], y, colour, size=3, hollow=False, label=of_row)
            text = short_number(triple[0])
            ax.text(1.04, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=5.5)
    ax.set_yticks(range(len(rows)), list(rows), fontsize=6.5)
    ax.set(ylim=(max(len(rows), 1) - 0.5, -0.5), xlabel=x, **look)
    ax.set_title(broken(title.replace("_", " "), 7.5, 72 * room(ax)[0] - 20), fontsize=7.5)


# ------------------------------------------------------------------------------------------------ circuits


def circuits(values: Values) -> Grid | None:
    """Accuracy by task and circuit, grey ticks for single draws of donors, dotted at chance.

    Below it the divergence from the whole model; None for values without it.
    """
    if "kl" not in values:
        return None
    panels: list[Panel] = [
        partial(_accuracy, task, rows, values["draws"][task], values["chance"][task])
        for task, rows in values["accuracy"].items()
    ]
    largest = max([10.0, *(triple[2] for row in values["kl"].values() for triple in row.values())])
    for task, row in values["kl"].items():
        shown = {name: row.get(name) for name in values["accuracy"][task]} | {names.FULL: None}
        panels.append(partial(_divergence, task, shown, largest))
    tasks = values["accuracy"].values()
    return Grid(panels, least=1.0, columns=len(tasks), height=0.6 + ROW * max(map(len, tasks)), share="y")


def _accuracy(task: str, rows: Mapping[str, Any], draws: Mapping[str, Any], chance: float, ax: Axes) -> None:
    _rows(ax, rows, task, "accuracy", "circuit, rest ablated", xlim=(-0.06, 1.06))
    for y, name in enumerate(rows):
        drawn = draws.get(name, ())
        ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8, zorder=1, label="one draw of donors")
    ax.axvline(chance, color="0.6", lw=0.8, ls=":", label="chance")
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])


def _divergence(task: str, rows: Mapping[str, Any], largest: float, ax: Axes) -> None:
    """On a scale that is linear up to 0.1."""
    _rows(ax, rows, task, "KL, nats")
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set_xlim(-0.02, 1.6 * largest)
    ax.set_xticks([0, 0.1, 1, 10], ["0", ".1", "1", "10"])
    ax.minorticks_off()


# ------------------------------------------------------------------------------------------------ maps of edges


def _cells(
    ax: Axes,
    values: NDArray[Any],
    limit: float,
    texts: Mapping[tuple[int, int], str],
    framed: Collection[tuple[int, int]],
    label: str,
    ticks: Sequence[float],
    form: Any = None,
) -> None:
    """A map of colours from -limit to limit, its colour bar below it, and texts in cells; framed: beyond chance."""
    ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), text in texts.items():
        light = abs(np.nan_to_num(values[row, column])) > 0.63 * limit
        cell: dict[str, Any] = {"ha": "center", "color": "white" if light else "black"}
        number, _, below = text.partition("\n")
        ax.text(column, row + 0.04 * bool(below), number, va="bottom" if below else "center", fontsize=6.5, **cell)
        ax.text(column, row + 0.08, below, va="top", fontsize=5, **cell)
        if (row, column) in framed:
            ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, lw=1, ec="black"))
    ax.spines[:].set_visible(True)
    figure = ax.get_figure(root=True)
    assert figure is not None
    colour_bar(figure, [ax], label, location="bottom", aspect=45, pad=0.03, ticks=ticks, format=form)


def edge_map(values: Values) -> Grid:
    """What every type pair costs when it alone is ablated: the colour says nats, the number accuracy.

    The colour is proportional to the square root of nats, so that small costs are seen beside large ones; its bar says
    so. Grey: the interval of nats includes 0. Framed: pairs whose loss of accuracy is beyond chance.
    """
    legend = [Patch(fc="0.9", label="interval of nats includes 0"), _framed("accuracy lost beyond chance")]
    return Grid([partial(_edge_map, values["costs"])], height=2.4, legend=legend)


def _framed(label: str) -> Patch:
    return Patch(fill=False, ec="black", lw=1, label=label)


def _edge_map(costs: Mapping[str, Mapping[str, float]], ax: Axes) -> None:
    shown = np.full((len(SOURCES), len(TARGETS)), np.nan)
    places = {}
    for name, cost in costs.items():
        edge = Edge.of(name)
        places[name] = place = SOURCES.index(edge.source), TARGETS.index((edge.target, edge.relation))
        ax.add_patch(Rectangle((place[1] - 0.5, place[0] - 0.5), 1, 1, fc="0.9", zorder=-1))
        if cost["low"] > 0 or cost["high"] < 0:
            shown[place] = np.sign(cost["log_prob"]) * np.sqrt(abs(cost["log_prob"]))
    limit = float(np.sqrt(max(abs(cost["log_prob"]) for cost in costs.values()))) or 1.0
    texts = {places[name]: short_number(cost["accuracy"]) for name, cost in costs.items()}
    framed = [places[name] for name, cost in costs.items() if cost["p"] < 0.05]
    label = "colour: nats lost (square-root scale)\nnumber: accuracy lost"
    form = FuncFormatter(lambda root, _: f"{np.sign(root) * root**2:.1f}")
    _cells(ax, shown, limit, texts, framed, label, [limit * part for part in (-1, -0.5, 0, 0.5, 1)], form)
    ax.set_yticks(range(len(SOURCES)), SOURCES)
    ax.set_xticks(range(len(TARGETS)), [SHORT.get(name, name) for name, _ in TARGETS])
    for border in (2.5, 6.5, 7.5):
        ax.axvline(border, color="black", lw=0.8)
    for at, name in ((1, "same example"), (4.5, "later example")):
        ax.text(at, -0.62, name, ha="center", va="bottom", fontsize=7)
    ax.set(xlabel="reads", ylabel="is read")


def probes(values: Values) -> Grid | None:
    """Accuracy inside a circuit [edges, donors] where one edge is read from another prompt that keeps some things.

    The colour is the difference from the circuit. Framed: where the accuracy is lower beyond chance. None for values
    without intervals.
    """
    found = values["probes"]
    if "intervals" not in found:
        return None
    legend = [_framed("lower than inside the circuit, beyond chance")]
    return Grid([partial(_probes, found)], height=1.15 + 0.31 * len(found["edges"]), legend=legend)


def _probes(found: Values, ax: Axes) -> None:
    triples = np.array(found["intervals"], dtype=float)
    texts = {}
    for place in np.ndindex(triples.shape[:2]):
        value, low, high = (without_zero(number, 2) for number in triples[place])
        texts[place[0], place[1]] = f"{value}\n[{low}, {high}]"
    framed = [(int(row), int(column)) for row, column in np.argwhere(found["lower"])]
    lost, label = found["inside"][0] - triples[..., 0], "colour: accuracy lost; number: accuracy"
    _cells(ax, lost, 1, texts, framed, label, [-1, -0.5, 0, 0.5, 1])
    ax.set_yticks(range(len(found["edges"])), list(map(arrow, found["edges"])))
    donors = [CORRUPTIONS[number].replace("_", "\n") for number in found["corruptions"]]
    ax.set_xticks(range(len(donors)), donors)
    ax.set_xlabel("the edge is read from")


# ------------------------------------------------------------------------------------------------ a circuit searched


def circuit(values: Values) -> Grid:
    """A circuit of type pairs: drawn, how it was searched, and its score among random circuits.

    A: token types from left to right, kept pairs as arrows, as wide as what each costs alone. B: the same search on a
    model whose circuit is known. C: the costs with their intervals. D: accuracy by pairs left at each step; those put
    back are crosses; with the floor, if it is stored. E: scores on the test split.
    """
    search, planted = values["search"], values["planted"]
    kept = [name for name in search["kept"] if name in values["costs"]]
    costs = {name: [values["costs"][name][end] for end in ("log_prob", "low", "high")] for name in kept}
    found, true = set(planted["kept"]), set(planted["true"])
    wrong = f", {len(found - true)} wrong" if found - true else ""
    titles = "A) what is kept, as wide as C", f"B) planted: {len(found & true)} of {len(true)} found{wrong}"
    nats = {name: triple[0] for name, triple in costs.items()}
    panels: list[Panel] = [
        partial(_type_pairs, titles[0], search["kept"], nats, 2),
        partial(_type_pairs, titles[1], planted["true"], {}, 1, missed=true - found),
        partial(_costs, costs),
        partial(_steps, search["steps"], search.get("floor", np.nan)),
        partial(_scores, search["scores"], search["random"]),
    ]
    low = max(1.5, 0.6 + 0.1 * len(kept))  # of the panel that has a line for each pair
    return Grid(panels, least=1.5, wide=(0, 1), height=[1.2, 1.0, low, low, low])


def _type_pairs(
    title: str, pairs: Sequence[str], nats: Mapping[str, float], examples: int, ax: Axes, missed: Collection[str] = ()
) -> None:
    """Demonstrations and the query, with an arrow wherever a pair is read: within an example below, others above.

    nats: what a pair costs alone, the width of its arrow. examples: how many demonstrations are drawn; one is enough
    for circuits that do not read across them. missed: pairs that are drawn grey.
    """
    slots = [(kind, example) for example in range(1, examples + 1) for kind in "xtyn"]
    place = {slot: number + 0.4 * slot[1] for number, slot in enumerate(slots)}
    end = place["n", examples]
    place |= {("query", examples + 1): end + 1.7, ("last_separator", examples + 1): end + 3.5}  # longer names
    largest = max((nats.get(pair, 0.0) for pair in pairs), default=0.0) or 1.0
    for pair in pairs:
        edge = Edge.of(pair)
        width = THINNEST + (WIDEST - THINNEST) * max(0.0, nats.get(pair, largest / 5)) / largest
        for a, b in ((a, b) for a in place for b in place if (a[0], b[0]) == (edge.source, edge.target)):
            lag = b[1] - a[1]
            if place[a] < place[b] and {"same": lag == 0, "earlier": lag > 0, "any": True}[edge.relation]:
                form = f"simple,tail_width={width},head_width={width + 3},head_length={width + 3}"
                look: dict[str, Any] = {"lw": 0, "color": GREY if pair in missed else BLUE, "alpha": 0.75}
                bent = f"arc3,rad={0.3 if lag == 0 else -0.2}"
                ends = (place[a], 0.0), (place[b], 0.0)
                ax.add_patch(
                    FancyArrowPatch(*ends, connectionstyle=bent, arrowstyle=form, shrinkA=8, shrinkB=8, **look)
                )
    for (kind, example), x in place.items():
        box = {"boxstyle": "round", "fc": "white", "ec": "0.6", "pad": 0.2}
        ax.text(x, 0, SHORT.get(kind, f"${kind}_{example}$"), ha="center", va="center", fontsize=7, bbox=box)
    ax.set(xlim=(min(place.values()) - 0.5, max(place.values()) + 0.7), ylim=(-0.5, 0.85), title=title)
    ax.axis("off")


def _costs(costs: Mapping[str, Sequence[float]], ax: Axes) -> None:
    """What pairs cost alone, those that cost most first."""
    ax.axvline(0, color="0.7", lw=0.7, zorder=0)
    order = sorted(costs, key=lambda name: -costs[name][0])
    _rows(ax, {arrow(name): costs[name] for name in order}, "C) each ablated alone", "nats lost")
    if not order:
        ax.text(0.5, 0.5, "nothing is kept", transform=ax.transAxes, ha="center", fontsize=6)
        ax.set_xticks([])


def _steps(steps: Sequence[tuple[int, float, bool]], floor: float, ax: Axes) -> None:
    for out, form, colour, label in ((True, ".-", RED, "left out"), (False, "x", "black", "put back")):
        shown = np.array([(left, right) for left, right, gone in steps if gone == out], dtype=float).reshape(-1, 2).T
        ax.plot(*shown, form, ms=4, lw=0.8, mew=0.9, color=colour, label=label)
    ax.axhline(floor, color="black", lw=0.7, ls="--", label="floor of the search")
    ax.invert_xaxis()
    ax.set(xlabel="type pairs left", ylabel="accuracy", ylim=(-0.05, 1.05))
    ax.set_title("D) search split", fontsize=7.5)


def _scores(scores: Mapping[str, Any], random: Sequence[float], ax: Axes) -> None:
    shown = {name.replace(" ", "\n", 1): scores[name] for name in (names.FOUND, names.without(names.FOUND))}
    _rows(ax, {**shown, f"{len(random)}\nrandom": None}, "E) test split", "score")
    spread = np.random.default_rng(0).uniform(-0.2, 0.2, len(random))
    ax.plot(random, len(shown) + spread, "o", ms=2.5, color=GREY, alpha=0.7)


# ------------------------------------------------------------------------------------------------ lines


def _whole(ax: Axes, whole: Sequence[float]) -> None:
    """A blue band: the accuracy of the whole model, with its interval."""
    ax.axhspan(whole[1], whole[2], color=BLUE, alpha=0.1, lw=0)
    ax.axhline(whole[0], color=BLUE, lw=0.9, ls=":", label="whole model, 95 %")


def _lines(title: str, x: str, at: Sequence[int], series: Mapping[str, Any], whole: Sequence[float], ax: Axes) -> None:
    """Shares with intervals by whole numbers, a line for each of LOOKS, a little apart. whole: see `_whole`."""
    extent = max(at) - min(at) or 1
    if whole:
        _whole(ax, whole)
    for number, (name, triples) in enumerate(series.items()):
        colour, marker = LOOKS[name]
        shifted = np.array(at) + 0.025 * extent * (number - (len(series) - 1) / 2)
        points(ax, shifted, triples, fmt=f"{marker}-", color=colour, lw=1, elinewidth=0.8, label=name)
    ax.set(xlabel=x, ylabel="accuracy" if whole else "share of prompts", title=title, ylim=(-0.05, 1.08))
    ax.set_xticks(at)
    ax.set_yticks([0, 0.5, 1])


def windows(values: Values) -> Grid:
    """Accuracy with contextualisation removed from a layer on, and aggregation below it, at each of the layers `at`."""
    found, whole = values["windows"], whole_of(values)
    titles = {
        "CONTEXT from": r"A) contextualisation removed, layers $\geq L$",
        "AGG below": "B) aggregation removed, layers $< L$",
    }
    panels = [partial(_lines, text, "L", found["at"], {"ablated": found[name]}, whole) for name, text in titles.items()]
    return Grid(panels, least=2.4, height=1.65, share="y")


def ambiguous(values: Values) -> Grid:
    """By how many demonstrations fit two rules: answers of the rule that only the others show, copies, neither."""
    found = values["ambiguous"]
    titles = {"past": "A) past tense", "copied": "B) the query again", "other": "C) something else"}
    at, x = found["counts"], "ambiguous demonstrations"
    panels = [partial(_lines, text, x, at, found[name], ()) for name, text in titles.items()]
    return Grid(panels, least=1.7, height=1.45, share="y")


# ------------------------------------------------------------------------------------------------ pruning


def _curves(values: Values) -> list[tuple[str, Any]]:
    """What pruning leaves, with the titles of its panels."""
    by_task = values["pruning"]["by_task"]
    curves = [(f"{task}, {sort} units", curve) for task, by_sort in by_task.items() for sort, curve in by_sort.items()]
    return [(f"{letter}) {title}", curve) for letter, (title, curve) in zip(LETTERS, curves, strict=False)]


def pruning(values: Values) -> Grid:
    """Accuracy by units left: on the test split with intervals, on the search split by a thin line.

    Blue: the whole model on the test split, with its interval; dashed: what had to be kept on the search split; a
    vertical line: the result, with the accuracy of random prunings of that size in grey.
    """
    panels = [partial(_pruned, title, curve) for title, curve in _curves(values)]
    return Grid(panels, least=2.4, height=1.6, share="y")


def _pruned(title: str, curve: Mapping[str, Any], ax: Axes) -> None:
    left, result = np.array([*map(int, curve["accuracy"])], dtype=float), curve["result"]
    share = curve["explained"][str(result)]
    none = share[0] is None or np.isnan(share[0])
    kept = "are left: the model answers nothing" if none else f"keep {written(share)}"
    _whole(ax, curve["whole"])
    ax.axhline(curve["floor"], color=RED, lw=0.7, ls="--", label="floor, search split")
    ax.axvline(result, color="0.3", lw=0.7, label="result")
    random = np.full(len(curve["random"]), result), curve["random"]
    ax.plot(*random, "o", ms=2.5, color=GREY, alpha=0.7, label="random, as many left")
    ax.plot(curve["left"], curve["search"], color=RED, lw=0.7, label="search split")
    points(ax, left, curve["accuracy"].values(), fmt="o-", color=RED, lw=1, elinewidth=0.8, label="test split")
    ax.set_xscale("symlog", linthresh=1)
    # at most five of the sizes, the largest and the smallest among them, by equal factors where there are
    wanted = np.geomspace(max(left.min(), 1), max(left.max(), 1), 5)
    ticks = sorted({float(left[np.argmin(np.abs(np.log1p(left) - np.log1p(size)))]) for size in wanted})
    ax.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set(xlim=(1.15 * left.max(), max(0.0, 0.6 * left.min())), ylim=(-0.04, 1.06))
    ax.set(xlabel="units left", ylabel="accuracy", title=f"{title}\n{result} of {curve['units']} {kept}")


def survivors(values: Values) -> Grid:
    """How many units of each kind are left in each layer; of many kinds, those with the fewest share a row."""
    layers = values["windows"]["at"][-1]
    shown = [(title, _kinds(curve["kept"])) for title, curve in _curves(values)]
    panels = [partial(_survivors, title, rows, layers) for title, rows in shown]
    return Grid(panels, least=2.4, height=[0.55 + 0.13 * max(2, len(rows)) for _, rows in shown])


def _kinds(kept: Sequence[str]) -> dict[str, dict[int, int]]:
    """Units by kind, typeset, and layer."""
    by_kind = list(kinds(kept).items())
    named = by_kind if len(by_kind) <= LARGEST_KINDS else by_kind[: LARGEST_KINDS - 1]
    rows, others = {arrow(kind): counts for kind, counts in named}, by_kind[len(named) :]
    if others:
        together: dict[int, int] = {}
        for layer, count in (item for _, counts in others for item in counts.items()):
            together[layer] = together.get(layer, 0) + count
        rows[f"{len(others)} others"] = together
    return rows


def _survivors(title: str, rows: Mapping[str, Mapping[int, int]], layers: int, ax: Axes) -> None:
    ax.set_title(title)
    if not rows:
        ax.text(0.5, 0.5, "no unit is left", transform=ax.transAxes, ha="center", va="center", fontsize=6.5)
        ax.set(xticks=[], yticks=[])
        return
    counts = np.array([[by_layer.get(layer, 0) for layer in range(layers)] for by_layer in rows.values()])
    across, top = room(ax)[0] - LABELS, 2.2 * np.sqrt(counts.max())
    image = ax.imshow(np.sqrt(counts), cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    printed = {(int(x), int(y)): str(counts[y, x]) for y, x in np.argwhere(counts)}
    print_in_cells(image, {place: text for place, text in printed.items() if DIGIT * len(text) < 72 * across / layers})
    ax.set_yticks(range(len(rows)), list(rows), fontsize=6.5)
    ax.set_xticks(count_ticks(layers, max(2, int(across / TICK))))
    ax.set_xlabel("layer")
    ax.spines[:].set_visible(True)
