"""The model in which induction heads are watched as they form, and the stored log of it."""

import json
import math
import random

import numpy as np
import pytest
import torch

from data.embedded_models.recipe import phase_change
from util import paths
from util.figures.toy_induction_head.numbers import VOCABULARY
from util.roles import attention_scores

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run():
    return phase_change.train(steps=5, every=2)


def random_states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


def test_training_depends_on_the_seed_alone_and_leaves_random_states(run):
    torch.manual_seed(5)
    before, threads = random_states(), torch.get_num_threads()
    again, other = phase_change.train(steps=5, every=2), phase_change.train(steps=2, seed=1, every=2)
    assert random_states() == before and torch.get_num_threads() == threads
    assert again == run
    assert other["later_copies"][0] != run["later_copies"][0]  # other weights
    assert other["later_copies"][1] != run["later_copies"][1]


def test_a_log_has_the_promised_shapes_and_is_plain(run):
    step = phase_change.ROWS * phase_change.LENGTH
    assert run["tokens"] == [0, 2 * step, 4 * step, 5 * step]  # the last one too
    assert json.loads(json.dumps(run)) == run
    for name in ("first_copy", "later_copies"):
        assert np.shape(run[name]) == (4,)
        assert run[name][0] == pytest.approx(math.log(VOCABULARY), abs=0.3)  # it knows nothing yet
    for name in phase_change.SCORES:
        assert np.shape(run[name]) == (4, phase_change.LAYERS, phase_change.HEADS)
    drawn = phase_change.held_out()
    uniform = attention_scores.uniform_prefix_matching(drawn.length, drawn.copies)
    np.testing.assert_allclose(run["prefix_matching"][0], uniform, atol=0.02)  # nor does it match anything


def test_the_stored_log_begins_as_training_does(run):
    log = json.loads((paths.root() / "data" / "phase_change.json").read_text())
    for name in ("first_copy", "later_copies", *phase_change.SCORES):  # nothing is trained yet: the same on any machine
        np.testing.assert_allclose(log["seeds"]["0"][name][0], run[name][0], atol=2e-3)
