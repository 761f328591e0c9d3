"""The cached study of heads on repeated random sequences, which several figures build on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from util.engine.handshake import prepare
from util.prompts.sequences import Sequences, repeated_sequences
from util.roles import heads as head_arguments
from util.roles.repeated import measured_scores
from util.roles.results import HeadScores
from util.stats.heads import Head
from util.study.checked import Count, Int, Natural, checked
from util.study.records import Measurement

AtLeastTwo = Annotated[Int, Field(ge=2)]


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
            prepared = prepare(self.pair[0])
            check(len(prepared.layers), prepared.heads)
            return measured_scores(self.pair[0], self.drawn, removed)

        record = self.measured(compute, part="scores", ablated=head_arguments.plain(removed))
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
