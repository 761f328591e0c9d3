"""Adapters for model classes that compute attention in their own code.

GPT-Neo, Falcon, Bloom, MPT, XGLM, and before transformers 5.24 GPT-J and CodeGen, never call transformers' attention
interface. This module makes a subclass of the attention module of each. Where the original computes attention, the
subclass hands query, key, value and mask to the engine. `switch` changes the class of the attention modules of one
model; copying and pickling keep this change. The handshake compares an adapted model with the class's own code, as it
does for every model. All instruments work on adapted models, also with a bare `DynamicCache`.

- Bloom and MPT ignore position ids and need none, even with padding at the left.
- The masks of Bloom, MPT and Falcon with alibi contain the alibi, [B, H, T, S], in every layer.
- Scores and softmax are computed in float32 or better. Some classes round them to float32 in a float64 model; the
  adapters do not.
- The adapter of Falcon computes what Falcon's sdpa implementation computes, because its eager code adds alibi twice.
- XGLM's own code fails in float64, unless float64 is torch's default type.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.codegen.modeling_codegen import CodeGenAttention
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.mpt.modeling_mpt import MptAttention
from transformers.models.xglm.modeling_xglm import XGLMAttention

from util.engine.attention import IMPLEMENTATION, _attention


def eager_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Compute outputs [B, T, H, d] and weights [B, H, T, S], like transformers' functions of this name."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).transpose(-1, -2) * scaling + attention_mask
    weights = scores.softmax(-1).to(value.dtype)
    return (weights @ value).transpose(1, 2), weights


def _closed(bias: Tensor, closed: Tensor) -> Tensor:
    """An additive mask: the bias, with the lowest number of its dtype where attention is forbidden."""
    return bias.masked_fill(closed, torch.finfo(bias.dtype).min)


# ------------------------------------------------------------------------------------------------ by class


def _attn(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> Tensor:
    """GPT-Neo, GPT-J and CodeGen compute attention in a method of this name: head outputs [B, H, T, d]."""
    if hasattr(module, "bias"):  # GPT-Neo: the causal window
        length = key.shape[2]
        attention_mask = _closed(attention_mask, ~module.bias[:, :, length - query.shape[2] : length, :length])
    query, key = query.to(value.dtype), key.to(value.dtype)  # CodeGen's rotation makes them float32
    scaling = 1 / getattr(module, "scale_attn", 1)
    return _attention(module, query, key, value, attention_mask, scaling=scaling)[0].transpose(1, 2)


# The others compute it in `forward`: the projected head outputs [B, T, D]; Bloom's, added to the residual stream.


def _heads(module: Any, query: Tensor, key: Tensor, value: Tensor, cache: Any, mask: Tensor, scaling: float) -> Tensor:
    """The outputs of all heads side by side [B, T, H d], from query, key and value [B, H, T, d]."""
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    shape = -1, query.shape[1], -1, -1  # sdpa has no fast kernel where all heads share one key
    key, value = key.expand(shape), value.expand(shape)
    return _attention(module, query, key, value, mask, scaling=scaling)[0].flatten(2)


def _falcon(
    module: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor,
    cache: Any = None,
    position_embeddings: Any = None,
    **_: Any,
) -> Tensor:
    split = module._split_heads(module.query_key_value(hidden_states))
    query, key, value = (part.transpose(1, 2) for part in split)
    if alibi is None:  # alibi, where there is one, is in the mask
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
    return module.dense(_heads(module, query, key, value, cache, attention_mask, module.inv_norm_factor))


def _bloom(
    module: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor,
    cache: Any = None,
    **_: Any,
) -> Tensor:
    query, key, value = module._reshape(module.query_key_value(hidden_states))
    mask = _closed(alibi.unflatten(0, (-1, module.num_heads)), attention_mask < 0)
    return residual + module.dense(_heads(module, query, key, value, cache, mask, module.inv_norm_factor))


def _mpt(
    module: Any,
    hidden_states: Tensor,
    position_bias: Tensor,
    cache: Any = None,
    attention_mask: Any = None,
    **_: Any,
) -> Tensor:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(-module.clip_qkv, module.clip_qkv)
    query, key, value = mixed.unflatten(-1, (3, module.n_heads, -1)).permute(2, 0, 3, 1, 4)
    bias = position_bias[:, :, -attention_mask.shape[-1] :]
    # alibi relative to each query instead of the last one, so that it is exact for keys near the query
    bias = bias - bias[:, 0, -query.shape[2] :, None]
    mask = _closed(bias.to(query.dtype), attention_mask)
    return module.out_proj(_heads(module, query, key, value, cache, mask, module.softmax_scale))


def _xglm(module: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Any = None, **_: Any) -> Tensor:
    query, key, value = (
        projection(hidden_states).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    return module.out_proj(_heads(module, query, key, value, cache, attention_mask, module.scaling))


# ------------------------------------------------------------------------------------------------ switching


CACHE_NAMES = ("past_key_values", "layer_past")  # of layers, by class and release of transformers: also "cache"


def _adapted(original: Any, name: str, ours: Callable[..., Tensor]) -> type:
    """A subclass of an attention class whose method of this name computes attention in our way."""

    def method(module: Any, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor | None]:
        # in training the original applies dropout; XGLM's cross-attention is left to the original too
        if module.training or keywords.get("key_value_states") is not None:
            return getattr(original, name)(module, *arguments, **keywords)
        named = {"cache" if name in CACHE_NAMES else name: value for name, value in keywords.items()}
        return ours(module, *arguments, **named), None

    return type(f"Adapted{original.__name__}", (original,), {name: method})


ADAPTED = {  # from 5.24 on transformers asks for the attention function of GPT-J and CodeGen
    original: _adapted(original, "_attn", _attn)
    for original in (GPTNeoSelfAttention, GPTJAttention, CodeGenAttention)
    if hasattr(original, "_attn")
}
FORWARDS: dict[Any, Callable[..., Tensor]] = {
    FalconAttention: _falcon,
    BloomAttention: _bloom,
    MptAttention: _mpt,
    XGLMAttention: _xglm,
}
ADAPTED |= {original: _adapted(original, "forward", ours) for original, ours in FORWARDS.items()}
globals().update({adapted.__name__: adapted for adapted in ADAPTED.values()})  # where pickle looks for them
_ORIGINAL = {adapted: original for original, adapted in ADAPTED.items()}


def adapts(model_class: type[PreTrainedModel]) -> bool:
    """Whether this module has an adapter for the attention of a model class."""
    files = {original.__module__ for original in ADAPTED}
    return any(base.__module__ in files for base in model_class.__mro__)


def switch(model: PreTrainedModel, implementation: str) -> None:
    """Like `model.set_attn_implementation`, but works for adapted classes too.

    An adapted model that is switched to the engine keeps the name of its old implementation in its config, because its
    code chooses the form of masks by that name.
    """
    if not adapts(type(model)):
        model.set_attn_implementation(implementation)
        return
    for module in model.modules():
        original = _ORIGINAL.get(type(module), type(module))
        if original in ADAPTED:
            module.__class__ = ADAPTED[original] if implementation == IMPLEMENTATION else original
            if "_old_forward" in vars(module):  # accelerate's hooks call it
                module._old_forward = type(module).forward.__get__(module)
    if implementation != IMPLEMENTATION:
        model.config._attn_implementation = implementation


def to_reference(model: PreTrainedModel) -> None:
    """Switch a model to the class's own implementation, which the instrumented one must agree with."""
    switch(model, "sdpa" if model.config.model_type == "falcon" else "eager")
