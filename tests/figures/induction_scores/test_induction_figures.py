"""What is said and drawn of induction heads: that it is true. Whether it can be read: test_drawn.py."""

import numpy as np
import pytest

from tests.figures.induction_scores.made_up_shots import ABLATED, GAIN, SETUP, WHOLE, first
from tests.figures.induction_scores.made_up_shots import CHOSEN as THREE
from util.figures.edits import Edit
from util.figures.induction_scores import numbers, show
from util.figures.induction_scores.numbers import Plan
from util.roles.attention_scores import uniform_prefix_matching
from util.roles.sequences_study import HeadScores
from util.show.part import drawn
from util.stats.answers import TaskCheck

ASKED = {"request": {"sequences": 5, "length": 50, "copies": 4, "k": 10, "all_tasks": False}}
PARTS = show.FIGURE.parts


def picture(part, values):
    made = drawn(PARTS[part], {"model": "a model", **ASKED, **values})
    assert made is not None
    return made


def title(part, values):
    return next(iter(PARTS[part].says({"model": "a model", **ASKED, **values})), "")


# ------------------------------------------------------------------------------------------------ heads


def head_scores(*best):
    """Prefix matching [5, 4, 8] of about .02, and of these heads as given; all else .01."""
    matching = np.random.default_rng(0).uniform(0.01, 0.03, (5, 4, 8))
    for head, score in best:
        matching[:, *head] += score - 0.02
    scores = dict.fromkeys(("previous_token", "duplicate_token", "sink", "bansal"), np.full(matching.shape, 0.01))
    made = {**scores, "prefix_matching": matching}
    return HeadScores(made, uniform_prefix_matching(50, 4), "a model of no class")


BEST = (((2, 6), 0.9), ((2, 4), 0.8))


@pytest.mark.parametrize(
    ("best", "finding"),
    [
        ((), "None of 32 heads has a prefix-matching score of 0.3 or more"),
        (BEST[:1], "One of 32 heads has a prefix-matching score of 0.3 or more, in layer 2"),
        (BEST, "Two of 32 heads have a prefix-matching score of 0.3 or more, in layer 2"),
    ],
)
def test_what_is_said_of_scores_is_what_was_measured(best, finding):
    arrays = {"heads": head_scores(*best), "untrained": head_scores(), "setup": SETUP, "chosen": [(2, 6), (2, 4)]}
    one, other = show.scores_say({"model": "a model", **ASKED, **numbers.scores(arrays, None)})
    assert one == finding and other.startswith("The best is L2H6: 0.90 [0." if best else "The best is L")
    assert "; untrained, at most 0.0" in other
    alone = numbers.scores(arrays | {"untrained": None}, None)
    assert alone["scores"]["untrained"] is None and "untrained" not in [*show.scores_say({**ASKED, **alone})][1]


# ------------------------------------------------------------------------------------------------ a prompt

TOKENS = "<s> . gr ape dog : F oo . c ab cat : Bar . ki wi cow :".split()
KINDS = ",blank line,fruit,fruit,animal,colon,label,label,blank line,fruit,fruit,animal,colon,label".split(",")
KINDS += KINDS[1:6]


def pattern(tokens, kinds, last):
    """The numbers of a head whose last token reads so: attention by place."""
    attention = np.tri(len(tokens)) / np.arange(1, len(tokens) + 1)[:, None]
    attention[-1] = [last.get(place, 0) for place in range(len(tokens))]
    made = {"head": (2, 6), "task": "wordseq1", "answer": "Foo", "attention": attention}
    return numbers.pattern(made | {"tokens": tokens, "kinds": kinds}, None)


def test_the_pattern_shows_what_the_last_token_reads_of_labels():
    values = pattern(TOKENS, KINDS, {6: 0.3, 7: 0.4, 13: 0.2, 1: 0.1})
    assert [label for label, _ in values["pattern"]["labels"]] == ["Foo", "Bar"]
    assert [share for _, share in values["pattern"]["labels"]] == pytest.approx([0.7, 0.2])
    finding = "From the last token L2H6 gives 0.90 of its attention to labels, 0.70 to Foo, the right answer"
    assert title("pattern", values) == finding and values["pattern"]["queries"] == [18]
    assert show.pattern_about({"model": "a model", **values}) == "a model, one prompt of wordseq1, 2 demonstrations"
    bare = pattern(["<s>", "ki", "wi", ":"], ["", "fruit", "fruit", "colon"], {0: 1})
    assert title("pattern", bare) == ""


# ------------------------------------------------------------------------------------------------ tasks


def accuracies(ablated=0.4, control=0.9, k=10, done=True):
    """Values of made-up answers to the primary task."""
    shares = {WHOLE: 0.9, ABLATED: ablated, "norm-matched 1": control, "layer-matched 1": 0.9}
    shares |= {"pattern knocked out": 0.5, "random keys": 0.9}
    rows = {row: first(60, share) for row, share in shares.items()}
    plan = Plan(SETUP, THREE, {"norm-matched": [[(0, 1)]]}, dict.fromkeys(rows, Edit()))
    check = TaskCheck("wordseq1", 10, 0.9, 0.8, 0.5, GAIN, GAIN, 0.001 if done else 0.5, 60)
    arrays = {"plan": plan, "task": "wordseq1", "chance": 0.5, "right": rows, "check": check}
    request = {"request": ASKED["request"] | {"k": k}}
    return {"model": "a model", **request, "setup": SETUP, "chosen": THREE, **numbers.ablation(arrays, None)}


def test_what_the_primary_task_loses_is_told():
    assert title("ablation", accuracies()) == "Accuracy 0.90, without 3 heads 0.40, 0 of 2 controls as low"
    assert title("ablation", accuracies(ablated=0.95)).endswith("0.95, 2 of 2 controls as low")
    primary = [accuracies(control=share)["primary"] for share in (0.9, 0.3)]
    assert [(one["p"], one["least p"]) for one in primary] == [(1 / 3, 1 / 3), (2 / 3, 1 / 3)], "among control sets"
    _, endpoint, knockout = show.ablation_say(accuracies())
    assert endpoint.startswith("Primary endpoint, not met: accuracy on `wordseq1` is 0.40 [0.")
    assert "; 0 of 2 sets of as many other heads are as low, p = 0.333. The paired difference is 0.50 [0." in endpoint
    assert knockout.startswith("With the pattern forbidden accuracy on `wordseq1` is 0.50 [0.")
    assert len([*show.ablation_say(accuracies(done=False))]) == 2


def test_a_task_that_is_not_done_has_no_picture():
    [ax] = picture("ablation", accuracies()).axes
    assert ax.get_title() == "wordseq1" and show.ablation(accuracies(done=False)) is None


def test_published_accuracies_stand_beside_those_of_their_setting():
    """Llama-3-8B on wordseq1 with ten demonstrations, Table 1: 99.4, ablated 96.2, random 99.3, knocked out 97.3."""
    for k, published in ((10, [0.962, 0.973, 0.993, 0.994]), (3, [])):  # the paper has 5 and 10
        [ax] = picture("ablation", accuracies(k=k)).axes
        shown = [float(*np.atleast_1d(line.get_xdata())) for line in ax.get_lines() if line.get_marker() == "D"]
        assert sorted(shown) == pytest.approx(published)
