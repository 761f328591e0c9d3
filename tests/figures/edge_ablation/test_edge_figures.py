"""Figures of edges can be read at both widths, for models of any size; titles say what was measured, or nothing."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util import edges
from util.edges import names
from util.edges.edge import CIRCUITS, TYPE_PAIRS
from util.figures.edge_ablation import measures, plots, pruning_plots
from util.figures.edge_ablation.pruning_results import PruningByTask
from util.figures.edge_ablation.results import (
    Ambiguity,
    Circuits,
    CircuitsByModel,
    CircuitsByTask,
    Probes,
    Search,
    Setting,
    SingleEdges,
    VerifiedCircuit,
    Windows,
    in_words,
)
from util.figures.edge_ablation.type_circuit import arrow
from util.show.style import COLUMN, GREY, WIDTH
from util.stats.intervals import Interval, Intervals

PAIRS = [(edge.source, edge.target, edge.relation) for edge in TYPE_PAIRS]
FINDING = "A finding of some length, with its value and interval: 0.44 [0.28, 0.59], beside that of random circuits"
SETTING = f"{LONG_NAME}, ambiguous_present_past, 10 demonstrations, 250 prompts, donors 0, 1, 2"
TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
random = np.random.default_rng(0)


def interval(low: float = 0.0, high: float = 1.0) -> Interval:
    value = float(random.uniform(low, high))
    return Interval(value, max(low, value - 0.1 * (high - low)), value + 0.05 * (high - low))


def by_circuit(*more: str) -> dict[str, Interval]:
    return {name: interval() for name in (*CIRCUITS, *more)}


def circuits(width: float, columns: tuple[str, ...] = TASKS, *, kl: bool = True) -> Any:
    return plots.circuits(
        {name: by_circuit(names.ALONE) for name in columns},
        {name: dict.fromkeys(CIRCUITS, [0.2, 0.4, 0.9]) for name in columns},
        dict.fromkeys(columns, 0.2),
        FINDING,
        SETTING,
        {name: {one: interval(0, 12) for one in CIRCUITS} for name in columns} if kl else None,
        width=width,
    )


def searched(width: float, kept: int) -> Any:
    return plots.circuit(
        PAIRS[:kept],
        {pair: interval(-0.1, 12) for pair in PAIRS},
        [(left, 1.0, True) for left in range(30, 3, -1)] + [(3, 0.4, False), (2, 0.0, False)],
        0.9,
        {"found": interval(), "without found": interval(0, 0.1)},
        [0.0, 0.1, 0.67],
        (PAIRS[:3], PAIRS[1:4]),
        FINDING,
        SETTING,
        width=width,
    )


def probes(width: float) -> Any:
    value = random.random((6, 5))
    donors = ["same_task", "shuffled", "other_inputs", "other_outputs", "other_rule"]
    edges_ = ["x->x:earlier", "x->y:earlier", "y->x:earlier", "y->y:earlier", "x->last_separator", "y->last_separator"]
    shown = Intervals(value, value * 0.9, value * 0.9 + 0.1)
    return plots.probes(shown, 0.9, value < 0.4, edges_, donors, FINDING, SETTING, width=width)


def pruned(width: float) -> Any:
    left = [1620, 1296, 828, 423, 216, 109, 58]
    panel = pruning_plots.Pruned(
        "capitalization, head units", "109 of 1620 keep 0.96 [0.84, 1.08]", {n: interval(0.5, 1) for n in left},
        dict.fromkeys(left, 0.9), Interval(0.97, 0.9, 0.99), 0.8, 109, [0.0, 0.06],
    )  # fmt: skip
    return pruning_plots.pruning([panel] * 4, FINDING, SETTING, width=width)


def ambiguous(width: float) -> Any:
    shares = {name: [interval() for _ in range(5)] for name in ("FULL", "CTX+AGG", "AGG-ONLY")}
    return plots.ambiguous([0, 4, 7, 9, 10], shares, shares, shares, FINDING, SETTING, width=width)


FIGURES = {
    "circuits": circuits,
    "models": lambda width: circuits(width, ("embedded", LONG_NAME), kl=False),
    "map": lambda width: plots.edge_map(
        {pair: interval(-1, 11) for pair in PAIRS}, dict.fromkeys(PAIRS, 0.25), {*PAIRS[:3]}, FINDING, SETTING,
        width=width,
    ),
    "circuit of 1": lambda width: searched(width, 1),
    "circuit of 9": lambda width: searched(width, 9),
    "circuit of all": lambda width: searched(width, len(PAIRS)),
    "nothing kept": lambda width: searched(width, 0),
    "probes": probes,
    "ambiguous": ambiguous,
    "pruning": pruned,
}  # fmt: skip


def drawn_without_a_warning(draw: Any, width: float) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw(width)
        assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] <= 8.5
        return faults(figure)


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize("name", FIGURES)
def test_all_of_a_figure_can_be_read(name, width):
    assert drawn_without_a_warning(FIGURES[name], width) == []


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_figures_by_layer_can_be_read_for_models_of_any_size(shape, width):
    layers = shape[0]
    at, whole = edges.cuts(layers), Interval(0.95, 0.9, 0.99)

    accuracies = [interval() for _ in at]

    def windows(width: float) -> Any:
        return plots.windows(layers, at, accuracies, accuracies, whole, FINDING, SETTING, width=width)

    def survivors(width: float) -> Any:
        heads = {kind: random.integers(0, 12, layers) for kind in ("last_separator", "y", "x", "query", "t", "n")}
        pairs = {str(edge): random.integers(0, 3, layers) for edge in TYPE_PAIRS[:13]}
        panels = [("copying, head units", heads), ("copying, edge units", pairs), ("b, head units", {}), ("b", heads)]
        return pruning_plots.survivors(panels, layers, FINDING, SETTING, width=width)

    assert drawn_without_a_warning(windows, width) == []
    assert drawn_without_a_warning(survivors, width) == []


def test_rare_kinds_of_units_share_a_row_and_no_unit_is_lost():
    kinds = {f"{kind}->last_separator": np.array([number, 1]) for number, kind in enumerate("xtyn")}
    kinds |= {f"{kind}->query": np.array([0, 1]) for kind in "xtyn"}
    figure = pruning_plots.survivors([("a", kinds)], 2, None, "setting")
    [ax] = figure.axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0] == arrow("n->last_separator") and labels[-1] == "3 others" and len(labels) == pruning_plots.KINDS
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written[1, 5] == "3" and sum(map(int, written.values())) == sum(int(n.sum()) for n in kinds.values())


# ------------------------------------------------------------------------------------------------ what titles say

N = 40
SET = Setting("toy", "capitalization", 10, N, (0, 1))


def row(right: float) -> dict[str, Any]:
    """A row of N prompts with a query each, of which such a share is answered right."""
    told = np.tile(np.arange(N) < right * N, (2, 1))
    return {
        "right": told,
        "query": np.arange(N),
        "log_prob": np.log(np.where(told, 0.9, 0.05)),
        "kl": np.zeros(told.shape),
        "agrees": told,
        "copied": ~told,
    }


def compared(**right: float) -> Circuits:
    shares = {name: right.get(name.replace("-", "_").replace("+", "_"), 1.0) for name in CIRCUITS}
    rows = {name: row(share) for name, share in shares.items()}
    return Circuits(SET, rows, None, {}, 0.0, "toy", 4, N)


def test_the_title_of_circuits_counts_the_tasks_that_surely_need_demonstrations():
    needs, not_ = compared(QUERY_ONLY=0.2, AGG_ONLY=0.5), compared(QUERY_ONLY=0.98)
    both = CircuitsByTask({"a": needs, "b": not_}, 0.1)
    loss = measures.sure_losses({"a": (needs.rows["FULL"], needs.rows["AGG-ONLY"])})["a"]
    assert loss.value == 0.5 and loss.low > 0.3
    assert both.finding == (
        "Without demonstrations (QUERY-ONLY) accuracy surely falls in 1 of 2 tasks, "
        f"without those read by each other or the query (AGG-ONLY) in 1, a, by {loss}"
    )
    only = CircuitsByTask({"b": not_, "c": compared(QUERY_ONLY=0.2)}, 0.1)
    assert only.finding == "Without demonstrations (QUERY-ONLY) accuracy surely falls in 1 of 2 tasks"
    other = CircuitsByTask({"d": compared(AGG_ONLY=0.5)}, 0.1).finding
    start = "Without those read by each other or the query (AGG-ONLY) accuracy surely falls in 1, d, by 0.50 ["
    assert other is not None and other.startswith(start)
    assert both.sure_losses()["AGG-ONLY"] == {"a": loss} and [*both.sure_losses()["QUERY-ONLY"]] == ["a"]
    assert CircuitsByTask({"b": not_}, 0.1).finding is None
    assert both.setting == "toy, 10 demonstrations, of each task 40 prompts, donors 0, 1"
    assert CircuitsByTask({"b": not_}, 0.1).figure().get_suptitle() == ""


def test_a_loss_is_sure_only_after_all_are_counted():
    """Six of forty are surely lost alone, not as the best of thirty."""
    pair = row(1.0), row(1 - 6 / N)
    same = {str(number): (row(1.0), row(1.0)) for number in range(29)}
    assert [*measures.sure_losses({"it": pair})] == ["it"] and not measures.sure_losses({"it": pair, **same})


def test_an_untrained_twin_has_a_line_and_no_panel():
    own, twin = compared(QUERY_ONLY=0.2), compared(**dict.fromkeys(("FULL", "NONE"), 0.0), AGG_ONLY=0.1)
    alone = CircuitsByModel({"toy": own}, twin)
    assert alone.figure() is None and [*alone.accuracy()] == ["toy", "untrained"]
    assert "accuracy 1.00 [0.91, 1.00] at most (in CTX+AGG)" in alone.lines()[0]
    several = CircuitsByModel({"toy": own, "other": own}, twin)
    assert [*several.accuracy()] == ["toy", "untrained", "other"] and [*several.beside] == ["untrained", "other"]
    figure = several.figure()
    assert figure is not None and "surely falls in 2 of 2 models" in figure.get_suptitle()
    assert [ax.get_title() for ax in figure.axes] == ["toy", "other"]
    assert CircuitsByModel({"toy": own}).lines() == ["no untrained twin was asked"]


def test_the_title_of_the_map_names_what_costs_most_or_nothing():
    rows = {names.FULL: row(1.0), **{str(edge): row(1.0) for edge in TYPE_PAIRS}}
    assert SingleEdges(SET, rows).finding is None
    rows |= {"x->y:same": row(0.6), "query->last_separator": row(0.0)}
    single = SingleEdges(SET, rows)
    cost = single.nats()["query", "last_separator", "any"]
    assert single.finding == (
        f"Ablated alone, 2 of 31 type pairs cost accuracy beyond chance, most query → last separator: {cost} nats"
    )
    framed = single.figure().axes[0].patches
    assert len(framed) == 2


def test_the_title_of_a_circuit_is_its_score_beside_the_best_random_one():
    kept = (*edges.ALWAYS, *edges.edges("y->last_separator", "query->last_separator"))
    scores = {"found": Interval(0.9, 0.8, 1.0), "without found": Interval(0.0, -0.1, 0.1)}
    search = Search(kept, {}, ())
    found = VerifiedCircuit(SET, search, {}, scores, (0.1, 0.4), (0.9,), Interval(0.9, 0.8, 1.0))
    assert found.finding == (
        "2 of 31 type pairs keep 0.90 [0.80, 1.00] of the performance; "
        "of 2 random circuits as large the best keeps 0.40"
    )
    nothing = VerifiedCircuit(SET, Search(edges.ALWAYS, {}, ()), {}, scores, (), (0.9,), Interval(0.9, 0.8, 1.0))
    assert nothing.finding is None


def test_the_title_of_layers_says_where_accuracy_surely_falls():
    at = (0, 2, 4)
    rows = {names.FULL: row(1.0)}
    rows |= {names.context_from(layer): row(1.0) for layer in at}
    rows |= {names.aggregation_below(layer): row(1.0) for layer in at}
    assert Windows(SET, 4, at, rows).finding is None
    rows[names.aggregation_below(4)] = row(0.25)
    said = Windows(SET, 4, at, rows).finding
    assert said is not None and said.startswith(
        "Accuracy surely falls where aggregation is removed below layer 4 (by 0.75"
    )
    assert "contextualisation" not in said
    rows[names.context_from(0)] = row(0.5)
    assert "contextualisation is removed from layer 0 on (by 0.50" in str(Windows(SET, 4, at, rows).finding)


def test_the_title_of_probes_names_the_edges_that_carry_something():
    edges_, rows = ("x->y:earlier", "y->last_separator"), {names.CIRCUIT: row(1.0)}
    rows |= {names.read_from(edge, c): row(1.0) for edge in edges_ for c in (1, 5)}
    assert Probes(SET, "CTX+AGG", edges_, (1, 5), rows).finding is None
    rows[names.read_from("y->last_separator", 5)] = row(0.0)
    found = Probes(SET, "CTX+AGG", edges_, (1, 5), rows)
    assert found.beyond_chance().tolist() == [[False, False], [False, True]]
    assert found.finding == (
        "1 of 2 edges carries what donors change (y → last separator): accuracy falls to 0.00 [0.00, 0.09] (other rule)"
    )


def test_the_title_of_ambiguous_demonstrations_is_silent_where_nothing_surely_falls():
    def ambiguity(share: float) -> Ambiguity:
        rows = {count: {name: row(right) for name in ("FULL", "CTX+AGG", "AGG-ONLY")} for count, right in
                ((0, 1.0), (9, share))}  # fmt: skip
        return Ambiguity(SET, rows, N)

    assert ambiguity(0.98).finding is None
    assert ambiguity(0.0).finding == (
        "With 9 of 10 demonstrations ambiguous, past tenses fall from 1.00 [0.91, 1.00] to 0.00 [0.00, 0.09]: "
        "the model says the query again (1.00 [0.91, 1.00])"
    )


def test_names_in_a_sentence():
    assert [in_words(list(some)) for some in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


def test_pruning_has_a_finding_only_where_it_beats_every_random_pruning():
    def curve(share: float, random_share: float) -> Any:
        result = row(share)
        return SimpleNamespace(
            result=4, units=100, rows={4: result}, explained=lambda: {4: Interval(share, 0, 1)},
            random_accuracy=lambda: [random_share],
        )  # fmt: skip

    def finding(*curves: Any) -> str | None:
        return PruningByTask({"copying": dict(zip(("head", "edge"), curves, strict=True))}).finding

    assert finding(curve(1.0, 0.1), curve(0.9, 0.2)) == (
        "4 % of the units keep 0.90 to 1.00 of the accuracy; as many random units answer 0.20 right at most"
    )
    assert finding(curve(1.0, 0.1), curve(0.3, 0.2)) is None


# ------------------------------------------------------------------------------------------------ what is drawn where


def filled(image: AxesImage) -> NDArray[Any]:
    """What an image shows, NaN where it shows nothing."""
    return np.ma.filled(np.ma.asarray(image.get_array()), np.nan)


def test_the_map_puts_every_type_pair_in_its_cell():
    costs = {pair: Interval(number - 3.0, number - 3.5, number - 2.5) for number, pair in enumerate(PAIRS)}
    figure = plots.edge_map(costs, dict.fromkeys(PAIRS, 0.25), {PAIRS[3]}, None, "setting")
    ax = figure.axes[0]
    there, shown = (filled(image) for image in ax.get_images())
    rows, columns = ([label.get_text() for label in labels] for labels in (ax.get_yticklabels(), ax.get_xticklabels()))
    for (source, target, relation), cost in costs.items():
        group = {"same": range(3), "earlier": range(3, 7), "any": range(7, 9)}[relation]
        [column] = [c for c in group if columns[c] == {"last_separator": "last"}.get(target, target)]
        wanted = np.nan if cost.value == 0 else np.sign(cost.value) * np.sqrt(abs(cost.value))  # 0 is not sure
        np.testing.assert_allclose(shown[rows.index(source), column], wanted)
        assert np.isfinite(there[rows.index(source), column])
    assert int(np.isfinite(there).sum()) == len(PAIRS) == int(np.isfinite(shown).sum()) + 1
    [frame] = ax.patches
    assert isinstance(frame, Rectangle) and (frame.get_x(), frame.get_y()) == (2 - 0.46, 0 - 0.46)  # x -> n


def test_an_arrow_for_every_place_where_a_pair_is_read():
    figure = searched(WIDTH, len(PAIRS))
    arrows = len(figure.axes[0].patches)
    assert arrows == 2 * 6 + 16 + 2 * 4 + 2 * 4 + 1  # in two examples, from one to the next, to the query, to the end
    for ax in figure.axes[:2]:  # no arrow is cut off at the end of the prompt
        (low, high), boxes = ax.get_xlim(), [text.get_position()[0] for text in ax.texts]
        assert low + 0.4 < min(boxes) and max(boxes) < high - 0.4
    missed = [patch for patch in figure.axes[1].patches if patch.get_facecolor()[:3] == to_rgba(GREY)[:3]]
    assert len(missed) == 1 and figure.axes[1].get_title() == "B) planted: 2 of 3 found, 1 wrong"
    steps = figure.axes[3].get_lines()
    assert [point[0] for point in np.asarray(steps[1].get_xydata())] == [3, 2]  # put back: not joined
    assert arrow("x->last_separator:same") == r"$x$ $\to$ last (same)"
