"""Classification tasks with some heads ablated, see `figures.induction_scores.edits.Edit.ablate`."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, get_args

from util.commands import answers
from util.commands.arguments import add_reference
from util.commands.means import FILE as MEANS_FILE
from util.figures.induction_scores.edits import MODES, Edit
from util.figures.induction_scores.task_study import Reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    answers.add_arguments(parser)
    parser.add_argument("--mode", choices=MODES, default="mean", help="what replaces a head's output (default: mean)")
    about = (
        "what means are taken over: other prompts of the task (the default), staicc, mnli (samples of 3000 tokens), or "
        "what `means` has saved"
    )
    parser.add_argument("--reference", default="task", metavar="task|staicc|mnli|FILE", help=about)
    add_reference(parser)


def run(arguments: argparse.Namespace) -> None:
    """Ablate heads on classification tasks. Raises ValueError, before anything is loaded, for what there is not."""
    means: dict[str, Any] = {"reference": arguments.reference, "reference_data": arguments.reference_data}
    if arguments.reference not in get_args(Reference):
        file = Path(arguments.reference)
        means |= {"reference": "task", "means_file": file / MEANS_FILE if file.is_dir() else file}
    studies = answers.task_studies(arguments, reference_prompts=arguments.reference_prompts, **means)
    answers.run(arguments, "ablate", studies, partial(Edit.ablate, mode=arguments.mode), mode=arguments.mode)
