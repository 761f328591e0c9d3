"""Verdicts on the five claims about edges, from arrays alone, and how many queries a verdict needs.

The claims are Bakalova et al.'s (COLM 2025), the rules are our own. A claim is a mean over distinct queries that should
be above or below a bound (see `stats.verdicts`):

1. few edges explain most of the performance: acc(C) / acc(FULL) > `share`, and C keeps less than `size` of all pairs
2. without contextualisation some task loses: acc(FULL) - acc(AGG-ONLY) > `margin` in a task
3. contextualisation brings it back: acc(FULL) - acc(CTX+AGG) < `margin` in every task that loses
4. it loses more with ambiguous demonstrations: by more than `margin`, on prompts that the whole model solves
5. first contextualise, then aggregate: less than `margin` is lost without either in its other half of the layers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from util.edges import names
from util.edges.edge import TYPE_PAIRS
from util.figures.edge_ablation.measures import Rows, by_query
from util.prompts import word_pairs
from util.records.checked import Count, Number, Share, checked
from util.stats.intervals import wilson
from util.stats.verdicts import (
    DOES_NOT_HOLD,
    ERROR,
    HOLDS,
    NOT_DONE,
    UNDECIDED,
    Claim,
    Part,
    Sample,
    Verdicts,
    all_of,
    any_of,
    compared,
)  # fmt: skip

AMBIGUOUS = "ambiguous_present_past"  # the task of claim 4
Margin = Annotated[Number, Field(gt=0, lt=1)]


@checked
class Rule:
    """What claims have to show, fixed before they are measured.

    floor: a model does a task when its accuracy is surely above chance and above this; it is twice the margin or more,
    as a loss of the margin would else be more than half of what there is. solved: prompts that claim 4 asks for. error:
    of a verdict, in either direction; 0.025 goes with intervals of 95 %.
    """

    share: Share = 0.9
    size: Share = 0.5
    margin: Margin = 0.1
    floor: Annotated[Number, Field(ge=0, lt=1)] = 0.4
    solved: Count = 10
    error: Margin = ERROR


RULE = Rule()


# ------------------------------------------------------------------------------------------------ the claims


def does_it(full: NDArray, queries: ArrayLike, chance: float, rule: Rule) -> bool:
    """Whether the whole model does a task, from its right answers [N] or [D, N] and the query of each prompt [N].

    It does where the lower Wilson bound, counting distinct queries, is above chance and the floor.
    """
    right = by_query(full, queries)
    return bool(wilson(right.sum(), len(right))[0] > max(chance, rule.floor))


def lost(rows: Rows, name: str) -> Sample:
    """What an ablation loses, acc(FULL) - acc(name), by query."""
    return Sample.of(
        by_query(np.subtract(rows[names.FULL]["right"], rows[name]["right"], dtype=float), rows[names.FULL]["query"])
    )


def _loss(part: str, rows: Rows, name: str, rule: Rule, chance: float, available: int | None, above: bool) -> Part:
    judged = compared(part, [lost(rows, name)], rule.margin, above=above, error=rule.error, available=available)
    done = does_it(rows[names.FULL]["right"], rows[names.FULL]["query"], chance, rule)
    return judged if done else replace(judged, verdict=NOT_DONE)


def few_edges(
    rows: Rows, kept: int, pairs: int, rule: Rule = RULE, chance: float = 0.0, available: int | None = None
) -> Claim:
    """Claim 1, of the ablations "FULL" and "found", a circuit that keeps some of so many type pairs.

    acc(C) / acc(FULL) is above the share where share * acc(FULL) - acc(C) is below 0: that is tested, with 1 - share
    added, so that it is the share of answers that the circuit loses where the whole model has all. Its interval is
    shown as one of the ratio.
    """
    text = f"few edges explain {rule.share:.0%}"
    full, query = rows[names.FULL]["right"], rows[names.FULL]["query"]
    most = 1 - rule.share
    less = Sample.of(by_query(rule.share * np.asarray(full, dtype=float) - rows[names.FOUND]["right"] + most, query))
    part = compared(f"{kept} of {pairs} pairs", [less], most, above=False, error=rule.error, available=available)
    worth = float(by_query(full, query).mean())
    if not does_it(full, query, chance, rule):
        part = replace(part, verdict=NOT_DONE)
    if worth:
        value, high, low = (rule.share + (most - value) / worth for value in (part.value, part.low, part.high))
        part = replace(part, value=value, low=low, high=high, bound=rule.share, above=True)
    small = kept < rule.size * pairs
    if part.verdict != NOT_DONE and not small:
        return Claim(
            1, text, DOES_NOT_HOLD, (part,), f"the circuit keeps {kept} of {pairs} pairs, not less than {rule.size:.0%}"
        )
    return Claim(1, text, part.verdict, (part,))


def some_lose(
    tasks: Mapping[str, Rows],
    rule: Rule = RULE,
    chance: Mapping[str, float] | None = None,
    available: Mapping[str, int | None] | None = None,
) -> Claim:
    """Claim 2, of "FULL" and "AGG-ONLY" by task."""
    parts = [
        _loss(task, rows, names.AGG_ONLY, rule, (chance or {}).get(task, 0.0), (available or {}).get(task), above=True)
        for task, rows in tasks.items()
    ]
    return Claim(2, f"without contextualisation some task loses {rule.margin:g}", *any_of(parts, rule.error))


def comes_back(
    tasks: Mapping[str, Rows], losing: Claim, rule: Rule = RULE, available: Mapping[str, int | None] | None = None
) -> Claim:
    """Claim 3, of "FULL" and "CTX+AGG" in the tasks where claim 2 holds; undecided where there is none."""
    text = "contextualisation brings it back"
    tasks_lost = [part.name for part in losing.parts if part.verdict == HOLDS]
    if not tasks_lost:
        verdict = NOT_DONE if losing.verdict == NOT_DONE else UNDECIDED
        note = f"nothing to bring back: no task above the floor is shown to lose {rule.margin:g}"
        return Claim(3, text, verdict, (), note)
    parts = [
        _loss(task, tasks[task], names.CTX_AGG, rule, 0.0, (available or {}).get(task), above=False)
        for task in tasks_lost
    ]
    return Claim(3, text, *all_of(parts, rule.error))


def more_if_ambiguous(
    counts: Mapping[int, Rows], k: int, rule: Rule = RULE, chance: float = 0.0, available: int | None = None
) -> Claim:
    """Claim 4, of "FULL" and "AGG-ONLY" by how many of k demonstrations are ambiguous.

    Prompts that the whole model solves are compared: those of the most ambiguous demonstrations that leave a clear one
    and `Rule.solved` queries, with those of the fewest.
    """
    text = "it loses more with ambiguous demonstrations"
    least = min(counts)
    solved = {}
    for count, rows in counts.items():
        told = np.atleast_2d(rows[names.FULL]["right"]).all(axis=0)
        if count < k and len({*rows[names.FULL]["query"][told]}) >= rule.solved:
            solved[count] = lost(
                {
                    name: {"right": np.atleast_2d(row["right"])[:, told], "query": row["query"][told]}
                    for name, row in rows.items()
                },
                names.AGG_ONLY,
            )
    first = counts[least][names.FULL]
    if not does_it(first["right"], first["query"], chance, rule) or least not in solved:
        right = by_query(first["right"], first["query"])
        return Claim(4, text, NOT_DONE, (), f"the whole model: {right.mean():.2f} of {len(right)} queries")
    if max(solved) == least:
        return Claim(4, text, UNDECIDED, (), f"with ambiguous ones the model solves fewer than {rule.solved} prompts")
    most, asked = max(solved), len({*first["query"]})
    samples = [solved[most], solved[least]]
    name = f"{most} against {least} ({samples[0].n}, {samples[1].n} solved)"
    part = compared(name, samples, rule.margin, above=True, error=rule.error, queries=asked, available=available)
    return Claim(4, text, part.verdict, (part,))


def first_then(
    rows: Rows, late: str, early: str, rule: Rule = RULE, chance: float = 0.0, available: int | None = None
) -> Claim:
    """Claim 5, of "FULL" and the ablations of CONTEXT in the late, and of AGG in the early layers."""
    parts = [_loss(name, rows, name, rule, chance, available, above=False) for name in (late, early)]
    return Claim(5, "first contextualise, then aggregate", *all_of(parts, rule.error))


# ------------------------------------------------------------------------------------------------ all five


def judge(
    rule: Rule,
    tasks: Mapping[str, Rows],
    *,
    primary: str,
    circuit: Rows,
    kept: int,
    ambiguous: Mapping[int, Rows],
    halves: Rows,
    layers: int,
    askable: Mapping[str, int | None],
    trained: bool,
    k: int = 10,
) -> Verdicts:
    """The five claims, in order; rows are those of `measures.aligned`.

    tasks: with FULL, AGG-ONLY and CTX+AGG, by task. circuit: with FULL and the circuit found in the primary task, which
    keeps so many type pairs (kept). ambiguous: with FULL and AGG-ONLY, by how many of k demonstrations are ambiguous.
    halves: with FULL and the two ablations of `names.halves`, of the primary task, in a model of so many layers.
    askable: by task, how many queries there are for the tokenizer, None where the record does not say; trained: whether
    the words are the embedded model's.
    """
    chance = {task: 1 / len(word_pairs.find(task, trained=trained).outputs) for task in {*tasks, primary, AMBIGUOUS}}
    here = (rule, chance[primary], askable[primary])
    losing = some_lose(tasks, rule, chance, askable)
    late, early = names.halves(layers)
    return Verdicts(
        (
            few_edges(circuit, kept, len(TYPE_PAIRS), *here),
            losing,
            comes_back(tasks, losing, rule, askable),
            more_if_ambiguous(ambiguous, k, rule, chance[AMBIGUOUS], askable[AMBIGUOUS]),
            first_then(halves, late, early, *here),
        )
    )
