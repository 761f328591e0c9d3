"""Faithfulness and its areas against sums in loops, intervals by simulation."""

import json
from typing import Any

import numpy as np
import pytest
from scipy import stats

from util.scores.evaluation import (
    SHARES,
    Circuits,
    Curve,
    spearman,
    trapezoid_weights,
)
from util.scores.graph import ComponentGraph
from util.show import files
from util.stats import undefined

GRAPH = ComponentGraph(3, 4)


def curve(f, absolute, prompts=6, shares=SHARES):
    """A curve whose faithfulness is f at every prompt."""
    random = np.random.default_rng(0)
    full, empty = 3 + random.random(prompts), -2 + random.random(prompts)
    circuit = empty + np.multiply.outer(np.asarray(f, dtype=float), full - empty)
    return Curve(shares, np.arange(len(shares)), absolute, circuit, full, empty)


def noisy(seed, absolute, f, prompts=50, noise=2.0, together=0.5):
    """A curve whose faithfulness is f in expectation. Circuits share noise in part; the last is the model itself."""
    random = np.random.default_rng(seed)
    full, empty = random.normal(4, 1.5, prompts), random.normal(-3, 1.5, prompts)
    error = np.sqrt(together) * random.normal(size=prompts) + np.sqrt(1 - together) * random.normal(
        size=(len(f), prompts)
    )
    error[-1] = 0
    circuit = empty + np.multiply.outer(f, full - empty) + noise * error
    return Curve(SHARES, np.arange(len(f)), absolute, circuit, full, empty)


# ------------------------------------------------------------------------------------------------ circuits


@pytest.mark.parametrize("absolute", [False, True])
def test_circuits_are_the_top_edges_by_their_ranking(absolute):
    scores = np.random.default_rng(0).normal(size=GRAPH.shape)
    circuits = Circuits.of(GRAPH, scores, absolute=absolute)
    assert circuits.edges.shape == (10, *GRAPH.shape) and len(circuits.sizes) == 10
    for share, edges, size in zip(SHARES, circuits.edges, circuits.sizes, strict=True):
        np.testing.assert_array_equal(edges, GRAPH.top(scores, int(share * GRAPH.size), absolute=absolute))
        assert size == edges.sum() <= share * GRAPH.size
    np.testing.assert_array_equal(circuits.edges[-1], GRAPH.edges)


def test_the_two_rankings_cannot_be_mixed():
    """What was measured of circuits has the area of their ranking, and no other."""
    scores = np.random.default_rng(0).normal(size=GRAPH.shape)
    metrics = np.zeros((10, 5)), np.ones(5), np.zeros(5)
    names = {a: Circuits.of(GRAPH, scores, absolute=a).measured(*metrics).measure for a in (False, True)}
    assert names == {False: "CPR", True: "CMD"}
    wrong: list[tuple[Any, tuple[Any, ...]]] = [
        (Circuits.of, (GRAPH, scores)),
        (Circuits.of, (GRAPH, scores, True)),
        (GRAPH.top, (scores, 5)),
        (GRAPH.top, (scores, 5, True)),
    ]
    for choose, arguments in wrong:  # the ranking is always named
        with pytest.raises(TypeError, match="absolute|positional"):
            choose(*arguments)


@pytest.mark.parametrize("shares", [(), (1.0,), (0.5, 0.2), (0.0, 1.0), (0.5, 1.5), (0.5, 0.5), (-0.1, 0.5)])
def test_other_shares_are_refused(shares):
    with pytest.raises(ValueError, match="^shares = "):
        Circuits.of(GRAPH, np.zeros(GRAPH.shape), absolute=True, shares=shares)
    with pytest.raises(ValueError, match="^shares = "):
        curve(np.ones(len(shares)), False, shares=shares)


# ------------------------------------------------------------------------------------------------ faithfulness


