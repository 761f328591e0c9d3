"""The engine: one attention function, registered with transformers, and the instruments that attach to it.

`handshake.prepare(model)` points a model at this function and checks that it really is the model's attention. Classes
that never ask transformers for an attention function come here by way of `util.engine.adapters`.
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

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from util.engine.call import Call, Instrument, Support, writable
from util.engine.instruments import Knockout, Splice

IMPLEMENTATION = "icl_instrumented"


# What the handshake writes: its findings by model, and for the length of one forward pass the modules that called.
PREPARED: "weakref.WeakKeyDictionary[nn.Module, Support]" = weakref.WeakKeyDictionary()
CALLS: ContextVar[list[nn.Module] | None] = ContextVar("calls", default=None)
_ACTIVE: ContextVar[tuple[tuple[Support, tuple["Instrument", ...]], ...]] = ContextVar("instruments", default=())


# ------------------------------------------------------------------------------------------------ one attention call


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
