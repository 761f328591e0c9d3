"""How near estimates of studies are: every figure's study on every model, estimated and measured.

Each model is measured in a process of its own, on an empty folder, with the controls that its notebook has.
Lines: seconds and peak of memory of each study, estimated, measured, and their ratio, beside the bars.
    make bench-estimates BENCH_ARGS="--only embedded experts --size small"
    make bench-estimates BENCH_ARGS="--only smollm2 --size notebook --save data/benchmarks/estimates.json"
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.figures.estimated import SHAPES, STEMS, total

MODELS = ("embedded", "smollm2", *SHAPES)
SECONDS, MEMORY = 2.0, 1.5  # an estimate may be too high, or too low, by these factors


def lines(model: str, rows: dict[str, Any]) -> list[str]:
    """Returns what is printed of a model: a line for each study, and for each part that is off by more."""
    told = []
    for stem, row in rows.items():
        pairs = {"s": (*total(row, "seconds"), SECONDS), "GB": (*row["gigabytes"], MEMORY)}
        said = "; ".join(
            f"{estimated:.2f} {unit} estimated, {measured:.2f} measured, {estimated / measured:.2f} times"
            f" (bar {bar:g}: {'kept' if 1 / bar <= estimated / measured <= bar else 'MISSED'})"
            for unit, (estimated, measured, bar) in pairs.items()
        )
        tokens, ran = total(row, "with logits")
        told.append(f"{model}, {stem}: {said}; {tokens / max(1.0, ran):.2f} times the tokens")
        for name, part in row["parts"].items():
            estimated, measured = part["seconds"]
            if measured > 5 and not 1 / SECONDS <= estimated / measured <= SECONDS:
                told.append(f"    {name}: {estimated:.1f} s estimated, {measured:.1f} measured")
    return told


def main() -> None:
    """Measure the models and figures that are asked for, print them beside their bars, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--stems", nargs="+", choices=STEMS, default=[*STEMS])
    parser.add_argument("--size", choices=["small", "notebook"], default="small")
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for model in arguments.only:
        found[model] = {}
        for stem in arguments.stems:  # a peak is that of a process
            command = [sys.executable, "-m", "tests.figures.estimated", model, arguments.size, stem, "--controls"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
            found[model] |= row
            print(*lines(model, row), sep="\n", flush=True)
            if arguments.save:
                about = {
                    "machine": platform.machine(),
                    "cores": os.cpu_count(),
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "size": arguments.size,
                }
                saved = {"about": about, "models": found}
                arguments.save.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
