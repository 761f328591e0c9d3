"""Safe, atomic pickles: one record per request, in a file whose name depends on the request alone.

pickle.load runs whatever program a file holds. `restricted_load` reads a file as data only:

- it accepts only the opcodes that `save` writes;
- containers may not be deep and may not be shared, so there are no cycles and no decompression bombs;
- the names that numpy's arrays need stand for checked classes of this file, so a pickle never reaches numpy itself;
- what comes out must obey the same rules as what `save` accepts.
"""

import io
import itertools
import json
import os
import pickle
import pickletools
import re
import shutil
import stat
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from util.locks import locked

Request = dict[str, Any]
Fields = dict[str, Any]

SIZE_LIMIT = 4 << 30  # bytes of one file
MARGIN = 64 << 20  # bytes to leave free on the disk
DEPTH = 50  # how deep containers may be nested
INT_BITS = 1024  # far below the size from which Python refuses to print an int
DTYPES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split())
TEMPORARY = ".writing-"  # how names of unfinished files begin
CURE = "choose another folder with ICL_MATERIAL or free space"

# SHAREABLE: opcodes of strings, names, dtypes and arrays, which a file may refer to more than once.
# OPCODES: all opcodes that `save` can write.
SHAREABLE = frozenset("SHORT_BINUNICODE BINUNICODE STACK_GLOBAL REDUCE BINGET LONG_BINGET".split())
OPCODES = SHAREABLE | set(
    "PROTO FRAME STOP MARK MEMOIZE NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT "
    "SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS "
    "EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE BUILD".split()
)


class CacheError(OSError):
    """The folder or the disk is at fault, not the record; the message says what to do."""


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
        raise ValueError(f'no usable "stem" (str) and "schema" (int) in a request: {_brief(stem)}, {_brief(schema)}')
    request = _plain(request, "request")
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


def _plain(value: Any, where: str, depth: int = 1) -> Any:
    """A copy with Python scalars instead of numpy's and with C-contiguous arrays.

    depth: how many containers the value is inside of; it is 1 for a part of a record. Raises TypeError, naming the
    place, for what a record may not hold. Types are compared exactly, because pickle stores a subclass under its own
    name, which `restricted_load` refuses.
    """
    if isinstance(value, np.generic) and value.dtype.str[1:] in DTYPES:
        value = value.item()
    kind = type(value)
    if kind is _Array:
        return value.array
    if kind is np.ndarray:
        return _plain_array(value, where)
    if kind is int and value.bit_length() > INT_BITS:
        raise TypeError(f"{where} is an int of more than {INT_BITS} bits; store it as a str")
    if value is None or kind in (bool, int, float, str):
        return value
    if kind not in (list, tuple, dict):
        raise TypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a record holds None, bool, int, float, str, list, "
            "tuple, dict and numeric numpy arrays, and no subclass of these"
        )
    if depth == DEPTH:
        raise TypeError(f"{where:.200} is nested more than {DEPTH} deep, or contains itself")
    if kind is not dict:
        return kind([_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)])
    for key in value:
        if type(key) not in (str, int):
            raise TypeError(f"{where} has the key {_brief(key)}; keys are str or int")
        _plain(key, f"a key of {where}")
    return {key: _plain(item, f"{where}[{_brief(key)}]", depth + 1) for key, item in value.items()}


def _plain_array(array: np.ndarray, where: str) -> np.ndarray:
    code = array.dtype.str
    if code[1:] not in DTYPES:
        raise TypeError(f"{where} is an array of {array.dtype}; arrays hold {' '.join(sorted(DTYPES))}")
    array = np.asarray(array, order="C")
    if array.dtype.metadata:  # may be any objects; pickle would write them into the file
        array = array.view(code)
    if code == "|b1" and (array.view("u1") > 1).any():  # indexing with such a mask may overrun memory
        raise TypeError(f"{where} is a bool array with bytes other than 0 and 1")
    return array


def _brief(value: object) -> str:
    """A value in at most 80 characters, for messages."""
    if isinstance(value, str):
        return repr(value[:80])
    return f"{value!r:.80}" if isinstance(value, int | float | None) else f"a {type(value).__name__}"


