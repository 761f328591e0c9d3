"""Attention heads as places (layer, head) in arrays [L, H], from 0; layers are those that have attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Head = tuple[int, int]  # (layer, head)


def head_name(head: Head) -> str:
    """How a head is called in figures and texts: L3H5, both counted from 0."""
    return f"L{head[0]}H{head[1]}"


def top(score: Floats, n: int) -> list[Head]:
    """The n heads of the highest score [L, H], highest first, equals in the order of layer and head.

    Raises ValueError for more heads than there are.
    """
    if not 0 <= n <= score.size:
        raise ValueError(f"n = {n}: the model has {score.size} heads")
    order = np.argsort(-score, axis=None, kind="stable")[:n]
    return [(int(place) // score.shape[1], int(place) % score.shape[1]) for place in order]
