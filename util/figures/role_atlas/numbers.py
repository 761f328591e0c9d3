"""The roles of all heads, with scores and effects on held-out prompts, from the evidence alone.

Function vectors: Todd et al. 2024, "Function Vectors in Large Language Models", for the scores; Yin & Steinhardt 2025,
"Which Attention Heads Matter for In-Context Learning?", sections 4 and 5, for the comparison. They exclude the best 2 %
of the heads of one kind from the other; here the best n of either kind are excluded from the other, n being the size of
all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from util.figures.edits import WHOLE
from util.roles.rules import Evidence, Role, Tested
from util.show.part import Arrays, say
from util.stats.heads import Floats, Head, head_name, layer_matched, norm_matched, shortage, top
from util.stats.intervals import accuracy, mean_intervals, paired_interval

Numbers = dict[str, Any]
Sets = Mapping[str, Any]  # "sets" and "controls", each by kind, see `head_sets`

HAS = "has the role"  # the verdict
EXPLAINED = (Role.INHIBITION, Role.MOVER)  # the figure of IOI says why heads that carry most have none of these
INDUCTION, FUNCTION_VECTOR = "induction", "FV"  # kinds of heads
INDUCTION_ALONE, FUNCTION_VECTOR_ALONE = "induction, not FV", "FV, not induction"
PAIRS = "word pairs"  # what is answered, beside a classification task


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


def _by_name(heads: Tested) -> Numbers:
    return {head_name(head): measured for head, measured in heads.items()}


def of_heads(evidence: Sequence[Evidence], heads: Sequence[Head]) -> pd.DataFrame:
    """A line for each head and role: what the second half of the prompts says, and the verdict.

    score, with its null; effect beyond the control, and p, corrected for all heads that were tested; without the last
    two where the first half did not choose the head: its score does not pass.
    """
    rows = []
    for head, one in product(heads, evidence):
        second, null = one.score.halves[1], np.broadcast_to(one.score.null, one.score.value.shape)
        line = {"head": head_name(head), "role": str(one.role)}
        if head not in one.tested:
            score, level = (float(values[(second, *head)].mean()) for values in (one.score.value, null))
            rows.append({**line, "score": score, "null": level, "verdict": "no: the score does not pass"})
            continue
        verdict = HAS if head in one.confirmed else "no: the effect, or the score, is not confirmed"
        rows.append({**line, **one.tested[head], "verdict": verdict})
    return pd.DataFrame(rows, columns=["head", "role", "score", "null", "effect", "p", "verdict"])


def with_role(evidence: Sequence[Evidence]) -> list[Head]:
    """The heads that have any role, in their order."""
    return sorted({head for one in evidence for head in one.confirmed})


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


def atlas(arrays: Arrays, settings: Any) -> Numbers:
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


def untrained(arrays: Arrays, settings: Any) -> Numbers:
    """The same of the untrained twin; {} where it was not measured."""
    evidence = arrays.get("evidence")
    return {"untrained": {"heads": len(with_role(evidence)), **roles(evidence)} if evidence else {}}


def planted(arrays: Arrays, settings: Any) -> Numbers:
    """For each circuit that was planted, whether just its heads have just their roles."""
    exact = {}
    for name, circuit in arrays.items():
        planted_heads = circuit["roles"]  # roles that are not planted must have none
        exact[name] = all({*with_role([one])} == planted_heads.get(one.role, set()) for one in circuit["evidence"])
    return {"planted": exact}


# ------------------------------------------------------------------------------------------------ function vectors


def head_sets(matching: Floats, effect: Floats, norms: Floats, n: int, draws: int, seed: int = 0) -> Sets:
    """Sets of n heads by prefix matching [L, H] and AIE [L, H], and control sets of each.

    sets: the best heads by either, and the best that are not among the best n of the other. controls: other heads, as
    many, that are in neither list of the best n; every layer has as many of them as of the set, or, where there are too
    few such sets, they write as much as the set, by norms [L, H]. Raises ValueError where there are too few others.
    """
    best = {INDUCTION: top(matching, n), FUNCTION_VECTOR: top(effect, n)}

    def alone(score: Floats, others: list[Head]) -> list[Head]:
        return [head for head in top(score, 2 * n) if head not in others][:n]

    sets = best | {
        INDUCTION_ALONE: alone(matching, best[FUNCTION_VECTOR]),
        FUNCTION_VECTOR_ALONE: alone(effect, best[INDUCTION]),
    }
    eligible = np.ones(matching.shape, bool)
    eligible[tuple(np.array(best[INDUCTION] + best[FUNCTION_VECTOR]).T)] = False
    controls = {}
    for kind, chosen in sets.items():
        drawn = [] if shortage(chosen, eligible) else layer_matched(chosen, eligible, draws, seed)
        controls[kind] = drawn if len(drawn) == draws else norm_matched(chosen, eligible, norms, draws, seed)
    return {"sets": sets, "controls": controls}


def ablations(sets: Sets) -> dict[str, list[Head]]:
    """The heads that are ablated by name: none of the whole model, those of each kind, and their control sets."""
    controls = sets["controls"].items()
    draws = {f"{kind}, control {i}": heads for kind, drawn in controls for i, heads in enumerate(drawn, 1)}
    return {WHOLE: [], **sets["sets"], **draws}


def function_vectors(arrays: Arrays, settings: Any) -> Numbers:
    """Function-vector heads beside induction heads: their scores, which are both, and what is lost without either.

    contrast: how much more is lost without the FV heads alone than without the induction heads alone, paired.
    """
    heads, sets, task = arrays["effects"], arrays["sets"], arrays["task"]
    effects, best = mean_intervals(heads["effects"], within=(-1, 1)), sets["sets"]
    pairs = {ablated: np.concatenate([*tasks.values()]) for ablated, tasks in arrays["pairs"].items()}
    measured = {PAIRS: pairs, task: arrays["classified"]}
    lost = {
        name: paired_interval(rows[INDUCTION_ALONE].astype(np.float64) - rows[FUNCTION_VECTOR_ALONE])
        for name, rows in measured.items()
    }
    entries = {
        "corruption": heads["corruption"],
        "prefix matching": arrays["prefix matching"],
        "AIE": {"mean": effects.value, "low": effects.low, "high": effects.high},
        **sets,
        "both": [head for head in best[INDUCTION] if head in best[FUNCTION_VECTOR]],
        "asked": {name: f"{len(rows[WHOLE])} queries" for name, rows in measured.items()},
        "accuracy": {name: {row: accuracy(right) for row, right in rows.items()} for name, rows in measured.items()},
        "contrast": lost,
        "room": heads["room"],
        "prompts": len(heads["effects"]),
        "left out": list(heads["left out"].values()),
        "classification": {"task": task, "chance": arrays["chance"]},
    }
    return {"function vectors": entries}
