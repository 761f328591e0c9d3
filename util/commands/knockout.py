"""Classification tasks with the induction pattern forbidden to some heads, see `prompts.induction_pattern`."""

import argparse
from collections.abc import Sequence

from util.commands import answers
from util.figures.induction_scores.edits import Edit
from util.prompts.induction_pattern import PATTERNS
from util.stats.heads import Head

BY_FLAG = {pattern.replace(" ", "-"): pattern for pattern in PATTERNS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    answers.add_arguments(parser)
    about = (
        "what the heads may not read: what followed an earlier part of the same kind (the default), as many random "
        "keys, or what followed any earlier part"
    )
    parser.add_argument("--pattern", choices=BY_FLAG, default="induction", help=about)
    parser.add_argument("--key-seed", type=int, default=0, metavar="SEED", help="of random keys (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Knock a pattern out on classification tasks. Raises ValueError, before any loading, for what there is not."""
    pattern, seed = BY_FLAG[arguments.pattern], arguments.key_seed

    def edit(heads: Sequence[Head]) -> Edit:
        return Edit.knock_out(heads, pattern, seed)

    edit([])  # raises ValueError for a wrong seed
    answers.run(arguments, "knockout", answers.task_studies(arguments), edit, pattern=pattern, key_seed=seed)
