"""Induction heads: their scores, what they are made of, and what a model cannot do without them.

Source: Crosbie & Shutova 2024, on prefix-matching scores after Olsson et al. 2022 and Bansal et al. 2023. A head is
(layer, head), the layer counted among those that have attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from util.engine.batches import too_long
from util.engine.call import UnsupportedModel
from util.figures.induction_scores.edits import WHOLE as NOTHING
from util.figures.induction_scores.edits import Edit, Group, Row
from util.figures.induction_scores.function_vector_study import CopiesStudy, WordPairsStudy
from util.figures.induction_scores.outputs import head_attribution, head_copying, head_weights_copying
from util.figures.induction_scores.plan import (
    FOUR_WAY_SHOTS,
    PAPER_SHARES,
    Plan,
    Setup,
    how_many,
    plan,
    previous_token_heads,
)
from util.figures.induction_scores.shots import WHOLE, Labelled, TaskShots
from util.figures.induction_scores.task_study import (
    TaskStudy,
    answered_right,
    check_task,
    does_bare,
    tasks_done,
)
from util.figures.induction_scores.vector_sets import ROOM, check_size, head_sets
from util.figures.planted_controls import planted_control
from util.load_model_and_data import load_text_task, reference_texts
from util.models import planted as circuits
from util.prompts.classification import LABELS
from util.prompts.sequences import repeated_sequences
from util.prompts.text_tasks import TEXT_TASKS
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.function_vectors import TASKS as PAIR_TASKS
from util.roles.function_vectors import Corruption, FunctionVectorStudy, function_vector_heads
from util.roles.results import FunctionVectorHeads, HeadScores
from util.roles.sequences_study import SequenceStudy
from util.show.claims import judged_of
from util.stats.heads import top
from util.study.checked import capped
from util.study.study import Study

OV_TOKENS = 256  # that copying by weights alone is measured on
CONTROLS_OF_TEXT = 5  # control sets that plain text is read without
TEXT_REFERENCE_PROMPTS = 32  # that means are taken over, of tasks with texts, whose prompts are long; not of premises


def on_sequences(study: Study, **changes: Any) -> SequenceStudy:
    """The study of the same model on repeated random sequences."""
    s = study.settings
    of = {"model": study.model, "length": s.length, "copies": s.copies, "sequences": s.sequences, "seed": s.seed}
    return SequenceStudy(**{**of, "bos": s.bos, "folder": study.folder, "redo": study.redo, **changes})


# ------------------------------------------------------------------------------------------------ settings


def setup_for(study: Study, heads: int) -> Setup:
    """Returns what is measured of a model with so many heads.

    Below 100 heads: 60 queries, the best four heads with 20 control sets of either kind. From 100 on: 40 queries, the
    best 1 % with 10 control sets of either kind, 5 on other tasks; with 19 in all, the least p is 0.05. Raises
    ValueError for more of the best heads than there are.
    """
    s, small = study.settings, heads < 100
    primary = s.primary or (4 if small else how_many(PAPER_SHARES[0], heads))
    if primary > heads:
        raise ValueError(f"primary = {primary}: the model has {heads} heads")
    control_sets = s.control_sets or s.preset.control_sets or (20 if small else 10)
    return Setup(
        tasks=s.tasks,
        primary_task=s.primary_task,
        prompts=prompts_of(study, s.primary_task, heads),
        mode=s.mode,
        primary=primary,
        control_sets=control_sets,
        other_sets=s.other_sets or (control_sets if small else min(5, control_sets)),
        all_tasks=s.all_tasks,
        four_way=s.preset.four_way,
        text_tasks=s.text_tasks,
        shots=s.shots,
    )


def prompts_of(study: Study, task: str, heads: int) -> int:
    """How many queries of a task are asked of a model with so many heads; with `prompts`, no more than any task has."""
    s = study.settings
    if s.prompts is None and task in TEXT_TASKS and s.preset.all_texts:
        return len(load_text_task(task, s.data_of(task)).rows)
    return s.prompts or s.preset.prompts or (60 if heads < 100 else 40)


def task_studies(study: Study, task: str, prompts: int, **changes: Any) -> list[TaskStudy]:
    """The studies of the same model on a task, one for each seed of demonstrations."""
    s = study.settings
    of: dict[str, Any] = {
        "k": s.k,
        "data": s.data_of(task),
        "reference": s.reference,
        "reference_data": s.reference_data,
        "reference_prompts": s.preset.reference_prompts,
        "folder": study.folder,
        "redo": study.redo,
    }
    of |= changes
    return [TaskStudy(study.model, task, prompts=prompts, seed=seed, **of) for seed in s.demonstration_seeds]


def check(study: Study) -> None:
    """Raises ValueError for settings that a task, its texts or the reference refuse; texts are read now."""
    s = study.settings
    if s.reference == "mnli":
        try:
            reference_texts("mnli", s.reference_data)
        except ValueError as error:
            raise ValueError(
                f"text_data = {s.text_data!r}: reference 'mnli' cannot be read: {error}, called mnli, in text_data; or "
                "take reference 'task' or 'staicc'"
            ) from error
    tasks = (*s.tasks, *s.preset.four_way, *s.text_tasks)
    if s.prompts is not None:  # as many other queries say whether the model does a task
        rows = min(len(task_studies(study, task, 1)[0].classes.rows) for task in tasks)
        most, source = (rows, "the smallest task") if s.all_tasks else (rows // 2, "half of the smallest task")
        object.__setattr__(s, "prompts", capped(s.prompts, most, source))
    for task in tasks:
        most = max(s.k, *(FOUR_WAY_SHOTS if task in s.preset.four_way else s.shots))
        for of_task in task_studies(study, task, prompts_of(study, task, 1)):  # small models are asked the most
            of_task.replace(k=most)
            if not s.all_tasks:
                of_task.other_queries  # noqa: B018  # raises ValueError where there are too few


# ------------------------------------------------------------------------------------------------ heads


def scores(study: Study) -> dict[str, Any]:
    """The attention scores of all heads, those of the untrained twin, and the primary set of the best.

    Raises ValueError, before anything is measured, where `primary` is more than the heads of the model.
    """
    sequences = on_sequences(study)
    heads = sequences.scores(check=lambda layers, in_layer: setup_for(study, layers * in_layer))
    mean = heads.mean()
    setup = setup_for(study, mean.size)
    untrained = sequences.twin().scores() if study.settings.untrained_control else None
    chosen = top(mean, setup.primary)
    return {"heads": heads, "untrained": untrained, "setup": setup, "chosen": chosen, "description": heads.description}


def outputs(sequences: SequenceStudy) -> dict[str, Any]:
    """What else heads do.

    copying [N, L, H]: the OV score on sequences that are not repeated, see `outputs.copying`; attribution [N, L, H]:
    what a head's write adds directly to the logit of the token that comes next in the last copy, beyond what it adds
    to the sequence's other tokens, the mean of all places; weights_copying [L, H]: the share of 256 tokens that a head
    copies by its weights alone. NaN where `engine.components` has none.
    """

    def compute() -> dict[str, Any]:
        model, tokenizer = sequences.pair
        ids = repeated_sequences(tokenizer, OV_TOKENS, 1, [0], bos=False).ids[0]
        return {
            "copying": head_copying(model, sequences.drawn_in_copies(1)),
            "attribution": head_attribution(model, sequences.drawn),
            "weights_copying": head_weights_copying(model, ids),
        }

    return sequences.measured(compute, part="outputs").data


def companions(study: Study) -> dict[str, Any]:
    """The scores, and what else heads do, see `outputs`."""
    return {**study.arrays("scores"), **outputs(on_sequences(study))}


def pattern(study: Study) -> dict[str, Any]:
    """What the best head attends to in the first prompt of the primary task, see `TaskStudy.pattern`."""
    found = study.arrays("scores")
    task = study.settings.primary_task
    first = task_studies(study, task, prompts_of(study, task, found["heads"].mean().size))[0]
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


# ------------------------------------------------------------------------------------------------ tasks


def plan_of(study: Study) -> Plan:
    """Returns the sets of heads, and what is done to the model. Raises what `plan.plan` raises."""
    found = study.arrays("scores")
    setup: Setup = found["setup"]
    norms = task_studies(study, setup.primary_task, setup.prompts)[0].means().norms
    return plan(found["heads"].mean(), norms, setup, study.settings.seed)


def answers(study: Study) -> dict[str, Any]:
    """Right answers with demonstrations, [R, N] by task and row, under all edits of the plan, and which tasks are done.

    passed: the checks of tasks that the model does; done: the tasks that get ablations.
    """
    edits = plan_of(study)
    setup = edits.setup
    if study.model.loaded is not None:
        _check_lengths(study, setup)
    on_tasks = {task: task_studies(study, task, setup.prompts) for task in setup.tasks}
    passed = {} if setup.all_tasks else tasks_done([of_task[0] for of_task in on_tasks.values()])
    done = setup.tasks if setup.all_tasks else tuple(passed)
    right = {task: answered_right(of_task, edits.of_task(task, done)) for task, of_task in on_tasks.items()}
    return {"plan": edits, "passed": passed, "done": done, "right": right}


def plain_text(study: Study) -> dict[str, Any]:
    """Losses of plain texts [N] in nats by row, of the whole model and without heads, and that of equal odds."""
    edits = plan_of(study)
    setup = edits.setup
    rows = (WHOLE, edits.ablated, *edits.draws(Group.NORM_MATCHED)[:CONTROLS_OF_TEXT])
    texts = task_studies(study, setup.primary_task, setup.prompts)[0]
    return {
        "plan": edits,
        "losses": texts.losses({row: edits.edits[row] for row in rows}),
        "uniform": texts.uniform_loss(),
    }


def shots(study: Study) -> dict[str, Any]:
    """Right answers with several numbers of demonstrations, on the tasks and on those with texts, as `TaskShots`.

    Text tasks are measured with Foo and Bar as labels, too, with the most demonstrations. Whether a task is done is
    asked on other queries, with the most demonstrations (on the same queries, where there are too few others); where it
    is not done the model is measured alone, unless `all_tasks`, or without demonstrations where it is above chance
    without any. Demonstrations that make a prompt longer than the model's context are left out.
    """
    edits = plan_of(study)
    tasks: list[TaskShots] = []
    left_out: dict[tuple[str, int], str] = {}
    for labelled in study.progress(_labelled(edits.setup), "tasks by shots", "task"):
        ks = edits.setup.shots_of(labelled.task)
        while ks:
            try:
                tasks.append(_by_shots(study, labelled, edits, ks))
                break
            except UnsupportedModel as error:
                left_out[labelled.name, max(ks)] = too_long(error)
                ks = tuple(k for k in ks if k < max(ks))
    return {"plan": edits, "tasks": tasks, "left out": left_out}


def _labelled(setup: Setup) -> list[Labelled]:
    """The tasks that are asked with several numbers of demonstrations; those with texts with unrelated labels, too."""
    pattern = [Labelled(task) for task in (*setup.tasks, *setup.four_way)]
    return pattern + [Labelled(task, unrelated) for task in setup.text_tasks for unrelated in (False, True)]


def _studies(study: Study, labelled: Labelled, k: int) -> list[TaskStudy]:
    """The studies of one task with k demonstrations, one for each seed."""
    changes: dict[str, Any] = {"k": k, "labels": LABELS[:2] if labelled.unrelated else None}
    if labelled.task in TEXT_TASKS and study.settings.reference != "mnli":
        changes["reference_prompts"] = TEXT_REFERENCE_PROMPTS
    prompts = prompts_of(study, labelled.task, study.arrays("scores")["heads"].mean().size)
    return task_studies(study, labelled.task, prompts, **changes)


def _by_shots(study: Study, labelled: Labelled, edits: Plan, shots: Sequence[int]) -> TaskShots:
    setup, text = edits.setup, labelled.task in TEXT_TASKS
    first = _studies(study, labelled, max(shots))[0]
    queries = len(first.classes.rows)
    enough = 2 * first.prompts <= queries  # else the queries themselves say whether it does the task
    asked = first.other_queries if enough else first
    checked = check_task(asked, len(_labelled(setup)))
    ks = (max(shots),) if labelled.unrelated else shots
    bare = 0 in ks and does_bare(asked)

    def right(k: int) -> dict[Row, NDArray[np.bool_]]:
        ablated = checked.done or setup.all_tasks or (bare and not k)
        return answered_right(_studies(study, labelled, k), edits.by_shots(k) if ablated else {WHOLE: NOTHING})

    controls = tuple(row for row in edits.by_shots(0) if row.is_control_set)
    answered = {k: right(k) for k in ks}
    return TaskShots(labelled, answered, edits.ablated, controls, first.chance, text, checked, queries, bare)


def _check_lengths(study: Study, setup: Setup) -> None:
    """Raises ValueError where prompts with k demonstrations are too long for the model, any for the reference."""
    labelled = [Labelled(task) for task in (*setup.tasks, *setup.four_way, *setup.text_tasks)]
    for one in tqdm(labelled, desc="lengths of prompts", leave=False):
        for k in {study.settings.k, *setup.shots_of(one.task)} if one.task in setup.tasks else setup.shots_of(one.task):
            for of_task in _studies(study, one, k):
                try:
                    of_task.check_lengths(setup.mode)
                except UnsupportedModel:
                    if one.task in setup.tasks and k == study.settings.k:  # other numbers are left out, see `shots`
                        raise


# ------------------------------------------------------------------------------------------------ function vectors


def indirect_effects(study: Study) -> FunctionVectorHeads:
    """Returns the indirect effects of all heads on five word-pair tasks, see `roles.function_vectors`.

    25 corrupted prompts of each task, and mean outputs over 100 intact ones, as Todd et al. have; from 100 heads on 10
    and 25. Demonstrations are corrupted as theirs, by shuffled outputs; but where the answer is hardly more probable
    after intact ones (by less than ROOM), so that there is nothing to give back, by outputs of other lists.
    """
    small = study.arrays("scores")["heads"].mean().size < 100
    prompts, intact = (25, 100) if small else (10, 25)
    k, seed = study.settings.k, study.settings.seed
    for corruption in get_args(Corruption):
        of: dict[str, Any] = {"intact": intact, "corruption": corruption, "folder": study.folder, "redo": study.redo}
        tasks = [FunctionVectorStudy(study.model, task, k, prompts, seed, **of) for task in PAIR_TASKS]
        heads = function_vector_heads(tasks)
        if heads.room >= ROOM:
            break
    return heads


def function_vectors(study: Study) -> dict[str, Any]:
    """Function-vector heads beside induction heads, and what the model does without either.

    pairs: which word pairs are answered right, [N] by ablation and task; classified: which queries of the primary task
    are, [N]; copied: the share of tokens that are copied in each repeated sequence, [N]. What heads are chosen by is
    not measured again: other queries are asked, and other sequences repeated. Each set has 4 heads, or a third of all
    where that is less, and 20 control sets; from 100 heads on 3 % of them and 10. All heads are ablated by their mean
    output. Raises ValueError for fewer than two sequences, which have no interval.
    """
    s, found = study.settings, study.arrays("scores")
    if s.sequences < 2:
        raise ValueError(f"sequences = {s.sequences}: give two or more, as one has no interval")
    matching = found["heads"].mean()
    small = matching.size < 100
    queries, draws = (20, 20) if small else (8, 10)
    size = min(4, matching.size // 3) if small else how_many(PAPER_SHARES[1], matching.size)
    places: dict[str, Any] = {"folder": study.folder, "redo": study.redo}
    classified = task_studies(study, s.primary_task, 2 * queries)[0]
    copies = CopiesStudy(study.model, s.length, 2, s.sequences, s.seed + s.sequences, bos=s.bos, **places)
    check_size(size, matching.size)
    heads = indirect_effects(study)
    tasks = [task for task in PAIR_TASKS if task not in heads.left_out]
    pairs = WordPairsStudy(study.model, tasks, s.k, queries, s.seed, **places)  # type: ignore[arg-type]
    sets = head_sets(matching, heads.mean(), pairs.means().norms, size, draws, s.seed)
    edits = {name: Edit.ablate(chosen) if chosen else NOTHING for name, chosen in sets.ablations.items()}
    return {
        **found,
        "effects": heads,
        "sets": sets,
        "pairs": pairs.answers(edits),
        "task": s.primary_task,
        "chance": 1 / len(classified.classes.labels),
        "classified": {name: one.right for name, one in classified.answers(edits).items()},
        "copied": copies.copied(edits),
    }


# ------------------------------------------------------------------------------------------------ controls


def planted_scores(study: Study, **options: Any) -> tuple[HeadScores, circuits.Planted]:
    """Returns the scores of a model whose induction heads are known, and the truth.

    options: those of `models.planted.induction` (family, copies, noise, seed).
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
