"""Units of a model by token type, and their pruning (Bakalova et al., COLM 2025).

A head unit is a head at all tokens of one type. An edge unit is a head that reads one type from tokens of another. The
units of a model have a fixed order: by layer, by head, and then by kind as the kinds are listed. Ties of scores are
broken by it. Layers are counted from 0, among those that have attention.

Pruning is iterated: score the living units, prune those with the lowest scores, and again.

A round measures the circuit as it is: its accuracy, and the scores of its units in it. Where the accuracy is too low,
pruning ends, and the circuit of the last round that was good enough is the result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from util.edges.edge import TYPE_PAIRS, WHOLE, Ablation, Edge
from util.paths import write_whole
from util.prompts.prompt import TypedTokens
from util.stats.heads import Bools, Floats, head_name

# The types that heads are pruned at. At bos and header heads put out the same on a prompt and on its donor, which begin
# alike. At the tokens of the answer they are pruned only where "target" is named.
HEAD_TYPES = ("x", "t", "y", "n", "query", "last_separator")
Sort = Literal["head", "edge"]
SORTS: tuple[Sort, ...] = ("head", "edge")
Alive = Bools  # [L, H, K]


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
    def whole(cls, layers: int, heads: int, prompts: Sequence[TypedTokens], start: Ablation = WHOLE) -> Circuit:
        """The circuit of all units: of HEAD_TYPES and TYPE_PAIRS those that occur in any of these prompts.

        An edge unit is dead if `start` removes all of its cells.
        """
        layouts = list({(tokens.types, tokens.examples, tokens.slots): tokens for tokens in prompts}.values())
        types = tuple(name for name in HEAD_TYPES if any(name in plain_types(tokens) for tokens in layouts))
        kinds = tuple(edge for edge in TYPE_PAIRS if any(edge.cells(tokens).any() for tokens in layouts))
        living = np.ones((layers, heads, len(kinds)), bool)
        removed = [start.codes(tokens) == 1 for tokens in layouts]
        for place, edge in enumerate(kinds):
            if all(codes[edge.cells(tokens)].all() for tokens, codes in zip(layouts, removed, strict=True)):
                living[:, :, place] = ~start.acts(layers, heads)
        return cls(types, kinds, np.ones((layers, heads, len(types)), bool), living, start)

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


class Pruning(NamedTuple):
    """The circuits of all rounds of pruning units, the unpruned one first, and how many units each has.

    accuracy: what each answers right of the prompts that units are scored on, shares from 0 to 1. result: the smallest
    circuit before the accuracy fell below the floor; the unpruned one where that lies below it.
    """

    circuits: list[Circuit]
    accuracy: list[float]
    units_left: list[int]
    result: Circuit
    floor: float


def prune(
    measure: Callable[[Circuit, int], tuple[Bools, Floats]],
    start: Circuit,
    sort: Sort,
    floor: float,
    share: float = 0.1,
    keep: Sequence[int] | None = None,
) -> Pruning:
    """Prune units of one sort, round by round, until the accuracy falls below `floor` or no unit is left.

    measure: of a circuit and the number of its round, in which dead units have no effect: which prompts are answered
    right [N], and the scores [L, H, K]. share: of the living units, goes in each round, rounded up, and one at least.
    keep: instead, round i leaves keep[i] units, whatever the accuracy, as the reference code's `prune_k`. Raises
    ValueError for a round that would have more units than the one before.
    """
    circuits, accuracy, left = [start], list[float](), list[int]()
    for number in count():
        circuit = circuits[-1]
        right, scores = measure(circuit, number)
        accuracy.append(float(right.mean()))
        left.append(circuit.count(sort))
        fell = keep is None and accuracy[-1] < floor - 1e-9
        ended = not left[-1] if keep is None else number == len(keep)
        if fell or ended:
            break
        goes = max(1, math.ceil(left[-1] * share - 1e-9))  # 0.1 * 70 is 7, whatever the rounding of floats
        fewer = left[-1] - goes if keep is None else keep[number]
        circuits.append(circuit.keeping(sort, kept(scores, circuit.living(sort), fewer)))
    return Pruning(circuits, accuracy, left, circuits[max(0, number - 1)] if fell else circuit, floor)


def kept(scores: Floats, living: Alive, keep: int) -> Alive:
    """Which units [L, H, K] stay: the `keep` of the living ones with the highest scores [L, H, K]; ties by order.

    Raises ValueError for scores of another shape, for NaN as the score of a living unit, and if `keep` are not alive.
    """
    if scores.shape != living.shape or np.isnan(scores[living]).any():
        raise ValueError(f"scores {scores.shape} of units {living.shape}: give a number for each of the living units")
    if not 0 <= keep <= living.sum():
        raise ValueError(f"keep = {keep}: {int(living.sum())} units are alive")
    order = np.argsort(np.where(living, -scores, np.inf), axis=None, kind="stable")
    stays = np.zeros(living.shape, bool)
    stays.flat[order[:keep]] = True
    return stays & living


def random_living(circuit: Circuit, like: Circuit, sort: Sort, draws: int, seed: int = 0) -> list[Alive]:
    """Random prunings of a circuit: sets of its living units [L, H, K], each as large as that of `like`.

    All sets differ from each other and from that of `like`. There are fewer than `draws` where so many are not found,
    and none where `like` has all units of the circuit, or none of them.
    """
    rng, living = np.random.default_rng(seed), circuit.living(sort)
    places, size, compared = np.flatnonzero(living), like.count(sort), like.living(sort)
    sets: dict[bytes, Alive] = {}
    for _ in range(20 * draws if 0 < size < len(places) else 0):
        chosen = np.zeros(living.shape, bool)
        chosen.flat[rng.choice(places, size, replace=False)] = True
        if len(sets) < draws and (chosen != compared).any():
            sets.setdefault(chosen.tobytes(), chosen)
    return list(sets.values())


# ------------------------------------------------------------------------------------------------ files of scores


def write_scores(path: Path, circuit: Circuit, sort: Sort, scores: Floats, **fields: Any) -> None:
    """Write the scores [L, H, K] that the units of a circuit had, as JSON with the units' names.

    fields: what else the file says. "parent" in the file is the digest of the circuit.
    """
    named = dict(zip(circuit.all_names(sort), scores.ravel().tolist(), strict=True))
    lines = {"sort": sort, "parent": circuit.digest, **fields, "scores": named}
    write_whole(path, json.dumps(lines, indent=0) + "\n")


def scores_in(path: Path) -> tuple[Sort, str, dict[str, float]]:
    """The sort of a file's units, the digest of their circuit, and their scores by name.

    Raises ValueError, naming the file, where it holds no scores.
    """
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
        return lines["sort"], lines["parent"], lines["scores"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no scores of units: {error!r}") from error


def read_scores(path: Path, circuit: Circuit, sort: Sort) -> Floats:
    """The scores [L, H, K] of a file, for the circuit in which they were measured.

    Raises ValueError, naming the file, for scores of other units or of another circuit.
    """
    given, parent, scores = scores_in(path)
    names = circuit.all_names(sort)
    if given != sort or [*scores] != names:
        raise ValueError(f"{path}: scores of {len(scores)} {given} units; the circuit has {len(names)} {sort} units")
    if parent != circuit.digest:
        raise ValueError(f"{path}: its scores were measured in the circuit {parent}, this one is {circuit.digest}")
    return np.array([*scores.values()], float).reshape(circuit.living(sort).shape)
