"""Which parameters of a test `make test` tries, where the others take other values through the same code."""

import pytest


def quick(chosen, others):
    """Parameters of a test: those chosen, then the others, which are slow. Each is a value, or a tuple of values."""
    slow = [one if isinstance(one, tuple) else (one,) for one in others if one not in chosen]
    return [*chosen, *(pytest.param(*one, marks=pytest.mark.slow) for one in slow)]
