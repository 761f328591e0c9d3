"""What the benchmarks share: the command line, the head of a report, and its lines: numbers with the bars they have."""

import argparse
import datetime
import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def command_line(
    text: str, count: int, contestants: Collection[str] = (), *, oracles: bool = False
) -> argparse.ArgumentParser:
    """The options that every benchmark has.

    text: the help; count: the rounds, unless told; contestants: names of those that are processes of their own;
    oracles: some of them are other libraries, in an environment of their own.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=count, help=f"default {count}")
    parser.add_argument("--save", type=Path, help="a JSON file for the report")
    if contestants:
        parser.add_argument("--contestant", choices=list(contestants), help=argparse.SUPPRESS)
    if oracles:
        parser.add_argument("--oracles", default=".venv-oracles/bin/python", help="the Python that has the opponents")
    return parser


def report_head(count: int, threads: int = 1) -> dict[str, Any]:
    """How a report begins: the machine, the mean load of the last 15 minutes, the date, the versions, the rounds."""
    import torch
    import transformers

    few = {1: "one thread per process", 2: "two threads per process"}
    processes = few.get(threads, f"{threads} threads per process")
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {processes}",
        "other work on the machine, its load": round(os.getloadavg()[2], 1),
        "date": datetime.date.today().isoformat(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rounds": count,
    }


@dataclass(frozen=True)
class Line:
    """A number of a report and its bar.

    what: for a reader; place: the names that lead to it in the report, where it is a number, or a ratio with its median
    and interval; least, most: the bar, where it has one; unit: of number and bar.
    """

    what: str
    place: tuple[str, ...]
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def bar(self) -> str:
        """The bar in words, empty where there is none."""
        limits = {"at least": self.least, "at most": self.most}
        words = ", ".join(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
        return f"{words} {self.unit}".rstrip() if words else ""

    def found(self, report: Mapping[str, Any]) -> Any:
        """What a report has in this place, None where it has nothing."""
        found: Any = report
        for name in self.place:
            found = found.get(name) if found else None
        return found

    def number(self, report: Mapping[str, Any]) -> str:
        """The number as it is written, with its interval where more than one round was measured."""
        found = self.found(report)
        if found is None:
            return "not measured yet"
        if not isinstance(found, Mapping):
            return written(found)
        interval = f" [{written(found['low'])}, {written(found['high'])}]" if found["low"] < found["high"] else ""
        return written(found["median"]) + interval

    def result(self, report: Mapping[str, Any]) -> str:
        """The number with its unit."""
        number = self.number(report)
        return number if self.found(report) is None else f"{number} {self.unit}".rstrip()

    def held(self, report: Mapping[str, Any]) -> bool:
        """Whether the number, of a ratio the median, is within the bar."""
        found = self.found(report)
        value = found["median"] if isinstance(found, Mapping) else found
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def verdict(self, report: Mapping[str, Any]) -> str:
        """Bar, number, and whether it is held: "... at most 6 plain passes: 3.80 [3.71, 3.92], held"."""
        return f"{self.what}: {self.bar}: {self.number(report)}, {'held' if self.held(report) else 'MISSED'}"


def written(value: float) -> str:
    """A number with three digits or so: 1,374; 25.8; 0.94; 0.0026; 1.2e-07."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def finish(report: Mapping[str, Any], lines: Sequence[Line], file: Path | None) -> None:
    """Print a report and the verdict on each bar of it; write the report where a file is given."""
    text = json.dumps(report, indent=1)
    print(text)
    for line in lines:
        if line.bar and line.found(report) is not None:
            print(line.verdict(report))
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
