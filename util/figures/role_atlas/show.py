"""The figure of the roles of heads: settings, sentences, table and picture, made of its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from util.figures.role_atlas import numbers
from util.roles.rules import units_of
from util.show.draw import Grid, broken, room
from util.show.panels import TICK, count_ticks, ink
from util.show.part import Figure, Part, Values, in_words, listed, none_or, say, title, written
from util.show.style import NO_ROLE, ROLES, RoleLook
from util.stats.heads import Head
from util.study.checked import AtLeastFour, Count, Counts, Datasets, Natural, TwoHalves, checked

UNITS = {  # of effects; all others are in nats
    "function vector": "as a probability that is gained",
    **dict.fromkeys(("duplicate-token", "inhibition", "mover", "negative mover"), "in nats of the logit difference"),
}
NAMED = 3  # heads of a role that are named with their effects
SHOWN = 5  # heads of a role that are lines of the table
LETTERS = (7.5, 5.5)  # points: the width and height that two letters need
BAR = (0.07, 0.16)  # shares of a tile: the room around its bar, and the bar's height
ROW, HEIGHTS = 0.26, (1.2, 3.4)  # inches: the height of a head, where there are few; the least and largest of all heads


@checked
class Settings:
    """What is measured, see notebook 05.

    datasets, ks, prompts: of the roles about labels, see `roles.label_roles`. sequences: random ones, for
    previous-token and induction heads; pairs: of IOI prompts; word_prompts: of each word-pair task, and intact: those
    that mean outputs are taken over. untrained_control: whether the untrained twin is measured too.
    """

    datasets: Datasets = ("trec", "subjective", "agnews")
    ks: Counts = (16, 4)
    prompts: TwoHalves = 64
    seed: Natural = 0
    sequences: AtLeastFour = 32
    pairs: AtLeastFour = 128
    word_prompts: AtLeastFour = 24
    intact: Count = 32
    untrained_control: bool = True


def by_head(values: Values) -> dict[str, list[str]]:
    """The roles of each head that has any, by name, heads in their order."""
    names = {name for tested in values["roles"].values() for name in tested["heads"]}
    return {
        name: [role for role, tested in values["roles"].items() if name in tested["heads"]]
        for name in sorted(names, key=place_of)
    }


def place_of(name: str) -> Head:
    """The place of a head by its name, such as (3, 5) of L3H5."""
    layer, head = map(int, re.findall(r"\d+", name))
    return layer, head


# ------------------------------------------------------------------------------------------------ sentences


def atlas_say(values: Values) -> Iterator[str]:
    yield values["finding"]
    yield from values["left out"]
    yield from (f"{name}: {', '.join(roles)}" for name, roles in by_head(values).items())


def atlas_about(values: Values) -> str:
    asked, task = values["request"], values["label task"]
    of_labels = f"{asked['prompts']} of {task['dataset']} (k={task['k']}), " if task else ""
    return (
        f"{title(values)}; {asked['sequences']} random sequences, {asked['pairs']} IOI prompts, {of_labels}"
        f"{asked['word_prompts']} of each word-pair task"
    )


def beside(role: str, found: Values, seen: str = "effects from {:.2f} on would be seen") -> str:
    """What stands beside the count of a role: tested heads, the units that confirm them, which effects are seen."""
    last = f"; {seen.format(found['detectable'])}" if found["detectable"] else ""
    return f"{found['tested']} tested, {units_of(role, found['n'])}{last}"


def concludes(values: Values) -> Iterator[str]:
    """How many heads have a role, which have each, which have several, and what the untrained twin has."""
    yield f"{values['finding']}."
    roles, twin = values["roles"], values["untrained"]
    for role, tested in ((role, tested) for role, tested in roles.items() if tested["heads"]):
        named = [f"{name} {written(head['effect'])}" for name, head in tested["heads"].items()]
        more = f", and {in_words(len(named) - NAMED)} more" if len(named) > NAMED else ""
        count = say("{n:words} {role} {n:head|heads}", n=len(named), role=role)
        yield f"{count} ({beside(role, tested)}): {listed(named[:NAMED])}{more}, {UNITS.get(role, 'in nats')}."
    without = [
        f"{role} ({beside(role, roles[role], 'seen from {:.2f} on')})" for role in roles if not roles[role]["heads"]
    ]
    if without:
        yield f"Not detected: {listed(without)}."
    yield from (f"{line[0].upper()}{line[1:]}." for line in values["left out"])
    several = sorted(item for item in by_head(values).items() if len(item[1]) > 1)
    if several:
        yield f"Heads with several roles: {listed([f'{name} ({listed(roles)})' for name, roles in several])}."
    if twin and not (n := sum(tested["tested"] for name, tested in twin.items() if name != "heads")):
        yield "In the untrained twin no score passes, so that no head is tested."
    elif twin:
        text = "of {n:words} {n:head|heads} of the untrained twin whose score passes {having} {verb} a role."
        yield say(text, n=n, having=none_or(twin["heads"]), verb="have" if twin["heads"] > 1 else "has")


def planted_say(values: Values) -> Iterator[str]:
    right = {True: "just the planted roles", False: "NOT RIGHT"}
    yield "; ".join(f"planted {name}: {right[one]}" for name, one in values["planted"].items())


def untrained_say(values: Values) -> Iterator[str]:
    yield f"untrained twin: {values['untrained']['heads']} heads with a role" if values["untrained"] else ""


# ------------------------------------------------------------------------------------------------ table


def atlas_table(values: Values) -> pd.DataFrame:
    """The heads of each role with the largest effects, SHOWN at most.

    Scores and effects are those on the held-out half. The effect is what is lost beyond the control, in nats, or for
    function vectors what is gained, as a probability. Intervals of a role's heads hold together.
    """
    rows = {
        (role, f"{len(tested['heads'])} of {tested['tested']} tested", name): {
            "score": written(head["score"]),
            "null": f"{head['null']:.2f}",
            "effect": written(head["effect"]),
            "p": f"{head['p']:.1g}",
        }
        for role, tested in values["roles"].items()
        for name, head in list(tested["heads"].items())[:SHOWN]
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ picture


def atlas(values: Values) -> Grid:
    """All heads by layer, in the colours of their roles; a bar is the effect beside the largest of the role.

    A head with several roles has a tile of each, below each other. The legend has the number of heads of every role
    that was tested, and the effect from which on they would be seen.
    """
    entries = [
        Patch(
            color=ROLES[role].colour,
            label=f"{ROLES[role].letters} {role}: {len(one['heads'])}"
            + (f" ({one['detectable']:.2f})" if one["detectable"] else ""),
        )
        for role, one in values["roles"].items()
    ]
    key = "bar: effect beside the role's largest; below, roles: heads (from which effect on they would be seen)"
    height = float(np.clip(ROW * values["shape"][1], *HEIGHTS)) + 0.6
    return Grid([partial(_atlas, values=values, key=key)], height=height, legend=entries)


def _atlas(ax: Axes, values: Values, key: str) -> None:
    (layers, heads), tested = values["shape"], values["roles"]
    width, height = room(ax)
    ax.set(facecolor=NO_ROLE, xlim=(-0.5, layers - 0.5), ylim=(-0.5, heads - 0.5))
    ax.set_xticks(count_ticks(layers, max(2, int((width - 0.6) / TICK))))
    ax.set_yticks(count_ticks(heads, 9))
    ax.set_xticks(np.arange(0.5, layers - 1), minor=True)
    ax.set_yticks(np.arange(0.5, heads - 1), minor=True)
    ax.grid(which="minor", color="white", lw=0.6)
    ax.tick_params(which="minor", length=0)
    ax.set(ylabel="head")
    ax.set_xlabel(f"layer\n{broken(key, 7, 72 * width - 30)}", fontsize=7)
    ax.spines[:].set_visible(False)
    cell = 72 * (width - 0.6) / layers, 72 * (height - 0.6) / heads
    largest = {role: max((h["effect"][0] for h in one["heads"].values()), default=1) for role, one in tested.items()}
    for name, roles in by_head(values).items():
        layer, head = place_of(name)
        high = 1 / len(roles)
        for number, role in enumerate(roles):
            corner = layer - 0.5, head + 0.5 - (number + 1) * high
            _tile(ax, ROLES[role], corner, high, tested[role]["heads"][name]["effect"][0] / largest[role], cell)


def _tile(
    ax: Axes, look: RoleLook, corner: tuple[float, float], high: float, strength: float, cell: tuple[float, float]
) -> None:
    """A role of a head, with its letters where there is room, and a bar at the bottom as long as the role is strong.

    high: the tile's height, where a cell is 1 x 1. cell: width and height in points.
    """
    (left, bottom), colour = corner, ink(look.colour)
    aside, thick = BAR
    ax.add_patch(Rectangle(corner, 1, high, fc=look.colour, ec="white", lw=0.6, zorder=3))
    inside = left + aside, bottom + aside * high
    ax.add_patch(Rectangle(inside, strength * (1 - 2 * aside), thick * high, fc=colour, lw=0, zorder=4))
    if cell[0] >= LETTERS[0] and cell[1] * high * (1 - sum(BAR)) >= LETTERS[1]:
        middle = left + 0.5, bottom + high * (1 + thick) / 2
        ax.text(*middle, look.letters, fontsize=5, ha="center", va="center", color=colour, zorder=5)


FIGURE = Figure(
    "role_atlas",
    Settings,
    {
        "atlas": Part(numbers.atlas, "atlas", atlas_say, atlas_about, atlas, atlas_table),
        "untrained": Part(numbers.untrained, "untrained", untrained_say),
        "planted": Part(numbers.planted, "planted", planted_say),
    },
    concludes,
)
