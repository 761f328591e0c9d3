"""Diagrams of circuits: what the graph says is drawn, and can be read from 4 to 48 layers."""

from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba
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


def random_circuit(layers, nodes=17, edges=40):
    """Heads drawn at random and the logits, with edges to later layers."""
    rng = np.random.default_rng(0)
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


def drawn(graph, width=WIDTH):
    """The picture, its axes, and the arrows, strongest first."""
    figure = draw(circuit_grid(graph), "L23H3 tells L24H4 where to look", f"{LONG_NAME}, 32 fresh pairs", width)
    [ax] = figure.axes
    return figure, ax, [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize(("layers", "width"), [(4, COLUMN), (12, COLUMN), *((n, WIDTH) for n in (4, 12, 30, 48))])
def test_sixteen_heads_and_forty_edges_can_be_read(layers, width):
    graph = random_circuit(layers)
    figure, ax, arrows = drawn(graph, width)
    box = figure.legends[0].get_window_extent()
    assert faults(figure) == [] and box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0
    assert len(arrows) == graph.number_of_edges() - graph.in_degree("logits")
    texts = [text.get_text() for text in ax.texts]
    assert {*texts} >= {*graph} - {"logits"}
    lines = [(abs(w), f"{short_number(w)} {c[0]}") for _, to, c, w in graph.edges(keys=True, data="weight") if c]
    weights = {text for text in texts if text[-2:] in (" q", " k", " v")}
    strongest = {text for _, text in sorted(lines)[-diagram.LABELLED :]}
    assert weights <= strongest and (width < WIDTH or layers < 12 or weights)
    middles = diagram.places(graph, 386)
    for (one, at), (other, there) in combinations(middles.items(), 2):
        assert (abs(at - there) >= diagram.CARD).any(), (one, other)
        assert np.sign(there[0] - at[0]) == np.sign(graph.nodes[other]["layer"] - graph.nodes[one]["layer"])


def test_nodes_of_a_layer_stand_in_the_order_of_what_speaks_to_them():
    nodes = [Node("L0H0", 0), Node("L0H1", 0), Node("L1H0", 1), Node("L1H1", 1)]
    graph = circuit_graph(nodes, [Edge("L0H0", "L1H1", 1.0), Edge("L0H1", "L1H0", 1.0)])
    heights = {name: y for name, (_, y) in diagram.places(graph, 386).items()}
    assert heights["L0H0"] < heights["L0H1"] and heights["L1H1"] < heights["L1H0"]


def test_widths_are_weights_colours_signs_lines_channels_and_cards_have_roles_and_what_they_tell_the_logits():
    nodes = [Node("L0H0", 0, (Role.INDUCTION, Role.MOVER)), Node("L1H1", 1), Node("logits", 2)]
    edges = [("L0H0", "L1H1", 0.2, "query"), ("L0H0", "L1H1", -0.4, "key"), ("L1H1", "logits", 0.8)]
    edges += [("L0H0", "logits", -0.2)]
    figure, ax, (strong, weak) = drawn(circuit_graph(nodes, [Edge(*edge) for edge in edges]))
    assert strong.get_zorder() > weak.get_zorder() and strong.get_linewidth() == diagram.THICK
    assert weak.get_linewidth() == pytest.approx((diagram.THIN + diagram.THICK) / 2)
    positive, negative = map(to_rgba, (diagram.POSITIVE, diagram.NEGATIVE))
    assert [to_rgba(patch.get_edgecolor()) for patch in (weak, strong)] == [positive, negative]
    assert [patch.get_linestyle() for patch in (weak, strong)] == ["--", ":"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "carries the effect", "works against it", "query", "key", "0.40 of the effect", "IN induction", "MV mover",
        "no role",
    ]  # fmt: skip
    colours = {text.get_text(): to_rgba(text.get_color()) for text in ax.texts}
    assert "logits" not in colours and {"-.40 k", ".20 q", "IN", "MV", "L0H0", "L1H1"} <= {*colours}
    assert colours[".80"] == positive and colours["-.20"] == negative
    by_colour = {to_hex(part.get_facecolor()): part for part in ax.patches if isinstance(part, Rectangle)}
    left, right = (by_colour[ROLES[role].colour] for role in (Role.INDUCTION, Role.MOVER))
    assert left.get_x() + left.get_width() == pytest.approx(right.get_x())


def test_the_graph_is_one_of_networkx_with_all_that_was_measured():
    graph = circuit_graph(
        [Node("L0H0", 0, [Role.MOVER]), Node("logits", 1)], [Edge("L0H0", "logits", 0.5, "", Interval(0.5, 0.4, 0.6))]
    )
    assert isinstance(graph, nx.DiGraph) and dict(graph.nodes["L0H0"]) == {"layer": 0, "roles": "mover"}
    assert graph.edges["L0H0", "logits", ""] == {"weight": 0.5, "low": 0.4, "high": 0.6}
    again = nx.parse_graphml("\n".join(nx.generate_graphml(graph)), force_multigraph=True)
    assert [*again.edges(data="weight")] == [("L0H0", "logits", 0.5)]
    assert circuit_grid(circuit_graph([], [])) is None
