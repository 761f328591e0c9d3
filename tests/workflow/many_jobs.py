"""A sweep of 200 jobs that take no time, a tenth of which fails: `python -m tests.workflow.many_jobs FOLDER`.

100 cells of two jobs each, records and notebook. In 20 cells, a tenth of the jobs, one fails the first time. After the
first call the others have to be done, after the second one all of them; it may run nothing that was done before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import yaml

from tests.workflow import stand_in
from util import paths

SEEDS, EVERY = 100, 5


def calls(out: Path) -> Counter[str]:
    """How often each command of a job was run: measuring, papermill, the page of a notebook."""
    words = (line.split() for line in (out / "ran.txt").read_text(encoding="utf-8").splitlines())
    return Counter(f"{'records' if 'collect' in line else line[1]} {stand_in.cell_of(line).name}" for line in words)


def main(folder: Path) -> None:
    """Run the sweep twice. Ends with status 1 where a job is not what it has to be."""
    folder.mkdir(parents=True)
    out, grid = folder / "out", folder / "grid.yaml"
    seeds = list(range(SEEDS))
    swept = {"models": "embedded", "seeds": seeds, "figures": ["toy_induction_head"]}
    grid.write_text(yaml.safe_dump(swept), encoding="utf-8")
    failing = {f"seed{seed}" for seed in seeds[::EVERY]}
    for name in failing:
        place = out / "cells" / "embedded" / "toy_induction_head" / name
        place.mkdir(parents=True)
        (place / "fails").write_text("fails the first time", encoding="utf-8")
    command = [sys.executable, "-m", "workflow.sweep", str(grid), "--out", str(out)]
    command += ["--python", stand_in.executable(folder)]
    wrong = []
    for call, (done, status) in enumerate([(SEEDS - len(failing), 1), (SEEDS, 0)], start=1):
        began = time.monotonic()
        ended = subprocess.run(command, cwd=paths.root(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        told = f"{done} of {SEEDS} cells are done"
        print(f"call {call}: status {ended.returncode}, {time.monotonic() - began:.0f} s", flush=True)
        named = {
            line.split(":")[0].split("/")[-1] for line in ended.stdout.splitlines() if ": records failed: " in line
        }
        print(f"  {told if told in ended.stdout else 'NOT ' + told}; {len(named)} cells named as failed")
        wrong += [] if ended.returncode == status and told in ended.stdout else [ended.stdout]
        wrong += [] if named == (failing if call == 1 else set()) else [str(sorted(named))]
    ran = calls(out)
    twice = {job for job, times in ran.items() if times > 1}
    print(f"{len(ran)} commands ran, {len(twice)} of them twice")
    wrong += [] if twice == {f"records {name}" for name in failing} else [json.dumps(sorted(twice))]
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
