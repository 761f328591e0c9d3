"""Verdicts on the papers' claims with more queries than the notebooks ask.

Those about edges are in `figures.edge_ablation.claims_study`, those about induction heads in
`figures.induction_scores.benefits`.
"""

import argparse
from typing import Any

from util import paths
from util.commands.arguments import add_loading, model_of
from util.figures import report
from util.figures.edge_ablation import claims_study
from util.figures.edge_ablation.study import Study as EdgeStudy
from util.figures.induction_scores.study import Study as InductionStudy
from util.prompts.text_tasks import TEXT_TASKS

PROMPTS = {"edges": 250, "induction": 200}
ABOUT_EDGES: dict[str, Any] = {
    "tasks": claims_study.TASKS,
    "primary": "capitalization",
    "search_prompts": 64,
    "donors": (0, 1, 2),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    tasks = claims_study.TASKS
    parser.add_argument("model", help="embedded, a hub id, a folder, ...")
    parser.add_argument("--about", default="edges", choices=PROMPTS, help="of which notebook, 04 or 02")
    about = "of each task, each with a query of its own; default: " + ", ".join(f"{k} {n}" for k, n in PROMPTS.items())
    parser.add_argument("--prompts", type=int, help=about)
    edges = parser.add_argument_group("about edges")
    edges.add_argument("--tasks", nargs="+", choices=tasks, help="default: all")
    edges.add_argument("--primary", choices=tasks, help="of claims 1 and 5 (default: capitalization)")
    edges.add_argument("--search-prompts", type=int, help="that claim 1's circuit is searched on (default: 64)")
    edges.add_argument("--donors", nargs="+", type=int, help="seeds of corrupted prompts (default: 0 1 2)")
    induction = parser.add_argument_group("about induction")
    induction.add_argument(
        "--text-tasks",
        nargs="*",
        choices=TEXT_TASKS,
        help="with texts that people wrote (default: sst2 subj); none: leave them out",
    )
    parser.set_defaults(error=parser.error)
    add_loading(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure the verdicts, print them, and write edge_claims.json or induction_claims.json.

    Ends the process with status 2 for flags of the claims about edges where others are asked for.
    """
    given = {name: getattr(arguments, name) for name in ABOUT_EDGES if getattr(arguments, name) is not None}
    if given and arguments.about != "edges":
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        arguments.error(f"{flags}: for claims about edges alone; leave out with --about {arguments.about}")
    if arguments.text_tasks is not None and arguments.about != "induction":
        arguments.error("--text-tasks: for claims about induction heads alone; give --about induction")
    model = model_of(arguments)
    prompts = PROMPTS[arguments.about] if arguments.prompts is None else arguments.prompts
    paths.output("values", arguments.model)  # where nothing can be written is known before hours of work
    if arguments.about == "edges":
        asked = ABOUT_EDGES | given
        primary = EdgeStudy(model, asked["primary"], prompts=prompts, donor_seeds=asked["donors"])
        study = claims_study.ClaimsStudy(primary, asked["tasks"], search_prompts=asked["search_prompts"])
        measured = study.measure()
        verdicts, values, stem = measured.verdicts, measured.values(), study.stem
    else:
        induction = InductionStudy(model, prompts=prompts, text_tasks=arguments.text_tasks)
        benefits = induction.benefits()
        print(benefits.table().to_string())
        verdicts, stem = benefits.verdicts, "induction_claims"
        values = {
            "model": model.title,
            "settings": {"prompts": induction.prompts, "text_tasks": benefits.plan.setup.text_tasks, **benefits.asked},
            **benefits.values(),
        }
    print(verdicts.table().to_string())
    print(report.save_values(values, stem, arguments.model))
