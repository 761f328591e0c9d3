"""Classification tasks with some heads ablated, see `figures.induction_scores.edits.Edit.ablate`."""

import argparse
from functools import partial

from util.commands import answers
from util.figures.induction_scores.edits import MODES, Edit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    answers.add_arguments(parser)
    parser.add_argument("--mode", choices=MODES, default="mean", help="what replaces a head's output (default: mean)")
    about = "what means are taken over: other prompts of the task (the default), or StaICC's"
    parser.add_argument("--reference", choices=("task", "staicc"), default="task", help=about)
    parser.add_argument("--reference-prompts", type=int, default=64, help="how many (default: 64)")


def run(arguments: argparse.Namespace) -> None:
    """Ablate heads on classification tasks. Raises ValueError, before anything is loaded, for what there is not."""
    studies = answers.task_studies(
        arguments, reference=arguments.reference, reference_prompts=arguments.reference_prompts
    )
    answers.run(arguments, "ablate", studies, partial(Edit.ablate, mode=arguments.mode), mode=arguments.mode)
