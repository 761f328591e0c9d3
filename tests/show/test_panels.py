"""Kinds of panel: what is drawn of numbers and tokens, where it stands, and that it can be read."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.show import panels
from util.show.draw import Grid, draw
from util.show.panels import colour_limit, short_number, token_grid, visible, without_zero
from util.show.style import BLUE, COLUMN, RED, WIDTH


def shown(panel, width=WIDTH, **grid):
    figure = draw(Grid([panel], **grid), "a title", "a subtitle", width)
    assert faults(figure) == []
    return figure


# ------------------------------------------------------------------------------------------------ maps of heads


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_a_map_of_heads_counts_from_0_and_has_numbers_where_they_can_be_read(layers, heads, width):
    texts = {(0, 1): "1", (layers - 1, heads - 1): "999"}
    panel = partial(panels.heads, values=np.eye(layers, heads), limits=(0.25, 1), texts=texts, bar="share")
    ax, bar = shown(panel, width, height=1.8).axes
    assert ax.get_images()[0].get_clim() == (0.25, 1) and "share" in (bar.get_ylabel(), bar.get_xlabel())
    for axis, count in ((ax.xaxis, layers), (ax.yaxis, heads)):
        ticks = axis.get_ticklocs().tolist()
        assert ticks[0] == 0 and len(ticks) >= 3 and ticks[-1] < count and {*np.diff(ticks, 2)} <= {0}
    fit = layers <= 12 and (width - panels.AXIS) / layers >= 0.24
    assert {text.get_position(): text.get_text() for text in ax.texts} == (texts if fit else {})


def test_a_map_without_limits_is_symmetric_and_none_saturates_and_its_texts_stand_out():
    panel = partial(panels.heads, values=np.array([[0.0, -3.0, np.nan], [1, 1, 1]]), texts={(0, 0): "a", (0, 1): "b"})
    (ax,) = shown(panel).axes
    assert ax.get_images()[0].get_clim() == (-3, 3) and colour_limit(np.zeros((2, 2))) == 1
    assert [(text.get_text(), text.get_color()) for text in ax.texts] == [("a", "black"), ("b", "white")]


def test_numbers_in_cells_have_three_characters_at_most():
    numbers = (0.444, -0.26, -2.54, 12.4, 10.0, 1.0, 0.0, -9.98, 9.949)
    assert list(map(short_number, numbers)) == [".44", "-.26", "-2.5", "12", "10", "1.0", ".00", "-10", "9.9"]
    assert without_zero(10.0, 2) == "10.00" and without_zero(-0.5, 2) == "-.50"


# ------------------------------------------------------------------------------------------------ curves and intervals


def test_a_curve_has_a_band_and_a_floor():
    def panel(ax):
        found = {"mean": [0.5, 0.0], "low": [0.4, -0.1], "high": [0.6, 0.1]}
        panels.curve(ax, found, 0.01, color=BLUE, label="a")
        panels.level(ax, 0.3, "level")

    (ax,) = shown(panel).axes
    assert ax.get_lines()[0].get_xydata().tolist() == [[0, 0.5], [1, 0.01]]
    assert [text.get_text() for text in ax.texts] == ["level"]


@pytest.mark.parametrize("upright", [False, True])
def test_intervals_that_hold_0_are_empty_and_have_no_number(upright):
    def panel(ax):
        panels.intervals(ax, [(-1, -2, -0.5), None, (3, -1, 7)], 0.1, upright=upright, label="cut", digits="+.2f")
        (panels.name_columns if upright else panels.name_rows)(ax, ["a", "b", "c"])
        ax.margins(y=0.4 if upright else 0.0)

    figure = shown(panel)
    (ax,) = figure.axes
    points = [container.lines[0] for container in ax.containers]
    places = [point.get_xydata()[0].tolist()[:: 1 if upright else -1] for point in points]
    assert places == [[0.1, -1.0], [2.1, 3.0]] and [point.get_mfc() for point in points] == [RED, "white"]
    assert [text.get_text().strip() for text in ax.texts] == ["-1.00"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cut"]


# ------------------------------------------------------------------------------------------------ tokens

TOKENS = ["<|endoftext|>", "A", " list", ".", "\n\n", *["gr", "ape", " shark", ":", "Foo", "\n\n"] * 10, "kiwi", ":"]
ODD = ["<script>alert('1')</script>", " $x_1$", "\t", "\r\n", "語", "\u202e", "e\u0301", "&amp;", "�", "🙂", "\x00"]


@pytest.mark.parametrize(
    ("token", "sign"),
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
    ("tokens", "count"),
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


def test_shades_weights_and_frames_are_those_of_the_row():
    [ax] = draw(token_grid(["a", "b\n", "c"], np.array([[0.6, 0.03, 0.0]]), ["row"], [1]), None, "toy").axes
    boxes: list[Any] = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    faces = [box for box in boxes if box.get_fill()]
    [frame] = [box for box in boxes if not box.get_fill()]
    brightness = [sum(to_rgba(face.get_facecolor())[:3]) for face in faces]
    assert brightness == sorted({*brightness}) and brightness[2] == 3 and frame.get_xy() == faces[1].get_xy()
    texts = {text.get_text(): text.get_color() for text in ax.texts}
    assert list(texts) == ["a", ".60", "b↵", "c"] and texts["a"] == "white" and texts["c"] == "0.75"
    assert faces[2].get_xy()[0] == 0 < faces[2].get_xy()[1]  # a line end of the prompt ends a line
