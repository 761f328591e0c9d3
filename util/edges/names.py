"""The names of ablations: every record, table, figure and values file has them from here, and nobody else spells them.

A test of names belongs here, too: `random_names` gives the random circuits among names, in order.
"""

from collections.abc import Iterable

FULL, NONE = "FULL", "NONE"
CTX_AGG, CTX_IO_AGG, AGG_ONLY, QUERY_ONLY = "CTX+AGG", "CTX_IO+AGG", "AGG-ONLY", "QUERY-ONLY"
FOUND = "found"  # the circuit of a search
ABLATED = "ablated"  # the single ablation of a config
PRUNED = "pruned"  # what is left after units were pruned
CIRCUIT = "circuit"  # what probes are made inside of
ALONE = "no demonstrations"  # the whole model after the query alone; no ablation, but shown beside them
_RANDOM = "random "


def without(removed: str) -> str:
    """A circuit or family of edges taken out of the whole model."""
    return f"without {removed}"


def random_circuit(number: int) -> str:
    """The random circuit of this number, counted from 1."""
    return f"{_RANDOM}{number}"


def random_names(names: Iterable[str]) -> list[str]:
    """The random circuits among some names, by their numbers."""
    return sorted((name for name in names if name.startswith(_RANDOM)), key=lambda name: int(name[len(_RANDOM) :]))


def context_from(layer: int) -> str:
    """Contextualisation taken out from a layer on."""
    return f"CONTEXT from {layer}"


def aggregation_below(layer: int) -> str:
    """Aggregation taken out below a layer."""
    return f"AGG below {layer}"


def context_below(layer: int) -> str:
    """Contextualisation taken out below a layer."""
    return f"CONTEXT below {layer}"


def aggregation_from(layer: int) -> str:
    """Aggregation taken out from a layer on."""
    return f"AGG from {layer}"


def read_from(edge: object, corruption: int) -> str:
    """One edge read from a corruption."""
    return f"{edge} from {corruption}"
