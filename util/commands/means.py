"""Mean outputs of heads over reference texts, measured once into the cache, where `ablate` finds them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from util.commands.arguments import Asked, Queries, Reference, Words
from util.figures.induction_scores.edits import MODES, Edit


def run(
    asked: Asked = Asked(),
    *,
    queries: Queries = Queries(),
    mode: Words = ("mean",),
    reference: Reference = Reference(),
    redo: bool = False,
) -> None:
    """Measure means of all heads and print where they are. Raises ValueError, before loading, for what there is not.

    Args:
        mode: mean: over all tokens (the default); mean_pos: position by position; input_mean: what heads make of the
            mean input of their layer, position by position; one or more
        redo: measure again what is cached
    """
    modes = [name for name in MODES if name != "zero"]
    if wrong := sorted({*mode} - {*modes}):
        raise ValueError(f"mode = {', '.join(wrong)}: there are {', '.join(modes)}")
    for study in queries.studies(asked.source, redo=redo, **asdict(reference)):
        heads = list(np.ndindex(study.means().mean.shape[:2]))
        for name in mode:
            if name != "mean":
                study.means_by_position(Edit.ablate(heads, name))
        print(*(study.place / file for file in study.means_study.origins), sep="\n")
