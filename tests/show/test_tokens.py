"""Prompts as coloured tokens: every sign is seen, nothing runs, all fits any width; shades are those of the weights."""

import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from tests.figures.legible import LONG_NAME, faults
from util.show import style
from util.show.draw import draw
from util.show.panels import token_grid, visible

DEMONSTRATION = ["gr", "ape", " shark", ":", "Foo", "\n\n"]
TOKENS = ["<|endoftext|>", "A", " list", " of", " sequences", ".", "\n\n", *DEMONSTRATION * 10, "kiwi", " dog", ":"]
ODD = [
    "<script>alert('1')</script>",
    " $x_1$",
    "\t",
    "\r\n",
    "語",
    "\u202e",
    "e\u0301",
    "&amp;",
    "�",
    "🙂",
    "\x00",
    "'\"",
]


def rows(tokens=TOKENS, count=2, seed=0):
    weights = np.random.default_rng(seed).dirichlet(np.full(len(tokens), 0.05), count)
    names = [f"L{number}H3 from a token" for number in range(count)]
    queries = [len(tokens) - 1, 9, *[0] * count][:count]
    return token_grid(tokens, weights, names, queries)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" a b", "·a·b"),
        ("\n\n", "↵↵"),
        ("\t\r", "⇥\\u000d"),
        ("\x00\u202e", "\\u0000\\u202e"),
        ("e\u0301", "e\\u0301"),
        ("語", "\\u8a9e"),
        ("<b>", "<b>"),
    ],
)
def test_what_would_not_be_seen_has_a_sign(token, shown):
    assert visible(token) == shown


@pytest.mark.parametrize("width", [style.COLUMN, style.WIDTH])
@pytest.mark.parametrize(
    "drawn",
    [
        rows(),
        rows(count=5),
        rows(ODD * 4),
        rows(["supercalifragilistic", " \n", "a"], 1),
        rows([" word"] * 400, 1),
    ],
    ids=["two rows", "five rows", "odd signs", "a long token", "a long prompt"],
)
def test_a_picture_can_be_read_at_any_width(drawn, width, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a letter that the font does not have is one
        figure = draw(drawn, "From the last colon this head attends to the labels", f"{LONG_NAME}, wordseq1", width)
        figure.savefig(tmp_path / "rows.png")
    assert faults(figure) == [] and figure.get_figwidth() == width


def test_shades_weights_and_frames_are_those_of_the_row():
    [ax] = draw(token_grid(["a", "b\n", "c"], np.array([[0.6, 0.03, 0.0]]), ["row"], [1]), None, "toy").axes
    faces = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_fill()]
    [frame] = [patch for patch in ax.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    brightness = [sum(to_rgba(face.get_facecolor())[:3]) for face in faces]
    assert brightness[0] < brightness[1] < brightness[2] == 3 and frame.get_xy() == faces[1].get_xy()
    texts = {text.get_text(): text.get_color() for text in ax.texts}
    assert list(texts) == ["a", ".60", "b↵", "c"] and texts["a"] == "white" and texts["c"] == "0.75"
    assert faces[2].get_xy()[0] == 0 < faces[2].get_xy()[1]  # a line end of the prompt ends a line


def test_rows_of_zeros_have_no_shade():
    [ax] = draw(token_grid(["a"], np.zeros((1, 1)), ["row"], [0]), None, "toy").axes
    assert [sum(to_rgba(patch.get_facecolor())[:3]) for patch in ax.patches if patch.get_fill()] == pytest.approx(
        [3], abs=0.1
    )
