"""The rule that says whether a model does a task from its demonstrations."""

import numpy as np
import pytest

from util.stats.answers import gold_log_probability, label_mass, which_label
from util.stats.intervals import wilson
from util.stats.task_check import task_check


def asked(right=90, n=128, over_none=0.5, over_permuted=0.5, baseline=0.5, candidates=1, seed=0):
    """A task of which so many queries are answered right, and gains with a spread of 1."""
    random = np.random.default_rng(seed)
    shown = random.standard_normal(n)
    bare, permuted = (shown - gain - random.standard_normal(n) for gain in (over_none, over_permuted))
    return task_check("trec", 4, np.arange(n) < right, shown, bare, permuted, baseline, candidates)


@pytest.mark.parametrize(
    ("changes", "done"),
    [
        ({}, True),
        ({"right": 70}, False),  # not surely above the baseline
        ({"over_none": 0.0}, False),  # knows it without demonstrations
        ({"over_permuted": 0.0}, False),  # wrong demonstrations do as well
        ({"over_none": -1.0}, False),  # demonstrations hurt
        ({"over_none": 0.22}, True),
        ({"over_none": 0.22, "candidates": 6}, False),  # corrected
    ],
)
def test_all_three_conditions_have_to_hold(changes, done):
    check = asked(**changes)
    assert check.done == done and ("task done" if done else "task not done") in str(check)
    assert check.bound == pytest.approx(
        float(wilson(changes.get("right", 90), 128, 1 - 0.1 / changes.get("candidates", 1))[0])
    )


def test_the_rule_keeps_its_level_where_one_condition_fails():
    """A model that does as well with permuted labels passes in 5 % of samples at most (400: standard error 0.011)."""
    passed = [asked(over_permuted=0.0, seed=seed).done for seed in range(400)]
    assert np.mean(passed) <= 0.05 + 2 * 0.011


def test_the_gold_labels_log_probability_is_mass_and_which_label():
    log_prob, gold = np.log(np.random.default_rng(0).dirichlet(np.ones(4), 20)[:, :3]), np.arange(20) % 3
    mass, which = label_mass(log_prob), which_label(log_prob, gold)
    np.testing.assert_allclose(mass + which, gold_log_probability(log_prob, gold))
    np.testing.assert_allclose(np.exp(mass), np.exp(log_prob).sum(1))
    assert (which < 0).all() and (mass < 0).all()
