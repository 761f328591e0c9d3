"""Splices by themselves: what they refuse, and what goes with them. `tests/edges/test_splicing.py` has their oracle."""

import pytest
import torch

from tests.architectures import HEADS, prepared
from tests.device_runs import ids as random_ids
from tests.engine.test_attention import logits
from util.engine.attention import support
from util.engine.instruments import CaptureRows, CaptureStates, Knockout, Splice

pytestmark = pytest.mark.usefixtures("wide_softmax")

LENGTH = 12


def drawn(model):
    """A donor and a prompt [2, T], and random codes and tables of a splice."""
    ids = random_ids(2, LENGTH)
    codes = torch.randint(4, (1, LENGTH, LENGTH), generator=torch.Generator().manual_seed(0)).tril(-1)
    tables = dict.fromkeys(support(model).layers, torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]).repeat(HEADS // 2, 1))
    run(model, ids[:1], kept := CaptureStates())
    return ids, {"codes": codes, "tables": tables, "donors": [kept.states]}


def run(model, ids, *instruments):
    return logits(model, {"input_ids": ids, "use_cache": False}, *instruments)


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


def tables(kinds, heads=HEADS, layer=0):
    """Tables of a layer in which each head reads these kinds from these donors."""
    return {"tables": {layer: torch.tensor([kinds] * heads)}}


@pytest.mark.parametrize(
    "change, words",
    [
        (tables([0, 2, 2, 2]), "out of range"),
        (tables([0, 0]), "kinds"),
        (tables([1, 1, 1, 1]), "zeros"),
        ({"codes": torch.eye(LENGTH, dtype=torch.long)[None]}, "diagonal"),
        (tables([0, 0, 0, 0], layer=7), "no attention"),
        (tables([0, 0, 0, 0], HEADS + 1), "heads in a layer"),
        ({"codes": torch.zeros(1, LENGTH, LENGTH + 1, dtype=torch.long)}, "the batch is"),
        (None, "two splices"),
    ],
)
def test_bad_splices_are_refused(change, words):
    model = prepared("gpt2")
    ids, given = drawn(model)
    with pytest.raises(ValueError, match=words):
        run(model, ids[1:], *[Splice(**given | (change or {}))] * (1 if change else 2))
