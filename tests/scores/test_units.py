"""Units of token types, which of them rounds keep, and files of scores; pruning on made-up scores."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.architectures import HEADS, LAYERS
from tests.edges.test_splicing import groups
from util.edges.edge import TYPE_PAIRS, Ablation
from util.scores.pruning import Circuit, kept, prune, random_living, read_scores, write_scores


def whole(**options):
    return Circuit.whole(LAYERS, HEADS, [group.base for group in groups()], **options)


def first_heads(circuit, count):
    """The circuit with its first head units alone."""
    living = circuit.living_heads.copy()
    living.flat[count:] = False
    return circuit.keeping("head", living)


def test_units_have_an_order_and_names():
    circuit = whole()
    assert circuit.living_heads.shape == (3, 4, 6) and circuit.living_edges.shape == (3, 4, len(TYPE_PAIRS))
    assert all(len({*circuit.names(sort)}) == circuit.count(sort) for sort in ("head", "edge"))
    place = np.ravel_multi_index((2, 1, circuit.types.index("y")), circuit.living_heads.shape)
    assert circuit.all_names("head")[place] == "L2H1 y" and circuit.all_names("edge")[0] == f"L0H0 {TYPE_PAIRS[0]}"
    assert first_heads(circuit, 2).names("head") == ["L0H0 x", "L0H0 t"]


def test_edges_that_are_removed_beforehand_are_no_living_units():
    circuit = whole(start=Ablation(removed=("CONTEXT",)))
    gone = [edge.relation == "earlier" for edge in circuit.kinds]
    assert not circuit.living_edges[..., gone].any() and circuit.living_edges[..., np.invert(gone)].all()
    assert 0 < whole(start=Ablation(kept=("AGG-ONLY",))).count("edge") < whole().count("edge")
    some = whole(start=Ablation(removed=("CONTEXT",), heads=((0, 1),), layers=(0,)))
    assert not some.living_edges[0, 1, gone].any() and some.count("edge") == some.living_edges.size - sum(gone)


def test_edges_into_dead_heads_are_idle():
    living = whole().living_heads.copy()
    living[1, 2, whole().types.index("last_separator")] = False
    circuit = whole().keeping("head", living)
    idle = {*circuit.names("edge")} - {*circuit.without_idle_edges().names("edge")}
    assert idle == {f"L1H2 {edge}" for edge in circuit.kinds if edge.target == "last_separator"}


def test_what_is_kept_is_nested_and_does_not_depend_on_chance_where_scores_are_equal():
    rng, shape = np.random.default_rng(0), (2, 2, 5)
    scores = rng.integers(0, 3, shape).astype(float)  # many ties
    before = living = rng.random(shape) > 0.2
    scores[~living] = np.nan  # nobody asks
    for keep in range(int(living.sum()), 0, -1):
        now = kept(scores, living, keep)
        assert now.sum() == keep and (now <= before).all()
        assert scores[now].min() >= scores[living & ~now].max(initial=-1)
        before = now
    assert [*np.flatnonzero(kept(np.zeros(shape), living, 3))] == [*np.flatnonzero(living)[:3]]
    with pytest.raises(ValueError, match="a number for each of the living"):
        kept(np.where(living, np.nan, 1.0), living, 2)


def test_random_prunings_are_as_large_and_all_other():
    start = whole()
    like = first_heads(start, 20)
    drawn = random_living(start, like, "head", 20, seed=3)
    assert len({living.tobytes() for living in [like.living_heads, *drawn]}) == 21
    assert all(living.sum() == 20 for living in drawn)
    assert all((living <= like.living_heads).all() for living in random_living(like, first_heads(like, 9), "head", 9))
    assert random_living(start, start, "head", 20) == random_living(start, first_heads(start, 0), "head", 20) == []


def test_files_of_scores_know_their_units_and_their_parent(tmp_path):
    file, circuit = tmp_path / "scores.json", whole()
    scores = np.random.default_rng(0).random(circuit.living_heads.shape)
    write_scores(file, circuit, "head", scores, method="local_exact")
    lines = json.loads(file.read_text())
    assert lines["method"] == "local_exact"
    assert_array_equal(read_scores(file, circuit, "head"), scores)
    fewer = dict([*lines["scores"].items()][1:])
    (tmp_path / "fewer.json").write_text(json.dumps({**lines, "scores": fewer}))
    (tmp_path / "damaged.json").write_text('{"sort": "head"}')
    for place, other, sort, message in (
        (file, first_heads(circuit, 9), "head", "measured in the circuit"),
        (file, whole(start=Ablation(removed=("CONTEXT",))), "head", "measured in the circuit"),
        (file, circuit, "edge", "72 head units; the circuit has 372 edge units"),
        (tmp_path / "fewer.json", circuit, "head", "71 head units; the circuit has 72 head units"),
        (tmp_path / "damaged.json", circuit, "head", "holds no scores of units"),
        (tmp_path / "none.json", circuit, "head", "holds no scores of units"),
    ):
        with pytest.raises(ValueError, match=message):
            read_scores(place, other, sort)


# ------------------------------------------------------------------------------------------------ rounds


def made_up(circuit, _=0):
    """A model that answers as long as it has the first ten units; their scores are highest."""
    living = circuit.living_heads
    return np.arange(20) < 20 * living.ravel()[:10].mean(), -np.arange(living.size, dtype=float).reshape(living.shape)


def test_pruning_ends_before_the_accuracy_falls():
    start = whole()
    found = prune(made_up, start, "head", floor=0.95)
    assert found.accuracy[-1] < 0.95 <= found.accuracy[-2]
    assert found.units_left[:4] == [72, 64, 57, 51] and found.result.count("head") == found.units_left[-2] >= 10
    assert prune(made_up, start, "head", floor=1.1).result is start
    assert prune(made_up, start, "head", floor=0).units_left[-1] == 0
    with pytest.raises(ValueError, match="units are alive"):
        prune(made_up, start, "head", 0.95, keep=[60, 61])


def test_just_the_share_that_is_kept_is_enough():
    """144 of 200 are nine tenths of 160 of 200, but as floats less than 0.9 * 0.8."""
    right = np.arange(200) < 144
    assert right.mean() < 0.9 * 0.8
    found = prune(lambda circuit, _: (right, np.zeros(circuit.living_heads.shape)), whole(), "head", floor=0.9 * 0.8)
    assert found.result.count("head") == 0
