"""Edges of the component graph in indirect object identification: what is drawn, measured, kept and said."""

import hashlib

import numpy as np
import pytest

from tests import architectures
from util.engine.call import UnsupportedModel
from util.figures.ioi_patching import measure, numbers, show
from util.figures.ioi_patching.numbers import EAP, EAP_IG, EXACT, drawn_edges
from util.load_model_and_data import load_ICL_model
from util.scores.evaluation import circuits_of, spearman
from util.scores.graph import ComponentGraph
from util.show.part import drawn
from util.study.model import Model
from util.study.study import Study

GRAPH = ComponentGraph(2, 2)  # 46 edges
SETTINGS, RANDOM = show.Settings(), "random 1"


def scores(seed):
    return np.random.default_rng(seed).standard_normal(GRAPH.shape)


def arrays_of(effects, exact_means=None, prompts=40, kept=None):
    """Arrays in which every edge was measured: effects [E], with a little noise, of a whole effect of 1."""
    drawn = np.argwhere(GRAPH.edges)
    noise = np.random.default_rng(0).standard_normal((prompts, len(drawn))) * 1e-3
    means = {EAP: scores(1), EAP_IG: scores(2)} if exact_means is None else exact_means
    circuits: dict = {}
    for name, ranked in {**means, RANDOM: scores(9)}.items():
        for measured_by, absolute in (("CPR", False), ("CMD", True)):
            chosen = circuits_of(GRAPH, ranked, absolute=absolute)
            share = np.linspace(0, 1, len(chosen)) if kept is None else kept(chosen)
            run = {"sizes": chosen.sum(axis=(1, 2)), "runs": np.repeat(2.0 + share[:, None], prompts, 1)}
            circuits.setdefault(name, {})[measured_by] = {**run, "empty": np.full(prompts, 2.0)}
    return {
        "refused": "", "graph": [2, 2, False], "means": means, "drawn": drawn, "effects": effects + noise,
        "full": np.full(prompts, 3.0), "clusters": np.arange(prompts), "circuits": circuits,
    }  # fmt: skip


def result(*given, **more):
    return numbers.edges(arrays_of(*given, **more), SETTINGS)["component graph"]


def values_of(graph):
    return {"component graph": graph, "request": {"corruption": "s2_swap"}, "model": "toy"}


def test_all_edges_are_drawn_where_there_are_few():
    assert GRAPH.size == len(drawn_edges(GRAPH, {EAP: scores(0), EAP_IG: scores(1)}, 46, 0)) == 46


def test_as_many_edges_are_drawn_of_every_band_and_none_twice():
    graph = ComponentGraph(6, 6)
    means = {name: np.random.default_rng(seed).standard_normal(graph.shape) for seed, name in enumerate((EAP, EAP_IG))}
    drawn = drawn_edges(graph, means, 200, 0)
    assert len(drawn) == len({tuple(edge) for edge in drawn}) == 200
    assert all(graph.edges[tuple(edge)] for edge in drawn)
    for name in means:
        highest = np.argsort(-np.abs(means[name][graph.edges]), kind="stable")[:40]
        assert {tuple(edge) for edge in np.argwhere(graph.edges)[highest]} <= {tuple(edge) for edge in drawn}
    assert (drawn_edges(graph, means, 200, 0) == drawn).all()
    assert not np.array_equal(drawn_edges(graph, means, 200, 1), drawn)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("count", [5, 7, 23, 33, 41, 45, 46, 99])
def test_as_many_edges_are_drawn_as_asked_for(count, alike):
    """Where a band had fewer edges than a fifth, fewer were drawn in all."""
    means = {EAP: scores(0), EAP_IG: scores(0 if alike else 1)}
    drawn = drawn_edges(GRAPH, means, count, 0)
    assert len(drawn) == len({tuple(edge) for edge in drawn}) == min(count, 46)


