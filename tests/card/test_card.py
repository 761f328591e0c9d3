"""A card of the embedded model, in small: what it is made of, what is kept. Pages and atlases of committed cards."""

import json
import re
import shutil
from typing import Any

import pytest

from tests.clone import ROOT
from tests.stored import look_alike
from tests.unloaded import never
from util import card as cards
from util import figures
from util.card import SCHEMA, TOPICS, sentences
from util.commands.frame import main
from util.engine.call import UnsupportedModel
from util.prompts.prompt import UnsupportedTokenizer
from util.show.draw import ROLES as ROLE_COLOURS
from util.study import model as model_room
from util.study.model import Model
from util.study.study import Study

ROLES = {"datasets": ["trec"], "ks": [4], "prompts": 4, "sequences": 16, "pairs": 24, "word_prompts": 4, "intact": 8}
TINY: dict[str, dict[str, Any]] = {
    "role_atlas": ROLES,
    "ioi_patching": {"prompts": 16, "path_heads": 4, "random_sets": 1},
    "edge_ablation": {"tasks": ("copying", "capitalization"), "prompts": 4, "donor_seeds": (0,)},
    "induction_scores": {"tasks": ("wordseq1",), "text_tasks": (), "prompts": 4, "primary": 4, "control_sets": 1},
}
IOI = "Indirect objects (IOI)"
COMMITTED = ROOT / "data/cards"
PLACES = ["", "untrained-0", "smollm2", "gemma3"]


def failing(error, stem):
    """Takes the place of `Study.values_of`: raises where the figure is that of a stem."""
    whole = Study.values_of

    def values_of(study, *parts):
        if study.figure.stem == stem:
            raise error
        return whole(study, *parts)

    return values_of


# ------------------------------------------------------------------------------------------------ measured


@pytest.fixture(scope="module", autouse=True)
def tiny():
    """Cards are as small as their parts can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards, "SIZES", {"full": TINY})
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of the figures' own studies, with the untrained twin, as notebooks leave them."""
    made = tmp_path_factory.mktemp("records")
    for figure, parts, _ in TOPICS.values():
        Study(figure.stem, "embedded", folder=made, **TINY[figure.stem]).values_of(*parts)
    return made


