"""What is said and drawn of induction heads: that it is true, and that it can be read at any width."""

import numpy as np
import pytest

from tests.figures.induction_scores.made_up_shots import ABLATED, GAIN, SETUP, WHOLE, first
from tests.figures.induction_scores.made_up_shots import CHOSEN as THREE
from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.induction_scores import numbers, show
from util.figures.induction_scores.pictures import (
    FUNCTION_VECTOR,
    FUNCTION_VECTOR_ALONE,
    INDUCTION,
    INDUCTION_ALONE,
    PAIRS,
)
from util.figures.induction_scores.plan import Edit, Plan
from util.roles.head_scores import HeadScores
from util.show.part import drawn
from util.show.style import COLUMN, WIDTH
from util.stats.answers import TaskCheck
from util.stats.heads import top

KINDS = (INDUCTION, FUNCTION_VECTOR, INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
WIDTHS = pytest.mark.parametrize("width", [COLUMN, WIDTH])
ASKED = {"request": {"sequences": 5, "length": 50, "copies": 4, "k": 10, "all_tasks": False}}
PARTS = show.FIGURE.parts
TRIPLE = (0.5, 0.4, 0.6)


def spread(values, reach=0.05, name="value"):
    return {name: values, "low": values - reach, "high": values + reach}


def picture(part, values, width=WIDTH):
    made = drawn(PARTS[part], {"model": "a model", **ASKED, **values}, width)
    assert made is not None
    return made


def title(part, values):
    return next(iter(PARTS[part].says({"model": "a model", **ASKED, **values})), "")


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


# ------------------------------------------------------------------------------------------------ heads


def of_heads(shape):
    """Values of all parts about heads."""
    rng = np.random.default_rng(0)
    mean, effect = rng.random(shape) ** 3, rng.normal(0, 0.05, shape)
    chosen, others = (top(score, 31 if mean.size > 1000 else 4) for score in (mean, effect))
    rows = dict.fromkeys(("whole model", *KINDS), (1.0, 0.83, 1.0))
    rows |= {f"{kind}, control {i}": (0.3 * i,) * 3 for kind in KINDS for i in (1, 2, 3)}
    vectors = {
        "room": 0.3,
        "AIE": {"mean": effect, "low": effect - 0.03, "high": effect + 0.05},
        "sets": {INDUCTION: chosen, FUNCTION_VECTOR: others},
        "both": [],
        "asked": {PAIRS: "40 queries", "wordseq1": "16 queries"},
        "accuracy": dict.fromkeys((PAIRS, "wordseq1"), rows),
        "classification": {"chance": 0.5},
        "prompts": 50,
        "corruption": "other_outputs",
    }
    scores = {**spread(mean, name="mean"), "uniform": 0.02, "untrained": mean / 30}
    return {"model": LONG_NAME, "setup": {}, "scores": scores, "chosen": chosen, "function vectors": vectors}


@WIDTHS
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=str)
def test_the_pictures_of_heads_can_be_read(shape, width):
    values = of_heads(shape)
    scores, vectors = (picture(name, values, width) for name in ("scores", "function_vectors"))
    assert faults(scores) == faults(vectors) == []
    mean = values["scores"]["mean"]
    np.testing.assert_array_equal(scores.axes[0].get_images()[0].get_array(), mean.T)
    points = [container[0].get_ydata()[0] for container in scores.axes[1].containers]
    np.testing.assert_allclose(points, np.sort(mean, axis=None)[::-1][:16])  # the best heads in their order


def head_scores(*best, shape=(4, 8), sequences=5, seed=0):
    """Prefix matching [N, L, H] of about .02, and of these heads as given; all else .01."""
    matching = np.random.default_rng(seed).uniform(0.01, 0.03, (sequences, *shape))
    for head, score in best:
        matching[:, *head] += score - 0.02
    scores = dict.fromkeys(("previous_token", "duplicate_token", "sink", "bansal"), np.full(matching.shape, 0.01))
    ids = np.zeros((sequences, 201), np.int64)
    made = {**scores, "prefix_matching": matching}
    return HeadScores(made, ids, range(shape[0]), "order", 50, 4, True, "a model", "a model of no class")


BEST = (((2, 6), 0.9), ((2, 4), 0.8))
CHOSEN = [(2, 6), (2, 4)]


@pytest.mark.parametrize(
    ("best", "finding"),
    [
        ((), "None of 32 heads has a prefix-matching score of 0.3 or more"),
        (BEST[:1], "One of 32 heads has a prefix-matching score of 0.3 or more, in layer 2"),
        (BEST, "Two of 32 heads have a prefix-matching score of 0.3 or more, in layer 2"),
    ],
)
def test_what_is_said_of_scores_is_what_was_measured(best, finding):
    arrays = {"heads": head_scores(*best), "untrained": head_scores(), "setup": SETUP, "chosen": CHOSEN}
    values = {"model": "a model", **ASKED, **numbers.scores(arrays, None)}
    one, other = show.scores_say(values)
    assert one == finding and other.startswith("The best is L2H6: 0.90 [0." if best else "The best is L")
    assert "; untrained, at most 0.0" in other
    assert show.scores_about(values) == "a model, 5 sequences of 50 random tokens, 4 times each"
    alone = numbers.scores(arrays | {"untrained": None}, None)
    assert alone["scores"]["untrained"] is None and "untrained" not in [*show.scores_say({**ASKED, **alone})][1]


