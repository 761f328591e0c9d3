"""From a request to a record: caching, resuming, and what makes a cached record a miss."""

import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests import toys
from util import load_model_and_data as loading
from util.figures.forerunner_heads import magnitudes, measures
from util.figures.forerunner_heads import study as forerunner
from util.records import cache, provenance
from util.records.runs import LazyModel, Run


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return toys.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def asked(model_folder):
    return forerunner.request(str(model_folder), k=1, prompts=10, control_tokens=4)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(forerunner, "BLOCK", 4)


def quiet(folder):
    return LazyModel(str(folder), verbose=False)


def never():
    raise AssertionError("a cached record must not load a model")


def test_a_record_holds_what_inference_measures(asked, model_folder, tmp_path):
    record = forerunner.run(asked, quiet(model_folder), tmp_path)
    model, tokenizer = loading.load_ICL_model(model_folder, verbose=False)
    prompts = loading.staicc_prompts(2, 1)[:10]
    direct = magnitudes.copy_magnitudes(
        model, magnitudes.label_run(model, tokenizer, prompts, (0, 1, "the")), control_tokens=4
    )
    np.testing.assert_allclose(record.data["magnitude"], direct["magnitude"], atol=1e-6)
    np.testing.assert_allclose(record.data["control"], direct["control"], atol=1e-6)
    assert record.data["gold"].tolist() == [p.gold for p in prompts]
    assert record.data["demonstrations"].shape == (10, 1) and record.data["n_t"].shape == (10, 3)
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
        "from util import cache\n"
        "from util.plots import forerunner as plots\n"
        "from util.measures import forerunner as f\n"
        "asked, folder = json.loads(sys.argv[1]), sys.argv[2]\n"
        "data = cache.load(asked, folder).data\n"
        "counts = f.head_counts(data['magnitude'][:, 1], data['n_t'][:, 1])\n"
        "figure = plots.count_maps({'wrong': counts}, {'wrong': 10}, {'wrong': (0, 0, 0)}, 'title')\n"
        "figure.savefig(folder + '/figure.png')\n"
        "print(counts.tolist())\n"
    )
    command = [sys.executable, "-c", code, json.dumps(asked), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected and (tmp_path / "figure.png").stat().st_size > 1000


def test_an_interrupted_run_goes_on_where_it_stopped(asked, model_folder, tmp_path, monkeypatch):
    whole = forerunner.run(asked, quiet(model_folder), tmp_path / "whole")
    original = magnitudes.copy_magnitudes
    seen: list[int | str] = []

    def failing(model, plan, *, numbers, **options):
        if numbers.start == 8 and not seen.count("failed"):
            seen.append("failed")
            raise KeyboardInterrupt
        seen.append(numbers.start)
        return original(model, plan, numbers=numbers, **options)

    monkeypatch.setattr(magnitudes, "copy_magnitudes", failing)
    with pytest.raises(KeyboardInterrupt):
        forerunner.run(asked, quiet(model_folder), tmp_path / "parts")
    record = forerunner.run(asked, quiet(model_folder), tmp_path / "parts")
    assert seen == [0, 4, "failed", 8]
    np.testing.assert_array_equal(record.data["magnitude"], whole.data["magnitude"])  # the same bits


def test_redo_measures_again(asked, model_folder, tmp_path, monkeypatch):
    forerunner.run(asked, quiet(model_folder), tmp_path)
    calls, original = [], magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
    forerunner.run(asked, quiet(model_folder), tmp_path, redo=True)
    assert len(calls) == 3


def test_every_part_of_the_request_is_part_of_the_key(tmp_path):
    base = {"model": "a/b", "dataset": 2, "k": 4, "prompts": 16}
    changes = {
        "model": "a/c",
        "dataset": 3,
        "k": 5,
        "prompts": 15,
        "appended": (0, 2),
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
    assert record.data["magnitude"].shape == (10, 3, 3, 4) and list(tmp_path.glob("*.corrupt*"))


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


def test_the_grid_is_checked_measured_and_cached_by_name_or_index(asked, model_folder, tmp_path):
    """An index is the data set's name in the request; nothing is measured before all requests are checked."""
    by_index = forerunner.grid(asked, [{"dataset": 4}, {"dataset": "trec", "k": 0}], quiet(model_folder), tmp_path)
    by_name = forerunner.grid(asked, [{"dataset": "trec"}], never, tmp_path)
    assert [record.request["dataset"] for record in by_index] == ["trec", "trec"]
    assert [record.request["k"] for record in by_index] == [1, 0] and by_name[0].request == by_index[0].request
    with pytest.raises(ValueError, match="unknown data set 'imdb'"):
        forerunner.grid(asked, [{"dataset": "sst5"}, {"dataset": "imdb"}], never, tmp_path)
    growth = forerunner.growth_by_k(by_index)
    assert set(growth.fixed) == {0, 1} and set(growth.counts) == {"correct", "wrong", "other word"}
    correct = forerunner.condition(by_index[1], 0)
    np.testing.assert_array_equal(growth.maps[0], measures.head_counts(correct["magnitude"], correct["n_t"]))


def test_a_changed_request_is_a_request(asked):
    assert forerunner.changed(asked) == asked
    assert forerunner.changed(asked, dataset=4, k=2) == {**asked, "dataset": "trec", "k": 2}
    with pytest.raises(ValueError, match="cannot be negative"):
        forerunner.changed(asked, k=-1)


def test_lists_may_be_given_as_text():
    assert forerunner.listed(["trec", 4]) == ["trec", 4] and forerunner.listed((0, 1)) == [0, 1]
    assert forerunner.listed("['trec', 'sst5']") == forerunner.listed('["trec", "sst5"]') == ["trec", "sst5"]
    assert forerunner.listed("[0, 4]") == [0, 4]
    assert forerunner.listed("trec") == ["trec"] and forerunner.listed("4") == [4] and forerunner.listed(4) == [4]
    with pytest.raises(ValueError, match="no list"):
        forerunner.listed("[trec")


def test_an_untrained_model_does_not_know_the_label(tmp_path):
    """Check C5: correct and wrong maps agree in distribution on random weights."""
    asked = forerunner.request("given:untrained toy", k=1, prompts=64)
    record = forerunner.run(asked, (toys.model("llama"), toys.tokenizer()), tmp_path)
    correct, wrong = (forerunner.condition(record, offset) for offset in (0, 1))
    first, second = (measures.head_counts(p["magnitude"], p["n_t"]) for p in (correct, wrong))
    assert np.abs(first - second).max() <= 0.35 * 64
    assert (measures.verdicts(correct["magnitude"], correct["control"], correct["n_t"]) != "forerunner head").all()


def test_nothing_is_stored_under_another_models_name(asked, model_folder, tmp_path):
    toy = (toys.model("llama"), toys.tokenizer())
    with pytest.raises(ValueError, match="built, not loaded.*begins with 'given:'"):
        forerunner.run(forerunner.request("embedded", k=0, prompts=4), toy, tmp_path)
    with pytest.raises(ValueError, match="quantized = True was asked for"):
        forerunner.run({**asked, "quantized": True}, quiet(model_folder), tmp_path)
    with pytest.raises(ValueError, match="untrained 0', but the model given"):
        forerunner.run({**asked, "untrained_seed": 0}, quiet(model_folder), tmp_path)
    with pytest.raises(ValueError, match="but the model given is .* untrained 0"):
        forerunner.run(asked, quiet(model_folder).twin(0), tmp_path)
    assert not list(tmp_path.glob("*.pickle"))


def test_another_model_given_under_the_same_name_is_a_miss(tmp_path):
    asked = forerunner.request("given:toy", k=0, prompts=4)
    first = forerunner.run(asked, (toys.model("llama", 0), toys.tokenizer()), tmp_path)
    with pytest.warns(cache.CacheWarning, match="weights"):
        second = forerunner.run(asked, (toys.model("llama", 1), toys.tokenizer()), tmp_path)
    assert np.abs(first.data["magnitude"] - second.data["magnitude"]).max() > 1e-2


def test_the_untrained_twin_is_another_model_with_its_own_record(asked, model_folder, tmp_path):
    lazy, untrained = quiet(model_folder), {**asked, "untrained_seed": 3}  # the toy itself was drawn from seed 0
    trained = forerunner.run(asked, lazy, tmp_path)
    twin = forerunner.run(untrained, lazy.twin(3), tmp_path / "a")
    alone = forerunner.run(untrained, None, tmp_path / "b")
    np.testing.assert_array_equal(twin.data["magnitude"], alone.data["magnitude"])
    assert np.abs(twin.data["magnitude"] - trained.data["magnitude"]).max() > 1e-2
    assert loading.untrained_twin(lazy()[0]).config is not lazy()[0].config


@pytest.mark.parametrize("redo", [False, True])
def test_blocks_outlive_a_record_that_could_not_be_saved(redo, asked, model_folder, tmp_path, monkeypatch):
    original, calls = cache.save, []

    def full(request, *rest):
        if "block" not in request:
            raise cache.CacheError("no space left (simulated)")
        return original(request, *rest)

    if redo:
        forerunner.run(asked, quiet(model_folder), tmp_path)
    monkeypatch.setattr(cache, "save", full)
    with pytest.warns(cache.CacheWarning, match="not saved"):
        forerunner.run(asked, quiet(model_folder), tmp_path, redo=redo)
    monkeypatch.setattr(cache, "save", original)
    measure = magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), measure(*a, **k))[1])
    record = forerunner.run(asked, quiet(model_folder), tmp_path, redo=redo)
    assert not calls and record.data["magnitude"].shape == (10, 3, 3, 4)
    assert not list((tmp_path / "blocks").iterdir())


