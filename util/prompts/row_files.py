"""Rows of local files: .jsonl, .json, .csv, .parquet, and folders that `datasets` has written by `save_to_disk`.

A row is a mapping from columns to values; those of a .csv file are text. The package `datasets` is optional: .parquet
files and saved folders need it.
"""

import csv
import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


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
            there = f"it has {', '.join(data)}" if isinstance(data, Mapping) else "it has no splits"
            raise ValueError(f"{folder}: this saved data set should be a DatasetDict that has {split}; {there}")
        return data[split]
    readers = {".jsonl": _json_lines, ".json": _json_list, ".csv": _csv_rows, ".parquet": _parquet_rows}
    names = [f"{split}{suffix}" for suffix in readers]
    files = [folder / name for name in names if (folder / name).is_file()]
    if len(files) != 1:
        there = f"are {' and '.join(file.name for file in files)}, keep one of them" if files else "is none"
        raise ValueError(f"{folder}: of {', '.join(names)} there {there}")
    (file,) = files
    try:
        return readers[file.suffix](file)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{file}: {error}") from None


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


def _json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


def _json_list(file: Path) -> list[Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, list):
        raise ValueError("a .json file must be a list of objects")
    return content


def _csv_rows(file: Path) -> list[Any]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))


def _parquet_rows(file: Path) -> Iterable[Any]:
    return package(file).Dataset.from_parquet(str(file))
