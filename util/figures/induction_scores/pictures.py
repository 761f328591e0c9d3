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

from util.figures.induction_scores.claims import published
from util.figures.induction_scores.plan import KNOCKED_OUT, LAYER_MATCHED, OTHER_PATTERNS, WHOLE, ablated_row
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.draw import Grid
from util.show.panels import heads, intervals, name_at_right, points, short_number, token_grid, triples, without_zero
from util.show.part import Values
from util.show.style import BLUE, GREY, PALE_RED, RED, ROLES
from util.stats.heads import Head, head_name, top
from util.stats.intervals import Interval

Rows = Mapping[str, Sequence[float]]  # by name: value, low, high
MOST_HEADS = 8  # of the chosen ones, that the picture of the mechanism has bars for
ROW = 0.2  # inches: the height of a row
DRAW = re.compile(r"(, control)? \d+$")  # what the names of draws of a control end with
COLOURS = {WHOLE: BLUE, KNOCKED_OUT: PALE_RED, **dict.fromkeys((LAYER_MATCHED, *OTHER_PATTERNS), GREY)}  # else red
DIAMOND: dict[str, Any] = {"marker": "D", "mfc": "none", "ms": 3.2, "mew": 0.8}
HERE = Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label="here (95 %)")
CONTROLS = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets, here")
CHANCE = Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance")
PUBLISHED = Line2D([], [], color="black", ls="", **DIAMOND, label="published, Llama-3-8B, 1 % of heads")
INDUCTION, FUNCTION_VECTOR = "induction", "FV"  # kinds of heads
RINGS = {  # marker, role and size
    INDUCTION: ("o", ROLES["induction"].colour, 4.5),
    FUNCTION_VECTOR: ("s", ROLES["function vector"].colour, 7.5),
}


def chosen_of(values: Values) -> list[Head]:
    """The chosen heads of stored values."""
    return [(layer, head) for layer, head in values["chosen"]]


def rings(ax: Axes, at: Any, kind: str, label: str = "_") -> None:
    """Mark heads of a kind at x and y, so that they are seen on dark cells, too."""
    marker, colour, size = RINGS[kind]
    halo = [withStroke(linewidth=2.2, foreground="white")]
    ax.plot(*at, marker, mfc="none", mec=colour, ms=size, mew=0.9, path_effects=halo, label=label)


# ------------------------------------------------------------------------------------------------ heads


def scores(values: Values) -> Grid:
    """A: the scores of all heads. B: the best."""
    found = values["scores"]

    def all_heads(ax: Axes) -> None:
        heads(ax, found["mean"], (0, 1), "A) all heads", bar="prefix-matching score")

    return Grid([all_heads, partial(_best, found=found)], least=2.4, height=2.1)


def _best(ax: Axes, found: Values) -> None:
    """The best 16 heads, lines at the bound of induction heads, uniform attention and the best untrained head."""
    strongest = top(np.array(found["mean"], dtype=float), min(16, np.size(found["mean"])))
    intervals(ax, triples(found, strongest, "mean"), colour=BLUE, upright=True)
    levels = {f"{INDUCTION_HEAD}: counts": (INDUCTION_HEAD, "black"), "uniform": (float(found["uniform"]), "black")}
    if found["untrained"] is not None:
        levels["untrained"] = (float(np.max(found["untrained"])), "0.4")
    for (level, colour), dashes in zip(levels.values(), ("--", ":", "-"), strict=False):
        ax.axhline(level, color=colour, lw=0.8, ls=dashes)
    ax.set_xticks(range(len(strongest)), list(map(head_name, strongest)), rotation=90, fontsize=6.5)
    ax.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1), ylabel="prefix-matching score", title="B) the best heads")
    name_at_right(ax, levels, 0.085)


