"""Edges of the component graph in indirect object identification: what is drawn, measured, kept and said."""

import dataclasses
import hashlib

import numpy as np
import pytest

from tests import architectures
from util.engine.call import UnsupportedModel
from util.figures.ioi_patching import conclusions, edge_results, edges
from util.figures.ioi_patching.edge_results import EAP, EAP_IG, EXACT, EdgeScores, drawn_edges, random_rankings
from util.figures.ioi_patching.edges import EdgePairs, Edges
from util.figures.ioi_patching.results import Setting
from util.figures.ioi_patching.study import Study
from util.load_model_and_data import load_ICL_model
from util.records.model import Model
from util.scores.evaluation import Circuits, spearman
from util.scores.graph import ComponentGraph
from util.show import files

GRAPH = ComponentGraph(2, 2)  # 46 edges
SETTING = Setting("toy", "toy", "s2_swap")


def scores(seed):
    return np.random.default_rng(seed).standard_normal(GRAPH.shape)


def result(effects, exact_means=None, prompts=40):
    """A result in which every edge was measured: effects [E], with a little noise, of a whole effect of 1."""
    drawn = np.argwhere(GRAPH.edges)
    noise = np.random.default_rng(0).standard_normal((prompts, len(drawn))) * 1e-3
    full, empty = np.full(prompts, 3.0), np.full(prompts, 2.0)
    means = {EAP: scores(1), EAP_IG: scores(2)} if exact_means is None else exact_means
    curves = {}
    for absolute in (False, True):
        for name, ranked in means.items():
            circuits = Circuits.of(GRAPH, ranked, absolute=absolute)
            run = np.repeat(np.linspace(2, 3, len(circuits.shares))[:, None], prompts, 1)
            curves[name, absolute] = circuits.measured(run, full, empty)
    return EdgeScores(SETTING, GRAPH, means, drawn, effects + noise, full, empty, np.arange(prompts), curves)


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


def test_random_rankings_differ():
    ranked = random_rankings(GRAPH, 2, 0)
    assert list(ranked) == ["random 1", "random 2"] and random_rankings(GRAPH, 0, 0) == {}
    assert not np.array_equal(ranked["random 1"], ranked["random 2"])


def test_estimates_that_are_right_find_every_edge_that_matters():
    effects = np.zeros(46)
    effects[[3, 20, 40]] = 0.5, -0.2, 0.004  # the last is too small to count
    right, wrong = np.zeros(GRAPH.shape), np.zeros(GRAPH.shape)
    right[GRAPH.edges] = effects
    wrong[GRAPH.edges] = np.roll(effects, 1)
    found = result(effects, {EAP: wrong, EAP_IG: right})
    assert np.flatnonzero(found.matter).tolist() == [3, 20]
    assert (found.found[EAP].value, found.found[EAP_IG].value) == (0, 1)
    assert found.missed.tolist() == [3, 20]
    assert found.names[3] in found.edge_table(found.missed).index[0]
    assert found.exact.value[[3, 20]] == pytest.approx([0.5, -0.2], abs=1e-3)
    assert found.exact.low[3] < found.exact.value[3] < found.exact.high[3]
    assert found.agreement[EAP_IG]["all"].value > 0.2
    assert found.lines()[0] == "2 of all 46 edges carry more than a hundredth of the whole effect for certain"
    assert found.lines()[2].startswith(f"{EAP_IG}: finds 1.00 [1.00, 1.00] of them")
    assert found.values()["found"] == {EAP: (0, 0, 0), EAP_IG: (1, 1, 1)}
    assert found.finding == (
        "Share found of the 2 edges that carry more than a hundredth: "
        "EAP 0.00 [0.00, 0.00], EAP-IG inputs 1.00 [1.00, 1.00]"
    )
    assert found.setting == "toy, s2_swap, 40 fresh pairs"
    assert found.curve_finding == "Nine tenths of the effect pass through 100 % of the edges, by any absolute score"
    assert found.figure().get_suptitle().replace("\n", " ") == found.finding
    assert found.curve_figure().get_suptitle().replace("\n", " ") == found.curve_finding
    assert [*found.table().index] == [EAP, EAP_IG]
    assert found.figure().axes
    assert found.curve_figure().axes


