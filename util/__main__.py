"""Command line: `python -m util edges CONFIG.json` runs edge ablation, `--examples` prints configs to start from;
`python -m util claims MODEL` measures the verdicts on the claims about edges.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from util.figures import report
from util.figures.edge_ablation import claims_study as edge_claims
from util.figures.edge_ablation import configs as edge_configs
from util.records.runs import LazyModel


def _model(config: edge_configs.Config, device: str, known: dict[str, Callable[[], Any]]) -> Callable[[], Any]:
    """The model of a config, one for all that ask for the same."""
    asked = {name: config.asked[name] for name in ("revision", "dtype", "quantized", "untrained_seed")}
    seed = asked.pop("untrained_seed")
    key = json.dumps([config.asked["model"], asked, seed])
    if key not in known:
        lazy = LazyModel(config.asked["model"], device=device, **asked)
        known[key] = lazy if seed is None else lazy.twin(seed)
    return known[key]


def _edges(arguments: argparse.Namespace) -> None:
    if arguments.examples:
        print(json.dumps([asdict(config) for config in edge_configs.examples()], indent=1))
        return
    configs, models = edge_configs.load(arguments.file), dict[str, Callable[[], Any]]()
    for number, config in enumerate(configs, 1):
        print(f"[{number}/{len(configs)}] {config.action}: {config.asked['model']}, {config.asked['dataset']}")
        found = edge_configs.run(config, _model(config, arguments.device, models), overwrite=arguments.overwrite)
        for name, row in found["results"].items():
            values = ("{} {:.3f} [{:.3f}, {:.3f}]".format(measure, *each) for measure, each in row.items())
            print(f"  {name:28}", "  ".join(values))


def _claims(arguments: argparse.Namespace) -> None:
    which = {name: getattr(arguments, name) for name in ("revision", "dtype", "quantized")}
    values = edge_claims.measure(
        arguments.model,
        arguments.tasks,
        arguments.prompts,
        arguments.donors,
        arguments.primary,
        arguments.search_prompts,
        source=LazyModel(arguments.model, device=arguments.device, **which),
        say=partial(print, flush=True),
        **which,
    )
    print(*(line for claim in values["claims"] for line in claim.lines()), sep="\n")
    print(report.save_values(values, edge_claims.STEM, arguments.model))


def main() -> None:
    """Parse the arguments and run one command."""
    parser = argparse.ArgumentParser(prog="python -m util", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("edges", help="edge ablation from JSON")
    command.add_argument("file", nargs="?", help="one config, or a list of them")
    command.add_argument("--examples", action="store_true", help="print a small config of each action")
    command.add_argument("--device", default="auto")
    command.add_argument("--overwrite", action="store_true", help="measure again, and replace what is in out_dir")
    command.set_defaults(run=_edges)
    command = commands.add_parser("claims", help="verdicts on the claims about edges (hours; goes on where it stopped)")
    command.add_argument("model", help="embedded, a hub id, a folder, ...")
    command.add_argument("--prompts", type=int, default=250, help="of each task, each with a query of its own")
    command.add_argument("--tasks", nargs="+", default=list(edge_claims.TASKS), choices=edge_claims.TASKS)
    command.add_argument("--primary", default="capitalization", choices=edge_claims.TASKS, help="of claims 1 and 5")
    command.add_argument("--search-prompts", type=int, default=64, help="that claim 1's circuit is searched on")
    command.add_argument("--donors", nargs="+", type=int, default=[0, 1, 2], help="seeds of corrupted prompts")
    command.add_argument("--device", default="auto")
    command.add_argument("--revision")
    command.add_argument("--dtype", default="auto")
    command.add_argument("--quantized", action="store_true")
    command.set_defaults(run=_claims)
    arguments = parser.parse_args()
    if arguments.command == "edges" and arguments.file is None and not arguments.examples:
        parser.error("name a file of configs, or ask for --examples")
    try:
        arguments.run(arguments)
    except (ValueError, FileExistsError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
