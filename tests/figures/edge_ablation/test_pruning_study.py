"""Pruning as a study: it goes on where it stopped, needs no model the second time, and finds what is planted."""

import json
import weakref

import numpy as np
import pytest

from util.edges.ablation import Ablation
from util.edges.edge import Edge, type_pairs
from util.edges.states import Store
from util.figures import planted_controls
from util.figures.edge_ablation import numbers, pruning
from util.figures.edge_ablation.pruning import Pruner
from util.figures.edge_ablation.runs import LookUp
from util.figures.edge_ablation.settings import Draw
from util.figures.edge_ablation.show import FIGURE
from util.models import planted
from util.show import files
from util.show.part import drawn
from util.study.model import Model
from util.study.study import Study

FEW = {"prompts": 4, "k": 3}
ROUND = 0.4  # the share that goes in a round


@pytest.fixture(scope="module")
def model():
    return Model("embedded", device="cpu", verbose=False)


def never():
    raise AssertionError("nothing is to be loaded")


MISSING = Model("embedded", loader=never)


def study_in(folder, model, redo=False, **settings):
    options = {"donor_seeds": (0, 1), "untrained_control": False, **FEW, **settings}
    return Study("edge_ablation", model, folder=folder, redo=redo, **options)


def pruner_in(folder, model, redo=False, **options):
    draws = [Draw("capitalization", **FEW, donor_seed=seed, trained=True) for seed in (0, 1)]
    return Pruner.of(study_in(folder, model, redo), draws, **options)


def curves(pruner):
    edges = pruner.before_edges(ROUND)
    return pruner.curve("head", pruner.first, ROUND, 3), pruner.curve("edge", edges, ROUND, 3)


def test_heads_then_edges_and_a_second_time_without_a_model(model, tmp_path, monkeypatch):
    monkeypatch.setattr(pruning, "POINTS", 4)
    pruner = pruner_in(tmp_path, model)
    heads, edges = curves(pruner)
    for curve in (heads, edges):
        left = [*curve["rows"]]
        assert left[0] == curve["units"] and left == sorted(left, reverse=True) and curve["result"] in left
        assert len(curve["kept"]) == curve["result"] < curve["units"] and len(curve["random"]) == 3
        assert curve["rows"][curve["result"]]["right"].shape == (2, 4) and curve["random"][0]["right"].shape == (1, 4)
        assert sum(numbers.pruned(curve)["survivors"].values()) == curve["result"]
    assert heads["units"] == 4 * 8 * 6 and edges["units"] < 4 * 8 * 31
    alive = {*pruner.pruned("head", pruner.first, pruning.HEADS_SHARE, ROUND).result.names("head")}
    ends = (f"{name.partition(' ')[0]} {Edge.of(name.partition(' ')[2]).target}" for name in edges["kept"])
    assert all(name in alive for name in ends)
    again = curves(pruner_in(tmp_path, MISSING))
    assert [numbers.pruned(curve) for curve in again] == [numbers.pruned(curve) for curve in (heads, edges)]
    whole = pruner.pruned("edge", pruner.first, 0.9, ROUND)
    assert whole.units_left[0] == 4 * 8 * 31


def curve_of(kept, explained=(1.0, 0.95, 0.85, 0.95)):
    """A curve of four rounds, 10, 6, 4 and 2 units left, with accuracies of 20 prompts and one draw of donors."""
    row = {right: {"query": np.arange(20), "right": (np.arange(20) < 20 * right)[None]} for right in (1.0, *explained)}
    rows = {left: row[right] for left, right in zip((10, 6, 4, 2), explained, strict=True)}
    return {
        "units": 10, "whole": row[1.0], "rows": rows, "result": 4, "kept": kept, "random": [row[explained[2]]] * 2,
    }  # fmt: skip


def values_of(**curves):
    """Values of curves by task, the same for both sorts of units."""
    made = numbers.pruning({task: {"head": curve, "edge": curve} for task, curve in curves.items()}, None)
    request = {"k": 3, "prompts": 20, "donor_seeds": [0], "pruned_tasks": [*curves], "search_prompts": 40}
    return {**made, "request": request, "model": "a model: of some class"}


def test_what_is_left_is_counted_by_kind():
    values = values_of(copying=curve_of(["L0H0 x", "L1H0 y", "L2H0 x", "L2H1 n"]))
    survivors = values["pruning"]["by_task"]["copying"]["head"]["survivors"]
    assert [*survivors.items()] == [("x", 2), ("y", 1), ("n", 1)]


