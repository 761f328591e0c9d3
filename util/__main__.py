"""Command line: `python -m util edges CONFIG.json` runs edge ablation; `--examples` prints configs to start from."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from util.experiments import edge_configs
from util.experiments.runs import LazyModel


def _model(config: edge_configs.Config, device: str, known: dict[str, Callable[[], Any]]) -> Callable[[], Any]:
    """The model of a config, one for all that ask for the same."""
    asked = {name: config.asked[name] for name in ("revision", "dtype", "quantized", "untrained_seed")}
    seed = asked.pop("untrained_seed")
    key = json.dumps([config.asked["model"], asked, seed])
    if key not in known:
        lazy = LazyModel(config.asked["model"], device=device, **asked)
        known[key] = lazy if seed is None else lazy.twin(seed)
    return known[key]


def main() -> None:
    """Parse the arguments and run one command."""
    parser = argparse.ArgumentParser(prog="python -m util", description=__doc__)
    command = parser.add_subparsers(dest="command", required=True).add_parser("edges", help="edge ablation from JSON")
    command.add_argument("file", nargs="?", help="one config, or a list of them")
    command.add_argument("--examples", action="store_true", help="print a small config of each action")
    command.add_argument("--device", default="auto")
    command.add_argument("--overwrite", action="store_true", help="measure again, and replace what is in out_dir")
    arguments = parser.parse_args()
    if arguments.examples:
        print(json.dumps([asdict(config) for config in edge_configs.examples()], indent=1))
        return
    if arguments.file is None:
        parser.error("name a file of configs, or ask for --examples")
    try:
        configs, models = edge_configs.load(arguments.file), dict[str, Callable[[], Any]]()
        for number, config in enumerate(configs, 1):
            print(f"[{number}/{len(configs)}] {config.action}: {config.asked['model']}, {config.asked['dataset']}")
            found = edge_configs.run(config, _model(config, arguments.device, models), overwrite=arguments.overwrite)
            for name, row in found["results"].items():
                values = ("{} {:.3f} [{:.3f}, {:.3f}]".format(measure, *each) for measure, each in row.items())
                print(f"  {name:28}", "  ".join(values))
    except (ValueError, FileExistsError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
