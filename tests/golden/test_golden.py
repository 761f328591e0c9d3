"""Exports of records: read without the suite, and compared to the last bit."""

import numpy as np

from tests.golden import compare, make
from util.study import records

REQUEST = {"measure": "figure", "model": "toy"}


def test_an_export_has_what_was_saved_and_one_bit_is_seen(tmp_path, capsys):
    effects = np.random.default_rng(0).normal(size=(3, 4))
    data = {"effects": {"value": effects, "n": 3}, "right": [np.array([True, False])]}
    records.write(records.Record(REQUEST, {"device": "cpu"}, data), tmp_path)
    (tmp_path / "records").mkdir()
    assert make.export(tmp_path, tmp_path / "records") == 1
    before, after = compare.records(tmp_path), compare.records(tmp_path)
    [(digest, arrays)] = before.items()
    assert digest == make.digest(REQUEST) and set(arrays) == {"effects/value", "right/0"}
    assert arrays["effects/value"].tobytes() == effects.tobytes() and compare.compared(before, after, 0.0, "arrays")
    changed = after[digest]
    changed["effects/value"][1, 2] = np.nextafter(effects[1, 2], 9.0)
    assert not compare.compared(before, after, 0.0, "arrays")
    assert f"differs: /{digest}/effects/value" in capsys.readouterr().out
    assert compare.compared(before, after, 1e-12, "arrays")
    assert compare.same(None, None, 0.0) and not compare.same(1.0, 1, 0.0) and not compare.same("a", "b", 0.0)
