"""From a request to a record: caching, resuming, and what makes a cached record a miss."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests import toys
from util import load_model_and_data as loading
from util.figures.forerunner_heads import magnitudes, measures
from util.figures.forerunner_heads import study as forerunner
from util.figures.forerunner_heads.ablation import AblationStudy, CausalStudy
from util.figures.forerunner_heads.measures import Series
from util.figures.forerunner_heads.study import ByDemonstrations, Grid, Study
from util.records import cache, provenance
from util.records import study as base
from util.records.checked import checked
from util.records.model import Model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return toys.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def study(model_folder, tmp_path):
    return Study(quiet(model_folder), k=1, prompts=10, control_tokens=4, folder=tmp_path)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(forerunner, "BLOCK", 4)


def quiet(folder, **options):
    return Model(str(folder), verbose=False, **options)


def cached(study, **changes):
    """The same study of a model that cannot be loaded."""

    def never():
        raise AssertionError("a cached record must not load a model")

    return study.replace(model=replace(study.model, loader=never), **changes)


def given(seed=0, name="given:toy"):
    return Model.given(toys.model("llama", seed), toys.tokenizer(), name)


def test_a_record_holds_what_inference_measures(study, model_folder, tmp_path):
    measured = study.magnitudes()
    model, tokenizer = loading.load_ICL_model(model_folder, verbose=False)
    prompts = loading.staicc_prompts(2, 1)[:10]
    direct = magnitudes.copy_magnitudes(
        model, magnitudes.label_run(model, tokenizer, prompts, (0, 1, "the")), control_tokens=4
    )
    np.testing.assert_allclose(measured.magnitude, direct["magnitude"], atol=1e-6)
    np.testing.assert_allclose(measured.control, direct["control"], atol=1e-6)
    record = cache.load(study.request, tmp_path)
    assert record is not None and record.data["gold"].tolist() == [p.gold for p in prompts]
    assert record.data["demonstrations"].shape == (10, 1) and measured.n_t.shape == (10, 3)
    assert study.origin["dtype"] == "float32" and len(study.origin["prompt_digest"]) == 16
    assert not list((tmp_path / "blocks").iterdir()), "blocks of a finished run are removed"


def test_a_second_run_needs_no_model(study):
    first = study.magnitudes()
    again = cached(study).magnitudes()
    np.testing.assert_array_equal(first.magnitude, again.magnitude)


def test_a_record_is_analysed_and_drawn_without_torch(study, tmp_path):
    expected = study.magnitudes().reading(1).counts().tolist()
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'tokenizers', 'StaICC'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import json\n"
        "from util.records import cache\n"
        "from util.figures.forerunner_heads.measures import Series\n"
        "from util.figures.forerunner_heads.results import Counts, Magnitudes, Setting\n"
        "request, folder = json.loads(sys.argv[1]), sys.argv[2]\n"
        "data = cache.load(request, folder).data\n"
        "setting = Setting('tiny', 'trec', 1, 10)\n"
        "arrays = {name: data[name] for name in Magnitudes.ARRAYS}\n"
        "measured = Magnitudes(setting, request, 'tiny', tuple(request['appended']), **arrays)\n"
        "counts = Counts.of(setting, {Series.WRONG: measured.reading(1)}, 5)\n"
        "counts.figure().savefig(folder + '/figure.png')\n"
        "print(counts.maps[Series.WRONG].tolist())\n"
    )
    command = [sys.executable, "-c", code, json.dumps(study.request), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected and (tmp_path / "figure.png").stat().st_size > 1000


def test_an_interrupted_run_goes_on_where_it_stopped(study, tmp_path, monkeypatch):
    whole = study.replace(folder=tmp_path / "whole").magnitudes()
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
        study.replace(folder=tmp_path / "parts").magnitudes()
    measured = study.replace(folder=tmp_path / "parts").magnitudes()
    assert seen == [0, 4, "failed", 8]
    np.testing.assert_array_equal(measured.magnitude, whole.magnitude)  # the same bits


def test_redo_measures_again(study, monkeypatch):
    study.magnitudes()
    calls, original = [], magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
    study.replace(redo=True).magnitudes()
    assert len(calls) == 3


def test_redo_measures_once_for_all_parts(study, monkeypatch):
    again, calls, original = study.replace(redo=True), [], magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
    again.magnitudes(), again.counts(), again.layers(), again.specificity()
    assert len(calls) == 3


def test_every_part_of_the_request_is_part_of_the_key(tmp_path):
    base = Study("a/b", 2, 4, 16)
    changes = {
        "model": "a/c",
        "dataset": 3,
        "k": 5,
        "prompts": 15,
        "appended": (0, 2),
        "control_tokens": 8,
        "seed": 1,
    }
    of_model = {"dtype": "bfloat16", "quantized": True, "revision": "main", "untrained_seed": 0}
    keys = {cache.record_path(base.request, tmp_path)}
    for name, value in changes.items():
        keys.add(cache.record_path(base.replace(**{name: value}).request, tmp_path))
    for name, value in of_model.items():
        keys.add(cache.record_path(base.replace(model=Model("a/b", **{name: value})).request, tmp_path))
    assert len(keys) == 1 + len(changes) + len(of_model)
    # what changes no record: how it is judged, where it is kept, and what is shown beside it
    others = {"threshold", "folder", "redo", "untrained_control", "untrained_prompts"}
    assert set(changes) == {field.name for field in fields(Study)} - others
    assert set(of_model) <= {field.name for field in fields(Model)}


def test_other_weights_under_the_same_name_are_a_miss(study, model_folder, tmp_path):
    moved = tmp_path / "model"
    shutil.copytree(model_folder, moved)
    old = study.replace(model=quiet(moved)).magnitudes()
    toys.model("llama", seed=7).save_pretrained(moved)
    with pytest.warns(cache.CacheWarning, match="revision"):
        new = study.replace(model=quiet(moved)).magnitudes()
    assert np.abs(new.magnitude - old.magnitude).max() > 1e-2


def test_a_corrupt_record_is_set_aside_and_measured_again(study, tmp_path):
    study.magnitudes()
    file = cache.record_path(study.request, tmp_path)
    file.write_bytes(pickle.dumps(print))
    with pytest.warns(cache.CacheWarning, match="corrupt"):
        measured = study.replace().magnitudes()
    assert measured.magnitude.shape == (10, 3, 3, 4) and list(tmp_path.glob("*.corrupt*"))


def test_a_model_of_another_dtype_than_asked_is_refused(study, model_folder):
    pair = loading.load_ICL_model(model_folder, verbose=False)
    model = Model(str(model_folder), dtype="bfloat16", loader=lambda: pair)
    with pytest.raises(ValueError, match="dtype bfloat16 was asked for, but the model given is float32"):
        study.replace(model=model).magnitudes()


WRONG = {
    r"prompts = 0: .*greater than or equal to 4": lambda: Study(prompts=0),
    r"prompts = 1: .*greater than or equal to 4": lambda: Study(prompts=1),
    r"prompts = 3: .*greater than or equal to 4": lambda: Study(prompts=3),  # an interval on either half needs two
    r"prompts = 2.5: ": lambda: Study(prompts=2.5),
    r"k = -1: .*greater than or equal to 0": lambda: Study(k=-1),
    r"k = 2.5: ": lambda: Study(k=2.5),
    r"k = '4x': ": lambda: Study(k="4x"),
    r"k = True: ": lambda: Study(k=True),
    r"k = 513: .*a pool of 512 demonstrations": lambda: Study(k=513),
    r"seed = 'a': ": lambda: Study(seed="a"),
    r"seed = -1: ": lambda: Study(seed=-1),
    r"threshold = 0: ": lambda: Study(threshold=0),
    r"control_tokens = 0: ": lambda: Study(control_tokens=0),
    r"dataset = 'imdb': unknown data set 'imdb'; choose one of: 0 glue_sst2": lambda: Study(dataset="imdb"),
    r"dataset = 10: unknown data set": lambda: Study(dataset=10),
    r"appended = 'the': give a list": lambda: Study(appended="the"),
    r"appended = \(True,\): give labels": lambda: Study(appended=(True,)),
    r"appended = \[\]: name at least one condition": lambda: Study(appended=()),
    r"appended = \[0, 0\]: .*each once": lambda: Study(appended=(0, 0)),
    r"untrained_prompts = 1: .*greater than or equal to 2": lambda: Study(untrained_prompts=1),
    r"threshold = nan: ": lambda: Study(threshold=float("nan")),
    r"untrained_control = 'perhaps': ": lambda: Study(untrained_control="perhaps"),
    r"untrained_seed = 1.5: ": lambda: Study(Model("embedded", untrained_seed=1.5)),
    r"dtype = 'fp32': unknown dtype 'fp32'": lambda: Study(Model("embedded", dtype="fp32")),
    r"Study has no argument 'datset'": lambda: Study(**{"datset": "trec"}),
    r"datasets = '\[trec': this text is no list": lambda: Grid(Study(), "[trec"),
    r"datasets.1 = 'imdb': unknown data set": lambda: Grid(Study(), ["trec", "imdb"]),
    r"datasets = \[\]: ": lambda: Grid(Study(), []),
    r"ks.0 = -1: ": lambda: ByDemonstrations(Study(), [-1]),
    r"ks.0 = 'a': ": lambda: ByDemonstrations(Study(), "a"),
    r"ks = \[\]: ": lambda: ByDemonstrations(Study(), []),
    r"ks = \[0, 0\]: .*twice": lambda: ByDemonstrations(Study(), [0, 0]),
    r"datasets = \['trec', 4\]: .*twice": lambda: Grid(Study(), ["trec", 4]),
    r"threshold = inf: .*finite": lambda: Study(threshold=float("inf")),
    r"appended = \['the', ' '\]: a word is blank": lambda: Study(appended=["the", " "]),
    r"k = 600: .*a pool of 512": lambda: ByDemonstrations(Study(), [0, 600]),
    r"cell_lists = 'published': .*'corrected' or 'reference'": lambda: AblationStudy(cell_lists="published"),
    r"draws = 0: ": lambda: AblationStudy(draws=0),
    r"every_part = 'perhaps': ": lambda: AblationStudy(every_part="perhaps"),
    r"prompts = 1: .*greater than or equal to 2": lambda: AblationStudy(prompts=1),
    r"385 prompts to be measured and 128 to choose the task": lambda: causal(AblationStudy(prompts=385)),
    r"100 prompts to be measured and 500 to choose": lambda: causal(AblationStudy(prompts=100), choice_prompts=500),
    r"choice_prompts = 1: .*greater than or equal to 2": lambda: causal(choice_prompts=1),
    r"read_prompts = 1: ": lambda: causal(read_prompts=1),
    r"single_heads = 0: ": lambda: causal(single_heads=0),
    r"heads_cut = 0: ": lambda: causal(heads_cut=0),
    r"datasets.0 = 'imdb': unknown data set": lambda: CausalStudy(AblationStudy(), ["imdb"], [4]),
    r"datasets = \(\): ": lambda: CausalStudy(AblationStudy(), (), [4]),
}


def causal(study=None, **options):
    return CausalStudy(study or AblationStudy(), ["trec"], [4], **options)


@pytest.mark.parametrize("message", WRONG)
def test_every_wrong_argument_is_refused_when_the_study_is_built(message):
    with pytest.raises(ValueError, match=f"^{message}"):
        WRONG[message]()


def test_text_of_a_command_line_is_read():
    study = Study(dataset="4", k="2", prompts="16", untrained_control="false", redo="false")
    assert (study.dataset, study.k, study.prompts) == ("trec", 2, 16) and not study.untrained_control and not study.redo
    assert Model("embedded", quantized="false").quantized is False
    assert AblationStudy(every_part="false", draws="2").every_part is False


def test_an_unwritable_folder_is_refused_before_the_model_is_loaded(study, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(cache.CacheError):
        cached(study, folder=tmp_path / "file" / "folder").magnitudes()


def test_the_grid_is_checked_measured_and_cached_by_name_or_index(study):
    """An index is the data set's name in the request; nothing is measured before all studies are checked."""
    by_index, by_name = Grid(study, [4]), Grid(cached(study), ["trec"])
    assert by_index.studies[0].request == by_name.studies[0].request and by_index.datasets == ("trec",)
    counts = by_index.counts()
    np.testing.assert_array_equal(counts.maps["trec"][Series.CORRECT], by_name.counts().maps["trec"][Series.CORRECT])
    assert set(counts.maps["trec"]) == {"correct", "wrong"}
    by_k = ByDemonstrations(study.replace(dataset="trec"), [1, 0])
    assert [part.k for part in by_k.studies] == [0, 1] and by_k.studies[1].request == by_index.studies[0].request
    growth = by_k.growth()
    assert set(growth.fixed) == {0, 1} and set(growth.counts) == {"correct", "wrong", "other word"}
    correct = cached(study, dataset="trec", k=0).magnitudes().reading()
    np.testing.assert_array_equal(growth.maps[0], measures.head_counts(correct.magnitude, correct.n_t))
    assert list(growth.table().index) == [0, 1] and growth.setting.endswith("trec, 10 prompts for each k")


