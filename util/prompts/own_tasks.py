"""Tasks of one's own: registered in Python, or in a file or folder that is named in the place of a task's name.

A place is a .csv, .json, .jsonl or .parquet file, a folder that `datasets` has written by `save_to_disk`, or
my_tasks.py:plural, a task of a Python file, which is run. What it holds is registered where it is named, under the name
of the file, the folder or the task: this stands in settings, requests and titles, and never a path. Requests have a
digest of the content.

Rows of all files are read here, those of the suite's word lists (data/word_lists/*.csv: one header line, then one fact
per line) and those of a user's data sets. The package `datasets` is optional: .parquet files and folders that it has
written by `save_to_disk` need it.
"""

import csv
import importlib
import io
import json
import runpy
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from util import paths
from util.prompts.prompt import Strings

Columns = tuple[tuple[str, str], ...]
PAIRS: Columns = (("input", "output"), ("x", "y"))
CLASSES: Columns = (("text", "label"),)
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


class Task(Protocol):
    """A kind of tasks: what they are called, and the columns that say that rows are of this kind."""

    kind: ClassVar[str]
    columns: ClassVar[Columns]

    @property
    def name(self) -> str: ...

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[dict[str, Any]], source: str) -> Self:
        """The task of rows. source: what they are called. Raises ValueError with the number of a bad row, from 1."""


T = TypeVar("T", bound=Task)
_REGISTERED: dict[str, tuple[Any, str]] = {}  # by name: tasks, and the places that they are from, "" for none
_RUNNING = ContextVar("_RUNNING", default="")  # the Python file that is run


def register(task: T, built_in: Iterable[str] = (), place: str = "") -> T:
    """Make a task known by its name, and return it; one of another content from the same place is replaced.

    built_in: names that are taken. Raises ValueError if the name is taken by another task.
    """
    place = place or _RUNNING.get()
    known, origin = _REGISTERED.get(task.name, (None, place))
    if task.name in built_in or (known not in (None, task) and not place == origin != ""):
        raise ValueError(f"there is a task {task.name!r} already; give yours another name")
    if known != task:
        _REGISTERED[task.name] = task, place
    return _REGISTERED[task.name][0]


def names(kind: type[Task]) -> Strings:
    """The names of the registered tasks of a kind."""
    return tuple(name for name, (task, _) in _REGISTERED.items() if isinstance(task, kind))


def is_place(name: str) -> bool:
    """Whether this is no task's name but a place that has one."""
    path = Path(name)
    return (
        name.rpartition(":")[0].endswith(".py")
        or path.suffix.lower() in SUFFIXES
        or (name not in _REGISTERED and is_saved(path))
    )


def find(name: str, kind: type[T], built_in: Sequence[str]) -> T | None:
    """The registered task of that name, or the one of that place; None for a name of `built_in`.

    Raises ValueError for another name, with all that there are; for a task of another kind; and for a place that
    cannot be read, with the number of a bad row, from 1 without the line of columns.
    """
    if name in built_in:
        if name in _REGISTERED:
            raise ValueError(f"there are two tasks {name!r}, the suite's and yours; give yours another name")
        return None
    task = _read(name, kind, built_in) if is_place(name) else _REGISTERED.get(name, (None, ""))[0]
    if task is None:
        known = ", ".join((*built_in, *names(kind)))
        raise ValueError(
            f"unknown {kind.kind} task {name!r}; there are {known}, and files of yours, such as animals.csv or "
            "my_tasks.py:plural"
        )
    if not isinstance(task, kind):
        raise ValueError(f"{name!r} is no {kind.kind} task, which is needed here; name another one")
    return task


def _read(name: str, kind: type[T], built_in: Sequence[str]) -> Any:
    file, _, member = name.rpartition(":")
    if file.endswith(".py"):
        return _of_python(Path(file).expanduser(), member, built_in)
    place = Path(name).expanduser()
    rows = rows_of(place)
    if not any({*columns} <= {*rows[0]} for columns in kind.columns):
        wanted = ", or ".join(map(" and ".join, kind.columns))
        raise ValueError(
            f"{place}: a {kind.kind} task is needed here, one split with the columns {wanted}; it has "
            f"{', '.join(map(str, rows[0]))}, and its first row {', '.join(map(str, rows[0].values()))}"
        )
    called = place.resolve().name if place.is_dir() else place.stem
    return register(kind.of_rows(called, rows, str(place)), built_in, str(place.resolve()))


