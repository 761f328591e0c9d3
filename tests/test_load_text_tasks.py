"""Where the texts of tasks come from: StaICC, folders in every format, and the hub."""

import json
import sys
from itertools import product
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.text_rows import EVALUATION, as_jsonl, splits, written
from tests.tiers import quick
from util import load_model_and_data as door
from util.load_model_and_data import load_text_task, reference_texts
from util.prompts import classification, text_tasks
from util.prompts.text_tasks import TEXT_TASKS, labelled_rows

OFFLINE = [name for name in TEXT_TASKS if text_tasks.find(name).staicc]


@pytest.fixture(autouse=True)
def _forget():
    for read in (door._text_task, door._reference_texts):
        read.cache_clear()
    yield
    for read in (door._text_task, door._reference_texts):
        read.cache_clear()


def expected(name):
    """The queries and the pool that the made-up rows give."""
    labelled = {split: labelled_rows(text_tasks.find(name), rows, split) for split, rows in splits(name).items()}
    if name == "ethos":
        return text_tasks.held_out(labelled["train"], name)[::-1]
    return labelled[EVALUATION.get(name, "validation")], labelled["train"]


# ------------------------------------------------------------------------------------------------ StaICC


@pytest.mark.parametrize("name", quick(["sst2"], OFFLINE))
def test_texts_of_staicc_are_those_of_its_own_prompts(name):
    task, version = load_text_task(name)
    assert OFFLINE == ["sst2", "subj"] and load_text_task(name)[0] is task
    assert version == f"StaICC {door.staicc_version()}"
    assert len(task.rows) == 512 and 4090 < len(task.pool) <= 4096
    first = {"sst2": "positive", "subj": "true"}[name]
    queries = dict(task.rows)
    for prompt in door.staicc_prompts(text_tasks.find(name).staicc, 0):
        text = prompt.texts("x")[-1].strip()
        field = text_tasks.find(name).template.partition(":")[0]
        assert (queries[f"{field}: {text}"] == task.labels[0]) == (prompt.label() == first)
    assert not queries.keys() & dict(task.pool).keys()


# ------------------------------------------------------------------------------------------------ folders


FORMATS = {
    "jsonl": as_jsonl,
    "json": lambda rows, file: file.with_suffix(".json").write_text(json.dumps(rows)),
    "csv": lambda rows, file: pd.DataFrame(rows).to_csv(file.with_suffix(".csv"), index=False),
    "parquet": lambda rows, file: pd.DataFrame(rows).to_parquet(file.with_suffix(".parquet")),
}


@pytest.mark.parametrize(
    "name, write", [*product(TEXT_TASKS, ["jsonl"]), ("rte", "json"), ("boolq", "csv"), ("ethos", "parquet")]
)
def test_every_task_is_read_from_files_of_every_format(write, name, tmp_path):
    if write == "parquet":
        pytest.importorskip("datasets")
    for split, rows in splits(name).items():
        FORMATS[write](rows, tmp_path / split)
    task = load_text_task(name, tmp_path)[0]
    assert (task.rows, task.pool) == expected(name) and task.name == name
    assert load_text_task(name, str(tmp_path))[0] is task
    assert classification.prompts(task, 4, limit=2)[0].labels == task.labels


def test_a_folder_is_read_again_when_its_content_changes(tmp_path):
    folder = written("rte", tmp_path / "my rte")
    before, version = load_text_task("rte", folder)
    assert version.startswith("my rte content:") and str(tmp_path) not in version
    file = folder / "validation.jsonl"
    file.write_text(file.read_text().replace("boats", "ships"))
    after, other = load_text_task("rte", folder)
    assert "ships" in after.rows[0][0] and "boats" in before.rows[0][0]
    assert other != version


