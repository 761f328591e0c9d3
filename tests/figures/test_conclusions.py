"""Conclusions: every number is a stored one, and other values make other sentences."""

import copy
import importlib
import json
import re

import pytest

from tests.stored import FOLDERS, intervals_in, rounded, values
from util import paths
from util.figures import FIGURES
from util.figures.conclusions import CLAIMS, in_words, listed, none_or, sign, stored, verdict_sentences, written
from util.stats.verdicts import DOES_NOT_HOLD, Claim, Part, Verdicts

SENTENCES = {
    stem: importlib.import_module(f"util.figures.{stem}.conclusions").sentences
    for stem in FIGURES
}  # fmt: skip


def said(stem, model="smollm2", **changed):
    """The conclusions in one text; changed: entries of the values by path, as in ab__cd."""
    found = copy.deepcopy(values(stem, model))
    for path, value in changed.items():
        *way, last = path.split("__")
        place = found
        for name in way:
            place = place[name.replace("_", " ") if name not in place else name]
        place[last.replace("_", " ") if last not in place else last] = value
    return "\n".join(SENTENCES[stem](found))


@pytest.mark.parametrize("model", FOLDERS)
@pytest.mark.parametrize("stem", FIGURES)
def test_every_interval_of_a_conclusion_is_stored(stem, model):
    found = values(stem, model)
    text = said(stem, model)
    assert intervals_in(text) and intervals_in(text) <= rounded(found)
    assert "nan" not in text.lower() and "None" not in text


@pytest.mark.parametrize("stem", FIGURES)
def test_conclusions_are_of_both_models_each_under_its_name(stem):
    shown = importlib.import_module(f"util.figures.{stem}.conclusions").of("embedded")
    both = ["embedded", "SmolLM2-135M-Instruct, Q4_1 file, dequantised"]
    before = ["whichever the model"] * (stem == "toy_induction_head")
    assert [*shown.sentences] == before + both
    text = shown._repr_markdown_()
    assert text.count("\n- ") + text.startswith("- ") == sum(map(len, shown.sentences.values()))
    for model, found in zip(FOLDERS, map(shown.sentences.get, both), strict=True):
        assert found is not None
        assert "\n".join(found).startswith(said(stem, model))


def test_another_model_stands_beside_the_committed_ones(tmp_path, monkeypatch):
    """Its values are those that were written last; a model without any has no text."""
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    of = importlib.import_module("util.figures.forerunner_heads.conclusions").of
    assert len(of("my/model").sentences) == 2
    (paths.output("values", "my/model") / "forerunner_heads.json").write_text(
        json.dumps(values("forerunner_heads", "embedded") | {"model": "mine"})
    )
    assert [*of("my/model").sentences][2] == "mine"
    assert stored("forerunner_heads", "my/model") is None  # the clone has none of it


def test_forerunner_heads_that_tell_labels_apart_are_not_said_to_read_any_label():
    judged = values("forerunner_heads", "smollm2")["specificity"]["judged"]
    assert "be it right or wrong" in said("forerunner_heads")
    known = said("forerunner_heads", specificity__judged=judged | {"than_wrong": 40})
    assert "be it right or wrong" not in known and "40 more than behind a wrong label" in known
    none = said("forerunner_heads", specificity__judged=judged | {"chosen": 0})
    assert "None of them is a forerunner head" in none


def told_of_cuts(done: bool, certain: str, gained: float = 3.0) -> str:
    """What is said where one cut alone has an interval without 0."""
    stored = values("forerunner_heads", "smollm2")
    cuts = dict.fromkeys(stored["ablation"]["together"]["label mass"]["cut"]["(0.0, 1.0)"], [-0.1, -1.0, 0.8])
    table = dict.fromkeys(stored["ablation"]["together"]["label mass"]["cut"], cuts)
    table["(0.0, 1.0)"] = cuts | {certain: [-2.0, -2.5, -1.5]}
    ablation = stored["ablation"] | {
        "together": dict.fromkeys(("which label", "label mass"), {"cut": table}),
        "gained": {"which label": [0.1, -0.1, 0.3], "label mass": [gained, gained - 1, gained + 1]},
    }
    chosen = dict.fromkeys(("ablation", "head effects"), {"dataset": "trec", "k": 16, "done": done})
    return said("forerunner_heads", ablation=ablation, chosen=chosen, task=stored["task"][:2])


