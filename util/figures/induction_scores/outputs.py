"""What heads write, measured on a model: copying, and direct attribution to logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument, support
from util.engine.call import Instrument
from util.engine.direct_effects import bare_writes, direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.figures.induction_scores import measures
from util.prompts.sequences import Sequences


def _direct(
    model: PreTrainedModel, ids: np.ndarray, tokens: np.ndarray, positions: Sequence[int], *attached: Instrument
) -> np.ndarray | None:
    """Returns what every head adds to the logits of tokens [N, A] at P positions of ids [N, T]: [N, L, H, P, A].

    None for classes whose layers cannot be taken apart, see `engine.direct_effects`.
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
        scores[number] = measures.copying(raised, attended[None])[0]
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
        scores[number] = measures.repeated_attribution(change, next_token).mean(-1)[0]
    return scores


def head_weights_copying(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """Returns the share of token ids [S] that each head copies by its weights alone, [L, H].

    NaN for classes without `direct_effects.bare_writes`.
    """
    alone = bare_writes(model, torch.from_numpy(ids))
    if alone is None:
        return np.full((len(support(model).layers), support(model).heads), np.nan)
    return measures.weights_copying(alone.float().numpy())
