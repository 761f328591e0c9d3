"""The heads of an induction circuit in models: planted, trained and untrained, beside those made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from util.figures.planted_controls import planted_control
from util.figures.toy_induction_head.by_hand import Built, Lecture, Likeliest
from util.figures.toy_induction_head.results import FoundPatterns, Heads, PhaseChange, Results, ShownHead
from util.models import planted
from util.records.checked import Int, Natural, checked
from util.records.study import Study as AnyStudy
from util.roles.attention_scores import ROLES
from util.roles.results import HeadScores
from util.roles.sequences_study import AtLeastTwo, SequenceStudy


@checked
class Study(AnyStudy):
    """The best heads of a model on random tokens that repeat; records are those of `SequenceStudy`.

    length, copies: of a sequence; sequences: half to choose a head on, half to measure it on; seed: of the first
    sequence. untrained_control: whether the untrained twin is measured too, a second model in memory.
    """

    length: AtLeastTwo = 50
    copies: AtLeastTwo = 4
    sequences: Annotated[Int, Field(ge=4)] = 10
    seed: Natural = 0
    _: KW_ONLY
    untrained_control: bool = True

    stem = "toy_induction_head"

    def __post_init__(self) -> None:
        if self.untrained_control:
            self.model.expect_twin()

    @cached_property
    def on_sequences(self) -> SequenceStudy:
        """The study of the same model on repeated random sequences."""
        return SequenceStudy(
            self.model, self.length, self.copies, self.sequences, self.seed, folder=self.folder, redo=self.redo
        )

    @property
    def own_request(self) -> Mapping[str, Any]:
        """The request's part is that of `SequenceStudy`, with its stem."""
        return {"stem": self.on_sequences.stem, **self.on_sequences.own_request}

    @property
    def texts(self) -> list[str]:
        return self.on_sequences.texts

    @cached_property
    def _scores(self) -> HeadScores:
        return self.on_sequences.scores()

    def heads(self) -> Heads:
        """Returns the planted heads, the best heads of the model, and those of its untrained twin."""
        return self._heads

    @cached_property
    def _heads(self) -> Heads:
        model, truth = planted_control(planted.induction, {})
        known = self.on_sequences.replace(model=model, redo=False).scores()
        shown = [ShownHead("planted GPT-2", role, known.head(head)) for head, role in truth.names.items()]
        best = {self.model.title: self._scores.best_heads()}
        if self.untrained_control:
            best["untrained twin"] = self.on_sequences.twin().scores().best_heads()
        for whose, heads in best.items():
            shown += [ShownHead(whose, f"best {role.replace('_', ' ')}", heads[role]) for role in ROLES]
        decoys = {role: float(max(known.mean(role)[head] for head in truth.decoys)) for role in ROLES}
        return Heads(shown, best[self.model.title], decoys, self._scores.description)

    def patterns(self) -> FoundPatterns:
        """Returns the whole attention of the model's best heads."""
        best = self._scores.best_heads()
        patterns = self.on_sequences.patterns([head.head for head in best.values()])
        return FoundPatterns(patterns, best, self.model.title, self.length)

    def results(self, lecture: Lecture, built: Built, texts: Likeliest, training: PhaseChange) -> Results:
        """Returns these results together with what was made by hand and what training was seen to do."""
        request = {**self.request, "model": self.model.shown_name}
        return Results(request, lecture, built, self.heads(), texts, training)
