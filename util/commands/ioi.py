"""Indirect object identification: maps of all heads by patching, see `figures.ioi_patching`."""

import argparse
from typing import get_args

import numpy as np
import pandas as pd

from util.commands.arguments import add_model, count, model_of, words
from util.commands.results import Destination, add_out, columns
from util.figures.ioi_patching.example import EXAMPLE, NAMES
from util.figures.ioi_patching.study import Study
from util.prompts.ioi import Corruption


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    add_model(parser)
    about = "how a source differs from its base (default: s2_swap)"
    parser.add_argument("--corruption", choices=get_args(Corruption), default="s2_swap", help=about)
    parser.add_argument("--prompts", type=int, default=128, help="pairs that are drawn, at least 8 (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs")
    parser.add_argument("--base", default=EXAMPLE[0], metavar="TEXT", help=f'of one pair of your own: "{EXAMPLE[0]}"')
    parser.add_argument("--source", default=EXAMPLE[1], metavar="TEXT", help=f'its source: "{EXAMPLE[1]}"')
    about = f"the answer of that base, and the name that it repeats (default: {','.join(NAMES)})"
    parser.add_argument("--names", type=words, default=NAMES, metavar="NAMES", help=about)
    parser.add_argument("--show", type=count, default=8, help="heads in the printed table")
    add_out(parser)


def run(arguments: argparse.Namespace) -> None:
    """Patch every head, on one pair of prompts and on many. Raises ValueError for what there is not."""
    study = Study(
        model_of(arguments), arguments.corruption, arguments.prompts, arguments.seed,
        texts=(arguments.base, arguments.source), names=arguments.names, redo=arguments.redo,
    )  # fmt: skip
    destination = Destination.of(arguments, "ioi", [study])
    study.check()
    example = study.example()
    print(*example.sentences()[1:], *filter(None, [example.patching_finding]), sep="\n")
    population = study.population()
    shape = population.noised.value.shape
    rows = pd.DataFrame(list(np.ndindex(shape)), columns=["layer", "head"]).assign(
        **columns("noised", population.noised), **columns("denoised", population.denoised)
    )
    more = {
        "estimate": population.estimate, "direct": population.direct, "example patched": example.patched,
        "example permuted": example.permuted, "example norm": example.norms,
    }  # fmt: skip
    rows = rows.assign(**{name: values.ravel() for name, values in more.items()})
    results = {"population": population.values(), "example": example.values()}
    measured_by = [study.example_pair, study.pairs]
    destination.write(results, rows, population.table(arguments.show), measured_by)