def test_blocks_of_other_code_or_weights_are_not_taken_up(asked, model_folder, tmp_path, monkeypatch):
    def stop(request, *rest):
        if "block" not in request:
            raise KeyboardInterrupt
        return original(request, *rest)

    original, calls = cache.save, []
    monkeypatch.setattr(cache, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        forerunner.run(asked, quiet(model_folder), tmp_path)
    monkeypatch.setattr(cache, "save", original)
    monkeypatch.setattr(provenance, "code_digest", lambda: "another")
    measure = magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), measure(*a, **k))[1])
    with pytest.warns(cache.CacheWarning, match="code_digest"):
        forerunner.run(asked, quiet(model_folder), tmp_path)
    assert len(calls) == 3


def test_records_beside_one_that_was_measured_now_are_of_the_same_weights(tmp_path):
    """Of a model that is loaded when it is needed, the weights are known from then on."""

    class Sums(Run):
        texts: tuple[str, ...] = ()

        def sums(self, name):
            def compute():
                return {"sum": float(sum(p.detach().double().sum() for p in self.pair[0].parameters()))}

            return self.record({"name": name}, compute).data["sum"]

    asked = forerunner.request("given:toy")
    old = Sums(asked, lambda: (toys.model("llama", 0), toys.tokenizer()), tmp_path, False)
    first = old.sums("a")
    new = Sums(asked, lambda: (toys.model("llama", 1), toys.tokenizer()), tmp_path, False)
    assert new.sums("a") == first  # nothing is known of the weights yet
    second = new.sums("b")
    assert second != first
    with pytest.warns(cache.CacheWarning, match="weights"):
        assert new.sums("a") == second


