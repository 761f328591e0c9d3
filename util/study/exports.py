"""A result in a folder for others to read: result.json says what was asked for and what came out, rows.csv of what."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from util.show.files import write_whole

RESULT, ROWS = "result.json", "rows.csv"
DECISIVE = ("revision", "weights", "settings", "tokenizer_digest")


def check_folder(folder: Path, argument: str) -> None:
    """Raises ValueError, which names the argument, where a folder can neither be made nor be written to."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{argument} = {str(folder)!r}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{argument} = {str(folder)!r}: {there} cannot be written to; choose another folder")


def result_there(
    folder: Path, asked: Mapping[str, Any], key: Literal["config", "request"], known: Mapping[str, Any], cure: str
) -> dict[str, Any] | None:
    """Returns the result in a folder, or None where there is none.

    asked: what the result must be of, in the JSON that its entry `key` has for it. known: what its provenance must say
    of the weights; entries that are None are not known. cure: what to do, for the message. Raises FileExistsError where
    the folder holds another result, or rows of which nothing says what they are.
    """
    file = folder / RESULT
    if not file.exists() and not (folder / ROWS).exists():
        return None
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        there = {}
    was, of = there.get(key, {}), there.get("provenance", {})
    other = [name for name, value in asked.items() if was.get(name) != value]
    if other := [*other, *(name for name in DECISIVE if known.get(name) not in (None, of.get(name)))]:
        raise FileExistsError(f"{file} is of another {key} ({', '.join(other)}); {cure}")
    return there


def write(folder: Path, result: Mapping[str, Any], rows: str) -> None:
    """Write both files, each whole or not at all; rows: text of CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / ROWS, rows)
    write_whole(folder / RESULT, json.dumps(result, indent=1) + "\n")
