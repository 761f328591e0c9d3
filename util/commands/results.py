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
from util.show import files
from util.stats.intervals import Intervals


def made(folder: Path) -> Path:
    """The folder, made before any work. Raises ValueError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out = {str(folder)!r} ({error.strerror}): name a folder that can be written to") from None
    return folder


@dataclass(frozen=True)
class Result:
    """A folder that a result may be written into. request: all that decides the result, in plain JSON."""

    folder: Path
    request: Mapping[str, Any]

    def write(
        self, results: Mapping[str, Any], rows: pd.DataFrame, table: pd.DataFrame, studies: Iterable[Any]
    ) -> None:
        """Write result.json and rows.csv, each whole, and print the table: other floats than intervals with two digits.

        results: what result.json has under "results", see `files.plain`; studies: those whose records it is made of.
        """
        origins = {file: origin for study in studies for file, origin in study.origins.items()}
        first, *others = origins.values()
        result = {
            "request": self.request,
            "provenance": {name: value for name, value in first.items() if all(o.get(name) == value for o in others)},
            "records": [*origins],
            "results": files.plain(results),
        }
        exact = rows.astype(dict.fromkeys(rows.select_dtypes("float32").columns, "float64"))
        print(
            table.map(_cell, na_action="ignore").to_string(na_rep=""),
            files.write_whole(self.folder / "result.json", json.dumps(result, indent=1) + "\n"),
            files.write_whole(self.folder / "rows.csv", exact.to_csv(index=False, lineterminator="\n")),
            sep="\n",
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Out:
    """Where a result goes, and whether it is measured again.

    Args:
        out: receives result.json and rows.csv; default: a folder of its own for every request, see what is printed
        redo: measure again what is cached
    """

    out: Path | None = None
    redo: bool = False

    def checked(self, command: str, study: Any, **settings: Any) -> Result:
        """Where a result goes, of the model of a study. settings: what else decides it.

        Raises ValueError, before any work, for a folder that cannot be made.
        """
        request = json.loads(json.dumps({"measure": command, **study.model.request, **settings}))
        from util.study.records import place_of  # brings torch

        return Result(made(self.out or paths.output("commands") / place_of(request, Path()).stem), request)


def _cell(value: Any) -> Any:
    return f"{value:.2g}" if isinstance(value, float) else str(value) if isinstance(value, tuple) else value


def by_head(maps: Mapping[str, Any]) -> pd.DataFrame:
    """A line for each head of maps [L, H]; one with intervals has three columns."""
    columns: dict[str, Any] = {}
    for name, values in maps.items():
        if isinstance(values, Intervals):
            columns |= {name: values.value, f"{name} low": values.low, f"{name} high": values.high}
        else:
            columns[name] = values
    layer, head = np.indices(next(iter(columns.values())).shape)
    return pd.DataFrame({name: of_map.ravel() for name, of_map in {"layer": layer, "head": head, **columns}.items()})
