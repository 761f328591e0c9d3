"""The cache: what goes in comes out, what does not fit is refused, and nothing is lost or overwritten."""

import encodings.raw_unicode_escape  # noqa: F401  pickletools would import it for a text opcode
import errno
import hashlib
import json
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from util.records import cache, file_format
from util.records.cache import (
    CacheError,
    CacheWarning,
    Record,
    load,
    load_or_compute,
    record_path,
    save,
)
from util.records.file_format import encode

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

CODES = [order + code for code in sorted(file_format.DTYPES) for order in ("<", ">")]
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
texts = st.text(st.characters(exclude_categories=[]))  # surrogates, too
leaves = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | texts | arrays
keys = texts.filter(lambda key: key != file_format.ARRAY)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12)


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
    assert type(pickle.loads(path.read_bytes())) is bytes  # noqa: S301  the file is an ordinary pickle, too


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
    big, carrying = np.zeros(10**3), np.zeros(2, np.dtype("f4", metadata={"carried": object()}))
    save(REQUEST, {"a": shared, "b": shared, "c": big, "d": big, "e": [carrying, carrying]}, {}, tmp_path)
    data = silent(load, REQUEST, tmp_path).data
    assert same(data["a"], [0.5, 3, True, 2.0, 7]) and same(data["b"], data["a"]) and data["a"] is not data["b"]
    assert data["e"][0].dtype.metadata is None


def test_the_deepest_and_the_largest_that_can_be_written_can_be_read(tmp_path: Path) -> None:
    leaves: list[Any] = [1, np.zeros(2), np.zeros(2, bool), []]
    for leaf in leaves:
        for _ in range(file_format.DEPTH):
            try:
                save(REQUEST, {"x": leaf}, {}, tmp_path)
            except TypeError:
                break
            deepest = leaf
            leaf = {"x": leaf} if isinstance(leaf, list) else [leaf]
        with pytest.raises(TypeError, match="nested"):
            save(REQUEST, {"x": leaf}, {}, tmp_path)
        assert same(silent(load, REQUEST, tmp_path).data["x"], deepest)
    for number in (2**1024 - 1, -(2**1024 - 1)):
        save(REQUEST, {"x": number}, {}, tmp_path)
        assert silent(load, REQUEST, tmp_path).data["x"] == number
    many = {f"{i}": [i, [i]] for i in range(5000)}
    save(REQUEST, {"x": list(range(5000)), "y": many, "z": "z" * 10**6}, {}, tmp_path)
    assert silent(load, REQUEST, tmp_path).data["y"] == many


class Mine(dict):
    pass


class Matrix(np.ndarray):
    pass


Pair = namedtuple("Pair", "a b")
CYCLE: list[Any] = [1]
CYCLE.append({"x": [CYCLE]})
STRAY_BOOLS = np.array([0, 2], "u1").view(bool)


