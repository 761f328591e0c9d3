"""Which sizes of a card's parts fit into its time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from util.card.budget import IOI, PARTS, RESERVE, SIZES, Pace, Shape, passes, plan, seconds, tokens

SHAPES = [Shape(4, 8), Shape(30, 9), Shape(80, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("part", PARTS)
def test_larger_sizes_and_larger_models_cost_more(part, shape):
    costs = [tokens(part, size, shape) for size in SIZES[part]]
    assert costs == sorted(costs) and costs[0] > 0
    larger = Shape(2 * shape.layers, shape.heads)
    assert all(tokens(part, size, larger) >= cost for size, cost in zip(SIZES[part], costs, strict=True))


def test_another_part_has_no_cost():
    with pytest.raises(KeyError, match="dessert"):
        tokens("dessert", SIZES[PARTS[0]][0], SHAPES[0])


EACH = {"a": [10.0, 20.0, 50.0], "b": [5.0, 30.0], "c": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        (0, {"a": None, "b": None, "c": None}),
        (9, {"a": None, "b": None, "c": None}),  # parts stay in their order: none is measured before one it needs
        (10, {"a": 0, "b": None, "c": None}),
        (15, {"a": 0, "b": 0, "c": None}),
        (16, {"a": 0, "b": 0, "c": 0}),
        (32, {"a": 0, "b": 0, "c": 2}),  # growing further would use up the reserve
        (33, {"a": 1, "b": 0, "c": 0}),
        (34, {"a": 1, "b": 0, "c": 1}),
        (67, {"a": 1, "b": 1, "c": 2}),
        (104, {"a": 2, "b": 1, "c": 2}),
    ],
)
def test_parts_grow_together(seconds, chosen):
    assert plan(seconds, list(EACH), EACH) == chosen


def test_parts_that_take_longer_than_said_leave_none_out():
    """As those of SmolLM2 in five minutes did: each took a sixth longer, and for the last one too little was left."""
    each = {"roles": [60.0, 94.0], "IOI": [69.0, 130.0], "word pairs": [48.0, 90.0], "knocked out": [65.0, 130.0]}
    left, ahead, measured = 300.0, list(each), []
    while ahead:
        place = plan(left, ahead, each)[ahead[0]]
        assert place is not None
        left -= 1.17 * each[ahead[0]][place]
        measured.append(ahead.pop(0))
    assert left > 0 and measured == list(each)


def test_sizes_that_are_there_are_kept_where_no_time_is_left():
    each = {"a": [0.0, 0.0, 50.0], "b": [5.0, 30.0]}
    assert plan(5, list(each), each) == {"a": 1, "b": 0}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_takes_longer_where_tokens_or_passes_do(part):
    size, shape = SIZES[part][0], SHAPES[1]
    fast, slow, late = (seconds(part, size, shape, pace) for pace in (Pace(1e3, 0.0), Pace(5e2, 0.0), Pace(1e3, 0.1)))
    assert slow > fast
    assert late == pytest.approx(fast + 0.1 * passes(part, size, shape)) and (late > fast) == (part == IOI)


costs = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=4).map(sorted)


@given(st.floats(0, 1e5), st.lists(costs, min_size=1, max_size=5))
def test_what_is_chosen_fits(seconds, each):
    names = [f"part {number}" for number in range(len(each))]
    by_name = dict(zip(names, each, strict=True))
    chosen = plan(seconds, names, by_name)
    taken = [by_name[name][place] for name, place in chosen.items() if place is not None]
    assert sum(taken) <= seconds * (1 + 1e-9)
    if sum(taken) > sum(one[0] for name, one in by_name.items() if chosen[name] is not None):  # something grew
        assert sum(taken) <= seconds * (1 - RESERVE + 1e-9)
    left_out = [place is None for place in chosen.values()]
    assert left_out == sorted(left_out)  # the last ones are left out


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.lists(costs, min_size=1, max_size=5))
def test_more_time_leaves_no_part_out_that_less_has(less, more, each):
    by_name = {f"part {number}": one for number, one in enumerate(each)}
    few, many = (plan(seconds, list(by_name), by_name) for seconds in sorted([less, less + more]))
    assert all(many[name] is not None for name in by_name if few[name] is not None)
