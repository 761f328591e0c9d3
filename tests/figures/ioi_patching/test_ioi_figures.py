"""Figures of IOI patching: what their titles say, and that all of them can be read from 4 to 48 layers."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.circuit_curve import circuit_curves
from util.figures.ioi_patching import edge_plots, measures, plots, project_plots
from util.figures.ioi_patching.edge_results import CALLED
from util.figures.ioi_patching.results import Curve, Example, NextWords, Paths, Population, Setting, Untrained
from util.roles.rules import Role
from util.scores.evaluation import SHARES
from util.scores.evaluation import Curve as CircuitCurve
from util.show.style import COLUMN, WIDTH
from util.stats.heads import head_name
from util.stats.intervals import Interval, Intervals

SUBJECT = Setting("given:toy", LONG_NAME, "random_name")
ONE = Interval(1.0, 0.5, 1.5)


def effects_of(layers: int, heads: int) -> np.ndarray:
    """Small effects of all heads, and large ones of six, the first of which is the largest."""
    effects = np.random.default_rng(0).normal(0, 0.01, (layers, heads))
    for share, (layer, head) in zip((1.1, 0.5, -0.4, 0.3, 0.2, -0.2), strong_heads(layers, heads), strict=True):
        effects[layer, head] = share
    return effects


def strong_heads(layers: int, heads: int) -> list[tuple[int, int]]:
    return [(layers - 2, 1), (0, 0), (layers - 1, heads - 1), (1, 3), (layers - 2, 2), (layers - 1, 0)]


def example(layers: int, heads: int) -> Example:
    rng = np.random.default_rng(0)
    effects = 10 * effects_of(layers, heads)
    words = ["<s>", " $a", "\n", *(f" coffee{n}" for n in range(14))]
    log_softmax = np.log(rng.dirichlet(np.full(500, 0.1), 2) + 1e-12)
    source = np.array([0, 7, 2, 7, *range(10, 23)])
    return Example(
        SUBJECT, "toy", ("a base that ends so and so", "a source that ends otherwise"), ("Mike", "Emma"), log_softmax,
        np.array([9.4, -10.4]), np.array([7, 11]), [" Mike", " Emma"], source, words, 11,
        rng.normal(size=(layers, 17, heads, 16)), effects**2, effects, -effects,
    )  # fmt: skip


def population(layers: int, heads: int) -> Population:
    """A result of many pairs in which every head has the effects of `effects_of`."""
    effects = effects_of(layers, heads)
    effect = Intervals(effects, effects - 0.05, effects + 0.05)
    return Population(
        SUBJECT, intact=ONE, corrupted=Interval(-1.0, -2.0, 0.0), accuracy=ONE, probability=ONE, pairs=128,
        noised=effect, denoised=effect, estimate=0.8 * effects, direct=effects / 2,
        agreement=measures.agreement(effects, effects), chosen=effects, measured=effect, differences=np.ones(8),
        probabilities=np.ones(8), clusters=np.arange(8),
    )  # fmt: skip


def curve(heads: int) -> Curve:
    sizes = measures.set_sizes(heads)
    shares = {size: Interval(*(np.array([0.9, 1, 1.1]) * (1 - 1 / (1 + size)))) for size in sizes}
    random = {size: [-0.5, 0.1, 0.2, 0.3] for size in sizes}
    return Curve(SUBJECT, Interval(8.0, 7.0, 9.0), shares, shares, shares, random, shares, 128, heads)


def paths(layers: int, heads: int) -> Paths:
    """Sixteen heads; those of an earlier layer tell those of a later one, every third pair for certain."""
    members = sorted({(layer, head) for layer in range(0, layers, max(1, layers // 8)) for head in (0, heads - 1)})[:16]
    count, rng = len(members), np.random.default_rng(0)
    later = np.array([[one[0] < other[0] for other in members] for one in members])
    value = np.where(
        later, np.where(rng.random((count, count)) < 1 / 3, rng.normal(0, 0.3, (count, count)), 0.0), np.nan
    )
    none = np.where(later, 0.0, np.nan)

    def around(values: np.ndarray) -> Intervals:
        return Intervals(values, values - 0.02, values + 0.02)

    direct = np.linspace(-0.4, 0.9, count)
    return Paths(SUBJECT, members, around(value), around(none), around(none), around(value), around(direct), 32)


def edge_figure(layers: int, heads: int, width: float) -> Figure:
    rng, count = np.random.default_rng(0), 400
    exact = rng.normal(0, 0.02, count)
    exact[:6] = (0.9, -0.5, 0.3, 0.2, 0.1, -0.1)
    kinds = np.resize(np.array([*CALLED]), count)
    names = [f"a{layers - 2}.h{heads - 1}->a{layers - 1}.h{n}<q>" for n in range(count)]
    scores = {"EAP": exact + rng.normal(0, 0.02, count), "EAP-IG inputs": exact}
    intervals = Intervals(exact, exact - 0.05, exact + 0.05)
    return edge_plots.estimates(intervals, scores, kinds, CALLED, names, "A finding", SUBJECT.model_title, width)


def curve_figure(width: float) -> Figure:
    def curves(absolute: bool) -> dict[str, CircuitCurve]:
        rng, made = np.random.default_rng(0), {}
        for name in ("EAP", "EAP-IG inputs", "exact", "random 1", "random 2"):
            full, empty = 3 + rng.random(20), -2 + rng.random(20)
            made[name] = CircuitCurve(SHARES, np.arange(10), absolute, rng.normal(0, 2, (10, 20)), full, empty)
        return made

    controls = ["random 1", "random 2"]
    return circuit_curves(curves(False), curves(True), "A finding", SUBJECT.model_title, controls, width)


def drawings(layers: int, heads: int) -> dict[str, Callable[[float], Figure | None]]:
    """Every figure of the notebook, by name, as a function of its width."""
    one, many = example(layers, heads), population(layers, heads)
    twin = Untrained(SUBJECT, 8, ONE, ONE, many.noised)
    told, blind = paths(layers, heads), replace(many, direct=many.direct * np.nan)
    roles = dict.fromkeys(strong_heads(layers, heads), "negative name mover")
    found = dict.fromkeys(strong_heads(layers, heads)[::2], [Role.INDUCTION, Role.NEGATIVE_MOVER])

    def with_roles(width: float) -> Figure:
        return plots.population(
            many.noised, many.denoised.value, many.estimate, many.direct, many.strongest(12), many.measured, None,
            many.whole, roles, many.finding, many.setting, width,
        )  # fmt: skip

    return {
        "p1": one.predictions_figure,
        "p2": one.permutation_figure,
        "p3": one.activations_figure,
        "p4": one.differences_figure,
        "p5": one.patching_figure,
        "population": lambda width: many.figure(twin, width),
        "roles": with_roles,
        "no direct effects": lambda width: blind.figure(twin, width),
        "circuit": lambda width: curve(layers * heads).figure(width),
        "paths": lambda width: told.figure(many, width),
        "diagram": lambda width: told.diagram(None, width),
        "diagram with roles": lambda width: told.diagram(found, width),
        "edges": lambda width: edge_figure(layers, heads, width),
        "edge circuits": curve_figure,
    }


NAMES = [*drawings(4, 8)]


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize(("layers", "heads"), SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_can_be_read(name, layers, heads, width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = drawings(layers, heads)[name](width)
        assert figure is not None and faults(figure) == []
    assert figure.get_size_inches()[0] == width


@pytest.mark.parametrize("name", ["p2", "p5", "population"])
@pytest.mark.parametrize(("layers", "heads"), [*SHAPES, (80, 64)])
def test_maps_have_layers_across_and_no_cell_saturates(name, layers, heads):
    """The image is the transposed map; the strongest head's value is printed where there is room."""
    effects = {"p2": 10, "p5": -10, "population": 1}[name] * effects_of(layers, heads)
    figure = drawings(layers, heads)[name](WIDTH)
    assert figure is not None
    [image, *_] = [image for ax in figure.axes for image in ax.get_images()]
    np.testing.assert_array_equal(image.get_array(), effects.T)
    largest = float(np.abs(effects).max())
    assert image.get_clim() == (-largest, largest)
    printed = {text.get_text() for text in image.axes.texts}
    assert (len(printed) == 6) == (layers <= 30) and (not printed or layers <= 30)


