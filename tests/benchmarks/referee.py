"""What the benchmarks share: contestants, each a process of its own, asked in turn, and ratios of paired rounds."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def serve(run: Callable[[], Any]) -> None:
    """Answer "time" with the CPU seconds of one run, "peak" with its bytes above the steady state, "value" with what it
    returns, until stdin closes."""
    answer, sys.stdout = sys.stdout, sys.stderr  # libraries print
    print("null", file=answer, flush=True)  # ready: the next contestant may start
    for line in sys.stdin:
        start = time.process_time()
        if line.strip() == "peak":
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
            before = _status("VmRSS")
            run()
            found: Any = _status("VmHWM") - before
        elif line.strip() == "value":
            found = np.asarray(run()).tolist()
        else:
            run()
            found = time.process_time() - start
        print(json.dumps(found), file=answer, flush=True)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


class Contestant:
    """A benchmark of this folder as a process that serves; memory: freed buffers go back to the system at once, so that
    the peak is what is alive, not fragmentation."""

    def __init__(
        self, name: str, options: Sequence[object], threads: int, python: str = sys.executable, memory: bool = False
    ) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"} if memory else {}
        self.process = subprocess.Popen(
            [python, "-m", f"tests.benchmarks.{name}", *map(str, options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._answer()

    def ask(self, question: str) -> Any:
        assert self.process.stdin
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError((self.process.communicate()[1] or "a contestant died")[-2000:])
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def rounds(contestants: Mapping[str, Contestant], count: int, title: str) -> dict[str, list[float]]:
    """The CPU seconds of every contestant in so many rounds, each in an order that is drawn."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    random = np.random.default_rng(0)
    for number in range(count):
        for name in random.permutation(list(contestants)):
            seconds[name].append(contestants[name].ask("time"))
        shown = ", ".join(f"{name} {values[-1]:.2f}" for name, values in seconds.items())
        print(f"{title}, round {number + 1}/{count}: {shown} s", flush=True)
    return seconds


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The median ratio of paired rounds and its bootstrap interval."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return {"median": float(np.median(ratios)), "low": float(low), "high": float(high)}


def save(report: Mapping[str, Any], file: Path | None) -> None:
    """Print a report, and write it where a file is given."""
    print(json.dumps(report, indent=1))
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
