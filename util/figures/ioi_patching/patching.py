"""Patching heads of a model: what each head carries, tells the output, and tells other heads.

Everywhere here N is the number of prompts, T the number of their tokens, L the number of layers that have attention, H
the number of heads of each, dv the size of a head's output z. `ids` [N, T] are the tokens of the base prompts, and
`answers` [N, 2] the tokens of the base's answer IO and of the repeated name S. A logit difference is the logit of IO
minus that of S behind the last token.

A head is a position (layer, head) in arrays [L, H]. Activations are dictionaries by the model's own layer numbers, as
the engine gives them. `model_heads` is the one place that turns positions into these numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.call import Instrument, Support, UnsupportedModel
from util.engine.direct_effects import direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import AddHeads, CaptureHeads, PatchHeads
from util.engine.replay import Edit, Place, replay
from util.roles.heads import checked_head
from util.scores.paths import path_effects
from util.stats.heads import Head

Activations = Mapping[int, Tensor]  # by the model's own layer number, [N, T, H, dv]

MAPS = ("denoised", "noised", "attribution", "direct")  # [N, L, H]
RUNS = ("base", "source", "probability")  # [N]


def model_heads(support: Support, heads: Iterable[Head]) -> list[Head]:
    """Returns heads by the model's own layer numbers, for heads by their position in arrays [L, H].

    Raises ValueError for what is no (layer, head), for a head that the model does not have, and for one that comes
    twice.
    """
    count = len(support.layers)
    positions = [checked_head(head, "heads") for head in heads]
    for layer, head in positions:
        if not (0 <= layer < count and 0 <= head < support.heads):
            raise ValueError(
                f"the model has {count} layers of {support.heads} heads, from 0: there is no head {(layer, head)}"
            )
    if len(set(positions)) < len(positions):
        raise ValueError(f"a head comes twice in {positions}")
    return [(support.layers[layer], head) for layer, head in positions]


# ------------------------------------------------------------------------------------------------ single runs


@torch.inference_mode()
def heads_of(model: PreTrainedModel, ids: Tensor) -> dict[int, Tensor]:
    """Returns the outputs z of all heads at all positions, by the model's own layer number [N, T, H, dv]."""
    with instrument(model, heads := CaptureHeads()):
        model.base_model(ids.to(input_device(model)), use_cache=False)
    return heads.z


@torch.inference_mode()
def logit_difference(model: PreTrainedModel, ids: Tensor, answers: Tensor, *instruments: Instrument) -> Tensor:
    """Returns the logit differences [N] of runs with these instruments attached."""
    with instrument(model, *instruments):
        logits = model(ids.to(input_device(model)), use_cache=False).logits[:, -1].float().cpu()
    pair = logits.gather(1, answers)
    return pair[:, 0] - pair[:, 1]


@torch.inference_mode()
def probability(model: PreTrainedModel, ids: Tensor, tokens: Tensor) -> np.ndarray:
    """Returns the probability [N] of one token (of `tokens` [N]) after each prompt."""
    logits = model(ids.to(input_device(model)), use_cache=False).logits[:, -1].float().cpu()
    return logits.softmax(1).gather(1, tokens[:, None])[:, 0].numpy()


def permuted(values: Activations, seed: int) -> dict[int, Tensor]:
    """Returns every head's outputs [1, T, H, dv], shuffled over tokens and dimensions together.

    Every head has a permutation of its own, which depends on the seed, its layer and its number.
    """
    shuffled = {}
    for layer, z in values.items():
        heads = z[0].transpose(0, 1).flatten(1)
        order = [np.random.default_rng((seed, layer, h)).permutation(heads.shape[1]) for h in range(len(heads))]
        mixed = heads.gather(1, torch.from_numpy(np.stack(order)).to(heads.device))
        shuffled[layer] = mixed.view(z.shape[2], z.shape[1], z.shape[3]).transpose(0, 1)[None]
    return shuffled


# ------------------------------------------------------------------------------------------------ maps of all heads


