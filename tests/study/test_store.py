"""The store: what goes in comes out, what does not fit is measured again, nothing is half written."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest

from util.study import store
from util.study.records import Damaged, Record, decode, encode, kept, place_of, read, write

REQUEST = {"measure": "a measure", "model": "some/model", "n": 3}
DATA = {
    "values": np.arange(6, dtype=np.float32).reshape(2, 3),
    "nested": {"mask": np.array([True, False]), "list": [np.float64(0.1), np.zeros((0, 2), np.int64)], "text": "ä"},
    "scalar": np.array(1.5),
    "nothing": None,
}
RECORD = Record(REQUEST, {"weights": "w", "versions": {"torch": "1"}}, DATA)


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and np.array_equal(one, other)
    return one == other


def test_what_goes_in_comes_out(tmp_path):
    write(RECORD, tmp_path)
    found = read(REQUEST, tmp_path, {})
    assert found is not None and same(found.data, DATA) and found.provenance == RECORD.provenance
    assert [file.name for file in tmp_path.iterdir()] == [place_of(REQUEST, tmp_path).name]
    assert place_of(REQUEST, tmp_path).name.startswith("a-measure-some-model-")


def test_a_record_opens_without_the_suite(tmp_path):
    """In a process that knows pickle and safetensors alone."""
    write(RECORD, tmp_path)
    program = (
        "import pickle, sys, json, safetensors.numpy; inside = pickle.load(open(sys.argv[1], 'rb'));"
        "arrays = safetensors.numpy.load(inside); length = int.from_bytes(inside[:8], 'little');"
        "header = json.loads(inside[8:8 + length]);"
        "record = json.loads(header['__metadata__']['record']);"
        "print(record['request']['n'], arrays[record['data']['values']['$array']].tolist(), 'util' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(place_of(REQUEST, tmp_path))]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.strip() == "3 [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] False"


def test_no_changed_byte_is_read():
    payload = encode(RECORD)
    rng = np.random.default_rng(0)
    for place in [*range(40), *rng.integers(0, len(payload), 400)]:
        changed = bytearray(payload)
        changed[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(Damaged):
            decode(bytes(changed))
    for end in range(0, len(payload), 97):
        with pytest.raises(Damaged):
            decode(payload[:end])


@pytest.mark.parametrize("value", [object(), np.array(["a"]), {1, 2}, np.array([1 + 2j])])
def test_what_a_record_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="a record cannot hold"):
        encode(Record(REQUEST, {}, {"value": value}))


@pytest.mark.parametrize("request_", [{"n": (1, 2)}, {"n": float("nan")}, {1: 2}])
def test_a_request_is_plain_json(request_, tmp_path):
    with pytest.raises((TypeError, ValueError)):
        place_of(REQUEST | request_, tmp_path)


def test_what_differs_is_said_and_measured_again(tmp_path, capsys):
    write(RECORD, tmp_path)
    assert read(REQUEST, tmp_path, {"weights": "w", "dtype": "float32", "revision": None}) is not None
    assert read(REQUEST, tmp_path, {"weights": "others"}) is None
    assert "has weights 'w' and not 'others': it is measured again" in capsys.readouterr().err
    assert read(REQUEST, tmp_path, {"versions": {"torch": "2"}}) is not None
    assert "was measured with versions {'torch': '1'}" in capsys.readouterr().err
    assert read(REQUEST | {"n": 4}, tmp_path, {}) is None


def test_a_damaged_record_is_renamed_once_and_measured_again(tmp_path, capsys):
    file = place_of(REQUEST, tmp_path)
    for content in (b"", b"\x80\x05", encode(Record(REQUEST | {"n": 4}, {}, {}))):
        file.write_bytes(content)
        found = kept(REQUEST, lambda: RECORD, tmp_path, {})
        again = read(REQUEST, tmp_path, {})
        assert found is RECORD and again is not None and same(again.data, DATA)
        assert file.with_suffix(".damaged").read_bytes() == content
        assert "is damaged" in capsys.readouterr().err


def test_a_record_is_measured_once(tmp_path):
    measured = []

    def measure():
        measured.append(1)
        return RECORD

    for redo, times in ((False, 1), (False, 1), (True, 2)):
        kept(REQUEST, measure, tmp_path / "deep", {}, redo)
        assert len(measured) == times


def test_two_processes_measure_a_record_once(tmp_path):
    """The second waits for the first, and reads."""
    program = (
        "import sys, time; from pathlib import Path; from util.study.store import Record, kept\n"
        "def measure():\n"
        "    Path(sys.argv[1], 'measured').open('a').write('x'); time.sleep(1.5)\n"
        "    return Record({'measure': 'm', 'model': 'x'}, {}, {'n': 1})\n"
        "print(kept({'measure': 'm', 'model': 'x'}, measure, Path(sys.argv[1]), {}).data['n'])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [one.communicate()[0].strip() for one in both] == ["1", "1"]
    assert (tmp_path / "measured").read_text() == "x"


def test_where_nothing_can_be_written_that_is_said_before_anything_is_measured(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write to .*ICL_MATERIAL"):
        kept(REQUEST, lambda: pytest.fail("measured"), tmp_path / "file" / "folder", {})
    monkeypatch.setattr(store.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 0}))
    with pytest.raises(OSError, match="disk is full.*free space"):
        kept(REQUEST, lambda: RECORD, tmp_path, {})
    assert not list(tmp_path.glob("*.pickle"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(store.os, "fsync", lambda file: (_ for _ in ()).throw(OSError("pulled out")))
    with pytest.raises(OSError, match="pulled out"):
        write(RECORD, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reading_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert json.loads(json.dumps(decode(encode(RECORD)).request)) == REQUEST
