"""The check of figures finds planted faults and only these."""

import pytest

from tests.figures.legible import faults
from util.show.draw import COLUMN, Grid, draw


def line(ax):
    ax.plot([0, 1], [0, 1])
    ax.set(xlabel="x", ylabel="y")
    ax.text(0.1, 0.8, "clear of all")


@pytest.fixture
def figure():
    drawn = draw(Grid([line], height=2.0), "", "", COLUMN)
    drawn.axes[0].lines[0].set_label("identity")
    return drawn


@pytest.mark.parametrize(
    "x, y, options, fault",
    [
        (0.45, 0.5, {}, "'planted' lies on a line 'identity'"),
        (0.15, 0.8, {}, "'clear of all' lies on 'planted'"),
        (0.9, 0.1, {}, "'planted' is cut off at the figure's edge"),
        (0.5, 0.1, {"fontsize": 4}, "'planted' has 4.0 points"),
        (0.4, 0.2, {"rotation": 60, "rotation_mode": "anchor"}, "'planted' lies on a line 'identity'"),
    ],
)
def test_planted_faults_are_found(x, y, options, fault, figure):
    assert faults(figure) == []
    figure.axes[0].text(x, y, "planted", **options).set_in_layout(False)
    assert fault in faults(figure)


def test_turned_labels_side_by_side_do_not_overlap(figure):
    """Their upright boxes do, so that a check of those would refuse what can be read."""
    ax = figure.axes[0]
    ax.set_xticks([0, 0.15, 0.3], ["a longer label", "another label", "the third label"], rotation=60)
    assert faults(figure) == []
    ax.set_xticks([0, 0.02, 0.3], ["a longer label", "another label", "the third label"], rotation=60)
    assert "'a longer label' lies on 'another label'" in faults(figure)


def test_texts_and_data_that_are_not_drawn_are_no_fault(figure):
    ax = figure.axes[0]
    ax.set(xlim=(0, 0.4), ylim=(0.2, 1))
    ax.text(0.5, 0.5, "", clip_on=True)
    ax.plot([0.1, 0.2], [0.8, 0.8], visible=False)
    assert faults(figure) == []
