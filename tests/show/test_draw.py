"""Pictures of panels: all of them are drawn, in as many columns as fit."""

from functools import partial

import numpy as np
import pytest
from matplotlib.lines import Line2D

from tests.figures.legible import faults
from util.show.draw import Grid, draw, matrix
from util.show.style import COLUMN, WIDTH


@pytest.mark.parametrize(("width", "columns"), [(WIDTH, 3), (COLUMN, 2)])
def test_panels_fold_at_the_width(width, columns):
    panels = [partial(matrix, values=np.eye(3), title=f"{number}") for number in range(5)]
    figure = draw(Grid(panels, least=1.6, x="across", y="down"), "a title", "a subtitle", width)
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == list("01234")
    assert len({round(ax.get_position().x0, 6) for ax in shown}) == columns
    assert figure.get_size_inches()[0] == width and figure.get_suptitle() == "a title" and not faults(figure)


def test_there_is_room_for_a_legend_and_what_spans_panels():
    seen: list = []
    grid = Grid([partial(matrix, values=np.eye(2))] * 2, legend=[Line2D([], [], label="a line")],
                finish=lambda figure, axes: seen.extend(axes))  # fmt: skip
    figure = draw(grid, None, "a subtitle")
    assert len(seen) == 2 and [text.get_text() for text in figure.legends[0].get_texts()] == ["a line"]
    assert not faults(figure)


def test_a_matrix_has_names_and_numbers():
    panel = partial(matrix, values=np.array([[0, 0.5]]), rows=["r"], columns=["a", "b"], decimals=2)
    figure = draw(Grid([panel]), "", "")
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["0.5"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b"]