@pytest.mark.parametrize("flipped", [False, True])
def test_one_edge_of_the_wrong_sign_decides_the_cpr_and_is_named(flipped):
    """Made-up scores: all effect passes through `input->m0`, and EAP alone has its sign wrong unless it is flipped."""
    gate = GRAPH.place("input->m0")
    right = np.abs(scores(1))
    right[gate] = 5.0
    wrong = right.copy()
    wrong[gate] = 5.0 if flipped else -5.0
    effects = np.where((np.argwhere(GRAPH.edges) == gate).all(axis=1), 0.99, 0.001)
    found = result(effects, {EAP: wrong, EAP_IG: right})
    curves = {}
    for name, ranked in found.means.items():
        for absolute in (False, True):
            circuits = Circuits.of(GRAPH, ranked, absolute=absolute)
            run = 2.0 + circuits.edges[(slice(None), *gate)]  # the whole effect is kept where the gate is
            curves[name, absolute] = circuits.measured(np.repeat(run[:, None], 40, 1), found.full, found.empty)
    stored = files.plain(dataclasses.replace(found, curves=curves).values(), 6)
    said = conclusions.deciding_edge(stored, EAP)
    assert conclusions.deciding_edge(stored, EAP_IG) == []
    assert stored["curves"][EAP]["CMD"]["CMD"] == stored["curves"][EAP_IG]["CMD"]["CMD"]
    if flipped:
        assert said == [] and stored["curves"][EAP]["CPR"]["CPR"][0] > 0.8
    else:
        assert said[0].startswith(f"One edge decides the CPR of {EAP}: `input->m0` carries 0.99 [")
        assert said[1].endswith("without it no circuit keeps more than 0.00.")
        assert stored["curves"][EAP]["CPR"]["CPR"][0] == pytest.approx(0.25)  # the last trapezoid alone


def test_intervals_hold_what_scores_agree_with(monkeypatch):
    """Exact effects are noisy: their ranks agree less with scores than those of the true effects do."""
    monkeypatch.setattr(edge_results, "DRAWS", 200)
    rng = np.random.default_rng(0)
    truth = rng.standard_t(2, 46) * 0.05
    ranked = np.zeros(GRAPH.shape)
    ranked[GRAPH.edges] = truth + rng.normal(0, 0.02, 46)
    agreement = spearman(ranked[GRAPH.edges], truth)
    covered, by_percentiles = [], []
    for _ in range(40):
        noise = rng.normal(0, 0.1, (20, 46)) + rng.normal(0, 0.3, (20, 1)) * truth
        found = result(truth + noise, {EAP: ranked, EAP_IG: ranked}, prompts=20)
        value, low, high = found.agreement[EAP]["all"]
        covered.append(low <= agreement <= high)
        assert low <= value <= high
        redrawn = edge_results._correlations(ranked[GRAPH.edges], found._redrawn[0])
        by_percentiles.append(np.quantile(redrawn, 0.025) <= agreement <= np.quantile(redrawn, 0.975))
    assert sum(covered) >= 37 > sum(by_percentiles)


def test_clusters_are_the_units_of_intervals():
    """Every pair twice, as one cluster, says no more than every pair once."""
    rng = np.random.default_rng(0)
    effects = rng.standard_t(2, 46) * 0.05 + rng.normal(0, 0.1, (20, 46))
    once = result(effects, prompts=20)
    repeated = {name: np.repeat(getattr(once, name), 2, 0) for name in ("effects", "full", "empty", "clusters")}
    twice = dataclasses.replace(once, **repeated)
    assert twice.found == once.found
    for kind, interval in once.agreement[EAP].items():
        assert twice.agreement[EAP][kind] == pytest.approx(interval, abs=1e-9), kind


def test_correlations_are_spearmans():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, 30) * 1.0, rng.integers(0, 9, (5, 30)) * 1.0  # with ties
    expected = [spearman(first, values) for values in second]
    np.testing.assert_allclose(edge_results._correlations(first, second), expected)
    assert np.isnan(edge_results._correlations(first, np.ones((2, 30)))).all()


def test_the_exact_ranking_is_told_by_its_pairs():
    found = result(np.linspace(0, 0.5, 46), {EAP: scores(1), EAP_IG: scores(2), EXACT: scores(3)})
    said = "\n".join(found.lines())
    assert "exact effects on the scored pairs: finds 0." in said
    assert "exact: rank correlation with effects as measured on" in "\n".join(found.agreement_lines())
    assert [*found.table().index] == [EAP, EAP_IG, EXACT] and [*found.values()["agreement"]] == [EAP, EAP_IG, EXACT]


@pytest.mark.filterwarnings("error")
def test_kinds_of_which_none_was_drawn_have_no_correlation():
    whole = result(np.linspace(0, 0.5, 46))
    few = whole.kinds == "q"
    found = dataclasses.replace(whole, drawn=whole.drawn[few], effects=whole.effects[:, few])
    assert np.isnan(found.agreement[EAP]["MLP"]).all() and np.isfinite(found.agreement[EAP]["q"]).all()
    assert "MLP" not in "".join(found.lines())


