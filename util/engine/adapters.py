"""Classes whose attention is code of their own, brought to the engine; and a converter for one that cannot be.

GPT-Neo, GPT-J, CodeGen, Falcon, Bloom, MPT and XGLM never ask transformers' attention interface. For each there is here
a subclass of its attention module that hands query, key, value and mask to the engine where the original would do the
arithmetic. `switch` changes the class of the modules of one model, which copying and pickling preserve, and the
handshake compares the outcome with the class's own path as it does for every model. All instruments then work, on a
bare `DynamicCache` too.

Bloom and MPT take no position ids (they ignore them) and need none, padding at the left included. The masks of Bloom,
MPT and alibi Falcon carry the alibi, [B, H, T, S] in every layer. Scores and softmax are in float32 or better; where a
class rounds those of a float64 model to float32, ours are not. Falcon is served as its sdpa implementation computes it:
its eager code adds alibi twice. XGLM's own code fails in float64 where that is not torch's default type.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.codegen.modeling_codegen import CodeGenAttention
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.mpt.modeling_mpt import MptAttention
from transformers.models.xglm.modeling_xglm import XGLMAttention

from util.engine.attention import IMPLEMENTATION, _attention

Output = tuple[Tensor, None]


def eager_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, d] and weights [B, H, T, S], as transformers' functions of this name give them."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).transpose(-1, -2) * scaling + attention_mask
    weights = scores.softmax(-1).to(value.dtype)
    return (weights @ value).transpose(1, 2), weights


def _closed(bias: Tensor, closed: Tensor) -> Tensor:
    """An additive mask: the bias, and the lowest number where attention is closed."""
    return bias.masked_fill(closed, torch.finfo(bias.dtype).min)


# ----------------------------------------------------------------------------- classes with a method for the arithmetic


class _OwnMethod:
    def _attn(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> Output:
        if self.training:  # with its dropout
            return super()._attn(query, key, value, attention_mask)  # type: ignore[misc]
        if hasattr(self, "bias"):  # the causal window of GPT-Neo
            length = key.shape[2]
            attention_mask = _closed(attention_mask, ~self.bias[:, :, length - query.shape[2] : length, :length])
        query, key = query.to(value.dtype), key.to(value.dtype)  # CodeGen rotates them into float32
        scaling = 1 / getattr(self, "scale_attn", 1)
        return _attention(self, query, key, value, attention_mask, scaling=scaling)[0].transpose(1, 2), None


class AdaptedGPTNeo(_OwnMethod, GPTNeoSelfAttention):
    """GPT-Neo's attention, by way of the engine."""


class AdaptedGPTJ(_OwnMethod, GPTJAttention):
    """GPT-J's attention, by way of the engine."""


class AdaptedCodeGen(_OwnMethod, CodeGenAttention):
    """CodeGen's attention, by way of the engine."""


# ---------------------------------------------------------------------- classes that do the arithmetic in their forward


class _OwnForward:
    def forward(self: Any, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor | None]:
        if self.training or keywords.get("key_value_states") is not None:  # with its dropout; cross-attention of XGLM
            return super().forward(*arguments, **keywords)  # type: ignore[misc]
        return self.attend(*arguments, **keywords), None

    def heads(self: Any, query: Tensor, key: Tensor, value: Tensor, cache: Any, mask: Tensor, scaling: float) -> Tensor:
        """The outputs of all heads side by side, from [B, H, T, d] each."""
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        shape = -1, query.shape[1], -1, -1  # one key for all heads would keep sdpa from its fast kernels
        key, value = key.expand(shape), value.expand(shape)
        return _attention(self, query, key, value, mask, scaling=scaling)[0].flatten(2)


class AdaptedFalcon(_OwnForward, FalconAttention):
    """Falcon's attention, by way of the engine."""

    def attend(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Tensor,
        layer_past: Any = None,
        position_embeddings: Any = None,
        **_: Any,
    ) -> Tensor:
        """The outputs [B, T, H d] of the heads."""
        split = self._split_heads(self.query_key_value(hidden_states))
        query, key, value = (part.transpose(1, 2) for part in split)
        if alibi is None:  # else it is in the mask
            query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        return self.dense(self.heads(query, key, value, layer_past, attention_mask, self.inv_norm_factor))


class AdaptedBloom(_OwnForward, BloomAttention):
    """Bloom's attention, by way of the engine."""

    def attend(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor,
        layer_past: Any = None,
        **_: Any,
    ) -> Tensor:
        """The outputs [B, T, H d] of the heads."""
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        mask = _closed(alibi.unflatten(0, (-1, self.num_heads)), attention_mask < 0)
        return residual + self.dense(self.heads(query, key, value, layer_past, mask, self.inv_norm_factor))


