"""Faithfulness and its areas against sums in loops, intervals by simulation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.tiers import quick
from util.scores.graph import SHARES, area, faithfulness

both = pytest.mark.parametrize("absolute", [False, True], ids=["CPR", "CMD"])


def metrics(f, prompts=6, seed=0, noise=0.0, together=0.5):
    """Of circuits whose faithfulness is f in expectation, which share noise in part; the last is the model itself."""
    random = np.random.default_rng(seed)
    full, empty = random.normal(4, 1.5, prompts), random.normal(-3, 1.5, prompts)
    error = np.sqrt(together) * random.normal(size=prompts)
    error = error + np.sqrt(1 - together) * random.normal(size=(len(f), prompts))
    error[-1] = 0
    return empty + np.multiply.outer(f, full - empty) + noise * error, full, empty


@pytest.mark.oracle
@both
@pytest.mark.parametrize("seed", range(2))
def test_faithfulness_and_area_are_those_of_loops(seed, absolute):
    circuit, full, empty = metrics(np.linspace(-0.3, 1.4, 10), 7, seed, noise=2.0)
    f = [sum(row - empty) / sum(full - empty) for row in circuit]
    heights = [abs(1 - value) for value in f] if absolute else f
    pieces = [(SHARES[k + 1] - SHARES[k]) * (heights[k] + heights[k + 1]) / 2 for k in range(9)]
    found, around = faithfulness(circuit, full, empty), area(circuit, full, empty, absolute=absolute)
    assert_allclose(found.value, f, atol=1e-13)
    assert (found.low <= f).all() and (found.high >= f).all()
    assert around.value == pytest.approx(sum(pieces), abs=1e-13) and around.low <= around.value <= around.high


def test_nothing_is_defined_without_an_effect_of_the_whole_model():
    circuit, full, empty = metrics(np.ones(10))
    assert np.isnan(faithfulness(circuit, empty, full).value).all()
    assert np.isnan(area(circuit, empty, full, absolute=True).value)


CURVES = {
    "faithful": np.ones(10),
    "nearly": np.array([0, 0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 1]),
    "poor": np.array([0, 0, 0, 0, 0, 0.05, 0.1, 0.2, 0.5, 1]),
    "beyond": np.array([0, 0.1, 0.3, 0.6, 1, 1.3, 1.5, 1.4, 1.1, 1]),
}


@both
@pytest.mark.parametrize("together", [0.0, 0.95])
@pytest.mark.parametrize("name", quick(["faithful", "beyond"], CURVES))
def test_intervals_of_areas_cover_at_their_level(name, together, absolute):
    """Also at f = 1, where a CMD is 0 and every bootstrap sample has more."""
    f = CURVES[name]
    truth = np.trapezoid(np.abs(1 - f) if absolute else f, SHARES)
    areas = [area(*metrics(f, 50, seed, 2.0, together), absolute=absolute) for seed in range(300)]
    assert np.mean([one.low - 1e-12 <= truth <= one.high + 1e-12 for one in areas]) > 0.92
    assert np.mean([one.high - one.low for one in areas]) < 0.15
