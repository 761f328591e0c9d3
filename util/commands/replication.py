"""Two runs' values beside each other, see `figures.replication`."""

import argparse
import json
import textwrap
from pathlib import Path

from util.figures import FIGURES
from util.figures.replication import Replication


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("first", type=Path, help="a folder of values files, such as data/values")
    parser.add_argument("second", type=Path, help="the same figures, measured on other prompts")
    parser.add_argument("--most", type=int, default=10, help="how many of the numbers that moved are listed")


def run(arguments: argparse.Namespace) -> None:
    """Print what held and what moved. Raises ValueError where the second folder has no values file of a figure."""
    shared = [stem for stem in FIGURES if (arguments.second / f"{stem}.json").exists()]
    if not shared:
        raise ValueError(f"second = {arguments.second}: there is no values file of a figure")
    for stem in shared:
        first, second = (
            json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
            for folder in (arguments.first, arguments.second)
        )
        found = Replication.of(stem, first, second)
        print(*found.lines(), sep="\n")
        if pairs := found.moved[: arguments.most]:
            print(f"  moved most:\n{textwrap.indent(found.table(pairs).to_string(), '    ')}")
