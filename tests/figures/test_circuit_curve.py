"""The curve of circuits: what is drawn is what was measured, without a warning, for one method and for many."""

import warnings
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from tests.figures.legible import faults
from util.figures.circuit_curve import circuit_curve, circuit_curves
from util.scores.evaluation import SHARES, Curve
from util.show.style import COLUMN, GREY, WIDTH, new_figure, style


def curve(seed, absolute):
    random = np.random.default_rng(seed)
    full, empty = 3 + random.random(20), -2 + random.random(20)
    return Curve(SHARES, np.arange(10), absolute, random.normal(scale=2, size=(10, 20)), full, empty)


def curves(count, absolute):
    return {f"method {number} of a long name": curve(number, absolute) for number in range(count)}


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_curves_draw_without_a_warning_and_within_the_page(count, width, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = circuit_curves(curves(count, False), curves(count, True), "a finding", "model, task, n", width=width)
        figure.savefig(tmp_path / "curves.png", dpi=150)
        figure.savefig(tmp_path / "curves.pdf")
    pixels = image.imread(tmp_path / "curves.png")[..., :3]
    rim = [pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]]
    assert all((part > 0.99).all() for part in rim)
    assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] <= 9
    above = [ax for ax in figure.axes if ax.get_xscale() == "log"]
    assert len(above) == 2 and faults(figure) == []
    assert min(ax.get_position().height * figure.get_size_inches()[1] for ax in above) > 1.1  # inches


def test_the_drawing_has_faithfulness_its_band_and_the_area_of_each_ranking():
    signed, absolute = curves(2, False), curves(2, True)
    figure = circuit_curves(signed, absolute, "title", "setting", ["method 1 of a long name"])
    panels = zip(figure.axes[:2], figure.axes[2:], (signed, absolute), ("CPR", "CMD"), strict=True)
    for ax, below, drawn, measure in panels:
        lines = [line for line in ax.lines if len(line.get_xdata()) == 10]
        assert [line.get_color() == GREY for line in lines] == [False, True]
        for line, band, one in zip(lines, ax.collections, drawn.values(), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), SHARES)
            np.testing.assert_array_equal(line.get_ydata(), one.faithfulness.value)
            low, high = band.get_datalim(ax.transData).intervaly
            assert (low, high) == pytest.approx((one.faithfulness.low.min(), one.faithfulness.high.max()))
        assert below.get_xlabel().startswith(measure)
        named = [label.get_text() for label in below.get_yticklabels()]
        assert named == ([*drawn] if measure == "CPR" else [])  # the same names stand at the left
        assert [text.get_text() for text in below.texts] == [f"{one.area.value:.2f}" for one in drawn.values()]
        dots: list[Any] = below.containers
        for dot, line, one in zip(dots, lines, drawn.values(), strict=True):
            bar = dot.lines[2][0].get_segments()[0]
            assert dot.lines[0].get_color() == line.get_color() and bar[:, 0] == pytest.approx(one.area[1:])
        assert ax.get_xscale() == "log"


def test_curves_of_different_rankings_are_not_drawn_together():
    with style():
        ax = new_figure(3.3, 2.2).subplots()
    with pytest.raises(ValueError, match=r"not those of \['CMD', 'CPR'\]"):
        circuit_curve(ax, {"a": curve(0, False), "b": curve(0, True)})
    with pytest.raises(ValueError, match=r"\['method 0 of a long name'\] are not ranked as CPR asks"):
        circuit_curves(curves(1, True), curves(1, True), "title", "setting")
    with pytest.raises(ValueError, match="are not ranked as CMD asks"):
        circuit_curves(curves(1, False), curves(1, False), "title", "setting")


def test_what_is_not_defined_is_named():
    signed, absolute = curve(0, False), curve(0, True)
    nothing = [Curve(SHARES, one.sizes, one.absolute, one.circuit, one.empty, one.full) for one in (signed, absolute)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = circuit_curves({"untrained": nothing[0]}, {"untrained": nothing[1]}, None, "setting")
        figure.draw_without_rendering()
    assert [text.get_text() for ax in figure.axes[2:] for text in ax.texts] == ["not defined"] * 2
