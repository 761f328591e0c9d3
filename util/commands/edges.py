"""Edge ablation from JSON, see `commands.edge_configs`."""

import argparse
import json
from dataclasses import replace
from typing import Any

from util.commands import edge_configs as configs
from util.study.model import Model


class _PrintExamples(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(json.dumps(configs.EXAMPLES, indent=1))
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("file", metavar="CONFIG.json", help="one config, or a list of them")
    parser.add_argument("--examples", action=_PrintExamples, nargs=0, help="print a small config of each action")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--overwrite", action="store_true", help="measure again, and replace what is in out_dir")


def run(arguments: argparse.Namespace) -> None:
    """Run the configs of a file. Raises what `configs.load` and `configs.run` raise."""
    runs = configs.load(arguments.file)
    models: dict[str, Model] = {}  # by request: configs of one model share it
    for number, config in enumerate(runs, 1):
        asked = replace(config.model, device=arguments.device)
        model = models.setdefault(json.dumps(asked.request), asked)
        print(f"[{number}/{len(runs)}] {config.action}: {model.request['model']}, {config.request.task}")
        result = configs.run(config, model, overwrite=arguments.overwrite)
        for name, row in result["results"].items():
            values = ("{} {:.3f} [{:.3f}, {:.3f}]".format(measure, *interval) for measure, interval in row.items())
            print(f"  {name:28}", "  ".join(values))
