"""Splits of the sampled units: what is chosen on some of them is measured on others."""

import numpy as np
from numpy.typing import NDArray


def halves(
    n: int, seed: int = 0, clusters: NDArray[np.integer] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A seeded random split of n units into two halves: sorted indices [n // 2] and [n - n // 2].

    Choose heads or edges on the first half and measure them on the second. clusters [N]: units of one cluster are not
    independent, so that all of them go where the first of them goes; the halves may then differ in size. Raises
    ValueError where one of them would be empty.
    """
    order = np.random.default_rng(seed).permutation(n)
    in_first = np.isin(np.arange(n), order[: n // 2])
    if clusters is not None:
        _, first_of, own = np.unique(clusters, return_index=True, return_inverse=True)
        in_first = in_first[first_of[own]]
        if in_first.all() or not in_first.any():
            raise ValueError(f"{len(first_of)} clusters all fall into one half: give more prompts, or another seed")
    return np.flatnonzero(in_first), np.flatnonzero(~in_first)
