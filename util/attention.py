"""The engine: one attention function, registered with transformers, and the instruments that attach to it.

`prepare(model)` points a model at this function and checks, on a short prompt, that it really is the model's attention.
Inside `with instrument(model, ...)` every attention layer of that model offers its call to the instruments:

    with instrument(model, rows := CaptureRows(torch.tensor([5, 9]))), torch.no_grad():
        model(input_ids)
    rows.weights[3]                      # layer 3, [batch, heads, 2, keys]

No formula of attention is written here. The fast path is transformers' own sdpa function; whatever needs weights (a
captured row, a knocked-out cell) is computed by the *model class's own* eager function, called for the wanted query rows
only, so that soft-capping, sinks, grouped keys and fp32 softmax are exact by construction and no [T, T] matrix is kept.

Layers are the model's own 0-based numbers. Rows and positions index the queries of the present forward pass (with a
key-value cache: the new tokens), keys index everything that is attended to.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

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
    branches: several continuations of one prompt may share one row (explicit position ids plus a knockout are exact).
    """

    layers: tuple[int, ...]
    heads: int
    window: int | None
    branches: bool
    modules: dict[nn.Module, int] = field(repr=False)


_SUPPORT: "weakref.WeakKeyDictionary[nn.Module, Support]" = weakref.WeakKeyDictionary()
_ACTIVE: ContextVar[tuple[tuple[Support, tuple["Instrument", ...]], ...]] = ContextVar("instruments", default=())
_CALLS: ContextVar[list[nn.Module] | None] = ContextVar("calls", default=None)


# ------------------------------------------------------------------------------------------------ one attention call


@cache
def _eager_function(module_class: type[nn.Module]) -> Callable[..., tuple[Tensor, Tensor]]:
    for cls in module_class.__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedModel(f"{module_class.__name__}: its module defines no eager_attention_forward to take weights from")


