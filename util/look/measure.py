"""What heads do on one text: whom each token reads and is read by, and which words what a head writes there raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import Batch, Row, check_context, forward
from util.engine.components import direct_effects
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.prompts.prompt import with_bos
from util.stats.heads import Head

Floats = NDArray[np.floating]
WHOLE = 64  # tokens of a text that is looked at from all of its tokens, else from those asked for
STRONGEST = 5  # words, raised and lowered
CHUNK = 256  # rows of attention at a time, where only some keys are kept


@dataclass(frozen=True)
class Looked:
    """What some heads do on a text of T tokens, seen from Q of them.

    tokens [T]: as text; queries [Q]: positions; heads [h]. reads [h, Q, T]: the attention of each query to every token;
    read_by [h, Q, T]: the attention of every token to it. words, effects [h, Q, 2 STRONGEST]: the tokens whose logits
    fall most without what the head writes at the query, and those whose logits rise most, and by how much they fall
    beside the mean of all tokens; None where the class cannot be taken apart.
    """

    tokens: Sequence[str]
    queries: Sequence[int]
    heads: Sequence[Head]
    reads: Floats
    read_by: Floats
    words: NDArray[np.int64] | None
    effects: Floats | None


def look_at(
    model: PreTrainedModel,
    tokenizer: Any,
    text: str,
    heads: Sequence[Head] | None = None,
    positions: Sequence[int] | None = None,
) -> Looked:
    """Returns what heads do on a text.

    heads: default all, of a text of up to `WHOLE` tokens; positions: tokens that it is seen from, default all of such a
    text, else the last; negative ones count from the end.

    Raises ValueError for heads and tokens that there are not, and for a longer text without `heads`.
    """
    if not text:
        raise ValueError("the text is empty; give one")
    prepare(model)
    read = with_bos(text, tokenizer)
    ids, spans = read.ids, read.spans
    layers, size = support(model).layers, support(model).heads
    check_context(model, [len(ids)], "a shorter text")
    if heads is None and len(ids) > WHOLE:
        raise ValueError(f"the text has {len(ids)} tokens; name the heads to look at, or give up to {WHOLE} tokens")
    if heads is None:
        heads = [(layer, head) for layer in range(len(layers)) for head in range(size)]
    if wrong := [head for head in heads if head[0] >= len(layers) or head[1] >= size]:
        raise ValueError(f"the model has {len(layers)} layers of {size} heads, not {wrong}")
    if positions is None:
        positions = range(len(ids)) if len(ids) <= WHOLE else [-1]
    if wrong := [place for place in positions if not -len(ids) <= place < len(ids)]:
        raise ValueError(f"the text has {len(ids)} tokens, from 0; there are none at {wrong}")
    queries = sorted({place % len(ids) for place in positions})
    chosen = [(layers[layer], head) for layer, head in heads]
    reads, read_by, z = _attention(model, ids, queries, sorted({layer for layer, _ in chosen}))
    words, effects = _written(model, ids, queries, z, chosen) or (None, None)
    pick = partial(_of_heads, chosen)
    return Looked(
        _texts(text, tokenizer, ids, spans), queries, tuple(heads), pick(reads), pick(read_by), words, effects
    )


def _texts(text: str, tokenizer: Any, ids: Sequence[int], spans: Sequence[tuple[int, int] | None]) -> list[str]:
    """Each token as text; of several tokens that are one character together, the first has it."""
    ends = [0, *(span[1] if span else 0 for span in spans)]
    return [
        tokenizer.decode([token]) if span is None else text[slice(*span)] if span[0] >= end else "…"
        for token, span, end in zip(ids, spans, ends, strict=False)
    ]


def _of_heads(chosen: Sequence[tuple[int, int]], by_layer: dict[int, Tensor]) -> Floats:
    return np.stack([by_layer[layer][0, head].cpu().numpy() for layer, head in chosen])


def _attention(
    model: PreTrainedModel, ids: Sequence[int], queries: Sequence[int], layers: Sequence[int]
) -> tuple[dict[int, Tensor], dict[int, Tensor], dict[int, Tensor]]:
    """By layer: what queries read, by whom they are read [1, H, Q, T], and what heads put out there [1, Q, H, dv]."""
    rows = CaptureRows(torch.tensor(queries), layers=layers)
    chunks = torch.arange(len(ids)).split(CHUNK)
    columns = [CaptureRows(some, torch.tensor(queries).expand(len(some), -1), layers) for some in chunks]
    z = CaptureHeads(torch.tensor(queries), layers)
    forward(model, Batch.of([Row(tuple(ids))], [0]), rows, *columns, z)
    read_by = {layer: torch.cat([some.weights[layer] for some in columns], 2).transpose(2, 3) for layer in layers}
    return rows.weights, read_by, z.z


def _written(
    model: PreTrainedModel,
    ids: Sequence[int],
    queries: Sequence[int],
    z: dict[int, Tensor],
    chosen: Sequence[tuple[int, int]],
) -> tuple[NDArray[np.int64], Floats] | None:
    """The words that heads raise and lower most at queries, and by how many logits; see `Looked`."""

    def keep(without: Tensor, base: Tensor) -> Tensor:
        effect = base - without
        effect = effect - effect.mean(-1, keepdim=True)
        both = [effect.topk(STRONGEST, largest=largest) for largest in (True, False)]
        return torch.cat([*(one.values for one in both), *(one.indices.to(effect) for one in both)], -1)

    removed = {layer: -one for layer, one in z.items()}
    every = torch.arange(model.get_output_embeddings().weight.shape[0])[None]
    found = direct_effects(model, torch.tensor([ids]), removed, every, queries, keep)
    if found is None:
        return None
    places = {layer: place for place, layer in enumerate(removed)}
    kept = torch.stack([found[0][places[layer], head, 0] for layer, head in chosen]).numpy()  # [h, Q, 4 STRONGEST]
    return kept[..., 2 * STRONGEST :].astype(np.int64), kept[..., : 2 * STRONGEST]
