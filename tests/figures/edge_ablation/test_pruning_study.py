"""Pruning as a study: it goes on where it stopped, is drawn without a model, and takes what earlier rounds gave."""

import json
import shutil
import weakref

import numpy as np
import pytest

from util.edges.ablation import Ablation
from util.edges.edge import Edge, type_pairs
from util.edges.splicing import Store
from util.figures import planted_controls
from util.figures.edge_ablation import configs as edge_configs
from util.figures.edge_ablation import pruning_study
from util.figures.edge_ablation.configs import Config
from util.figures.edge_ablation.plan import Plan
from util.figures.edge_ablation.pruning_results import PruningByTask, PruningCurve
from util.figures.edge_ablation.pruning_study import PruningStudy
from util.figures.edge_ablation.results import Setting
from util.figures.edge_ablation.study import LookUp, Study
from util.models import planted
from util.records.model import Model
from util.show import files

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
    assert one.check_line() == two.check_line() and one.kept == two.kept
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
        assert sum(map(sum, curve.by_layer().values())) == curve.result == sum(curve.survivors().values())
        assert all(len(kept) == curve.result and {*kept} != {*curve.kept} for kept in curve.random_kept)
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


def curve_of(kept, random_kept, explained=(1.0, 0.95, 0.85, 0.95)):
    """A curve of four rounds, 10, 6, 4 and 2 units left, with accuracies of 20 prompts and one draw of donors."""
    row = {right: {"query": np.arange(20), "right": (np.arange(20) < 20 * right)[None]} for right in (1.0, *explained)}
    rows = {left: row[right] for left, right in zip((10, 6, 4, 2), explained, strict=True)}
    setting = Setting("a model", "copying", 3, 20, (0,))
    random = tuple(row[explained[2]] for _ in random_kept)
    left, search = (10, 6, 4, 2), (1.0, 0.9, 0.9, 0.4)
    sizes = (3, 10, left, search, 0.9, row[1.0], rows, 4)
    return PruningCurve(
        setting, "head", {"search_prompts": 40}, *sizes, tuple(kept), random, tuple(map(tuple, random_kept))
    )


def test_what_two_results_share_stands_beside_what_random_ones_share():
    a, b, c, d, e = (f"L{layer}H0 {kind}" for layer, kind in ((0, "x"), (1, "x"), (2, "y"), (2, "x"), (2, "n")))
    one = curve_of([a, b, c, d], [[a, b, c, e], [a, c, d, e], [b, c, d, e]])
    other = curve_of([a, b, c, e], [[a, b, c, e], [a, c, d, e], [b, c, d, e]])
    # draws of one number are one set here, and say nothing of chance: each meets the next one
    assert one.overlap(other) == (3 / 5, [3 / 5] * 3)
    assert {kind: counts.tolist() for kind, counts in one.by_layer().items()} == {"x": [1, 1, 1], "y": [0, 0, 1]}
    both = PruningByTask({"copying": {"head": one, "edge": one}, "other": {"head": other, "edge": other}})
    assert both.overlaps()["head"] == {"copying, other": (3 / 5, [3 / 5] * 3)}
    assert "0.60 of their head units are shared; random prunings of these sizes 0.60" in both.overlap_lines()[0]
    assert both.table().loc[("copying", "head units"), "left"] == "4 (40.0%)"


def test_one_random_pruning_says_nothing_of_chance():
    one = curve_of(["L0H0 x"], [["L1H0 x"]])
    assert one.overlap(curve_of(["L0H0 x"], [["L1H0 x"]])) == (1, [])


