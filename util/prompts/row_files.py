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

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def rows(place: Path, split: str | None = None) -> Iterable[Any]:
    """The rows of a file or saved folder, in its order: mappings, if it is as it should be.

    .json: a list of objects; .jsonl: an object a line; .csv: a first line with the columns, then the rows. split: of a
    saved folder with several. Raises ValueError, which names the place, for another kind of file, for one that cannot
    be read, and for an unknown split; ImportError where `datasets` is needed and missing.
    """
    if not place.exists():
        raise ValueError(f"{place}: there is no such file or folder")
    if place.is_dir():
        data = package(place).load_from_disk(str(place))
        if isinstance(data, Mapping):  # of splits
            if split not in data:
                raise ValueError(f"{place}: split = {split!r}; it has {', '.join(data)}")
            data = data[split]
        return data
    if place.suffix == ".parquet":
        return package(place).Dataset.from_parquet(str(place))
    readers = {".jsonl": _json_lines, ".json": _json_list, ".csv": _csv_rows}
    if place.suffix not in readers:
        raise ValueError(f"{place}: give a {', '.join(SUFFIXES[:-1])} or .parquet file, or a folder of `save_to_disk`")
    try:
        return readers[place.suffix](place)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{place}: {error}") from None


def rows_of_split(folder: Path, split: str) -> Iterable[Any]:
    """The rows of one split of a folder: of a data set with splits that `datasets` has saved there, or of a file.

    The file has the split's name and one of SUFFIXES. Raises ValueError, which names the folder, where there is neither
    or more than one file, and what `rows` raises.
    """
    if is_saved(folder):
        if not (folder / "dataset_dict.json").is_file():
            raise ValueError(f"{folder}: this saved data set has no splits; save a DatasetDict that has {split}")
        return rows(folder, split)
    files = [folder / f"{split}{suffix}" for suffix in SUFFIXES if (folder / f"{split}{suffix}").is_file()]
    if len(files) != 1:
        there = f"are {' and '.join(file.name for file in files)}, keep one of them" if files else "is none"
        raise ValueError(f"{folder}: of {', '.join(f'{split}{suffix}' for suffix in SUFFIXES)} there {there}")
    return rows(files[0])


def is_saved(folder: Path) -> bool:
    """Whether `datasets` has written a folder by `save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))


def package(place: Path) -> Any:
    """The package `datasets`, which the suite does not install. Raises ImportError, which names the place."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise ImportError(
            f"{place}: reading it needs the package datasets (pip install datasets); without it, save the rows as "
            ".jsonl"
        ) from None


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
