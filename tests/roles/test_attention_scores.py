"""Scores on repeated sequences, against definitions written out and against attention with a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from util.roles import attention_scores

SHAPES = [(7, 4, True), (5, 2, False), (2, 3, True)]
PAPER = (50, 4)  # Crosbie & Shutova


def by_the_definition(attention, length, copies, bos=True):
    """The sum over earlier copies of the token after the match, averaged over queries, in loops."""
    total = 0.0
    for copy in range(1, copies):
        for place in range(length):
            query = bos + copy * length + place
            for earlier in range(copy):
                total = total + attention[..., query, bos + earlier * length + place + 1]
    return total / ((copies - 1) * length)


def attending(length, copies, key, bos=True):
    """Attention [T, T] of a head that gives all it has to one key of every query; BOS where there is none."""
    matrix = np.zeros((copies * length + bos,) * 2)
    for query in range(len(matrix)):
        matrix[query, max(key(query), 0)] = 1
    return matrix


def rows_of(attention, length, copies, bos=True):
    return attention[..., attention_scores.queries(length, copies, bos), :]


def scores(attention, length, copies, bos=True):
    """Every score of `cells`, by name."""
    rows = rows_of(attention, length, copies, bos)
    return {
        name: float((rows * own).sum() / len(rows)) for name, own in attention_scores.cells(length, copies, bos).items()
    }


# ------------------------------------------------------------------------------------------------ attention scores


@pytest.mark.parametrize(("length", "copies", "bos"), SHAPES)
def test_the_score_is_the_definition(length, copies, bos):
    size = length * copies + bos
    attention = np.random.default_rng(length).random((2, 3, size, size)).astype(np.float32)
    rows = rows_of(attention, length, copies, bos)
    found = attention_scores.prefix_matching(rows, length, copies, bos)
    np.testing.assert_allclose(found, by_the_definition(attention.astype(np.float64), length, copies, bos), rtol=1e-12)
    own = attention_scores.cells(length, copies, bos)["prefix_matching"]
    np.testing.assert_allclose((rows.astype(np.float64) * own).sum((-1, -2)) / len(own), found, rtol=1e-12)


def test_uniform_attention_has_the_score_of_the_definition():
    uniform = np.tri(50 * 4 + 1) / np.arange(1, 50 * 4 + 2)[:, None]
    found = attention_scores.uniform_prefix_matching(*PAPER)
    assert found == pytest.approx(by_the_definition(uniform, *PAPER), rel=1e-12) == pytest.approx(0.015567, abs=1e-6)
    assert scores(uniform, *PAPER)["bansal"] == pytest.approx(0.015711, abs=1e-6)  # the boundary of their code


OTHERS = {
    "previous_token": lambda query: query - 1,
    "duplicate_token": lambda query: query - 50 if query > 50 else query,
    "sink": lambda query: 0,
    "self": lambda query: query,
}


@pytest.mark.parametrize("name", OTHERS)
def test_heads_of_other_kinds_score_exactly_0_and_are_named_by_their_own_score(name):
    found = scores(attending(*PAPER, OTHERS[name]), *PAPER)
    assert found == {score: float(score == name) for score in found} and found["prefix_matching"] == 0


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
    np.testing.assert_allclose(found["prefix_matching"], (0.2, 0.0, 0.2 + half_width), atol=1e-6)  # no score is below 0
    head, found = best["previous_token"]
    assert head == (1, 2) and found["previous_token"] == pytest.approx((0.7, 0.7, 0.7))
