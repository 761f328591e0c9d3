"""Sweeps of jobs that take no time: what runs, what fails, what runs again, and what a cluster would be told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("snakemake", reason="needs Snakemake: make test-workflow")

from tests.workflow import stand_in  # noqa: E402
from util import paths  # noqa: E402
from workflow import sweep  # noqa: E402

GRID = {
    "models": ["embedded", {"name": "meta-llama/Llama-3.1-70B", "gpus": 4, "shards": 3, "device_map": "auto"}],
    "seeds": [0, 1],
    "figures": {"toy_induction_head": {}, "card": {}},
    "minutes": 30,
    "gigabytes": 2,
}
CELLS = [f"{model}/{figure}/seed{seed}" for model in ("embedded", "meta-llama-Llama-3.1-70B")
         for figure in ("toy_induction_head", "card") for seed in (0, 1)]  # fmt: skip
PROFILES = paths.root() / "workflow" / "profiles"


@pytest.fixture
def grid(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump(GRID))
    return file


@pytest.fixture
def swept(tmp_path, grid, capfd):
    """Runs a sweep of stand-ins: its status, and what was printed."""
    python = stand_in.executable(tmp_path)

    def run(*flags, profile="local"):
        with pytest.raises(SystemExit) as ended:
            sweep.main([str(grid), "--out", str(tmp_path / "out"), "--python", python,
                        "--profile", str(PROFILES / profile), *flags])  # fmt: skip
        printed = capfd.readouterr()
        return ended.value.code, printed.out + printed.err

    return SimpleNamespace(run=run, out=tmp_path / "out")


def ran(out: Path) -> list[str]:
    """What jobs were run, each once."""
    file = out / "ran.txt"
    return sorted(file.read_text().splitlines()) if file.exists() else []


def collected(out: Path, cell: str) -> list[str]:
    return [line for line in ran(out) if f"cells/{cell}/" in line and "collect" in line]


def test_a_dry_run_runs_nothing(swept):
    status, said = swept.run("--dry-run")
    assert status == 0
    assert dict(re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)) == {
        "all": "1", "card": "4", "merge": "4", "notebook": "4", "records": "8", "shard": "12", "total": "33",
    }  # fmt: skip
    assert not ran(swept.out)


def test_a_cluster_is_asked_for_what_the_plan_has(swept):
    """By SLURM's plug-in, as far as a dry run goes: every job with its memory, time and GPUs."""
    status, said = swept.run("--dry-run", profile="slurm")
    assert status == 0, said
    shard = next(part for part in said.split("rule ") if part.startswith("shard"))
    assert "mem_mb=4500" in shard and "runtime=30" in shard and "gpu=4" in shard and "slurm_partition=gpu" in shard
    drawn = next(part for part in said.split("rule ") if part.startswith("notebook"))
    assert "gpu=0" in drawn and "runtime=30" in drawn
    assert not ran(swept.out)


def test_everything_runs_once(swept):
    status, said = swept.run()
    assert status == 0, said
    assert f"8 of 8 cells are done: {swept.out / 'index.html'}" in said
    first = ran(swept.out)
    assert len(collected(swept.out, CELLS[0])) == 1
    assert len(collected(swept.out, CELLS[-1])) == 3 + 1 + 1  # three shards, what is left, the merge
    assert sum("papermill" in line for line in first) == sum(" util card " in line for line in first) == 4
    page = (swept.out / "index.html").read_text()
    assert "8 of 8 cells are done." in page
    assert all(f'href="cells/{cell}/' in page for cell in CELLS)

    status, said = swept.run()
    assert status == 0 and "Nothing to be done" in said
    assert ran(swept.out) == first


