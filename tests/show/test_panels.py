"""Kinds of panel can be read. What they draw of stored values: tests/figures/test_drawn.py."""

import warnings

import numpy as np
import pytest

from tests.figures.legible import LONG_NAME, faults
from util.show.draw import COLUMN, WIDTH, draw
from util.show.panels import colour_limit, short_number, token_grid, visible, without_zero

# ------------------------------------------------------------------------------------------------ maps of heads


def test_numbers_in_cells_have_three_characters_at_most():
    numbers = (0.444, -0.26, -2.54, 12.4, 10.0, 0.9999, 0.0, -9.98, 9.949)
    assert list(map(short_number, numbers)) == [".44", "-.26", "-2.5", "12", "10", "1.0", ".00", "-10", "9.9"]
    assert without_zero(10.0, 2) == "10.00" and without_zero(-0.5, 2) == "-.50"
    assert colour_limit(np.zeros((2, 2))) == 1


# ------------------------------------------------------------------------------------------------ tokens

TOKENS = ["<|endoftext|>", "A", " list", ".", "\n\n", *["gr", "ape", " shark", ":", "Foo", "\n\n"] * 10, "kiwi", ":"]
ODD = ["<script>alert('1')</script>", " $x_1$", "\t", "\r\n", "語", "\u202e", "e\u0301", "&amp;", "�", "🙂", "\x00"]


@pytest.mark.parametrize(
    "token, sign",
    [
        (" a b", "·a·b"),
        ("\n\t\r", "↵⇥\\u000d"),
        ("\x00\u202e", "\\u0000\\u202e"),
        ("e\u0301語", "e\\u0301\\u8a9e"),
        ("<b>", "<b>"),
    ],
)
def test_what_would_not_be_seen_has_a_sign(token, sign):
    assert visible(token) == sign


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize(
    "tokens, count",
    [(TOKENS, 2), (ODD * 2, 1), (["supercalifragilistic", " \n", "a"], 1)],
    ids=["two rows", "odd signs", "a long token"],
)
def test_a_picture_of_tokens_can_be_read_at_any_width(tokens, count, width, tmp_path):
    weights = np.random.default_rng(0).dirichlet(np.full(len(tokens), 0.05), count)
    names = [f"L{number}H3 from a token" for number in range(count)]
    grid = token_grid(tokens, weights, names, [len(tokens) - 1, 9][:count])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a letter that the font does not have is one
        figure = draw(grid, "From the last colon this head attends to the labels", f"{LONG_NAME}, wordseq1", width)
        figure.savefig(tmp_path / "rows.png")
    assert faults(figure) == [] and figure.get_figwidth() == width
