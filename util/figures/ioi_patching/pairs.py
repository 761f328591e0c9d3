"""The records of generated pairs of prompts: maps of all heads, sets of heads that work alone, and paths."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import Tensor

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
from util.prompts.ioi import IOITokens, group_by_shape
from util.records import cache
from util.records.checked import checked
from util.roles.name_pairs import NamePairs
from util.stats.heads import Head

BLOCK = 4096  # heads patched, all pairs together, in one cached block: seconds to a minute, which a kill can cost
POPULATION = {"part": "population"}


@checked
class Pairs(NamePairs):
    """Generated pairs of prompts, and what a model does with them."""

    stem = measures.STEM

    @property
    def own_request(self) -> dict[str, Any]:
        return {
            **measures.METHOD,
            "prompts": self.prompts,
            "corruption": self.corruption,
            "held_out": self.holds_out,
            "seed": self.seed,
        }

    def recorded_clusters(self) -> np.ndarray:
        """The clusters [N], drawn now or loaded: without the model where they were drawn before."""
        return self.record({"part": "clusters"}, lambda: {"clusters": self.clusters}).data["clusters"]

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

        def alone(kept: list[list[int]] | None) -> np.ndarray:
            scores: np.ndarray = self.record({"part": "circuit", "kept": kept}, partial(compute, kept)).data["scores"]
            return scores

        return list(map(alone, self.progress(sets, "circuits")))

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