def test_filling_up_leaves_what_bands_gave():
    """The edges of SmolLM2, drawn as they always were: no band of theirs is short."""
    graph = ComponentGraph(30, 9)
    means = {name: np.random.default_rng(seed).standard_normal(graph.shape) for seed, name in enumerate((EAP, EAP_IG))}
    drawn = drawn_edges(graph, means, 1000, 0)
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:16] == "762dd734193377e1"


def test_estimates_that_are_right_find_every_edge_that_matters():
    effects = np.zeros(46)
    effects[[3, 20, 40]] = 0.5, -0.2, 0.004  # the last is too small to count
    right, wrong = np.zeros(GRAPH.shape), np.zeros(GRAPH.shape)
    right[GRAPH.edges] = effects
    wrong[GRAPH.edges] = np.roll(effects, 1)
    found = result(effects, {EAP: wrong, EAP_IG: right})
    assert found["matter"] == 2 and found["drawn"] == 46
    assert found["found"] == {EAP: (0, 0, 0), EAP_IG: (1, 1, 1)}
    names = [GRAPH.name(tuple(map(int, edge))) for edge in np.argwhere(GRAPH.edges)]
    exact = {name: edge[EXACT] for name, edge in found["strongest"].items()}
    assert (exact[names[3]].value, exact[names[20]].value) == pytest.approx((0.5, -0.2), abs=1e-3)
    assert exact[names[3]].low < exact[names[3]].value < exact[names[3]].high and len(exact) == 10
    assert found["agreement"][EAP_IG]["all"].value > 0.2
    values = values_of(found)
    count, shares, largest = show.edges_say(values)
    assert count == "Two of 46 edges measured carry more than a hundredth of the effect for certain."
    assert shares.endswith("of them: 0.00 [0.00, 0.00] by EAP and 1.00 [1.00, 1.00] by EAP-IG inputs.")
    assert largest.startswith(f"The largest, `{names[3]}`, carries 0.50 [")
    assert [*show.edge_circuits_say(values)][0].startswith("By EAP 46 of 46 edges (100.0 %) keep 1.00 [1.00, 1.00]")
    assert [*show.edge_circuits_table(values).index] == [EAP, EAP_IG, RANDOM]
    assert show.edges_table(values).index[0] == names[3] and show.edges_table(values)[EXACT].iloc[0].startswith(
        "0.50 ["
    )


def test_one_edge_of_the_wrong_sign_decides_the_cpr():
    """Made-up scores: all effect passes through `input->m0`, whose sign EAP alone has wrong."""
    gate = GRAPH.place("input->m0")
    right = np.abs(scores(1))
    right[gate] = 5.0
    wrong = right.copy()
    wrong[gate] = -5.0
    effects = np.where((np.argwhere(GRAPH.edges) == gate).all(axis=1), 0.99, 0.001)
    kept = result(effects, {EAP: wrong, EAP_IG: right}, kept=lambda circuits: 1.0 * circuits[(slice(None), *gate)])
    curves = kept["curves"]
    assert curves[EAP]["CMD"]["CMD"] == curves[EAP_IG]["CMD"]["CMD"]
    assert curves[EAP]["CPR"]["CPR"][0] == pytest.approx(0.25)  # the last trapezoid alone
    assert curves[EAP_IG]["CPR"]["CPR"][0] > 0.8
    assert "`input->m0`, carries 0.99 [" in " ".join(show.edges_say(values_of(kept)))


