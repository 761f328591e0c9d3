"""Attention scores of all heads on repeated random tokens, see `roles.sequences_study`."""

import argparse
from typing import Any

import numpy as np
import pandas as pd

from util.commands.arguments import add_model, count, model_of
from util.commands.results import Destination, add_out, columns, shown
from util.figures.induction_scores.measure import outputs
from util.figures.induction_scores.measures import how_many
from util.figures.induction_scores.plan import PAPER_SHARES
from util.roles.sequences_study import SequenceStudy
from util.stats.heads import head_name, top
from util.stats.intervals import mean_intervals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    add_model(parser)
    parser.add_argument("--length", type=int, default=50, help="tokens that are repeated")
    parser.add_argument("--copies", type=int, default=4, help="how often they come")
    parser.add_argument("--sequences", type=int, default=5, help="how many are drawn, at least 2")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence; the others have the next ones")
    parser.add_argument("--no-bos", action="store_true", help="no BOS in front")
    parser.add_argument("--copying", action="store_true", help="also what heads write: copying, attribution to logits")
    parser.add_argument("--show", type=count, default=10, help="heads in the printed table")
    add_out(parser)


def run(arguments: argparse.Namespace) -> None:
    """Score all heads. Raises ValueError, before anything is loaded, for numbers out of range."""
    if arguments.sequences < 2:
        raise ValueError(f"sequences = {arguments.sequences}: two or more have intervals")
    sequences = SequenceStudy(
        model_of(arguments), arguments.length, arguments.copies, arguments.sequences, arguments.seed,
        bos=not arguments.no_bos, redo=arguments.redo,
    )  # fmt: skip
    destination = Destination.of(arguments, "scores", [sequences], copying=arguments.copying)
    heads = sequences.scores()
    score = heads.mean()
    maps = {name: heads.intervals(name) for name in heads.scores}
    places = list(np.ndindex(score.shape))
    rows = pd.DataFrame(places, columns=["layer", "head"])
    for name, intervals in maps.items():
        rows = rows.assign(**columns(name, intervals))
    best = top(score, min(arguments.show, score.size))
    table = pd.DataFrame(
        {name: [shown(intervals[head]) for head in best] for name, intervals in maps.items()},
        index=[head_name(head) for head in best],
    )
    results: dict[str, Any] = {
        "scores": maps,
        "uniform": heads.uniform,
        "best": {str(part): top(score, how_many(part, score.size)) for part in PAPER_SHARES},
    }
    if arguments.copying:
        written = outputs(sequences)
        attribution = mean_intervals(written["attribution"])
        copying = mean_intervals(written["copying"], within=(0, 1)).value
        more = {"copying": copying, "weights_copying": written["weights_copying"]}
        rows = rows.assign(**{name: values.ravel() for name, values in more.items()})
        rows = rows.assign(**columns("attribution", attribution))
        results |= {**more, "attribution": attribution}
        table = table.assign(**{name: [f"{values[head]:.3f}" for head in best] for name, values in more.items()})
    destination.write(results, rows, table, [sequences])
