"""The component graph against its definition in loops, and the selection of edges against walks through the graph."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

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
    [(12, 12, 32_491), (32, 32, 1_592_881)],
    ids=["gpt2", "Llama-3-8B"],
)
def test_the_number_of_edges_is_the_published_one(layers, heads, count):
    graph = ComponentGraph(layers, heads)
    assert graph.size == graph.edges.sum() == count
    assert graph.edges.shape == graph.shape == (len(graph.senders), len(graph.readers))
    parallel = ComponentGraph(layers, heads, parallel=True)
    assert parallel.size == parallel.edges.sum() == count - layers * heads


@pytest.mark.parametrize("graph", SMALL, ids=str)
def test_the_edges_are_those_of_the_definition(graph):
    places = [*map(tuple, np.argwhere(graph.edges))]
    names = [graph.name(place) for place in places]
    assert len(names) == graph.size and set(names) == edge_names(graph)
    assert [graph.place(name) for name in names] == places


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
    scores[~graph.edges] = np.nan  # what stands where no edge is has no effect
    count = int(share * graph.size)
    circuit = graph.top(scores, count, absolute=absolute)
    assert names_in(graph, circuit) == top_by_hand(graph, scores, count, absolute)
    assert circuit.sum() <= count


def test_a_chain_without_an_end_falls_link_by_link_and_what_a_head_reads_is_one_node():
    """m0 -> m1 -> ... -> the last but one: nobody reads the last, so that every link falls, one after the other."""
    graph = ComponentGraph(8, 2)
    circuit = np.zeros(graph.shape, bool)
    for name in ["input->m0", *(f"m{layer}->m{layer + 1}" for layer in range(6)), "input->a0.h1<q>", "a0.h1->logits"]:
        circuit[graph.place(name)] = True
    assert names_in(graph, graph.on_paths(circuit)) == {"input->a0.h1<q>", "a0.h1->logits"}
    circuit[graph.place("m6->logits")] = True
    assert_array_equal(graph.on_paths(circuit), circuit)


GRAPH, SCORES = ComponentGraph(2, 2), np.zeros((7, 15))


@pytest.mark.parametrize(
    "make, message",
    [
        *(
            (lambda name=name: GRAPH.place(name), r"is no edge of ComponentGraph\(layers=2, heads=2")
            for name in ("a0.h0", "a0.h9->logits", "m0->m0", "m1->a0.h0<v>")
        ),
        (lambda: ComponentGraph(2, 2, parallel=True).place("a0.h0->m0"), "parallel=True"),
        *((lambda place=place: GRAPH.name(place), "no edge at") for place in ((0, -1), (7, 0), (3, 0))),
        (lambda: ComponentGraph(0, 1), "^layers = "),
        (lambda: GRAPH.top(SCORES, 47, absolute=True), "count = 47: the graph has 46 edges"),
        (lambda: GRAPH.top(SCORES, -1, absolute=True), "count = -1"),
        (lambda: GRAPH.top(SCORES + np.nan, 3, absolute=True), "not finite"),
    ],
)
def test_what_there_is_not_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(IndexError):
        GRAPH.top(SCORES[:-1], 3, absolute=True)
