"""Edges between token types against their definition in loops, and what circuits keep."""

import json

import numpy as np
import pytest

from tests import toys
from util import edges
from util.edges.ablation import cuts, windows
from util.edges.edge import CIRCUITS, FAMILIES, Edge
from util.prompts.prompt import Layout
from util.prompts.token_types import type_tokens


@pytest.fixture(scope="module")
def tokens():
    """Three demonstrations, some of whose parts are several tokens."""
    prompt = Layout().prompt([("Hank Aaron", "baseball"), ("put", "put"), ("adapt", "adapted")], "window", "windows")
    found = type_tokens(prompt, toys.tokenizer("bpe", on_tasks=True), target=True)
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
            source = edge.source in ("*", tokens.types[k])
            reads = tokens.types[q] != "target" if edge.target == "*" else edge.target == tokens.types[q]
            cells[q, k] = related and source and reads  # what the answer reads is to be named
    return cells


@pytest.mark.parametrize("relation", ["any", "same", "prev", "earlier", "lag=2", "slot"])
@pytest.mark.parametrize("pair", [("x", "y"), ("y", "last_separator"), ("*", "*"), ("bos", "*"), ("query", "target")])
def test_an_edge_is_its_definition(pair, relation, tokens):
    source, target = pair
    edge = Edge(source, target, relation)
    np.testing.assert_array_equal(edge.cells(tokens), by_loops(edge, tokens))
    assert Edge.of(str(edge)) == edge


def test_circuits_keep_what_their_names_say(tokens):
    kept = {name: edges.together(found, tokens) for name, found in CIRCUITS.items()}
    asks = np.array([kind != "target" for kind in tokens.types])[:, None]  # what the answer reads is never taken out
    assert not asks.all()
    everything = np.tri(len(tokens.ids), k=-1, dtype=bool) & asks
    assert (kept["FULL"] == everything).all() and not edges.removed_by(CIRCUITS["FULL"], tokens).any()
    for smaller, larger in (
        ("NONE", "AGG-ONLY"),
        ("AGG-ONLY", "CTX+AGG"),
        ("CTX+AGG", "FULL"),
        ("CTX_IO+AGG", "CTX+AGG"),
    ):
        assert (kept[smaller] <= kept[larger]).all() and (kept[smaller] != kept[larger]).any(), (smaller, larger)
    context = edges.together(FAMILIES["CONTEXT"], tokens)
    assert (kept["AGG-ONLY"] | context == kept["CTX+AGG"]).all() and not (kept["AGG-ONLY"] & context).any()
    for name, found in CIRCUITS.items():
        assert (edges.removed_by(found, tokens) == everything & ~kept[name]).all()


def test_codes_are_a_union_that_knows_no_order_and_no_overlap(tokens):
    removed, probed = edges.edges("t->y", "n->x"), edges.edges("x->y", "y->last_separator")
    codes = edges.kinds(removed, probed, tokens)
    assert (codes == edges.kinds(removed[::-1], probed, tokens)).all()
    assert ((codes == 1) == edges.together(removed, tokens)).all()
    for number, edge in enumerate(probed, 2):
        assert ((codes == number) == edge.cells(tokens)).all()
    assert not codes.diagonal().any()
    with pytest.raises(ValueError, match="x->y and what is removed"):
        edges.kinds(edges.edges("*->y"), probed, tokens)
    with pytest.raises(ValueError, match="x->y:same and x->y"):
        edges.kinds((), (*edges.edges("x->y"), Edge("x", "y", "same")), tokens)


def test_unknown_edges_are_refused_with_the_nearest_that_there_is(tokens):
    with pytest.raises(ValueError, match="'last_seperator', did you mean 'last_separator'"):
        Edge("y", "last_seperator")
    with pytest.raises(ValueError, match="relation 'earliest', did you mean 'earlier'"):
        Edge.of("x->y:earliest")
    with pytest.raises(ValueError, match="is no edge"):
        Edge.of("x to y")
    with pytest.raises(ValueError, match="lag=0"):
        Edge("x", "y", "lag=0")
    with pytest.warns(UserWarning, match="target->x is in none of the 1 prompts"):
        edges.check_matched([Edge("target", "x"), Edge("x", "y")], [tokens])


