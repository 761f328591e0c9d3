"""Ranks among controls, and how intervals are written and indexed."""

from typing import Any

import numpy as np
import pytest

from util.stats.intervals import Interval, Intervals, accuracy, t_interval
from util.stats.tests import rank_p


@pytest.mark.parametrize(
    "value, controls, low, high",
    [
        (0.5, [0.9] * 19, 1 / 20, 1),  # no control is as low, all are as high
        (0.5, [0.1] * 19, 1, 1 / 20),
        (0.5, [0.5, 0.4, 0.6, 0.9], 3 / 5, 4 / 5),  # a control that is equal counts in both tails
        (0.5, [], 1, 1),
    ],
)
def test_rank_counts_controls_as_extreme_in_its_tail(value, controls, low, high):
    least = 1 / (1 + len(controls))
    assert rank_p(value, controls, tail="low") == (low, least)
    assert rank_p(value, controls, tail="high") == (high, least)


def test_tails_mirror_each_other():
    rng = np.random.default_rng(0)
    for value, *controls in rng.integers(0, 5, (50, 12)).tolist():
        mirrored = [-control for control in controls]
        assert rank_p(value, controls, tail="low") == rank_p(-value, mirrored, tail="high")


@pytest.mark.parametrize("tail", ["lower", "LOW", "", None, "two-sided"])
def test_another_tail_is_refused(tail):
    with pytest.raises(ValueError, match='give "low" or "high"'):
        rank_p(0.5, [0.1, 0.9], tail=tail)


@pytest.mark.parametrize("arguments", [(0.5, [0.1, 0.9]), (0.5, [0.1, 0.9], "low")])
def test_the_tail_must_be_named(arguments):
    call: Any = rank_p
    with pytest.raises(TypeError, match="positional|tail"):
        call(*arguments)


@pytest.mark.parametrize(
    "interval, text",
    [
        (Interval(0.4375, 0.2812, 0.5938), "0.44 [0.28, 0.59]"),
        (Interval(1.0, 0.985, 1.0), "1.00 [0.98, 1.00]"),  # 0.985 is slightly below 0.985 in binary
        (Interval(-0.001, -0.004, 0.002), "0.00 [0.00, 0.00]"),  # never -0.00
        (Interval(-0.5, -12.0, 0.25), "-0.50 [-12.00, 0.25]"),
    ],
)
def test_an_interval_is_written_with_two_decimals(interval, text):
    assert str(interval) == text


def test_an_interval_is_a_tuple_of_value_low_high():
    value, low, high = Interval(0.5, 0.25, 0.75)
    assert (value, low, high) == Interval(value=0.5, low=0.25, high=0.75) == (0.5, 0.25, 0.75)


def test_one_place_of_intervals_is_an_interval():
    values = np.random.default_rng(0).normal(size=(20, 3, 4))
    intervals = Intervals(*t_interval(values))
    assert intervals.value.shape == intervals.low.shape == intervals.high.shape == (3, 4)
    for place in np.ndindex(3, 4):
        interval = intervals[place]
        assert isinstance(interval, Interval) and all(type(number) is float for number in interval)
        assert list(interval) == [bound[place] for bound in t_interval(values)]
        assert interval.low < interval.value < interval.high


def test_a_place_outside_or_of_several_intervals_is_refused():
    intervals = Intervals(*t_interval(np.random.default_rng(0).normal(size=(20, 3))))
    with pytest.raises(IndexError):
        intervals[3]
    with pytest.raises(TypeError):
        intervals[:2]


def test_accuracy_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one trial"):
        accuracy(np.zeros(3, bool), units=0)
