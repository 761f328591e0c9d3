"""Scores on repeated sequences, against definitions written out and against attention with a known answer."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from util.roles import attention_scores

SHAPES = [(7, 4, True), (5, 2, False), (2, 3, True)]
PAPER = (50, 4)  # Crosbie & Shutova


def by_definition(weights, length, copies, bos=True):
    """The scores of attention [..., T, T] by loops over copies and places: sums over keys, averaged over queries."""
    found = dict.fromkeys(("prefix_matching", "duplicate_token", "previous_token", "sink"), 0.0)
    for copy, place in product(range(1, copies), range(length)):
        query = bos + copy * length + place
        for earlier in range(copy):
            found["prefix_matching"] += weights[..., query, bos + earlier * length + place + 1]
            found["duplicate_token"] += weights[..., query, bos + earlier * length + place]
        found["previous_token"] += weights[..., query, query - 1]
        found["sink"] += weights[..., query, 0]
    return {name: total / ((copies - 1) * length) for name, total in found.items()}


def scores(attention, length, copies, bos=True):
    """Every score of `cells`, by name."""
    rows = attention[..., attention_scores.queries(length, copies, bos), :]
    cells = attention_scores.cells(length, copies, bos)
    return {name: (rows * own).sum((-1, -2)) / rows.shape[-2] for name, own in cells.items()}


# ------------------------------------------------------------------------------------------------ attention scores


@pytest.mark.parametrize("length, copies, bos", SHAPES)
def test_scores_are_their_definition(length, copies, bos):
    size = length * copies + bos
    attention = np.random.default_rng(length).random((2, 3, size, size)).astype(np.float32)
    expected = by_definition(attention.astype(float), length, copies, bos)
    found = scores(attention.astype(float), length, copies, bos)
    for name, values in expected.items():
        assert_allclose(found[name], values, rtol=1e-12)
    rows = attention[..., attention_scores.queries(length, copies, bos), :]  # sums of float32 are in float64
    score = attention_scores.prefix_matching(rows, length, copies, bos)
    assert_allclose(score, expected["prefix_matching"], rtol=1e-12)


def test_uniform_attention_has_the_score_of_the_definition():
    uniform = np.tri(50 * 4 + 1) / np.arange(1, 50 * 4 + 2)[:, None]
    expected = by_definition(uniform, *PAPER)["prefix_matching"]
    assert attention_scores.uniform_prefix_matching(*PAPER) == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(0.015567, abs=1e-6)
    assert scores(uniform, *PAPER)["bansal"] == pytest.approx(0.015711, abs=1e-6)  # the boundary of their code


def test_the_best_head_is_chosen_on_other_sequences_than_it_is_measured_on():
    scores = {name: np.zeros((6, 2, 3)) for name in ("previous_token", "prefix_matching")}
    scores["prefix_matching"][:3, 0, 1] = 0.9  # best where heads are chosen, ...
    scores["prefix_matching"][3:, 0, 1] = [0.1, 0.2, 0.3]  # ... and not where they are measured
    scores["prefix_matching"][:, 1, 0] = 0.5
    scores["previous_token"][:, 1, 2] = 0.7
    best = attention_scores.best_heads(scores)
    head, found = best["prefix_matching"]
    half_width = 4.302653 * 0.1 / np.sqrt(3)  # Student's t, two degrees of freedom
    assert head == (0, 1) and max(found["previous_token"]) == 0
    assert_allclose(found["prefix_matching"], (0.2, 0.0, 0.2 + half_width), atol=1e-6)  # no score is below 0
    head, found = best["previous_token"]
    assert head == (1, 2) and found["previous_token"] == pytest.approx((0.7, 0.7, 0.7))
