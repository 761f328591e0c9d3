"""What is particular to classes with an attention of their own; test_attention.py runs them through its tests too."""

import copy
import pickle

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import nn
from transformers import AutoModelForCausalLM, BloomForCausalLM, DynamicCache, LlamaForCausalLM, PreTrainedModel

from tests import eager_runs
from tests.architectures import ADAPTED, ALIBI, LAYERS, build
from tests.engine.test_attention import batch, close, logits, moved, noise, prepared, random_ids
from util.engine import adapters
from util.engine.attention import support
from util.engine.call import UnsupportedModel
from util.engine.handshake import prepare, refuse_bypassing
from util.engine.instruments import CaptureHeads, CaptureRows, Knockout, PatchHeads

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Knockout")]
names = pytest.mark.parametrize("name", ADAPTED)
FALCONS = ["falcon_7b", "falcon_40b", "falcon_alibi"]


def edits(model, name):
    """What a knockout, a patch and captures give on this model."""
    rows, z = CaptureRows(torch.tensor([5, 9])), CaptureHeads()
    given = Knockout(torch.tensor([[9, 8], [6, 5]]), heads=[0, 2]), PatchHeads(1, 3, noise(3, 14, 1, 16))
    out = logits(model, batch("plain").inputs, *given, rows, z)
    return [out, *rows.weights.values(), *z.z.values()]


def own_classes(model):
    """Have the attention modules of a model, and there are some, the classes that transformers gave them?"""
    modules = eager_runs.attention_modules(model).values()
    return len(modules) == LAYERS and all(type(m).__module__.startswith("transformers.") for m in modules)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", FALCONS)
@torch.no_grad()
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


@names
def test_copies_and_pickles_stay_adapted(name):
    model = prepared(name)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert not own_classes(twin)
        assert torch.equal(twin(**batch("plain").inputs).logits, logits(model, batch("plain").inputs))
        with pytest.raises(ValueError, match="prepare"):
            support(twin)
        prepare(twin)
        for one, other in zip(edits(model, name), edits(twin, name), strict=True):
            assert torch.equal(one, other)


@names
@pytest.mark.parametrize("fault", ["scaled", "called twice", "crashes"])
@torch.no_grad()
def test_a_model_that_fails_is_left_as_it_was(name, fault, monkeypatch):
    """A copy of an adapted model too is compared with the class's own path, not with itself."""
    fresh, inputs = build(name), batch("plain").inputs
    adapted = copy.deepcopy(prepared(name))
    implementation, before = fresh.config._attn_implementation, fresh(**inputs).logits
    engine = adapters._attention

    def broken(module, query, *arguments, **keywords):
        if fault == "crashes":
            raise ZeroDivisionError
        if fault == "called twice":
            engine(module, query, *arguments, **keywords)
        out, _ = engine(module, query, *arguments, **keywords)
        return 1.01 * out if fault == "scaled" else out, None

    monkeypatch.setattr(adapters, "_attention", broken)
    for model in (fresh, adapted):
        with pytest.raises(ZeroDivisionError if fault == "crashes" else UnsupportedModel):
            prepare(model)
        assert own_classes(model)
        assert model.config._attn_implementation == implementation
        assert torch.equal(model(**inputs).logits, before)
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
        outputs.append(one.train()(**batch("plain").inputs).logits)
    assert torch.equal(*outputs)
    moved(outputs[0], build(name)(**batch("plain").inputs).logits)


@names
@torch.no_grad()
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
        for one, other in zip(edits(model, name), edits(prepared(name), name), strict=True):
            assert torch.equal(one, other)


@torch.no_grad()
def test_a_table_of_rotations_in_float32():
    """CodeGen loaded in bfloat16 keeps one, and its queries come out in float32."""
    model = build("codegen", torch.bfloat16, spread=0.06)
    twin = eager_runs.reference(copy.deepcopy(model).float())
    for module in eager_runs.attention_modules(model).values():
        module.embed_positions = module.embed_positions.float()
    prepare(model)
    z = CaptureHeads()
    inputs = batch("plain").inputs
    close(logits(model, inputs, z).float(), twin(**inputs).logits, 2e-2)
    assert z.z[0].dtype == torch.bfloat16


@pytest.mark.parametrize("prefix", [0, 1000])
@torch.no_grad()
def test_alibi_of_mpt_in_bfloat16(prefix):
    """Counted from the last key, as the class does in float32, near and far would be rounded to one number."""
    model = build("mpt", torch.bfloat16, spread=0.06, max_seq_len=1024)
    twin = copy.deepcopy(model).float()
    ids, found = random_ids(1, 1024), []
    for one in (model, twin):
        prepare(one)
        cache = DynamicCache()
        if prefix:
            one(ids[:, :prefix], past_key_values=cache)
        logits(one, dict(input_ids=ids[:, prefix:], past_key_values=cache), rows := CaptureRows(torch.tensor([20])))
        found.append(rows.weights)
    for layer in range(LAYERS):
        close(found[0][layer], found[1][layer], 2e-2)


