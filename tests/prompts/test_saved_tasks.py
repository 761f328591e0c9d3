"""Tasks from data sets that were saved to disk."""

import sys
from types import SimpleNamespace

import pytest

from util.prompts import word_pairs


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A folder that looks like one of `save_to_disk`, and the package that reads it."""
    folder = tmp_path / "colours"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    given = SimpleNamespace(data=rows("x", "y", red="Red", blue="Blue", green="Green"))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=lambda _: given.data))
    return folder, given


def rows(first, second, **pairs):
    return [{first: x, second: y, "more": 1} for x, y in pairs.items()]


def test_a_saved_data_set_is_a_task_by_the_name_of_its_folder(saved):
    folder, given = saved
    task = word_pairs.find(str(folder))
    assert task.name == "colours" == word_pairs.shown_task(str(folder)) and task.pairs[0][:2] == ("red", "Red")
    assert word_pairs.find(str(folder)) == task
    given.data = rows("input", "output", a="A", b="B")  # another content is another task
    assert [pair[:2] for pair in word_pairs.find(str(folder)).pairs] == [("a", "A"), ("b", "B")]


def test_saved_data_sets_that_are_no_pairs_are_refused(saved, monkeypatch):
    folder, given = saved
    for data, said in (
        (rows("a", "b", a="b"), "one split with the columns x and y, or input and output is needed"),
        ({"train": 1, "test": 2}, "one split with the columns x and y"),
        (rows("x", "y", a="A") * 2, "'a' is an input twice"),
        (rows("x", "y", a=None), "is not an input and an output"),
    ):
        given.data = data
        with pytest.raises(ValueError, match=f"{folder}: .*{said}"):
            word_pairs.pairs_from_saved(folder)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        word_pairs.find(str(folder))
    with pytest.raises(ValueError, match="unknown word-pair task"):
        word_pairs.find(str(folder.parent))


def test_a_data_set_that_the_package_has_saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": ["red", "blue", "green"], "y": ["Red", "Blue", "Green"]})
    data.save_to_disk(str(tmp_path / "colours"))
    assert [pair.x for pair in word_pairs.find(str(tmp_path / "colours")).pairs] == ["red", "blue", "green"]
