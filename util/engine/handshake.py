"""The handshake checks once, after loading, that all of a model's attention really goes through the engine."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from util.engine import adapters
from util.engine.attention import CALLS, IMPLEMENTATION, PREPARED, input_device, instrument
from util.engine.call import Support, UnsupportedModel
from util.engine.finite import TOKENIZERS, check_finite
from util.engine.instruments import CaptureHeads, CaptureRows, Knockout


def prepare(model: PreTrainedModel) -> Support:
    """Switch a model to the instrumented attention, and check on a short prompt that all of its attention uses it.

    The checks: each attention layer calls once; the logits equal those of the class's own eager path, with a padding
    mask too (within 1e-4 of the largest logit, 5e-2 in 16-bit types); captured rows sum to 1 (to less only with sinks);
    a knockout changes the logits; after it the logits are bit-identical to those before. A model that fails keeps its
    old implementation. A second call for a prepared model returns at once. Raises UnsupportedModel for a model that
    fails, NotFinite where the logits of the prompt are not finite, and ValueError for a model in training mode.
    """
    recorded = PREPARED.get(model)
    if recorded is not None and model.config._attn_implementation == recorded.implementation:
        return recorded
    if model.training:
        raise ValueError("prepare: the model is in training mode; call model.eval() first")
    refuse_bypassing(type(model))
    old_implementation = model.config._attn_implementation
    try:
        PREPARED[model] = _Handshake(model).run()
    except BaseException:
        PREPARED.pop(model, None)
        adapters.switch(model, old_implementation)
        raise
    return PREPARED[model]


def check_tokenizer(model: PreTrainedModel, tokenizer: Any) -> None:
    """Check that a tokenizer fits a model, and remember it for messages, which quote prompts in words.

    Raises ValueError where the tokenizer has more tokens than the model has embeddings. Added tokens are not counted:
    some published tokenizers have the added tokens of a larger model; `check_ids` refuses them in a prompt.
    """
    if TOKENIZERS.get(model) is tokenizer:
        return
    rows, tokens = embeddings(model), getattr(tokenizer, "vocab_size", 0)
    if tokens > rows:
        raise ValueError(
            f"the tokenizer has {tokens} tokens, {type(model).__name__} has embeddings of {rows}: they do not belong "
            "together; load both from the same place"
        )
    TOKENIZERS[model] = tokenizer


def check_ids(model: PreTrainedModel, ids: Tensor | Sequence[int]) -> None:
    """Raises ValueError, before a forward pass, for tokens [...] without an embedding."""
    if isinstance(ids, Tensor):
        largest = int(ids.max()) if len(ids) else 0
    else:
        largest = int(max(ids, default=0))
    rows = embeddings(model)
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
            "differ from Llama's only in names and packing: convert them with util.engine.adapters.internlm2_to_llama."
        )
    if adapters.adapts(model_class):
        return
    if not getattr(model_class, "_can_set_attn_implementation", lambda: True)():
        raise UnsupportedModel(
            f"{model_class.__name__} computes attention in its own code, not through transformers' attention "
            "interface, so nothing of it can be captured or edited. Classes that do work: GPT-2, GPT-NeoX, OPT, Llama, "
            "Mistral, Qwen, Gemma, Phi, OLMo, Granite, DeepSeek and most newer ones, and by adapters GPT-Neo, GPT-J, "
            "CodeGen, Falcon, Bloom, MPT and XGLM."
        )


class _Handshake:
    """The checks of `prepare` on one model, with a random prompt of 8 tokens."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        random = torch.Generator().manual_seed(0)
        self.ids = torch.randint(self.config.vocab_size, (1, 8), generator=random)
        # 4-bit models compute in bfloat16, whatever the dtype of their other parameters
        self.coarse = model.dtype in (torch.bfloat16, torch.float16) or getattr(model, "is_quantized", False)
        self.tolerance = 5e-2 if self.coarse else 1e-4

    def run(self) -> Support:
        """Make all checks. Leaves the model switched to the engine."""
        adapters.switch(self.model, adapters.reference(self.model))
        reference, masked_reference = self.logits(self.ids), self.masked_logits()
        check_finite(reference, "the logits", self.model, self.ids)
        adapters.switch(self.model, IMPLEMENTATION)
        calls: list[nn.Module] = []
        token = CALLS.set(calls)
        try:
            plain = self.logits(self.ids)
        finally:
            CALLS.reset(token)
        layers = self.attention_layers
        if len(calls) != len(layers) or len(set(calls)) != len(calls):
            self.refuse(f"its {len(layers)} attention layers called the attention function {len(calls)} times")
        self.compare(plain, reference, "logits differ from the class's own eager attention")
        self.compare(self.masked_logits(), masked_reference, "logits under a padding mask differ from eager attention")
        support = Support(
            layers=layers,
            heads=self.config.num_attention_heads,
            window=self.window,
            branches=False,
            implementation=self.model.config._attn_implementation,
            modules=dict(zip(calls, layers, strict=True)),
        )
        PREPARED[self.model] = support  # the checks below attach instruments
        self.check_rows(plain, support)
        return replace(support, branches=self.check_branches(), projections=self.projections(support))

    def check_rows(self, plain: Tensor, support: Support) -> None:
        """Check captured rows and a knockout; plain: the logits [1, 8, V] without instruments."""
        rows = CaptureRows(torch.tensor([0, 7]))
        with instrument(self.model, rows):
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

    def check_branches(self) -> bool:
        """Whether two tokens may share a position: with the first hidden, the second gives the logits it gives alone.

        This never holds where layers without attention carry information from token to token, or where a query is
        scaled by its place in the row.
        """
        if len(self.attention_layers) != self.config.num_hidden_layers or getattr(self.config, "floor_scale", None):
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
        difference = float((hidden - alone).abs().max())
        effect = float((seen - alone).abs().max())
        # the tolerance alone proves nothing where seeing the first token changes the logits by no more than that
        return difference <= self.tolerance * max(1.0, float(alone.abs().max())) and difference <= 0.2 * effect

    def projections(self, support: Support) -> dict[int, nn.Module | None]:
        """By layer, the linear module whose input is exactly the head outputs; None where there is none."""
        inputs: list[tuple[int, nn.Module, Tensor]] = []
        hooks = [
            child.register_forward_pre_hook(lambda child, args, layer=layer: inputs.append((layer, child, args[0])))
            for module, layer in support.modules.items()
            for child in module.modules()
            if isinstance(child, nn.Linear | Conv1D)
        ]
        try:
            with instrument(self.model, heads := CaptureHeads()):
                self.logits(self.ids)
        finally:
            for hook in hooks:
                hook.remove()
        z = {layer: z.flatten(2).flatten(0, 1) for layer, z in heads.z.items()}
        projections = {
            layer: child
            for layer, child, x in inputs
            if x.shape[-1] == z[layer].shape[-1] and torch.equal(x.flatten(0, -2), z[layer])
        }
        return {layer: projections.get(layer) for layer in support.layers}

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

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """The numbers of the layers that have softmax attention, by the config."""
        count = self.config.num_hidden_layers
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * count
        return tuple(layer for layer, kind in enumerate(kinds) if kind.endswith("attention") and "linear" not in kind)

    @property
    def window(self) -> int | None:
        """The shortest attention window in the config, None if there is none."""
        names = ["sliding_window", "attention_chunk_size"]
        if "local" in getattr(self.config, "attention_layers", ()):
            names.append("window_size")
        sizes = [getattr(self.config, name, None) for name in names]
        return min((size for size in sizes if size), default=None)

    def compare(self, ours: Tensor, reference: Tensor, fault: str, exact: bool = False) -> None:
        """Refuse the model if logits [1, T, V] differ from the reference by more than the tolerance, or at all."""
        by_token = (ours - reference).abs().amax(-1)
        # the median, because in 16 bits a rounding error may send a token of a mixture of experts to another expert
        difference = float(by_token.median() if self.coarse and not exact else by_token.max())
        bound = 0.0 if exact else self.tolerance * max(1.0, float(reference.abs().max()))
        if not difference <= bound:  # also catches NaN
            self.refuse(f"{fault} by {difference:.2g} (bound {bound:.2g})")

    def refuse(self, reason: str) -> None:
        raise UnsupportedModel(
            f"{type(self.model).__name__} ({self.model.config.model_type}) failed the attention handshake: {reason}. "
            "Its attention can be read, but not edited, with attn_implementation='eager' and output_attentions=True."
        )
