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

from util.show.draw import NO_ROLE, ROLES, WIDTH, Grid, RoleLook, room
from util.show.panels import ink, short_number
from util.stats.intervals import Interval

Place: TypeAlias = Any  # an array [2] of points

LOGITS = "logits"  # no node: what a part tells it stands on the part's card
CHANNELS: dict[str, str] = {"query": "--", "key": ":", "value": "-"}  # and the lines they are drawn with
BENDS = {"query": -0.08, "key": 0.18, "value": 0.05}  # of lines, so that none lies on another
POSITIVE, NEGATIVE = (mpl.colormaps["RdBu_r"](end) for end in (0.9, 0.1))  # as in the maps of heads
LETTER, NOTE = 7.0, 6.5  # points: of names, of weights and roles
CELL = 9.0  # points: the height of a line of a card, which has three
CARD = np.array([32.0, 3 * CELL])  # points
ACROSS, SIDE = 72 * WIDTH - 10, CARD[0] / 2 + 1  # points: of the diagram, and from its edge to the middle of a card
LABEL = np.array([22.0, 8.5])  # points that the weight of a line needs
BETWEEN = 10.0  # points between cards below each other
MANY = 6  # columns; cards of more do not fit beside each other
STRAYS = np.array(sorted(np.linspace(-0.4, 0.4, 21), key=abs))  # more of a bend, for lines that are behind cards
THICK, THIN = 3.5, 0.5  # points: the widths of the strongest line and of one with next to no weight
LABELLED = 5  # lines, the strongest, that have their weight beside them
ALONG = np.array(sorted(np.linspace(0.05, 0.95, 61), key=lambda share: abs(share - 0.5)))  # a line
ROWS, SWEEPS = 6, 3  # half rows that a card may be moved up or down; how often each is moved
FLAT = 1e-3  # of a line's length behind cards: what a point of height costs


class Node(NamedTuple):
    """A part of a model. layer: where it stands from left to right. roles: what it does; it may have none."""

    name: str
    layer: int
    roles: Sequence[str] = ()


class Edge(NamedTuple):
    """What a reader hears of a sender.

    channel: one of CHANNELS, if it is a head that reads. interval: of the weight, where there is one.
    """

    sender: str
    reader: str
    weight: float
    channel: str = "value"
    interval: Interval | None = None


def circuit_grid(nodes: Sequence[Node], edges: Sequence[Edge], *, no_role: str = "no role") -> Grid | None:
    """Returns the diagram of a circuit, None for one without nodes.

    edges: from nodes to nodes or LOGITS, the strongest first. no_role: what the legend calls nodes without roles.
    """
    if not nodes:
        return None
    lines = [edge for edge in edges if edge.reader != LOGITS]
    to_logits = {edge.sender: edge.weight for edge in edges if edge.reader == LOGITS}
    middles = places(nodes, lines)
    height = (np.ptp([y for _, y in middles.values()]) + 1.5 * CARD[1] + 36) / 72  # and the names of layers
    panel = partial(_panel, nodes=nodes, lines=lines, to_logits=to_logits, middles=middles)
    legend = _key(nodes, lines, [edge.weight for edge in edges], no_role)
    return Grid([panel], least=WIDTH, height=float(height), legend=legend)


