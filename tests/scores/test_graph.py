"""The component graph against its definition in loops, and the selection of edges against walks through the graph."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from util.scores.graph import ComponentGraph

SMALL = [ComponentGraph(2, 2), ComponentGraph(3, 1), ComponentGraph(3, 2, parallel=True), ComponentGraph(1, 4)]


def edge_names(graph):
    """All edges by the definition, in no order: who writes before whom, said in words."""
    names = set()
    written = ["input"]  # before the layer
    for layer in range(graph.layers):
        heads = [f"a{layer}.h{head}" for head in range(graph.heads)]
        names |= {f"{sender}->{head}<{letter}>" for sender, head, letter in product(written, heads, "qkv")}
        names |= {f"{sender}->m{layer}" for sender in (written if graph.parallel else written + heads)}
        written += [*heads, f"m{layer}"]
    return names | {f"{sender}->logits" for sender in written}


def walked(names):
    """The edges that some walk from input to logits takes: both ends are reached, by walks along single edges."""
    ends = {name: (name.split("->")[0], name.split("->")[1].split("<")[0]) for name in names}

    def reached(start, forwards):
        found, ahead = {start}, [start]
        while ahead:
            here = ahead.pop()
            for sender, reader in ends.values():
                at, to = (sender, reader) if forwards else (reader, sender)
                if at == here and to not in found:
                    found.add(to)
                    ahead.append(to)
        return found

    after, before = reached("input", True), reached("logits", False)
    return {name for name, (sender, reader) in ends.items() if sender in after and reader in before}


def top_by_hand(graph, scores, count, absolute):
    ranked = [
        (abs(scores[place]) if absolute else scores[place], place) for place in map(tuple, np.argwhere(graph.edges))
    ]
    ranked.sort(key=lambda entry: (-entry[0], entry[1]))
    return walked({graph.name(place) for _, place in ranked[:count]})


def names_in(graph, circuit):
    return {graph.name(tuple(place)) for place in np.argwhere(circuit)}


@pytest.mark.parametrize(
    "layers, heads, count",
    [(12, 12, 32_491), (32, 32, 1_592_881), (4, 8, 1_519), (30, 9, 123_211)],
    ids=["gpt2", "Llama-3-8B", "embedded", "SmolLM2"],
)
def test_the_number_of_edges_is_the_published_one(layers, heads, count):
    graph = ComponentGraph(layers, heads)
    assert graph.size == graph.edges.sum() == count
    assert graph.edges.shape == graph.shape == (len(graph.senders), len(graph.readers))
    parallel = ComponentGraph(layers, heads, parallel=True)
    assert parallel.size == parallel.edges.sum() == count - layers * heads


@pytest.mark.parametrize("graph", SMALL, ids=str)
def test_the_edges_are_those_of_the_definition(graph):
    names = graph.names()
    assert len(names) == graph.size and set(names) == edge_names(graph)
    assert [graph.name(graph.place(name)) for name in names] == names
    assert [graph.place(name) for name in names] == [tuple(place) for place in np.argwhere(graph.edges)]


def test_senders_and_readers_come_in_the_order_that_is_said():
    graph = ComponentGraph(2, 2)
    assert graph.senders == ("input", "a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1")
    assert graph.readers[:7] == ("a0.h0<q>", "a0.h1<q>", "a0.h0<k>", "a0.h1<k>", "a0.h0<v>", "a0.h1<v>", "m0")
    assert graph.readers[7:] == ("a1.h0<q>", "a1.h1<q>", "a1.h0<k>", "a1.h1<k>", "a1.h0<v>", "a1.h1<v>", "m1", "logits")
    owners = [graph.nodes[node] for node in graph.node_of_reader]
    assert owners == [reader.split("<")[0] for reader in graph.readers]


@pytest.mark.parametrize("name", ["a0.h1->a3.h2<q>", "input->m0", "m3->logits", "a0.h0->m0", "input->logits"])
def test_names_are_those_of_mib(name):
    graph = ComponentGraph(4, 3)
    assert graph.edges[graph.place(name)] and graph.name(graph.place(name)) == name


@pytest.mark.parametrize(
    "name, message",
    [
        ("a0.h0", "give a sender and a reader"),
        ("", "give a sender and a reader"),
        ("a0.h9->logits", "'a0.h9' is no sender of a model of 2 layers with 2 heads each"),
        ("logits->m0", "'logits' is no sender"),
        ("a0.h0 -> m1", "'a0.h0 ' is no sender"),
        ("a0.h0<q>->m1", "is no sender"),
        ("m0->a1.h1", 'a head reads three times, as "a1.h1<q>"'),
        ("m0->a1.h1<z>", "is no reader"),
        ("m0->m7", "'m7' is no reader"),
        ("m0->input", "'input' is no reader"),
        ("m0->m0", "the reader reads before the sender writes"),
        ("a1.h0->a1.h1<q>", "reads before the sender writes"),
        ("m1->a0.h0<v>", "reads before the sender writes"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, message):
    with pytest.raises(ValueError, match=message):
        ComponentGraph(2, 2).place(name)


def test_an_mlp_in_parallel_does_not_read_the_heads_of_its_layer():
    assert ComponentGraph(2, 2).place("a0.h0->m0")
    with pytest.raises(ValueError, match="parallel attention and MLPs"):
        ComponentGraph(2, 2, parallel=True).place("a0.h0->m0")


@pytest.mark.parametrize("place", [(0, -1), (-1, 0), (7, 0), (0, 15), (3, 0)])
def test_a_place_without_an_edge_has_no_name(place):
    with pytest.raises(ValueError, match="no edge at"):
        ComponentGraph(2, 2).name(place)


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (-1, 2), (1.5, 2), (True, 2), ("two", 2)])
def test_wrong_sizes_name_themselves(arguments):
    with pytest.raises(ValueError, match="^(layers|heads) = "):
        ComponentGraph(*arguments)


def test_equal_graphs_are_equal_and_their_edges_cannot_be_written_to():
    graph = ComponentGraph(2, 2)
    assert graph == ComponentGraph(2, 2, parallel=False) != ComponentGraph(2, 2, parallel=True)
    with pytest.raises(ValueError, match="read-only"):
        graph.edges[0, 0] = False


# ------------------------------------------------------------------------------------------------ circuits


@pytest.mark.oracle
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SMALL), st.integers(0, 2**32), st.floats(0, 1), st.booleans(), st.sampled_from([0, 1, 5]))
def test_top_is_the_selection_by_walks(graph, seed, share, absolute, levels):
    """levels: how many different sizes scores have, so that there are ties; 0 for all different."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=graph.shape)
    if levels:
        scores = np.round(scores * levels) / levels
    count = int(share * graph.size)
    circuit = graph.top(scores, count, absolute=absolute)
    assert names_in(graph, circuit) == top_by_hand(graph, scores, count, absolute)
    assert circuit.sum() <= count


