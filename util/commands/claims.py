"""The papers' claims with more queries than the notebooks ask, into the figures' values files."""

import argparse

from util import paths
from util.commands.arguments import add_loading, model_of
from util.figures.edge_ablation import more_queries
from util.figures.forerunner_heads.more_prompts import copying
from util.figures.induction_scores import claims as induction_claims
from util.figures.induction_scores.study import Study as InductionStudy
from util.prompts.text_tasks import TEXT_TASKS
from util.show import files
from util.stats.verdicts import Verdicts
from util.study.study import Study

PROMPTS = {"induction_scores": 200, "edge_ablation": 250, "forerunner_heads": 128}
CONTROL_SETS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("model", help="embedded, a hub id, a folder, ...")
    about = "of each task, each with a query of its own; default: " + ", ".join(f"{k} {n}" for k, n in PROMPTS.items())
    parser.add_argument("--prompts", type=int, help=about)
    parser.add_argument(
        "--text-tasks",
        nargs="*",
        choices=TEXT_TASKS,
        help="with texts that people wrote (default: sst2 subj); none: leave them out",
    )
    add_loading(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure the claims of notebooks 01, 02 and 04, print the verdicts, and write all into the values files."""
    paths.output("values", arguments.model)  # where nothing can be written is known before hours of work
    model = model_of(arguments)
    prompts = PROMPTS if arguments.prompts is None else dict.fromkeys(PROMPTS, arguments.prompts)
    induction = InductionStudy(
        model,
        prompts=prompts["induction_scores"],
        control_sets=CONTROL_SETS,
        other_sets=CONTROL_SETS,
        text_tasks=arguments.text_tasks,
        shots=(0, 10),
        untrained_control=False,
    )
    edges = Study("edge_ablation", model, prompts=prompts["edge_ablation"], untrained_control=False)
    labels = Study("forerunner_heads", model, k=4, untrained_control=False)
    for stem, measure in (
        (induction.stem, lambda: induction_claims.stored(induction.benefits())),
        (edges.figure.stem, lambda: more_queries.claims(edges)),
        (labels.figure.stem, lambda: copying(labels, prompts["forerunner_heads"])),
    ):
        found = measure()
        if found["claims"]:
            print(Verdicts(found["claims"]).table().to_string())
        print(files.save_claims(found, stem, arguments.model))
