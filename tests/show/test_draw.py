"""Headlines of pictures: all of them are whole. What is drawn of stored values: tests/figures/test_drawn.py."""

import io
from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from tests.figures.legible import LONG_NAME, faults
from util.show.draw import COLUMN, WIDTH, Grid, broken, draw, matrix

EYE = partial(matrix, values=np.eye(2))


def test_a_dollar_in_a_name_is_a_dollar(tmp_path):
    figure = draw(Grid([EYE]), "a head of a$b_{c$", "a$b_{c$, 8 prompts")
    figure.savefig(tmp_path / "figure.png")
    assert headline(figure) == ("a head of a$b_{c$", "a$b_{c$, 8 prompts")


def headline(figure):
    return tuple(" ".join(text.split()) for text in (figure.get_suptitle(), figure.texts[-1].get_text()))


@pytest.mark.parametrize("width", [2.0, COLUMN, WIDTH])
@pytest.mark.parametrize("finding", ["", "Seven of the heads of this model read the token before a label"])
def test_a_headline_fits_its_figure_at_any_width(width, finding):
    setting = f"{LONG_NAME}, financial_phrasebank, k = 4, 256 prompts of the held-out half"
    figure = draw(Grid([EYE], height=2.0), finding, setting, width)
    assert faults(figure) == [] and headline(figure) == (finding, setting)
    assert figure.axes[0].bbox.y1 < figure.texts[-1].get_window_extent().y0


def test_a_figure_that_is_cropped_to_its_layout_keeps_its_headline():
    """Jupyter saves so whatever a cell returns: titles stood outside of the layout and were cut off."""
    figure, pad = draw(Grid([EYE], height=3), "A finding", "a setting", 4), 2 * mpl.rcParams["savefig.pad_inches"]
    figure.savefig(place := io.BytesIO(), bbox_inches="tight", dpi=100)
    assert_allclose(Image.open(place).size, 100 * (figure.get_size_inches() + pad), atol=1)


@pytest.mark.parametrize("width", [20, 150, 300])
def test_an_interval_is_not_broken_into_two_lines(width):
    text = "heads give 0.96 [0.90, 0.97] of it to the token before, 0.94 [0.90, 0.96] to another"
    lines = broken(text, 8.5, width).split("\n")
    assert " ".join(lines) == text
    assert all(line.count("[") == line.count("]") for line in lines)
