"""Edges between token types: what they are, which circuits they form, and prompts run with some of them ablated."""

from util.edges.ablation import (
    MODES,
    WHOLE,
    Ablation,
    circuit_ablations,
    completeness,
    cuts,
    probes,
    single_edges,
    windows,
)
from util.edges.edge import (
    ALWAYS,
    CIRCUITS,
    FAMILIES,
    RELATIONS,
    TYPE_PAIRS,
    TYPES,
    Edge,
    check_known,
    check_matched,
    edges,
    kinds,
    random_circuits,
    removed_by,
    together,
    type_pairs,
)
