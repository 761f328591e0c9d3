"""The cached study of heads on repeated random sequences, which several figures build on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from util.engine.attention import support
from util.engine.batches import Batch, Row, check_context, forward
from util.engine.handshake import prepare
from util.engine.instruments import CaptureRows, PatchHeads
from util.prompts.sequences import Sequences, repeated_sequences
from util.roles import heads as head_arguments
from util.roles.head_scores import head_scores, heads_by_layer
from util.roles.results import HeadScores, Patterns
from util.stats.heads import Head
from util.study.base import Study
from util.study.checked import Count, Int, Natural, checked

AtLeastTwo = Annotated[Int, Field(ge=2)]


@checked
class SequenceStudy(Study):
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
    def own_request(self) -> dict[str, Any]:
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
        return self.drawn_in_copies(self.copies)

    def drawn_in_copies(self, copies: int) -> Sequences:
        """Returns the same tokens in another number of copies."""
        return repeated_sequences(self.pair[1], self.length, copies, self.seeds, self.bos)

    @property
    def texts(self) -> list[str]:
        return list(map(str, self.drawn.ids.tolist()))

    def scores(
        self, ablated: Iterable[Head] = (), *, check: Callable[[int, int], object] = lambda layers, heads: None
    ) -> HeadScores:
        """Returns the attention scores of all heads.

        ablated: heads whose outputs are zero meanwhile. check: is called with the numbers of layers and of heads in a
        layer before anything is measured. Raises ValueError for heads that there are not, and what
        `repeated_sequences` raises.
        """
        removed = head_arguments.checked_heads(ablated, "ablated")

        def compute() -> dict[str, Any]:
            model = self.pair[0]
            prepared = prepare(model)
            check(len(prepared.layers), prepared.heads)
            zeros = [PatchHeads(layer, heads, 0.0) for layer, heads in heads_by_layer(prepared, removed).items()]
            scores = head_scores(model, self.drawn, *zeros)
            more = {"ids": self.drawn.ids, "ranking": self.drawn.ranking, "layers": list(prepared.layers)}
            return {**scores, **more}

        record = self.record({"part": "scores", "ablated": head_arguments.plain(removed)}, compute)
        data = dict(record.data)
        check(*data["prefix_matching"].shape[1:])
        return HeadScores(
            ids=data.pop("ids"),
            layers=data.pop("layers"),
            ranking=data.pop("ranking"),
            scores=data,
            length=self.length,
            copies=self.copies,
            bos=self.bos,
            model_title=self.model.title,
            description=record.provenance["model"],
        )

    def patterns(self, heads: Iterable[Head]) -> Patterns:
        """Returns the whole attention of some heads, in their order, on the last sequence.

        Raises ValueError, before any forward pass, for heads that there are not.
        """
        wanted = tuple(head_arguments.checked_head(head, "heads") for head in heads)

        def compute() -> dict[str, Any]:
            model, ids = self.pair[0], self.drawn.ids[-1]
            numbers = prepare(model).layers
            heads_by_layer(support(model), wanted)
            check_context(model, [len(ids)], "a smaller length or fewer copies")
            rows = CaptureRows(torch.arange(len(ids)), layers={numbers[layer] for layer, _ in wanted})
            forward(model, Batch.of([Row(tuple(ids.tolist()))], [0], [len(self.drawn.ids) - 1]), rows)
            attention = [rows.weights[numbers[layer]][0, head].float().cpu().numpy() for layer, head in wanted]
            return {"attention": np.stack(attention), "ids": ids}

        data = self.record({"part": "patterns", "heads": head_arguments.plain(wanted)}, compute).data
        return Patterns(wanted, data["attention"], data["ids"])
