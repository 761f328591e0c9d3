"""Heads on repeated random sequences: their scores and their whole attention, kept as records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY
from functools import cache, cached_property
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.batches import Batch, Row, check_context, forward
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, PatchHeads
from util.prompts.sequences import Sequences, repeated_sequences
from util.roles.head_scores import HeadScores, head_scores, heads_by_layer
from util.roles.heads import checked_heads, plain
from util.stats.heads import Head
from util.study.checked import Count, Int, Natural, checked
from util.study.records import Fields, Measurement, Records

Numbers = Sequence[int]
Heads = Sequence[Head]
AtLeastTwo = Annotated[Int, Field(ge=2)]


def measured_scores(model: PreTrainedModel, sequences: Sequences, ablated: Heads = ()) -> Fields:
    """Returns attention scores [N, L, H] by name, see `attention_scores.cells`; ids [N, T], ranking, layers.

    ablated: heads whose outputs are zero meanwhile.
    """
    prepared = prepare(model)
    zeros = [PatchHeads(layer, heads, 0.0) for layer, heads in heads_by_layer(prepared, ablated).items()]
    scores = head_scores(model, sequences, *zeros)
    return {**scores, "ids": sequences.ids, "ranking": sequences.ranking, "layers": list(prepared.layers)}


def _record(
    study: Records,
    name: str,
    compute: Callable[[PreTrainedModel, Sequences], Fields],
    length: int,
    copies: int,
    seeds: Numbers,
    **more: Any,
) -> Fields:
    @cache
    def drawn() -> Sequences:
        return repeated_sequences(study.pair[1], length, copies, list(seeds), bos=True)

    request = {"length": length, "copies": copies, "seeds": list(seeds), "bos": True, **more}
    return study.record(
        name, lambda: compute(study.pair[0], drawn()), lambda: map(str, drawn().ids.tolist()), **request
    ).data


def scores(study: Records, length: int, copies: int, seeds: Numbers) -> Fields:
    """The `measured_scores` of all heads, a record of a figure.

    length: tokens of a copy; copies: how often they come; seeds: one for each sequence. Raises what
    `repeated_sequences` raises.
    """
    return _record(study, "sequence scores", measured_scores, length, copies, seeds, ablated=[])


def patterns(study: Records, heads: Heads, length: int, copies: int, seeds: Numbers) -> Fields:
    """The whole attention [heads, T, T], query by key, of some heads on the last sequence, ids [T].

    Raises ValueError, before any forward pass, for heads that there are not.
    """

    def compute(model: PreTrainedModel, sequences: Sequences) -> Fields:
        ids, layers = sequences.ids[-1], prepare(model).layers
        heads_by_layer(support(model), heads)
        check_context(model, [len(ids)], "a smaller length or fewer copies")
        rows = CaptureRows(torch.arange(len(ids)), layers={layers[layer] for layer, _ in heads})
        forward(model, Batch.of([Row(tuple(ids.tolist()))], [0], [len(seeds) - 1]), rows)
        attention = [rows.weights[layers[layer]][0, head].float().cpu().numpy() for layer, head in heads]
        return {"attention": np.stack(attention), "ids": ids}

    return _record(study, "sequence patterns", compute, length, copies, seeds, heads=plain(heads))


@checked
class SequenceStudy(Measurement):
    """Heads of a model on random tokens that repeat, see `prompts.sequences`.

    length: tokens of a copy; copies: how often they come; sequences: how many are drawn, by seed, seed + 1, ...; bos:
    whether BOS stands first.
    """

    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    sequences: Count = 5
    seed: Natural = 0
    _: KW_ONLY
    bos: bool = True

    stem = "induction_scores"

    @property
    def own_request(self) -> Fields:
        return {
            "schema": 1,
            "method_version": 1,
            "length": self.length,
            "copies": self.copies,
            "seeds": list(self.seeds),
            "bos": self.bos,
        }

    @property
    def seeds(self) -> range:
        """The seed of each sequence."""
        return range(self.seed, self.seed + self.sequences)

    @cached_property
    def drawn(self) -> Sequences:
        """The sequences. Raises what `repeated_sequences` raises."""
        return repeated_sequences(self.pair[1], self.length, self.copies, self.seeds, self.bos)

    @property
    def texts(self) -> list[str]:
        return list(map(str, self.drawn.ids.tolist()))

    def scores(self, ablated: Iterable[Head] = ()) -> HeadScores:
        """Returns the attention scores of all heads.

        ablated: heads whose outputs are zero meanwhile. Raises ValueError for heads that there are not, and what
        `repeated_sequences` raises.
        """
        removed = checked_heads(ablated, "ablated")

        def compute() -> Fields:
            return measured_scores(self.pair[0], self.drawn, removed)

        record = self.measured(compute, part="scores", ablated=plain(removed))
        scores = dict(record.data)
        ids, layers, ranking = (scores.pop(name) for name in ("ids", "layers", "ranking"))
        title, description = self.model.title, record.provenance["model"]
        return HeadScores(scores, ids, layers, ranking, self.length, self.copies, self.bos, title, description)
