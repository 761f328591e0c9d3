"""The figures of forerunner heads: what they draw, whether it can be read, and titles that the values support."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.image import AxesImage
from util.figures.forerunner_heads.measures import ENDINGS, Contrast, Series
from util.figures.forerunner_heads.results import (
    Answers,
    Counts,
    DataSets,
    Growth,
    HeadCuts,
    HeadEffects,
    HeldOut,
    InductionHeads,
    LabelReads,
    Layers,
    Planted,
    Reading,
    Score,
    Setting,
    Tables,
    Task,
)

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.forerunner_heads import causal_plots, cuts, measures, paper_plots, plots
from util.figures.forerunner_heads.cuts import EVERYWHERE, QUARTERS, WHOLE, Condition, Cut
from util.show.style import COLUMN, WIDTH
from util.stats.heads import top
from util.stats.intervals import Interval
from util.stats.splits import halves
from util.stats.task_check import TaskCheck

PROMPTS, C = 32, 5
ABOUT = Setting(LONG_NAME, "financial_phrasebank", 4, PROMPTS)
GAIN = Interval(1.0, 0.5, 1.5)
DONE = Task((TaskCheck("agnews", 4, 0.9, 0.8, 0.3, GAIN, GAIN, 0.01, 128),))
NOT_DONE = Task((TaskCheck("agnews", 4, 0.3, 0.2, 0.3, GAIN, GAIN, 0.01, 128),))
SETS = ("glue_sst2", "rotten_tomatoes", "financial_phrasebank", "sst5", "trec", "agnews")
CONDITIONS = cuts.conditions(draws=1)


def reading(magnitude, control=None, tokens=100):
    """A reading of magnitudes [N, L, H] on prompts of so many tokens; other tokens are read with `control`."""
    magnitude = np.asarray(magnitude, np.float32)
    control = (
        np.full_like(magnitude, 0.01) if control is None else np.broadcast_to(np.float32(control), magnitude.shape)
    )
    return Reading(magnitude, control, magnitude, np.full(len(magnitude), tokens))


def series(layers, heads, seed=0):
    """Magnitudes behind every ending, on which some of the heads pass, and with untrained weights none."""
    random = np.random.default_rng(seed)
    strength = random.random((layers, heads)) ** 4
    noise = 0.03 * random.random((PROMPTS, layers, heads))
    made = {name: reading(strength + noise, 0.3 * strength + noise) for name in (Series.CORRECT, Series.OTHER_WORD)}
    made[Series.WRONG] = reading(0.9 * strength + noise, 0.3 * strength + noise)
    made[Series.UNTRAINED] = reading(0.01 + 0.1 * noise)
    return {name: made[name] for name in Series}


def answers(change):
    """Answers of the whole model, and what each condition changes of the gold label's log-probability."""
    random = np.random.default_rng(0)
    gold = random.integers(0, 3, PROMPTS)
    given = {}
    for condition in (WHOLE, *CONDITIONS):
        log_prob = random.normal(-2, 0.1, (PROMPTS, 3))
        log_prob[np.arange(PROMPTS), gold] += change(condition)
        given[condition] = Answers(log_prob.astype(np.float32), gold)
    return given


def copying_matters(condition: Condition) -> float:
    return -3.0 if condition.cut == Cut.SI_TO_YI and condition.draw is None else 0.0


def tables(change=copying_matters, task=DONE):
    given = answers(change)
    bare = replace(
        given[WHOLE], log_prob=given[WHOLE].log_prob - 1 - 0.1 * np.random.default_rng(1).random((PROMPTS, 1))
    )
    return Tables(ABOUT, task, given, bare)


def induction(layers, heads, strength=0.0, task=DONE):
    """Heads that read the labels at random, and, with a strength, those of the query's own label more."""
    random = np.random.default_rng(0)
    shown, gold = random.integers(0, 3, (PROMPTS, 4)), random.integers(0, 3, PROMPTS)
    reads = 0.05 + 0.05 * random.random((PROMPTS, layers, heads, 4))
    reads[:, -1] += strength * (shown == gold[:, None])[:, None]
    similarity = 0.5 + 0.5 * random.random((PROMPTS, layers, 4))
    label_reads = LabelReads(reads, similarity, gold, shown, np.full(PROMPTS, 100), 3)
    return InductionHeads.of(ABOUT, task, label_reads, C, {})


