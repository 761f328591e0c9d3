"""Which methods find the edges of planted IOI circuits: the positive and the negative control of edge scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from util.figures.ioi_patching.pairs import Pairs
from util.figures.ioi_patching.study import planted_ioi
from util.prompts.ioi import Corruption, group_by_shape
from util.scores.attribution import STEPS
from util.scores.planted import METHODS, Recovery, all_scores, ioi_circuit


def planted_edges(
    corruption: Corruption = "abc",
    prompts: int = 4,
    seeds: Sequence[int] = range(4),
    folder: Path | None = None,
    **options: Any,
) -> Recovery:
    """Returns what every method of `scores.planted` finds of planted circuits.

    corruption, prompts: pairs for each model. seeds: one model each, at least two; a seed decides the model's weights,
    which heads play which role, and the pairs. options: of the planted circuit (backup, family, copies, noise), see
    `models.planted.ioi`. Each model has a record of its own. Raises ValueError for fewer than two seeds.
    """
    if len(seeds) < 2:
        raise ValueError(f"seeds = {[*seeds]}: an interval over models needs two of them or more")
    circuits, scores, whole = [], [], []
    for seed in seeds:
        model, truth = planted_ioi(seed=seed, **options)
        circuit = ioi_circuit(truth, corruption)
        pairs = Pairs(model, corruption, prompts, seed, held_out=True, folder=folder)

        def measure(pairs: Pairs = pairs, graph: Any = circuit.graph) -> dict[str, Any]:
            batches = [pairs.batch(numbers) for numbers in group_by_shape(pairs.tokens).values()]
            found, effect = all_scores(pairs.pair[0], graph, batches)
            return {"scores": found, "whole": effect}

        data = pairs.record({"part": "scores of edges", "methods": list(METHODS), "steps": STEPS}, measure).data
        circuits.append(circuit)
        scores.append(data["scores"])
        whole.append(data["whole"])
    said = "".join(f", {name} {value}" for name, value in sorted(options.items()))
    return Recovery(tuple(circuits), np.stack(scores, axis=1), np.array(whole), f"planted IOI{said}, {corruption}")
