"""Llama and Gemma 3 in plain PyTorch: what the suite is compared with here. Nothing of the suite is imported."""

from __future__ import annotations

import torch
from torch import Tensor


class Llama:
    """The forward pass of a Llama, one line after the other. weights: a state dict; config: transformers'.

    Linear maps compute in the dtype of their weights. inputs: what the attention of each layer took in, [B, T, w].
    """

    def __init__(self, weights, config):
        self.weights, self.config = weights, config
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.every = [(layer, head) for layer in range(self.layers) for head in range(self.heads)]
        self.shared = config.num_attention_heads // config.num_key_value_heads  # heads that share a key
        self.width, self.epsilon = config.head_dim, config.rms_norm_eps
        self.inputs: dict[int, Tensor] = {}

    def __call__(self, ids, attend=None):
        """The logits [B, T, V] after ids [B, T]; attend(layer, q, k, v): z [B, H, T, d], in place of `attention`."""
        return self.unembed(self.residual(ids, attend))

    @torch.no_grad()
    def unembed(self, x):
        return self._map(self._norm(x, "model.norm"), "lm_head")

    @torch.no_grad()
    def residual(self, ids, attend=None):
        """What the last layer leaves, [B, T, w]."""
        attend = attend or (lambda layer, q, k, v: attention(q, k, v))
        x = self._embed(ids)
        for layer in range(self.layers):
            self.inputs[layer] = self._norm(x, f"model.layers.{layer}.input_layernorm")
            x = x + self._written(layer, attend(layer, *self.read(layer, self.inputs[layer])))
            x = x + self._mlp(layer, x)
        return x

    @torch.no_grad()
    def read(self, layer, h):
        """Queries, keys and values [B, H, T, d] that a layer's attention makes of its input h [B, T, w]."""
        q, k, v = (self._state(layer, h, name) for name in "qkv")
        speed = self._theta(layer) ** -(torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = torch.outer(torch.arange(h.shape[1], dtype=torch.float64), speed).repeat(1, 2)
        cos, sin = angles.cos().to(h), angles.sin().to(h)
        q, k = q * cos + _half_turn(q) * sin, k * cos + _half_turn(k) * sin
        return q, k.repeat_interleave(self.shared, dim=1), v.repeat_interleave(self.shared, dim=1)

    @torch.no_grad()
    def with_written(self, ids, head, change):
        """The logits [B, T, V] where a change [B, T, d] of what a head puts out reaches the logits and nothing else.

        A norm between heads and stream sees the layer's other heads as they are: the stream gets what attention writes
        with the change, less what it writes without. That is how the suite's `direct_effects` defines it, too.
        """
        z = observed(self, ids)[1][head[0]]
        changed = z.clone()
        changed[:, head[1]] += change
        return self.unembed(self.residual(ids) + (self._written(head[0], changed) - self._written(head[0], z)))

    def _embed(self, ids):
        return self.weights["model.embed_tokens.weight"][ids]

    def _state(self, layer, h, name):
        """Queries, keys or values [B, H, T, d] before they are turned; name: q, k or v."""
        states = self._map(h, f"model.layers.{layer}.self_attn.{name}_proj")
        return states.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def _theta(self, layer):
        return self.config.rope_parameters["rope_theta"]

    def _written(self, layer, z):
        """What attention adds to the stream [B, T, w], of its heads' outputs z [B, H, T, d]."""
        return self._map(z.transpose(1, 2).flatten(2), f"model.layers.{layer}.self_attn.o_proj")

    def _mlp(self, layer, x, norm="post_attention_layernorm"):
        """What the MLP adds to the stream [B, T, w] x; norm: of what it reads."""
        h = self._norm(x, f"model.layers.{layer}.{norm}")
        gate, up = (self._map(h, f"model.layers.{layer}.mlp.{name}_proj") for name in ("gate", "up"))
        return self._map(self._curve(gate) * up, f"model.layers.{layer}.mlp.down_proj")

    def _curve(self, x):
        return x * torch.sigmoid(x)

    def _map(self, x, name):
        weight = self.weights[f"{name}.weight"]
        return (x.to(weight.dtype) @ weight.T).to(x.dtype)

    def _norm(self, x, name):
        return x / (x.square().mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weights[f"{name}.weight"]


class Gemma3(Llama):
    """The forward pass of Gemma 3 on prompts that its local layers see whole."""

    def __init__(self, weights, config):
        super().__init__({name: 1 + w if "norm" in name else w for name, w in weights.items()}, config)
        assert config.query_pre_attn_scalar == self.width  # the square of what `scores` divides by

    def _embed(self, ids):
        assert ids.shape[1] <= self.config.sliding_window
        x = super()._embed(ids)
        return x * torch.tensor(x.shape[-1] ** 0.5).to(x)  # by way of float32, as the class does

    def _state(self, layer, h, name):
        state = super()._state(layer, h, name)
        return state if name == "v" else self._norm(state, f"model.layers.{layer}.self_attn.{name}_norm")

    def _theta(self, layer):
        return self.config.rope_parameters[self.config.layer_types[layer]]["rope_theta"]

    def _written(self, layer, z):
        return self._norm(super()._written(layer, z), f"model.layers.{layer}.post_attention_layernorm")

    def _mlp(self, layer, x, norm="pre_feedforward_layernorm"):
        return self._norm(super()._mlp(layer, x, norm), f"model.layers.{layer}.post_feedforward_layernorm")

    def _curve(self, x):
        return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def _half_turn(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def scores(q, k):
    """What the softmax is taken of, [B, H, T, T]: minus infinity above the diagonal."""
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)


def attention(q, k, v):
    return scores(q, k).softmax(-1) @ v


def observed(model, ids, edit=lambda layer, z: z):
    """Attention [L, B, H, T, T] and outputs [L, B, H, T, d] of all heads; edit: of the outputs, before they go on."""
    weights, outputs = [], []

    def attend(layer, q, k, v):
        weights.append(scores(q, k).softmax(-1))
        outputs.append(edit(layer, weights[-1] @ v))
        return outputs[-1].clone()

    model.residual(ids, attend)
    return torch.stack(weights), torch.stack(outputs)


def replaced(heads, value):
    """value(layer, head, z [B, T, d]) takes the place of what these heads put out."""

    def edit(layer, z):
        for at, head in heads:
            if at == layer:
                z[:, head] = value(layer, head, z[:, head].clone())
        return z

    return edit


def with_heads(model, ids, heads, value):
    """The logits [B, T, V] with these heads replaced."""
    edit = replaced(heads, value)
    return model(ids, lambda layer, *states: edit(layer, attention(*states)))


def cut(cells, heads):
    """Attention of these heads without the cells (query, key) of each example."""

    def attend(layer, q, k, v):
        every = scores(q, k)
        for head in (head for at, head in heads if at == layer):
            for example, closed in cells.items():
                queries, keys = zip(*closed, strict=True)
                every[example, head, queries, keys] = -torch.inf
        return every.softmax(-1) @ v

    return attend


def read_elsewhere(sources):
    """Attention in which some rows of the batch read keys and values of others.

    sources: by row [T, T] integers, the row whose key and value a (query, key) cell reads.
    """

    def attend(layer, q, k, v):
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
