"""Checks C of the forerunner spec, on arrays whose answer is known."""

import numpy as np
import pytest

from tests.figures.forerunner_heads.made_up import label_reads, reading
from util.figures.forerunner_heads import numbers as f
from util.figures.forerunner_heads import show
from util.show import files
from util.stats import answers

HAND = np.array([[[0.6, 0.5, 0.1]], [[0.2, 0.1, 0.05]]], np.float32)
HAND_N_T = np.array([10, 50])


def layers(*case, c=f.THRESHOLD):
    return f.layers({"correct": reading(*case)}, show.Settings(threshold=c))


def test_hand_case_equal_to_the_threshold_does_not_count():
    assert f.head_counts(reading(HAND, HAND_N_T)).tolist() == [[2, 0, 0]]
    found = layers(HAND, HAND_N_T)
    assert found["mean_head_count"]["correct"]["mean"].tolist() == [1.0]
    assert found["mean_max_magnitude"]["correct"]["mean"] == pytest.approx([0.4])
    in_two_dtypes = (5 / HAND_N_T)[:, None, None] < HAND
    assert in_two_dtypes.sum(0).tolist() == [[2, 1, 0]]  # the trap: float32 0.1 exceeds float64 0.1
    n_t = np.arange(8, 40)
    uniform = np.broadcast_to((1 / n_t).astype(np.float32)[:, None, None], (32, 2, 2))
    assert not any(f.head_counts(reading(uniform, n_t), c).any() for c in (1, 2, 5))


def test_the_verdicts_thresholds_are_the_documented_ones():
    n_t, spread = np.full(100, 100), np.linspace(0, 1e-3, 100)

    def verdict(share, ratio):
        magnitude = np.where(np.arange(100) < share, 0.4, 0.01) + spread
        magnitude = magnitude[:, None, None]
        return f.verdicts(reading(magnitude, n_t, magnitude / ratio))[0, 0]

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
    assert f.frequent_heads(reading(passes, n_t)) == (2, 1, 2)
    assert f.frequent_heads(reading(passes[:, :, :2], n_t)) == (1, 1, 1)
    assert f.heads_on_a_prompt(reading(passes[:, :, :2], n_t)) == (1, 1, 1)


def test_a_head_that_fires_before_any_word_is_no_success_for_labels():
    """Both heads are confirmed; the second one alone reads more with the correct label than with another word."""
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.random((64, 1, 3))
    correct = noise + np.array([0.9, 0.8, 0.01])
    wrong = noise[::-1] + np.array([0.9, 0.8, 0.01])
    other = noise[::-1] + np.array([0.9, 0.3, 0.01])
    control = noise + 0.01
    arrays = {name: reading(one, np.full(64, 100), control) for name, one in (
        ("correct", correct), ("wrong", wrong), ("other word", other), ("planted", correct)
    )}  # fmt: skip
    arrays["planted"]["roles"] = []
    settings = show.Settings(prompts=64)
    counts = {"chosen": 2, "confirmed": 2, "than_wrong": 0, "than_other": 1}
    judged = f.specificity(arrays, settings)["specificity"]["judged"]
    assert judged == counts | {"strongest": [(0, 0), (0, 1)]}  # by the first difference


def test_the_best_heads_null_is_a_maximum_under_shuffled_labels():
    rng = np.random.default_rng(1)
    gold, shown = rng.integers(2, size=200), rng.integers(2, size=(200, 4))
    same = shown == gold[:, None]
    blind = label_reads(rng.dirichlet(np.ones(4), (200, 1, 8)), gold, shown)  # 8 heads that know no labels
    knowing = label_reads(np.where(same[:, None, None], 0.9, 0.1).repeat(8, axis=2), gold, shown)
    null, best = f.best_head_null(blind), f.reads(blind)[2].max(axis=2).mean(axis=0)
    assert same.mean() + 0.1 < null["low"][0] <= best[0] <= null["high"][0]  # far above that of one head
    for reads, finding in ((knowing, "In 1 of 1"), (blind, "In none of 1")):
        assert next(show.induction_say(f.induction(reads, show.Settings()))).startswith(finding)


def test_a_published_number_is_compared_where_the_setting_is_its_own():
    chosen = {"ablation": {"dataset": "glue_sst2", "k": 16, "done": True}}
    values = {"request": {"quantized": True}, "chosen": chosen, "most_frequent": [0.75, 0.2]}
    assert show.published(values) == {"best_correct_induction_share": (0.75, 0.2)}
    assert not show.published(values | {"request": {"quantized": False}})
    rows = files.published("forerunner_heads")["values"]
    assert {row["id"] for row in rows if row["value"] is not None} == {*show.published(values)}


def test_the_most_frequent_induction_head_has_a_share_with_its_error():
    reads = np.zeros((4, 1, 2, 2))
    reads[:3, 0, 1, 0] = 0.9  # of the query's label, on three of four prompts
    found = f.induction(label_reads(reads, np.zeros(4, int), np.tile([0, 1], (4, 1))), show.Settings())
    assert found["most_frequent"] == pytest.approx([0.75, np.sqrt(0.75 * 0.25 / 4)])
    assert found["induction"]["levels"] == {"uniform": 0.5, "ceiling": 1.0}
