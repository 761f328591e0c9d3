"""The pictures of forerunner heads: what they draw, whether it can be read, and titles that the values support."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.forerunner_heads import measure, numbers, show
from util.show.part import drawn
from util.show.style import COLUMN, WIDTH
from util.stats.answers import TaskCheck
from util.stats.intervals import Interval

PROMPTS = 32
SETTINGS = show.Settings(prompts=PROMPTS, grid_prompts=PROMPTS, ablated=PROMPTS)
REQUEST = {
    "figure": "forerunner_heads", "model": LONG_NAME, "untrained_seed": None, "quantized": False,
    "dataset": "financial_phrasebank", "k": 4, "prompts": PROMPTS, "grid_prompts": PROMPTS, "ablated": PROMPTS,
    "threshold": 5.0,
}  # fmt: skip
GAIN = Interval(1.0, 0.5, 1.5)
PARTS = show.FIGURE.parts


def reading(magnitude, control=None, tokens=100):
    """A reading of magnitudes [N, L, H] on prompts of so many tokens; other tokens are read with `control`."""
    magnitude = np.asarray(magnitude, np.float32)
    control = np.broadcast_to(np.float32(0.01 if control is None else control), magnitude.shape)
    n_t = np.full(len(magnitude), tokens)
    return {
        "magnitude": magnitude, "control": control, "n_t": n_t, "label_lengths": np.ones_like(n_t),
    }  # fmt: skip


def series(layers, heads, seed=0, tokens=100):
    """Magnitudes behind every ending, on which some of the heads pass, and with untrained weights none."""
    random = np.random.default_rng(seed)
    strength, noise = random.random((layers, heads)) ** 4, 0.03 * random.random((PROMPTS, layers, heads))
    made = {name: reading(strength + noise, 0.3 * strength + noise, tokens) for name in measure.ENDINGS}
    made["wrong"] = reading(0.9 * strength + noise, 0.3 * strength + noise, tokens)
    return made | {"untrained": reading(0.01 + 0.1 * noise, tokens=tokens)}


def planted():
    magnitude = np.array([[0.99, 0.99, 0.0]])[None].repeat(PROMPTS, axis=0)
    roles = [[0, 0, "labels only"], [0, 1, "any token"], [0, 2, "never"]]
    return reading(magnitude, np.array([[0.0, 0.99, 0.0]])) | {"roles": roles}


def answers():
    """Answers to 32 prompts; without the labels' reads of their forerunners the right label loses 3 nats."""
    random = np.random.default_rng(0)
    gold, found = random.integers(0, 3, PROMPTS), dict[Any, Any]()
    for condition in numbers.conditions():
        log_prob = random.normal(-2, 0.1, (PROMPTS, 3))
        if condition.cut == "si_to_yi" and condition.draw is None:
            log_prob[np.arange(PROMPTS), gold] -= 3
        found[condition] = {"log_prob": log_prob.astype(np.float32), "gold": gold}
        if condition.part == numbers.EVERYWHERE and condition.draw is None:
            found[condition]["text_loss"] = random.random(PROMPTS)
    bare = found[numbers.WHOLE]["log_prob"] - 1 - 0.1 * np.random.default_rng(1).random((PROMPTS, 1))
    return {"cut": found, "alone": {"log_prob": bare, "gold": gold}, "done": True}


def reads(layers, heads):
    """Heads that read the labels at random."""
    random = np.random.default_rng(0)
    shown, gold = random.integers(0, 3, (PROMPTS, 4)), random.integers(0, 3, PROMPTS)
    found = 0.05 + 0.05 * random.random((PROMPTS, layers, heads, 4))
    similarity = 0.5 + 0.5 * random.random((PROMPTS, layers, 4))
    shapes = {"n_t": np.full(PROMPTS, 100), "classes": 3}
    return {"reads": found, "similarity": similarity, "gold": gold, "demonstrations": shown, **shapes}


def of_task():
    check = TaskCheck("agnews", 4, 0.9, 0.8, 0.3, GAIN, GAIN, 0.01, 128)
    return numbers.task({"checks": [check], "left out": {}}, SETTINGS)


