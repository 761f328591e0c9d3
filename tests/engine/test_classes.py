"""Classes whose attention has something of its own: each is exact, or refused by name, on any length of prompt.

`make classes` compares every class of transformers in the same way; here is one of each kind, and each fault that was
found so.
"""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
)
from transformers.models.mistral.modeling_mistral import MistralAttention

from tests.architectures import LONGROPE, ORIGINAL
from tests.benchmarks import classes
from tests.benchmarks.classes import outcome
from tests.clone import ROOT
from tests.device_runs import ids
from tests.tiers import quick
from tests.tiny_models import KINDS, SWITCH, tiny_model
from util.engine import batches, handshake
from util.engine.attention import IMPLEMENTATION, instrument, selected_keys, support
from util.engine.batches import Row, check_writing, plan, run_rows
from util.engine.call import UnsupportedModel, in_double
from util.engine.handshake import FIRST, SOON, check_length, prepare
from util.engine.instruments import CaptureRows
from util.engine.label_scores import next_token_logits

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Knockout")]

DYNAMIC = {
    "max_position_embeddings": ORIGINAL,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
}
WIDTHS = {"per_layer_config": {"01": {"head_dim": 32}, "03": {"head_dim": 32}}}

# Model types that are exact in all that is compared, and in what they write.
EXACT = (
    "axk2",  # selects keys, and gates
    "deepseek_v32",  # selects keys
    "dots3_note_text",
    "gemma4_text",
    "glm_moe_dsa",
    "granite_swa",  # a sink scales outputs
    "granitemoe_swa",
    "granitemoehybrid",
    "hy_v4",  # selects keys, and has sinks
    "jamba",
    "kimi_linear",
    "lfm2",
    "phi3",
    "minicpm3",  # keys and values of other widths
    "mistral",
    "nemotron_h",
    "qwen3_5_text",
    "qwen3_next",
    "recurrent_gemma",  # keeps states in its layers
)
CHANGED = {"gemma4_text": WIDTHS, "phi3": LONGROPE}  # of their configs
# Name -> (model type, what is changed of its config, words of the reason): refused.
REFUSED = {
    "compressed keys": ("deepseek_v4", {"layer_types": ["heavily_compressed_attention"] * 4}, f"past the {SWITCH}"),
    "selected blocks": ("minimax_m3_vl_text", {}, "minimax_m3_sparse"),
    "routing across the batch": (
        "doge", {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 2}, "other prompts of a batch"
    ),
    "dynamic": ("llama", DYNAMIC, f"beyond {ORIGINAL} tokens"),
    "mamba2": ("mamba2", {}, "no num_attention_heads"),
    "falcon_h1": ("falcon_h1", {}, "mix attention with something else"),
    "zaya": ("zaya", {}, "mix attention with something else"),
    "inkling": ("inkling_text", {}, "mix attention with something else"),
}  # fmt: skip


def known(kind):
    if kind not in KINDS:
        pytest.skip(f"this transformers has no {kind}")


def prepared(kind, **changes):
    known(kind)
    model = tiny_model(kind, **changes)
    prepare(model)
    return model


@pytest.mark.parametrize("kind", quick(["recurrent_gemma"], EXACT))
def test_exact(kind):
    known(kind)
    found = outcome(kind, **CHANGED.get(kind, {}))
    assert found.status == "exact" and found.gpus == 2, found


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    kind, changes, reason = REFUSED[name]
    known(kind)
    found = outcome(kind, **changes)
    assert found.status == "refused" and reason in found.reason and found.name in found.reason, found


