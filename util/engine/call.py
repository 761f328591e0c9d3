"""One attention call as instruments see it, and the base class of all instruments; and the calls of a model's layers.

These are recorded, repeated with other hidden states, or skipped. Every layer is the model's own; only its arguments
change. `replay` is built on this.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel, __version__
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# the keyword of a forward pass for what earlier tokens left
CACHE = "cache" if tuple(map(int, __version__.split(".")[:2])) >= (5, 24) else "past_key_values"
Layers = int | Iterable[int]
Heads = int | Sequence[int]


def take(tensor: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Index a tensor [B, ...] along `dim` by rows [R], the same for all examples, or by rows [B, R] of each example."""
    rows = rows.to(tensor.device)
    if rows.ndim == 1:
        return tensor.index_select(dim, rows)
    shape = [1] * tensor.ndim
    shape[0], shape[dim] = rows.shape
    return tensor.take_along_dim(rows.reshape(shape), dim)


def writable(out: Tensor) -> Tensor:
    """The outputs [B, T, H, dv] themselves, or a copy where a backward pass of sdpa needs them unchanged."""
    return out.clone() if out.requires_grad else out


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor [...] in float32, or as it is in float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def in_double(tensor: Tensor) -> Tensor:
    """The tensor [...] in float64. It goes to the CPU if its device, Apple's MPS, has no float64."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def check_range(what: str, index: Tensor, size: int) -> None:
    """Raises ValueError, which names `what`, for an index that is not below `size`."""
    if index.numel() and int(index.max()) >= size:
        raise ValueError(f"{what}: index {int(index.max())} is out of range for size {size}")


class Instrument:
    """Something that captures or edits a model's attention inside a `with instrument(...)` block.

    layers: the layers that it acts on, None for all. Arguments may be indices: of heads, rows of the batch, queries and
    keys, see `index`.
    """

    layers: frozenset[int] | None = None
    _indices: tuple[tuple[str, Tensor, str, bool], ...] = ()  # name, values, what they count, one row per example

    def __init__(self, layers: Layers | None = None) -> None:
        if layers is not None:
            self.layers = frozenset([layers] if isinstance(layers, int) else layers)

    def index(
        self, name: str, values: Tensor | Heads | None, axis: str = "", dims: int = 1, by_example: bool = True
    ) -> Any:
        """The values as a tensor on the CPU, [N, ...] of `dims` dimensions or, by example, [B, N, ...]; None for None.

        A number stands for a list of one. They are checked against `heads` of the model, or `batch`, `queries` or
        `keys` of the first call. Raises ValueError for another number of dimensions, for values that are not integers,
        and for negative ones.
        """
        if values is None:
            return None
        what = f"{type(self).__name__} {name}"
        index = torch.as_tensor([values] if isinstance(values, int) else values).cpu()
        if index.ndim not in (dims, dims + by_example) or index.dtype.is_floating_point or index.dtype == torch.bool:
            raise ValueError(f"{what}: expected integers with {dims} dimensions, got {tuple(index.shape)}")
        if index.numel() and int(index.min()) < 0:
            raise ValueError(f"{what}: negative index {int(index.min())}; count positions from 0")
        index = index.long()
        self._indices = (*self._indices, (what, index, axis, index.ndim > dims))
        return index

    def attach(self, support: "Support") -> None:
        """Check the arguments against the model, before any forward pass. Raises ValueError."""
        unknown = sorted((self.layers or frozenset()) - set(support.layers))
        if unknown:
            raise ValueError(
                f"{type(self).__name__}: layers {unknown} have no attention; the model's are {support.layers}"
            )
        for what, index, axis, _ in self._indices:
            if axis == "heads":
                check_range(what, index, support.heads)

    def check_call(self, call: "Call") -> None:
        """Check indices against the shapes of one call. Raises ValueError."""
        for what, index, axis, by_example in self._indices:
            if axis in ("batch", "queries", "keys"):
                check_range(what, index, getattr(call, axis))
            if by_example and len(index) != self.examples_in(call):
                raise ValueError(f"{what}: given for {len(index)} examples, the batch has {self.examples_in(call)}")

    def examples_in(self, call: "Call") -> int:
        """The number of examples of a call that the instrument acts on."""
        return call.batch

    def visit(self, call: "Call", out: Tensor) -> Tensor:
        """Take the head outputs [B, T, H, dv] of one call and return them, edited or not."""
        return out


# One eager call computes at most this many weights (attention with soft caps or sinks has no fast kernel).
EAGER_CHUNK = 2**26

# Scores are read from weights, see `Call.joint_scores`.
LEAST_WEIGHT = torch.finfo(torch.float32).tiny  # smaller weights have lost digits: most classes take a float32 softmax
LEAST_LEFT = 2**-10  # what keys leave to a sink is 1 minus a sum: a smaller share has lost digits
LOWERED = 16  # nats at a time, until a sink is seen
PASSES = 64  # at most: scores up to 5000 nats below the highest of their row are found
CLOSED = -1e4  # the mask of a closed cell is lower; biases such as ALiBi's are not


NO_LIMIT = sys.maxsize  # tokens


class UnsupportedModel(ValueError):
    """This model cannot be instrumented, or has too short a context; the message says why and what works."""


@dataclass(frozen=True, eq=False)
class Support:
    """What the handshake learned about a prepared model.

    layers: the model's own numbers of the layers that have attention; heads: query heads per layer;
    switches: the numbers of tokens beyond which attention is computed in another way (windows, chunks, selected keys,
    rotations), see `handshake.switches`; tried: the number of tokens up to which the handshake has checked the model;
    scaled_outputs: whether the class scales outputs by a sink after the values are summed, as Granite SWA does;
    branches: whether several continuations of one prompt may share one row (explicit position ids with a knockout are
    exact); implementation: the name of the attention in the model's config; another name means that somebody switched
    it; modules: the attention modules and their layers; projections: by layer, the linear module that takes the outputs
    of all heads side by side, None where the class does something in between (a gate, a norm); facts: what
    `attention.once` has found out later.
    """

    layers: tuple[int, ...]
    heads: int
    switches: tuple[int, ...]
    tried: int
    branches: bool
    implementation: str
    modules: dict[nn.Module, int] = field(repr=False)
    scaled_outputs: bool = False
    projections: dict[int, nn.Module | None] = field(repr=False, default_factory=dict)
    facts: dict[Any, Any] = field(repr=False, default_factory=dict)

    @property
    def switch(self) -> int:
        """The number of tokens up to which all attention is computed in one way, NO_LIMIT if it always is."""
        return min(self.switches, default=NO_LIMIT)


@cache
def _eager_function(module_class: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function in the file that defines an attention class, or one of its base classes."""
    for cls in module_class.__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedModel(
        f"{module_class.__name__}: its module defines no eager_attention_forward to take weights from"
    )