def test_only_cuts_whose_interval_excludes_0_are_said_to_change_anything():
    text = told_of_cuts(True, "si_to_yi")
    for start in (
        "The model does `trec` with 16 demonstrations from its demonstrations. log P",
        "Demonstrations raise",
    ):
        [line] = [line for line in text.split("\n") if line.startswith(start)]
        changed, uncertain = line.split("; no change was detected without ")
        assert "changes without the labels' reads of their forerunners (-2.00 [-2.50, -1.50] nats)" in changed
        assert "what forerunners read of each other (-0.10 [-1.00, 0.80] nats)" in uncertain


def test_which_label_is_explained_only_where_the_task_is_done_and_mass_where_it_rises():
    text = told_of_cuts(False, "si_to_yi", gained=0.5)
    first = values("forerunner_heads", "smollm2")["task"][0]["over_none"]
    assert "no in-context learning to explain. Of two combinations" in text and f"by {first[0]:.2f} [" in text
    assert "label mass, log P(any label)" not in text and "Demonstrations raise" in told_of_cuts(False, "si_to_yi")


def test_ioi_heads_are_named_only_where_they_are_certain():
    assert "Against the answer work L24H4" in said("ioi_patching")
    population = values("ioi_patching", "smollm2")["population"]
    measured = copy.deepcopy(population["measured"])
    measured["high"][24][4] = 0.1
    text = said("ioi_patching", population=population | {"measured": measured})
    assert "L24H4 -0.26" not in text.split("To the output")[0] and "Against the answer work L29H0" in text


@pytest.mark.parametrize(
    ("stem", "place"),
    [("ioi_patching", "untrained"), ("induction_scores", "scores__untrained"), ("role_atlas", "untrained")],
)
def test_without_an_untrained_twin_nothing_is_said_of_one(stem, place):
    with_twin, without = said(stem), said(stem, **{place: None})
    assert re.search("untrained|fresh weights", with_twin) and not re.search("untrained|fresh weights", without)


def test_where_no_data_set_passes_it_is_said_of_roles_about_labels():
    line = "labels: no data set passed, what is lost is label mass (trec, k = 16)"
    assert f"L{line[1:]}." in said("role_atlas", left_out=[line]) and "Labels" not in said("role_atlas", left_out=[])


def test_what_heads_alone_keep_is_said_as_a_curve_beside_random_sets():
    """The first set above nine tenths hid that larger sets keep less than smaller ones, and random ones as much."""
    text = "The strongest 1, 2, 4, 8, 16, 32, 64, 128, 256 of 270 heads keep 0.57, 0.57, 0.75, 0.43, 0.17, 0.06, "
    assert f"{text}0.34, 0.85, 1.01. The best of 5 random sets of 256 keeps 1.01." in said("ioi_patching")
    circuit = values("ioi_patching", "smollm2")["circuit"]
    assert "random sets" not in said("ioi_patching", circuit=circuit | {"reached": {"0.9": None}})
    undone = {size: [None, None, None] for size in circuit["faithfulness"]}
    assert "does not do the task" in said("ioi_patching", circuit=circuit | {"faithfulness": undone})


def test_plain_text_says_nothing_of_a_model_that_cannot_read_it():
    assert "On plain text the loss is 5.09" in said("induction_scores")
    assert "its loss there says nothing" in said("induction_scores", "embedded")


def test_function_vector_heads_are_said_to_matter_only_where_the_difference_is_certain():
    text = said("induction_scores")
    assert "Word pairs rest more on FV heads" in text and "Copied tokens rest more on induction heads" in text
    vectors = values("induction_scores", "smollm2")["function vectors"]
    contrast = {"word pairs": [0.3, -0.1, 0.5], "copied tokens": [0.4, 0.3, 0.5]}
    other = said("induction_scores", function_vectors=vectors | {"contrast": contrast})
    assert "Word pairs do not tell the two apart" in other and "Copied tokens rest more on FV heads" in other


