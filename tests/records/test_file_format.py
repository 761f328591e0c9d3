"""The format of record files: what `encode` writes is read back; nothing else is, however it came about."""

import json
import pickle
import random
import time
import tracemalloc
from hashlib import sha256
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

from util.records.file_format import (
    AFTER,
    BEFORE,
    BODY,
    CODES,
    DEPTH,
    JSON_LIMIT,
    TITLE,
    VALUES_LIMIT,
    NotARecord,
    OlderRecord,
    decode,
    encode,
)

EMPTY: dict[str, Any] = {"request": {}, "provenance": {}, "data": {}}
KINDS: dict[str, Any] = {  # one small record of each kind of data
    "numbers": {"n": 3, "x": 0.25, "many": [1, -2, 10**30, -0.0, float("inf"), float("nan")]},
    "texts": {"empty": "", "words": ["a", "größe", "模型", "\ud800", "\n\0"], "quoted": '"$array"'},
    "nothing and truth": {"a": None, "b": [True, False]},
    "nested": {"a": {"b": [{"c": [[], {}]}]}},
    "one array": {"a": np.arange(6, dtype="<f4").reshape(2, 3)},
    "arrays of every kind": {code: np.ones((2, 2)).astype(code) for code in sorted(CODES)},
    "empty arrays": {"a": np.zeros((0, 3)), "b": np.array(1.5), "c": np.zeros((2, 0), "i8")},
}


def same(a: Any, b: Any) -> bool:
    """Equal in type and to the bit."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype.str, a.shape, a.tobytes()) == (b.dtype.str, b.shape, b.tobytes())
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def file_of(line: bytes, arrays: bytes = b"") -> bytes:
    """A file with the right digest around any line of JSON and any bytes of arrays."""
    body = line + b"\n" + arrays
    content = TITLE + sha256(body).hexdigest().encode() + b"\n" + body
    return BEFORE + len(content).to_bytes(8, "little") + content + AFTER


def with_data(data: bytes, arrays: bytes = b"") -> bytes:
    return file_of(b'{"request":{},"provenance":{},"data":{"x":' + data + b"}}", arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_comes_back(kind: str) -> None:
    parts = EMPTY | {"data": KINDS[kind]}
    assert same(decode(encode(parts)), parts)


def test_whoever_unpickles_a_file_gets_its_bytes() -> None:
    """The way to read a record that the format's description gives, in a process without the suite."""
    content = pickle.loads(encode(EMPTY | {"data": KINDS["one array"]}))  # noqa: S301
    title, digest, line, numbers = content.split(b"\n", 3)
    assert title == b"icl record 1" and digest.decode() == sha256(line + b"\n" + numbers).hexdigest()
    dtype, shape = json.loads(line)["data"]["a"]["$array"]
    assert same(np.frombuffer(numbers, dtype).reshape(shape), KINDS["one array"]["a"])


def test_the_format_is_the_same_in_every_version() -> None:  # a change would orphan every cached record
    payload = encode(EMPTY | {"data": {"a": np.array([1, 2], "<i2"), "b": "é"}})
    assert payload == (
        b"\x80\x05\x8e\x9e\x00\x00\x00\x00\x00\x00\x00icl record 1\n"
        b"84b26e38dc2a08faa79bdb67c4c97dc263f5f266bc9de57f35d46f5ac746347b\n"
        b'{"request":{},"provenance":{},"data":{"a":{"$array":["<i2",[2]]},"b":"\xc3\xa9"}}\n'
        b"\x01\x00\x02\x00."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_changed_byte_is_accepted(kind: str) -> None:
    """1000 changes of one byte, single bits among them, and every one of the first 200 bytes."""
    payload, draw = encode(EMPTY | {"data": KINDS[kind]}), random.Random(kind)
    places = [*range(min(200, len(payload))), *(draw.randrange(len(payload)) for _ in range(1000))]
    for place in places:
        changed = bytearray(payload)
        changed[place] ^= draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
        with pytest.raises(NotARecord):
            decode(bytes(changed))


@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_or_longer_file_is_accepted(kind: str) -> None:
    payload, draw = encode(EMPTY | {"data": KINDS[kind]}), random.Random(kind)
    for _ in range(1000):
        start = draw.choice([0, 0, 0, draw.randrange(len(payload))])
        end = draw.randrange(start, len(payload))
        with pytest.raises(NotARecord):
            decode(payload[start:end])
    for more in (b".", b"\0", payload, AFTER * 9):
        with pytest.raises(NotARecord):
            decode(payload + more)
    blank = len(payload) // 2
    with pytest.raises(NotARecord):
        decode(payload[:blank] + bytes(len(payload) - blank))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [b"", b"x" * 500, {"request": {}}, print, [], None, np.zeros(3)], ids=str)
