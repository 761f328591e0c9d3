"""Attention scores of heads on repeated sequences, from arrays alone.

A sequence (`prompts.induction_pattern`) is `copies` times the same `length` tokens, with a BOS in front where `bos`. A
head is scored by what it attends to from the tokens of the second and later copies. Heads are (layer, head), both
places in the arrays. Source: Crosbie & Shutova 2024, section 4.2, after Olsson et al. 2022 and Bansal et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from util.stats.heads import Bools, Floats, Head, Ints, top
from util.stats.intervals import Interval, mean_interval

INDUCTION_HEAD = 0.3  # the prefix-matching score from which Crosbie & Shutova speak of induction heads
ROLES = ("previous_token", "prefix_matching")  # the scores of the two heads of an induction circuit


def queries(length: int, copies: int, bos: bool = True) -> Ints:
    """Returns the positions that are scored, [Q]: all tokens of all copies but the first."""
    return np.arange(length, copies * length) + bos


def cells(length: int, copies: int, bos: bool = True) -> dict[str, Bools]:
    """Returns the keys [Q, T] that each score counts, by the name of the score.

    prefix_matching: those that follow an earlier occurrence of the query's own token, one for each earlier copy;
    bansal: at the last query of each copy also the first token, where nothing matches, as in the code of Bansal et al.
    and of Crosbie & Shutova; duplicate_token: earlier occurrences of the query's own token; previous_token: the token
    before the query; sink: the first token of all, which is BOS where there is one.
    """
    query, position = queries(length, copies, bos)[:, None], np.arange(copies * length + bos)
    distance = query - position
    follows = (distance >= 0) & (distance % length == length - 1)
    return {
        "prefix_matching": follows & (position > bos),
        "bansal": follows & (position > 0),
        "duplicate_token": (distance > 0) & (distance % length == 0) & (position >= bos),
        "previous_token": distance == 1,
        "sink": distance == query,
    }


def prefix_matching(rows: Floats, length: int, copies: int, bos: bool = True) -> Floats:
    """Returns the prefix-matching scores [...], from 0 to 1, of attention rows [..., Q, T] at `queries`.

    The score is the attention to all of its `cells` of a query, summed over them and averaged over queries.
    """
    counted = cells(length, copies, bos)["prefix_matching"]
    return np.einsum("...qt,qt->...", rows, counted, dtype=np.float64) / len(counted)


def uniform_prefix_matching(length: int, copies: int, bos: bool = True) -> float:
    """Returns the score of attention that is uniform over all visible keys, as that of an untrained head is."""
    query = queries(length, copies, bos)
    rows = np.tri(copies * length + bos)[query] / (query[:, None] + 1)
    return float((rows * cells(length, copies, bos)["prefix_matching"]).sum() / len(query))


def head_intervals(scores: Mapping[str, Floats], head: Head) -> dict[str, Interval]:
    """Returns the mean scores of one head, by the names of ROLES, with 95 % intervals over sequences.

    scores: [N, L, H] by name. Scores lie between 0 and 1, so intervals end there.
    """
    return {role: mean_interval(scores[role][:, *head], within=(0, 1)) for role in ROLES}


def best_heads(scores: Mapping[str, Floats]) -> dict[str, tuple[Head, dict[str, Interval]]]:
    """Returns, for each of ROLES, the head that has most of this score [N, L, H], and its `head_intervals`.

    A head is chosen on the first half of the N sequences, four at least, and measured on the others, so that the best
    of many heads has no advantage.
    """
    half = len(scores[ROLES[0]]) // 2
    held_out = {role: scores[role][half:] for role in ROLES}
    best = {role: top(scores[role][:half].mean(axis=0), 1)[0] for role in ROLES}
    return {role: (head, head_intervals(held_out, head)) for role, head in best.items()}
