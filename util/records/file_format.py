r"""The format of record files: JSON and the bytes of arrays, under a digest, so that reading builds nothing else.

A file is a pickle of one `bytes` object. It is read here without an unpickler; `pickle.load` gives the same bytes.
They are three lines, followed by the numbers of all arrays:

    icl record 1
    <sha256 of all that follows this line, in hex>
    {"request": {...}, "provenance": {...}, "data": {"attention": {"$array": ["<f4", [2, 3]]}, "n": 3}}

`{"$array": [dtype, shape]}` stands for an array. The arrays' bytes, in C order and without gaps, follow the third line
in the order in which the line names them.
"""

import json
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

DEPTH = 50  # how deep containers may be nested
INT_BITS = 1024  # far below the size from which Python refuses to print an int
AXES = 32  # of an array
JSON_LIMIT = 4 << 20  # bytes of the line of JSON
VALUES_LIMIT = 200_000  # values in it: what a file takes of memory depends on their number, and not on its size alone
DTYPES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split())
CODES = {np.dtype(order + code).str for order in "<>" for code in DTYPES}

BEFORE = b"\x80\x05\x8e"  # opcodes of pickle: protocol 5, and bytes whose length follows, in 8 bytes
AFTER = b"."  # the opcode that ends a pickle
TITLE = b"icl record 1\n"
START = len(BEFORE) + 8  # where the title is
BODY = START + len(TITLE) + 65  # where the line of JSON begins, behind the title and the digest's line
OLDER = b"}\x94(\x8c\x07request"  # where START is, in records that the suite wrote before 0.2: pickled dictionaries
ARRAY = "$array"


class NotARecord(ValueError):
    """The bytes are no record; the message says why."""


class OlderRecord(NotARecord):
    """The bytes are a record of the older format, which is not read any more."""


def encode(parts: dict[str, Any]) -> bytes:
    """The file that holds some parts, which must be as `plain` returns them.

    Raises ValueError for what `decode` would refuse because of its size.
    """
    arrays: list[bytes] = []

    def keep(array: np.ndarray) -> dict[str, Any]:
        arrays.append(array.tobytes())
        return {ARRAY: [array.dtype.str, list(array.shape)]}

    line = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), default=keep).encode("utf-8", "surrogatepass")
    _check_size(line)
    digest = sha256(line + b"\n")
    for array in arrays:
        digest.update(array)
    content = [TITLE, digest.hexdigest().encode(), b"\n", line, b"\n", *arrays]
    length = sum(map(len, content)).to_bytes(8, "little")
    return b"".join([BEFORE, length, *content, AFTER])


