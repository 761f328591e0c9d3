"""Pictures of panels: all of them are drawn, in as many columns as fit."""

from functools import partial

import numpy as np
import pytest
from matplotlib.lines import Line2D

from tests.figures.legible import faults
from util.show.draw import Grid, draw, headline_of, matrix, room
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
    panel = partial(matrix, values=np.array([[0, 0.5]]), rows=["r"], columns=["a", "b"], numbers=True)
    figure = draw(Grid([panel]), "", "")
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["0.5"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b"]


def labelled(name):
    return lambda ax: ax.plot([0, 1], [0, 1], label=name)


def test_labels_of_panels_stand_in_one_legend_once_each():
    grid = Grid([labelled("a"), labelled("a"), labelled("b")], legend=[Line2D([], [], label="c")])
    figure = draw(grid, "", "a subtitle")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"] and not faults(figure)
    assert not draw(Grid([partial(matrix, values=np.eye(2))]), "", "").legends


def test_a_row_is_as_high_as_its_highest_panel_or_as_its_width_says():
    seen: list = []
    panels = [lambda ax: seen.append(room(ax))] * 4
    draw(Grid(panels, least=2.0, height=[1.0, 2.0, 0.5, 0.7], columns=2), "", "", WIDTH)
    assert seen == [(WIDTH / 2, 2.0)] * 2 + [(WIDTH / 2, 0.7)] * 2
    seen.clear()
    draw(Grid(panels, columns=4, height=lambda width: 2 * width), "", "", WIDTH)
    assert seen == [(WIDTH / 4, WIDTH / 2)] * 4
    seen.clear()
    draw(Grid(panels, least=2.0, wide=[3], height=[1, 1, 1, 2]), "", "", COLUMN)
    assert seen == [(COLUMN, 1.0)] * 3 + [(COLUMN, 2.0)]
    seen.clear()
    draw(Grid(panels[:3], wide=[2]), "", "", WIDTH)
    assert [width for width, _ in seen] == [WIDTH / 2, WIDTH / 2, WIDTH]


def test_shared_axes_have_labels_at_the_left_and_where_none_is_below():
    def panel(ax):
        ax.set(xlabel="x", ylabel="y")

    axes = draw(Grid([panel] * 5, columns=3, share="xy"), "", "").axes
    assert [ax.get_ylabel() for ax in axes] == ["y", "", "", "y", ""]
    assert [ax.get_xlabel() for ax in axes] == ["", "", "x", "x", "x"]
    alone = draw(Grid([panel] * 5, columns=3), "", "").axes
    assert [ax.get_xlabel() + ax.get_ylabel() for ax in alone] == ["xy"] * 5


def test_a_dollar_in_a_name_is_a_dollar(tmp_path):
    figure = draw(Grid([lambda ax: ax.plot([0, 1])]), "a head of a$b_{c$", "a$b_{c$, 8 prompts")
    figure.savefig(tmp_path / "figure.png")
    assert headline_of(figure) == ("a head of a$b_{c$", "a$b_{c$, 8 prompts")
