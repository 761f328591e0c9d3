"""From a study to its records and numbers: what is measured once, resumed, refused and left out."""

from typing import Any

import numpy as np
import pytest

from tests import toys
from tests.unloaded import unloaded
from util import load_model_and_data as loading
from util.figures.forerunner_heads import measure, show
from util.study import records
from util.study.model import Model
from util.study.study import Study

SMALL: dict[str, Any] = {"k": 1, "prompts": 10, "untrained_control": False}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return toys.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def study(model_folder, tmp_path):
    return Study("forerunner_heads", Model(str(model_folder), verbose=False), **SMALL, folder=tmp_path)


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    monkeypatch.setattr(measure, "BLOCK", 4)
    monkeypatch.setattr(measure, "CONTROL_TOKENS", 4)


@pytest.fixture
def passes(monkeypatch):
    """The first prompt of every block that is measured."""
    seen: list[int] = []
    original = measure.copy_magnitudes

    def counted(model, plan, tokens, seed, block, **options):
        seen.append(block[0])
        return original(model, plan, tokens, seed, block, **options)

    monkeypatch.setattr(measure, "copy_magnitudes", counted)
    return seen


def given(seed=0, name="given:toy"):
    return Model.given(toys.model("llama", seed), toys.tokenizer(), name)


def magnitude(study, ending="correct"):
    return study.arrays("counts")[ending]["magnitude"]


def test_a_record_holds_what_inference_measures(study, model_folder, tmp_path):
    found = study.arrays("counts")
    model, tokenizer = loading.load_ICL_model(model_folder, verbose=False)
    prompts = loading.staicc_prompts(2, 1)[:10]
    run = measure.label_run(model, tokenizer, prompts, (0, 1, "the"))
    direct = measure.copy_magnitudes(model, run, control_tokens=4)
    for place, ending in enumerate(measure.ENDINGS):
        np.testing.assert_allclose(found[ending]["magnitude"], direct["magnitude"][:, place], atol=1e-6)
        assert found[ending]["n_t"].tolist() == [labelled.n_t for labelled in [*run[0].values()][place]]
    np.testing.assert_allclose(found["correct"]["control"], direct["control"], atol=1e-6)
    (file,) = tmp_path.glob("*.pickle")
    record = records.decode(file.read_bytes())
    assert record.data["gold"].tolist() == [p.gold for p in prompts] and record.data["demonstrations"].shape == (10, 1)
    assert record.provenance["dtype"] == "float32" and record.provenance["oom_backoff"] is False
    np.testing.assert_array_equal(magnitude(unloaded(study)), magnitude(study))


def test_what_decides_numbers_decides_the_record(study, tmp_path, passes):
    """And what does not, such as how magnitudes are judged, does not."""
    magnitude(study)
    for changes in ({"threshold": 7}, {"ablated": 8}, {"grid_prompts": 4}):
        magnitude(unloaded(study, **changes))
    for changes in ({"dataset": 3}, {"k": 2}, {"prompts": 9}, {"seed": 1}):
        magnitude(study.replace(**changes))
    assert len([*tmp_path.glob("*.pickle")]) == 5


def test_the_grids_are_measured_and_what_does_not_fit_is_left_out(tmp_path):
    model = given()
    model.pair[0].config.max_position_embeddings = 160
    few = {"grid_datasets": ["agnews", 4], "grid_prompts": 10}
    study = Study("forerunner_heads", model, **SMALL, **few, folder=tmp_path)
    values = study.values_of("counts", "grid")
    assert list(values["grid_counts"]) == ["trec"] and set(values["grid_counts"]["trec"]) == {"correct"}
    assert "; agnews: left out, " in show.grid_about(values) and show.grid_about(values).endswith(
        " tokens, 160 positions"
    )
    with pytest.raises(ValueError, match="this model places 160; use a smaller k"):
        study.replace(grid_datasets=["agnews"]).numbers("grid")


def test_the_untrained_twin_stands_beside_the_model(tmp_path):
    few = {"prompts": 6, "grid_prompts": 4, "untrained_control": True}
    found = Study("forerunner_heads", **SMALL | few, folder=tmp_path).arrays("counts")
    untrained, trained = (found[name]["magnitude"] for name in ("untrained", "correct"))
    assert len(untrained) == 4 and not np.array_equal(untrained, trained[:4])


def test_the_method_has_not_changed_without_a_new_name(tmp_path, monkeypatch):
    """A golden record. If it fails because the measure was changed on purpose, rename the measure and renew it."""
    monkeypatch.setattr(measure, "CONTROL_TOKENS", 8)
    study = Study("forerunner_heads", prompts=4, untrained_control=False, folder=tmp_path)
    found = study.arrays("counts")
    assert found["correct"]["n_t"].tolist() == GOLDEN["n_t"]
    for place, ending in enumerate(measure.ENDINGS):
        wanted = [row[place] for row in GOLDEN["magnitude of layer 1, head 4"]]
        np.testing.assert_allclose(found[ending]["magnitude"][:, 1, 4], wanted, atol=1e-4)
    correct = found["correct"]
    np.testing.assert_allclose(correct["control"][:, 0, 2], GOLDEN["control of layer 0, head 2"], atol=1e-4)


GOLDEN: dict = {
    "n_t": [241, 264, 219, 188],
    "magnitude of layer 1, head 4": [
        [0.99507, 0.99529, 0.98369],
        [0.99571, 0.99815, 0.99277],
        [0.98544, 0.99407, 0.98410],
        [0.99568, 0.99825, 0.99499],
    ],
    "control of layer 0, head 2": [0.90865, 0.95950, 0.97473, 0.94917],
}
