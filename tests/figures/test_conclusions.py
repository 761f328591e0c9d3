"""Conclusions: every number is a stored one, and other values make other sentences."""

import copy
import json
import re
from functools import partial

import pytest

from tests.stored import FOLDERS, intervals_in, rounded, values
from util import paths
from util.figures import FIGURES
from util.show.part import conclusions, figure_of, sentences, stored
from util.stats.intervals import Interval, detectable

SENTENCES = {stem: partial(sentences, figure_of(stem), measured=True) for stem in FIGURES}


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
    stored = values(stem, model)
    known = rounded(stored) | (rounded(values("role_atlas", model)) if stem == "ioi_patching" else set())
    if stem == "forerunner_heads":  # what a cut costs is stored as a text
        known |= intervals_in(". ".join(stored["ablation"]["findings"]))
    text = said(stem, model)
    assert intervals_in(text) and intervals_in(text) <= known
    assert "nan" not in text.lower() and "None" not in text


@pytest.mark.parametrize("stem", FIGURES)
def test_conclusions_are_of_both_models_each_under_its_name(stem):
    shown = conclusions(stem, "embedded")
    both = ["embedded", "SmolLM2-135M-Instruct, Q4_1 file, dequantised"]
    before = ["whichever the model"] * (stem == "toy_induction_head")
    assert [*shown.sentences] == before + both
    assert shown._repr_markdown_().count("\n- ") == sum(map(len, shown.sentences.values()))
    for model, found in zip(FOLDERS, map(shown.sentences.get, both), strict=True):
        assert found is not None
        assert "\n".join(found).startswith(said(stem, model))


def test_another_model_stands_beside_the_committed_ones(tmp_path, monkeypatch):
    """Its values are those that were written last; a model without any has no text."""
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    assert len(conclusions("forerunner_heads", "my/model").sentences) == 2
    (paths.output("values", "my/model") / "forerunner_heads.json").write_text(
        json.dumps(values("forerunner_heads", "embedded") | {"model": "mine"})
    )
    assert [*conclusions("forerunner_heads", "my/model").sentences][2] == "mine"
    assert stored("forerunner_heads", "my/model") is None  # the clone has none of it


def test_changes_by_seed_are_told_by_data_set():
    one, other = [-2.5, -3.0, -2.0], [0.1, -0.1, 0.3]
    cut = {"si_to_yi": {"label mass": [one, [-2.0, -2.2, -1.8]], "which label": [other, [0.3, 0.1, 0.5]]}}
    found = {"settings": {"prompts": 128, "seeds": [0, 1]}, "changes": {"trec, k = 4": cut}}
    told = "which label 0.10 to 0.30 (one beyond 0), label mass -2.50 to -2.00 (two beyond 0)."
    assert f"trec, k = 4, {told}" in said("forerunner_heads", claims=found)


def test_what_circuits_of_other_draws_share_is_shown():
    kept = values("edge_ablation", "smollm2")["search"]["kept"]
    text = said("edge_ablation", claims__kept_by_draw=[kept[:1], kept[:2]])
    told = "On other prompts, with two draws of donors, the search always keeps"
    assert f"{told} `{kept[0]}`." in text
    assert told not in said("edge_ablation", claims__kept_by_draw=[])


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
    assert (
        "4 of 270 heads alone keep 0.75 [0.63, 0.88] of the logit difference, 32 keep 0.06, 128 keep 0.85.\n"
        "The logit difference on fresh pairs is 4.32 [3.95, 4.69]; other heads are ablated to their means.\n"
        "As many random heads keep at most -0.07, -0.10 and 0.10.\nMean ablation of most heads breaks the model"
    ) in said("ioi_patching")
    embedded = said("ioi_patching", "embedded")
    assert "4 of 32 heads alone keep 1.16 [1.00, 1.33] of" in embedded and "heads keep at most 0.03." in embedded
    circuit = values("ioi_patching", "smollm2")["circuit"]
    none = {size: [0.1, 0.0, 0.2] for size in circuit["faithfulness"]} | {"8": [0.2, 0.1, 0.3]}
    text = said("ioi_patching", circuit=circuit | {"faithfulness": none})
    assert "8 of 270 heads alone keep 0.20 [0.10, 0.30] of" in text and "breaks the model" not in text
    assert "does not do the task" in said("ioi_patching", circuit=circuit | {"whole": [0.1, -0.1, 0.3]})


