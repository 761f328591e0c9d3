"""Claims beside what is published: what is drawn is what was judged, and all of it can be read."""

import json
import warnings

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from tests.figures.legible import LONG_NAME, faults
from util.figures import conclusions, report
from util.figures.claims_figure import ClaimsBeside, Published, stored
from util.figures.conclusions import CLAIMS as SOURCES
from util.figures.style import COLUMN, WIDTH
from util.stats.verdicts import DOES_NOT_HOLD, HOLDS, NOT_ASKED, NOT_DONE, UNDECIDED, Claim, Part, Verdicts, verdicts_of

ABOUT = f"{LONG_NAME}, 10 demonstrations, donors 0, 1, 2"


def part(name: str, verdict: str, value: float, bound: float = 0.1, *, above: bool = True) -> Part:
    return Part(name, verdict, value, value - 0.05, value + 0.05, bound, above, 250, None, None, (0.5, 0.5))


NOTHING = part("centre_embedding", NOT_DONE, np.nan)
CLAIMS = Verdicts(
    (
        Claim(1, "few edges explain 90%", HOLDS, (part("4 of 31 pairs", HOLDS, 0.98, 0.9),)),
        Claim(
            2,
            "pattern tasks lose more without induction heads than without others",
            DOES_NOT_HOLD,
            (part("country_capital", HOLDS, 0.6), part("wordseq1: not below", DOES_NOT_HOLD, -0.4), NOTHING),
        ),
        Claim(3, "contextualisation brings it back", UNDECIDED, (), "nothing to bring back: no task surely loses"),
        Claim(4, "little is lost", UNDECIDED, (part("7 against 0 (21, 96 solved)", UNDECIDED, 0.1, above=False),)),
        Claim(5, "zero-shot answers are not hurt", NOT_DONE, (), "no task is done without demonstrations"),
        Claim(6, "demonstrations of text tasks are worth less", NOT_ASKED, ()),
    )
)
TOLD = {1: Published("at least 0.90 of the performance", {"": 0.9}), 2: Published("so", {"country_capital": 0.7})}
BESIDE = ClaimsBeside(CLAIMS, TOLD, "Gemma-2 2B", "Gemma-2 2B, at least", LONG_NAME, ABOUT)


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
def test_every_claim_can_be_read(width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = BESIDE.figure(width=width)
        assert faults(figure) == []
    assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] < 8


def test_the_title_counts_the_verdicts_and_is_silent_where_none_is_reached():
    assert BESIDE.finding == (
        "Of 6 published claims 1 holds (1), 1 does not hold in this model (2), 2 are undecided (3, 4), "
        "1 has no task to test (5), 1 is not asked (6)"
    )
    undecided = ClaimsBeside(Verdicts(CLAIMS.claims[2:]), {}, "", "", "toy", "about")
    assert undecided.finding is None and undecided.figure().get_suptitle() == ""


def test_the_setting_says_how_many_queries_were_asked():
    assert BESIDE.setting == f"{ABOUT}, up to 250 queries of each task"
    assert ClaimsBeside(Verdicts(CLAIMS.claims[4:]), {}, "", "", "toy", "about").setting == "about"


def test_a_comparison_has_its_bound_its_interval_and_the_published_value():
    ax = BESIDE.figure().axes[0]
    at = {tuple(np.ravel(line.get_xdata())): line for line in ax.get_lines()}
    shaded = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    low, high = ax.get_xlim()
    spans = [(round(patch.get_x(), 6), round(patch.get_x() + patch.get_width(), 6)) for patch in shaded]
    high, low = round(high, 6), round(low, 6)
    assert spans == [(0.9, high), (0.1, high), (0.1, high), (0.1, high), (low, 0.1)]
    assert {(0.9,), (0.7,), (0.98,), (0.6,), (-0.4,), (0.1,)} <= {*at}
    assert at[(0.7,)].get_color() == at[(0.9,)].get_color() != at[(0.6,)].get_color()
    assert (0.6 - 0.05, 0.6 + 0.05) in at
    written = [text.get_text() for text in ax.texts]
    assert "0.98 [0.93, 1.03]" in written and written.count(NOT_DONE) == 1
    assert "published, Gemma-2 2B: at least 0.90 of the performance" in written
    told = [text.replace("\n", " ") for text in written]
    assert f"here, {LONG_NAME}: undecided (nothing to bring back: no task surely loses)" in told
    assert f"here, {LONG_NAME}: does not hold in this model (bound > 0.1)" in told
    assert f"here, {LONG_NAME}: undecided (bound < 0.1)" in told


