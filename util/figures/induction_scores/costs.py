"""What the parts of the study cost, see `records.estimates`."""

from __future__ import annotations

from math import ceil

from util.engine import replay
from util.figures.induction_scores.benefits import Labelled
from util.figures.induction_scores.plan import Setup
from util.figures.induction_scores.study import TEXT_REFERENCE_PROMPTS, Study, measures
from util.prompts import lengths
from util.prompts.text_tasks import TEXT_TASKS
from util.records.estimates import (
    NOTHING,
    PADDING,
    RECORD,
    Part,
    Shape,
    Work,
    loading,
    plain_runs,
    together,
    with_control,
)
from util.roles.function_vectors import BLOCK
from util.roles.function_vectors import TASKS as PAIR_TASKS

DONE = 0.3  # the share of the tasks, beside the primary one, that a model does: on others it is measured alone
ALIKE = 3  # sets of other heads beside the previous-token heads
KNOCKOUTS = 6  # of the pattern: in the primary set, in three others, of random keys and of the previous part
LOST = 5  # control sets without demonstrations, on plain text and by demonstrations
PADDED_TEXT = 1.55  # tokens that run for each token of plain texts, which differ in length
PLACES = 8  # of a batch at which logits are computed, for all rows
OV_TOKENS = 256
ALIKE_IN_LENGTH = 0.5  # the share of the prompts of word pairs, at most, that are run together
SETS = 4  # of heads in `function_vectors`: two kinds, each with and without the other
DRAWING = 0.003  # seconds in which a prompt is tokenised with its labels


def parts(study: Study, shape: Shape) -> dict[str, Part]:
    """The parts that notebook 02 asks for, by the names of the study's methods."""
    setup, on = study.setup_for(shape.all_heads), study.on_sequences
    length = on.bos + on.copies * on.length
    score = plain_runs(shape, on.sequences, length) + Work(stored=RECORD + 24 * on.sequences * shape.all_heads)
    twin = loading() + score if study.untrained_control else NOTHING
    other = plain_runs(shape, on.sequences, on.copies * 25) + plain_runs(shape, on.sequences, on.copies * 100)
    # copying in one copy of the sequence, attribution in all; heads are taken out at every place, for all its tokens
    outputs = plain_runs(shape, on.sequences, length + on.length).times(3)
    placed = shape.all_heads * on.length
    outputs += Work(
        unembedded=0.5 * shape.all_heads * OV_TOKENS,
        seconds=1e-9 * 2 * on.sequences * placed * on.length * shape.width,
        passes=6 * on.sequences,
        room=4 * (2.0 * placed * shape.width + OV_TOKENS * shape.heads * shape.width)
        + 4 * OV_TOKENS * shape.all_heads * OV_TOKENS * 2,
        stored=RECORD + 24 * on.sequences * shape.all_heads,
    )
    pattern = plain_runs(shape, 1, _length(study, study.primary_task, study.k, shape))
    return {
        "scores": Part(loading() + score + twin, study.scores),
        "stability": Part(score + other + Work(seconds=0.1), study.stability),
        "companions": Part(outputs, study.companions),
        "pattern": Part(pattern, study.pattern),
        "mechanism": Part(score.times(1 + ALIKE), study.mechanism),
        "accuracies": Part(accuracies(study, setup, shape), study.accuracies),
        "doses": Part(doses(study, setup, shape), study.doses),
        "costs": Part(NOTHING, study.costs),
        "benefits": Part(benefits(study, setup, shape), study.benefits),
        "claims_beside": Part(NOTHING, study.claims_beside),
        "function_vectors": Part(function_vectors(study, shape), study.function_vectors),
        "planted_check": Part(with_control(NOTHING, 7.0), study.planted_check),
    }


# ------------------------------------------------------------------------------------------------ tasks


def _length(study: Study, task: str, k: int, shape: Shape) -> float:
    return lengths.classification(task, k, few=shape.small_vocabulary)


