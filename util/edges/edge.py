"""Edges between token types: their cells of attention, circuits, names, and ablations (Bakalova et al. 2025).

An edge "y -> last_separator" is every way in which tokens of the second type read tokens of the first, in attention. A
token's own self is never an edge. Types are those of `TypedTokens`; what is done to edges is an instrument's
matter (`Splice`, `Knockout`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import comb
from random import Random
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator

from util.prompts.prompt import TypedTokens
from util.stats.heads import Bools, Ints, check_heads
from util.study.checked import Natural, checked

Cells = Bools  # [T, T], query and key
TYPES = ("bos", "header", "x", "t", "y", "n", "query", "last_separator", "target")
RELATIONS = ("any", "same", "prev", "earlier", "slot")
NUMBERED = re.compile(r"([xtyn])_([1-9]\d*)")  # a type in one demonstration

# Every record, table, figure and values file has the names of ablations from here, and nobody else spells them.
FULL, NONE = "FULL", "NONE"
CTX_AGG, CTX_IO_AGG, AGG_ONLY, QUERY_ONLY = "CTX+AGG", "CTX_IO+AGG", "AGG-ONLY", "QUERY-ONLY"
FOUND = "found"  # the circuit of a search
ABLATED = "ablated"  # the single ablation of a config
PRUNED = "pruned"  # what is left after units were pruned
INSIDE = "circuit"  # what probes are made inside of
ALONE = "no demonstrations"  # the whole model after the query alone; no ablation, but shown beside them
WINDOWS = ("CONTEXT from", "AGG below")  # a family that is taken out from a layer on, or below it
HALVES = (*WINDOWS, "CONTEXT below", "AGG from")


def without(removed: str) -> str:
    """The name of a circuit or family of edges taken out of the whole model."""
    return f"without {removed}"


def random_name(number: int) -> str:
    """The name of the random circuit of this number, counted from 1."""
    return f"random {number}"


def random_names(names: Iterable[str]) -> list[str]:
    """The random circuits among some names."""
    return [name for name in names if name.startswith("random ")]


AGGREGATING = "aggregating, "  # of random circuits with a circuit's reads of the last token: before their other pairs


def at_layer(window: str, layer: int) -> str:
    """The name of one of HALVES at a layer."""
    return f"{window} {layer}"


def read_from(edge: Edge | str, corruption: int) -> str:
    """The name of one edge read from a corruption."""
    return f"{edge} from {corruption}"


@dataclass(frozen=True, order=True)
class Edge:
    """All tokens of type `target` reading all of type `source` that stand before them, in a relation of examples.

    "*": any type, except that the answer's reading (target) is to be named; "x" includes the x of marked examples, "x*"
    is these alone and "x-" the others; "x_2" is the x of the second example (so of t, y and n). relation: "any"; "same"
    example; "prev", the example before; "earlier" examples; "lag=2" and so on, so many before; these leave out what
    lies within one slot (a name of several tokens), and "slot" is that alone.
    Raises ValueError for an unknown type or relation, with the nearest that there is.
    """

    source: str
    target: str
    relation: str = "any"

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            bare = name[:1] if NUMBERED.fullmatch(name) or (name[:-1] in "xy" and name[1:] in ("*", "-")) else name
            check_known(bare, (*TYPES, "*"), "token type")
        if not re.fullmatch(r"lag=[1-9]\d*", self.relation):
            check_known(self.relation, RELATIONS, "relation")

    def __str__(self) -> str:
        return f"{self.source}->{self.target}" + ("" if self.relation == "any" else f":{self.relation}")

    @classmethod
    def of(cls, text: str) -> Edge:
        """The edge of "y->last_separator" or "x->y:earlier". Raises ValueError for another form."""
        match = re.fullmatch(r"\s*(\S+?)\s*->\s*([^\s:]+)\s*(?::\s*(\S+))?\s*", text)
        if match is None:
            raise ValueError(f'{text!r} is no edge; write "source->target" or "source->target:relation"')
        return cls(match[1], match[2], match[3] or "any")

    def cells(self, tokens: TypedTokens) -> Cells:
        """Which (query, key) cells of a prompt it is, [T, T]."""
        types, before, inside, lag = _grid(tokens.types, tokens.examples, tokens.slots)
        if self.relation == "slot":
            related = inside
        else:
            earlier = {"any": lag >= 0, "same": lag == 0, "prev": lag == 1, "earlier": lag > 0}
            sources = earlier.get(self.relation)
            related = ~inside & (lag == int(self.relation[4:]) if sources is None else sources)
        examples = np.array(tokens.examples)
        reads = _are(types, examples, self.target) & ((types != "target") | (self.target == "target"))
        return before & related & reads[:, None] & _are(types, examples, self.source)[None]


@lru_cache(maxsize=256)
def _grid(types: tuple[str, ...], examples: tuple[int, ...], slots: tuple[int, ...]) -> tuple[NDArray[Any], ...]:
    """Of a layout, which many edges ask for: its types [T]; of (query, key) cells [T, T], whether the key stands before
    the query, whether both are in one slot, and how many examples later the query is."""
    place, slot, example = np.arange(len(types)), np.array(slots), np.array(examples)
    return np.array(types), place[None] < place[:, None], slot[:, None] == slot[None], example[:, None] - example[None]


def check_known(name: str, known: Sequence[str], what: str) -> None:
    """Raises ValueError, with the nearest that there is, for a name that is unknown."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f", did you mean {near[0]!r}" if near else ""
        raise ValueError(f"unknown {what} {name!r}{meant}; there are {', '.join(known)}")


