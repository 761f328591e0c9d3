"""Cached records: one file per request, whose name depends on the request alone, written whole or not at all.

`file_format` says what is in a file. A file that does not hold what its name says is neither used nor overwritten: it
is renamed, and what it should have held is computed again.
"""

import errno
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from util.locks import locked
from util.records.file_format import NotARecord, OlderRecord, brief, decode, encode, plain

Request = dict[str, Any]
Fields = dict[str, Any]

SIZE_LIMIT = 4 << 30  # bytes of one file
MARGIN = 64 << 20  # bytes to leave free on the disk
TEMPORARY = ".writing-"  # how names of unfinished files begin
CURE = "choose another folder with ICL_MATERIAL or free space"

# Folders in which a result of this process could not be saved, or an unusable record not be replaced. Work in them goes
# on, because to stop would lose it.
_UNSAVED: set[Path] = set()


class CacheError(OSError):
    """The folder or the disk is at fault, not the record; the message says what to do."""


class TooLarge(CacheError):
    """A record of this size could not be read back. Its folder is not at fault."""


class CacheWarning(UserWarning):
    """Says why a cached record is not used, or is used although something differs."""


@dataclass(frozen=True)
class Record:
    """A request, the provenance of its result, and the result's data. Raises TypeError unless all three are dicts."""

    request: Request
    provenance: Fields
    data: Fields

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            if type(part) is not dict:
                raise TypeError(f"{name} is a {type(part).__name__}; it must be a dict")


def request_digest(request: Request) -> str:
    """16 hex digits of the sha256 of the request's canonical JSON.

    Raises ValueError unless the request has a "stem" (1 to 60 ASCII letters, digits, _ and -) and an int "schema".
    Raises TypeError, naming the field, for a value that JSON would change or refuse: tuples, arrays, keys that are not
    str, NaN, infinities.
    """
    stem, schema = request.get("stem"), request.get("schema")
    if type(stem) is not str or not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", stem) or type(schema) is not int:
        raise ValueError(f'no usable "stem" (str) and "schema" (int) in a request: {brief(stem)}, {brief(schema)}')
    request = plain(request, "request")
    for field, value in request.items():
        try:
            exact = type(field) is str and json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError):
            exact = False
        if not exact:
            raise TypeError(f"request[{field!r}] cannot be kept in JSON as it is: {value!r:.80}")
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def record_path(request: Request, folder: str | Path) -> Path:
    """`<folder>/<stem>-<model>-<data set>-<digest>.pickle`, at most 150 bytes. Raises what `request_digest` raises."""
    digest = request_digest(request)
    parts = [request["stem"], _readable(request.get("model")), _readable(request.get("dataset")), digest]
    return Path(folder) / ("-".join(filter(None, parts)) + ".pickle")


def _readable(name: object) -> str:
    """The last part of a hub name or path, in characters that every file system allows; "" if `name` is not a str."""
    last = re.split(r"[/\\:]", name.rstrip("/\\:"))[-1] if isinstance(name, str) else ""
    return re.sub(r"[^A-Za-z0-9._]+", "-", last)[:28].strip("-._")


