"""The component graph: which part of a model reads what which other part writes, and how good scores of its edges are.

Its nodes are the embeddings ("input"), heads ("a0.h1"), MLPs ("m0") and the logits. An edge leads from a node that
writes, a sender, to a reader. A head reads the residual stream three times, for its queries, keys and values, and has
an edge for each ("a0.h1->a3.h2<q>"); with grouped keys and values, too, every head has its own. Names and edges are
those of the MIB circuit track (Mueller et al. 2025) and of EAP-IG (Hanna et al. 2024).

Arrays of senders are [U], of readers [V], of edges [U, V], of nodes [U + 1]: the senders, and the logits last.

Faithfulness, CPR and CMD are those of the MIB circuit track. CPR ranks edges by signed scores and CMD by absolute ones;
numbers of one ranking have been published as the other's. circuit [K, N]: the metric, such as a logit difference, of
every circuit on every prompt; full, empty [N]: of the whole model, and with all edges corrupted; clusters [N]: prompts
of one cluster are one sampled unit together, without it each prompt is one.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from util.stats.heads import Bools, Ints
from util.stats.intervals import Interval, Intervals, mean_interval, mean_intervals, ratio_of_means
from util.study.checked import Count, checked

Floats = NDArray[np.float64]
Place = tuple[int, int]  # (sender, reader): where an edge is in arrays [U, V]
LETTERS = "qkv"  # what a head reads


@checked
class ComponentGraph:
    """The graph of a model with so many layers, and so many heads in each of them.

    parallel: attention and MLP of a layer read the same stream (GPT-NeoX, Falcon, Phi); otherwise an MLP reads the
    heads of its own layer, too. Raises ValueError for less than one layer or head.
    """

    layers: Count
    heads: Count
    parallel: bool = False

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """The names of all senders [U], in order: input, then of every layer its heads and its MLP."""
        return ("input", *(name for layer in range(self.layers) for name in (*self._heads(layer), f"m{layer}")))

    @cached_property
    def readers(self) -> tuple[str, ...]:
        """The names of all readers [V], in order: of every layer q of all heads, k, v, the MLP; the logits last."""
        names = []
        for layer in range(self.layers):
            names += [f"{head}<{letter}>" for letter in LETTERS for head in self._heads(layer)]
            names.append(f"m{layer}")
        return (*names, "logits")

    def _heads(self, layer: int) -> list[str]:
        return [f"a{layer}.h{head}" for head in range(self.heads)]

    @property
    def shape(self) -> tuple[int, int]:
        """(U, V), the shape of arrays of edges: U = 1 + L (H + 1) senders, V = L (3 H + 1) + 1 readers."""
        return len(self.senders), len(self.readers)

    @property
    def size(self) -> int:
        """The number of edges."""
        return int(self.edges.sum())

    @cached_property
    def edges(self) -> Bools:
        """Which pairs of sender and reader are edges [U, V]; the array cannot be written to."""
        layers = np.arange(self.layers)[:, None]
        # Two steps a layer: heads write at an even one, MLPs at the next. A reader reads what was written before it.
        written = np.repeat(2 * layers + [0, 1], [self.heads, 1], axis=1)
        read = np.repeat(2 * layers + [0, 0 if self.parallel else 1], [3 * self.heads, 1], axis=1)
        edges = np.r_[-1, written.ravel()][:, None] < np.r_[read.ravel(), 2 * self.layers]
        edges.flags.writeable = False
        return edges

    @cached_property
    def node_of_reader(self) -> Ints:
        """The node that a reader belongs to [V]: a sender, or U for the logits."""
        number = {name: place for place, name in enumerate((*self.senders, "logits"))}
        return np.array([number[reader.partition("<")[0]] for reader in self.readers])

    @property
    def width(self) -> int:
        """The number of readers of a layer: queries, keys and values of all heads, and the MLP."""
        return 3 * self.heads + 1

    # ------------------------------------------------------------------------------------------------ names

    def name(self, place: Place) -> str:
        """The name of the edge at (sender, reader). Raises ValueError if no edge is there."""
        sender, reader = place
        if not (0 <= sender < self.shape[0] and 0 <= reader < self.shape[1] and self.edges[sender, reader]):
            raise ValueError(f"there is no edge at {place}")
        return f"{self.senders[sender]}->{self.readers[reader]}"

    def place(self, name: str) -> Place:
        """Where the edge of a name is: (sender, reader). Raises ValueError for a name that is no edge."""
        sender, _, reader = name.partition("->")
        if sender in self.senders and reader in self.readers:
            place = self.senders.index(sender), self.readers.index(reader)
            if self.edges[place]:
                return place
        example = '"a0.h1->a3.h2<q>", "input->m0" or "m0->logits", the writer first'
        raise ValueError(f"{name!r} is no edge of {self}; write it like {example}")

    # ------------------------------------------------------------------------------------------------ circuits

    def top(self, scores: ArrayLike, count: int, *, absolute: bool) -> Bools:
        """The circuit [U, V] of the `count` edges of the highest scores [U, V], less those on no path (`on_paths`).

        absolute: rank by absolute values. Ties are in the order of sender, then reader. This is the selection of the
        MIB circuit track: the circuit has `count` edges at most, often fewer. Raises ValueError for a negative count or
        more edges than there are, and for a NaN or infinity at an edge.
        """
        if not 0 <= count <= self.size:
            raise ValueError(f"count = {count}: the graph has {self.size} edges")
        ranked = np.asarray(scores, dtype=np.float64)[self.edges]
        if not np.isfinite(ranked).all():
            raise ValueError("some scores of edges are not finite")
        places = np.flatnonzero(self.edges)
        chosen = np.zeros(self.shape, bool)
        chosen.flat[places[np.argsort(-np.abs(ranked) if absolute else -ranked, kind="stable")[:count]]] = True
        return self.on_paths(chosen)

    def on_paths(self, circuit: Bools) -> Bools:
        """The edges of a circuit [U, V] that lie on a path from the input to the logits within it, [U, V].

        q, k and v of a head are one node. A node is on a path if it has an edge to any of its readers and one that
        leaves it. Edges of nodes that are on none are dropped, again and again until there are no more of them.
        """
        kept, nodes = circuit, len(self.senders) + 1
        while True:
            reads, writes = np.zeros(nodes, bool), np.ones(nodes, bool)
            reads[0] = True  # the input needs no edge that leads to it, and the logits none that leaves them
            reads[self.node_of_reader[kept.any(axis=0)]] = True
            writes[:-1] = kept.any(axis=1)
            fewer = kept & reads[:-1, None] & writes[self.node_of_reader]
            if np.array_equal(fewer, kept):
                return fewer
            kept = fewer


SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of all edges, in the MIB circuit track


def circuits_of(graph: ComponentGraph, scores: ArrayLike, *, absolute: bool) -> Bools:
    """The circuits [K, U, V] of int(share * number of edges) edges for each of SHARES, less those on no path.

    scores: [U, V]; absolute: ranked by absolute scores, for CMD; else by signed ones, for CPR. See
    `ComponentGraph.top`.
    """
    return np.stack([graph.top(scores, int(share * graph.size), absolute=absolute) for share in SHARES])


def faithfulness(circuit: Floats, full: Floats, empty: Floats, clusters: ArrayLike | None = None) -> Intervals:
    """f(k) of every circuit [K]; the intervals over prompts hold together for the curve (Bonferroni).

    f(k) = (m_circuit - m_empty) / (m_full - m_empty), of means over prompts: 0 is the model with all edges corrupted, 1
    the whole model. Beyond 1, and below 0, are possible. All of it is NaN where the whole model has no higher mean than
    the empty one: there is nothing to be faithful to.
    """
    value, linearised = _linearised(circuit, full, empty, clusters)
    around = mean_intervals(linearised, comparisons=len(circuit))
    return Intervals(value, around.low, around.high)


def area(
    circuit: Floats, full: Floats, empty: Floats, clusters: ArrayLike | None = None, *, absolute: bool
) -> Interval:
    """CPR, the integral of f [K] over k, or CMD (absolute), that of |1 - f|, with its 95 % interval over prompts.

    The circuits are those of SHARES. The integral is that of straight lines between the nominal shares, so a circuit
    that is always faithful (f = 1) has a CPR of .999 and a CMD of 0. CPR has no upper bound.

    The interval of CPR is that of a ratio of means. CMD is a sum of distances that cannot be below 0, which a bootstrap
    overstates near 0: there it never covers. So distances whose sign is certain, because the interval of f excludes 1,
    are summed with their interval; each other distance adds nothing to the lower end, and all that the interval of f
    allows to the upper one.
    """
    (value, linearised), steps = _linearised(circuit, full, empty, clusters), np.diff(SHARES)
    weights = (np.r_[0, steps] + np.r_[steps, 0]) / 2  # of trapezoids
    if not absolute:
        around = mean_interval(linearised @ weights)
        return Interval(float(value @ weights), around.low, around.high)
    together, alone = faithfulness(circuit, full, empty, clusters), mean_intervals(linearised)
    certain = (together.low > 1) | (together.high < 1)
    signs = np.where(certain, np.sign(1 - value), 0.0)
    around = mean_interval((1 - linearised) @ (weights * signs), within=(0, np.inf))
    farthest = np.where(certain, 0.0, np.maximum(np.abs(1 - alone.low), np.abs(1 - alone.high)))
    return Interval(float(np.abs(1 - value) @ weights), around.low, around.high + float(farthest @ weights))


def _linearised(circuit: Floats, full: Floats, empty: Floats, clusters: ArrayLike | None) -> tuple[Floats, Floats]:
    """f [K], and its linearised values [C, K], see `ratio_of_means`; NaN where f is not defined."""
    full, empty = full.astype(np.float64), empty.astype(np.float64)
    whole = full - empty if full.mean() > empty.mean() else np.full_like(full, np.nan)
    return ratio_of_means((circuit - empty).T, whole, clusters)
