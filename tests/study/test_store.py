"""The files of records: what goes in comes out, what does not fit is measured again, nothing is half written."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_equal

from util.study import records
from util.study.records import Record, decode, encode, kept, place_of, read, write

REQUEST = {"measure": "a measure", "model": "some/model", "n": 3}
DATA = {
    "values": np.arange(6, dtype=np.float32).reshape(2, 3),
    "nested": {"mask": np.array([True, False]), "list": [np.float64(0.1), np.zeros((0, 2), np.int64)], "text": "ä"},
    "scalar": np.array(1.5),
    "nothing": None,
}
RECORD = Record(REQUEST, {"weights": "w", "versions": {"torch": "1"}}, DATA)


def kept_record(folder, measure=lambda: RECORD, redo=False):
    with kept(REQUEST, folder, {}, redo=redo) as found:
        if not found:
            found.append(measure())
    return found[0]


def test_what_goes_in_comes_out_and_opens_without_the_suite(tmp_path):
    """In a process that knows pickle and safetensors alone."""
    write(RECORD, tmp_path)
    file = place_of(REQUEST, tmp_path)
    assert [*tmp_path.iterdir()] == [file] and file.name.startswith("a-measure-some-model-")
    record = read(REQUEST, tmp_path, {})
    assert record is not None and record.provenance == RECORD.provenance and record.request == REQUEST
    assert_equal(record.data, DATA)
    assert record.data["values"].dtype == np.float32 and record.data["nested"]["list"][1].shape == (0, 2)
    program = (
        "import pickle, sys, json, safetensors.numpy; inside = pickle.load(open(sys.argv[1], 'rb'));"
        "arrays = safetensors.numpy.load(inside); length = int.from_bytes(inside[:8], 'little');"
        "record = json.loads(json.loads(inside[8:8 + length])['__metadata__']['record']);"
        "print(record['request']['n'], arrays[record['data']['values']['$array']].tolist(), 'util' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout == "3 [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] False\n"


def test_no_damaged_byte_is_read():
    """One is changed, or the file is cut off there, or blanked from there."""
    payload = encode(RECORD)
    for place in range(0, len(payload), 3):
        changed = bytearray(payload)
        changed[place] ^= 1 << place % 8
        for damaged in (changed, payload[:place], payload[:place].ljust(len(payload), b"\0")):
            with pytest.raises(ValueError):
                decode(bytes(damaged))


@pytest.mark.parametrize("value", [object(), np.array(["a"]), {1, 2}, np.array([1 + 2j])])
def test_what_a_record_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="a record cannot hold"):
        encode(Record(REQUEST, {}, {"value": value}))


@pytest.mark.parametrize("request_", [{"n": (1, 2)}, {"n": float("nan")}, {1: 2}])
def test_a_request_is_plain_json(request_, tmp_path):
    with pytest.raises((TypeError, ValueError)):
        place_of(REQUEST | request_, tmp_path)


@pytest.mark.parametrize(
    "expected, hit, message",
    [
        ({"weights": "w", "dtype": "float32", "revision": None}, True, ""),
        ({"weights": "others"}, False, "has weights 'w' and not 'others': it is measured again"),
        ({"versions": {"torch": "2"}}, True, "has records that were measured with versions {'torch': '1'}"),
    ],
)
def test_what_differs_is_said_and_measured_again(expected, hit, message, tmp_path, capsys):
    write(RECORD, tmp_path)
    assert (read(REQUEST, tmp_path, expected) is not None) == hit and message in capsys.readouterr().err
    assert read(REQUEST, tmp_path, expected) is None or not capsys.readouterr().err, "packages are named once"
    assert read(REQUEST | {"n": 4}, tmp_path, {}) is None


@pytest.mark.parametrize("content", [b"", b"\x80\x05", encode(Record(REQUEST | {"n": 4}, {}, {}))])
def test_a_damaged_record_is_renamed_once_and_measured_again(content, tmp_path, capsys):
    file = place_of(REQUEST, tmp_path)
    file.write_bytes(content)
    assert kept_record(tmp_path) is RECORD and "is damaged" in capsys.readouterr().err
    assert file.with_suffix(".damaged").read_bytes() == content and read(REQUEST, tmp_path, {}) is not None


def test_of_two_at_once_one_measures_and_the_other_waits_and_reads(tmp_path, capsys):
    measured = []

    def measure():
        time.sleep(0.5)
        measured.append(1)
        return RECORD

    with ThreadPoolExecutor(2) as both:  # the lock is on a file, as for two processes
        records_ = [*both.map(lambda _: kept_record(tmp_path, measure), range(2))]
    assert len(measured) == 1 and [record.request for record in records_] == [REQUEST] * 2
    assert "waiting for another process that measures a-measure" in capsys.readouterr().err


def test_where_nothing_can_be_written_that_is_said_before_anything_is_measured(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write to .*ICL_MATERIAL"):
        kept_record(tmp_path / "file" / "folder", lambda: pytest.fail("measured"))
    monkeypatch.setattr(records.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 0}))
    with pytest.raises(OSError, match="disk is full.*free space"):
        kept_record(tmp_path)
    assert not list(tmp_path.glob("*.pickle"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError("pulled out")))
    with pytest.raises(OSError, match="pulled out"):
        write(RECORD, tmp_path)
    assert list(tmp_path.iterdir()) == []