@torch.no_grad()
def test_which_models_may_share_rows():
    """Alibi counts tokens, not position ids."""
    assert {name for name in ADAPTED if support(prepared(name)).branches} == ADAPTED.keys() - ALIBI


# ------------------------------------------------------------------------------------------------- refused or converted


class OwnBloom(BloomForCausalLM):
    """Somebody's subclass."""


class InternLM2ForCausalLM(PreTrainedModel):
    """By its name what the hub's code would be."""


def test_refusals_before_any_weight():
    for name in ADAPTED:
        refuse_bypassing(type(prepared(name)))
    refuse_bypassing(OwnBloom)
    with pytest.raises(UnsupportedModel, match="InternLM2ForCausalLM.*internlm2_to_llama"):
        refuse_bypassing(InternLM2ForCausalLM)


INTERN = dict(
    vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, hidden_act="silu", max_position_embeddings=16, rms_norm_eps=1e-5, rope_theta=1e4,
    bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=False, model_type="internlm2",
)  # fmt: skip


def intern_weights(bias):
    """A checkpoint of two layers, four wide, as InternLM2 names and packs it."""
    shapes = {"model.tok_embeddings.weight": (50, 24), "output.weight": (50, 24), "model.norm.weight": (24,)}
    for layer in range(2):
        own = {
            "attention.wqkv.weight": (40, 24), "attention.wo.weight": (24, 24), "feed_forward.w1.weight": (40, 24),
            "feed_forward.w2.weight": (24, 40), "feed_forward.w3.weight": (40, 24), "attention_norm.weight": (24,),
            "ffn_norm.weight": (24,),
        }  # fmt: skip
        if bias:
            own |= {"attention.wqkv.bias": (40,), "attention.wo.bias": (24,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return {
        name: 0.4 * noise(*shape, seed=i, dtype=torch.float64) for i, (name, shape) in enumerate(sorted(shapes.items()))
    }


def intern_forward(weights, ids, base):
    """InternLM2 written out for one prompt: heads of 4, rows of wqkv in turn (3 queries, key, value) per group."""

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def rotate(vector, position):
        out = vector.clone()
        for i in range(2):
            angle = torch.tensor(position * base ** (-i / 2), dtype=torch.float64)
            a, b = vector[i], vector[i + 2]
            out[i], out[i + 2] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return out

    x = weights["model.tok_embeddings.weight"][ids]
    for layer in range(2):
        own = {k.split(".", 3)[3]: v for k, v in weights.items() if k.startswith(f"model.layers.{layer}.")}
        packed = norm(x, own["attention_norm.weight"]) @ own["attention.wqkv.weight"].T
        packed = packed + own.get("attention.wqkv.bias", 0)
        heads = torch.zeros(len(ids), 24, dtype=torch.float64)
        for head in range(6):
            first = (head // 3) * 20
            queries = packed[:, first + 4 * (head % 3) :][:, :4]
            keys, values = packed[:, first + 12 : first + 16], packed[:, first + 16 : first + 20]
            keys = [rotate(keys[t], t) for t in range(len(ids))]
            for t in range(len(ids)):
                scores = torch.stack([rotate(queries[t], t) @ keys[s] / 2 for s in range(t + 1)])
                heads[t, 4 * head : 4 * head + 4] = scores.softmax(0) @ values[: t + 1]
        x = x + heads @ own["attention.wo.weight"].T + own.get("attention.wo.bias", 0)
        y = norm(x, own["ffn_norm.weight"])
        up, gate = y @ own["feed_forward.w3.weight"].T, nn.functional.silu(y @ own["feed_forward.w1.weight"].T)
        x = x + (gate * up) @ own["feed_forward.w2.weight"].T
    return norm(x, weights["model.norm.weight"]) @ weights["output.weight"].T


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("length", [9, 20])
@torch.no_grad()
def test_internlm2_as_llama(bias, length):
    """Beyond 16 positions, the length it was made for, the base of the rotation grows."""
    weights, ids = intern_weights(bias), torch.arange(length) % 50
    config = INTERN | dict(bias=bias, rope_scaling={"type": "dynamic", "factor": 2.0})
    converted, llama = adapters.internlm2_to_llama(weights, config)
    model = LlamaForCausalLM(llama).double().eval()
    assert set(map(str, model.load_state_dict(converted, strict=False))) == {"[]"}
    base = 1e4 if length <= 16 else 1e4 * (2 * length / 16 - 1) ** (4 / 2)
    expected = intern_forward(weights, ids, base)
    close(model(input_ids=ids[None]).logits[0], expected, 1e-6)  # its norms and rotations are in float32
    prepare(model)
    assert support(model).heads == 6
    assert isinstance(AutoModelForCausalLM.from_config(llama), LlamaForCausalLM)
    plain, default = adapters.internlm2_to_llama(weights, INTERN | dict(bias=bias))
    assert default.rope_parameters == {"rope_type": "default", "rope_theta": 1e4}
    assert all(torch.equal(plain[name], tensor) for name, tensor in converted.items())
