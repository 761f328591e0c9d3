"""From a request to a record: caching, resuming, and what makes a cached record a miss."""

import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests import toys
from util import cache, inference
from util import load_model_and_data as loading
from util.experiments import forerunner, runs
from util.measures import forerunner as measures


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    toys.model("llama").save_pretrained(folder)
    toys.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def asked(model_folder):
    return forerunner.request(str(model_folder), k=1, prompts=10, control_tokens=4)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(forerunner, "BLOCK", 4)


def quiet(folder):
    return runs.LazyModel(str(folder), verbose=False)


def never():
    raise AssertionError("a cached record must not load a model")


def test_a_record_holds_what_inference_measures(asked, model_folder, tmp_path):
    record = forerunner.run(asked, quiet(model_folder), tmp_path)
    model, tokenizer = loading.load_ICL_model(model_folder, verbose=False)
    prompts = loading.staicc_prompts(2, 1)[:10]
    direct = inference.copy_magnitudes(model, inference.label_run(model, tokenizer, prompts), control_tokens=4)
    np.testing.assert_allclose(record.data["magnitude"], direct["magnitude"], atol=1e-6)
    np.testing.assert_allclose(record.data["control"], direct["control"], atol=1e-6)
    assert record.data["gold"].tolist() == [p.gold for p in prompts]
    assert record.data["demonstrations"].shape == (10, 1) and record.data["n_t"].shape == (10, 2)
    assert record.provenance["dtype"] == "float32" and len(record.provenance["prompt_digest"]) == 16
    assert not list((tmp_path / "blocks").iterdir()), "blocks of a finished run are removed"


def test_a_second_run_needs_no_model(asked, model_folder, tmp_path):
    first = forerunner.run(asked, quiet(model_folder), tmp_path)
    again = forerunner.run(asked, never, tmp_path)
    np.testing.assert_array_equal(first.data["magnitude"], again.data["magnitude"])