class _Dtype:
    """Stands for numpy.dtype(code, align, copy) while a file is read; __setstate__ then receives the byte order."""

    __slots__ = ("name",)

    def __init__(self, code: str, align: bool, copy: bool) -> None:
        if type(code) is not str or code not in DTYPES:
            raise ValueError(f"refused the dtype {_brief(code)}")
        self.name = code

    def __setstate__(self, state: object) -> None:
        orders = [order for order in "|<>" if state == (3, order, None, None, None, -1, -1, 0)]
        if not orders:
            raise ValueError("refused a dtype with fields, a shape or metadata")
        self.name = orders[0] + self.name[-2:]


class _Array:
    """Stands for numpy's _frombuffer(buffer, dtype, shape, order) while a file is read; it has the buffer's size."""

    __slots__ = ("array",)

    def __init__(self, buffer: bytes | bytearray, dtype: _Dtype, shape: tuple[int, ...], order: str) -> None:
        if (type(dtype), type(shape), order) != (_Dtype, tuple, "C") or type(buffer) not in (bytes, bytearray):
            raise ValueError("refused an array that is not built as numpy builds it")
        array = np.frombuffer(buffer, dtype.name).reshape(shape)
        if array.shape != shape:
            raise ValueError("refused an array that leaves a length to guess")
        # numpy writes a read-only array as bytes; frombuffer gives a read-only view of them, so copy it
        self.array = _plain_array(array if array.flags.writeable else array.copy(), "an array")

    def __setstate__(self, state: object) -> None:
        raise ValueError("refused to change an array")


GLOBALS: Mapping[tuple[str, str], type] = {  # numpy 2 and 1 name the module differently
    ("numpy", "dtype"): _Dtype,
    ("numpy._core.numeric", "_frombuffer"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Array,
}


class _Reader(pickle.Unpickler):
    """An unpickler that knows no names but those of GLOBALS."""

    def find_class(self, module: str, name: str, /) -> type:
        if (module, name) not in GLOBALS:
            raise ValueError(f"refused the global {_brief(module)} {_brief(name)}")
        return GLOBALS[module, name]


def _scan(payload: bytes) -> None:
    """Check a pickle before it is read, by following the heights of the values on pickle's stack.

    Raises ValueError unless the pickle has only OPCODES, its containers form a tree, and they are nested at most DEPTH
    deep. The reason: hashing deep tuples (as keys) crashes Python, and hashing shared ones takes exponential time.
    pickletools also checks each length against the bytes of the file, before pickle would reserve memory for it.
    """
    heights: list[int] = []  # of values on the stack: 0 if SHAREABLE, else >= 1; a container is higher than its content
    remembered: list[int] = []  # heights of the values in pickle's memo
    marks: list[int] = []  # sizes of the stack where MARK opcodes stand
    end = None
    argument: Any
    for opcode, argument, end in pickletools.genops(payload):  # noqa: B007
        name, needs = opcode.name, opcode.stack_before
        if name not in OPCODES:
            raise ValueError(f"refused the opcode {name} {_brief(argument)}")
        if name == "MARK":
            marks.append(len(heights))
            continue
        if name == "MEMOIZE":
            remembered.append(heights[-1])
            continue
        if name in ("BINGET", "LONG_BINGET") and remembered[argument]:
            raise ValueError("refused a second reference to a container")
        marked = pickletools.markobject in needs
        start = marks.pop() - needs.index(pickletools.markobject) if marked else len(heights) - len(needs)
        taken = heights[start:]  # the values that the opcode takes from the stack
        inside = taken if name.startswith("TUPLE") else taken[1:]  # the first value of others is the container itself
        height = 0 if name in SHAREABLE else max([1, *taken, *(1 + height for height in inside)])
        if start < 0 or height > DEPTH + 3:  # + 3: an array is written as nested parts
            raise ValueError(f"refused what is nested more than {DEPTH} deep")
        heights[start:] = [height] * len(opcode.stack_after)
    if end is None or end + 1 != len(payload):
        raise ValueError("refused what follows the end of the pickle")


def restricted_load(file: BinaryIO, limit: int = SIZE_LIMIT) -> Any:
    """The plain values of a pickle in a seekable binary file, read without executing anything.

    The suite opens pickles with this function only. Raises pickle.UnpicklingError, naming a refused global, for any
    other content, and for more than `limit` bytes (its cause is then a ValueError).
    """
    try:
        size = file.seek(0, os.SEEK_END)
        if size > limit:
            raise ValueError(f"{size} bytes are more than the limit of {limit}")
        file.seek(0)
        payload = file.read(size)
        _scan(payload)
        return _plain(_Reader(io.BytesIO(payload)).load(), "record", depth=0)
    except (OSError, MemoryError):  # the machine is at fault, not the file
        raise
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error) or type(error).__name__
        raise pickle.UnpicklingError(f"{reason}; delete the file or pass redo to recompute") from error


