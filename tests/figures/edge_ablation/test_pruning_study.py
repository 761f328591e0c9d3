"""Pruning as a study: it goes on where it stopped, needs no model the second time, and finds what is planted."""

import json
import weakref

import numpy as np
import pytest

from tests.unloaded import unloaded
from util.edges.edge import Edge, type_pairs
from util.edges.states import Store
from util.figures.controls import planted_control
from util.figures.edge_ablation import numbers, runs
from util.figures.edge_ablation.runs import LookUp, Run, units_left
from util.figures.edge_ablation.show import FIGURE
from util.models import planted
from util.show import files
from util.study.study import Study

FEW = {"prompts": 4, "k": 3}
ROUND = 0.4  # the share that goes in a round


def study_in(folder, model, redo=False, **settings):
    options = {"donor_seeds": (0, 1), "untrained_control": False, **FEW, **settings}
    return Study("edge_ablation", model, folder=folder, redo=redo, **options)


def pruning_in(folder, model, redo=False):
    study = study_in(folder, model, redo, per_round=ROUND, random_circuits=3, search_prompts=4)
    return study, runs.draws(study)


def test_heads_then_edges_and_a_second_time_without_a_model(embedded, tmp_path):
    study, draws = pruning_in(tmp_path, embedded)
    heads, edges = units_left(study, draws).values()
    for left in (heads, edges):
        assert left["result"] < left["units"] and len(left["random"]) == 3
        assert left["pruned"]["right"].shape == (2, 4) and left["random"][0]["right"].shape == (1, 4)
    assert heads["units"] == 4 * 8 * 6 and edges["units"] < 4 * 8 * 31
    search = runs.runs_to_prune(study, draws)[1]
    units = runs.all_units(search)
    alive = {*runs.pruned(search, "head", units, runs.HEADS_SHARE, ROUND).result.names("head")}
    living = runs.before_edges(search, units, ROUND).names("edge")
    assert {f"{name.partition(' ')[0]} {Edge.of(name.partition(' ')[2]).target}" for name in living} <= alive
    again = units_left(unloaded(study), draws)
    assert [*map(numbers.pruned, again.values())] == [*map(numbers.pruned, (heads, edges))]
    whole = runs.pruned(search, "edge", units, 0.9, ROUND)
    assert whole.units_left[0] == 4 * 8 * 31


def test_values_of_a_model_that_answers_nothing_say_why(output):
    wrong = {"query": np.arange(20), "right": np.zeros((1, 20), bool)}
    left = {"units": 10, "whole": wrong, "pruned": wrong, "result": 4, "random": [wrong] * 2}
    values = numbers.pruning({"copying": {"head": left, "edge": left}}, None)
    file = files.save_values(values, "edge_ablation", "a model")
    reasons = json.loads(file.read_text())["undefined"]
    assert "pruning: by_task: copying: head: explained: 4" in reasons
    assert all(reason.startswith("a share of ") for reason in reasons.values())
    assert next(iter(FIGURE.parts["pruning"].says(files.read_values(file)))) == ""


def test_what_donors_of_one_task_leave_is_not_kept_beside_those_of_the_next(embedded, tmp_path, monkeypatch):
    kept: list[weakref.ref[Store]] = []

    def store():
        assert not any(ref() for ref in kept)
        made = Store()
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(runs, "Store", store)
    settings = {"tasks": ["capitalization"], "per_round": 0.6, "random_circuits": 2, "search_prompts": 6}
    study_in(tmp_path, embedded, corruptions=[1], **settings).arrays("pruning")
    assert len(kept) == 2


def test_measured_again_every_circuit_is_scored_once(embedded, tmp_path, monkeypatch):
    scores, done = runs.token_types.scores, list[str]()

    def watched(net, groups, circuit, *rest):
        done.append(circuit.digest)
        return scores(net, groups, circuit, *rest)

    monkeypatch.setattr(runs.token_types, "scores", watched)
    units_left(*pruning_in(tmp_path, embedded, redo=True))
    assert len(done) == len({*done}) > 4


@pytest.mark.slow
def test_planted_edges_are_those_that_are_left(tmp_path):
    """The look-up needs three kinds of edges in one head each; random prunings of that size lose the answers."""
    made, truth = planted_control(planted.lookup, {})
    study = study_in(tmp_path, made)
    run = Run(study, LookUp())
    units = runs.all_units(run)
    found = runs.pruned(run, "edge", units, 1.0, 0.2)
    left = found.result.names("edge")
    assert found.accuracy[-2] == 1 > found.accuracy[-1] and len(left) <= 2 * len(truth.edges)
    kinds = {Edge.of(name.partition(" ")[2]) for name in left}
    assert kinds >= {*type_pairs([Edge(*edge) for edge in truth.edges])}
    random = runs.at_random(run, "edge", units, found.result, 8)
    drawn_right = [runs.circuit_answer(run, circuit)["right"].mean() for circuit in random]
    assert len(drawn_right) == 8 and max(drawn_right) < 0.5
