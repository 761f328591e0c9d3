"""Claims beside what is published: what is said is what was judged."""

from tests.figures.legible import LONG_NAME
from tests.stored import values
from util import paths
from util.show import files
from util.show.part import claims_say, claims_table, judged_of, stored
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, NO_PREMISE, NOT_ASKED, NOT_DONE, Claim, Part


def part(name, verdict, value, needed=None, *, above=True):
    return Part(name, verdict, value, value - 0.05, value + 0.05, 0.1, above, 250, needed, 512, (0.5, 0.5))


LOST, TASKS = part("lost", HOLDS, 0.02, above=False), part("wordseq1, wordseq2", DOES_NOT_HOLD, 0.04)
JUDGED = (
    Claim(1, "circuits explain most", HOLDS, (LOST,)),
    Claim(2, "ablating them costs most", DOES_NOT_HOLD, (TASKS,), "nats", (part("wordseq1", "", -0.4),)),
    Claim(3, "forbidding costs nearly as much", NO_PREMISE, (), "claim 2 does not hold"),
    Claim(4, "more if ambiguous", CANNOT_BE_TOLD, (part("7 against 0", CANNOT_BE_TOLD, 0.1, 1017),)),
    Claim(5, "zero-shot answers change little", NOT_DONE),
    Claim(6, "text tasks benefit less", NOT_ASKED),
)


def of(judged):
    """Values of a figure with some verdicts."""
    return {"model": LONG_NAME, **files.plain({"claims": {"claims": judged}})}


def test_verdicts_are_counted_then_grouped_with_what_they_are_made_of():
    title, holds, does_not, premise, untold, not_done, not_asked = claims_say(of(JUDGED))
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
    assert next(iter(claims_say(of(JUDGED[2:])))) == ""
    assert claims_table(of(JUDGED))["bound"].tolist() == ["< 0.1", "> 0.1", "", "", "> 0.1", "", ""]
    assert len([*claims_say({})]) == 2 and claims_table({}).empty


def test_a_run_that_judges_no_claims_shows_the_verdicts_of_the_clone(output):
    files.save_values({"n": 1}, "induction_scores")
    known = values("induction_scores", "embedded")["claims"]
    assert judged_of("induction_scores", "embedded") == {"claims": known}
    files.save_claims({"claims": []}, "induction_scores")
    assert judged_of("induction_scores", "embedded") == {"claims": {"claims": []}}
    (paths.output("values") / "induction_scores.json").unlink()
    files.save_claims({"claims": []}, "induction_scores")  # alone, as `make claims` writes them
    both = stored("induction_scores", "embedded", latest=True)
    assert both and both["scores"] and both["claims"] == {"claims": []}
    assert judged_of("edge_ablation", "gpt2") == {"claims": None}