def effects(layers, heads, cost=0.0, task=DONE, cut_heads=16):
    """Heads of which each, cut alone, costs so many nats beyond other cells."""
    random = np.random.default_rng(0)
    moved = random.random((layers, heads)) ** 6 * 40
    chosen = tuple(top(moved, cut_heads))
    whole, noise = random.normal(-3, 0.1, (PROMPTS, 3)), random.normal(0, 0.05, (PROMPTS, len(chosen)))
    gold, control = random.integers(0, 3, PROMPTS), np.repeat(whole[:, None], len(chosen), axis=1)
    without = control.copy()
    without[np.arange(PROMPTS), :, gold] += noise - 2 * cost
    cut = HeadCuts(chosen, gold, whole, without, control)
    return HeadEffects.of(ABOUT, task, series(layers, heads)[Series.CORRECT].counts(C), moved, cut)


def held_out(readings):
    return HeldOut.of(ABOUT, readings, C, *halves(PROMPTS, 0))


def planted():
    magnitude = np.array([[0.99, 0.99, 0.0]])[None].repeat(PROMPTS, axis=0)
    control = np.array([[0.0, 0.99, 0.0]])
    return Planted.of(reading(magnitude, control), C, {(0, 0): "labels only", (0, 1): "any token", (0, 2): "never"})