NEEDS = (
    r"give a folder with train.jsonl and validation.jsonl \(or .json, .csv, .parquet.*\), with the columns premise, "
    "hypothesis and label \\(0 or entailment, 1 or not_entailment\\)"
)
REFUSED = {  # what is asked for, the files of rte that are there, the message
    "no folder": ("rte", "nowhere", (), f"there is no folder '.*'; {NEEDS}"),
    "an empty folder": ("rte", "", (), f"one file train is needed, .*; {NEEDS}"),
    "one split": ("rte", "", ("train",), f"one file validation is needed, .*; {NEEDS}"),
    "the split that is asked": ("subj", "nowhere", (), "with train.jsonl and test.jsonl"),
    "a task of one split": ("ethos", "nowhere", (), r"with train.jsonl \(or"),
    "an unknown task": ("cola", "", (), "no text task 'cola'; there are boolq"),
    "rows of another task": (
        "boolq", "", ("train", "validation"), "^train of boolq, row 0: there is no column 'passage'; it has premise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_is_named_with_what_is_needed(case, tmp_path):
    name, folder, files, message = REFUSED[case]
    for split in files:
        as_jsonl(splits("rte")[split], tmp_path / split)
    with pytest.raises(ValueError, match=message):
        load_text_task(name, tmp_path / folder)


# ------------------------------------------------------------------------------------------------ the hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASKED = {
    "rte": ("aps/super_glue", {"name": "rte"}), "wsc": ("aps/super_glue", {"name": "wsc.fixed"}),
    "sst2": ("nyu-mll/glue", {"name": "sst2"}), "subj": ("SetFit/subj", {}),
    "ethos": (
        "iamollas/ethos", {"data_files": {"train": "binary/train/*.parquet"}, "revision": "refs/convert/parquet"},
    ),
}  # fmt: skip


class Rows(list):
    """As much of a data set of `datasets` as is asked for."""

    info = SimpleNamespace(download_checksums={f"hf://datasets/some/id@{COMMIT}/train-00000.parquet": {}})
    cache_files: tuple[dict[str, str], ...] = ()


def hub_of(monkeypatch, answer):
    """A stand-in for the hub; the list that it returns has what was asked."""
    asked = []

    def load_dataset(id, split, **options):
        asked.append((id, split, options))
        return answer(split)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


@pytest.mark.parametrize("name", ASKED)
def test_the_hub_is_asked_for_both_splits_once(name, monkeypatch):
    asked = hub_of(monkeypatch, lambda split: Rows(splits(name)[split]))
    task, version = load_text_task(name, "hub")
    assert (task.rows, task.pool) == expected(name) and load_text_task(name, "hub")[0] is task
    id, options = ASKED[name]
    assert asked == [(id, split, options) for split in (["train"] if name == "ethos" else splits(name))]
    assert version == f"{text_tasks.find(name).hub[0]} {COMMIT}"
    assert name in OFFLINE or load_text_task(name)[0] is task


def test_the_commit_is_read_off_cached_files_where_addresses_lack_it(monkeypatch):
    class Cached(Rows):
        info = SimpleNamespace(download_checksums=None)
        cache_files = ({"filename": f"/cache/aps___super_glue/rte/0.0.0/{COMMIT}/super_glue-train.arrow"},)

    hub_of(monkeypatch, lambda split: Cached(splits("rte")[split]))
    assert load_text_task("rte")[1] == f"aps/super_glue {COMMIT}"
    door._text_task.cache_clear()
    Cached.cache_files = ({"filename": f"/cache/{COMMIT}{COMMIT[:24]}.arrow"},)  # a digest, no commit
    assert load_text_task("rte")[1] == "aps/super_glue of an unknown commit"


@pytest.mark.parametrize(
    "read, origin, columns", [(lambda: load_text_task("rte"), "aps/super_glue", NEEDS),
                                    (reference_texts, "nyu-mll/glue", "with the column premise")],
)  # fmt: skip
def test_without_hub_or_package_the_message_says_what_is_needed(read, origin, columns, monkeypatch):
    def unreachable(split):
        raise ConnectionError("Couldn't reach the hub")

    hub_of(monkeypatch, unreachable)
    with pytest.raises(ValueError, match=f"cannot read train of {origin} .*Couldn't reach the hub.*{columns}"):
        read()
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ValueError, match=f"{origin} of the hub: .*pip install datasets.*{columns}"):
        read()


# ------------------------------------------------------------------------------------------------ reference texts


def test_premises_are_read_once_each_in_their_order(monkeypatch, tmp_path):
    rows = [{"premise": text, "hypothesis": "h", "label": 0} for text in ("b .", "a", "b . ", "c")]
    as_jsonl(rows, tmp_path / "train")
    assert reference_texts(tmp_path) == ("b .", "a", "c")
    asked = hub_of(monkeypatch, lambda split: Rows(rows))
    assert reference_texts() == ("b .", "a", "c") and asked == [("nyu-mll/glue", "train", {"name": "mnli"})]
    assert reference_texts() is reference_texts() and len(asked) == 1
    as_jsonl(rows[1:], tmp_path / "train")
    assert reference_texts(tmp_path) == ("a", "b .", "c")
