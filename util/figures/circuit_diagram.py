"""Diagrams of circuits: parts of a model by layer, and what they tell each other (Wang et al. 2022, Fig. 2).

A circuit is a `networkx.MultiDiGraph`. A node is the name of a part; its attributes are `layer`, from 0, and `role`, ""
where none is known. An edge goes from a sender to a reader; its key is the channel through which the reader hears, one
of CHANNELS; its attributes are `weight`, and `low` and `high` where the weight has an interval. This file knows no
model: heads, types of tokens and parts of a planted circuit are drawn alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import NamedTuple

import matplotlib as mpl
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from util.figures.head_map import short_number
from util.figures.style import STYLE, WIDTH, headline, headline_height, legend_columns, new_figure, style, text_width
from util.stats.intervals import Interval

Floats = NDArray[np.float64]
Road = tuple[str, str, str]  # sender, reader, channel

CHANNELS: Mapping[str, str] = {"": "-", "value": "-", "query": "--", "key": ":"}  # and the lines they are drawn with
POSITIVE, NEGATIVE = (mpl.colormaps["RdBu_r"](end) for end in (0.9, 0.1))  # as in the maps of heads
ROLES = ("#fbd9a5", "#cfe3c2", "#d9cce8", "#f6c6cc", "#c5ddf0", "#e6dcc8", "#d8f0ea", "#f1f1b5")
NO_ROLE = "#f2f2f2"
LETTER, NOTE, KEY = 6.0, 5.5, 6.5  # points: of the names of nodes, of the weights on edges, and of the legend
PITCH = 17.0  # points from row to row
HALF = 5.0  # points: half the height of a node
GAP = 3.0  # points that two nodes of one row are apart, at least
THICK, THIN = 2.8, 0.5  # points: the widths of the strongest edge and of one with next to no weight
TITLE = 16.0  # points that the title of a panel takes
LOOP = 12.0  # points that a loop stands above its node
BEND = 5.0  # points from the straight line at which edges lie that join the same two nodes


class Node(NamedTuple):
    """A part of a model. layer: where it stands from left to right. role: what it does, "" where that is not known."""

    name: str
    layer: int
    role: str = ""


class Edge(NamedTuple):
    """What a reader hears of a sender. channel: one of CHANNELS. interval: of the weight, where there is one."""

    sender: str
    reader: str
    weight: float
    channel: str = ""
    interval: Interval | None = None


def circuit_graph(nodes: Iterable[Node], edges: Iterable[Edge]) -> nx.MultiDiGraph:
    """Returns a circuit as a graph, which `networkx` can also write to a file.

    Raises ValueError for a name that two nodes have, an edge of a node that there is not, an edge that comes twice, an
    unknown channel, and a weight that is not finite.
    """
    graph = nx.MultiDiGraph()
    for node in nodes:
        if node.name in graph:
            raise ValueError(f"nodes: {node.name!r} comes twice; give every node a name of its own")
        graph.add_node(node.name, layer=int(node.layer), role=node.role)
    for sender, reader, weight, channel, interval in edges:
        missing = [name for name in (sender, reader) if name not in graph]
        if missing:
            raise ValueError(f"edges: {missing[0]!r} of the edge {sender} -> {reader} is no node")
        if channel not in CHANNELS:
            raise ValueError(f"edges: channel = {channel!r} of the edge {sender} -> {reader}: choose {[*CHANNELS]}")
        if graph.has_edge(sender, reader, channel):
            raise ValueError(f"edges: {sender} -> {reader} comes twice through the channel {channel!r}")
        if not np.isfinite(weight):
            raise ValueError(f"edges: weight = {weight} of the edge {sender} -> {reader}: give a finite number")
        bounds = {} if interval is None else {"low": float(interval.low), "high": float(interval.high)}
        graph.add_edge(sender, reader, channel, weight=float(weight), **bounds)
    return graph


def circuit_figure(
    circuits: Mapping[str, nx.MultiDiGraph],
    finding: str | None,
    setting: str,
    *,
    signs: tuple[str, str] = ("positive", "negative"),
    unit: str = "",
    ticks: Mapping[int, str] | None = None,
    labelled: int = 5,
    width: float = WIDTH,
) -> Figure:
    """Returns the diagrams of circuits, one below the other, each under its name and with widths of its own scale.

    circuits: by the title of their panel, "" for none; those without nodes are left out. signs: what positive and
    negative weights mean. unit: of weights; the legend has the largest of each circuit. ticks: names below columns, by
    layer, such as the layer's number. labelled: how many of the strongest edges of each have their weight beside them.
    """
    drawn = {title: graph for title, graph in circuits.items() if len(graph)}
    with style():
        room = 72 * width - 10
        layouts = {title: Layout(graph, room) for title, graph in drawn.items()}
        heights = [layout.height + (TITLE if title else 0) for title, layout in layouts.items()]
        colours = role_colours(drawn.values())
        handles = _key(drawn.values(), colours, signs, unit)
        columns = legend_columns([str(handle.get_label()) for handle in handles], KEY, width)
        lines = 72 * headline_height(finding, setting, width)
        lines += 11 * ceil(len(handles) / columns) + (22 if ticks else 6)
        figure = new_figure(width, (sum(heights) + lines + 30) / 72)
        axes: list[Axes] = []
        if drawn:
            axes += [*figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]]
        for ax, (title, graph) in zip(axes, drawn.items(), strict=True):
            circuit_diagram(ax, graph, layouts[title], colours, labelled=labelled)
            ax.set_title(title)
        if ticks and axes:
            _name_columns(axes[0], layouts[next(iter(drawn))], ticks)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=KEY, handlelength=2.4)
        headline(figure, finding, setting)
    return figure


def largest_weight(graph: nx.MultiDiGraph) -> float:
    """The largest absolute weight of a circuit; 1 where there is none."""
    return max((abs(weight) for *_, weight in graph.edges(data="weight")), default=0.0) or 1.0


# ------------------------------------------------------------------------------------------------ where nodes stand


class Layout:
    """Where the nodes of a circuit stand, in points: a column for each layer that has any, from left to right.

    Rows are chosen so that no two nodes meet, few edges pass below other nodes, few cross, and edges are short; always
    the same rows for the same circuit. width: of the diagram, in points. height: of the diagram, in points. places: the
    middle (x, y) of every node. half: half the width of every node.
    """

    def __init__(self, graph: nx.MultiDiGraph, width: float) -> None:
        self.width = width
        self.names = list(graph)
        self.half = {name: text_width(name, LETTER) / 2 + 2.5 for name in self.names}
        self.layers = sorted({layer for _, layer in graph.nodes(data="layer")})
        column = {layer: number for number, layer in enumerate(self.layers)}
        margin = max(self.half.values(), default=0)
        columns = len(self.layers)
        self._across = np.linspace(margin, width - margin, columns).tolist() if columns > 1 else [width / 2]
        self._x = np.array([self._across[column[graph.nodes[name]["layer"]]] for name in self.names])
        self._half = np.array([self.half[name] for name in self.names])
        apart = np.abs(self._x[:, None] - self._x)
        self._meet = apart < self._half[:, None] + self._half + GAP  # in one row these two would meet
        number = {name: place for place, name in enumerate(self.names)}
        pairs = {(number[sender], number[reader]) for sender, reader in graph.edges() if sender != reader}
        self._pairs = np.array(sorted(pairs), dtype=int).reshape(-1, 2)
        most = max(int(self._meet.sum(axis=1).max(initial=1)), ceil(0.75 * len(self.names)), 2)
        rows = self._settled(most)
        rows -= rows.min(initial=most)
        below = PITCH * (1 + rows.max(initial=0))
        self.height = below + (LOOP if nx.number_of_selfloops(graph) else 0)
        y = below - PITCH * (rows + 0.5)
        self.places = {name: (float(self._x[i]), float(y[i])) for i, name in enumerate(self.names)}

    def column(self, layer: int) -> float:
        """Where the column of a layer stands, in points from the left."""
        return self._across[self.layers.index(layer)]

    def _settled(self, most: int) -> NDArray[np.int64]:
        """The row of every node [N], of so many: the best that three ways to begin lead to."""
        middle = (most - 1) / 2
        wishes = (lambda row: abs(row - middle), lambda row: row, lambda row: -row)
        return min((self._improved(self._first_rows(most, wish), most) for wish in wishes), key=self._cost)

    def _first_rows(self, most: int, wish: Callable[[int], float]) -> NDArray[np.int64]:
        """The nodes from left to right, each in the row of the least wish in which it meets nobody."""
        rows = np.full(len(self.names), -1)
        for node in np.argsort(self._x, kind="stable"):
            taken = {int(rows[other]) for other in np.flatnonzero(self._meet[node]) if rows[other] >= 0}
            rows[node] = min((row for row in range(most) if row not in taken), key=wish)
        return rows

    def _improved(self, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        """The rows after each node moved, or changed places with another, as long as that was better."""
        best = self._cost(rows)
        for _ in range(20):
            before = best
            for node in range(len(rows)):
                for row in range(most):
                    moved = self._moved(rows, node, row)
                    cost = np.inf if moved is None else self._cost(moved)
                    if moved is not None and cost < best - 1e-9:
                        rows, best = moved, cost
            if best >= before:
                break
        return rows

    def _moved(self, rows: NDArray[np.int64], node: int, row: int) -> NDArray[np.int64] | None:
        """The rows with a node in another row, which whoever stands there leaves for the node's; None if they meet."""
        there = np.flatnonzero(self._meet[node] & (rows == row))
        moved = rows.copy()
        moved[there], moved[node] = rows[node], row
        for changed in (node, *there):
            others = self._meet[changed] & (moved == moved[changed])
            if others.sum() > 1:  # itself is one of them
                return None
        return moved

    def _cost(self, rows: NDArray[np.int64]) -> float:
        """How hard the edges are to follow: those below other nodes count most, then crossings, then their height."""
        y = rows * PITCH
        points = np.stack([self._x, y], axis=1)
        start, end = points[self._pairs[:, 0]], points[self._pairs[:, 1]]
        course = start[:, None] + np.linspace(0, 1, 33)[None, :, None] * (end - start)[:, None]  # [E, 33, 2]
        away = np.abs(course[:, :, None] - points)  # [E, 33, N, 2]
        below = ((away[..., 0] < self._half + 1) & (away[..., 1] < HALF + 1)).any(axis=1)
        below[np.arange(len(start))[:, None], self._pairs] = False
        return 30.0 * below.sum() + _crossings(start, end) + 0.2 * np.abs(end - start)[:, 1].sum() / PITCH