@pytest.mark.parametrize(
    "value",
    [
        *(b"x", bytearray(b"x"), {1, 2}, frozenset(), 1j, object(), len, np.float32, Path("x"), range(3)),
        *(Mine(), OrderedDict(), Pair(1, 2), np.zeros((1, 1)).view(Matrix), np.ma.array([1.0]), np.str_("a")),
        *(np.array([None]), np.array(["a"]), np.array([b"a"]), np.zeros(2, "c8"), np.zeros(2, "longdouble")),
        *(np.zeros(2, "M8[s]"), np.zeros(2, [("x", "f4")]), STRAY_BOOLS, np.longdouble(1), np.datetime64(1, "s")),
        *({(1, 2): 3}, {None: 1}, {1.5: 1}, {True: 1}, {np.int64(1): 1}, {1: 1}, {"$array": 1}, 2**1025, CYCLE),
        *((), (1, 2), np.zeros((1,) * 33)),
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
    assert all(
        part in message for part in (str(path), key, file_format.brief(stored), file_format.brief(wanted), "recomputed")
    )
    assert path.exists()  # until the new one replaces it


@pytest.mark.parametrize("versions", [VERSIONS | {"torch": "2.10"}, {"numpy": "2.4"}, {}, None, "2.4", np.zeros(3)])
def test_other_versions_only_warn(versions: Any, tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE | {"versions": versions}, tmp_path)
    with pytest.warns(CacheWarning, match="'torch' .* instead of '2.11'"):
        record = load(REQUEST, tmp_path, PROVENANCE)
    assert record is not None and same(record.data, DATA)


@pytest.mark.parametrize("change", [{"k": 5}, {"extra": 1}, {"k": [np.zeros(3)]}])
def test_a_file_of_another_request_is_a_miss(change: dict[str, Any], tmp_path: Path) -> None:
    content = encode({"request": REQUEST | change, "provenance": PROVENANCE, "data": DATA})
    path = record_path(REQUEST, tmp_path)
    path.write_bytes(content)
    with pytest.warns(CacheWarning, match=f"'{next(iter(change))}' .* instead of .*moved to .*other, recomputing"):
        assert load(REQUEST, tmp_path) is None
    aside = path.with_name(path.name + ".other")
    assert aside.read_bytes() == content and leftovers(tmp_path) == [aside.name]


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

    monkeypatch.setattr(cache, "_UNSAVED", set())
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.warns(CacheWarning, match="not saved.*ICL_MATERIAL or free space$"):
        record = load_or_compute(REQUEST, compute, tmp_path / "records")
    assert same(record.data, DATA) and leftovers(tmp_path / "records") == leftovers(tmp_path / "temporary") == []


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Makes a folder of records refuse what writes to it, with an error of this number: root may write anywhere."""
    folder, spare = tmp_path / "records", tmp_path / "temporary"
    folder.mkdir()
    spare.mkdir()
    monkeypatch.setattr(cache, "_UNSAVED", set())
    monkeypatch.setattr(cache.tempfile, "tempdir", str(spare))

    def refusing(call: Callable[..., Any], number: int) -> Callable[..., Any]:
        def refuse(path: Path, *arguments: Any) -> Any:
            if folder in path.parents:
                raise OSError(number, os.strerror(number))
            return call(path, *arguments)

        return refuse

    def close(number: int) -> Path:
        for name in ("rename", "write_bytes"):
            monkeypatch.setattr(Path, name, refusing(getattr(Path, name), number))
        return folder

    return close


UNUSABLE = {
    "damaged": (
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "is no record: .*; it stays",
    ),
    "old": (lambda path: path.write_bytes(pickle.dumps({"n": 1})), "is no record: .*; it stays"),
    "of another request": (
        lambda path: path.write_bytes(encode({"request": REQUEST | {"k": 9}, "provenance": {}, "data": {}})),
        "'k' 9 instead of .*; it stays",
    ),
    "of other weights": (lambda path: save(REQUEST, DATA, PROVENANCE | {"revision": "old"}, path.parent), "'revision'"),
}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS], ids=["permission", "read-only disk"])
@pytest.mark.parametrize("unusable", UNUSABLE)
def test_an_unusable_record_in_a_read_only_folder_is_measured_again_and_kept_elsewhere(
    unusable: str, number: int, tmp_path: Path, read_only: Callable[[int], Path]
) -> None:
    path = save(REQUEST, DATA, PROVENANCE, tmp_path / "records")
    spoil, said = UNUSABLE[unusable]
    spoil(path)
    content = path.read_bytes()
    folder = read_only(number)
    with pytest.warns(CacheWarning) as warned:
        record = load_or_compute(REQUEST, lambda: ({"n": 2}, PROVENANCE), folder, PROVENANCE)
    first, second = (str(warning.message) for warning in warned)
    assert re.search(said, first) and "move it to" in second and "once that can be written to" in second
    assert record.data == {"n": 2} and path.read_bytes() == content and leftovers(folder) == [path.name]
    [kept] = (tmp_path / "temporary").glob("*/*.pickle")
    assert silent(load, REQUEST, kept.parent, PROVENANCE).data == {"n": 2}


def test_what_is_missing_in_a_read_only_folder_is_an_error_before_the_work(
    tmp_path: Path, read_only: Callable[[int], Path]
) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path / "records")
    folder = read_only(errno.EACCES)
    for request, redo in ((REQUEST | {"k": 7}, False), (REQUEST, True)):
        with pytest.raises(CacheError, match="cannot write to .*ICL_MATERIAL"):
            load_or_compute(request, lambda: pytest.fail("no work"), folder, redo=redo)


def test_blocks_go_on_in_memory_where_their_record_s_folder_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = False
    monkeypatch.setattr(cache, "_UNSAVED", set())
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda place: SimpleNamespace(free=0 if full else 10**12))

    def compute() -> Any:
        nonlocal full
        full = True
        return DATA, PROVENANCE

    for folder in (tmp_path / "records", tmp_path / "records" / "blocks" / "one"):
        with pytest.warns(CacheWarning, match="not saved"):
            assert same(load_or_compute(REQUEST, compute, folder).data, DATA)


def test_a_record_that_is_too_large_to_be_read_back_is_used_and_its_folder_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_UNSAVED", set())
    with pytest.warns(CacheWarning, match="could not be read back"):
        record = load_or_compute(REQUEST, lambda: ({"numbers": list(range(300_000))}, PROVENANCE), tmp_path)
    assert len(record.data["numbers"]) == 300_000 and set() == cache._UNSAVED


def test_weights_that_were_not_known_do_not_make_a_record_anothers(tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE | {"weights": None}, tmp_path)
    assert silent(load, REQUEST, tmp_path, {"weights": "0123"}) is not None
    save(REQUEST, DATA, PROVENANCE | {"weights": "4567"}, tmp_path)
    with pytest.warns(CacheWarning, match="'weights' '4567' instead of '0123'"):
        assert load(REQUEST, tmp_path, {"weights": "0123"}) is None


def test_a_disk_that_is_full_after_hours_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, spare = tmp_path / "records", tmp_path / "temporary"
    spare.mkdir()
    full: set[Path] = set()
    monkeypatch.setattr(cache, "_UNSAVED", set())
    monkeypatch.setattr(cache.tempfile, "tempdir", str(spare))
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda place: SimpleNamespace(free=0 if place in full else 10**12))

    def compute(block: int) -> Any:
        full.add(folder)
        return {"block": block}, PROVENANCE

    blocks = [REQUEST | {"block": number} for number in range(3)]
    for number in range(2):  # the second would be refused before any work, were the first not in memory
        with pytest.warns(CacheWarning, match="not saved.*It is kept as .*temporary.*; move it to .*records"):
            record = load_or_compute(blocks[number], partial(compute, number), folder)
        assert record.data == {"block": number} and leftovers(folder) == []
    for kept in spare.glob("*/*.pickle"):
        os.rename(kept, folder / kept.name)
    full.clear()
    for number in range(2):
        assert silent(load_or_compute, blocks[number], lambda: pytest.fail("kept"), folder).data == {"block": number}
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda place: SimpleNamespace(free=10**12))
    silent(load_or_compute, blocks[2], partial(compute, 2), folder)
    assert set() == cache._UNSAVED


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


# ---- files that are no records ----


def test_a_machine_without_memory_does_not_lose_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(REQUEST, DATA, PROVENANCE, tmp_path)

    def exhausted(payload: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(cache, "decode", exhausted)
    with pytest.raises(MemoryError, match=f"not enough memory to read {re.escape(str(path))}"):
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


def test_the_request_of_a_record_is_plain_json(tmp_path: Path) -> None:
    save(REQUEST, DATA, PROVENANCE, tmp_path)
    record = silent(load, REQUEST, tmp_path)
    assert json.loads(json.dumps(record.request)) == REQUEST


def test_a_record_of_the_older_format_is_named_and_kept(tmp_path: Path) -> None:
    path = record_path(REQUEST, tmp_path)
    older = pickle.dumps({"request": REQUEST, "provenance": PROVENANCE, "data": DATA}, 5)
    path.write_bytes(older)
    with pytest.warns(CacheWarning, match=f"older version.*moved to {re.escape(str(path))}.old, recomputing"):
        record = load_or_compute(REQUEST, lambda: ({"n": 1}, {}), tmp_path)
    assert record.data == {"n": 1} == silent(load, REQUEST, tmp_path).data
    assert path.with_name(path.name + ".old").read_bytes() == older


@pytest.mark.parametrize("when", ["stat", "rename"])
def test_a_record_written_while_a_damaged_one_is_read_is_not_called_damaged(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(REQUEST, DATA, PROVENANCE, tmp_path)
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    real: Callable[..., Any] = getattr(Path, when)

    def slow(self: Path, *arguments: Any, **options: Any) -> Any:
        """Another process writes the record when this one is about to look at it again, or to rename it."""
        if read_once and not replaced:
            replaced.append(True)
            (tmp_path / "new").write_bytes(good)
            os.replace(tmp_path / "new", path)
        return real(self, *arguments, **options)

    def decode(payload: bytes) -> Any:
        try:
            return file_format.decode(payload)
        finally:
            read_once.append(True)

    read_once: list[bool] = []
    replaced: list[bool] = []
    monkeypatch.setattr(cache, "decode", decode)
    monkeypatch.setattr(Path, when, slow)
    record = silent(load, REQUEST, tmp_path)
    assert replaced and same(record.data, DATA) and leftovers(tmp_path) == [path.name]


def test_a_damaged_file_that_another_process_moved_is_a_silent_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record_path(REQUEST, tmp_path)
    path.write_bytes(b"damaged")

    def decode(payload: bytes) -> Any:
        path.unlink()
        return file_format.decode(payload)

    monkeypatch.setattr(cache, "decode", decode)
    assert silent(load, REQUEST, tmp_path) is None


def test_a_folder_that_is_a_file_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot read .*Not a directory.*ICL_MATERIAL"):
        load(REQUEST, tmp_path / "file" / "folder")


@pytest.mark.parametrize("parts", [{}, {"request": {}}, {"request": {}, "provenance": {}, "data": {}, "more": {}}])
def test_other_parts_than_those_of_a_record_are_refused(parts: Any, tmp_path: Path) -> None:
    path = record_path(REQUEST, tmp_path)
    variants = [parts, *({"request": {}, "provenance": {}, "data": {}} | {name: [1]} for name in ("request", "data"))]
    for variant in variants:
        path.write_bytes(encode(variant))
        with pytest.warns(CacheWarning, match="no record.*corrupt"):
            assert load(REQUEST, tmp_path) is None
