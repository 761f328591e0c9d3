"""What heads do on one text: whom each token reads and is read by, and which words what a head writes there raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.batches import Batch, Row, check_context, forward
from util.engine.components import direct_effects, known_blocks
from util.engine.handshake import check_length, prepare
from util.engine.instruments import CaptureRows
from util.engine.replay import plan_of
from util.prompts.prompt import Tokens, with_bos
from util.stats.heads import Head, check_heads

Floats = NDArray[np.floating]
WHOLE = 64  # tokens of a text that is looked at from all of its tokens, else from those asked for
STRONGEST = 5  # words, raised and lowered
CHUNK = 256  # rows of attention at a time, where only some keys are kept


@dataclass(frozen=True)
class Looked:
    """What some heads do on a text of T tokens, seen from Q of them.

    tokens [T]: as text; queries [Q]: positions; heads [h], of `shape`: layers, and heads of each. reads [h, Q, T]: the
    attention of each query to every token; read_by [h, Q, T]: the attention of every token to it. words, effects
    [h, Q, 2 STRONGEST]: the tokens whose logits fall most without what the head writes at the query, and those whose
    logits rise most, and by how much they fall beside the mean of all tokens; None where the class cannot be taken
    apart. vocabulary: these tokens as text.
    """

    tokens: Sequence[str]
    queries: Sequence[int]
    heads: Sequence[Head]
    shape: tuple[int, int]
    reads: Floats
    read_by: Floats
    words: NDArray[np.int64] | None
    effects: Floats | None
    vocabulary: Mapping[int, str]


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
    support, read = prepare(model), with_bos(text, tokenizer)
    ids, shape = read.ids, (len(support.layers), support.heads)
    check_context(model, [len(ids)], "a shorter text")
    check_length(model, len(ids))
    known_blocks(model)  # how the class is built, and run at this length, is found out before instruments are attached
    plan_of(model, len(ids))
    if heads is None and len(ids) > WHOLE:
        raise ValueError(f"the text has {len(ids)} tokens; name the heads to look at, or give up to {WHOLE} tokens")
    if heads is None:
        heads = [*np.ndindex(shape)]
    check_heads(heads, *shape)
    if positions is None:
        positions = range(len(ids)) if len(ids) <= WHOLE else [-1]
    if not len(heads) or not len(positions):
        raise ValueError("name one head and one position at least, or leave them out for all")
    if nowhere := [place for place in positions if not -len(ids) <= place < len(ids)]:
        raise ValueError(f"the text has {len(ids)} tokens, from 0; there are none at {nowhere}")
    heads = [(int(layer), int(head)) for layer, head in heads]
    queries = sorted({int(place) % len(ids) for place in positions})
    chosen = [(support.layers[layer], head) for layer, head in heads]
    layers = list(dict.fromkeys(layer for layer, _ in chosen))
    rows, columns, written = _run(model, tokenizer, ids, queries, layers)
    reads = np.stack([rows.weights[layer][0, head].cpu() for layer, head in chosen])
    read_by = np.stack(
        [torch.cat([some.weights[layer][0, head] for some in columns]).T.cpu() for layer, head in chosen]
    )
    words = effects = None
    if written is not None:
        kept = torch.stack([written[0][layers.index(layer), head, 0] for layer, head in chosen]).numpy()
        words, effects = kept[..., 2 * STRONGEST :].astype(np.int64), kept[..., : 2 * STRONGEST]
    vocabulary = {word: tokenizer.decode([word]) for word in ([] if words is None else np.unique(words).tolist())}
    texts = _texts(text, tokenizer, read)
    return Looked(texts, queries, heads, shape, reads, read_by, words, effects, vocabulary)


def _texts(text: str, tokenizer: Any, read: Tokens) -> list[str]:
    """Each token as text; of several tokens that are one character together, the first has it."""
    ends = [0, *(span[1] if span else 0 for span in read.spans)]
    return [
        tokenizer.decode([token]) if span is None else text[slice(*span)] if span[0] >= end else "…"
        for token, span, end in zip(read.ids, read.spans, ends, strict=False)
    ]


def _run(
    model: PreTrainedModel, tokenizer: Any, ids: Sequence[int], queries: Sequence[int], layers: Sequence[int]
) -> tuple[CaptureRows, list[CaptureRows], tuple[Tensor, Tensor] | None]:
    """One run of a text: what queries read, who reads them, and which words the heads of some layers raise there.

    The last is [l, H, 1, Q, 4 STRONGEST]: the effects of the most raised and most lowered words, and these words.
    """
    rows = CaptureRows(torch.tensor(queries), layers=layers)
    chunks = torch.arange(len(ids)).split(CHUNK)
    columns = [CaptureRows(some, torch.tensor(queries).expand(len(some), -1), layers) for some in chunks]
    every = torch.arange(min(len(tokenizer), model.get_output_embeddings().weight.shape[0]))[None]

    def strongest(without: Tensor, base: Tensor) -> Tensor:
        effect = base - without
        effect = effect - effect.mean(-1, keepdim=True)
        both = [effect.topk(STRONGEST, largest=largest) for largest in (True, False)]
        return torch.cat([*(one.values for one in both), *(one.indices.to(effect) for one in both)], -1)

    with instrument(model, rows, *columns):
        written = direct_effects(model, torch.tensor([ids]), dict.fromkeys(layers), every, queries, strongest)
        if written is None:
            forward(model, Batch.of([Row(tuple(ids))], [0]))
    return rows, columns, written