class AdaptedMpt(_OwnForward, MptAttention):
    """MPT's attention, by way of the engine."""

    def attend(
        self,
        hidden_states: Tensor,
        position_bias: Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        **_: Any,
    ) -> Tensor:
        """The outputs [B, T, H d] of the heads."""
        mixed = self.Wqkv(hidden_states)
        if self.clip_qkv:
            mixed = mixed.clamp(-self.clip_qkv, self.clip_qkv)
        query, key, value = mixed.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        bias = position_bias[:, :, -attention_mask.shape[-1] :]
        bias = bias - bias[:, 0, -query.shape[2] :, None]  # from each query, not from the last: exact where it is near
        mask = _closed(bias.to(query.dtype), attention_mask)
        return self.out_proj(self.heads(query, key, value, past_key_values, mask, self.softmax_scale))


class AdaptedXGLM(_OwnForward, XGLMAttention):
    """XGLM's attention, by way of the engine."""

    def attend(
        self, hidden_states: Tensor, past_key_values: Any = None, attention_mask: Any = None, **_: Any
    ) -> Tensor:
        """The outputs [B, T, H d] of the heads."""
        query, key, value = (
            projection(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(self.heads(query, key, value, past_key_values, attention_mask, self.scaling))


# ------------------------------------------------------------------------------------------------------------ switching

ADAPTED = {
    cls.__bases__[1]: cls
    for cls in (AdaptedGPTNeo, AdaptedGPTJ, AdaptedCodeGen, AdaptedFalcon, AdaptedBloom, AdaptedMpt, AdaptedXGLM)
}
_OWN = {adapted: own for own, adapted in ADAPTED.items()}


def adapts(model_class: type[PreTrainedModel]) -> bool:
    """Is this a class whose attention modules are adapted?"""
    return not {own.__module__ for own in ADAPTED}.isdisjoint(base.__module__ for base in model_class.__mro__)


def reference(model: PreTrainedModel) -> str:
    """The implementation of the class's own that the instrumented one must agree with."""
    return "sdpa" if model.config.model_type == "falcon" else "eager"


def switch(model: PreTrainedModel, implementation: str) -> None:
    """`model.set_attn_implementation` for adapted classes too.

    Switched to the engine, these keep their old implementation's name, by which their models choose the form of masks.
    """
    if not adapts(type(model)):
        model.set_attn_implementation(implementation)
        return
    for module in model.modules():
        own = _OWN.get(type(module), type(module))
        if own in ADAPTED:
            module.__class__ = ADAPTED[own] if implementation == IMPLEMENTATION else own
            if "_old_forward" in vars(module):  # what the hooks of accelerate call
                module._old_forward = type(module).forward.__get__(module)
    if implementation != IMPLEMENTATION:
        model.config._attn_implementation = implementation


# ----------------------------------------------------------------------------------------------------------- converting


def internlm2_to_llama(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[dict[str, Tensor], LlamaConfig]:
    """The weights of an InternLM2 checkpoint and its config.json as a Llama, which it is but for names and packing.

    Its `wqkv` [(H + 2 G) d, D] holds, for every key-value head, the queries that share it, its key, and its value.
    """
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    names = {
        "output": "lm_head",
        "tok_embeddings": "embed_tokens",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    converted = {}
    for name, tensor in state_dict.items():
        if ".attention.wqkv." in name:
            packed = tensor.unflatten(0, (groups, heads // groups + 2, -1))
            for part, rows in (("q", packed[:, :-2]), ("k", packed[:, -2]), ("v", packed[:, -1])):
                target = name.replace("attention.wqkv", f"self_attn.{part}_proj")
                converted[target] = rows.reshape(-1, *tensor.shape[1:])
        else:
            name = f".{name}"
            for old, new in names.items():
                name = name.replace(f".{old}.", f".{new}.")
            converted[name[1:]] = tensor
    scaling = {
        "rope_type" if key == "type" else key: value for key, value in (config.get("rope_scaling") or {}).items()
    }
    same = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
        "max_position_embeddings rms_norm_eps bos_token_id eos_token_id pad_token_id tie_word_embeddings"
    ).split()
    return converted, LlamaConfig(
        **{key: config[key] for key in same if key in config},
        attention_bias=config.get("bias", False),
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]} | scaling,
    )
