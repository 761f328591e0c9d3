"""Induction heads, from arrays alone: attention scores on repeated sequences (`tasks.sequences`).

A sequence is `copies` times the same `length` tokens, a BOS in front where `bos`. A head's row of attention at a token
of the second or a later copy is scored by what it gives to chosen keys (Crosbie & Shutova 2024, section 4.2, after
Olsson et al. 2022 and Bansal et al. 2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def queries(length: int, copies: int, bos: bool = True) -> NDArray[np.int64]:
    """The positions that are scored: all tokens of all copies but the first, [Q]."""
    return np.arange(length, copies * length) + bos


def successors(length: int, copies: int, bos: bool = True) -> NDArray[np.bool_]:
    """Which keys follow an earlier occurrence of a query's own token, [Q, T]: one for each copy before the query's."""
    asked = queries(length, copies, bos)
    keys = np.arange(copies * length + bos)
    distance = asked[:, None] - keys[None]
    return (distance >= 0) & (distance % length == length - 1) & (keys[None] > bos)


def prefix_matching(rows: Floats, length: int, copies: int, bos: bool = True) -> NDArray[np.float64]:
    """The prefix-matching score of attention rows [..., Q, T], the rows of `queries`: [...], from 0 to 1.

    The attention to all `successors` of a query, summed over them and averaged over queries. Bansal et al.'s code, and
    Crosbie & Shutova's after it, adds the first token for the last query of each copy, where nothing matches; this does
    not. Raises ValueError for rows of another shape.
    """
    cells = successors(length, copies, bos)
    if rows.shape[-2:] != cells.shape:
        raise ValueError(f"rows of shape {rows.shape}: the last two of {copies} x {length} tokens are {cells.shape}")
    return np.einsum("...qt,qt->...", rows, cells, dtype=np.float64) / len(cells)


def uniform_prefix_matching(length: int, copies: int, bos: bool = True) -> float:
    """The score of attention that is uniform over the keys that can be seen: what an untrained head has."""
    asked = queries(length, copies, bos)
    rows = np.tri(copies * length + bos)[asked] / (asked[:, None] + 1)
    return float(prefix_matching(rows, length, copies, bos))
