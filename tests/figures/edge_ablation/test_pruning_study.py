"""Pruning as a study: it goes on where it stopped, is drawn without a model, and takes what earlier rounds gave."""

import json
from dataclasses import replace

import numpy as np
import pytest

from util.edges.ablation import Ablation
from util.edges.edge import Edge, type_pairs
from util.figures import planted_controls
from util.figures.edge_ablation import configs as edge_configs
from util.figures.edge_ablation import pruning_study
from util.figures.edge_ablation.configs import Config
from util.figures.edge_ablation.pruning_study import PruningStudy
from util.figures.edge_ablation.study import LookUp, Study
from util.models import planted
from util.records.model import Model

FEW = {"task": "capitalization", "prompts": 4, "k": 3}


@pytest.fixture(scope="module")
def model():
    return Model("embedded", device="cpu", verbose=False)


def never():
    raise AssertionError("nothing is to be loaded")


MISSING = Model("embedded", loader=never)


def study_in(folder, model, **changes):
    options = {"per_round": 0.4, "random": 3, "points": 4, **changes}
    return PruningStudy(Study(model, **FEW, donor_seeds=(0, 1), folder=folder), **options)


def same(one, two):
    assert one.check_lines() == two.check_lines() and one.kept == two.kept
    assert json.dumps(one.values()) == json.dumps(two.values())


def test_heads_then_edges_and_a_second_time_without_a_model(model, tmp_path):
    study = study_in(tmp_path, model)
    heads, edges = study.heads(), study.edges()
    for curve in (heads, edges):
        assert curve.left[0] == curve.units and [*curve.left] == sorted(curve.left, reverse=True)
        assert curve.result in curve.rows and len(curve.kept) == curve.result < curve.units
        right = dict(zip(curve.left, curve.search, strict=True))[curve.result]
        assert right >= curve.floor and len(curve.random) == 3 and sum(curve.survivors().values()) == curve.result
        assert curve.rows[curve.result]["right"].shape == (2, 4) and curve.random[0]["right"].shape == (1, 4)
        assert curve.overlap(curve) == 1 and len(curve.table()) == len(curve.rows) and curve.lines() and curve.figure()
    assert heads.units == 4 * 8 * 6 and edges.units < 4 * 8 * 31
    alive = {*map(str, study_kept(study))}
    ends = (f"{name.partition(' ')[0]} {Edge.of(name.partition(' ')[2]).target}" for name in edges.kept)
    assert all(name in alive for name in ends)
    again = study_in(tmp_path, MISSING)
    same(again.heads(), heads)
    same(again.edges(), edges)
    assert study.edges(after_heads=False).units == 4 * 8 * 31


def study_kept(study):
    circuit = study.heads_before_edges
    return map(str, circuit.heads.of(circuit.living_heads))


def test_a_run_that_was_interrupted_goes_on(model, tmp_path, monkeypatch):
    whole = study_in(tmp_path / "whole", model).heads()
    scores, done = pruning_study.token_types.scores, []

    def breaks(*arguments):
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt
        return scores(*arguments)

    monkeypatch.setattr(pruning_study.token_types, "scores", breaks)
    with pytest.raises(KeyboardInterrupt):
        study_in(tmp_path / "parts", model).heads()
    monkeypatch.setattr(pruning_study.token_types, "scores", lambda *a: done.append(1) or scores(*a))
    same(study_in(tmp_path / "parts", model).heads(), whole)
    assert len(done) == len(whole.left) + 1


def test_keep_lists_and_files_of_scores_replace_what_is_measured(model, tmp_path, monkeypatch):
    study = study_in(tmp_path, model)
    found = study.pruned("head", study.first, 0.9)
    files = [str(file) for file in study.write_scores(tmp_path / "files", found)]
    keep = found.units_left[1:]
    assert len(files) == len(keep)
    by_list = study_in(tmp_path, model, keep=keep)
    assert [one.circuit.digest for one in by_list.pruned("head", by_list.first, 0.9).rounds] == [
        one.circuit.digest for one in found.rounds
    ]
    monkeypatch.setattr(pruning_study.token_types, "scores", None)  # nothing is scored
    given = study_in(tmp_path / "other", model, keep=keep, score_files=files)
    rounds = given.pruned("head", given.first, 0.9).rounds
    assert [one.circuit.digest for one in rounds] == [one.circuit.digest for one in found.rounds]
    assert [one.accuracy for one in rounds] == [one.accuracy for one in found.rounds]
    wrong = study_in(tmp_path / "other", model, keep=keep[:2], score_files=files[1:3])
    with pytest.raises(ValueError, match="measured in the circuit"):
        wrong.pruned("head", wrong.first, 0.9)
    with pytest.raises(ValueError, match="192 head units; the circuit has 992 edge units"):
        given.pruned("edge", given.first, 0.9)


