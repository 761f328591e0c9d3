"""What is done to edges: which are removed, kept or read from another donor, and the usual series of ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.edges import names
from util.edges.edge import (
    CIRCUITS,
    FAMILIES,
    TYPE_PAIRS,
    Edge,
    check_known,
    kinds,
    random_circuits,
    removed_by,
    type_pairs,
)
from util.prompts.token_types import TypedTokens

MODES = ("resample", "knockout")
CHANNELS = ("kv", "k", "v")


@dataclass(frozen=True)
class Ablation:
    """What is done to the edges of a model (Bakalova et al. 2025).

    Edges may be given as text, "x->y:earlier", and by the names of FAMILIES and CIRCUITS.

    removed: edges whose keys and values come from corruption 0; or kept: all edges but these are. probed: edges, kept
    ones, with the number of the corruption that they are read from; inside: that donor is run with the removed edges
    taken out of it too, so that it cannot use what the circuit has not, otherwise it is a plain run. layers, heads
    (layer, head): where this is done, None for everywhere; layers are counted among those that have attention. channel:
    what comes from the donor, "kv", "k" or "v". mode "knockout": the removed edges are not read at all, instead of from
    a donor.
    Raises ValueError for what does not go together.
    """

    removed: tuple[Edge, ...] = ()
    kept: tuple[Edge, ...] | None = None
    probed: tuple[tuple[Edge, int], ...] = ()
    inside: bool = True
    layers: tuple[int, ...] | None = None
    heads: tuple[tuple[int, int], ...] | None = None
    channel: str = "kv"
    mode: str = MODES[0]

    def __post_init__(self) -> None:
        probed = self.probed.items() if isinstance(self.probed, Mapping) else self.probed
        layers = (self.layers,) if isinstance(self.layers, int | float) else self.layers
        tidy: dict[str, Any] = {
            "removed": _named(self.removed),
            "kept": None if self.kept is None else _named(self.kept),
            "probed": tuple((edge, int(number)) for given, number in probed for edge in _named([given])),
            "layers": None if layers is None else tuple(sorted(set(layers))),
            "heads": None if self.heads is None else tuple(sorted({_pair(head) for head in self.heads})),
        }
        for name, value in tidy.items():
            object.__setattr__(self, name, value)
        _check_places(self.layers, self.heads)
        check_known(self.mode, MODES, "mode")
        check_known(self.channel, CHANNELS, "channel")
        if self.removed and self.kept is not None:
            raise ValueError("give either the edges that are removed or those that are kept")
        if wrong := [str(edge) for edge, number in self.probed if number < 1]:
            raise ValueError(f"corruption 0 removes edges; list {wrong} as removed, or probe from corruption 1 on")
        if self.mode == "knockout" and (self.probed or self.channel != "kv"):
            raise ValueError("a knocked-out edge is not read at all: neither probed edges nor channels go with it")

    @property
    def corruptions(self) -> tuple[int, ...]:
        """The corruptions that it needs donors of, in order."""
        removes = (self.removed or self.kept is not None) and self.mode != "knockout"
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

    def plain(self) -> dict[str, Any]:
        """The same in JSON; `Ablation(**plain)` is equal."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("removed", "kept", "probed")}
        lists = {name: None if fields[name] is None else [*map(_listed, fields[name])] for name in ("layers", "heads")}
        return {
            "removed": [str(edge) for edge in self.removed],
            "kept": None if self.kept is None else [str(edge) for edge in self.kept],
            "probed": [[str(edge), number] for edge, number in self.probed],
            **fields,
            **lists,
        }


def _check_places(layers: tuple[int, ...] | None, heads: tuple[tuple[int, int], ...] | None) -> None:
    """Raises ValueError for layers and heads that are not counted from 0: shares of the depth, negative ones."""
    for name, numbers in (("layers", layers or ()), ("heads", [number for head in heads or () for number in head])):
        if wrong := [number for number in numbers if not _is_natural(number)]:
            raise ValueError(f"{name}: {wrong} are no numbers of {name}; give whole numbers from 0 on")


