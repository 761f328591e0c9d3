"""Units of token types, which of them rounds keep, and files of scores; pruning on made-up scores."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.edges.test_splicing import groups
from util.edges.ablation import Ablation
from util.edges.edge import TYPE_PAIRS, Edge
from util.scores.pruning import prune
from util.scores.units import (
    Circuit,
    EdgeUnit,
    HeadUnit,
    Units,
    check_keep,
    kept,
    next_keep,
    random_living,
    read_scores,
    unit_of,
    write_scores,
)

LAYERS, HEADS = 3, 4


def whole(**options):
    return Circuit.whole(LAYERS, HEADS, [group.base for group in groups()], **options)


def test_units_have_an_order_and_names_that_are_read_back():
    circuit = whole()
    assert circuit.heads.shape == (3, 4, 6) and circuit.edges.shape == (3, 4, len(TYPE_PAIRS))
    for units in (circuit.heads, circuit.edges):
        names = units.names()
        assert len(set(names)) == len(names) == len(units)
        found = [unit_of(name) for name in names]
        assert [units.place(unit) for unit in found] == [*np.ndindex(units.shape)]
        assert units.of(np.ones(units.shape, bool)) == found
    assert str(HeadUnit(2, 5, "y")) == "L2H5 y"
    assert str(EdgeUnit(2, 0, Edge("x", "y", "earlier"))) == "L2H0 x->y:earlier"
    for name in ("L2H5", "L2H5 yy", "2.5 y", "L2H5 x->yy"):
        with pytest.raises(ValueError):
            unit_of(name)
    with pytest.raises(ValueError, match="none of the 72 head units"):
        circuit.heads.place(HeadUnit(3, 0, "y"))
    for kinds in ((), ("x", "x"), ("x", Edge("x", "y")), ("z",)):
        with pytest.raises(ValueError):
            Units(1, 1, kinds)


def test_edges_that_are_removed_beforehand_are_no_living_units():
    circuit = whole(start=Ablation(removed=("CONTEXT",)))
    gone = [edge.relation == "earlier" for edge in circuit.edges.kinds]
    assert not circuit.living_edges[..., gone].any() and circuit.living_edges[..., np.invert(gone)].all()
    kept_alone = whole(start=Ablation(kept=("AGG-ONLY",)))
    assert {unit.edge for unit in kept_alone.edges.of(kept_alone.living_edges)} < {*TYPE_PAIRS}
    some = whole(start=Ablation(removed=("CONTEXT",), heads=((0, 1),), layers=(0,)))
    assert not some.living_edges[0, 1, gone].any() and some.living_edges.sum() == len(some.edges) - sum(gone)
    with pytest.raises(ValueError, match="nothing else goes with pruning"):
        whole(start=Ablation(removed=("CONTEXT",), channel="k"))


def test_edges_into_dead_heads_are_idle():
    circuit = whole().without(HeadUnit(1, 2, "last_separator"))
    idle = circuit.edges.of(circuit.living_edges & ~circuit.without_idle_edges().living_edges)
    assert idle == [
        unit
        for unit in circuit.edges.of(circuit.living_edges)
        if unit.edge.target == "last_separator" and (unit.layer, unit.head) == (1, 2)
    ]


def test_what_is_kept_is_nested_and_does_not_depend_on_chance_where_scores_are_equal():
    rng, shape = np.random.default_rng(0), (2, 2, 5)
    scores = rng.integers(0, 3, shape).astype(float)  # many ties
    living = rng.random(shape) > 0.2
    before = living
    for keep in range(int(living.sum()), -1, -1):
        now = kept(scores, living, keep)
        assert now.sum() == keep and (now <= before).all()
        assert keep == 0 or scores[now].min() >= scores[living & ~now].max(initial=-1)
        before = now
    equal = kept(np.zeros(shape), living, 3)
    assert [*np.flatnonzero(equal)] == [*np.flatnonzero(living)[:3]]
    scores[~living] = np.nan  # nobody asks
    assert kept(scores, living, 2).sum() == 2
    with pytest.raises(ValueError, match="a number for each of the living"):
        kept(np.where(living, np.nan, 1.0), living, 2)
    for keep in (-1, living.sum() + 1):
        with pytest.raises(ValueError, match="units are alive"):
            kept(np.zeros(shape), living, keep)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ([5, 6], "no round has more"),
        ([11], "no round has more"),
        ([-1], "whole numbers"),
        ([2.0], "whole numbers"),
        ([True], "whole numbers"),
    ],
)
def test_keep_lists_that_cannot_be(keep, words):
    check_keep([10, 10, 3, 0], 10)
    with pytest.raises(ValueError, match=words):
        check_keep(keep, 10)


def test_a_round_keeps_the_living_units_without_a_share_of_them():
    assert [next_keep(n) for n in (1448, 100, 70, 10, 9, 1, 0)] == [1303, 90, 63, 9, 8, 0, 0]
    assert next_keep(100, 0.5) == 50
    assert next_keep(5, 0.01) == 4  # at least one goes


def test_what_goes_is_rounded_up():
    for units in range(1, 300):
        assert next_keep(units) == units * 9 // 10
    assert next_keep(72) == 64  # 7.2 units


def test_random_prunings_are_as_large_and_all_other():
    start = whole().without(HeadUnit(0, 0, "x"))
    like = start.keeping("head", kept(np.arange(72.0).reshape(3, 4, 6), start.living_heads, 20))
    drawn = random_living(start, like, "head", 20, seed=3)
    assert len({living.tobytes() for living in [like.living_heads, *drawn]}) == 21
    assert all(living.sum() == 20 and (living <= start.living_heads).all() for living in drawn)
    assert all((a == b).all() for a, b in zip(drawn, random_living(start, like, "head", 20, seed=3), strict=True))


def test_where_nothing_or_all_is_pruned_no_random_pruning_is_looked_for(monkeypatch):
    start, drawn = whole(), []
    rng = SimpleNamespace(choice=lambda places, size, replace: drawn.append(size) or places[:size])
    monkeypatch.setattr(np.random, "default_rng", lambda seed: rng)
    empty = start.keeping("head", np.zeros(start.heads.shape, bool))
    assert random_living(start, start, "head", 20) == random_living(start, empty, "head", 20) == [] == drawn


def test_there_are_no_more_random_prunings_than_sets():
    start = whole()
    two = start.keeping("head", np.arange(72).reshape(3, 4, 6) < 2)
    one = start.keeping("head", np.arange(72).reshape(3, 4, 6) < 1)
    assert [living.ravel()[:2].tolist() for living in random_living(two, one, "head", 20)] == [[False, True]]


def test_files_of_scores_know_their_units_and_their_parent(tmp_path):
    file, circuit = tmp_path / "scores.json", whole()
    scores = np.random.default_rng(0).random(circuit.heads.shape)
    write_scores(file, circuit, "head", scores, method="local_exact")
    assert json.loads(file.read_text())["method"] == "local_exact" and [*tmp_path.iterdir()] == [file]
    np.testing.assert_array_equal(read_scores(file, circuit, "head"), scores)
    for other, sort, words in (
        (circuit.without(HeadUnit(0, 0, "x")), "head", "measured in the circuit"),
        (whole(start=Ablation(removed=("CONTEXT",))), "head", "measured in the circuit"),
        (circuit, "edge", "72 head units; the circuit has 372 edge units"),
        (Circuit.whole(2, 4), "head", "the circuit has 48 head units"),
    ):
        with pytest.raises(ValueError, match=words):
            read_scores(file, other, sort)
    for text in ("{", "[]", '{"sort": "head"}'):
        file.write_text(text)
        with pytest.raises(ValueError, match="holds no scores of units"):
            read_scores(file, circuit, "head")
    with pytest.raises(ValueError, match="holds no scores of units"):
        read_scores(tmp_path / "none.json", circuit, "head")


# ------------------------------------------------------------------------------------------------ rounds


def made_up(needed, asked=None):
    """A model that answers as long as it has the first units; their scores are highest."""

    def measure(circuit, _=0):
        living = circuit.living_heads
        if asked is not None:
            asked.append(int(living.sum()))
        right = np.arange(20) < 20 * living.ravel()[:needed].mean()
        return SimpleNamespace(right=right, scores=-np.arange(living.size, dtype=float).reshape(living.shape))

    return measure


def test_pruning_ends_before_the_accuracy_falls():
    start = Circuit.whole(3, 4)
    found = prune(made_up(10), start, "head", floor=0.95)
    assert found.stopped and found.rounds[-1].accuracy < 0.95 <= found.rounds[-2].accuracy
    assert found.units_left[:4] == [72, 64, 57, 51] and found.result.count("head") == found.units_left[-2] >= 10
    for before, after in zip(found.rounds, found.rounds[1:], strict=False):
        assert (after.circuit.living_heads <= before.circuit.living_heads).all()
    hopeless = prune(made_up(10), start, "head", floor=1.1)
    assert hopeless.units_left == [72] and hopeless.result is start and not hopeless.passing
    endless = prune(made_up(10), start, "head", floor=0)
    assert endless.units_left[-1] == 0 and not endless.stopped and endless.result.count("head") == 0


def test_keep_lists_and_scores_of_earlier_rounds_give_the_same_rounds(tmp_path):
    start, asked = Circuit.whole(3, 4), list[int]()
    found = prune(made_up(10, asked), start, "head", 0.95)
    keep = found.units_left[1:]
    for number, one in enumerate(found.rounds[:-1]):
        write_scores(tmp_path / f"{number}.json", one.circuit, "head", made_up(10)(one.circuit).scores)

    def read(circuit, number):
        return FromFile(circuit, tmp_path / f"{number}.json")

    again = prune(read, start, "head", 0.95, keep=keep)
    assert [one.circuit.digest for one in again.rounds] == [one.circuit.digest for one in found.rounds]
    assert not again.stopped and again.units_left == asked
    with pytest.raises(ValueError, match="measured in the circuit"):
        prune(lambda circuit, _: read(circuit, 0), start, "head", 0.95, keep=[60, 50])
    asked.clear()
    with pytest.raises(ValueError, match="no round has more"):
        prune(made_up(10, asked), start, "head", 0.95, keep=[60, 61])
    assert not asked


class FromFile:
    right = np.ones(3, bool)

    def __init__(self, circuit, file):
        self.circuit, self.file = circuit, file

    @property
    def scores(self):
        return read_scores(self.file, self.circuit, "head")