def test_a_job_that_fails_is_named_and_stops_no_other(swept):
    failing = swept.out / "cells" / CELLS[1]
    failing.mkdir(parents=True)
    (failing / "fails").write_text("prompts = 8: too few by design")
    status, said = swept.run()
    assert status == 1
    assert f"{CELLS[1]}: records failed: prompts = 8: too few by design (cells/{CELLS[1]}/logs/records.log)" in said
    assert "7 of 8 cells are done" in said
    page = (swept.out / "index.html").read_text()
    assert "7 of 8 cells are done, 1 failed." in page
    assert "prompts = 8: too few by design" in page and f'href="cells/{CELLS[1]}/logs/records.log"' in page
    assert f'href="cells/{CELLS[1]}/notebook' not in page

    before = set(ran(swept.out))
    status, said = swept.run()
    assert status == 0, said
    again = ran(swept.out)
    assert len(again) == len(before) + 1 + 2  # collect stands there twice now; papermill and the page are new
    assert all(CELLS[1] in line for line in set(again) - before)
    assert "8 of 8 cells are done." in (swept.out / "index.html").read_text()


def test_a_cell_that_joins_the_grid_runs_alone(swept, grid):
    assert swept.run()[0] == 0
    before = set(ran(swept.out))
    grid.write_text(yaml.safe_dump(GRID | {"seeds": [0, 1, 2]}))
    assert swept.run()[0] == 0
    new = set(ran(swept.out)) - before
    assert new and all("/seed2/" in line for line in new)


def test_wrong_input_ends_in_a_line(swept, grid, tmp_path):
    grid.write_text(yaml.safe_dump(GRID | {"figures": {"card": {"minutes": -1}}}))
    status, said = swept.run()
    assert status == 1 and said.startswith("card: minutes = -1") and len(said.splitlines()) == 1
    assert not (swept.out / "cells").exists()
    assert swept.run(profile="nowhere")[1].startswith(f"{PROFILES / 'nowhere'} is no profile")


def test_a_sweep_that_runs_is_not_run_twice(swept):
    swept.out.mkdir()
    with (swept.out / sweep.LOCK).open("a") as lock:
        sweep._alone(lock, swept.out)
        status, said = swept.run()
    assert status == 1 and "this sweep runs already" in said
    assert not (swept.out / "plan.json").exists()


def test_locks_of_a_killed_snakemake_are_taken_away(swept):
    assert swept.run()[0] == 0
    locks = swept.out / ".snakemake" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text("\n".join(f"cells/{cell}/records.done" for cell in CELLS))
    done = swept.out / "cells" / CELLS[0] / "notebook.html"
    done.unlink()
    status, said = swept.run()
    assert status == 0, said
    assert done.exists() and not list(locks.glob("*"))


# ---- GPUs ----


def on_gpus(folder: Path, count: int, *command: str) -> Any:
    script = paths.root() / "workflow" / "gpus.py"
    given = [sys.executable, str(script), "--devices", "3", "5", "--count", str(count), "--", *command]
    return subprocess.Popen(given, env=os.environ | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True)


SEEN = (sys.executable, "-c", "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep({})")


def test_every_process_has_gpus_of_its_own(tmp_path):
    """Two at a time on two GPUs; a third one waits until one of them is killed."""
    long = (*SEEN[:2], SEEN[2].format(60))
    first, second = (on_gpus(tmp_path, 1, *long) for _ in range(2))
    assert {first.stdout.readline().strip(), second.stdout.readline().strip()} == {"3", "5"}
    both = on_gpus(tmp_path, 2, *SEEN[:2], SEEN[2].format(0))
    none = on_gpus(tmp_path, 0, *SEEN[:2], SEEN[2].format(0))
    assert none.communicate()[0] == "\n"
    first.send_signal(signal.SIGKILL)
    time.sleep(1.5)
    assert both.poll() is None
    second.kill()
    assert both.communicate(timeout=30)[0] == "3,5\n"


def test_more_gpus_than_there_are_is_an_error(tmp_path):
    assert on_gpus(tmp_path, 3, "true").wait() == 2


def test_jobs_of_this_machine_are_told_their_gpus(swept, monkeypatch):
    monkeypatch.setattr(sweep, "_devices", lambda: ["0", "1"])
    status, said = swept.run("--dry-run", "--", "--printshellcmds")
    assert status == 0, said
    assert json.loads((swept.out / "plan.json").read_text())["devices"] == ["0", "1"]
    assert "gpus.py --devices 0 1 --count 1 -- " in said
    assert "--count 2 -- " in said  # of the model that asks for 4
    assert "--count 0 -- " in said  # of notebooks
