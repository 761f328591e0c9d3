"""The roles of all heads, with scores and effects on held-out prompts, from the evidence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from util.roles.rules import Evidence, Role, TestedHead
from util.show.part import say
from util.stats.heads import Head, head_name

Numbers = dict[str, Any]

HAS = "has the role"  # the verdict
EXPLAINED = (Role.INHIBITION, Role.MOVER)  # the figure of IOI says why heads that carry most have none of these


def roles(evidence: Sequence[Evidence]) -> Numbers:
    """For each role, how many heads were tested, and of those that have it score, null, effect and p.

    n: the independent units that confirm heads; detectable: the effect from which on they would have been seen. "not
    confirmed" has the same of those that were tested and do not have it, for the roles of EXPLAINED.
    """
    return {
        str(one.role): {
            "tested": len(one.heads),
            "n": one.n,
            "detectable": one.detectable,
            "heads": _by_name(one.confirmed),
            **({"not confirmed": _by_name(one.not_confirmed)} if one.role in EXPLAINED else {}),
        }
        for one in evidence
    }


def _by_name(heads: Sequence[TestedHead]) -> Numbers:
    return {head.name: {"score": head.score, "null": head.null, "effect": head.effect, "p": head.p} for head in heads}


def of_heads(evidence: Sequence[Evidence], heads: Sequence[Head]) -> pd.DataFrame:
    """A line for each head and role: what the second half of the prompts says, and the verdict.

    score, with its null; effect beyond the control, and p, corrected for all heads that were tested; without the last
    two where the first half did not choose the head: its score does not pass.
    """
    rows = []
    for head, one in product(heads, evidence):
        second, null = one.score.halves[1], np.broadcast_to(one.score.null, one.score.value.shape)
        line = {"head": head_name(head), "role": str(one.role)}
        tested = next((tested for tested in one.tested if tested.head == head), None)
        if tested is None:
            score, level = (float(values[(second, *head)].mean()) for values in (one.score.value, null))
            rows.append({**line, "score": score, "null": level, "verdict": "no: the score does not pass"})
            continue
        verdict = HAS if tested in one.confirmed else "no: the effect, or the score, is not confirmed"
        scores = {"score": tested.score, "null": tested.null, "effect": tested.effect, "p": tested.p}
        rows.append({**line, **scores, "verdict": verdict})
    return pd.DataFrame(rows, columns=["head", "role", "score", "null", "effect", "p", "verdict"])


def with_role(evidence: Sequence[Evidence]) -> list[Head]:
    """The heads that have any role, in their order."""
    return sorted({head.head for one in evidence for head in one.confirmed})


def finding(evidence: Sequence[Evidence]) -> str:
    """How many heads have a role, and where the induction heads lie."""
    total, heads = evidence[0].score.value[0].size, with_role(evidence)
    if not heads:
        return f"None of {total} heads has a role that its effect confirms"
    first = say("{n} of {of} heads {n:has|have} a role that {n:its|their} effect confirms", n=len(heads), of=total)
    induction = with_role([one for one in evidence if one.role == Role.INDUCTION])
    if len(induction) < 2:
        return "; ".join([first, *(f"the induction head is {head_name(head)}" for head in induction)])
    lowest, highest = induction[0][0], induction[-1][0]
    place = f"layer {lowest}" if lowest == highest else f"layers {lowest}-{highest}"
    return f"{first}; induction heads lie in {place}"


def atlas(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """The roles of all heads, [L, H] of them, and what could not be tested."""
    evidence = arrays["evidence"]
    return {
        "finding": finding(evidence),
        "heads": len(with_role(evidence)),
        "roles": roles(evidence),
        "left out": list(arrays["left out"]),
        "shape": list(evidence[0].score.value.shape[1:]),
        "label task": arrays["label task"],
    }


def untrained(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """The same of the untrained twin; {} where it was not measured."""
    evidence = arrays.get("evidence")
    return {"untrained": {"heads": len(with_role(evidence)), **roles(evidence)} if evidence else {}}


def planted(arrays: Mapping[str, Any], settings: Any) -> Numbers:
    """For each circuit that was planted, whether just its heads have just their roles."""
    return {"planted": {name: found_exactly(one["evidence"], one["roles"]) for name, one in arrays.items()}}


def found_exactly(evidence: Sequence[Evidence], truth: Mapping[Role, set[Head]]) -> bool:
    """Whether just the planted heads have each role; roles that are not planted must have none."""
    return all({head.head for head in one.confirmed} == truth.get(one.role, set()) for one in evidence)
