"""A study: settings are checked, parts are named, records are shared, what could not be written is not lost."""

import numpy as np
import pytest

from tests.unloaded import unloaded
from util.study import records
from util.study.model import Model
from util.study.study import Study


@pytest.fixture(scope="module")
def study(embedded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    return Study("toy_induction_head", embedded, length=5, copies=2, sequences=4, excerpts=2, folder=folder)


@pytest.fixture
def alone(study, tmp_path):
    return study.replace(folder=tmp_path)


def test_an_unknown_figure_or_part_lists_what_there_is(study):
    with pytest.raises(ValueError, match="unknown figure 'toy'; there are edge_ablation, .*, toy_induction_head"):
        Study("toy")
    for ask in (study.arrays, study.numbers, study.show):
        with pytest.raises(ValueError, match="toy_induction_head has no part 'counts'; it has shifts, .*phase_change"):
            ask("counts")


def test_a_study_does_not_change_and_replace_checks_again(study):
    other = study.replace(copies=3, model="embedded/phase")
    assert (study.settings.copies, other.settings.copies, other.settings.length) == (2, 3, 5)
    assert other.model.name == "embedded/phase"
    for wrong, message in ({"copies": 1}, "copies = 1: "), ({"shots": 1}, "has no argument 'shots'"):
        with pytest.raises(ValueError, match=message):
            study.replace(**wrong)
    twin = study.twin(3)
    assert twin.model.untrained_seed == 3 and not twin.settings.untrained_control
    assert study.settings.untrained_control and study.model.untrained_seed is None
    assert study.request["figure"] == "toy_induction_head" and study.request["length"] == 5


def test_a_twin_of_a_model_of_ones_own_has_its_whole_name(alone):
    model, tokenizer = alone.model.pair
    twin = alone.replace(model=Model.given(model, tokenizer, "given:mine")).twin()
    for study in (twin, unloaded(twin)):
        study.record("a measure", lambda: {"n": 1}, lambda: ["text"])
        assert study.description.startswith("given:mine, untrained: LlamaForCausalLM, 4 layers")


def test_the_values_file_has_all_parts_and_what_is_told_of_it_their_first_sentences(study, output):
    values, shown = study.values, study.save().data
    assert {"request", "model", "heads", "patterns", "texts", "phase_change"} <= {*values}
    assert values["request"]["model"] == "embedded"
    assert shown.startswith("**embedded**\n\n- Attention reads as far back")
    assert shown.count("\n- ") == len(study.figure.parts) and study.numbers("texts") is study.numbers("texts")


def test_show_says_and_shows_and_writes(study, output, capsys):
    assert study.show("phase_change").filename.name == "toy_induction_head_phase_change.png"
    assert capsys.readouterr().out.startswith("- Prefix matching of 0.5 after")
    assert study.show("heads") is None and "planted GPT-2" in capsys.readouterr().out
    assert study.show("texts") is None and "After 'abaca'" in capsys.readouterr().out


def test_what_could_not_be_written_is_not_measured_again(alone, monkeypatch):
    measured = []

    def record():
        return alone.record("a measure", lambda: measured.append(1) or {"n": 1}, lambda: ["text"])

    monkeypatch.setattr(records, "MARGIN", 1 << 60)
    with pytest.raises(OSError, match="disk is full"):
        record()
    assert record().data == {"n": 1} and len(measured) == 1


def test_a_record_may_add_to_its_provenance_and_is_named_without_those_it_was_measured_from(alone):
    def compute():
        inner = alone.record("another measure", lambda: {"n": 1}, lambda: ["text"]).data["n"]
        return {"n": inner, "provenance": {"oom_backoff": True}}

    record = alone.record("a measure", compute, lambda: ["text"])
    assert record.data == {"n": 1} and record.provenance["oom_backoff"] and record.provenance["finished"]
    assert [name[:9] for name in alone.origins] == ["a-measure"]


def test_blocks_outlive_an_interruption_and_are_joined(alone, tmp_path):
    measured: list = []

    def compute(numbers):
        measured.append(list(numbers))
        if len(measured) == 3:
            raise KeyboardInterrupt
        return {"values": np.array(numbers)}

    def record():
        blocks = [range(0, 2), range(2, 4), range(4, 5)]
        return alone.blocks("in blocks", lambda: blocks, compute, records.joined("values"), lambda: ["text"], n=5)

    with pytest.raises(KeyboardInterrupt):
        record()
    assert record().data["values"].tolist() == [0, 1, 2, 3, 4]
    assert measured == [[0, 1], [2, 3], [4], [4]]
    assert not [*(tmp_path / "blocks").iterdir()]