def _crossings(start: Floats, end: Floats) -> int:
    """How many of the straight lines from start [E, 2] to end [E, 2] cross."""

    def side(a: Floats, b: Floats, c: Floats) -> Floats:
        return np.sign(
            (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
        )

    one, other, far, other_far = start[:, None], start[None], end[:, None], end[None]
    crossing = (side(one, far, other) * side(one, far, other_far) < 0) & (
        side(other, other_far, one) * side(other, other_far, far) < 0
    )
    return int(crossing.sum()) // 2


# ------------------------------------------------------------------------------------------------ drawing


def circuit_diagram(
    ax: Axes,
    graph: nx.MultiDiGraph,
    layout: Layout,
    colours: Mapping[str, str],
    *,
    labelled: int = 5,
) -> None:
    """Draw a circuit into axes that are about as large as its layout.

    The width of an edge is its weight in shares of the largest; its colour is the sign, its line the channel. colours:
    of roles, see `role_colours`. labelled: how many of the strongest edges have their weight beside them.
    """
    limit = largest_weight(graph)
    bends = _bends(graph)
    for road in _strongest_last(graph):
        weight = graph.edges[road]["weight"]
        thickness = THIN + (THICK - THIN) * abs(weight) / limit
        course = _course(road, layout, bends[road])
        nx.draw_networkx_edges(
            nx.DiGraph([(0, 1)]),
            {0: course.start, 1: course.end},
            width=thickness,
            edge_color=[POSITIVE if weight > 0 else NEGATIVE],
            style=CHANNELS[road[2]],
            arrowsize=4 + 2 * thickness,
            node_size=0,
            connectionstyle=course.bent,
            ax=ax,
        )
    for name, role in graph.nodes(data="role"):
        box = {"boxstyle": "round,pad=0.3", "fc": colours.get(role, NO_ROLE), "ec": "0.4", "lw": 0.6}
        nx.draw_networkx_labels(graph, layout.places, {name: name}, font_size=LETTER, bbox=box, ax=ax, clip_on=False)
    _write_weights(ax, graph, layout, bends, labelled)
    ax.set(xlim=(0, layout.width), ylim=(0, layout.height), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def role_colours(graphs: Iterable[nx.MultiDiGraph]) -> dict[str, str]:
    """The colour of every role of circuits, in the order in which roles first come."""
    roles = dict.fromkeys(role for graph in graphs for _, role in graph.nodes(data="role") if role)
    return {role: ROLES[number % len(ROLES)] for number, role in enumerate(roles)}


def _strongest_last(graph: nx.MultiDiGraph) -> list[Road]:
    """The edges by the size of their weights: what is drawn last lies above the rest."""
    return sorted(graph.edges(keys=True), key=lambda road: abs(graph.edges[road]["weight"]))


def _bends(graph: nx.MultiDiGraph) -> dict[Road, float]:
    """How many points every edge is from the straight line: 0, if it is the only one between its nodes."""
    between: dict[frozenset[str], list[Road]] = {}
    for road in graph.edges(keys=True):
        between.setdefault(frozenset(road[:2]), []).append(road)
    bends = {}
    for roads in between.values():
        for number, road in enumerate(roads):
            forth = 1 if road[:2] == roads[0][:2] else -1  # seen from the other end, left is right
            bends[road] = forth * BEND * (2 * number - len(roads) + 1)
            if road[0] == road[1]:
                bends[road] = LOOP - 2 + number
    return bends


class _Course(NamedTuple):
    """The way of an edge: where it leaves the sender's frame, what draws it aside, where it meets the reader's [2]."""

    start: Floats
    by: Floats
    end: Floats

    @property
    def bent(self) -> str:
        """The way from start to end as matplotlib's "arc3" has it."""
        middle, across = (self.start + self.end) / 2, np.array([1, -1]) * (self.end - self.start)[::-1]
        return f"arc3,rad={float((self.by - middle) @ across) / max(float(across @ across), 1e-9)}"

    def at(self, share: float) -> Floats:
        """The point [2] behind a share of the way."""
        return (1 - share) ** 2 * self.start + 2 * share * (1 - share) * self.by + share**2 * self.end


def _course(road: Road, layout: Layout, bend: float) -> _Course:
    """The way of an edge that is so many points from the straight line; a loop stands on top of its node."""
    sender, reader, _ = road
    start, end = np.array(layout.places[sender]), np.array(layout.places[reader])
    if sender == reader:
        corner = np.array([0.6 * layout.half[sender], HALF])
        return _Course(start + corner, start + [0, HALF + 2 * bend], start + corner * [-1, 1])
    across = np.array([end[1] - start[1], start[0] - end[0]]) / np.hypot(*(end - start))
    by = (start + end) / 2 + 2 * bend * across
    return _Course(_border(start, by, layout.half[sender]), by, _border(end, by, layout.half[reader]))


def _border(middle: Floats, towards: Floats, half: float) -> Floats:
    """Where the way from the middle of a node towards a point leaves its frame, [2]."""
    way = towards - middle
    share = min(half / max(abs(way[0]), 1e-9), HALF / max(abs(way[1]), 1e-9), 1.0)
    return middle + share * way


def _write_weights(
    ax: Axes, graph: nx.MultiDiGraph, layout: Layout, bends: Mapping[Road, float], labelled: int
) -> None:
    """Write the weights of the strongest edges on them, where they cover no node and no other weight."""
    taken = [(np.array(layout.places[name]), layout.half[name], HALF) for name in graph]
    for road in _strongest_last(graph)[::-1][:labelled]:
        text = f"{short_number(graph.edges[road]['weight'])} {road[2][:1]}".strip()
        half = text_width(text, NOTE) / 2 + 1
        course = _course(road, layout, bends[road])
        for along in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82):
            at = course.at(along)
            clear = half < at[0] < layout.width - half and all(
                abs(at[0] - middle[0]) > half + other + 1 or abs(at[1] - middle[1]) > NOTE / 2 + height + 1
                for middle, other, height in taken
            )
            if clear:
                frame = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85}
                ax.text(at[0], at[1], text, fontsize=NOTE, ha="center", va="center", bbox=frame, zorder=5)
                taken.append((at, half, NOTE / 2))
                break