def read(path: Path) -> Record:
    """The record in a file.

    Raises FileNotFoundError if there is no file, and NotARecord, which says why, if it holds no whole and undamaged
    record. Raises CacheError or MemoryError, naming the file, if the machine cannot read it.
    """
    with _reading(path):
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait forever
            raise NotARecord("it is not a regular file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > SIZE_LIMIT:
                raise NotARecord(f"its {size} bytes are more than the limit of {SIZE_LIMIT}")
            parts = decode(file.read(size))
    try:
        return Record(**parts)
    except TypeError as error:  # its parts are not those of a record
        raise NotARecord(str(error)) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what the machine has against reading a file into an error that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except MemoryError as error:
        cure = "free some, or move the file away to recompute it"
        raise MemoryError(f"not enough memory to read {path}: {cure}") from error
    except OSError as error:
        cure = "make it readable (chmod u+r), delete it to recompute, or choose another folder with ICL_MATERIAL"
        raise CacheError(f"cannot read {path} ({error.strerror or error}): {cure}") from error


def load(request: Request, folder: str | Path, expect: Mapping[str, Any] | None = None) -> Record | None:
    """The record of a request, or None if there is no record or it cannot be relied on.

    In the second case a CacheWarning says why. expect: what the record's provenance must say; entries that are None are
    not known and not compared, nor are "weights" and "settings" of a record that says None; other "versions" only warn.
    A file that is not a record is renamed to `<name>.corrupt`, one of the older format to `<name>.old`, one of another
    request to `<name>.other`; in a folder that may only be read it stays. Raises what `request_digest` raises, and
    CacheError or MemoryError if the file cannot be read.
    """
    path = record_path(request, folder)
    try:
        with _reading(path):
            seen = path.stat()
        record = read(path)
    except FileNotFoundError:
        return None
    except NotARecord as error:
        ending = ".old" if isinstance(error, OlderRecord) else ".corrupt"
        moved = _set_aside(path, seen, ending)
        if moved is None:
            return load(request, folder, expect)
        warnings.warn(f"{path} is no record: {error}; {moved}, recomputing", CacheWarning, stacklevel=2)
        return None
    # fromkeys: fields that only the stored request has are wanted as None, so that they count as a difference
    different = _differences(dict.fromkeys(record.request) | request, record.request)
    if different:
        moved = _set_aside(path, seen, ".other")
        if moved is None:
            return load(request, folder, expect)
        warnings.warn(f"{path} holds {different}; {moved}, recomputing", CacheWarning, stacklevel=2)
        return None
    wanted = {key: value for key, value in (expect or {}).items() if value is not None}
    for part in ("weights", "settings"):
        if record.provenance.get(part, "") is None:  # some were offloaded, so that there is no digest to compare
            wanted.pop(part, None)
    versions = wanted.pop("versions", {})
    stored_versions = record.provenance.get("versions")
    different = _differences(wanted, record.provenance)
    if different:
        warnings.warn(f"{path} holds {different}; it will be recomputed", CacheWarning, stacklevel=2)
        return None
    changed = _differences(versions, stored_versions if isinstance(stored_versions, dict) else {})
    if changed:
        warnings.warn(f"{path} is used, although computed with other versions: {changed}", CacheWarning, stacklevel=2)
    return record


def _differences(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """The wanted entries that are stored otherwise, in words; "" if there are none."""
    differences = []
    for key, value in wanted.items():
        stored_value = stored.get(key)
        try:
            same = bool(value == stored_value)
        except ValueError:  # the comparison of an array is an array, which has no truth value
            same = False
        if not same:
            differences.append(f"{brief(key)} {brief(stored_value)} instead of {brief(value)}")
    return ", ".join(differences)


def _set_aside(path: Path, seen: os.stat_result, ending: str) -> str | None:
    """Rename a file to the first name <name><ending>, <name><ending>1, ... that is free; returns what became of it.

    seen: the file as it was before it was read. Returns None where another process has moved or replaced it since: a
    new file stays where it is. In a folder that may only be read the file stays too.
    """
    names = (path.with_name(f"{path.name}{ending}{number or ''}") for number in itertools.count())
    aside = next(name for name in names if not os.path.lexists(name))
    with _cure(path.parent):
        try:
            if not _same_file(path.stat(), seen):
                return None
            path.rename(aside)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not _read_only(error):
                raise
            return "it stays, because its folder may only be read"
        if not _same_file(aside.stat(), seen):  # replaced between these two lines
            aside.rename(path)
            return None
    return f"moved to {aside}"


def _read_only(error: BaseException | None) -> bool:
    """Whether an error says that a folder may only be read."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def _same_file(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino, one.st_mtime_ns) == (other.st_dev, other.st_ino, other.st_mtime_ns)


def save(request: Request, data: Fields, provenance: Fields, folder: str | Path) -> Path:
    """Write the record of a request, completely or not at all, and return its path. It replaces an older record.

    Raises TypeError, naming the place, for what a record may not hold, before any file is changed; TooLarge for a
    record that could not be read back; CacheError if there is no room or no permission; and what `request_digest`
    raises.
    """
    path, record = record_path(request, folder), _checked(request, data, provenance)
    try:
        payload = encode(vars(record))
    except NotARecord as error:
        raise TooLarge(f"{path.name} could not be read back: {error}") from error
    if len(payload) > SIZE_LIMIT:
        raise TooLarge(f"{path.name} would have {len(payload)} bytes and could not be read back; store less in it")
    ensure_writable(path.parent, len(payload))
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    with _cure(path.parent):
        try:
            with temporary.open("xb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    with suppress(OSError):  # makes the new name survive a power cut; not every system can do this
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return path


def _checked(request: Request, data: Fields, provenance: Fields) -> Record:
    return Record(plain(request, "request"), plain(provenance, "provenance"), plain(data, "data"))


def ensure_writable(folder: str | Path, size: int = 0) -> None:
    """Create a folder if needed and check that it can be written to; call it before work whose result must go there.

    Removes unfinished files that are older than a day. Raises CacheError if the folder cannot be written to, or if the
    disk has no room for `size` bytes and a margin.
    """
    folder = Path(folder)
    probe = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    with _cure(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(f"{TEMPORARY}*"):
            with suppress(OSError):  # another process removed it, or another user owns it
                if time.time() - unfinished.stat().st_mtime > 86400:
                    unfinished.unlink()
        free, needed = shutil.disk_usage(folder).free, size + MARGIN
        if free < needed:
            raise CacheError(f"{folder} has {free >> 20} MiB free and needs {needed >> 20} MiB: {CURE}")
        try:
            probe.write_bytes(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)


@contextmanager
def _cure(folder: Path) -> Iterator[None]:
    """Turn an OSError inside the with block into a CacheError that says what to do."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(f"cannot write to {folder} ({error.strerror or error}): {CURE}") from error


def load_or_compute(
    request: Request,
    compute: Callable[[], tuple[Fields, Fields]],
    folder: str | Path,
    expect: Mapping[str, Any] | None = None,
    redo: bool = False,
) -> Record:
    """The cached record of a request (see `load`), or else the record of compute() -> (data, provenance), then saved.

    If several processes ask for the same record, one computes it and the others wait and load it. Loading takes no
    lock, so it works in a read-only folder. redo: compute even if there is a record; the old one stays until the new
    one is complete. A result that cannot be saved in the folder is saved in the system's temporary folder, if possible,
    and returned; a CacheWarning says where it is. Raises CacheError, before computing, if the folder cannot be written
    to, and what `load` and `save` raise otherwise. Where a result of this process is only in memory already, or a
    record that cannot be relied on lies in a folder that may only be read, it is computed nevertheless.
    """
    if not redo:
        cached = load(request, folder, expect)
        if cached is not None:
            return cached
    with _turn(record_path(request, folder), redo) as alone:
        if alone and not redo:
            cached = load(request, folder, expect)  # another process may have computed it meanwhile
            if cached is not None:
                return cached
        data, provenance = compute()
        record = _checked(request, data, provenance)
        try:
            save(request, record.data, record.provenance, folder)
        except CacheError as error:
            if not isinstance(error, TooLarge):
                _UNSAVED.add(Path(folder))
            kept = _save_elsewhere(record, Path(folder))
            warnings.warn(f"the result is used, but not saved: {error}{kept}", CacheWarning, stacklevel=2)
        else:
            _UNSAVED.discard(Path(folder))
        return record


@contextmanager
def _turn(path: Path, redo: bool) -> Iterator[bool]:
    """Hold the lock of a record's file, in a folder that can be written to; gives whether the lock is held.

    In a folder of _UNSAVED there is no lock. A folder becomes one of them if it may only be read and has a file of this
    name, which `load` did not rely on; but not under redo, where the file may be a good record.
    """
    if not _UNSAVED.isdisjoint((path.parent, *path.parent.parents)):  # a folder of blocks lies in that of records
        yield False
        return
    try:
        ensure_writable(path.parent)
        with _cure(path.parent):
            held = locked(path, f"computes {path}")
    except CacheError as error:
        if redo or not _read_only(error.__cause__) or not os.path.lexists(path):
            raise
        _UNSAVED.add(path.parent)
        yield False
        return
    with held:
        yield True


def _save_elsewhere(record: Record, folder: Path) -> str:
    """Save a record in a new folder among the system's temporary ones, if possible; where it is, in words."""
    with suppress(OSError):
        spare = Path(tempfile.mkdtemp(prefix="icl-records-"))
        try:
            path = save(record.request, record.data, record.provenance, spare)
        except OSError:
            spare.rmdir()
            raise
        return f". It is kept as {path}; move it to {folder} once that can be written to"
    return ""