def test_values_of_a_model_that_answers_nothing_say_why(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    nothing = curve_of([], [[], []], explained=(0.0, 0.0, 0.0, 0.0))
    nothing.whole["right"][:] = False
    both = PruningByTask({task: {"head": nothing, "edge": nothing} for task in ("copying", "person_sport")})
    file = files.save_values({"pruning": both.values()}, "edge_ablation", "a model")
    reasons = json.loads(file.read_text())["undefined"]
    assert "pruning: by_task: copying: head: explained: 10" in reasons
    for place, reason in reasons.items():
        assert reason.startswith("a share of ") and ("units" in reason) == ("overlap" in place), place
    assert both.finding is None
    assert "are left: the model answers nothing" in both.figure().axes[0].get_title()


@pytest.mark.parametrize(
    ("explained", "fewest"),
    [((1, 0.95, 0.85, 0.95), 6), ((1, 0.9, 0.9, 0.9), 2), ((0.85, 0.95, 1, 1), None), ((0.9, 0.85, 0.85, 0.85), 10)],
)
def test_the_fewest_units_that_keep_nine_tenths_are_those_before_the_first_fall(explained, fewest):
    assert curve_of(["L0H0 x"], [], explained).fewest() == fewest


def test_all_that_a_notebook_shows_of_pruning(model, tmp_path, monkeypatch):
    study = Study(model, **FEW, donor_seeds=(0, 1), folder=tmp_path, two_pass=True)
    few_rounds = {"per_round": 0.6, "random_circuits": 2, "search_prompts": 6}
    tasks = {"tasks": ["capitalization"], "pruned_tasks": ["copying", "capitalization"]}
    kept: list[weakref.ref[Store]] = []

    def store():
        assert not any(ref() for ref in kept), "what donors of one task leave is kept beside those of the next"
        made = Store()
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(pruning_study, "Store", store)
    found = Plan(study, **tasks, ambiguous_counts=[0], corruptions=[1], **few_rounds).pruning()
    assert len(kept) == 2 and [(task, sort) for task, both in found.by_task.items() for sort in both] == PANELS
    copying = found.by_task["copying"]["head"]
    assert copying.settings["search_prompts"] == 6 and copying.rows[copying.result]["right"].shape == (2, 4)
    assert len(found.table()) == len(found.check_lines()) == 4 and len(found.lines()) == 4 * 4 + 2
    titles = [f"{letter}) {task}, {sort} units" for letter, (task, sort) in zip("ABCD", PANELS, strict=True)]
    assert sorted(ax.get_title() for ax in found.survivors_figure().axes) == titles
    panels = [ax.get_title().split("\n") for ax in found.figure().axes]
    assert [title for title, _ in panels] == titles
    assert panels[0][1] == f"{copying.result} of 192 keep {copying.explained()[copying.result]}"
    assert json.loads(json.dumps(found.values()))["by_task"]["copying"]["head"]["result"] == copying.result


PANELS = [("copying", "head"), ("copying", "edge"), ("capitalization", "head"), ("capitalization", "edge")]


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


def test_measured_again_every_circuit_is_scored_once(model, tmp_path, monkeypatch):
    scores, done = pruning_study.token_types.scores, list[str]()

    def watched(net, groups, circuit, *rest):
        done.append(circuit.digest)
        return scores(net, groups, circuit, *rest)

    monkeypatch.setattr(pruning_study.token_types, "scores", watched)
    pruner = study_in(tmp_path, model)
    pruner.replaced(study=pruner.study.replace(redo=True)).both()
    assert len(done) == len({*done}) > 4


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


def config_of(given):
    return Config.model_validate_json(json.dumps(given))


def test_a_config_writes_score_files_that_the_next_one_takes(model, tmp_path):
    pruning = {"per_round": 0.5, "start": {"removed": ["TOQUERY"]}}
    given = {"action": "prune_heads", "request": FEW, "random": 2, "donor_seeds": [0, 1]}
    config = config_of({**given, "pruning": pruning, "out_dir": str(tmp_path / "a")})
    found = edge_configs.run(config, model, tmp_path)
    left, said = found["pruning"]["left"], found["pruning"]
    assert left[0] == 192 and len(said["kept"]["head"]) in left and len(said["kept"]["edge"]) == 992 - 4 * 32
    assert [*found["results"]] == ["FULL", "pruned", "random 1", "random 2"]
    files = [str(tmp_path / "a" / f"head_scores_{number}.json") for number in range(len(left) - 1)]
    keep = {**pruning, "keep": left[1:]}
    other = config_of({**given, "pruning": {**keep, "score_files": files}, "out_dir": str(tmp_path / "b")})
    again = edge_configs.run(other, model, tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    moved = [str(tmp_path / "moved" / f"head_scores_{number}.json") for number in range(len(files))]
    assert config_of({**given, "pruning": {**keep, "score_files": moved}}).plain() == other.plain()
    assert again["pruning"]["left"] == left and again["pruning"]["accuracy"] == said["accuracy"]
    scored = edge_configs.run(
        config_of({"action": "scores", "request": FEW, "pruning": {"start": pruning["start"]}}), model, tmp_path
    )
    of_file = json.loads((tmp_path / "a" / "head_scores_0.json").read_text())
    assert scored["scores"]["head"] == of_file["scores"] and of_file["method"] == "local_exact"
    values = [*scored["scores"]["edge"].values()]
    assert len(values) == 992 - 4 * 32 and values == sorted(values, reverse=True)