def test_a_model_that_does_no_pattern_task_has_no_ablation():
    assert "does none of the pattern tasks" in said("induction_scores", tasks_done={})


def test_contextualisation_is_said_to_matter_only_where_the_paired_tests_say_so():
    """On SmolLM2 in one task; on the embedded model in none. The values say it, not intervals that lie apart."""
    real, start = said("edge_ablation"), "read by each other or the query (AGG-ONLY) accuracy surely falls in "
    assert f"{start}`country_capital` (by 0.36 [0.12, 0.59], from 0.41 to 0.01); not surely in `copying`" in real
    assert f"{start}no task." in said("edge_ablation", "embedded")
    lost = values("edge_ablation", "smollm2")["sure losses"]
    changed = said("edge_ablation", sure_losses=lost | {"AGG-ONLY": {"copying": [0.1, 0.05, 0.2]}})
    assert f"{start}`copying` (by 0.10 [0.05, 0.20], from" in changed


def test_a_task_that_is_not_done_has_no_circuit():
    search = values("edge_ablation", "smollm2")["search"]
    scores = {name: [None, None, None] for name in search["scores"]}
    assert "so no circuit was looked for" in said("edge_ablation", search=search | {"scores": scores})


def test_verdicts_are_grouped_and_say_what_they_are_made_of():
    def part(name, verdict, needed=None):
        return Part(name, verdict, 0.1, 0.0, 0.2, 0.1, True, 40, needed, 512, (0.5, 0.5))

    claims = (
        Claim(1, "first", "holds", (part("a", "holds"),)),
        Claim(2, "second", "undecided", (part("a", "undecided", 1017),)),
        Claim(3, "third", "undecided", (), "nothing to judge"),
        Claim(4, "fourth", "task not done", (), "none helps"),
        Claim(8, "fifth", DOES_NOT_HOLD, (part("a", "undecided", 1017), part("b", DOES_NOT_HOLD, 3))),
        Claim(9, "sixth", "holds", (part("a", "holds"), part("b", "task not done"))),
        Claim(10, "seventh", "not asked", ()),
    )
    holds, undecided, not_done, does_not, not_asked = verdict_sentences(Verdicts(claims))
    assert holds == (
        "The paper's claims, up to 40 queries of a task: **holds**: 1, first; 9, sixth (holds in a; 1 tasks not done)."
    )
    assert undecided.endswith(
        "2, second (about 1,017 queries could decide; there are 512); 3, third (nothing to judge)."
    )
    assert not_done.endswith("**task not done**: 4, fourth (none helps).")
    assert does_not.endswith("**does not hold in this model**: 8, fifth (undecided in a; does not hold in b).")
    assert not_asked.endswith("**not asked**: 10, seventh.")


@pytest.mark.parametrize("model", FOLDERS)
@pytest.mark.parametrize("stem", CLAIMS)
def test_conclusions_end_with_the_stored_verdicts(stem, model):
    shown = importlib.import_module(f"util.figures.{stem}.conclusions").of("embedded")
    text = "\n".join([*shown.sentences.values()][[*FOLDERS].index(model)])
    for claim in values(stem, model)["claims"]["claims"]:
        [line] = [line for line in text.split("\n") if f" {claim['number']}, {claim['text']}" in line]
        assert f"**{claim['verdict']}**" in line


def test_words_of_sentences():
    assert (in_words(0), in_words(7), in_words(1519), none_or(0)) == ("no", "seven", "1,519", "none")
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")
    assert (written([4, 3, 5]), written([-0.004, -0.2, 0.1])) == ("4 [3, 5]", "0.00 [-0.20, 0.10]")
    assert [sign(triple) for triple in ([1, 0.5, 2], [-1, -2, -0.5], [1, -1, 2], [None, None, None])] == [1, -1, 0, 0]