def test_without_a_whole_effect_nothing_is_a_share_of_it():
    found = result(np.zeros(46))
    nothing = EdgeScores(
        SETTING, GRAPH, found.means, found.drawn, found.effects, found.empty, found.full, found.clusters, found.curves
    )
    assert np.isnan(nothing.exact.value).all()
    assert not nothing.matter.any()
    assert np.isnan(nothing.found[EAP]).all()
    assert np.isnan(nothing.agreement[EAP]["all"]).all()
    assert nothing.lines() == ["0 of all 46 edges carry more than a hundredth of the whole effect for certain"]
    assert nothing.figure().axes
    assert nothing.table().shape == (2, 4)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A small measurement on the embedded model, and the folder of its records."""
    folder = tmp_path_factory.mktemp("edges")
    scored = EdgePairs("embedded", prompts=8, folder=folder)
    study = Edges(scored, scored.replace(seed=1), setting=SETTING, exact=100, random=1, steps=2)
    return study, study.measured(), folder


def test_edges_of_the_embedded_model(measured):
    study, found, _ = measured
    assert study.graph == ComponentGraph(4, 8)
    assert found.effects.shape == (8, 100)
    assert {name for name, _ in found.curves} == {EAP, EAP_IG, "random 1"}
    assert "of the 100 edges measured, which were drawn by rank from 1,519, carry more" in found.lines()[0]
    for curve in found.curves.values():  # the whole model is the last circuit
        np.testing.assert_allclose(curve.circuit[-1], curve.full, atol=1e-4)
    strongest = found.names[int(found.strongest[0])]
    assert strongest.endswith("->logits")


def test_exact_effects_rank_edges_on_pairs_on_which_they_are_not_judged(tmp_path):
    """They once ranked edges on the pairs on which circuits ran, which no other score had seen."""
    tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)[1]
    toy = architectures.build("gpt2", vocab_size=len(tokenizer), max_position_embeddings=64)
    given = Model.given(toy, tokenizer, "given:toy")
    scored = EdgePairs(given, prompts=4, held_out=True, folder=tmp_path)
    found = Edges(scored, scored.replace(seed=1), setting=SETTING, random=1, steps=1).measured()
    assert isinstance(found, EdgeScores) and len(found.drawn) == found.graph.size
    assert [*found.means] == [EAP, EAP_IG, EXACT]
    assert [*dict.fromkeys(name for name, _ in found.curves)] == [EAP, EAP_IG, EXACT, "random 1"]
    on_scored = scored.exact_effects(found.drawn).data["effects"].mean(0)
    assert not np.allclose(on_scored, found.effects.mean(0))
    np.testing.assert_allclose(found.means[EXACT][found.graph.edges], on_scored, atol=1e-6)
    assert set(found.agreement) == set(found.found) == {EAP, EAP_IG, EXACT}


def test_effects_of_edges_do_not_depend_on_blocks(measured, monkeypatch, tmp_path):
    study, found, _ = measured
    monkeypatch.setattr(edges, "EDGES", 7)
    monkeypatch.setattr(edges, "CIRCUITS", 3)
    monkeypatch.setattr(edges, "PROMPTS", 3)
    scored = EdgePairs("embedded", prompts=8, folder=tmp_path)
    again = Edges(scored, scored.replace(seed=1), setting=SETTING, exact=100, random=1, steps=2).measured()
    assert isinstance(again, EdgeScores)
    for name, scores_ in found.means.items():
        np.testing.assert_allclose(again.means[name], scores_, atol=1e-5)
    np.testing.assert_allclose(again.effects, found.effects, atol=1e-4)


def test_everything_is_loaded_without_a_model(measured, monkeypatch):
    study, found, folder = measured
    scored = EdgePairs("embedded", prompts=8, folder=folder)
    again = Edges(scored, scored.replace(seed=1), setting=SETTING, exact=100, random=1, steps=2)
    monkeypatch.setattr(EdgePairs, "pair", property(lambda _: pytest.fail("the model was loaded")))
    loaded = again.measured()
    assert isinstance(loaded, EdgeScores)
    assert (loaded.effects == found.effects).all()


def test_edges_are_judged_on_fresh_pairs():
    scored = EdgePairs("embedded", prompts=8)
    with pytest.raises(ValueError, match="give fresh pairs, of another seed"):
        Edges(scored, scored, setting=SETTING)
    with pytest.raises(ValueError, match="steps = 0"):
        Edges(scored, scored.replace(seed=1), setting=SETTING, steps=0)


def test_a_class_that_cannot_be_taken_apart_says_so_and_goes_on(tmp_path, monkeypatch):
    reason = "Toy: what layer 1 adds to the stream is no plain sum of two parts"

    def refuse(_):
        raise UnsupportedModel(reason)

    monkeypatch.setattr(edges, "graph_of", refuse)
    study = Study("embedded", prompts=8, edge_pairs=4, folder=tmp_path)
    found = study.edges()
    assert found.lines() == [f"edges: {reason}"]
    assert found.figure() is found.curve_figure() is None
    assert found.table().empty and found.edge_table().empty
    assert found.values() == {"refused": reason}
    monkeypatch.setattr(EdgePairs, "pair", property(lambda _: pytest.fail("the model was loaded")))
    assert Study("embedded", prompts=8, edge_pairs=4, folder=tmp_path).edges() == found


@pytest.mark.parametrize(("name", "value"), [("edge_pairs", 1), ("exact_edges", 3)])
def test_too_few_edges_or_pairs_are_refused_before_a_model_is_loaded(name, value):
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        Study("no such model", **{name: value})
