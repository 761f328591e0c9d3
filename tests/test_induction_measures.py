"""Scores on repeated sequences, against the definition written out and against attention with a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from util.measures import induction


def by_the_definition(attention, length, copies, bos):
    """The sum over earlier copies of the token after the match, averaged over queries, in loops."""
    total = 0.0
    for copy in range(1, copies):
        for place in range(length):
            query = bos + copy * length + place
            for earlier in range(copy):
                total = total + attention[..., query, bos + earlier * length + place + 1]
    return total / ((copies - 1) * length)


@pytest.mark.parametrize(("length", "copies", "bos"), [(7, 4, True), (5, 2, False), (2, 3, True)])
def test_the_score_is_the_definition(length, copies, bos):
    size = length * copies + bos
    attention = np.random.default_rng(length).random((2, 3, size, size)).astype(np.float32)
    rows = attention[..., induction.queries(length, copies, bos), :]
    found = induction.prefix_matching(rows, length, copies, bos)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, by_the_definition(attention.astype(np.float64), length, copies, bos), rtol=1e-12)


@pytest.mark.parametrize(
    ("length", "copies", "expected"), [(50, 4, 0.015567), (25, 4, 0.030721), (50, 2, 0.013569), (10, 4, 0.073877)]
)
def test_uniform_attention_has_the_score_of_the_series(length, copies, expected):
    series = sum(copy / (copy * length + p + 1) for copy in range(1, copies) for p in range(1, length + 1))
    found = induction.uniform_prefix_matching(length, copies)
    assert found == pytest.approx(series / ((copies - 1) * length), rel=1e-12)
    assert found == pytest.approx(expected, abs=5e-7)


def test_perfect_heads_and_others():
    """An induction head scores 1 however it divides its attention, a previous-token or duplicate-token head 0."""
    length, copies = 10, 4
    asked = induction.queries(length, copies)
    cells = induction.successors(length, copies)
    assert (cells.sum(1) == np.repeat([1, 2, 3], length)).all()
    spread = cells / cells.sum(1, keepdims=True)
    last = np.zeros_like(spread)
    last[np.arange(len(asked)), asked - length + 1] = 1
    previous, duplicate = np.zeros_like(spread), np.zeros_like(spread)
    previous[np.arange(len(asked)), asked - 1] = 1
    duplicate[np.arange(len(asked)), asked - length] = 1
    heads = np.stack([spread, last, previous, duplicate])
    np.testing.assert_allclose(induction.prefix_matching(heads, length, copies), [1, 1, 0, 0], atol=1e-12)


def test_rows_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(30, 41\)"):
        induction.prefix_matching(np.zeros((2, 40, 40)), 10, 4)
