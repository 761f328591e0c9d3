"""What the cached records of a study say of where they come from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from util.figures.report import plain
from util.records.cache import record_path
from util.records.file_format import BODY, JSON_LIMIT, START, TITLE

# what a report shows of a record's provenance, and what it calls it
SHOWN = {
    "model": "model",
    "revision": "revision",
    "weights": "digest of the weights",
    "dtype": "dtype",
    "tokenizer_digest": "digest of the tokenizer",
    "device": "device",
    "code_digest": "digest of the suite's code",
}


@dataclass(frozen=True)
class Provenance:
    """What the records of one request say. said: by the name of a thing, everything that any of them says of it."""

    records: int
    said: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, request: Mapping[str, Any], folder: Path) -> "Provenance":
        """The provenance of the records in a folder that agree with a values file's request in all fields both have.

        These are the parts of the study, and what was measured with the same settings. Only the words of a record are
        read, not its numbers, so its digest is not compared. Raises what `records.cache.request_digest` raises.
        """
        origins = []
        for asked, origin in _heads(request, folder):
            shared = {name: value for name, value in asked.items() if name in request}
            if plain(shared, decimals=6) == {name: request[name] for name in shared}:
                origins.append(origin)
        said: dict[str, tuple[str, ...]] = {}
        for name, title in SHOWN.items():
            said[title] = _each(origin.get(name) for origin in origins)
        for package in sorted({package for origin in origins for package in origin.get("versions", {})}):
            said[package] = _each(origin.get("versions", {}).get(package) for origin in origins)
        finished = _each(origin.get("finished") for origin in origins)
        said["measured"] = (f"{finished[0]} to {finished[-1]}",) if len(finished) > 1 else finished
        return cls(len(origins), {title: values for title, values in said.items() if values})


def _each(values: Iterator[Any]) -> tuple[str, ...]:
    """All different values, sorted, without None."""
    return tuple(sorted({str(value) for value in values if value is not None}))


def _heads(request: Mapping[str, Any], folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Request and provenance of every record in a folder with the stem, model and data set of a request."""
    beginning = record_path(dict(request), folder).stem.rpartition("-")[0]
    for file in sorted(folder.glob(f"{beginning}-*.pickle")):
        head = _head(file)
        if head is not None:
            yield head


def _head(file: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Request and provenance of a file; None where it is no record."""
    with file.open("rb") as opened:
        if opened.read(BODY)[START : START + len(TITLE)] != TITLE:
            return None
        line = opened.readline(JSON_LIMIT)
    try:
        parts = json.loads(line)
    except ValueError:  # it is damaged, and measured again by whoever asks for it
        return None
    return parts["request"], parts["provenance"]
