"""The referee of the benchmarks: contestants in paired rounds, ratios, peaks of memory, bars, the tables of the page.

    python -m tests.benchmarks NAME [--rounds N] [--only CONTEST ...] [--save]

The module NAME of this folder says in CONTESTS who runs against whom. Every contestant is a process of its own that
runs once per round; the order within a round is drawn. Times are CPU seconds of the process; a ratio is the median over
rounds with its bootstrap interval. Peak memory is what one run takes above what the process holds between runs.
"""

import argparse
import contextlib
import datetime
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.clone import ROOT

FOLDER = ROOT / "data" / "benchmarks"
SIMULATED = ("coverage", "verdicts", "sensitivity")  # no contests
CONTESTED = ("capture", "patch_map", "edges", "prefix_scores", "label_scores", "edge_scores", "harness")
NAMES = (*CONTESTED, *SIMULATED)
ORACLES = os.environ.get("ICL_ORACLES", ".venv-oracles/bin/python")  # Pythons of other environments
HARNESS = ".venv-harness/bin/python"
Run = Callable[[], Any]
TIME, MEMORY, DIFFERENCE = "CPU time", "extra peak memory", "largest difference"
UNITS = {TIME: " s", MEMORY: " MiB", DIFFERENCE: ""}


class Bar(NamedTuple):
    """A number that is shown: of a contestant, or of one divided by another. least, most: where something was asked."""

    kind: str
    of: str
    to: str = ""
    least: float | None = None
    most: float | None = None

    def told(self, found):
        """Name, bar and number in words, with an interval where there is one; whether the number is within the bar."""
        name, unit = (f"{self.of} / {self.to}", "") if self.to else (self.of, UNITS[self.kind])
        numbers = found[self.kind]
        measured = numbers[name] if name in numbers else numbers[self.of] / numbers[self.to]
        low, value, high = measured if isinstance(measured, list) else [measured] * 3
        held = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        limits = {"at least": self.least, "at most": self.most}
        bar = ", ".join(f"{word} {limit:.3g}{unit}" for word, limit in limits.items() if limit is not None)
        interval = f" [{written(low)}, {written(high)}]" if low < high else ""
        return f"{name}, {self.kind}", bar, f"{written(value)}{interval}{unit}", held


@dataclass(frozen=True)
class Contest:
    """Contestants of one setting: by name, a function of the setting that returns what a run calls.

    tiny: the setting of tests; rounds: unless told, 0 where memory alone is measured; same: groups that compute the
    same, their references first; part: by contestant, how many times its work the whole is, whose time is extrapolated;
    beyond: the contestant whose peak is taken off the others'; pythons: by contestant, the Python of another
    environment.
    """

    contestants: Mapping[str, Callable[..., Run]]
    bars: Sequence[Bar]
    setting: Mapping[str, Any]
    tiny: Mapping[str, Any]
    rounds: int = 9
    threads: int = 1
    same: Sequence[Sequence[str]] = ()
    part: Mapping[str, float] = field(default_factory=dict)
    beyond: str = ""
    pythons: Mapping[str, str] = field(default_factory=dict)


def contests(name):
    """The contests of a benchmark, by title."""
    return dict(importlib.import_module(f"tests.benchmarks.{name}").CONTESTS)


def serve(run):
    """Answer "time" with the CPU seconds of one run, "peak" with its bytes above the steady state, "value" with what a
    run returns, until stdin closes. It runs once before, for what only a first call costs."""
    answer, sys.stdout = sys.stdout, sys.stderr  # libraries print
    found: Any = None
    value = run()
    print("null", file=answer, flush=True)  # ready: the next contestant may start
    for question in map(str.strip, sys.stdin):
        if question == "peak":
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
            before = status("VmRSS")
            run()
            found = status("VmHWM") - before
        elif question == "value":
            found = np.asarray(value).tolist()
        else:
            start = time.process_time()
            run()
            found = time.process_time() - start
        print(json.dumps(found), file=answer, flush=True)


def status(field):
    """Bytes of this process, as Linux says: VmRSS, what is resident; VmHWM, the most that was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


@contextlib.contextmanager
def serving(command, environment):
    """A function that asks a process which serves. It raises RuntimeError where the process dies, which says why."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, **pipes) as process:

        def ask(question):
            if question:
                with contextlib.suppress(BrokenPipeError):
                    print(question, file=process.stdin, flush=True)
            if not (line := process.stdout.readline() if process.stdout else ""):
                raise RuntimeError(f"a contestant died: {' '.join(command)}")
            return json.loads(line)

        ask("")  # until it is ready
        yield ask


@contextlib.contextmanager
def started(benchmark, title, names, setting):
    """These contestants at once. One alone gives freed buffers back to the system: its peak is what is alive."""
    contest = contests(benchmark)[title]
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(contest.threads))
    environment |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    if len(names) == 1:
        environment |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536")
    options = ["-m", "tests.benchmarks", benchmark, "--only", title, "--setting", json.dumps(dict(setting))]
    with contextlib.ExitStack() as stack:
        commands = {name: [contest.pythons.get(name, sys.executable), *options, "--contestant", name] for name in names}
        yield {name: stack.enter_context(serving(command, environment)) for name, command in commands.items()}