def decode(payload: bytes) -> dict[str, Any]:
    """The parts of a file that `encode` made; arrays are new and writeable.

    Raises NotARecord for all other bytes, and OlderRecord for a record of the older format. The time is in proportion
    to the number of bytes. The memory is their number again, and at most 64 MiB for the line of JSON, which JSON_LIMIT
    and VALUES_LIMIT bound.
    """
    if payload[START : START + len(OLDER)] == OLDER:
        raise OlderRecord("it was made by an older version of the suite, in another format")
    length = int.from_bytes(payload[len(BEFORE) : START], "little")
    if payload[: len(BEFORE)] != BEFORE or len(payload) != START + length + 1 or payload[-1:] != AFTER:
        raise NotARecord("it is cut off, or no file of this suite")
    if payload[START : START + len(TITLE)] != TITLE:
        raise NotARecord(f"it does not begin with {TITLE.decode().strip()!r}")
    if payload[START + len(TITLE) : BODY] != sha256(memoryview(payload)[BODY:-1]).hexdigest().encode() + b"\n":
        raise NotARecord("it is damaged: its content does not have the digest that is written in it")
    end = payload.find(b"\n", BODY)
    if end < 0:
        raise NotARecord("it has no line of JSON")
    _check_size(payload[BODY:end])
    place = end + 1  # where the next array begins

    def as_array(described: object) -> np.ndarray:
        nonlocal place
        if type(described) is not list or len(described) != 2:
            raise NotARecord("it has an array without a dtype and a shape")
        dtype, shape = described
        if type(dtype) is not str or dtype not in CODES:
            raise NotARecord(f"it has an array of the dtype {dtype!r:.80}")
        if type(shape) is not list or len(shape) > AXES or not all(type(n) is int and n >= 0 for n in shape):
            raise NotARecord(f"it has an array of the shape {shape!r:.80}")
        count = prod(shape)
        first, place = place, place + count * np.dtype(dtype).itemsize
        if place > len(payload) - 1:
            raise NotARecord(f"it has an array of the shape {shape!r:.80}, and fewer numbers")
        return np.frombuffer(payload, dtype, count, first).reshape(shape).copy()

    def as_value(pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise NotARecord("it has a key twice")
        return as_array(made[ARRAY]) if list(made) == [ARRAY] else made

    try:
        line = payload[BODY:end].decode("utf-8", "surrogatepass")
        parts = json.loads(line, object_pairs_hook=as_value)
        if type(parts) is not dict or place != len(payload) - 1:
            raise NotARecord("it has more numbers than its arrays")
        return plain(parts, "record", depth=0)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotARecord(f"{error}"[:300]) from error


def _check_size(line: bytes) -> None:
    """Raises NotARecord for a line of JSON that is too long, or may have too many values.

    Values are not counted exactly: signs that separate them, in texts too, are.
    """
    values = sum(map(line.count, (b",", b"[", b"{", b":")))
    if len(line) > JSON_LIMIT or values > VALUES_LIMIT:
        raise NotARecord(
            f"its JSON has {len(line)} bytes and about {values} values, of which {JSON_LIMIT} and {VALUES_LIMIT} are "
            "read at most: keep many numbers in an array"
        )


def plain(value: Any, where: str, depth: int = 1) -> Any:
    """A copy with Python scalars instead of numpy's and with C-contiguous arrays.

    depth: how many containers the value is inside of; it is 1 for a part of a record. Raises TypeError, naming the
    place, for what a record may not hold. Types are compared exactly, because a subclass would come back as its base.
    """
    if isinstance(value, np.generic) and value.dtype.str[1:] in DTYPES:
        value = value.item()
    kind = type(value)
    if kind is np.ndarray:
        return _plain_array(value, where)
    if kind is int and value.bit_length() > INT_BITS:
        raise TypeError(f"{where} is an int of more than {INT_BITS} bits; store it as a str")
    if value is None or kind in (bool, int, float, str):
        return value
    if kind not in (list, dict):
        raise TypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a record holds None, bool, int, float, str, list, "
            "dict and numeric numpy arrays, and no subclass of these"
        )
    if depth == DEPTH:
        raise TypeError(f"{where:.200} is nested more than {DEPTH} deep, or contains itself")
    if kind is list:
        return [plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    for key in value:
        if type(key) is not str or key == ARRAY:
            raise TypeError(f"{where} has the key {brief(key)}; keys are str, and not {ARRAY!r}")
    return {key: plain(item, f"{where}[{brief(key)}]", depth + 1) for key, item in value.items()}


def _plain_array(array: np.ndarray, where: str) -> np.ndarray:
    code = array.dtype.str
    if code[1:] not in DTYPES:
        raise TypeError(f"{where} is an array of {array.dtype}; arrays hold {' '.join(sorted(DTYPES))}")
    if array.ndim > AXES:
        raise TypeError(f"{where} is an array of {array.ndim} axes; arrays have at most {AXES}")
    array = np.asarray(array, order="C")
    if array.dtype.metadata:  # may be any objects
        array = array.view(code)
    if code == "|b1" and (array.view("u1") > 1).any():  # indexing with such a mask may overrun memory
        raise TypeError(f"{where} is a bool array with bytes other than 0 and 1")
    return array


def brief(value: object) -> str:
    """A value in at most 80 characters, for messages."""
    if isinstance(value, str):
        return repr(value[:80])
    return f"{value!r:.80}" if isinstance(value, int | float | None) else f"a {type(value).__name__}"
