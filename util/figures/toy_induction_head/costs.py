"""What the parts of the study cost, see `records.estimates`."""

from __future__ import annotations

from util.figures.toy_induction_head.study import Study
from util.records.estimates import PADDING, RECORD, Part, Shape, Work, loading, plain_runs, with_control


def parts(study: Study, shape: Shape) -> dict[str, Part]:
    """The parts that notebook 00 asks a study for, by the names of its methods."""
    length = 1 + study.copies * study.length
    models = 1 + study.untrained_control
    scored = plain_runs(shape, study.sequences, length).times(models)
    kept = Work(stored=models * (RECORD + 3 * 8 * study.sequences * shape.all_heads))
    heads = with_control(loading().times(models) + scored + kept, 1.5)  # the planted model is built and scored
    shown = Work(tokens=PADDING * length, passes=1, stored=RECORD + 8 * 3 * length**2)
    # of the layers that are shown, the whole attention is captured
    shown += Work(room=shape.batch(length, 1, captured=length))
    return {"heads": Part(heads, study.heads), "patterns": Part(shown, study.patterns)}
