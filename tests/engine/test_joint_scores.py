"""Scores read from weights, beside scores written out: where weights vanish, with soft caps, masks and sinks."""

from dataclasses import replace

import pytest
import torch

from tests.architectures import build
from tests.tiny_models import tiny_model
from util.engine.attention import instrument
from util.engine.call import Instrument
from util.engine.handshake import prepare

LENGTH = 10
FAR = 300.0  # the largest score of a side that is far from the other
MODELS = {
    "llama": lambda: build("llama", torch.float64),
    "bloom": lambda: build("bloom", torch.float64),
    "gemma2": lambda: build("gemma2", torch.float64, attn_logit_softcapping=400.0),
    "gpt_oss": lambda: tiny_model("gpt_oss"),
    "granite_swa": lambda: tiny_model("granite_swa"),
}
names = pytest.mark.parametrize("name", MODELS)


class Keep(Instrument):
    def visit(self, call, out):
        self.call = call
        return out


def call_of(name):
    """The call of the last layer on two prompts, and its sinks [H] if it has any."""
    model = MODELS[name]()
    prepare(model)
    ids = torch.randint(3, 99, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), instrument(model, keep := Keep()):
        model(ids, attention_mask=torch.tensor([[1] * LENGTH, [1] * 7 + [0] * 3]), use_cache=False)
    return keep.call, getattr(keep.call.module, "sinks", None)


def raw(call, keys):
    """Scores [B, H, T, S] in front of soft cap and mask."""
    repeated = keys.repeat_interleave(call.query.shape[1] // keys.shape[1], 1).double()
    scaling = call.options.get("scaling")
    scaling = call.query.shape[-1] ** -0.5 if scaling is None else scaling
    return call.query.double() @ repeated.transpose(2, 3) * scaling


def written_out(call, keys, closed):
    """Scores [B, H, T, S]; closed cells have -inf."""
    scores, cap = raw(call, keys), call.options.get("softcap")
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if call.mask is not None and call.mask.is_floating_point():
        scores = scores + call.mask[..., :LENGTH].double()  # alibi
    return scores.masked_fill(closed, -torch.inf)


@names
@pytest.mark.parametrize("far", ["neither", "others", "own", "both"])
@torch.no_grad()
def test_scores_are_those_written_out_even_where_weights_vanish(name, far):
    call, sinks = call_of(name)
    others = call.key.flip(2)  # the same places, other keys
    size = FAR / float(raw(call, call.key).abs().max())
    call = replace(call, key=call.key * (size if far in ("own", "both") else 1))
    others = others * (size if far in ("others", "both") else 1)
    rows = torch.arange(LENGTH)[2:]
    closed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    if call.mask is not None:
        closed = call.mask[..., :LENGTH] < -1e4 if call.mask.is_floating_point() else ~call.mask[..., :LENGTH]
    found, sink = call.joint_scores(others, rows)
    wanted = torch.cat([written_out(call, keys, closed)[:, :, rows] for keys in (call.key, others)], -1)
    if sinks is None:
        assert sink.isneginf().all()
    else:
        found = torch.cat([found, sink], -1)
        given = sinks.double()[:, None, None].expand(*wanted.shape[:3], 1)
        wanted = torch.cat([wanted, given], -1)
    open_ = ~wanted.isneginf()
    assert torch.equal(found.isneginf(), ~open_)
    assert far == "neither" or float((wanted.amax(-1) - wanted[open_].min()).max()) > 250
    found, wanted = ((one - one.amax(-1, keepdim=True))[open_] for one in (found, wanted))
    tolerance = 1e-3 if call.query.dtype == torch.float32 else 1e-4  # the softmax is taken in float32
    assert float((found - wanted).abs().max()) < tolerance
