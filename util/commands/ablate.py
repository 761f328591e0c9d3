"""Classification tasks with some heads ablated, see `figures.induction_scores.edits.Edit.ablate`."""

import argparse
from functools import partial
from pathlib import Path

from util.commands import answers
from util.commands.means import FILE as MEANS_FILE
from util.figures.induction_scores.edits import MODES, Edit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    answers.add_arguments(parser)
    parser.add_argument("--mode", choices=MODES, default="mean", help="what replaces a head's output (default: mean)")
    about = "what means are taken over: other prompts of the task (the default), or StaICC's"
    parser.add_argument("--reference", choices=("task", "staicc"), default="task", help=about)
    parser.add_argument("--reference-prompts", type=int, default=64, help="how many (default: 64)")
    about = "means that `means` has saved, in place of a reference: means.npz, or the folder that holds it"
    parser.add_argument("--means", type=Path, metavar="FILE", help=about)


def run(arguments: argparse.Namespace) -> None:
    """Ablate heads on classification tasks. Raises ValueError, before anything is loaded, for what there is not."""
    file = arguments.means
    studies = answers.task_studies(
        arguments,
        reference=arguments.reference,
        reference_prompts=arguments.reference_prompts,
        means_file=file / MEANS_FILE if file is not None and file.is_dir() else file,
    )
    answers.run(arguments, "ablate", studies, partial(Edit.ablate, mode=arguments.mode), mode=arguments.mode)
