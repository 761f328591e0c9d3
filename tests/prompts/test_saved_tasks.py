"""Tasks from data sets that were saved to disk."""

import sys
from types import SimpleNamespace

import pytest

from util.prompts import word_pairs


class Saved(dict):
    """Columns of a data set, as far as they are read here."""

    column_names = property(lambda self: [*super().keys()])
    keys = property(lambda self: (_ for _ in ()).throw(AttributeError()))


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A folder that looks like one of `save_to_disk`, and the package that reads it."""
    folder = tmp_path / "colours"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    data = {"x": ["red", "blue", "green", "white"], "y": ["Red", "Blue", "Green", "White"]}
    given = SimpleNamespace(data=Saved(data))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=lambda _: given.data))
    word_pairs._saved_task.cache_clear()
    return folder, given


def test_a_saved_data_set_is_a_task_by_the_name_of_its_folder(saved):
    folder, given = saved
    task = word_pairs.find(str(folder))
    assert task.name == "colours" == word_pairs.shown_task(str(folder)) and task.pairs[0][:2] == ("red", "Red")
    assert word_pairs.find(str(folder)) is task
    given.data = Saved(input=["a", "b", "c"], output=["A", "B", "C"], more=[1, 2, 3])
    assert [pair.y for pair in word_pairs.pairs_from_saved(folder)] == ["A", "B", "C"]


def test_a_folder_with_another_content_is_another_task(saved):
    folder, given = saved
    before = word_pairs.find(str(folder))
    given.data = Saved(x=["a", "b", "c"], y=["A", "B", "C"])
    (folder / "data.arrow").write_bytes(b"other")
    after = word_pairs.find(str(folder))
    assert [pair.x for pair in after.pairs] == ["a", "b", "c"] and word_pairs.find(str(folder)) is after
    (folder / "data.arrow").unlink()
    assert word_pairs.find(str(folder)) is before


def test_saved_data_sets_that_are_no_pairs_are_refused(saved, monkeypatch):
    folder, given = saved
    for data, words_ in (
        (Saved(a=["a"], b=["b"]), "has the columns a, b; x and y, or input and output are needed"),
        ({"train": 1, "test": 2}, "has the splits train, test; name the folder of one of them"),
        (Saved(x=["a", "b"], y=["A", "B"]), "2 pairs; at least 3"),
        (Saved(x=["a", "a", "b"], y=["A", "B", "C"]), "'a' is an input twice"),
        (Saved(x=["a", "b", "c"], y=["A", None, "C"]), "is not an input and an output"),
    ):
        given.data = data
        with pytest.raises(ValueError, match=words_):
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
