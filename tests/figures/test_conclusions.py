"""What values say of a model: every number is a stored one, and other values make other sentences."""

import json
import re
from functools import reduce

import pytest

from tests.stored import FOLDERS, intervals_in, rounded, triples, values
from util import paths
from util.figures import FIGURES
from util.show.part import figure_of, findings, stored
from util.stats.intervals import Interval, detectable
from util.study.study import published

SEEDS_OWN = {"p1", "p2", "p3", "p4", "p5", "streams"}


def entry(found, path):
    """An entry of values by its path, as in "search/kept"; numbers are places in lists."""
    return reduce(lambda place, step: place[int(step) if isinstance(place, list) else step], path.split("/"), found)


def told(stem, model="smollm2", changed=None):
    """All sentences of a model's parts, but for a seed's own panels; changed: entries of the values by path."""
    found = values(stem, model)
    for path, value in (changed or {}).items():
        way, _, last = path.rpartition("/")
        place = entry(found, way) if way else found
        place[int(last) if isinstance(place, list) else last] = value
    figure = figure_of(stem)
    parts = [part for name, part in figure.parts.items() if part.measure and name not in SEEDS_OWN]
    return "\n".join(f"{sentence.rstrip('.')}." for part in parts for sentence in part.says(found) if sentence)


@pytest.mark.parametrize("model", FOLDERS)
@pytest.mark.parametrize("stem", FIGURES)
def test_every_interval_of_a_conclusion_is_stored(stem, model):
    stored = values(stem, model)
    known = rounded(stored) | (rounded(values("role_atlas", model)) if stem == "ioi_patching" else set())
    if stem == "forerunner_heads":  # a change is told as a cost
        known |= rounded([[-value, -high, -low] for value, low, high in triples(stored["ablation"])])
    text = told(stem, model)
    assert intervals_in(text) and intervals_in(text) <= known
    assert "nan" not in text.lower() and "None" not in text


def test_values_of_another_model_are_those_that_were_written_last(output):
    file = paths.output("values", "my/model") / "forerunner_heads.json"
    file.write_text(json.dumps({"model": "mine"}))
    assert stored("forerunner_heads", "my/model", latest=True) == {"model": "mine"}
    assert stored("forerunner_heads", "my/model") is None  # the clone has none of it


@pytest.mark.parametrize("stem", FIGURES)
def test_a_notebook_begins_with_endpoints_and_findings_of_published_models(stem):
    smollm2, gemma3 = (findings(figure_of(stem), values(stem, model)) for model in ("smollm2", "gemma3"))
    assert published(stem).data.count("\n- ") == len(smollm2) + len(gemma3) and 2 <= len(smollm2) < 10
    endpoints = [line.startswith("Primary endpoint") for line in smollm2]
    assert endpoints == sorted(endpoints, reverse=True)


# ------------------------------------------------------------------------------------------------ other values

KEPT = entry(values("edge_ablation", "smollm2"), "search/kept")
SETS = entry(values("ioi_patching", "smollm2"), "circuit/faithfulness")
WORDSEQ2 = entry(values("induction_scores", "smollm2"), "benefits/tasks/wordseq2/check")
SEEN = 0.5 + detectable(Interval(WORDSEQ2["accuracy"], WORDSEQ2["bound"], 1), 40, 4.5)
DIRECT = entry(values("ioi_patching", "embedded"), "population/direct")
REFUSED = {"refused": "its layers cannot be taken apart"}
AGG = "without contextualisation (AGG-ONLY) in 1 of 5 tasks, by up to"
LINE = "labels: no data set passed, what is lost is label mass (trec, k = 16)"
EDGE_TASKS = entry(values("edge_ablation", "smollm2"), "scores")
NO_SCORES = dict.fromkeys(entry(values("edge_ablation", "smollm2"), "search/scores"), [None, None, None])

