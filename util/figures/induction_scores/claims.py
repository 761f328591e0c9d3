"""Verdicts on the claims of Crosbie & Shutova (2024), from right answers; data/published/VERDICTS.md has the rules.

"Others" are control sets: other heads of the same layers. Few-shot answers have the most demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.figures.induction_scores import numbers, published
from util.figures.induction_scores.edits import Group, Row
from util.figures.induction_scores.plan import TASKS
from util.figures.induction_scores.shots import KNOCKED_OUT, WHOLE, Labelled, TaskShots, without_others
from util.prompts.text_tasks import TEXT_TASKS
from util.stats.answers import TaskCheck
from util.stats.intervals import Interval, halves
from util.stats.verdicts import (
    HOLDS,
    NO_PREMISE,
    NOT_ASKED,
    NOT_DONE,
    Claim,
    Effect,
    Verdicts,
    judged,
    shown,
)

Floats = NDArray[np.floating]
Right = Callable[[TaskShots, int], Floats]  # right answers without other heads by query, of a task with so many shots
Shares = Callable[[TaskShots, Right], tuple[Floats, Floats | float]]  # what queries add to the two sums of an effect

TEXTS = {
    1: "ablating induction heads costs pattern tasks more than ablating others",
    2: "it brings accuracy close to chance",
    3: "forbidding the pattern alone costs nearly as much",
    4: "text tasks benefit less from demonstrations",
    5: "few-shot answers come close to zero-shot ones",
    6: "with unrelated labels more is lost than with a task's own",
    7: "zero-shot answers change little",
}
MARGINS = {1: 0.1, 2: 0.55, 3: 0.4, 4: 0.35, 5: 0.75, 6: 0.05, 7: 0.2}  # by `make bench NAME=verdicts`
COUNTLESS = 10**5  # queries: the paper's numbers are taken as they stand
ABOVE = (1, 4, 6)  # the effect of these claims is above its margin; that of the others, claims of likeness, below


def lost_to_others(task: TaskShots, others: Right) -> tuple[Floats, Floats]:
    """Claim 1: what is lost of what is above chance without others, and that; [N] each, as in all that follow."""
    without = others(task, task.most)
    return without - task.by_query(task.most, task.ablated), without - task.chance


def left_above_chance(task: TaskShots, others: Right) -> tuple[Floats, Floats]:
    """Claim 2: what is left of what the whole model has above chance, and that, [N]."""
    return task.by_query(task.most, task.ablated) - task.chance, task.by_query(task.most, WHOLE) - task.chance


def spared_by_knockout(task: TaskShots, others: Right) -> tuple[Floats, Floats]:
    """Claim 3: what forbidding the pattern spares of what ablation costs, and that, [N]."""
    ablated = task.by_query(task.most, task.ablated)
    return task.by_query(task.most, KNOCKED_OUT) - ablated, task.by_query(task.most, WHOLE) - ablated


def benefit_lost(task: TaskShots, others: Right) -> tuple[Floats, Floats]:
    """Claim 4: what is lost of what demonstrations are worth without others, and that, [N]."""
    few, none = (others(task, shots) - task.by_query(shots, task.ablated) for shots in (task.most, 0))
    return few - none, others(task, task.most) - others(task, 0)


def benefit_left(task: TaskShots, others: Right) -> tuple[Floats, Floats]:
    """Claim 5: what is left of what demonstrations are worth to the whole model, and that, [N]."""
    bare = task.by_query(0, WHOLE)
    return task.by_query(task.most, task.ablated) - bare, task.by_query(task.most, WHOLE) - bare


def lost_zero_shot(task: TaskShots, others: Right) -> tuple[Floats, Floats]:
    """Claim 7: what is lost of what is above chance without demonstrations, and that, [N]."""
    bare = task.by_query(0, WHOLE)
    return bare - task.by_query(0, task.ablated), bare - task.chance


def lost_more_than(own: Mapping[str, TaskShots]) -> Shares:
    """Claim 6: what is lost with unrelated labels, minus that with a task's own; the mean over these tasks."""

    def shares(task: TaskShots, others: Right) -> tuple[Floats, float]:
        unrelated, related = (lost_to_others(one, others)[0] for one in (task, own[task.labelled.task]))
        return (unrelated - related) / len(own), 1 / len(own)

    return shares


def effect(shares: Shares, tasks: Sequence[TaskShots]) -> Effect:
    """The effect over some tasks. Control sets of one number are the same heads in each task."""
    drawn: list[Right] = [lambda task, shots, row=row: task.by_query(shots, row) for row in tasks[0].controls]  # type: ignore[misc]
    sums = [np.sum([[np.mean(part) for part in shares(task, one)] for task in tasks], axis=0) for one in drawn]
    return Effect.of(*(shares(task, without_others) for task in tasks), sets=sums)