@pytest.mark.oracle
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SMALL), st.integers(0, 2**32), st.floats(0, 1))
def test_what_is_left_is_what_walks_take(graph, seed, share):
    circuit = graph.edges & (np.random.default_rng(seed).random(graph.shape) < share)
    kept = graph.on_paths(circuit)
    assert names_in(graph, kept) == walked(names_in(graph, circuit))
    np.testing.assert_array_equal(graph.on_paths(kept), kept)


def test_a_chain_without_an_end_falls_link_by_link():
    """m0 -> m1 -> ... -> the last but one: nobody reads the last, so that every link falls, one after the other."""
    graph = ComponentGraph(8, 2)
    circuit = np.zeros(graph.shape, bool)
    for name in ["input->m0", *(f"m{layer}->m{layer + 1}" for layer in range(6)), "input->logits"]:
        circuit[graph.place(name)] = True
    assert names_in(graph, graph.on_paths(circuit)) == {"input->logits"}
    circuit[graph.place("m6->logits")] = True
    np.testing.assert_array_equal(graph.on_paths(circuit), circuit)


def test_what_a_head_reads_is_one_node():
    """An edge to its queries is enough for what it writes."""
    graph, circuit = ComponentGraph(2, 2), np.zeros((7, 15), bool)
    for name in ("input->a0.h1<q>", "a0.h1->logits"):
        circuit[graph.place(name)] = True
    np.testing.assert_array_equal(graph.on_paths(circuit), circuit)


def test_top_ranks_by_sign_or_by_size_and_breaks_ties_by_order():
    graph = ComponentGraph(1, 2)
    scores = np.zeros(graph.shape)
    scores[graph.place("input->m0")], scores[graph.place("m0->logits")] = 3, 2
    scores[graph.place("input->logits")] = -5
    assert names_in(graph, graph.top(scores, 2, absolute=False)) == {"input->m0", "m0->logits"}
    assert names_in(graph, graph.top(scores, 1, absolute=True)) == {"input->logits"}
    assert not graph.top(scores, 1, absolute=False).any()  # one edge of a path is no path
    assert not graph.top(scores, 0, absolute=False).any()
    np.testing.assert_array_equal(graph.top(scores, graph.size, absolute=True), graph.edges)
    ties = graph.top(np.zeros(graph.shape), 8, absolute=False)  # input's own eight edges come first
    assert names_in(graph, ties) == {"input->logits"}


def test_what_stands_where_no_edge_is_has_no_effect():
    graph = ComponentGraph(3, 2)
    scores = np.random.default_rng(0).normal(size=graph.shape)
    other = np.where(graph.edges, scores, np.nan)
    np.testing.assert_array_equal(graph.top(scores, 20, absolute=True), graph.top(other, 20, absolute=True))


@pytest.mark.parametrize(
    "change, count, message",
    [
        (lambda scores: scores[:-1], 3, r"scores of shape \(6, 15\); this graph has \(7, 15\)"),
        (lambda scores: np.where(np.arange(15) == 14, np.nan, scores), 3, "7 scores are not finite, .* input->logits"),
        (lambda scores: np.where(np.arange(15) == 6, np.inf, scores), 3, "3 scores are not finite, .* input->m0"),
        (lambda scores: scores, -1, "count = -1"),
        (lambda scores: scores, 47, "count = 47: the graph has 46 edges"),
    ],
)
def test_wrong_scores_and_counts_are_refused(change, count, message):
    graph = ComponentGraph(2, 2)
    with pytest.raises(ValueError, match=message):
        graph.top(change(np.zeros(graph.shape)), count, absolute=False)


def test_a_circuit_of_what_is_no_edge_is_refused():
    graph = ComponentGraph(2, 2)
    circuit = np.zeros(graph.shape, bool)
    circuit[graph.shape[0] - 1, 0] = True
    with pytest.raises(ValueError, match="1 places of the circuit are no edges, the first of them m1->a0.h0<q>"):
        graph.on_paths(circuit)
    with pytest.raises(ValueError, match="bool"):
        graph.on_paths(np.zeros(graph.shape))