@pytest.mark.parametrize("model", conclusions.STORED)
@pytest.mark.parametrize("stem", SOURCES)
def test_stored_verdicts_come_back_as_they_were_judged(stem, model):
    values = conclusions.stored_claims(stem, model) or pytest.fail("no claims")
    settings = {name: entry for name, entry in values["settings"].items() if name != "prompts"}
    verdicts = stored(stem, model, settings) or pytest.fail("not found")
    assert report.plain({"claims": verdicts.claims})["claims"] == values["claims"]
    assert len(verdicts.table()) >= 5 and verdicts.queries > 100


@pytest.mark.parametrize("stem", SOURCES)
def test_verdicts_on_another_question_are_not_taken_for_these(stem):
    """They have more queries; but those of another model, or made with other settings, answer another question."""
    values = conclusions.stored_claims(stem, "embedded") or pytest.fail("no claims")
    settings = values["settings"] | {"model": "embedded"}
    assert stored(stem, "embedded", settings) is not None and stored(stem, "gpt2", settings) is None
    for other in ({"model": "embedded, untrained"}, {"prompts": 7}, {"unknown": 1}):
        assert stored(stem, "embedded", settings | other) is None


@pytest.mark.parametrize("stem", SOURCES)
def test_the_figure_shows_the_verdicts_that_the_conclusions_tell(stem):
    """One entry is behind both, with the same number of queries."""
    values = conclusions.stored_claims(stem, "smollm2") or pytest.fail("no claims")
    shown = ClaimsBeside.of(stem, Verdicts(()), "smollm2", values["model"], "about", values["settings"])
    told = conclusions.verdict_sentences(verdicts_of(values))
    assert shown.setting == f"about, up to {shown.verdicts.queries} queries of each task"
    assert all(f"up to {shown.verdicts.queries} queries of a task" in sentence for sentence in told)
    for claim in shown.verdicts.claims:
        [sentence] = [sentence for sentence in told if f" {claim.number}, {claim.text}" in sentence]
        assert f"**{claim.verdict}**" in sentence


def test_what_a_values_file_leaves_out_of_a_comparison_has_no_number():
    values = conclusions.stored_claims("induction_scores", "embedded") or pytest.fail("no claims")
    first = verdicts_of(values).claims[0].parts[0]
    assert first.verdict == NOT_DONE and np.isnan([first.value, first.low, first.high]).all()


@pytest.mark.parametrize(("stem", "claims"), [("edge_ablation", 5), ("induction_scores", 7)])
def test_every_claim_has_what_is_published_of_it(stem, claims):
    told = report.published(stem)["claims"]
    assert [row["number"] for row in told["rows"]] == list(range(1, claims + 1)) and told["model"] and told["numbers"]
    assert all(row["said"] and row["source"] for row in told["rows"])
    beside = ClaimsBeside.of(stem, CLAIMS, "gpt2", "gpt2", "about", {})
    assert set(beside.published) == set(range(1, claims + 1)) and beside.verdicts == CLAIMS


def test_the_published_numbers_of_claims_are_those_of_the_papers_table():
    published = report.published("induction_scores")
    one, two, three = (row["values"] for row in published["claims"]["rows"][:3])
    rows = {row["id"]: row["value"] for row in published["values"] if row["model"].startswith("meta-llama/")}
    assert len(one) == 5 and len(two) == len(three) == 10
    for task in one:
        full, ablated, others, forbidden = (
            rows[f"{task}, 10 shots: {name}"] / 100
            for name in ("full", "mean ablation, top 1 %", "mean ablation, random 1 %", "knockout, top 1 %")
        )
        assert one[task] == pytest.approx(others - ablated, abs=1e-9)
        assert two[f"{task}: not above"] == pytest.approx(ablated - 0.5, abs=1e-9) == -two[f"{task}: not below"]
        assert three[f"{task}: costs"] == pytest.approx(full - forbidden, abs=1e-9)
        assert three[f"{task}: as much"] == pytest.approx(forbidden - ablated, abs=1e-9)
    assert json.dumps(report.published("edge_ablation")["claims"]["rows"][0]["values"]) == '{"": 0.9}'