def _name_columns(ax: Axes, layout: Layout, ticks: Mapping[int, str]) -> None:
    """Write the names of layers below their columns, as many as there is room for."""
    x = {layer: layout.column(layer) for layer in layout.layers if layer in ticks}
    shown, last = list[int](), -np.inf
    for layer, place in x.items():
        half = text_width(ticks[layer], STYLE["xtick.labelsize"]) / 2 + GAP
        if place - half > last:
            shown.append(layer)
            last = place + half
    ax.set_xticks([x[layer] for layer in shown], [ticks[layer] for layer in shown])
    ax.tick_params(axis="x", bottom=False, labelbottom=True, pad=1)
    ax.set_xlabel("layer", labelpad=1)


def _key(
    graphs: Iterable[nx.MultiDiGraph], colours: Mapping[str, str], signs: tuple[str, str], unit: str
) -> list[Line2D | Patch]:
    """What the legend explains: the signs, channels and roles that there are, and the width of the largest weight."""
    graphs = [*graphs]
    weights = [weight for graph in graphs for *_, weight in graph.edges(data="weight")]
    used = {channel for graph in graphs for *_, channel in graph.edges(keys=True)}
    handles: list[Line2D | Patch] = []
    for name, colour, there in (
        (signs[0], POSITIVE, any(weight > 0 for weight in weights)),
        (signs[1], NEGATIVE, any(weight < 0 for weight in weights)),
    ):
        if there:
            handles.append(Line2D([], [], color=colour, lw=1.4, label=name))
    handles += [
        Line2D([], [], color="0.3", lw=1.2, ls=CHANNELS[channel], label=told)
        for channel, told in (("value", "value, output" if "" in used else "value"), ("query", "query"), ("key", "key"))
        if channel in used
    ]
    if weights:
        largest = "widest: " + ", ".join(f"{largest_weight(graph):.2f}" for graph in graphs if graph.size())
        largest = f"{largest} {unit}".strip()
        handles.append(Line2D([], [], color="0.3", lw=THICK, label=largest, solid_capstyle="butt"))
    return handles + [Patch(fc=colour, ec="0.4", lw=0.6, label=role) for role, colour in colours.items()]