def by_loops(measured):
    """f by prompt-wise sums, and the area by trapezoids, one after the other."""
    f = []
    for row in measured.circuit:
        above = sum(c - e for c, e in zip(row, measured.empty, strict=True))
        f.append(above / sum(m - e for m, e in zip(measured.full, measured.empty, strict=True)))
    heights = [abs(1 - value) for value in f] if measured.absolute else f
    area = 0.0
    for number in range(len(f) - 1):
        area += (measured.shares[number + 1] - measured.shares[number]) * (heights[number] + heights[number + 1]) / 2
    return f, area


@pytest.mark.oracle
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_faithfulness_and_area_are_those_of_loops(seed, absolute):
    measured = noisy(seed, absolute, np.linspace(-0.3, 1.4, 10), prompts=7)
    f, area = by_loops(measured)
    np.testing.assert_allclose(measured.faithfulness.value, f, atol=1e-13)
    assert measured.area.value == pytest.approx(area, abs=1e-13)
    assert measured.area.low <= measured.area.value <= measured.area.high
    assert (measured.faithfulness.low <= f).all() and (measured.faithfulness.high >= f).all()


@pytest.mark.parametrize(
    "f, cpr, cmd",
    [
        (np.ones(10), 0.999, 0),  # always faithful, over the nominal shares from .001 on
        (np.zeros(10), 0, 0.999),
        (np.r_[np.zeros(9), 1], 0.25, 0.749),  # a random ranking: half of the weight lies on the last trapezoid
        (np.full(10, 2.0), 1.998, 0.999),  # CPR has no upper bound
    ],
)
def test_areas_of_curves_that_are_known(f, cpr, cmd):
    for absolute, area in ((False, cpr), (True, cmd)):
        found = curve(f, absolute).area
        assert found == pytest.approx((area, area, area), abs=1e-12)  # f is the same on every prompt


def test_the_weights_are_those_of_numpys_trapezoids():
    for shares in (SHARES, (0.1, 0.4), (0.2, 0.3, 0.9)):
        values = np.random.default_rng(0).normal(size=len(shares))
        assert trapezoid_weights(shares) @ values == pytest.approx(np.trapezoid(values, shares), abs=1e-15)


def test_faithfulness_is_a_ratio_of_means_and_not_a_mean_of_ratios():
    full, circuit = np.array([1.0, 9.0]), np.array([1.0, 0.0])
    measured = Curve((0.5, 1.0), np.array([1, 2]), False, np.stack([circuit, full]), full, np.zeros(2))
    np.testing.assert_allclose(measured.faithfulness.value, [0.1, 1])


def test_prompts_of_one_unit_count_once():
    """The same prompts thrice are no more evidence than once."""
    once = noisy(0, False, np.linspace(0, 1, 10), prompts=9)
    thrice = Curve(
        SHARES, once.sizes, False, np.tile(once.circuit, 3), np.tile(once.full, 3), np.tile(once.empty, 3),
        clusters=np.tile(np.arange(9), 3),
    )  # fmt: skip
    assert thrice.area == pytest.approx(once.area, abs=1e-12)
    np.testing.assert_allclose(thrice.faithfulness.low, once.faithfulness.low, atol=1e-12)


