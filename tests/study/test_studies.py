"""A study: settings are checked, parts are named, records are shared, what could not be written is not lost."""

import json

import numpy as np
import pytest

from util.engine.finite import NotFinite
from util.study import provenance as provenance_room
from util.study import store
from util.study.model import Model
from util.study.study import Study

SIZES = {"length": 5, "copies": 2, "sequences": 4}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    model = Model("embedded", device="cpu", verbose=False)
    return Study("toy_induction_head", model, **SIZES, folder=tmp_path_factory.mktemp("material"))


def test_an_unknown_part_lists_the_parts(study):
    for ask in (study.arrays, study.numbers, study.show):
        with pytest.raises(ValueError, match="toy_induction_head has no part 'counts'; it has shifts, .*phase_change"):
            ask("counts")


def test_a_study_does_not_change_and_replace_checks_again(study):
    other = study.replace(copies=3, model="embedded/phase")
    assert (study.settings.copies, other.settings.copies, other.settings.length) == (2, 3, 5)
    assert other.folder == study.folder and other.model.name == "embedded/phase"
    with pytest.raises(ValueError, match="copies = 1: "):
        study.replace(copies=1)
    with pytest.raises(ValueError, match="has no argument 'shots'"):
        study.replace(shots=1)


def test_the_twin_is_untrained_and_has_none_itself(study):
    twin = study.twin(3)
    assert twin.model.untrained_seed == 3 and not twin.settings.untrained_control
    assert study.settings.untrained_control and study.model.untrained_seed is None


def test_a_request_is_plain_json_and_has_the_settings(study):
    assert json.loads(json.dumps(study.request)) == study.request
    assert study.request["figure"] == "toy_induction_head" and study.request["length"] == 5


def test_a_record_is_loaded_without_a_model(study):
    measured = study.numbers("heads")

    def loader():
        raise AssertionError("a model was loaded")

    again = study.replace(model=Model("embedded", loader=loader), untrained_control=False)
    found = again.numbers("heads")["heads"]
    assert all(found[name] == row for name, row in measured["heads"].items() if "twin" not in name)
    assert again.description.startswith("embedded: LlamaForCausalLM")


def test_what_could_not_be_written_is_not_measured_again(study, tmp_path, monkeypatch):
    measured = []
    alone = study.replace(folder=tmp_path)

    def asked():
        return alone.record("a measure", lambda: measured.append(1) or {"n": 1}, lambda: ["text"])

    monkeypatch.setattr(store, "MARGIN", 1 << 60)
    with pytest.raises(OSError, match="disk is full"):
        asked()
    assert asked().data == {"n": 1} and len(measured) == 1


def test_no_number_that_is_none_is_kept(study, tmp_path):
    with pytest.raises(NotFinite):
        study.replace(folder=tmp_path).record("bad", lambda: {"value": np.array([np.nan])}, lambda: [])
    assert not list(tmp_path.glob("*.pickle"))


def test_the_values_file_has_all_parts_and_the_check_their_first_sentences(study):
    values = study.values
    assert {"request", "model", "toy", "construction", "heads", "patterns", "texts", "phase_change"} <= {*values}
    assert values["request"]["model"] == "embedded"
    check = study.check()
    assert len(check) == len(study.figure.parts) and check[0].startswith("Attention reads as far back")


def test_show_says_and_shows_and_writes(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    picture = study.show("phase_change")
    assert picture.filename.name == "toy_induction_head_phase_change.png"
    assert capsys.readouterr().out.startswith("Training a model of two layers")
    assert study.show("heads") is None and "planted GPT-2" in capsys.readouterr().out
    assert study.show("texts") is None and "After 'abaca'" in capsys.readouterr().out


def test_numbers_are_computed_once(study):
    alone = study.replace()
    assert alone.numbers("texts") is alone.numbers("texts")


def test_a_record_may_add_to_its_provenance(study, tmp_path):
    def measured():
        return {"n": 1, "provenance": {"oom_backoff": True}}

    record = study.replace(folder=tmp_path).record("a measure", measured, lambda: ["text"])
    assert record.data == {"n": 1} and record.provenance["oom_backoff"] and record.provenance["finished"]


def test_blocks_outlive_an_interruption_and_are_joined(study, tmp_path):
    measured: list = []
    alone = study.replace(folder=tmp_path)

    def compute(numbers):
        if len(measured) == 2:
            measured.append("interrupted")
            raise KeyboardInterrupt
        measured.append(list(numbers))
        return {"values": np.array(numbers)}

    def asked():
        return alone.blocks(
            "in blocks", lambda: [range(0, 2), range(2, 4), range(4, 5)], compute,
            lambda blocks: {"values": np.concatenate([block["values"] for block in blocks])}, lambda: ["text"], n=5,
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        asked()
    assert asked().data["values"].tolist() == [0, 1, 2, 3, 4]
    assert measured == [[0, 1], [2, 3], "interrupted", [4]]
    assert not (tmp_path / "blocks" / store.place_of(asked().request, tmp_path).stem).exists()


def test_weights_are_digested_once_however_many_records(study, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(provenance_room, "weights_digest", lambda model: taken.append(model) or "w")
    alone = study.replace(folder=tmp_path)
    alone.pair  # noqa: B018  # so that records are compared with its weights
    for number in range(3):
        alone.record("a measure", lambda: {"n": 1}, lambda: ["text"], number=number)
    assert len(taken) == 1
