"""Rows of local files, in every format."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from util.prompts import own_tasks

ROWS = [{"text": "a, b", "label": 1}, {"text": 'c "d"\ne', "label": 0}, {"text": "f\u2028g", "label": 1}]


class Dataset(list):
    """As much of a data set of `datasets` as is asked for."""

    from_parquet = staticmethod(lambda file: Dataset(ROWS))


def test_parquet_and_saved_folders_are_read_by_datasets(monkeypatch, tmp_path):
    on_disk: list[Any] = [{"train": Dataset(ROWS), "test": Dataset(ROWS[:1])}]
    package = SimpleNamespace(load_from_disk=lambda folder: on_disk[0], Dataset=Dataset)
    monkeypatch.setitem(sys.modules, "datasets", package)
    (tmp_path / "train.parquet").touch()
    assert list(own_tasks.rows_of_split(tmp_path, "train")) == ROWS
    assert not own_tasks.is_saved(tmp_path)
    (tmp_path / "dataset_dict.json").touch()
    assert own_tasks.is_saved(tmp_path)
    assert list(own_tasks.rows_of_split(tmp_path, "test")) == ROWS[:1]
    with pytest.raises(ValueError, match="a DatasetDict that has validation; it has train, test"):
        own_tasks.rows_of_split(tmp_path, "validation")
    on_disk[0] = Dataset(ROWS)
    with pytest.raises(ValueError, match="a DatasetDict that has train; it has no splits"):
        own_tasks.rows_of_split(tmp_path, "train")


@pytest.mark.parametrize(
    "files, message",
    [
        ({"rows.json": b"{}"}, "rows.json: a .json file must be a list of objects"),
        ({"rows.jsonl": b"{"}, "rows.jsonl: Expecting"),
        ({"rows.csv": b'text\n"a"b\n'}, "rows.csv: "),
        ({"rows.csv": b"text\n\xff\n"}, "rows.csv: .*utf-8"),
        ({"rows.parquet": b""}, "rows.parquet: .*pip install datasets"),
        ({"rows.json": b"[]", "rows.csv": b""}, "one file rows is needed, .*; there are 2 of them"),
        ({"rows.txt": b""}, "one file rows is needed, .jsonl, .json, .csv, .parquet; there are 0"),
    ],
)
def test_what_cannot_be_read_names_the_file(files, message, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        own_tasks.rows_of_split(tmp_path, "rows")


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path):
    (tmp_path / "rows.csv").write_bytes("\ufefftext,label\r\na,1\r\n".encode())
    assert list(own_tasks.rows_of_split(tmp_path, "rows")) == [{"text": "a", "label": "1"}]
