"""Llama in plain PyTorch, and hooks on transformers' eager Llama: what the suite is compared with in this folder.

Nothing of the suite is imported here; a test checks it. `Llama` computes everything itself, in the dtype of its weights
throughout. `eager` and `heads` go another way: transformers' own eager code, with hooks on the output projections.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

Head = tuple[int, int]  # layer, head
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v [B, H, T, d] -> z [B, H, T, d]


# ------------------------------------------------------------------------------------------------ written out


class Llama:
    """The forward pass of a Llama, one line after the other. weights: a state dict; config: transformers'."""

    def __init__(self, weights: Mapping[str, Tensor], config: Any) -> None:
        self.weights = weights
        self.layers, self.heads, self.groups = (
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        self.width, self.epsilon = config.head_dim, config.rms_norm_eps
        self.theta = config.rope_parameters["rope_theta"]

    @torch.no_grad()
    def __call__(self, ids: Tensor, attend: Attend | None = None) -> Tensor:
        """The logits [B, T, V] after ids [B, T]; attend: what takes the place of `attention`."""
        attend = attend or (lambda layer, q, k, v: attention(q, k, v))
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            own = self._own(layer)
            z = attend(layer, *self.read(layer, self._norm(x, own["input_layernorm.weight"])))
            x = x + z.transpose(1, 2).flatten(2) @ own["self_attn.o_proj.weight"].T
            h = self._norm(x, own["post_attention_layernorm.weight"])
            gate, up = h @ own["mlp.gate_proj.weight"].T, h @ own["mlp.up_proj.weight"].T
            x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T
        return self._norm(x, self.weights["model.norm.weight"]) @ self.weights["lm_head.weight"].T

    @torch.no_grad()
    def read(self, layer: int, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, d] that a layer's attention makes of its input h [B, T, w]."""
        own = self._own(layer)
        q, k, v = (
            (h @ own[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for name in "qkv"
        )
        cos, sin = self._angles(h.shape[1], h)
        q, k = q * cos + _half_turn(q) * sin, k * cos + _half_turn(k) * sin
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (k, v))
        return q, k, v

    def _own(self, layer: int) -> dict[str, Tensor]:
        front = f"model.layers.{layer}."
        return {name.removeprefix(front): weight for name, weight in self.weights.items() if name.startswith(front)}

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.epsilon).sqrt() * weight

    def _angles(self, tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
        speed = self.theta ** -(torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = torch.outer(torch.arange(tokens, dtype=torch.float64), speed).repeat(1, 2)
        return angles.cos().to(like), angles.sin().to(like)


def _half_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """What the softmax is taken of, [B, H, T, T]: minus infinity above the diagonal."""
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) @ v


def cut(cells: Mapping[int, Sequence[tuple[int, int]]], where: Mapping[int, Sequence[int]]) -> Attend:
    """Attention without the cells (query, key) of each example, in the heads `where` by layer."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        all_scores = scores(q, k)
        for head in where.get(layer, ()):
            for example, closed in cells.items():
                queries, keys = zip(*closed, strict=True)
                all_scores[example, head, queries, keys] = -torch.inf
        return all_scores.softmax(-1) @ v

    return attend


def read_elsewhere(sources: Mapping[int, Tensor]) -> Attend:
    """Attention in which some rows of the batch read keys and values of others.

    sources: by row [T, T] integers, the row whose key and value a (query, key) cell reads.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        z = attention(q, k, v)
        for row, source in sources.items():
            tokens = torch.arange(len(source))
            for query in tokens:
                seen = tokens[: query + 1]
                keys, values = (part[source[query, : query + 1], :, seen] for part in (k, v))  # [T', H, d]
                given = torch.einsum("hd,thd->ht", q[row, :, query], keys) / q.shape[-1] ** 0.5
                z[row, :, query] = torch.einsum("ht,thd->hd", given.softmax(-1), values)
        return z

    return attend


# ------------------------------------------------------------------------------------------------ transformers' eager


def eager(model: Any) -> Any:
    """The same weights, not copied, in a model of the class's eager attention."""
    config = copy.deepcopy(model.config)
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    twin.load_state_dict(model.state_dict(), assign=True)
    twin.tie_weights()
    twin.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)  # its buffers are in no state dict
    assert twin.config._attn_implementation == "eager"
    return twin.eval().requires_grad_(False)


Edit = Callable[[Tensor], Tensor | None]  # z [B, T, H, d] -> what takes its place, None for itself


@contextlib.contextmanager
def heads(twin: Any, edits: Mapping[int, Edit]) -> Iterator[None]:
    """Pre-hooks on the output projections of some layers, which see z [B, T, H, d] and may change it."""

    def hook(edit: Edit) -> Callable[..., Any]:
        def run(_: nn.Module, arguments: tuple[Tensor, ...]) -> Any:
            z = arguments[0].unflatten(-1, (twin.config.num_attention_heads, -1))
            changed = edit(z.clone())
            return None if changed is None else (changed.flatten(-2), *arguments[1:])

        return run

    layers = twin.model.layers
    handles = [layers[layer].self_attn.o_proj.register_forward_pre_hook(hook(edit)) for layer, edit in edits.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def outputs(twin: Any, ids: Tensor) -> dict[int, Tensor]:
    """The outputs z [B, T, H, d] of all heads, by layer."""
    kept: dict[int, Tensor] = {}
    with heads(
        twin, {layer: lambda z, layer=layer: kept.update({layer: z}) for layer in range(len(twin.model.layers))}
    ):
        twin(ids, use_cache=False)
    return kept


@torch.no_grad()
def with_heads(twin: Any, ids: Tensor, chosen: Sequence[Head], value: Callable[[int, int, Tensor], Tensor]) -> Tensor:
    """The logits [B, T, V] where value(layer, head, z [B, T, d]) takes the place of what these heads put out."""

    def edit(layer: int) -> Edit:
        def run(z: Tensor) -> Tensor:
            for at, head in chosen:
                if at == layer:
                    z[:, :, head] = value(layer, head, z[:, :, head])
            return z

        return run

    with heads(twin, {layer: edit(layer) for layer in {layer for layer, _ in chosen}}):
        return twin(ids, use_cache=False).logits


@torch.no_grad()
def inputs_of_attention(twin: Any, ids: Tensor) -> dict[int, Tensor]:
    """What the attention of each layer takes in, [B, T, w]."""
    kept: dict[int, Tensor] = {}

    def hook(layer: int) -> Callable[..., None]:
        return lambda _, arguments: kept.update({layer: arguments[0]})

    layers = enumerate(twin.model.layers)
    handles = [block.self_attn.q_proj.register_forward_pre_hook(hook(layer)) for layer, block in layers]
    try:
        twin(ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return kept


@torch.no_grad()
def with_frozen_rest(twin: Any, ids: Tensor, head: Head, z: Tensor) -> Tensor:
    """The logits [B, T, V] where a head puts out z [B, T, d] and every later part of the model what it put out anyway.

    All attention and MLP outputs behind the head's own output projection are those of the plain run.
    """
    layer, number = head
    modules = [m for block in twin.model.layers[layer:] for m in (block.self_attn.o_proj, block.mlp)][1:]
    kept: dict[nn.Module, Tensor] = {}
    handles = [m.register_forward_hook(lambda m, _, out: kept.update({m: out})) for m in modules]
    twin(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    handles = [m.register_forward_hook(lambda m, _, out: kept[m]) for m in modules]
    try:
        return with_heads(twin, ids, [(layer, number)], lambda *_: z)
    finally:
        for handle in handles:
            handle.remove()
