"""Attention of heads on repeated random sequences: what figures and roles ask of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import Batch, Row, check_context, forward
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, PatchHeads
from util.prompts.sequences import Sequences, repeated_sequences
from util.roles.head_scores import head_scores, heads_by_layer
from util.roles.heads import checked_heads, plain
from util.stats.heads import Head
from util.study.records import Records


def measured_scores(model: PreTrainedModel, drawn: Sequences, removed: Sequence[Head]) -> dict[str, Any]:
    """What `scores` returns, of sequences that are drawn. removed: heads whose outputs are zero meanwhile."""
    prepared = prepare(model)
    zeros = [PatchHeads(layer, heads, 0.0) for layer, heads in heads_by_layer(prepared, removed).items()]
    more = {"ids": drawn.ids, "ranking": drawn.ranking, "layers": list(prepared.layers)}
    return {**head_scores(model, drawn, *zeros), **more}


def _drawn(study: Records, length: int, copies: int, seeds: Sequence[int], bos: bool) -> Sequences:
    return repeated_sequences(study.pair[1], length, copies, list(seeds), bos)


def scores(
    study: Records, length: int, copies: int, seeds: Sequence[int], bos: bool = True, ablated: Sequence[Head] = ()
) -> dict[str, Any]:
    """Attention scores of all heads, [N, L, H] by name, see `attention_scores.cells`; ids [N, T], ranking, layers.

    length: tokens of a copy; copies: how often they come; seeds: one for each sequence; bos: whether BOS stands first;
    ablated: heads whose outputs are zero meanwhile. Raises ValueError for heads that there are not, and what
    `repeated_sequences` raises.
    """
    removed = checked_heads(ablated, "ablated")

    def compute() -> dict[str, Any]:
        return measured_scores(study.pair[0], _drawn(study, length, copies, seeds, bos), removed)

    asked = {"length": length, "copies": copies, "seeds": list(seeds), "bos": bos, "ablated": plain(removed)}
    return study.record("sequence scores", compute, lambda: _texts(study, length, copies, seeds, bos), **asked).data


def patterns(
    study: Records, heads: Sequence[Head], length: int, copies: int, seeds: Sequence[int], bos: bool = True
) -> dict[str, Any]:
    """The whole attention [heads, T, T], query by key, of some heads on the last sequence, ids [T].

    Raises ValueError, before any forward pass, for heads that there are not.
    """

    def compute() -> dict[str, Any]:
        model, ids = study.pair[0], _drawn(study, length, copies, seeds, bos).ids[-1]
        numbers = prepare(model).layers
        heads_by_layer(support(model), heads)
        check_context(model, [len(ids)], "a smaller length or fewer copies")
        rows = CaptureRows(torch.arange(len(ids)), layers={numbers[layer] for layer, _ in heads})
        forward(model, Batch.of([Row(tuple(ids.tolist()))], [0], [len(seeds) - 1]), rows)
        attention = [rows.weights[numbers[layer]][0, head].float().cpu().numpy() for layer, head in heads]
        return {"attention": np.stack(attention), "ids": ids}

    asked = {"length": length, "copies": copies, "seeds": list(seeds), "bos": bos, "heads": [list(h) for h in heads]}
    return study.record("sequence patterns", compute, lambda: _texts(study, length, copies, seeds, bos), **asked).data


def _texts(study: Records, *drawn: Any) -> list[str]:
    return list(map(str, _drawn(study, *drawn).ids.tolist()))