def test_data_sets_that_do_not_fit_are_left_out_unless_none_does(tmp_path):
    model = given()
    model.pair[0].config.max_position_embeddings = 160
    study = Study(model, k=1, prompts=10, control_tokens=4, folder=tmp_path)
    found = Grid(study, ["agnews", "trec"]).counts()
    assert list(found.maps) == ["trec"] and "; agnews: left out, " in found.setting
    assert found.setting.endswith(" tokens, 160 positions")
    with pytest.raises(ValueError, match="this model places 160; use a smaller k"):
        Grid(study, ["agnews"]).counts()


def test_a_changed_study_is_a_study(study):
    assert study.replace() == study
    assert study.replace(dataset=4, k=2).request == {**study.request, "dataset": "trec", "k": 2}
    with pytest.raises(ValueError, match="^k = -1: "):
        study.replace(k=-1)


def test_lists_may_be_given_as_text():
    def datasets(value):
        return Grid(Study(), value).datasets

    assert datasets(["trec", 5]) == ("trec", "agnews") and datasets((0, 1)) == ("glue_sst2", "rotten_tomatoes")
    assert datasets("['trec', 'sst5']") == datasets('["trec", "sst5"]') == datasets("trec, sst5") == ("trec", "sst5")
    assert datasets("[0, 4]") == ("glue_sst2", "trec")
    assert datasets("trec") == datasets("4") == datasets(4) == ("trec",)
    assert ByDemonstrations(Study(), "[0, 2]").ks == (0, 2) and ByDemonstrations(Study(), "4").ks == (4,)


