"""What is done to edges: which are removed, kept or read from another donor, and the usual series of ablations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator

from util.edges import names
from util.edges.edge import CIRCUITS, FAMILIES, TYPE_PAIRS, Edge, kinds, random_circuits, removed_by, type_pairs
from util.prompts.token_types import TypedTokens
from util.stats.heads import check_heads
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
        removed = self.removed if self.kept is None else removed_by(self.kept, tokens)
        return kinds(removed, [edge for edge, _ in self.probed], tokens)

    def acts(self, layers: int, heads: int) -> NDArray[np.bool_]:
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


def circuit_ablations(circuits: Mapping[str, Sequence[Edge]], random: int, seed: int, like: str) -> dict[str, Ablation]:
    """What circuits are compared by, by name: FULL and NONE; each circuit; the model without its type pairs.

    random: and so many random circuits, with as many type pairs as the circuit `like`. See `edges.names`.
    """
    ablations = {name: Ablation(kept=CIRCUITS[name]) for name in (names.FULL, names.NONE)}
    for name, kept in circuits.items():
        ablations[name] = Ablation(kept=tuple(kept))
        if name not in (names.FULL, names.NONE):
            ablations[names.without(name)] = Ablation(removed=type_pairs(kept))
    drawn = random_circuits(circuits[like], random, seed)
    return ablations | {names.random_circuit(number): Ablation(kept=kept) for number, kept in enumerate(drawn, 1)}


def cuts(layers: int) -> tuple[int, ...]:
    """Up to nine layers from 0 to `layers`, evenly spaced, the middle one among them: where windows begin or end."""
    half = layers // 2
    below = np.linspace(0, half, min(half, 4) + 1)
    above = np.linspace(half, layers, min(layers - half, 4) + 1)
    return tuple(sorted({round(float(layer)) for layer in (*below, *above)}))


def windows(layers: int, at: Sequence[int]) -> dict[str, Ablation]:
    """Contextualisation taken out from each of some layers on, and aggregation below it, by name."""
    ablations = {}
    for layer in at:
        above, below = tuple(range(layer, layers)), tuple(range(layer))
        ablations[names.context_from(layer)] = Ablation(removed=FAMILIES["CONTEXT"], layers=above)
        ablations[names.aggregation_below(layer)] = Ablation(removed=FAMILIES["AGG"], layers=below)
    return ablations


def halves(layers: int) -> dict[str, Ablation]:
    """Contextualisation and aggregation, each taken out of the lower and of the upper half of the layers, by name."""
    half = layers // 2
    return windows(layers, [half]) | {
        names.context_below(half): Ablation(removed=FAMILIES["CONTEXT"], layers=tuple(range(half))),
        names.aggregation_from(half): Ablation(removed=FAMILIES["AGG"], layers=tuple(range(half, layers))),
    }


def probes(kept: Sequence[Edge], probed: Sequence[Edge], corruptions: Sequence[int]) -> dict[str, Ablation]:
    """A circuit, and inside it each edge read from each corruption, by name, see `edges.names`."""
    ablations = {names.CIRCUIT: Ablation(kept=tuple(kept))}
    for number in corruptions:  # the donors of one corruption serve all edges
        for edge in probed:
            ablations[names.read_from(edge, number)] = Ablation(kept=tuple(kept), probed=((edge, number),))
    return ablations


def single_edges() -> dict[str, Ablation]:
    """Each of TYPE_PAIRS removed alone, by its name."""
    return {str(edge): Ablation(removed=(edge,)) for edge in TYPE_PAIRS}
