"""Pictures of IOI patching: what their titles say, and that all of them can be read from 4 to 48 layers."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.ioi_patching import numbers, show
from util.figures.ioi_patching.show import FIGURE, kept_alone, telling_sizes
from util.roles.rules import Role
from util.scores.graph import SHARES
from util.show.part import drawn
from util.show.style import COLUMN, WIDTH
from util.stats.intervals import Interval

PICTURES = [name for name, part in FIGURE.parts.items() if part.panels]
ONE = (1.0, 0.5, 1.5)


def around(values: Any, reach: float = 0.05) -> dict[str, np.ndarray]:
    value = np.asarray(values)
    return {"value": value, "low": value - reach, "high": value + reach}


def strong_heads(layers: int, heads: int) -> list[tuple[int, int]]:
    return [(layers - 2, 1), (0, 0), (layers - 1, heads - 1), (1, 3), (layers - 2, 2), (layers - 1, 0)]


def effects_of(layers: int, heads: int) -> np.ndarray:
    """Small effects of all heads, and large ones of six, the first of which is the largest."""
    effects = np.random.default_rng(0).normal(0, 0.01, (layers, heads))
    for share, head in zip((1.1, 0.5, -0.4, 0.3, 0.2, -0.2), strong_heads(layers, heads), strict=True):
        effects[head] = share
    return effects


def paths(layers: int, heads: int) -> dict[str, Any]:
    """Sixteen heads; those of an earlier layer tell those of a later one, every third pair for certain."""
    members = sorted({(layer, head) for layer in range(0, layers, max(1, layers // 8)) for head in (0, heads - 1)})[:16]
    count, rng = len(members), np.random.default_rng(0)
    later = np.array([[one[0] < other[0] for other in members] for one in members])
    strong = np.where(rng.random((count, count)) < 1 / 3, rng.normal(0, 0.3, (count, count)), 0.0)
    value, none = np.where(later, strong, np.nan), np.where(later, 0.0, np.nan)
    shares = {"edges": value, "query": none, "key": none, "value": value}
    found: dict[str, Any] = {name: around(share, 0.02) for name, share in shares.items()}
    return {**found, "heads": members, "direct": around(np.linspace(-0.4, 0.9, count)), "pairs": 32}


def component_graph() -> dict[str, Any]:
    names = [f"a28.h8->a29.h{number}<q>" for number in range(10)]
    edge = {"exact": Interval(0.9, 0.8, 1.0), "EAP": 0.5, "EAP-IG inputs": 0.7}
    curve = {"faithfulness": around(np.linspace(0, 1, 10)), "shares": SHARES, "sizes": np.arange(10)}
    curves = {
        name: {area: {area: ONE, **curve} for area in ("CPR", "CMD")}
        for name in ("EAP", "EAP-IG inputs", "random 1", "random 2")
    }
    return {"strongest": dict.fromkeys(names, edge), "curves": curves, "drawn": 400, "matter": 5, "pairs": 32}


@cache
def values_of(layers: int, heads: int, model: str = "given:toy") -> dict[str, Any]:
    """The values of a made-up model."""
    rng, effects = np.random.default_rng(0), effects_of(layers, heads)
    every = -(-layers // 12)
    shown = {
        "tokens": ["<s>", " $a", "\n", *(f" coffee{n}" for n in range(14))], "answers": [7, 11], "layer": layers - 2,
        "words": [[" Mike", " the"], [" Emma", "\n"]], "norms": effects**2, "every": every,
        "log_softmax": np.log(rng.dirichlet(np.full(500, 0.1), 2) + 1e-12),
        "z": rng.normal(size=(17, heads, 16)), "lengths": rng.random((layers, 17)) + 1,
        "differences": rng.normal(size=(len(range(0, layers, every)), heads, 16)),
    }  # fmt: skip
    population = {
        "intact": ONE, "corrupted": (-1.0, -2.0, 0.0), "accuracy": ONE, "pairs": 128, "noised": around(effects),
        "denoised": around(effects), "direct": effects / 2, "chosen": effects, "measured": around(effects),
    }  # fmt: skip
    sizes = [2**power for power in range(20) if 2**power < layers * heads]
    shares = {str(size): Interval(*(np.array([1, 0.9, 1.1]) * (1 - 1 / (1 + size)))) for size in sizes}
    circuit = {"whole": (8.0, 7.0, 9.0), "without": shares, "faithfulness": shares, "pairs": 128}
    circuit["random"] = {str(size): [-0.5, 0.1, 0.2, 0.3] for size in sizes}
    texts = ("a base that ends so and so", "a source that ends otherwise")
    return {
        "request": {"model": model, "corruption": "random_name", "names": ("Mike", "Emma"), "texts": texts},
        "model": LONG_NAME, "scores": np.array([9.4, -10.4]), "permuted": 10 * effects, "patched": -10 * effects,
        "selectivity": rng.random(layers) + 1, "example": shown, "population": population,
        "untrained": {"heads": around(effects / 9)}, "circuit": circuit, "paths": paths(layers, heads),
        "component graph": component_graph(), "streams": streams(layers),
    }  # fmt: skip


def streams(layers: int) -> dict[str, Any]:
    """The stream has the effect at the first of three tokens before the last two layers, at the last one behind."""
    shares = np.zeros((3, layers, 3))
    shares[0, :-2, 0] = shares[0, -2:, 2] = 1
    shares[1, -3, 2] = 0.9
    return {"shares": shares, "tokens": [" $a", "\n", " to"]}


def picture(name: str, values: dict[str, Any], width: float = WIDTH) -> Figure:
    found = drawn(FIGURE.parts[name], values, width)
    assert found is not None
    return found


def title(name: str, values: Any) -> str:
    return next(iter(FIGURE.parts[name].says(values)), "")


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize(("layers", "heads"), SHAPES)
@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_can_be_read(name, layers, heads, width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = picture(name, values_of(layers, heads), width)
        assert faults(figure) == []
    assert figure.get_size_inches()[0] == width


@pytest.mark.parametrize(("name", "scale"), [("p2", 10), ("p5", -10), ("population", 1)])
@pytest.mark.parametrize(("layers", "heads"), [*SHAPES, (80, 64)])
def test_maps_have_layers_across_and_colours_that_end_where_they_are_to(name, scale, layers, heads):
    """The image is the transposed map; the strongest heads' values are printed where there is room.

    Of many pairs no cell saturates; of one, colours end at twice the mean size, as the project has them.
    """
    effects = scale * effects_of(layers, heads)
    [image, *_] = [image for ax in picture(name, values_of(layers, heads)).axes for image in ax.get_images()]
    np.testing.assert_array_equal(image.get_array(), effects.T)
    limit = np.abs(effects).max() if name == "population" else 2 * np.abs(effects).mean()
    assert image.get_clim() == pytest.approx((-limit, limit))
    assert len({text.get_text() for text in image.axes.texts}) in (0, 6)


# ------------------------------------------------------------------------------------------------ what is said


def test_streams_are_shares_from_the_first_token_that_differs():
    effects = np.zeros((3, 4, 5))
    effects[:, :, 2:] = -10 * streams(4)["shares"]
    arrays = {"refused": "", "effects": effects, "base": 4.0, "source": -6.0, "tokens": ["a", "b", " $a", "\n", " to"]}
    found = numbers.streams(arrays, None)
    assert found["streams"]["tokens"] == [" $a", "\n", " to"]
    np.testing.assert_array_equal(found["streams"]["shares"], streams(4)["shares"])
    assert [*FIGURE.parts["streams"].says(found)] == [
        'The effect passes from " $a" to " to" in layers 1 to 2',
        'What attention writes in layer 1 at " to" carries most, 0.90 of the effect.',
    ]
    refused = numbers.streams({"refused": "Toy: no layers"}, None)
    assert [*FIGURE.parts["streams"].says(refused)] == ["streams: not measured, Toy: no layers"]
    assert drawn(FIGURE.parts["streams"], refused) is None


def test_every_panel_of_head_outputs_has_colours_of_its_own():
    """And the texts of tokens stand as they are."""
    values = values_of(4, 8)
    assert [ax.get_title() for ax in picture("p3", values).axes][:3] == ['"<s>"', '" \\$a"', '"\\n"']
    shown = [ax.get_images()[0] for ax in picture("p4", values).axes if ax.get_images()]
    ends = [np.percentile(np.abs(z), 99) for z in values["example"]["differences"]]
    assert [image.get_clim()[1] for image in shown] == pytest.approx(ends)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("p1", "After the base the model puts Mike above Emma by 9.4 logits, after the source Emma above Mike by 10.4"),
        ("p2", "Of single heads, shuffling L2H1 changes the logit difference most: +11.0"),
        ("p3", "Head outputs are longest in layer 0: mean norm 1.6, 1.5 over all layers"),
        ("p4", 'Heads tell the two "Mike" apart most unequally in layer 0: by a factor of 2'),
        ("p5", "L2H1 alone from the source moves the logit difference by -11.0, all together by -19.8"),
        ("population", "Six of 32 heads carry more than a hundredth of the effect for certain"),
    ],
)
def test_titles_say_what_was_found(name, wanted):
    assert title(name, values_of(4, 8)) == wanted


SHARES_OF_SETS: dict = {
    "4 of 32 heads alone keep 1.16 [1.06, 1.26] of the logit difference": (32, {1: 0.5, 4: 1.16, 16: 1.0}),
    "4 of 32 heads alone keep 0.95 [0.85, 1.05] of the logit difference, 16 keep 0.30": (
        32, {1: 0.5, 4: 0.95, 16: 0.3, 24: 0.9},
    ),
    "4 of 32 heads alone keep 0.95 [0.85, 1.05] of the logit difference": (32, {1: 0.5, 4: 0.95, 16: 0.8}),
    "128 of 270 heads alone keep 0.85 [0.75, 0.95] of the logit difference": (270, {4: 0.76, 128: 0.85, 256: 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("wanted", SHARES_OF_SETS)
def test_the_title_of_the_curve_calls_few_heads_enough_only_where_they_are(wanted):
    """ "The strongest 256 heads alone keep nine tenths", of 270, was no finding. Overlapping intervals are no dip."""
    heads, shares = SHARES_OF_SETS[wanted]
    faithful = {str(size): Interval(share, share - 0.1, share + 0.1) for size, share in shares.items()}
    random = {size: [0.1, 0.2] for size in faithful}
    circuit = {"faithfulness": faithful, "whole": (8.0, 7.0, 9.0), "random": random}
    values = {"circuit": circuit, "population": {"chosen": np.zeros((1, heads))}}
    assert title("circuit", values) == wanted
    undone = values | {"circuit": circuit | {"whole": (8.0, -1.0, 9.0)}}
    assert title("circuit", undone) == "The model does not do the task, so there is no circuit to look for"


def test_a_dip_is_told_with_the_size_that_recovers():
    sure = {size: Interval(share, share - 0.1, share + 0.1) for size, share in {1: 0.6, 2: 0.7, 4: 0.1, 8: 0.9}.items()}
    assert telling_sizes(sure, 32) == [2, 4, 8] and [*kept_alone(values_of(4, 8))] == [1, 2, 4, 8, 16]


def test_the_title_of_the_paths_counts_those_that_are_certain():
    values = values_of(12, 12)
    effect = numbers.intervals(values["paths"]["edges"])
    sure = [edge for edge in show.certain_paths(values["paths"]) if edge.channel]
    assert len(sure) == int(numbers.carriers(effect).sum()) and abs(sure[0].weight) == np.nanmax(np.abs(effect.value))
    first, strongest, last = FIGURE.parts["paths"].says(values)
    number = int(np.isfinite(effect.value).sum())
    many = f"{len(sure)} of {number} paths between heads carry more than a hundredth of the effect for certain"
    assert first == many and last.startswith("Heads that write to the output")
    assert strongest.startswith(f"The strongest: {sure[0].sender} to {sure[0].reader}'s value {sure[0].interval}, ")


# ------------------------------------------------------------------------------------------------ the circuit


def small_paths() -> dict[str, Any]:
    """L0H1 tells L2H2 mostly by its query, L1H1 mostly by its value."""
    shares = {name: np.full((3, 3), np.nan) for name in ("edges", "query", "key", "value")}
    told = {"edges": (0.6, 0.1, 0), "query": (0.5, 0, 0), "key": (0, 0.04, 0), "value": (-0.1, 0.05, 0)}
    for name, column in told.items():
        shares[name][:2, 2] = column[:2]
    parts = {name: around(share) for name, share in (shares | {"direct": np.array([0.0, -0.3, 0.9])}).items()}
    return {**parts, "heads": [(0, 1), (1, 1), (2, 2)], "pairs": 32}


def test_the_diagram_has_the_paths_that_are_certain_and_the_roles_that_are_given(monkeypatch):
    assert [(edge.sender, edge.reader, edge.channel, edge.weight) for edge in show.certain_paths(small_paths())] == [
        ("L2H2", "logits", "", 0.9), ("L0H1", "L2H2", "query", 0.6), ("L1H1", "logits", "", -0.3),
        ("L1H1", "L2H2", "value", 0.1),
    ]  # fmt: skip
    roles = {(0, 1): [Role.INDUCTION, Role.MOVER], (3, 3): [Role.FORERUNNER]}
    monkeypatch.setattr(show, "stored_roles", lambda request: roles)
    texts = {text.get_text() for text in picture("paths", values_of(4, 8) | {"paths": small_paths()}).axes[0].texts}
    assert texts >= {"L0H1", "IN", "MV", "L1H1", "-.30", "L2H2", ".90", ".60 q"} and "FR" not in texts


@pytest.mark.parametrize(("roles", "wanted"), [({}, "no role"), (None, "roles not measured")])
def test_the_diagram_says_what_heads_without_a_role_are(roles, wanted, monkeypatch):
    monkeypatch.setattr(show, "stored_roles", lambda request: roles)
    figure = picture("paths", values_of(4, 8) | {"paths": small_paths()})
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == wanted


def test_without_a_certain_path_there_is_no_diagram():
    quiet = {name: around(part["value"], 9) if isinstance(part, dict) else part for name, part in small_paths().items()}
    assert drawn(FIGURE.parts["paths"], values_of(4, 8) | {"paths": quiet}) is None