def paired_rounds(contestants, count, title):
    """The CPU seconds of every contestant in so many rounds, each in an order that is drawn."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    random = np.random.default_rng(0)
    for number in range(count):
        for name in random.permutation(list(contestants)):
            seconds[name].append(contestants[name]("time"))
        shown = ", ".join(f"{name} {values[-1]:.2f}" for name, values in seconds.items())
        print(f"{title}, round {number + 1}/{count}: {shown} s", flush=True)
    return seconds


def ratio(above, below):
    """The median ratio of paired rounds between the ends of its bootstrap interval."""
    ratios = np.divide(above, below)
    medians = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return [float(low), float(np.median(ratios)), float(high)]


def differences(contest, values):
    """The largest difference of each contestant to the reference of its group, where both have a number."""
    pairs = [(name, np.asarray(values[group[0]], float)) for group in contest.same for name in group[1:]]
    return {name: float(np.nanmax(np.abs(np.asarray(values[name], float) - first))) for name, first in pairs}


def measured(benchmark, title, count=None):
    """What was found of a contest: where and when, times and their ratios, peaks and differences."""
    import torch

    contest = contests(benchmark)[title]
    count = contest.rounds if count is None or not contest.rounds else count
    found: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": contest.threads,
        "other work on the machine, its load": round(os.getloadavg()[2], 1),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "rounds": count,
    }
    values: dict[str, Any] = {}
    if count:
        with started(benchmark, title, [*contest.contestants], contest.setting) as contestants:
            seconds = paired_rounds(contestants, count, title)
            values = {name: contestants[name]("value") for group in contest.same for name in group}
        seconds = {name: [contest.part.get(name, 1) * one for one in timed] for name, timed in seconds.items()}
        found[TIME] = {name: float(np.median(timed)) for name, timed in seconds.items()}
        pairs = [bar[1:3] for bar in contest.bars if bar.kind == TIME and bar.to]
        found[TIME] |= {f"{of} / {to}": ratio(seconds[of], seconds[to]) for of, to in pairs}
    peaks = {name: 0.0 for bar in contest.bars if bar.kind == MEMORY for name in (contest.beyond, *bar[1:3]) if name}
    for name in peaks:
        with started(benchmark, title, [name], contest.setting) as contestants:
            peaks[name] = contestants[name]("peak") / 2**20
            values |= {} if count else {name: contestants[name]("value")}
    beyond = peaks.pop(contest.beyond, 0.0)
    return found | {
        MEMORY: {name: peak - beyond for name, peak in peaks.items()}, DIFFERENCE: differences(contest, values),
    }  # fmt: skip


def written(value):
    """A number with three digits: 1,374; 25.8; 0.94; 1.2e-07."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(name):
    """What the file of a benchmark says, beside the bars."""
    report = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    rows: list[tuple[Any, ...]] = []
    if name == "coverage":
        head = ["figure", "interval", "coverage"]
        rows = [(c["figure"], c["interval"], _told([c["coverage"], c["low"], c["high"]], 3)) for c in report["cases"]]
    elif name == "verdicts":
        head = ["claim", "margin", "no effect", "the paper's effect", "at the margin"]
        told = "{effect:.2f}: {holds:.3f}, {does not hold in this model:.3f}"  # how often it is said
        for claim in report["claims"]:
            cells = (told.format(**claim[effect]) if effect in claim else "not published" for effect in head[2:])
            rows.append((f"{claim['paper']}, {claim['claim']}", claim["margin"], *cells))
    elif name == "sensitivity":
        head = ["number", *dict.fromkeys(variant for values in report["numbers"].values() for variant in values)]
        rows = [
            (number, *(_told(values.get(variant, "")) for variant in head[1:]))
            for number, values in report["numbers"].items()
        ]
    else:
        head = ["contest", "number", "bar", "result", "rounds"]
        rows = [
            (title, *bar.told(found)[:3], found["rounds"] or "")
            for title, found in report.items()
            for bar in contests(name)[title].bars
        ]
    lines = [(f"`make bench NAME={name}`: {head[0]}", *head[1:]), ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _told(value, digits=2):
    """A number with its interval, a count or a name."""
    return "{:.{n}f} [{:.{n}f}, {:.{n}f}]".format(*value, n=digits) if isinstance(value, list) else str(value)


def renewed(page):
    """The page with its tables made anew. Raises ValueError where it lacks one."""
    for name in NAMES:
        if not (FOLDER / f"{name}.json").exists():
            continue  # never saved
        place = re.search(rf"^\| `make bench NAME={name}`.*\n(?:\|.*\n)*", page, re.MULTILINE)
        if place is None:
            raise ValueError(f"data/benchmarks/README.md has no table of `make bench NAME={name}`")
        page = page[: place.start()] + table(name) + page[place.end() :]
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--rounds", type=int, help="unless told, what each contest says")
    parser.add_argument(
        "--only", nargs="*", metavar="CONTEST", help="these contests alone, by title; none: make tables"
    )
    parser.add_argument("--save", action="store_true", help="into data/benchmarks: the file, and its table")
    for name in ("--contestant", "--setting"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        make = contests(options.name)[options.only[0]].contestants[options.contestant]
        serve(make(**json.loads(options.setting)))
        return
    file, page = FOLDER / f"{options.name}.json", FOLDER / "README.md"
    report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if options.name in SIMULATED and options.only is None:
        module = importlib.import_module(f"tests.benchmarks.{options.name}")
        report = module.simulate(options.rounds or module.ROUNDS)
    elif options.name not in SIMULATED:
        for title in contests(options.name) if options.only is None else options.only:
            report[title] = measured(options.name, title, options.rounds)
            for bar in contests(options.name)[title].bars:
                name, limits, number, held = bar.told(report[title])
                print(f"{title}: {name}: {number}", f"({limits}: {'held' if held else 'MISSED'})" if limits else "")
    if options.save:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