def test_few_edges_keep_the_effect_and_the_estimates_of_the_largest_are_told():
    """Nothing said that 0.5 % of the edges keep the effect, nor that EAP has the sign of the largest wrong."""
    text = said("ioi_patching")
    assert "By EAP-IG inputs 574 of 123,211 edges (0.5 %) keep 0.94 [0.77, 1.05] of the effect" in text
    assert "The largest, `input->m0`, carries 0.99 [0.97, 1.00]; estimates are EAP -0.06 and EAP-IG" in text


def test_a_class_whose_layers_cannot_be_taken_apart_has_no_sentences_of_paths_and_edges():
    """They ended in an error: a class without paths has no numbers of them."""
    stored = values("ioi_patching", "embedded")
    blind = [[None] * len(row) for row in stored["population"]["direct"]]
    refused = {"refused": "its layers cannot be taken apart"}
    text = said("ioi_patching", "embedded", paths=refused, population__direct=blind, component_graph=refused)
    assert "4 of 32 heads alone keep" in text and "path" not in text and "edges" not in text


def test_function_vector_heads_are_said_to_matter_only_where_the_difference_is_certain():
    text = said("induction_scores")
    assert "Word pairs rest more on FV heads" in text
    vectors = values("induction_scores", "smollm2")["function vectors"]
    contrast = {"word pairs": [0.3, -0.1, 0.5], "wordseq1": [-0.4, -0.5, -0.3]}
    other = said("induction_scores", function_vectors=vectors | {"contrast": contrast})
    seen = detectable(Interval(0.3, -0.1, 0.5), 40)
    missed = f"Word pairs: no difference between the two kinds was detected (40 queries; differences from {seen:.2f} on"
    assert missed in other and "The queries of `wordseq1` rest more on induction heads" in other


def test_few_queries_without_a_difference_are_not_spoken_of():
    vectors = values("induction_scores", "smollm2")["function vectors"]
    assert vectors["asked"]["wordseq1"] == "16 queries" and "queries of `wordseq1`" not in said("induction_scores")
    asked = vectors["asked"] | {"wordseq1": "17 queries"}
    assert "The queries of `wordseq1`: no" in said("induction_scores", function_vectors=vectors | {"asked": asked})


def test_tasks_that_are_not_shown_to_be_done_say_from_which_accuracy_on_it_would_be_seen():
    check = values("induction_scores", "smollm2")["benefits"]["tasks"]["wordseq2"]["check"]
    seen = 0.5 + detectable(Interval(check["accuracy"], check["bound"], 1), 40, 4.5)
    assert f"(accuracies from {seen:.2f} on would be seen to lie above chance)" in said("induction_scores")


def test_a_knockout_of_a_task_that_a_model_does_not_do_is_not_told():
    assert "With the pattern forbidden" in said("induction_scores")
    assert "With the pattern forbidden" not in said("induction_scores", tasks_done={})


def test_contextualisation_is_said_to_matter_only_where_the_paired_tests_say_so():
    """On SmolLM2 in one task; on the embedded model in none. The values say it, not intervals that lie apart."""
    real, start = (
        said("edge_ablation"),
        "without those read by each other or the query (AGG-ONLY) in 1 of 5 tasks, by up",
    )
    assert f"{start} to 0.36 [0.12, 0.59] in country_capital." in real
    assert "(AGG-ONLY) in" not in said("edge_ablation", "embedded")
    lost = values("edge_ablation", "smollm2")["sure losses"]
    changed = said("edge_ablation", sure_losses=lost | {"AGG-ONLY": {"copying": [0.1, 0.05, 0.2]}})
    assert f"{start} to 0.10 [0.05, 0.20] in copying." in changed


def test_a_task_that_is_not_done_has_no_circuit():
    search = values("edge_ablation", "smollm2")["search"]
    scores = {name: [None, None, None] for name in search["scores"]}
    text = said("edge_ablation", search=search | {"scores": scores})
    assert "No circuit of `capitalization` was looked for: no edges make the whole model answer better." in text


def test_a_count_of_a_role_has_its_units_and_the_smallest_effect_that_would_be_seen():
    """A role that no head has, too; values that do not have them say how many heads were tested alone."""
    roles = values("role_atlas", "embedded")["roles"]
    text = said("role_atlas", "embedded")
    for role, found in roles.items():
        [line] = [line for line in text.split("\n")[1:] if f"{role} (" in line or f"{role} head" in line]
        assert f"{found['tested']} tested, {found['n']} " in line and f"from {found['detectable']:.2f} on" in line
    old = {role: {name: found[name] for name in ("tested", "heads")} for role, found in roles.items()}
    before = said("role_atlas", "embedded", roles=old)
    assert "Four induction heads (4 tested): L2H4" in before and "duplicate-token (1 tested)" in before
