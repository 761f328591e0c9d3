"""Pictures of panels: all of them are drawn, in as many columns as fit, with room for all texts."""

import io
from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.lines import Line2D
from PIL import Image

from tests.figures.legible import LONG_NAME, faults
from util.show.draw import Grid, broken, draw, matrix, room
from util.show.style import COLUMN, WIDTH

EYE = partial(matrix, values=np.eye(2))


def test_labels_of_panels_stand_in_one_legend_once_each_and_what_spans_panels_is_drawn():
    def labelled(name):
        return lambda ax: ax.plot([0, 1], [0, 1], label=name)

    seen: list = []
    grid = Grid(
        [*map(labelled, "aab")],
        legend=[Line2D([], [], label="c")],
        finish=lambda figure, axes: seen.extend(axes),
    )
    figure = draw(grid, None, "a subtitle")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"] and not faults(figure)
    assert len(seen) == 3 and not draw(Grid([EYE]), "", "").legends


@pytest.mark.parametrize(
    ("options", "width", "rooms"),
    [
        ({"least": 2.0, "height": [1.0, 2.0, 0.5, 0.7], "columns": 2}, WIDTH,
         [(WIDTH / 2, 2.0)] * 2 + [(WIDTH / 2, 0.7)] * 2),
        ({"columns": 4, "height": lambda width: 2 * width}, WIDTH, [(WIDTH / 4, WIDTH / 2)] * 4),
        ({"least": 2.0, "wide": [3], "height": [1, 1, 1, 2]}, COLUMN, [(COLUMN, 1.0)] * 3 + [(COLUMN, 2.0)]),
    ],
)  # fmt: skip
def test_a_row_is_as_high_as_its_highest_panel_or_as_its_width_says(options, width, rooms):
    seen: list = []
    draw(Grid([lambda ax: seen.append(room(ax))] * 4, **options), "", "", width)
    np.testing.assert_allclose(seen, rooms)


@pytest.mark.parametrize(
    ("share", "x", "y"), [("xy", ["", "", "x", "x", "x"], ["y", "", "", "y", ""]), ("", ["x"] * 5, ["y"] * 5)]
)
def test_shared_axes_have_labels_at_the_left_and_where_none_is_below(share, x, y):
    axes = draw(Grid([lambda ax: ax.set(xlabel="x", ylabel="y")] * 5, columns=3, share=share), "", "").axes
    assert [ax.get_xlabel() for ax in axes] == x and [ax.get_ylabel() for ax in axes] == y


def test_a_dollar_in_a_name_is_a_dollar(tmp_path):
    figure = draw(Grid([EYE]), "a head of a$b_{c$", "a$b_{c$, 8 prompts")
    figure.savefig(tmp_path / "figure.png")
    assert headline(figure) == ("a head of a$b_{c$", "a$b_{c$, 8 prompts")


def headline(figure):
    return tuple(" ".join(text.split()) for text in (figure.get_suptitle(), figure.texts[-1].get_text()))


@pytest.mark.parametrize("width", [2.0, COLUMN, WIDTH])
@pytest.mark.parametrize("finding", [None, "Seven of the heads of this model read the token before a label"])
def test_a_headline_fits_its_figure_at_any_width(width, finding):
    setting = f"{LONG_NAME}, financial_phrasebank, k = 4, 256 prompts of the held-out half"
    figure = draw(Grid([EYE], height=2.0), finding, setting, width)
    assert faults(figure) == [] and headline(figure) == (finding or "", setting)
    assert figure.axes[0].bbox.y1 < figure.texts[-1].get_window_extent().y0


def test_a_figure_that_is_cropped_to_its_layout_keeps_its_headline():
    """Jupyter saves so whatever a cell returns: titles stood outside of the layout and were cut off."""
    figure, pad = draw(Grid([EYE], height=3), "A finding", "a setting", 4), 2 * mpl.rcParams["savefig.pad_inches"]
    figure.savefig(place := io.BytesIO(), bbox_inches="tight", dpi=100)
    np.testing.assert_allclose(Image.open(place).size, 100 * (figure.get_size_inches() + pad), atol=1)


@pytest.mark.parametrize("width", [20, 150, 300])
def test_an_interval_is_not_broken_into_two_lines(width):
    text = "heads give 0.96 [0.90, 0.97] of it to the token before, 0.94 [0.90, 0.96] to another"
    lines = broken(text, 8.5, width).split("\n")
    assert " ".join(lines) == text
    assert all(line.count("[") == line.count("]") for line in lines)
