"""The figure of edge ablation: settings, sentences, tables and pictures, of its numbers (Bakalova et al., COLM 2025).

The figures of the paper were not available to us: none of these has an arrangement of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import combinations
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from pydantic import AfterValidator, BeforeValidator

from util.edges.edge import (
    AGG_ONLY,
    ALONE,
    CTX_AGG,
    CTX_IO_AGG,
    FAMILIES,
    FOUND,
    FULL,
    NONE,
    QUERY_ONLY,
    TYPE_PAIRS,
    Edge,
    at_layer,
    without,
)
from util.figures.edge_ablation import numbers
from util.prompts import word_pairs
from util.prompts.word_pairs import CORRUPTIONS, LAYOUTS
from util.show.draw import BLUE, GREY, RED, Floats, Grid
from util.show.panels import colour_bar, colour_limit, ink, intervals, name_rows, points, short_number
from util.show.part import CLAIMS, Figure, Part, Values, in_words, listed, none_or, say, sign, title, written
from util.study.checked import AsList, AtLeastTwo, Count, Counts, Distinct, Natural, Share, Text, checked

PRIMARY, PRUNED = "capitalization", ("copying", "capitalization")
Task = Annotated[Text, AfterValidator(lambda name: word_pairs.find(name).name)]  # which names all tasks in its error
Tasks = Annotated[tuple[Task, ...], AsList, Distinct]
Seeds = Annotated[tuple[Natural, ...], AsList, Distinct]
Layout = Annotated[  # a name, or fields of `prompts.prompt.Layout`
    Mapping[Literal["separator", "join", "end", "header"], str],
    BeforeValidator(lambda value: asdict(LAYOUTS[value]) if isinstance(value, str) and value in LAYOUTS else value),
]

SOURCES = [*dict.fromkeys(edge.source for edge in TYPE_PAIRS)]
TARGETS = [*dict.fromkeys((edge.target, edge.relation) for edge in TYPE_PAIRS)]
COLOURS = {FULL: BLUE, ALONE: GREY}  # of ablations; all others are red
IN_WORDS = {
    FULL: "whole model",
    CTX_AGG: "with contextualisation",
    CTX_IO_AGG: "inputs and outputs",
    AGG_ONLY: "no contextualisation",
    QUERY_ONLY: "query alone is read",
    NONE: "nothing is read",
    ALONE: "bare query",
}
ARROW: dict[str, Any] = {"arrowstyle": "-|>", "color": BLUE, "mutation_scale": 8, "shrinkA": 8, "shrinkB": 8}


@checked
class Settings:
    """What is measured, see notebook 04.

    tasks: in which circuits are compared, see `runs.Draw`; primary_task: one of them, of the map, the search, the
    windows and the probes, by default PRIMARY, else the first. k: demonstrations; prompts: of each task; donor_seeds:
    draws of donors. random_circuits: with as many type pairs, or units, as the one found. corruptions: of the probes,
    from 1 on, by default all that the primary task has. pruned_tasks: in which heads and edges are pruned, by default
    PRUNED, where tasks have none of these the primary task; search_prompts: on which they are scored; per_round: the
    share of the living units that goes in a round.
    layout: see `runs.Draw`. untrained_control: also the untrained twin, a second model in memory.
    """

    tasks: Tasks = word_pairs.TASKS
    primary_task: Task | None = None
    k: Count = 10
    prompts: AtLeastTwo = 32  # an interval needs two
    seed: Natural = 0
    donor_seeds: Seeds = (0, 1, 2)
    random_circuits: Natural = 20
    corruptions: Counts | None = None
    pruned_tasks: Tasks | None = None
    search_prompts: Count = 64
    per_round: Share = 0.2
    layout: Layout | None = None
    untrained_control: bool = True

    def __post_init__(self) -> None:
        primary = self.primary_task or (PRIMARY if PRIMARY in self.tasks else self.tasks[0])
        pruned = self.pruned_tasks or (PRUNED if {*PRUNED} & {*self.tasks} else (primary,))
        probed = self.corruptions or word_pairs.find(primary).corruptions[1:]
        vars(self).update(primary_task=primary, pruned_tasks=pruned, corruptions=probed)
        if primary not in self.tasks:
            raise ValueError(f"tasks = {list(self.tasks)}: the primary task, {primary!r}, is to be one")


def in_text(edge: str) -> str:
    """The name of an edge in a sentence: y → last separator."""
    return edge.replace("->", " → ").replace("_", " ")


def setting(values: Values, task: str = "") -> str:
    """What titles say of prompts: model, task (the primary one by default), demonstrations, prompts, donors."""
    request = values["request"]
    donors = ", ".join(map(str, request["donor_seeds"]))
    extent = f"{request['k']} demonstrations, {request['prompts']} prompts, donors {donors}"
    return f"{title(values)}, {task or request['primary_task']}, {extent}"


# ------------------------------------------------------------------------------------------------ circuits


def done(values: Values) -> list[str]:
    """The tasks in which the whole model is above chance."""
    return [
        task
        for task, row in values["accuracy"].items()
        if row[FULL][1] > values["chance"][task] and pd.notna(values["scores"][task][CTX_AGG][0])
    ]


def circuits_say(values: Values) -> Iterator[str]:
    """Where accuracy falls significantly, by paired tests, the primary endpoint, and the untrained twin beside it.

    Of other tasks nothing is said: so few queries do not show small losses. The claims have more.
    """
    falls = []
    for circuit, what in (
        (QUERY_ONLY, "with the query alone"),
        (AGG_ONLY, "without contextualisation"),
    ):
        if lost := values["sure losses"][circuit]:
            most = max(lost, key=lambda task: lost[task][0])
            tasks = say("{lost} of {n} {n:task|tasks}", lost=len(lost), n=len(values["accuracy"]))
            falls.append(f"{what} ({circuit}) in {tasks}, by up to {written(lost[most])} in {most}")
    yield f"Accuracy falls significantly {'; '.join(falls)}" if falls else ""
    able = done(values)
    for name in (CTX_AGG, AGG_ONLY):
        scores = [f"{written(values['scores'][task][name])} in `{task}`" for task in able]
        none = "none, since no task is done"
        yield f"Primary endpoint, the score of `{name}`: {listed(scores) or none}."
    if undone := [f"`{task}`" for task in values["scores"] if task not in able]:
        why = "the whole model is not above chance, or `NONE` does as well"
        yield f"Not done, and so without a score: {listed(undone)}, where {why}."
    yield from (f"Left out: {why}." for why in values.get("left out", {}).values())
    for rows in values["models"].values():
        best = max(rows, key=lambda name: rows[name][0])
        task = values["request"]["primary_task"]
        yield f"Untrained twin, {task}: accuracy {written(rows[best])} at most (in {best})."


def circuits_table(values: Values) -> pd.DataFrame:
    """One line for each task and circuit: accuracies and score."""
    lines, able = {}, done(values)
    for task, row in values["accuracy"].items():
        for name, right in row.items():
            lines[task, name] = {"first token": written(right)}
            if name != ALONE:
                line, begins = (f"{share:.2f}" for share in values["written"][task][name])
                score = written(values["scores"][task][name]) if task in able else "not done"
                lines[task, name] |= {"line": line, "begins": begins, "score": score}
    return pd.DataFrame.from_dict(lines, orient="index").fillna("").rename_axis(["task", "circuit"])


# ------------------------------------------------------------------------------------------------ edges and circuits


def map_say(values: Values) -> Iterator[str]:
    """How many edges significantly lower accuracy, and which costs most nats."""
    costs = values["costs"]
    dear = [name for name, cost in costs.items() if cost["p"] < 0.05 and cost["accuracy"] > 0]
    dear.sort(key=lambda name: -costs[name]["log_prob"])
    cost = [costs[dear[0]][name] for name in ("log_prob", "low", "high")] if dear else []
    text = (
        "ablated alone, {n} of {of} type pairs significantly {n:lowers|lower} accuracy; {most} costs most: {cost} nats"
    )
    yield say(text, n=len(dear), of=len(costs), most=in_text(dear[0]), cost=cost) if dear else ""


def circuit_say(values: Values) -> Iterator[str]:
    """The score of the circuit beside random ones, its pairs, and how far the search can be trusted."""
    search, planted, task = values["search"], values["planted"], values["request"]["primary_task"]
    kept, random = search["kept"], search["random"]
    score, others = (search["scores"][name] for name in (FOUND, without(FOUND)))
    if pd.notna(score[0]):
        clauses = [*_same_last_reads(search["aggregating"], score[1])]
        clauses += [f"of {len(random)} random circuits as large the best keeps {max(random):.2f}"] if random else []
        text = "{n} of {of} type pairs {n:keeps|keep} {score} of the performance"
        yield "; ".join([say(text, n=len(kept), of=len(TYPE_PAIRS), score=score), *clauses[:1]])
        yield from (say(f"{clause}.") for clause in clauses[1:])
        pairs = listed([f"`{edge}`" for edge in kept]) or "nothing"
        yield f"For `{task}` the search keeps {pairs}; all pairs but these score {written(others)}."
        if kept and not {*kept} & {*map(str, FAMILIES["CONTEXT"])}:
            yield "No pair among these contextualises."
        claims = values.get("claims", {})
        by_draw = claims.get("kept by draw")
        if by_draw and claims["settings"]["primary"] == task:
            always = listed([f"`{edge}`" for edge in kept if all(edge in pairs for pairs in by_draw)])
            others = Counter(edge for pairs in by_draw for edge in pairs if edge not in kept)
            beside = listed([f"`{edge}` ({count} of {len(by_draw)})" for edge, count in others.items()])
            yield (
                f"On other prompts, with {in_words(len(by_draw))} draw{'s' * (len(by_draw) > 1)} of donors, the search "
                f"always keeps {always or 'none of these'}{f', and of other pairs {beside}' if beside else ''}."
            )
    else:
        yield ""
        yield f"No circuit of `{task}` has a score: no edges make the whole model answer better."
    refound = len({*planted["kept"]} & {*planted["true"]})
    yield (
        f"On a model whose circuit is known the search finds {refound} of {len(planted['true'])} pairs, and "
        f"{len(planted['kept']) - refound} others."
    )


def _same_last_reads(scores: Mapping[str, float], as_much: float) -> Iterator[str]:
    """How many random circuits with the same reads of the last token keep at least so much, and what these share."""
    same = {pairs: score for pairs, score in scores.items() if score >= as_much}
    rest = [score for pairs, score in scores.items() if pairs not in same]
    if scores:
        at_most = f"{', the others' if same else ':'} {max(rest):.2f} at most" if rest else ""
        keep = f"{'keeps' if len(same) == 1 else 'keep'} {f'{min(same.values()):.2f} or more' if same else 'as much'}"
        count = f"{none_or(len(same))} of {len(scores)} random circuits"
        yield f"{count} with its reads of the last token {keep}{at_most}"
    if same:
        shared = sorted(set.intersection(*({*pairs.split(", ")} for pairs in same)))
        yield f"what these have in common beside: {listed([f'`{pair}`' for pair in shared]) or 'nothing'}"


def windows_say(values: Values) -> Iterator[str]:
    """From which layer on accuracy falls significantly."""
    at, lost, falls = values["windows"]["at"], values["windows"]["lost"], []
    for text, window, layers in (
        ("aggregation is removed below layer {}", "AGG below", at),
        ("contextualisation is removed from layer {} on", "CONTEXT from", at[::-1]),
    ):
        sure = [layer for layer in layers if at_layer(window, layer) in lost]
        falls += [f"{text.format(layer)} (by {written(lost[at_layer(window, layer)])})" for layer in sure[:1]]
    yield f"Accuracy falls significantly where {', '.join(falls)}" if falls else ""


def probes_say(values: Values) -> Iterator[str]:
    """Which edges carry what donors change, and how exact the cells are."""
    probes = values["probes"]
    cells, lower = np.array(probes["intervals"], dtype=float), np.array(probes["lower"])
    carry = [in_text(edge) for edge, cell in zip(probes["edges"], lower, strict=True) if cell.any()]
    row, column = np.unravel_index(np.argmin(np.where(lower, cells[..., 0], np.inf)), lower.shape)
    text = "{n} of {of} edges {n:carries|carry} what donors change ({carry}): accuracy falls to {cell} ({donor})"
    donor, cell = CORRUPTIONS[probes["corruptions"][column]].replace("_", " "), cells[row, column].tolist()
    yield say(text, n=len(carry), of=len(lower), carry=carry, cell=cell, donor=donor) if carry else ""
    yield f"95 % intervals of the cells (Wilson): +- {np.max(cells[..., 2] - cells[..., 1]) / 2:.2f} or less."


# ------------------------------------------------------------------------------------------------ pruning


def pruning_table(values: Values) -> pd.DataFrame:
    """What is left by task and sort of units, and what it answers, beside the whole model and random prunings."""
    rows = {
        (task, f"{sort} units"): {
            "at first": left["units"],
            "left": left["result"],
            "accuracy": written(left["accuracy"][str(left["result"])]),
            "of the whole": written(share) if pd.notna((share := left["explained"][str(left["result"])])[0]) else "",
            "whole model": written(left["whole"]),
            "best of random": f"{max(left['random']):.2f}" if left["random"] else "",
        }
        for task, by_sort in values["pruning"]["by_task"].items()
        for sort, left in by_sort.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def pruning_say(values: Values) -> Iterator[str]:
    """What few units keep, where that is more than any random ones do."""
    every = [left for by_sort in values["pruning"]["by_task"].values() for left in by_sort.values()]
    random = [max(left["random"], default=1.0) for left in every]
    explained = [left["explained"][str(left["result"])][0] for left in every]
    low = [left["accuracy"][str(left["result"])][1] for left in every]
    if not np.greater(low, random).all() or pd.isna(explained).any():
        yield ""
        return
    share = np.ceil(max(100 * left["result"] / left["units"] for left in every))
    yield (
        f"At most {share:.0f} % of the units keep {min(explained):.2f} to {max(explained):.2f} of the accuracy; as "
        f"many random units answer {max(random):.2f} right at most"
    )


def probes_about(values: Values) -> str:
    inside = written(values["probes"]["inside"])
    return f"accuracy inside {CTX_AGG} (nothing exchanged: {inside}); {setting(values)}"


# ------------------------------------------------------------------------------------------------ pictures


def short(name: str) -> str:
    """A type of tokens as it is typeset."""
    return f"${name}$" if len(name) == 1 else name.removesuffix("_separator")


def arrow(edge: str) -> str:
    """An edge as it is typeset: x, an arrow and y, and its relation in brackets."""
    pair, _, relation = edge.partition(":")
    return r" $\to$ ".join(map(short, pair.split("->"))) + (f" ({relation})" if relation else "")


def circuits_panels(values: Values) -> Grid:
    """Accuracy by task and circuit; dotted: chance."""
    return Grid([partial(_accuracy, values, task) for task in values["accuracy"]], least=1.0, height=2.6, share="y")


def _accuracy(values: Values, task: str, ax: Axes) -> None:
    accuracy = values["accuracy"][task]
    name_rows(ax, [f"{IN_WORDS[name]}\n{name}" for name in accuracy], zero=False)
    for row, name in enumerate(accuracy):
        intervals(ax, [accuracy[name]], row, COLOURS.get(name, RED), hollow=False)
    ax.axvline(values["chance"][task], color="0.6", lw=0.8, ls=":", label="chance")
    ax.tick_params(axis="y", labelsize=6.5)
    ax.set(xlim=(-0.06, 1.06), xticks=[0, 0.5, 1], xlabel="accuracy")
    undone = "" if task in done(values) else "\nnot done"
    ax.set_title(f"{task.replace('_', ' ')}{undone}", fontsize=7)


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
    figure: Any = ax.get_figure(root=True)
    colour_bar(figure, [ax], label, location="bottom", aspect=45, pad=0.03, **bar)


def _framed(label: str) -> list[Patch]:
    return [Patch(fill=False, ec="black", label=label)]


def map_panels(values: Values) -> Grid:
    """What every type pair costs when it alone is ablated: the colour says nats, the number accuracy.

    Losses of accuracy that round to 0 are left out. Coloured are pairs with either loss, by an interval of nats that
    excludes 0 or by accuracy, framed those with the latter. The scale is that of asinh, so that small costs are seen.
    """
    return Grid([partial(_edge_map, values["costs"])], height=2.4, legend=_framed("accuracy lost significantly"))


def _edge_map(costs: Values, ax: Axes) -> None:
    nats, right, p = np.full((3, len(SOURCES), len(TARGETS)), np.nan)
    for edge in TYPE_PAIRS:
        cost = costs[str(edge)]
        place = SOURCES.index(edge.source), TARGETS.index((edge.target, edge.relation))
        sure = sign((cost["log_prob"], cost["low"], cost["high"])) != 0 or cost["p"] < 0.05
        nats[place], p[place] = cost["log_prob"] * sure, cost["p"]
        right[place] = cost["accuracy"] if abs(cost["accuracy"]) >= 0.005 else np.nan
    limit = colour_limit(nats)
    label = "colour: nats lost, where either loss is significant\nnumber: accuracy lost"
    ticks = [limit * part for part in (-1, -0.1, 0, 0.1, 1)]
    _cells(
        ax,
        nats,
        AsinhNorm(limit / 40, -limit, limit),
        right,
        (p < 0.05) & (right > 0),
        label,
        ticks=ticks,
        format="%.1f",
    )
    ax.set_yticks(range(len(SOURCES)), [*map(short, SOURCES)])
    ax.set_xticks(range(len(TARGETS)), [short(name) for name, _ in TARGETS])
    for border in (2.5, 6.5, 7.5):
        ax.axvline(border, color="black", lw=0.8)
    for at, name in ((1, "same example"), (4.5, "later example")):
        ax.text(at, -0.62, name, ha="center", va="bottom", fontsize=7)
    ax.set(xlabel="reads", ylabel="is read")


def probes_panels(values: Values) -> Grid:
    """Accuracy inside a circuit [edges, donors] where one edge is read from another prompt that keeps some things.

    The colour is the difference from the circuit. Framed: where the accuracy is significantly lower.
    """
    legend = _framed("significantly lower than inside the circuit")
    return Grid([partial(_probes, values["probes"])], height=2.6, legend=legend)


def _probes(probes: Values, ax: Axes) -> None:
    right = np.array(probes["intervals"], dtype=float)[..., 0]
    label = "colour: accuracy lost; number: accuracy"
    _cells(ax, probes["inside"][0] - right, Normalize(-1, 1), right, probes["lower"], label)
    ax.set_yticks(range(len(right)), [*map(arrow, probes["edges"])])
    donors = [CORRUPTIONS[number].replace("_", "\n") for number in probes["corruptions"]]
    ax.set_xticks(range(len(donors)), donors)
    ax.set_xlabel("the edge is read from")


def circuit_panels(values: Values) -> Grid:
    """A circuit of type pairs; its score among random circuits is in the title."""
    return Grid([partial(_type_pairs, values["search"]["kept"])], height=1.2)


def _type_pairs(pairs: Sequence[str], ax: Axes) -> None:
    """Two demonstrations and the query, an arrow wherever a pair is read: within an example below, others above."""
    places = [(kind, example, x + 0.4 * example) for example in (1, 2) for x, kind in enumerate("xtyn", 4 * example)]
    places += [("query", 3, 13.5), ("last_separator", 3, 15.3)]  # longer names
    kept = {(edge.source, edge.target, edge.relation) for edge in map(Edge.of, pairs)}
    for (source, example, start), (target, other, end) in combinations(places, 2):
        relation, bent = ("same", 0.3) if example == other else ("earlier", -0.2)
        if kept & {(source, target, relation), (source, target, "any")}:
            ax.add_patch(FancyArrowPatch((start, 0), (end, 0), connectionstyle=f"arc3,rad={bent}", **ARROW))
    for kind, example, x in places:
        box = {"boxstyle": "round", "fc": "white", "ec": "0.6", "pad": 0.2}
        text = f"${kind}_{example}$" if len(kind) == 1 else short(kind)
        ax.text(x, 0, text, ha="center", va="center", fontsize=7, bbox=box)
    ax.set(xlim=(places[0][2] - 0.5, places[-1][2] + 0.7), ylim=(-0.5, 0.85))
    ax.axis("off")


def windows_panels(values: Values) -> Grid:
    """Accuracy with contextualisation removed from a layer on, and aggregation below it, at each of the layers `at`."""
    titles = {
        "CONTEXT from": r"A) contextualisation removed, layers $\geq L$",
        "AGG below": "B) aggregation removed, layers $< L$",
    }
    panels = [partial(_window, values, name, title) for name, title in titles.items()]
    return Grid(panels, least=2.4, height=1.65, share="y")


def _window(values: Values, name: str, title: str, ax: Axes) -> None:
    """Accuracy by layer; a blue band: that of the whole model, with its interval."""
    windows = values["windows"]
    whole, low, high = values["accuracy"][values["request"]["primary_task"]][FULL]
    ax.axhspan(low, high, color=BLUE, alpha=0.1, lw=0)
    ax.axhline(whole, color=BLUE, lw=0.9, ls=":", label="whole model, 95 %")
    points(ax, windows["at"], windows[name], fmt="o-", color=RED, label="ablated")
    ax.set(xlabel="layer $L$", ylabel="accuracy", title=title, ylim=(-0.05, 1.08), xticks=windows["at"])


FIGURE = Figure(
    "edge_ablation",
    Settings,
    {
        "circuits": Part(
            numbers.circuits, "circuits", circuits_say, lambda values: setting(values, "each task") + "; bars: 95 %",
            circuits_panels, circuits_table,
        ),
        "map": Part(
            numbers.single, "single", map_say, lambda values: f"{setting(values)}, search split", map_panels
        ),
        "circuit": Part(numbers.verified, "verified", circuit_say, setting, circuit_panels),
        "windows": Part(numbers.windows, "by_layer", windows_say, setting, windows_panels, needs=("circuits",)),
        "pruning": Part(numbers.pruning, "pruned", pruning_say, table=pruning_table),
        "probes": Part(numbers.probes, "probed", probes_say, probes_about, probes_panels),
        "claims": CLAIMS,
    },
    ("circuits", "map", "circuit", "windows", "pruning", "probes", "claims"),
)  # fmt: skip
