"""Verdicts on the claims of Bakalova et al. (2025), from right answers; data/published/VERDICTS.md has the rules.

Effects are shares of the whole model's accuracy. Rows are those of `numbers.aligned`, by the name of an ablation.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy as np

from util.edges import names
from util.figures.edge_ablation.numbers import Floats, Rows, by_query
from util.stats.intervals import ERROR, ratio_of_means
from util.stats.verdicts import NO_PREMISE, Claim, Effect, Part, all_of, any_of, judged, weakest

AMBIGUOUS = "ambiguous_present_past"  # the task of claim 4
TEXTS = {
    1: "circuits explain most of the performance",
    2: "how much contextualisation matters differs between tasks",
    3: "links between inputs and outputs contextualise the demonstrations",
    4: "contextualisation matters more with ambiguous demonstrations",
    5: "lower layers contextualise, higher layers aggregate",
}
MARGINS = {1: 0.15, 2: 0.15, 3: 0.05, 4: 0.25, 5: 0.15}  # by `make bench NAME=verdicts`; of claim 4 in nats
Contrast = tuple[str, str]  # two ablations, of which the first keeps or removes more than the second
ADDED: Contrast = (names.CTX_AGG, names.AGG_ONLY)  # contextualisation added to aggregation
REMOVED: Contrast = (names.FULL, names.without("CONTEXT"))  # contextualisation removed from the whole model
Available = Mapping[str, int]  # queries that there are, by task


def right(rows: Rows, name: str) -> Floats:
    """How often each query is answered right, over draws of donors, [N]."""
    return by_query(rows[name]["right"].astype(float), rows[name]["query"])


def share(rows: Rows, contrast: Contrast) -> tuple[Floats, Floats]:
    """What one ablation has more than the other, and what the whole model has, by query: [N] each."""
    more, less = contrast
    return right(rows, more) - right(rows, less), right(rows, names.FULL)


def explained(circuit: Rows, available: int | None, margin: float) -> Claim:
    """Claim 1: little is lost in the circuit, and it answers more than random circuits of as many pairs do.

    A circuit of all pairs has no other of its size.
    """
    found, whole = right(circuit, names.FOUND), right(circuit, names.FULL)
    random = [found - right(circuit, name) for name in names.random_names(circuit)]
    parts = [judged("lost in the circuit", Effect.of((whole - found, whole)), margin, above=False, available=available)]
    if random:
        beyond = Effect.of((np.mean(random, axis=0), 1.0), sets=[(more.mean(), 1.0) for more in random])
        name = f"beyond {len(random)} random circuits"
        parts.append(judged(name, beyond, 0.0, above=True, available=available))
    return Claim(1, TEXTS[1], *all_of(parts))


def differs(tasks: Mapping[str, Rows], available: Available, margin: float) -> Claim:
    """Claim 2: in one task contextualisation brings more than in another, both added and removed."""
    ways = {"added": ADDED, "removed": REMOVED}
    linear = {(task, way): ratio_of_means(*share(rows, ways[way]))[1] for task, rows in tasks.items() for way in ways}

    def compared(first: str, second: str, way: str) -> Part:
        difference = Effect.of((linear[first, way], 1.0), (-linear[second, way], 0.0))
        least = min(available[first], available[second])
        return judged(f"{first} against {second}, {way}", difference, margin, above=True, available=least)

    pairs = [weakest([compared(*pair, way) for way in ways]) for pair in permutations(tasks, 2)]
    if not pairs:
        return Claim(2, TEXTS[2], NO_PREMISE, note="fewer than two tasks are done")
    verdict, parts = any_of(pairs)
    clearest = min(parts, key=lambda part: part.p[0])
    return Claim(2, TEXTS[2], verdict, (clearest,), f"the clearest of {len(parts)} pairs of tasks")


def brings_back(tasks: Mapping[str, Rows], available: Available, margin: float) -> Claim:
    """Claim 3: contextualisation, added to aggregation, brings accuracy back."""
    added, least = Effect.of(*(share(rows, ADDED) for rows in tasks.values())), min(available[task] for task in tasks)
    part = judged(", ".join(tasks), added, margin, above=True, available=least)
    return Claim(3, TEXTS[3], part.verdict, (part,))


def more_if_ambiguous(counts: Mapping[int, Rows], available: int | None, margin: float) -> Claim:
    """Claim 4: without contextualisation more log-probability is lost with the most ambiguous demonstrations."""
    fewest, most = min(counts), max(counts)
    lost = {
        count: by_query(rows[REMOVED[0]]["log_prob"] - rows[REMOVED[1]]["log_prob"], rows[REMOVED[0]]["query"])
        for count, rows in counts.items()
    }
    difference = Effect.of((lost[most], 1.0), (-lost[fewest], 0.0))
    name = f"{most} against {fewest} ambiguous"
    part = judged(name, difference, margin, above=True, available=available)
    return Claim(4, TEXTS[4], part.verdict, (part,), "nats")


def matters_most(tasks: Mapping[str, Rows]) -> str:
    """The task in which contextualisation, added to aggregation, brings most."""
    return max(tasks, key=lambda task: Effect.of(share(tasks[task], ADDED)).interval().value)


def first_then(
    task: str,
    rows: Rows,
    of_halves: Rows,
    layers: int,
    candidates: int,
    available: int | None,
    margins: Mapping[int, float],
) -> Claim:
    """Claim 5, in the task where contextualisation matters most; premise: claim 3 there, corrected for all tasks."""
    premise = judged(task, Effect.of(share(rows, ADDED)), margins[3], above=True, available=available)
    if candidates * premise.p[0] > ERROR:
        return Claim(5, TEXTS[5], NO_PREMISE, note=f"that contextualisation matters in {task} is not shown")
    half = layers // 2
    contrasts = {  # what is removed in the half that should matter less, and in the other
        "CONTEXT, lower half": (names.context_from(half), names.context_below(half)),
        "AGG, upper half": (names.aggregation_below(half), names.aggregation_from(half)),
    }
    parts = [
        judged(f"{task}: {name}", Effect.of(share(of_halves, contrast)), margins[5], above=True, available=available)
        for name, contrast in contrasts.items()
    ]
    return Claim(5, TEXTS[5], *all_of(parts))