def test_what_is_not_appended_cannot_be_read(study):
    few = study.replace(appended=[0])
    with pytest.raises(ValueError, match=r"appended = 'the': the study appends \[0\]"):
        few.magnitudes().reading("the")
    with pytest.raises(ValueError, match="specificity needs what is not appended: other word, wrong"):
        few.specificity()
    assert set(few.counts().maps) == {"correct"}


def test_the_parts_of_a_study_have_tables_figures_and_lines(study):
    shown = study.replace(untrained_control=True, untrained_prompts=4)
    counts, layers, specificity, planted = shown.counts(), shown.layers(), shown.specificity(), shown.planted()
    assert list(counts.table().index) == ["correct label", "wrong label", "another word", "untrained weights"]
    assert counts.prompts["untrained"] == 4 and counts.prompts["correct"] == 10
    assert "of 12" in counts.finding
    for part in (counts, layers):
        assert str(study.setting) in part.setting
        assert part.figure().get_suptitle().replace("\n", " ") == (part.finding or "")
    assert len(specificity.table()) == len(specificity.judged.strongest)
    assert specificity.figure(planted).get_suptitle().replace("\n", " ") == specificity.finding
    assert "labels only -> forerunner head" in str(planted)
    assert "heads per" not in str(shown.magnitudes()) and "10 prompts; tokens per prompt" in str(shown.magnitudes())


