"""Effects of single heads: cells (query, key) of attention that are cut, their control, what is written instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import support
from util.engine.call import Support, at_least_float32
from util.engine.handshake import prepare
from util.engine.instruments import ByLayer, Knockout, PatchHeads
from util.engine.replay import Edit, Place
from util.roles.rules import Evidence, Role, Score
from util.stats.heads import Floats, Head, check_heads
from util.study.records import ComputeBlock, Fields, Join, Measurement

Cells = NDArray[np.int64]  # [C, 2]: query, key
Blocks = list[list[int]]
Heads = Sequence[Head]
Numbers = Sequence[int]


def heads_by_layer(model: Support, heads: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Returns heads by the model's own layer numbers; given are places among the layers that have attention.

    Raises ValueError for a head that the model does not have.
    """
    check_heads(heads, len(model.layers), model.heads)
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(model.layers[layer], []).append(head)
    return by_layer


def shape_of_scores(model: PreTrainedModel, prompts: int) -> tuple[int, int, int]:
    """Returns the shape [N, L, H] of what is measured of all heads on N prompts."""
    prepared = prepare(model)
    return prompts, len(prepared.layers), prepared.heads


def stacked(by_layer: ByLayer) -> Floats:
    """Returns what an instrument captured in each of L layers [B, ...] as one array [B, L, ...], float32 or float64."""
    return np.stack([at_least_float32(captured).cpu().numpy() for captured in by_layer.values()], axis=1)


def evidence(
    study: Measurement,
    role: Role,
    score: Score,
    measure: ComputeBlock,
    blocks: Callable[[], Blocks],
    join: Join,
    effect: Callable[[Fields], Iterable[Floats]] = itemgetter("cut", "control"),
    part: str = "effects",
    **fields: Any,
) -> Evidence:
    """Returns the evidence on a role: the effects of the heads that its score chooses are measured.

    measure: of a block of numbers; blocks: what is measured before it is kept; effect: the effect and its control,
    [M, C] each, of what was measured; part, fields: what the record's request has, else the role.
    """
    if not score.chosen:
        return Evidence(role, score, np.empty(0), np.empty(0))
    request = {"part": part, "heads": [*map(list, score.chosen)], **(fields or {"role": str(role)})}
    record = study.measured_in_blocks(blocks, measure, join, **request)
    return Evidence(role, score, *effect(record.data))


def cuts(model: PreTrainedModel, heads: Heads, *of_prompts: Sequence[Cells]) -> list[Edit]:
    """Returns the edits that cut cells of each of the N prompts in one head, for several sets of cells [N]."""
    layers = support(model).layers
    return [head_cut(layers[layer], head, cells) for cells in of_prompts for layer, head in heads]


def head_cut(layer: int, head: int, cells: Sequence[Cells]) -> Edit:
    """Returns the edit that cuts cells in one head.

    layer: the model's own number; cells: of each of the N prompts, [C, 2] (query, key).
    """

    def instruments(place: Place) -> list[Knockout]:
        together = [
            (example, query - place.queries.start, key)
            for example, of_prompt in zip(place.examples.tolist(), cells[place.prompts], strict=True)
            for query, key in of_prompt.tolist()
            if query in place.queries
        ]
        return [Knockout(torch.tensor(together), layer, head)] if together else []

    return Edit(layer, instruments)


def last_write(layer: int, head: int, values: Tensor) -> Edit:
    """Returns the edit that writes values [N, dv], one for each prompt, into one head at the last token.

    layer: the model's own number.
    """

    def instruments(place: Place) -> list[PatchHeads]:
        last = torch.tensor([len(place.queries) - 1])
        return [PatchHeads(layer, head, values[place.prompts, None, None], last, examples=place.examples)]

    return Edit(layer, instruments)


def other_cells(cut: Cells, special: int, seed: Numbers) -> Cells:
    """Returns, for every query of `cut` [C, 2], as many other earlier keys, drawn at random: its control, [C', 2].

    special: how many special tokens stand in front, which are never drawn. There are fewer cells than in the cut where
    a query has not enough other earlier tokens.
    """
    rng, drawn = np.random.default_rng(seed), [np.empty((0, 2), np.int64)]
    for query in np.unique(cut[:, 0]):
        read = cut[cut[:, 0] == query, 1]
        keys = rng.permutation(np.setdiff1d(np.arange(special, query), read))[: len(read)]
        drawn.append(np.stack(np.broadcast_arrays(query, np.sort(keys)), axis=1))
    return np.concatenate(drawn)
