"""Where a command writes its result, and how: result.json, rows.csv, and a table on the screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cyclopts import Parameter

from util import paths
from util.commands.arguments import Folder
from util.show import files
from util.stats.intervals import Intervals
from util.study import exports


@dataclass(frozen=True)
class Result:
    """A folder that a result may be written into. request: all that decides the result, in plain JSON."""

    folder: Path
    request: Mapping[str, Any]

    def write(
        self, results: Mapping[str, Any], rows: pd.DataFrame, table: pd.DataFrame, measured_by: Iterable[Any]
    ) -> None:
        """Write it, and print its table: intervals as text, other floats with two digits.

        results: what result.json has under "results", see `files.plain`; rows: the lines of rows.csv; measured_by: the
        studies whose records it is made of.
        """
        origins = {file: origin for study in measured_by for file, origin in study.origins.items()}
        first, *others = origins.values()
        shared = {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
        result = {
            "request": self.request,
            "provenance": shared,
            "records": [*origins],
            "results": files.plain(results),
        }
        exact = rows.astype(dict.fromkeys(rows.select_dtypes("float32").columns, "float64"))
        exports.write(self.folder, result, exact.to_csv(index=False, lineterminator="\n"))
        print(
            table.map(_cell, na_action="ignore").to_string(na_rep=""),
            self.folder / exports.RESULT,
            self.folder / exports.ROWS,
            sep="\n",
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Out:
    """Where a result goes, and whether it is measured again.

    Args:
        out: receives result.json and rows.csv; default: a folder of its own for every request, see what is printed
        overwrite: replace the result of another request in --out
        redo: measure again what is cached
    """

    out: Folder | None = None
    overwrite: bool = False
    redo: bool = False

    def checked(self, command: str, study: Any, **asked: Any) -> Result:
        """Where a result goes, of the model of a study. asked: what else decides it.

        Raises ValueError, before any work, for a folder that cannot be written to, and FileExistsError for one that
        holds the result of another request, unless it is overwritten.
        """
        request = json.loads(json.dumps({"measure": command, **study.model.request, **asked}))
        from util.study.records import place_of  # imports torch

        folder = self.out or paths.output("commands") / place_of(request, Path()).stem
        exports.check_folder(folder, "out")
        if not self.overwrite:
            cure = "choose another folder, or replace it with --overwrite"
            exports.result_there(folder, request, "request", study.expected, cure)
        return Result(folder, request)


def _cell(value: Any) -> Any:
    return f"{value:.2g}" if isinstance(value, float) else str(value) if isinstance(value, tuple) else value


def by_head(maps: Mapping[str, Any]) -> pd.DataFrame:
    """A line for each head of maps [L, H]; one with intervals has three columns."""
    columns: dict[str, Any] = {}
    for name, found in maps.items():
        if isinstance(found, Intervals):
            columns |= {name: found.value, f"{name} low": found.low, f"{name} high": found.high}
        else:
            columns[name] = found
    layer, head = np.indices(next(iter(columns.values())).shape)
    return pd.DataFrame({name: of_map.ravel() for name, of_map in {"layer": layer, "head": head, **columns}.items()})