def patch_map(
    model: PreTrainedModel, ids: Tensor, values: Activations, answers: Tensor, first: int = 0
) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the logit differences [N, L, H] with one head at a time replaced, those of the base run [N], and a path.

    values: what the heads' outputs become; they are replaced at all positions from `first` on. The path says how the
    runs were computed, see `replay.Replayed`.
    """
    support = prepare(model)

    def edit(layer: int, head: int) -> Edit:
        def instruments(place: Place) -> list[PatchHeads]:
            if place.layer != layer:
                return []
            value = values[layer][place.prompts, place.tokens, head : head + 1]
            return [PatchHeads(layer, head, value, examples=place.examples)]

        return Edit(layer, instruments)

    edits = [edit(layer, head) for layer in support.layers for head in range(support.heads)]
    replayed = replay(model, ids, edits, answers, first)
    patched, base = (logits[..., 0] - logits[..., 1] for logits in (replayed.logits, replayed.base))
    by_head = patched.view(len(support.layers), support.heads, -1).permute(2, 0, 1)
    return by_head.numpy(), base.numpy(), replayed.path


def attribution(
    model: PreTrainedModel, ids: Tensor, base: Activations, source: Activations, answers: Tensor
) -> np.ndarray:
    """Returns the first-order estimate [N, L, H] of what patching each head changes: attribution patching.

    It is (z_source - z_base) times the gradient of the logit difference on the base run, so that two passes are enough
    for all heads. Source: Nanda 2023; Kramar et al. 2024, without the corrections of the latter.
    """
    deltas = {layer: torch.zeros_like(z, requires_grad=True) for layer, z in base.items()}
    with torch.enable_grad(), instrument(model, *(AddHeads(layer, delta) for layer, delta in deltas.items())):
        logits = model(ids.to(input_device(model)), use_cache=False).logits[:, -1]
        pair = logits.gather(1, answers.to(logits.device))
        gradients = torch.autograd.grad((pair[:, 0] - pair[:, 1]).sum(), list(deltas.values()))
    layers = [
        ((source[layer] - base[layer]) * gradient).sum(dim=(1, 3))
        for layer, gradient in zip(deltas, gradients, strict=True)
    ]
    return torch.stack([part.float().cpu() for part in layers], dim=1).numpy()


def direct_map(
    model: PreTrainedModel, ids: Tensor, base: Activations, source: Activations, answers: Tensor
) -> np.ndarray:
    """Returns the change [N, L, H] of the logit difference by what each head alone tells the output directly.

    The last token's residual stream of the base run gets one head's write of the source instead of the base's. The
    final norm and the unembedding see the change, later layers do not. All NaN for a class of models for which
    `direct_effects` returns None.
    """
    support = prepare(model)
    changes = {layer: source[layer][:, -1:] - base[layer][:, -1:] for layer in support.layers}
    effects = direct_effects(model, ids, changes, answers)
    if effects is None:
        return np.full((len(ids), len(support.layers), support.heads), np.nan, np.float32)
    changed, plain = (logits[..., 0, 0] - logits[..., 0, 1] for logits in effects)
    return (changed - plain).permute(2, 0, 1).numpy()


def measure(model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor, first: int) -> dict[str, Any]:
    """Returns the arrays MAPS and RUNS for pairs of prompts of one shape, and the path of `patch_map`.

    base, source [N, T]: the tokens of both prompts, which differ from position `first` on.
    """
    z, other = heads_of(model, base), heads_of(model, source)
    noised, intact, path = patch_map(model, base, other, answers, first)
    denoised, corrupted, _ = patch_map(model, source, z, answers, first)
    return {
        "noised": noised.astype(np.float32),
        "denoised": denoised.astype(np.float32),
        "attribution": attribution(model, base, z, other, answers),
        "direct": direct_map(model, base, z, other, answers),
        "base": intact.astype(np.float32),
        "source": corrupted.astype(np.float32),
        "probability": probability(model, base, answers[:, 0]),
        "path": path,
    }


# ------------------------------------------------------------------------------------------------ circuits and paths


def ablated_outside(
    model: PreTrainedModel, ids: Tensor, answers: Tensor, means: Activations, kept: Sequence[Head] | None
) -> np.ndarray:
    """Returns the logit differences [N] where only the heads `kept` work; None keeps all heads.

    means: by layer [1, T, H, dv], what the outputs of all other heads become. Raises what `model_heads` raises.
    """
    support = prepare(model)
    stay = None if kept is None else set(model_heads(support, kept))
    patches = []
    for layer in support.layers:
        gone = [] if stay is None else [head for head in range(support.heads) if (layer, head) not in stay]
        if gone:
            patches.append(PatchHeads(layer, gone, means[layer][:, :, gone]))
    return logit_difference(model, ids, answers, *patches).numpy()


def all_paths(
    model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor, heads: Sequence[Head]
) -> dict[str, Any]:
    """Returns what K heads tell the output and each other, as changes of the logit difference, see `scores.paths`.

    base, source [N, T]: the tokens of both prompts. direct [N, K]: from sender to the output. edges [N, K, K, 4]: from
    sender to receiver, through the receiver's query, key, value, and all three together; NaN where the receiver is in
    no later layer. refused: why a class cannot be taken apart, all numbers being NaN; else empty.
    """
    try:
        found = path_effects(model, base, source, answers, heads)
    except UnsupportedModel as error:
        count = len(heads)
        direct, edges = (np.full((len(base), *shape), np.nan) for shape in ((count,), (count, count, 4)))
        return {"direct": direct, "edges": edges, "refused": str(error)}
    return {"direct": found.direct.numpy(), "edges": found.edges.numpy(), "refused": ""}