def test_marked_demonstrations_can_be_named_and_their_types_are_types_all_the_same():
    prompt = Layout().prompt([("put", "put"), ("walk", "walked")], "swim", "swam", marks=("*", ""))
    tokens = type_tokens(prompt, toys.tokenizer("bpe", on_tasks=True))
    marked = np.array([kind.endswith("*") for kind in tokens.types])
    assert marked.any() and not marked.all()
    for relation in ("same", "earlier"):
        every = Edge("x", "y", relation).cells(tokens)
        parts = [Edge(*pair, relation).cells(tokens) for pair in (("x*", "y*"), ("x-", "y"), ("x*", "y-"))]
        assert every.any() and (every == np.any(parts, axis=0)).all()
    across = Edge("y*", "x-", "earlier").cells(tokens)
    assert across.any() and across[:, ~marked].sum() == across[marked].sum() == 0
    assert (edges.removed_by(CIRCUITS["FULL"], tokens) == 0).all()


def test_random_circuits_keep_as_many_type_pairs_and_none_comes_twice():
    for name in ("CTX+AGG", "CTX_IO+AGG", "AGG-ONLY"):
        drawn = edges.random_circuits(CIRCUITS[name], 20, seed=1)
        kept = [frozenset(edges.type_pairs(circuit)) for circuit in drawn]
        own = frozenset(edges.type_pairs(CIRCUITS[name]))
        assert {len(pairs) for pairs in kept} == {len(own)} and len(set(kept) - {own}) == 20
        assert drawn == edges.random_circuits(CIRCUITS[name], 20, seed=1) != edges.random_circuits(CIRCUITS[name], 20)
    assert not edges.random_circuits(CIRCUITS["NONE"], 20) and not edges.random_circuits(CIRCUITS["FULL"], 20)
    assert len(edges.random_circuits(edges.TYPE_PAIRS[1:], 99)) == len(edges.TYPE_PAIRS) - 1  # all that there are


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"removed": ["AGG"], "kept": ["QUERY"]}, "either"),
        ({"probed": [("x->y", 0)]}, "corruption 0 removes"),
        ({"mode": "zero"}, "unknown mode 'zero'"),
        ({"mode": "knockout", "probed": {"x->y": 1}}, "not read at all"),
        ({"mode": "knockout", "removed": ["AGG"], "channel": "v"}, "not read at all"),
        ({"removed": ["AG"]}, "is no edge"),
        ({"removed": ["AGG"], "heads": (0, 1)}, "heads: 0 is no head"),
        ({"removed": ["AGG"], "heads": [(0, 1, 2)]}, r"heads: \(0, 1, 2\) is no head"),
        ({"removed": ["AGG"], "layers": 2.5}, r"layers: \[2.5\] are no numbers of layers"),
    ],
)
def test_ablations_that_cannot_be_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        edges.Ablation(**fields)


def test_an_ablation_survives_json_and_takes_names():
    given = {"kept": ["CTX+AGG"], "probed": [["x->y:earlier", 2]], "layers": [1, 0], "heads": [[0, 3]], "channel": "k"}
    ablation = edges.Ablation(**given)
    assert ablation.kept == CIRCUITS["CTX+AGG"] and ablation.layers == (0, 1) and ablation.corruptions == (0, 2)
    assert edges.Ablation(**json.loads(json.dumps(ablation.plain()))) == ablation
    assert edges.Ablation(removed=["CONTEXT", "y->query"]).removed == (*FAMILIES["CONTEXT"], Edge("y", "query"))
    assert edges.Ablation(removed=["AGG"], mode="knockout").corruptions == () == edges.WHOLE.corruptions


def test_kept_edges_that_are_in_no_prompt_are_warned_of_but_not_those_of_families(tokens, recwarn):
    assert Edge("t", "x", "same") in edges.Ablation(kept=["t->x:same", "CTX+AGG"]).named
    assert not edges.Ablation(kept=["CTX+AGG", "NONE"]).named
    for name in ("-", "t*", "y**", "target-"):
        with pytest.raises(ValueError, match="unknown token type"):
            Edge(name, "y")
    assert edges.Ablation(removed="CONTEXT", layers=3) == edges.Ablation(removed=("CONTEXT",), layers=(3,))


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 12, 30, 48])
def test_cuts_are_ends_and_middle_and_evenly_spaced(layers):
    for count in (3, 8, 9):
        at = cuts(layers, count)
        assert {0, layers // 2, layers} <= set(at) and len(at) <= max(count, 3) and at == tuple(sorted(set(at)))
        gaps = np.diff(at)
        assert gaps.max() <= gaps.min() + 2
    assert cuts(4) == (0, 1, 2, 3, 4)  # every layer, where these are few
    assert {*windows(layers, cuts(layers, 3))} <= {*windows(layers)}
    with pytest.raises(ValueError, match="take 3 or more"):
        cuts(layers, 2)
