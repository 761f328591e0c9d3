"""A card of the embedded model, in small: its parts, what is kept, its page and its command."""

import json

import numpy as np
import pytest
import torch

from tests.html_pages import CHROMIUM, NO_CHROMIUM, checked, words
from util import paths
from util.card import costs, page, study
from util.card.atlas import CardAtlas, Entry
from util.card.results import IOI, KNOCKED_OUT, ROLES, SCHEMA, WORD_PAIRS
from util.card.sentences import Told, sentences
from util.card.study import Study
from util.commands.frame import main
from util.engine.call import UnsupportedModel
from util.figures.role_atlas.show import place_of
from util.load_model_and_data import load_ICL_model
from util.prompts.prompt import UnsupportedTokenizer
from util.show.files import plain
from util.study import model as model_room
from util.study.model import Model

TINY = {
    ROLES: {
        "datasets": ["trec"],
        "ks": [4],
        "prompts": 4,
        "sequences": 16,
        "pairs": 24,
        "word_prompts": 4,
        "intact": 8,
    },
    IOI: {"prompts": 16, "path_heads": 4, "random_sets": 1},
    WORD_PAIRS: {"prompts": 4, "donor_seeds": (0,)},
    KNOCKED_OUT: {"queries": 8, "sequences": 4, "texts": 4, "control_sets": 2},
}


def never(*_, **__):
    """Takes the place of what loads a model."""
    raise AssertionError("a model is loaded")


@pytest.fixture(scope="module")
def tiny():
    """Cards are as small as their parts can be."""
    patch = pytest.MonkeyPatch()
    patch.setattr(study, "SIZES", {"full": TINY})
    yield
    patch.undo()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def card(tiny, folder):
    return Study("embedded", folder=folder).card()


@pytest.fixture(scope="module")
def written(card, tmp_path_factory):
    return page.write(card, tmp_path_factory.mktemp("card"), "python -m util card embedded --size full")


def told(made):
    return {one.topic: one.told for one in sentences(plain(made.values()))}


# ------------------------------------------------------------------------------------------------ measuring


def test_all_parts_are_measured(card):
    assert not card.refused and all(plain(card.values())[part] for part in TINY)
    assert told(card)["Induction"] is Told.FOUND and told(card)["Indirect objects (IOI)"] is Told.FOUND


def test_its_numbers_are_those_of_the_figures(card, folder, tmp_path):
    alone = Study("embedded", folder=tmp_path)
    atlas = alone.roles_study(**TINY[ROLES]).numbers("atlas")
    found = {role: {n: v for n, v in one.items() if n != "closest"} for role, one in card.roles["roles"].items()}
    assert plain(atlas["roles"]) == plain(found)
    population = alone.ioi_study(**TINY[IOI]).numbers("population")["population"]
    np.testing.assert_array_equal(population["noised"]["value"], card.ioi["population"]["noised"]["value"])


def test_a_second_card_measures_nothing_and_loads_no_model(card, folder, monkeypatch):
    monkeypatch.setattr(model_room, "load_ICL_model", never)
    again = Study("embedded", folder=folder).card()
    assert plain(again.values()) == plain(card.values())


def test_a_card_that_was_killed_goes_on_where_it_stopped(card, tiny, tmp_path, monkeypatch):
    killed = Study("embedded", folder=tmp_path)

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Study, "word_pairs", kill)
        with pytest.raises(KeyboardInterrupt):
            killed.card()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.pickle")}
    assert kept
    resumed = Study("embedded", folder=tmp_path).card()
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # nothing is computed twice
    for name in TINY:
        assert plain(resumed.values())[name] == plain(card.values())[name]


def test_shares_that_all_change_alike_have_an_interval():
    found = costs.beyond_controls(np.ones(40), 12, True)
    assert found.value == found.high == 1 and 0.7 < found.low < 0.95
    assert costs.beyond_controls(np.full(40, 0.5), 12, False).low == 0.5


@pytest.mark.parametrize("error", [UnsupportedModel, UnsupportedTokenizer])
def test_a_part_that_a_model_refuses_is_left_out_with_the_reason(card, tiny, folder, monkeypatch, error):
    def refuse(*_, **__):
        raise error("the tokenizer splits names")

    monkeypatch.setattr(Study, "ioi", refuse)
    made = Study("embedded", folder=folder).card()
    assert made.ioi is None and made.roles is not None
    found = {one.topic: one for one in sentences(plain(made.values()))}
    assert found["Indirect objects (IOI)"].told is Told.NOT_MEASURED
    assert "the tokenizer splits names" in found["Indirect objects (IOI)"].text


def test_any_other_error_ends_the_card(card, tiny, folder, monkeypatch):
    def fail(*_, **__):
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Study, "ioi", fail)
    with pytest.raises(ValueError, match="a mistake of ours"):
        Study("embedded", folder=folder).card()


