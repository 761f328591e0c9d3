"""Mean outputs of heads over reference texts, measured once into the cache, where `ablate` finds them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import numpy as np

from util.commands.arguments import Asked, Queries, Reference
from util.figures.induction_scores.edits import Edit


def run(
    asked: Asked = Asked(),
    *,
    queries: Queries = Queries(),
    mode: Literal["mean", "mean_pos", "input_mean"] = "mean",
    reference: Reference = Reference(),
    redo: bool = False,
) -> None:
    """Measure means of all heads and print where they are. Raises ValueError, before loading, for what there is not.

    Args:
        mode: mean: over all tokens; mean_pos: also position by position; input_mean: also what heads make of the mean
            input of their layer, position by position
        redo: measure again what is cached
    """
    for study in queries.studies(asked.source, redo=redo, **asdict(reference)):
        heads = list(np.ndindex(study.means().mean.shape[:2]))
        if mode != "mean":
            study.means_by_position(Edit.ablate(heads, mode))
        print(*(study.folder / file for file in study.origins), sep="\n")
