"""Diagrams of circuits: what the graph says is drawn, and can be read from 4 to 48 layers."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from tests.figures.legible import LONG_NAME, faults
from util.roles.rules import Role
from util.show import circuit_diagram as diagram
from util.show.circuit_diagram import Edge, Node, circuit_graph, circuit_grid
from util.show.draw import draw
from util.show.panels import short_number
from util.show.style import COLUMN, ROLES, WIDTH
from util.stats.intervals import Interval

KINDS = ((), (), (Role.MOVER,), (Role.INDUCTION, Role.MOVER), (Role.INHIBITION,), (*Role,)[:3])  # roles of a node
SETTING = f"{LONG_NAME}, s2_swap, 32 fresh pairs"


def drawn_circuit(layers: int, nodes: int = 17, edges: int = 40, seed: int = 0) -> nx.MultiDiGraph:
    """Heads drawn at random and the logits, with edges to later layers."""
    rng = np.random.default_rng(seed)
    places = rng.choice(layers * 9, nodes - 1, replace=False)
    heads = [Node(f"L{p // 9}H{p % 9}", p // 9, KINDS[rng.integers(len(KINDS))]) for p in sorted(map(int, places))]
    parts = [*heads, Node("logits", layers)]
    wanted: dict[tuple[str, str, str], Edge] = {}
    while len(wanted) < edges:
        one, other = sorted(map(int, rng.choice(nodes, 2, replace=False)))
        if parts[one].layer < parts[other].layer:
            channel = "" if other == nodes - 1 else ("query", "key", "value")[rng.integers(3)]
            edge = Edge(parts[one].name, parts[other].name, float(rng.normal(0, 0.3)), channel)
            wanted[edge.sender, edge.reader, channel] = edge
    return circuit_graph(parts, wanted.values())


def circuit_figure(graph: nx.MultiDiGraph, finding: str | None = None, width: float = WIDTH) -> Figure:
    grid = circuit_grid(graph)
    assert grid is not None
    return draw(grid, finding, SETTING, width)


def arrows(ax: Axes) -> list[FancyArrowPatch]:
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize(("layers", "width"), [(4, COLUMN), (12, COLUMN), *((n, WIDTH) for n in (4, 12, 30, 48))])
def test_sixteen_heads_and_forty_edges_can_be_read(layers, width):
    graph = drawn_circuit(layers)
    figure = circuit_figure(graph, "L23H3 tells L24H4 where to look", width)
    assert faults(figure) == []
    [legend] = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0
    [ax] = figure.axes
    assert len(arrows(ax)) == graph.number_of_edges() - graph.in_degree("logits")
    assert {text.get_text() for text in ax.texts} >= {*graph} - {"logits"}


@pytest.mark.parametrize("layers", [4, 12, 30, 48])
def test_no_two_nodes_meet_and_layers_go_from_left_to_right(layers):
    graph = drawn_circuit(layers)
    middles = diagram.places(graph, 386)
    for (one, at), (other, there) in combinations(middles.items(), 2):
        assert (abs(at - there) >= diagram.CARD).any(), (one, other)
        assert np.sign(there[0] - at[0]) == np.sign(graph.nodes[other]["layer"] - graph.nodes[one]["layer"])


def test_nodes_of_a_layer_stand_in_the_order_of_what_speaks_to_them():
    nodes = [Node("L0H0", 0), Node("L0H1", 0), Node("L1H0", 1), Node("L1H1", 1)]
    graph = circuit_graph(nodes, [Edge("L0H0", "L1H1", 1.0), Edge("L0H1", "L1H0", 1.0)])
    heights = {name: y for name, (_, y) in diagram.places(graph, 386).items()}
    assert heights["L0H0"] < heights["L0H1"] and heights["L1H1"] < heights["L1H0"]


def small_circuit(largest=-0.4):
    nodes = [Node("L0H0", 0, (Role.INDUCTION, Role.MOVER)), Node("L1H1", 1), Node("logits", 2)]
    edges = [
        Edge("L0H0", "L1H1", 0.2, "query"), Edge("L0H0", "L1H1", largest, "key"), Edge("L1H1", "logits", 0.8),
    ]  # fmt: skip
    return circuit_graph(nodes, edges)


def test_the_width_is_the_weight_the_colour_its_sign_and_the_line_the_channel():
    figure = circuit_figure(small_circuit())
    [ax] = figure.axes
    strong, weak = arrows(ax)
    assert strong.get_zorder() > weak.get_zorder()
    for patch, weight in ((weak, 0.2), (strong, 0.4)):
        wanted = diagram.THIN + (diagram.THICK - diagram.THIN) * weight / 0.4
        assert patch.get_linewidth() == pytest.approx(wanted)
    assert [to_rgba(patch.get_edgecolor()) for patch in (weak, strong)] == [
        to_rgba(colour) for colour in (diagram.POSITIVE, diagram.NEGATIVE)
    ]
    assert [patch.get_linestyle() for patch in (weak, strong)] == ["--", ":"]
    assert {"-.40 k", ".20 q"} <= {text.get_text() for text in ax.texts}
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "carries the effect", "works against it", "query", "key", "0.40 of the effect", "IN induction", "MV mover",
        "no role",
    ]  # fmt: skip


def test_a_card_has_the_colours_of_its_roles_and_what_it_tells_the_logits():
    graph = small_circuit()
    graph.add_edge("L0H0", "logits", "", weight=-0.2)
    [ax] = circuit_figure(graph).axes
    colours = {text.get_text(): to_rgba(text.get_color()) for text in ax.texts}
    assert "logits" not in colours and {"IN", "MV", "L0H0", "L1H1"} <= {*colours}
    assert colours[".80"] == to_rgba(diagram.POSITIVE) and colours["-.20"] == to_rgba(diagram.NEGATIVE)
    by_colour = {to_hex(part.get_facecolor()): part for part in ax.patches if isinstance(part, Rectangle)}
    tiles = [by_colour[ROLES[role].colour] for role in (Role.INDUCTION, Role.MOVER)]
    assert tiles[0].get_x() + tiles[0].get_width() == pytest.approx(tiles[1].get_x())


@pytest.mark.parametrize("layers", [4, 12, 30, 48])
def test_the_strongest_lines_have_their_weights_and_no_others(layers):
    graph = drawn_circuit(layers, 14, 32)
    [ax] = circuit_figure(graph).axes
    lines = [(abs(w), f"{short_number(w)} {c[0]}") for _, to, c, w in graph.edges(keys=True, data="weight") if c]
    wanted = sorted(text for _, text in sorted(lines)[-5:])
    assert sorted(text.get_text() for text in ax.texts if text.get_text()[-2:] in (" q", " k", " v")) == wanted


def test_the_graph_is_one_of_networkx_with_all_that_was_measured():
    graph = circuit_graph(
        [Node("L0H0", 0, [Role.MOVER]), Node("logits", 1)], [Edge("L0H0", "logits", 0.5, "", Interval(0.5, 0.4, 0.6))]
    )
    assert isinstance(graph, nx.DiGraph) and dict(graph.nodes["L0H0"]) == {"layer": 0, "roles": "mover"}
    assert graph.edges["L0H0", "logits", ""] == {"weight": 0.5, "low": 0.4, "high": 0.6}
    again = nx.parse_graphml("\n".join(nx.generate_graphml(graph)), force_multigraph=True)
    assert [*again.edges(data="weight")] == [("L0H0", "logits", 0.5)]


def test_a_circuit_of_nothing_has_no_picture():
    assert circuit_grid(circuit_graph([], [])) is None
