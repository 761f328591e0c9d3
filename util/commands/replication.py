"""Two runs' values beside each other, see `figures.replication`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from util.figures import FIGURES
from util.figures.replication import Replication

MOST = 10  # of the numbers that moved are listed


def run(first: Path, second: Path) -> None:
    """Print what held and what moved. Raises ValueError where the second folder has no values file of a figure.

    Args:
        first: a folder of values files, such as data/values
        second: the same figures, measured on other prompts
    """
    shared = [f"{stem}.json" for stem in FIGURES if (second / f"{stem}.json").exists()]
    if not shared:
        raise ValueError(f"second = {second}: there is no values file of a figure")
    for name in shared:
        both = [json.loads((folder / name).read_text(encoding="utf-8")) for folder in (first, second)]
        if list in map(type, both):
            raise ValueError(f"{name} of {first} or {second} has no values by name; `make figures` measures them")
        found = Replication.of(name.removesuffix(".json"), *both)
        print(*found.lines(), sep="\n")
        if pairs := found.moved[:MOST]:
            print(f"  moved most:\n{textwrap.indent(found.table(pairs).to_string(), '    ')}")
