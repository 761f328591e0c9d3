"""The cache: what goes in comes out, what does not fit is refused, and a hostile file executes nothing."""

import copyreg
import encodings.raw_unicode_escape  # noqa: F401  pickletools would import it for a text opcode
import errno
import hashlib
import io
import json
import os
import pickle
import pickletools
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from util.records import cache
from util.records.cache import (
    CacheError,
    CacheWarning,
    Record,
    load,
    load_or_compute,
    record_path,
    restricted_load,
    save,
)

REPO = Path(__file__).resolve().parents[2]
REQUEST = {"stem": "toy", "schema": 1, "model": "org/tiny-model", "dataset": "sst2", "k": 4, "seed": None}
VERSIONS = {"numpy": "2.4", "torch": "2.11"}
PROVENANCE = {"revision": "abc", "dtype": "float32", "prompt_digest": "d1", "versions": VERSIONS}
DATA = {"mag": np.arange(6, dtype="f4").reshape(2, 3), "correct": np.array([True, False]), "note": "x", "n": 3}
quick = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def same(a: Any, b: Any) -> bool:
    """Equal in type and to the bit: NaN payloads, signed zeros, byte order, shape."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) and type(key) is not bool for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype.str == b.dtype.str and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)


def only_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) in (str, int) for key in value) and all(map(only_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(only_plain, value))
    return value is None or type(value) in (bool, int, float, str, np.ndarray)


def silent(function: Any, *arguments: Any, **options: Any) -> Any:
    """The result of a call that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*arguments, **options)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


# ---- names ----


def test_the_digest_depends_on_the_values_and_not_on_their_order() -> None:
    digest = cache.request_digest(REQUEST)
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert cache.request_digest(dict(reversed(REQUEST.items()))) == digest
    changes: list[dict[str, Any]] = [{"k": 4.0}, {"k": "4"}, {"k": True}, {"k": [4]}, {"seed": 0}, {"new": None}]
    assert len({digest, *(cache.request_digest(REQUEST | change) for change in changes)}) == 7


def test_the_digest_is_the_same_in_every_version() -> None:  # a change would orphan every cached record
    request = {"stem": "toy", "schema": 1, "model": "größe/模型", "x": [None, True, 1.5, -0.0, {"b": 1, "a": []}]}
    text = '{"model":"größe/模型","schema":1,"stem":"toy","x":[null,true,1.5,-0.0,{"a":[],"b":1}]}'
    assert cache.request_digest(request) == hashlib.sha256(text.encode()).hexdigest()[:16] == "e457b229078ec32c"


@pytest.mark.parametrize(
    "value",
    [
        *((1, 2), {1: 2}, {"a": {None: 1}}, [float("nan")], float("inf"), b"x", {1, 2}, np.zeros(2), [np.zeros(2)]),
        *(Path("x"), 1j, {"deep": [{"x": (1,)}]}),
    ],
    ids=repr,
)
def test_a_request_that_json_would_change_is_refused_by_field(value: Any, tmp_path: Path) -> None:
    for function in (cache.request_digest, lambda request: save(request, {}, {}, tmp_path)):
        with pytest.raises(TypeError, match="request.*capture"):
            function(REQUEST | {"capture": value})
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("stem", [None, 1, "", "a/b", "..", "../x", "a\\b", "C:x", "é", "a" * 61, "a.b", "a\n"])
def test_stem_and_schema_are_checked(stem: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stem"):
        record_path(REQUEST | {"stem": stem}, tmp_path)
    for schema in (None, "1", True, 1.0):
        with pytest.raises(ValueError, match="schema"):
            load(REQUEST | {"schema": schema}, tmp_path)
    with pytest.raises(ValueError, match="stem"):
        cache.request_digest({"schema": 1})


stems = st.from_regex("[A-Za-z0-9_-]{1,60}", fullmatch=True)


@quick
@given(model=st.text() | st.none(), dataset=st.text() | st.integers(0, 9), stem=stems)
@example(model="../../etc/passwd", dataset="C:\\Windows\\system32\\", stem="a")
@example(model="/" + "x" * 5000, dataset="模型" * 400, stem="s" * 60)
@example(model="..", dataset=".hidden", stem="a")
@example(model="\0\n\ud800", dataset="a" * 27 + "..", stem="-")
def test_no_name_leaves_the_folder(model: Any, dataset: Any, stem: str) -> None:
    request = {"stem": stem, "schema": 1, "model": model, "dataset": dataset}
    path = record_path(request, "/cache/here")
    assert path.parent == Path("/cache/here") and Path(os.path.normpath(path)) == path
    assert re.fullmatch(r"[A-Za-z0-9._-]+", path.name) and len(path.name.encode()) <= 150
    assert path.name.startswith(stem + "-") and path.name.endswith(f"{cache.request_digest(request)}.pickle")


def test_names_are_readable(tmp_path: Path) -> None:
    assert record_path(REQUEST, tmp_path).name.startswith("toy-tiny-model-sst2-")
    assert record_path(REQUEST | {"model": "C:\\models\\gpt2\\"}, tmp_path).name.startswith("toy-gpt2-sst2-")


# ---- round trips ----

CODES = [order + code for code in sorted(cache.DTYPES) for order in ("<", ">")]
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda array: array,
    "Fortran": np.asfortranarray,
    "transposed": lambda array: array.T,
    "every second": lambda array: array[..., ::2] if array.ndim else array,
    "reversed": lambda array: array[::-1] if array.ndim else array,
    "read-only": lambda array: np.broadcast_to(array, (2, *array.shape)),
}
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = hnp.arrays(st.sampled_from(CODES).map(np.dtype), shapes)
leaves = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text() | arrays
keys = st.text() | st.integers(-(2**70), 2**70)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner), max_leaves=12
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@quick
@given(data=st.dictionaries(keys, values, max_size=4))
def test_what_goes_in_comes_out(data: dict[Any, Any], folder: Path) -> None:
    path = save(REQUEST, data, {"data": data}, folder)
    record = silent(load, REQUEST, folder)
    assert path == record_path(REQUEST, folder)
    assert same(record.data, data) and same(record.provenance["data"], data) and same(record.request, REQUEST)
    assert same(pickle.loads(path.read_bytes())["data"], data)  # noqa: S301  the file is an ordinary pickle, too