@dataclass(frozen=True)
class Call:
    """One attention call: query [B, H, T, d], key [B, Hkv, S, d], value [B, Hkv, S, dv], and the model's mask.

    options: the other arguments of the call; knockouts and splice: the `instruments.Knockout` and `Splice` that edit
    its attention; scaled: whether the class scales outputs by a sink afterwards.
    """

    module: nn.Module
    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    knockouts: tuple[Any, ...] = ()
    splice: Any = None
    scaled: bool = False

    @property
    def batch(self) -> int:
        """The number of rows in the batch."""
        return self.query.shape[0]

    @property
    def queries(self) -> int:
        """The number of query positions."""
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        """The number of key positions."""
        return self.key.shape[2]

    def plain(self) -> Tensor:
        """Outputs of all heads [B, T, H, dv] without edits, by the fast kernel where the class allows it."""
        if self.options.get("softcap") is None and self.options.get("s_aux") is None:
            return sdpa_attention_forward(self.module, self.query, self.key, self.value, self.mask, **self.options)[0]
        chunks = self.chunks(torch.arange(self.queries))
        return torch.cat([self._eager(rows, self._additive(rows))[0] for rows in chunks], dim=1)

    def chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Query rows [R] or [B, R], split into chunks of at most EAGER_CHUNK weights each (but at least one row)."""
        donors = len(self.splice.donors) if self.splice else 0
        weights_per_row = self.batch * self.query.shape[1] * self.keys * (1 + donors)
        return rows.split(max(1, EAGER_CHUNK // weights_per_row), dim=-1)

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, R, H, dv] and weights [B, H, R, S] of the query rows [R] or [B, R], all edits applied."""
        unedited = self._additive(rows)
        additive = unedited
        for knockout in self.knockouts:
            additive = knockout.apply(self, rows, unedited, additive)
        if self.splice is None:
            return self._eager(rows, additive)
        # donors' keys and values follow those of the example, and the mask opens only one of them for each cell
        keys, values, additive = self.splice.apply(self, rows, additive)
        out, weights = replace(self, key=keys, value=values)._eager(rows, additive)
        return out, weights.unflatten(-1, (-1, self.keys)).sum(-2)

    def weights(self, rows: Tensor) -> Tensor:
        """The weights [B, H, R, S] of the query rows [R] or [B, R], all edits applied. Times the values they are z."""
        if not self.scaled:
            # values of width 0 save the computation of outputs
            return self._with_values(lambda values: values[..., :0]).rows(rows)[1]
        # of values that are all 1, a head reads the factor that its sink leaves of them
        factor, weights = self._with_values(lambda values: torch.ones_like(values[..., :1])).rows(rows)
        return weights * factor.transpose(1, 2)

    def _with_values(self, change: Callable[[Tensor], Tensor]) -> "Call":
        splice = self.splice and self.splice.with_values(self.layer, change)
        return replace(self, value=change(self.value), splice=splice)

    def joint_scores(self, others: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [B, H, R, 2 S] of query rows [R] at the own keys, then at others in the same places; and of sinks.

        others: [B, Hkv, S, d]. The sinks' scores are [B, H, R, 1]. No edit is applied. The scores are those of one
        softmax over all these keys, as the class computes it with its soft cap, mask and sink: float64, up to a
        constant of each row. Closed cells have the score -inf, and so have sinks where the class has none.

        Scores are logarithms of weights. A weight that is too small for float32 does not tell its score. Its cell is
        raised by the mask, and the softmax is taken again, until the weight is seen.
        """
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        mask = self._additive(rows).to(dtype).repeat(1, 1, 1, 2)
        both = replace(
            self,
            query=take(self.query, rows, dim=2).to(dtype),
            key=torch.cat([self.key, others], dim=2).to(dtype),
            value=self.value.repeat(1, 1, 2, 1).to(dtype),
            mask=mask,
            knockouts=(),
            splice=None,
        )
        weights = both._raised(None)
        closed = (in_double(mask) < CLOSED) & (weights == 0)
        scores = weights.clamp(min=LEAST_WEIGHT).log()
        highest = weights.masked_fill(closed, -1).argmax(-1, keepdim=True)
        unseen = (weights < LEAST_WEIGHT) & ~closed
        for _ in range(PASSES):
            if not unseen.any():
                break
            again = both._raised(-scores)
            logs = again.clamp(min=LEAST_WEIGHT).log()
            scores = torch.where(unseen, scores + logs - logs.gather(-1, highest), scores)
            unseen &= again < LEAST_WEIGHT
        scores = scores.masked_fill(closed, -torch.inf)
        return scores, both._sink_score(scores, weights)

    def _raised(self, by: Tensor | None) -> Tensor:
        """Weights [B, H, T, S] of all rows in float64, with the scores raised by so much [B, H, T, S or 1]."""
        assert self.mask is not None
        raised = self if by is None else replace(self, mask=self.mask + by.to(self.mask))
        return in_double(raised.weights(torch.arange(self.queries)))

    def _sink_score(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The score of each row's sink [B, H, T, 1], on the scale of the scores of its keys [B, H, T, S].

        It follows from what the keys' weights [B, H, T, S] leave of 1. Where they leave next to nothing, all of their
        scores are lowered, and the softmax is taken again.
        """
        taken = weights.sum(-1, keepdim=True)
        if not self.scaled and self.options.get("s_aux") is None:
            return torch.full_like(taken, -torch.inf)
        lowered = torch.zeros_like(taken)
        for _ in range(PASSES):
            unseen = 1 - taken < LEAST_LEFT
            if not unseen.any():
                break
            lowered = lowered + LOWERED * unseen
            taken = self._raised(-lowered).sum(-1, keepdim=True)
        odds = (1 - taken).clamp(min=0).log() - taken.clamp(min=LEAST_WEIGHT).log()
        return scores.logsumexp(-1, keepdim=True) + odds - lowered

    def _eager(self, rows: Tensor, additive: Tensor) -> tuple[Tensor, Tensor]:
        module_class: Any = type(self.module)
        query = take(self.query, rows, dim=2)
        return _eager_function(module_class)(self.module, query, self.key, self.value, additive, **self.options)

    def _additive(self, rows: Tensor) -> Tensor:
        """The model's mask for these rows as an additive float mask [B or 1, H or 1, R, S]."""
        lowest = torch.finfo(self.query.dtype).min
        device = self.query.device
        if self.mask is not None:
            mask = take(self.mask[..., : self.keys].expand(self.batch, -1, -1, -1), rows, dim=2)
            if mask.dtype != torch.bool:
                return mask
        elif self.queries == 1 or not getattr(self.module, "is_causal", True):
            # a single query without a mask (decoding on a cache) sees every key, and so does a bidirectional class
            mask = torch.ones(1, 1, rows.shape[-1], self.keys, dtype=torch.bool, device=device)
        else:
            positions = rows.to(device).reshape(-1, 1, rows.shape[-1], 1)
            mask = torch.arange(self.keys, device=device) <= positions
        return torch.zeros(mask.shape, dtype=self.query.dtype, device=device).masked_fill(~mask, lowest)


# ------------------------------------------------------------------------------------------------ calls of layers

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
            new if before is None else torch.cat([repeated(before, len(new)), new], dim=2)
            for before, new in zip(self.before, self.own, strict=True)
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
    of those that have a row for every prompt; out: all that the layer returned; prefix: keys and values [N, H, P, d] of
    the tokens before these, None where there are none.
    """

    layer: nn.Module
    hidden: Tensor
    given: tuple[tuple[Any, ...], dict[str, Any]]
    scaled: Collection[Path] = ()
    out: Any = None
    prefix: tuple[Tensor | None, Tensor | None] = (None, None)

    def again(self, hidden: Tensor, cache: Cache | None = None) -> Tensor:
        """Call the layer again with hidden states [R, S, d], R a multiple of N. Returns its hidden states [R, S, d].

        cache: takes the place of the call's cache, by default one that holds the prefix.
        """

        def fitted(path: Path, value: Any) -> Any:
            if isinstance(value, Cache):
                return Before(*self.prefix) if cache is None else cache
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
                model.base_model(part, **{CACHE: cache}, use_cache=cached)
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
