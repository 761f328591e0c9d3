"""Units of a model by token type, and circuits of them (Bakalova et al. 2025).

A head unit is a head at all tokens of one type. An edge unit is a head that reads one type from tokens of another. The
units of a model have a fixed order: by layer, by head, and then by kind as the kinds are listed. Ties of scores are
broken by it. Layers are counted from 0, among those that have attention.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import TYPE_PAIRS, Edge
from util.prompts.token_types import TypedTokens
from util.stats.heads import head_name

# The types that heads are pruned at. At bos and header heads put out the same on a prompt and on its donor, which begin
# alike. At the tokens of the answer they are pruned only where "target" is named.
HEAD_TYPES = ("x", "t", "y", "n", "query", "last_separator")
Sort = Literal["head", "edge"]
SORTS: tuple[Sort, ...] = ("head", "edge")
Alive = NDArray[np.bool_]  # [L, H, K]
Floats = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Circuit:
    """A model with some units pruned.

    types: the token types of head units; kinds: the edges of edge units. living_heads, living_edges: which units are
    alive [L, H, K]. start: edges that are removed beforehand, in every head or in some. The output of a dead head unit
    is that of the plain run on the donor. A dead edge unit reads the donor's keys and values. Raises ValueError for a
    start that does more than remove edges: the donor of every unit is corruption 0.
    """

    types: tuple[str, ...]
    kinds: tuple[Edge, ...]
    living_heads: Alive
    living_edges: Alive
    start: Ablation = WHOLE

    def __post_init__(self) -> None:
        if self.start.probed:
            raise ValueError("start: remove edges by corruption 0; nothing else goes with pruning")

    @classmethod
    def whole(
        cls,
        layers: int,
        heads: int,
        prompts: Sequence[TypedTokens] = (),
        start: Ablation = WHOLE,
        types: Sequence[str] = HEAD_TYPES,
        kinds: Sequence[Edge] = TYPE_PAIRS,
    ) -> Circuit:
        """The circuit of all units.

        prompts: types and kinds that occur in none of them are left out, and an edge unit is dead if `start` removes
        all of its cells. Without prompts there are units of all types and kinds, and all are alive.
        """
        layouts = list({(tokens.types, tokens.examples, tokens.slots): tokens for tokens in prompts}.values())
        if prompts:
            types = [name for name in types if any(name in plain_types(tokens) for tokens in layouts)]
            kinds = [edge for edge in kinds if any(edge.cells(tokens).any() for tokens in layouts)]
        living = np.ones((layers, heads, len(kinds)), bool)
        removed = [start.codes(tokens) == 1 for tokens in layouts]
        for place, edge in enumerate(kinds if layouts else ()):
            if all(codes[edge.cells(tokens)].all() for tokens, codes in zip(layouts, removed, strict=True)):
                living[:, :, place] = ~start.acts(layers, heads)
        return cls(tuple(types), tuple(kinds), np.ones((layers, heads, len(types)), bool), living, start)

    def living(self, sort: Sort) -> Alive:
        """Which units of a sort are alive [L, H, K]."""
        return self.living_heads if sort == "head" else self.living_edges

    def count(self, sort: Sort) -> int:
        """How many units of a sort are alive."""
        return int(self.living(sort).sum())

    def all_names(self, sort: Sort) -> list[str]:
        """The names of all units of a sort, in order, such as "L2H5 y" and "L2H5 x->y:earlier"."""
        kinds = self.types if sort == "head" else self.kinds
        heads = np.ndindex(self.living_heads.shape[:2])
        return [f"{head_name((layer, head))} {kind}" for layer, head in heads for kind in kinds]

    def names(self, sort: Sort) -> list[str]:
        """The names of the living units of a sort, in order."""
        return [name for name, alive in zip(self.all_names(sort), self.living(sort).flat, strict=True) if alive]

    def keeping(self, sort: Sort, living: Alive) -> Circuit:
        """The circuit with these units [L, H, K] of a sort alive."""
        if sort == "head":
            return replace(self, living_heads=living)
        return replace(self, living_edges=living)

    def without_idle_edges(self) -> Circuit:
        """The same circuit; edge units into dead head units, which change nothing, are dead too."""
        living = self.living_edges.copy()
        for place, edge in enumerate(self.kinds):
            if edge.target in self.types:
                living[:, :, place] &= self.living_heads[:, :, self.types.index(edge.target)]
        return self.keeping("edge", living)

    @cached_property
    def digest(self) -> str:
        """16 hex digits of all that decides what the circuit computes."""
        named = [*self.living_heads.shape[:2], list(self.types), [*map(str, self.kinds)], self.start.plain()]
        packed = b"".join(np.packbits(self.living(sort)).tobytes() for sort in SORTS)
        return sha256(json.dumps(named).encode() + packed).hexdigest()[:16]


def plain_types(tokens: TypedTokens) -> tuple[str, ...]:
    """The types of the tokens [T], those of marked demonstrations without their mark."""
    return tuple(name.rstrip("*") for name in tokens.types)
