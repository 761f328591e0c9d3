"""The roles of all heads, with scores and effects on held-out prompts, from the evidence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from util.roles.rules import Evidence, Role, RoleOfHead
from util.stats.heads import Head

EXPLAINED = (Role.INHIBITION, Role.MOVER)  # the figure of IOI says why heads that carry most have none of these


def roles(evidence: Sequence[Evidence]) -> dict[str, Any]:
    """For each role, how many heads were tested, and of those that have it score, null, effect and p.

    n: the independent units that confirm heads; detectable: the effect from which on they would have been seen. "not
    confirmed" has the same of those that were tested and do not have it, for the roles of EXPLAINED.
    """
    return {
        str(one.role): {
            "tested": len(one.effect.heads),
            "n": one.n,
            "detectable": one.detectable,
            "heads": _by_name(one.heads()),
            **({"not confirmed": _by_name(one.not_confirmed())} if one.role in EXPLAINED else {}),
        }
        for one in evidence
    }


def _by_name(heads: Sequence[RoleOfHead]) -> dict[str, Any]:
    return {one.name: {"score": one.score, "null": one.null, "effect": one.effect, "p": one.p} for one in heads}


def heads_of(evidence: Sequence[Evidence]) -> dict[Head, list[Role]]:
    """The roles of each head that has any, heads in their order."""
    found: dict[Head, list[Role]] = {}
    for one in evidence:
        for head in one.heads():
            found.setdefault(head.head, []).append(one.role)
    return dict(sorted(found.items()))


def finding(evidence: Sequence[Evidence]) -> str:
    """How many heads have a role, and where the induction heads lie."""
    _, layers, of_a_layer = evidence[0].score.value.shape
    total, found = layers * of_a_layer, heads_of(evidence)
    if not found:
        return f"None of {total} heads has a role that its effect confirms"
    verb, owner = ("has", "its") if len(found) == 1 else ("have", "their")
    first = f"{len(found)} of {total} heads {verb} a role that {owner} effect confirms"
    induction = [head for head, listed in found.items() if Role.INDUCTION in listed]
    if len(induction) < 2:
        return "; ".join([first, *(f"the induction head is L{layer}H{head}" for layer, head in induction)])
    lowest, highest = induction[0][0], induction[-1][0]
    place = f"layer {lowest}" if lowest == highest else f"layers {lowest}-{highest}"
    return f"{first}; induction heads lie in {place}"


def atlas(arrays: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """The roles of all heads, [L, H] of them, and what could not be tested."""
    evidence = arrays["evidence"]
    return {
        "finding": finding(evidence),
        "heads": len(heads_of(evidence)),
        "roles": roles(evidence),
        "left out": list(arrays["left out"]),
        "shape": list(evidence[0].score.value.shape[1:]),
        "label task": arrays["label task"],
    }


def untrained(arrays: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """The same of the untrained twin; {} where it was not measured."""
    evidence = arrays.get("evidence")
    return {"untrained": {"heads": len(heads_of(evidence)), **roles(evidence)} if evidence else {}}


def planted(arrays: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """For each circuit that was planted, whether just its heads have just their roles."""
    return {"planted": {name: found_exactly(one["evidence"], one["roles"]) for name, one in arrays.items()}}


def found_exactly(evidence: Sequence[Evidence], truth: Mapping[Role, set[Head]]) -> bool:
    """Whether just the planted heads have each role; roles that are not planted must have none."""
    return all({head.head for head in one.heads()} == truth.get(one.role, set()) for one in evidence)
