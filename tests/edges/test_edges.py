"""Edges between token types against their definition in loops, and what circuits keep."""

import json
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.toys import words
from util.edges.edge import (
    AGGREGATING,
    ALWAYS,
    CIRCUITS,
    FAMILIES,
    FULL,
    TYPE_PAIRS,
    WHOLE,
    Ablation,
    Edge,
    circuit_ablations,
    cuts,
    edges,
    random_circuits,
    removed_by,
    together,
    type_pairs,
)
from util.prompts.prompt import Layout, type_tokens


@pytest.fixture(scope="module")
def tokens():
    """Three demonstrations, some of whose parts are several tokens."""
    prompt = Layout().prompt([("Hank Aaron", "baseball"), ("put", "put"), ("adapt", "adapted")], "window", "windows")
    found = type_tokens(prompt, words(), target=True)
    assert max(found.sizes) > 1
    return found


def by_loops(edge, tokens):
    cells = np.zeros((len(tokens.ids),) * 2, bool)
    for q in range(len(tokens.ids)):
        for k in range(q):
            inside = tokens.slots[q] == tokens.slots[k]
            lag = tokens.examples[q] - tokens.examples[k]
            related = {
                "any": not inside,
                "same": lag == 0 and not inside,
                "prev": lag == 1,
                "earlier": lag > 0,
                "lag=2": lag == 2,
                "slot": inside,
            }[edge.relation]
            source = edge.source in ("*", tokens.types[k], f"{tokens.types[k]}_{tokens.examples[k]}")
            reads = edge.target in (tokens.types[q], f"{tokens.types[q]}_{tokens.examples[q]}")
            if edge.target == "*":
                reads = tokens.types[q] != "target"
            cells[q, k] = related and source and reads  # what the answer reads is to be named
    return cells


@pytest.mark.parametrize("relation", ["any", "same", "prev", "earlier", "lag=2", "slot"])
@pytest.mark.parametrize(
    "pair",
    [("x", "y"), ("y", "last_separator"), ("*", "*"), ("bos", "*"), ("query", "target")]
    + [("x_1", "y_2"), ("y_2", "last_separator"), ("t", "x_3")],
)
def test_an_edge_is_its_definition(pair, relation, tokens):
    source, target = pair
    edge = Edge(source, target, relation)
    assert_array_equal(edge.cells(tokens), by_loops(edge, tokens))
    assert Edge.of(str(edge)) == edge


def test_circuits_keep_what_their_names_say(tokens):
    kept = {name: together(found, tokens) for name, found in CIRCUITS.items()}
    asks = np.array([kind != "target" for kind in tokens.types])[:, None]  # what the answer reads is never taken out
    everything = np.tri(len(tokens.ids), k=-1, dtype=bool) & asks
    assert not asks.all() and (kept["FULL"] == everything).all()
    order = ("NONE", "AGG-ONLY", "CTX+AGG", "FULL"), ("CTX_IO+AGG", "CTX+AGG")
    for smaller, larger in (pair for chain in order for pair in pairwise(chain)):
        assert (kept[smaller] <= kept[larger]).all() and (kept[smaller] != kept[larger]).any(), (smaller, larger)
    context = together(FAMILIES["CONTEXT"], tokens)
    assert (kept["AGG-ONLY"] | context == kept["CTX+AGG"]).all() and not (kept["AGG-ONLY"] & context).any()
    for name, found in CIRCUITS.items():
        assert (removed_by(found, tokens) == everything & ~kept[name]).all()


def test_random_circuits_keep_as_many_type_pairs_and_none_comes_twice():
    for name in ("CTX+AGG", "CTX_IO+AGG", "AGG-ONLY"):
        drawn = random_circuits(CIRCUITS[name], 20, seed=1)
        kept = [frozenset(type_pairs(circuit)) for circuit in drawn]
        own = frozenset(type_pairs(CIRCUITS[name]))
        assert {len(pairs) for pairs in kept} == {len(own)} and len(set(kept) - {own}) == 20
        assert drawn == random_circuits(CIRCUITS[name], 20, seed=1) != random_circuits(CIRCUITS[name], 20)
    assert not random_circuits(CIRCUITS["NONE"], 20) and not random_circuits(CIRCUITS["FULL"], 20)
    fixed = TYPE_PAIRS[:2]
    drawn = random_circuits(TYPE_PAIRS[:3], 99, fixed=fixed)
    assert {pair for circuit in drawn for pair in type_pairs(circuit)} == {*TYPE_PAIRS[:2], *TYPE_PAIRS[3:]}
    assert len(drawn) == len(TYPE_PAIRS) - 3 and all(len(type_pairs(circuit)) == 3 for circuit in drawn)
    assert not random_circuits(fixed, 20, fixed=fixed)


