"""Two runs' values beside each other, see `figures.replication`."""

import argparse
import json
import re
import textwrap
from pathlib import Path

from util.figures import FIGURES
from util.figures.replication import Replication


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("first", type=Path, help="a folder of values files, such as data/values")
    parser.add_argument("second", type=Path, help="the same figures, measured on other prompts")
    parser.add_argument("--most", type=int, default=10, help="how many of the numbers that moved are listed")
    parser.add_argument("--texts", nargs="*", type=Path, default=[], help="files whose quoted numbers are listed")


def run(arguments: argparse.Namespace) -> None:
    """Print what held and what moved. Raises ValueError where the second folder has no values file of a figure."""
    shared = [stem for stem in FIGURES if (arguments.second / f"{stem}.json").exists()]
    if not shared:
        raise ValueError(f"second = {arguments.second}: there is no values file of a figure")
    text = "\n".join(map(_prose, arguments.texts))
    for stem in shared:
        first, second = (
            json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
            for folder in (arguments.first, arguments.second)
        )
        found = Replication.of(stem, first, second)
        print(*found.lines(), sep="\n")
        for title, pairs in {"quoted": found.quoted(text), "moved most": found.moved[: arguments.most]}.items():
            if pairs:
                print(f"  {title}:\n{textwrap.indent(found.table(pairs).to_string(), '    ')}")


def _prose(file: Path) -> str:
    """What a file says: of a notebook its Markdown cells, numbers with a leading 0."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