def test_an_untrained_model_does_not_know_the_label(tmp_path):
    """Check C5: correct and wrong maps agree in distribution on random weights."""
    study = Study(given(0, "given:untrained toy"), k=1, prompts=64, folder=tmp_path)
    correct, wrong = (study.magnitudes().reading(offset) for offset in (0, 1))
    assert np.abs(correct.counts() - wrong.counts()).max() <= 0.35 * 64
    assert (correct.verdicts() != "forerunner head").all()


def test_nothing_is_stored_under_another_models_name(study, model_folder, tmp_path):
    toy, stored = (toys.model("llama"), toys.tokenizer()), loading.load_ICL_model(model_folder, verbose=False)
    twin = loading.untrained_twin(stored[0]), stored[1]
    for message, model in {
        "built, not loaded.*begins with 'given:'": Model("embedded", loader=lambda: toy),
        "quantized = True was asked for": quiet(model_folder, quantized=True, loader=lambda: stored),
        "untrained 0', but the model given": quiet(model_folder, untrained_seed=0, loader=lambda: stored),
        "but the model given is .* untrained 0": quiet(model_folder, loader=lambda: twin),
    }.items():
        with pytest.raises(ValueError, match=message):
            study.replace(model=model, k=0, prompts=4).magnitudes()
    assert not list(tmp_path.glob("*.pickle"))


