"""Attention heads as (layer, head): an index, from 0, into arrays [L, H] over the layers that have attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Head = tuple[int, int]  # (layer, head)


def head_name(head: Head) -> str:
    """The name of a head in figures and texts, such as L3H5; both numbers count from 0."""
    return f"L{head[0]}H{head[1]}"


def top(score: Floats, n: int) -> list[Head]:
    """The n heads with the highest score [L, H], highest first; ties are in the order of layer, then head.

    Raises ValueError for a negative n or more heads than there are.
    """
    if not 0 <= n <= score.size:
        raise ValueError(f"n = {n}: the model has {score.size} heads")
    order = np.argsort(-score, axis=None, kind="stable")[:n]
    return [(int(place) // score.shape[1], int(place) % score.shape[1]) for place in order]


def heads_where(chosen: NDArray[np.bool_]) -> list[Head]:
    """The heads that are True in a map [L, H], in the order of layer, then head."""
    return [(int(layer), int(head)) for layer, head in np.argwhere(chosen)]
