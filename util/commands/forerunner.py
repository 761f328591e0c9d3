"""Forerunner token heads: copy magnitudes and how often they exceed the threshold, see `figures.forerunner_heads`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from util.commands.arguments import Asked
from util.commands.results import Out, by_head
from util.figures.forerunner_heads.numbers import THRESHOLD, counts, layers


def run(
    asked: Asked = Asked(),
    *,
    dataset: str = "financial_phrasebank",
    k: int = 4,
    prompts: int = 512,
    seed: int = 0,
    threshold: float = THRESHOLD,
    untrained: bool = False,
    out: Out = Out(),
) -> None:
    """Count heads behind correct labels, wrong labels and another word. Raises ValueError for what there is not.

    Args:
        dataset: of StaICC, by name or number; a wrong one lists all
        k: demonstrations
        prompts: the first ones of 512, at least 4
        seed: 0: StaICC's own demonstrations
        threshold: the c in c / n_t, which a magnitude has to exceed
        untrained: also the untrained twin, on 64 prompts at most
    """
    from util.study.study import Study

    study = Study(
        "forerunner_heads", asked.source, redo=out.redo,
        dataset=dataset, k=k, prompts=prompts, seed=seed, threshold=threshold, untrained_control=untrained,
    )  # fmt: skip
    result = out.checked("forerunner", study, studies=[study.request])
    arrays, rows = study.arrays("counts"), []
    values = counts(arrays, study.settings) | layers(arrays, study.settings)
    for series, reading in arrays.items():
        magnitude = reading["magnitude"].mean(axis=0, dtype=np.float64)
        lines = by_head({"count": values["counts"][series], "magnitude": magnitude})
        rows.append(lines.assign(series=series, prompts=values["prompts"][series]))
    on_a_prompt = [*values["heads_on_a_prompt"].values()]
    table = study.figure.parts["counts"].table(values).assign(**{"heads on a prompt": on_a_prompt})  # type: ignore
    result.write(values, pd.concat(rows), table, [study])
