"""Mean outputs of heads over reference texts, measured once into the cache, where `ablate` finds them."""

import argparse

import numpy as np

from util.commands.arguments import add_model, add_reference, model_of, words
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.task_study import BY_POSITION, TaskStudy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    add_model(parser)
    about = (
        "mean: over all tokens (the default); mean_pos: position by position; input_mean: what heads make of the mean "
        "input of their layer, position by position; several with commas between"
    )
    parser.add_argument("--mode", type=words, default=("mean",), metavar="MODES", help=about)
    add_reference(parser, "staicc")
    parser.add_argument("--task", default="wordseq1", help="a task; a wrong name lists all (default: wordseq1)")
    parser.add_argument("--data", metavar="SOURCE", help="of a text task: hub, or a folder with its texts")
    parser.add_argument("--k", type=int, default=10, help="demonstrations of its prompts (default: 10)")
    parser.add_argument("--prompts", type=int, default=60, help="of it that are left for measuring (default: 60)")
    parser.add_argument("--seed", type=int, default=42, help="of its demonstrations (default: 42)")
    parser.add_argument("--redo", action="store_true", help="measure again what is cached")


def run(arguments: argparse.Namespace) -> None:
    """Measure means of all heads and print where they are. Raises ValueError, before loading, for what there is not."""
    if wrong := sorted(set(arguments.mode) - {"mean", *BY_POSITION}):
        raise ValueError(f"mode = {', '.join(wrong)}: there are mean, {', '.join(BY_POSITION)}")
    study = TaskStudy(
        model_of(arguments), arguments.task, arguments.k, arguments.prompts, arguments.seed,
        data=arguments.data, reference=arguments.reference, reference_prompts=arguments.reference_prompts,
        reference_data=arguments.reference_data, redo=arguments.redo,
    )  # fmt: skip
    heads = list(np.ndindex(study.means().mean.shape[:2]))
    for mode in arguments.mode:
        if mode != "mean":
            study.means_by_position(Edit.ablate(heads, mode))
    for file in study.means_study.origins:
        print(study.place / file)
