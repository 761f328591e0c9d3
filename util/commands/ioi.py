"""Indirect object identification: maps of all heads by patching, see `figures.ioi_patching`."""

import argparse
from typing import get_args

import numpy as np
import pandas as pd

from util.commands.arguments import add_model, count, model_of, words
from util.commands.results import Destination, add_out, columns
from util.figures.ioi_patching.numbers import intervals
from util.figures.ioi_patching.show import EXAMPLE, NAMES, heads_table, patching_says, predictions_say
from util.prompts.ioi import Corruption
from util.study.study import Study


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
    asked = {name: getattr(arguments, name) for name in ("corruption", "prompts", "seed", "names", "redo")}
    texts = arguments.base, arguments.source
    study = Study("ioi_patching", model_of(arguments), texts=texts, untrained_control=False, **asked)
    destination = Destination.of(arguments, "ioi", [study])
    example, found = study.numbers("p1"), study.numbers("population")["population"]
    values = {"request": study.request, "model": study.description, "population": found, **example}
    print(*[*predictions_say(values)][2:], *patching_says(values), sep="\n")
    rows = pd.DataFrame(list(np.ndindex(found["direct"].shape)), columns=["layer", "head"]).assign(
        **columns("noised", intervals(found["noised"])), **columns("denoised", intervals(found["denoised"]))
    )
    more = {
        "estimate": found["estimate"], "direct": found["direct"], "example patched": example["patched"],
        "example permuted": example["permuted"], "example norm": example["example"]["norms"],
    }  # fmt: skip
    rows = rows.assign(**{name: effects.ravel() for name, effects in more.items()})
    shown = {name: example[name] for name in ("scores", "permuted", "patched", "selectivity")}
    results = {"population": found, "example": shown}
    destination.write(results, rows, heads_table(values, arguments.show), [study])
