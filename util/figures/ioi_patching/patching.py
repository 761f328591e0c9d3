"""Patching heads of a model: what each head carries, and what it tells the output.

Everywhere here N is the number of prompts, T the number of their tokens, L the number of layers that have attention, H
the number of heads of each, dv the size of a head's output z. `ids` [N, T] are the tokens of the base prompts, and
`answers` [N, 2] the tokens of the base's answer IO and of the repeated name S. A logit difference is the logit of IO
minus that of S behind the last token.

A head is a position (layer, head) in arrays [L, H]. Activations are dictionaries by the model's own layer numbers, as
the engine gives them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.call import Instrument
from util.engine.components import direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import AddHeads, CaptureHeads, PatchHeads
from util.engine.replay import Edit, Place, replay

Activations = Mapping[int, Tensor]  # by the model's own layer number, [N, T, H, dv]

# What `measure` returns: maps [N, L, H], and numbers of runs [N].
MAPS_AND_RUNS = ("denoised", "noised", "attribution", "direct", "base", "source", "probability")


# ------------------------------------------------------------------------------------------------ single runs


@torch.inference_mode()
def heads_of(model: PreTrainedModel, ids: Tensor) -> dict[int, Tensor]:
    """Returns the outputs z of all heads at all positions, by the model's own layer number [N, T, H, dv]."""
    with instrument(model, heads := CaptureHeads()):
        model.base_model(ids.to(input_device(model)), use_cache=False)
    return heads.z


@torch.inference_mode()
def last_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Returns the logits [N, V] behind the last token, float32, on the CPU."""
    return model(ids.to(input_device(model)), use_cache=False).logits[:, -1].float().cpu()


def logit_difference(model: PreTrainedModel, ids: Tensor, answers: Tensor, *instruments: Instrument) -> Tensor:
    """Returns the logit differences [N] of runs with these instruments attached."""
    with instrument(model, *instruments):
        pair = last_logits(model, ids).gather(1, answers)
    return pair[:, 0] - pair[:, 1]


def permuted(values: Activations, seed: int) -> dict[int, Tensor]:
    """Returns every head's outputs [1, T, H, dv], shuffled over tokens and dimensions together.

    Every head has a permutation of its own, which depends on the seed, its layer and its number.
    """
    shuffled = {}
    for layer, z in values.items():
        heads = z[0].transpose(0, 1).flatten(1)
        order = [np.random.default_rng((seed, layer, h)).permutation(heads.shape[1]) for h in range(len(heads))]
        mixed = heads.gather(1, torch.from_numpy(np.stack(order)).to(heads.device))
        shuffled[layer] = mixed.view_as(z[0].transpose(0, 1)).transpose(0, 1)[None]
    return shuffled


# ------------------------------------------------------------------------------------------------ maps of all heads


def patch_map(
    model: PreTrainedModel, ids: Tensor, values: Activations, answers: Tensor, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logit differences [N, L, H] with one head at a time replaced, and those of the base run [N].

    values: what the heads' outputs become; they are replaced at all positions from `first` on.
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
    return by_head.numpy(), base.numpy()


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
    """Returns the arrays MAPS_AND_RUNS for pairs of prompts of one shape.

    base, source [N, T]: the tokens of both prompts, which differ from position `first` on.
    """
    z, other = heads_of(model, base), heads_of(model, source)
    noised, intact = patch_map(model, base, other, answers, first)
    denoised, corrupted = patch_map(model, source, z, answers, first)
    return {
        "noised": noised,
        "denoised": denoised,
        "attribution": attribution(model, base, z, other, answers),
        "direct": direct_map(model, base, z, other, answers),
        "base": intact,
        "source": corrupted,
        "probability": last_logits(model, base).softmax(1).gather(1, answers)[:, 0].numpy(),
    }


# ------------------------------------------------------------------------------------------------ sets of heads


def ablated_outside(
    model: PreTrainedModel, ids: Tensor, answers: Tensor, means: Activations, kept: NDArray[np.bool_]
) -> np.ndarray:
    """Returns the logit differences [N] where only the heads that are True in `kept` [L, H] work.

    means: by layer [1, T, H, dv], what the outputs of all other heads become.
    """
    support = prepare(model)
    gone = {layer: np.flatnonzero(~kept[place]).tolist() for place, layer in enumerate(support.layers)}
    patches = [PatchHeads(layer, heads, means[layer][:, :, heads]) for layer, heads in gone.items() if heads]
    return logit_difference(model, ids, answers, *patches).numpy()