def test_another_model_given_under_the_same_name_is_a_miss(tmp_path):
    study = Study(given(0), k=0, prompts=4, folder=tmp_path)
    first = study.magnitudes()
    with pytest.warns(cache.CacheWarning, match="weights"):
        second = study.replace(model=given(1)).magnitudes()
    assert np.abs(first.magnitude - second.magnitude).max() > 1e-2


def test_the_untrained_twin_is_another_model_with_its_own_record(study, model_folder, tmp_path):
    trained = study.magnitudes()
    twin = study.twin(3, folder=tmp_path / "a")  # the toy itself was drawn from seed 0
    alone = study.replace(model=quiet(model_folder, untrained_seed=3), folder=tmp_path / "b")
    assert twin.request == alone.request == {**study.request, "untrained_seed": 3}
    np.testing.assert_array_equal(twin.magnitudes().magnitude, alone.magnitudes().magnitude)
    assert np.abs(twin.magnitudes().magnitude - trained.magnitude).max() > 1e-2
    model = study.pair[0]
    assert loading.untrained_twin(model).config is not model.config


@pytest.mark.parametrize("redo", [False, True])
def test_blocks_outlive_a_record_that_could_not_be_saved(redo, study, tmp_path, monkeypatch):
    original, calls = cache.save, []

    def full(request, *rest):
        if "block" not in request:
            raise cache.CacheError("no space left (simulated)")
        return original(request, *rest)

    if redo:
        study.magnitudes()
    monkeypatch.setattr(cache, "save", full)
    with pytest.warns(cache.CacheWarning, match="not saved"):
        study.replace(redo=redo).magnitudes()
    monkeypatch.setattr(cache, "save", original)
    measure = magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), measure(*a, **k))[1])
    measured = study.replace(redo=redo).magnitudes()
    assert not calls and measured.magnitude.shape == (10, 3, 3, 4)
    assert not list((tmp_path / "blocks").iterdir())


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_a_hit_succeeds_although_left_over_blocks_cannot_be_removed(error, study, tmp_path, monkeypatch):
    """In a folder that may only be read; or because another process with the same hit was faster."""
    expected = study.magnitudes().magnitude
    kept = tmp_path / "blocks" / cache.record_path(study.request, tmp_path).stem
    for number in range(3):
        os.utime(cache.save({**study.request, "block": [number]}, {}, {}, kept), (0, 0))

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(Path, "unlink", refuse)
    np.testing.assert_array_equal(cached(study).magnitudes().magnitude, expected)
    assert len([*kept.glob("*.pickle")]) == 3


def test_blocks_of_a_redo_that_has_begun_elsewhere_stay(study, tmp_path):
    expected = study.magnitudes().magnitude
    kept = tmp_path / "blocks" / cache.record_path(study.request, tmp_path).stem
    old, new = (cache.save({**study.request, "block": [number]}, {}, {}, kept) for number in range(2))
    os.utime(old, (0, 0))
    later = cache.record_path(study.request, tmp_path).stat().st_mtime + 10
    os.utime(new, (later, later))
    np.testing.assert_array_equal(cached(study).magnitudes().magnitude, expected)
    assert [*kept.glob("*.pickle")] == [new]


