"""The handshake checks, after loading, that all of a model's attention really goes through the engine.

It takes a prompt of 8 tokens. Where the config names a length beyond which attention is computed in another way, longer
prompts are tried too: past lengths of up to SOON tokens on loading, past longer ones when a prompt exceeds them.
"""

import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from util.engine import adapters
from util.engine.attention import (
    CALLS,
    IMPLEMENTATION,
    PREPARED,
    during,
    input_device,
    instrument,
    known_support,
    random_ids,
    without_instruments,
)
from util.engine.call import CACHE, NO_LIMIT, Call, Instrument, Support, UnsupportedModel, recorded
from util.engine.finite import check_finite
from util.engine.instruments import CaptureHeads, CaptureRows, Knockout, SumHeads

SOON = 256  # tokens
FIRST = 8  # tokens of the first prompt that is tried
# What a class's own code raises on a prompt that it does not take, and what a device raises that lacks an operation.
FAILURES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, AssertionError)

_TRYING: ContextVar[bool] = ContextVar("trying", default=False)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, which is no fault of a model's class."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def prepare(model: PreTrainedModel) -> Support:
    """Switch a model to the instrumented attention, and check on a short prompt that all of its attention uses it.

    The checks: each attention layer calls once; the logits equal those of the class's own eager path, with a padding
    mask too (within 1e-4 of the largest logit, 5e-2 in 16-bit types), and do not depend on other prompts of the batch;
    captured rows sum to 1 (to less only with sinks), and times the values they are what heads put out; a knockout
    changes the logits; after it the logits are bit-identical to those before. A model that fails keeps its
    old implementation. A second call for a prepared model returns at once. Raises UnsupportedModel for a model that
    fails, NotFinite where the logits of the prompt are not finite, and ValueError for a model in training mode.
    """
    recorded = known_support(model)
    if recorded is not None:
        return recorded
    if model.training:
        raise ValueError("prepare: the model is in training mode; call model.eval() first")
    refuse_bypassing(type(model))
    if other := _other_kind(model):
        raise UnsupportedModel(f"{type(model).__name__} ({model.config.model_type}) has {other}")
    old_implementation = model.config._attn_implementation
    try:
        PREPARED[model] = _Handshake(model).run()
        check_length(model, max((switch for switch in switches(model) if switch <= SOON), default=0) + 1)
    except BaseException as error:
        PREPARED.pop(model, None)
        adapters.switch(model, old_implementation)
        device = input_device(model).type
        if device not in ("cpu", "cuda") and isinstance(error, FAILURES) and not out_of_memory(error):
            raise UnsupportedModel(
                f"{type(model).__name__} failed the attention handshake on the device {device!r}, and may pass it on "
                f"another: load it with device='cpu'. {error}"
            ) from error
        raise
    base = model.base_model
    has_switches = PREPARED[model].switches or rope_switch(model, "dynamic") < NO_LIMIT
    if has_switches and _check_pass not in base._forward_pre_hooks.values():
        base.register_forward_pre_hook(_check_pass, with_kwargs=True)
    return PREPARED[model]


def check_length(model: PreTrainedModel, length: int) -> None:
    """Prepare a model, and check that it computes a prompt of `length` tokens exactly.

    Nothing is run unless the model's config switches to another way of attention at a length that was never tried.
    Every forward pass of a prepared model checks its length; callers that record or edit layers check it before. Raises
    UnsupportedModel where the model cannot be instrumented at this length, MemoryError where memory is too short.
    """
    support = prepare(model)
    limit = rope_switch(model, "dynamic")
    if length > limit:
        raise UnsupportedModel(
            f"{type(model).__name__} with dynamic rotations (rope_type 'dynamic'): beyond {limit} tokens its logits "
            f"depend on the prompts that ran before, and a prompt has {length} tokens; take shorter prompts"
        )
    passed = [switch for switch in support.switches if support.tried <= switch < length]
    if not passed or _TRYING.get():
        return
    with during(_TRYING, True), without_instruments():
        tried = _Handshake(model).try_length(max(length, well_past(model, passed[-1])), support)
    PREPARED[model] = replace(support, tried=tried)


