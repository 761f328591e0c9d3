"""Splices by themselves: what they refuse, and what goes with them. `tests/edges/test_splicing.py` has their oracle."""

import pytest
import torch

from tests.architectures import HEADS, VOCABULARY, prepared
from util.engine.attention import instrument, support
from util.engine.instruments import CaptureRows, CaptureStates, Knockout, Splice

pytestmark = pytest.mark.usefixtures("wide_softmax")

LENGTH = 12


def states_of(model, ids):
    with torch.no_grad(), instrument(model, kept := CaptureStates()):
        model(ids, use_cache=False)
    return kept.states


def drawn(model):
    """A donor and a prompt [2, T], and random codes and tables of a splice."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)
    codes = torch.randint(4, (1, LENGTH, LENGTH), generator=generator).tril(-1)
    tables = {
        layer: torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]).repeat(HEADS // 2, 1) for layer in support(model).layers
    }
    return ids, {"codes": codes, "tables": tables, "donors": [states_of(model, ids[:1])]}


@torch.no_grad()
def run(model, ids, *instruments):
    with instrument(model, *instruments):
        return model(ids, use_cache=False).logits


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.filterwarnings("ignore:Knockout")
def test_rows_add_up_what_is_read_of_every_place_and_a_knockout_closes_it(name):
    model = prepared(name)
    ids, given = drawn(model)
    whole, rows = CaptureRows(torch.arange(LENGTH)), CaptureRows(torch.tensor([9, 11]))
    spliced = run(model, ids[1:], Splice(**given), whole)
    found = run(model, ids[1:], Splice(**given), rows, Knockout(torch.tensor([[9, 3], [11, 10]])))
    assert (found - spliced).abs().max() > 1e-4
    for layer, weights in whole.weights.items():
        assert weights.shape == (1, HEADS, LENGTH, LENGTH) and (weights.triu(1) == 0).all()
        assert name == "gpt_oss" or (weights.sum(-1) - 1).abs().max() < 1e-5  # it has sinks
        closed = rows.weights[layer]
        assert (closed[:, :, 0, 3] == 0).all() and (closed[:, :, 1, 10] == 0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tables": {0: torch.full((HEADS, 4), 2) * torch.tensor([0, 1, 1, 1])}}, "out of range"),
        ({"tables": {0: torch.zeros(HEADS, 2, dtype=torch.long)}}, "kinds"),
        ({"tables": {0: torch.ones(HEADS, 4, dtype=torch.long)}}, "zeros"),
        ({"codes": torch.eye(LENGTH, dtype=torch.long)[None]}, "diagonal"),
        ({"tables": {7: torch.zeros(HEADS, 4, dtype=torch.long)}}, "no attention"),
        ({"tables": {0: torch.zeros(HEADS + 1, 4, dtype=torch.long)}}, "heads in a layer"),
        ({"codes": torch.zeros(1, LENGTH, LENGTH + 1, dtype=torch.long)}, "the batch is"),
        (None, "two splices"),
    ],
)
def test_bad_splices_are_refused(change, words):
    model = prepared("gpt2")
    ids, given = drawn(model)
    with pytest.raises(ValueError, match=words):
        run(model, ids[1:], *[Splice(**given | (change or {}))] * (1 if change else 2))