SMALL = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GEMMA = SMALL | {"num_key_value_heads": 2, "head_dim": 16}
KOSMOS = {"vocab_size": 99, "embed_dim": 64, "layers": 2, "ffn_dim": 64, "attention_heads": 4}
VISION = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
OTHERS = {
    "an encoder": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=99, d_model=64, d_ff=64, num_layers=2, num_heads=4, d_kv=16)
    ),
    "has an encoder": lambda: T5GemmaForConditionalGeneration(T5GemmaConfig(encoder=GEMMA, decoder=GEMMA)),
    "does not run a prompt": lambda: Kosmos2ForConditionalGeneration(
        Kosmos2Config(text_config=KOSMOS, vision_config=VISION)
    ),
    "no causal distributions": lambda: BertLMHeadModel(BertConfig(**SMALL)),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_other_kinds_of_models_are_refused_by_name(reason):
    model = OTHERS[reason]().eval()
    with pytest.raises(UnsupportedModel, match=f"{type(model).__name__}.*{reason}"):
        prepare(model)


def test_a_class_that_writes_wrong_things_from_a_cache_is_refused_there_alone():
    """Moshi's sliding windows on a cache, where prompts reach beyond them; MiniMax, which takes no such cache."""
    moshi = prepared("moshi")
    check_writing(moshi, [8], 3)
    with pytest.raises(UnsupportedModel, match=r"MoshiForCausalLM.*from a cache"):
        check_writing(moshi, [8, SWITCH + 4], 3)
    with pytest.raises(UnsupportedModel, match="MiniMaxForCausalLM.*does not go on from a cache"):
        check_writing(prepared("minimax"), [8], 3)


@pytest.mark.parametrize("context", [25, 26, 40])
def test_a_cache_is_tried_on_no_more_tokens_than_are_read(monkeypatch, context):
    window = 24
    model = prepared("mistral", sliding_window=window, max_position_embeddings=context)
    checked, read = [], []
    monkeypatch.setattr(batches, "check_length", lambda model, length: checked.append(length))
    model.model.embed_tokens.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    check_writing(model, [window - 2], 3)
    assert checked == [window] and max(read) == FIRST + 3  # the third token is written, not read
    check_writing(model, [window + 1], context - window)
    assert checked[1:] == [context] and max(read) == min(window + 4, context)


# ------------------------------------------------------------------------------------------------ lengths that switch


LONG = SOON + 44  # tokens, of a window that is tried when a prompt reaches it
UNTRIED = f"could not be tried.*at most {LONG} tokens"


