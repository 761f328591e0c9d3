"""Diagrams of circuits: parts of a model by layer, and what they tell each other (Wang et al. 2022, Fig. 2).

A circuit is a `networkx.MultiDiGraph`. A node is the name of a part; its attributes are `layer`, from 0, and `roles`,
joined by ", ", "" where it has none. An edge goes from a sender to a reader; its key is the channel through which the
reader hears, one of CHANNELS; its attributes are `weight`, and `low` and `high` where the weight has an interval. This
file knows no model: heads and parts of a planted circuit are drawn alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import matplotlib as mpl
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.typing import ColorType
from numpy.typing import NDArray

from util.show.draw import Grid, room
from util.show.head_map import short_number
from util.show.style import NO_ROLE, ROLES, WIDTH, RoleLook, ink, text_width
from util.stats.intervals import Interval

Floats = NDArray[np.float64]

LOGITS = "logits"  # the node that is not drawn: what a part tells it stands on the part's card
CHANNELS: dict[str, str] = {"": "-", "value": "-", "query": "--", "key": ":"}  # and the lines they are drawn with
POSITIVE, NEGATIVE = (mpl.colormaps["RdBu_r"](end) for end in (0.9, 0.1))  # as in the maps of heads
LETTER, NOTE = 6.0, 5.5  # points: of names, of weights and roles
CELL, TILE, BETWEEN = 8.0, 9.0, 11.0  # points: the height of a line of a card, a role's width, the room between cards
CARD = 3 * CELL
THICK, THIN = 3.5, 0.5  # points: the widths of the strongest line and of one with next to no weight
LABELLED = 5  # lines, the strongest, that have their weight beside them
BENDS = (0.0, *(sign * size for size in (0.08, 0.15, 0.22, 0.3, 0.4, 0.5) for sign in (1, -1)))  # of lines
ALONG = np.linspace(0, 1, 41)[:, None]  # shares of a line
FROM_MIDDLE = np.argsort(np.abs(ALONG[:, 0] - 0.5), kind="stable")  # their order


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


def circuit_graph(nodes: Iterable[Node], edges: Iterable[Edge]) -> nx.MultiDiGraph:
    """Returns a circuit as a graph, which `networkx` can also write to a file."""
    graph = nx.MultiDiGraph()
    for node in nodes:
        graph.add_node(node.name, layer=int(node.layer), roles=", ".join(node.roles))
    for sender, reader, weight, channel, interval in edges:
        bounds = {} if interval is None else {"low": float(interval.low), "high": float(interval.high)}
        graph.add_edge(sender, reader, channel, weight=float(weight), **bounds)
    return graph


def circuit_grid(graph: nx.MultiDiGraph, *, no_role: str = "no role") -> Grid | None:
    """Returns the diagram of a circuit, None for one without nodes. no_role: what the legend calls such nodes."""
    if not len(graph):
        return None

    def height(width: float) -> float:
        low, high = _laid_out(graph, width)[2]
        return (high - low + 45) / 72  # points: and the names of layers

    return Grid([partial(_panel, graph=graph)], least=WIDTH, height=height, legend=_key(graph, no_role))


def _laid_out(graph: nx.MultiDiGraph, width: float) -> tuple[list[_Card], list[_Line], tuple[float, float]]:
    """The cards and lines of a circuit in a panel of so many inches, and from where to where they reach, in points."""
    cards = _cards(graph, 72 * width - 10)
    lines = _routed(graph, cards)
    return cards, lines, _limits(cards, lines)


def _panel(ax: Axes, graph: nx.MultiDiGraph) -> None:
    width, _ = room(ax)
    cards, lines, limits = _laid_out(graph, width)
    ax.set(xlim=(0, 72 * width - 10), ylim=limits, yticks=[])
    ax.spines[:].set_visible(False)
    _draw(ax, cards, lines, max((abs(line.weight) for line in lines), default=1.0))
    layers = {card.middle[0]: str(graph.nodes[card.name]["layer"]) for card in cards}
    ax.set_xticks([*layers], [*layers.values()])
    ax.tick_params(axis="x", bottom=False, pad=1)
    ax.set_xlabel("layer", labelpad=1)


class _Card:
    """A node as it is drawn: its roles, its name, and what it tells the logits, below each other.

    half: half its width and height; middle: where it stands; both [2], in points.
    """

    def __init__(self, graph: nx.MultiDiGraph, name: str) -> None:
        self.name, self.roles = name, _roles(graph, name)
        self.told = graph.edges[name, LOGITS, ""]["weight"] if graph.has_edge(name, LOGITS, "") else None
        self.half = np.array([max(text_width(name, LETTER) + 5, TILE * len(self.roles), 20.0), CARD]) / 2
        self.middle = np.zeros(2)

    def draw(self, ax: Axes) -> Rectangle:
        """Draw the card, and return its frame."""
        (x, y), (wide, high) = self.middle - self.half, 2 * self.half
        frame = Rectangle((x, y), wide, high, fc="white", ec="0.4", lw=0.6, zorder=3)
        ax.add_patch(frame)
        looks = [ROLES[role] for role in self.roles] or [RoleLook(NO_ROLE, "")]
        tile, top = wide / len(looks), y + high - CELL
        for number, look in enumerate(looks):
            left = x + number * tile
            ax.add_patch(Rectangle((left, top), tile, CELL, fc=look.colour, ec="0.4", lw=0.6, zorder=3))
            _write(ax, (left + tile / 2, top + CELL / 2), look.letters, NOTE, ink(look.colour))
        _write(ax, self.middle, self.name, LETTER, "black")
        if self.told is not None:
            _write(ax, self.middle - [0, CELL], short_number(self.told), NOTE, _colour(self.told))
        return frame


def _cards(graph: nx.MultiDiGraph, width: float) -> list[_Card]:
    """The cards of all nodes but the logits, in their places from (0, 0) on: a column for each layer that has any.

    Columns beside each other have their rows at different heights, so that cards do not meet where columns are narrow.
    """
    cards = {name: _Card(graph, name) for name in graph if name != LOGITS}
    columns: dict[int, list[str]] = {}
    for name in cards:
        columns.setdefault(graph.nodes[name]["layer"], []).append(name)
    places = nx.multipartite_layout(graph.subgraph(cards), subset_key=columns)
    at = np.array([places[name] for name in cards])
    size = np.ptp(at, axis=0)
    at = np.where(size > 0, (at - at.min(axis=0)) / np.where(size > 0, size, 1), 0.5)  # from 0 to 1
    widest, most = 2 * max(card.half[0] for card in cards.values()), max(map(len, columns.values()))
    room = width - widest - 2
    narrow = room < (len(columns) - 1) * (widest + BETWEEN)
    row = (CARD + BETWEEN) * (2 if narrow else 1)
    at = at * (room, (most - 1) * row) + [widest / 2 + 1, 0]
    for place, name in enumerate(cards):
        layer = graph.nodes[name]["layer"]
        at[place, 1] += row / 2 * ((sorted(columns).index(layer) + len(columns[layer])) % 2)
    for card, middle in zip(cards.values(), at, strict=True):
        card.middle = middle + [0, CARD / 2 + 1 - at[:, 1].min()]
    return [*cards.values()]


class _Line(NamedTuple):
    """A line as it is drawn: the cards at its ends, its bend (see `_course`), points of it [41, 2]."""

    start: _Card
    end: _Card
    channel: str
    weight: float
    bend: float
    course: Floats


def _routed(graph: nx.MultiDiGraph, cards: Sequence[_Card]) -> list[_Line]:
    """The lines of a circuit, strongest first: of the bends that no other line between its ends has, each has the one
    with which the least of it lies below cards.
    """
    by_name, routed, taken = {card.name: card for card in cards}, list[_Line](), set[tuple[str, str, float]]()
    for sender, reader, channel, weight in _lines(graph):
        start, end = by_name[sender], by_name[reader]
        courses = {bend: _course(start, end, bend) for bend in BENDS if (sender, reader, bend) not in taken}
        others = [(card.middle, card.half) for card in cards if card not in (start, end)]
        bend = min(courses, key=lambda bend: sum(_inside(courses[bend], *box) for box in others))
        taken |= {(sender, reader, bend), (reader, sender, -bend)}
        routed.append(_Line(start, end, channel, weight, bend, courses[bend]))
    return routed


def _limits(cards: Sequence[_Card], lines: Sequence[_Line]) -> tuple[float, float]:
    """From where to where a diagram reaches from below, in points."""
    edges = [card.middle[1] + sign * (card.half[1] + 1) for card in cards for sign in (-1, 1)]
    edges += [height for line in lines for height in (line.course[:, 1].min() - NOTE, line.course[:, 1].max() + NOTE)]
    return min(edges), max(edges)


def _draw(ax: Axes, cards: Sequence[_Card], lines: Sequence[_Line], widest: float) -> None:
    """Draw cards, and lines as wide as their weights: colours are signs, dashes are channels, the strongest on top."""
    frames = {card.name: card.draw(ax) for card in cards}
    boxes = [(card.middle, card.half) for card in cards]
    for number, (start, end, channel, weight, bend, course) in enumerate(lines):
        thickness = THIN + (THICK - THIN) * abs(weight) / widest
        arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 4 + 2 * thickness, "shrinkA": 0, "shrinkB": 0}
        arrow |= {"lw": thickness, "ls": CHANNELS[channel], "color": _colour(weight), "zorder": 2 - number / len(lines)}
        arrow |= {"patchA": frames[start.name], "patchB": frames[end.name], "connectionstyle": f"arc3,rad={bend}"}
        arrow |= {"posA": tuple(start.middle), "posB": tuple(end.middle)}
        ax.add_patch(FancyArrowPatch(**arrow))
        if number < LABELLED:
            text = f"{short_number(weight)} {channel[:1]}".strip()
            half = np.array([text_width(text, NOTE) / 2 + 1, NOTE / 2 + 1])
            for at in course[FROM_MIDDLE]:
                if not any(_inside(at, middle, half + other) for middle, other in boxes):
                    _write(ax, at, text, NOTE, _colour(weight), "white")
                    boxes.append((at, half))
                    break


def _course(one: _Card, other: _Card, bend: float) -> Floats:
    start, end = one.middle, other.middle
    by = (start + end) / 2 + bend * np.array([1, -1]) * (end - start)[::-1]
    return (1 - ALONG) ** 2 * start + 2 * ALONG * (1 - ALONG) * by + ALONG**2 * end


def _inside(points: Floats, middle: Floats, half: Floats) -> int:
    """How many of the points [..., 2] lie in a box, or right beside it."""
    return int((np.abs(points - middle) < half + 1).all(axis=-1).sum())


def _write(
    ax: Axes, at: Sequence[float] | Floats, text: str, size: float, colour: ColorType, behind: str = "none"
) -> None:
    frame = {"boxstyle": "square,pad=0.1", "fc": behind, "ec": "none", "alpha": 0.85}
    ax.text(at[0], at[1], text, size=size, color=colour, ha="center", va="center_baseline", bbox=frame, zorder=4)


def _colour(weight: float) -> ColorType:
    return POSITIVE if weight > 0 else NEGATIVE


def _roles(graph: nx.MultiDiGraph, name: str) -> list[str]:
    return [role for role in graph.nodes[name]["roles"].split(", ") if role]


def _lines(graph: nx.MultiDiGraph) -> list[tuple[str, str, str, float]]:
    """The edges that are drawn as lines, strongest first: sender, reader, channel, weight."""
    lines = [line for line in graph.edges(keys=True, data="weight") if line[1] != LOGITS]
    return sorted(lines, key=lambda line: -abs(line[3]))


def _key(graph: nx.MultiDiGraph, no_role: str) -> list[Line2D | Patch]:
    """What the legend explains: the signs, channels and roles that there are, and the width of the widest line."""
    weights = [weight for *_, weight in graph.edges(data="weight")]
    used, strongest = {channel for _, _, channel, _ in _lines(graph)}, _lines(graph)[:1]
    signs = {"carries the effect": (POSITIVE, max(weights, default=0))}
    signs["works against it"] = NEGATIVE, -min(weights, default=0)
    lines: list[dict[str, Any]] = [
        {"color": colour, "lw": 1.4, "label": name} for name, (colour, most) in signs.items() if most > 0
    ]
    if used - {""}:  # else all lines are alike
        solid = " or ".join(name for channel, name in (("value", "value"), ("", "all channels")) if channel in used)
        lines += [{"ls": CHANNELS[name], "label": name} for name in ("query", "key") if name in used]
        lines += [{"label": solid}] * bool(solid)
    for *_, weight in strongest:
        lines.append({"lw": THICK, "label": f"{abs(weight):.2f} of the effect", "solid_capstyle": "butt"})
    handles: list[Line2D | Patch] = [Line2D([], [], **{"color": "0.3", "lw": 1.2, **line}) for line in lines]
    roles = [_roles(graph, name) for name in graph if name != LOGITS]
    for role, look in ROLES.items():
        if role in sum(roles, []):
            handles.append(Patch(fc=look.colour, ec="none", label=f"{look.letters} {role}"))
    return handles + [Patch(fc=NO_ROLE, ec="0.4", lw=0.6, label=no_role)] * ([] in roles)
