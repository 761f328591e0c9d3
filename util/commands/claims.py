"""Verdicts on the claims about edges, see `figures.edge_ablation.claims_study`."""

import argparse

from util import paths
from util.commands.arguments import add_loading, model_of
from util.figures import report
from util.figures.edge_ablation import claims_study
from util.figures.edge_ablation.study import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    tasks = claims_study.TASKS
    parser.add_argument("model", help="embedded, a hub id, a folder, ...")
    parser.add_argument("--prompts", type=int, default=250, help="of each task, each with a query of its own")
    parser.add_argument("--tasks", nargs="+", default=list(tasks), choices=tasks)
    parser.add_argument("--primary", default="capitalization", choices=tasks, help="of claims 1 and 5")
    parser.add_argument("--search-prompts", type=int, default=64, help="that claim 1's circuit is searched on")
    parser.add_argument("--donors", nargs="+", type=int, default=[0, 1, 2], help="seeds of corrupted prompts")
    add_loading(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure the verdicts, print them, and write edge_claims.json."""
    model = model_of(arguments)
    primary = Study(model, arguments.primary, prompts=arguments.prompts, donor_seeds=arguments.donors)
    study = claims_study.ClaimsStudy(primary, arguments.tasks, search_prompts=arguments.search_prompts)
    paths.output("values", arguments.model)  # where nothing can be written is known before hours of work
    measured = study.measure()
    print(measured.verdicts.table().to_string())
    print(report.save_values(measured.values(), study.stem, arguments.model))