def _pair(head: Any) -> tuple[int, int]:
    """A head as a pair. Raises ValueError for what is none."""
    try:
        layer, number = head
    except (TypeError, ValueError):
        raise ValueError(f"heads: {head!r} is no head; give a list of (layer, head)") from None
    return layer, number


def _is_natural(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 0


def _named(given: Sequence[Edge | str] | str) -> tuple[Edge, ...]:
    sets, given = {**FAMILIES, **CIRCUITS}, [given] if isinstance(given, str) else given
    parts = [(edge,) if isinstance(edge, Edge) else sets.get(edge) or (Edge.of(edge),) for edge in given]
    return tuple(edge for part in parts for edge in part)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


WHOLE = Ablation()


def circuit_ablations(
    circuits: Mapping[str, Sequence[Edge]], random: int = 0, seed: int = 0, like: str | None = None
) -> dict[str, Ablation]:
    """What circuits are compared by, by name: FULL and NONE; each circuit; the model without its type pairs.

    random: and so many random circuits with as many type pairs as the circuit `like`. See `edges.names`.
    """
    ablations = {name: Ablation(kept=CIRCUITS[name]) for name in (names.FULL, names.NONE)}
    for name, kept in circuits.items():
        ablations[name] = Ablation(kept=tuple(kept))
        if name not in (names.FULL, names.NONE):
            ablations[names.without(name)] = Ablation(removed=type_pairs(kept))
    drawn = random_circuits(circuits[like], random, seed) if like is not None else []
    return ablations | {names.random_circuit(number): Ablation(kept=kept) for number, kept in enumerate(drawn, 1)}


def cuts(layers: int, count: int = 9) -> tuple[int, ...]:
    """Up to `count` layers from 0 to `layers`, evenly spaced, the middle one among them: where windows begin or end.

    Raises ValueError for fewer than three.
    """
    if count < 3:
        raise ValueError(
            f"{count} cuts of {layers} layers: the first, the middle and the last are needed; take 3 or more"
        )
    half = layers // 2
    below = np.linspace(0, half, min(half, (count - 1) // 2) + 1)
    above = np.linspace(half, layers, min(layers - half, count // 2) + 1)
    return tuple(sorted({round(float(layer)) for layer in (*below, *above)}))


def windows(layers: int, at: Sequence[int] | None = None) -> dict[str, Ablation]:
    """Contextualisation taken out from a layer on, and aggregation below a layer, by name; at: default, every layer."""
    ablations = {}
    for layer in range(layers + 1) if at is None else at:
        above, below = tuple(range(layer, layers)), tuple(range(layer))
        ablations[names.context_from(layer)] = Ablation(removed=FAMILIES["CONTEXT"], layers=above)
        ablations[names.aggregation_below(layer)] = Ablation(removed=FAMILIES["AGG"], layers=below)
    return ablations


def halves(layers: int) -> dict[str, Ablation]:
    """Contextualisation and aggregation, each taken out of the lower and of the upper half of the layers, by name."""
    half = layers // 2
    lower, upper = tuple(range(half)), tuple(range(half, layers))
    context, aggregation = FAMILIES["CONTEXT"], FAMILIES["AGG"]
    return {
        names.context_below(half): Ablation(removed=context, layers=lower),
        names.context_from(half): Ablation(removed=context, layers=upper),
        names.aggregation_below(half): Ablation(removed=aggregation, layers=lower),
        names.aggregation_from(half): Ablation(removed=aggregation, layers=upper),
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


def completeness(kept: Sequence[Edge], families: Sequence[str]) -> dict[str, Ablation]:
    """Each family of edges taken out of the whole model, and out of a circuit that was found."""
    ablations = {}
    for family in families:
        members = type_pairs(FAMILIES[family])
        inside = tuple(edge for edge in kept if edge not in members)
        ablations[names.without(family)] = Ablation(removed=members)
        ablations[names.without(family, names.FOUND)] = Ablation(kept=inside)
    return ablations
