"""What heads write, measured on a model: copying, and direct attribution to logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument, support
from util.engine.call import Instrument
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.engine.replay import bare_writes, direct_effects
from util.figures.induction_scores import measures
from util.prompts.sequences import Sequences


def _direct(
    model: PreTrainedModel, ids: np.ndarray, tokens: np.ndarray, positions: Sequence[int], *attached: Instrument
) -> np.ndarray | None:
    """What every head adds to the logits of tokens [N, A] at P positions of ids [N, T]: [N, L, H, P, A]."""
    rows, heads = torch.from_numpy(ids), CaptureHeads(torch.tensor(positions))
    with torch.inference_mode(), instrument(model, heads, *attached):
        model.base_model(rows.to(input_device(model)), use_cache=False)
    gone = {layer: -z for layer, z in heads.z.items()}  # as what is lost without it: the norm's scale is real
    seen = direct_effects(model, rows, gone, torch.from_numpy(tokens), positions)
    return None if seen is None else (seen[1] - seen[0]).movedim(2, 0).numpy()


def head_copying(model: PreTrainedModel, drawn: Sequences) -> np.ndarray:
    """The copying score of every head on sequences that are not repeated, [N, L, H]; NaN where there is none."""
    found = prepare(model)
    places = range(drawn.bos, drawn.ids.shape[1])
    scores = np.full((len(drawn.ids), len(found.layers), found.heads), np.nan)
    for number, ids in enumerate(tqdm(drawn.ids, desc="copying", leave=False)):
        rows = CaptureRows(torch.tensor(places))
        raised = _direct(model, ids[None], ids[None, drawn.bos :], places, rows)
        if raised is None:
            return scores
        attended = [rows.weights[layer][0, :, :, drawn.bos :].argmax(-1).cpu().numpy() for layer in found.layers]
        scores[number] = measures.copying(raised, np.stack(attended)[None])[0]
    return scores


def head_attribution(model: PreTrainedModel, drawn: Sequences) -> np.ndarray:
    """Direct logit attribution of every head to the next token in the last copy, [N, L, H]; NaN where there is none."""
    found = prepare(model)
    start = drawn.bos + (drawn.copies - 1) * drawn.length
    places, wanted = range(start, start + drawn.length - 1), np.arange(1, drawn.length)
    scores = np.full((len(drawn.ids), len(found.layers), found.heads), np.nan)
    for number, ids in enumerate(tqdm(drawn.ids, desc="attribution", leave=False)):
        change = _direct(model, ids[None], ids[None, drawn.bos : drawn.bos + drawn.length], places)
        if change is None:
            return scores
        next_ = np.broadcast_to(wanted, change.shape[:-1])
        scores[number] = measures.repeated_attribution(change, next_).mean(-1)[0]
    return scores


def head_weights_copying(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """Returns the share of tokens [S] that each head copies by its weights alone, [L, H].

    See `replay.bare_writes`; NaN where that has none.
    """
    alone = bare_writes(model, torch.from_numpy(ids))
    if alone is None:
        return np.full((len(support(model).layers), support(model).heads), np.nan)
    return measures.weights_copying(alone.float().numpy())
