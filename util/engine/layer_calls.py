"""The calls that a model makes of its layers: recorded, made again for other rows, or left out.

What `replay` is built on. Every layer is the model's own; only what it is called with changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import Cache, DynamicCache


class Stop(Exception):
    """A layer was left before its end."""


class Before(DynamicCache):
    """What stands for the cache in a replayed call: the keys and values of the tokens before, for all rows.

    keys, values: [N, H, P, d], of which the rows of the call are repetitions, or None. stop: do not go on with the
    layer once its own keys and values are here.
    """

    def __init__(self, keys: Tensor | None, values: Tensor | None, stop: bool = False) -> None:
        super().__init__()
        self.before, self.stop = (keys, values), stop
        self.own: tuple[Tensor, Tensor]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """The keys and values [N, H, T, d] of the base run before the new ones; raises Stop where asked to."""
        self.own = key_states, value_states
        if self.stop:
            raise Stop
        return self.together()

    def together(self) -> tuple[Tensor, ...]:
        """Keys and values of all tokens."""
        return tuple(
            own if before is None else torch.cat([repeated(before, len(own)), own], dim=2)
            for before, own in zip(self.before, self.own, strict=True)
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens the cache holds."""
        return 0 if self.before[0] is None else self.before[0].shape[2]


def repeated(tensor: Tensor, rows: int) -> Tensor:
    """Repeat the rows of a tensor [N, ...] cyclically up to `rows`: [rows, ...]."""
    if len(tensor) == 1:
        return tensor.expand(rows, *tensor.shape[1:])
    return tensor.repeat(rows // len(tensor), *[1] * (tensor.ndim - 1))


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields every entry of nested dicts, lists and tuples, with the keys that lead to it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple | list) else None
    if items is None:
        yield path, tree
    else:
        for key, branch in items:
            yield from leaves(branch, (*path, key))


def _mapped(function: Callable[[tuple[Any, ...], Any], Any], tree: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, branch, (*path, key)) for key, branch in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(function, branch, (*path, i)) for i, branch in enumerate(tree))
    return function(path, tree)


@dataclass
class Call:
    """How the base run called a layer: the hidden states [N, S, d] that went in and came out, and what came with it."""

    hidden: Tensor
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    out: Any = None

    @property
    def rest(self) -> tuple[Any, Any]:
        """What the layer was given besides hidden states: positional and keyword arguments."""
        return self.arguments, self.keywords

    def again(self, layer: nn.Module, hidden: Tensor, cache: Cache | None, scaled: set[tuple[Any, ...]]) -> Tensor:
        """The same call for other hidden states [R, S, d], R a multiple of N."""

        def fitted(path: tuple[Any, ...], value: Any) -> Any:
            if isinstance(value, Cache):
                return cache
            if isinstance(value, Tensor) and path in scaled:
                return repeated(value, value.shape[0] * len(hidden) // len(self.hidden))
            return value

        arguments, keywords = _mapped(fitted, self.rest)
        if "hidden_states" in keywords:
            out = layer(*arguments, **keywords | {"hidden_states": hidden})
        else:
            out = layer(hidden, *arguments[1:], **keywords)
        return first_of(out)


def first_of(out: Any) -> Tensor:
    """The hidden states [N, S, d] among what a layer returned."""
    return out[0] if isinstance(out, tuple) else out


def in_place_of(out: Any, hidden: Tensor) -> Any:
    """Hidden states [N, S, d] in the form in which a layer returned `out`."""
    return (hidden, *out[1:]) if isinstance(out, tuple) else hidden


@contextmanager
def recorded(layers: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """The calls of the layers, or of other modules of hidden states, in the forward passes inside."""
    calls: list[Call] = []

    def before(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        hidden = keywords["hidden_states"] if "hidden_states" in keywords else arguments[0]
        calls.append(Call(hidden, arguments, dict(keywords)))

    def after(_: nn.Module, arguments: tuple[Any, ...], out: Any) -> None:
        calls[-1].out = out

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    hooks += [layer.register_forward_hook(after) for layer in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def called_again(modules: Sequence[nn.Module], calls: Sequence[Call], hidden: Sequence[Tensor]) -> None:
    """Call modules as they were called, for other hidden states [R, S, d]; what they return is dropped."""
    for module, call, states in zip(modules, calls, hidden, strict=True):
        call.again(module, states.to(call.hidden), None, set())


@contextmanager
def bypassed(layers: nn.ModuleList, out: Any) -> Iterator[None]:
    """Layers that return `out` without doing anything."""
    old = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = lambda *_, **__: out
    try:
        yield
    finally:
        for layer, forward in zip(layers, old, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


class FewRows(nn.Module):
    """An unembedding of some tokens, in float32 or better: differences of logits are lost in 16 bits."""

    def __init__(self, head: nn.Linear, tokens: Tensor) -> None:
        super().__init__()
        dtype = torch.promote_types(head.weight.dtype, torch.float32)
        self.weight = nn.Parameter(head.weight[tokens].to(dtype), requires_grad=False)
        self.bias = None if head.bias is None else nn.Parameter(head.bias[tokens].to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The projection of x [N, S, d], computed for the rows that are wanted."""
        return linear(x.to(self.weight.dtype), self.weight, self.bias)