def test_values_of_a_model_that_answers_nothing_say_why(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    nothing = curve_of([], explained=(0.0, 0.0, 0.0, 0.0))
    nothing["whole"]["right"][:] = False
    values = values_of(copying=nothing, person_sport=nothing)
    file = files.save_values(values, "edge_ablation", "a model")
    reasons = json.loads(file.read_text())["undefined"]
    assert "pruning: by_task: copying: head: explained: 10" in reasons
    assert all(reason.startswith("a share of ") for reason in reasons.values())
    for made in (values, files.read_values(file)):
        assert next(iter(FIGURE.parts["pruning"].says(made))) == ""
        assert drawn(FIGURE.parts["pruning"], made) is not None


def test_all_that_a_notebook_shows_of_pruning(model, tmp_path, monkeypatch):
    kept: list[weakref.ref[Store]] = []

    def store():
        assert not any(ref() for ref in kept), "what donors of one task leave is kept beside those of the next"
        made = Store()
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(pruning, "Store", store)
    settings = {"tasks": ["capitalization"], "per_round": 0.6, "random_circuits": 2, "search_prompts": 6}
    values = study_in(tmp_path, model, corruptions=[1], **settings).values_of("pruning")
    assert len(kept) == 2
    copying = values["pruning"]["by_task"]["copying"]["head"]
    picture = drawn(FIGURE.parts["pruning"], values)
    assert picture is not None
    panels = [ax.get_title().split("\n") for ax in picture.axes]
    assert [title for title, _ in panels] == [
        f"{task}, {sort} units" for task in ("copying", "capitalization") for sort in ("head", "edge")
    ]
    assert panels[0][1] == f"{copying['result']} of 192 left"


def test_a_run_that_was_interrupted_goes_on(model, tmp_path, monkeypatch):
    pruner = pruner_in(tmp_path / "whole", model)
    whole = pruner.pruned("head", pruner.first, 0.9, ROUND)
    scores, done = pruning.token_types.scores, []

    def breaks(*arguments):
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt
        return scores(*arguments)

    monkeypatch.setattr(pruning.token_types, "scores", breaks)
    broken = pruner_in(tmp_path / "parts", model)
    first = broken.first
    with pytest.raises(KeyboardInterrupt):
        broken.pruned("head", first, 0.9, ROUND)
    monkeypatch.setattr(pruning.token_types, "scores", lambda *a: done.append(1) or scores(*a))
    resumed = pruner_in(tmp_path / "parts", model)
    assert resumed.pruned("head", resumed.first, 0.9, ROUND).units_left == whole.units_left
    assert len(done) == len(whole.rounds) + 1


def test_measured_again_every_circuit_is_scored_once(model, tmp_path, monkeypatch):
    scores, done = pruning.token_types.scores, list[str]()

    def watched(net, groups, circuit, *rest):
        done.append(circuit.digest)
        return scores(net, groups, circuit, *rest)

    monkeypatch.setattr(pruning.token_types, "scores", watched)
    curves(pruner_in(tmp_path, model, redo=True))
    assert len(done) == len({*done}) > 4


def test_edges_that_are_removed_beforehand_are_no_units(model, tmp_path):
    pruner = pruner_in(tmp_path, model, start=Ablation(removed=("CONTEXT", "TOQUERY")))
    pruned = pruner.pruned("edge", pruner.first, 0.9, ROUND)
    assert pruned.units_left[0] == 4 * 8 * (31 - 16 - 4)
    assert not any("earlier" in name for name in pruned.result.names("edge"))
    whole = pruner.runs[0].answer(pruner.start)  # nothing pruned yet: the ablation itself
    row = pruner.answer(pruner.runs[0], pruner.first)
    np.testing.assert_allclose(row["log_prob"], whole["log_prob"], atol=1e-4)


def test_planted_edges_are_those_that_are_left(tmp_path):
    """The look-up needs three kinds of edges in one head each; random prunings of that size lose the answers."""
    made, truth = planted_controls.planted_control(planted.lookup, {})
    run = LookUp(study_in(tmp_path, made), Draw(k=6, prompts=12))
    pruner = Pruner([run], LookUp(run.study, Draw(k=6, prompts=12, split="search")))
    found = pruner.pruned("edge", pruner.first, 1.0, 0.2)
    left = found.result.names("edge")
    assert found.rounds[-2].accuracy == 1 > found.rounds[-1].accuracy and len(left) <= 2 * len(truth.edges)
    kinds = {Edge.of(name.partition(" ")[2]) for name in left}
    assert kinds >= {*type_pairs([Edge(*edge) for edge in truth.edges])}
    random = pruner.at_random("edge", pruner.first, found.result, 8)
    drawn_right = [pruner.answer(run, circuit)["right"].mean() for circuit in random]
    assert len(drawn_right) == 8 and max(drawn_right) < 0.5
