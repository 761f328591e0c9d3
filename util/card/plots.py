"""The figures that cards have of their own: word pairs, losses without heads, depths of roles. It needs no model."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from util.card.results import Loss, Losses
from util.edges import names
from util.roles.rules import Role
from util.show.style import (
    BLUE,
    GREY,
    NO_ROLE,
    RED,
    ROLES,
    WIDTH,
    columns_of,
    headline,
    headline_height,
    legend_below,
    new_figure,
    style,
)
from util.stats.intervals import Interval

CIRCUITS = {
    names.FULL: ("o", BLUE),
    names.CTX_AGG: ("s", BLUE),
    names.AGG_ONLY: ("o", RED),
    names.QUERY_ONLY: ("s", RED),
}
APART = 0.18  # between the rows of two circuits of a task
SPREAD = 0.2  # between heads of one role in one layer, in rows
NAMELESS = "in IOI, no role"  # heads that count in IOI and have no role
MODEL = 1.4  # inches that the panel of a model needs at least
PANEL = 1.25  # inches that a panel needs at least
UNITS = {"plain text": "nats"}  # all other outcomes are shares of right answers


def losses(found: Losses, *, finding: str | None, setting: str, width: float = WIDTH) -> Figure:
    """What is lost of every outcome: a panel for each, a row for each set of heads.

    Red: without the heads, with the interval of what is lost beyond the controls' mean; grey: without each set of
    controls.
    """
    sets = list(dict.fromkeys(one.ablated for one in found.each))
    outcomes = list(dict.fromkeys(one.outcome for one in found.each))
    columns = columns_of(len(outcomes), width, PANEL)
    rows = -(-len(outcomes) // columns)
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 0.5 + rows * (0.42 + 0.2 * len(sets)))
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for ax in axes.flat[len(outcomes) :]:
            ax.axis("off")
        for ax, outcome in zip(axes.flat, outcomes, strict=False):
            _panel(ax, [one for one in found.each if one.outcome == outcome], sets)
            ax.set_title(f"{outcome}, {UNITS.get(outcome, 'share')}")
        handles = [
            axes[0, 0].plot([], [], "o", ms=4, color=RED, label="lost without these heads (bar: beyond controls)")[0],
            axes[0, 0].plot([], [], "|", ms=6, color=GREY, label="lost without as many others")[0],
        ]
        legend_below(figure, handles)
        headline(figure, finding, setting)
    return figure


def word_pairs(
    accuracy: Mapping[str, Mapping[str, Interval]],
    chance: Mapping[str, float],
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """Accuracy in every task: of the whole model, and where only a part of the edges between token types is left.

    accuracy: by task and circuit, see `edges.names`; chance: by task.
    """
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + 0.8 + 0.36 * len(accuracy))
        ax = figure.subplots()
        for row, (task, by_circuit) in enumerate(accuracy.items()):
            y = len(accuracy) - 1 - row
            ax.plot([chance[task]] * 2, [y - 0.4, y + 0.4], ":", color="0.5", lw=0.9)
            for place, (circuit, (marker, colour)) in enumerate(CIRCUITS.items()):
                value = by_circuit[circuit]
                at = y + APART * (1.5 - place)
                ax.plot([value.low, value.high], [at, at], color=colour, lw=0.9)
                ax.plot(value.value, at, marker, ms=3, color=colour)
        ax.set_yticks(range(len(accuracy)), [task.replace("_", " ") for task in reversed(list(accuracy))])
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(accuracy) - 0.4), xlabel="accuracy")
        handles = [
            ax.plot([], [], marker, ms=3, color=colour, label=circuit)[0]
            for circuit, (marker, colour) in CIRCUITS.items()
        ]
        legend_below(figure, [*handles, ax.plot([], [], ":", color="0.5", lw=0.9, label="chance")[0]])
        headline(figure, finding, setting)
    return figure


def depths(
    shown: Mapping[str, Mapping[str, Sequence[tuple[float, float, bool]]]],
    *,
    finding: str | None,
    setting: str,
    width: float = WIDTH,
) -> Figure:
    """How deep the heads of each role lie: a panel for each model, a row for each role, and one for NAMELESS heads.

    shown: by model and row, for each head its depth from 0 to 1, its effect beside the row's largest, and whether it
    carries a part of IOI.
    """
    row_names = [*map(str, Role), NAMELESS]
    colours = {str(role): look.colour for role, look in ROLES.items()} | {NAMELESS: NO_ROLE}
    columns = columns_of(len(shown), width - 0.9, MODEL)
    rows = -(-len(shown) // columns)
    with style():
        figure = new_figure(width, headline_height(finding, setting, width) + rows * (0.6 + 0.17 * len(row_names)))
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(shown) :]:
            ax.axis("off")
        for ax, (name, by_role) in zip(axes.flat, shown.items(), strict=False):
            for row, role in enumerate(reversed(row_names)):
                heads = by_role[role]
                ax.text(1.07, row, str(len(heads)), fontsize=6, va="center", color="0.35")
                at = Counter[float]()
                for depth, strength, carries in sorted(heads):
                    height = row + SPREAD * ((at[depth] + 1) // 2) * (-1) ** at[depth]
                    at[depth] += 1
                    ax.scatter(
                        depth,
                        height,
                        s=8 + 26 * strength,
                        color=colours[role],
                        lw=0.9 if carries else 0,
                        edgecolors="black",
                    )
            ax.set_title("\n".join(textwrap.wrap(name, 22)))
            ax.set_yticks(range(len(row_names)), list(reversed(row_names)))
            ax.set(xlim=(-0.06, 1.04), ylim=(-0.6, len(row_names) - 0.4))
            ax.grid(axis="y", color="0.93", lw=0.6)
            ax.set_axisbelow(True)
        figure.supxlabel("layer / last layer; at the right: number of heads")
        headline(figure, finding, setting)
    return figure


def _panel(ax: Axes, each: Sequence[Loss], sets: Sequence[str]) -> None:
    """One outcome."""

    ax.axvline(0, color="0.8", lw=0.8)
    for one in each:
        y = len(sets) - 1 - sets.index(one.ablated)
        ax.plot(one.controls, np.full(len(one.controls), y), "|", ms=6, color=GREY)
        if one.beyond is not None:
            mean = float(np.mean(one.controls))
            ax.plot([mean + one.beyond.low, mean + one.beyond.high], [y, y], color=RED, lw=0.9)
        ax.plot(one.lost, y, "o", ms=4, color=RED)
    ax.set_yticks(range(len(sets)), list(reversed([_named(name, each) for name in sets])))
    ax.set_ylim(-0.6, len(sets) - 0.4)


def _named(name: str, each: Sequence[Loss]) -> str:
    """A set of heads with its number."""
    heads = next(one.heads for one in each if one.ablated == name)
    return f"{name.replace(' heads', '')} ({heads})"
