"""Margins of the verdicts, and how often these are right, simulated with as many queries as `make claims` asks.

Answers are drawn from populations in which the effect of a claim is known: none, that of the paper, or the margin
itself, where a verdict in either direction is wrong. A round is a sample of every case.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from util.edges.edge import FOUND, FULL, at_layer, random_name
from util.figures.edge_ablation import numbers as edges
from util.figures.edits import WHOLE
from util.figures.induction_scores import numbers as induction
from util.figures.induction_scores.numbers import KNOCKED_OUT, LAYER_MATCHED
from util.prompts.text_tasks import TEXT_TASKS
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS, judged

ROUNDS = 1000  # samples
STEPS = [round(0.05 * step, 2) for step in range(1, 21)]
POWER = 0.8
QUERIES = 200  # of a task of Crosbie & Shutova's
CHURN = 0.1  # of wrong answers, that an ablation turns right
SETS, BETWEEN_SETS = 20, 0.02  # control sets, and how their accuracies spread
PAIRS = {"copying": 250, "capitalization": 250, "present_past": 195}  # queries of SmolLM2's lists, of tasks done
ACCURACY = {"copying": 1.0, "capitalization": 0.9, "present_past": 0.5}
DRAWS = 3  # of donors
MARGINS = dict.fromkeys(range(1, 8), 0.1)  # of claims that are a premise of the one that is asked


def changed(random, before, after, share):
    """Right answers [...] of an edited model that has the accuracy `after`, of queries that it had `share` of right."""
    gained = min(CHURN, after) if after < share else max(CHURN, (after - share) / max(1 - share, 1e-9))
    kept = np.clip((after - (1 - share) * gained) / share, 0, 1) if share else 0.0
    return random.random(before.shape) < np.where(before, kept, gained)


# ------------------------------------------------------------------------------------------------ Crosbie & Shutova


def tasks(random, number, effect):
    """The tasks of the paper that a claim is about, with its accuracies, but for those that the effect decides."""
    return [drawn(random, task, number, effect) for task in PAPER if about(task, number)]


def about(task, number):
    """Whether a claim is about a task of the paper."""
    text = task.task in TEXT_TASKS
    if number == 6:
        return text and task.check.done and task.task in UNRELATED
    if task.unrelated:
        return False
    return task.does_bare if number == 7 else task.check.done and text == (number in (4, 5))


PAPER = induction.of_paper()
UNRELATED = [task.task for task in PAPER if task.unrelated and task.check.done]


def drawn(random, task, number, effect):
    """Answers to a task, in which the effect of a claim has the size that is wanted."""
    shares = {shots: {row: float(right[0, 0]) for row, right in rows.items()} for shots, rows in task.right.items()}
    most, (others,) = shares[10], task.controls
    bare = shares.get(0, {WHOLE: 0.5, task.ablated: 0.5, others: 0.5})
    f, c, f0 = most[WHOLE], most[others], bare[WHOLE]
    if number == 1:
        most[task.ablated] = c - effect * (c - task.chance)
    elif number == 2:
        most[task.ablated] = task.chance + effect * (f - task.chance)
    elif number == 3:
        most[KNOCKED_OUT] = most[task.ablated] + effect * (f - most[task.ablated])
    elif number == 4:
        most[others], bare[others] = f, f0
        most[task.ablated] = f - effect * (f - f0)
        bare[task.ablated] = f0
    elif number == 5:
        most[task.ablated] = f0 + effect * (f - f0)
    elif number == 6:
        most[others] = f
        most[task.ablated] = f - effect if task.unrelated else f
    else:
        bare[task.ablated] = f0 - effect * (f0 - task.chance)
    controls = tuple(f"{LAYER_MATCHED} {draw}" for draw in range(1, SETS + 1))
    right = {}
    for shots, rows in ((10, most), (0, bare)):
        whole = random.random((1, QUERIES)) < rows[WHOLE]
        right[shots] = {WHOLE: whole}
        spread = random.normal(0, BETWEEN_SETS, SETS)
        edited = {row: share for row, share in rows.items() if row not in (WHOLE, others)}
        edited |= {row: np.clip(rows[others] + more, 0, 1) for row, more in zip(controls, spread, strict=True)}
        right[shots] |= {row: changed(random, whole, share, rows[WHOLE]) for row, share in edited.items()}
    return replace(task, right=right, controls=controls, available=QUERIES)


def of_induction(number, random, effect):
    """A sample of a claim of Crosbie & Shutova, its premise aside."""
    sample = tasks(random, number, effect)
    if number == 2:
        found = induction.effect(partial(induction.shares, 2), [induction.worst_hit(sample)])
    elif number == 6:
        own = {task.task: task for task in sample if not task.unrelated}
        found = induction.effect(induction.lost_more_than(own), [task for task in sample if task.unrelated])
    else:
        found = induction.effect(partial(induction.shares, number), sample)
    above = number in induction.ABOVE
    return lambda margins: judged("", found, margins[number], above=above).verdict


# ------------------------------------------------------------------------------------------------ Bakalova et al.


def rows(random, task, shares):
    """Answers to a task: each ablation has a share of the whole model's accuracy."""
    share, query = ACCURACY[task], np.arange(PAIRS[task])
    whole = np.tile(random.random(len(query)) < share, (DRAWS, 1))
    found = {FULL: {"right": whole, "query": query}}
    for name, left in shares.items():
        found[name] = {"right": changed(random, whole, left * share, share), "query": query}
    return found


