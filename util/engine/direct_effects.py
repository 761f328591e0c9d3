"""What heads tell the output directly, no later layer taking part: by what they write, and by their weights alone."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from util.engine.attention import head_writes, instrument, support
from util.engine.finite import check_finite
from util.engine.handshake import check_length, input_device, prepare
from util.engine.instruments import CaptureValues
from util.engine.layer_calls import first_of, recorded
from util.engine.replay import Plan, Runs, plan_of


def direct_effects(
    model: PreTrainedModel,
    ids: Tensor,
    changes: Mapping[int, Tensor],
    answers: Tensor,
    positions: Sequence[int] = (-1,),
) -> tuple[Tensor, Tensor] | None:
    """Returns the logits of `answers` [N, A] where the writes of heads change, and nothing else.

    changes: by layer [N, P, H, dv], what is added to each head's output z at P positions of ids [N, T]. The final norm
    and the unembedding see the residual stream of the base run with what one such change writes: no later layer takes
    part, so that one pass serves all heads. The logits are [L, H, N, P, A], those of the base run [N, P, A]. Returns
    None for a class whose stream does not keep what heads write as it is (a norm behind attention, a multiplier), or
    whose layers cannot be bypassed.
    """
    found = prepare(model)
    check_length(model, ids.shape[1])
    plan = plan_of(model, ids.shape[1])
    if not plan.replays or not keeps_writes(model):
        return None
    run = Runs(model, plan)
    with torch.inference_mode(), run.unembedding(answers) as columns:
        with recorded(plan.layers) as calls:
            model.base_model(ids.to(input_device(model)), use_cache=False)
        out = calls[-1].out
        stream = first_of(out)[:, list(positions)]  # [N, P, d]

        def read(changed: Tensor) -> Tensor:  # one row for each position of each prompt
            rows = changed.transpose(0, 1).flatten(0, 1)[:, None]
            return run.read(run.end(rows, out), columns).unflatten(0, (-1, len(ids))).transpose(0, 1)

        logits = []
        for layer, change in changes.items():
            projection = found.projections[layer]
            assert projection is not None  # or it would not keep writes
            logits.append(torch.stack([read(stream + w.to(stream)) for w in head_writes(projection, change).unbind(2)]))
        seen, base = torch.stack(logits), read(stream)
    check_finite(base, "the logits", model, ids)
    check_finite(seen.movedim(2, 0), "the direct effects on the logits", model, ids)
    return seen, base


def bare_writes(model: PreTrainedModel, tokens: Tensor) -> Tensor | None:
    """Returns what every head makes of tokens [S] by its weights alone: their logits [L, H, S, S].

    Entry s, s' is the logit of token s' behind what the head writes where it reads the bare embedding of token s: the
    layer's own norm, values, output projection, the final norm and the unembedding (the OV circuit of Elhage et al.
    2021). Rows are comparable within themselves only. None as for `direct_effects`.
    """
    found = prepare(model)
    plan = plan_of(model)
    if not plan.replays or not keeps_writes(model):
        return None
    run, rows = Runs(model, plan), tokens[:, None].to(input_device(model))
    with torch.inference_mode(), run.unembedding(tokens[None]) as columns:
        with recorded(plan.layers) as calls:
            model.base_model(rows, use_cache=False)
        logits = []
        for layer in found.layers:
            with instrument(model, values := CaptureValues(layers=layer)):
                calls[layer].again(plan.layers[layer], calls[0].hidden, None, plan.scaled[layer])
            projection = found.projections[layer]
            assert projection is not None  # or it would not keep writes
            written = head_writes(projection, values.values[layer][:, 0])
            logits.append([run.read(run.end(w[:, None], calls[-1].out), columns) for w in written.unbind(1)])
    bare = torch.stack([torch.stack(heads) for heads in logits])
    check_finite(bare.movedim(2, 0), "the logits by the weights alone", model, tokens[:, None])
    return bare


_KEEPS_WRITES: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()


def keeps_writes(model: PreTrainedModel) -> bool:
    """Returns whether what attention writes reaches the end unchanged; found out once."""
    if model not in _KEEPS_WRITES:
        _KEEPS_WRITES[model] = _found_to_keep_writes(model, plan_of(model))
    return _KEEPS_WRITES[model]


@torch.inference_mode()
def _found_to_keep_writes(model: PreTrainedModel, plan: Plan) -> bool:
    """Beside a huge vector that one layer is made to write, all that norms let through vanishes."""
    found = support(model)
    if not plan.replays or any(found.projections.get(layer) is None for layer in found.layers):
        return False
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.get_text_config(decoder=True).vocab_size, (1, 3), generator=generator)
    ids = ids.repeat(len(found.layers) + 1, 1).to(input_device(model))
    with recorded(plan.layers) as calls:
        model.base_model(ids[:1], use_cache=False)
    last = first_of(calls[-1].out)[0, -1]
    huge = torch.randn(last.shape, generator=generator).to(last) * 1e4 * last.std()

    def writing(row: int) -> Callable[..., Tensor]:
        def hook(_: nn.Module, __: Any, out: Tensor) -> Tensor:
            out = out.clone()
            out[row] += huge.to(out)
            return out

        return hook

    hooks = [found.projections[layer].register_forward_hook(writing(row)) for row, layer in enumerate(found.layers)]  # type: ignore[union-attr]
    try:
        with recorded(plan.layers) as calls:
            model.base_model(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    ends = first_of(calls[-1].out)[:, -1]
    gaps = (ends[:-1] - ends[-1] - huge).norm(dim=1) / huge.norm()
    return bool((gaps < 0.05).all())