def test_no_other_pickle_is_read(value: Any, protocol: int) -> None:
    with pytest.raises(NotARecord):
        decode(pickle.dumps(value, protocol))


def test_a_record_of_the_older_format_is_told_from_a_damaged_one() -> None:
    with pytest.raises(OlderRecord, match="older version"):
        decode(pickle.dumps(EMPTY | {"data": KINDS["one array"]}, 5))


HUGE = str(2**62).encode()
CRAFTED = {  # files with the right digest, which `encode` would not write: the message, line of JSON, bytes of arrays
    "no JSON": ("Expecting value", b"hello", b""),
    "not UTF-8": ("utf-8", b'{"a":"\xff"}', b""),
    "no dictionary": ("arrays", b"[1]", b""),
    "key twice": ("key twice", b'{"a":1,"a":2}', b""),
    "key twice in an array": ("key twice", b'{"a":{"$array":["<f4",[0]],"$array":["<f4",[0]]}}', b""),
    "more beside an array": ("keys are str, and not", b'{"a":{"$array":["<f4",[0]],"b":1}}', b""),
    "an array of nothing": ("without a dtype and", b'{"a":{"$array":[]}}', b""),
    "an array of a number": ("without a dtype and", b'{"a":{"$array":1}}', b""),
    "an array of a text": ("without a dtype and", b'{"a":{"$array":"ab"}}', b""),
    "dtype of objects": ("dtype", b'{"a":{"$array":["|O",[1]]}}', bytes(8)),
    "dtype with fields": ("dtype", b'{"a":{"$array":[[["x","<f4"]],[1]]}}', bytes(4)),
    "dtype without an order": ("dtype", b'{"a":{"$array":["f4",[1]]}}', bytes(4)),
    "shape of text": ("shape", b'{"a":{"$array":["<f4","1"]}}', bytes(4)),
    "negative shape": ("shape", b'{"a":{"$array":["<f4",[-1]]}}', bytes(4)),
    "two negative shapes": ("shape", b'{"a":{"$array":["<f4",[-1,-1]]}}', bytes(4)),
    "fractional shape": ("shape", b'{"a":{"$array":["<f4",[1.0]]}}', bytes(4)),
    "shape of truths": ("shape", b'{"a":{"$array":["<f4",[true]]}}', bytes(4)),
    "large shape": ("fewer numbers", b'{"a":{"$array":["<f4",[' + HUGE + b"]]}}", bytes(4)),
    "overflowing shape": ("fewer numbers", b'{"a":{"$array":["<f4",[' + HUGE + b"," + HUGE + b"]]}}", bytes(4)),
    "empty and overflowing": ("too big", b'{"a":{"$array":["<f4",[0,' + HUGE + b"," + HUGE + b"]]}}", b""),
    "many axes": ("shape", b'{"a":{"$array":["<f4",[' + b",".join([b"1"] * 33) + b"]]}}", bytes(4)),
    "too few numbers": ("fewer numbers", b'{"a":{"$array":["<f4",[2]]}}', bytes(7)),
    "too many numbers": ("more numbers", b'{"a":{"$array":["<f4",[2]]}}', bytes(9)),
    "the same numbers twice": ("fewer numbers", b'{"a":[{"$array":["<f4",[2]]},{"$array":["<f4",[2]]}]}', bytes(8)),
    "bool of 2": ("bool array", b'{"a":{"$array":["|b1",[1]]}}', b"\2"),
    "number of many digits": ("digits", b'{"a":' + b"9" * 10**6 + b"}", b""),
    "number of many bits": ("1024 bits", b'{"a":' + b"9" * 400 + b"}", b""),
    "nested": ("nested", b'{"a":' + b"[" * DEPTH + b"]" * DEPTH + b"}", b""),
    "deep lists": ("recursion", b"[" * 90_000 + b"]" * 90_000, b""),
    "deep dictionaries": ("recursion", b'{"a":' * 60_000 + b"1" + b"}" * 60_000, b""),
    "many values": ("about", b'{"a":[' + b"0," * VALUES_LIMIT + b"0]}", b""),
    "many empty lists": ("about", b"[" + b"[]," * VALUES_LIMIT + b"[]]", b""),
    "long": ("bytes and", b'{"a":"' + b"a" * JSON_LIMIT + b'"}', b""),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_refused(name: str) -> None:
    message, line, arrays = CRAFTED[name]
    with pytest.raises(NotARecord, match=message) as raised:
        decode(file_of(line, arrays))
    assert len(str(raised.value)) <= 300


def test_a_file_without_a_line_of_json_is_refused() -> None:
    body = b"{}"
    content = TITLE + sha256(body).hexdigest().encode() + b"\n" + body
    with pytest.raises(NotARecord, match="no line"):
        decode(BEFORE + len(content).to_bytes(8, "little") + content + AFTER)


def test_a_zip_archive_is_no_record() -> None:
    """Nothing is ever inflated, so that no small file can become large."""
    archive = BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED) as zipped:
        zipped.writestr("a.npy", bytes(10**7))
    for payload in (archive.getvalue(), with_data(b'{"$array":["|u1",[10000000]]}', archive.getvalue())):
        with pytest.raises(NotARecord):
            decode(payload)