PROJECT = (project_plots.permutation, project_plots.activations, project_plots.differences, project_plots.patching)


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
@pytest.mark.parametrize("draw", PROJECT, ids=lambda draw: draw.__name__)
def test_the_projects_parts_can_be_read(draw, layers, heads):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert faults(draw(example(layers, heads))) == []


def test_the_projects_colours_end_where_it_ends_them():
    one = example(4, 8)
    for figure in (project_plots.permutation(one), project_plots.patching(one)):
        [image, *_] = [image for ax in figure.axes for image in ax.get_images()]
        assert image.get_clim()[1] == pytest.approx(3 * np.abs(one.permuted).mean())
    tokens = [ax.get_title() for ax in project_plots.activations(one).axes if ax.get_images()]
    assert tokens[:3] == ['"<s>"', '" \\$a"', '"\\n"'] and len(tokens) == 17
    differences = [ax.get_images()[0] for ax in project_plots.differences(one).axes if ax.get_images()]
    for image, own in zip(differences, one.differences, strict=True):
        assert image.get_clim()[1] == pytest.approx(np.percentile(np.abs(own), 99))


def test_names_of_heads_stand_apart_inside_their_panel():
    figure = drawings(30, 9)["population"](COLUMN)
    assert figure is not None
    figure.draw_without_rendering()
    wanted = {head_name(head) for head in strong_heads(30, 9)[:5]}
    panels = [ax for ax in figure.axes if {text.get_text() for text in ax.texts} >= wanted]
    assert len(panels) == 3
    for ax in panels:
        boxes = [text.get_window_extent() for text in ax.texts]
        assert all(not one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])