def test_without_an_effect_of_the_whole_model_nothing_is_defined(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    measured = curve(np.ones(10), True)
    nothing = Curve(SHARES, measured.sizes, True, measured.circuit, measured.empty, measured.full)
    assert np.isnan(nothing.area).all() and np.isnan(nothing.faithfulness.value).all() and not nothing.defined
    stored = json.loads(files.save_values(nothing.values(), "stem").read_text())
    assert stored["CMD"] == [None] * 3 and set(stored["undefined"].values()) == {undefined.NO_SHARE}


def test_what_is_undefined_of_edges_has_reasons_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    entries = {"strongest": {"m0->logits": np.nan}}
    stored = json.loads(files.save_values({"component graph": entries}, "test").read_text(encoding="utf-8"))
    reasons = {place.split(": ")[1]: reason for place, reason in stored["undefined"].items()}
    assert reasons["strongest"] == undefined.NO_SHARE
    with pytest.warns(UserWarning, match="component graph: drawn is NaN"):
        files.save_values({"component graph": {"drawn": np.nan}}, "test")


def test_the_table_has_a_row_for_every_size():
    measured = noisy(0, False, np.linspace(0, 1, 10))
    table = measured.table()
    assert list(table.index) == ["0.1%", "0.2%", "0.5%", "1.0%", "2.0%", "5.0%", "10.0%", "20.0%", "50.0%", "100.0%"]
    assert table.faithfulness.iloc[-1] == "1.00 [1.00, 1.00]"
    assert measured.lines()[0].startswith("CPR 0.") and measured.lines()[0].endswith("(edges ranked by signed scores)")


METRICS = {"circuit": np.zeros((2, 3)), "full": np.ones(3), "empty": np.zeros(3)}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"circuit": np.zeros((3, 2))}, "circuit is"),
        ({"empty": np.zeros(2)}, "empty is"),
        ({"full": np.ones((3, 1))}, "sizes is"),
        ({"sizes": np.arange(3)}, "sizes is"),
        ({"clusters": np.arange(2)}, "clusters is"),
        ({"full": np.array([1, np.nan, 1])}, "full has entries that are not finite"),
        ({"circuit": np.full((2, 3), np.inf)}, "circuit has entries"),
        ({"circuit": np.zeros((2, 1)), "full": np.ones(1), "empty": np.zeros(1)}, "two sampled units, got 1"),
        ({"clusters": np.zeros(3)}, "two sampled units, got 1"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Curve(**{"shares": (0.5, 1.0), "sizes": np.arange(2), "absolute": False, **METRICS, **change})


FAITHFUL = np.ones(10)
NEARLY = np.array([0, 0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 1])
POOR = np.array([0, 0, 0, 0, 0, 0.05, 0.1, 0.2, 0.5, 1])
BEYOND = np.array([0, 0.1, 0.3, 0.6, 1, 1.3, 1.5, 1.4, 1.1, 1])


@pytest.mark.parametrize("absolute", [False, True], ids=["CPR", "CMD"])
@pytest.mark.parametrize("together", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("f", [FAITHFUL, NEARLY, POOR, BEYOND], ids=["faithful", "nearly", "poor", "beyond"])
def test_intervals_of_areas_cover_at_their_level(f, together, absolute):
    """Also at f = 1, where a CMD is 0 and every bootstrap sample has more."""
    heights = np.abs(1 - f) if absolute else f
    truth = np.trapezoid(heights, SHARES)
    areas = [noisy(seed, absolute, f, together=together).area for seed in range(300)]
    covered = np.mean([area.low - 1e-12 <= truth <= area.high + 1e-12 for area in areas])
    assert covered > 0.92
    assert np.mean([area.high - area.low for area in areas]) < 0.15


# ------------------------------------------------------------------------------------------------ rank correlation


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(3))
def test_rank_correlations_are_those_of_ranks(seed):
    random = np.random.default_rng(seed)
    first, second = random.integers(0, 9, 30).astype(float), random.integers(0, 9, 30).astype(float)
    ranks = [
        [np.mean([(other < one) + (other == one) / 2 for other in values]) for one in values]
        for values in (first, second)
    ]
    assert spearman(first, second) == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-12)
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_rank_correlations_of_equal_opposite_and_constant_scores():
    scores = np.random.default_rng(0).normal(size=20)
    assert spearman(scores, np.exp(scores)) == pytest.approx(1)
    assert spearman(scores, -scores) == pytest.approx(-1)
    assert np.isnan(spearman(scores, np.zeros(20)))
    with pytest.raises(ValueError, match="one dimension"):
        spearman(scores, scores[1:])
    with pytest.raises(ValueError, match="one dimension"):
        spearman(scores[:1], scores[:1])
    with pytest.raises(ValueError, match="not finite"):
        spearman(scores, np.where(scores > 0, scores, np.nan))
