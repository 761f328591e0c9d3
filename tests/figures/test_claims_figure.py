"""Claims beside what is published: what is drawn is what was judged, and all of it can be read."""

import warnings

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from tests.figures.legible import LONG_NAME, faults
from util.figures.claims_figure import ClaimsBeside, Published
from util.show import conclusions, files
from util.show.conclusions import CLAIMS as SOURCES
from util.show.style import COLUMN, WIDTH
from util.stats.verdicts import (
    CANNOT_BE_TOLD,
    DOES_NOT_HOLD,
    HOLDS,
    NO_PREMISE,
    NOT_ASKED,
    NOT_DONE,
    Claim,
    Part,
    Verdicts,
    verdicts_of,
)

ABOUT = f"{LONG_NAME}, 10 demonstrations, donors 0, 1, 2"


def part(name: str, verdict: str, value: float, bound: float = 0.1, *, above: bool = True) -> Part:
    return Part(name, verdict, value, value - 0.05, value + 0.05, bound, above, 250, None, None, (0.5, 0.5))


CLAIMS = Verdicts(
    (
        Claim(1, "circuits explain most of the performance", HOLDS, (part("lost", HOLDS, 0.02, above=False),)),
        Claim(
            2,
            "ablating induction heads costs pattern tasks more than ablating others",
            DOES_NOT_HOLD,
            (part("wordseq1, wordseq2", DOES_NOT_HOLD, 0.04),),
            beside=(part("wordseq1", "", -0.4), part("wordseq2", "", 0.5)),
        ),
        Claim(3, "forbidding the pattern alone costs nearly as much", NO_PREMISE, (), "claim 2 does not hold"),
        Claim(4, "little is lost", CANNOT_BE_TOLD, (part("7 against 0 ambiguous", CANNOT_BE_TOLD, 0.1, above=False),)),
        Claim(5, "zero-shot answers change little", NOT_DONE),
        Claim(6, "demonstrations of text tasks are worth less", NOT_ASKED),
    )
)
TOLD = {1: Published("at least 0.90 of the performance", 0.1, HOLDS), 2: Published("so", 0.7, HOLDS)}
BESIDE = ClaimsBeside(CLAIMS, TOLD, "Gemma-2 2B", "Gemma-2 2B, at least", LONG_NAME, ABOUT)


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
def test_every_claim_can_be_read(width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = BESIDE.figure(width=width)
        assert figure is not None and faults(figure) == []
    assert figure.get_size_inches()[0] == width and figure.get_size_inches()[1] < 8


def test_the_title_counts_the_verdicts_and_is_silent_where_none_is_reached():
    assert BESIDE.finding == (
        "Of 6 published claims 1 holds (1), 1 does not hold in this model (2), 1 cannot be told (4), "
        "1 lacks its premise (3), 1 has no task that is done (5), 1 is not asked (6)"
    )
    silent = ClaimsBeside(Verdicts(CLAIMS.claims[2:]), {}, "", "", "toy", "about")
    figure = silent.figure()
    assert silent.finding is None and figure is not None and figure.get_suptitle() == ""
    assert ClaimsBeside(Verdicts(CLAIMS.claims[4:]), {}, "", "", "toy", "about").figure() is None


def test_the_setting_says_how_many_queries_were_asked():
    assert BESIDE.setting == f"{ABOUT}; up to 250 queries of each task"
    assert ClaimsBeside(Verdicts(CLAIMS.claims[4:]), {}, "", "", "toy", "about").setting == "about"


def test_a_comparison_has_its_bound_its_interval_and_the_published_value():
    figure = BESIDE.figure()
    assert figure is not None
    ax = figure.axes[0]
    at = {tuple(np.ravel(line.get_xdata())): line for line in ax.get_lines()}
    shaded = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    low, high = ax.get_xlim()
    spans = [(round(patch.get_x(), 6), round(patch.get_x() + patch.get_width(), 6)) for patch in shaded]
    high, low = round(high, 6), round(low, 6)
    assert spans == [(low, 0.1), (0.1, high), (low, 0.1)], "what stands beside a claim has no bound"
    assert {(0.1,), (0.7,), (0.02,), (0.04,), (-0.4,), (0.5,)} <= {*at}
    assert at[(0.7,)].get_color() != at[(0.04,)].get_color() != at[(-0.4,)].get_color()
    assert (0.04 - 0.05, 0.04 + 0.05) in at
    written = [text.get_text().replace("\n", " ") for text in ax.texts]
    assert "0.02 [-0.03, 0.07]" in written
    assert "published, Gemma-2 2B: at least 0.90 of the performance; by its own numbers 0.10: holds" in written
    assert f"here, {LONG_NAME}: premise not met (claim 2 does not hold)" in written
    assert f"here, {LONG_NAME}: does not hold in this model (bound > 0.1)" in written
    assert f"here, {LONG_NAME}: cannot be told (bound < 0.1)" in written


JUDGED = [(stem, model) for stem in SOURCES for model in conclusions.STORED if conclusions.stored_claims(stem, model)]


def test_claims_of_each_paper_are_stored():
    assert {stem for stem, _ in JUDGED} == {*SOURCES}


@pytest.mark.parametrize(("stem", "model"), JUDGED)
def test_the_figure_shows_the_verdicts_that_are_stored_and_told(stem, model):
    """One entry is behind both, with the same number of queries."""
    values = conclusions.stored_claims(stem, model) or pytest.fail("no claims")
    shown = ClaimsBeside.of(stem, model)
    assert files.plain({"claims": shown.verdicts.claims})["claims"] == values["claims"]
    assert ("positive control" in shown.setting) == (model == "embedded")
    told = conclusions.verdict_sentences(verdicts_of(values))
    for claim in shown.verdicts.claims:
        [sentence] = [sentence for sentence in told if f" {claim.number}, {claim.text}" in sentence]
        assert f"**{claim.verdict}**" in sentence


def test_of_a_model_without_claims_nothing_is_drawn():
    none = ClaimsBeside.of("edge_ablation", "gpt2")
    assert none.verdicts.claims == () and none.figure() is None and "make claims" in none.setting


@pytest.mark.parametrize(("stem", "claims"), [("edge_ablation", 5), ("induction_scores", 7)])
def test_every_claim_has_what_is_published_of_it(stem, claims):
    told = files.published(stem)["claims"]
    assert [row["number"] for row in told["rows"]] == list(range(1, claims + 1)) and told["model"] and told["numbers"]
    assert all(row["said"] and row["source"] for row in told["rows"])
    assert set(ClaimsBeside.of(stem, "gpt2").published) == set(range(1, claims + 1))