def data_sets(layers, heads, names=SETS):
    conditions = (Series.CORRECT, Series.WRONG)
    by_set = {
        one: {name: series(layers, heads, seed // 3)[name] for name in conditions} for seed, one in enumerate(names)
    }
    return DataSets.of(ABOUT, by_set, C)


def growth(layers=4, heads=8, tokens=lambda k: 40 * (k + 1)):
    by_k = {}
    for k in (0, 1, 2, 4, 8, 12):
        made = series(layers, heads)
        by_k[k] = {name: replace(made[name], n_t=np.full(PROMPTS, tokens(k))) for name in ENDINGS}
    return Growth.of(ABOUT, by_k, C)


def figures(layers, heads, width):
    """Every figure, by panel."""
    readings = series(layers, heads)
    return {
        "counts": Counts.of(ABOUT, readings, C).figure(width),
        "layers": Layers.of(ABOUT, readings, C).figure(width),
        "grid": data_sets(layers, heads).figure(width),
        "k": growth(layers, heads).figure(width),
        "specificity": held_out(readings).figure(planted(), width),
        "ablation": tables().figure(width),
        "induction": induction(layers, heads).figure(width),
        "effects": effects(layers, heads, 0.5).figure(width),
    }


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_every_figure_can_be_read_at_any_size(layers, heads, width, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figures(layers, heads, width)
        assert {name: faults(figure) for name, figure in drawn.items()} == dict.fromkeys(drawn, [])
    for figure in drawn.values():
        assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] <= 8.5


def test_the_smallest_results_can_be_drawn():
    """A head cut alone, one data set, no confirmed head and no cut that is controlled."""
    nothing = {name: reading(np.zeros((PROMPTS, 1, 2))) for name in Series}
    one_set = DataSets.of(ABOUT, {"trec": {name: nothing[name] for name in (Series.CORRECT, Series.WRONG)}}, C)
    drawn = [
        Counts.of(ABOUT, nothing, C).figure(),
        Layers.of(ABOUT, nothing, C).figure(),
        held_out(nothing).figure(planted()),
        one_set.figure(),
        effects(4, 8, cut_heads=1).figure(),
        causal_plots.cut_table(dict.fromkeys("xy", ({EVERYWHERE: {"a": Interval(0, 0, 0)}}, {})), {"a": "a"}, "", "s"),
    ]
    for figure in drawn:
        assert faults(figure) == []


# ------------------------------------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_the_count_map_has_the_papers_scale(layers, heads):
    correct = series(layers, heads)[Series.CORRECT]
    counts = correct.counts(C)
    shown = {Series.CORRECT: counts}, {Series.CORRECT: PROMPTS}, {Series.CORRECT: Interval(1, 0, 2)}
    ax = plots.count_maps(*shown, "finding", "setting").axes[0]
    [drawn] = ax.get_images()
    assert drawn.get_clim() == (0.25, 1)
    np.testing.assert_array_equal(drawn.get_array(), counts.T / PROMPTS)  # layers across, heads up
    assert ax.get_xlabel() == "layer"
    assert "1 [0, 2] heads" in ax.get_title()
    printed = {(text.get_position(), text.get_text()) for text in ax.texts}
    large = counts.shape in ((4, 8), (12, 12))  # enough room for three digits
    assert printed == ({((x, y), str(counts[x, y])) for x, y in np.argwhere(counts)} if large else set())


def images(figure) -> list[AxesImage]:
    return [image for ax in figure.axes for image in ax.get_images()]


def test_the_papers_maps_have_layers_down_and_its_colours():
    counts = Counts.of(ABOUT, series(30, 9), C)
    drawn = images(paper_plots.count_maps(counts))
    assert [image.get_cmap().name for image in drawn] == ["Blues", "Purples"]
    for image, name in zip(drawn, (Series.CORRECT, Series.WRONG), strict=True):
        np.testing.assert_array_equal(image.get_array(), counts.maps[name])
        assert image.get_clim() == (PROMPTS / 4, PROMPTS)
        assert image.axes.get_ylim() == (29.5, -0.5)  # layer 1 on top
        assert image.axes.get_yticklabels()[0].get_text() == "1"


def test_the_papers_curves_have_its_axes():
    left, right = paper_plots.layer_curves(Layers.of(ABOUT, series(12, 12), C)).axes
    assert right.get_ylim() == (0, 1.1) and left.get_xlabel() == "transformer block"
    assert list(left.get_lines()[0].get_xdata()) == list(range(1, 13))
    assert [line.get_color() for line in left.get_lines()] == ["#023858", "#ff7f0e"]


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_the_papers_figures_can_be_read(layers, heads):
    readings = series(layers, heads)
    assert faults(paper_plots.count_maps(Counts.of(ABOUT, readings, C))) == []
    assert faults(paper_plots.layer_curves(Layers.of(ABOUT, readings, C))) == []


def test_the_rows_of_data_sets_sum_to_the_heads_on_a_prompt():
    sets = data_sets(4, 8)
    shared, correct, wrong = images(sets.figure())
    np.testing.assert_array_equal(shared.get_array(), sets.shared.T)
    for image, name in ((correct, Series.CORRECT), (wrong, Series.WRONG)):
        totals = [sets.on_a_prompt[name][dataset].value for dataset in SETS]
        np.testing.assert_allclose(np.asarray(image.get_array()).sum(axis=1), totals)


def test_the_rows_of_demonstrations_sum_to_the_heads_on_a_prompt():
    grown = growth()
    [drawn] = images(grown.figure())
    np.testing.assert_allclose(
        np.asarray(drawn.get_array()).sum(axis=1), [one.value for one in grown.counts[Series.CORRECT].values()]
    )


def test_a_cuts_value_is_printed_where_its_interval_excludes_0():
    table = {EVERYWHERE: {"a": Interval(-1.0, -2.0, -0.5), "b": Interval(3.0, -1.0, 7.0)}}
    controls = {EVERYWHERE: {"a": Interval(0.1, 0.05, 0.2), "b": Interval(0.0, 0.0, 0.0)}}
    other = {EVERYWHERE: dict.fromkeys("ab", Interval(9.0, -1.0, 19.0))}
    both = {part: {**one, QUARTERS[0]: one[EVERYWHERE]} for part, one in (("which", table), ("mass", other))}
    scores = {"which": (both["which"], controls), "mass": (both["mass"], {})}
    figure = causal_plots.cut_table(scores, {"a": "a", "b": "b"}, "", "s")
    for ax, control in zip(figure.axes[:2], (True, False), strict=True):  # controls of all layers alone
        assert [text.get_text() for text in ax.texts] == ["-1.00"]
        containers: list[Any] = ax.containers
        points = {one.lines[0].get_xdata()[0]: (one.lines[0].get_color(), one.lines[0].get_mfc()) for one in containers}
        red, blue = causal_plots.SCORE_COLOURS
        wanted = {-1.0: (red, red), 3.0: (red, "white"), 9.0: (blue, "white")}
        assert points == wanted | ({0.1: (red, red), 0.0: (red, "white")} if control else {})


def test_the_heads_that_were_cut_are_named_in_the_order_of_what_they_move():
    result = effects(30, 9, cost=0.5)
    below, worth = result.figure().axes[-1], result.worth[Score.WHICH_LABEL].difference
    order = sorted(zip(*np.nonzero(np.isfinite(worth)), strict=True), key=lambda h: -result.moved[h])
    assert [tick.get_text() for tick in below.get_xticklabels()] == [f"L{layer}H{head}" for layer, head in order]
    drawn = [one.lines[0].get_ydata()[0] for one in below.containers]
    np.testing.assert_array_equal(drawn, [worth[head] for head in order])
    assert len([text for text in below.texts if text.get_text()]) == 16  # all cost something: their values are printed


def test_planted_heads_stand_among_the_models_with_the_colour_of_their_verdict():
    known = planted()
    left = held_out(series(4, 8)).figure(known).axes[0]
    roles = {text.get_text(): text.xy for text in left.texts if text.get_text().startswith("planted")}
    assert roles == {
        "planted: labels only": (plots.FLOOR, pytest.approx(0.99)),
        "planted: any token": (pytest.approx(0.99), pytest.approx(0.99)),
        "planted: never": (plots.FLOOR, plots.FLOOR),
    }
    colours = {tuple(np.ravel(line.get_xydata())): line.get_color() for line in left.get_lines()}
    for head in known.roles:
        at = np.maximum([known.contrast.second[head], known.contrast.first[head]], plots.FLOOR)
        assert colours[tuple(at)] == plots.MARKS[measures.Verdict(known.verdicts[head])][0]


def test_the_strongest_heads_stand_by_name_beside_the_scatter():
    result = held_out(series(4, 8))
    right = result.figure(planted()).axes[1]
    names = [tick.get_text() for tick in right.get_yticklabels()]
    assert names == [f"L{layer}H{head}" for layer, head in result.judged.strongest] and len(names) == 5
    for container, contrast in zip(right.containers, result.against.values(), strict=True):
        assert isinstance(contrast, Contrast)
        drawn = container.lines[0].get_xdata()
        np.testing.assert_array_equal(drawn, [contrast.difference[head] for head in result.judged.strongest])


# ------------------------------------------------------------------------------------------------ what titles say


def title(result, *arguments):
    """The headline's two parts, on one line each."""
    figure = result.figure(*arguments)
    said = figure.get_suptitle().replace("\n", " ")
    assert said == (result.finding or "")
    assert result.setting in {text.get_text().replace("\n", " ") for text in figure.texts}
    return said


def passing(heads):
    """A magnitude on 32 heads of which the first so many pass."""
    return reading(np.where(np.arange(32) < heads, 0.9, 0.0).reshape(4, 8)[None].repeat(PROMPTS, axis=0))


def test_the_title_of_the_counts():
    counts = Counts.of(ABOUT, {Series.CORRECT: passing(5), Series.WRONG: passing(4), Series.UNTRAINED: passing(0)}, C)
    assert title(counts) == (
        "5 [5, 5] of 32 heads are frequent: they read the token before the correct label on three of four prompts; "
        "4 before a wrong one"
    )
    assert "32 prompts (32 with untrained weights)" in counts.setting
    no_more = Counts.of(ABOUT, {Series.CORRECT: passing(5), Series.UNTRAINED: passing(5)}, C)
    assert title(no_more).startswith("No more heads are shown to be frequent than") and "5 [5, 5] of 32" in title(
        no_more
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (3, "2.0 [2.0, 2.0] more than before a wrong one"),
        (8, "3.0 [3.0, 3.0] fewer than before a wrong one"),
        (5, "not clearly more or fewer before a wrong one (+0.0 [+0.0, +0.0])"),
    ],
)
def test_the_title_of_the_layers(wrong, said):
    layers = Layers.of(ABOUT, {Series.CORRECT: passing(5), Series.WRONG: passing(wrong)}, C)
    assert title(layers) == f"On a prompt 5.0 of 32 heads read the token before the correct label, {said}"


def test_the_layers_of_a_model_like_its_untrained_twin_have_no_title():
    layers = Layers.of(ABOUT, {Series.CORRECT: passing(5), Series.UNTRAINED: passing(6)}, C)
    assert layers.finding is None and title(layers) == ""


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ((5, 3), "3 heads are frequent on each of 2 data sets, 2 on some of them only"),
        ((5, 1), "1 head is frequent on each of 2 data sets, 4 on some of them only"),
        ((5, 0), "No head is frequent on each of 2 data sets, 5 on some of them only"),
        ((0, 0), "No head is frequent on any of 2 data sets"),
        ((5,), ""),
    ],
)
def test_the_title_of_the_data_sets(heads, said):
    names = SETS[: len(heads)]
    by_set = {one: {Series.CORRECT: passing(number)} for one, number in zip(names, heads, strict=True)}
    assert title(DataSets.of(ABOUT, by_set, C)) == said