def test_intervals_hold_what_scores_agree_with(monkeypatch):
    """Exact effects are noisy: their ranks agree less with scores than those of the true effects do."""
    monkeypatch.setattr(numbers, "DRAWS", 200)
    rng = np.random.default_rng(0)
    truth = rng.standard_t(2, 46) * 0.05
    ranked = np.zeros(GRAPH.shape)
    ranked[GRAPH.edges] = truth + rng.normal(0, 0.02, 46)
    agreement = spearman(ranked[GRAPH.edges], truth)
    covered, by_percentiles = [], []
    for _ in range(40):
        noise = rng.normal(0, 0.1, (20, 46)) + rng.normal(0, 0.3, (20, 1)) * truth
        arrays = arrays_of(truth + noise, {EAP: ranked, EAP_IG: ranked}, prompts=20)
        value, low, high = numbers.edges(arrays, SETTINGS)["component graph"]["agreement"][EAP]["all"]
        covered.append(low <= agreement <= high)
        assert low <= value <= high
        redrawn, _ = numbers.redrawn_shares(arrays["effects"], arrays["full"] - 2.0, arrays["clusters"])
        again = numbers.correlations(ranked[GRAPH.edges], redrawn)
        by_percentiles.append(np.quantile(again, 0.025) <= agreement <= np.quantile(again, 0.975))
    assert sum(covered) >= 37 > sum(by_percentiles)


def test_clusters_are_the_units_of_intervals():
    """Every pair twice, as one cluster, says no more than every pair once."""
    rng = np.random.default_rng(0)
    arrays = arrays_of(rng.standard_t(2, 46) * 0.05 + rng.normal(0, 0.1, (20, 46)), prompts=20)
    repeated = arrays | {name: np.repeat(arrays[name], 2, 0) for name in ("effects", "full", "clusters")}
    repeated["circuits"] = {
        name: {kind: run | {"runs": np.repeat(run["runs"], 2, 1), "empty": np.repeat(run["empty"], 2)}
               for kind, run in runs.items()}
        for name, runs in arrays["circuits"].items()
    }  # fmt: skip
    once, twice = (numbers.edges(one, SETTINGS)["component graph"] for one in (arrays, repeated))
    assert twice["found"] == once["found"]
    assert twice["agreement"][EAP]["all"] == pytest.approx(once["agreement"][EAP]["all"], abs=1e-9)


def test_correlations_are_spearmans():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, 30) * 1.0, rng.integers(0, 9, (5, 30)) * 1.0  # with ties
    expected = [spearman(first, values) for values in second]
    np.testing.assert_allclose(numbers.correlations(first, second), expected)
    assert np.isnan(numbers.correlations(first, np.ones((2, 30)))).all()


def test_the_exact_ranking_stands_beside_the_estimates():
    found = result(np.linspace(0, 0.5, 46), {EAP: scores(1), EAP_IG: scores(2), EXACT: scores(3)})
    assert [*show.edge_circuits_table(values_of(found)).index] == [*found["agreement"], RANDOM]
    assert [*found["agreement"]] == [EAP, EAP_IG, EXACT]


def test_without_a_whole_effect_nothing_is_a_share_of_it():
    arrays = arrays_of(np.zeros(46))
    arrays["full"] = np.full(40, 1.0)
    found = numbers.edges(arrays, SETTINGS)["component graph"]
    assert found["matter"] == 0 and all(np.isnan(edge[EXACT]).all() for edge in found["strongest"].values())
    assert np.isnan(found["found"][EAP]).all() and np.isnan(found["agreement"][EAP]["all"]).all()
    values = values_of(found)
    [said] = show.edges_say(values)
    assert said == "None of 46 edges measured carry more than a hundredth of the effect for certain."
    assert [*show.edge_circuits_say(values)] == []
    assert drawn(show.FIGURE.parts["edge_circuits"], values) is not None
    assert show.edge_circuits_table(values).shape == (3, 4)