@dataclass(frozen=True)
class _Call:
    """One attention call: query [B, H, T, d], key [B, Hkv, S, d], value [B, Hkv, S, dv], mask as the model passed it."""

    module: nn.Module
    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    knockouts: tuple["Knockout", ...] = ()

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        return self.key.shape[2]

    def plain(self) -> Tensor:
        """Outputs of all heads [B, T, H, dv], by the fast kernel where the class allows one."""
        if self.options.get("softcap") is None and self.options.get("s_aux") is None:
            return sdpa_attention_forward(self.module, self.query, self.key, self.value, self.mask, **self.options)[0]
        step = max(1, EAGER_CHUNK // (self.batch * self.query.shape[1] * self.keys))
        chunks = torch.arange(self.queries).split(step)
        return torch.cat([self._eager(rows, self._additive(rows))[0] for rows in chunks], dim=1)

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [B, R, H, dv] and weights [B, H, R, S] of the query rows [R] or [B, R], knockouts applied."""
        additive = self._additive(rows)
        for knockout in self.knockouts:
            additive = knockout.apply(self, rows, additive)
        return self._eager(rows, additive)

    def _eager(self, rows: Tensor, additive: Tensor) -> tuple[Tensor, Tensor]:
        function = _eager_function(type(self.module))
        query = _take(self.query, rows, dim=2)
        return function(self.module, query, self.key, self.value, additive, **self.options)

    def _additive(self, rows: Tensor) -> Tensor:
        """The model's mask for these rows as an additive float mask [B or 1, H or 1, R, S]."""
        lowest = torch.finfo(self.query.dtype).min
        device = self.query.device
        if self.mask is not None:
            mask = _take(self.mask[..., : self.keys].expand(self.batch, -1, -1, -1), rows, dim=2)
            if mask.dtype != torch.bool:
                return mask
        elif self.queries == 1:  # a single query without a mask (decoding on a cache) sees every key
            mask = torch.ones(1, 1, rows.shape[-1], self.keys, dtype=torch.bool, device=device)
        else:
            positions = rows.to(device).reshape(-1, 1, rows.shape[-1], 1)
            mask = torch.arange(self.keys, device=device) <= positions
        return torch.zeros(mask.shape, dtype=self.query.dtype, device=device).masked_fill(~mask, lowest)


def _take(tensor: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Index `tensor` along `dim` by rows [R], or per example by rows [B, R] (dimension 0 is the batch)."""
    rows = rows.to(tensor.device)
    if rows.ndim == 1:
        return tensor.index_select(dim, rows)
    shape = [1] * tensor.ndim
    shape[0], shape[dim] = rows.shape
    index = rows.reshape(shape)
    return tensor.gather(dim, index.expand([index.shape[i] if i in (0, dim) else n for i, n in enumerate(tensor.shape)]))


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if (calls := _CALLS.get()) is not None:
        calls.append(module)
    instruments: list[Instrument] = []
    layer = -1
    for support, attached in _ACTIVE.get():
        if module in support.modules:
            layer = support.modules[module]
            instruments += [i for i in attached if i.layers is None or layer in i.layers]
    knockouts = tuple(i for i in instruments if isinstance(i, Knockout))
    call = _Call(module, layer, query, key, value, attention_mask, options, knockouts)
    for instrument_ in instruments:
        instrument_.check_call(call)
    out = call.plain()
    if knockouts:
        out = _recompute_cut_rows(call, out)
    for instrument_ in instruments:
        out = instrument_.visit(call, out)
    return out, None


def _recompute_cut_rows(call: _Call, out: Tensor) -> Tensor:
    cut = torch.cat([k.cells_for(call.batch)[:, :2] for k in call.knockouts]).unique(dim=0)
    if not len(cut):
        return out
    example, row = cut.unbind(1)
    first = torch.searchsorted(example.contiguous(), torch.arange(call.batch))  # `cut` is sorted, so each example is one run
    place = torch.arange(len(cut)) - first[example]
    rows = torch.zeros(call.batch, int(place.max()) + 1, dtype=torch.long)
    rows[example, place] = row
    recomputed, _ = call.rows(rows)
    example, row, place = (t.to(out.device) for t in (example, row, place))
    out = out.clone()
    out[example, row] = recomputed[example, place]
    return out


# ------------------------------------------------------------------------------------------------ instruments


class Instrument:
    """Something attached to the attention of a model for the length of a `with instrument(...)` block."""

    layers: frozenset[int] | None = None

    def attach(self, support: Support) -> None:
        """Check against the model, before any forward pass. Raises ValueError."""
        unknown = sorted((self.layers or frozenset()) - set(support.layers))
        if unknown:
            raise ValueError(f"{type(self).__name__}: layers {unknown} have no attention; the model's are {support.layers}")

    def check_call(self, call: _Call) -> None:
        """Check indices against the shapes of one call. Raises ValueError."""

    def visit(self, call: _Call, out: Tensor) -> Tensor:
        """See the head outputs [B, T, H, dv] of one call and return them, edited or not."""
        return out


def _layers(layers: int | Iterable[int] | None) -> frozenset[int] | None:
    return None if layers is None else frozenset([layers] if isinstance(layers, int) else layers)


def _index(name: str, values: Tensor | Sequence[int], dims: tuple[int, ...]) -> Tensor:
    index = torch.as_tensor(values).cpu()
    if index.ndim not in dims or index.dtype.is_floating_point or index.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers with {' or '.join(map(str, dims))} dimensions, got {tuple(index.shape)}")
    if index.numel() and int(index.min()) < 0:
        raise ValueError(f"{name}: negative index {int(index.min())}; count positions from 0")
    return index.long()


def _check_index(name: str, index: Tensor, size: int, batch: int | None = None) -> None:
    if index.numel() and int(index.max()) >= size:
        raise ValueError(f"{name}: index {int(index.max())} is out of range for size {size}")
    if batch is not None and index.shape[0] != batch:
        raise ValueError(f"{name}: given for {index.shape[0]} examples, the batch has {batch}")


class CaptureRows(Instrument):
    """Attention weights of chosen query rows, all heads, knockouts included.

    rows: [R], or [B, R] for rows of each example. keys: None (all), [R, K], or [B, R, K]: the keys kept of each row.
    After the forward pass `weights[layer]` is [B, H, R, S], or [B, H, R, K]: float32 (float64 in a float64 model), on
    the layer's device, with a storage of its own.
    """

    def __init__(self, rows: Tensor, keys: Tensor | None = None, layers: int | Iterable[int] | None = None) -> None:
        self.rows = _index("CaptureRows rows", rows, (1, 2))
        self.keys = None if keys is None else _index("CaptureRows keys", keys, (2, 3))
        self.layers = _layers(layers)
        self.weights: dict[int, Tensor] = {}

    def check_call(self, call: _Call) -> None:
        _check_index("CaptureRows rows", self.rows, call.queries, call.batch if self.rows.ndim == 2 else None)
        if self.keys is not None:
            _check_index("CaptureRows keys", self.keys, call.keys, call.batch if self.keys.ndim == 3 else None)
            if self.keys.shape[-2] != self.rows.shape[-1]:
                raise ValueError(f"CaptureRows keys: {self.keys.shape[-2]} rows of keys for {self.rows.shape[-1]} rows")

    def visit(self, call: _Call, out: Tensor) -> Tensor:
        _, weights = call.rows(self.rows)
        if self.keys is not None:
            keys = self.keys.to(weights.device)
            keys = keys if keys.ndim == 3 else keys[None]
            weights = weights.gather(-1, keys[:, None].expand(*weights.shape[:3], -1))
        dtype = torch.float64 if weights.dtype == torch.float64 else torch.float32
        self.weights[call.layer] = weights.to(dtype, copy=True)
        return out


class CaptureHeads(Instrument):
    """Outputs z of every head before the output projection (and before a gate, where the class has one).

    positions: None (all), [P], or [B, P]. After the forward pass `z[layer]` is [B, P, H, dv], a copy. Patches that were
    entered before it are seen, later ones are not.
    """

    def __init__(self, positions: Tensor | None = None, layers: int | Iterable[int] | None = None) -> None:
        self.positions = None if positions is None else _index("CaptureHeads positions", positions, (1, 2))
        self.layers = _layers(layers)
        self.z: dict[int, Tensor] = {}

    def check_call(self, call: _Call) -> None:
        if self.positions is not None:
            batch = call.batch if self.positions.ndim == 2 else None
            _check_index("CaptureHeads positions", self.positions, call.queries, batch)

    def visit(self, call: _Call, out: Tensor) -> Tensor:
        self.z[call.layer] = out.clone() if self.positions is None else _take(out, self.positions, dim=1)
        return out


class PatchHeads(Instrument):
    """Replace the output z of some heads of one layer.

    value: a number, or a tensor that broadcasts to [B, P, len(heads), dv] (a donor run's z, a mean). Or value None and
    from_rows [B]: each example takes the z of that example of the same batch (a permutation, a donor in lock-step).
    positions: None (all), [P], or [B, P].
    """

    def __init__(
        self,
        layer: int,
        heads: int | Iterable[int],
        value: float | Tensor | None = None,
        positions: Tensor | None = None,
        from_rows: Tensor | None = None,
    ) -> None:
        if (value is None) == (from_rows is None):
            raise ValueError("PatchHeads: give either a value or from_rows")
        self.layers = _layers(layer)
        self.heads = _index("PatchHeads heads", [heads] if isinstance(heads, int) else list(heads), (1,))
        self.value = value
        self.positions = None if positions is None else _index("PatchHeads positions", positions, (1, 2))
        self.from_rows = None if from_rows is None else _index("PatchHeads from_rows", from_rows, (1,))

    def attach(self, support: Support) -> None:
        super().attach(support)
        _check_index("PatchHeads heads", self.heads, support.heads)

    def check_call(self, call: _Call) -> None:
        if self.positions is not None:
            batch = call.batch if self.positions.ndim == 2 else None
            _check_index("PatchHeads positions", self.positions, call.queries, batch)
        if self.from_rows is not None:
            _check_index("PatchHeads from_rows", self.from_rows, call.batch, call.batch)

    def visit(self, call: _Call, out: Tensor) -> Tensor:
        device = out.device
        positions = torch.arange(call.queries) if self.positions is None else self.positions
        positions = positions.expand(call.batch, -1).to(device)[:, :, None]
        heads = self.heads.to(device)[None, None]
        examples = torch.arange(call.batch, device=device)[:, None, None]
        if self.from_rows is not None:
            value: float | Tensor = out[self.from_rows.to(device)[:, None, None], positions, heads]
        elif isinstance(self.value, Tensor):
            value = self.value.to(device, out.dtype)
        else:
            value = out.new_tensor(self.value)
        out = out.clone()
        out[examples, positions, heads] = value
        return out


class Knockout(Instrument):
    """Forbid chosen (query, key) cells; softmax renormalises over the keys that are left.

    cells: [C, 2] (query, key), the same for every example, or [C, 3] (example, query, key). layers and heads: None for
    all. Several knockouts act together, on the union of their cells. Raises ValueError when a row would lose every key
    it may see; warns when a cell could not be seen in the first place (above the diagonal, outside the window).
    """

    def __init__(
        self,
        cells: Tensor,
        layers: int | Iterable[int] | None = None,
        heads: int | Iterable[int] | None = None,
    ) -> None:
        self.cells = _index("Knockout cells", cells, (2,))
        if self.cells.shape[1] not in (2, 3):
            raise ValueError(f"Knockout cells: rows of (query, key) or (example, query, key), got {tuple(cells.shape)}")
        self.layers = _layers(layers)
        heads = [heads] if isinstance(heads, int) else heads
        self.heads = None if heads is None else _index("Knockout heads", list(heads), (1,))
        self._warned = False

    def attach(self, support: Support) -> None:
        super().attach(support)
        if self.heads is not None:
            _check_index("Knockout heads", self.heads, support.heads)

    def check_call(self, call: _Call) -> None:
        example, query, key = self.cells_for(call.batch).unbind(1)
        _check_index("Knockout examples", example, call.batch)
        _check_index("Knockout queries", query, call.queries)
        _check_index("Knockout keys", key, call.keys)

    def cells_for(self, batch: int) -> Tensor:
        """The cells as (example, query, key) [C', 3]."""
        if self.cells.shape[1] == 3:
            return self.cells
        examples = torch.arange(batch).repeat_interleave(len(self.cells))
        return torch.cat([examples[:, None], self.cells.repeat(batch, 1)], dim=1)

    def apply(self, call: _Call, rows: Tensor, additive: Tensor) -> Tensor:
        """Close this knockout's cells in the additive mask of `rows` ([R] or [B, R])."""
        rows = rows.cpu().expand(call.batch, -1)
        example, query, key = self.cells_for(call.batch).unbind(1)
        cell, place = (rows[example] == query[:, None]).nonzero(as_tuple=True)
        if not len(cell):
            return additive
        example, place, key = (t.to(additive.device) for t in (example[cell], place, key[cell]))
        lowest = torch.finfo(additive.dtype).min
        heads = 1 if self.heads is None and additive.shape[1] == 1 else call.query.shape[1]
        closed = additive.expand(call.batch, heads, -1, -1).clone()
        if self.heads is None:
            closed[example, :, place, key] = lowest
        else:
            closed[example[:, None], self.heads.to(additive.device)[None], place[:, None], key[:, None]] = lowest
        self._check_effect(additive > lowest, closed > lowest, (example, place, key))
        return closed

    def _check_effect(self, before: Tensor, after: Tensor, cells: tuple[Tensor, Tensor, Tensor]) -> None:
        if bool((before.any(-1).expand(after.shape[:3]) & ~after.any(-1)).any()):
            raise ValueError("Knockout: the cells leave some row without any key; keep at least one cell of every row")
        example, place, key = cells
        if not self._warned and not bool(before.expand(after.shape)[example, :, place, key].any(-1).all()):
            self._warned = True
            warnings.warn("Knockout: some cells were masked already and have no effect", stacklevel=2)


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
    found = _SUPPORT.get(model)
    if found is None or model.config._attn_implementation != IMPLEMENTATION:
        raise ValueError(f"{type(model).__name__} is not prepared for instruments; call prepare(model) once after loading")
    return found


def prepare(model: PreTrainedModel) -> Support:
    """Switch a model to the instrumented attention and check on a short prompt that all of it goes through.

    Checked: one call per attention layer; logits equal the class's own eager path (1e-4 of the largest logit, 5e-2 in
    16-bit types); captured rows sum to 1 (less only with sinks); a knockout changes the logits; afterwards they are
    bit-identical. A model that fails keeps its old implementation. Raises UnsupportedModel, or ValueError for a model
    in training mode. Doing it twice costs nothing.
    """
    found = _SUPPORT.get(model)
    if found is not None and model.config._attn_implementation == IMPLEMENTATION:
        return found
    if model.training:
        raise ValueError("prepare: the model is in training mode; call model.eval() first")
    name = type(model).__name__
    if not getattr(model, "_can_set_attn_implementation", lambda: True)():
        raise UnsupportedModel(
            f"{name} ({model.config.model_type}) computes attention in its own code, not through transformers' attention "
            "interface, so nothing can be captured or edited. Classes that dispatch through it work: GPT-2, GPT-NeoX, OPT, "
            "Llama, Mistral, Qwen, Gemma, Phi, OLMo, Granite, DeepSeek and most newer ones."
        )
    old = model.config._attn_implementation
    try:
        _SUPPORT[model] = _Handshake(model).run()
    except BaseException:
        _SUPPORT.pop(model, None)
        model.set_attn_implementation(old)
        raise
    return _SUPPORT[model]


class _Handshake:
    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        random = torch.Generator().manual_seed(0)
        self.ids = torch.randint(self.config.vocab_size, (1, 8), generator=random)
        self.tolerance = 5e-2 if model.dtype in (torch.bfloat16, torch.float16) else 1e-4

    def run(self) -> Support:
        self.model.set_attn_implementation("eager")
        reference = self.logits(self.ids)
        self.model.set_attn_implementation(IMPLEMENTATION)
        calls: list[nn.Module] = []
        token = _CALLS.set(calls)
        try:
            plain = self.logits(self.ids)
        finally:
            _CALLS.reset(token)
        numbers = self.attention_layers
        if len(calls) != len(numbers) or len(set(calls)) != len(calls):
            self.refuse(f"its {len(numbers)} attention layers called the attention function {len(calls)} times")
        self.compare(plain, reference, "logits differ from the class's own eager attention")
        found = Support(
            layers=numbers,
            heads=self.config.num_attention_heads,
            window=self.window,
            branches=False,
            modules=dict(zip(calls, numbers, strict=True)),
        )
        _SUPPORT[self.model] = found
        self.check_rows(plain)
        return replace(found, branches=self.check_branches())

    def check_rows(self, plain: Tensor) -> None:
        rows = CaptureRows(torch.tensor([0, 7]))
        with instrument(self.model, rows):
            observed = self.logits(self.ids)
        self.compare(observed, plain, "capturing rows changes the logits", exact=True)
        sinks = getattr(self.model.config, "model_type", "") == "gpt_oss" or any(
            hasattr(module, "sinks") for module in support(self.model).modules
        )
        for layer, weights in rows.weights.items():
            total = weights.sum(-1)
            if weights.shape[1] != support(self.model).heads:
                self.refuse(f"layer {layer} has {weights.shape[1]} heads, its config says {support(self.model).heads}")
            low = total.min() < (0 if sinks else 1) - 1e-2
            if low or total.max() > 1 + 1e-2 or weights[:, :, 0, 1:].abs().max() > 0:
                self.refuse(f"captured attention rows of layer {layer} are no causal distributions")
        with instrument(self.model, Knockout(torch.tensor([[7, 6], [7, 7]]))):
            edited = self.logits(self.ids)
        if torch.equal(edited[:, -1], plain[:, -1]):
            self.refuse("cutting attention does not change the logits")
        self.compare(self.logits(self.ids), plain, "logits are not restored after an edit", exact=True)

    def check_branches(self) -> bool:
        ids, positions = self.ids[:, :5], torch.tensor([[0, 1, 2, 3, 3]])
        alone = self.logits(torch.cat([ids[:, :3], ids[:, 4:]], dim=1))[:, -1]
        try:
            with instrument(self.model, Knockout(torch.tensor([[4, 3]]))):
                mask = torch.ones_like(ids)
                branch = self.logits(ids, attention_mask=mask, position_ids=positions)[:, -1]
        except (TypeError, ValueError):  # the class takes no position ids, or its window is shorter than this probe
            return False
        return bool((branch - alone).abs().max() <= self.tolerance * max(1.0, float(alone.abs().max())))

    @torch.no_grad()
    def logits(self, ids: Tensor, **inputs: Tensor) -> Tensor:
        device = self.model.device
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        return self.model(ids.to(device), use_cache=False, **inputs).logits.float()

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        count = self.config.num_hidden_layers
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * count
        return tuple(layer for layer, kind in enumerate(kinds) if kind.endswith("attention") and "linear" not in kind)

    @property
    def window(self) -> int | None:
        sizes = [getattr(self.config, name, None) for name in ("sliding_window", "attention_chunk_size")]
        return min((size for size in sizes if size), default=None)

    def compare(self, ours: Tensor, reference: Tensor, fault: str, exact: bool = False) -> None:
        difference = float((ours - reference).abs().max())
        bound = 0.0 if exact else self.tolerance * max(1.0, float(reference.abs().max()))
        if not difference <= bound:  # also catches NaN
            self.refuse(f"{fault} by {difference:.2g} (bound {bound:.2g})")

    def refuse(self, reason: str) -> None:
        raise UnsupportedModel(
            f"{type(self.model).__name__} ({self.model.config.model_type}) failed the attention handshake: {reason}. "
            "Load it with attn_implementation='eager' and output_attentions=True to look at its attention without edits."
        )


AttentionInterface.register(IMPLEMENTATION, _attention)
# Without a mask function of the same name transformers builds no mask at all: padding and windows would be lost.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
