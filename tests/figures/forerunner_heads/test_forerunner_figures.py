"""The pictures of forerunner heads: where values are drawn, and titles that the values support.

Whether they can be read: test_drawn.py.
"""

import numpy as np
import pytest

from tests.figures.forerunner_heads.made_up import reading
from tests.figures.legible import faults
from tests.stored import read
from util.figures.forerunner_heads import measure, numbers, show
from util.show.part import drawn

PROMPTS = 32
SETTINGS = show.Settings(prompts=PROMPTS, grid_prompts=PROMPTS, ablated=PROMPTS)
PARTS = show.FIGURE.parts


def values_of(readings):
    counted = numbers.counts(readings, SETTINGS) | numbers.layers(readings, SETTINGS)
    if {"wrong", "other word"} <= {*readings}:
        planted = {"planted": reading(np.zeros((PROMPTS, 1, 1))) | {"roles": [[0, 0, "never"]]}}
        counted |= numbers.specificity(readings | planted, SETTINGS)
    return read("forerunner_heads", "embedded") | counted


def picture(part, values):
    found = drawn(PARTS[part], values)
    assert found is not None
    return found


def title(part, values):
    return next(iter(PARTS[part].says(values)))


def test_a_model_without_a_frequent_head_can_be_drawn():
    nothing = {name: reading(np.zeros((PROMPTS, 1, 2))) for name in (*measure.ENDINGS, "untrained")}
    assert faults(picture("specificity", values_of(nothing))) == []


# ------------------------------------------------------------------------------------------------ what titles say


def passing(heads):
    """A magnitude on 32 heads of which the first so many pass."""
    return reading(np.where(np.arange(32) < heads, 0.9, 0.0).reshape(4, 8)[None].repeat(PROMPTS, axis=0))


def test_the_title_of_the_counts_where_untrained_weights_have_as_many():
    some = {"correct": passing(5), "wrong": passing(4), "other word": passing(2), "untrained": passing(5)}
    wanted = "No more heads are shown to be frequent than with untrained weights: 5 [5, 5] and 5 [5, 5] of 32"
    assert title("counts", values_of(some)) == wanted
    assert title("paper_layers", values_of({"correct": passing(5), "wrong": passing(5), "untrained": passing(6)})) == ""
    none = dict.fromkeys(("correct", "wrong", "other word"), passing(0))  # and no twin that could have had more
    assert title("counts", values_of(none)).startswith("0 [0, 0] of 32 heads are frequent")


@pytest.mark.parametrize(
    "heads, wanted",
    [
        ((5, 3), "3 heads are frequent on each of 2 data sets, 2 on some of them only"),
        ((5, 1), "1 head is frequent on each of 2 data sets, 4 on some of them only"),
        ((5, 0), "No head is frequent on each of 2 data sets, 5 on some of them only"),
        ((0, 0), "No head is frequent on any of 2 data sets"),
        ((5,), ""),
    ],
)
def test_the_title_of_the_data_sets(heads, wanted):
    by_set = {name: {"correct": passing(n)} for name, n in zip("ab", heads, strict=False)}
    values = {"request": {"grid_prompts": PROMPTS}} | numbers.grid(by_set | {"left out": {}}, SETTINGS)
    assert title("grid", values) == wanted


@pytest.mark.parametrize(
    "wrong, control, wanted",
    [
        (0.45, 0.01, "3 of 3 frequent heads are forerunner heads: they read the token before the label more than other "
         "previous tokens; 3 do so more than before a wrong label"),
        (0.9, 0.01, "; none do so more than before a wrong label"),
        (0.9, 0.9, "None of 3 frequent heads is shown to be a forerunner head"),
    ],
)  # fmt: skip
def test_the_title_of_the_specificity(wrong, control, wanted):
    some = np.where(np.arange(32).reshape(4, 8) < 3, 1.0, 0.0)
    noise = 0.001 * np.random.default_rng(0).random((PROMPTS, 4, 8))
    other = reading(wrong * some + noise, control=control)
    values = values_of({"correct": reading(0.9 * some + noise, control=control), "wrong": other, "other word": other})
    assert title("specificity", values).endswith(wanted)
    none = dict.fromkeys(("correct", "wrong", "other word"), reading(noise))
    assert title("specificity", values_of(none)).startswith("No head is frequent: none reads")