@quick
@given(array=arrays, layout=st.sampled_from(sorted(LAYOUTS)))
@example(array=np.array(1.5), layout="Fortran")
@example(array=np.zeros((0, 3), ">f2"), layout="transposed")
def test_arrays_of_any_layout_come_back_contiguous_and_writeable(array: np.ndarray, layout: str, folder: Path) -> None:
    array = LAYOUTS[layout](array)
    before = array.tobytes()
    save(REQUEST, {"array": array}, {}, folder)
    loaded = silent(load, REQUEST, folder).data["array"]
    assert same(loaded, array) and array.tobytes() == before
    assert type(loaded) is np.ndarray and loaded.flags.c_contiguous and loaded.flags.writeable and loaded.flags.aligned
    loaded[...] = 0


def test_numpy_scalars_become_numbers_and_containers_are_copied(tmp_path: Path) -> None:
    shared = [np.float32(0.5), np.int64(3), np.bool_(True), np.float16(2), np.uint8(7)]
    big, carrying = np.zeros(10**6), np.zeros(2, np.dtype("f4", metadata={"carried": object()}))
    save(REQUEST, {"a": shared, "b": shared, "c": big, "d": big, "e": (carrying, carrying)}, {}, tmp_path)
    data = silent(load, REQUEST, tmp_path).data
    assert same(data["a"], [0.5, 3, True, 2.0, 7]) and same(data["b"], data["a"]) and data["a"] is not data["b"]
    assert data["e"][0].dtype.metadata is None
    assert record_path(REQUEST, tmp_path).stat().st_size < 9e6  # an array that is there twice is stored once


def test_the_deepest_and_the_largest_that_can_be_written_can_be_read(tmp_path: Path) -> None:
    leaves: list[Any] = [1, np.zeros(2), np.zeros(2, bool), ()]
    for leaf in leaves:
        for _ in range(cache.DEPTH):
            try:
                save(REQUEST, {"x": leaf}, {}, tmp_path)
            except TypeError:
                break
            deepest = leaf
            leaf = [leaf] if isinstance(leaf, tuple) else (leaf,)
        with pytest.raises(TypeError, match="nested"):
            save(REQUEST, {"x": leaf}, {}, tmp_path)
        assert same(silent(load, REQUEST, tmp_path).data["x"], deepest)
    for number in (2**1024 - 1, -(2**1024 - 1)):
        save(REQUEST, {"x": number}, {}, tmp_path)
        assert silent(load, REQUEST, tmp_path).data["x"] == number
    save(REQUEST, {"x": list(range(5000)), "y": {i: (i, [i]) for i in range(5000)}, "z": "z" * 10**6}, {}, tmp_path)
    assert silent(load, REQUEST, tmp_path).data["y"][4999] == (4999, [4999])


class Mine(dict):
    pass


class Matrix(np.ndarray):
    pass


Pair = namedtuple("Pair", "a b")
CYCLE: list[Any] = [1]
CYCLE.append({"x": (CYCLE,)})
STRAY_BOOLS = np.array([0, 2], "u1").view(bool)


