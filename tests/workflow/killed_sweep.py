"""A sweep that is killed, run again, and compared with plain runs: `python -m tests.workflow.killed_sweep FOLDER`.

Two models x two data sets x two seeds of forerunner token heads, a few prompts each. Every process of the sweep is
killed when so many records are there, twice; the third run finishes. All records have to be, bit for bit, those that
plain runs leave, without one more or less. It takes ten minutes, so `make test-workflow` kills a smaller sweep.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from util import paths
from util.commands import studies
from util.load_model_and_data import load_ICL_model, untrained_twin
from util.records import cache
from workflow import grid as grids
from workflow import plan

# everything that notebook 01 measures, as little of it as there can be
FEW = {
    "prompts": 8, "causal_datasets": ["trec"], "choice_prompts": 8, "ablated": 4, "read_prompts": 4, "single_heads": 2,
    "heads_cut": 2, "grid_datasets": ["trec"], "grid_k": [1, 2], "grid_prompts": 4, "untrained_control": False,
}  # fmt: skip
LONGEST = 1800  # seconds that a sweep may take before this gives up


def tiny_model(folder: Path) -> Path:
    """A folder with a model that was never trained, of the shape and with the tokenizer of the embedded one."""
    model, tokenizer = load_ICL_model("embedded", device="cpu", verbose=False)
    untrained_twin(model, 1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(grid: Path, out: Path) -> list[str]:
    """The command of a sweep, as one would type it."""
    return [sys.executable, "-m", "workflow.sweep", str(grid), "--out", str(out)]


def records(folder: Path, *, blocks: bool = False) -> list[Path]:
    """The records in a folder; with those of blocks if asked for, which are kept until a record is whole."""
    return sorted(folder.rglob("*.pickle") if blocks else folder.glob("*.pickle"))


def killed(grid: Path, out: Path, count: int) -> int:
    """Run a sweep until it has left so many more records, kill all of its processes, and return how many are there.

    Raises RuntimeError where it ends before.
    """
    before = len(records(out / "records", blocks=True))
    with (out.parent / "killed.txt").open("a") as log:
        running = subprocess.Popen(command(grid, out), cwd=paths.root(), stdout=log, stderr=log, start_new_session=True)
        for _ in range(LONGEST * 20):
            if running.poll() is not None:
                raise RuntimeError(f"it ended before it was killed: {Path(log.name).read_text()}")
            if len(records(out / "records", blocks=True)) >= before + count:
                break
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    return len(records(out / "records", blocks=True))


def finished(grid: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """A sweep that nobody kills; what it printed, errors included."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command(grid, out), cwd=paths.root(), text=True, timeout=LONGEST, **pipes)


def plain_runs(grid: Path, folder: Path, models: Sequence[str]) -> None:
    """Measure the studies of all cells of some models of a grid in this process, into a folder."""
    for cell, study in plan.checked(grids.read(grid)).items():
        if cell.model.label in models:
            for part in studies.collection(study, folder).parts.values():
                part()


def same_bits(one: Any, other: Any) -> bool:
    """Whether two records' data are the same, arrays bit for bit."""
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and (one.dtype, one.shape, one.tobytes()) == (
            other.dtype, other.shape, other.tobytes(),
        )  # fmt: skip
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return type(one) is type(other) and (one == other or one != one)


def different(one: Path, other: Path) -> list[str]:
    """The names of records that are in one of two folders alone, or whose data differ."""
    names = {file.name for folder in (one, other) for file in records(folder)}
    return sorted(
        name
        for name in names
        if not all((folder / name).exists() for folder in (one, other))
        or not same_bits(cache.read(one / name).data, cache.read(other / name).data)
    )


def main(folder: Path) -> None:
    """Kill a sweep twice and compare it. Ends with status 1 where a record differs."""
    folder.mkdir(parents=True)
    grid, out = folder / "grid.yaml", folder / "out"
    swept = {
        "models": ["embedded", str(tiny_model(folder / "tiny"))],
        "datasets": ["trec", "glue_sst2"],
        "k": [2],
        "seeds": [0, 1],
        "figures": {"forerunner_heads": FEW},
        "minutes": 10,
        "gigabytes": 1,
    }
    grid.write_text(yaml.safe_dump(swept), encoding="utf-8")
    for count in (30, 60):
        print(f"killed when {killed(grid, out, count)} records and blocks were there", flush=True)
    done = finished(grid, out)
    print(*done.stdout.splitlines()[-3:], sep="\n")
    plain_runs(grid, folder / "plain", ["embedded", "tiny"])
    wrong = different(out / "records", folder / "plain")
    print(f"{len(records(out / 'records'))} records, {len(wrong)} differ from those of plain runs: {wrong}")
    sys.exit(done.returncode or bool(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
