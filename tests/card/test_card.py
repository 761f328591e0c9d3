"""A card of the embedded model, in small: its parts, its plan, what is kept, its page and its command."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.html_pages import CHROMIUM, NO_CHROMIUM, checked, words
from util import paths
from util.card import budget, costs, page, study
from util.card.atlas import CardAtlas, Entry
from util.card.budget import IOI, KNOCKED_OUT, PARTS, ROLES, WORD_PAIRS, Pace, Size
from util.card.results import SCHEMA, Taken
from util.card.sentences import Told, sentences
from util.card.study import Study
from util.commands import collect, studies
from util.commands.frame import main
from util.engine.call import UnsupportedModel
from util.figures.report import plain
from util.load_model_and_data import load_ICL_model
from util.prompts.prompt import UnsupportedTokenizer
from util.records import cache, shards
from util.records import model as model_room
from util.records.file_format import encode
from util.records.model import Model
from util.records.shards import Shard
from util.roles.rules import Role

TINY = {
    ROLES: (Size("full", {"prompts": 4, "sequences": 16, "pairs": 24, "word_prompts": 4, "intact": 8}),),
    IOI: (Size("full", {"prompts": 16, "path_heads": 4, "random_sets": 1}),),
    WORD_PAIRS: (Size("full", {"prompts": 4, "donor_seeds": (0,)}),),
    KNOCKED_OUT: (Size("full", {"queries": 8, "sequences": 4, "texts": 4, "control_sets": 2}),),
}


def silent(_line):
    """Takes what a card says, and says nothing."""


def never(*_, **__):
    """Takes the place of what loads a model."""
    raise AssertionError("a model is loaded")


@pytest.fixture(scope="module")
def tiny():
    """Cards are as small as their parts can be."""
    patch = pytest.MonkeyPatch()
    for module in (budget, study):
        patch.setattr(module, "SIZES", TINY)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def card(tiny, folder):
    return Study("embedded", folder=folder).card(silent)


@pytest.fixture(scope="module")
def written(card, tmp_path_factory):
    return page.write(card, tmp_path_factory.mktemp("card"), "python -m util card embedded --minutes 20")


def told(made):
    return {one.topic: one.told for one in sentences(plain(made.values()))}


# ------------------------------------------------------------------------------------------------ measuring


def test_all_parts_are_measured(card):
    assert [one.part for one in card.taken] == list(PARTS)
    assert all(one.size == "full" and one.seconds > 0 and not one.refused for one in card.taken)
    assert told(card)["Induction"] is Told.FOUND and told(card)["Indirect objects (IOI)"] is Told.FOUND


def test_its_numbers_are_those_of_the_figures(card, folder, tmp_path):
    alone = Study("embedded", folder=tmp_path)
    atlas = alone.roles_study(**TINY[ROLES][0].settings).atlas()
    assert plain(atlas.values()) == plain(card.roles.values())
    population = alone.ioi_study(**TINY[IOI][0].settings).population()
    np.testing.assert_array_equal(population.noised.value, card.ioi.population.noised.value)


def test_a_second_card_measures_nothing_and_loads_no_model(card, folder, monkeypatch):
    monkeypatch.setattr(model_room, "load_ICL_model", never)
    again = Study("embedded", folder=folder).card(silent)
    assert plain(again.values()) == plain(card.values())


def test_a_card_that_was_killed_goes_on_as_planned(card, tiny, folder, tmp_path, monkeypatch):
    killed = Study("embedded", folder=tmp_path)

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Study, "word_pairs", kill)
        with pytest.raises(KeyboardInterrupt):
            killed.card(silent)
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.pickle")}
    assert kept
    marks = [file for file in kept if cache.read(file).request.get("part") == "begun"]
    assert [cache.read(mark).request["about"] for mark in marks] == [WORD_PAIRS]
    with monkeypatch.context() as patch:  # the plan was made: how fast the machine is now changes nothing of it
        patch.setattr(Study, "pace", property(lambda self: Pace(1e-3, 1e3)))
        resumed = Study("embedded", folder=tmp_path).card(silent)
    assert not any(mark.exists() for mark in marks)
    for mark in marks:
        del kept[mark]
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # nothing is computed twice
    assert [one.part for one in resumed.taken if one.resumed] == [WORD_PAIRS]  # its seconds are those of the rest
    assert not any(one.is_read for one in resumed.taken)
    for name in ("roles", "IOI", "word pairs", "knocked out"):
        assert plain(resumed.values())[name] == plain(card.values())[name]


def test_two_shards_measure_the_card_of_one_process(card, tiny, folder, tmp_path, monkeypatch):
    """In turns, until all is there. What decides, and what it took, are records of one of them, for both."""

    def asked():
        return studies.collection({"study": "card", "model": "embedded"}, tmp_path)

    shards_of = set[str]()
    for _ in range(20):
        for number in (1, 2):
            collect.measure(asked(), Shard(number, 2))
        if all(one.is_whole for one in collect.look(asked()).values()):
            break
    monkeypatch.setattr(model_room, "load_ICL_model", never)
    assert "all there" in collect.merge(asked())[0] and not (tmp_path / "blocks").exists()
    made = asked().study.card(silent)
    for name in PARTS:
        assert plain(made.values())[name] == plain(card.values())[name]
    for file in tmp_path.glob("*.pickle"):
        record = cache.read(file)
        shards_of.add(str(record.provenance.get("shard", "")))
        if not file.name.startswith("card-"):  # which say when and for how long
            assert encode({"data": record.data}) == encode({"data": cache.read(folder / file.name).data}), file.name
    assert {"1/2", "2/2"} <= shards_of


def test_a_part_is_measured_whole_unless_it_is_shared_or_was_begun(tiny, tmp_path, monkeypatch):
    """Of a sweep, too, where the one process of a study is the first shard of one."""
    monkeypatch.setattr(Study, "_measured", lambda *_: None)
    size = TINY[ROLES][0]

    def resumed(folder, shard):
        with shards.only(shard):
            return Study("embedded", folder=tmp_path / folder)._timed(ROLES, size, {})[2]

    assert not resumed("alone", Shard(1, 1))
    made = Study("embedded", folder=tmp_path / "shared")
    for number in (1, 2):
        with shards.only(Shard(number, 2)):
            assert made._begin(ROLES, size)
    assert resumed("shared", Shard(1, 1)) and not made._mark(ROLES, size).exists()


def test_what_does_not_fit_is_left_out_and_said(tiny, tmp_path):
    said: list[str] = []
    hurried = Study("embedded", 1e-9, folder=tmp_path).card(said.append)
    assert {*told(hurried).values()} == {Told.NOT_MEASURED}
    assert all("left out" in line for line in said)
    assert not [file for file in tmp_path.rglob("*.pickle") if not file.name.startswith("card-")]


def test_parts_after_one_that_is_left_out_are_left_out(tiny, tmp_path, monkeypatch):
    """As the plan said beforehand, though a later part would fit; without roles there is nothing to knock out."""
    needed = {ROLES: 600.0, IOI: 10.0, WORD_PAIRS: 10.0, KNOCKED_OUT: 10.0}
    monkeypatch.setattr(Study, "estimates", lambda self, pace: {part: [needed[part]] for part in PARTS})
    made = Study("embedded", 5.0, folder=tmp_path).card(silent)
    assert [one.size for one in made.taken] == [None] * 4
    assert made.taken[-1].refused == "the roles of heads were not measured"
    assert "the roles of heads were not measured" in sentences(plain(made.values()))[-1].text


def test_shares_that_all_change_alike_have_an_interval():
    found = costs.beyond_controls(np.ones(40), 12, True)
    assert found.value == found.high == 1 and 0.7 < found.low < 0.95
    assert costs.beyond_controls(np.full(40, 0.5), 12, False).low == 0.5


def test_a_slow_part_leaves_less_to_those_after_it(tiny, tmp_path, monkeypatch):
    sizes = {**TINY, WORD_PAIRS: (*TINY[WORD_PAIRS], Size("larger", {"prompts": 5, "donor_seeds": (0,)}))}
    for module in (budget, study):
        monkeypatch.setattr(module, "SIZES", sizes)
    monkeypatch.setattr(Study, "estimates", lambda self, pace: {p: [60.0, 120.0][: len(sizes[p])] for p in PARTS})
    monkeypatch.setattr(study, "Card", lambda *given: SimpleNamespace(taken=given[6]))
    for seconds, size in ((60.0, "larger"), (100.0, "full")):
        result = SimpleNamespace(heads={(0, 0): []}), seconds, False
        monkeypatch.setattr(Study, "_timed", lambda *_, result=result: result)
        taken = Study("embedded", 8.0 if size == "larger" else 7.0, folder=tmp_path / size).card(silent).taken
        assert [one.size for one in taken if one.part == WORD_PAIRS] == [size]


def test_on_another_machine_or_with_other_code_it_is_decided_again(tiny, tmp_path, monkeypatch):
    paces = iter([Pace(1e-3, 0.0), Pace(1e9, 0.0)])
    monkeypatch.setattr(Study, "pace", property(lambda self: next(paces)))
    slow = Study("embedded", folder=tmp_path)
    assert slow._decision(ROLES, PARTS, [], None)["size"] is None
    monkeypatch.setattr(study, "code_digest", lambda: "of other code")
    assert Study("embedded", folder=tmp_path)._decision(ROLES, PARTS, [], None)["size"] == "full"


def test_more_minutes_keep_what_is_there_where_growing_does_not_fit(card, tiny, folder, monkeypatch):
    """Sizes that were measured cost nothing, so that the time is left to the parts that grow."""
    counts = {ROLES: "prompts", IOI: "prompts", WORD_PAIRS: "prompts", KNOCKED_OUT: "queries"}
    for part, (size,) in TINY.items():
        more = {**size.settings, counts[part]: size.settings[counts[part]] + 4}
        monkeypatch.setitem(study.SIZES, part, (size, Size("larger", more)))
    monkeypatch.setattr(Study, "estimates", lambda self, pace: {part: [100.0, 1e4] for part in PARTS})
    longer = Study("embedded", 30.0, folder=folder)
    assert longer.prices(Pace(1.0, 0.0))[ROLES] == [0.0, 1e4]
    made = longer.card(silent)
    assert [one.size for one in made.taken] == ["full"] * 4 and all(one.is_read for one in made.taken)
    assert [one.seconds for one in made.taken] == [one.seconds for one in card.taken]
    assert sum(one.spent for one in made.taken) == 0
    assert {part: (size, seconds) for part, (size, seconds) in longer.planned().items()} == {
        part: ("full", 0.0) for part in PARTS
    }


@pytest.mark.parametrize("error", [UnsupportedModel, UnsupportedTokenizer])
def test_a_part_that_a_model_refuses_is_left_out_with_the_reason(card, tiny, folder, monkeypatch, error):
    def refuse(*_, **__):
        raise error("the tokenizer splits names")

    monkeypatch.setattr(Study, "ioi", refuse)
    made = Study("embedded", folder=folder).card(silent)
    assert made.ioi is None and made.roles is not None
    found = {one.topic: one for one in sentences(plain(made.values()))}
    assert found["Indirect objects (IOI)"].told is Told.NOT_MEASURED
    assert "the tokenizer splits names" in found["Indirect objects (IOI)"].text


def test_any_other_error_ends_the_card(card, tiny, folder, monkeypatch):
    def fail(*_, **__):
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Study, "ioi", fail)
    with pytest.raises(ValueError, match="a mistake of ours"):
        Study("embedded", folder=folder).card(silent)


@pytest.mark.parametrize("wrong", [{"minutes": 0}, {"minutes": float("nan")}, {"seed": -1}])
def test_wrong_arguments_are_refused_before_anything_is_loaded(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Study("embedded", **wrong)


# ------------------------------------------------------------------------------------------------ the negative side


@pytest.mark.parametrize("seed", [0, 1])
def test_an_untrained_model_has_no_circuit(tiny, seed, tmp_path):
    made = Study(Model("embedded").twin(seed), folder=tmp_path).card(silent)
    assert Told.FOUND not in told(made).values()
    assert made.losses is None or not made.losses.each


def test_without_its_induction_heads_the_sentence_on_induction_goes(card, tiny, tmp_path):
    model, tokenizer = load_ICL_model("embedded", verbose=False)
    with torch.no_grad():
        for one in card.roles.roles[Role.INDUCTION]:
            written = model.model.layers[one.head[0]].self_attn.o_proj.weight  # [width, heads of a layer x their size]
            written.unflatten(1, (model.config.num_attention_heads, -1))[:, one.head[1]] = 0
    zeroed = Study(Model.given(model, tokenizer, "given:zeroed"), folder=tmp_path)
    made = zeroed.card(silent)
    assert made.roles is not None
    assert not {one.head for one in made.roles.roles[Role.INDUCTION]} & {
        one.head for one in card.roles.roles[Role.INDUCTION]
    }
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
    assert "python -m util card embedded --minutes 20" in shown
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


def test_the_command_says_its_plan_first(tiny, capsys, tmp_path):
    main(["card", "embedded", "--plan", "--out", str(tmp_path / "card")])
    shown = capsys.readouterr().out
    assert all(part in shown for part in PARTS) and "tokens a second" in shown and "GB" in shown
    assert not (tmp_path / "card").exists()


def test_the_fields_of_the_file_are_documented(written):
    text = (paths.root() / "data" / "cards" / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = [name.strip(" `") for row in rows for name in row.split(",")]
    assert documented == [*json.loads(written.json.read_text())]
    assert f"schema {SCHEMA}" in text


@pytest.mark.parametrize(("seconds", "times"), [(90.0, 1.5), (49.0, 1.0)])
def test_parts_ahead_are_expected_to_be_slower_as_those_before_but_never_faster(seconds, times):
    """In five minutes, roles of SmolLM2 took 49 s instead of 60, and IOI then 153 s instead of 131."""
    before = [Taken(ROLES, "tiny", {}, 60.0, seconds), Taken(IOI, "tiny", {}, 60.0, 600.0, there=True)]
    assert study._slower(before) == times
