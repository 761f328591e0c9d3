"""Record the calls that a model makes to its layers, repeat them with other hidden states, or skip them.

`replay` is built on this. Every layer is the model's own; only its arguments change.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import Cache, DynamicCache, PreTrainedModel

from util.engine.call import at_least_float32

Path = tuple[Any, ...]  # the keys that lead to an entry of nested dicts, lists and tuples


class Stop(Exception):
    """Raised to leave a layer before its end."""


class Before(DynamicCache):
    """The cache of a replayed call, which holds the keys and values of the tokens before it.

    keys, values: [N, H, P, d] of the base run, or None; they are repeated for the rows of the call. stop: leave the
    layer as soon as it has computed its own keys and values.
    """

    def __init__(self, keys: Tensor | None, values: Tensor | None, stop: bool = False) -> None:
        super().__init__()
        self.before, self.stop = (keys, values), stop
        self.own: tuple[Tensor, Tensor]  # keys and values of the call's tokens

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Keys and values [R, H, P + T, d]: the base run's, then the new ones [R, H, T, d]. Raises Stop if `stop`."""
        self.own = key_states, value_states
        if self.stop:
            raise Stop
        return self.together()

    def together(self) -> tuple[Tensor, ...]:
        """Keys and values [R, H, P + T, d] of all tokens."""
        return tuple(
            own if before is None else torch.cat([repeated(before, len(own)), own], dim=2)
            for before, own in zip(self.before, self.own, strict=True)
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens before the call."""
        return 0 if self.before[0] is None else self.before[0].shape[2]


def repeated(tensor: Tensor, rows: int) -> Tensor:
    """Repeat a tensor [N, ...] cyclically to `rows` rows: [rows, ...]."""
    if len(tensor) == 1:
        return tensor.expand(rows, *tensor.shape[1:])
    return tensor.repeat(rows // len(tensor), *[1] * (tensor.ndim - 1))


def mapped(function: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """Nested dicts, lists and tuples with every entry replaced by function(keys that lead to it, entry)."""
    if isinstance(tree, dict):
        return {key: mapped(function, branch, (*path, key)) for key, branch in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(function, branch, (*path, i)) for i, branch in enumerate(tree))
    return function(path, tree)


@dataclass
class LayerCall:
    """How the base run called a layer.

    hidden: the hidden states [N, S, d] that went in; given: all positional and all keyword arguments; scaled: the paths
    of those that have a row for every prompt; out: all that the layer returned.
    """

    layer: nn.Module
    hidden: Tensor
    given: tuple[tuple[Any, ...], dict[str, Any]]
    scaled: Collection[Path] = ()
    out: Any = None

    def again(self, hidden: Tensor, cache: Cache | None = None) -> Tensor:
        """Call the layer again with hidden states [R, S, d], R a multiple of N. Returns its hidden states [R, S, d].

        cache: takes the place of the call's cache.
        """

        def fitted(path: Path, value: Any) -> Any:
            if isinstance(value, Cache):
                return cache
            if isinstance(value, Tensor) and path in self.scaled:
                return repeated(value, value.shape[0] * len(hidden) // len(self.hidden))
            return value

        arguments, keywords = mapped(fitted, self.given)
        if "hidden_states" in keywords:
            keywords["hidden_states"] = hidden
        else:
            arguments = hidden, *arguments[1:]
        return first_of(self.layer(*arguments, **keywords))


def first_of(out: Any) -> Tensor:
    """The hidden states [N, S, d] in what a layer returned."""
    return out[0] if isinstance(out, tuple) else out


def in_place_of(out: Any, hidden: Tensor) -> Any:
    """What a layer returned, `out`, with other hidden states [N, S, d] in it."""
    return (hidden, *out[1:]) if isinstance(out, tuple) else hidden


@contextmanager
def recorded(layers: Iterable[nn.Module]) -> Iterator[list[LayerCall]]:
    """A list of all calls of the layers, or of other modules of hidden states, inside the block."""
    calls: list[LayerCall] = []

    def before(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        hidden = keywords["hidden_states"] if "hidden_states" in keywords else arguments[0]
        calls.append(LayerCall(layer, hidden, (arguments, dict(keywords))))

    def after(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
        calls[-1].out = out

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.register_forward_pre_hook(before, with_kwargs=True))
            stack.enter_context(layer.register_forward_hook(after))
        yield calls


def scaled_arguments(
    model: PreTrainedModel, layers: nn.ModuleList, ids: Tensor, cached: bool
) -> tuple[Collection[Path], ...]:
    """Of each layer the paths of those arguments that have twice as many rows for twice as many prompts, ids [2, T]."""
    sizes: list[list[dict[Path, int]]] = []
    for rows in (ids[:1], ids):
        cache = DynamicCache() if cached else None
        with torch.inference_mode(), recorded(layers) as calls:
            for part in (rows[:, :-3], rows[:, -3:-1], rows[:, -1:])[: 3 if cached else 1]:
                model.base_model(part, past_key_values=cache, use_cache=cached)
        sizes.append([*map(_rows, calls)])
    scaled: list[set[Path]] = [set() for _ in layers]
    for number, (one, two) in enumerate(zip(*sizes, strict=True)):
        doubled = {path for path, size in one.items() if two[path] == 2 * size}
        scaled[number % len(layers)] |= doubled - {(0, 0), (1, "hidden_states")}
    return tuple(scaled)


def _rows(call: LayerCall) -> dict[Path, int]:
    """The number of rows of every tensor that a layer was called with."""
    rows: dict[Path, int] = {}

    def note(path: Path, value: Any) -> None:
        if isinstance(value, Tensor) and value.ndim:
            rows[path] = len(value)

    mapped(note, call.given)
    return rows


@contextmanager
def bypassed(layers: nn.ModuleList, out: Any) -> Iterator[None]:
    """Make layers return `out` without computing anything, inside the block."""
    replaced = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = lambda *_, **__: out
    try:
        yield
    finally:
        for layer, forward in zip(layers, replaced, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


class FewRows(nn.Module):
    """The unembedding of some tokens only, in float32 or better, because 16 bits lose small differences of logits."""

    def __init__(self, head: nn.Linear, tokens: Tensor) -> None:
        super().__init__()
        self.weight = at_least_float32(head.weight.detach()[tokens])
        self.bias = None if head.bias is None else at_least_float32(head.bias.detach()[tokens])

    def forward(self, x: Tensor) -> Tensor:
        """The logits [N, S, A] of the A chosen tokens, for x [N, S, d]."""
        # tied to the embeddings, it may be on another device than the last layer, and accelerate's hook is not on it
        return linear(x.to(self.weight), self.weight, self.bias)