def judge(tasks: Sequence[TaskShots]) -> Verdicts:
    """The verdicts on the seven claims."""
    own = [task for task in tasks if not task.labelled.unrelated]
    unrelated = [task for task in tasks if task.labelled.unrelated]
    pattern = [task for task in own if task.does and not task.text]
    texts = [task for task in own if task.does and task.text and task.has_zero_shot]
    of_own = {task.labelled.task: task for task in own if task.ablated in task.right[task.most]}
    both = [task for task in unrelated if task.does and task.labelled.task in of_own]
    with_own = {task.labelled.task: of_own[task.labelled.task] for task in both}
    first, third = _claim(1, lost_to_others, pattern), _claim(3, spared_by_knockout, pattern)
    if third.verdict != NOT_DONE and first.verdict != HOLDS:
        third = Claim(3, TEXTS[3], NO_PREMISE, note=f"claim 1 {first.verdict}")
    none = NOT_DONE if unrelated else NOT_ASKED
    return Verdicts(
        (
            first,
            _near_chance(pattern),
            third,
            _claim(4, benefit_lost, texts, none),
            _claim(5, benefit_left, texts, none),
            _claim(6, lost_more_than(with_own), both, none),
            _claim(7, lost_zero_shot, [task for task in own if task.does_bare]),
        )
    )


def _claim(number: int, shares: Shares, tasks: Sequence[TaskShots], none: str = NOT_DONE) -> Claim:
    """The verdict on a claim about the mean over tasks, with each of them beside; `none` where there are none."""
    if not tasks:
        return Claim(number, TEXTS[number], none)
    available = min(task.available for task in tasks)
    name = ", ".join(task.labelled.name for task in tasks)
    part = judged(name, effect(shares, tasks), MARGINS[number], above=number in ABOVE, available=available)
    alone = tasks if len(tasks) > 1 else []
    single = [shown(task.labelled.name, effect(shares, [task])) for task in alone]
    return Claim(number, TEXTS[number], part.verdict, (part,), beside=tuple(single))


def worst_hit(tasks: Sequence[TaskShots]) -> tuple[TaskShots, Effect]:
    """Claim 2: the task that loses most by a random half of the queries, and what it has left by the other half."""
    worst = max(tasks, key=lambda one: float(lost_to_others(one, without_others)[0][halves(one.queries)[0]].mean()))
    left, whole = (values[halves(worst.queries)[1]] for values in left_above_chance(worst, without_others))
    return worst, Effect.of((left, whole))


def _near_chance(tasks: Sequence[TaskShots]) -> Claim:
    if not tasks:
        return Claim(2, TEXTS[2], NOT_DONE)
    worst, left = worst_hit(tasks)
    part = judged(worst.labelled.name, left, MARGINS[2], above=False, available=worst.available // 2)
    note = "accuracy falls below chance" if part.high < 0 else ""
    return Claim(2, TEXTS[2], part.verdict, (part,), note)


# ------------------------------------------------------------------------------------------------ the paper's numbers


def of_paper() -> list[TaskShots]:
    """The paper's own accuracies as tasks of countless queries: Tables 1 and 3, 10 shots, 1 % of the heads.

    A task is done where the table has its ablation, and accuracy is above chance and above that without demonstrations.
    """
    ablated, others, chance = Row(Group.ABLATED), Row(Group.LAYER_MATCHED, draw=1), 0.5
    rows = {Group.WHOLE: WHOLE, Group.ABLATED: ablated, Group.LAYER_MATCHED: others, Group.KNOCKED_OUT: KNOCKED_OUT}
    tasks = []
    for labelled in (*map(Labelled, TASKS), *(Labelled(task, to) for task in TEXT_TASKS for to in (False, True))):
        tables = {shots: published.accuracies(labelled.task, shots, labelled.unrelated) for shots in (0, 10)}
        right = {
            shots: {rows[group]: np.full((1, COUNTLESS), share) for group, share in shares.items()}
            for shots, shares in tables.items()
            if shares
        }
        if 10 not in right:
            continue
        whole, bare = (float(right[shots][WHOLE].mean()) if shots in right else chance for shots in (10, 0))
        done = ablated in right[10] and whole > max(chance, bare)
        none = Interval(np.nan, np.nan, np.nan)
        check = TaskCheck(labelled.name, 10, whole, whole, chance, none, none, float(not done), COUNTLESS)
        text = labelled.task in TEXT_TASKS
        tasks.append(
            TaskShots(labelled, right, ablated, (others,), chance, text, check, COUNTLESS, does_bare=bare > chance)
        )
    return tasks


def verdicts_on_paper() -> dict[str, dict[str, Any]]:
    """The effects of the paper's own numbers, and on which side of the margin they lie, by the number of a claim."""
    return {
        str(claim.number): {"value": part.value, "verdict": claim.verdict}
        for claim in judge(of_paper()).claims
        for part in claim.parts
    }


def stored(title: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The verdicts on the claims and what they are about, for `files.save_claims`.

    title: of the model; arrays: what `measure.shots` gives.
    """
    setup = arrays["plan"].setup
    return {
        "model": title,
        "setting": f"{setup.mode} ablation of {setup.primary} heads, {setup.other_sets} control sets",
        "settings": {
            "prompts": setup.prompts,
            "tasks": setup.tasks,
            "text_tasks": setup.text_tasks,
            "shots": setup.shots,
            "mode": setup.mode,
            "heads": setup.primary,
            "control_sets": setup.other_sets,
        },
        "margins": {str(number): margin for number, margin in MARGINS.items()},
        "published": verdicts_on_paper(),
        **numbers.benefits(arrays["tasks"]),
        "claims": judge(arrays["tasks"]).claims,
    }
