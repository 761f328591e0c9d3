"""The store: one file per record, whose name depends on its request alone, written whole or not at all.

A file is a pickle of one `bytes` object, which is a safetensors file: `safetensors.numpy.load(pickle.load(file))` gives
its arrays. Its metadata have the rest: "record", the request, the provenance and the data as JSON, in which
{"$array": name} stands for an array, and "sha256", over all of the safetensors file with zeros in its own place. It is
read here without an unpickler.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from util.locks import locked

Fields = dict[str, Any]  # str, numbers, None, lists, dicts and arrays
ARRAY = "$array"
NO_DIGEST = b"0" * 64
TEMPORARY = ".unfinished-"  # how names of files begin that are being written
MARGIN = 64 << 20  # bytes to leave free on the disk


class Damaged(ValueError):
    """A file is not the record that its name says."""


@dataclass(frozen=True)
class Record:
    """What was asked, what it was measured with, and the result."""

    request: Fields
    provenance: Fields
    data: Fields


def encode(record: Record) -> bytes:
    """The bytes of a record's file. Raises TypeError for what JSON and arrays of numbers do not hold."""
    arrays: dict[str, np.ndarray] = {}

    def keep(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise TypeError(f"a record cannot hold {type(value).__name__} {value!r:.60}")
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value).reshape(value.shape)
        return {ARRAY: name}

    text = json.dumps(vars(record), default=keep, ensure_ascii=False)
    inside = save_arrays(arrays, {"record": text, "sha256": NO_DIGEST.decode()})
    inside = inside.replace(NO_DIGEST, sha256(inside).hexdigest().encode(), 1)
    return _pickled(inside)


def _pickled(inside: bytes) -> bytes:
    """The pickle of bytes: protocol 5, then the length in 8 bytes, and a dot behind."""
    return b"\x80\x05\x8e" + len(inside).to_bytes(8, "little") + inside + b"."


def decode(file: bytes) -> Record:
    """The record of a file's bytes. Raises Damaged."""
    inside = file[11:-1]
    if file != _pickled(inside):
        raise Damaged("it is not a pickle of one bytes object")
    try:
        metadata = json.loads(inside[8 : 8 + int.from_bytes(inside[:8], "little")])["__metadata__"]
        text, stored = metadata["record"], metadata["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"it holds no record: {error!r:.200}") from None
    if sha256(inside.replace(stored.encode(), NO_DIGEST, 1)).hexdigest() != stored:
        raise Damaged("its digest is another")
    arrays = load_arrays(inside)
    return Record(**json.loads(text, object_hook=lambda made: arrays[made[ARRAY]] if [*made] == [ARRAY] else made))


def place_of(request: Mapping[str, Any], folder: Path) -> Path:
    """`<measure>-<model>-<digest>.pickle`. Raises TypeError where the request is not plain JSON."""
    text = json.dumps(request, sort_keys=True, allow_nan=False)
    if json.loads(text) != request:
        raise TypeError(f"a request has to be plain JSON: {request!r:.200}")
    words = [re.sub(r"[^A-Za-z0-9._]+", "-", str(request[name]))[-40:].strip("-._") for name in ("measure", "model")]
    return folder / f"{'-'.join(words)}-{sha256(text.encode()).hexdigest()[:16]}.pickle"


def read(request: Mapping[str, Any], folder: Path, expected: Mapping[str, Any]) -> Record | None:
    """The record of a request; None, after a line that says why, where there is none that can be relied on.

    expected: what its provenance must say, as far as that is known; entries that are None on either side are not
    known, and other "versions" of packages are said, but do not matter. A file that is `Damaged` is renamed.
    """
    file = place_of(request, folder)
    try:
        record = decode(file.read_bytes())
        if record.request != request:
            raise Damaged("it is the record of another request")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Damaged as error:
        with suppress(OSError):
            file.replace(file.with_suffix(".damaged"))
        _tell(f"{file.name} is damaged ({error}) and is measured again")
        return None
    differ = {
        name: f"{name} {record.provenance[name]!r} and not {value!r}"
        for name, value in expected.items()
        if None not in (value, record.provenance.get(name)) and value != record.provenance[name]
    }
    if packages := differ.pop("versions", None):
        _tell(f"{file.name} was measured with {packages}")
    if differ:
        _tell(f"{file.name} has {'; '.join(differ.values())}: it is measured again")
        return None
    return record


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Makes a folder to write to. Raises OSError, naming the cure, where there is no room or no permission."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        cure = "free space, or choose another folder with ICL_MATERIAL"
        raise OSError(f"cannot write to {folder} ({error.strerror or error}): {cure}") from error


def write(record: Record, folder: Path) -> None:
    """Writes a record's file whole. Raises OSError, naming the cure, where there is no room or no permission."""
    file, content = place_of(record.request, folder), encode(record)
    temporary = file.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    with _writing(folder):
        if shutil.disk_usage(folder).free < len(content) + MARGIN:
            raise OSError("the disk is full")
        try:
            with temporary.open("xb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def kept(
    request: Fields,
    measure: Callable[[], Record],
    folder: Path,
    expected: Mapping[str, Any],
    redo: bool = False,
) -> Record:
    """The record of a request: the stored one, or what `measure` gives, which is stored then.

    Of several processes one measures, and the others wait. Raises OSError as `write` does, before anything is measured
    where the folder cannot be written to.
    """

    def stored() -> Record | None:
        return None if redo else read(request, folder, expected)

    found = stored()
    if found is None:
        with _writing(folder):
            lock = locked(place_of(request, folder), f"measures {place_of(request, folder).name}")
        with lock:
            found = stored()
            if found is None:
                found = measure()
                write(found, folder)
    return found