@pytest.mark.parametrize(
    "value",
    [
        *(b"x", bytearray(b"x"), {1, 2}, frozenset(), 1j, object(), len, np.float32, Path("x"), range(3)),
        *(Mine(), OrderedDict(), Pair(1, 2), np.zeros((1, 1)).view(Matrix), np.ma.array([1.0]), np.str_("a")),
        *(np.array([None]), np.array(["a"]), np.array([b"a"]), np.zeros(2, "c8"), np.zeros(2, "longdouble")),
        *(np.zeros(2, "M8[s]"), np.zeros(2, [("x", "f4")]), STRAY_BOOLS, np.longdouble(1), np.datetime64(1, "s")),
        *({(1, 2): 3}, {None: 1}, {1.5: 1}, {True: 1}, {np.int64(1): 1}, {2**1025: 1}, 2**1025, CYCLE),
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:15]!a}",
)
def test_what_a_record_may_not_hold_is_named_before_anything_is_written(value: Any, tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    content = record_path(REQUEST, tmp_path).read_bytes()
    bad = {"mag": [0, 1, 2, value]}
    for place in (tmp_path, tmp_path / "not there"):
        with pytest.raises(TypeError, match=re.escape("data['mag'][3]")):
            save(REQUEST, bad, {}, place)
        with pytest.raises(TypeError, match=re.escape("provenance['mag'][3]")):
            save(REQUEST, {}, bad, place)
    assert record_path(REQUEST, tmp_path).read_bytes() == content and len(leftovers(tmp_path)) == 1


@pytest.mark.parametrize("part", [None, [], np.zeros(2), Mine()])
def test_data_and_provenance_are_dicts(part: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="data is a"):
        save(REQUEST, part, {}, tmp_path)
    with pytest.raises(TypeError, match="provenance is a"):
        save(REQUEST, {}, part, tmp_path)


# ---- hits and misses ----


def test_hits_and_silent_misses(tmp_path: Path) -> None:
    assert silent(load, REQUEST, tmp_path / "no folder") is None
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    assert silent(load, REQUEST | {"k": 5}, tmp_path) is None
    unknown = dict.fromkeys(["revision", "dtype", "prompt_digest", "tokenizer_digest", "versions"])
    for expect in (None, {}, PROVENANCE, unknown, {"revision": "abc", "dtype": None}):
        record = silent(load, REQUEST, tmp_path, expect)
        assert same(record, record) and same(record.data, DATA) and same(record.provenance, PROVENANCE)
    with pytest.raises(AttributeError):
        record.data = {}


@pytest.mark.parametrize(
    "key, stored, wanted",
    [
        *(("revision", "abc", "other"), ("dtype", "float32", "bfloat16"), ("prompt_digest", "d1", "d2")),
        *(("tokenizer_digest", None, "t1"), ("dtype", np.zeros(3), "float32"), ("plan", [np.zeros(3)], ["a"])),
    ],
)
def test_other_provenance_is_a_miss_with_the_reason(key: str, stored: Any, wanted: Any, tmp_path: Path) -> None:
    path = save(REQUEST, DATA, PROVENANCE | {key: stored}, tmp_path)
    with pytest.warns(CacheWarning) as caught:
        assert load(REQUEST, tmp_path, PROVENANCE | {key: wanted}) is None
    [message] = [str(warning.message) for warning in caught]
    assert all(part in message for part in (str(path), key, cache._brief(stored), cache._brief(wanted), "recomputed"))
    assert path.exists()  # until the new one replaces it


@pytest.mark.parametrize("versions", [VERSIONS | {"torch": "2.10"}, {"numpy": "2.4"}, {}, None, "2.4", np.zeros(3)])
def test_other_versions_only_warn(versions: Any, tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE | {"versions": versions}, tmp_path)
    with pytest.warns(CacheWarning, match="'torch' .* instead of '2.11'"):
        record = load(REQUEST, tmp_path, PROVENANCE)
    assert record is not None and same(record.data, DATA)


@pytest.mark.parametrize("change", [{"k": 5}, {"extra": 1}, {"k": [np.zeros(3)]}])
def test_a_file_of_another_request_is_a_miss(change: dict[str, Any], tmp_path: Path) -> None:
    content = {"request": REQUEST | change, "provenance": PROVENANCE, "data": DATA}
    record_path(REQUEST, tmp_path).write_bytes(pickle.dumps(content, 5))
    with pytest.warns(CacheWarning, match=f"'{next(iter(change))}' .* instead of .*recomputed"):
        assert load(REQUEST, tmp_path) is None


def test_an_unreadable_file_is_an_error_that_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(REQUEST, DATA, PROVENANCE, tmp_path)

    def refuse(*arguments: Any, **options: Any) -> None:  # permission bits do not bind root
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CacheError, match=f"{re.escape(str(path))}.*Permission denied.*chmod"):
        load(REQUEST, tmp_path)
    assert path.exists()
    assert issubclass(CacheError, OSError)


def test_a_read_only_cache_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path).chmod(0o444)
    tmp_path.chmod(0o555)
    monkeypatch.setattr(cache, "ensure_writable", lambda *_: pytest.fail("a hit writes nothing"))
    monkeypatch.setattr(cache, "locked", lambda *_: pytest.fail("a hit takes no lock"))
    try:
        record = silent(load_or_compute, REQUEST, lambda: pytest.fail("cached"), tmp_path, PROVENANCE)
    finally:
        tmp_path.chmod(0o755)
    assert same(record.data, DATA)


def test_records_get_the_ordinary_permissions(tmp_path: Path) -> None:  # a shared cache is readable for the others
    old = os.umask(0o027)
    try:
        assert stat.S_IMODE(save(REQUEST, DATA, PROVENANCE, tmp_path).stat().st_mode) == 0o640
    finally:
        os.umask(old)


