"""Layers taken apart: on every architecture the parts, put together again, are the model."""

import copy

import pytest
import torch

from tests import architectures, toys
from tests.architectures import prepared
from tests.device_runs import ids
from util.engine.attention import head_writes
from util.engine.components import Components, UnsupportedModel, blocks_of, parallel_mlps

PARALLEL = {"gpt_neox", "phi", "cohere", "cohere2", "gptj", "codegen", "falcon_7b", "falcon_40b"}
NORMED = {"gemma2", "gemma3_text", "olmo2", "olmo3", "glm4"}
# why a class is refused
REFUSED = {"qwen3_next": "some of its layers have no attention"}
IDS = ids(2, 7)


@pytest.mark.parametrize("name", architectures.SUPPORTED | architectures.ADAPTED)
def test_parts_put_together_give_the_models_hidden_states(name):
    """And the model is left as it was."""
    model = prepared(name)
    theirs = model(IDS, output_hidden_states=True, use_cache=False)
    hooks = hooks_of(model)
    if name in REFUSED:
        with pytest.raises(UnsupportedModel, match=REFUSED[name]):
            Components(model, IDS)
        return
    parts = Components(model, IDS)
    for layer in range(parts.layers):
        hidden = parts.base.hidden[layer]
        torch.testing.assert_close(hidden, theirs.hidden_states[layer], atol=1e-5, rtol=1e-5)
        z = parts.reads(layer, hidden).plain()
        between = hidden + parts.writes(layer, z)
        out = between + parts.adds(layer, hidden if parts.blocks[layer].parallel else between)
        torch.testing.assert_close(out, parts.base.hidden[layer + 1], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(z, parts.base.z[layer], atol=1e-4, rtol=1e-4)
    every = torch.arange(theirs.logits.shape[-1]).expand(len(IDS), -1)
    logits = parts.logits(parts.base.hidden[-1][:, -1], every)
    torch.testing.assert_close(logits, theirs.logits[:, -1], atol=1e-4, rtol=1e-4)
    assert parallel_mlps(model) == (name in PARALLEL)
    assert {block.normed for block in parts.blocks} == {name in NORMED}
    assert torch.equal(model(IDS, use_cache=False).logits, theirs.logits) and hooks_of(model) == hooks


def test_a_layer_that_adds_something_else_is_refused():
    model = prepared("llama")
    layer = model.model.layers[1]
    layer.register_forward_hook(lambda _, __, out: out * 1.5)
    with pytest.raises(UnsupportedModel, match="layer 1 adds to the stream is no plain sum"):
        Components(model, IDS)


@pytest.mark.parametrize("replaced", ["mlp", "self_attn.o_proj", "self_attn"])
def test_a_module_that_was_replaced_is_found_out(replaced):
    """What hooks on the old module see is not what the model computes."""
    model = prepared("llama")
    Components(model, IDS)
    layer = model.model.layers[1]
    layer.set_submodule(replaced, copy.deepcopy(layer.get_submodule(replaced)))
    for weights in layer.parameters():
        weights.mul_(1.5)
    parts = Components(model, IDS)
    hidden, between = parts.base.hidden[1], parts.base.hidden[1] + parts.writes(1, parts.base.z[1])
    theirs = model(IDS, output_hidden_states=True, use_cache=False).hidden_states
    torch.testing.assert_close(hidden, theirs[1], atol=1e-5, rtol=1e-5)
    for added in (parts.base.mlp[1], parts.adds(1, between)):
        torch.testing.assert_close(between + added, theirs[2], atol=1e-4, rtol=1e-4)


def test_factors_are_the_configs():
    for factor in (0.7, 1 / 32**0.5):
        assert {block.factor for block in blocks_of(prepared("granite", residual_multiplier=factor))} == {factor}


def hooks_of(model):
    return [(*module._forward_hooks, *module._forward_pre_hooks) for module in model.modules()]


def test_in_16_bits_a_large_bias_costs_no_digits_of_what_heads_write():
    """The projection's output less that of nothing was off by 5 % of what a head writes."""
    projection = toys.model("gpt2").transformer.h[0].attn.c_proj
    torch.nn.init.normal_(projection.bias, std=50 * float(projection.weight.std()))
    z = torch.randn(3, 4, len(projection.weight) // 4).bfloat16()
    wanted = torch.einsum("nhv,hvd->nhd", z.double(), projection.weight.bfloat16().double().unflatten(0, (4, -1)))
    error = head_writes(projection.bfloat16(), z).double() - wanted
    assert error.norm() < 0.005 * wanted.norm()
