"""Diagrams of circuits: what edges say is drawn, and can be read from 4 to 48 layers."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch

from tests.figures.legible import LONG_NAME, faults
from util.roles.rules import Role
from util.show import circuit_diagram as diagram
from util.show.circuit_diagram import LOGITS, Edge, Node, circuit_grid
from util.show.draw import draw
from util.show.style import COLUMN, WIDTH


def drawn(nodes, edges, width=WIDTH):
    """The picture, its texts with their colours, and the arrows, strongest first."""
    figure = draw(circuit_grid(nodes, edges), "L23H3 tells L24H4 where to look", f"{LONG_NAME}, 32 pairs", width)
    [ax] = figure.axes
    texts = {text.get_text(): to_rgba(text.get_color()) for text in ax.texts}
    return figure, texts, [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize(("layers", "width"), [(4, COLUMN), (48, WIDTH)])
def test_sixteen_heads_and_forty_edges_can_be_read(layers, width):
    rng = np.random.default_rng(0)
    heads = sorted(rng.choice(layers * 9, 16, replace=False).tolist())
    nodes = [Node(f"L{head // 9}H{head % 9}", head // 9, tuple(Role)[: head % 4]) for head in heads]
    pairs = [(one.name, other.name) for one, other in combinations(nodes, 2) if one.layer < other.layer]
    ends = [(node.name, LOGITS) for node in nodes[::2]]
    ends += [pairs[place] for place in rng.permutation(len(pairs))[:32]]
    edges = [Edge(*end, float(rng.normal(0, 0.3))) for end in ends]
    figure, texts, arrows = drawn(nodes, sorted(edges, key=lambda edge: -abs(edge.weight)), width)
    assert faults(figure) == [] and len(arrows) == 32 and {*texts} >= {node.name for node in nodes}


def test_nodes_of_a_layer_stand_in_the_order_of_what_speaks_to_them():
    nodes = [Node("L0H0", 0), Node("L0H1", 0), Node("L1H0", 1), Node("L1H1", 1)]
    middles = diagram.places(nodes, [Edge("L0H0", "L1H1", 1.0), Edge("L0H1", "L1H0", 1.0)])
    assert middles["L0H0"][1] < middles["L0H1"][1] and middles["L1H1"][1] < middles["L1H0"][1]


def test_widths_are_weights_colours_signs_lines_channels_and_cards_have_roles_and_what_they_tell_the_logits():
    nodes = [Node("L0H0", 0, (Role.INDUCTION, Role.MOVER)), Node("L1H1", 1)]
    edges = [
        ("L1H1", LOGITS, 0.8),
        ("L0H0", "L1H1", -0.4, "key"),
        ("L0H0", "L1H1", 0.2, "query"),
        ("L0H0", LOGITS, -0.2),
    ]
    figure, texts, (strong, weak) = drawn(nodes, [Edge(*edge) for edge in edges])
    assert strong.get_zorder() > weak.get_zorder() and strong.get_linewidth() == diagram.THICK
    assert weak.get_linewidth() == pytest.approx((diagram.THIN + diagram.THICK) / 2)
    assert (weak.get_linestyle(), strong.get_linestyle()) == ("--", ":")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "carries the effect", "works against it", "query", "key", "0.40 of the effect", "IN induction", "MV mover",
        "no role",
    ]  # fmt: skip
    positive, negative = map(to_rgba, (diagram.POSITIVE, diagram.NEGATIVE))
    assert (to_rgba(weak.get_edgecolor()), to_rgba(strong.get_edgecolor())) == (positive, negative)
    assert LOGITS not in texts and {"-.40 k", ".20 q", "IN", "MV", "L0H0", "L1H1"} <= {*texts}
    assert texts[".80"] == positive and texts["-.20"] == negative and circuit_grid([], []) is None
