"""Units of a model by token type, circuits of them, and which of them a round of pruning keeps (Bakalova et al. 2025).

A head unit is a head at all tokens of one type. An edge unit is a head that reads one type from tokens of another. The
units of a model have a fixed order: by layer, by head, and then by kind as the kinds are listed. Ties of scores are
broken by it. Layers are counted from 0, among those that have attention.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import TYPE_PAIRS, TYPES, Edge, check_known
from util.prompts.token_types import TypedTokens
from util.show.files import write_whole
from util.stats.heads import head_name

# The types that heads are pruned at. At bos and header heads put out the same on a prompt and on its donor, which begin
# alike. At the tokens of the answer they are pruned only where "target" is named.
HEAD_TYPES = ("x", "t", "y", "n", "query", "last_separator")
Sort = Literal["head", "edge"]
SORTS: tuple[Sort, ...] = ("head", "edge")
Alive = NDArray[np.bool_]  # [L, H, K]
Floats = NDArray[np.floating]


@dataclass(frozen=True, order=True)
class HeadUnit:
    """A head at all tokens of a type. Its name is such as "L2H5 last_separator"."""

    layer: int
    head: int
    target: str

    def __str__(self) -> str:
        return f"{head_name((self.layer, self.head))} {self.target}"


@dataclass(frozen=True, order=True)
class EdgeUnit:
    """An edge between token types in one head. Its name is such as "L2H5 x->y:earlier"."""

    layer: int
    head: int
    edge: Edge

    def __str__(self) -> str:
        return f"{head_name((self.layer, self.head))} {self.edge}"


Unit = HeadUnit | EdgeUnit


def unit_of(name: str) -> Unit:
    """The unit of a name. Raises ValueError for another form and for unknown types."""
    match = re.fullmatch(r"L(\d+)H(\d+) (\S+)", name)
    if match is None:
        raise ValueError(f'{name!r} is no unit; write "L2H5 y" or "L2H5 x->y:earlier"')
    layer, head, kind = int(match[1]), int(match[2]), match[3]
    if "->" in kind:
        return EdgeUnit(layer, head, Edge.of(kind))
    check_known(kind, TYPES, "token type")
    return HeadUnit(layer, head, kind)


@dataclass(frozen=True)
class Units:
    """All units of one sort of a model, in order. kinds: token types for head units, edges for edge units.

    Raises ValueError for an unknown type and for kinds of both sorts.
    """

    layers: int
    heads: int
    kinds: tuple[str, ...] | tuple[Edge, ...]

    def __post_init__(self) -> None:
        of_edges = {isinstance(kind, Edge) for kind in self.kinds}
        if len(of_edges) != 1 or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds = {[*map(str, self.kinds)]}: give token types or edges, none of them twice")
        for kind in self.kinds:
            if isinstance(kind, str):
                check_known(kind, TYPES, "token type")

    @property
    def sort(self) -> Sort:
        """Which sort of units they are."""
        return "edge" if isinstance(self.kinds[0], Edge) else "head"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape [L, H, K] of arrays of units."""
        return self.layers, self.heads, len(self.kinds)

    def __len__(self) -> int:
        return self.layers * self.heads * len(self.kinds)

    def unit(self, layer: int, head: int, place: int) -> Unit:
        """The unit of an index into an array [L, H, K]."""
        kind = self.kinds[place]
        return EdgeUnit(layer, head, kind) if isinstance(kind, Edge) else HeadUnit(layer, head, kind)

    def place(self, unit: Unit) -> tuple[int, int, int]:
        """The index of a unit into an array [L, H, K]. Raises ValueError for a unit that is none of these."""
        kind: Any = unit.edge if isinstance(unit, EdgeUnit) else unit.target
        if kind not in self.kinds or unit.layer >= self.layers or unit.head >= self.heads:
            raise ValueError(f"{unit} is none of the {len(self)} {self.sort} units")
        return unit.layer, unit.head, self.kinds.index(kind)

    def of(self, chosen: Alive) -> list[Unit]:
        """The units that are True in an array [L, H, K], in order."""
        return [self.unit(*map(int, place)) for place in np.argwhere(chosen)]

    def names(self) -> list[str]:
        """The names of all units, in order."""
        return [str(unit) for unit in self.of(np.ones(self.shape, bool))]


# ------------------------------------------------------------------------------------------------ circuits of units


