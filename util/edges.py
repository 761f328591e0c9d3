"""Edges between token types: which cells of attention they are, and circuits made of them (Bakalova et al. 2025).

An edge "y -> last_separator" is every way in which tokens of the second type read tokens of the first, in attention. A
token's own self is never an edge. Types are those of `prompts.TypedTokens`; what is done to edges is an instrument's
matter (`Splice`, `Knockout`).
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.prompts import TypedTokens

Cells = NDArray[np.bool_]  # [T, T], query and key
TYPES = ("bos", "header", "x", "t", "y", "n", "query", "last_separator", "target")
RELATIONS = ("any", "same", "prev", "earlier", "slot")


@dataclass(frozen=True, order=True)
class Edge:
    """All tokens of type `target` reading all of type `source` that stand before them, in a relation of examples.

    "*": any type. relation: "any"; "same" example; "prev", the example before; "earlier" examples; "lag=2" and so on,
    so many before; these leave out what lies within one slot (a name of several tokens), and "slot" is that alone.
    Raises ValueError for an unknown type or relation, with the nearest that there is.
    """

    source: str
    target: str
    relation: str = "any"

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            _check(name.removesuffix("*") or "*", (*TYPES, "*"), "token type")
        if not re.fullmatch(r"lag=[1-9]\d*", self.relation):
            _check(self.relation, RELATIONS, "relation")

    def __str__(self) -> str:
        return f"{self.source}->{self.target}" + ("" if self.relation == "any" else f":{self.relation}")

    @classmethod
    def of(cls, text: str) -> Edge:
        """The edge of "y->last_separator" or "x->y:earlier". Raises ValueError for another form."""
        found = re.fullmatch(r"\s*(\S+?)\s*->\s*([^\s:]+)\s*(?::\s*(\S+))?\s*", text)
        if found is None:
            raise ValueError(f'{text!r} is no edge; write "source->target" or "source->target:relation"')
        return cls(found[1], found[2], found[3] or "any")

    def cells(self, tokens: TypedTokens) -> Cells:
        """Which (query, key) cells of a prompt it is, [T, T]."""
        types, examples, slots = (np.array(part) for part in (tokens.types, tokens.examples, tokens.slots))
        place = np.arange(len(types))
        before, inside = place[None] < place[:, None], slots[:, None] == slots[None]
        lag = examples[:, None] - examples[None]
        related = {
            "any": ~inside,
            "same": (lag == 0) & ~inside,
            "prev": (lag == 1) & ~inside,
            "earlier": (lag > 0) & ~inside,
            "slot": inside,
        }
        relation = related[self.relation] if self.relation in related else lag == int(self.relation[4:])
        reads = _are(types, self.target)[:, None] & _are(types, self.source)[None]
        return before & relation & reads


def _check(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f", did you mean {near[0]!r}" if near else ""
        raise ValueError(f"unknown {what} {name!r}{meant}; there are {', '.join(known)}")


def _are(types: NDArray[np.str_], name: str) -> Cells:
    return np.ones(len(types), bool) if name == "*" else types == name


def edges(*texts: str, relation: str = "") -> tuple[Edge, ...]:
    """Edges of texts such as "x,t -> y,n", every source with every target."""
    found = []
    for text in texts:
        sources, _, targets = text.partition("->")
        for source in sources.split(","):
            for target in targets.split(","):
                found.append(Edge(source.strip(), target.strip(), relation or "any"))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ families and circuits

FAMILIES: Mapping[str, tuple[Edge, ...]] = {
    "WITHIN": (
        *edges("x->t", "x,t->y", "x,t,y->n", relation="same"),
        *edges("*->*", relation="slot"),
    ),
    "CONTEXT": edges("x,t,y,n->x,t,y,n", relation="earlier"),
    "CONTEXT_IO": edges("x,y->x,y", relation="earlier"),
    "TOQUERY": edges("x,t,y,n->query"),
    "QUERY": edges("query->last_separator"),
    "AGG": edges("x,t,y,n->last_separator"),
    "AGG_Y": edges("y->last_separator"),
    "ANCHOR": edges("bos->*"),
}
_WHOLE_SLOTS = edges("*->*", relation="slot")
_AGGREGATE = ("WITHIN", "AGG", "QUERY", "ANCHOR")
_KEPT = {
    "CTX+AGG": (*_AGGREGATE, "CONTEXT"),
    "CTX_IO+AGG": ("AGG_Y", "QUERY", "ANCHOR", "WITHIN", "CONTEXT_IO"),
    "AGG-ONLY": _AGGREGATE,
}
# what is kept; all other edges are taken out
CIRCUITS: Mapping[str, tuple[Edge, ...]] = {
    "FULL": edges("*->*") + _WHOLE_SLOTS,
    **{name: tuple(edge for family in kept for edge in FAMILIES[family]) for name, kept in _KEPT.items()},
    "NONE": FAMILIES["ANCHOR"] + _WHOLE_SLOTS,
}


# ------------------------------------------------------------------------------------------------ sets of edges


def together(found: Sequence[Edge], tokens: TypedTokens) -> Cells:
    """The cells of several edges."""
    size = len(tokens.ids)
    return np.any([edge.cells(tokens) for edge in found], axis=0) if found else np.zeros((size, size), bool)


def removed_by(kept: Sequence[Edge], tokens: TypedTokens) -> Cells:
    """The cells that are taken out where only `kept` is left."""
    return np.tri(len(tokens.ids), k=-1, dtype=bool) & ~together(kept, tokens)


def kinds(removed: Sequence[Edge] | Cells, probed: Sequence[Edge], tokens: TypedTokens) -> NDArray[np.int64]:
    """A code for every cell, [T, T], as `Splice` takes them: 1 what is removed, 2 and so on the probed edges in order.

    Raises ValueError where a cell would have two codes.
    """
    first = removed if isinstance(removed, np.ndarray) else together(removed, tokens)
    codes = first.astype(np.int64)
    for number, edge in enumerate(probed, 2):
        cells = edge.cells(tokens)
        if (codes[cells] != 0).any():
            others = ["what is removed", *map(str, probed)]
            other = others[int(codes[cells].max()) - 1]
            raise ValueError(f"{edge} and {other} have cells in common; an edge can be read from one donor alone")
        codes[cells] = number
    return codes


def check_matched(found: Sequence[Edge], prompts: Sequence[TypedTokens]) -> None:
    """Warns of edges that are in none of the prompts."""
    for edge in found:
        if not any(edge.cells(tokens).any() for tokens in prompts):
            warnings.warn(f"the edge {edge} is in none of the {len(prompts)} prompts", stacklevel=2)
