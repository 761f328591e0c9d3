"""Diagrams of circuits: parts of a model by layer, and what they tell each other (Wang et al. 2022, Fig. 2).

This file knows no model: heads and parts of a planted circuit are drawn alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.typing import ColorType

from util.show.draw import Grid, room
from util.show.panels import ink, short_number
from util.show.style import NO_ROLE, ROLES, WIDTH, RoleLook
from util.stats.intervals import Interval

Place: TypeAlias = Any  # an array [2] of points

LOGITS = "logits"  # no node: what a part tells it stands on the part's card
CHANNELS: dict[str, str] = {"": "-", "value": "-", "query": "--", "key": ":"}  # and the lines they are drawn with
BENDS = {"": 0.05, "value": 0.05, "query": -0.08, "key": 0.18}  # of lines, so that none lies on another
POSITIVE, NEGATIVE = (mpl.colormaps["RdBu_r"](end) for end in (0.9, 0.1))  # as in the maps of heads
LETTER, NOTE = 7.0, 6.5  # points: of names, of weights and roles
CELL = 9.0  # points: the height of a line of a card, which has three
CARD = np.array([32.0, 3 * CELL])  # points
LABEL = np.array([22.0, 8.5])  # points that the weight of a line needs
BETWEEN = 10.0  # points between cards below each other
MANY = 6  # columns; cards of more do not fit beside each other
THICK, THIN = 3.5, 0.5  # points: the widths of the strongest line and of one with next to no weight
LABELLED = 5  # lines, the strongest, that have their weight beside them
ALONG = sorted(np.linspace(0.05, 0.95, 31), key=lambda share: abs(share - 0.5))  # a line, its middle first


class Node(NamedTuple):
    """A part of a model. layer: where it stands from left to right. roles: what it does; it may have none."""

    name: str
    layer: int
    roles: Sequence[str] = ()


class Edge(NamedTuple):
    """What a reader hears of a sender. channel: one of CHANNELS. interval: of the weight, where there is one."""

    sender: str
    reader: str
    weight: float
    channel: str = ""
    interval: Interval | None = None


def circuit_grid(nodes: Sequence[Node], edges: Sequence[Edge], *, no_role: str = "no role") -> Grid | None:
    """Returns the diagram of a circuit, None for one without nodes.

    edges: from nodes to nodes or LOGITS, the strongest first. no_role: what the legend calls nodes without roles.
    """
    if not nodes:
        return None
    heights = [y for _, y in places(nodes, edges, 72 * WIDTH).values()]
    height = (np.ptp(heights) + 1.5 * CARD[1] + 36) / 72  # and the names of layers
    panel = partial(_panel, nodes=nodes, edges=edges)
    return Grid([panel], least=WIDTH, height=float(height), legend=_key(nodes, edges, no_role))


def places(nodes: Sequence[Node], edges: Sequence[Edge], width: float) -> dict[str, Place]:
    """Returns where the cards of all nodes have their middles, in a diagram that is so many points wide.

    Each layer is a column, in which nodes stand in the order of what speaks to them (Sugiyama et al. 1981, one pass).
    Every other column is half a row lower; where there are MANY, so far that cards never meet.
    """
    layers = sorted({node.layer for node in nodes})
    row = (CARD[1] + BETWEEN) * (2 if len(layers) > MANY else 1)
    across = np.linspace(CARD[0] / 2 + 1, width - CARD[0] / 2 - 1, len(layers)) if len(layers) > 1 else [width / 2]
    middles: dict[str, Place] = {}
    for column, (x, layer) in enumerate(zip(across, layers, strict=True)):
        heights = {node.name: [0.0] for node in nodes if node.layer == layer}
        for name in heights:
            senders = {edge.sender for edge in edges if edge.reader == name}
            heights[name] = [middles[sender][1] for sender in senders] or [0.0]
        for place, name in enumerate(sorted(heights, key=lambda name: np.mean(heights[name]))):
            middles[name] = np.array([x, (place - len(heights) // 2 + column % 2 / 2) * row])
    return middles


def _panel(ax: Axes, nodes: Sequence[Node], edges: Sequence[Edge]) -> None:
    width = 72 * room(ax)[0] - 10
    middles = places(nodes, edges, width)
    heights = [y for _, y in middles.values()]
    ax.set(xlim=(0, width), ylim=(min(heights) - 0.75 * CARD[1], max(heights) + 0.75 * CARD[1]), yticks=[], aspect=1)
    ax.spines[:].set_visible(False)
    layers = {middles[node.name][0]: str(node.layer) for node in nodes}
    ax.set_xticks([*layers], [*layers.values()])
    ax.tick_params(axis="x", bottom=False, pad=1)
    ax.set_xlabel("layer", labelpad=1)
    to_logits = {edge.sender: edge.weight for edge in edges if edge.reader == LOGITS}
    frames = {node.name: _card(ax, node, middles[node.name], to_logits) for node in nodes}
    boxes = [(middle, CARD) for middle in middles.values()]
    lines = _lines(edges)
    for number, edge in enumerate(lines):
        thickness = THIN + (THICK - THIN) * abs(edge.weight / lines[0].weight)
        start, end, bend = middles[edge.sender], middles[edge.reader], BENDS[edge.channel]
        look: dict[str, Any] = {"lw": thickness, "ls": CHANNELS[edge.channel], "color": _colour(edge.weight)}
        look |= {"arrowstyle": "-|>", "mutation_scale": 4 + 2 * thickness, "connectionstyle": f"arc3,rad={bend}"}
        look |= {"patchA": frames[edge.sender], "patchB": frames[edge.reader], "shrinkA": 0, "shrinkB": 0}
        ax.add_patch(FancyArrowPatch(start, end, zorder=2 - number / len(lines), **look))
        if number < LABELLED:
            control = (start + end) / 2 + bend * np.array([1, -1]) * (end - start)[::-1]
            course = [(1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end for t in ALONG]
            free = (at for at in course if all((abs(at - box) > (LABEL + size) / 2).any() for box, size in boxes))
            if (at := next(free, None)) is not None:
                text = f"{short_number(edge.weight)} {edge.channel[:1]}".strip()
                _write(ax, at, text, NOTE, _colour(edge.weight), "white")
                boxes.append((at, LABEL))


def _card(ax: Axes, node: Node, middle: Place, to_logits: Mapping[str, float]) -> Rectangle:
    """Draw a node: its roles, its name, and what it tells the logits, below each other; returns its frame."""
    corner = middle - CARD / 2
    frame = Rectangle(corner, *CARD, fc="white", ec="0.4", lw=0.6, zorder=3)
    ax.add_patch(frame)
    looks = [ROLES[role] for role in node.roles] or [RoleLook(NO_ROLE, "")]
    wide = CARD[0] / len(looks)
    for number, look in enumerate(looks):
        tile = corner + [number * wide, 2 * CELL]
        ax.add_patch(Rectangle(tile, wide, CELL, fc=look.colour, ec="0.4", lw=0.6, zorder=3))
        _write(ax, tile + [wide / 2, CELL / 2], look.letters, NOTE, ink(look.colour))
    _write(ax, middle, node.name, LETTER, "black")
    if (weight := to_logits.get(node.name)) is not None:
        _write(ax, middle - [0, CELL], short_number(weight), NOTE, _colour(weight))
    return frame


def _write(ax: Axes, at: Place, text: str, size: float, colour: ColorType, behind: str = "none") -> None:
    frame = {"boxstyle": "square,pad=0.1", "fc": behind, "ec": "none", "alpha": 0.85}
    ax.text(at[0], at[1], text, size=size, color=colour, ha="center", va="center_baseline", bbox=frame, zorder=4)


def _colour(weight: float) -> ColorType:
    return POSITIVE if weight > 0 else NEGATIVE


def _lines(edges: Sequence[Edge]) -> list[Edge]:
    return [edge for edge in edges if edge.reader != LOGITS]


def _key(nodes: Sequence[Node], edges: Sequence[Edge], no_role: str) -> list[Line2D | Patch]:
    """What the legend explains: the signs, channels and roles that there are, and the width of the widest line."""
    lines = _lines(edges)
    used = {edge.channel for edge in lines}
    solid = " or ".join(name for channel, name in (("value", "value"), ("", "all channels")) if channel in used)
    looks: list[dict[str, Any]] = [
        *[{"color": POSITIVE, "lw": 1.4, "label": "carries the effect"}] * any(edge.weight > 0 for edge in edges),
        *[{"color": NEGATIVE, "lw": 1.4, "label": "works against it"}] * any(edge.weight <= 0 for edge in edges),
        *({"ls": CHANNELS[name], "label": name} for name in ("query", "key") if name in used),
        *[{"label": solid}] * bool(solid),
        *(
            {"lw": THICK, "label": f"{abs(top.weight):.2f} of the effect", "solid_capstyle": "butt"}
            for top in lines[:1]
        ),
    ]
    handles: list[Line2D | Patch] = [Line2D([], [], **{"color": "0.3", "lw": 1.2, **look}) for look in looks]
    known = {role for node in nodes for role in node.roles}
    handles += [
        Patch(fc=ROLES[role].colour, ec="none", label=f"{ROLES[role].letters} {role}")
        for role in ROLES
        if role in known
    ]
    unknown = any(not node.roles for node in nodes)
    return handles + [Patch(fc=NO_ROLE, ec="0.4", lw=0.6, label=no_role)] * unknown