# ------------------------------------------------------------------------------------------------ a prompt

TOKENS = ["<s>", "List", "\n\n", "gr", "ape", " dog", ":", "F", "oo", "\n", "\n", "c", "ab", " cat", ":", "Bar"]
KINDS_OF = ["", "text", "blank line", "fruit", "fruit", "animal", "colon", "label", "label", "blank line", "blank line"]
KINDS_OF += ["fruit", "fruit", "animal", "colon", "label"]
QUERY = ["\n\n", "ki", "wi", " cow", ":"]
OF_QUERY = ["blank line", "fruit", "fruit", "animal", "colon"]


def pattern(**changes):
    tokens = TOKENS + QUERY
    attention = np.tri(len(tokens)) / np.arange(1, len(tokens) + 1)[:, None]
    attention[-1] = 0
    attention[-1, [7, 8, 15, 1]] = [0.3, 0.4, 0.2, 0.1]
    made = {"head": (2, 6), "task": "wordseq1", "answer": "Foo", "attention": attention}
    return numbers.pattern(made | {"tokens": tokens, "kinds": KINDS_OF + OF_QUERY} | changes, None)


def test_the_pattern_shows_what_the_last_token_reads_of_labels():
    values = pattern()
    found = values["pattern"]
    assert [label for label, _ in found["labels"]] == ["Foo", "Bar"]
    assert [share for _, share in found["labels"]] == pytest.approx([0.7, 0.2])
    read = "From the last token L2H6 gives 0.90 of its attention to labels, 0.70 to Foo, the right answer"
    assert title("pattern", values) == read and found["queries"] == [20] and len(found["rows"]) == 1
    assert show.pattern_about({"model": "a model", **values}) == "a model, one prompt of wordseq1, 2 demonstrations"
    tokens = ["<s>", "ki", "wi", ":"]
    bare = pattern(tokens=tokens, kinds=["", "fruit", "fruit", "colon"], attention=np.tri(4) / 4)
    assert title("pattern", bare) == "" and faults(picture("pattern", values)) == []


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


def test_what_the_primary_task_surely_loses_is_told():
    def heading(**changes):
        return title("ablation", accuracies(**changes))

    assert heading().startswith("Without the 3 best induction heads accuracy on wordseq1 falls by 0.50 [0.")
    assert heading().endswith("to 0.40") and heading(ablated=0.9) == heading(ablated=0.95) == ""
    primary = [accuracies(control=share)["primary"] for share in (0.9, 0.3)]
    assert [(one["p"], one["least p"]) for one in primary] == [(1 / 3, 1 / 3), (2 / 3, 1 / 3)], "among control sets"
    _, endpoint, knockout = show.ablation_say(accuracies())
    assert endpoint.startswith("Primary endpoint, not met: accuracy on `wordseq1` is 0.40 [0.")
    assert endpoint.endswith("; 0 of 2 sets of as many other heads are as low, p = 0.333.")
    assert knockout.startswith("With the pattern forbidden accuracy on `wordseq1` is 0.50 [0.")
    assert len([*show.ablation_say(accuracies(done=False))]) == 2


@pytest.mark.parametrize(("done", "heading"), [(True, "wordseq1"), (False, "wordseq1\n(not done)")])
def test_a_task_that_is_not_done_is_marked(done, heading):
    [ax] = picture("ablation", accuracies(done=done)).axes
    assert ax.get_title() == heading


def test_published_accuracies_are_hollow():
    """Llama-3-8B on wordseq1 with ten demonstrations, Table 1: 99.4, ablated 96.2, random 99.3, knocked out 97.3."""
    here, of_three = (picture("ablation", accuracies(k=k)) for k in (10, 3))  # the paper has 5 and 10
    lines = [
        [line.get_xdata() for line in one.axes[0].get_lines() if line.get_marker() == "D"] for one in (here, of_three)
    ]
    assert sorted(float(*np.atleast_1d(x)) for x in lines[0]) == pytest.approx([0.962, 0.973, 0.993, 0.994])
    published = "published, Llama-3-8B, 1 % of heads"
    assert lines[1] == [] and published in legend(here) and published not in legend(of_three)


@WIDTHS
def test_the_picture_of_tasks_can_be_read(width):
    rows = dict.fromkeys(("whole model", "top 31 ablated", "pattern knocked out", "random keys"), TRIPLE)
    rows |= {f"{group} {i}": (0.1 * i, 0.0, 1.0) for group in ("layer-matched", "norm-matched") for i in (1, 9)}
    values = {
        "model": LONG_NAME,
        "setup": {"primary": 31, "mode": "mean", "prompts": 60},
        "chosen": [(0, i) for i in range(31)],
        "primary": {"task": "centre_embedding", "lost": (0.65, 0.5, 0.77), "p": 0.01},
        "queries": {"centre_embedding": 60},
        "tasks_done": {},
        "accuracy": {"centre_embedding": rows},
    }
    assert faults(picture("ablation", values, width)) == []