def test_blocks_of_other_code_or_weights_are_not_taken_up(study, monkeypatch):
    def stop(request, *rest):
        if "block" not in request:
            raise KeyboardInterrupt
        return original(request, *rest)

    original, calls = cache.save, []
    monkeypatch.setattr(cache, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        study.magnitudes()
    monkeypatch.setattr(cache, "save", original)
    monkeypatch.setattr(provenance, "code_digest", lambda: "another")
    measure = magnitudes.copy_magnitudes
    monkeypatch.setattr(magnitudes, "copy_magnitudes", lambda *a, **k: (calls.append(1), measure(*a, **k))[1])
    with pytest.warns(cache.CacheWarning, match="code_digest"):
        study.replace().magnitudes()
    assert len(calls) == 3


def test_records_beside_one_that_was_measured_now_are_of_the_same_weights(tmp_path):
    """Of a model that is loaded when it is needed, the weights are known from then on."""

    @checked
    class Sums(base.Study):
        stem = "sums"
        own_request: ClassVar[dict[str, Any]] = {"schema": 1}
        texts: ClassVar[tuple[str, ...]] = ()

        def sums(self, name):
            def compute():
                return {"sum": float(sum(p.detach().double().sum() for p in self.pair[0].parameters()))}

            return self.record({"name": name}, compute).data["sum"]

    def sums(seed):
        model = Model("given:toy", loader=lambda: (toys.model("llama", seed), toys.tokenizer()))
        return Sums(model, folder=tmp_path)

    old, new = sums(0), sums(1)
    first = old.sums("a")
    assert new.sums("a") == first  # nothing is known of the weights yet
    second = new.sums("b")
    assert second != first
    with pytest.warns(cache.CacheWarning, match="weights"):
        assert new.sums("a") == second


def test_seed_and_conditions_reach_the_measurement(study):
    first = study.magnitudes()
    seeded = study.replace(seed=1).magnitudes()
    turned = study.replace(appended=[1, "the", 0]).magnitudes()
    assert np.abs(seeded.control - first.control).max() > 1e-3
    assert np.abs(seeded.magnitude - first.magnitude).max() > 1e-3  # other queries behind other demonstrations
    assert not {prompt.text for prompt in study.replace(seed=1).items} & {prompt.text for prompt in study.items}
    np.testing.assert_allclose(turned.magnitude[:, [2, 0, 1]], first.magnitude, atol=1e-6)


def test_a_slow_tokenizer_is_refused_by_name(tmp_path):
    model = Model.given(toys.model("llama"), toys.Slow(), "given:toy")
    with pytest.raises(ValueError, match="Slow gives no character offsets"):
        Study(model, k=0, prompts=4, folder=tmp_path).magnitudes()


def test_requests_are_in_one_form():
    assert Model(dtype=None).request["dtype"] == "auto" and Model(dtype="half").request["dtype"] == "float16"
    assert Study(dataset=np.int64(2), k=np.int64(4)).request == Study().request
    assert Study("folder/").request["model"] == "folder"


def test_planted_heads_are_judged_right_until_the_noise_is_as_large_as_their_weights(tmp_path):
    study = Study(prompts=16, folder=tmp_path)
    found = study.planted_errors(16, (0.0, 0.5, 2.0), (0, 1))
    errors = found.by_noise
    assert found.table().loc[0.5].tolist() == ["0 of 8", "0 of 4"]
    assert errors[0.0] == errors[0.5] == {"false alarms": (0, 8), "misses": (0, 4)}
    assert errors[2.0]["misses"][0] >= 2 and errors[2.0]["false alarms"][0] <= 1
    strict = study.replace(threshold=1e6).planted_errors(16, (0.0,), (0, 1))
    assert strict.by_noise[0.0] == {"false alarms": (0, 8), "misses": (4, 4)}  # no head exceeds the study's threshold


def test_the_method_has_not_changed_without_a_new_version(tmp_path):
    """A golden record. If it fails because the measure was changed on purpose, raise method_version and renew it."""
    study = Study(prompts=4, control_tokens=8, folder=tmp_path)
    measured = study.magnitudes()
    assert study.request["method_version"] == 2
    assert measured.n_t[:, 0].tolist() == GOLDEN["n_t"]
    np.testing.assert_allclose(measured.magnitude[:, :, 1, 4], GOLDEN["magnitude of layer 1, head 4"], atol=1e-4)
    np.testing.assert_allclose(measured.control[:, 0, 2], GOLDEN["control of layer 0, head 2"], atol=1e-4)
    np.testing.assert_allclose(measured.value_norm[:, 1, 4], GOLDEN["value norm of layer 1, head 4"], atol=1e-3)
    np.testing.assert_array_equal(measured.reading(1).moved, measured.magnitude[:, 1] * measured.value_norm)


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
