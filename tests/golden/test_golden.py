"""Exports of records: read without the suite, and compared to the last bit."""

import json
import pickle
import sys

import numpy as np
import pytest

from tests.golden import compare, make
from util.study import records

REQUEST = {"measure": "figure", "model": "toy"}


def keep(request, data, folder):
    records.write(records.Record(request, {"device": "cpu"}, data), folder)


def test_an_export_has_what_was_saved_and_one_bit_is_seen(tmp_path, capsys):
    effects = np.random.default_rng(0).normal(size=(3, 4))
    data = {"effects": {"value": effects, "n": 3}, "right": [np.array([True, False])]}
    keep(REQUEST, data, tmp_path / "material")
    for name in ("before", "after"):
        (tmp_path / name / "records").mkdir(parents=True)
        assert make.export(tmp_path / "material", tmp_path / name / "records") == 1
    [(digest, before)], [(_, after)] = (compare.records(tmp_path / name).items() for name in ("before", "after"))
    assert digest == make.digest(REQUEST) and set(before) == {"effects/value", "right/0"}
    assert before["effects/value"].tobytes() == effects.tobytes() and compare.compared(before, after, 0.0, "arrays")
    after["effects/value"][1, 2] = np.nextafter(after["effects/value"][1, 2], 9.0)
    assert not compare.compared(before, after, 0.0, "arrays") and "differs: effects/value" in capsys.readouterr().out
    assert compare.compared(before, after, 1e-12, "arrays")
    assert compare.digests(before)["effects/value"] != compare.digests(after)["effects/value"]


def test_arrays_are_found_whatever_their_records_are_called(tmp_path, capsys, monkeypatch):
    effects = np.random.default_rng(0).normal(size=(3, 4))
    for name, request, array in (("before", "one", effects), ("moved", "two", effects), ("other", "two", effects + 1)):
        folder = tmp_path / name
        keep({"measure": request, "model": "toy"}, {"value": array}, folder / "material")
        (folder / "records").mkdir()
        make.export(folder / "material", folder / "records")
    for name, lost in (("moved", 0), ("other", 1)):
        monkeypatch.setattr(sys, "argv", ["compare", "--content", str(tmp_path / "before"), str(tmp_path / name)])
        with pytest.raises(SystemExit) as ended:
            compare.main()
        assert ended.value.code == lost and f"{lost} of 1 arrays are lost" in capsys.readouterr().out


def test_records_of_earlier_commits_are_read(tmp_path):
    line = json.dumps({"request": {"stem": "figure"}, "data": {"value": {"$array": ["<f8", [2]]}}}).encode()
    numbers = np.array([1.0, 2.0])
    (tmp_path / "old.pickle").write_bytes(
        pickle.dumps(b"icl record 1\nits digest\n" + line + b"\n" + numbers.tobytes())
    )
    parts = make.record(tmp_path / "old.pickle")
    assert parts["request"] == {"stem": "figure"} and parts["data"]["value"].tobytes() == numbers.tobytes()


@pytest.mark.parametrize(
    ("first", "second", "equal"), [(1.0, 1.0, True), (1.0, 1, False), (None, None, True), ("a", "b", False)]
)
def test_values_are_equal_only_with_their_types(first, second, equal):
    assert compare.same(first, second, 0.0) == equal
