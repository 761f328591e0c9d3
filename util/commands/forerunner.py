"""Forerunner token heads: copy magnitudes and how often they exceed the threshold, see `figures.forerunner_heads`."""

import argparse

import numpy as np
import pandas as pd

from util.commands.arguments import add_model, model_of
from util.commands.results import Destination, add_out, shown
from util.figures.forerunner_heads.measures import ENDINGS, THRESHOLD, Series
from util.figures.forerunner_heads.study import Study
from util.load_model_and_data import DATASETS


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
    study = Study(
        model_of(arguments), arguments.dataset, arguments.k, arguments.prompts, arguments.seed,
        threshold=arguments.threshold, untrained_control=arguments.untrained, redo=arguments.redo,
    )  # fmt: skip
    of_request = {"threshold": study.threshold, "untrained": study.untrained_control}
    destination = Destination.of(arguments, "forerunner", [study], **of_request)
    counts, layers = study.counts(), study.layers()
    readings = {name: study.magnitudes().reading(what) for name, what in ENDINGS.items()}
    measured_by = [study]
    if study.untrained_twin is not None:
        readings[Series.UNTRAINED] = study.untrained_twin.magnitudes().reading(0)
        measured_by.append(study.untrained_twin)
    rows = []
    for series, reading in readings.items():
        of_series = pd.DataFrame(np.argwhere(counts.maps[series] >= 0), columns=["layer", "head"])
        of_series.insert(0, "series", series.value)
        of_series["count"] = counts.maps[series].ravel()
        of_series["prompts"] = counts.prompts[series]
        of_series["magnitude"] = reading.magnitude.mean(axis=0, dtype=np.float64).ravel()
        rows.append(of_series)
    results = {
        series.value: {
            "prompts": counts.prompts[series],
            "frequent": counts.frequent[series],
            "on_a_prompt": layers.on_a_prompt[series],
            "by_layer": {"heads": layers.counts[series], "largest_magnitude": layers.largest[series]},
        }
        for series in readings
    }
    table = counts.table().assign(
        **{"heads on a prompt": [shown(layers.on_a_prompt[series]) for series in counts.prompts]}
    )
    destination.write({**results, "uniform": layers.uniform}, pd.concat(rows, ignore_index=True), table, measured_by)
