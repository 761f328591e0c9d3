"""The pictures of induction heads and of what tasks lose without them, beside what Crosbie & Shutova (2024) report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from util.figures.induction_scores.claims import published
from util.figures.induction_scores.plan import KNOCKED_OUT, LAYER_MATCHED, OTHER_PATTERNS, WHOLE, ablated_row
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.show.draw import Grid
from util.show.panels import heads, intervals, name_at_right, points, token_grid, triples, without_zero
from util.show.part import Values
from util.show.style import BLUE, GREY, PALE_RED, RED
from util.stats.heads import head_name, top
from util.stats.intervals import Interval

Rows = Mapping[str, Sequence[float]]  # by name: value, low, high
ROW = 0.2  # inches: the height of a row
DRAW = re.compile(r"(, control)? \d+$")  # what the names of draws of a control end with
COLOURS = {WHOLE: BLUE, KNOCKED_OUT: PALE_RED, **dict.fromkeys((LAYER_MATCHED, *OTHER_PATTERNS), GREY)}  # else red
DIAMOND: dict[str, Any] = {"marker": "D", "mfc": "none", "ms": 3.2, "mew": 0.8}
HERE = Line2D([], [], color="black", marker="o", ms=3, lw=0.9, label="here (95 %)")
CONTROLS = Line2D([], [], color=GREY, marker="|", ms=7, ls="", label="control sets, here")
CHANCE = Line2D([], [], color="0.6", ls=":", lw=0.8, label="chance")
PUBLISHED = Line2D([], [], color="black", ls="", **DIAMOND, label="published, Llama-3-8B, 1 % of heads")


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


def pattern(values: Values) -> Grid:
    """The tokens of a prompt, shaded by the attention that the best head gives them."""
    found = values["pattern"]
    name = f"{head_name(tuple(found['head']))} from the last token"
    return token_grid(found["tokens"], np.array(found["rows"]), [name], found["queries"])


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
    """The primary task under every edit, and what the paper reports in the same place."""
    task, ablated, k = values["primary"]["task"], ablated_row(len(values["chosen"])), values["request"]["k"]
    reported, rows = published(task, k, ablated), values["accuracy"][task]
    legend = [CONTROLS, HERE, *[PUBLISHED] * bool(reported), CHANCE]
    asked = values["tasks_done"] or values["request"]["all_tasks"]
    options = {
        "heading": task if asked else f"{task}\n(not done)",
        "label": "accuracy",
        "chance": 1 / len(label_space(task)),
        "reported": reported,
    }
    return Grid([partial(row_panel, rows=rows, **options)], height=0.6 + ROW * len(row_names(rows)), legend=legend)


def shots(values: Values) -> Grid | None:
    """A panel for each task with ablations, by the number of demonstrations."""
    benefits, ablated = values["benefits"], ablated_row(len(values["chosen"]))
    panels = [
        partial(_by_shots, name=name, by_shots=by_shots, ablated=ablated, chance=benefits["tasks"][name]["chance"])
        for name, by_shots in benefits["accuracy by shots"].items()
        if ablated in by_shots[max(by_shots, key=int)]["accuracy"]
    ]
    return Grid(panels, height=1.7, share="y", legend=[HERE, CHANCE], least=1.3) if panels else None


def _by_shots(ax: Axes, name: str, by_shots: Mapping[str, Any], ablated: str, chance: float) -> None:
    ax.axhline(chance, color="0.6", lw=0.8, ls=":")
    for x, row in enumerate(by_shots.values()):
        at = np.full(len(row["controls"]), x + 0.3)
        ax.plot(at, row["controls"], "_", color=GREY, ms=6, mew=0.8, label="control sets, here")
    for number, edit in enumerate((WHOLE, ablated, KNOCKED_OUT)):
        known = {x: row["accuracy"][edit] for x, row in enumerate(by_shots.values()) if edit in row["accuracy"]}
        if known:  # prompts without demonstrations have no pattern to knock out
            shifted = [x + 0.1 * number for x in known]
            spread = [Interval(*triple) for triple in known.values()]
            points(ax, shifted, spread, fmt="o-", color=COLOURS.get(edit, RED), label=edit)
    ax.set_xticks(range(len(by_shots)), list(by_shots))
    ax.set(xlim=(-0.6, len(by_shots) - 0.4), ylim=(-0.03, 1.05), yticks=(0, 0.5, 1))
    ax.set(xlabel="demonstrations", ylabel="accuracy")
    ax.set_title(name.replace("_", " "), fontsize=7)
