"""What is made of scores: sets of heads with their controls, and the price of an ablation."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from util.figures.edits import how_many
from util.stats import heads as controls
from util.stats import intervals
from util.stats.heads import heads_where, top
from util.stats.intervals import mcnemar

# ------------------------------------------------------------------------------------------------ sets of heads


def test_a_share_of_the_heads_is_rounded_up():
    counts = {size: [how_many(share, size) for share in (0.01, 0.03)] for size in (32 * 32, 48 * 48, 12 * 12)}
    assert counts == {32 * 32: [11, 31], 48 * 48: [24, 70], 12 * 12: [2, 5]}
    shares = (0.0, 0.01, 0.03, 0.07, 1.0)
    assert [how_many(share, 100) for share in shares] == [0, 1, 3, 7, 100]  # 7.000000000000001


def test_the_top_is_highest_first_and_equals_come_in_the_order_of_layer_and_head():
    score = np.array([[0.2, 0.9, 0.2], [0.9, 0.1, 0.2]])
    order = [(0, 1), (1, 0), (0, 0), (0, 2), (1, 2), (1, 1)]
    assert [top(score, n) for n in range(7)] == [order[:n] for n in range(7)]
    assert all(type(part) is int for head in top(score, 6) for part in head)
    for n in (7, -1):
        with pytest.raises(ValueError, match="6 heads"):
            top(score, n)


def check_controls(found, heads, eligible, draws):
    """As many as asked for, no set twice, none with a head twice, one of the set's, or one that may not be drawn."""
    assert len(found) == draws and len({frozenset(one) for one in found}) == draws
    for one in found:
        assert len(set(one)) == len(one) == len(heads) and one == sorted(one)
        assert not set(one) & set(heads) and all(eligible[head] for head in one)


def test_layer_matched_controls():
    eligible = np.random.default_rng(0).random((8, 12)) < 0.7
    heads, layers = [(5, 3), (2, 1), (5, 0), (7, 11)], [2, 5, 5, 7]
    found = controls.layer_matched(heads, eligible, 40, seed=3)
    check_controls(found, heads, eligible, 40)
    assert all(sorted(layer for layer, _ in one) == layers for one in found)
    assert found == controls.layer_matched(heads, eligible, 40, seed=3)
    assert found != controls.layer_matched(heads, eligible, 40, seed=4)
    used = {head for one in controls.layer_matched(heads, eligible, 400) for head in one}
    assert used == {head for head in heads_where(eligible) if head[0] in layers} - {*heads}  # all that may be drawn


def test_where_few_sets_exist_all_of_them_are_controls():
    eligible, heads = np.ones((3, 5), bool), [(0, 0), (2, 1), (2, 3)]
    eligible[2, 4] = eligible[0, 3:] = False
    for draws in (2, 50):
        assert controls.layer_matched(heads, eligible, draws) == [[(0, a), (2, 0), (2, 2)] for a in (1, 2)]
    roomy, pair = np.ones((2, 8), bool), [(1, 0), (1, 1)]
    found = controls.layer_matched(pair, roomy, 20)  # more than 15 pairs of the six others cannot be
    assert [tuple(one) for one in found] == [((1, a), (1, b)) for a, b in combinations(range(2, 8), 2)]
    check_controls(controls.layer_matched(pair, roomy, 14), pair, roomy, 14)


def test_too_few_heads_in_a_layer_are_named():
    eligible = np.ones((4, 4), bool)
    eligible[1, 1:3] = False
    heads = [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2)]
    assert controls.shortage(heads, eligible) == {1: (2, 1), 3: (3, 1)}
    with pytest.raises(ValueError, match=r"layer 1 has 1 heads for 2, layer 3 has 1 heads for 3"):
        controls.layer_matched(heads, eligible, 5)
    assert controls.shortage([(0, 0), (0, 1)], eligible) == {}


def test_norm_matched_controls():
    rng = np.random.default_rng(2)
    norms, eligible = np.exp(rng.normal(size=(8, 12))), rng.random((8, 12)) < 0.8
    heads = top(norms, 5)  # the longest writes: no random draw is like that
    found = controls.norm_matched(heads, eligible, norms, 30, seed=1)
    check_controls(found, heads, eligible, 30)
    assert found == controls.norm_matched(heads, eligible, norms, 30, seed=1)
    assert found != controls.norm_matched(heads, eligible, norms, 30, seed=2)

    nearest = controls.norm_matched([(0, 0)], eligible, norms, 20, nearest=3)  # one by one: of three there are three
    others = sorted(heads_where(eligible), key=lambda head: abs(np.log(norms[head] / norms[0, 0])))
    assert sorted(nearest) == sorted([head] for head in [head for head in others if head != (0, 0)][:3])
    heads = top(norms, 30)[20:]  # neighbours in length want the same heads: longest first
    free = [head for head in heads_where(eligible) if head not in heads]
    taken: list = []
    for head in heads:
        left = [other for other in free if other not in taken]
        taken.append(min(left, key=lambda other: abs(np.log(norms[other] / norms[head]))))
    assert controls.norm_matched(heads[::-1], eligible, norms, 5, nearest=1) == [sorted(taken)]
    few = np.array([[False] * 3, [True] * 3])
    with pytest.raises(ValueError, match="2 eligible heads for a set of 3"):
        controls.norm_matched([(0, 0), (0, 1), (1, 2)], few, np.ones((2, 3)), 5)


# ------------------------------------------------------------------------------------------------ what it costs


def test_the_interval_of_an_accuracy():
    """Wilson's; several runs of the same queries are worth no more than one."""
    right = np.random.default_rng(0).random((1, 60)) < 0.8
    value, low, high = intervals.accuracy(right)
    expected = stats.binomtest(int(right.sum()), 60).proportion_ci(method="wilson")
    assert (value, low, high) == pytest.approx((right.mean(), expected.low, expected.high))
    assert intervals.accuracy(right[0]) == (value, low, high)
    assert intervals.accuracy(np.repeat(right, 3, axis=0)) == pytest.approx((value, low, high))
    assert intervals.accuracy(np.ones((3, 8), bool)) == pytest.approx((1, 0.6756, 1), abs=1e-4)


def test_mcnemar_of_units_equals_all_signs_tried():
    """And asks whether as many answers are right, not whether as many units gain as lose.

    Runs of the same queries are units too, where only one side has several.
    """
    rng = np.random.default_rng(0)
    units = np.sort(rng.integers(0, 9, 30))
    one_run, before, after = rng.random(30) < 0.7, rng.random((3, 30)) < 0.7, rng.random((3, 30)) < 0.5
    for first, of_units in ((before, units), (before[:, :9], None), (one_run[:9], None)):
        second, alike = after[:, : first.shape[-1]], np.arange(first.shape[-1]) if of_units is None else of_units
        lost = np.broadcast_to(first, second.shape) - second.astype(int)
        change = np.array([lost[:, alike == u].sum() for u in np.unique(alike)])
        sums = np.array(list(product((-1, 1), repeat=len(change)))) @ change
        expected = (np.abs(sums) >= abs(change.sum())).mean()
        assert mcnemar(first, second, of_units) == pytest.approx(expected) and 0 < expected < 1
    assert mcnemar(np.ones(32, bool), np.ones((3, 32), bool)) == 1
    with pytest.raises(ValueError):
        mcnemar(np.ones((2, 4), bool), np.ones((3, 4), bool))