def _answered(study: Study, task: str, k: int, shape: Shape, count: float = 1.0, share: float = 1.0) -> Work:
    """The queries of a task with k demonstrations, run so many times through a share of the layers."""
    prompts = study._prompts_of(task, shape.all_heads) * len(study._demonstration_seeds)
    length = _length(study, task, k, shape)
    at_once = min(prompts, max(1.0, 2048 / length))
    logits = Work(unembedded=count * PLACES * prompts, room=shape.logits(PLACES * at_once, 2), stored=count * RECORD)
    return plain_runs(shape, prompts, length, share=share).times(count) + logits


def _control_sets(setup: Setup, shape: Shape, sets: int) -> float:
    """Of both kinds; in small models a layer has too few other heads for the kind that is matched by layer."""
    return sets * (1 if shape.all_heads < 100 else 2)


def _started(setup: Setup, shape: Shape, tokens: float) -> tuple[float, Work]:
    """The share of the layers that a run with the primary set edited takes, and what runs before it leave."""
    kept = min(2**30, tokens * shape.width * shape.item * shape.layers)
    return shape.after_first(setup.primary), Work(room=kept)


def accuracies(study: Study, setup: Setup, shape: Shape) -> Work:
    """Every task run whole, on other queries too; the primary one under all edits, others that the model does."""
    others = [task for task in setup.tasks if task != setup.primary_task]
    length = _length(study, setup.primary_task, study.k, shape)
    share, kept = _started(setup, shape, length * study._prompts_of(setup.primary_task, shape.all_heads))
    sizes = len({*setup.sizes} - {setup.primary})
    alone = 1 + sizes + KNOCKOUTS + (3 if setup.full_grid else 0)
    if setup.all_sizes:
        alone += 4 * sizes  # of every size a knockout, and three layer-matched sets
    done = 1.0 if setup.all_tasks else DONE
    asked = together([_answered(study, task, study.k, shape, 1 if setup.all_tasks else 2) for task in setup.tasks])
    edited = _answered(
        study, setup.primary_task, study.k, shape, alone + _control_sets(setup, shape, setup.control_sets), share
    )
    fewer = alone + _control_sets(setup, shape, setup.other_sets)
    edited += together([_answered(study, task, study.k, shape, done * fewer, share) for task in others])
    means = _means(study, setup, shape).times(1 + done * len(others))
    prompts = study._prompts_of(setup.primary_task, shape.all_heads)
    drawing = Work(seconds=2 * DRAWING * prompts * len(setup.tasks) + 0.01 * (alone + setup.control_sets))
    room = Work(room=edited.room + kept.room)
    return asked + edited + means + drawing + room


def _means(study: Study, setup: Setup, shape: Shape) -> Work:
    reference = 500 if study._reference == "mnli" else 64
    runs = plain_runs(shape, reference, _length(study, setup.primary_task, study.k, shape))
    modes = 1 if setup.mode == "mean" else 2
    return runs.times(modes * len(setup.seeds))


def doses(study: Study, setup: Setup, shape: Shape) -> Work:
    """Every task without demonstrations, and plain texts, under the primary ablation and some control sets."""
    edits = 2 + min(LOST, setup.control_sets)
    done = 1.0 if setup.all_tasks else DONE
    others = [task for task in setup.tasks if task != setup.primary_task]
    bare = _answered(study, setup.primary_task, 0, shape, edits)
    bare += together([_answered(study, task, 0, shape, 1 + done * (edits - 1)) for task in others])
    texts = 64 if study._reference != "mnli" else 500
    tokens = PADDED_TEXT * texts * lengths.PLAIN_TEXT * (lengths.FEW if shape.small_vocabulary else 1)
    share, kept = _started(setup, shape, tokens)
    at_once = min(tokens, 2048)
    room = shape.batch(lengths.PLAIN_TEXT, texts) + shape.logits(at_once, 1) + kept.room
    losses = Work(
        tokens=tokens * (1 + share * (edits - 1)),
        unembedded=tokens * edits,
        passes=edits * tokens / 2048,
        room=room,
        seconds=0.6,
        stored=edits * RECORD,
    )
    means = plain_runs(shape, texts, _length(study, setup.primary_task, 0, shape)).times(1 + done * len(others))
    return bare + losses + means


