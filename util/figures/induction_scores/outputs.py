"""What heads write: copying, and direct attribution to logits; first from arrays alone, then of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument, support
from util.engine.call import Instrument
from util.engine.components import bare_writes, direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.prompts.sequences import Sequences

Floats = NDArray[np.floating]


def copying(raised: Floats, attended: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns the copying (OV) scores of heads on sequences of distinct tokens, [N, L, H] from 0 to 1.

    raised: [N, L, H, P, P], what a head's write at token i adds directly to the logit of the token at j. attended:
    [N, L, H, P], the token that i attends to most. The candidates at i are the tokens 0 to i, without BOS. The score is
    the attended token's share of all that is raised above the candidates' mean, 0 where nothing is, averaged over i
    from 1 on. Source: Bansal et al. 2023, section 4; here with the head's true output and without their softmax.
    """
    places = raised.shape[-1]
    shares = []
    for i in range(1, places):
        logits = raised[..., i, : i + 1].astype(np.float64)
        above = np.maximum(logits - logits.mean(axis=-1, keepdims=True), 0)
        copied = np.take_along_axis(above, attended[..., i, None], axis=-1)[..., 0]
        total = above.sum(axis=-1)
        shares.append(np.divide(copied, total, out=np.zeros_like(copied), where=total > 0))
    return np.mean(shares, axis=0)


def weights_copying(logits: Floats) -> NDArray[np.float64]:
    """Returns the share of S tokens that a head raises most where it reads them, [...].

    logits: [..., S, S], what the head's weights alone make of each token read, for each token written.
    """
    return (logits.argmax(axis=-1) == np.arange(logits.shape[-1])).mean(axis=-1)


def repeated_attribution(change: Floats, wanted: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns how much more the next token is raised than the mean of the others, [..., P] in logits.

    change: [..., P, A], what a head adds to the logits of A tokens at P places; wanted: [..., P], which one is next.
    """
    raised = np.take_along_axis(change, wanted[..., None], axis=-1)[..., 0]
    return raised - (change.sum(axis=-1) - raised) / (change.shape[-1] - 1)


# ------------------------------------------------------------------------------------------------ of a model


def _direct(
    model: PreTrainedModel, ids: np.ndarray, tokens: np.ndarray, positions: Sequence[int], *attached: Instrument
) -> np.ndarray | None:
    """Returns what every head adds to the logits of tokens [N, A] at P positions of ids [N, T]: [N, L, H, P, A].

    None for classes whose layers cannot be taken apart, see `engine.components`.
    """
    rows, heads = torch.from_numpy(ids), CaptureHeads(torch.tensor(positions))
    with torch.inference_mode(), instrument(model, heads, *attached):
        model.base_model(rows.to(input_device(model)), use_cache=False)
    # the effect of a head is what is lost without it, so that the scale of the last norm is real
    removed = {layer: -z for layer, z in heads.z.items()}
    logits = direct_effects(model, rows, removed, torch.from_numpy(tokens), positions)
    return None if logits is None else (logits[1] - logits[0]).movedim(2, 0).numpy()


def head_copying(model: PreTrainedModel, sequences: Sequences) -> np.ndarray:
    """Returns the copying score of every head on N sequences without repeats, [N, L, H].

    NaN where `_direct` has none.
    """
    prepared = prepare(model)
    places = range(sequences.bos, sequences.ids.shape[1])
    scores = np.full((len(sequences.ids), len(prepared.layers), prepared.heads), np.nan)
    for number, ids in enumerate(tqdm(sequences.ids, desc="copying", leave=False)):
        rows = CaptureRows(torch.tensor(places))
        raised = _direct(model, ids[None], ids[None, sequences.bos :], places, rows)
        if raised is None:
            return scores
        weights = [rows.weights[layer][0, :, :, sequences.bos :] for layer in prepared.layers]
        attended = np.stack([layer.argmax(-1).cpu().numpy() for layer in weights])
        scores[number] = copying(raised, attended[None])[0]
    return scores


def head_attribution(model: PreTrainedModel, sequences: Sequences) -> np.ndarray:
    """Returns every head's direct attribution to the next token in the last copy, [N, L, H].

    NaN where `_direct` has none.
    """
    prepared = prepare(model)
    start = sequences.bos + (sequences.copies - 1) * sequences.length
    places, wanted = range(start, start + sequences.length - 1), np.arange(1, sequences.length)
    scores = np.full((len(sequences.ids), len(prepared.layers), prepared.heads), np.nan)
    for number, ids in enumerate(tqdm(sequences.ids, desc="attribution", leave=False)):
        tokens = ids[None, sequences.bos : sequences.bos + sequences.length]
        change = _direct(model, ids[None], tokens, places)
        if change is None:
            return scores
        next_token = np.broadcast_to(wanted, change.shape[:-1])
        scores[number] = repeated_attribution(change, next_token).mean(-1)[0]
    return scores


def head_weights_copying(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """Returns the share of token ids [S] that each head copies by its weights alone, [L, H].

    NaN for classes without `components.bare_writes`.
    """
    alone = bare_writes(model, torch.from_numpy(ids))
    if alone is None:
        return np.full((len(support(model).layers), support(model).heads), np.nan)
    return weights_copying(alone.float().numpy())