def test_a_record_is_analysed_and_drawn_without_torch(asked, model_folder, tmp_path):
    record = forerunner.run(asked, quiet(model_folder), tmp_path)
    part = forerunner.condition(record, 1)
    expected = measures.head_counts(part["magnitude"], part["n_t"]).tolist()
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'tokenizers', 'StaICC'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import json\n"
        "from util import cache, plots\n"
        "from util.measures import forerunner as f\n"
        "asked, folder = json.loads(sys.argv[1]), sys.argv[2]\n"
        "data = cache.load(asked, folder).data\n"
        "counts = f.head_counts(data['magnitude'][:, 1], data['n_t'][:, 1])\n"
        "plots.count_maps({'wrong': counts}, 10, 'title').savefig(folder + '/figure.png')\n"
        "print(counts.tolist())\n"
    )
    command = [sys.executable, "-c", code, json.dumps(asked), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected and (tmp_path / "figure.png").stat().st_size > 1000


def test_an_interrupted_run_goes_on_where_it_stopped(asked, model_folder, tmp_path, monkeypatch):
    whole = forerunner.run(asked, quiet(model_folder), tmp_path / "whole")
    original = inference.copy_magnitudes
    seen: list[int | str] = []

    def failing(model, plan, *, numbers, **options):
        if numbers.start == 8 and not seen.count("failed"):
            seen.append("failed")
            raise KeyboardInterrupt
        seen.append(numbers.start)
        return original(model, plan, numbers=numbers, **options)

    monkeypatch.setattr(inference, "copy_magnitudes", failing)
    with pytest.raises(KeyboardInterrupt):
        forerunner.run(asked, quiet(model_folder), tmp_path / "parts")
    record = forerunner.run(asked, quiet(model_folder), tmp_path / "parts")
    assert seen == [0, 4, "failed", 8]
    np.testing.assert_array_equal(record.data["magnitude"], whole.data["magnitude"])  # the same bits


def test_redo_measures_again(asked, model_folder, tmp_path, monkeypatch):
    forerunner.run(asked, quiet(model_folder), tmp_path)
    calls, original = [], inference.copy_magnitudes
    monkeypatch.setattr(inference, "copy_magnitudes", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
    forerunner.run(asked, quiet(model_folder), tmp_path, redo=True)
    assert len(calls) == 3


def test_every_part_of_the_request_is_part_of_the_key(tmp_path):
    base = {"model": "a/b", "dataset": 2, "k": 4, "prompts": 16}
    changes = {
        "model": "a/c",
        "dataset": 3,
        "k": 5,
        "prompts": 15,
        "label_offsets": (0, 2),
        "control_tokens": 8,
        "seed": 1,
    }
    changes |= {"dtype": "bfloat16", "quantized": True, "revision": "main", "untrained_seed": 0}
    keys = {cache.record_path(forerunner.request(**base), tmp_path)}
    for name, value in changes.items():
        keys.add(cache.record_path(forerunner.request(**(base | {name: value})), tmp_path))
    assert len(keys) == 1 + len(changes)
    assert set(changes) == set(forerunner.request.__annotations__) - {"return"}


def test_other_weights_under_the_same_name_are_a_miss(asked, model_folder, tmp_path):
    moved = tmp_path / "model"
    shutil.copytree(model_folder, moved)
    asked = {**asked, "model": str(moved)}
    old = forerunner.run(asked, quiet(moved), tmp_path)
    toys.model("llama", seed=7).save_pretrained(moved)
    with pytest.warns(cache.CacheWarning, match="revision"):
        new = forerunner.run(asked, quiet(moved), tmp_path)
    assert np.abs(new.data["magnitude"] - old.data["magnitude"]).max() > 1e-2


def test_a_corrupt_record_is_set_aside_and_measured_again(asked, model_folder, tmp_path):
    forerunner.run(asked, quiet(model_folder), tmp_path)
    file = cache.record_path(asked, tmp_path)
    file.write_bytes(pickle.dumps(print))
    with pytest.warns(cache.CacheWarning, match="corrupt"):
        record = forerunner.run(asked, quiet(model_folder), tmp_path)
    assert record.data["magnitude"].shape == (10, 2, 3, 4) and list(tmp_path.glob("*.corrupt*"))


def test_a_model_of_another_dtype_than_asked_is_refused(asked, model_folder, tmp_path):
    pair = loading.load_ICL_model(model_folder, verbose=False)
    with pytest.raises(ValueError, match="dtype bfloat16 was asked for, but the model given is float32"):
        forerunner.run({**asked, "dtype": "bfloat16"}, pair, tmp_path)


def test_bad_requests_fail_before_any_work():
    with pytest.raises(ValueError, match="choose 1 to 512"):
        forerunner.request(prompts=513)
    with pytest.raises(ValueError, match="cannot be negative"):
        forerunner.request(k=-1)
    with pytest.raises(ValueError, match="unknown data set"):
        forerunner.request(dataset="imdb")


def test_an_unwritable_folder_is_refused_before_the_model_is_loaded(asked, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(cache.CacheError):
        forerunner.run(asked, never, tmp_path / "file" / "folder")


def test_the_grid_shows_what_is_cached(asked, model_folder, tmp_path):
    model = quiet(model_folder)
    for dataset in ("financial_phrasebank", "trec"):
        forerunner.run({**asked, "dataset": dataset}, model, tmp_path)
    assert list(forerunner.cached_grid(asked, tmp_path)) == ["financial_phrasebank", "trec"]


def test_an_untrained_model_does_not_know_the_label(tmp_path):
    """Check C5: correct and wrong maps agree in distribution on random weights."""
    asked = forerunner.request("untrained toy", k=1, prompts=64)
    record = forerunner.run(asked, (toys.model("llama"), toys.tokenizer()), tmp_path)
    correct, wrong = (forerunner.condition(record, offset) for offset in (0, 1))
    first, second = (measures.head_counts(p["magnitude"], p["n_t"]) for p in (correct, wrong))
    assert np.abs(first - second).max() <= 0.35 * 64
    assert (measures.verdicts(correct["magnitude"], correct["control"], correct["n_t"]) != "label-specific").all()
