"""One attention call as instruments see it, and what every instrument is."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def take(tensor: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Index `tensor` along `dim` by rows [R], or per example by rows [B, R] (dimension 0 is the batch)."""
    rows = rows.to(tensor.device)
    if rows.ndim == 1:
        return tensor.index_select(dim, rows)
    shape = [1] * tensor.ndim
    shape[0], shape[dim] = rows.shape
    index = rows.reshape(shape)
    return tensor.gather(
        dim, index.expand([index.shape[i] if i in (0, dim) else n for i, n in enumerate(tensor.shape)])
    )


def writable(out: Tensor) -> Tensor:
    """The outputs [B, T, H, dv] themselves, or a copy where a backward pass needs them as they were."""
    return out.clone() if out.requires_grad else out  # the backward pass of sdpa needs its output as it was


class Instrument:
    """Something attached to the attention of a model for the length of a `with instrument(...)` block."""

    layers: frozenset[int] | None = None

    def attach(self, support: "Support") -> None:
        """Check against the model, before any forward pass. Raises ValueError."""
        unknown = sorted((self.layers or frozenset()) - set(support.layers))
        if unknown:
            raise ValueError(
                f"{type(self).__name__}: layers {unknown} have no attention; the model's are {support.layers}"
            )

    def check_call(self, call: "Call") -> None:
        """Check indices against the shapes of one call. Raises ValueError."""

    def visit(self, call: "Call", out: Tensor) -> Tensor:
        """See the head outputs [B, T, H, dv] of one call and return them, edited or not."""
        return out


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


@cache
def _eager_function(module_class: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    for cls in module_class.__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedModel(
        f"{module_class.__name__}: its module defines no eager_attention_forward to take weights from"
    )


class MaskEdit(Protocol):
    """What a call knows of `instruments.Knockout`: a change of the mask of some rows."""

    def apply(self, call: "Call", rows: Tensor, own: Tensor, additive: Tensor) -> Tensor:
        """The additive mask [B, H, R, S] of these rows [R] or [B, R], with the edit; own: the mask before any edit."""

    def cells_for(self, batch: int) -> Tensor:
        """The cells that are forbidden, [C, 3]: row of the batch, query, key."""


class KeyEdit(Protocol):
    """What a call knows of `instruments.Splice`: keys and values of donors in the place of some of its own."""

    donors: Tensor

    def apply(self, call: "Call", rows: Tensor, additive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values, donors' behind the own ones, and the mask [B, H, R, D S] that opens one for each cell."""

    def only(self, examples: Tensor, call: "Call") -> "KeyEdit":
        """The same edit for some rows [E] of the batch."""

    def rows_of(self, call: "Call") -> Tensor:
        """The rows of the batch and queries that the edit changes, [C, 2]."""


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
    knockouts: tuple["MaskEdit", ...] = ()
    splice: "KeyEdit | None" = None

    @property
    def batch(self) -> int:
        """How many rows the batch has."""
        return self.query.shape[0]

    @property
    def queries(self) -> int:
        """How many query positions there are."""
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        """How many key positions there are."""
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