SMALL = {"prompts": 8, "edge_pairs": 8, "exact_edges": 100, "untrained_control": False}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A small measurement on the embedded model, and the folder of its records."""
    folder = tmp_path_factory.mktemp("edges")
    return Study("ioi_patching", folder=folder, **SMALL).arrays("edges"), folder


def test_edges_of_the_embedded_model(measured):
    arrays, _ = measured
    assert arrays["graph"] == [4, 8, False] and arrays["effects"].shape == (8, 100)
    assert [*arrays["circuits"]] == [EAP, EAP_IG, "random 1", "random 2"]
    first, second = (scored["CPR"]["sizes"] for scored in [*arrays["circuits"].values()][2:])
    assert not np.array_equal(first, second)
    for by_ranking in arrays["circuits"].values():
        for run in by_ranking.values():  # the whole model is the last circuit
            np.testing.assert_allclose(run["runs"][-1], arrays["full"], atol=1e-4)
    found = numbers.edges(arrays, SETTINGS)["component graph"]
    largest = max(found["strongest"], key=lambda name: abs(found["strongest"][name][EXACT].value))
    assert largest.endswith("->logits") and found["drawn"] == 100


def test_exact_effects_rank_edges_on_pairs_on_which_they_are_not_judged(tmp_path):
    """They once ranked edges on the pairs on which circuits ran, which no other score had seen."""
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    toy = architectures.build("gpt2", vocab_size=len(tokenizer), max_position_embeddings=64)
    given = Model.given(toy, tokenizer, "given:toy")
    settings = {"prompts": 8, "edge_pairs": 4, "held_out": True, "untrained_control": False}
    study = Study("ioi_patching", given, folder=tmp_path, **settings)
    arrays = study.arrays("edges")
    graph = ComponentGraph(*arrays["graph"])
    assert len(arrays["drawn"]) == graph.size and [*arrays["means"]] == [EAP, EAP_IG, EXACT]
    assert [*arrays["circuits"]] == [EAP, EAP_IG, EXACT, "random 1", "random 2"]
    scored = measure._exact_effects(study, measure.name_pairs(study, prompts=4), arrays["drawn"])["effects"].mean(0)
    assert not np.allclose(scored, arrays["effects"].mean(0))
    np.testing.assert_allclose(arrays["means"][EXACT][graph.edges], scored, atol=1e-6)
    found = study.numbers("edges")["component graph"]
    assert set(found["agreement"]) == set(found["found"]) == {EAP, EAP_IG, EXACT}


def test_effects_of_edges_do_not_depend_on_blocks(measured, monkeypatch, tmp_path):
    arrays, _ = measured
    for name, size in (("EDGES", 7), ("CIRCUITS", 3), ("SCORED", 3)):
        monkeypatch.setattr(measure, name, size)
    again = Study("ioi_patching", folder=tmp_path, **SMALL).arrays("edges")
    for name, means in arrays["means"].items():
        np.testing.assert_allclose(again["means"][name], means, atol=1e-5)
    np.testing.assert_allclose(again["effects"], arrays["effects"], atol=1e-4)


def test_everything_is_loaded_without_a_model(measured):
    arrays, folder = measured
    never = Model("embedded", loader=lambda: pytest.fail("the model was loaded"))
    loaded = Study("ioi_patching", never, folder=folder, **SMALL).arrays("edges")
    np.testing.assert_array_equal(loaded["effects"], arrays["effects"])


def test_a_class_that_cannot_be_taken_apart_says_so_and_goes_on(tmp_path, monkeypatch):
    reason = "Toy: what layer 1 adds to the stream is no plain sum of two parts"

    def refuse(_):
        raise UnsupportedModel(reason)

    monkeypatch.setattr(measure, "graph_of", refuse)
    study = Study("ioi_patching", prompts=8, untrained_control=False, folder=tmp_path)
    values = values_of({}) | study.numbers("edges") | study.numbers("paths")
    assert values["component graph"] == values["paths"] == {"refused": reason}
    assert [*show.edges_say(values)] == [f"edges: {reason}"]
    assert [*show.paths_say(values)] == [f"paths: not measured, {reason}"]
    for part in ("edge_circuits", "paths", "diagram"):
        assert drawn(show.FIGURE.parts[part], values) is None
    assert show.edges_table(values).empty and show.edge_circuits_table(values).empty
    never = study.replace(model=Model("embedded", loader=lambda: pytest.fail("the model was loaded")))
    assert never.numbers("edges") == study.numbers("edges")