def benefits(study: Study, setup: Setup, shape: Shape) -> Work:
    """Every task with several numbers of demonstrations: whole, on other queries, and edited where it is done.

    What `accuracies` and `doses` have asked already, with the same demonstrations, is not asked again.
    """
    pattern = [Labelled(task) for task in (*setup.tasks, *setup.four_way)]
    texts = [Labelled(task, unrelated) for task in setup.text_tasks for unrelated in (False, True)]
    works = []
    controls = min(LOST, int(_control_sets(setup, shape, setup.control_sets)))
    if setup.all_sizes:
        controls = 2 * setup.control_sets + 6 * len(setup.sizes)
    share = shape.after_first(setup.primary)
    for labelled in (*pattern, *texts):
        task, is_text = labelled.task, labelled.task in TEXT_TASKS
        shots = setup.shots_of(task)
        asked = (max(shots),) if labelled.unrelated else shots
        known = set() if is_text else {0, study.k}
        done = 1.0 if setup.all_tasks or task == setup.primary_task else DONE
        if max(shots) not in known:
            works.append(_answered(study, task, max(shots), shape))
        for k in asked:
            if k not in known:
                works.append(
                    _answered(study, task, k, shape) + _answered(study, task, k, shape, done * (2 + controls), share)
                )
        if is_text:
            length = _length(study, task, max(shots), shape)
            reference = plain_runs(shape, TEXT_REFERENCE_PROMPTS, length).times(done * len(asked) / 2)
            works.append(reference + Work(seconds=1.5))
    prompts = study._prompts(shape.all_heads)
    return together(works) + Work(seconds=0.01 * prompts * len(works))


# ------------------------------------------------------------------------------------------------ function vectors


def function_vectors(
    study: Study,
    shape: Shape,
    prompts: int | None = None,
    intact: int | None = None,
    queries: int | None = None,
    *,
    n: int | None = None,
    control_sets: int | None = None,
) -> Work:
    """Every head patched at the last token of five tasks' prompts, then sets of heads ablated on three kinds of text.

    The arguments are those of `Study.function_vectors`. Whether shuffled answers leave any room is not known yet; where
    they do not, all is measured with another corruption, too.
    """
    small = shape.all_heads < 100
    corrupted, shown = prompts or (25 if small else 10), intact or (100 if small else 25)
    asked, sets = queries or (20 if small else 8), control_sets or (20 if small else 10)
    size = n or (min(4, shape.all_heads // 3) if small else measures.how_many(0.03, shape.all_heads))
    tasks = len(PAIR_TASKS)
    pair = sum(lengths.word_pairs(task, study.k, few=shape.small_vocabulary) for task in PAIR_TASKS) / tasks
    at_once = min(BLOCK, ceil(ALIKE_IN_LENGTH * corrupted)) * shape.all_heads
    patched = Work(
        tokens=corrupted * shape.all_heads * shape.replayed,
        unembedded=corrupted * (shape.all_heads + 1) + BLOCK * corrupted,
        room=shape.replay(at_once, 1, pair) + min(shape.logits(at_once, 3), replay.BUDGET // 2),
        stored=RECORD + 4 * corrupted * shape.all_heads,
    )
    effects = plain_runs(shape, shown, pair) + plain_runs(shape, corrupted, pair).times(3) + patched
    # a prompt length has a batch of its own
    effects += Work(passes=corrupted, seconds=0.01 * (shown + corrupted))
    task = _length(study, study.primary_task, study.k, shape)
    copies, rows = study.bos + 2 * study.length, study.sequences
    edits = 1 + SETS * (1 + sets)
    share = shape.after_first(size)
    tokens = tasks * asked * pair + 2 * asked * task + rows * copies
    ablated = Work(
        tokens=PADDING * tokens * (1 + share * (edits - 1)),
        unembedded=edits * (tasks * asked * 4 + 2 * asked * PLACES + rows * study.length),
        passes=edits * (tasks * asked * pair / 2048 + 2),
        room=shape.logits(max(rows * study.length, 4 * tasks * asked), 2)
        + min(2**30, tokens * shape.width * shape.item * shape.layers),
        stored=3 * edits * RECORD,
        seconds=0.01 * edits * 3,
    )
    means = plain_runs(shape, 20 * tasks, pair) + plain_runs(shape, 64, task) + plain_runs(shape, rows, copies)
    return effects.times(1.5 * tasks) + ablated + means + Work(seconds=1.0)
