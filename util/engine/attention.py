"""The attention function that is registered with transformers, and how instruments are attached to it.

`handshake.prepare(model)` makes a model use this function and checks that all of its attention goes through it. Classes
that never ask transformers for an attention function are connected by `util.engine.adapters`.
Inside `with instrument(model, ...)`, every attention layer of that model passes its call to the instruments:

    with instrument(model, rows := CaptureRows(torch.tensor([5, 9]))), torch.no_grad():
        model(input_ids)
    rows.weights[3]                      # layer 3, [batch, heads, 2, keys]

This module contains no formula of attention. The fast path is transformers' own sdpa function. Whatever needs
attention weights (a captured row, a knocked-out cell) is computed by the eager function of the *model's own class*,
which is called for the wanted query rows only. So soft-capping, sinks, grouped keys and the float32 softmax are exact
by construction, and no [T, T] matrix is kept.

Layers are the model's own numbers, counted from 0. Rows and positions index the queries of the current forward pass
(with a key-value cache: the new tokens). Keys index everything that is attended to.

Two caches are right, each for its own use. With instruments on a pass behind a prefix, use a bare `DynamicCache()`: it
keeps every key, so that key indices count from the first token. It suits models whose layers all have attention. For
continuations, use `batches.cache_for(model)`: it also keeps the states of layers without attention, but drops keys
outside sliding windows after a pass, so that instruments may be on the first pass alone.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.pytorch_utils import Conv1D

from util.engine.call import Call, Instrument, Support, writable
from util.engine.instruments import Knockout, Splice

IMPLEMENTATION = "icl_instrumented"
Found = TypeVar("Found")

# Written by the handshake: what it learned about each model, and the attention modules that called in one forward pass.
PREPARED: "weakref.WeakKeyDictionary[nn.Module, Support]" = weakref.WeakKeyDictionary()
CALLS: ContextVar[list[nn.Module] | None] = ContextVar("calls", default=None)
# Per `with instrument(...)` block, outermost first: the model's support, and the instruments attached.
_ACTIVE: ContextVar[tuple[tuple[Support, tuple["Instrument", ...]], ...]] = ContextVar("instruments", default=())


# ------------------------------------------------------------------------------------------------ one attention call


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The function that transformers calls: head outputs [B, T, H, dv] after all edits, and no weights."""
    calls = CALLS.get()
    if calls is not None:
        calls.append(module)
    instruments: list[Instrument] = []
    layer, scaled = -1, False  # stay so if no instrument is attached to this module's model
    for support, attached in _ACTIVE.get():
        if module in support.modules:
            layer, scaled = support.modules[module], support.scaled_outputs
            instruments += [i for i in attached if i.layers is None or layer in i.layers]
    knockouts = tuple(i for i in instruments if isinstance(i, Knockout))
    splices = [i for i in instruments if isinstance(i, Splice)]
    if len(splices) > 1:
        raise ValueError("two splices at once: put their donors and tables into one")
    splice = splices[0] if splices else None
    mask = selected_keys(attention_mask, options.pop("indices", None), key.shape[2])
    call = Call(module, layer, query, key, value, mask, options, knockouts, splice, scaled)
    for instrument_ in instruments:
        instrument_.check_call(call)
    out = call.plain()
    if knockouts or splices:
        out = _recompute_cut_rows(call, out)
    for instrument_ in instruments:
        out = instrument_.visit(call, out)
    return out, None


