"""Mean outputs of heads over reference texts, measured once into the cache, where `ablate` finds them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from util.commands.arguments import Asked, StaiccReference, Words
from util.figures.induction_scores.edits import MODES, Edit


def run(
    asked: Asked = Asked(),
    *,
    mode: Words = ("mean",),
    reference: StaiccReference = StaiccReference(),
    task: str = "wordseq1",
    data: str | None = None,
    k: int = 10,
    prompts: int = 60,
    seed: int = 42,
    redo: bool = False,
) -> None:
    """Measure means of all heads and print where they are. Raises ValueError, before loading, for what there is not.

    Args:
        mode: mean: over all tokens (the default); mean_pos: position by position; input_mean: what heads make of the
            mean input of their layer, position by position; one or more
        task: a task; a wrong name lists all
        data: of a text task: hub, or a folder with its texts
        k: demonstrations of its prompts
        prompts: of it that are left for measuring
        seed: of its demonstrations
        redo: measure again what is cached
    """
    from util.figures.induction_scores.task_study import TaskStudy

    modes = [name for name in MODES if name != "zero"]
    if wrong := sorted({*mode} - {*modes}):
        raise ValueError(f"mode = {', '.join(wrong)}: there are {', '.join(modes)}")
    study = TaskStudy(asked.source, task, k, prompts, seed, data=data, redo=redo, **asdict(reference))
    heads = list(np.ndindex(study.means().mean.shape[:2]))
    for name in mode:
        if name != "mean":
            study.means_by_position(Edit.ablate(heads, name))
    print(*(study.folder / file for file in study.means_study.origins), sep="\n")
