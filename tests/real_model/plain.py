"""Llama in plain PyTorch: what the suite is compared with in this folder. Nothing of the suite is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Head = tuple[int, int]  # layer, head
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v [B, H, T, d] -> z [B, H, T, d]
Edit = Callable[[int, Tensor], Tensor]  # layer, z [B, H, T, d] -> what takes its place


class Llama:
    """The forward pass of a Llama, one line after the other. weights: a state dict; config: transformers'.

    Linear maps compute in the dtype of their weights. inputs: what the attention of each layer took in, [B, T, w].
    """

    def __init__(self, weights: Mapping[str, Tensor], config: Any) -> None:
        self.weights = weights
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.shared = config.num_attention_heads // config.num_key_value_heads  # heads that share a key
        self.width, self.epsilon = config.head_dim, config.rms_norm_eps
        self.theta = config.rope_parameters["rope_theta"]
        self.inputs: dict[int, Tensor] = {}

    def __call__(self, ids: Tensor, attend: Attend | None = None) -> Tensor:
        """The logits [B, T, V] after ids [B, T]; attend: what takes the place of `attention`."""
        return self.unembed(self.residual(ids, attend))

    @torch.no_grad()
    def unembed(self, x: Tensor) -> Tensor:
        return self._map(self._norm(x, "model.norm"), "lm_head")

    @torch.no_grad()
    def residual(self, ids: Tensor, attend: Attend | None = None) -> Tensor:
        """What the last layer leaves, [B, T, w]."""
        attend = attend or (lambda layer, q, k, v: attention(q, k, v))
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.layers):
            front = f"model.layers.{layer}."
            self.inputs[layer] = self._norm(x, f"{front}input_layernorm")
            z = attend(layer, *self.read(layer, self.inputs[layer]))
            x = x + self._map(z.transpose(1, 2).flatten(2), f"{front}self_attn.o_proj")
            h = self._norm(x, f"{front}post_attention_layernorm")
            gate, up = (self._map(h, f"{front}mlp.{name}_proj") for name in ("gate", "up"))
            x = x + self._map(gate * torch.sigmoid(gate) * up, f"{front}mlp.down_proj")
        return x

    @torch.no_grad()
    def read(self, layer: int, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, d] that a layer's attention makes of its input h [B, T, w]."""
        maps = (self._map(h, f"model.layers.{layer}.self_attn.{name}_proj") for name in "qkv")
        q, k, v = (part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in maps)
        speed = self.theta ** -(torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = torch.outer(torch.arange(h.shape[1], dtype=torch.float64), speed).repeat(1, 2)
        cos, sin = angles.cos().to(h), angles.sin().to(h)
        q, k = q * cos + _half_turn(q) * sin, k * cos + _half_turn(k) * sin
        return q, k.repeat_interleave(self.shared, dim=1), v.repeat_interleave(self.shared, dim=1)

    @torch.no_grad()
    def with_written(self, ids: Tensor, head: Head, change: Tensor) -> Tensor:
        """The logits [B, T, V] where a change [B, T, d] of what a head puts out reaches the logits and nothing else."""
        weight = self.weights[f"model.layers.{head[0]}.self_attn.o_proj.weight"]
        own = weight[:, head[1] * self.width : (head[1] + 1) * self.width]
        return self.unembed(self.residual(ids) + change @ own.T)

    def _map(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return (x.to(weight.dtype) @ weight.T).to(x.dtype)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weights[f"{name}.weight"]


def _half_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """What the softmax is taken of, [B, H, T, T]: minus infinity above the diagonal."""
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) @ v


def observed(llama: Llama, ids: Tensor, edit: Edit = lambda layer, z: z) -> tuple[Tensor, Tensor]:
    """Attention [L, B, H, T, T] and outputs [L, B, H, T, d] of all heads; edit: of the outputs, before they go on."""
    weights, outputs = [], []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights.append(scores(q, k).softmax(-1))
        outputs.append(edit(layer, weights[-1] @ v))
        return outputs[-1].clone()

    llama.residual(ids, attend)
    return torch.stack(weights), torch.stack(outputs)


def replaced(heads: Sequence[Head], value: Callable[[int, int, Tensor], Tensor]) -> Edit:
    """value(layer, head, z [B, T, d]) takes the place of what these heads put out."""

    def edit(layer: int, z: Tensor) -> Tensor:
        for at, head in heads:
            if at == layer:
                z[:, head] = value(layer, head, z[:, head].clone())
        return z

    return edit


def with_heads(llama: Llama, ids: Tensor, heads: Sequence[Head], value: Callable[[int, int, Tensor], Tensor]) -> Tensor:
    """The logits [B, T, V] with these heads replaced."""
    edit = replaced(heads, value)
    return llama(ids, lambda layer, *states: edit(layer, attention(*states)))


def cut(cells: Mapping[int, Sequence[tuple[int, int]]], heads: Sequence[Head]) -> Attend:
    """Attention of these heads without the cells (query, key) of each example."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        every = scores(q, k)
        for head in (head for at, head in heads if at == layer):
            for example, closed in cells.items():
                queries, keys = zip(*closed, strict=True)
                every[example, head, queries, keys] = -torch.inf
        return every.softmax(-1) @ v

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