def test_what_a_circuit_is_compared_with_has_its_reads_of_the_last_token():
    found = (*ALWAYS, *edges("y,query->last_separator"), *edges("x->y", "x->t", relation="same"))
    names = [name for name in circuit_ablations(found, 20, 0) if name.startswith(AGGREGATING)]
    assert len(names) == 20 and {name.count("->") for name in names} == {2}
    assert not [name for name in circuit_ablations(found[: len(ALWAYS) + 2], 20, 0) if name.startswith(AGGREGATING)]
    assert not [name for name in circuit_ablations(CIRCUITS[FULL], 20, 0) if name.startswith(AGGREGATING)]
    assert len(random_circuits(TYPE_PAIRS[1:], 99)) == len(TYPE_PAIRS) - 1  # all that there are


def test_an_ablation_is_plain_json_and_takes_names():
    given = {"kept": ["CTX+AGG"], "probed": [["x->y:earlier", 2]], "layers": [1, 0], "heads": [[0, 3]]}
    ablation = Ablation(**given)
    assert ablation.kept == CIRCUITS["CTX+AGG"] and ablation.layers == (0, 1) and ablation.corruptions == (0, 2)
    done = {"inside": True, "channel": "kv", "mode": "resample"}
    assert Ablation(**{name: value for name, value in ablation.plain().items() if name not in done}) == ablation
    assert ablation.plain().items() >= done.items() and json.loads(json.dumps(ablation.plain())) == ablation.plain()
    assert Ablation(removed=["CONTEXT", "y->query"]).removed == (*FAMILIES["CONTEXT"], Edge("y", "query"))
    assert WHOLE.corruptions == ()


def test_the_examples_of_an_ambiguous_prompt_can_be_named_by_their_marks():
    prompt = Layout().prompt([("put", "put"), ("walk", "walked")], "swim", "swam", marks=("*", ""))
    tokens = type_tokens(prompt, words())
    every = Edge("x", "y", "same").cells(tokens)
    parts = [Edge(*pair, "same").cells(tokens) for pair in (("x*", "y*"), ("x-", "y-"))]
    assert all(part.any() for part in parts) and (every == parts[0] | parts[1]).all()


@pytest.mark.parametrize(  # more: tests/commands/test_edge_configs.py
    "make, message",
    [
        (lambda: Edge.of("x->y:earliest"), "relation 'earliest', did you mean 'earlier'"),
        (lambda: Edge.of("x to y"), "is no edge"),
        (lambda: Edge("x", "y", "lag=0"), "lag=0"),
        *((lambda name=name: Edge(name, "y"), "unknown token type") for name in ("-", "t*", "y**", "target-")),
        (lambda: Ablation(removed=["AG"]), "is no edge"),
        (lambda: Ablation(removed=["AGG"], heads=(0, 1)), "heads.0 = 0"),
        (lambda: Ablation(removed=["AGG"], heads=[(0, 1, 2)]), "heads.0"),
        (lambda: Ablation(removed=["AGG"], layers=[2.5]), "layers.0 = 2.5"),
        (lambda: Ablation(removed=["AGG"], layers=[-1]), "layers.0 = -1"),
    ],
)
def test_edges_and_ablations_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_edges_of_circuits_need_be_in_no_prompt():
    assert Edge("t", "x", "same") in Ablation(kept=["t->x:same", "CTX+AGG"]).named
    assert not Ablation(kept=["CTX+AGG", "NONE"]).named


def test_cuts_are_ends_and_middle_and_evenly_spaced():
    assert [cuts(layers) for layers in (1, 4, 12)] == [(0, 1), (0, 1, 2, 3, 4), (0, 2, 3, 4, 6, 8, 9, 10, 12)]
