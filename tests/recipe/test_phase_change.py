"""The model in which induction heads are watched as they form, and the stored log of it."""

import json
import math
import random

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from data.embedded_models.recipe import phase_change
from tests.clone import text
from util.figures.toy_induction_head.numbers import VOCABULARY
from util.roles import attention_scores

pytestmark = pytest.mark.slow


def random_states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate(), torch.get_num_threads()


def test_training_depends_on_the_seed_alone_and_its_log_begins_as_the_stored_one():
    before = random_states()
    run, again = (phase_change.train(steps=5, every=2) for _ in range(2))
    other = phase_change.train(steps=2, seed=1, every=2)
    assert random_states() == before and again == run == json.loads(json.dumps(run))
    assert all(a != b for a, b in zip(other["later_copies"], run["later_copies"], strict=False))  # other weights
    step = phase_change.ROWS * phase_change.LENGTH
    assert run["tokens"] == [0, 2 * step, 4 * step, 5 * step]  # the last one too
    log = json.loads(text("data/phase_change.json"))["seeds"]["0"]
    shapes = dict.fromkeys(phase_change.SCORES, (4, phase_change.LAYERS, phase_change.HEADS))
    for name, shape in (shapes | {"first_copy": (4,), "later_copies": (4,)}).items():
        assert np.shape(run[name]) == shape
        assert_allclose(log[name][0], run[name][0], atol=2e-3)  # nothing is trained yet: on any machine
    assert run["later_copies"][0] == pytest.approx(math.log(VOCABULARY), abs=0.3)  # it knows nothing yet
    drawn = phase_change.held_out()
    uniform = attention_scores.uniform_prefix_matching(drawn.length, drawn.copies)
    assert_allclose(run["prefix_matching"][0], uniform, atol=0.02)  # nor does it match anything
