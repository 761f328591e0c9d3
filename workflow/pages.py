"""The pages of a sweep: an index of all its cells, and its executed notebooks. `pages.py NOTEBOOK.ipynb` writes one."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from util.report import notebooks
from util.report.content import sentences_of
from util.report.pages import environment
from util.report.provenance import Provenance
from workflow.plan import PLAN

TEMPLATES = Path(__file__).parent / "templates"
INDEX = "index.html"
FAILED = "failed"  # the last line of a log, see Snakefile


@dataclass(frozen=True)
class Failure:
    """A job that failed, or was ended: its rule, the last line that it printed, its log."""

    rule: str
    said: str
    log: str
    ended: bool  # before it could say that it failed


@dataclass(frozen=True)
class Row:
    """A cell of the grid in the index. Files are named as they lie in the folder of the sweep.

    page: the notebook or the card; None where it is not there. values: their files. findings: sentences made of them.
    failures: of jobs; of a cell that is done there is none.
    """

    name: str
    cell: Mapping[str, Any]
    page: str | None
    values: tuple[str, ...]
    findings: tuple[str, ...]
    provenance: Provenance | None
    failures: tuple[Failure, ...]

    @property
    def state(self) -> str:
        """done, failed, ended or waiting: in one word what became of the cell."""
        if self.page is not None:
            return "done"
        if not self.failures:
            return "waiting"
        return "ended" if all(failure.ended for failure in self.failures) else "failed"


def rows(folder: Path) -> list[Row]:
    """The cells of a sweep, in the order of its plan. Raises FileNotFoundError where there is no plan."""
    cells = json.loads((folder / PLAN).read_text(encoding="utf-8"))["cells"]
    return [_row(folder, name, cell) for name, cell in cells.items()]


def _row(folder: Path, name: str, cell: Mapping[str, Any]) -> Row:
    place = folder / "cells" / name
    page = place / ("card/card.html" if "card" in cell else "notebook.html")
    if not page.exists():
        return Row(name, cell, None, (), (), None, tuple(_failures(folder, place)))
    files = (
        [page.with_suffix(".json")] if "card" in cell else sorted(place.glob(f"data/values/**/{cell['figure']}.json"))
    )
    values = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
    if "card" in cell:
        findings = [one["text"] for one in values["sentences"]]
    else:
        findings = sentences_of(cell["figure"], values)
    request = values.get("request")
    provenance = Provenance.of(request, folder / "records") if isinstance(request, dict) else None
    shown = (file.relative_to(folder).as_posix() for file in (page, *files))
    return Row(name, cell, next(shown), tuple(shown), tuple(findings), provenance, ())


def _failures(folder: Path, place: Path) -> list[Failure]:
    """The jobs of a cell that have begun and have not ended well."""
    failures = []
    for log in sorted((place / "logs").glob("*.log")):
        rule, _, number = log.stem.partition("-")
        done = {
            "shard": place / "shards" / number,
            "records": place / "records.done",
            "merge": place / "merged.done",
        }.get(rule)
        if done is not None and done.exists():
            continue
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        ended = said[-1:] != [FAILED]
        told = said[-1 if ended else -2 :][:1]
        failures.append(Failure(log.stem, told[0] if told else "nothing", log.relative_to(folder).as_posix(), ended))
    return failures


def failure_lines(cells: list[Row]) -> list[str]:
    """The cells that are not done in words, each with its job, what that said last and its log."""
    return [
        f"{row.name}: {failure.rule} {'was ended' if failure.ended else 'failed'}: {failure.said} ({failure.log})"
        for row in cells
        for failure in row.failures
    ]


def write_index(folder: Path) -> list[Row]:
    """Write index.html into the folder of a sweep, and return its rows. Raises what `rows` raises."""
    found = rows(folder)
    counts = {state: sum(row.state == state for row in found) for state in ("done", "failed", "ended", "waiting")}
    made = environment(TEMPLATES).get_template("sweep.html")
    (folder / INDEX).write_text(made.render(name=folder.name, rows=found, counts=counts), encoding="utf-8")
    return found


def write_notebook(file: Path) -> Path:
    """Write an executed notebook as a page beside it, and return its path. It links to the index of the sweep."""
    body = notebooks.html_of(file)
    up = "../" * 4  # a cell's folder is cells/<model>/<figure>/<values of the axes>
    page = file.with_suffix(".html")
    made = environment(TEMPLATES).get_template("cell.html")
    page.write_text(made.render(title=file.parent.name, index=up + INDEX, body=Markup(body)), encoding="utf-8")
    return page


if __name__ == "__main__":
    write_notebook(Path(sys.argv[1]))
