"""Generated pairs of IOI prompts as a study: what is drawn, as texts and as tokens, and which pairs are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from util.engine.batches import check_context
from util.load_model_and_data import origin
from util.prompts.ioi import (
    HELD_OUT_FRAMES,
    HELD_OUT_NAMES,
    Corruption,
    IOIPrompts,
    IOITokens,
    ioi_prompts,
    ioi_tokens,
    word_lists,
)
from util.prompts.word_pairs import is_trained
from util.study.checked import Count, Natural, checked
from util.study.records import Measurement


@checked
class NamePairs(Measurement):
    """Generated pairs of prompts; what a model does with them is measured by studies that build on this one.

    corruption, prompts, seed: of the data set, see `prompts.ioi.ioi_prompts`. held_out: whether frames and names are
    those that the embedded models were not trained on; None: for these.
    """

    corruption: Corruption = "s2_swap"
    prompts: Count = 128
    seed: Natural = 0
    _: KW_ONLY
    held_out: bool | None = None

    word_lists = ("ioi.json",)

    def __post_init__(self) -> None:
        if self.prompts > (most := most_pairs(*self._words)):
            raise ValueError(f"prompts = {self.prompts}: the lists of words make {most} different pairs at most")

    @property
    def holds_out(self) -> bool:
        """Whether frames and names are those that the embedded model was not trained on."""
        if self.held_out is not None:
            return self.held_out
        name = self.model.name
        return is_trained(name) or Path(origin(name)).resolve() == Path(origin("embedded")).resolve()

    # -------------------------------------------------------------------------------------------- the prompts

    @property
    def _words(self) -> tuple[Sequence[str], Sequence[str]]:
        """The frames and names that prompts are made from, before the tokenizer keeps some of the names."""
        lists = {"frames": sorted(HELD_OUT_FRAMES), "names": sorted(HELD_OUT_NAMES)} if self.holds_out else word_lists()
        return lists["frames"], lists["names"]

    @cached_property
    def drawn(self) -> IOIPrompts:
        """The pairs of prompts. Raises what `ioi_prompts` raises, such as for words that the tokenizer splits."""
        return ioi_prompts(self.pair[1], self.prompts, self.seed, self.corruption, *self._words)

    @cached_property
    def tokens(self) -> list[IOITokens]:
        """The pairs as tokens."""
        return [ioi_tokens(pair, self.pair[1]) for pair in self.drawn.pairs]

    @property
    def texts(self) -> list[str]:
        return [prompt.text for pair in self.drawn.pairs for prompt in (pair.base, pair.source)]

    @property
    def clusters(self) -> NDArray[np.int64]:
        """The number [N] of every pair's frame and names: pairs that share them are no independent prompts."""
        kinds = ["\0".join([pair.frame, *sorted(pair.base.labels)]) for pair in self.drawn.pairs]
        return np.unique(kinds, return_inverse=True)[1]

    def batch(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the tokens [N, T] of base and source and the answers [N, 2] of some pairs, all of one length."""
        rows = [(tokens.base, tokens.source, tokens.answers) for tokens in (self.tokens[number] for number in numbers)]
        base, source, answers = map(torch.tensor, zip(*rows, strict=True))
        return base, source, answers

    def check(self) -> None:
        """Raises what the words, the tokenizer and the model's context make of the pairs, before any forward pass."""
        check_context(self.pair[0], [len(tokens.base) for tokens in self.tokens], "another model")


def most_pairs(frames: Sequence[str], names: Sequence[str]) -> int:
    """Returns how many different base prompts the lists make: frames, two names in either order, places, objects."""
    places, objects = (len(word_lists()[name]) for name in ("places", "objects"))
    words = sum(places ** ("{PLACE}" in frame) * objects ** ("{OBJECT}" in frame) for frame in frames)
    return 2 * len(names) * (len(names) - 1) * words
