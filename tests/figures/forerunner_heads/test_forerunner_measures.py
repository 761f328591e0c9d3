"""Checks C of the forerunner spec, on arrays whose answer is known."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from util.figures.forerunner_heads import measures as f
from util.figures.forerunner_heads.results import (
    Growth,
    InductionHeads,
    Reading,
    Setting,
    Task,
    published,
)
from util.show import files
from util.stats import answers
from util.stats import intervals as s
from util.stats.heads import top
from util.stats.intervals import Interval, Intervals

HAND = np.array([[[0.6, 0.5, 0.1]], [[0.2, 0.1, 0.05]]], np.float32)
HAND_N_T = np.array([10, 50])


def random_case(seed, n=40, layers=3, heads=5):
    random = np.random.default_rng(seed)
    return random.random((n, layers, heads), np.float32) ** 4, random.integers(8, 300, n)


def test_hand_case_equal_to_the_threshold_does_not_count():
    assert f.head_counts(HAND, HAND_N_T).tolist() == [[2, 0, 0]]
    assert f.mean_head_count(HAND, HAND_N_T).value.tolist() == [1.0]
    assert f.mean_max_magnitude(HAND).value == pytest.approx([0.4])
    in_two_dtypes = (5 / HAND_N_T)[:, None, None] < HAND
    assert in_two_dtypes.sum(0).tolist() == [[2, 1, 0]]  # the trap: float32 0.1 exceeds float64 0.1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 20), st.floats(0, 20))
def test_counts_are_bounded_and_monotone_in_c(seed, a, b):
    magnitude, n_t = random_case(seed)
    few, many = f.head_counts(magnitude, n_t, max(a, b)), f.head_counts(magnitude, n_t, min(a, b))
    assert few.dtype == np.int64 and (few <= many).all() and (few >= 0).all() and (many <= len(n_t)).all()
    assert (f.head_counts(magnitude, n_t, n_t.max()) == 0).all()
    assert (f.head_counts(magnitude, n_t, 0) == (magnitude > 0).sum(0)).all()


def test_curves_agree_with_the_map_exactly():
    magnitude, n_t = random_case(1)
    counts, curve = f.head_counts(magnitude, n_t), f.mean_head_count(magnitude, n_t)
    np.testing.assert_array_equal(counts.sum(1) / len(n_t), curve.value)
    assert ((curve.low <= curve.value) & (curve.value <= curve.high)).all()
    largest = f.mean_max_magnitude(magnitude)
    assert (largest.value >= magnitude.mean(0).mean(1)).all() and (largest.value <= 1).all()


def test_the_order_of_prompts_does_not_matter():
    magnitude, n_t = random_case(2)
    order = np.random.default_rng(0).permutation(len(n_t))
    whole = f.head_counts(magnitude, n_t)
    np.testing.assert_array_equal(whole, f.head_counts(magnitude[order], n_t[order]))
    parts = [f.head_counts(magnitude[part], n_t[part]) for part in np.array_split(order, 3)]
    np.testing.assert_array_equal(whole, sum(parts))


def test_uniform_attention_counts_nowhere_and_a_previous_token_head_everywhere():
    n_t = np.arange(8, 40)
    uniform = np.broadcast_to((1 / n_t).astype(np.float32)[:, None, None], (32, 2, 2))
    for c in (1, 2, 5):
        assert (f.head_counts(uniform, n_t, c) == 0).all()
    previous = np.ones((32, 1, 1), np.float32)
    assert (f.head_counts(previous, n_t) == 32).all()
    assert f.uniform_magnitude(np.array([4, 2])) == 0.375


def test_specificity_separates_three_planted_heads():
    random = np.random.default_rng(3)
    n_t = np.full(64, 100)
    magnitude = np.stack([0.9 - 0.1 * random.random(64), 0.9 - 0.1 * random.random(64), 0.01 * random.random(64)], -1)
    control = np.stack([0.02 * random.random(64), 0.9 - 0.1 * random.random(64), 0.01 * random.random(64)], -1)
    magnitude, control = magnitude[:, None].astype(np.float32), control[:, None].astype(np.float32)
    assert f.verdicts(magnitude, control, n_t).tolist() == [["forerunner head", "previous-token head", "neither"]]
    found = f.contrast(magnitude, control)
    assert found.low[0, 0] > 0.8 and found.low[0, 1] < 0 < found.high[0, 1]


def test_the_verdicts_thresholds_are_the_documented_ones():
    n_t, spread = np.full(100, 100), np.linspace(0, 1e-3, 100)

    def verdict(share, ratio):
        magnitude = np.where(np.arange(100) < share, 0.4, 0.01) + spread
        return f.verdicts(magnitude[:, None, None], (magnitude / ratio)[:, None, None], n_t)[0, 0]

    assert verdict(75, 3) == "forerunner head" and verdict(74, 3) == "neither"
    assert verdict(80, 2.01) == "forerunner head" and verdict(80, 1.99) == "previous-token head"


def test_baselines_share_ties():
    assert answers.majority_right(np.array([0, 1, 1, 0, 2])).tolist() == [0.5, 0.5, 0.5, 0.5, 0]
    assert answers.vote_right(np.array([0, 1, 2]), np.array([[0, 1], [1, 1], [0, 1]]), 3).tolist() == [0.5, 1, 0]


def test_the_number_of_frequent_heads_has_an_interval_over_prompts():
    """One head passes on all prompts, one on none, one on three of four: resampled, that one falls in and out."""
    passes = np.zeros((100, 1, 3), np.float32)
    passes[:, 0, 0], passes[:75, 0, 2] = 1, 1
    n_t = np.full(100, 10)
    assert f.frequent_heads(passes, n_t) == (2, 1, 2)
    assert f.frequent_heads(passes[:, :, :2], n_t) == (1, 1, 1)
    with pytest.raises(ValueError, match="at least two"):
        f.frequent_heads(passes[:1], n_t[:1])
    assert f.heads_on_a_prompt(passes[:, :, :2], n_t) == (1, 1, 1)


def test_a_head_that_fires_before_any_word_is_no_success_for_labels():
    """Both heads are confirmed; the second one alone reads more with the correct label than with another word."""
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.random((64, 1, 3))
    correct = noise + np.array([0.9, 0.8, 0.01])
    wrong = noise[::-1] + np.array([0.9, 0.8, 0.01])
    other = noise[::-1] + np.array([0.9, 0.3, 0.01])
    control = noise + 0.01
    n_t = np.full(64, 100)
    chosen = f.verdicts(correct, control, n_t)
    contrasts = [f.contrast(correct, than) for than in (control, wrong, other)]
    judged = f.specificity(chosen, chosen, *contrasts)
    assert (judged.chosen, judged.confirmed, judged.than_wrong, judged.than_other) == (2, 2, 0, 1)
    assert judged.strongest == ((0, 0), (0, 1))  # by the difference from other tokens
    assert "0 read more with the correct label than with a wrong one, 1 more than with another word" in str(judged)
    none = f.specificity(np.full((1, 3), "neither"), chosen, *contrasts)
    assert (none.chosen, none.confirmed, none.strongest) == (0, 0, ())
    assert f.difference_text(contrasts[2], (0, 1)).startswith("+0.50 [")


def test_heads_are_ranked_and_spread_on_a_map():
    score = np.array([[0.1, np.nan], [0.5, 0.3]])
    assert top(score, 3) == [(1, 0), (1, 1), (0, 0)]
    some = f.contrast(np.array([[1.0, 2.0], [3.0, 2.0]]), np.zeros((2, 2)))
    spread = f.on_map(some, [(1, 0), (0, 1)], (2, 2))
    np.testing.assert_array_equal(spread.difference, [[np.nan, 2.0], [2.0, np.nan]])
    assert spread.low[1, 0] == some.low[0] and np.isnan(spread.high[0, 0])


def test_the_best_heads_null_is_a_maximum_under_shuffled_labels():
    rng = np.random.default_rng(1)
    gold, shown = rng.integers(2, size=200), rng.integers(2, size=(200, 4))
    blind = rng.dirichlet(np.ones(4), (200, 1, 8))  # 8 heads that know no labels
    null = f.best_head_null(blind, gold, shown)
    best = f.induction(blind, gold, shown).likelihood.max(axis=2).mean(axis=0)
    uniform, _ = f.uniform_likelihood(gold, shown)
    assert null.low[0] <= best[0] <= null.high[0] and null.low[0] > uniform + 0.1  # far above that of one head
    knowing = np.where((shown == gold[:, None])[:, None, None], 0.9, 0.1).repeat(8, axis=2)
    best = f.induction(knowing, gold, shown).likelihood.max(axis=2)
    curve = s.mean_intervals(best)
    assert f.beyond_chance(curve, f.best_head_null(knowing, gold, shown)) == [0]
    assert f.beyond_chance(Intervals(null.value, null.value, null.value), null) == []
    again = f.best_head_null(blind, gold, shown)
    np.testing.assert_array_equal(again.value, null.value)


def test_growth_with_demonstrations_tells_the_threshold_from_the_heads():
    """The same magnitudes at every k: c / n_t falls and more heads exceed it, one threshold for all does not move."""
    magnitude = np.array([[[0.3, 0.06, 0.02]]]).repeat(8, axis=0)

    def reading(tokens):
        return {f.Series.CORRECT: Reading(magnitude, magnitude[:, 0], magnitude, np.full(8, tokens))}

    growth = Growth.of(Setting("toy", "trec", 4, 8), {k: reading(20 * (k + 1)) for k in (0, 4, 19)}, 5)
    assert [growth.counts[f.Series.CORRECT][k][0] for k in (0, 4, 19)] == [1, 2, 3]
    assert [growth.fixed[k][0] for k in (0, 4, 19)] == [2, 2, 2]
    assert growth.finding == (
        "From k = 0 to 19 more heads exceed c / n_t on a prompt (1.0 to 3.0), not clearly more or fewer one fixed "
        "threshold (2.0 to 2.0)"
    )
    assert growth.maps[19].tolist() == [[8, 8, 8]]


def test_published_rows_are_filled_where_the_setting_is_theirs():
    heads = Intervals(np.array([1.0, 3.0]), np.array([0.5, 2.0]), np.array([1.5, 4.0]))
    largest = Intervals(np.array([0.9, 0.3]), np.array([0.8, 0.2]), np.array([1.0, 0.4]))
    correct = np.zeros((4, 1, 2), bool)
    correct[:3, 0, 1] = True
    request = {"dataset": "glue_sst2", "k": 16, "quantized": True, "prompts": 4}
    layers = SimpleNamespace(counts={f.Series.CORRECT: heads}, largest={f.Series.CORRECT: largest})
    counts = SimpleNamespace(frequent={f.Series.CORRECT: Interval(5, 4, 6)})

    def induction(**changes):
        nothing = {"heads": {}, "shares": {}, "levels": {}, "null": heads}
        setting, task = Setting("toy", "glue_sst2", 16, 4), Task(())
        return InductionHeads(setting, task, **nothing, correct=correct, request=request | changes)

    here = published(layers, counts, induction())
    assert here["head_count_per_layer"] == pytest.approx((3.0, 1 / 1.96), rel=1e-4)
    assert here["max_magnitude_per_layer"][0] == 0.9 and here["count_maps"][0] == 5
    assert here["best_correct_induction_share"] == pytest.approx((0.75, np.sqrt(0.75 * 0.25 / 4)))
    assert "best_correct_induction_share" not in published(layers, counts, induction(k=4))
    ids = {row["id"] for row in files.published("forerunner_heads")["values"]}
    assert set(here) == ids  # every published row can be filled