class LosesItsWindow(MistralAttention):
    """Right in eager; with any other implementation it sees everything, where prompts are longer than the window."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **keywords):
        if self.config._attn_implementation == IMPLEMENTATION and hidden_states.shape[1] > self.config.sliding_window:
            attention_mask = None
        return super().forward(hidden_states, position_embeddings, attention_mask, **keywords)


def losing(window):
    model = tiny_model("mistral", sliding_window=window, max_position_embeddings=1024)
    for layer in model.model.layers:
        layer.self_attn.__class__ = LosesItsWindow
    return model


def test_a_short_switch_is_tried_on_loading_and_a_long_one_when_a_prompt_reaches_it():
    for window in (FIRST, 12):  # FIRST tokens are tried in any case, which ends at the switch
        with pytest.raises(UnsupportedModel, match=rf"past the {window}.*hidden states differ"):
            prepare(losing(window))
    model, longer = losing(LONG), ids(1, LONG + 1)
    prepare(model)
    model(ids(1, LONG), use_cache=False)
    for use in (
        lambda: model(longer, use_cache=False),
        lambda: model.model(input_ids=longer, use_cache=False),
        lambda: next_token_logits(model, longer.tolist()),
        lambda: run_rows(model, [Row((5,) * (LONG + 1))], lambda batch: pytest.fail("ran")),
    ):
        with pytest.raises(UnsupportedModel, match=rf"MistralForCausalLM.*past the {LONG}"):
            use()
    assert model.config._attn_implementation == IMPLEMENTATION  # shorter prompts go on as before
    model(ids(1, LONG), use_cache=False)


def test_a_length_is_tried_once_and_leaves_instruments_alone(monkeypatch):
    model, longer = prepared("mistral", sliding_window=LONG, max_position_embeddings=1024), ids(1, LONG + 1)
    tried, own = [], handshake._Handshake.try_length
    monkeypatch.setattr(handshake._Handshake, "try_length", lambda *given: tried.append(given[1]) or own(*given))
    with instrument(model, rows := CaptureRows(torch.tensor([LONG]))):
        logits = model(longer, use_cache=False).logits
    assert rows.weights[0].shape[-1] == LONG + 1 and not rows.weights[0][..., 0].any()
    assert torch.equal(model(longer, use_cache=False).logits, logits)
    check_length(model, 3 * LONG)  # there is no further switch
    assert tried == [support(model).tried] and tried[0] > LONG + 8  # well past the switch


@pytest.mark.parametrize(
    "fault, raised, says",
    [
        (torch.OutOfMemoryError("out of memory"), MemoryError, UNTRIED),
        (RuntimeError("no such kernel"), UnsupportedModel, UNTRIED),
        (IndexError("index 300"), UnsupportedModel, UNTRIED),
        (UnsupportedModel("its own reason"), UnsupportedModel, "^its own reason$"),
    ],
)
def test_a_length_that_cannot_be_tried_says_what_works(monkeypatch, fault, raised, says):
    model = prepared("mistral", sliding_window=LONG, max_position_embeddings=1024)

    def failing(*_, **__):
        raise fault

    monkeypatch.setattr(handshake._Handshake, "hidden", failing)
    with pytest.raises(raised, match=says):
        check_length(model, SOON + 100)


# ------------------------------------------------------------------------------------------------ parts


def test_selected_keys_close_a_mask_of_numbers_too():
    mask = selected_keys(torch.zeros(1, 1, 2, 3), torch.tensor([[[0, 2], [1, 2]]]), 3)
    assert mask is not None and (mask < -1e30).nonzero()[:, 2:].tolist() == [[0, 1], [1, 0]]


def test_longrope_has_batches_of_its_own_beyond_the_original_context():
    assert plan([20, 12, 16, 17], 1000, 16) == [[0, 3], [2, 1]]
    assert plan([20, 12, 16, 17], 1000) == [[0, 3, 2, 1]]
    model = prepared("phi3", **LONGROPE)
    rows = [ids(1, length, length)[0].tolist() for length in (9, 24, ORIGINAL, ORIGINAL + 1)]
    together = torch.from_numpy(next_token_logits(model, rows))
    alone = torch.cat([torch.from_numpy(next_token_logits(model, [row])) for row in rows])
    assert (together - alone).abs().max() < 1e-4


# ------------------------------------------------------------------------------------------------ Apple's MPS


class OnMps:
    """A tensor on a device without float64."""

    device = SimpleNamespace(type="mps")

    def double(self):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    def cpu(self):
        return torch.ones(2)


def test_sums_are_in_double_precision_on_devices_without_it():
    assert in_double(OnMps()).dtype == in_double(torch.ones(2)).dtype == torch.float64


def test_a_device_that_fails_the_handshake_is_named(monkeypatch):
    model = tiny_model("llama")
    before = model.config._attn_implementation

    def logits(self, ids, **inputs):
        raise NotImplementedError("The operator 'aten::x' is not currently implemented for the MPS device.")

    monkeypatch.setattr(handshake, "input_device", lambda _: torch.device("mps"))
    monkeypatch.setattr(handshake._Handshake, "logits", logits)
    with pytest.raises(UnsupportedModel, match=r"'mps'.*device='cpu'.*aten::x"):
        prepare(model)
    assert model.config._attn_implementation == before


# ------------------------------------------------------------------------------------------------ the table


def test_the_table_of_classes():
    folder = ROOT / "data/classes"
    table = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    found = [classes.Outcome(**one) for one in table["classes"]]
    assert not [one.kind for one in found if one.status == "wrong"]
    assert all(max(one.errors.values()) <= table["bound"] for one in found if one.status in ("exact", "partial"))
    assert all(one.reason for one in found if one.status in ("refused", "not built"))
    assert {"gpt2", "llama", "falcon", "deepseek_v32"} <= {one.kind for one in found if one.status == "exact"}
    if table["transformers"] == transformers.__version__:
        assert (folder / "README.md").read_text(encoding="utf-8") == classes.page(found)
        assert [one.kind for one in found] == list(KINDS)