def selected_keys(mask: Tensor | None, indices: Tensor | None, keys: int) -> Tensor | None:
    """The mask [B, 1, T, S] with only the keys open that a class with sparse attention selects for each query.

    indices: [B, T, K], the selected keys; None for a class that selects none. These classes always give a mask. They
    close the other keys themselves for transformers' eager and sdpa functions alone.
    """
    if indices is None or mask is None:
        return mask
    others = torch.ones(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    others = others.scatter(-1, indices.long(), False)[:, None]
    if mask.dtype == torch.bool:
        return mask & ~others
    return mask.masked_fill(others, torch.finfo(mask.dtype).min)


def _recompute_cut_rows(call: Call, out: Tensor) -> Tensor:
    """Recompute the outputs [B, T, H, dv] of only those query rows that knockouts or a splice change."""
    changed = [knockout.cells_for(call.batch)[:, :2] for knockout in call.knockouts]
    if call.splice:
        changed.append(call.splice.rows_of(call))
    # (example, row) pairs [C, 2], sorted and each once; those of a splice alone are so already
    cut = torch.cat(changed).unique(dim=0) if call.knockouts else changed[0]
    if not len(cut):
        return out
    example, row = cut.unbind(1)
    # `rows` lists the cut rows of each example, which stand together in `cut`; the places that stay 0 are never read
    first = torch.searchsorted(example.contiguous(), torch.arange(call.batch))
    place = torch.arange(len(cut)) - first[example]
    rows = torch.zeros(call.batch, int(place.max()) + 1, dtype=torch.long)
    rows[example, place] = row
    recomputed = torch.cat([call.rows(chunk)[0] for chunk in call.chunks(rows)], dim=1)
    example, row, place = (t.to(out.device) for t in (example, row, place))
    out = writable(out)
    out[example, row] = recomputed[example, place]
    return out


# ------------------------------------------------------------------------------------------------ attaching


@contextmanager
def during(variable: ContextVar[Found], value: Found) -> Iterator[None]:
    """Give a context variable a value inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def instrument(model: nn.Module, *instruments: Instrument) -> Iterator[None]:
    """Attach instruments to a prepared model. They act in the order given, those of outer blocks first.

    Only forward passes of `model` that this thread makes inside the block are affected. Raises ValueError for a model
    that is not prepared, is in training mode or lost its attention implementation, and for indices out of range.
    """
    model_support = support(model)
    if model.training:
        raise ValueError("instrument: the model is in training mode; call model.eval() first")
    for attached in instruments:
        attached.attach(model_support)
    with during(_ACTIVE, (*_ACTIVE.get(), (model_support, instruments))):
        yield


def without_instruments() -> AbstractContextManager[None]:
    """Detach all instruments inside the block."""
    return during(_ACTIVE, ())


def known_support(model: nn.Module) -> Support | None:
    """What the handshake learned about a model; None when `prepare(model)` has not run, or was undone."""
    recorded = PREPARED.get(model)
    undone = recorded and model.config._attn_implementation != recorded.implementation  # type: ignore[union-attr]
    return None if undone else recorded


def support(model: nn.Module) -> Support:
    """What the handshake learned about a model. Raises ValueError when `prepare(model)` has not run, or was undone."""
    recorded = known_support(model)
    if recorded is None:
        raise ValueError(
            f"{type(model).__name__} is not prepared for instruments; call prepare(model) once after loading"
        )
    return recorded


def once(function: Callable[..., Found]) -> Callable[..., Found]:
    """Find something out about a prepared model once: `function(model, ...)` is kept with the support."""

    @wraps(function)
    def known(model: PreTrainedModel, *arguments: Hashable) -> Found:
        facts = support(model).facts
        if (function, arguments) not in facts:
            facts[function, arguments] = function(model, *arguments)
        return facts[function, arguments]

    return known


def input_device(model: PreTrainedModel) -> torch.device:
    """The device that token ids must be on. With offloaded weights it is not the device of the parameters."""
    device = getattr(getattr(model.get_input_embeddings(), "_hf_hook", None), "execution_device", None)
    return model.device if device is None else torch.device(device)


def random_ids(model: PreTrainedModel, rows: int, length: int) -> Tensor:
    """The same random tokens [rows, length] of a model's vocabulary each time, on its input device."""
    size = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(size, (rows, length), generator=torch.Generator().manual_seed(0)).to(input_device(model))


def plain_weight(module: nn.Module) -> Tensor | None:
    """The weight [out, in] of a linear map; None where it is not there as it is: in 4 bits, offloaded."""
    weight: Any = getattr(module, "weight", None)
    if type(module) not in (nn.Linear, Conv1D) or weight.device.type == "meta":
        return None
    return weight.T if type(module) is Conv1D else weight


def head_writes(projection: nn.Module, z: Tensor) -> Tensor:
    """What each head adds to the residual stream: W_O^h z_h [..., H, d], from head outputs or values [..., H, dv].

    projection: one of `Support.projections`. It is called where its weights are not there as they are: in 4 bits,
    offloaded. In 16 bits the bias that this takes away would cost digits of what heads write.
    """
    weight = plain_weight(projection)
    if weight is not None:
        return torch.einsum("...hv,dhv->...hd", z.to(weight.device), weight.unflatten(1, z.shape[-2:]))
    alone = torch.diag_embed(z.movedim(-2, -1), dim1=-3, dim2=-2)
    nothing = z.new_zeros(1, z.shape[-2] * z.shape[-1])
    return projection(alone.flatten(-2)) - projection(nothing)


AttentionInterface.register(IMPLEMENTATION, _attention)
# Without a mask function of the same name, transformers builds no mask at all, and padding and windows are lost.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
