"""Prompts as coloured tokens: every sign is seen, nothing runs, all fits any width; shades are those of the weights."""

import re
import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from tests.figures.legible import LONG_NAME, faults
from util.figures import style
from util.figures.tokens import TokenRows, visible

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


def rows(tokens=TOKENS, count=2, seed=0, **options):
    weights = np.random.default_rng(seed).dirichlet(np.full(len(tokens), 0.05), count)
    names = [f"L{number}H3 from a token" for number in range(count)]
    return TokenRows(tokens, weights, names, setting=f"{LONG_NAME}, wordseq1", **options)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" a b", "·a·b"),
        ("\n\n", "↵↵"),
        ("\t\r", "⇥␍"),
        ("\x00\u202e", "\\u0000\\u202e"),
        ("e\u0301", "e\\u0301"),
        ("語", "語"),
        ("<b>", "<b>"),
    ],
)
def test_what_would_not_be_seen_has_a_sign(token, shown):
    assert visible(token) == shown


@pytest.mark.parametrize("width", [style.COLUMN, style.WIDTH])
@pytest.mark.parametrize(
    "drawn",
    [
        rows(finding="From the last colon this head attends to the labels alone", queries=[len(TOKENS) - 1, 9]),
        rows(count=5),
        rows(ODD * 4),
        rows(["supercalifragilistic" * 8, " \n", "a"], 1),
        rows([" word"] * 400, 1),
    ],
    ids=["two rows", "five rows", "odd signs", "a long token", "a long prompt"],
)
def test_a_picture_can_be_read_at_any_width(drawn, width, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a letter that the font does not have is one
        figure = drawn.figure(width=width)
        figure.savefig(tmp_path / "rows.png")
    assert faults(figure) == [] and figure.get_figwidth() == width


def test_shades_weights_and_frames_are_those_of_the_row():
    figure = TokenRows(["a", "b\n", "c"], np.array([[0.6, 0.03, 0.0]]), ["row"], [1]).figure()
    [ax] = figure.axes
    faces = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_fill()]
    [frame] = [patch for patch in ax.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    brightness = [sum(to_rgba(face.get_facecolor())[:3]) for face in faces]
    assert brightness[0] < brightness[1] < brightness[2] == 3 and frame.get_xy() == faces[1].get_xy()
    texts = {text.get_text(): text.get_color() for text in ax.texts}
    assert list(texts) == ["a", ".60", "b↵", "c"] and texts["a"] == "white" and texts["c"] == "0.75"
    assert faces[2].get_xy()[0] == 0 < faces[2].get_xy()[1]  # a line end of the prompt ends a line


@pytest.mark.parametrize(
    ("weights", "names", "queries", "said"),
    [
        (np.ones(3), ["one"], (), "weights of shape (3,): give one for each of the 2 tokens"),
        (np.ones((1, 2)), ["one", "two"], (), "a row for each of the 2 names"),
        (np.array([1.0, -1.0]), ["one"], (), "numbers from 0 on"),
        (np.array([1.0, np.nan]), ["one"], (), "numbers from 0 on"),
        (np.ones(2), ["one"], (2,), r"queries = [2]: give a position below 2"),
        (np.ones(2), ["one"], (0, 1), r"for each of 1 rows"),
        (np.ones((0, 2)), [], (), "the 0 names"),
    ],
)
def test_what_does_not_fit_is_refused(weights, names, queries, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        TokenRows(["a", "b"], weights, names, queries)


def test_rows_of_zeros_have_no_shade():
    assert TokenRows(["a"], np.zeros(1), ["row"]).largest == 1
