"""Claims beside what is published: what is said and drawn is what was judged, and all of it can be read."""

import warnings
from typing import Any

import pytest

from tests.figures.legible import LONG_NAME, faults
from tests.stored import FOLDERS, values
from util.show import claims, files
from util.show.part import conclusions, drawn
from util.show.style import COLUMN, WIDTH
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, NO_PREMISE, NOT_ASKED, NOT_DONE, Claim, Part


def picture(values, width=WIDTH) -> Any:
    """What the part draws of some values."""
    return drawn(claims.CLAIMS, values, width)


def part(name, verdict, value, needed=None, *, bound=0.1, above=True):
    there = 512 if verdict else None
    return Part(name, verdict, value, value - 0.05, value + 0.05, bound, above, 250, needed, there, (0.5, 0.5))


LOST, TASKS = part("lost", HOLDS, 0.02, above=False), part("wordseq1, wordseq2", DOES_NOT_HOLD, 0.04)
JUDGED = (
    Claim(1, "circuits explain most", HOLDS, (LOST,)),
    Claim(2, "ablating them costs most", DOES_NOT_HOLD, (TASKS,), "nats", (part("wordseq1", "", -0.4),)),
    Claim(3, "forbidding costs nearly as much", NO_PREMISE, (), "claim 2 does not hold"),
    Claim(4, "more if ambiguous", CANNOT_BE_TOLD, (part("7 against 0", CANNOT_BE_TOLD, 0.1, 1017),)),
    Claim(5, "zero-shot answers change little", NOT_DONE),
    Claim(6, "text tasks benefit less", NOT_ASKED),
)


def of(judged, model="a/model"):
    """Values of a figure with some verdicts."""
    own = {"1": {"value": 0.1, "verdict": HOLDS}, "2": {"value": 0.7, "verdict": HOLDS}}
    stored = {"setting": "10 demonstrations", "published": own, "claims": judged}
    plain = files.plain({"claims": stored}) if judged else {}
    return {"request": {"figure": "induction_scores", "model": model}, "model": LONG_NAME, **plain}


@pytest.mark.parametrize("width", [WIDTH, COLUMN])
def test_every_claim_can_be_read(width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = picture(of(JUDGED), width)
        assert faults(figure) == [] and figure.get_figwidth() == width and figure.get_figheight() < 8


def test_verdicts_are_counted_then_grouped_with_what_they_are_made_of():
    title, holds, does_not, premise, untold, not_done, not_asked = claims.says(of(JUDGED))
    assert title == (
        "Of 6 published claims 1 holds (1), 1 does not hold in this model (2), 1 cannot be told (4), "
        "1 lacks its premise (3), 1 has no task that is done (5), 1 is not asked (6)"
    )
    start = "The paper's claims, up to 250 queries of a task: "
    assert holds == f"{start}**holds**: 1, circuits explain most (lost: 0.02 [-0.03, 0.07], wanted < 0.1)."
    assert does_not.endswith(
        "2, ablating them costs most (nats; wordseq1, wordseq2: 0.04 [-0.01, 0.09], wanted > 0.1)."
    )
    assert premise.endswith("**premise not met**: 3, forbidding costs nearly as much (claim 2 does not hold).")
    assert untold.endswith("[0.05, 0.15], wanted > 0.1; 1,017 queries would do; there are 512).")
    assert not_done.endswith("**task not done**: 5, zero-shot answers change little.") and "**not asked**" in not_asked
    undecided = of(JUDGED[2:])
    assert next(iter(claims.says(undecided))) == "" and picture(undecided).get_suptitle() == ""


def test_a_comparison_has_its_bound_its_interval_and_the_published_value():
    first, second, _ = picture(of(JUDGED)).axes
    low, high = first.get_xlim()
    for ax, span, published, value in ((first, (low, 0.1), 0.1, 0.02), (second, (0.1, high), 0.7, 0.04)):
        [shaded] = ax.patches
        assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == pytest.approx(span)
        points = {line.get_xdata()[0]: line for line in ax.lines if line.get_marker() not in ("", "None")}
        assert {published, value} <= {*points} and points[published].get_color() != points[value].get_color()
        assert [value - 0.05, value + 0.05] in [list(line.get_xdata()) for line in ax.lines]
    assert [text.get_text() for text in second.texts] == [
        "2. ablating them costs most: does not hold in this model (nats)"
    ]


def test_the_setting_says_how_many_queries_were_asked_and_whether_the_model_was_trained_for_it():
    assert claims.about(of(JUDGED)) == f"{LONG_NAME}, 10 demonstrations; up to 250 queries of each task"
    assert "positive control" in claims.about(of(JUDGED, "embedded"))
    silent = of(())
    assert "`make claims`" in claims.about(silent) and picture(silent) is None
    assert [*claims.says(silent)] == [""] and claims.table(silent).empty


@pytest.mark.parametrize("model", FOLDERS)
@pytest.mark.parametrize(("stem", "count"), [("edge_ablation", 5), ("induction_scores", 7)])
def test_conclusions_end_with_the_verdicts_that_are_stored(stem, count, model):
    shown = conclusions(stem, "embedded")
    text = "\n".join([*shown.sentences.values()][[*FOLDERS].index(model)])
    stored = values(stem, model).get("claims")
    assert ("The paper's claims" in text) == (stored is not None)
    for claim in stored["claims"] if stored else ():
        [line] = [line for line in text.split("\n") if f" {claim['number']}, {claim['text']}" in line]
        assert f"**{claim['verdict']}**" in line
    told = files.published(stem)["claims"]
    assert [row["number"] for row in told["rows"]] == list(range(1, count + 1)) and told["model"] and told["numbers"]
    assert all(row["said"] and row["source"] for row in told["rows"])


def test_a_run_that_judges_no_claims_shows_the_verdicts_of_the_clone(tmp_path, monkeypatch):
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))
    files.save_values({"n": 1}, "induction_scores")
    known = values("induction_scores", "embedded")["claims"]
    assert claims.judged_of("induction_scores", "embedded") == {"claims": known}
    files.save_claims({"claims": []}, "induction_scores")
    assert claims.judged_of("induction_scores", "embedded") == {"claims": {"claims": []}}
    assert claims.judged_of("edge_ablation", "gpt2") == {"claims": None}