def grids(layers, heads, names=SETTINGS.grid_datasets):
    by_set = {one: series(layers, heads, seed // 3) for seed, one in enumerate(names)}
    left_out: dict[str, Any] = {"left out": {}}
    return numbers.grid(by_set | left_out, SETTINGS)


def values_of(readings, **more):
    header = {"request": REQUEST, "model": f"{LONG_NAME}: Mixtral"}
    counted = numbers.counts(readings, SETTINGS) | numbers.layers(readings, SETTINGS)
    if {"wrong", "other word"} <= {*readings}:
        counted |= numbers.specificity(readings | {"planted": planted()}, SETTINGS)
    return header | counted | more


@cache
def every(layers=4, heads=8):
    """The values of all parts."""
    found = of_task() | numbers.ablation(answers(), SETTINGS) | numbers.induction(reads(layers, heads), SETTINGS)
    return values_of(series(layers, heads), **found, **grids(layers, heads))


def picture(part, values, width=WIDTH):
    found = drawn(PARTS[part], values, width)
    assert found is not None
    return found


def title(part, values):
    return next(iter(PARTS[part].says(values)))


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_every_figure_can_be_read_at_any_size(layers, heads, width):
    values = every(layers, heads)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = {name: picture(name, values, width) for name, part in PARTS.items() if part.panels}
        if width == COLUMN:  # drawn for notebooks alone
            del shown["counts"], shown["paper_layers"]
        assert {name: faults(figure) for name, figure in shown.items()} == dict.fromkeys(shown, [])
    for figure in shown.values():
        assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] <= 8.5


def test_the_smallest_results_can_be_drawn():
    """No head is frequent."""
    nothing = {name: reading(np.zeros((PROMPTS, 1, 2))) for name in (*measure.ENDINGS, "untrained")}
    values = values_of(nothing)
    for name in ("counts", "paper_layers", "specificity"):
        assert faults(picture(name, values)) == []


# ------------------------------------------------------------------------------------------------ what is drawn


def images(figure):
    return [image for ax in figure.axes for image in ax.get_images()]


def test_the_papers_pictures_have_layers_down_from_1_its_colours_and_its_axes():
    values = every(30, 9)
    found = images(picture("counts", values))
    assert [image.get_cmap().name for image in found] == ["Blues", "Purples", "Greys", "Greys"]
    for image, name in zip(found, values["counts"], strict=True):
        np.testing.assert_array_equal(image.get_array(), values["counts"][name] / PROMPTS)
        assert image.get_clim() == (0.25, 1) and image.axes.get_ylim() == (29.5, -0.5)
        assert image.axes.get_yticklabels()[0].get_text() == "1"
    left, right = picture("paper_layers", values).axes
    assert right.get_ylim() == (0, 1.1) and list(left.get_lines()[0].get_xdata()) == list(range(1, 31))
    assert [line.get_color() for line in left.get_lines()] == ["#023858", "#ff7f0e"]


def test_planted_heads_stand_among_the_models_and_the_strongest_by_name():
    values = every()
    left, right = picture("specificity", values).axes
    texts: list[Any] = left.texts
    known = {"labels only": (show.FLOOR, 0.99), "any token": (0.99, 0.99), "never": (show.FLOOR, show.FLOOR)}
    assert {text.get_text() for text in texts} == {*known}
    for text in texts:
        assert text.xy == pytest.approx(known[text.get_text()])
    colours = {tuple(np.ravel(line.get_xydata())): line.get_color() for line in left.get_lines()}
    for layer, head, _ in values["planted"]["roles"]:
        at = [max(values["planted"][name][layer][head], show.FLOOR) for name in ("second", "first")]
        assert colours[tuple(at)] == show.MARKS[str(values["planted_verdicts"][layer, head])][0]
    strongest = values["specificity"]["judged"]["strongest"]
    assert [tick.get_text() for tick in right.get_yticklabels()] == [f"L{layer}H{head}" for layer, head in strongest]


def test_cuts_have_a_row_each_and_random_cells_beside_those_of_all_layers():
    values = every()
    together = values["ablation"]["together"]
    figure = picture("ablation", values)
    for ax, part in zip(figure.axes, together["which label"]["cut"], strict=True):
        containers: list[Any] = ax.containers
        drawn_ = [one.lines[0].get_xdata()[0] for one in containers]
        wanted = [
            triple[0]
            for score in together.values()
            for table in (score["random"], score["cut"])
            for triple in table.get(part, {}).values()
        ]
        np.testing.assert_array_equal(drawn_, wanted)
    assert [text.get_text() for text in figure.axes[0].texts]  # what excludes 0 is printed
    assert figure.axes[0].get_yticklabels()[4].get_text() == r"$s_i \to s_j,\; i < j$"


# ------------------------------------------------------------------------------------------------ what titles say


def passing(heads):
    """A magnitude on 32 heads of which the first so many pass."""
    return reading(np.where(np.arange(32) < heads, 0.9, 0.0).reshape(4, 8)[None].repeat(PROMPTS, axis=0))


def test_the_title_of_the_counts():
    some = {"correct": passing(5), "wrong": passing(4), "other word": passing(2)}
    values = values_of(some | {"untrained": passing(0)})
    assert title("counts", values) == (
        "5 [5, 5] of 32 heads are frequent: they read the token before the correct label on three of four prompts; "
        "4 before a wrong one, 2 before another word"
    )
    assert "32 prompts (32 with untrained weights)" in show.counts_about(values)
    no_more = title("counts", values_of(some | {"untrained": passing(5)}))
    assert no_more == "No more heads are shown to be frequent than with untrained weights: 5 [5, 5] and 5 [5, 5] of 32"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (3, "+2.00 [+2.00, +2.00] compared with a wrong one"),
        (8, "-3.00 [-3.00, -3.00] compared with a wrong one"),
    ],
)
def test_the_title_of_the_layers(wrong, said):
    values = values_of({"correct": passing(5), "wrong": passing(wrong)})
    assert (
        title("paper_layers", values) == f"On a prompt 5.0 of 32 heads read the token before the correct label, {said}"
    )
    assert title("paper_layers", values_of({"correct": passing(5), "untrained": passing(6)})) == ""


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
    by_set: dict = {name: {"correct": passing(n)} for name, n in zip("ab", heads, strict=False)}
    assert (
        title("grid", {"request": REQUEST, "model": LONG_NAME} | numbers.grid(by_set | {"left out": {}}, SETTINGS))
        == said
    )


def test_the_title_of_the_specificity():
    some = np.where(np.arange(32).reshape(4, 8) < 3, 0.9, 0.0)
    noise = 0.001 * np.random.default_rng(0).random((PROMPTS, 4, 8))

    def of(correct, wrong, control):
        return title("specificity", values_of({
            "correct": reading(correct + noise, control), "wrong": reading(wrong + noise, control),
            "other word": reading(wrong + noise, control),
        }))  # fmt: skip

    assert of(some, some / 2, 0.01) == (
        "3 of 3 frequent heads are forerunner heads: they read the token before the label more than other previous "
        "tokens; 3 more than before a wrong label"
    )
    assert of(some, some, 0.01).endswith("; none more than before a wrong label")
    assert of(some, some, 0.9) == "None of 3 frequent heads reads the token before the label more than elsewhere"
    assert of(0 * some, 0 * some, 0.01) == (
        "No head is frequent: none reads the token before the label on three of four prompts"
    )
