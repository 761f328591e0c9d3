"""Induction heads: their scores, what they are made of, and what a model cannot do without them.

Source: Crosbie & Shutova 2024, on prefix-matching scores after Olsson et al. 2022 and Bansal et al. 2023. A head is
(layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from util.engine.batches import TooLong
from util.figures.controls import planted_control
from util.figures.edits import INTACT, PAPER_SHARES, WHOLE, how_many
from util.figures.induction_scores.numbers import (
    NORM_MATCHED,
    TaskShots,
    by_shots,
    is_control_set,
    planned,
)
from util.figures.task_study import Edits, TaskStudy, task_studies
from util.models import planted as circuits
from util.prompts.classification import LABELS
from util.prompts.text_tasks import DATASETS, TEXT_TASKS
from util.roles.sequences_study import SequenceStudy
from util.show.part import Arrays, judged_of
from util.stats.answers import TaskCheck, task_check, which_label
from util.stats.heads import Bools, top
from util.stats.intervals import accuracy
from util.study.checked import capped
from util.study.records import Fields
from util.study.study import Study

QUERIES = 60  # of each task, of a model of fewer than 100 heads
FOUR_WAY_SHOTS = (20,)  # of tasks of four classes
CONTROLS_OF_TEXT = 5  # control sets that plain text is read without
TEXT_REFERENCE_PROMPTS = 32  # that means are taken over, of tasks with texts, whose prompts are long; not of premises


# ------------------------------------------------------------------------------------------------ settings


def setup_for(study: Study, heads: int) -> Fields:
    """What is measured of a model with so many heads.

    prompts: queries of each task; mode: of ablations; primary: how many of the best heads are ablated; control_sets: of
    either kind; other_sets: in all, where the number of demonstrations varies. Below 100 heads: 60 queries, the best
    four heads with 20 control sets of either kind. From 100 on: 40 queries, the best 1 % with 10 control sets of either
    kind, and 5 in all; with 19 in all, the least p is 0.05.
    """
    s, small = study.settings, heads < 100
    control_sets = s.control_sets or (20 if small else 10)
    return {
        "prompts": s.prompts or (QUERIES if small else 40),
        "mode": s.mode,
        "primary": s.primary or (4 if small else how_many(PAPER_SHARES[0], heads)),
        "control_sets": control_sets,
        "other_sets": s.other_sets or (control_sets if small else min(5, control_sets)),
    }


def check(study: Study) -> None:
    """Raises ValueError for settings that a task, its texts or the reference refuse; texts are read now.

    With `prompts`, or a small task of one's own, no more queries are asked than any task has: half where as many
    others say whether the model does the task.
    """
    s = study.settings
    rows = {}
    for task in (*s.tasks, *s.text_tasks):
        most = max(s.k, *_shots_of(study, task))
        rows[task] = min(len(one.classes.rows) for one in task_studies(study, task, prompts=1, k=most))
    parts, source = (1, "the smallest task") if s.all_tasks else (2, "half of the smallest task")
    few = min(rows[task] for task in s.tasks) // parts < QUERIES  # a task of one's own
    if s.prompts is not None or few:
        most = min(rows.values()) // parts
        object.__setattr__(s, "prompts", capped(s.prompts or QUERIES, most, source))


# ------------------------------------------------------------------------------------------------ heads


def on_sequences(study: Study) -> SequenceStudy:
    """The study of the same model on repeated random sequences."""
    s = study.settings
    return SequenceStudy(study.model, s.length, s.copies, s.sequences, s.seed, bos=s.bos, **study.places)


def scores(study: Study) -> Fields:
    """The attention scores of all heads, those of the untrained twin, and the primary set of the best.

    Raises ValueError where `primary` is more than the heads of the model.
    """
    sequences = on_sequences(study)
    heads = sequences.scores()
    setup = setup_for(study, heads.mean().size)
    untrained = sequences.twin().scores() if study.settings.untrained_control else None
    chosen = top(heads.mean(), setup["primary"])
    return {"heads": heads, "untrained": untrained, "setup": setup, "chosen": chosen, "description": heads.description}


def pattern(study: Study) -> Fields:
    """What the best head attends to in the first prompt of the primary task, see `TaskStudy.pattern`."""
    head = study.arrays("scores")["chosen"][0]
    return {"head": head, "task": study.settings.primary_task, **primary_studies(study)[0].pattern(head)}


# ------------------------------------------------------------------------------------------------ tasks


def primary_studies(study: Study) -> list[TaskStudy]:
    """The studies of the primary task, one for each seed of demonstrations."""
    prompts = study.arrays("scores")["setup"]["prompts"]
    return task_studies(study, study.settings.primary_task, prompts=prompts)


def plan_of(study: Study) -> Fields:
    """What is done to the model, see `numbers.planned`, and what that raises."""
    scored, norms = study.arrays("scores"), primary_studies(study)[0].means()["norms"]
    return planned(scored["heads"].mean(), norms, scored["setup"], study.settings.seed)


def answered_right(studies: Sequence[TaskStudy], edits: Edits) -> dict[str, Bools]:
    """Which queries are answered right under each edit, [R, N] by name: a row for each study."""
    runs = [study.answers(edits) for study in studies]
    return {name: np.stack([run[name]["right"] for run in runs]) for name in edits}


def check_task(study: TaskStudy, candidates: int) -> TaskCheck:
    """Whether the whole model does a task from its demonstrations, on the queries of a study.

    candidates: how many tasks are asked, see `task_check`.
    """
    variants = (study, study.replace(k=0), study.replace(permuted=True))
    answered = [variant.answers({"": INTACT})[""] for variant in variants]
    shown, bare, permuted = (which_label(one["log_prob"], one["gold"]) for one in answered)
    return task_check(
        study.classes.name, study.k, answered[0]["right"], shown, bare, permuted, study.chance, candidates
    )


def ablation(study: Study) -> Fields:
    """Right answers to the primary task with demonstrations, [R, N] by row, under all edits of the plan.

    check: whether the whole model does the task, on as many other queries, so that what it is chosen by is not measured
    again; None with `all_tasks`, where there may be no others. chance: of guessing.
    """
    plan, s, studies = plan_of(study), study.settings, primary_studies(study)
    check = None if s.all_tasks else check_task(studies[0].other_queries, len(s.tasks))
    chance, right = 1 / len(studies[0].classes.labels), answered_right(studies, plan["edits"])
    return {**plan, "task": s.primary_task, "chance": chance, "check": check, "right": right}


def plain_text(study: Study) -> Fields:
    """Losses of plain texts [N] in nats by row, of the whole model and without heads, and that of equal odds."""
    plan = plan_of(study)
    sets = [row for row in plan["edits"] if row.startswith(NORM_MATCHED)][:CONTROLS_OF_TEXT]
    measured = primary_studies(study)[0].losses({row: plan["edits"][row] for row in (WHOLE, plan["ablated"], *sets)})
    losses = {row: data["loss"] for row, data in measured.items()}
    return {**plan, "losses": losses, "uniform": float(np.log(measured[WHOLE]["vocabulary"]))}


def shots(study: Study) -> Fields:
    """Right answers with several numbers of demonstrations, on the tasks and on those with texts, as `TaskShots`.

    Text tasks are measured with Foo and Bar as labels, too, with the most demonstrations. Tasks whose prompts are
    longer than the model's context are left out.
    """
    plan, s = plan_of(study), study.settings
    named = [(task, False) for task in s.tasks] + [(task, to) for task in s.text_tasks for to in (False, True)]
    tasks: list[TaskShots] = []
    left_out: dict[str, str] = {}
    for task, unrelated in study.progress(named, "tasks by shots", "task"):
        try:
            tasks.append(_by_shots(study, task, unrelated, plan, len(named)))
        except TooLong as error:
            left_out[f"{task}, Foo/Bar" if unrelated else task] = error.extent
    return {**plan, "tasks": tasks, "left out": left_out}


def _shots_of(study: Study, task: str) -> tuple[int, ...]:
    """The numbers of demonstrations that a task is asked with."""
    return FOUR_WAY_SHOTS if task.endswith("_4way") else study.settings.shots


def _by_shots(study: Study, task: str, unrelated: bool, plan: Arrays, candidates: int) -> TaskShots:
    """Whether a task is done is asked on other queries (the same, where there are too few), with most demonstrations.

    Where it is not done the model is measured alone, unless `all_tasks`; without demonstrations all edits are measured
    where it is above chance without any.
    """
    changes: Fields = {"prompts": plan["setup"]["prompts"], "labels": LABELS[:2] if unrelated else None}
    if task in (*TEXT_TASKS, *DATASETS) and study.settings.reference != "mnli":
        changes["reference_prompts"] = TEXT_REFERENCE_PROMPTS
    shots = _shots_of(study, task)
    first = task_studies(study, task, k=max(shots), **changes)[0]
    available = len(first.classes.rows)
    others = first.other_queries if 2 * first.prompts <= available else first
    check = check_task(others, candidates)
    shots = (max(shots),) if unrelated else shots
    bare = 0 in shots and accuracy(others.replace(k=0).answers({"": INTACT})[""]["right"]).low > others.chance
    right = {}
    for k in shots:
        ablated = check.done or study.settings.all_tasks or (bare and not k)
        rows = by_shots(plan, k) if ablated else {WHOLE: INTACT}
        right[k] = answered_right(task_studies(study, task, k=k, **changes), rows)
    controls = tuple(filter(is_control_set, by_shots(plan, 0)))
    return TaskShots(task, unrelated, right, plan["ablated"], controls, first.chance, check, available, bare)


# ------------------------------------------------------------------------------------------------ controls


def planted(study: Study) -> Fields:
    """The prefix-matching scores [L, H] of a model whose induction heads are known, and the truth."""
    model, truth = planted_control(circuits.induction, {})
    return {"score": on_sequences(study).replace(model=model, redo=False).scores().mean(), "truth": truth}


def claims(study: Study) -> Fields:
    """The verdicts that `make claims` has stored of the model."""
    return judged_of(study.figure.stem, study.model.name)