@dataclass(frozen=True, eq=False)
class Circuit:
    """A model with some units pruned.

    heads, edges: its units; living_heads, living_edges: which of them are alive [L, H, K]; start: edges that are
    removed beforehand, in every head or in some. The output of a dead head unit is that of the plain run on the donor.
    A dead edge unit reads the donor's keys and values. Raises ValueError for arrays of other shapes, and for a start
    that does more than remove edges: the donor of every unit is corruption 0.
    """

    heads: Units
    edges: Units
    living_heads: Alive
    living_edges: Alive
    start: Ablation = WHOLE

    def __post_init__(self) -> None:
        for units, living in ((self.heads, self.living_heads), (self.edges, self.living_edges)):
            if living.shape != units.shape or living.dtype != bool:
                raise ValueError(
                    f"living {units.sort} units: {living.dtype} {living.shape}; give bool {units.shape}, one for each"
                )
        if self.start.probed or self.start.mode != "resample" or self.start.channel != "kv":
            raise ValueError("start: remove edges, keys and values, by corruption 0; nothing else goes with pruning")

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
        if prompts:
            types = [name for name in types if any(name in plain_types(tokens) for tokens in prompts)]
            kinds = [edge for edge in kinds if any(edge.cells(tokens).any() for tokens in _layouts(prompts))]
        units = Units(layers, heads, tuple(types)), Units(layers, heads, tuple(kinds))
        living = np.ones(units[1].shape, bool)
        layouts = _layouts(prompts)
        removed = [start.codes(tokens) == 1 for tokens in layouts]
        for place, edge in enumerate(kinds if layouts else ()):
            if all(codes[edge.cells(tokens)].all() for tokens, codes in zip(layouts, removed, strict=True)):
                living[:, :, place] = ~removes(start, layers, heads)
        return cls(*units, np.ones(units[0].shape, bool), living, start)

    def units(self, sort: Sort) -> Units:
        """The units of a sort."""
        return self.heads if sort == "head" else self.edges

    def living(self, sort: Sort) -> Alive:
        """Which units of a sort are alive [L, H, K]."""
        return self.living_heads if sort == "head" else self.living_edges

    def count(self, sort: Sort) -> int:
        """How many units of a sort are alive."""
        return int(self.living(sort).sum())

    def names(self, sort: Sort) -> tuple[str, ...]:
        """The names of the living units of a sort, in order."""
        return tuple(map(str, self.units(sort).of(self.living(sort))))

    def keeping(self, sort: Sort, living: Alive) -> Circuit:
        """The circuit with these units [L, H, K] of a sort alive."""
        if sort == "head":
            return replace(self, living_heads=living.copy())
        return replace(self, living_edges=living.copy())

    def without(self, *dead: Unit) -> Circuit:
        """The circuit with some more units dead. Raises ValueError for a unit that it does not have."""
        circuit = self
        for unit in dead:
            sort: Sort = "edge" if isinstance(unit, EdgeUnit) else "head"
            living = circuit.living(sort).copy()
            living[self.units(sort).place(unit)] = False
            circuit = circuit.keeping(sort, living)
        return circuit

    def without_idle_edges(self) -> Circuit:
        """The same circuit; edge units into dead head units, which change nothing, are dead too."""
        living = self.living_edges.copy()
        for place, edge in enumerate(self.edges.kinds):
            assert isinstance(edge, Edge)
            if edge.target in self.heads.kinds:
                living[:, :, place] &= self.living_heads[:, :, self.heads.kinds.index(edge.target)]
        return self.keeping("edge", living)

    @cached_property
    def digest(self) -> str:
        """16 hex digits of all that decides what the circuit computes."""
        named = [self.heads.layers, self.heads.heads, *map(list, (self.heads.kinds, map(str, self.edges.kinds)))]
        text = json.dumps([*named, self.start.plain()])
        packed = b"".join(np.packbits(living).tobytes() for living in (self.living_heads, self.living_edges))
        return sha256(text.encode() + packed).hexdigest()[:16]


def plain_types(tokens: TypedTokens) -> tuple[str, ...]:
    """The types of the tokens [T], those of marked demonstrations without their mark."""
    return tuple(name.rstrip("*") for name in tokens.types)


def _layouts(prompts: Sequence[TypedTokens]) -> list[TypedTokens]:
    """One prompt of each layout."""
    return list({(tokens.types, tokens.examples, tokens.slots): tokens for tokens in prompts}.values())