def companions(values: Values) -> Grid:
    """What heads attend to, and what they write: shares from 0 to 1, and logits, whose scale is symmetric about 0."""
    panels = [
        partial(_companion, values=values, name=name, score=np.array(score, dtype=float))
        for name, score in values["companions"].items()
    ]
    note = "rings: the best induction heads; below a name: the highest head"
    return Grid(panels, least=1.5, height=1.55, columns=2, x=note)


def _companion(ax: Axes, values: Values, name: str, score: Any) -> None:
    shown = "none for this class"
    if name in values["highest"]:
        head, *triple = values["highest"][name]
        value, low, high = map(short_number, triple)
        shown = f"{head_name(tuple(head))} {value} [{low}, {high}]"
    heads(ax, score, None if name == "attribution" else (0, 1), f"{name}\n{shown}", bar="")
    rings(ax, np.array(values["chosen"]).T, INDUCTION)


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
    left = values["mechanism"]["left"].values()  # the whole model's first
    looks = {0: ("whole model", BLUE), 1: ("without previous-token heads", RED)}
    for number, triples_of_heads in enumerate(left):
        label, colour = looks.get(number, ("without as many others", GREY))
        shift = 0.8 * ((number + 0.5) / len(left) - 0.5)
        intervals(ax, triples_of_heads[: len(chosen)], shift, colour, upright=True, hollow=False, label=label)
    ax.set_xticks(range(len(chosen)), map(head_name, chosen), rotation=60 if len(chosen) > 4 else 0)
    ax.set(ylim=(-0.03, 1.05), yticks=(0, 0.5, 1), ylabel="prefix-matching score", xlabel="the best induction heads")


# ------------------------------------------------------------------------------------------------ rows of shares


def row_panel(
    ax: Axes, rows: Rows, heading: str, label: str, chance: float | None, reported: Mapping[str, float] = {}
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


def ablation(values: Values) -> Grid:
    """A panel for each task with ablations, and what the paper reports in the same place."""
    ablated, k = ablated_row(len(values["chosen"])), values["request"]["k"]
    panels, legend = [], [CONTROLS, HERE, CHANCE]
    for task, rows in values["accuracy"].items():
        if ablated not in rows:
            continue
        reported = published(task, k, ablated)
        heading = task.replace("_", "\n") + ("" if task in values["done"] else "\n(not done)")
        chance = 1 / len(label_space(task))
        panels.append(
            partial(row_panel, rows=rows, heading=heading, label="accuracy", chance=chance, reported=reported)
        )
        legend = [CONTROLS, HERE, PUBLISHED, CHANCE] if reported else legend
    height = 0.6 + ROW * len(row_names(values["accuracy"][values["primary"]["task"]]))
    return Grid(panels, height=height, legend=legend, least=1.25)


def shots(values: Values) -> Grid | None:
    """A panel for each task with ablations, by the number of demonstrations."""
    found, ablated = values["benefits"], ablated_row(len(values["chosen"]))
    panels = []
    for name, by_shots in found["accuracy by shots"].items():
        measured = {k: row["accuracy"] for k, row in by_shots.items()}
        if ablated in measured[max(measured, key=int)]:
            chance = found["tasks"][name]["chance"]
            panels.append(partial(_by_shots, name=name, measured=measured, ablated=ablated, chance=chance))
    return Grid(panels, height=1.7, share="y", legend=[HERE, CHANCE], least=1.3) if panels else None


def _by_shots(ax: Axes, name: str, measured: Mapping[str, Rows], ablated: str, chance: float) -> None:
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    for number, row in enumerate((WHOLE, ablated, KNOCKED_OUT)):
        known = [(x + 0.1 * number, Interval(*rows[row])) for x, rows in enumerate(measured.values()) if row in rows]
        if known:
            points(ax, *zip(*known, strict=True), fmt="o-", color=COLOURS.get(row, RED), label=row)
    ax.set_xticks(range(len(measured)), list(measured))
    ax.set(xlim=(-0.6, len(measured) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1))
    ax.set(xlabel="demonstrations", ylabel="accuracy")
    ax.set_title(name.replace("_", " "), fontsize=7)