# ------------------------------------------------------------------------------------------------ what titles say


def said(figure: Figure | None) -> list[str]:
    """The finding and the setting of a figure, without its line breaks."""
    assert figure is not None
    return [figure.get_suptitle().replace("\n", " "), figure.texts[-1].get_text().replace("\n", " ")]


def test_titles_of_one_pair_say_what_was_found():
    one = example(4, 8)
    pair = f"{LONG_NAME}, one pair of prompts of 17 tokens"
    assert said(one.predictions_figure()) == [
        "After the base the model puts Mike above Emma by 9.4 logits, after the source Emma above Mike by 10.4", pair,
    ]  # fmt: skip
    assert (
        said(one.permutation_figure())[0] == "Of single heads, shuffling L2H1 changes the logit difference most: +11.0"
    )
    assert said(one.patching_figure())[0] == (
        "L2H1 alone from the source moves the logit difference by -11.0, all together by -19.8"
    )
    assert said(one.activations_figure())[0].startswith("Head outputs are longest in layer ")
    ratio = one.selectivity
    assert f"layer {ratio.argmax()}: by a factor of {ratio.max():.0f}" in said(one.differences_figure())[0]


def test_where_nothing_was_found_the_title_is_the_setting_alone():
    one = example(4, 8)
    still = replace(one, permuted=0 * one.permuted, patched=0 * one.patched, z=0 * one.z)
    assert still.permutation_finding is None and still.patching_finding is None and still.differences_finding is None
    figure = still.permutation_figure()
    assert figure.get_suptitle() == "" and faults(figure) == []
    wrong = replace(one, scores=np.array([-1.0, -2.0]))  # the same name after both prompts
    assert wrong.predictions_finding.count("Emma above Mike") == 2


def test_the_title_of_the_population_counts_heads_and_names_the_strongest():
    found = population(12, 12)
    assert said(found.figure()) == [
        "6 of 144 heads carry more than a hundredth of the effect for certain; L10H1 carries 1.10 [1.05, 1.15]",
        f"{LONG_NAME}, random_name, 128 pairs",
    ]
    unsure = Intervals(found.noised.value, found.noised.value - 2, found.noised.value + 2)
    assert replace(found, noised=unsure).finding == (
        "None of 144 heads carries more than a hundredth of the effect for certain"
    )
    missing = Intervals(*3 * [np.full((12, 12), np.nan)])
    assert replace(found, noised=missing).finding is None


def test_figures_without_direct_effects_say_so_and_print_no_nan():
    figure = drawings(4, 8)["no direct effects"](WIDTH)
    assert figure is not None
    written = " ".join(text.get_text() for ax in figure.findobj(Axes) for text in ax.texts)
    assert "not measured" in written and "nan" not in written


def test_the_title_of_the_curve_calls_few_heads_enough_only_where_they_are():
    """ "The strongest 256 heads alone keep nine tenths", of 270, was no finding."""

    def finding(shares: dict[int, float], heads: int = 32, low: float = 7.0) -> str | None:
        faithful = {size: Interval(share, share - 0.1, share + 0.1) for size, share in shares.items()}
        return replace(curve(heads), faithfulness=faithful, whole=Interval(8.0, low, 9.0)).finding

    assert finding({1: 0.5, 4: 1.16, 16: 1.0}) == "4 of 32 heads alone keep 1.16 [1.06, 1.26] of the logit difference"
    assert finding({1: 0.5, 4: 0.95, 16: 0.3, 24: 0.9}) == (
        "Mean ablation of most heads breaks the model: 4 of 32 keep 0.95 [0.85, 1.05], 16 keep 0.30"
    )
    assert "heads alone keep 0.95" in str(finding({1: 0.5, 4: 0.95, 16: 0.8}))  # their intervals overlap
    assert finding({4: 0.76, 128: 0.85, 256: 1.0}, 270) == (
        "No set of up to half of the heads keeps nine tenths of the logit difference: "
        "the best, 128 of 270, keeps 0.85 [0.75, 0.95]"
    )
    assert finding({1: 0.5, 4: 1.16}, low=-1.0) is None  # the model does not do the task for certain