def _are(types: NDArray[np.str_], examples: Ints, name: str) -> Cells:
    if name == "*":
        return np.ones(len(types), bool)
    if numbered := NUMBERED.fullmatch(name):
        return _are(types, examples, numbered[1]) & (examples == int(numbered[2]))
    bare = name.rstrip("*-")
    plain, marked = types == bare, types == f"{bare}*"
    return {"*": marked, "-": plain}.get(name[-1], plain | marked)


def edges(*texts: str, relation: str = "any") -> tuple[Edge, ...]:
    """Edges of texts such as "x,t->y,n", every source with every target."""
    every: list[Edge] = []
    for text in texts:
        sources, targets = (side.split(",") for side in text.split("->"))
        every += [Edge(source, target, relation) for source, target in product(sources, targets)]
    return tuple(every)


# ------------------------------------------------------------------------------------------------ families and circuits

_WHOLE_SLOTS = edges("*->*", relation="slot")
FAMILIES: Mapping[str, tuple[Edge, ...]] = {
    "WITHIN": (
        *edges("x->t", "x,t->y", "x,t,y->n", relation="same"),
        *_WHOLE_SLOTS,
    ),
    "CONTEXT": edges("x,t,y,n->x,t,y,n", relation="earlier"),
    "CONTEXT_IO": edges("x,y->x,y", relation="earlier"),
    "TOQUERY": edges("x,t,y,n->query"),
    "QUERY": edges("query->last_separator"),
    "AGG": edges("x,t,y,n->last_separator"),
    "AGG_Y": edges("y->last_separator"),
    "ANCHOR": edges("bos->*"),
}
_AGGREGATE = ("WITHIN", "AGG", "QUERY", "ANCHOR")
_KEPT = {
    CTX_AGG: (*_AGGREGATE, "CONTEXT"),
    CTX_IO_AGG: ("AGG_Y", "QUERY", "ANCHOR", "WITHIN", "CONTEXT_IO"),
    AGG_ONLY: _AGGREGATE,
    QUERY_ONLY: ("QUERY", "ANCHOR"),  # no demonstration is read: what the query alone tells
}
ALWAYS = FAMILIES["ANCHOR"] + _WHOLE_SLOTS  # every circuit has them: what nothing could be read without
# what is kept; all other edges are taken out
CIRCUITS: Mapping[str, tuple[Edge, ...]] = {
    FULL: edges("*->*") + _WHOLE_SLOTS,
    **{name: tuple(edge for family in kept for edge in FAMILIES[family]) for name, kept in _KEPT.items()},
    NONE: ALWAYS,
}
# All type pairs but those: what a prompt can lose one by one, and what circuits are searched and drawn from.
_NAMES = ("WITHIN", "CONTEXT", "TOQUERY", "AGG", "QUERY")
TYPE_PAIRS = tuple(edge for name in _NAMES for edge in FAMILIES[name] if edge.relation != "slot")


