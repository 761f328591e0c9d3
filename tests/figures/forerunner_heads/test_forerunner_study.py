"""From a study to its records and numbers: what is measured once, resumed, refused and left out."""

import pytest

from tests import toys
from tests.unloaded import unloaded
from util.figures.forerunner_heads import measure, show
from util.study.model import Model
from util.study.study import Study

SMALL = {"k": 1, "prompts": 10, "untrained_control": False}


@pytest.fixture
def study(toy_folder, tmp_path):
    return Study("forerunner_heads", Model(str(toy_folder), verbose=False), **SMALL, folder=tmp_path)


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    monkeypatch.setattr(measure, "BLOCK", 4)
    monkeypatch.setattr(measure, "CONTROL_TOKENS", 4)


def magnitude(study, ending="correct"):
    return study.arrays("counts")[ending]["magnitude"]


def test_what_decides_numbers_decides_the_record(study, tmp_path):
    """And what does not, such as how magnitudes are judged, does not."""
    magnitude(study)
    for changes in ({"threshold": 7}, {"ablated": 8}, {"grid_prompts": 4}):
        magnitude(unloaded(study, **changes))
    for changes in ({"dataset": 3}, {"k": 2}, {"prompts": 9}, {"seed": 1}):
        magnitude(study.replace(**changes))
    assert len([*tmp_path.glob("*.pickle")]) == 5


@pytest.mark.slow
def test_the_grids_are_measured_and_what_does_not_fit_is_left_out(tmp_path):
    model = Model.given(toys.model(), toys.tokenizer(), "given:toy")
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
