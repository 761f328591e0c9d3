"""The contestants of `make bench NAME=harness` say the same of the same prompts, where they should."""

import numpy as np
import pytest

from tests.benchmarks import harness

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: make test-harness")


def test_contestants_agree() -> None:
    contest = harness.CONTESTS["embedded model"]
    found = {name: np.array(make(**contest.tiny)()) for name, make in contest.contestants.items()}
    assert found["HFLM"].shape == (4,)
    np.testing.assert_allclose(found["nothing attached"], found["HFLM"], atol=1e-4)
    for edited in ("heads at mean", "knocked out"):
        assert np.abs(found[edited] - found["HFLM"]).max() > 1e-2