def contextualised(random, task, effect):
    """Answers with contextualisation added to half of the accuracy, and removed from all of it."""
    added, removed = edges.ADDED, edges.REMOVED
    shares = {added[1]: 0.4, added[0]: 0.4 + effect, removed[1]: 1 - effect}
    return rows(random, task, shares)


def losses(random, effect, spread):
    """Log-probabilities of the answer, of the whole model and without contextualisation."""
    query = np.arange(PAIRS["present_past"])
    whole, without = edges.REMOVED
    lost = random.normal(effect, spread, (1, len(query)))
    return {whole: {"log_prob": np.zeros_like(lost), "query": query}, without: {"log_prob": -lost, "query": query}}


def of_edges(number, random, effect):
    """A sample of a claim of Bakalova et al."""
    last, available = list(PAIRS)[-1], PAIRS
    if number == 1:
        shares = {FOUND: 1 - effect} | {random_name(draw): 0.2 for draw in range(1, SETS + 1)}
        circuit = rows(random, "capitalization", shares)
        return lambda margins: edges.explained(circuit, None, margins[1]).verdict
    if number == 4:
        counts = {0: losses(random, 0.2, 0.5), 7: losses(random, 0.2 + effect, 1.0)}
        return lambda margins: edges.more_if_ambiguous(counts, None, margins[4]).verdict
    if number == 5:
        rest = contextualised(random, last, 0.5)
        layers = {at_layer("CONTEXT from", 1): 0.9, at_layer("CONTEXT below", 1): 0.9 - effect}
        layers |= {at_layer("AGG below", 1): 0.9, at_layer("AGG from", 1): 0.9 - effect}
        halves = rows(random, last, layers)
        return lambda margins: edges.first_then(last, rest, halves, 2, 1, None, margins).verdict
    sample = {task: contextualised(random, task, effect if number == 3 or task == last else 0.0) for task in PAIRS}
    if number == 2:
        return lambda margins: edges.differs(sample, available, margins[2]).verdict
    return lambda margins: edges.brings_back(sample, available, margins[3]).verdict


# ------------------------------------------------------------------------------------------------ margins


def sample(draw, number, effect, samples, seed):
    """Samples of a claim with an effect; none of an effect that is not known."""
    random = np.random.default_rng((*seed, round(1000 * (effect or 0))))
    return [] if effect is None else [draw(number, random, effect) for _ in range(samples)]


def share(judges, number, margin, verdict):
    """How many of the samples have a verdict, by a margin of their claim."""
    return sum(judge(MARGINS | {number: margin}) == verdict for judge in judges) / len(judges)


def simulate(samples, seed=0):
    """By paper and claim the margin, and the verdicts of no effect, of the paper's, and of one at the margin."""
    own = {int(number): entry["value"] for number, entry in induction.verdicts_on_paper().items()}
    cases = [("Crosbie & Shutova 2024", of_induction, number, number in induction.ABOVE, own) for number in range(1, 8)]
    cases += [("Bakalova et al. 2025", of_edges, number, number > 1, {1: 0.1}) for number in range(1, 6)]
    found = []
    for case, (paper, draw, number, above, published) in enumerate(cases):
        none, known = 0.0 if above else 1.0, published.get(number, None if above else 0.0)

        effects = {"no effect": none, "the paper's effect": known}
        drawn = {name: sample(draw, number, effect, samples, (seed, case)) for name, effect in effects.items()}
        wanted = ("no effect", DOES_NOT_HOLD) if above else ("the paper's effect", HOLDS)
        margin = next(step for step in STEPS if share(drawn[wanted[0]], number, step, wanted[1]) >= POWER)
        effects["at the margin"] = margin
        drawn["at the margin"] = sample(draw, number, margin, samples, (seed, case))
        line: dict[str, Any] = {"paper": paper, "claim": number, "margin": margin}
        for name, judges in drawn.items():
            if judges:
                told = {verdict: share(judges, number, margin, verdict) for verdict in (HOLDS, DOES_NOT_HOLD)}
                line[name] = {"effect": effects[name], **told}
        found.append(line)
        print(line, flush=True)
    return {"samples": samples, "claims": found}
