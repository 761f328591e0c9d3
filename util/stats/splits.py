"""Splits of the sampled units: what is chosen on some of them is measured on others."""

import numpy as np
from numpy.typing import NDArray


def halves(n: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A seeded random split of n units into two halves: sorted indices [n // 2] and [n - n // 2].

    Choose heads or edges on the first half and measure them on the second.
    """
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[: n // 2]), np.sort(order[n // 2 :])
