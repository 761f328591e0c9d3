"""Forerunner token heads: copy magnitudes and how often they exceed the threshold, see `figures.forerunner_heads`."""

import argparse

import numpy as np
import pandas as pd

from util.commands.arguments import add_model, model_of
from util.commands.results import Destination, add_out, shown
from util.figures.forerunner_heads.numbers import THRESHOLD
from util.prompts.staicc import DATASETS
from util.stats.intervals import Interval
from util.study.study import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    add_model(parser)
    names = ", ".join(f"{number} {name}" for number, name in enumerate(DATASETS))
    parser.add_argument("--dataset", default="financial_phrasebank", help=f"of StaICC, by name or number: {names}")
    parser.add_argument("--k", type=int, default=4, help="demonstrations (default: 4)")
    parser.add_argument("--prompts", type=int, default=512, help="the first ones of 512, at least 4 (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="0 (the default): StaICC's own demonstrations")
    about = f"the c in c / n_t, which a magnitude has to exceed (default: {THRESHOLD:g})"
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help=about)
    parser.add_argument("--untrained", action="store_true", help="also the untrained twin, on 64 prompts at most")
    add_out(parser)


def run(arguments: argparse.Namespace) -> None:
    """Count heads behind correct labels, wrong labels and another word. Raises ValueError for what there is not."""
    names = ("dataset", "k", "prompts", "seed", "threshold", "redo")
    settings = {name: getattr(arguments, name) for name in names}
    study = Study("forerunner_heads", model_of(arguments), untrained_control=arguments.untrained, **settings)
    destination = Destination.of(arguments, "forerunner", [study])
    values, rows = study.numbers("counts") | study.numbers("layers"), []
    for series, reading in study.arrays("counts").items():
        of_series = pd.DataFrame(np.argwhere(values["counts"][series] >= 0), columns=["layer", "head"])
        of_series.insert(0, "series", series)
        of_series["count"] = values["counts"][series].ravel()
        of_series["prompts"] = values["prompts"][series]
        of_series["magnitude"] = reading["magnitude"].mean(axis=0, dtype=np.float64).ravel()
        rows.append(of_series)
    curves = {"heads": values["mean_head_count"], "largest_magnitude": values["mean_max_magnitude"]}
    results = {
        series: {
            "prompts": number,
            "frequent": values["frequent_heads"][series],
            "on_a_prompt": values["heads_on_a_prompt"][series],
            "by_layer": {
                name: {"value": found[series]["mean"], "low": found[series]["low"], "high": found[series]["high"]}
                for name, found in curves.items()
            },
        }
        for series, number in values["prompts"].items()
    }
    on_a_prompt = [shown(Interval(*found)) for found in values["heads_on_a_prompt"].values()]
    table = study.figure.parts["counts"].table(values).assign(**{"heads on a prompt": on_a_prompt})  # type: ignore
    destination.write({**results, "uniform": values["uniform"]}, pd.concat(rows, ignore_index=True), table, [study])