def test_edges_that_are_removed_beforehand_are_no_units(model, tmp_path):
    study = study_in(tmp_path, model, start=Ablation(removed=("CONTEXT", "TOQUERY")))
    curve = study.edges(after_heads=False)
    assert curve.units == 4 * 8 * (31 - 16 - 4)
    assert not any("earlier" in kind for kind in curve.survivors())
    whole = study.study.answers({"AGG": study.start})["AGG"]  # nothing pruned yet: the ablation itself
    row = study.record(study.study, study.first).data
    np.testing.assert_allclose(row["log_prob"], whole["log_prob"], atol=1e-4)


def test_planted_edges_are_those_that_are_left(tmp_path):
    """The look-up needs three kinds of edges in one head each; random prunings of that size lose the answers."""
    made, truth = planted_controls.planted_control(planted.lookup, {})
    study = PruningStudy(LookUp(made, k=6, prompts=12, donor_seeds=(0,), folder=tmp_path), per_round=0.2, random=8)
    found = study.pruned("edge", study.first, 1.0)
    left = [str(unit) for unit in found.result.edges.of(found.result.living_edges)]
    assert found.passing[-1].accuracy == 1 and found.stopped and len(left) <= 2 * len(truth.edges)
    kinds = {Edge.of(name.partition(" ")[2]) for name in left}
    assert kinds >= {*type_pairs([Edge(*edge) for edge in truth.edges])}
    drawn = [
        study.answers(study.study, one)["right"].mean() for one in study.at_random("edge", study.first, found.result)
    ]
    assert len(drawn) == 8 and max(drawn) < 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "lineal"}, "method = 'lineal'"),
        ({"reduce": "abs"}, "reduce = 'abs'"),
        ({"steps": 0}, "steps = 0"),
        ({"per_round": 0}, "per_round = 0"),
        ({"keep": [3], "score_files": ["a", "b"]}, "2 files for 1 entries of keep"),
        ({"score_files": ["a"]}, "1 files for 0 entries"),
        ({"keep": [3], "score_files": ["/none/a"]}, "there is no file '/none/a'"),
        ({"start": Ablation(removed=("AGG",), mode="knockout")}, "nothing else goes with pruning"),
    ],
)
def test_wrong_settings_are_refused_before_a_model_is_loaded(changes, words):
    with pytest.raises(ValueError, match=words):
        PruningStudy(Study(MISSING, **FEW), **changes)
    with pytest.raises(ValueError, match="corruption 0"):
        PruningStudy(Study(MISSING, **FEW, corruptions=(1,)))


# ------------------------------------------------------------------------------------------------ from JSON


def test_a_config_writes_score_files_that_the_next_one_takes(model, tmp_path):
    pruning = {"per_round": 0.5, "start": {"removed": ["TOQUERY"]}}
    config = Config("prune_heads", FEW, random=2, donor_seeds=(0, 1), pruning=pruning, out_dir=str(tmp_path / "a"))
    found = edge_configs.run(config, model, tmp_path)
    left, said = found["pruning"]["left"], found["pruning"]
    assert left[0] == 192 and len(said["kept"]["head"]) in left and len(said["kept"]["edge"]) == 992 - 4 * 32
    assert [*found["results"]] == ["FULL", "pruned", "random 1", "random 2"]
    files = [str(tmp_path / "a" / f"head_scores_{number}.json") for number in range(len(left) - 1)]
    other = replace(config, pruning={**pruning, "keep": left[1:], "score_files": files}, out_dir=str(tmp_path / "b"))
    again = edge_configs.run(other, model, tmp_path)
    assert again["pruning"]["left"] == left and again["pruning"]["accuracy"] == said["accuracy"]
    scored = edge_configs.run(Config("scores", FEW, pruning={"start": pruning["start"]}), model, tmp_path)
    of_file = json.loads((tmp_path / "a" / "head_scores_0.json").read_text())
    assert scored["scores"]["head"] == of_file["scores"] and of_file["method"] == "local_exact"
    values = [*scored["scores"]["edge"].values()]
    assert len(values) == 992 - 4 * 32 and values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"action": "search", "pruning": {"method": "linear"}}, "for no other action"),
        (
            {"action": "scores", "pruning": {"metod": "linear"}},
            "unknown field of pruning 'metod', did you mean 'method'",
        ),
        ({"action": "scores", "pruning": {"method": "l"}}, "method = 'l'"),
        ({"action": "prune_edges", "pruning": {"after_heads": 1}}, "after_heads = 1: give true or false"),
        ({"action": "prune_edges", "pruning": {"start": {"remove": []}}}, "start: its fields are those of Ablation"),
        ({"action": "prune_edges", "request": {"corruptions": [1]}}, "read from corruption 0"),
        ({"action": "prune_heads", "pruning": {"keep": [-1]}}, "keep.0 = -1"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(given, words, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(ValueError) as caught:
        edge_configs.load(tmp_path / "config.json")
    assert words in str(caught.value)
