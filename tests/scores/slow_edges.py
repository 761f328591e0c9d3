"""The slow reference of edge patching: hooks on named modules of some classes, one whole forward pass for each edge.

Nothing here is shared with `util.scores` or `util.engine.components`: which modules a class reads and writes by is
written down by hand. Models are taken without shared keys and values, because hooks cannot tell what two heads read of
one key; `with_own_keys` gives every head a copy.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Names:
    """The modules of a layer by their names; None where the class has no such module.

    before: the norm that attention reads through; q, k, v: after which a head's own columns are known; after: the norm
    behind attention; between: the module whose input the MLP reads (a norm, or the MLP itself); mlp: whose output is
    added to the stream.
    """

    layers: str
    end: str
    before: str | None
    q: str
    k: str
    v: str
    o: str
    between: str
    mlp: str
    after: str | None = None
    shared_norm: bool = False  # the MLP reads through `before` too, in parallel


LLAMA = Names(
    "model.layers", "model.norm", "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "post_attention_layernorm", "mlp",
)  # fmt: skip
GEMMA2 = Names(
    "model.layers", "model.norm", "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "pre_feedforward_layernorm", "post_feedforward_layernorm", "post_attention_layernorm",
)  # fmt: skip
OLMO2 = Names(
    "model.layers", "model.norm", None, "self_attn.q_norm", "self_attn.k_norm", "self_attn.v_proj",
    "self_attn.o_proj", "mlp", "post_feedforward_layernorm", "post_attention_layernorm",
)  # fmt: skip
PHI = Names(
    "model.layers", "model.final_layernorm", "input_layernorm", "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.dense", "mlp", "mlp", shared_norm=True,
)  # fmt: skip
GPT2 = Names(
    "transformer.h",
    "transformer.ln_f",
    "ln_1",
    "attn.c_attn",
    "attn.c_attn",
    "attn.c_attn",
    "attn.c_proj",
    "ln_2",
    "mlp",
)
NAMES = {
    "llama": LLAMA, "mistral": LLAMA, "granite": LLAMA, "qwen2": LLAMA,
    "gemma2": GEMMA2, "olmo2": OLMO2, "phi": PHI, "gpt2": GPT2,
}  # fmt: skip


class SlowEdges:
    """Effects of single edges on the logit difference, for prompts base and source [N, T] and answers [N, 2]."""

    def __init__(self, model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor) -> None:
        self.model, self.base, self.answers = model, base, answers
        self.names = NAMES[model.config.model_type]
        self.layers = model.get_submodule(self.names.layers)
        self.heads, self.factor = model.config.num_attention_heads, getattr(model.config, "residual_multiplier", 1.0)
        self.writes = [self._written(ids) for ids in (base, source)]
        self.metric = self._metric()

    @contextmanager
    def starting_from(self, embedded: Tensor) -> Iterator[None]:
        """Inside the block every run begins with these embeddings [N, T, d]."""

        def instead(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if "hidden_states" in keywords:
                return arguments, keywords | {"hidden_states": embedded}
            return (embedded, *arguments[1:]), keywords

        hook = self.layers[0].register_forward_pre_hook(instead, with_kwargs=True)
        try:
            self.metric = self._metric()
            yield
        finally:
            hook.remove()

    def effect(self, sender: int, reader: int, size: float = 1.0) -> Tensor:
        """How far the metric [N] falls where `reader` reads `sender` this share of the way to the source run."""
        change = self._change(sender, size)
        layer, place = divmod(reader, 3 * self.heads + 1)
        with ExitStack() as stack:
            if layer == len(self.layers):
                stack.callback(self._reading(self.model.get_submodule(self.names.end), change))
            elif place == 3 * self.heads:
                stack.callback(self._mlp_reading(layer, change))
            else:
                part, head = divmod(place, self.heads)
                stack.callback(self._head_reading(layer, part, head, change))
            return self.metric - self._metric()

    def _metric(self) -> Tensor:
        logits = self.model(self.base, use_cache=False).logits[:, -1]
        pair = logits.gather(1, self.answers)
        return pair[:, 0] - pair[:, 1]

    def _written(self, ids: Tensor) -> dict[str, list[Any]]:
        """The embeddings, what goes into every projection, and what every MLP adds, of a plain run."""
        kept: dict[str, list[Any]] = {"input": [], "o": [], "mlp": []}
        with ExitStack() as stack:
            for number, layer in enumerate(self.layers):
                if number == 0:
                    hook = layer.register_forward_pre_hook(
                        lambda _, args, kw: kept["input"].append(_hidden(args, kw)), with_kwargs=True
                    )
                    stack.callback(hook.remove)
                projection = layer.get_submodule(self.names.o)
                stack.callback(projection.register_forward_pre_hook(lambda _, args: kept["o"].append(args[0])).remove)
                mlp = layer.get_submodule(self.names.mlp)
                stack.callback(mlp.register_forward_hook(lambda _, __, out: kept["mlp"].append(out)).remove)
            self.model(ids, use_cache=False)
        return kept

    def _change(self, sender: int, size: float) -> Tensor:
        """By how much a sender changes the stream [N, T, d], this share of the way to the source run."""
        base, source = self.writes
        if sender == 0:
            return size * (source["input"][0] - base["input"][0])
        layer, place = divmod(sender - 1, self.heads + 1)
        if place == self.heads:
            return size * self.factor * (source["mlp"][layer] - base["mlp"][layer])
        block = self.layers[layer]
        projection = block.get_submodule(self.names.o)
        z = base["o"][layer].clone()
        width = z.shape[-1] // self.heads
        own = slice(place * width, (place + 1) * width)
        z[..., own] = torch.lerp(z[..., own], source["o"][layer][..., own], size)
        after = block.get_submodule(self.names.after) if self.names.after else nn.Identity()
        return self.factor * (after(projection(z)) - after(projection(base["o"][layer])))

    def _reading(self, module: nn.Module, change: Tensor) -> Callable[[], None]:
        return module.register_forward_pre_hook(lambda _, args: (args[0] + change, *args[1:])).remove

    def _mlp_reading(self, layer: int, change: Tensor) -> Callable[[], None]:
        block = self.layers[layer]
        between = block.get_submodule(self.names.between)
        if not self.names.shared_norm:
            return self._reading(between, change)
        kept: list[Tensor] = []
        norm = block.get_submodule(self.names.before)
        first = block.register_forward_pre_hook(lambda _, args, kw: kept.append(_hidden(args, kw)), with_kwargs=True)
        second = between.register_forward_pre_hook(lambda _, args: (norm(kept[-1] + change),))
        return lambda: (first.remove(), second.remove())  # type: ignore[return-value]

    def _head_reading(self, layer: int, part: int, head: int, change: Tensor) -> Callable[[], None]:
        block = self.layers[layer]
        norm = block.get_submodule(self.names.before) if self.names.before else nn.Identity()
        path = (self.names.q, self.names.k, self.names.v)[part]
        kept: list[Tensor] = []

        def instead(module: nn.Module, _: Any, out: Tensor) -> Tensor:
            read = norm(kept[-1] + change)
            if path.endswith("_norm"):  # a norm of all heads' queries together
                read = block.get_submodule(path.replace("_norm", "_proj"))(read)
            fused = 3 if path == GPT2.q else 1
            width = out.shape[-1] // fused // self.heads
            start = ((part if fused == 3 else 0) * self.heads + head) * width
            changed = out.clone()
            changed[..., start : start + width] = module.forward(read)[..., start : start + width]
            return changed

        first = block.register_forward_pre_hook(lambda _, args, kw: kept.append(_hidden(args, kw)), with_kwargs=True)
        second = block.get_submodule(path).register_forward_hook(instead)
        return lambda: (first.remove(), second.remove())  # type: ignore[return-value]


def _hidden(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return keywords["hidden_states"] if "hidden_states" in keywords else arguments[0]


class SlowCircuit(SlowEdges):
    """The metric of a circuit, sender by sender: a whole forward pass for each stream that a reader reads."""

    def circuit(self, kept: Tensor) -> Tensor:
        """The metric [N] where the edges that are not in `kept` [U, V] are source."""
        width, names = 3 * self.heads + 1, self.names
        out: list[dict[str, Tensor]] = []
        for layer, block in enumerate(self.layers):
            column = layer * width
            z = self._z(layer, [self._stream(kept[:, column + place], out, layer) for place in range(width - 1)])
            out.append({"o": z})
            ends = layer if names.shared_norm else layer + 1
            read = self._stream(kept[:, column + width - 1], out, ends, heads_only=not names.shared_norm)
            with ExitStack() as stack:
                between = block.get_submodule(names.between)
                norm = block.get_submodule(names.before) if names.shared_norm else nn.Identity()
                value = norm(read)
                stack.callback(between.register_forward_pre_hook(lambda _, args, value=value: (value,)).remove)
                said: list[Tensor] = []
                stack.callback(
                    block.get_submodule(names.mlp)
                    .register_forward_hook(lambda _, __, o, said=said: said.append(o))
                    .remove
                )
                self.model(self.base, use_cache=False)
            out[-1]["mlp"] = said[0]
        end = self._stream(kept[:, -1], out, len(self.layers))
        hook = self.model.get_submodule(names.end).register_forward_pre_hook(lambda _, args: (end,))
        try:
            return self._metric()
        finally:
            hook.remove()

    def _stream(self, kept: Tensor, out: list[dict[str, Tensor]], layers: int, heads_only: bool = False) -> Tensor:
        """What a reader reads that keeps these senders; heads_only: of the last layer."""
        base, source = self.writes
        stream = (base if kept[0] else source)["input"][0]
        for layer in range(layers):
            start, block = 1 + layer * (self.heads + 1), self.layers[layer]
            z, width = source["o"][layer].clone(), source["o"][layer].shape[-1] // self.heads
            for head in range(self.heads):
                if kept[start + head]:
                    z[..., head * width : (head + 1) * width] = out[layer]["o"][..., head * width : (head + 1) * width]
            after = block.get_submodule(self.names.after) if self.names.after else nn.Identity()
            stream = stream + self.factor * after(block.get_submodule(self.names.o)(z))
            if not (heads_only and layer == layers - 1):
                stream = (
                    stream
                    + self.factor * (out[layer] if kept[start + self.heads] else {"mlp": source["mlp"][layer]})["mlp"]
                )
        return stream

    def _z(self, layer: int, streams: list[Tensor]) -> Tensor:
        """What goes into the projection where each query, key and value [3 H] reads a stream of its own."""
        block, names = self.layers[layer], self.names
        norm = block.get_submodule(names.before) if names.before else nn.Identity()
        fused = names.q == names.k
        with ExitStack() as stack:
            for part, path in enumerate((names.q, names.k, names.v)):
                module = block.get_submodule(path)

                def instead(module: nn.Module, _: Any, out: Tensor, part: int = part, path: str = path) -> Tensor:
                    width, changed = out.shape[-1] // (3 if fused else 1) // self.heads, out.clone()
                    for head in range(self.heads):
                        read = norm(streams[part * self.heads + head])
                        if path.endswith("_norm"):
                            read = block.get_submodule(path.replace("_norm", "_proj"))(read)
                        start = ((part if fused else 0) * self.heads + head) * width
                        changed[..., start : start + width] = module.forward(read)[..., start : start + width]
                    return changed

                stack.callback(module.register_forward_hook(instead).remove)
            kept: list[Tensor] = []
            hook = block.get_submodule(names.o).register_forward_pre_hook(lambda _, args: kept.append(args[0]))
            stack.callback(hook.remove)
            self.model(self.base, use_cache=False)
        return kept[0]
