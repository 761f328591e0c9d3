"""The engine: one attention function, registered with transformers, and the instruments that attach to it.

`handshake.prepare(model)` points a model at this function and checks that it really is the model's attention. Classes
that never ask transformers for an attention function come here by way of `util.adapters`.
Inside `with instrument(model, ...)` every attention layer of that model offers its call to the instruments:

    with instrument(model, rows := CaptureRows(torch.tensor([5, 9]))), torch.no_grad():
        model(input_ids)
    rows.weights[3]                      # layer 3, [batch, heads, 2, keys]

No formula of attention is written here. The fast path is transformers' own sdpa function; whatever needs weights (a
captured row, a knocked-out cell) is computed by the *model class's own* eager function, called for the wanted query
rows only, so that soft-capping, sinks, grouped keys and fp32 softmax are exact by construction and no [T, T] matrix is
kept.

Layers are the model's own 0-based numbers. Rows and positions index the queries of the present forward pass (with a
key-value cache: the new tokens), keys index everything that is attended to. Hand in a bare `DynamicCache()`: a
cache made from a config drops keys outside sliding windows, after which key indices mean other tokens.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from util.instruments import Instrument, Knockout, Splice, take, writable

IMPLEMENTATION = "icl_instrumented"

# Rows of one eager call hold at most this many weights at a time (soft-capped and sink attention has no fast kernel).
EAGER_CHUNK = 2**26


class UnsupportedModel(ValueError):
    """The attention of this model class cannot be instrumented; the message says why and what works."""


@dataclass(frozen=True, eq=False)
class Support:
    """What the handshake found out about a prepared model.

    layers: the model's own numbers of the layers that have attention; heads: query heads per layer;
    window: the shortest attention window of any layer (sliding or chunked), None when all layers see everything;
    branches: several continuations of one prompt may share one row (explicit position ids plus a knockout are exact);
    implementation: what the model's config calls its attention as long as nobody switches it;
    projections: by layer, the linear module that takes the outputs of all heads side by side, None where the class does
    something in between (a gate, a norm).
    """

    layers: tuple[int, ...]
    heads: int
    window: int | None
    branches: bool
    implementation: str
    modules: dict[nn.Module, int] = field(repr=False)
    projections: dict[int, nn.Module | None] = field(repr=False, default_factory=dict)


# What the handshake writes: its findings by model, and for the length of one forward pass the modules that called.
PREPARED: "weakref.WeakKeyDictionary[nn.Module, Support]" = weakref.WeakKeyDictionary()
CALLS: ContextVar[list[nn.Module] | None] = ContextVar("calls", default=None)
_ACTIVE: ContextVar[tuple[tuple[Support, tuple["Instrument", ...]], ...]] = ContextVar("instruments", default=())


# ------------------------------------------------------------------------------------------------ one attention call


@cache
def _eager_function(module_class: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    for cls in module_class.__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedModel(
        f"{module_class.__name__}: its module defines no eager_attention_forward to take weights from"
    )


@dataclass(frozen=True)
class Call:
    """One attention call: query [B, H, T, d], key [B, Hkv, S, d], value [B, Hkv, S, dv], the model's own mask."""

    module: nn.Module
    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    knockouts: tuple["Knockout", ...] = ()
    splice: "Splice | None" = None

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        return self.key.shape[2]

    def only(self, examples: Tensor) -> "Call":
        """The same call for some examples of a splice, without knockouts."""
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[examples.to(self.mask.device)]
        there = examples.to(self.query.device)
        query, key, value = (part[there] for part in (self.query, self.key, self.value))
        splice = self.splice and self.splice.only(examples, self)
        return replace(self, query=query, key=key, value=value, mask=mask, splice=splice)

    def plain(self) -> Tensor:
        """Outputs of all heads [B, T, H, dv], by the fast kernel where the class allows one."""
        if self.options.get("softcap") is None and self.options.get("s_aux") is None:
            return sdpa_attention_forward(self.module, self.query, self.key, self.value, self.mask, **self.options)[0]
        every = torch.arange(self.queries)
        return torch.cat([self._eager(rows, self._additive(rows))[0] for rows in self.chunks(every)], dim=1)

    def chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Query rows [R] or [B, R] in parts that hold at most EAGER_CHUNK weights each."""
        keys = self.keys * (1 + (self.splice.donors.shape[1] if self.splice else 0))
        return rows.split(max(1, EAGER_CHUNK // (self.batch * self.query.shape[1] * keys)), dim=-1)

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, R, H, dv] and weights [B, H, R, S] of the query rows [R] or [B, R], all edits applied."""
        own = additive = self._additive(rows)
        for knockout in self.knockouts:
            additive = knockout.apply(self, rows, own, additive)
        if self.splice is None:
            return self._eager(rows, additive)
        # each donor's keys and values stand behind the own ones, and the mask opens one of them for every cell
        keys, values, additive = self.splice.apply(self, rows, additive)
        out, weights = replace(self, key=keys, value=values)._eager(rows, additive)
        return out, weights.unflatten(-1, (-1, self.keys)).sum(-2)

    def weights(self, rows: Tensor) -> Tensor:
        """The weights [B, H, R, S] of query rows alone: of values that have no width no outputs are computed."""
        return replace(self, value=self.value[..., :0]).rows(rows)[1]

    def _eager(self, rows: Tensor, additive: Tensor) -> tuple[Tensor, Tensor]:
        module_class: Any = type(self.module)
        function = _eager_function(module_class)
        query = take(self.query, rows, dim=2)
        return function(self.module, query, self.key, self.value, additive, **self.options)

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


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if (calls := CALLS.get()) is not None:
        calls.append(module)
    instruments: list[Instrument] = []
    layer = -1
    for support, attached in _ACTIVE.get():
        if module in support.modules:
            layer = support.modules[module]
            instruments += [i for i in attached if i.layers is None or layer in i.layers]
    knockouts = tuple(i for i in instruments if isinstance(i, Knockout))
    splices = [i for i in instruments if isinstance(i, Splice)]
    if len(splices) > 1:
        raise ValueError("two splices at once: put their donors and tables into one")
    call = Call(module, layer, query, key, value, attention_mask, options, knockouts, *splices)
    for instrument_ in instruments:
        instrument_.check_call(call)
    out = call.plain()
    if knockouts or splices:
        out = _recompute_cut_rows(call, out)
    for instrument_ in instruments:
        out = instrument_.visit(call, out)
    return out, None


