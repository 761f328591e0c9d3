"""Classification tasks with some heads ablated, see `figures.induction_scores.edits.Edit.ablate`."""

import argparse
from functools import partial

from util.commands import answers
from util.commands.arguments import add_reference
from util.figures.induction_scores.edits import MODES, Edit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    answers.add_arguments(parser)
    parser.add_argument("--mode", choices=MODES, default="mean", help="what replaces a head's output (default: mean)")
    add_reference(parser, "task")


def run(arguments: argparse.Namespace) -> None:
    """Ablate heads on classification tasks. Raises ValueError, before anything is loaded, for what there is not."""
    studies = answers.task_studies(
        arguments, reference=arguments.reference, reference_data=arguments.reference_data,
        reference_prompts=arguments.reference_prompts,
    )  # fmt: skip
    answers.run(arguments, "ablate", studies, partial(Edit.ablate, mode=arguments.mode), mode=arguments.mode)