# The worst that the limits let pass: the line of JSON, in files that are read.
PASSING = {
    "numbers": b"[" + b"0," * (VALUES_LIMIT - 20) + b"0]",
    "lists": b"[" + b"[]," * (VALUES_LIMIT // 2 - 20) + b"[]]",
    "dictionaries": b"[" + b'{"a":1},' * (VALUES_LIMIT // 3 - 20) + b"{}]",
    "keys": b"{" + b",".join(b'"%d":0' % n for n in range(VALUES_LIMIT // 2 - 20)) + b"}",
    "wide text": b'"' + b"a" * (JSON_LIMIT - 100) + "𝄞".encode() + b'"',
    "empty arrays": b"[" + b",".join([b'{"$array":["|u1",[0]]}'] * (VALUES_LIMIT // 6 - 20)) + b"]",
}


@pytest.mark.parametrize("name", PASSING)
def test_time_and_memory_of_the_worst_line_are_bounded(name: str) -> None:
    payload = with_data(PASSING[name])
    started = time.process_time()
    decode(payload)
    seconds = time.process_time() - started
    tracemalloc.start()
    decode(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(payload) + (64 << 20) and seconds < 5, (peak, seconds)


def test_arrays_take_their_size_once() -> None:
    payload = encode(EMPTY | {"data": {"a": np.zeros(2**20), "b": np.zeros(2**20)}})
    tracemalloc.start()
    decode(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * len(payload)


def test_the_digest_is_checked_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bytearray(encode(EMPTY | {"data": KINDS["one array"]}))
    payload[BODY + 5] ^= 1
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(NotARecord, match="damaged"):
        decode(bytes(payload))


def test_what_could_not_be_read_is_not_written() -> None:
    for data in ([0] * (VALUES_LIMIT + 1), "x" * JSON_LIMIT):
        with pytest.raises(NotARecord, match="keep many numbers in an array"):
            encode(EMPTY | {"data": {"a": data}})