# What is told, stem, model, changes, texts that are there, texts that are not.
TOLD = {
    "circuits of draws share edges": (
        "edge_ablation", "smollm2", {"claims/kept by draw": [KEPT[:1], [*KEPT[:2], "y->y:earlier"]]},
        [f"two draws of donors, the search always keeps `{KEPT[0]}`, and of other pairs `y->y:earlier` (1 of 2)."], [],
    ),
    "no draws": ("edge_ablation", "smollm2", {"claims/kept by draw": []}, [], ["the search always keeps"]),
    "a task that is not done has no circuit": (
        "edge_ablation", "smollm2", {"search/scores": NO_SCORES},
        ["No circuit of `capitalization` has a score: no edges make the whole model answer better."], [],
    ),
    "a score of a task that is not done": (  # it was 1.00, of accuracies below chance
        "edge_ablation", "smollm2", {},
        ["Not done, and so without a score: `person_sport`", "and 0.77 [0.55, 1.00] in `present_past`."],
        [" in `person_sport`"],
    ),
    "no task is done": (
        "edge_ablation", "smollm2", {"scores": dict.fromkeys(EDGE_TASKS, {"CTX+AGG": [None], "AGG-ONLY": [None]})},
        ["score of `CTX+AGG`: none, since no task is done."], [],
    ),
    "contextualisation elsewhere": (
        "edge_ablation", "smollm2", {"sure losses/AGG-ONLY": {"copying": [0.1, 0.05, 0.2]}},
        [f"{AGG} 0.10 [0.05, 0.20] in copying."], [],
    ),
    "a head that is not certain": (
        "ioi_patching", "smollm2", {"population/measured/high/24/4": 0.1}, ["Against the effect work L29H0"], ["-0.26"],
    ),
    # the first set above nine tenths hid that larger sets keep less than smaller ones, and random ones as much
    "a curve of sets beside random ones": (
        "ioi_patching", "smollm2", {},
        ["4 of 270 heads alone keep 0.75 [0.63, 0.88], 32 keep 0.06, 128 keep 0.85 of the logit difference.\n"
         "The logit difference on fresh pairs is 4.32 [3.95, 4.69]; other heads are ablated to their means.\n"
         "As many random heads keep at most -0.07, -0.10 and 0.10.\nMean ablation of other heads breaks the model"], [],
    ),
    "a set that keeps little": (
        "ioi_patching", "smollm2",
        {"circuit/faithfulness": dict.fromkeys(SETS, [0.1, 0.0, 0.2]) | {"8": [0.2, 0.1, 0.3]}},
        ["8 of 270 heads alone keep 0.20 [0.10, 0.30] of"], ["breaks the model"],
    ),
    "a task that is not done": (
        "ioi_patching", "smollm2", {"circuit/whole": [0.1, -0.1, 0.3]}, ["is not shown to be done"], [],
    ),
    # nothing said that 0.5 % of the edges keep the effect, nor that EAP has the sign of the largest wrong
    "edges": (
        "ioi_patching", "smollm2", {},
        ["By EAP-IG inputs 574 of 123,211 edges (0.5 %) keep 0.94 [0.77, 1.05] of the effect",
         "The largest, `input->m0`, carries 0.99 [0.97, 1.00]; estimates are EAP -0.06 and EAP-IG"], [],
    ),
    # a class without paths has no numbers of them: its sentences ended in an error
    "layers that cannot be taken apart": (
        "ioi_patching", "embedded",
        {"paths": REFUSED, "population/direct": [[None] * len(row) for row in DIRECT], "component graph": REFUSED},
        ["4 of 32 heads alone keep", "Paths: not measured, its layers", "Edges: not measured, its layers"],
        ["The strongest: "],
    ),
    "no data set for roles about labels": ("role_atlas", "smollm2", {"left out": [LINE]}, [f"L{LINE[1:]}."], []),
    "roles about labels": ("role_atlas", "smollm2", {"left out": []}, [], ["Labels"]),
    "two kinds of heads, not told apart": (
        "role_atlas", "smollm2",
        {"function vectors/contrast": {"word pairs": [0.3, -0.1, 0.5], "wordseq1": [-0.4, -0.5, -0.3]}},
        ["Word pairs: no difference between heads of just one kind was detected (40 queries; 80 % power from "
         f"{detectable(Interval(0.3, -0.1, 0.5), 40):.2f} on",
         "The queries of `wordseq1` rest more on induction heads"], [],
    ),
    "enough queries": (
        "role_atlas", "smollm2", {"function vectors/asked/wordseq1": "17 queries"},
        ["The queries of `wordseq1`: no"], [],
    ),
    "no pattern task is done": (
        "induction_scores", "smollm2", {"tasks_done": {}},
        [f"(80 % power for accuracies from {SEEN:.2f} on)", "Primary endpoint, not asked, as the task is not done: "],
        ["queries: accuracy", "not met"],
    ),
}  # fmt: skip
UNTRAINED = [("ioi_patching", "untrained"), ("induction_scores", "scores/untrained"), ("role_atlas", "untrained")]


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told_of_values(case):
    stem, model, changed, there, missing = TOLD[case]
    text = told(stem, model, changed)
    assert not [words for words in there if words not in text] and not [words for words in missing if words in text]


@pytest.mark.parametrize("stem, place", UNTRAINED)
def test_without_an_untrained_twin_nothing_is_said_of_one(stem, place):
    with_twin, without = told(stem), told(stem, changed={place: None})
    assert re.search("untrained|fresh weights", with_twin) and not re.search("untrained|fresh weights", without)
