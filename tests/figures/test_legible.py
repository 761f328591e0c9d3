"""The check of figures finds planted faults and only these; headlines fit any width."""

import pytest
from matplotlib.figure import Figure

from tests.figures.legible import LONG_NAME, faults
from util.show import style


def empty(width: float = 3.3) -> Figure:
    with style.style():
        figure = style.new_figure(width, 2.0)
        ax = figure.subplots()
        ax.plot([0, 1], [0, 1], label="identity")
        ax.set(xlabel="x", ylabel="y")
        ax.text(0.1, 0.8, "clear of all")
    return figure


def test_a_figure_without_faults_has_none():
    assert faults(empty()) == []


@pytest.mark.parametrize(
    ("x", "y", "options", "said"),
    [
        (0.45, 0.5, {}, "'planted' lies on a line 'identity'"),
        (0.15, 0.8, {}, "'clear of all' lies on 'planted'"),
        (0.9, 0.1, {}, "'planted' is cut off at the figure's edge"),
        (0.5, 0.1, {"fontsize": 4}, "'planted' has 4.0 points"),
        (0.4, 0.2, {"rotation": 60, "rotation_mode": "anchor"}, "'planted' lies on a line 'identity'"),
    ],
)
def test_planted_faults_are_found(x, y, options, said):
    figure = empty()
    figure.axes[0].text(x, y, "planted", **options).set_in_layout(False)
    assert said in faults(figure)


def test_turned_labels_side_by_side_do_not_overlap():
    """Their upright boxes do, so that a check of those would refuse what can be read."""
    figure = empty()
    ax = figure.axes[0]
    ax.set_xticks([0, 0.15, 0.3], ["a longer label", "another label", "the third label"], rotation=60)
    assert faults(figure) == []
    ax.set_xticks([0, 0.02, 0.3], ["a longer label", "another label", "the third label"], rotation=60)
    assert "'a longer label' lies on 'another label'" in faults(figure)


def test_texts_and_data_that_are_not_drawn_are_no_fault():
    figure = empty()
    ax = figure.axes[0]
    ax.set_xlim(0, 0.4)
    ax.set_ylim(0.2, 1)
    ax.text(0.5, 0.5, "", clip_on=True)
    ax.plot([0.1, 0.2], [0.8, 0.8], visible=False)
    assert faults(figure) == []


@pytest.mark.parametrize("width", [2.0, style.COLUMN, style.WIDTH])
@pytest.mark.parametrize("finding", [None, "Seven of the heads of this model read the token before a label"])
def test_a_headline_fits_its_figure_at_any_width(width, finding):
    figure = empty(width)
    setting = f"{LONG_NAME}, financial_phrasebank, k = 4, 256 prompts of the held-out half"
    with style.style():
        style.headline(figure, finding, setting)
    assert faults(figure) == []
    [written] = [text for text in figure.texts if text.get_text().replace("\n", " ") == setting]
    above = figure.get_suptitle().replace("\n", " ")
    assert above == (finding or "") and float(written.get_fontsize()) < style.FINDING
    assert figure.axes[0].bbox.y1 < written.get_window_extent().y0


def test_panels_are_spread_evenly():
    spread = [style.columns_of(panels, 5.5, 1.3) for panels in (1, 3, 4, 5, 6, 9)]
    assert spread == [1, 3, 4, 3, 3, 3]
    assert style.columns_of(4, 3.3, 1.5) == 2 and style.columns_of(3, 1.0, 1.5) == 1


@pytest.mark.parametrize("width", range(20, 300, 20))
def test_an_interval_is_not_broken_into_two_lines(width):
    text = "heads give 0.96 [0.90, 0.97] of it to the token before, 0.94 [0.90, 0.96] to another"
    lines = style.broken(text, style.FINDING, width).split("\n")
    assert " ".join(lines) == text
    assert all(line.count("[") == line.count("]") for line in lines)
