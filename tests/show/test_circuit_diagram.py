"""Diagrams of circuits can be read from 4 to 48 layers. Those of stored values: tests/figures/test_drawn.py."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch

from tests.figures.legible import LONG_NAME, faults
from util.roles.rules import Role
from util.show.circuit_diagram import LOGITS, Edge, Node, circuit_grid
from util.show.draw import COLUMN, WIDTH, draw


@pytest.mark.parametrize("layers, width", [(4, COLUMN), (48, WIDTH)])
def test_sixteen_heads_and_forty_edges_can_be_read(layers, width):
    rng = np.random.default_rng(0)
    heads = sorted(rng.choice(layers * 9, 16, replace=False).tolist())
    nodes = [Node(f"L{head // 9}H{head % 9}", head // 9, tuple(Role)[: head % 4]) for head in heads]
    pairs = [(one.name, other.name) for one, other in combinations(nodes, 2) if one.layer < other.layer]
    ends = [(node.name, LOGITS) for node in nodes[::2]]
    ends += [pairs[place] for place in rng.permutation(len(pairs))[:32]]
    edges = [Edge(*end, float(rng.normal(0, 0.3))) for end in ends]
    grid = circuit_grid(nodes, sorted(edges, key=lambda edge: -abs(edge.weight)))
    figure = draw(grid, "L23H3 tells L24H4 where to look", f"{LONG_NAME}, 32 pairs", width)
    [ax] = figure.axes
    assert len([patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]) == 32
    assert faults(figure) == [] and {text.get_text() for text in ax.texts} >= {node.name for node in nodes}
    assert circuit_grid([], []) is None
