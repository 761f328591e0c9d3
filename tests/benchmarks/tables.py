"""The tables of data/benchmarks/README.md, made of the JSON files beside it.

    python -m tests.benchmarks.tables

Renews each table where it stands in the page. A table begins with the target of `make` that measures its numbers.
"""

import json
import re
from types import ModuleType

from tests.benchmarks import (
    bench_component_scores,
    bench_edges,
    bench_forerunner,
    bench_harness,
    bench_induction,
    bench_ioi,
    bench_memory,
    bench_paths,
    bench_real,
    bench_units,
)
from tests.benchmarks.referee import ROOT

FOLDER = ROOT / "data" / "benchmarks"
BENCHMARKS: dict[str, tuple[ModuleType, str]] = {  # by target of make, the benchmark and its file
    "bench-forerunner": (bench_forerunner, "forerunner_cpu.json"),
    "bench-induction": (bench_induction, "induction_cpu.json"),
    "bench-harness": (bench_harness, "harness_cpu.json"),
    "bench-ioi": (bench_ioi, "ioi_cpu.json"),
    "bench-real": (bench_real, "real_cpu.json"),
    "bench-paths": (bench_paths, "paths_cpu.json"),
    "bench-scores": (bench_component_scores, "component_scores_cpu.json"),
    "bench-edges": (bench_edges, "edges_cpu.json"),
    "bench-units": (bench_units, "units_cpu.json"),
    "bench-memory": (bench_memory, "memory_cpu.json"),
}
COVERAGE = "| figure | interval | coverage |"


def table(target: str) -> str:
    """What a benchmark measured: each line's result beside its bar. "not measured yet" where no file has it."""
    benchmark, file = BENCHMARKS[target]
    report = json.loads((FOLDER / file).read_text(encoding="utf-8")) if (FOLDER / file).exists() else {}
    rounds = f", {report['rounds']} paired rounds" if report.get("rounds", 1) > 1 else ""
    rows = [f"| {line.what} | {line.bar} | {line.result(report)} |\n" for line in benchmark.LINES]
    return "".join([f"| `make {target}`: {benchmark.SETTING}{rounds} | bar | result |\n", "|---|---|---|\n", *rows])


def coverage() -> str:
    """How often simulated intervals hold the truth."""
    cases = json.loads((FOLDER / "coverage.json").read_text(encoding="utf-8"))["cases"]
    rows = [
        f"| {c['figure']} | {c['interval']} | {c['coverage']:.3f} [{c['low']:.3f}, {c['high']:.3f}] |\n" for c in cases
    ]
    return "".join([f"{COVERAGE}\n", "|---|---|---|\n", *rows])


def tables() -> dict[str, str]:
    """All tables of the page, by how their first line begins."""
    return {**{f"| `make {target}`:": table(target) for target in BENCHMARKS}, COVERAGE: coverage()}


def renewed(page: str) -> str:
    """The page with its tables made anew. Raises ValueError where it lacks one."""
    for beginning, text in tables().items():
        place = re.search(rf"^{re.escape(beginning)}.*\n(?:\|.*\n)*", page, re.MULTILINE)
        if place is None:
            raise ValueError(f"data/benchmarks/README.md has no table that begins with {beginning!r}")
        page = page[: place.start()] + text + page[place.end() :]
    return page


if __name__ == "__main__":
    readme = FOLDER / "README.md"
    readme.write_text(renewed(readme.read_text(encoding="utf-8")), encoding="utf-8")