def test_the_title_of_the_demonstrations():
    """Longer prompts have a lower threshold; where k changes nothing, no change is told."""
    longer, alike = growth(), growth(tokens=lambda k: 100)
    assert "more heads exceed c / n_t on a prompt (" in title(longer)
    assert "not clearly more or fewer one fixed threshold (" in title(longer)
    assert alike.finding is None and title(alike) == ""
    by_k = {k: {Series.CORRECT: passing(heads)} for k, heads in ((0, 9), (4, 3))}
    assert title(Growth.of(ABOUT, by_k, C)) == (
        "From k = 0 to 4 fewer heads exceed c / n_t on a prompt (9.0 to 3.0), fewer one fixed threshold (9.0 to 3.0)"
    )


def judged(correct, wrong, control):
    """What is held out of heads [4, 8] with these magnitudes behind a correct and a wrong label and at other tokens."""
    noise = 0.001 * np.random.default_rng(0).random((PROMPTS, 4, 8))
    made = {Series.CORRECT: correct, Series.WRONG: wrong, Series.OTHER_WORD: wrong}
    return held_out({name: reading(np.asarray(value) + noise, control) for name, value in made.items()})


def test_the_title_of_the_specificity():
    some = np.where(np.arange(32).reshape(4, 8) < 3, 0.9, 0.0)
    assert title(judged(some, some / 2, 0.01), planted()) == (
        "3 of 3 frequent heads are forerunner heads: they read the token before the label more than other previous "
        "tokens; 3 more than before a wrong label"
    )
    assert title(judged(some, some, 0.01), planted()).endswith("; none more than before a wrong label")
    assert title(judged(some, some, 0.9), planted()) == (
        "None of 3 frequent heads reads the token before the label more than elsewhere"
    )
    assert title(judged(0 * some, 0 * some, 0.01), planted()) == (
        "No head is frequent: none reads the token before the label on three of four prompts"
    )