def load(request: Request, folder: str | Path, expect: Mapping[str, Any] | None = None) -> Record | None:
    """The record of a request, or None if there is no record or it cannot be relied on.

    In the second case a CacheWarning says why. expect: what the record's provenance must say; entries that are None are
    not known and not compared, and different "versions" only warn. A file that is not a record is renamed to
    `<name>.corrupt`. Raises CacheError if the file cannot be read, and what `request_digest` raises.
    """
    path = record_path(request, folder)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait forever
            raise pickle.UnpicklingError("not a regular file")
        with path.open("rb") as file:
            record = Record(**restricted_load(file))
    except FileNotFoundError:
        return None
    except (pickle.UnpicklingError, TypeError) as error:  # TypeError: its parts are not those of a record
        aside = _set_aside(path)
        warnings.warn(f"{path} is no record ({error}); moved to {aside}, recomputing", CacheWarning, stacklevel=2)
        return None
    except OSError as error:
        cure = "make it readable (chmod u+r), delete it to recompute, or choose another folder with ICL_MATERIAL"
        raise CacheError(f"cannot read {path} ({error.strerror or error}): {cure}") from error
    wanted = {key: value for key, value in (expect or {}).items() if value is not None}
    versions = wanted.pop("versions", {})
    stored_versions = record.provenance.get("versions")
    # fromkeys: fields that only the stored request has are wanted as None, so that they count as a difference
    different = _differences(dict.fromkeys(record.request) | request, record.request)
    different = different or _differences(wanted, record.provenance)
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
            differences.append(f"{_brief(key)} {_brief(stored_value)} instead of {_brief(value)}")
    return ", ".join(differences)


def _set_aside(path: Path) -> Path:
    """Rename a file to the first name <name>.corrupt, <name>.corrupt1, ... that is free, and return the new path."""
    names = (path.with_name(f"{path.name}.corrupt{number or ''}") for number in itertools.count())
    aside = next(name for name in names if not os.path.lexists(name))
    with _cure(path.parent), suppress(FileNotFoundError):  # another process was faster
        path.rename(aside)
    return aside


def save(request: Request, data: Fields, provenance: Fields, folder: str | Path) -> Path:
    """Write the record of a request, completely or not at all, and return its path. It replaces an older record.

    Raises TypeError, naming the place, for what a record may not hold, before any file is changed; CacheError if there
    is no room or no permission; and what `request_digest` raises.
    """
    path, record = record_path(request, folder), _checked(request, data, provenance)
    payload = pickle.dumps(vars(record), protocol=5)
    if len(payload) > SIZE_LIMIT:
        raise CacheError(f"{path.name} would have {len(payload)} bytes and could not be read back; store less in it")
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
    return Record(_plain(request, "request"), _plain(provenance, "provenance"), _plain(data, "data"))


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
    one is complete. A result that cannot be saved is returned with a CacheWarning. Raises CacheError, before computing,
    if the folder cannot be written to, and what `load` and `save` raise otherwise.
    """
    if not redo:
        cached = load(request, folder, expect)
        if cached is not None:
            return cached
    ensure_writable(folder)
    path = record_path(request, folder)
    with _cure(path.parent):
        held = locked(path, f"computes {path}")
    with held:
        if not redo:
            cached = load(request, folder, expect)  # another process may have computed it meanwhile
            if cached is not None:
                return cached
        data, provenance = compute()
        record = _checked(request, data, provenance)
        try:
            save(request, record.data, record.provenance, folder)
        except CacheError as error:
            warnings.warn(f"the result is used, but not saved: {error}", CacheWarning, stacklevel=2)
        return record
