"""Attention scores of heads on repeated sequences, from arrays alone.

A sequence (`prompts.sequences`) is `copies` times the same `length` tokens, with a BOS in front where `bos`. A head is
scored by what it attends to from the tokens of the second and later copies. Heads are (layer, head), both places in
the arrays. Source: Crosbie & Shutova 2024, section 4.2, after Olsson et al. 2022 and Bansal et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.stats.heads import Head, head_name, top
from util.stats.intervals import Interval, mean_interval

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

INDUCTION_HEAD = 0.3  # the prefix-matching score from which Crosbie & Shutova speak of induction heads
ROLES = ("previous_token", "prefix_matching")  # the scores of the two heads of an induction circuit


def queries(length: int, copies: int, bos: bool = True) -> NDArray[np.int64]:
    """Returns the positions that are scored, [Q]: all tokens of all copies but the first."""
    return np.arange(length, copies * length) + bos


def successors(length: int, copies: int, bos: bool = True, bansal_boundary: bool = False) -> Bools:
    """Returns which keys follow an earlier occurrence of a query's own token, [Q, T]: one key for each earlier copy.

    bansal_boundary: the last query of each copy also counts the first token, where nothing matches, as in the code of
    Bansal et al. and of Crosbie & Shutova.
    """
    query = queries(length, copies, bos)
    key = np.arange(copies * length + bos)
    distance = query[:, None] - key[None]
    first = bos and bansal_boundary
    return (distance >= 0) & (distance % length == length - 1) & (key[None] > bos - first)


def cells(length: int, copies: int, bos: bool = True) -> dict[str, Bools]:
    """Returns the keys [Q, T] that each score counts, by the name of the score.

    prefix_matching: `successors`; bansal: the same with the boundary of their code; duplicate_token: earlier
    occurrences of the query's own token; previous_token: the token before the query; sink: the first token of all,
    which is BOS where there is one.
    """
    distance = queries(length, copies, bos)[:, None] - np.arange(copies * length + bos)[None]
    position = np.broadcast_to(np.arange(copies * length + bos), distance.shape)
    return {
        "prefix_matching": successors(length, copies, bos),
        "bansal": successors(length, copies, bos, bansal_boundary=True),
        "duplicate_token": (distance > 0) & (distance % length == 0) & (position >= bos),
        "previous_token": distance == 1,
        "sink": position == 0,
    }


def prefix_matching(rows: Floats, length: int, copies: int, bos: bool = True) -> NDArray[np.float64]:
    """Returns the prefix-matching scores [...], from 0 to 1, of attention rows [..., Q, T] at `queries`.

    The score is the attention to all `successors` of a query, summed over them and averaged over queries. Raises
    ValueError for rows of another shape.
    """
    counted = successors(length, copies, bos)
    if rows.shape[-2:] != counted.shape:
        raise ValueError(f"rows of shape {rows.shape}: the last two of {copies} x {length} tokens are {counted.shape}")
    return np.einsum("...qt,qt->...", rows, counted, dtype=np.float64) / len(counted)


def uniform_prefix_matching(length: int, copies: int, bos: bool = True, bansal_boundary: bool = False) -> float:
    """Returns the score of attention that is uniform over all visible keys, as that of an untrained head is."""
    query = queries(length, copies, bos)
    rows = np.tri(copies * length + bos)[query] / (query[:, None] + 1)
    return float((rows * successors(length, copies, bos, bansal_boundary)).sum() / len(query))


def variants(score: Floats, length: int, copies: int, bos: bool = True) -> dict[str, NDArray[np.float64]]:
    """Returns what other definitions make of prefix-matching scores [...], by name.

    "mean over entries": averaged over (query, key) pairs, a literal reading of Olsson et al.; a perfect head has
    2 / copies. "TransformerLens mul", "TransformerLens abs": its `detect_head` for "induction_head", which averages
    over the first copy and BOS as well. The tokens within a copy must be distinct.
    """
    scored, total = len(queries(length, copies, bos)), copies * length + bos
    entries = successors(length, copies, bos).sum()
    given = np.asarray(score, np.float64) * scored
    return {
        "mean over entries": given / entries,
        "TransformerLens mul": given / total,
        "TransformerLens abs": (2 * given - entries) / total,
    }


# ------------------------------------------------------------------------------------------------ single heads


@dataclass(frozen=True)
class ScoredHead:
    """A head, and its scores with intervals, by the name of the score."""

    head: Head
    scores: Mapping[str, Interval]

    @property
    def name(self) -> str:
        """The head's name, such as L3H5."""
        return head_name(self.head)


def scored_head(scores: Mapping[str, Floats], head: Head, names: Sequence[str] = ROLES) -> ScoredHead:
    """Returns one head with its mean scores and 95 % intervals over sequences.

    scores: [N, L, H] by name. Scores lie between 0 and 1, so intervals end there.
    """
    intervals = {}
    for name in names:
        intervals[name] = mean_interval(scores[name][:, head[0], head[1]], within=(0, 1))
    return ScoredHead(head, intervals)


def best_heads(scores: Mapping[str, Floats], names: Sequence[str] = ROLES) -> dict[str, ScoredHead]:
    """Returns, for each of the named scores [N, L, H], the head that has most of it.

    A head is chosen on the first half of the N sequences and measured on the others, so that the best of many heads
    has no advantage. Raises ValueError for fewer than four sequences.
    """
    half = len(scores[names[0]]) // 2
    if half < 2:
        raise ValueError(f"{2 * half} sequences: at least two to choose a head on and two to measure it on are needed")
    held_out = {name: scores[name][half:] for name in names}
    best = {name: top(scores[name][:half].mean(axis=0), 1)[0] for name in names}
    return {name: scored_head(held_out, head, names) for name, head in best.items()}
