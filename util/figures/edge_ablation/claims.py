"""The claims of Bakalova et al. (2025): verdicts on right answers, and what `make claims` measures for them.

data/published/VERDICTS.md has the rules. Effects are shares of the whole model's accuracy. Rows are those of
`numbers.aligned`, by the name of an ablation. More queries are asked than in notebook 04.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np

from util.edges import names
from util.edges.ablation import WHOLE, Ablation, circuit_ablations, halves
from util.edges.edge import ALWAYS, CIRCUITS, FAMILIES
from util.figures.edge_ablation.numbers import Floats, Rows, by_query
from util.figures.edge_ablation.runs import Run, answers, draws
from util.prompts import word_pairs
from util.roles.pair_task import PairTask
from util.show import files
from util.stats.answers import TaskCheck
from util.stats.intervals import ERROR, ratio_of_means
from util.stats.verdicts import (
    DOES_NOT_HOLD,
    HOLDS,
    NO_PREMISE,
    NOT_DONE,
    Claim,
    Effect,
    Part,
    all_of,
    any_of,
    judged,
    weakest,
)
from util.study.study import Study

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
CONTRASTED: Mapping[str, Ablation] = {
    names.FULL: WHOLE,
    **{name: Ablation(kept=CIRCUITS[name]) for name in ADDED},
    REMOVED[1]: Ablation(removed=FAMILIES["CONTEXT"]),
}
COUNTS = (0, 7)  # ambiguous of 10 demonstrations
# Bytes of a task's keys and values. Those of 250 prompts and their donors on 30 layers are 1.2 GB; with less room, each
# would push out the one that is needed next.
ROOM = 2**31
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
    linear = {
        (task, way): ratio_of_means(*share(rows, ways[way]))[1] for task, rows in tasks.items() for way in ways
    }

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


# ------------------------------------------------------------------------------------------------ what is measured


def claims(study: Study) -> dict[str, Any]:
    """The verdicts on the claims, and what they are about, for `files.save_claims`.

    study: of 10 demonstrations; its prompts are those of each task, each with a query of its own, or as many as the
    list has. Claim 1 is about its primary task, claims 2, 3 and 5 about its tasks; those of which no task is done have
    no answers. A circuit is searched with each draw of donors; claim 1 is about the first, measured with its draw, as
    random circuits are. Each ablation of a task and draw of donors is a record, so that an interrupted run goes on
    where it stopped.
    """
    settings, primary, checks = study.settings, study.settings.primary_task, checked_tasks(study)
    verdicts = {number: Claim(number, text, NOT_DONE) for number, text in TEXTS.items()}
    fields = {task: own_queries(study, task) for task, check in checks.items() if check.done}
    if AMBIGUOUS in fields:
        fields[AMBIGUOUS]["ambiguous"] = COUNTS[0]
    whole = {task: Run(study, draws(study, **of_task)[0]).answer(WHOLE) for task, of_task in fields.items()}
    available = {task: data["askable"] for task, data in whole.items()}
    tasks = {task: answers(study, CONTRASTED, ROOM, **fields[task]) for task in settings.tasks if task in fields}
    if tasks:
        verdicts[2] = differs(tasks, available, MARGINS[2])
        verdicts[3] = brings_back(tasks, available, MARGINS[3])
        most = matters_most(tasks)
        layers = int(whole[most]["layers"])
        of_halves = answers(study, {names.FULL: WHOLE, **halves(layers)}, ROOM, **fields[most])
        verdicts[5] = first_then(most, tasks[most], of_halves, layers, len(tasks), available[most], MARGINS)
    if AMBIGUOUS in fields:
        removed = {name: CONTRASTED[name] for name in REMOVED}
        counts = {count: answers(study, removed, ROOM, **fields[AMBIGUOUS] | {"ambiguous": count}) for count in COUNTS}
        verdicts[4] = more_if_ambiguous(counts, available[AMBIGUOUS], MARGINS[4])
    kept = []
    if primary in fields:
        search = own_queries(study, primary, settings.search_prompts, "search")
        kept = [Run(study, draw).search() for draw in draws(study, **search)]
        circuit = {names.FOUND: (*ALWAYS, *kept[0])}
        ablations = circuit_ablations(circuit, settings.random_circuits, settings.seed, like=names.FOUND)
        first = study.replace(donor_seeds=settings.donor_seeds[:1])
        verdicts[1] = explained(answers(first, ablations, ROOM, **fields[primary]), available[primary], MARGINS[1])
    shown = ("prompts", "k", "donor_seeds", "search_prompts", "random_circuits")
    published = next(row["value"] for row in files.published("edge_ablation")["values"] if row["id"] == "explained")
    lost = 1 - published  # by the paper's circuits, at most
    return {
        "model": study.model.shown_name,
        "setting": f"{settings.k} demonstrations, donors {', '.join(map(str, settings.donor_seeds))}",
        "settings": {"primary": primary, **{name: getattr(settings, name) for name in shown}},
        "published": {"1": {"value": lost, "verdict": HOLDS if lost < MARGINS[1] else DOES_NOT_HOLD}},
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "checks": checks,
        "kept by draw": [[*map(str, pairs)] for pairs in kept],
        "claims": [*verdicts.values()],
    }


def checked_tasks(study: Study) -> dict[str, TaskCheck]:
    """Whether the model does each task, and the ambiguous one, from its demonstrations."""
    given = {"seed": study.settings.seed, "folder": study.folder, "redo": study.redo}
    ambiguous = dict.fromkeys(study.settings.tasks) | {AMBIGUOUS: 0}
    return {
        task: PairTask(study.model, task, study.settings.k, ambiguous=count, **given).check(len(ambiguous))
        for task, count in ambiguous.items()
    }


def own_queries(study: Study, task: str, prompts: int | None = None, split: str = "test") -> dict[str, Any]:
    """Fields of `Draw`: as many prompts of a task as there are queries, or fewer, each with a query of its own."""
    queries = len(word_pairs.find(task, trained=word_pairs.is_trained(study.model.name)).queries(split))
    return {"task": task, "prompts": min(prompts or study.settings.prompts, queries), "split": split, "in_turn": True}