@pytest.fixture(scope="module")
def measured(folder):
    """A card that is made of these records alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_room, "load_ICL_model", never)
        return json.loads(json.dumps(cards.measured(Model("embedded"), folder=folder)))


@pytest.mark.slow
def test_a_card_that_was_interrupted_goes_on_where_it_stopped(measured, folder, tmp_path, monkeypatch):
    """What is measured here before and after is some of IOI, and edges."""
    for file in folder.glob("*.pickle"):
        if not file.name.startswith(("IOI-paths", "edge-answers")):
            shutil.copy2(file, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Study, "values_of", failing(KeyboardInterrupt(), "edge_ablation"))
        with pytest.raises(KeyboardInterrupt):
            cards.measured(Model("embedded"), folder=tmp_path)
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.pickle")}
    assert any(file.name.startswith("IOI-paths") for file in kept)
    resumed = cards.measured(Model("embedded"), folder=tmp_path)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # nothing is measured twice
    assert resumed["sentences"] == measured["sentences"]


@pytest.mark.slow
@pytest.mark.parametrize("error", [UnsupportedModel, UnsupportedTokenizer])
def test_a_topic_that_a_model_refuses_is_said(folder, monkeypatch, error):
    monkeypatch.setattr(Study, "values_of", failing(error("names are split"), "ioi_patching"))
    made = cards.measured(Model("embedded"), folder=folder)
    assert made["refused"] == {IOI: "names are split"} and {*made["values"]} == {*TINY} - {"ioi_patching"}
    assert made["sentences"][IOI] == ["Not measured: names are split."]
    assert not [*cards.pictures(made, IOI)]
    assert cards.in_ioi(made) == set() and len(cards.table([made]))


@pytest.mark.slow
def test_the_command_measures_all_topics_writes_the_page_and_says_its_sentences(
    measured, folder, capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("ICL_MATERIAL", str(folder))
    monkeypatch.setattr(cards, "drawn", lambda *_: None)  # the pictures have a test of their own
    main(["card", "embedded", "--out", str(tmp_path / "card")])
    shown, card = capsys.readouterr().out, json.loads((tmp_path / "card" / "card.json").read_text())
    assert card == measured and not card["refused"] and "card.html" in shown
    for stem, settings in TINY.items():
        asked = card["values"][stem]["request"]
        assert asked["figure"] == stem and {name: asked[name] for name in settings} == json.loads(json.dumps(settings))
    assert card["provenance"]["weights"] and "prompt_digest" not in card["provenance"]
    assert all(sentence in shown for said in card["sentences"].values() for sentence in said)
    made = (tmp_path / "card" / "card.html").read_text()
    assert "python -m util card embedded --size full" in made and '<a href="look.html">' in made
    assert "[3,7]]" in (tmp_path / "card" / "look.html").read_text()  # all heads


def test_the_settings_of_a_full_card_are_those_of_the_notebooks():
    cells = {stem: [*ROOT.glob(f"notebooks/*_{stem}.ipynb")][0].read_text(encoding="utf-8") for stem in TINY}
    for figure, _, _ in TOPICS.values():
        settings = figure.settings()
        stated = re.findall(r'"(\w+) = ([\d]+|\[[\d, ]+\])(?:  #[^"]*)?(?:\\n)?"', cells[figure.stem])
        asked = {name: json.loads(value) for name, value in stated if hasattr(settings, name)}
        assert "seed" in asked and len(asked) > 1
        for name, value in asked.items():
            default = getattr(settings, name)
            assert value == (list(default) if isinstance(default, tuple) else default), (figure.stem, name)


@pytest.mark.parametrize("wrong, named", [({"seed": -1}, "seed"), ({}, "sequences")])
def test_wrong_settings_are_refused_before_anything_is_measured(wrong, named, no_model, tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "SIZES", {"full": TINY | {"induction_scores": {"sequences": 0 if not wrong else 1}}})
    with pytest.raises(ValueError, match=named):
        cards.measured(Model("embedded"), folder=tmp_path, **wrong)


# ------------------------------------------------------------------------------------------------ committed cards


@pytest.fixture
def card():
    return cards.read(COMMITTED)


def test_the_page_is_whole_and_texts_are_escaped(card, monkeypatch):
    html = cards.page(card, "python -m util card embedded")
    pictures = re.findall(r'<img src="([^"]{30})', html)
    assert len(pictures) == 8 and all(address.startswith("data:image/png;base64,iVBOR") for address in pictures)
    assert not re.search(r"<script|<link|url\(|@import", html)
    for said in card["sentences"].values():
        assert all(sentence.replace("'", "&#39;").replace(">", "&gt;") in html for sentence in said)
    monkeypatch.setattr(cards, "drawn", lambda *_: None)
    html = cards.page({**card, "model": "<script>x", "sentences": {"Roles of heads": ["1 < 2 & <b>"]}}, '"><i>')
    assert "<script" not in html and "<b>" not in html and "<i>" not in html
    assert "1 &lt; 2 &amp; &lt;b&gt;" in html and "&lt;script&gt;x" in html


def test_the_committed_cards_stand_side_by_side(tmp_path):
    """The embedded one, which is another folder here, has a page of what its heads do beside it."""
    shutil.copy(COMMITTED / "card.json", tmp_path / "card.json")
    (tmp_path / "look.html").touch()
    others = [str(COMMITTED / place) for place in PLACES[1:]]
    main(["atlas", str(tmp_path), *others, "--out", str(tmp_path)])
    assert (tmp_path / "card_atlas.json").read_bytes() == (COMMITTED / "card_atlas.json").read_bytes()
    assert look_alike(tmp_path / "card_atlas.png", COMMITTED / "card_atlas.png")
    html, heads = (tmp_path / "card_atlas.html").read_text(), cards.read(COMMITTED)["values"]["role_atlas"]["roles"]
    assert len(re.findall(r'<a href="look.html#(L\dH\d)" title="\1', html)) == 4 * 8
    for head in heads["induction"]["heads"]:
        [(said, style), *_] = re.findall(rf'title="{head}([^"]*)" style="background: linear-gradient\(([^"]*)\)"', html)
        assert ", induction: " in said and ROLE_COLOURS["induction"].colour in style


def test_names_of_models_are_escaped_in_an_atlas(card):
    assert "&lt;b&gt;" in cards.atlas_page([{**card, "model": "<b>"}], [None])


@pytest.mark.parametrize(
    "text, cure",
    [
        (None, "python -m util card MODEL"),
        ('{"schema": 2}', "schema 2, this version reads 4"),
        (f'{{"schema": {SCHEMA}}}', r"card.json is damaged \(KeyError: 'values'\); make the card again"),
    ],
)
def test_what_is_no_card_is_refused(tmp_path, text, cure):
    if text is not None:
        (tmp_path / "card.json").write_text(text)
    with pytest.raises(ValueError, match=cure):
        cards.read(tmp_path)


def test_the_fields_of_the_file_are_documented(card):
    text = (COMMITTED / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [name.strip(" `") for row in rows for name in row.split(",")] == [*card]
    assert f"schema {SCHEMA}" in text


@pytest.mark.parametrize("place", PLACES)
def test_the_committed_cards_say_what_their_values_support(place, monkeypatch):
    """From the file alone."""
    monkeypatch.setattr(figures, "stored", never)  # values of the clone
    stored = cards.read(COMMITTED / place)
    assert sentences(stored) == stored["sentences"] and all(stored["sentences"].values())
    heads = [head for role in cards.depths(stored).values() for head in role]
    assert (not heads and not cards.in_ioi(stored)) == (place == "untrained-0")
