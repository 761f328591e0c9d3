"""What is done to edges: which are removed, kept or read from another donor, and the usual series of ablations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator

from util.edges.edge import (
    AGGREGATING,
    CIRCUITS,
    FAMILIES,
    FOUND,
    FULL,
    NONE,
    TYPE_PAIRS,
    WINDOWS,
    Edge,
    at_layer,
    kinds,
    random_circuits,
    random_name,
    removed_by,
    together,
    type_pairs,
    without,
)
from util.prompts.prompt import TypedTokens
from util.stats.heads import Bools, check_heads
from util.study.checked import Natural, checked


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

    def codes(self, tokens: TypedTokens) -> NDArray[np.int64]:
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


def circuit_ablations(found: tuple[Edge, ...], random: int, seed: int) -> dict[str, Ablation]:
    """What a circuit that was found is compared with, by name: FULL and NONE; itself; the model without its type pairs.

    random: and so many random circuits, with as many type pairs; and so many that also have the circuit's reads of the
    last token, if it has others too, by the pairs that were drawn.
    """
    drawn = random_circuits(found, random, seed)
    last = [edge for edge in type_pairs(found) if edge.target == "last_separator"]
    aggregating = random_circuits(found, random, seed, last) if last else []
    return {
        **{name: Ablation(kept=CIRCUITS[name]) for name in (FULL, NONE)},
        FOUND: Ablation(kept=found),
        without(FOUND): Ablation(removed=type_pairs(found)),
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