def well_past(model: PreTrainedModel, switch: int) -> int:
    """A number of tokens that is well past a switch, so that several tokens, or a block of them, are affected."""
    return min(switch + switch // 8 + FIRST, context_length(model))


def _check_pass(base: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Before a forward pass of a prepared model: check its length. It is a hook on the model's base model."""
    model: Any = next((model for model in list(PREPARED) if model.base_model is base), None)
    if model is None or base.training or known_support(model) is None:
        return
    inputs = keywords.get("input_ids", arguments[0] if arguments else None)
    if inputs is None:
        inputs = keywords.get("inputs_embeds")
    if inputs is not None:
        cache = keywords.get(CACHE, keywords.get("past_key_values"))
        check_length(model, inputs.shape[1] + (0 if cache is None else cache.get_seq_length()))


def check_tokenizer(model: PreTrainedModel, tokenizer: Any) -> None:
    """Raises ValueError where the tokenizer has more tokens than the model has embeddings.

    Added tokens do not count: some tokenizers have those of a larger model, which `check_ids` refuses in a prompt.
    """
    rows, tokens = embeddings(model), getattr(tokenizer, "vocab_size", 0)
    if tokens > rows:
        raise ValueError(
            f"the tokenizer has {tokens} tokens, {type(model).__name__} has embeddings of {rows}: they do not belong "
            "together; load both from the same place"
        )


def check_ids(model: PreTrainedModel, ids: Tensor | Sequence[int]) -> None:
    """Raises ValueError, before a forward pass, for tokens [N] without an embedding."""
    largest, rows = int(torch.as_tensor(ids).max()) if len(ids) else 0, embeddings(model)
    if largest >= rows:
        raise ValueError(
            f"a prompt has the token {largest}, {type(model).__name__} has embeddings of {rows} (0 to {rows - 1}): the "
            "tokenizer is not this model's"
        )


def embeddings(model: PreTrainedModel) -> int:
    """The number of tokens that the model has embeddings for."""
    module: Any = model.get_input_embeddings()
    return int(getattr(module, "num_embeddings", 0) or module.weight.shape[0])


def refuse_bypassing(model_class: type[PreTrainedModel]) -> None:
    """Raises UnsupportedModel for a class that is known to compute attention in its own code and has no adapter."""
    if "InternLM2" in model_class.__name__:
        raise UnsupportedModel(
            f"{model_class.__name__} is code from the hub that does not run under transformers 5. Its checkpoints "
            "differ from Llama's only in names and packing: give the name of a folder with one, which is read so."
        )
    takes_others = getattr(model_class, "_can_set_attn_implementation", lambda: True)
    if not adapters.adapts(model_class) and not takes_others():
        raise UnsupportedModel(
            f"{model_class.__name__} computes attention in its own code, not through transformers' attention "
            "interface, so nothing of it can be captured or edited. Classes that do work: GPT-2, GPT-NeoX, OPT, Llama, "
            "Mistral, Qwen, Gemma, Phi, OLMo, Granite, DeepSeek and most newer ones, and by adapters GPT-Neo, GPT-J, "
            "CodeGen, Falcon, Bloom, MPT and XGLM."
        )


def _other_kind(model: PreTrainedModel) -> str:
    """What a model has that is no decoder with attention: two stacks, or no attention at all; "" for a decoder."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "an encoder beside its decoder. The engine takes decoders alone, which read a prompt left to right."
    try:
        config = model.config.get_text_config(decoder=True)
    except ValueError as error:
        return f"several text models, and nothing says which of them writes: {error}"
    if "num_attention_heads" in (getattr(config, "per_layer_attributes", None) or ()):
        return "layers with different numbers of heads. Every result has one number of heads for all layers."
    names = ("num_attention_heads", "num_hidden_layers", "vocab_size")
    missing = [name for name in names if not hasattr(config, name)]
    if missing:
        return (
            f"no attention of heads that the engine knows: its config has no {' and no '.join(missing)}. State space "
            "models and recurrent models have no attention rows."
        )
    return ""


def is_coarse(model: PreTrainedModel) -> bool:
    """Whether a model computes in 16 bits. 4-bit models do, whatever the dtype of their other parameters."""
    return model.dtype in (torch.bfloat16, torch.float16) or bool(getattr(model, "is_quantized", False))


def tolerance(model: PreTrainedModel, ours: Tensor, reference: Tensor) -> tuple[float, float]:
    """How far numbers [..., T, V] are from their reference, and how far they may be for this model's dtype."""
    by_token = (ours - reference).abs().amax(-1)
    # the median, because in 16 bits a rounding error may send a token of a mixture of experts to another expert
    coarse = is_coarse(model)
    gap = float(by_token.median() if coarse else by_token.max())
    return gap, (5e-2 if coarse else 1e-4) * max(1.0, float(reference.abs().max()))


class _LastRow(Instrument):
    """Compares the last token's row of weights, times the values, with what heads put out.

    Of each layer, gaps: the largest difference, as a share of the largest output; keys: the number of keys.
    """

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.keys: list[int] = []

    def visit(self, call: Call, out: Tensor) -> Tensor:
        weights = call.weights(torch.tensor([call.queries - 1]))  # [B, H, 1, S]
        values = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)
        read, last = (weights.to(values.dtype) @ values)[:, :, 0].float(), out[:, -1].float()
        same = read.shape == last.shape
        self.gaps.append(float((read - last).abs().max() / last.abs().max().clamp(min=1e-30)) if same else 1.0)
        self.keys.append(call.keys)
        return out


class _Handshake:
    """The checks of `prepare` on one model, with a random prompt, and of `check_length` on a longer one."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        self.ids = random_ids(model, 1, FIRST)
        self.row_tolerance = 5e-2 if is_coarse(model) else 1e-3
        count = self.config.num_hidden_layers
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * count  # of attention by softmax
        self.layers = tuple(at for at, kind in enumerate(kinds) if kind.endswith("attention") and "linear" not in kind)

    def run(self) -> Support:
        """Make all checks. Leaves the model switched to the engine."""
        adapters.to_reference(self.model)
        try:
            reference, masked_reference = self.logits(self.ids), self.masked_logits()
        except FAILURES as error:
            if out_of_memory(error):
                raise
            self.refuse(f"it does not run a prompt of {FIRST} tokens alone ({type(error).__name__}: {error})")
        check_finite(reference, "the logits", self.model, self.ids)
        adapters.switch(self.model, IMPLEMENTATION)
        calls: list[nn.Module] = []
        with during(CALLS, calls):
            plain = self.logits(self.ids)
        if len(calls) != len(self.layers) or len(set(calls)) != len(calls):
            kinds = sorted(set(getattr(self.config, "layer_types", None) or []))
            self.refuse(
                f"its {len(self.layers)} attention layers called the attention function {len(calls)} times, not once "
                f"each (kinds of layers: {', '.join(kinds) or 'not named'}; of layers that mix attention with "
                "something else, or run several times, the engine does not know what a head writes)"
            )
        if not self.layers:
            self.refuse("none of its layers has softmax attention")
        self.compare(plain, reference, "logits differ from the class's own eager attention")
        self.compare(self.masked_logits(), masked_reference, "logits under a padding mask differ from eager attention")
        beside_another = self.logits(torch.cat([self.ids, self.ids.flip(1)]))[:1]
        self.compare(beside_another, plain, "logits depend on the other prompts of a batch: they change")
        support = Support(
            layers=self.layers,
            heads=self.config.num_attention_heads,
            switches=switches(self.model),
            tried=FIRST,
            branches=False,
            implementation=self.model.config._attn_implementation,
            modules=dict(zip(calls, self.layers, strict=True)),
        )
        PREPARED[self.model] = support  # the checks below attach instruments
        self.check_rows(plain, support)
        support = self.with_right_weights(support)
        return replace(support, branches=self.check_branches(), projections=self.projections(support))

    def check_rows(self, plain: Tensor, support: Support) -> None:
        """Check captured rows and a knockout; plain: the logits [1, 8, V] without instruments."""
        rows = CaptureRows(torch.tensor([0, 7]))
        with instrument(self.model, rows, SumHeads(torch.ones(1, FIRST))):  # a device without float64 shows here
            observed = self.logits(self.ids)
        self.compare(observed, plain, "capturing rows changes the logits", exact=True)
        sinks = any(hasattr(module, "sinks") for module in support.modules)
        for layer, weights in rows.weights.items():
            total = weights.sum(-1)
            if weights.shape[1] != support.heads:
                self.refuse(f"layer {layer} has {weights.shape[1]} heads, its config says {support.heads}")
            too_small = total.min() < (0 if sinks else 1) - 1e-2
            too_large = total.max() > 1 + 1e-2
            sees_later_tokens = weights[:, :, 0, 1:].abs().max() > 0
            if too_small or too_large or sees_later_tokens:
                self.refuse(f"captured attention rows of layer {layer} are no causal distributions")
        with instrument(self.model, Knockout(torch.tensor([[7, 6], [7, 7]]))):
            edited = self.logits(self.ids)
        if torch.equal(edited[:, -1], plain[:, -1]):
            self.refuse("cutting attention does not change the logits")
        self.compare(self.logits(self.ids), plain, "logits are not restored after an edit", exact=True)

    def with_right_weights(self, support: Support) -> Support:
        """The support, with `scaled_outputs` where rows times values are z only with the factor of a sink."""
        for scaled in (False, True):
            PREPARED[self.model] = support = replace(support, scaled_outputs=scaled)
            with instrument(self.model, last := _LastRow()):
                self.logits(self.ids)
            gap = max(last.gaps)
            if gap <= self.row_tolerance:
                break
        if not gap <= self.row_tolerance:  # also catches NaN
            self.refuse(f"attention times values is not what heads put out (off by {gap:.2g})")
        return support

    def try_length(self, length: int, support: Support) -> int:
        """Compare hidden states and rows of a prompt of `length` tokens. Returns the length.

        Raises UnsupportedModel where they differ or the class refuses the prompt, MemoryError where it is too long.
        """
        ids = random_ids(self.model, 1, length)
        passed = [switch for switch in support.switches if switch < length]
        where = f"at {length} tokens, past the {passed[-1]} at which its config switches attention, "
        try:
            adapters.to_reference(self.model)
            try:
                reference = self.hidden(ids)
            finally:
                adapters.switch(self.model, IMPLEMENTATION)
            with instrument(self.model, last := _LastRow()):
                ours = self.hidden(ids)
        except UnsupportedModel:  # it says why itself
            raise
        except FAILURES as error:
            advice = (
                f"it could not be tried ({type(error).__name__}: {error}); take prompts of at most {passed[-1]} tokens"
            )
            if out_of_memory(error):
                raise MemoryError(f"{type(self.model).__name__}: {where}{advice}") from error
            self.refuse(f"{where}{advice}")
        for start, stop in pairwise([0, *passed, length]):
            self.compare(ours[:, start:stop], reference[:, start:stop], f"{where}hidden states differ from eager's")
        if set(last.keys) != {length}:
            self.refuse(f"{where}attention has {max(last.keys)} keys, which are not the tokens of the prompt")
        if not max(last.gaps) <= self.row_tolerance:
            self.refuse(f"{where}attention times values is not what heads put out")
        return length

    @torch.no_grad()
    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden states [1, T, d] of a prompt, in float32."""
        return self.model.base_model(ids, use_cache=False)[0].float()

    def check_branches(self) -> bool:
        """Whether two tokens may share a position: with the first hidden, the second gives the logits it gives alone.

        This never holds where layers without attention carry information from token to token, or where a query is
        scaled by its place in the row.
        """
        if len(self.layers) != self.config.num_hidden_layers or getattr(self.config, "floor_scale", None):
            return False
        ids, positions = self.ids[:, :5], torch.tensor([[0, 1, 2, 3, 3]])
        inputs = {"attention_mask": torch.ones_like(ids), "position_ids": positions}
        alone = self.logits(torch.cat([ids[:, :3], ids[:, 4:]], dim=1))[:, -1]
        try:
            seen = self.logits(ids, **inputs)[:, -1]
            with instrument(self.model, Knockout(torch.tensor([[4, 3]]))):
                hidden = self.logits(ids, **inputs)[:, -1]
        except (TypeError, ValueError):  # the class takes no position ids, or its window is shorter than these 5 tokens
            return False
        difference, bound = tolerance(self.model, hidden, alone)
        # the tolerance alone proves nothing where seeing the first token changes the logits by no more than that
        return difference <= bound and difference <= 0.2 * float((seen - alone).abs().max())

    def projections(self, support: Support) -> dict[int, nn.Module | None]:
        """By layer, the linear module whose input is exactly the head outputs; None where there is none."""
        linear = nn.Linear, Conv1D
        layers = {
            child: layer
            for module, layer in support.modules.items()
            for child in module.modules()
            if isinstance(child, linear)
        }
        with recorded(layers) as calls, instrument(self.model, heads := CaptureHeads()):
            self.logits(self.ids)
        projections: dict[int, nn.Module | None] = dict.fromkeys(support.layers)
        for call in calls:
            z, x = heads.z[layers[call.layer]].flatten(2).flatten(0, 1), call.hidden
            if x.shape[-1] == z.shape[-1] and torch.equal(x.flatten(0, -2), z):
                projections[layers[call.layer]] = call.layer
        return projections

    def masked_logits(self) -> Tensor:
        """Logits [1, 5, V] of the tokens from 3 on, with token 3 masked as padding is. They differ if the mask is lost.

        Padding at the left is not used: its rows see no key, and eager attention of float64 models makes them NaN.
        """
        return self.logits(self.ids, attention_mask=(torch.arange(8) != 3).long()[None])[:, 3:]

    @torch.no_grad()
    def logits(self, ids: Tensor, **inputs: Tensor) -> Tensor:
        """The logits [1, T, V] after every token, in float32."""
        device = input_device(self.model)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        return self.model(ids.to(device), use_cache=False, **inputs).logits.float()

    def compare(self, ours: Tensor, reference: Tensor, fault: str, exact: bool = False) -> None:
        """Refuse the model if logits [1, T, V] differ from the reference by more than the tolerance, or at all."""
        difference, bound = tolerance(self.model, ours, reference)
        if exact:
            difference, bound = float((ours - reference).abs().max()), 0.0
        if not difference <= bound:  # also catches NaN
            self.refuse(f"{fault} by {difference:.2g} (bound {bound:.2g})")

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedModel(
            f"{type(self.model).__name__} ({self.model.config.model_type}) failed the attention handshake: {reason}. "
            "Its attention can be read, but not edited, with attn_implementation='eager' and output_attentions=True."
        )


# ------------------------------------------------------------------------------------------------ lengths that matter

# Names of config entries that hold such a number, and of others that look alike. A name too many costs a longer try.
_LENGTH = re.compile(
    r"window|chunk_size|block_size|compress|index_topk|budget|local_attention|floor_scale|n_floor|rel_extent"
)
_OTHER = re.compile(r"layer|pattern|feed_forward|lm_head|image|audio|vision|bias|multiple|compress_rope|ffn")


def switches(model: PreTrainedModel) -> tuple[int, ...]:
    """The numbers of tokens within the context, in order, beyond which the config names another way of attention.

    Windows, chunks, selected or compressed keys and rotations that change with the length are right on a short prompt
    whatever code computes them.
    """
    entries = model.config.get_text_config(decoder=True).to_dict()
    lengths = {*_lengths(entries), *_original_contexts(model, "longrope")}
    if entries.get("index_topk_blocks"):
        lengths.add(entries["index_topk_blocks"] * entries["index_block_size"])
    return tuple(sorted(length for length in lengths if length < context_length(model)))


def rope_switch(model: PreTrainedModel, kind: Literal["longrope", "dynamic"]) -> int:
    """The number of tokens beyond which rotations change, NO_LIMIT if they never do.

    longrope: all positions of a batch are rotated in another way. dynamic (NTK): rotations depend on the longest prompt
    so far.
    """
    return min(_original_contexts(model, kind), default=NO_LIMIT)


def context_length(model: PreTrainedModel) -> int:
    """The largest number of tokens that the model has positions for, NO_LIMIT where its class sets none."""
    config = model.config.get_text_config(decoder=True)
    return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or NO_LIMIT


def _lengths(entries: dict[str, Any]) -> Iterator[int]:
    """The numbers of all entries of a config that hold a length, those of nested ones too."""
    for name, value in entries.items():
        if not _LENGTH.search(name) or _OTHER.search(name):
            continue
        if name == "window_size" and "local" not in entries.get("attention_layers", ["local"]):  # GPT-Neo's
            continue
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        yield from (number for number in values if type(number) is int and number > 0)


def _original_contexts(model: PreTrainedModel, kind: str) -> Iterator[int]:
    """The number of tokens that each rotation of this kind was trained with."""
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict) and "rope_type" in value]
    for rotation in nested or [parameters]:
        if rotation.get("rope_type") == kind:
            original = None if kind == "dynamic" else rotation.get("original_max_position_embeddings")
            yield original or config.max_position_embeddings
