"""The verdicts on the papers' claims, as their values files have them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from util.stats.verdicts import Claim, Part, Verdicts


@dataclass(frozen=True)
class Source:
    """Where the claims of a figure are stored: the values file's name, the entry in it, and what `make claims` runs."""

    file: str
    entry: str


SOURCES = {
    "induction_scores": Source("induction_claims", "verdicts"),
    "edge_ablation": Source("edge_claims", "claims"),
}


def verdicts_of(stored: Sequence[Mapping[str, Any]]) -> Verdicts:
    """The verdicts that `figures.report.plain` has turned into JSON: null is a value that is not defined."""
    return Verdicts(tuple(_claim(claim) for claim in stored))


def _claim(stored: Mapping[str, Any]) -> Claim:
    return Claim(**{**stored, "parts": tuple(_part(part) for part in stored["parts"])})


def _part(stored: Mapping[str, Any]) -> Part:
    numbers = {name: math.nan if stored[name] is None else stored[name] for name in ("value", "low", "high")}
    first, second = stored["p"]
    return Part(**{**stored, **numbers, "p": (first, second)})
