"""Head patching and induction scores against TransformerLens, nnsight and pyvene, called as their own documents say.

They live in an environment of their own, which `make test-oracles` makes; without it these tests are skipped.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import bench_edges, bench_induction, bench_ioi

PYTHON = Path(os.environ.get("ICL_ORACLES", Path(__file__).resolve().parent.parent / ".venv-oracles/bin/python"))
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the environment that `make test-oracles` makes"),
]


@pytest.fixture(scope="module")
def loop():
    return bench_ioi.maps(str(PYTHON), "tiny", ("naive",))["naive"]


@pytest.mark.parametrize("library", bench_ioi.OPPONENTS)
def test_the_library_has_the_loops_map_and_so_have_we(library, loop):
    found = bench_ioi.maps(str(PYTHON), "tiny", ("ours", library))
    assert loop.shape == (3, 4) and loop.std() > 1e-2
    np.testing.assert_allclose(found[library], loop, atol=1e-4)
    np.testing.assert_allclose(found["ours"], found[library], atol=1e-4)


def test_prefix_matching_scores_are_those_of_transformer_lens():
    theirs, ours = bench_induction.scores_of(str(PYTHON), "tiny")
    assert theirs.shape == (3, 4) and np.ptp(theirs) > 1e-4
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_contestants_of_the_edge_benchmark_find_the_same():
    found = bench_edges.values_of("tiny")
    np.testing.assert_allclose(found["sdpa"], found["plain"], atol=1e-4)
    np.testing.assert_allclose(found["two_pass"], found["lock_step"], atol=1e-4)
    assert all(np.abs(found[name] - found["plain"]).max() > 1e-2 for name in ("lock_step", "single"))
