"""What the parts of the study cost, see `records.estimates`."""

from __future__ import annotations

from util.figures.role_atlas.study import Study
from util.prompts import lengths
from util.records.estimates import CONTROL, RECORD, Part, Shape, Work, loading, plain_runs, together, with_control
from util.roles.label_roles import LabelRoles
from util.roles.name_roles import NameRoles
from util.roles.sequence_roles import SequenceRoles
from util.roles.vector_roles import VectorRoles

FEW = 0.07  # the share of heads that pass a score, and are put to the test
UNTRAINED = 0.02  # the same of an untrained model


def parts(study: Study, shape: Shape) -> dict[str, Part]:
    """The parts that notebook 05 asks for, by the names of the study's methods."""
    control = Work()
    if study.untrained_control:
        twin = study.replace(word_prompts=min(study.untrained_prompts, study.word_prompts))
        control = loading() + atlas(twin, shape, UNTRAINED)
    return {
        "atlas": Part(loading() + atlas(study, shape, FEW), study.atlas),
        "untrained": Part(control, study.untrained),
        "planted": Part(with_control(Work(stored=50 * RECORD), 28.0, 2 * CONTROL), study.planted),
    }


def atlas(study: Study, shape: Shape, tested: float) -> Work:
    """All four kinds of prompts. tested: the share of heads that pass a score."""
    sequences, names, labels, vectors = study._parts
    heads = tested * shape.all_heads
    return together(
        [
            of_sequences(sequences, shape, heads),
            of_names(names, shape, heads),
            of_labels(labels, shape, heads),
            of_vectors(vectors, shape, heads, tested),
        ]
    )


def of_sequences(study: SequenceRoles, shape: Shape, heads: float) -> Work:
    """Scores of all heads, then for two roles every tested head cut and its control, on half of the sequences."""
    length = study.copies * study.length + study.bos
    half, wanted = study.sequences / 2, (study.copies - 1) * study.length
    edited = 2 * 2 * heads
    cut = plain_runs(shape, half, length, share=shape.after_first(1)).times(edited)
    logits = Work(unembedded=(edited + 1) * half * wanted, room=shape.logits(half * wanted, 3))
    stored = Work(stored=4 * RECORD + 8 * 3 * study.sequences * shape.all_heads, seconds=0.5)
    return plain_runs(shape, study.sequences, length) + plain_runs(shape, half, length) + cut + logits + stored


def of_names(study: NameRoles, shape: Shape, heads: float) -> Work:
    """Four scores, each in a run of its own; then on half of the pairs direct effects, and what two roles' heads do."""
    half, length = study.prompts / 2, lengths.NAMES
    changed = lengths.names_changed("s2_swap")  # S2, from which on keys are cut, stands late
    scores = plain_runs(shape, study.prompts, length).times(4)
    plain = plain_runs(shape, half, length).times(6)  # base and source, and the runs that are gone on with
    cut = Work(tokens=2 * heads * half * changed * shape.replayed, passes=2 * shape.after_first(1) * half / 8)
    written = Work(tokens=heads * half * shape.replayed)  # of the last token alone
    room = Work(room=shape.replay(2 * heads * min(half, 16), changed, length), seconds=0.5)
    stored = Work(stored=6 * RECORD + 4 * 6 * study.prompts * shape.all_heads)
    return scores + plain + cut + written + room + stored


def of_labels(study: LabelRoles, shape: Shape, heads: float) -> Work:
    """Scores of all heads; then for two roles every tested head cut and its control, on half of the prompts."""
    length = lengths.staicc(study.dataset, study.k, few=shape.small_vocabulary)
    half, edited = study.prompts / 2, 2 * heads
    # every row of attention is captured, with the key before it
    scores = plain_runs(shape, study.prompts, length, captured=round(length), kept=1)
    # labels stand in the whole prompt, the query's forerunner at its end
    share = shape.replayed * (0.85 + 1 / length) / 2
    cut = Work(
        tokens=2 * edited * half * length * share,
        unembedded=2 * edited * half,
        passes=2 * half * 2,
        room=shape.replay(edited, length, length),
    )
    base = plain_runs(shape, half, length).times(2 * 2)
    drawing = Work(seconds=0.7 + 0.01 * study.prompts + 0.0005 * half * edited)
    return scores + cut + base + drawing + Work(stored=RECORD * half / 2 + 4 * 3 * study.prompts * shape.all_heads)


def of_vectors(study: VectorRoles, shape: Shape, heads: float, tested: float) -> Work:
    """Means and likeness of what heads write, and each tested head's mean written into it, on five tasks.

    Where shuffled answers leave the answer as probable as it was, prompts are corrupted in another way, too. That is
    not known yet: of an untrained model it is certain, of others it is seldom.
    """
    length = sum(lengths.word_pairs(task, study.k, few=shape.small_vocabulary) for task in study.tasks) / len(
        study.tasks
    )
    tasks, edited = len(study.tasks), 2 * heads
    corrupted = 2.0 if tested == UNTRAINED else 1.2
    asked = plain_runs(shape, study.prompts, length).times(2 * corrupted * tasks)
    means = plain_runs(shape, study.intact, length).times(tasks)
    likeness = plain_runs(shape, study.prompts, length).times(tasks)
    half = study.prompts / 2
    written = Work(tokens=tasks * half * edited * shape.replayed, unembedded=tasks * half * edited)
    base = plain_runs(shape, half, length).times(2 * tasks)
    shown = Work(unembedded=8 * 2 * corrupted * tasks * study.prompts, seconds=1.0 + 0.01 * study.intact * tasks)
    return asked + means + likeness + written + base + shown + Work(stored=10 * RECORD)
