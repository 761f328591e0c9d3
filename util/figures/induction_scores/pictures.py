"""The pictures of induction heads and of what tasks lose without them, beside what Crosbie & Shutova (2024) report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from util.figures.induction_scores import published
from util.figures.induction_scores.edits import Group
from util.figures.induction_scores.vector_sets import COPIES, FUNCTION_VECTOR, INDUCTION, PAIRS
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.draw import Grid, Panel, name_beside
from util.show.panels import heads, intervals, name_at_right, points, short_number, token_grid, triples, without_zero
from util.show.part import Values
from util.show.style import BLUE, GREY, PALE_RED, RED, ROLES
from util.stats.heads import Head, head_name, top
from util.stats.intervals import Interval

Rows = Mapping[str, Sequence[float]]  # by name: value, low, high
MOST_HEADS = 8  # of the chosen ones, that the picture of the mechanism has bars for
ROW = 0.2  # inches: the height of a row
DRAW = re.compile(r"(, control)? \d+$")  # what the names of draws of a control end with
COLOURS = {  # of rows by name; ablations are red
    Group.WHOLE.value: BLUE,
    Group.KNOCKED_OUT.value: PALE_RED,
    **{group.value: GREY for group in (Group.LAYER_MATCHED, Group.RANDOM_KEYS, Group.PREVIOUS_PART)},
}
DIAMOND: dict[str, Any] = {"marker": "D", "mfc": "none", "ms": 3.2, "mew": 0.8}
HERE = Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label="here (95 %)")
CONTROLS = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets, here")
CHANCE = Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance")
PUBLISHED = Line2D([], [], color="black", ls="", **DIAMOND, label="published, Llama-3-8B, 1 % of heads")
RINGS = {  # marker, role and size
    INDUCTION: ("o", ROLES["induction"].colour, 4.5),
    FUNCTION_VECTOR: ("s", ROLES["function vector"].colour, 7.5),
}


def chosen_of(values: Values) -> list[Head]:
    """The chosen heads of stored values."""
    return [(layer, head) for layer, head in values["chosen"]]


def ablated_of(values: Values) -> str:
    """How values call the ablation of the chosen heads."""
    return f"top {len(values['chosen'])} ablated"


def _rings(ax: Axes, at: Any, kind: str, label: str = "_") -> None:
    """Mark heads of a kind at x and y, so that they are seen on dark cells, too."""
    marker, colour, size = RINGS[kind]
    halo = [withStroke(linewidth=2.2, foreground="white")]
    ax.plot(*at, marker, mfc="none", mec=colour, ms=size, mew=0.9, path_effects=halo, label=label)


# ------------------------------------------------------------------------------------------------ heads


def scores(values: Values) -> Grid:
    """A: the scores of all heads. B: the best."""
    found = values["scores"]
    return Grid([partial(_map, found=found), partial(_best, found=found)], least=2.4, height=2.1)


def _map(ax: Axes, found: Values) -> None:
    heads(ax, found["mean"], (0, 1), "A) all heads", bar="prefix-matching score")


def _best(ax: Axes, found: Values) -> None:
    """The best 16 heads, lines at the bound of induction heads, uniform attention and the best untrained head."""
    strongest = top(np.array(found["mean"], dtype=float), min(16, np.size(found["mean"])))
    value, low, high = np.array(triples(found, strongest, "mean")).T
    colours = np.where(value >= INDUCTION_HEAD, BLUE, "0.7")
    ends, look = np.abs([low - value, high - value]), {"lw": 0.9, "capsize": 2}
    bars = ax.bar(range(len(value)), value, 0.7, yerr=ends, color=colours, error_kw=look)
    counted = [short_number(score) if score >= INDUCTION_HEAD else "" for score in value]
    ax.bar_label(bars, counted, padding=2, rotation=90, fontsize=6)
    levels = {f"{INDUCTION_HEAD}: counts": (INDUCTION_HEAD, "black"), "uniform": (float(found["uniform"]), "black")}
    if found["untrained"] is not None:
        levels["untrained"] = (float(np.max(found["untrained"])), "0.4")
    for (level, colour), dashes in zip(levels.values(), ("--", ":", "-"), strict=False):
        ax.axhline(level, color=colour, lw=0.8, ls=dashes)
    ax.set_xticks(range(len(value)), list(map(head_name, strongest)), rotation=90, fontsize=6.5)
    ax.set(ylim=(0, 1.25), yticks=(0, 0.5, 1), ylabel="prefix-matching score", title="B) the best heads")
    name_at_right(ax, levels, 0.085)


def companions(values: Values) -> Grid:
    """What heads attend to, and what they write: shares from 0 to 1, and logits, whose scale is symmetric about 0."""
    panels = [
        partial(_companion, values=values, name=name, score=np.array(score, dtype=float))
        for name, score in values["companions"].items()
    ]
    note = "rings: the best induction heads; below a name: the highest head"
    return Grid(panels, least=1.5, height=1.55, columns=3, x=note)


def _companion(ax: Axes, values: Values, name: str, score: Any) -> None:
    shown = "none for this class"
    if name in values["highest"]:
        head, value, *ends = values["highest"][name]
        low_high = "" if None in ends else f" [{', '.join(map(short_number, ends))}]"  # weights have none
        shown = f"{head_name(tuple(head))} {short_number(value)}{low_high}"
    heads(ax, score, None if name == "attribution" else (0, 1), f"{name}\n{shown}", bar="")
    _rings(ax, np.array(values["chosen"]).T, INDUCTION)


def pattern(values: Values) -> Grid:
    """The tokens of a prompt, shaded by the attention that the best head gives them."""
    found = values["pattern"]
    names = [f"{head_name(tuple(found['head']))} from {place}" for place in found["from"]]
    return token_grid(found["tokens"], np.array(found["rows"]), names, found["queries"])


def mechanism(values: Values) -> Grid:
    """The scores of the chosen heads, of the best eight if there are more, by what is removed."""
    return Grid([partial(_needs, values=values)], height=2.3)


def _needs(ax: Axes, values: Values) -> None:
    chosen = chosen_of(values)[:MOST_HEADS]
    scores = values["mechanism"]["left"].values()  # the whole model's first
    left = [[Interval(*triple) for triple in of_heads[: len(chosen)]] for of_heads in scores]
    x, width = np.arange(len(chosen)), 0.8 / len(left)
    looks = {0: ("whole model", BLUE), 1: ("without previous-token heads", RED)}
    for number, found in enumerate(left):
        label, colour = looks.get(number, ("without as many others", GREY))
        at = x + (number + 0.5) * width - 0.4
        ax.bar(at, [score.value for score in found], width, color=colour, edgecolor="white", lw=0.5, label=label)
        points(ax, at, found, fmt="none", color="black", lw=0.7)
    ax.set_xticks(x, map(head_name, chosen), rotation=60 if len(chosen) > 4 else 0)
    ax.set(ylim=(0, 1.05), yticks=(0, 0.5, 1), ylabel="prefix-matching score", xlabel="the best induction heads")


# ------------------------------------------------------------------------------------------------ rows of shares


def row_panel(
    ax: Axes, rows: Rows, heading: str, label: str, chance: float | None, reported: Mapping[str, float]
) -> None:
    """Shares by name, each with its interval and its value beside it, and all draws of a control in one row.

    chance: of guessing, where it is known; reported: what a paper reports of another model. Only the panels at the left
    have the names.
    """
    if chance is not None:
        ax.axvline(chance, color="0.6", lw=0.8, ls=":")
    names = row_names(rows)
    for y, name in enumerate(names):
        colour = COLOURS.get(name, RED)
        drawn = [triple[0] for draw, triple in rows.items() if draw != name and DRAW.sub("", draw) == name]
        ax.plot(drawn, np.full(len(drawn), y), "|", color=GREY, ms=7, mew=0.8)
        if name in reported:
            ax.plot(reported[name], y + 0.28, color=colour, **DIAMOND)
        if name in rows:
            intervals(ax, [rows[name]], y, colour, size=3, hollow=False)
            ax.annotate(without_zero(rows[name][0], 2), (1.09, y), fontsize=6, va="center", annotation_clip=False)
    ax.set(xlim=(-0.03, 1.05), ylim=(len(names) - 0.5, -0.5), xlabel=label)
    ax.set_title(heading, fontsize=7)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    place = ax.get_subplotspec()
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(labelleft=place is None or place.is_first_col())


def row_names(rows: Rows) -> list[str]:
    """The names of the rows that draws stand in, too."""
    return list(dict.fromkeys(DRAW.sub("", name) for name in rows))


# ------------------------------------------------------------------------------------------------ tasks


def _reported(values: Values, name: str, shots: int) -> dict[str, float]:
    """What the paper reports in the same place, by the names of rows here."""
    task, _, unrelated = name.partition(", ")
    known = published.accuracies(task, shots, bool(unrelated))
    return {ablated_of(values) if of is Group.ABLATED else of.value: share for of, share in known.items()}


def ablation(values: Values) -> Grid:
    """A panel for each task with ablations."""
    measured = {task: rows for task, rows in values["accuracy"].items() if ablated_of(values) in rows}
    reported = {task: _reported(values, task, values["request"]["k"]) for task in measured}
    panels = [
        partial(
            row_panel, rows=rows, label="accuracy", chance=1 / len(label_space(task)), reported=reported[task],
            heading=task.replace("_", "\n") + ("" if task in values["done"] else "\n(not done)"),
        )
        for task, rows in measured.items()
    ]  # fmt: skip
    height = 0.6 + ROW * len(row_names(values["accuracy"][values["primary"]["task"]]))
    return Grid(
        panels, height=height, legend=[CONTROLS, HERE, *[PUBLISHED] * any(reported.values()), CHANCE], least=1.25
    )


def shots(values: Values) -> Grid | None:
    """A panel for each task with ablations, by the number of demonstrations."""
    found, ablated = values["benefits"], ablated_of(values)
    measured = {
        name: {k: row["accuracy"] for k, row in rows.items()}
        for name, rows in found["accuracy by shots"].items()
        if ablated in rows[max(rows, key=int)]["accuracy"]
    }
    if not measured:
        return None
    there = {name: [_reported(values, name, int(k)) for k in rows] for name, rows in measured.items()}
    panels = [
        partial(
            _by_shots, name=name, here=here, there=there[name], chance=found["tasks"][name]["chance"],
            lines=(Group.WHOLE.value, ablated, Group.KNOCKED_OUT.value),
        )
        for name, here in measured.items()
    ]  # fmt: skip
    legend = [HERE, *[PUBLISHED] * any(map(any, there.values())), CHANCE]
    return Grid(panels, height=1.7, share="y", legend=legend, least=1.3)


def _by_shots(
    ax: Axes, name: str, here: Mapping[str, Rows], there: Sequence[Mapping[str, float]], lines: Any, chance: float
) -> None:
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    for number, row in enumerate(lines):
        colour = COLOURS.get(row, RED)
        measured = [(x + 0.1 * number, Interval(*rows[row])) for x, rows in enumerate(here.values()) if row in rows]
        if measured:
            points(ax, *zip(*measured, strict=True), fmt="o-", color=colour, label=row)
        known = [(x, shares[row]) for x, shares in enumerate(there) if row in shares]
        if known:
            ax.plot(*zip(*known, strict=True), color=colour, lw=0.6, ls=":", **DIAMOND)
    ax.set_xticks(range(len(here)), list(here))
    ax.set(xlim=(-0.6, len(here) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1))
    ax.set(xlabel="demonstrations", ylabel="accuracy")
    ax.set_title(name.replace("_", " "), fontsize=7)


# ------------------------------------------------------------------------------------------------ function vectors


def function_vectors(values: Values) -> Grid:
    """A: prefix matching against AIE. B: the map of AIE. C: what is answered right, by what is ablated."""
    found = values["function vectors"]
    panels: list[Panel] = [partial(_scatter, values=values), partial(_effects, found=found)]
    for measure, rows in found["accuracy"].items():
        heading = f"{'C) ' * (len(panels) == 2)}{measure.replace('_', ' ')}\n{found['asked'][measure]}"
        chance = None if measure in (PAIRS, COPIES) else found["classification"]["chance"]
        panels.append(partial(row_panel, rows=rows, heading=heading, label="share right", chance=chance, reported={}))
    heights = [2.3, 2.3, *(0.7 + ROW * len(row_names(rows)) for rows in found["accuracy"].values())]
    return Grid(panels, least=2.4, columns=2, height=heights, legend=[CONTROLS, HERE, CHANCE])


def _scatter(ax: Axes, values: Values) -> None:
    """All heads by both scores; the best of either kind are marked, those by AIE with intervals and names."""
    matching, found = np.array(values["scores"]["mean"], dtype=float), values["function vectors"]
    effect = np.array(found["AIE"]["mean"], dtype=float)
    ax.plot(matching.ravel(), effect.ravel(), ".", color="0.7", ms=4)
    for kind, by in ((INDUCTION, "prefix matching"), (FUNCTION_VECTOR, "AIE")):
        places = tuple(np.array(found["sets"][kind]).T)
        _rings(ax, (matching[places], effect[places]), kind, f"best by {by}")
    best = [(layer, head) for layer, head in found["sets"][FUNCTION_VECTOR]]
    x = [float(matching[head]) for head in best]
    spread = [Interval(*triple) for triple in triples(found["AIE"], best, "mean")]
    points(ax, x, spread, fmt="none", color=RINGS[FUNCTION_VECTOR][1], lw=0.7)
    name_beside(ax, {head_name(head): (float(matching[head]), float(effect[head])) for head in best[:3]})
    ax.axhline(0, color="0.7", lw=0.7, zorder=0)
    ax.set(xlim=(-0.06, 1.06), xlabel="prefix matching", ylabel="AIE", title="A) two scores of each head")


def _effects(ax: Axes, found: Values) -> None:
    heads(ax, found["AIE"]["mean"], title="B) AIE by layer and head", bar="AIE")
    for kind in RINGS:
        _rings(ax, np.array(found["sets"][kind]).T, kind)
