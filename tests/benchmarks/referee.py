"""What the benchmarks share: contestants, each a process of its own, asked in turn, and ratios of paired rounds."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

# ---------------------------------------------------------------------------------------- a contestant's process


def serve(run: Callable[[], Any], *, warm: bool = True) -> None:
    """Answer "time" with the CPU seconds of one run, "peak" with its bytes above the steady state, "value" with what it
    returns, until stdin closes. warm: run once before, for what only a first call costs."""
    answer, sys.stdout = sys.stdout, sys.stderr  # libraries print
    if warm:
        run()
    print("null", file=answer, flush=True)  # ready: the next contestant may start
    for line in sys.stdin:
        start = time.process_time()
        if line.strip() == "peak":
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
            before = status("VmRSS")
            run()
            found: Any = status("VmHWM") - before
        elif line.strip() == "value":
            found = np.asarray(run()).tolist()
        else:
            run()
            found = time.process_time() - start
        print(json.dumps(found), file=answer, flush=True)


def status(field: str) -> int:
    """Bytes of this process, as Linux says: VmRSS, what is resident; VmHWM, the most that was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


# ---------------------------------------------------------------------------------------- the referee


class Contestant:
    """A process that serves. Raises RuntimeError, with the end of what it said, where the process dies."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # of what it says beside its answers: a pipe that nobody reads would fill, and the process wait
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=os.environ | environment,
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
            self.process.communicate()
            self._said.seek(0)
            raise RuntimeError((self._said.read() or "a contestant died")[-2000:])
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


@dataclass(frozen=True)
class Team:
    """The contestants of one benchmark of this folder.

    benchmark: its module, which is run with `--contestant NAME`; options: its other options, by name, None for none;
    own: by contestant, options that differ; threads: of each process; pythons: by contestant, the Python of another
    environment.
    """

    benchmark: str
    options: Mapping[str, object] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    threads: int = 1
    pythons: Mapping[str, str] = field(default_factory=dict)

    def start(self, name: str, *, memory: bool = False) -> Contestant:
        """memory: freed buffers go back to the system at once, so that the peak is what is alive, not fragmentation."""
        command = [self.pythons.get(name, sys.executable), "-m", f"tests.benchmarks.{self.benchmark}"]
        command += ["--contestant", name]
        for option, value in {**self.options, **self.own.get(name, {})}.items():
            command += [] if value is None else [f"--{option}", str(value)]
        environment = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        environment |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
        environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"} if memory else {}
        return Contestant(command, environment)

    @contextlib.contextmanager
    def started(self, names: Sequence[str]) -> Iterator[dict[str, Contestant]]:
        """These contestants, all at once; they are closed afterwards."""
        with contextlib.ExitStack() as stack:
            yield {name: stack.enter_context(contextlib.closing(self.start(name))) for name in names}

    def seconds(self, names: Sequence[str], count: int, title: str) -> dict[str, list[float]]:
        """The CPU seconds of these contestants in so many paired rounds."""
        with self.started(names) as contestants:
            return rounds(contestants, count, title)

    def values(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """What a run of each returns."""
        values = {}
        for name in names:
            with contextlib.closing(self.start(name)) as contestant:
                values[name] = np.array(contestant.ask("value"))
        return values

    def peaks(self, names: Sequence[str]) -> dict[str, float]:
        """What a run of each takes above what its process holds between runs, MiB."""
        peaks = {}
        for name in names:
            with contextlib.closing(self.start(name, memory=True)) as contestant:
                peaks[name] = contestant.ask("peak") / 2**20
        return peaks


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


def comparison(seconds: Mapping[str, Sequence[float]], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The median CPU seconds of every contestant, and the ratio of each pair: "above / below"."""
    return {
        "cpu_seconds": {name: float(np.median(values)) for name, values in seconds.items()},
        **{f"{above} / {below}": ratio(seconds[above], seconds[below]) for above, below in pairs},
    }
