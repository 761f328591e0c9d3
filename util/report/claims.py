"""Where the verdicts on the papers' claims are stored."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where the claims of a figure are stored: the values file's name, and the entry in it."""

    file: str
    entry: str


SOURCES = {
    "induction_scores": Source("induction_claims", "verdicts"),
    "edge_ablation": Source("edge_claims", "claims"),
}