def type_pairs(kept: Sequence[Edge]) -> tuple[Edge, ...]:
    """Those of TYPE_PAIRS that a circuit keeps whole."""
    k = 4  # demonstrations of an example that has every pair
    types = ("bos", *(kind for _ in range(k) for kind in "xtyn"), "query", "last_separator")
    examples = (0, *(i for i in range(1, k + 1) for _ in "xtyn"), k + 1, k + 1)
    drawn = TypedTokens((0,) * len(types), types, examples, tuple(range(len(types))))
    cells = together(kept, drawn)
    return tuple(edge for edge in TYPE_PAIRS if cells[edge.cells(drawn)].all())


def random_circuits(
    like: Sequence[Edge], count: int, seed: int = 0, fixed: Sequence[Edge] = ()
) -> list[tuple[Edge, ...]]:
    """Up to `count` other circuits with as many of TYPE_PAIRS as `like` keeps, none twice, drawn by `seed`.

    fixed: pairs that all of them have.
    """
    circuit = frozenset(type_pairs(like))
    others, more = [edge for edge in TYPE_PAIRS if edge not in fixed], len(circuit) - len(fixed)
    random, circuits = Random(f"circuits/{seed}"), dict[frozenset[Edge], None]()
    while len(circuits) < min(count, comb(len(others), more) - 1):
        drawn = frozenset((*fixed, *random.sample(others, more)))
        if drawn != circuit:
            circuits[drawn] = None
    return [ALWAYS + tuple(edge for edge in TYPE_PAIRS if edge in drawn) for drawn in circuits]


# ------------------------------------------------------------------------------------------------ sets of edges


def together(kept: Sequence[Edge], tokens: TypedTokens) -> Cells:
    """The cells [T, T] (query, key) of several edges."""
    size = len(tokens.ids)
    return np.any([edge.cells(tokens) for edge in kept], axis=0) if kept else np.zeros((size, size), bool)


def removed_by(kept: Sequence[Edge], tokens: TypedTokens) -> Cells:
    """The cells [T, T] that go where only `kept` stays; none of those in which the answer reads."""
    asks = np.array(tokens.types) != "target"
    return np.tri(len(tokens.ids), k=-1, dtype=bool) & ~together(kept, tokens) & asks[:, None]


def kinds(removed: Cells, probed: Sequence[Edge], tokens: TypedTokens) -> Ints:
    """A code for every cell, [T, T], as `Splice` takes them: 1 what is removed, 2 and so on the probed edges in order.

    Raises ValueError where a cell would have two codes.
    """
    codes = removed.astype(np.int64)
    for number, edge in enumerate(probed, 2):
        cells = edge.cells(tokens)
        if (codes[cells] != 0).any():
            others = ["what is removed", *map(str, probed)]
            other = others[int(codes[cells].max()) - 1]
            raise ValueError(f"{edge} and {other} have cells in common; an edge can be read from one donor alone")
        codes[cells] = number
    return codes


# ------------------------------------------------------------------------------------------------ ablations


def _edges(given: Sequence[Edge | str] | str) -> tuple[Edge, ...]:
    """Edges by themselves, by their text, and by the names of families and circuits."""
    sets, given = {**FAMILIES, **CIRCUITS}, [given] if isinstance(given, str) else given
    parts = [(edge,) if isinstance(edge, Edge) else sets.get(edge) or (Edge.of(edge),) for edge in given]
    return tuple(edge for part in parts for edge in part)


def _probes(given: Any) -> list[tuple[Edge, int]]:
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(edge, corruption) for named, corruption in pairs for edge in _edges([named])]


Edges = Annotated[tuple[Edge, ...], BeforeValidator(_edges)]
InOrder = AfterValidator(lambda places: tuple(sorted(set(places))))


