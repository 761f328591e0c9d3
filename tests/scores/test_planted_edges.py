"""Planted IOI circuits as edges of the component graph: exact scores find them.

The models of `models.planted` are made by hand, so it is known what each head writes and reads. That exact scores are
those of whole passes is tested on random models in `test_component_edges.py`.
"""

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
from util.scores.exact import exact_scores
from util.scores.graph import ComponentGraph

DUPLICATE, COPIER, MOVER = "duplicate token", "copier", "mover"
# What one part of the circuit reads of another: sender, reader, and q, k or v where the reader is a head.
EFFECTIVE = [("input", DUPLICATE, "q"), ("input", DUPLICATE, "k"), (DUPLICATE, MOVER, "k")]
EFFECTIVE += [(DUPLICATE, COPIER, "k"), ("input", MOVER, "v"), (MOVER, "logits", "")]
# Alone these hardly matter: the copier adds as much to either answer, and every name is marked as a name.
SILENT = [("input", DUPLICATE, "v"), ("input", COPIER, "k"), ("input", COPIER, "v"), (COPIER, "logits", "")]


@pytest.mark.parametrize("family", quick(["gpt2"], ["llama"]))
def test_exact_scores_find_the_circuit_and_nothing_else(family, tmp_path):
    model, truth = planted_control(planted.ioi, {"family": family}, name_tokens)
    graph = ComponentGraph(2, planted.HEADS)
    names = {role: [f"a{layer}.h{head}" for layer, head in places] for role, places in truth.heads.items()}

    def places(routes):
        """The edges of each route, one for each copy of its heads."""
        for sender, reader, letter in routes:
            senders, readers = names.get(sender, [sender]), names.get(reader, [reader])
            ends = np.broadcast(np.array(senders, object), np.array(readers, object))
            yield tuple(np.transpose([graph.place(f"{s}->{r}" + f"<{letter}>" * bool(letter)) for s, r in ends]))

    pairs = NamePairs(model, "abc", 2, held_out=True, folder=tmp_path)
    edges, net, whole = np.argwhere(graph.edges), pairs.pair[0], 0.0
    wanted = [(sender, reader) for sender, reader in edges.tolist()]
    exact = np.zeros(graph.shape)
    for numbers in group_by_shape(pairs.tokens).values():
        base, source, answers = batch = pairs.batch(numbers)
        exact[tuple(edges.T)] += exact_scores(net, *batch, wanted).sum(0).numpy()
        whole += float((logit_difference(net, base, answers) - logit_difference(net, source, answers)).sum())
    others = np.where(graph.edges, np.abs(exact), 0)
    for route in places(EFFECTIVE):
        assert exact[route].min() / whole > 0.25 / len(exact[route])
    for route in places(EFFECTIVE + SILENT):
        others[route] = 0
    assert others.max() / whole < 0.02


@pytest.mark.parametrize("name", ["gpt2", "phi"])
def test_an_mlp_that_adds_nothing_still_reads_what_it_reads(name):
    """Planted models have such MLPs; whether they read attention's output was asked of what they put out alone."""
    model = architectures.build(name)
    for key, parameter in model.named_parameters():
        if "mlp" in key:
            torch.nn.init.zeros_(parameter)
    prepare(model)
    assert [block.parallel for block in blocks_of(model)] == [name == "phi"] * 3