def places(nodes: Sequence[Node], lines: Sequence[Edge]) -> dict[str, Place]:
    """Returns where the cards of all nodes have their middles; that of the diagram is at 0, ACROSS is its width.

    Each layer is a column, in which nodes stand in the order of what speaks to them (Sugiyama et al. 1981, one pass).
    Then one card after the other moves up or down within its column to where fewest lines pass behind cards.
    """
    layers = sorted({node.layer for node in nodes})
    row = (CARD[1] + BETWEEN) * (2 if len(layers) > MANY else 1)
    across = np.linspace(-1, 1, len(layers)) * (ACROSS / 2 - SIDE) if len(layers) > 1 else [0]
    middles: dict[str, Place] = {}
    for column, (x, layer) in enumerate(zip(across, layers, strict=True)):
        heard = {
            node.name: np.mean([middles[edge.sender][1] for edge in lines if edge.reader == node.name] or [0.0])
            for node in nodes
            if node.layer == layer
        }
        for place, name in enumerate(sorted(heard, key=heard.__getitem__)):
            middles[name] = np.array([x, (place - len(heard) // 2 + column % 2 / 2) * row])
    if not lines:
        return middles
    cards, ends, bends = _numbers(middles, lines)
    weights = np.abs([edge.weight for edge in lines])
    for one in [*range(len(cards))] * SWEEPS:
        others, moved = np.delete(cards, one, axis=0), [cards]
        for step in range(-ROWS, ROWS + 1):
            fresh = cards.copy()
            fresh[one, 1] = step / 2 * row
            if (abs(others - fresh[one]) >= CARD + [1, BETWEEN / 2]).any(axis=1).all():
                moved.append(fresh)
        cards = min(moved, key=lambda cards: _hidden(cards, ends, weights, bends))
    return dict(zip(middles, cards, strict=True))


def _numbers(middles: Mapping[str, Place], lines: Sequence[Edge]) -> tuple[Place, Any, Any]:
    """The cards [N, 2], the numbers of those that each line joins [2, lines], and how it is usually bent [lines]."""
    names = list(middles)
    ends = [[names.index(edge.sender), names.index(edge.reader)] for edge in lines]
    bends = np.array([BENDS[edge.channel] for edge in lines])
    return np.array([*middles.values()]), np.array(ends, dtype=int).reshape(-1, 2).T, bends


def _hidden(cards: Place, ends: Any, weights: Any, bends: Any) -> float:
    """How much of the lines passes behind other cards, by weight; of equal placements a flatter one has less.

    cards, ends, bends: as `_numbers` has them; weights [lines].
    """
    slopes = abs(np.subtract(*cards[ends, 1]))
    return weights @ (_behind(cards, ends, bends) + FLAT * slopes) + FLAT**2 * np.abs(cards[:, 1]).sum()


def _behind(cards: Place, ends: Any, bends: Any) -> Any:
    """The share of each line that passes behind other cards than its own, [lines]."""
    behind = (abs(_course(cards[ends], bends)[:, :, None] - cards) < CARD / 2 + 2).all(axis=3)
    behind[:, range(len(bends)), ends] = False
    return behind.any(axis=2).mean(axis=0)


def _course(ends: Place, bends: Any) -> Place:
    """Points along lines between the middles of cards [2, lines, 2], those of the lines first: [61, lines, 2]."""
    start, end = ends
    along = ALONG[:, None, None]
    control = (start + end) / 2 + bends[:, None] * np.array([1, -1]) * (end - start)[:, ::-1]
    return (1 - along) ** 2 * start + 2 * along * (1 - along) * control + along**2 * end


def _panel(
    ax: Axes,
    nodes: Sequence[Node],
    lines: Sequence[Edge],
    to_logits: Mapping[str, float],
    middles: Mapping[str, Place],
) -> None:
    width, heights = 72 * room(ax)[0] - 10, [y for _, y in middles.values()]
    middles = {name: place * [(width / 2 - SIDE) / (ACROSS / 2 - SIDE), 1] for name, place in middles.items()}
    ax.set(
        xlim=(-width / 2, width / 2),
        ylim=(min(heights) - 0.75 * CARD[1], max(heights) + 0.75 * CARD[1]),
        yticks=[],
        aspect=1,
    )
    ax.spines[:].set_visible(False)
    layers = {middles[node.name][0]: str(node.layer) for node in nodes}
    ax.set_xticks([*layers], [*layers.values()])
    ax.tick_params(axis="x", bottom=False, pad=1)
    ax.set_xlabel("layer", labelpad=1)
    frames = {node.name: _card(ax, node, middles[node.name], to_logits) for node in nodes}
    cards, ends, bends = _numbers(middles, lines)
    boxes = [(card, CARD) for card in cards]
    bends = bends + STRAYS[np.argmin([_behind(cards, ends, bends + stray) for stray in STRAYS], axis=0)]
    courses = _course(cards[ends], bends)
    for number, edge in enumerate(lines):
        thickness = THIN + (THICK - THIN) * abs(edge.weight / lines[0].weight)
        arrow = FancyArrowPatch(
            *cards[ends[:, number]], arrowstyle="-|>", mutation_scale=4 + 2 * thickness,
            connectionstyle=f"arc3,rad={bends[number]}", patchA=frames[edge.sender], patchB=frames[edge.reader],
            shrinkA=0, shrinkB=0, lw=thickness, ls=CHANNELS[edge.channel], color=_colour(edge.weight),
            zorder=2 - number / len(lines),
        )  # fmt: skip
        ax.add_patch(arrow)
        free = [
            at for at in courses[:, number] if all((abs(at - box) > (LABEL + size) / 2).any() for box, size in boxes)
        ]
        if number < LABELLED and free:
            others = np.delete(courses, number, axis=1)  # what would be hidden, and whose weight it then seemed
            at = free[np.argmin([(abs(others - at) < LABEL / 2).all(axis=2).sum() for at in free])]
            _write(ax, at, f"{short_number(edge.weight)} {edge.channel[0]}", NOTE, _colour(edge.weight), "white")
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
    frame = {"boxstyle": "square,pad=0.1", "fc": behind, "ec": "none"}
    ax.text(at[0], at[1], text, size=size, color=colour, ha="center", va="center_baseline", bbox=frame, zorder=4)


def _colour(weight: float) -> ColorType:
    return POSITIVE if weight > 0 else NEGATIVE


def _key(nodes: Sequence[Node], lines: Sequence[Edge], weights: Sequence[float], no_role: str) -> list[Line2D | Patch]:
    """What the legend explains: the signs, channels and roles that there are, and the width of the widest line."""
    line, handles = partial(Line2D, [], [], color="0.3", lw=1.2), list[Line2D | Patch]()
    if any(weight > 0 for weight in weights):
        handles.append(line(color=POSITIVE, lw=1.4, label="carries the effect"))
    if any(weight <= 0 for weight in weights):
        handles.append(line(color=NEGATIVE, lw=1.4, label="works against it"))
    used = {edge.channel for edge in lines}
    handles += [line(ls=style, label=channel) for channel, style in CHANNELS.items() if channel in used]
    if lines:
        label = f"{abs(lines[0].weight):.2f} of the effect"
        handles.append(line(lw=THICK, label=label, solid_capstyle="butt"))
    known = {role for node in nodes for role in node.roles}
    handles += [
        Patch(fc=look.colour, ec="none", label=f"{look.letters} {role}")
        for role, look in ROLES.items()
        if role in known
    ]
    if not all(node.roles for node in nodes):
        handles.append(Patch(fc=NO_ROLE, ec="0.4", lw=0.6, label=no_role))
    return handles
