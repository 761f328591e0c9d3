"""Edges of the component graph in indirect object identification: what is drawn, measured, kept and said."""

import copy
import hashlib

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests import architectures
from tests.unloaded import unloaded
from util.engine.call import UnsupportedModel
from util.figures.ioi_patching import measure, numbers, show
from util.figures.ioi_patching.numbers import EAP, EAP_IG, EXACT, drawn_edges
from util.load_model_and_data import load_tokenizer
from util.scores.exact import exact_scores
from util.scores.graph import ComponentGraph, circuits_of
from util.show.part import drawn
from util.study.model import Model
from util.study.study import Study

GRAPH = ComponentGraph(2, 2)  # 46 edges
SETTINGS, RANDOM = show.Settings(), "random 1"


def scores(seed, graph=GRAPH):
    return np.random.default_rng(seed).standard_normal(graph.shape)


def result(effects, means, full=3.0, kept=None, repeats=1):
    """The numbers of edges that were all measured: effects [E], with a little noise, of a whole effect of 1."""
    noise = np.random.default_rng(0).standard_normal((40, 46)) * 1e-3
    circuits: dict = {}
    for name, ranked in {**means, RANDOM: scores(9)}.items():
        for by, absolute in (("CPR", False), ("CMD", True)):
            chosen = circuits_of(GRAPH, ranked, absolute=absolute)
            share = np.linspace(0, 1, len(chosen)) if kept is None else kept(chosen)
            run = {"sizes": chosen.sum(axis=(1, 2)), "runs": np.repeat(2.0 + share[:, None], 40 * repeats, 1)}
            circuits.setdefault(name, {})[by] = {**run, "empty": np.full(40 * repeats, 2.0)}
    arrays = {
        "refused": "", "graph": [2, 2, False], "means": means, "drawn": np.argwhere(GRAPH.edges),
        "effects": np.repeat(effects + noise, repeats, 0), "full": np.full(40 * repeats, full),
        "clusters": np.repeat(np.arange(40), repeats), "circuits": circuits,
    }  # fmt: skip
    return numbers.edges(arrays, SETTINGS)["component graph"]


def values_of(graph):
    return {"component graph": graph, "request": {"corruption": "s2_swap"}, "model": "toy"}


# ------------------------------------------------------------------------------------------------ which are drawn


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("count", [5, 7, 23, 33, 41, 45, 46, 99])
def test_as_many_edges_are_drawn_as_asked_for(count, alike):
    """Where a band had fewer edges than a fifth, fewer were drawn in all."""
    found = drawn_edges(GRAPH, {EAP: scores(0), EAP_IG: scores(0 if alike else 1)}, count, 0)
    assert len(found) == len({tuple(edge) for edge in found}) == min(count, 46)


def test_the_edges_of_smollm2_are_drawn_as_they_always_were():
    """The highest by either score are among them; another seed draws others."""
    graph = ComponentGraph(30, 9)
    means = {name: scores(seed, graph) for seed, name in enumerate((EAP, EAP_IG))}
    found = drawn_edges(graph, means, 1000, 0)
    for ranked in means.values():
        highest = np.argsort(-np.abs(ranked[graph.edges]), kind="stable")[:200]
        assert {tuple(edge) for edge in np.argwhere(graph.edges)[highest]} <= {tuple(edge) for edge in found}
    assert not np.array_equal(drawn_edges(graph, means, 1000, 1), found)
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == "762dd734193377e1"


# ------------------------------------------------------------------------------------------------ numbers and texts


def test_edges_that_matter_are_counted_and_the_largest_is_told_with_its_estimates():
    effects, means = np.zeros(46), {EAP: scores(1), EAP_IG: np.zeros(GRAPH.shape)}
    effects[[3, 20, 40]] = 0.5, -0.2, 0.004  # the last is too small to count
    means[EAP_IG][GRAPH.edges] = effects
    found = result(effects, means)
    names = [GRAPH.name(place) for place in np.argwhere(GRAPH.edges)]
    assert (found["matter"], found["drawn"], len(found["strongest"])) == (2, 46, 10)
    for place in (3, 20):
        edge = found["strongest"][names[place]]
        assert edge[EXACT].value == pytest.approx(effects[place], abs=1e-3) and edge[EAP_IG] == effects[place]
    _, count, *_ = show.edges_say(values_of(found))
    assert count == "Two of 46 edges measured carry or oppose significantly more than a hundredth of the effect."
    assert show.edges_table(values_of(found)).index[0] == names[3]


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


