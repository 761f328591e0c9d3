"""Induction heads: their scores, what they are made of, and what a model cannot do without them.

Source: Crosbie & Shutova 2024, on prefix-matching scores after Olsson et al. 2022 and Bansal et al. 2023. A head is
(layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.engine.components import direct_effects
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads
from util.figures.induction_scores import vectors_measure
from util.figures.induction_scores.edits import WHOLE as NOTHING
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.plan import (
    NORM_MATCHED,
    PAPER_SHARES,
    WHOLE,
    Plan,
    TaskShots,
    how_many,
    is_control_set,
    plan,
)
from util.figures.induction_scores.task_study import TaskStudy, task_studies
from util.figures.planted_controls import planted_control
from util.models import planted as circuits
from util.prompts.classification import LABELS
from util.prompts.sequences import Sequences
from util.prompts.text_tasks import TEXT_TASKS
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.head_scores import HeadScores
from util.roles.sequences_study import SequenceStudy
from util.show.claims import judged_of
from util.stats.answers import TaskCheck, task_check, which_label
from util.stats.heads import Head, layer_matched, shortage, top
from util.stats.intervals import accuracy
from util.study.checked import capped
from util.study.study import Study

FOUR_WAY_SHOTS = (20,)  # of tasks of four classes
CONTROLS_OF_TEXT = 5  # control sets that plain text is read without
TEXT_REFERENCE_PROMPTS = 32  # that means are taken over, of tasks with texts, whose prompts are long; not of premises


# ------------------------------------------------------------------------------------------------ settings


def setup_for(study: Study, heads: int) -> dict[str, Any]:
    """What is measured of a model with so many heads.

    prompts: queries of each task; mode: of ablations; primary: how many of the best heads are ablated; control_sets: of
    either kind on the primary task; other_sets: on other tasks. Below 100 heads: 60 queries, the best four heads with
    20 control sets of either kind. From 100 on: 40 queries, the best 1 % with 10 control sets of either kind, 5 on
    other tasks; with 19 in all, the least p is 0.05.
    """
    s, small = study.settings, heads < 100
    control_sets = s.control_sets or (20 if small else 10)
    return {
        "prompts": s.prompts or (60 if small else 40),
        "mode": s.mode,
        "primary": s.primary or (4 if small else how_many(PAPER_SHARES[0], heads)),
        "control_sets": control_sets,
        "other_sets": s.other_sets or (control_sets if small else min(5, control_sets)),
    }


def check(study: Study) -> None:
    """Raises ValueError for settings that a task, its texts or the reference refuse; texts are read now.

    With `prompts`, no more queries are asked than any task has: half of them where as many others say whether the model
    does the task.
    """
    s = study.settings
    rows = []
    for task in (*s.tasks, *s.text_tasks):
        most = max(s.k, *_shots_of(study, task))
        rows += [len(of_task.classes.rows) for of_task in task_studies(study, task, prompts=1, k=most)]
    most, source = (min(rows), "the smallest task") if s.all_tasks else (min(rows) // 2, "half of the smallest task")
    if s.prompts is not None:
        object.__setattr__(s, "prompts", capped(s.prompts, most, source))


# ------------------------------------------------------------------------------------------------ heads


def on_sequences(study: Study, **changes: Any) -> SequenceStudy:
    """The study of the same model on repeated random sequences."""
    s = study.settings
    of = {"model": study.model, "length": s.length, "copies": s.copies, "sequences": s.sequences, "seed": s.seed}
    return SequenceStudy(**{**of, "bos": s.bos, "folder": study.folder, "redo": study.redo, **changes})


def scores(study: Study) -> dict[str, Any]:
    """The attention scores of all heads, those of the untrained twin, and the primary set of the best.

    Raises ValueError where `primary` is more than the heads of the model.
    """
    sequences = on_sequences(study)
    heads = sequences.scores()
    setup = setup_for(study, heads.mean().size)
    untrained = sequences.twin().scores() if study.settings.untrained_control else None
    chosen = top(heads.mean(), setup["primary"])
    return {"heads": heads, "untrained": untrained, "setup": setup, "chosen": chosen, "description": heads.description}


def companions(study: Study) -> dict[str, Any]:
    """The scores, and what heads write, see `head_attribution`: attention is not copying."""
    sequences = on_sequences(study)

    def compute() -> dict[str, Any]:
        return {"attribution": head_attribution(sequences.pair[0], sequences.drawn)}

    return {**study.arrays("scores"), "attribution": sequences.measured(compute, part="outputs").data["attribution"]}


def head_attribution(model: PreTrainedModel, sequences: Sequences) -> NDArray[np.floating]:
    """What every head adds directly to the logit of the next token in the last copy, in logits, [N, L, H].

    That is beyond what it adds to the sequence's other tokens, the mean of all places. NaN for classes whose layers
    cannot be taken apart, see `engine.components`.
    """
    prepared, n, length = prepare(model), len(sequences.ids), sequences.length
    start = sequences.bos + (sequences.copies - 1) * length
    places = range(start, start + length - 1)
    attribution = np.full((n, len(prepared.layers), prepared.heads), np.nan)
    for number, ids in enumerate(tqdm(torch.from_numpy(sequences.ids), desc="attribution", leave=False)):
        heads = CaptureHeads(torch.tensor(places))
        with torch.inference_mode(), instrument(model, heads):
            model.base_model(ids[None].to(input_device(model)), use_cache=False)
        # the effect of a head is what is lost without it, so that the scale of the last norm is real
        removed = {layer: -z for layer, z in heads.z.items()}
        tokens = ids[None, sequences.bos : sequences.bos + length]
        logits = direct_effects(model, ids[None], removed, tokens, places)
        if logits is None:
            break
        change = (logits[1] - logits[0]).movedim(2, 0).numpy()[0]
        raised = change[..., np.arange(length - 1), np.arange(1, length)]
        attribution[number] = (raised - (change.sum(-1) - raised) / (length - 1)).mean(-1)
    return attribution


def pattern(study: Study) -> dict[str, Any]:
    """What the best head attends to in the first prompt of the primary task, see `TaskStudy.pattern`."""
    found, task = study.arrays("scores"), study.settings.primary_task
    first = task_studies(study, task, prompts=found["setup"]["prompts"])[0]
    return {"head": found["chosen"][0], "task": task, **first.pattern(found["chosen"][0])}


def mechanism(study: Study) -> dict[str, Any]:
    """Scores without the best previous-token heads of earlier layers, and without others there, by what is removed."""
    found, sequences = study.arrays("scores"), on_sequences(study)
    mean = found["heads"].mean()
    earlier = np.arange(len(mean))[:, None] < min(found["chosen"])[0]
    previous = np.where(earlier, found["heads"].mean("previous_token"), 0)
    makers, alike = previous_token_heads(previous, mean, study.settings.seed)
    removed = {"previous-token heads out": makers} | {f"others out, {i}": heads for i, heads in enumerate(alike, 1)}
    without = {name: sequences.scores(heads) for name, heads in removed.items()}
    return {**found, "makers": makers, "without": without}


def previous_token_heads(
    previous: NDArray[np.floating], score: NDArray[np.floating], seed: int = 0
) -> tuple[list[Head], list[list[Head]]]:
    """The heads that give most attention to the token before, and three layer-matched sets of other heads.

    previous: that attention [L, H], 0 for heads that do not count; score: prefix-matching scores [L, H]. The heads are
    those from 0.3 on, at most four, or the best one where there are none. The other heads are below 0.3 in both scores;
    there are no sets where a layer has too few of them.
    """
    makers = [head for head in top(previous, 4) if previous[head] >= INDUCTION_HEAD] or top(previous, 1)
    eligible = (previous < INDUCTION_HEAD) & (score < INDUCTION_HEAD)
    return makers, [] if shortage(makers, eligible) else layer_matched(makers, eligible, 3, seed)


# ------------------------------------------------------------------------------------------------ tasks


def plan_of(study: Study) -> Plan:
    """The sets of heads, and what is done to the model. Raises what `plan.plan` raises."""
    found, s = study.arrays("scores"), study.settings
    norms = task_studies(study, s.primary_task, prompts=found["setup"]["prompts"])[0].means().norms
    return plan(found["heads"].mean(), norms, found["setup"], s.seed)


def answered_right(studies: Sequence[TaskStudy], edits: Mapping[str, Edit]) -> dict[str, NDArray[np.bool_]]:
    """Which queries are answered right under each edit, [R, N] by name: a row for each study."""
    runs = [study.answers(edits) for study in studies]
    return {name: np.stack([run[name].right for run in runs]) for name in edits}


def check_task(study: TaskStudy, candidates: int = 1) -> TaskCheck:
    """Whether the whole model does a task from its demonstrations, on the queries of a study.

    candidates: how many tasks are asked, see `task_check`.
    """
    variants = (study, study.replace(k=0), study.replace(permuted=True))
    answered = [variant.answers({"": NOTHING})[""] for variant in variants]
    shown, bare, permuted = (which_label(one.log_prob, one.gold) for one in answered)
    return task_check(study.classes.name, study.k, answered[0].right, shown, bare, permuted, study.chance, candidates)


def tasks_done(studies: Sequence[TaskStudy]) -> dict[str, TaskCheck]:
    """The tasks that the whole model does, asked on as many other queries.

    An ablation of a task that the model does not do says nothing. The queries are not those of the studies, so that
    what a task is chosen by is not measured again.
    """
    checks = {study.task: check_task(study.other_queries, len(studies)) for study in studies}
    return {task: check for task, check in checks.items() if check.done}


def answers(study: Study) -> dict[str, Any]:
    """Right answers with demonstrations, [R, N] by task and row, under all edits of the plan, and which tasks are done.

    passed: the checks of tasks that the model does; done: the tasks that get ablations. The primary task has all edits,
    others have fewer control sets.
    """
    edits, s = plan_of(study), study.settings
    on_tasks = {task: task_studies(study, task, prompts=edits.setup["prompts"]) for task in s.tasks}
    passed = {} if s.all_tasks else tasks_done([of_task[0] for of_task in on_tasks.values()])
    done = s.tasks if s.all_tasks else tuple(passed)
    measured = {task: edits.fewer() if task in done else {WHOLE: NOTHING} for task in s.tasks}
    measured[s.primary_task] = dict(edits.edits)
    right = {task: answered_right(of_task, measured[task]) for task, of_task in on_tasks.items()}
    return {"plan": edits, "task": s.primary_task, "passed": passed, "done": done, "right": right}


def plain_text(study: Study) -> dict[str, Any]:
    """Losses of plain texts [N] in nats by row, of the whole model and without heads, and that of equal odds."""
    edits = plan_of(study)
    sets = [row for row in edits.edits if row.startswith(NORM_MATCHED)][:CONTROLS_OF_TEXT]
    texts = task_studies(study, study.settings.primary_task, prompts=edits.setup["prompts"])[0]
    measured = texts.losses({row: edits.edits[row] for row in (WHOLE, edits.ablated, *sets)})
    losses = {row: data["loss"] for row, data in measured.items()}
    return {"plan": edits, "losses": losses, "uniform": float(np.log(measured[WHOLE]["vocabulary"]))}


def shots(study: Study) -> dict[str, Any]:
    """Right answers with several numbers of demonstrations, on the tasks and on those with texts, as `TaskShots`.

    Text tasks are measured with Foo and Bar as labels, too, with the most demonstrations. Whether a task is done is
    asked on other queries, with the most demonstrations (on the same queries, where there are too few others); where it
    is not done the model is measured alone, unless `all_tasks`, or without demonstrations where it is above chance
    without any. Demonstrations that make a prompt longer than the model's context are left out.
    """
    edits, s = plan_of(study), study.settings
    named = [(task, False) for task in s.tasks] + [(task, to) for task in s.text_tasks for to in (False, True)]
    tasks: list[TaskShots] = []
    left_out: dict[tuple[str, int], str] = {}
    for task, unrelated in study.progress(named, "tasks by shots", "task"):
        ks = _shots_of(study, task)
        while ks:
            try:
                tasks.append(_by_shots(study, task, unrelated, edits, ks, len(named)))
                break
            except UnsupportedModel as error:
                left_out[f"{task}, Foo/Bar" if unrelated else task, max(ks)] = too_long(error)
                ks = tuple(k for k in ks if k < max(ks))
    return {"plan": edits, "tasks": tasks, "left out": left_out}


def _shots_of(study: Study, task: str) -> tuple[int, ...]:
    """The numbers of demonstrations that a task is asked with."""
    return FOUR_WAY_SHOTS if task.endswith("_4way") else study.settings.shots


def _by_shots(
    study: Study, task: str, unrelated: bool, edits: Plan, shots: Sequence[int], candidates: int
) -> TaskShots:
    changes: dict[str, Any] = {"prompts": edits.setup["prompts"], "labels": LABELS[:2] if unrelated else None}
    if task in TEXT_TASKS and study.settings.reference != "mnli":
        changes["reference_prompts"] = TEXT_REFERENCE_PROMPTS
    first = task_studies(study, task, k=max(shots), **changes)[0]
    available = len(first.classes.rows)
    others = first.other_queries if 2 * first.prompts <= available else first
    checked = check_task(others, candidates)
    ks = (max(shots),) if unrelated else shots
    bare = 0 in ks and accuracy(others.replace(k=0).answers({"": NOTHING})[""].right).low > others.chance
    right = {}
    for k in ks:
        ablated = checked.done or study.settings.all_tasks or (bare and not k)
        rows = edits.by_shots(k) if ablated else {WHOLE: NOTHING}
        right[k] = answered_right(task_studies(study, task, k=k, **changes), rows)
    controls = tuple(filter(is_control_set, edits.by_shots(0)))
    return TaskShots(task, unrelated, right, edits.ablated, controls, first.chance, checked, available, bare)


# ------------------------------------------------------------------------------------------------ controls


def planted_scores(study: Study, **options: Any) -> tuple[HeadScores, circuits.Planted]:
    """The scores of a model whose induction heads are known, and the truth.

    options: those of `models.planted.induction` (family, seed).
    """
    model, truth = planted_control(circuits.induction, options)
    return on_sequences(study, model=model, redo=False).scores(), truth


def planted(study: Study) -> dict[str, Any]:
    """Whether a score of 0.3 finds just the planted heads."""
    found, truth = planted_scores(study)
    return {"exact": truth.found_exactly("induction", found.mean(), INDUCTION_HEAD)}


def claims(study: Study) -> dict[str, Any]:
    """The verdicts that `make claims` has stored of the model."""
    return judged_of(study.figure.stem, study.model.name)


function_vectors = vectors_measure.function_vectors
