"""Attention scores of all heads of a model on repeated sequences; no attention matrix is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, run_rows
from util.engine.call import Instrument, Support
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads, ScoreRows
from util.prompts.sequences import Sequences
from util.roles import attention_scores
from util.roles.attention_scores import Floats
from util.stats.heads import check_heads
from util.stats.intervals import Intervals, mean_intervals


def heads_by_layer(model: Support, heads: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Returns heads by the model's own layer numbers; given are places among the layers that have attention.

    Raises ValueError for a head that the model does not have.
    """
    check_heads(heads, len(model.layers), model.heads)
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        by_layer.setdefault(model.layers[layer], []).append(head)
    return by_layer


def silenced(model: Support, heads: Sequence[Sequence[int]]) -> list[PatchHeads]:
    """What makes heads put out zero at all positions. Raises what `heads_by_layer` raises."""
    return [PatchHeads(layer, some, 0.0) for layer, some in heads_by_layer(model, heads).items()]


@dataclass(frozen=True)
class HeadScores:
    """Attention scores of all heads on repeated random sequences.

    scores: [N, L, H] by name, see `attention_scores.cells`. ids: [N, T], the sequences. layers: the model's own numbers
    of the L layers that have attention. ranking: how the frequency of tokens was ranked. model_title: see
    `study.model.Model.title`; description: what the model is, in words.
    """

    scores: Mapping[str, Floats]
    ids: NDArray[np.int64]
    layers: Sequence[int]
    ranking: str
    length: int
    copies: int
    bos: bool
    model_title: str
    description: str

    def mean(self, name: str = "prefix_matching") -> NDArray[np.float64]:
        """Returns one score [L, H], the mean of the sequences."""
        return self.scores[name].mean(0)

    def intervals(self, name: str = "prefix_matching") -> Intervals:
        """Returns one score [L, H] with its 95 % interval over sequences."""
        return mean_intervals(self.scores[name], within=(0, 1))

    @property
    def uniform(self) -> float:
        """The prefix-matching score of uniform attention on these sequences."""
        return attention_scores.uniform_prefix_matching(self.length, self.copies, self.bos)


def head_scores(
    model: PreTrainedModel, sequences: Sequences, *attached: Instrument, token_budget: int = TOKEN_BUDGET
) -> dict[str, np.ndarray]:
    """Returns every score of `attention_scores.cells`, [N, L, H] by name, of N sequences.

    attached: instruments that act before the scores are read.
    """
    layout = (sequences.length, sequences.copies, sequences.bos)
    prepared = prepare(model)
    rows = torch.from_numpy(attention_scores.queries(*layout))
    cells = {name: torch.from_numpy(cell) for name, cell in attention_scores.cells(*layout).items()}
    check_context(model, [sequences.ids.shape[1]], "a smaller length or fewer copies")
    shape = (len(sequences.ids), len(prepared.layers), prepared.heads)
    scores = {name: np.empty(shape) for name in cells}

    def visit(batch: Batch) -> None:
        read = ScoreRows(rows, cells)
        forward(model, batch, *attached, read)
        for name, by_layer in read.scores.items():
            stacked = np.stack([by_layer[layer].double().cpu().numpy() for layer in prepared.layers], axis=1)
            scores[name][batch.numbers] = stacked / len(rows)

    with tqdm(total=len(sequences.ids), desc="scores", unit="sequence", leave=False, delay=5) as bar:
        run_rows(model, [Row(tuple(ids)) for ids in sequences.ids.tolist()], visit, token_budget, bar)
    return scores
