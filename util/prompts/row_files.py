"""Rows of files: the word lists of the tasks, and a user's own .jsonl, .json, .csv, .parquet or saved data set.

A word list is data/word_lists/*.csv: one header line, then one fact per line. A row of a user's file is a mapping from
columns to values; those of a .csv file are text. The package `datasets` is optional: .parquet files and folders that it
has written by `save_to_disk` need it.
"""

import csv
import importlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from util import paths


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of data/word_lists/<name>.csv, as dictionaries by column. Raises FileNotFoundError for another name."""
    with (paths.root() / "data" / "word_lists" / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def column(name: str, title: str) -> tuple[str, ...]:
    """One column of a word list."""
    return tuple(row[title] for row in table(name))


SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def rows_of_split(folder: Path, split: str) -> Iterable[Any]:
    """The rows of one split of a folder, in their order: mappings, if it is as it should be.

    They are of a data set with splits that `datasets` has saved there, or of a file with the split's name. .json: a
    list of objects; .jsonl: an object a line; .csv: a first line with the columns, then the rows. Raises ValueError,
    which names the place, where there is neither or more than one file, for one that cannot be read, and where
    `datasets` is needed and missing.
    """
    if is_saved(folder):
        data = saved(folder)
        if not isinstance(data, Mapping) or split not in data:
            splits = ", ".join(data) if isinstance(data, Mapping) else "no splits"
            raise ValueError(f"{folder}: this saved data set should be a DatasetDict that has {split}; it has {splits}")
        return data[split]
    files = [file for suffix in SUFFIXES if (file := folder / f"{split}{suffix}").is_file()]
    if len(files) != 1:
        raise ValueError(f"{folder}: one file {split} is needed, {', '.join(SUFFIXES)}; there are {len(files)} of them")
    try:
        return rows(files[0])
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{files[0]}: {error}") from None


def is_saved(folder: Path) -> bool:
    """Whether `datasets` has written a folder by `save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def saved(folder: Path) -> Any:
    """What `datasets` has written into a folder by `save_to_disk`: rows, or a mapping from splits to rows."""
    return package(folder).load_from_disk(str(folder))


def package(place: Path | str) -> Any:
    """The package `datasets`, which the suite does not install. Raises ValueError, which names the place."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise ValueError(f"{place}: reading it needs the package datasets (pip install datasets)") from None


def rows(file: Path) -> Iterable[Any]:
    """The rows of a file, in their order. Raises ValueError or csv.Error where it cannot be read."""
    if file.suffix == ".parquet":
        return package(file).Dataset.from_parquet(str(file))
    if file.suffix == ".csv":
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return list(csv.DictReader(lines, strict=True))
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    content = json.loads(text)
    if not isinstance(content, list):
        raise ValueError("a .json file must be a list of objects")
    return content


def column_text(row: Any, column: str) -> str:
    """What a row has in a column, as text; whole numbers are written out.

    Raises ValueError for a row that lacks the column, and for what is neither text nor a number.
    """
    if not isinstance(row, Mapping) or column not in row:
        columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else f"no columns ({str(row)[:40]!r})"
        raise ValueError(f"there is no column {column!r}; it has {columns}")
    value = row[column]
    if not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"{column} is {str(value)[:40]!r}, and no text")
    return str(value)
