"""Planted IOI circuits as edges of the component graph: exact scores find them, first-order ones only where they can.

The models of `models.planted` are made by hand, so it is known what each head writes and reads. A route is what one
part of the circuit reads of another. It is silent where the metric would not change if it alone were corrupted: the
copier adds as much to one answer as to the other; every name is marked as a name; a backup rests while the mover works.
The attention of a planted head is saturated, so that the gradients of what queries and keys read are all but 0.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests import architectures
from tests.tiers import quick
from util.engine.components import blocks_of
from util.engine.handshake import prepare
from util.figures.controls import name_tokens, planted_control
from util.figures.ioi_patching.measure import logit_difference
from util.models import planted
from util.prompts.ioi import group_by_shape
from util.roles.name_roles import NamePairs
from util.scores.attribution import edge_scores
from util.scores.exact import exact_scores
from util.scores.graph import ComponentGraph, Floats, Place

DUPLICATE, COPIER, MOVER, BACKUP = "duplicate token", "copier", "mover", "backup mover"
Route = tuple[str, str, str]  # sender, reader, and q, k or v where the reader is a head
LISTENING, MARKED, OUTPUT = (DUPLICATE, COPIER, "k"), (DUPLICATE, MOVER, "k"), (MOVER, "logits", "")
ATTENTION = [("input", DUPLICATE, "q"), ("input", DUPLICATE, "k"), MARKED]
LINEAR = [("input", MOVER, "v"), OUTPUT]
SILENT = [("input", DUPLICATE, "v"), ("input", COPIER, "k"), ("input", COPIER, "v"), (COPIER, "logits", "")]
INHIBITED = [(DUPLICATE, MOVER, "v"), (MOVER, BACKUP, "q")]  # they tell the backup that the mover is done
RESTING = [MARKED, (DUPLICATE, BACKUP, "k"), ("input", BACKUP, "v"), (BACKUP, "logits", "")]
METHODS = ("exact", "EAP", "EAP-IG inputs")


class Found(NamedTuple):
    """Mean scores [U, V] of each method as shares of the whole effect, and the places of each route, one a copy."""

    scores: Mapping[str, Floats]
    routes: Mapping[Route, tuple[Place, ...]]
    graph: ComponentGraph

    def share(self, method, route):
        """The score of a route, all copies together."""
        return float(sum(self.scores[method][place] for place in self.routes[route]))

    def apart(self, method, effective, silent):
        """The sizes of the scores of the routes that have an effect, and of all other edges but the silent routes."""
        known, compared = np.zeros(self.graph.shape, bool), self.graph.edges.copy()
        for route in effective:
            known[tuple(np.transpose(self.routes[route]))] = True
        for route in silent:
            compared[tuple(np.transpose(self.routes[route]))] = False
        sizes = np.abs(self.scores[method])
        return sizes[known], sizes[compared & ~known]


def found_in(folder, **options):
    """The scores of all edges of a planted model, on two pairs."""
    model, truth = planted_control(planted.ioi, options, name_tokens)
    layers = 1 + max(layer for layer, _ in (*truth.names, *truth.decoys))
    graph, heads = ComponentGraph(layers, planted.HEADS), dict(truth.heads)
    if layers == 3:
        heads[BACKUP] = tuple(head for head in heads[MOVER] if head[0] == 2)
        heads[MOVER] = tuple(head for head in heads[MOVER] if head[0] < 2)
    names = {role: [f"a{layer}.h{head}" for layer, head in places] for role, places in heads.items()}
    routes = {}
    for sender, reader, letter in {*ATTENTION, LISTENING, *LINEAR, *SILENT, *(INHIBITED + RESTING) * (layers == 3)}:
        copies = max(len(names.get(role, ())) for role in (sender, reader))
        ends = zip(names.get(sender, [sender] * copies), names.get(reader, [reader] * copies), strict=True)
        routes[sender, reader, letter] = tuple(graph.place(f"{s}->{r}" + f"<{letter}>" * bool(letter)) for s, r in ends)
    pairs = NamePairs(model, "abc", 2, held_out=True, folder=folder)
    places, net = np.argwhere(graph.edges), pairs.pair[0]
    edges = [(sender, reader) for sender, reader in places.tolist()]
    sums, whole = {method: np.zeros(graph.shape) for method in METHODS}, 0.0
    for numbers in group_by_shape(pairs.tokens).values():
        base, source, answers = pairs.batch(numbers)
        effects = exact_scores(net, base, source, answers, edges).sum(0)
        sums["exact"][tuple(places.T)] += effects.numpy()
        for method in METHODS[1:]:
            sums[method] += edge_scores(net, base, source, answers, method).sum(0).numpy()
        whole += float((logit_difference(net, base, answers) - logit_difference(net, source, answers)).sum())
    return Found({method: scores / whole for method, scores in sums.items()}, routes, graph)


@pytest.fixture(scope="module", params=quick(["gpt2"], ["llama"]))
def found(request, tmp_path_factory):
    return found_in(tmp_path_factory.mktemp("records"), family=request.param)


def test_exact_scores_find_the_circuit_and_nothing_else(found):
    known, others = found.apart("exact", [*ATTENTION, LISTENING, *LINEAR], SILENT)
    copies = len(found.routes[LISTENING])
    assert len(known) == 6 * copies
    assert others.max() < 0.02 and known.min() > 0.25 / copies
    assert all(found.share("exact", route) > 0.25 for route in [*ATTENTION, LISTENING, *LINEAR])


def test_saturated_attention_hides_what_queries_and_keys_read_from_first_order_scores(found):
    """The negative control: these edges carry all of the effect, and their gradients are all but 0."""
    for route in ATTENTION:
        assert found.share("exact", route) > 0.5
        for method in METHODS[1:]:
            assert abs(found.share(method, route)) < 0.03
    assert all(found.share("EAP", route) > 0.1 * found.share("exact", route) for route in LINEAR)


@pytest.mark.slow
def test_a_backup_hides_the_mover(tmp_path):
    found = found_in(tmp_path, backup=True)
    for route in (*SILENT, *RESTING):
        expected = 0.2 if COPIER in route else 0.03  # names have codes that are not quite orthogonal
        assert abs(found.share("exact", route)) < expected, route
    for route in INHIBITED:  # to tell the backup that the mover is not done makes it work, too
        assert found.share("exact", route) < -0.8
        assert abs(found.share("EAP", route)) < 0.03
    effective = [route for route in [*ATTENTION, LISTENING, *LINEAR] if route not in RESTING] + INHIBITED
    known, others = found.apart("exact", effective, [*SILENT, *RESTING])
    assert len(known) == 7 and known.min() > others.max()


@pytest.mark.parametrize("name", ["gpt2", "phi"])
def test_an_mlp_that_adds_nothing_still_reads_what_it_reads(name):
    """Planted models have such MLPs; whether they read attention's output was asked of what they put out alone."""
    model = architectures.build(name)
    for key, parameter in model.named_parameters():
        if "mlp" in key:
            torch.nn.init.zeros_(parameter)
    prepare(model)
    assert [block.parallel for block in blocks_of(model)] == [name == "phi"] * 3
