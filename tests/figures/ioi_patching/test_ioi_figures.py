"""Pictures of IOI patching: where values are drawn, and what is said of them. See test_drawn.py, too."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.stored import read
from util.figures.ioi_patching import numbers, show
from util.figures.ioi_patching.show import FIGURE
from util.show.part import drawn
from util.stats.intervals import Interval


def around(values, reach=0.05):
    value = np.asarray(values)
    return {"value": value, "low": value - reach, "high": value + reach}


def values_of(**changes):
    """The stored values of the embedded model, but for some."""
    return {**read("ioi_patching", "embedded"), **changes}


def streams(layers):
    """The stream has the effect at the first of three tokens before the last two layers, at the last one behind."""
    shares = np.zeros((3, layers, 3))
    shares[0, :-2, 0] = shares[0, -2:, 2] = 1
    shares[1, -3, 2] = 0.9
    return {"shares": shares, "tokens": [" $a", "\n", " to"]}


def picture(name, values):
    found = drawn(FIGURE.parts[name], values)
    assert found is not None
    return found


def title(name, values):
    return next(iter(FIGURE.parts[name].says(values)), "")


# ------------------------------------------------------------------------------------------------ what is drawn


def test_the_layer_that_a_title_names_is_one_of_those_that_are_drawn():
    values = read("ioi_patching", "gemma3")
    *layers, _ = (ax.get_title() for ax in picture("p4", values).axes)
    assert title("p4", values).split(" in ")[1].split(":")[0] in layers
    ratios = np.take(values["selectivity"], [int(layer.split()[1]) for layer in layers])
    assert_allclose(numbers.selectivity(np.array(values["example"]["differences"])), ratios, rtol=1e-3)


def test_streams_are_shares_from_the_first_token_that_differs():
    effects = np.zeros((3, 4, 5))
    effects[:, :, 2:] = -10 * streams(4)["shares"]
    arrays = {"refused": "", "effects": effects, "base": 4.0, "source": -6.0, "tokens": ["a", "b", " $a", "\n", " to"]}
    found = numbers.streams(arrays, None)
    assert found["streams"]["tokens"] == [" $a", "\n", " to"]
    assert_array_equal(found["streams"]["shares"], streams(4)["shares"])
    assert [*FIGURE.parts["streams"].says(found)] == [
        'Attention in layer 1 brings most to " to", 0.90 of the effect',
        'More than half of it stands at " $a" up to layer 1, at " to" from layer 2 on.',
    ]
    refused = numbers.streams({"refused": "Toy: no layers"}, None)
    assert [*FIGURE.parts["streams"].says(refused)] == ["Streams: not measured, Toy: no layers"]
    assert drawn(FIGURE.parts["streams"], refused) is None


# ------------------------------------------------------------------------------------------------ what is said


SHARES_OF_SETS = {
    "4 of 32 heads alone keep 1.16 [1.06, 1.26] of the logit difference": (32, {1: 0.5, 4: 1.16, 16: 1.0}),
    "4 of 32 heads alone keep 0.95 [0.85, 1.05], 16 keep 0.30 of the logit difference": (
        32, {1: 0.5, 4: 0.95, 16: 0.3, 24: 0.9},
    ),
    "4 of 32 heads alone keep 0.95 [0.85, 1.05] of the logit difference": (32, {1: 0.5, 4: 0.95, 16: 0.8}),
    "128 of 270 heads alone keep 0.85 [0.75, 0.95] of the logit difference": (270, {4: 0.76, 128: 0.85, 256: 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("wanted", SHARES_OF_SETS)
def test_the_title_of_the_curve_calls_few_heads_enough_only_where_they_are(wanted):
    """ "The strongest 256 heads alone keep nine tenths", of 270, was no finding. Overlapping intervals are no dip."""
    heads, shares = SHARES_OF_SETS[wanted]
    faithful = {str(size): Interval(share, share - 0.1, share + 0.1) for size, share in shares.items()}
    circuit = {"faithfulness": faithful, "whole": (8.0, 7.0, 9.0), "random": dict.fromkeys(faithful, [0.1, 0.2])}
    assert title("circuit", {"circuit": circuit, "population": {"chosen": np.zeros((1, heads))}}) == wanted


# ------------------------------------------------------------------------------------------------ the circuit


def small_paths():
    """L0H1 tells L2H2 mostly by its query, L1H1 mostly by its value."""
    shares = {name: np.full((3, 3), np.nan) for name in ("edges", "query", "key", "value")}
    told = {"edges": (0.6, 0.1, 0), "query": (0.5, 0, 0), "key": (0, 0.04, 0), "value": (-0.1, 0.05, 0)}
    for name, column in told.items():
        shares[name][:2, 2] = column[:2]
    parts = {name: around(share) for name, share in (shares | {"direct": np.array([0.0, -0.3, 0.9])}).items()}
    return {**parts, "heads": [(0, 1), (1, 1), (2, 2)], "pairs": 32}


def test_the_diagram_has_the_paths_that_are_certain():
    assert [(edge.sender, edge.reader, edge.channel, edge.weight) for edge in show.certain_paths(small_paths())] == [
        ("L2H2", "logits", "", 0.9), ("L0H1", "L2H2", "query", 0.6), ("L1H1", "logits", "", -0.3),
        ("L1H1", "L2H2", "value", 0.1),
    ]  # fmt: skip


@pytest.mark.parametrize("atlas, wanted", [({}, "no role"), (None, "roles not measured")])
def test_the_diagram_says_what_heads_without_a_role_are(atlas, wanted, monkeypatch):
    monkeypatch.setattr(show, "stored_atlas", lambda request: atlas)
    figure = picture("paths", values_of(paths=small_paths()))
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == wanted


def test_without_a_certain_path_there_is_no_diagram():
    quiet = {name: around(part["value"], 9) if isinstance(part, dict) else part for name, part in small_paths().items()}
    assert drawn(FIGURE.parts["paths"], values_of(paths=quiet)) is None