@pytest.mark.parametrize("wrong", [{"size": "tiny"}, {"seed": -1}])
def test_wrong_arguments_are_refused_before_anything_is_loaded(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Study("embedded", **wrong)


# ------------------------------------------------------------------------------------------------ the negative side


@pytest.mark.parametrize("seed", [0, 1])
def test_an_untrained_model_has_no_circuit(tiny, seed, tmp_path):
    made = Study(Model("embedded").twin(seed), folder=tmp_path).card()
    assert Told.FOUND not in told(made).values()
    assert made.losses is None or not made.losses.each


def test_without_its_induction_heads_the_sentence_on_induction_goes(card, tiny, tmp_path):
    model, tokenizer = load_ICL_model("embedded", verbose=False)
    with torch.no_grad():
        for layer, head in map(place_of, card.roles["roles"]["induction"]["heads"]):
            written = model.model.layers[layer].self_attn.o_proj.weight  # [width, heads of a layer x their size]
            written.unflatten(1, (model.config.num_attention_heads, -1))[:, head] = 0
    zeroed = Study(Model.given(model, tokenizer, "given:zeroed"), folder=tmp_path)
    made = zeroed.card()
    assert made.roles is not None
    assert not {*made.roles["roles"]["induction"]["heads"]} & {*card.roles["roles"]["induction"]["heads"]}
    before, after = told(card), told(made)
    assert after.pop("Induction") is not Told.FOUND and before.pop("Induction") is Told.FOUND
    for topic in ("Indirect objects (IOI)", "Who tells whom"):  # in this model word pairs do rest on these heads
        assert after[topic] is before[topic] is Told.FOUND


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_is_whole_and_has_all_sentences(written, card):
    html = written.html.read_text()
    assert not checked(html).faults
    shown = words(html)
    values = json.loads(written.json.read_text())
    assert len(values["sentences"]) == 6
    for one in values["sentences"]:
        assert " ".join(one["text"].split()) in shown
    assert "python -m util card embedded --size full" in shown
    assert html.count("<img") == 6  # roles, paths, circuits, losses, heads, edges
    assert written.html.stat().st_size < 10e6


def test_sentences_come_from_the_file_alone(written):
    values = json.loads(written.json.read_text())
    assert [one.text for one in sentences(values)] == [one["text"] for one in values["sentences"]]


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_the_page_is_printed_on_both_sides_of_one_sheet(written):
    pages = written.pdf.read_bytes().count(b"/Type /Page\n") + written.pdf.read_bytes().count(b"/Type/Page\n")
    assert pages == 2


def test_without_a_browser_the_page_says_how_it_is_printed(card, tmp_path, monkeypatch):
    monkeypatch.delenv("ICL_CHROMIUM", raising=False)
    monkeypatch.setattr(page.shutil, "which", lambda _: None)
    (tmp_path / "card.pdf").write_text("of an older card")
    made = page.write(card, tmp_path, "python -m util card embedded")
    assert not (tmp_path / "card.pdf").exists()
    assert made.pdf is None and made.html.exists() and "ICL_CHROMIUM" in made.lacking


def test_a_browser_that_fails_is_named(card, tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_CHROMIUM", "/bin/false")
    assert "/bin/false" in page.write(card, tmp_path, "python -m util card embedded").lacking


# ------------------------------------------------------------------------------------------------ side by side


def test_cards_stand_side_by_side(written, tmp_path, capsys):
    values = json.loads(written.json.read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "card.json").write_text(json.dumps({**values, "model": "another", "layers": 8}))
    main(["atlas", str(written.json), str(other), "--out", str(tmp_path / "atlas")])
    shown = capsys.readouterr().out
    assert "embedded" in shown and "another" in shown
    stored = json.loads((tmp_path / "atlas" / "card_atlas.json").read_text())
    heads = values["roles"]["roles"]["induction"]["heads"]
    assert stored["embedded"]["induction"]["heads"] == len(heads) > 0
    layers = sorted(int(name[1]) for name in heads)
    assert stored["embedded"]["induction"]["depths"] == pytest.approx([layer / 3 for layer in layers])
    assert stored["another"]["induction"]["depths"] == pytest.approx([layer / 7 for layer in layers], abs=1e-6)
    named = {name for role in values["roles"]["roles"].values() for name in role["heads"]}
    nameless = {*values["IOI"]["carriers"]} - named
    assert stored["embedded"]["in IOI, no role"]["heads"] == len(nameless)
    in_ioi = {*heads} & {*values["IOI"]["carriers"]}
    assert stored["embedded"]["induction"]["in IOI too"] == sorted(in_ioi)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        (None, "python -m util card MODEL"),
        ("{", "make the card again"),
        ("[" * 100_000, "make the card again"),
        ('{"schema": 0}', "schema 0"),
        (f'{{"schema": {SCHEMA}}}', r"card.json is damaged \(KeyError: 'model'\); make the card again"),
        (f'{{"schema": {SCHEMA}, "model": "one", "roles": 5}}', "is damaged .TypeError"),
    ],
    ids=lambda value: f"{value!s:.40}",
)
def test_what_is_no_card_is_refused(tmp_path, text, cure):
    if text is not None:
        (tmp_path / "card.json").write_text(text)
    with pytest.raises(ValueError, match=cure):
        Entry.read(tmp_path)


def test_a_model_stands_in_an_atlas_once(written):
    entry = Entry.read(written.json)
    with pytest.raises(ValueError, match="different models"):
        CardAtlas((entry, entry))
    with pytest.raises(ValueError, match="one or more"):
        CardAtlas(())


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_writes_the_page_and_says_its_sentences(tiny, folder, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_MATERIAL", str(folder))
    main(["card", "embedded", "--out", str(tmp_path / "card")])
    shown = capsys.readouterr().out
    values = json.loads((tmp_path / "card" / "card.json").read_text())
    assert all(one["text"] in shown for one in values["sentences"]) and "card.html" in shown


def test_the_fields_of_the_file_are_documented(written):
    text = (paths.root() / "data" / "cards" / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = [name.strip(" `") for row in rows for name in row.split(",")]
    assert documented == [*json.loads(written.json.read_text())]
    assert f"schema {SCHEMA}" in text
