"""Where a command writes its result, and how: result.json, rows.csv, and a table on the screen."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from util import paths
from util.records import cache, exports
from util.records.study import Study as OldStudy
from util.show import files
from util.stats.intervals import Interval, Intervals
from util.study.study import Study as NewStudy

Study = OldStudy | NewStudy  # figures move from the first to the second


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where a result goes, and whether it is measured again."""
    about = "receives result.json and rows.csv; default: a folder of its own for every request, see what is printed"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=about)
    parser.add_argument("--overwrite", action="store_true", help="replace the result of another request in --out")
    parser.add_argument("--redo", action="store_true", help="measure again what is cached")


@dataclass(frozen=True)
class Destination:
    """The folder that receives a result, and the request that the result is of."""

    folder: Path
    request: cache.Request

    @classmethod
    def of(cls, arguments: argparse.Namespace, command: str, studies: Sequence[Study], **more: Any) -> Destination:
        """Returns where the result of some studies of one model goes.

        more: what else decides the result, in plain JSON. Raises ValueError, before any work, for a folder that cannot
        be written to, and FileExistsError for one that holds the result of another request, unless it is overwritten.
        """
        asked = [dict(study.request) for study in studies]
        model = studies[0].model
        request = {"stem": command, "schema": 1, **model.request, "studies": asked, **more}
        folder = arguments.out or paths.output("commands") / cache.record_path(request, "").stem
        exports.check_folder(folder, "out")
        if not arguments.overwrite:
            known = studies[0].expected
            cure = "choose another folder with --out, or replace it with --overwrite"
            exports.result_there(folder, request, "request", known, cure)
        return cls(folder, request)

    def write(
        self, results: Mapping[str, Any], rows: pd.DataFrame, table: pd.DataFrame, measured_by: Iterable[Study]
    ) -> None:
        """Write a result, and print its table.

        results: what result.json has under "results", see `files.plain`; rows: the lines of rows.csv; measured_by: the
        studies whose records it is made of.
        """
        origins = {file: origin for study in measured_by for file, origin in study.origins.items()}
        every = list(origins.values())
        shared = {name: value for name, value in every[0].items() if all(origin.get(name) == value for origin in every)}
        result = {
            "request": self.request,
            "provenance": shared,
            "records": {file: {n: v for n, v in origin.items() if n not in shared} for file, origin in origins.items()},
            "results": files.plain(results),
        }
        exact = rows.astype(dict.fromkeys(rows.select_dtypes("float32").columns, "float64"))
        exports.write(self.folder, result, exact.to_csv(index=False, lineterminator="\n"))
        print(table.to_string())
        for name in (exports.RESULT, exports.ROWS):
            print(self.folder / name)


def columns(name: str, intervals: Intervals) -> dict[str, Any]:
    """Returns intervals [...] as three columns of a table, one after the other."""
    parts = {name: intervals.value, f"{name} low": intervals.low, f"{name} high": intervals.high}
    return {column: values.ravel() for column, values in parts.items()}


def shown(interval: Interval) -> str:
    """Returns an interval as tables have it, such as 0.441 [0.284, 0.590]."""
    value, low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
