"""The records of generated pairs of prompts: maps of all heads, sets of heads that work alone, and paths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from util.engine.batches import check_context
from util.engine.handshake import prepare
from util.figures.ioi_patching import measures
from util.figures.ioi_patching.patching import (
    MAPS,
    RUNS,
    ablated_outside,
    all_paths,
    heads_of,
    logit_difference,
    measure,
    model_heads,
)
from util.load_model_and_data import origin
from util.models.embedded_words import HELD_OUT_FRAMES, HELD_OUT_NAMES
from util.prompts.ioi import (
    Corruption,
    IOIPair,
    IOIPrompts,
    IOITokens,
    group_by_shape,
    ioi_prompts,
    ioi_tokens,
    word_lists,
)
from util.records import cache, study
from util.records.checked import Count, Natural, checked
from util.stats.heads import Head

BLOCK = 4096  # heads patched, all pairs together, in one cached block: seconds to a minute, which a kill can cost
POPULATION = {"part": "population"}


@checked
class Pairs(study.Study):
    """Generated pairs of prompts, and what a model does with them.

    corruption, prompts, seed: of the data set, see `prompts.ioi.ioi_prompts`. held_out: whether frames and names are
    those that the embedded model was not trained on; None: for the embedded model.
    """

    corruption: Corruption = "s2_swap"
    prompts: Count = 128
    seed: Natural = 0
    _: KW_ONLY
    held_out: bool | None = None

    stem = measures.STEM
    word_lists = ("ioi.json",)

    def __post_init__(self) -> None:
        most = most_pairs(self.frames, self.names)
        if self.prompts > most:
            raise ValueError(f"prompts = {self.prompts}: the lists of words make {most} different pairs at most")

    @property
    def holds_out(self) -> bool:
        """Whether frames and names are those that the embedded model was not trained on."""
        if self.held_out is not None:
            return self.held_out
        return Path(origin(self.model.name)).resolve() == Path(origin("embedded")).resolve()

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            **measures.METHOD,
            "prompts": self.prompts,
            "corruption": self.corruption,
            "held_out": self.holds_out,
            "seed": self.seed,
        }

    # -------------------------------------------------------------------------------------------- the prompts

    @property
    def frames(self) -> Sequence[str]:
        """The frames that prompts are made from."""
        return sorted(HELD_OUT_FRAMES) if self.holds_out else word_lists()["frames"]

    @property
    def names(self) -> Sequence[str]:
        """The names that prompts are made from, before the tokenizer keeps some of them."""
        return sorted(HELD_OUT_NAMES) if self.holds_out else word_lists()["names"]

    @cached_property
    def drawn(self) -> IOIPrompts:
        """The pairs of prompts. Raises what `ioi_prompts` raises, such as for words that the tokenizer splits."""
        return ioi_prompts(self.pair[1], self.prompts, self.seed, self.corruption, self.frames, self.names)

    @cached_property
    def tokens(self) -> list[IOITokens]:
        """The pairs as tokens."""
        return [ioi_tokens(pair, self.pair[1]) for pair in self.drawn.pairs]

    @property
    def texts(self) -> list[str]:
        return [prompt.text for pair in self.drawn.pairs for prompt in (pair.base, pair.source)]

    @property
    def clusters(self) -> np.ndarray:
        """The number [N] of every pair's frame and names: pairs that share them are no independent prompts."""
        kinds = [_frame_and_names(pair) for pair in self.drawn.pairs]
        numbers = {kind: number for number, kind in enumerate(sorted(set(kinds)))}
        return np.array([numbers[kind] for kind in kinds])

    def recorded_clusters(self) -> np.ndarray:
        """The clusters [N], drawn now or loaded: without the model where they were drawn before."""
        return self.record({"part": "clusters"}, lambda: {"clusters": self.clusters}).data["clusters"]

    def batch(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the tokens [N, T] of base and source and the answers [N, 2] of some pairs, all of one length."""
        chosen = [self.tokens[number] for number in numbers]
        base = torch.tensor([tokens.base for tokens in chosen])
        source = torch.tensor([tokens.source for tokens in chosen])
        return base, source, torch.tensor([tokens.answers for tokens in chosen])

    def check(self) -> None:
        """Raises what the words, the tokenizer and the model's context make of the pairs, before any forward pass."""
        check_context(self.pair[0], [len(tokens.base) for tokens in self.tokens])

    # -------------------------------------------------------------------------------------------- maps of all heads

    @property
    def stored_maps(self) -> cache.Record | None:
        """The record of `maps` where it was measured already."""
        return None if self.redo else cache.load({**self.request, **POPULATION}, self.place, self.expected)

    def maps(self) -> cache.Record:
        """Returns the record of all pairs, measured now or loaded. All logit differences are of the base's answers.

        Its data: base, source [N]; noised [N, L, H], the base run with one head from the source; denoised [N, L, H],
        the source run with one head from the base; attribution [N, L, H], the first-order estimate of noised minus
        base; direct [N, L, H], the part of it that goes to the output directly, see `patching.direct_map`; probability
        [N], of IO after the base; clusters [N]; order [N], an index into `orders`; dropped and rejected: what
        `ioi_prompts` left out, and why; path, see `replay.Replayed`.

        Pairs are measured in cached blocks, so that an interrupted run goes on where it stopped, also under redo.
        """
        return self.record_in_blocks(POPULATION, self._blocks, self._measure, self._joined)

    def _blocks(self) -> list[list[int]]:
        self.check()
        support = prepare(self.pair[0])
        return blocks(self.tokens, len(support.layers) * support.heads)

    def _measure(self, numbers: Sequence[int]) -> dict[str, Any]:
        return {**measure(self.pair[0], *self.batch(numbers), self.tokens[numbers[0]].first), "numbers": list(numbers)}

    def _joined(self, measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            **in_order(measured, (*MAPS, *RUNS)),
            "clusters": self.clusters,
            "order": np.array([pair.order == "BABA" for pair in self.drawn.pairs], np.int64),
            "orders": ["ABBA", "BABA"],
            "path": measured[-1]["path"],
            "dropped": dict(self.drawn.dropped),
            "rejected": dict(self.drawn.words.rejected),
        }

    # -------------------------------------------------------------------------------------------- sets and paths

    @cached_property
    def frame_groups(self) -> list[tuple[list[int], Tensor, Tensor, dict[int, Tensor]]]:
        """By frame: the numbers of its pairs, the base's tokens and answers, and the mean of z over the sources.

        The means [1, T, H, dv] are by the model's own layer number.
        """
        groups = []
        for frame in sorted({pair.frame for pair in self.drawn.pairs}):
            numbers = [number for number, pair in enumerate(self.drawn.pairs) if pair.frame == frame]
            base, source, answers = self.batch(numbers)
            means = {layer: z.mean(0, keepdim=True) for layer, z in heads_of(self.pair[0], source).items()}
            groups.append((numbers, base, answers, means))
        return groups

    def working_alone(self, sets: Sequence[list[list[int]] | None]) -> list[np.ndarray]:
        """Returns, for each set of heads, the logit differences [N] of the base prompts where only this set works.

        None is the set of all heads. All heads outside of a set are ablated at all positions: their outputs become the
        mean over the sources of one frame. Each set has a record of its own. Raises ValueError for a head that the
        model does not have, in any of the sets, before the first forward pass.
        """

        def compute(kept: list[list[int]] | None) -> dict[str, Any]:
            for some in sets:
                model_heads(prepare(self.pair[0]), as_heads(some or []))
            scores = np.empty(len(self.drawn.pairs), np.float32)
            for numbers, base, answers, means in self.frame_groups:
                scores[numbers] = ablated_outside(
                    self.pair[0], base, answers, means, None if kept is None else as_heads(kept)
                )
            return {"scores": scores}

        shown = self.progress(sets, "circuits")
        return [self.record({"part": "circuit", "kept": kept}, partial(compute, kept)).data["scores"] for kept in shown]

    def paths(self, heads: list[list[int]]) -> cache.Record:
        """Returns the record of what K heads tell each other and the output, measured now or loaded.

        Its data: direct [N, K] and edges [N, K, K, 4], see `patching.all_paths`; base, source [N]; clusters [N];
        refused: why a class has no paths, empty where it has.
        """

        places = as_heads(heads)

        def groups() -> list[list[int]]:
            model_heads(prepare(self.pair[0]), places)
            return list(group_by_shape(self.tokens).values())

        def measure_group(numbers: Sequence[int]) -> dict[str, Any]:
            model, (base, source, answers) = self.pair[0], self.batch(numbers)
            return {
                **all_paths(model, base, source, answers, places),
                "base": logit_difference(model, base, answers).numpy(),
                "source": logit_difference(model, source, answers).numpy(),
                "numbers": list(numbers),
            }

        def joined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
            arrays = in_order(measured, ("direct", "edges", "base", "source"))
            return {**arrays, "clusters": self.clusters, "refused": measured[-1]["refused"]}

        return self.record_in_blocks({"part": "paths by channel", "heads": heads}, groups, measure_group, joined)


def in_order(measured: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, np.ndarray]:
    """The named arrays of several blocks as one array each, [N, ...] in the order of the pairs.

    measured: of each block, arrays [n, ...] and `numbers`, the numbers of its pairs.
    """
    order = np.argsort([number for block in measured for number in block["numbers"]])
    return {name: np.concatenate([block[name] for block in measured])[order].astype(np.float32) for name in names}


def as_heads(plain: Sequence[Sequence[int]]) -> list[Head]:
    """Returns heads in the form that functions take, of those in a request."""
    return [(layer, head) for layer, head in plain]


def blocks(tokens: Sequence[IOITokens], heads: int) -> list[list[int]]:
    """Returns the numbers of the pairs that are measured together: of one shape, at most BLOCK patched heads."""
    most = max(1, BLOCK // heads)
    return [
        numbers[start : start + most]
        for numbers in group_by_shape(tokens).values()
        for start in range(0, len(numbers), most)
    ]


def most_pairs(frames: Sequence[str], names: Sequence[str]) -> int:
    """Returns how many different base prompts the lists make: frames, two names in either order, places, objects."""
    fields = {"{PLACE}": len(word_lists()["places"]), "{OBJECT}": len(word_lists()["objects"])}
    words = sum(prod(count for field, count in fields.items() if field in frame) for frame in frames)
    return 2 * len(names) * (len(names) - 1) * words


def _frame_and_names(pair: IOIPair) -> tuple[str, str]:
    return pair.frame, " ".join(sorted(pair.base.labels))
