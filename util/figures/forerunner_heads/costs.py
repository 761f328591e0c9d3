"""What the parts of the studies cost, see `records.estimates`."""

from __future__ import annotations

from util.figures.forerunner_heads.ablation import AblationStudy, CausalStudy
from util.figures.forerunner_heads.cuts import EVERYWHERE, PUBLISHED, QUARTERS, conditions
from util.figures.forerunner_heads.plan import Plan
from util.figures.forerunner_heads.study import Study
from util.prompts import lengths
from util.records.estimates import (
    NOTHING,
    RECORD,
    Part,
    Shape,
    Work,
    batches,
    loading,
    plain_runs,
    together,
    with_control,
)
from util.records.staicc import StaiccStudy

READING = 0.7  # seconds in which a data set is read and its demonstrations are drawn
DRAWING = 0.005  # seconds in which a prompt is tokenised with its labels, and its tokens are found
PLACES = 8  # of a batch at which logits are computed, for all rows: prompts in it differ in length
TRIED = 0.4  # of the data sets that a task is chosen from: the first that the model does ends it


def parts(study: Study, shape: Shape) -> dict[str, Part]:
    """The parts that notebook 01 asks the main study for, by the names of its methods."""
    twin = study.untrained_twin
    control = NOTHING if twin is None else loading() + magnitudes(twin, shape)
    return {
        "magnitudes": Part(loading() + magnitudes(study, shape), study.magnitudes),
        "counts": Part(control, study.counts),
        "layers": Part(NOTHING, study.layers),
        "specificity": Part(NOTHING, study.specificity),
        "planted": Part(with_control(NOTHING, 1.0 + 0.02 * min(64, study.prompts)), study.planted),
        # six noisy models: their prompts are tokenised and run
        "planted_errors": Part(with_control(NOTHING, 6.0), study.planted_errors),
    }


def plan_parts(plan: Plan, shape: Shape) -> dict[str, Part]:
    """The parts that notebook 01 measures beside the main study."""
    by_data, by_k = plan.grid, plan.by_k
    return {
        **causal(plan.causal, plan.study, shape),
        "datasets": Part(together([magnitudes(study, shape) for study in by_data.studies]), by_data.counts),
        "growth": Part(together([magnitudes(study, shape) for study in by_k.studies]), by_k.growth),
    }


def causal(asked: CausalStudy, study: Study, shape: Shape) -> dict[str, Part]:
    """The costs of all causal parts. study: whose heads are cut one at a time.

    Which data set the model does is not known yet: prompts are as long as those of the first one.
    """
    if not asked.study.k:
        found = [NOTHING] * 4
    else:
        tried = asked.candidates[: max(1, round(TRIED * len(asked.candidates)))]
        chosen = asked.study.replace(dataset=asked.datasets[0])
        found = [
            together([answers(one, shape) for one in tried]),
            tables(chosen, shape),
            label_reads(chosen.replace(prompts=asked.read_prompts), shape),
            head_cuts(chosen.replace(prompts=asked.single_heads), asked.heads_cut, shape),
        ]
    methods = asked.task, asked.tables, asked.induction_heads, lambda: asked.head_effects(study)
    names = ("task", "tables", "induction_heads", "head_effects")
    return {name: Part(work, method) for name, work, method in zip(names, found, methods, strict=True)}


# ------------------------------------------------------------------------------------------------ parts


def length_of(study: StaiccStudy, shape: Shape) -> float:
    """The tokens of a prompt."""
    return lengths.staicc(study.dataset, study.k, few=shape.small_vocabulary)


def magnitudes(study: Study, shape: Shape) -> Work:
    """All prompts run once, each with all endings; the rows of labels and control tokens are captured."""
    endings = len(study.appended)
    length, rows = length_of(study, shape) + endings, endings + study.control_tokens
    runs = plain_runs(shape, study.prompts, length, captured=rows, kept=1)
    arrays = 4 * study.prompts * shape.all_heads * (endings + 2)
    # captured rows are computed once more, and take as long as the plain pass where the model is small
    return runs + Work(
        seconds=READING + DRAWING * study.prompts * endings, room=runs.room + arrays, stored=RECORD + arrays
    )


def answers(study: StaiccStudy, shape: Shape, count: int = 1) -> Work:
    """All prompts run so many times, and their labels are scored."""
    runs = plain_runs(shape, study.prompts, length_of(study, shape) + 3).times(count)
    reading = Work(seconds=READING + DRAWING * study.prompts)
    together_ = min(study.prompts, 2048 / length_of(study, shape))
    scored = Work(
        unembedded=count * PLACES * study.prompts, stored=count * RECORD, room=shape.logits(PLACES * together_, 3)
    )
    return runs + scored + reading


def tables(study: AblationStudy, shape: Shape) -> Work:
    """The whole model and every cut in every part of the layers, with controls; and cuts without demonstrations.

    Where all layers are cut, and in the whole model, the loss of the text is read too, behind every token.
    """
    parts = (EVERYWHERE, *QUARTERS)
    controlled = parts if study.every_part else (EVERYWHERE,)
    wanted = conditions(parts=parts, controlled=controlled, draws=study.draws)
    alone = study.replace(k=0)
    bare = conditions(parts=(EVERYWHERE,), controlled=())
    whole_texts = [one for one in wanted if one.part == EVERYWHERE and one.draw is None]
    losses = together([_text_losses(one, len(those), shape) for one, those in ((study, whole_texts), (alone, bare))])
    # cells are listed for every prompt, and controls are drawn among all cells
    listing = Work(seconds=study.prompts * (0.0008 * len(wanted) + 0.01 * study.draws * len(PUBLISHED)))
    return answers(study, shape, len(wanted)) + answers(alone, shape, len(bare)) + losses + listing


def _text_losses(study: AblationStudy, count: int, shape: Shape) -> Work:
    length = length_of(study, shape) + 3
    at_once = min(study.prompts, max(1, 2048 // round(length)))
    tokens = study.prompts * length
    return Work(unembedded=count * tokens, room=shape.logits(at_once * length, 1) + shape.logits(2 * length, 2))


def label_reads(study: AblationStudy, shape: Shape) -> Work:
    """All prompts run once; the row of the query's forerunner is captured."""
    runs = plain_runs(shape, study.prompts, length_of(study, shape), captured=1)
    arrays = 4 * study.prompts * shape.all_heads * study.k
    return runs + Work(seconds=DRAWING * study.prompts, stored=RECORD + arrays)


def head_cuts(study: AblationStudy, heads: int, shape: Shape) -> Work:
    """Each prompt with the cells of each head cut, and with a control's: runs that begin at the head's layer."""
    length, edits = length_of(study, shape), 2 * min(heads, shape.all_heads)
    edited = study.prompts * edits
    runs = Work(
        tokens=edited * length * shape.replayed,
        unembedded=edited + study.prompts,
        passes=study.prompts * (1 + shape.replayed * shape.layers / max(1, shape.layers)) * 2,
        room=shape.replay(edits, length, length),
        stored=RECORD * batches(study.prompts, 2048 / 8),
    )
    base = plain_runs(shape, study.prompts, length).times(2)  # the run before, and the one that is gone on with
    return runs + base + Work(seconds=DRAWING * edited + READING)