def _recompute_cut_rows(call: Call, out: Tensor) -> Tensor:
    parts = [k.cells_for(call.batch)[:, :2] for k in call.knockouts]
    parts += [call.splice.rows_of(call)] if call.splice else []
    cut = torch.cat(parts).unique(dim=0) if call.knockouts else parts[0]  # those of a splice are in order already
    if not len(cut):
        return out
    example, row = cut.unbind(1)
    # `cut` is sorted, so the rows of each example are one run; a short run leaves places that are never read
    first = torch.searchsorted(example.contiguous(), torch.arange(call.batch))
    place = torch.arange(len(cut)) - first[example]
    rows = torch.zeros(call.batch, int(place.max()) + 1, dtype=torch.long)
    rows[example, place] = row
    which, chosen = torch.arange(call.batch), example.unique()
    if call.splice and not call.knockouts and len(chosen) < call.batch:  # donors often have no cut rows
        which[chosen] = torch.arange(len(chosen))
        call, rows = call.only(chosen), rows[chosen]
    recomputed = torch.cat([call.rows(part)[0] for part in call.chunks(rows)], dim=1)
    number, example, row, place = (t.to(out.device) for t in (which[example], example, row, place))
    out = writable(out)
    out[example, row] = recomputed[number, place]
    return out


# ------------------------------------------------------------------------------------------------ attaching


@contextmanager
def instrument(model: nn.Module, *instruments: Instrument) -> Iterator[None]:
    """Attach instruments to a prepared model; they act in the order given, those of outer blocks first.

    Only forward passes of `model` made by this thread inside the block are touched. Raises ValueError for a model that
    is not prepared, is in training mode or lost its attention implementation, and for indices out of range.
    """
    found = support(model)
    if model.training:
        raise ValueError("instrument: the model is in training mode; call model.eval() first")
    for attached in instruments:
        attached.attach(found)
    token = _ACTIVE.set((*_ACTIVE.get(), (found, instruments)))
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def support(model: nn.Module) -> Support:
    """The handshake's findings. Raises ValueError when `prepare(model)` has not run, or was undone."""
    found = PREPARED.get(model)
    if found is None or model.config._attn_implementation != found.implementation:  # type: ignore[union-attr]
        raise ValueError(
            f"{type(model).__name__} is not prepared for instruments; call prepare(model) once after loading"
        )
    return found


def input_device(model: PreTrainedModel) -> torch.device:
    """Where the model wants its token ids; with offloaded weights that is not where its parameters are."""
    device = getattr(getattr(model.get_input_embeddings(), "_hf_hook", None), "execution_device", None)
    return model.device if device is None else torch.device(device)


def head_writes(projection: nn.Module, z: Tensor) -> Tensor:
    """What each head alone adds to the residual stream: W_O^h z_h [..., H, d] of head outputs (or values) [..., H, dv].

    projection: one of `Support.projections`. It is called, not read, so that 4-bit and offloaded weights work too.
    """
    alone = torch.diag_embed(z.movedim(-2, -1), dim1=-3, dim2=-2)
    nothing = z.new_zeros(1, z.shape[-2] * z.shape[-1])
    return projection(alone.flatten(-2)) - projection(nothing)


AttentionInterface.register(IMPLEMENTATION, _attention)
# Without a mask function of the same name transformers builds no mask at all: padding and windows would be lost.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
