"""Planted IOI circuits as edges of the component graph: which method finds which."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests import architectures
from util.engine.components import blocks_of
from util.engine.handshake import prepare
from util.figures.ioi_patching.planted_edges import planted_edges
from util.figures.ioi_patching.study import planted_ioi
from util.models import planted
from util.scores.planted import BACKUP, COPIER, DUPLICATE, METHODS, MOVER, Recovery, Route, ioi_circuit

ATTENTION = [Route("input", DUPLICATE, "q"), Route("input", DUPLICATE, "k"), Route(DUPLICATE, MOVER, "k")]
LISTENING = Route(DUPLICATE, COPIER, "k")
LINEAR = [Route("input", MOVER, "v"), Route(MOVER, "logits")]
FIRST_ORDER = ("EAP", "EAP-IG inputs", "EAP-IG activations")


@pytest.fixture(scope="module", params=["plain", "llama", "two copies"])
def recovery(request, tmp_path_factory):
    """Two models each, whose heads play other roles."""
    options = {"plain": {}, "llama": {"family": "llama"}, "two copies": {"copies": 2}}
    folder = tmp_path_factory.mktemp("records")
    return planted_edges("abc", prompts=2, seeds=range(2), folder=folder, **options[request.param])


@pytest.fixture(scope="module")
def with_backup(tmp_path_factory):
    return planted_edges("abc", prompts=2, seeds=range(2), folder=tmp_path_factory.mktemp("records"), backup=True)


def test_exact_scores_find_the_circuit_and_nothing_else(recovery):
    assert recovery.effective == [Route("input", DUPLICATE, "q"), Route("input", DUPLICATE, "k"),
        Route("input", MOVER, "v"), LISTENING, Route(DUPLICATE, MOVER, "k"), Route(MOVER, "logits")]  # fmt: skip
    assert recovery.found("exact") == recovery.effective
    assert recovery.auroc("exact").value == recovery.at_known_size("exact").value == 1
    for circuit, scores, whole in zip(recovery.circuits, recovery.scores[0], recovery.whole, strict=True):
        known, others = circuit.edges, circuit.compared & ~circuit.edges
        copies = len(circuit.routes[LISTENING])
        assert known.sum() == 6 * copies
        assert np.abs(scores[others]).max() < 0.02 * whole
        assert scores[known].min() > 0.25 * whole / copies


def test_saturated_attention_hides_what_queries_and_keys_read_from_first_order_scores(recovery):
    """The negative control: these edges carry all of the effect, and their gradients are all but 0."""
    for method in ("EAP", "EAP-IG inputs"):
        for route in ATTENTION:
            assert abs(recovery.share(method, route).value) < 0.03 < 0.5 < recovery.share("exact", route).value
            assert route not in recovery.found(method)
    assert recovery.auroc("EAP").value < 0.9 and recovery.at_known_size("EAP").value <= 0.5
    assert recovery.auroc("EAP-IG inputs").value < 0.9
    assert all(route in recovery.found("EAP") for route in LINEAR)


def test_what_rounding_leaves_of_nothing_ranks_no_edge(recovery):
    noise = np.random.default_rng(0).normal(0, 1e-8, recovery.scores.shape) * recovery.whole[:, None, None]
    quiet = np.where(np.abs(recovery.scores) < 1e-6 * np.abs(recovery.whole)[:, None, None], 0, recovery.scores)
    loud = replace(recovery, scores=np.where(quiet == 0, noise, quiet))
    for method in METHODS:
        assert loud.auroc(method) == recovery.auroc(method)
        assert loud.at_known_size(method) == recovery.at_known_size(method)


def test_moving_one_sublayer_at_a_time_sees_one_saturated_softmax_but_not_two(recovery):
    found = recovery.found("EAP-IG activations")
    assert Route(DUPLICATE, MOVER, "k") in found and all(route in found for route in LINEAR)
    assert not {Route("input", DUPLICATE, "q"), Route("input", DUPLICATE, "k")} & set(found)
    assert recovery.auroc("EAP").value <= recovery.auroc("EAP-IG activations").value < 1


def test_with_noise_exact_scores_still_find_the_circuit(tmp_path):
    recovery = planted_edges("abc", prompts=2, seeds=range(2), folder=tmp_path, noise=0.05)
    assert recovery.found("exact") == recovery.effective
    assert recovery.auroc("exact").value == recovery.at_known_size("exact").value == 1
    for method in ("EAP", "EAP-IG inputs"):
        assert recovery.auroc(method).value < 1
        assert abs(recovery.share(method, Route(DUPLICATE, MOVER, "k")).value) < 0.03


def test_a_backup_hides_the_mover_and_is_exempt_by_name(with_backup):
    silent = with_backup.circuits[0].silent
    assert {route for route in silent if BACKUP in route} == {
        Route(DUPLICATE, BACKUP, "k"), Route("input", BACKUP, "v"), Route(BACKUP, "logits"),
    }  # fmt: skip
    assert silent[Route(DUPLICATE, MOVER, "k")] == "the backup does the mover's work"
    for route in silent:
        expected = 0.2 if COPIER in route else 0.03  # names have codes that are not quite orthogonal
        assert abs(with_backup.share("exact", route).value) < expected, route
    # to tell the backup that the mover is not done makes it work, too
    for route in (Route(DUPLICATE, MOVER, "v"), Route(MOVER, BACKUP, "q")):
        assert with_backup.share("exact", route).value < -0.8
        assert abs(with_backup.share("EAP", route).value) < 0.03
    assert with_backup.auroc("exact").value == with_backup.at_known_size("exact").value == 1
    assert with_backup.auroc("EAP").value < 0.8


@pytest.mark.parametrize("corruption", ["s2_swap", "s2_rand"])
def test_what_both_prompts_have_in_common_is_silent(corruption, tmp_path):
    recovery = planted_edges(corruption, prompts=2, seeds=range(2), folder=tmp_path)
    assert len(recovery.effective) == {"s2_swap": 2, "s2_rand": 5}[corruption]
    for route in recovery.circuits[0].routes:
        exact = recovery.share("exact", route).value
        assert (exact > 0.4) == (route in recovery.effective)
        assert exact > 0.4 or abs(exact) < 0.2
    assert recovery.auroc("exact").value == recovery.at_known_size("exact").value == 1
    # names alone move along the edges that a swap changes: there first-order scores are right
    assert (recovery.auroc("EAP").value == 1) == (corruption == "s2_swap")


def test_what_is_said_of_methods(with_backup):
    assert list(with_backup.table().index) == list(METHODS)
    assert str(LISTENING) in with_backup.table().loc["EAP", "not seen"]
    assert len(with_backup.routes_table()) == 15
    assert with_backup.lines()[0].startswith("planted IOI, backup True, abc: exact sees 7 of 7 routes; AUROC 1.00")
    values = with_backup.values()["exact"]
    assert values["AUROC"].value == 1 and set(values["routes"]) == set(with_backup.routes_table().index)


def test_other_models_and_corruptions_are_refused():
    with pytest.raises(ValueError, match="has the roles duplicate token, copier and mover, not previous token"):
        ioi_circuit(planted.induction(50), "abc")
    truth = planted_ioi()[1]
    with pytest.raises(ValueError, match="silent routes are known of s2_swap"):
        ioi_circuit(truth, "names_swap")
    circuit = ioi_circuit(truth, "abc")
    assert circuit.nodes.sum() == 5  # input, three heads, logits
    with pytest.raises(ValueError, match="an interval needs at least two"):
        Recovery((circuit,), np.zeros((4, 1, *circuit.graph.shape)), np.ones(1), "")
    with pytest.raises(ValueError, match=r"give \(4, 2, 15, 39\)"):
        Recovery((circuit, circuit), np.zeros((4, 1, *circuit.graph.shape)), np.ones(1), "")


@pytest.mark.parametrize(("name", "parallel"), [("gpt2", False), ("llama", False), ("phi", True), ("gpt_neox", None)])
def test_an_mlp_that_adds_nothing_still_reads_what_it_reads(name, parallel):
    """Planted models have such MLPs; whether they read attention's output was asked of what they put out alone."""
    model = architectures.build(name)
    prepare(model)
    expected = [block.parallel for block in blocks_of(model)]
    assert parallel is None or expected == [parallel] * 3
    silenced = architectures.build(name)
    for key, parameter in silenced.named_parameters():
        if "mlp" in key:
            torch.nn.init.zeros_(parameter)
    prepare(silenced)
    assert [block.parallel for block in blocks_of(silenced)] == expected
