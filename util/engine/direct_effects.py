"""What heads tell the output directly, no later layer taking part: by what they write, and by their weights alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import head_writes, instrument, support
from util.engine.call import UnsupportedModel
from util.engine.components import Block, blocks_of
from util.engine.finite import check_finite
from util.engine.handshake import check_length, input_device, prepare
from util.engine.instruments import CaptureHeads, CaptureValues
from util.engine.layer_calls import first_of, recorded
from util.engine.replay import Runs, plan_of


def direct_effects(
    model: PreTrainedModel,
    ids: Tensor,
    changes: Mapping[int, Tensor],
    answers: Tensor,
    positions: Sequence[int] = (-1,),
) -> tuple[Tensor, Tensor] | None:
    """Returns the logits of `answers` [N, A] where the writes of heads change, and nothing else.

    changes: by layer [N, P, H, dv], what is added to each head's output z at P positions of ids [N, T]. The final norm
    and the unembedding see the residual stream of the base run with what one such change adds to it: no later layer
    takes part, so that one pass serves all heads. Where a norm stands between heads and stream, it sees what all heads
    of the layer write, one of them changed. The logits are [L, H, N, P, A], those of the base run [N, P, A]. Returns
    None for a class whose layers cannot be taken apart, see `components.blocks_of`, or cannot be bypassed.
    """
    prepare(model)
    check_length(model, ids.shape[1])
    blocks = known_blocks(model)
    plan = plan_of(model, ids.shape[1])
    if not plan.replays or blocks is None:
        return None
    run, places = Runs(model, plan), [place % ids.shape[1] for place in positions]
    heads = CaptureHeads(torch.tensor(places), layers=[at for at in changes if blocks[at].normed])
    with torch.inference_mode(), run.unembedding(answers) as columns:
        with recorded(plan.layers) as calls, instrument(model, heads):
            model.base_model(ids.to(input_device(model)), use_cache=False)
        out = calls[-1].out
        stream = first_of(out)[:, places]  # [N, P, d]

        def read(changed: Tensor) -> Tensor:  # one row for each position of each prompt
            rows = changed.transpose(0, 1).flatten(0, 1)[:, None]
            return run.picked(run.end(rows, out), columns).unflatten(0, (-1, len(ids))).transpose(0, 1)

        logits = []
        for layer, change in changes.items():
            block = blocks[layer]
            added = block.change(head_writes(block.projection, change), heads.z.get(layer))
            logits.append(torch.stack([read(stream + one.to(stream)) for one in added.unbind(2)]).cpu())
        seen, base = torch.stack(logits), read(stream).cpu()
    check_finite(base, "the logits", model, ids)
    check_finite(seen.movedim(2, 0), "the direct effects on the logits", model, ids)
    return seen, base


def bare_writes(model: PreTrainedModel, tokens: Tensor) -> Tensor | None:
    """Returns what every head makes of tokens [S] by its weights alone: their logits [L, H, S, S].

    Entry s, s' is the logit of token s' behind what the head writes where it reads the bare embedding of token s: the
    layer's own norm, values, output projection, the final norm and the unembedding (the OV circuit of Elhage et al.
    2021). Rows are comparable within themselves only. None as for `direct_effects`, and for a class whose stream does
    not take what one head writes as it is: a norm behind attention sees all heads together.
    """
    prepare(model)
    blocks = known_blocks(model)
    found, plan = support(model), plan_of(model)
    if not plan.replays or blocks is None or any(block.normed or block.factor != 1 for block in blocks):
        return None
    run, rows = Runs(model, plan), tokens[:, None].to(input_device(model))
    with torch.inference_mode(), run.unembedding(tokens[None]) as columns:
        with recorded(plan.layers) as calls:
            model.base_model(rows, use_cache=False)
        logits = []
        for layer in found.layers:
            with instrument(model, values := CaptureValues(layers=layer)):
                calls[layer].again(plan.layers[layer], calls[0].hidden, None, plan.scaled[layer])
            written = head_writes(blocks[layer].projection, values.values[layer][:, 0])
            ends = [run.end(w[:, None], calls[-1].out) for w in written.unbind(1)]
            logits.append(torch.stack([run.picked(end, columns) for end in ends]).cpu())
    bare = torch.stack(logits)
    check_finite(bare.movedim(2, 0), "the logits by the weights alone", model, tokens[:, None])
    return bare


def known_blocks(model: PreTrainedModel) -> tuple[Block, ...] | None:
    """How the layers of a prepared model are built, None where that is not known."""
    try:
        return blocks_of(model)
    except UnsupportedModel:
        return None
