"""The slow reference of edge patching: hooks on named modules of some classes, one whole forward pass for each edge.

Nothing here is shared with `util.scores` or `util.engine.components`: which modules a class reads and writes by is
written down by hand. Models are taken without shared keys and values, because hooks cannot tell what two heads read of
one key; `with_own_keys` gives every head a copy.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
    "transformer.h", "transformer.ln_f", "ln_1", "attn.c_attn", "attn.c_attn", "attn.c_attn", "attn.c_proj", "ln_2",
    "mlp",
)  # fmt: skip
NAMES = {
    "llama": LLAMA, "mistral": LLAMA, "granite": LLAMA, "qwen2": LLAMA,
    "gemma2": GEMMA2, "olmo2": OLMO2, "phi": PHI, "gpt2": GPT2,
}  # fmt: skip


Outputs = dict[str, list[Tensor]]  # "input", and by layer "o", what goes into its projection, and "mlp"


def difference(model, ids, answers):
    """The logit differences [N] of whole forward passes."""
    pair = model(ids, use_cache=False).logits[:, -1].gather(1, answers)
    return pair[:, 0] - pair[:, 1]


class SlowEdges:
    """Effects of single edges on the logit difference, for prompts base and source [N, T] and answers [N, 2]."""

    def __init__(self, model, base, source, answers):
        self.model, self.base, self.answers = model, base, answers
        self.names = NAMES[model.config.model_type]
        self.layers = model.get_submodule(self.names.layers)
        self.heads, self.factor = model.config.num_attention_heads, getattr(model.config, "residual_multiplier", 1.0)
        self.writes = [self.written(ids) for ids in (base, source)]
        self.metric = self.difference()

    def difference(self):
        return difference(self.model, self.base, self.answers)

    def module(self, layer, name):
        return self.layers[layer].get_submodule(name) if name else nn.Identity()

    @contextmanager
    def starting_from(self, embedded):
        """Inside the block every run begins with these embeddings [N, T, d]."""

        def instead(_, arguments, keywords):
            if "hidden_states" in keywords:
                return arguments, keywords | {"hidden_states": embedded}
            return (embedded, *arguments[1:]), keywords

        with self.layers[0].register_forward_pre_hook(instead, with_kwargs=True):
            self.metric = self.difference()
            yield

    def effect(self, sender, reader, size=1.0):
        """How far the metric [N] falls where `reader` reads `sender` this share of the way to the source run."""
        change = self.change(sender, size)
        layer, place = divmod(reader, 3 * self.heads + 1)
        with self.reading(layer, place, lambda stream: stream + change):
            return self.metric - self.difference()

    def written(self, ids):
        """What every part puts out in a run."""
        kept: Outputs = {"input": [], "o": [], "mlp": []}
        with ExitStack() as stack:
            for number in range(len(self.layers)):
                projection, mlp = (self.module(number, name) for name in (self.names.o, self.names.mlp))
                stack.enter_context(projection.register_forward_pre_hook(lambda _, args: kept["o"].append(args[0])))
                stack.enter_context(mlp.register_forward_hook(lambda _, __, out: kept["mlp"].append(out)))
            stack.enter_context(_kept(self.layers[0], kept["input"]))
            self.model(ids, use_cache=False)
        return kept

    def attention(self, layer, z):
        """What the heads of a layer add to the stream."""
        return self.factor * self.module(layer, self.names.after)(self.module(layer, self.names.o)(z))

    def change(self, sender, size):
        """By how much a sender changes the stream [N, T, d], this share of the way to the source run."""
        base, source = self.writes
        if sender == 0:
            return size * (source["input"][0] - base["input"][0])
        layer, place = divmod(sender - 1, self.heads + 1)
        if place == self.heads:
            return size * self.factor * (source["mlp"][layer] - base["mlp"][layer])
        z, own = base["o"][layer].clone(), self.columns(base["o"][layer], place)
        z[..., own] = torch.lerp(z[..., own], source["o"][layer][..., own], size)
        return self.attention(layer, z) - self.attention(layer, base["o"][layer])

    def columns(self, out, head, part=0, fused=False):
        """The columns of a head; fused: queries, keys and values stand behind each other."""
        width = out.shape[-1] // (3 if fused else 1) // self.heads
        start = (part * self.heads * fused + head) * width
        return slice(start, start + width)

    def reading(self, layer, place, read):
        """Inside it a reader of a layer (or the logits, behind the last) reads this in place of the stream."""
        stack, kept, names = ExitStack(), list[Tensor](), self.names
        if layer == len(self.layers) or (place == 3 * self.heads and not names.shared_norm):
            last = layer == len(self.layers)
            module = self.model.get_submodule(names.end) if last else self.module(layer, names.between)
            stack.enter_context(module.register_forward_pre_hook(lambda _, args: (read(args[0]), *args[1:])))
            return stack
        norm = self.module(layer, names.before)
        stack.enter_context(_kept(self.layers[layer], kept))
        if place == 3 * self.heads:
            between = self.module(layer, names.between)
            stack.enter_context(between.register_forward_pre_hook(lambda _, args: (norm(read(kept[-1])),)))
            return stack
        part, head = divmod(place, self.heads)
        path = (names.q, names.k, names.v)[part]

        def instead(module, _, out):
            stream = norm(read(kept[-1]))
            if path.endswith("_norm"):  # a norm of all heads' queries together
                stream = self.module(layer, path.replace("_norm", "_proj"))(stream)
            own, changed = self.columns(out, head, part, path == GPT2.q), out.clone()
            changed[..., own] = module.forward(stream)[..., own]
            return changed

        stack.enter_context(self.module(layer, path).register_forward_hook(instead))
        return stack


def _kept(module, into):
    """A hook that keeps the stream which a layer is called with."""

    def keep(_, arguments, keywords):
        into.append(keywords["hidden_states"] if "hidden_states" in keywords else arguments[0])

    return module.register_forward_pre_hook(keep, with_kwargs=True)


def _always(stream):
    return lambda _: stream


class SlowCircuit(SlowEdges):
    """The metric of a circuit, sender by sender: a whole forward pass for each stream that a reader reads."""

    def circuit(self, kept):
        """The metric [N] where the edges that are not in `kept` [U, V] are source."""
        out: Outputs = {"o": [], "mlp": []}
        for layer in range(len(self.layers)):
            *heads, mlp = range(3 * self.heads + 1)
            column = layer * len([*heads, mlp])
            for name, places in (("o", heads), ("mlp", [mlp])):
                streams = {place: self.stream(kept[:, column + place], out) for place in places}
                out[name].append(self.written_reading(layer, streams)[name][layer])
        end = self.stream(kept[:, -1], out)
        with self.reading(len(self.layers), 0, _always(end)):
            return self.difference()

    def written_reading(self, layer, streams):
        """What is put out where readers of a layer read these streams."""
        with ExitStack() as stack:
            for place, stream in streams.items():
                stack.enter_context(self.reading(layer, place, _always(stream)))
            return self.written(self.base)

    def stream(self, kept, out):
        """What a reader reads that keeps these senders: of a layer whose MLP is not known, the heads alone."""
        base, source = self.writes
        stream = (base if kept[0] else source)["input"][0]
        for layer in range(len(out["mlp"] if self.names.shared_norm else out["o"])):
            *heads, mlp = kept[1 + layer * (self.heads + 1) :][: self.heads + 1]
            z = source["o"][layer].clone()
            for own in (self.columns(z, head) for head, chosen in enumerate(heads) if chosen):
                z[..., own] = out["o"][layer][..., own]
            stream = stream + self.attention(layer, z)
            if layer < len(out["mlp"]):
                stream = stream + self.factor * (out if mlp else source)["mlp"][layer]
        return stream
