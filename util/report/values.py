"""Stored values as tables: every number of a values file, as it stands there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Cells as text. head: the names of the columns, the first of them that of the rows' names; rows: name, cells."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Entry:
    """A named value: one of a text, a table and further entries."""

    name: str
    text: str | None = None
    table: Table | None = None
    entries: tuple["Entry", ...] = ()


def entries_of(values: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The entries of a values file, in its order."""
    return tuple(_entry(name, value) for name, value in values.items())


def _entry(name: str, value: Any) -> Entry:
    if _flat(value):
        return Entry(name, text=_text(value))
    table = _table(value)
    if table is not None:
        return Entry(name, table=table)
    inner = value if isinstance(value, Mapping) else {str(place): entry for place, entry in enumerate(value)}
    return Entry(name, entries=entries_of(inner))


def _table(value: Any) -> Table | None:
    """The table of a list of lists, of a dictionary of plain values, or of alike dictionaries; None for all else."""
    if isinstance(value, Sequence):
        if not all(isinstance(row, Sequence) and not isinstance(row, str) and _flat(row) for row in value):
            return None
        longest = max(map(len, value))
        cells = ([*map(_text, row), *[""] * (longest - len(row))] for row in value)
        return Table(("", *map(str, range(longest))), tuple((str(n), *row) for n, row in enumerate(cells)))
    rows = list(value.values())
    if all(map(_flat, rows)):
        return Table(("", "value"), tuple((name, _text(row)) for name, row in value.items()))
    if not all(isinstance(row, Mapping) and row and all(map(_flat, row.values())) for row in rows):
        return None
    columns = list(rows[0])
    if any(list(row) != columns for row in rows):
        return None
    return Table(("", *columns), tuple((name, *map(_text, row.values())) for name, row in value.items()))


def _flat(value: Any) -> bool:
    """Whether a value has its place in one cell: a plain value, or a list of such."""
    if isinstance(value, list):
        return not any(isinstance(entry, list | dict) for entry in value)
    return not isinstance(value, dict) or not value


def _text(value: Any) -> str:
    """A plain value, or a list of such, as JSON writes it, but for quotation marks."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
