"""Diagrams of circuits: parts of a model by layer, and what they tell each other (Wang et al. 2022, Fig. 2).

A circuit is a `networkx.MultiDiGraph`. A node is the name of a part; its attributes are `layer`, from 0, and `roles`,
joined by ", ", "" where it has none. An edge goes from a sender to a reader; its key is the channel through which the
reader hears, one of CHANNELS; its attributes are `weight`, and `low` and `high` where the weight has an interval. This
file knows no model: heads and parts of a planted circuit are drawn alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import matplotlib as mpl
import networkx as nx
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

LOGITS = "logits"  # the node that is not drawn: what a part tells it stands on the part's card
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
    heights = [y for _, y in places(graph, 72 * WIDTH).values()]
    height = (np.ptp(heights) + 1.5 * CARD[1] + 36) / 72  # and the names of layers
    return Grid([partial(_panel, graph=graph)], least=WIDTH, height=float(height), legend=_key(graph, no_role))


def places(graph: nx.MultiDiGraph, width: float) -> dict[str, Place]:
    """Returns where the cards of all nodes but the logits have their middles, in a diagram that is so many points wide.

    Each layer is a column, in which nodes stand in the order of what speaks to them (Sugiyama et al. 1981, one pass).
    Every other column is half a row lower; where there are MANY, so far that cards never meet.
    """
    columns: dict[int, list[str]] = {}
    for name, layer in graph.nodes(data="layer"):
        if name != LOGITS:
            columns.setdefault(layer, []).append(name)
    row = (CARD[1] + BETWEEN) * (2 if len(columns) > MANY else 1)
    across = np.linspace(CARD[0] / 2 + 1, width - CARD[0] / 2 - 1, len(columns)) if len(columns) > 1 else [width / 2]
    found: dict[str, Place] = {}
    for number, (_, names) in enumerate(sorted(columns.items())):
        heard = {name: [found[sender][1] for sender in graph.predecessors(name)] for name in names}
        names.sort(key=lambda name: np.mean(heard[name] or [0.0]))
        for place, name in enumerate(names):
            found[name] = np.array([across[number], (place - len(names) // 2 + number % 2 / 2) * row])
    return found


def _panel(ax: Axes, graph: nx.MultiDiGraph) -> None:
    width = 72 * room(ax)[0] - 10
    middles = places(graph, width)
    heights = [y for _, y in middles.values()]
    ax.set(xlim=(0, width), ylim=(min(heights) - 0.75 * CARD[1], max(heights) + 0.75 * CARD[1]), yticks=[], aspect=1)
    ax.spines[:].set_visible(False)
    layers = {middles[name][0]: str(layer) for name, layer in graph.nodes(data="layer") if name != LOGITS}
    ax.set_xticks([*layers], [*layers.values()])
    ax.tick_params(axis="x", bottom=False, pad=1)
    ax.set_xlabel("layer", labelpad=1)
    frames = {name: _card(ax, graph, name, middle) for name, middle in middles.items()}
    boxes = [(middle, CARD) for middle in middles.values()]
    lines = _lines(graph)
    for number, (sender, reader, channel, weight) in enumerate(lines):
        thickness = THIN + (THICK - THIN) * abs(weight / lines[0][3])
        start, end, bend = middles[sender], middles[reader], BENDS[channel]
        look: dict[str, Any] = {"lw": thickness, "ls": CHANNELS[channel], "color": _colour(weight)}
        look |= {"arrowstyle": "-|>", "mutation_scale": 4 + 2 * thickness, "connectionstyle": f"arc3,rad={bend}"}
        ends: dict[str, Any] = {"patchA": frames[sender], "patchB": frames[reader], "shrinkA": 0, "shrinkB": 0}
        ax.add_patch(FancyArrowPatch(start, end, zorder=2 - number / len(lines), **look, **ends))
        if number < LABELLED:
            control = (start + end) / 2 + bend * np.array([1, -1]) * (end - start)[::-1]
            course = [(1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end for t in ALONG]
            free = (at for at in course if all((abs(at - box) > (LABEL + size) / 2).any() for box, size in boxes))
            if (at := next(free, None)) is not None:
                _write(ax, at, f"{short_number(weight)} {channel[:1]}".strip(), NOTE, _colour(weight), "white")
                boxes.append((at, LABEL))


def _card(ax: Axes, graph: nx.MultiDiGraph, name: str, middle: Place) -> Rectangle:
    """Draw a node: its roles, its name, and what it tells the logits, below each other; returns its frame."""
    corner = middle - CARD / 2
    frame = Rectangle(corner, *CARD, fc="white", ec="0.4", lw=0.6, zorder=3)
    ax.add_patch(frame)
    looks = [ROLES[role] for role in _roles(graph, name)] or [RoleLook(NO_ROLE, "")]
    wide = CARD[0] / len(looks)
    for number, look in enumerate(looks):
        tile = corner + [number * wide, 2 * CELL]
        ax.add_patch(Rectangle(tile, wide, CELL, fc=look.colour, ec="0.4", lw=0.6, zorder=3))
        _write(ax, tile + [wide / 2, CELL / 2], look.letters, NOTE, ink(look.colour))
    _write(ax, middle, name, LETTER, "black")
    if graph.has_edge(name, LOGITS, ""):
        told = graph.edges[name, LOGITS, ""]["weight"]
        _write(ax, middle - [0, CELL], short_number(told), NOTE, _colour(told))
    return frame


def _write(ax: Axes, at: Place, text: str, size: float, colour: ColorType, behind: str = "none") -> None:
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
    lines, weights = _lines(graph), [weight for *_, weight in graph.edges(data="weight")]
    used = {channel for _, _, channel, _ in lines}
    solid = " or ".join(name for channel, name in (("value", "value"), ("", "all channels")) if channel in used)
    looks: list[dict[str, Any]] = [
        *[{"color": POSITIVE, "lw": 1.4, "label": "carries the effect"}] * (max(weights, default=0) > 0),
        *[{"color": NEGATIVE, "lw": 1.4, "label": "works against it"}] * (min(weights, default=1) <= 0),
        *({"ls": CHANNELS[name], "label": name} for name in ("query", "key") if name in used),
        *[{"label": solid}] * bool(solid),
        *({"lw": THICK, "label": f"{abs(top[3]):.2f} of the effect", "solid_capstyle": "butt"} for top in lines[:1]),
    ]
    handles: list[Line2D | Patch] = [Line2D([], [], **{"color": "0.3", "lw": 1.2, **look}) for look in looks]
    roles = [_roles(graph, name) for name in graph if name != LOGITS]
    known = [(role, look) for role, look in ROLES.items() if any(role in those for those in roles)]
    handles += [Patch(fc=look.colour, ec="none", label=f"{look.letters} {role}") for role, look in known]
    return handles + [Patch(fc=NO_ROLE, ec="0.4", lw=0.6, label=no_role)] * ([] in roles)