def removes(start: Ablation, layers: int, heads: int) -> Alive:
    """Where an ablation acts, [L, H]."""
    acts = np.ones((layers, heads), bool)
    if start.layers is not None:
        acts &= np.isin(np.arange(layers), start.layers)[:, None]
    if start.heads is not None:
        acts &= np.array([[(layer, head) in start.heads for head in range(heads)] for layer in range(layers)])
    return acts


# ------------------------------------------------------------------------------------------------ what is kept


def kept(scores: Floats, living: Alive, keep: int) -> Alive:
    """Which units [L, H, K] stay: the `keep` of the living ones with the highest scores [L, H, K]; ties by order.

    Raises ValueError for scores of another shape, for NaN as the score of a living unit, and if `keep` are not alive.
    """
    if scores.shape != living.shape or np.isnan(scores[living]).any():
        raise ValueError(f"scores {scores.shape} of units {living.shape}: give a number for each of the living units")
    if not 0 <= keep <= living.sum():
        raise ValueError(f"keep = {keep}: {int(living.sum())} units are alive")
    order = np.argsort(np.where(living, -scores, np.inf), axis=None, kind="stable")
    stays = np.zeros(living.size, bool)
    stays[order[:keep]] = True
    return stays.reshape(living.shape) & living


def check_keep(keep: Sequence[int], living: int) -> None:
    """Raises ValueError unless `keep` can be the numbers of units that are left by each round, of `living` units.

    They are whole numbers from 0 on, and none is larger than the one before.
    """
    numbers = [living, *keep]
    if any(isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0 for number in numbers):
        raise ValueError(f"keep = {[*keep]}: give whole numbers from 0 on")
    if any(after > before for before, after in pairwise(numbers)):
        raise ValueError(f"keep = {[*keep]}: {living} units are alive, and no round has more than the one before")


def next_keep(living: int, share: float = 0.1) -> int:
    """How many of the living units the next round keeps: a share of them goes, rounded up, and at least one."""
    tiny = 1e-9  # 0.1 * 70 is 7, whatever the rounding of floats
    goes = math.ceil(living * share - tiny)
    return max(0, living - max(1, goes))


def random_living(circuit: Circuit, like: Circuit, sort: Sort, draws: int, seed: int = 0) -> list[Alive]:
    """Random prunings of a circuit: sets of its living units [L, H, K], each as large as that of `like`.

    All sets differ from each other and from that of `like`. There are fewer than `draws` where so many are not found,
    and none where `like` has all units of the circuit, or none of them.
    """
    rng, places = np.random.default_rng(seed), np.flatnonzero(circuit.living(sort))
    size = like.count(sort)
    if size in (0, len(places)):
        return []
    found: dict[bytes, Alive] = {}
    for _ in range(20 * draws):
        if len(found) == draws:
            break
        living = np.zeros(len(circuit.units(sort)), bool)
        living[rng.choice(places, size, replace=False)] = True
        if (living != like.living(sort).ravel()).any():
            found.setdefault(living.tobytes(), living.reshape(circuit.units(sort).shape))
    return list(found.values())


# ------------------------------------------------------------------------------------------------ files of scores


def write_scores(path: Path, circuit: Circuit, sort: Sort, scores: Floats, **about: Any) -> None:
    """Write the scores [L, H, K] that the units of a circuit had, as JSON with the units' names.

    about: what else the file says. "parent" in the file is the digest of the circuit.
    """
    units = circuit.units(sort)
    lines = {
        "sort": sort,
        "parent": circuit.digest,
        **about,
        "scores": dict(zip(units.names(), scores.ravel().tolist(), strict=True)),
    }
    write_whole(path, json.dumps(lines, indent=0) + "\n")


def read_scores(path: Path, circuit: Circuit, sort: Sort) -> Floats:
    """The scores [L, H, K] of a file, for the circuit in which they were measured.

    Raises ValueError, naming the file, for scores of other units or of another circuit.
    """
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
        given, parent, scores = lines["sort"], lines["parent"], lines["scores"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no scores of units: {error!r}") from error
    names = circuit.units(sort).names()
    if given != sort or [*scores] != names:
        raise ValueError(f"{path}: scores of {len(scores)} {given} units; the circuit has {len(names)} {sort} units")
    if parent != circuit.digest:
        raise ValueError(f"{path}: its scores were measured in the circuit {parent}, this one is {circuit.digest}")
    return np.array([scores[name] for name in names], float).reshape(circuit.units(sort).shape)
