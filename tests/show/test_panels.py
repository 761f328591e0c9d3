"""Kinds of panel: what is drawn of numbers, where it stands, and that it can be read."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.figures.legible import SHAPES, faults
from util.show import panels
from util.show.draw import Grid, draw
from util.show.part import Figure, Part, drawn, sentences
from util.show.style import BLUE, COLUMN, RED, WIDTH


def shown(panel, width=WIDTH, **grid):
    figure = draw(Grid([panel], **grid), "a title", "a subtitle", width)
    assert faults(figure) == []
    return figure


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_a_map_of_heads_has_numbers_where_they_can_be_read(layers, heads, width):
    values = np.arange(layers * heads).reshape(layers, heads) / (layers * heads)
    texts = {(0, 1): "1", (layers - 1, heads - 1): "999"}
    panel = partial(panels.heads, values=values, limits=(0.25, 1), title="a map", texts=texts, bar="share")
    ax, bar = shown(panel, width, height=1.8).axes
    (image,) = ax.get_images()
    np.testing.assert_array_equal(image.get_array(), values.T)
    assert image.get_clim() == (0.25, 1) and ax.get_title() == "a map"
    written = {text.get_text(): text.get_position() for text in ax.texts}
    places = {"1": (0, 1), "999": (layers - 1, heads - 1)}
    assert written == (
        places if (layers, heads) in ((4, 8), (12, 12)) and (width - panels.AXIS) / layers >= 0.24 else {}
    )
    assert "share" in (bar.get_ylabel(), bar.get_xlabel())


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
        triples = [(-1.0, -2.0, -0.5), None, (3.0, -1.0, 7.0)]
        panels.intervals(ax, triples, 0.1, upright=upright, label="cut", digits="+.2f")
        (panels.name_columns if upright else panels.name_rows)(ax, ["a", "b", "c"])
        ax.margins(y=0.4 if upright else 0.0)

    figure = shown(panel)
    (ax,) = figure.axes
    containers: list[Any] = ax.containers
    points = [one.lines[0] for one in containers]
    places = [point.get_xydata()[0].tolist()[:: 1 if upright else -1] for point in points]
    assert places == [[0.1, -1.0], [2.1, 3.0]] and [point.get_mfc() for point in points] == [RED, "white"]
    assert [text.get_text().strip() for text in ax.texts] == ["-1.00"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cut"]


def test_a_part_without_a_picture_and_a_model_with_conclusions_of_its_own():
    part = Part(lambda arrays, settings: {}, "measure", lambda values: ["a title"], panels=lambda values: None)
    assert drawn(part, {}) is None and drawn(Part(part.numbers), {}) is None
    figure = Figure("stem", object, {"part": part})
    assert sentences(figure, {}, measured=True) == ["a title."]
    own = Figure("stem", object, {"part": part}, concludes=lambda values: ["Primary endpoint: 3."])
    assert sentences(own, {}, measured=True) == ["Primary endpoint: 3."] and not sentences(own, {}, measured=False)
