"""Forerunner token heads: copy magnitudes and how often they exceed the threshold, see `figures.forerunner_heads`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from util.commands.arguments import Asked
from util.commands.results import Out, shown
from util.figures.forerunner_heads.numbers import THRESHOLD
from util.stats.intervals import Interval, Intervals


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

    settings: dict[str, Any] = {"dataset": dataset, "k": k, "prompts": prompts, "seed": seed, "threshold": threshold}
    study = Study("forerunner_heads", asked.source, untrained_control=untrained, redo=out.redo, **settings)
    write = out.checked("forerunner", [study])
    values, rows, results = study.numbers("counts") | study.numbers("paper_layers"), [], {}
    curves = {"heads": values["mean_head_count"], "largest_magnitude": values["mean_max_magnitude"]}
    for series, reading in study.arrays("counts").items():
        counts, measured = values["counts"][series], values["prompts"][series]
        of_series = pd.DataFrame(list(np.ndindex(counts.shape)), columns=["layer", "head"])
        of_series.insert(0, "series", series)
        magnitude = reading["magnitude"].mean(axis=0, dtype=np.float64).ravel()
        rows.append(of_series.assign(count=counts.ravel(), prompts=measured, magnitude=magnitude))
        results[series] = {
            "prompts": measured,
            "frequent": values["frequent_heads"][series],
            "on_a_prompt": values["heads_on_a_prompt"][series],
            "by_layer": {
                name: Intervals(*(found[series][part] for part in ("mean", "low", "high")))
                for name, found in curves.items()
            },
        }
    on_a_prompt = [shown(Interval(*found)) for found in values["heads_on_a_prompt"].values()]
    table = study.figure.parts["counts"].table(values).assign(**{"heads on a prompt": on_a_prompt})  # type: ignore
    write({**results, "uniform": values["uniform"]}, pd.concat(rows, ignore_index=True), table, [study])
