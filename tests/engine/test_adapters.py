"""What is particular to classes with an attention of their own; test_attention.py runs them through its tests too."""

import copy
import pickle

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import ModelHook, add_hook_to_module
from transformers import BloomForCausalLM, DynamicCache, PreTrainedModel

from tests import eager_runs
from tests.architectures import ADAPTED, LAYERS, build
from tests.device_runs import ids
from tests.engine.test_attention import PLAIN, batch, close, logits, moved, prepared
from tests.engine.test_offload import assert_same
from util.engine import adapters
from util.engine.attention import support
from util.engine.call import UnsupportedModel
from util.engine.handshake import prepare, refuse_bypassing
from util.engine.instruments import CaptureHeads, CaptureRows

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Knockout")]
names = pytest.mark.parametrize("name", ADAPTED)
FALCONS = ["falcon_7b", "falcon_40b", "falcon_alibi"]


def own_classes(model):
    """Have the attention modules of a model, and there are some, the classes that transformers gave them?"""
    modules = eager_runs.attention_modules(model).values()
    return len(modules) == LAYERS and all(type(m).__module__.startswith("transformers.") for m in modules)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", FALCONS)
def test_falcon_is_served_as_sdpa_computes_it(name, implementation):
    inputs, real, _ = batch("left")
    model = build(name)
    expected = model(**inputs).logits[real]
    model.config._attn_implementation = implementation
    before = model(**inputs).logits[real]
    prepare(model)
    close(logits(model, inputs)[real], expected)
    (moved if (name, implementation) == ("falcon_alibi", "eager") else close)(before, expected)


# --------------------------------------------------------------------------------------- copies, failures, other modes


@pytest.mark.parametrize("name", [*ADAPTED, "gemma2"])
def test_copies_and_pickles_stay_prepared(name):
    """Those of adapted models, and of one that switches at a length."""
    model = prepared(name)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert own_classes(twin) == (name not in ADAPTED)
        assert torch.equal(twin(**PLAIN).logits, logits(model, PLAIN))
        with pytest.raises(ValueError, match="prepare"):
            support(twin)
        assert prepare(twin).tried == support(model).tried
        assert_same(model, twin)


@names
@pytest.mark.parametrize("fault", ["scaled", "crashes"])
def test_a_model_that_fails_is_left_as_it_was(name, fault, monkeypatch):
    """A copy of an adapted model too is compared with the class's own path, not with itself."""
    fresh = build(name)
    adapted = copy.deepcopy(prepared(name))
    implementation, before = fresh.config._attn_implementation, fresh(**PLAIN).logits
    engine = adapters._attention

    def broken(module, query, *arguments, **keywords):
        if fault == "crashes":
            raise ZeroDivisionError
        out, _ = engine(module, query, *arguments, **keywords)
        return 1.01 * out if fault == "scaled" else out, None

    monkeypatch.setattr(adapters, "_attention", broken)
    for model in (fresh, adapted):
        with pytest.raises(ZeroDivisionError if fault == "crashes" else UnsupportedModel):
            prepare(model)
        assert own_classes(model)
        assert model.config._attn_implementation == implementation
        assert torch.equal(model(**PLAIN).logits, before)
        with pytest.raises(ValueError, match="prepare"):
            support(model)


@names
def test_training_has_its_dropout(name):
    stock, model = build(name), copy.deepcopy(prepared(name))
    outputs = []
    for one in (stock, model):
        one.config.hidden_dropout = 0.3  # all that rope falcon has
        for module in one.modules():
            for attribute in {"attn_dropout_p", "dropout", "p"} & vars(module).keys():
                setattr(module, attribute, 0.3)
        torch.manual_seed(0)
        outputs.append(one.train()(**PLAIN).logits)
    assert torch.equal(*outputs)
    moved(outputs[0], build(name)(**PLAIN).logits)


@names
def test_offloaded_weights(name):
    """The hooks of accelerate, put on before or after, change nothing."""
    early = cpu_offload(build(name), torch.device("cpu"))
    for module in eager_runs.attention_modules(early).values():
        add_hook_to_module(module, ModelHook())
    prepare(early)
    late = build(name)
    prepare(late)
    cpu_offload(late, torch.device("cpu"))
    for model in (early, late):
        assert_same(model, prepared(name))


def test_a_table_of_rotations_in_float32():
    """CodeGen loaded in bfloat16 keeps one, and its queries come out in float32."""
    model = build("codegen", torch.bfloat16, spread=0.06)
    twin = eager_runs.reference(copy.deepcopy(model).float())
    for module in model.modules():
        if hasattr(module, "embed_positions"):  # an attention module's own, from transformers 5.24 on the model's
            module.embed_positions = module.embed_positions.float()
    prepare(model)
    z = CaptureHeads()
    close(logits(model, PLAIN, z).float(), twin(**PLAIN).logits, 2e-2)
    assert z.z[0].dtype == torch.bfloat16


@pytest.mark.parametrize("prefix", [0, 1000])
def test_alibi_of_mpt_in_bfloat16(prefix):
    """Counted from the last key, as the class does in float32, near and far would be rounded to one number."""
    model = build("mpt", torch.bfloat16, spread=0.06, max_seq_len=1024)
    twin = copy.deepcopy(model).float()
    prompt, found = ids(1, 1024), []
    for one in (model, twin):
        prepare(one)
        cache = DynamicCache()
        if prefix:
            one(prompt[:, :prefix], past_key_values=cache)
        logits(one, dict(input_ids=prompt[:, prefix:], past_key_values=cache), rows := CaptureRows(torch.tensor([20])))
        found.append(rows.weights)
    for layer in range(LAYERS):
        close(found[0][layer], found[1][layer], 2e-2)


# ------------------------------------------------------------------------------------------------- refused or converted


class OwnBloom(BloomForCausalLM):
    """Somebody's subclass."""


class InternLM2ForCausalLM(PreTrainedModel):
    """By its name what the hub's code would be."""


def test_refusals_before_any_weight():
    for name in ADAPTED:
        refuse_bypassing(type(prepared(name)))
    refuse_bypassing(OwnBloom)
    with pytest.raises(UnsupportedModel, match="InternLM2ForCausalLM.*give the name of a folder"):
        refuse_bypassing(InternLM2ForCausalLM)