def test_clusters_are_the_units_of_intervals():
    """Every pair twice, as one cluster, says no more than every pair once."""
    given = np.random.default_rng(0).standard_t(2, 46) * 0.05, {EAP: scores(1), EAP_IG: scores(2)}
    once, twice = (result(*given, repeats=repeats) for repeats in (1, 2))
    for name, edge in once["strongest"].items():
        assert twice["strongest"][name][EXACT] == pytest.approx(edge[EXACT])
    assert twice["matter"] == once["matter"] > 0
    for name, curve in once["curves"].items():
        assert twice["curves"][name]["CPR"]["CPR"] == pytest.approx(curve["CPR"]["CPR"], abs=1e-12)


def test_without_a_whole_effect_nothing_is_a_share_of_it():
    found = result(np.zeros(46), {EAP: scores(1), EAP_IG: scores(2)}, full=1.0)
    assert found["matter"] == 0 and all(np.isnan(edge[EXACT]).all() for edge in found["strongest"].values())
    values = values_of(found)
    none = "None of 46 edges measured carry or oppose significantly more than a hundredth of the effect."
    assert [*show.edges_say(values)] == ["", none] and show.edges_table(values).empty
    assert drawn(show.FIGURE.parts["edges"], values) is None


# ------------------------------------------------------------------------------------------------ measures

SMALL = {"prompts": 8, "edge_pairs": 4, "exact_edges": 20, "held_out": True, "untrained_control": False}


@pytest.fixture(scope="module")
def pair():
    tokenizer = load_tokenizer("embedded")
    return architectures.prepared("gpt2", vocab_size=len(tokenizer), max_position_embeddings=64), tokenizer


@pytest.fixture(scope="module")
def study(pair, tmp_path_factory):
    """A small measurement on a toy."""
    model, tokenizer = pair
    given = Model.given(copy.deepcopy(model).double(), tokenizer, "given:toy")
    return Study("ioi_patching", given, folder=tmp_path_factory.mktemp("edges"), **SMALL)


def test_scores_are_of_some_pairs_and_exact_effects_and_circuits_of_fresh_ones(study):
    """Exact effects once ranked edges on the pairs on which circuits ran, which no other score had seen."""
    arrays, fresh = study.arrays("edges"), measure.name_pairs(study, prompts=4, seed=1)
    assert [*arrays["circuits"]] == [EAP, EAP_IG, "random 1", "random 2"]
    first, second = (scored["CPR"]["sizes"] for scored in [*arrays["circuits"].values()][2:])
    assert not np.array_equal(first, second)
    edge = tuple(arrays["drawn"][0].tolist())
    for number, effect in enumerate(arrays["effects"][:, 0]):
        [expected] = exact_scores(study.pair[0], *fresh.batch([number]), edges=[edge])
        assert effect == pytest.approx(float(expected), abs=1e-6)
        logits = study.pair[0](fresh.batch([number])[0]).logits[0, -1, list(fresh.tokens[number].answers)]
        assert arrays["full"][number] == pytest.approx(float(logits[0] - logits[1]), abs=1e-5)
    for by_ranking in arrays["circuits"].values():
        for run in by_ranking.values():  # the whole model is the last circuit
            assert_allclose(run["runs"][-1], arrays["full"], atol=1e-4)


@pytest.mark.slow
def test_effects_of_edges_do_not_depend_on_blocks(study, monkeypatch, tmp_path):
    arrays = study.arrays("edges")
    for name, size in (("EDGES", 7), ("CIRCUITS", 3), ("SCORED", 3)):
        monkeypatch.setattr(measure, name, size)
    again = study.replace(folder=tmp_path).arrays("edges")
    for name, means in arrays["means"].items():
        assert_allclose(again["means"][name], means, atol=1e-5)
    assert_allclose(again["effects"], arrays["effects"], atol=1e-4)


def test_a_class_that_cannot_be_taken_apart_says_so_and_goes_on(tmp_path, monkeypatch):
    reason = "Toy: what layer 1 adds to the stream is no plain sum of two parts"

    def refuse(_):
        raise UnsupportedModel(reason)

    monkeypatch.setattr(measure, "model_graph", refuse)
    study = Study("ioi_patching", prompts=8, untrained_control=False, folder=tmp_path)
    values = values_of({}) | study.numbers("edges") | study.numbers("paths")
    assert values["component graph"] == values["paths"] == {"refused": reason}
    assert all(drawn(show.FIGURE.parts[part], values) is None for part in ("edges", "paths"))
    assert show.edges_table(values).empty
    assert unloaded(study).numbers("edges") == study.numbers("edges")