@pytest.mark.parametrize(
    ("nats", "said"),
    [
        (-3.0, "costs the right label "),
        (0.0, "is not shown to cost the right label more than random cells: "),
        (3.0, "gains the right label "),
    ],
)
def test_the_title_of_the_ablation(nats, said):
    result = tables(lambda condition: nats * (condition.cut == Cut.SI_TO_YI and condition.draw is None))
    assert title(result).startswith(f"Which label: cutting the labels' reads of their forerunners {said}")
    undone = tables(task=NOT_DONE)
    assert title(undone).startswith("Which label: no in-context learning to explain. Label mass: cutting the labels'")
    assert "; TASK NOT DONE" in undone.setting


def test_the_title_of_the_induction_heads():
    assert title(induction(4, 8)) == "In none of 4 layers does the best head prefer the query's label beyond chance"
    assert title(induction(4, 8, strength=1.0)) == (
        "In 1 of 4 layers the best head prefers the query's label beyond chance"
    )
    assert induction(4, 8, task=NOT_DONE).setting.endswith("; TASK NOT DONE")


def test_the_title_of_the_effects():
    said, n = "of the 16 heads that move most", f"more than other cells do, on {PROMPTS} prompts"
    assert title(effects(4, 8, -0.5)) == f"Cut alone, none {said} costs the right label {n}"
    assert title(effects(4, 8, 0.5)) == f"Cut alone, 16 {said} cost the right label {n}"
    undone = effects(4, 8, 0.5, task=NOT_DONE)
    assert " label mass more" in title(undone) and undone.setting.endswith("agnews, k = 4; TASK NOT DONE")
