"""Cards side by side: how many heads of each role a model has, and how deep these lie. It reads card.json alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from util.card.page import SCHEMA, Card
from util.figures.ioi_patching.numbers import carriers, intervals
from util.figures.ioi_patching.show import kept_alone
from util.roles.rules import Role
from util.show.draw import Grid
from util.show.files import filled
from util.show.part import listed, written
from util.show.style import ROLES
from util.stats.heads import head_name, heads_where, place_of

ROW, MODEL = 0.22, 1.4  # inches: the height of a role, and the least width of a model
ABOUT = "roles by score and effect; a ring: the head carries more than a hundredth of the effect in IOI, too"


def read(place: Path) -> Card:
    """The card in a file, or in a folder that has one.

    Raises ValueError, which says what to do, where there is none, and for one that is damaged or of another schema.
    """
    file = place / "card.json" if place.is_dir() else place
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        schema = card["schema"]
        if schema == SCHEMA:
            table([card])  # all that is read of it
    except OSError:
        cure = f"`python -m util card MODEL --out {place}` makes one"
        raise ValueError(f"{place}: there is no card.json; {cure}") from None
    except Exception as error:  # whatever an entry that is missing or of another type leads to
        raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}); make the card again") from error
    if schema != SCHEMA:
        raise ValueError(f"{file} has schema {schema!r}, this version reads {SCHEMA}; make the card again")
    return card


def check(cards: Sequence[Card]) -> None:
    """Raises ValueError for two cards of one model."""
    models = [card["model"] for card in cards]
    if len({*models}) < len(models):
        raise ValueError(f"cards of {', '.join(models)}: give one of each model")


def depths(card: Card) -> dict[str, dict[str, float]]:
    """How deep the heads of each role lie: 0 in the first layer, 1 in the last; {} where roles were refused."""
    if (atlas := card["values"].get("role_atlas")) is None:
        return {}
    last = max(1, atlas["shape"][0] - 1)
    return {
        str(role): {name: place_of(name)[0] / last for name in atlas["roles"].get(role, {"heads": {}})["heads"]}
        for role in Role
    }


def in_ioi(card: Card) -> set[str]:
    """The heads that carry more than a hundredth of the effect in IOI; none where it is not done, or was refused."""
    values = card["values"].get("ioi_patching")
    if not values or not kept_alone(values):
        return set()
    return {*map(head_name, heads_where(carriers(intervals(values["population"]["noised"]))))}


def table(cards: Sequence[Card]) -> pd.DataFrame:
    """A row for each model and role: how many heads, how deep (mean, least and most), and which serve IOI, too."""
    rows = {}
    for card in cards:
        for role, heads in depths(card).items():
            deep = list(heads.values())
            rows[card["model"], role] = {
                "heads": len(deep),
                "depth": f"{np.mean(deep):.2f} ({min(deep):.2f}-{max(deep):.2f})" if deep else "",
                "in IOI too": ", ".join(sorted({*heads} & in_ioi(card))),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def html(cards: Sequence[Card], looks: Sequence[str | None]) -> str:
    """The atlas as a page. looks: of each model, where a page is that shows what its heads do, or None."""
    models = []
    for card, look in zip(cards, looks, strict=True):
        atlas, roles = card["values"].get("role_atlas", {"shape": (0, 0), "roles": {}}), dict[str, dict[str, str]]()
        for role, heads in atlas["roles"].items():
            for name, head in heads["heads"].items():
                roles.setdefault(name, {})[role] = written(head["effect"])
        models.append({"name": card["model"], "shape": atlas["shape"], "look": look, "roles": roles})
    colours = {str(role): ROLES[role].colour for role in Role}
    return filled(Path(__file__).with_name("atlas.html"), models=models, colours=colours)


def finding(cards: Sequence[Card]) -> str:
    """How deep the induction heads of each model lie; "" where none has any."""
    deep = {card["model"]: list(depths(card).get(Role.INDUCTION, {}).values()) for card in cards}
    ends = {
        name: dict.fromkeys((f"{min(layers):.2f}", f"{max(layers):.2f}")) for name, layers in deep.items() if layers
    }
    ranges = [f"{name} {' to '.join(both)}" for name, both in ends.items()]
    return f"Depth of induction heads: {listed(ranges)}" if ranges else ""


def grid(cards: Sequence[Card]) -> Grid:
    """The depth of every head: a panel for each model, a row for each role."""
    panels = [partial(_panel, card=card) for card in cards]
    label = "layer / last layer; at the right: number of heads"
    return Grid(panels, least=MODEL, height=0.6 + ROW * len(Role), share="xy", x=label)


def _panel(ax: Axes, card: Card) -> None:
    roles, rings = list(map(str, Role)), in_ioi(card)
    for row, (role, heads) in enumerate(depths(card).items()):
        ax.text(1.07, row, str(len(heads)), fontsize=6, va="center", color="0.35")
        beside = row + np.linspace(-0.4, 0.4, len(heads) + 2)[1:-1]  # heads of one layer lie beside each other
        edges = ["black" if name in rings else "none" for name in heads]
        ax.scatter([*heads.values()], beside, s=14, color=ROLES[role].colour, edgecolors=edges, linewidths=0.9)
    ax.set(title=card["model"], xlim=(-0.06, 1.04), ylim=(len(roles) - 0.4, -0.6))
    ax.set_yticks(range(len(roles)), roles)
    ax.grid(axis="y", color="0.93", lw=0.6)
    ax.set_axisbelow(True)