def test_seed_and_conditions_reach_the_measurement(asked, model_folder, tmp_path):
    base = forerunner.run(asked, quiet(model_folder), tmp_path)
    seeded = forerunner.run({**asked, "seed": 1}, quiet(model_folder), tmp_path)
    turned = forerunner.run({**asked, "appended": [1, "the", 0]}, quiet(model_folder), tmp_path)
    assert np.abs(seeded.data["control"] - base.data["control"]).max() > 1e-3
    np.testing.assert_array_equal(seeded.data["magnitude"], base.data["magnitude"])
    np.testing.assert_allclose(turned.data["magnitude"][:, [2, 0, 1]], base.data["magnitude"], atol=1e-6)


def test_a_slow_tokenizer_is_refused_by_name(tmp_path):
    asked = forerunner.request("given:toy", k=0, prompts=4)
    with pytest.raises(ValueError, match="Slow gives no character offsets"):
        forerunner.run(asked, (toys.model("llama"), toys.Slow()), tmp_path)


def test_requests_that_make_no_sense_fail_before_a_model_is_loaded():
    with pytest.raises(ValueError, match="at least one condition"):
        forerunner.request(appended=())
    with pytest.raises(ValueError, match="each once"):
        forerunner.request(appended=(0, 0))
    with pytest.raises(ValueError, match="nor the control empty"):
        forerunner.request(control_tokens=0)
    with pytest.raises(ValueError, match="unknown dtype 'fp32'"):
        forerunner.request(dtype="fp32")
    with pytest.raises(TypeError):
        forerunner.request(k=1.5)
    assert forerunner.request(dtype=None)["dtype"] == "auto" and forerunner.request(dtype="half")["dtype"] == "float16"
    assert forerunner.request(dataset=np.int64(2)) == forerunner.request()
    assert forerunner.request("folder/")["model"] == "folder"


def test_planted_heads_are_judged_right_until_the_noise_is_as_large_as_their_weights(tmp_path):
    asked = forerunner.request(prompts=16)
    errors = forerunner.planted_errors(asked, (0.0, 0.5, 2.0), (0, 1), tmp_path)
    assert errors[0.0] == errors[0.5] == {"false alarms": (0, 8), "misses": (0, 4)}
    assert errors[2.0]["misses"][0] >= 2 and errors[2.0]["false alarms"][0] <= 1


def test_the_method_has_not_changed_without_a_new_version(tmp_path):
    """A golden record. If it fails because the measure was changed on purpose, raise method_version and renew it."""
    asked = forerunner.request(prompts=4, control_tokens=8)
    record = forerunner.run(asked, None, tmp_path)
    assert asked["method_version"] == 2
    assert record.data["n_t"][:, 0].tolist() == GOLDEN["n_t"]
    np.testing.assert_allclose(record.data["magnitude"][:, :, 1, 4], GOLDEN["magnitude of layer 1, head 4"], atol=1e-4)
    np.testing.assert_allclose(record.data["control"][:, 0, 2], GOLDEN["control of layer 0, head 2"], atol=1e-4)
    np.testing.assert_allclose(record.data["value_norm"][:, 1, 4], GOLDEN["value norm of layer 1, head 4"], atol=1e-3)
    moved = forerunner.condition(record, 1)["moved"]
    np.testing.assert_array_equal(moved, record.data["magnitude"][:, 1] * record.data["value_norm"])


GOLDEN: dict = {
    "n_t": [241, 264, 219, 188],
    "magnitude of layer 1, head 4": [
        [0.99507, 0.99529, 0.98369],
        [0.99571, 0.99815, 0.99277],
        [0.98544, 0.99407, 0.98410],
        [0.99568, 0.99825, 0.99499],
    ],
    "control of layer 0, head 2": [0.90865, 0.95950, 0.97473, 0.94917],
    "value norm of layer 1, head 4": [3.24356, 1.91225, 4.01543, 2.36105],
}