def python(code: str, *arguments: Any) -> subprocess.Popen[str]:
    setup = f"import sys, os, time; sys.path.insert(0, {str(REPO)!r})\n"
    setup += f"from util.records import cache; REQUEST = {REQUEST!r}\n"
    command = [sys.executable, "-c", setup + code, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_process_without_torch_loads_a_record(tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    code = """
record = cache.load(REQUEST, sys.argv[1])
assert not {"torch", "transformers", "StaICC"} & set(sys.modules)
print(record.data["mag"].sum())
"""
    assert python(code, tmp_path).communicate() == ("15.0\n", "")


# ---- whole or not at all ----


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    names = leftovers(tmp_path)

    class FullDisk:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "FullDisk":
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.close()

        def write(self, payload: bytes) -> int:
            self.file.write(payload[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    def fail(error: BaseException, *_: Any, **__: Any) -> None:
        raise error

    real_open = Path.open
    full = OSError(errno.ENOSPC, "No space left on device")
    breaks = [
        (os, "replace", partial(fail, full), CacheError),
        (os, "fsync", partial(fail, full), CacheError),
        (os, "fsync", partial(fail, KeyboardInterrupt()), KeyboardInterrupt),
        (os, "replace", partial(fail, KeyboardInterrupt()), KeyboardInterrupt),
        (Path, "open", lambda path, mode: FullDisk(real_open(path, mode)), CacheError),
    ]
    for owner, name, broken, expected in breaks:
        with monkeypatch.context() as patched:
            patched.setattr(cache, "ensure_writable", lambda *_: None)
            patched.setattr(owner, name, broken)
            with pytest.raises(expected) as raised:
                save(REQUEST, {"new": 1}, {}, tmp_path)
        assert expected is KeyboardInterrupt or "ICL_MATERIAL" in str(raised.value)
        assert leftovers(tmp_path) == names
        assert same(silent(load, REQUEST, tmp_path).data, DATA)


def test_a_killed_writer_leaves_the_old_record(tmp_path: Path) -> None:
    path = save(REQUEST, DATA, PROVENANCE, tmp_path)
    code = """
def halt(descriptor):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = halt
cache.save(REQUEST, {"new": "x" * 100000}, {}, sys.argv[1])
"""
    with python(code, tmp_path) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        writer.send_signal(signal.SIGKILL)
    [left] = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith(cache.TEMPORARY)
    assert same(silent(load, REQUEST, tmp_path).data, DATA)
    save(REQUEST, {"n": 1}, {}, tmp_path)
    assert left.exists()  # perhaps another process is writing it
    os.utime(left, (time.time() - 90000,) * 2)
    save(REQUEST, {"n": 2}, {}, tmp_path)
    assert leftovers(tmp_path) == [path.name] and silent(load, REQUEST, tmp_path).data == {"n": 2}


def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=cache.MARGIN + 1000))
    cache.ensure_writable(tmp_path)
    with pytest.raises(CacheError, match="MiB.*ICL_MATERIAL"):
        save(REQUEST, {"x": np.zeros(1000)}, {}, tmp_path)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    for action in (partial(cache.ensure_writable, tmp_path), partial(save, REQUEST, {}, {}, tmp_path)):
        with pytest.raises(CacheError, match="0 MiB free.*choose another folder with ICL_MATERIAL or free space"):
            action()
    with pytest.raises(CacheError):
        load_or_compute(REQUEST, lambda: pytest.fail("no work"), tmp_path, redo=True)
    assert same(silent(load, REQUEST, tmp_path).data, DATA) and len(leftovers(tmp_path)) == 1


def test_a_read_only_folder_is_noticed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.ensure_writable(tmp_path / "a" / "b")
    assert leftovers(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        for action in (cache.ensure_writable, partial(save, REQUEST, {}, {})):
            with pytest.raises(CacheError, match="cannot write.*ICL_MATERIAL"):
                action(place)
        with pytest.raises(CacheError):
            load_or_compute(REQUEST, lambda: pytest.fail("no work"), place, redo=True)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(CacheError, match="Permission denied"):
        load_or_compute(REQUEST, lambda: pytest.fail("no work"), tmp_path)


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SIZE_LIMIT", 1000)
    with pytest.raises(CacheError, match="could not be read back"):
        save(REQUEST, {"x": np.zeros(1000)}, {}, tmp_path)
    assert leftovers(tmp_path) == []


# ---- compute once ----


def test_load_or_compute(tmp_path: Path) -> None:
    calls = []

    def compute(data: Any = DATA) -> Any:
        calls.append(1)
        return data | {"scalar": np.float32(0.5)}, PROVENANCE

    first = silent(load_or_compute, REQUEST, compute, tmp_path)
    second = silent(load_or_compute, REQUEST, compute, tmp_path, PROVENANCE)
    assert len(calls) == 1 and isinstance(first, Record) and same(vars(first), vars(second))
    with pytest.warns(CacheWarning, match="revision"):
        load_or_compute(REQUEST, compute, tmp_path, {"revision": "new"})
    third = silent(load_or_compute, REQUEST, partial(compute, {"n": 5}), tmp_path, redo=True)
    assert len(calls) == 3 and third.data == {"n": 5, "scalar": 0.5}
    assert same(vars(silent(load, REQUEST, tmp_path)), vars(third))

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_compute(REQUEST, interrupted, tmp_path, redo=True)
    with pytest.raises(TypeError, match="data"):
        load_or_compute(REQUEST, lambda: ({"x": b""}, {}), tmp_path, redo=True)
    assert same(vars(silent(load, REQUEST, tmp_path)), vars(third))


def test_a_result_that_cannot_be_saved_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> Any:
        monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        return DATA, PROVENANCE

    with pytest.warns(CacheWarning, match="not saved.*ICL_MATERIAL"):
        record = load_or_compute(REQUEST, compute, tmp_path)
    assert same(record.data, DATA) and leftovers(tmp_path) == []


def test_several_processes_compute_once(tmp_path: Path) -> None:
    code = """
record = cache.load_or_compute(REQUEST, lambda: ({"pid": os.getpid()}, {}), sys.argv[1])
print(record.data["pid"])
"""
    others: list[subprocess.Popen[str]] = []

    def compute() -> Any:
        others.extend(python(code, tmp_path) for _ in range(2))
        for other in others:
            assert other.stderr is not None and "waiting for another process" in other.stderr.readline()
        return {"pid": os.getpid()}, {}

    load_or_compute(REQUEST, compute, tmp_path)
    assert [other.communicate(timeout=30) for other in others] == [(f"{os.getpid()}\n", "")] * 2


def test_threads_compute_once_and_failures_free_the_lock(tmp_path: Path) -> None:
    calls, results = [], []

    def compute() -> Any:
        calls.append(1)
        time.sleep(0.2)
        if len(calls) == 1:
            raise RuntimeError("the first one fails")
        return {"call": len(calls)}, {}

    def run() -> None:
        try:
            results.append(load_or_compute(REQUEST, compute, tmp_path).data["call"])
        except RuntimeError:
            results.append(0)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == [0, 2, 2]


# ---- hostile files ----
#
# An attack is a fragment of pickle code that leaves one value; `around` puts it where a record's data would be. The
# canary is a folder that the attack creates.


def text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + b"(" + b"".join(arguments) + b"tR"


def listed(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e"


def array(buffer: bytes, dtype: bytes, shape: bytes, order: bytes = b"X\x01\0\0\0C") -> bytes:
    return call(name("numpy._core.numeric", "_frombuffer"), buffer, dtype, shape, order)


def dtype(code: bytes, align: bytes = b"\x89", copy: bytes = b"\x88") -> bytes:
    return call(name("numpy", "dtype"), code, align, copy)


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def around(fragment: bytes) -> bytes:
    request = b"}"
    for key, value in REQUEST.items():
        code = text(value) if isinstance(value, str) else b"N" if value is None else b"K" + bytes([int(str(value))])
        request += text(key) + code + b"s"
    parts = text("request") + request + text("provenance") + b"}" + text("data") + b"}" + text("x") + fragment + b"s"
    return b"\x80\x05}(" + parts + b"u."


def dumped(value: Any, protocol: int) -> bytes:
    """A fragment written by pickle itself, without its first frame's length."""
    payload = pickle.dumps(value, protocol)
    return payload[11 if payload[2:3] == b"\x95" else 2 : -1]


class Evil:
    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (self.canary,)


MODULE = call(name("importlib", "import_module"), text("os"))
DTYPE = dtype(text("f8"))
NUMBERS = b"\x96" + (16).to_bytes(8, "little") + bytes(16)  # a bytearray
PAIR = b"K\x02\x85"
ARRAY = array(NUMBERS, DTYPE, PAIR)
FROMBUFFER = name("numpy._core.numeric", "_frombuffer")
MKDIR = name("os", "mkdir")
EXTENSION = {1: 0xF1, 2: 0xF1F2, 4: 0xF1F2F3}
LAZY = name("builtins", "map") + MKDIR + b"%s\x86\x81"


def python_code(canary: str) -> bytes:
    return text(f"__import__('os').mkdir({canary!r})")


def nested(canary: str) -> bytes:
    inner = pickle.dumps(Evil(canary))
    return b"B" + len(inner).to_bytes(4, "little") + inner


def extension(size: int, canary: str) -> bytes:
    opcode = {1: b"\x82", 2: b"\x83", 4: b"\x84"}[size]
    return opcode + EXTENSION[size].to_bytes(size, "little") + text(canary) + b"\x85R"


# fragments that do create the canary under plain pickle.loads
ARMED: dict[str, Callable[[str], bytes]] = {
    "GLOBAL": lambda c: b"cos\nmkdir\n" + text(c) + b"\x85R",
    "GLOBAL os.system": lambda c: b"cos\nsystem\n" + text(f"mkdir {c}") + b"\x85R",
    "STACK_GLOBAL": lambda c: call(MKDIR, text(c)),
    "posix": lambda c: call(name("posix", "mkdir"), text(c)),
    "INST": lambda c: b"(" + text(c) + b"ios\nmkdir\n",
    "OBJ": lambda c: b"(" + MKDIR + text(c) + b"o",
    "NEWOBJ": lambda c: name("builtins", "tuple") + (LAZY % listed(text(c))) + b"\x85\x81",
    "NEWOBJ_EX": lambda c: name("builtins", "tuple") + (LAZY % listed(text(c))) + b"\x85}\x92",
    "EXTEND": lambda c: name("collections", "deque") + b")\x81(" + text(c) + b"e" + call(MKDIR, text(c)) + b"0",
    "eval": lambda c: call(name("builtins", "eval"), python_code(c)),
    "exec": lambda c: call(name("builtins", "exec"), python_code(c)),
    "getattr": lambda c: call(call(name("builtins", "getattr"), MODULE, text("mkdir")), text(c)),
    "__import__": lambda c: call(
        call(name("builtins", "getattr"), call(name("builtins", "__import__"), text("os")), text("mkdir")), text(c)
    ),
    "attrgetter": lambda c: call(call(call(name("operator", "attrgetter"), text("mkdir")), MODULE), text(c)),
    "methodcaller": lambda c: call(call(name("operator", "methodcaller"), text("mkdir"), text(c)), MODULE),
    "partial": lambda c: call(call(name("functools", "partial"), MKDIR, text(c))),
    "partial by BUILD": lambda c: call(
        call(name("functools", "partial"), name("builtins", "len")) + b"(" + MKDIR + text(c) + b"\x85}}tb"
    ),
    "check_call": lambda c: call(name("subprocess", "check_call"), listed(text("mkdir"), text(c))),
    "dotted name": lambda c: call(name("pathlib", "Path.mkdir"), call(name("pathlib", "Path"), text(c))),
    "codecs.open": lambda c: call(name("codecs", "open"), text(c), text("w")),
    "nested pickle": lambda c: call(name("pickle", "loads"), nested(c)),
    "numpy.memmap": lambda c: call(name("numpy", "memmap"), text(c), text("u1"), text("w+"), b"K\x00", b"K\x04\x85"),
    "ndarray.tofile": lambda c: call(name("numpy", "ndarray.tofile"), ARRAY, text(c)),
    "numpy.testing": lambda c: call(name("numpy.testing", "runstring"), python_code(c), b"}"),
    "numpy.save": lambda c: call(name("numpy", "save"), text(c), ARRAY),
    "numpy.lib": lambda c: call(name("numpy.lib._npyio_impl", "savetxt"), text(c), ARRAY),
    "object array": lambda c: dumped(np.array([Evil(c)], object), 3),
    "object array, protocol 5": lambda c: dumped(np.array([Evil(c)], object), 5),
    "evil dict key": lambda c: b"}" + call(MKDIR, text(c)) + b"K\x01s",
    "evil array shape": lambda c: array(NUMBERS, DTYPE, call(MKDIR, text(c))),
    "evil dtype state": lambda c: DTYPE + call(MKDIR, text(c)) + b"b",
    "EXT1": partial(extension, 1),
    "EXT2": partial(extension, 2),
    "EXT4": partial(extension, 4),
}  # fmt: skip

# fragments that abuse what an allowed name could do, break a limit, or name what need not be installed
UNARMED = {
    "nt": call(name("nt", "mkdir"), text("x")),
    "Popen": call(name("subprocess", "Popen"), listed(text("true"))),
    "torch": call(name("torch.storage", "_load_from_bytes"), b"C\x02N."),
    "numpy.load": call(name("numpy", "load"), text("/dev/null")),
    "numpy.f2py": call(name("numpy.f2py", "compile"), text("")),
    "_codecs.encode": call(name("_codecs", "encode"), text("x"), text("latin1")),
    "ndarray": name("numpy", "ndarray"),
    "ndarray of 8 TB": call(name("numpy", "ndarray"), number(2**40) + b"\x85"),
    "ndarray, protocol 4": dumped(np.arange(3.0), 4),
    "scalar": dumped(np.float32(1), 4),
    "scalar of objects": call(name("numpy._core.multiarray", "scalar"), dtype(text("O8")), b"C\x02N."),
    "_reconstruct": call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "matrix"), b")", b"C\x01b"),
    "subclass": dumped(np.zeros(2).view(Matrix), 5),
    "random generator": dumped(np.random.default_rng(0), 3),
    "__globals__": name("numpy._core.numeric", "_frombuffer.__globals__"),
    "dtype.__class__": name("numpy", "dtype.__class__"),
    "name with a NUL": name("numpy", "dtype\0"),
    "name that is no str": b"K\x01K\x02\x93",
    "bare dtype": name("numpy", "dtype"),
    "bare array function": FROMBUFFER,
    "dtype object": DTYPE,
    "dtype O": dtype(text("O8")),
    "dtype V": dtype(text("V1000000")),
    "dtype with fields": dtype(listed(text("f8"))),
    "dtype state with metadata": DTYPE + b"(K\x04" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00}tb",
    "dtype state of another length": DTYPE + b"K\x03\x85b",
    "BUILD on the array function": FROMBUFFER + b"}" + text("polluted") + b"K\x01sb",
    "BUILD with slots on it": FROMBUFFER + b"N}" + text("polluted") + b"K\x01s\x86b",
    "BUILD on dtype": name("numpy", "dtype") + b"}" + text("polluted") + b"K\x01sb",
    "BUILD on an array": ARRAY + b"N}" + text("array") + b"C\x01x" + b"s\x86b",
    "BUILD on a list": b"]}" + text("x") + b"K\x01sb",
    "class of a list": b"]N}" + text("__class__") + name("numpy", "dtype") + b"s\x86b",
    "APPEND to an array": ARRAY + b"K\x01a",
    "SETITEM on an array": ARRAY + b"K\x01K\x01s",
    "array of a large shape": array(NUMBERS, DTYPE, number(2**40) + b"\x85"),
    "array of a negative shape": array(NUMBERS, DTYPE, number(-1) + b"\x85"),
    "array of a fractional shape": array(NUMBERS, DTYPE, b"G" + b"@" + bytes(7) + b"\x85"),
    "array of negative shapes": array(NUMBERS, DTYPE, number(-1) + number(-2) + b"\x86"),
    "array of an overflowing shape": array(b"C\x00", DTYPE, number(2**62) + number(2**62) + b"K\x00\x87"),
    "array with 10^5 axes": array(NUMBERS, DTYPE, b"(" + (b"\x8a\xfe" + b"\x7f" * 254) * 10**5 + b"t"),
    "array in another order": array(NUMBERS, DTYPE, PAIR, text("A")),
    "array from text": array(text("x" * 16), DTYPE, PAIR),
    "array from an array": array(ARRAY, DTYPE, PAIR),
    "array without dtype": array(NUMBERS, text("O"), PAIR),
    "array with keywords": FROMBUFFER + b")}\x92",
    "array with bad bools": array(b"C\x01\x02", dtype(text("b1")), b"K\x01\x85"),
    "bytes": b"C\x02xx",
    "bytearray": NUMBERS,
    "set": b"\x8f(K\x01\x90",
    "frozenset": b"(K\x01\x91",
    "PERSID": b"Pcanary\n",
    "BINPERSID": text("canary") + b"Q",
    "out-of-band buffer": b"\x97",
    "unregistered EXT1": b"\x82\xef",
    "int of 10^6 bits": b"\x8b" + (125000).to_bytes(4, "little") + b"\x7f" * 125000,
    "int of 2000 bits": b"\x8a\xfa" + b"\x7f" * 250,
    "text int": b"L" + b"9" * 10**5 + b"L\n",
    "4 EiB of bytes": b"\x8e" + (2**62).to_bytes(8, "little"),
    "1 TiB of bytearray": b"\x96" + (2**40).to_bytes(8, "little"),
    "4 GiB of text": b"X" + b"\xff" * 4,
    "long frame": b"\x95" + (2**60).to_bytes(8, "little") + b"K\x01",
    "memo index of 4 billion": b"K\x01r" + b"\xfe\xff\xff\xff",
    "memo index as text": b"K\x01p4294967290\n",
    "unknown memo": b"h\xc8",
    "list in itself": b"]\x94h\x00a",
    "shared list": b"]\x94h\x00\x86",
    "billion laughs": b"]\x94" + b"".join(b"]\x94(h%ch%ce" % (i, i) for i in range(60)),
    "billion laughs as a key": b"})\x85\x94" + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(60)) + b"K\x01s",
    "remembered late": b"](K\x01e\x94h\x00\x86",
    "nested lists": b"]" * 10**5 + b"a" * (10**5 - 1),
    "nested lists with marks": b"](" * 10**5 + b"e" * 10**5,
    "nested tuples": b")" + b"\x85" * 10**5,
    "nested tuples with marks": b"(" * 10**5 + b"t" * 10**5,
    "nested tuples as a key": b"}K\x01" + b"\x85" * 10**6 + b"K\x01s",
    "nested pairs as a key": b"}K\x01" + b"K\x01\x86" * 10**6 + b"K\x01s",
    "nested triples as a key": b"}K\x01" + b"K\x01K\x01\x87" * 10**6 + b"K\x01s",
    "tuple key": b"}K\x01\x85K\x01s",
    "list key": b"}]K\x01s",
    "float key": b"}G" + bytes(8) + b"K\x01s",
    "bool key": b"}\x88K\x01s",
    "stack underflow": b"0000000000",
    "tuple across a mark": b"K\x01(\x87t",
    "POP": b"K\x01K\x020",
    "DUP": b"]2\x86",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def extension_codes() -> Iterator[None]:
    names = {1: "mkdir", 2: "makedirs", 4: "mkfifo"}
    for size, code in EXTENSION.items():
        copyreg.add_extension("os", names[size], code)
    yield
    for size, code in EXTENSION.items():
        copyreg.remove_extension("os", names[size], code)


events: list[str] = []
listening = False
TELLING = frozenset("import exec compile open os subprocess pickle shutil code ctypes mmap socket pty".split())


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if listening and event.split(".")[0] in TELLING:
        events.append(f"{event} {arguments!r:.100}")


sys.addaudithook(listen)  # cannot be removed


def quietly(payload: bytes) -> Any:
    """restricted_load of some bytes; fails where the interpreter reports any import, file, process, exec or compile."""
    global listening
    file = io.BytesIO(payload)
    events.clear()
    listening = True
    try:
        return restricted_load(file)
    finally:
        listening = False
        assert events == []


def refused(payload: bytes, folder: Path) -> str:
    """`load` sets this file aside, whole, and says why: the reason."""
    with pytest.raises(pickle.UnpicklingError, match="delete the file or pass redo to recompute"):
        quietly(payload)
    path = record_path(REQUEST, folder)
    path.write_bytes(payload)
    with pytest.warns(CacheWarning) as caught:
        assert load(REQUEST, folder) is None
    [message] = [str(warning.message) for warning in caught]
    aside = path.with_name(path.name + ".corrupt")
    assert not path.exists() and aside.read_bytes() == payload and leftovers(folder) == [aside.name]
    assert str(path) in message and aside.name in message and len(message) < 2000
    return message


@pytest.mark.parametrize("attack", ARMED)
def test_the_attacks_are_real(attack: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    try:
        pickle.loads(around(ARMED[attack](str(canary))))  # noqa: S301
    except Exception as error:  # after the deed
        print(repr(error))
    assert list(tmp_path.iterdir())  # numpy.save appends to the name


@pytest.mark.parametrize("attack", ARMED)
def test_an_attack_executes_nothing(attack: str, tmp_path: Path) -> None:
    canary, folder = tmp_path / "canary", tmp_path / "cache"
    folder.mkdir()
    refused(around(ARMED[attack](str(canary))), folder)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("attack", UNARMED)
def test_an_abuse_is_refused(attack: str, tmp_path: Path) -> None:
    start = time.perf_counter()
    refused(around(UNARMED[attack]), tmp_path)
    assert time.perf_counter() - start < 10
    assert not hasattr(np._core.numeric._frombuffer, "polluted") and not hasattr(cache._Array, "polluted")  # type: ignore


@pytest.mark.parametrize("attack", sorted(set(ARMED) - {f"EXT{size}" for size in EXTENSION}))
def test_the_table_of_names_alone_suffices(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_scan", lambda payload: None)
    with pytest.raises(pickle.UnpicklingError, match="refused the global"):
        quietly(around(ARMED[attack](str(tmp_path / "canary"))))
    assert not list(tmp_path.iterdir())


def test_the_refused_global_is_named(tmp_path: Path) -> None:
    assert "'os' 'mkdir'" in refused(around(ARMED["STACK_GLOBAL"]("x")), tmp_path)
    (tmp_path / (record_path(REQUEST, tmp_path).name + ".corrupt")).unlink()
    assert "GLOBAL 'os mkdir'" in refused(around(ARMED["GLOBAL"]("x")), tmp_path)


@pytest.mark.parametrize("attack", ["dtype O", "dtype V", "dtype with fields"])
def test_numpy_never_sees_a_hostile_dtype(attack: str, tmp_path: Path) -> None:
    assert "refused the dtype" in refused(around(UNARMED[attack]), tmp_path)


def test_around_alone_is_a_record() -> None:
    """The attacks fail for what is in them, not for what is around them."""
    for fragment, expected in ((b"K\x01", 1), (ARRAY, np.zeros(2)), (listed(text("a"), ARRAY), ["a", np.zeros(2)])):
        assert same(quietly(around(fragment))["data"]["x"], expected)


@pytest.mark.parametrize("module", ["numpy._core.numeric", "numpy.core.numeric"])
def test_both_spellings_of_numpy_are_read(module: str) -> None:
    payload = around(ARRAY).replace(text("numpy._core.numeric"), text(module))
    assert module.encode() in payload and same(quietly(payload)["data"]["x"], np.zeros(2))


@pytest.mark.parametrize("content", [5, None, "x", [], (), {}, {"request": {}}, np.zeros(2), {1: {}}], ids=repr)
def test_another_top_level_is_refused(content: Any, tmp_path: Path) -> None:
    whole = {"request": REQUEST, "provenance": {}, "data": {}}
    variants = [
        content,
        whole | {"more": {}},
        *(whole | {part: content} for part in whole if type(content) is not dict),
    ]
    for variant in variants:
        path = record_path(REQUEST, tmp_path)
        path.write_bytes(pickle.dumps(variant, 5))
        with pytest.warns(CacheWarning, match="no record"):
            assert load(REQUEST, tmp_path) is None
        assert not path.exists()


def payload_of_a_record(folder: Path) -> bytes:
    data = {"a": np.arange(3.0), "b": [1, 2.5, "t", True, None, (1,)]}
    return save({"stem": "s", "schema": 1}, data, {"v": {"x": 1}}, folder).read_bytes()


def test_truncated_and_padded_files(tmp_path: Path, folder: Path) -> None:
    payload = payload_of_a_record(folder)
    for end in range(len(payload)):
        with pytest.raises(pickle.UnpicklingError):
            quietly(payload[:end])
    for extra in (b"\0", b".", payload, b"garbage"):
        with pytest.raises(pickle.UnpicklingError):
            quietly(payload + extra)
    refused(payload[:-3], tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    refused(b"", tmp_path)


def test_every_flipped_bit_is_a_miss_or_plain_values(folder: Path) -> None:
    payload = payload_of_a_record(folder)
    outcomes = {"refused": 0, "read": 0}
    for position in range(len(payload)):
        for mask in (0xFF, *(1 << bit for bit in range(8))):
            changed = bytearray(payload)
            changed[position] ^= mask
            try:
                assert only_plain(quietly(bytes(changed)))
                outcomes["read"] += 1
            except pickle.UnpicklingError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


@quick
@given(data=st.data())
def test_random_edits_are_a_miss_or_plain_values(data: st.DataObject, folder: Path) -> None:
    payload = payload_of_a_record(folder)
    opcodes = st.sampled_from([opcode.code.encode("latin1") for opcode in pickletools.opcodes])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(payload)))
        end = data.draw(st.integers(start, min(len(payload), start + 4)))
        payload = payload[:start] + data.draw(opcodes | st.binary(max_size=5)) + payload[end:]
    with suppress(pickle.UnpicklingError):
        assert only_plain(quietly(payload))


def test_a_file_over_the_limit_is_not_read() -> None:
    class Large(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise AssertionError("must not be read")

        def seek(self, offset: int, whence: int = 0, /) -> int:
            return 5 << 30

    with pytest.raises(pickle.UnpicklingError, match="limit"):
        restricted_load(Large())
    payload = pickle.dumps([1, 2])
    assert restricted_load(io.BytesIO(payload), limit=len(payload)) == [1, 2]
    with pytest.raises(pickle.UnpicklingError, match="limit"):
        restricted_load(io.BytesIO(payload), limit=len(payload) - 1)


def test_a_machine_without_memory_does_not_lose_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(REQUEST, DATA, PROVENANCE, tmp_path)

    def exhausted(payload: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(cache, "_scan", exhausted)
    with pytest.raises(MemoryError):
        load(REQUEST, tmp_path)
    assert path.exists()


def test_files_set_aside_are_kept(tmp_path: Path) -> None:
    path = record_path(REQUEST, tmp_path)
    contents = [b"first", b"second", b"third"]
    for content in contents:
        path.write_bytes(content)
        with pytest.warns(CacheWarning, match="corrupt"):
            record = load_or_compute(REQUEST, lambda: (DATA, PROVENANCE), tmp_path)
        assert same(silent(load, REQUEST, tmp_path).data, record.data)
    asides = [path.with_name(path.name + ".corrupt" + number) for number in ("", "1", "2")]
    assert [aside.read_bytes() for aside in asides] == contents
    path.unlink()
    assert cache._set_aside(path).name.endswith(".corrupt3")  # another process was faster


def test_what_is_no_file_is_set_aside(tmp_path: Path) -> None:
    path = record_path(REQUEST, tmp_path)
    os.mkfifo(path)
    with pytest.warns(CacheWarning, match="not a regular file"):
        assert load(REQUEST, tmp_path) is None
    path.mkdir()
    with pytest.warns(CacheWarning, match="not a regular file"):
        assert load(REQUEST, tmp_path) is None
    path.symlink_to("/dev/zero")
    with pytest.warns(CacheWarning, match="not a regular file"):
        assert load(REQUEST, tmp_path) is None
    path.symlink_to(tmp_path / "nowhere")
    assert silent(load, REQUEST, tmp_path) is None
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    assert not path.is_symlink() and not (tmp_path / "nowhere").exists() and len(leftovers(tmp_path)) == 4


def test_nothing_else_unpickles() -> None:
    source = (REPO / "util" / "records" / "cache.py").read_text()
    assert not re.search(r"pickle\.loads?\(|_pickle|np\.load|allow_pickle|eval\(|exec\(", source)
    arrays = [("numpy._core.numeric", "_frombuffer"), ("numpy.core.numeric", "_frombuffer")]
    assert set(cache.GLOBALS) == {("numpy", "dtype"), *arrays}
    assert all(made.__module__ == "util.records.cache" for made in cache.GLOBALS.values())


def test_the_request_of_a_record_is_plain_json(tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    record = silent(load, REQUEST, tmp_path)
    assert json.loads(json.dumps(record.request)) == REQUEST