def _of_python(file: Path, member: str, built_in: Sequence[str]) -> Any:
    """The task that a Python file has as a variable, or has registered under this name. The file is run."""
    place = str(file.resolve())
    running = _RUNNING.set(place)
    try:
        variables = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ValueError(f"cannot run {file}: {type(error).__name__}: {error}") from error
    finally:
        _RUNNING.reset(running)
    known, origin = _REGISTERED.get(member, (None, ""))
    task: Any = variables.get(member, known if origin == place else None)
    if not hasattr(task, "of_rows"):
        raise ValueError(f"{file} has no task {member!r}: assign a WordPairTask or a classification.Task to this name")
    return register(task, built_in, place)


# ------------------------------------------------------------------------------------------------ rows


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of data/word_lists/<name>.csv, as dictionaries by column. Raises FileNotFoundError for another name."""
    with (paths.root() / "data" / "word_lists" / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def column(name: str, title: str) -> Strings:
    """One column of a word list."""
    return tuple(row[title] for row in table(name))


def rows_of(place: Path) -> list[dict[str, Any]]:
    """The rows of a file or folder, by column.

    The first line of a CSV file is a header where it has the columns of a kind of tasks; else the first two columns are
    input and output, from the first line on. JSON: a list of objects or of [input, output], or one object input ->
    output; [input, output, "*"] has a mark. Labels of a saved data set that are numbers of classes become their names.
    Raises ValueError, naming the place, for any other content, for no rows, and where `datasets` is missing.
    """
    try:
        if is_saved(place):
            rows = _saved(place)
        elif place.suffix.lower() == ".json":
            rows = _json(place.read_text(encoding="utf-8-sig"))
        elif place.suffix.lower() in (".jsonl", ".parquet"):
            rows = [*_rows_of_file(place)]
        else:
            rows = _csv(place.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"cannot read a task from {place}: {error}") from error
    if not rows:
        raise ValueError(f"{place}: there are no rows")
    return [row if isinstance(row, dict) else {"input": row} for row in rows]


def _csv(text: str) -> list[Any]:
    lines = [line for line in csv.reader(io.StringIO(text), skipinitialspace=True, strict=True) if line]
    names = [cell.strip().lower() for cell in lines[0]] if lines else []
    header = any({*columns} <= {*names} for columns in (*PAIRS, *CLASSES))
    columns = names if header else ["input", "output"]
    lines = lines[header:]
    for number, line in enumerate(lines, 1):
        if header and len(line) > len(columns):
            raise ValueError(
                f"row {number} has {len(line)} cells for {len(columns)} columns; a text with a comma stands between "
                "double quotes"
            )
    return [dict(zip(columns, line, strict=False)) for line in lines]


def _json(text: str) -> list[Any]:
    rows = json.loads(text, object_pairs_hook=tuple)  # a dictionary would hide repeated inputs
    if not isinstance(rows, list):
        return [dict(zip(("input", "output"), row, strict=True)) for row in rows]
    columns = ("input", "output", "mark")
    return [
        dict(row) if isinstance(row, tuple)
        else dict(zip(columns, row, strict=False)) if isinstance(row, list) and len(row) in (2, 3)
        else row
        for row in rows
    ]  # fmt: skip


def _saved(folder: Path) -> list[Any]:
    data = saved(folder)
    if not hasattr(data, "keys"):
        classes = getattr(getattr(data, "features", {}).get("label"), "names", None)
        if classes and any(row["label"] < 0 for row in data):
            raise ValueError("a label is hidden (-1); save the rows that have one")
        return [{**row, "label": classes[row["label"]]} if classes else row for row in data]
    raise ValueError(f"it has the splits {', '.join(map(str, data))}; save one of them")


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
        return _rows_of_file(files[0])
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


def _rows_of_file(file: Path) -> Iterable[Any]:
    """The rows of a file, in their order. Raises ValueError or csv.Error where it cannot be read."""
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return package(file).Dataset.from_parquet(str(file))
    if suffix == ".csv":
        with file.open(encoding="utf-8-sig", newline="") as lines:
            return list(csv.DictReader(lines, strict=True))
    text = file.read_text(encoding="utf-8-sig")
    if suffix == ".jsonl":
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