def test_the_title_of_the_paths_counts_those_that_are_certain():
    found = paths(12, 12)
    sure = int(measures.carriers(found.edges).sum())
    there = int(np.isfinite(found.edges.value).sum())
    [edge] = found.strongest(1)
    assert found.finding == (
        f"{sure} of {there} paths between heads count for certain (beyond a hundredth of the effect); "
        f"the strongest, {found.edge_name(edge)} (mostly by value): {found.edges[edge]}"
    )
    assert len(found.certain(there)) == sure and found.certain(1) == [edge]
    unsure = Intervals(found.edges.value, found.edges.value - 9, found.edges.value + 9)
    quiet = replace(found, edges=unsure)
    assert (
        quiet.finding == f"None of {there} paths between heads carries more than a hundredth of the effect for certain"
    )
    assert quiet.certain() == []
    lonely = Intervals(*3 * [np.full((1, 1), np.nan)])
    one = replace(found, heads=[(0, 0)], edges=lonely, query=lonely, key=lonely, value=lonely)
    assert one.finding is None


# ------------------------------------------------------------------------------------------------ the circuit


def small_paths() -> Paths:
    """L0H1 tells L2H2 by its query and, less, by its value; L1H1 tells it by all three together alone."""
    there = np.array([[np.nan, np.nan, 0.0], [np.nan, np.nan, 0.0], [np.nan] * 3])

    def shares(**entries: float) -> Intervals:
        value = there.copy()
        for sender, share in entries.items():
            value["ab".index(sender), 2] = share
        return Intervals(value, value - 0.05, value + 0.05)

    direct = np.array([0.0, -0.3, 0.9])
    return Paths(
        SUBJECT, [(0, 1), (1, 1), (2, 2)], shares(a=0.6, b=0.1), shares(a=0.5), shares(b=0.04), shares(a=-0.1, b=0.05),
        Intervals(direct, direct - 0.05, direct + 0.05), 32,
    )  # fmt: skip


def test_the_graph_has_the_paths_that_are_certain_and_no_others():
    graph = small_paths().graph()
    assert {(*ends, share) for *ends, share in graph.edges(keys=True, data="weight")} == {
        ("L0H1", "L2H2", "query", 0.5), ("L0H1", "L2H2", "value", -0.1), ("L1H1", "L2H2", "", 0.1),
        ("L1H1", "logits", "", -0.3), ("L2H2", "logits", "", 0.9),
    }  # fmt: skip
    assert dict(graph.nodes(data="layer")) == {"L0H1": 0, "L1H1": 1, "L2H2": 2, "logits": 3}
    assert graph.edges["L2H2", "logits", ""] == pytest.approx({"weight": 0.9, "low": 0.85, "high": 0.95})
    [finding, setting] = said(small_paths().diagram())
    assert finding == "5 paths of 3 heads count for certain, most of all L2H2 to the logits: 0.90 [0.85, 0.95]"
    rule = "numbers: on cards to the logits, on lines the 5 strongest"
    assert setting == f"{LONG_NAME}, random_name, 32 fresh pairs; {rule}"


def test_heads_of_the_diagram_have_the_roles_that_are_given():
    found = small_paths()
    graph = found.graph({(0, 1): [Role.INDUCTION, Role.MOVER], (3, 3): [Role.FORERUNNER]})
    assert dict(graph.nodes(data="roles")) == {"L0H1": "induction, mover", "L1H1": "", "L2H2": "", "logits": ""}


@pytest.mark.parametrize(("roles", "said"), [({}, "no role"), (None, "roles not measured")])
def test_the_diagram_says_what_heads_without_a_role_are(roles, said):
    figure = small_paths().diagram(roles)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == said


def test_without_a_certain_path_the_diagram_says_so():
    found = small_paths()
    wide = {name: getattr(found, name) for name in ("edges", "query", "key", "value", "direct")}
    unsure: dict[str, Any] = {name: Intervals(p.value, p.value - 9, p.value + 9) for name, p in wide.items()}
    quiet = replace(found, **unsure)
    figure = quiet.diagram(width=COLUMN)
    assert said(figure)[0] == "No path carries more than a hundredth of the effect for certain"
    assert figure is not None and not figure.axes and faults(figure) == [] and len(quiet.graph()) == 0
    refused = replace(quiet, refused="its layers cannot be taken apart")
    assert refused.diagram() is None and refused.diagram_finding is None


def test_next_words_are_a_table():
    found = NextWords(SUBJECT, [[" Mike", " the"], [" Emma", "\n"]], np.array([[0.9, 0.05], [0.8, 0.1]]))
    table = found.table()
    assert table.index.tolist() == [1, 2] and table["after the source"].tolist() == ["' Emma'", "'\\n'"]
    assert table["probability, base"].tolist() == ["0.9", "0.05"]
