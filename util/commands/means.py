"""Mean outputs of heads over reference texts, in means.npz, see `figures.induction_scores.saved_means`."""

import argparse

import numpy as np
import pandas as pd

from util.commands.arguments import add_model, add_reference, count, model_of, words
from util.commands.results import Destination, add_out
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.saved_means import MODES, SavedMeans
from util.figures.induction_scores.saved_means import model_of as model_of_means
from util.figures.induction_scores.task_study import TaskStudy
from util.stats.heads import head_name, top

FILE = "means.npz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    add_model(parser)
    about = (
        "mean: over all tokens (the default); mean_pos: position by position; input_mean: what heads make of the mean "
        "input of their layer, position by position; several with commas between"
    )
    parser.add_argument("--mode", type=words, default=("mean",), metavar="MODES", help=about)
    about = (
        "what means are taken over: StaICC's prompts (the default), those of --task behind the first --prompts, or "
        "samples of 3000 tokens of MNLI's premises"
    )
    parser.add_argument("--reference", choices=("staicc", "task", "mnli"), default="staicc", help=about)
    add_reference(parser)
    parser.add_argument("--task", default="wordseq1", help="a task; a wrong name lists all (default: wordseq1)")
    parser.add_argument("--data", metavar="SOURCE", help="of a text task: hub, or a folder with its texts")
    parser.add_argument("--k", type=int, default=10, help="demonstrations of its prompts (default: 10)")
    parser.add_argument("--prompts", type=int, default=60, help="of it that are left for measuring (default: 60)")
    parser.add_argument("--seed", type=int, default=42, help="of its demonstrations (default: 42)")
    parser.add_argument("--show", type=count, default=8, help="heads in the printed table")
    add_out(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure means of all heads. Raises ValueError, before anything is loaded, for what there is not."""
    if wrong := sorted(set(arguments.mode) - set(MODES)):
        raise ValueError(f"mode = {', '.join(wrong)}: there are {', '.join(MODES)}")
    study = TaskStudy(
        model_of(arguments), arguments.task, arguments.k, arguments.prompts, arguments.seed,
        data=arguments.data, reference=arguments.reference, reference_prompts=arguments.reference_prompts,
        reference_data=arguments.reference_data, redo=arguments.redo,
    )  # fmt: skip
    destination = Destination.of(arguments, "means", [study], modes=sorted(arguments.mode))
    means = study.means()
    layers, heads, size = means.mean.shape
    places = list(np.ndindex(layers, heads))
    arrays = {"mean": means.mean} if "mean" in arguments.mode else {}
    for mode in arguments.mode:
        if mode != "mean":
            arrays[mode] = study.means_by_position(Edit.ablate(places, mode)).reshape(-1, layers, heads, size)
    lengths = np.linalg.norm(means.mean.astype(np.float64), axis=-1)
    rows = pd.DataFrame(places, columns=["layer", "head"]).assign(norm=means.norms.ravel(), mean_length=lengths.ravel())
    largest = top(means.norms, min(arguments.show, means.norms.size))
    table = pd.DataFrame(
        {"norm of what it writes": means.norms[tuple(np.transpose(largest))]}, index=[head_name(one) for one in largest]
    )
    results = {
        "tokens": means.tokens, "prompts": means.prompts, "norms": means.norms,
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }  # fmt: skip
    destination.folder.mkdir(parents=True, exist_ok=True)
    origin, *_ = study.means_study.origins.values()
    saved = SavedMeans(FILE, arrays, model_of_means(study.model, origin["weights"]))
    saved.write(destination.folder / FILE)
    destination.write(results, rows, table.round(3), [study.means_study])
    print(destination.folder / FILE)