@checked
class Ablation:
    """What is done to the edges of a model (Bakalova et al. 2025).

    Edges may be given as text, "x->y:earlier", and by the names of FAMILIES and CIRCUITS.

    removed: edges whose keys and values come from corruption 0; or kept: all edges but these are. probed: edges, kept
    ones, with the number of the corruption that they are read from; that donor is run with the removed edges taken out
    of it too, so that it cannot use what the circuit has not. layers, heads (layer, head): where this is done, None for
    everywhere; layers are counted among those that have attention.
    Raises ValueError for what does not go together.
    """

    removed: Edges = ()
    kept: Edges | None = None
    probed: Annotated[tuple[tuple[Edge, Natural], ...], BeforeValidator(_probes)] = ()
    layers: Annotated[tuple[Natural, ...], InOrder] | None = None
    heads: Annotated[tuple[tuple[Natural, Natural], ...], InOrder] | None = None

    def __post_init__(self) -> None:
        if self.removed and self.kept is not None:
            raise ValueError("give either the edges that are removed or those that are kept")
        if wrong := [str(edge) for edge, number in self.probed if number < 1]:
            raise ValueError(f"corruption 0 removes edges; list {wrong} as removed, or probe from corruption 1 on")

    @property
    def corruptions(self) -> tuple[int, ...]:
        """The corruptions that it needs donors of, in order."""
        removes = self.removed or self.kept is not None
        return tuple(sorted({number for _, number in self.probed} | ({0} if removes else set())))

    @property
    def named(self) -> tuple[Edge, ...]:
        """The edges that it names, but for what circuits keep of every prompt, whether it is there or not."""
        usual = {edge for circuit in CIRCUITS.values() for edge in circuit}
        kept = [edge for edge in self.kept or () if edge not in usual]
        return (*self.removed, *kept, *(edge for edge, _ in self.probed))

    def codes(self, tokens: TypedTokens) -> Ints:
        """The code of every cell of a prompt, [T, T]; see `kinds`."""
        removed = together(self.removed, tokens) if self.kept is None else removed_by(self.kept, tokens)
        return kinds(removed, [edge for edge, _ in self.probed], tokens)

    def acts(self, layers: int, heads: int) -> Bools:
        """In which heads of a model it acts, [L, H]. Raises ValueError for layers and heads that the model lacks."""
        check_heads(sorted([*((layer, 0) for layer in self.layers or ()), *(self.heads or ())]), layers, heads)
        acts = np.full((layers, heads), self.heads is None)
        for place in self.heads or ():
            acts[place] = True
        if self.layers is not None:
            acts &= np.isin(np.arange(layers), self.layers)[:, None]
        return acts

    def plain(self) -> dict[str, Any]:
        """The same in JSON, and how it is done: keys and values come from donors that have the circuit alone."""
        places: dict[str, Any] = json.loads(json.dumps(vars(self), default=str))
        edges = {name: places.pop(name) for name in ("removed", "kept", "probed")}
        return {**edges, "inside": True, **places, "channel": "kv", "mode": "resample"}


WHOLE = Ablation()


def circuit_ablations(circuit: tuple[Edge, ...], random: int, seed: int) -> dict[str, Ablation]:
    """What a circuit that was found is compared with, by name: FULL and NONE; itself; the model without its type pairs.

    random: and so many random circuits, with as many type pairs; and so many that also have the circuit's reads of the
    last token, if it has others too, by the pairs that were drawn.
    """
    drawn = random_circuits(circuit, random, seed)
    last = [edge for edge in type_pairs(circuit) if edge.target == "last_separator"]
    aggregating = random_circuits(circuit, random, seed, last) if last else []
    return {
        **{name: Ablation(kept=CIRCUITS[name]) for name in (FULL, NONE)},
        FOUND: Ablation(kept=circuit),
        without(FOUND): Ablation(removed=type_pairs(circuit)),
        **{random_name(number): Ablation(kept=kept) for number, kept in enumerate(drawn, 1)},
        **{
            AGGREGATING + ", ".join(str(edge) for edge in type_pairs(kept) if edge not in last): Ablation(kept=kept)
            for kept in aggregating
        },
    }


def cuts(layers: int) -> tuple[int, ...]:
    """Up to nine layers from 0 to `layers`, evenly spaced, the middle one among them: where windows begin or end."""
    half = layers // 2
    below = np.linspace(0, half, min(half, 4) + 1)
    above = np.linspace(half, layers, min(layers - half, 4) + 1)
    return tuple(sorted({round(float(layer)) for layer in (*below, *above)}))


def windows(layers: int, at: Sequence[int], sides: Sequence[str] = WINDOWS) -> dict[str, Ablation]:
    """A family of edges taken out from each of some layers on, or below it, by name. sides: of `edge.HALVES`."""
    ablations = {}
    for layer in at:
        for side in sides:
            family, where = side.split()
            span = range(layer) if where == "below" else range(layer, layers)
            ablations[at_layer(side, layer)] = Ablation(removed=FAMILIES[family], layers=tuple(span))
    return ablations


def single_edges() -> dict[str, Ablation]:
    """Each of TYPE_PAIRS removed alone, by its name."""
    return {str(edge): Ablation(removed=(edge,)) for edge in TYPE_PAIRS}
