"""What is said and drawn of induction heads: that it is true, and that it can be read at any width."""

import numpy as np
import pytest

from tests.figures.induction_scores.made_up_shots import ABLATED, SETUP, WHOLE, first
from tests.figures.induction_scores.made_up_shots import CHOSEN as THREE
from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.induction_scores import numbers, show
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.pictures import FUNCTION_VECTOR, INDUCTION
from util.figures.induction_scores.plan import Plan
from util.figures.induction_scores.vectors import COPIES, FUNCTION_VECTOR_ALONE, INDUCTION_ALONE, PAIRS
from util.roles.head_scores import HeadScores
from util.show.part import drawn
from util.show.style import COLUMN, WIDTH
from util.stats.heads import top

KINDS = (INDUCTION, FUNCTION_VECTOR, INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
WIDTHS = pytest.mark.parametrize("width", [COLUMN, WIDTH])
ASKED = {"request": {"sequences": 5, "length": 50, "copies": 4, "k": 10}}
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
    mean, signed, effect = rng.random(shape) ** 3, rng.normal(size=shape), rng.normal(0, 0.05, shape)
    chosen, others = (top(score, 31 if mean.size > 1000 else 4) for score in (mean, effect))
    attention = ("previous token", "duplicate token", "first token (BOS)")
    maps = dict.fromkeys(attention, mean) | {"attribution": signed}
    left = np.array([rng.random(len(chosen)), np.zeros(len(chosen)), np.ones(len(chosen))]).T
    names = ["previous-token heads out", *(f"others out, {i}" for i in range(3))]
    rows = dict.fromkeys(("whole model", *KINDS), (1.0, 0.83, 1.0))
    rows |= {f"{kind}, control {i}": (0.3 * i,) * 3 for kind in KINDS for i in (1, 2, 3)}
    return {
        "model": LONG_NAME,
        "setup": {},
        "scores": {**spread(mean, name="mean"), "uniform": 0.02, "untrained": mean / 30},
        "chosen": chosen,
        "companions": maps,
        "highest": {name: (top(score, 1)[0], 0.9, 0.83, 0.97) for name, score in maps.items()},
        "attribution": spread(signed),
        "mechanism": {
            "left": {"whole model": left, **dict.fromkeys(names, left)},
            "previous_token_heads": [[46 - i, 30] for i in range(4)],
            "mean scores": dict(zip(names, [(0.1, 0.1, 0.2), *[(0.8, 0.7, 0.9)] * 3], strict=True)),
            "whole": (0.9, 0.85, 0.95),
        },
        "function vectors": {
            "room": 0.3,
            "AIE": {"mean": effect, "low": effect - 0.03, "high": effect + 0.05},
            "sets": {INDUCTION: chosen, FUNCTION_VECTOR: others},
            "both": [],
            "rank_correlation": TRIPLE,
            "asked": {PAIRS: "40 queries", "wordseq1": "16 queries", COPIES: "5 sequences"},
            "accuracy": dict.fromkeys((PAIRS, "wordseq1", COPIES), rows),
            "classification": {"chance": 0.5},
            "prompts": 50,
            "by_task": {"copying": 0},
            "corruption": "other_outputs",
            "reliability": 0.4,
            "left out": [],
        },
    }


@WIDTHS
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=str)
def test_the_pictures_of_heads_can_be_read(shape, width):
    values = of_heads(shape)
    figures = {name: picture(name, values, width) for name in ("scores", "companions", "mechanism", "function_vectors")}
    assert {name: found for name, figure in figures.items() if (found := faults(figure))} == {}
    np.testing.assert_array_equal(figures["scores"].axes[0].get_images()[0].get_array(), values["scores"]["mean"].T)


def test_points_are_the_best_heads_in_their_order_and_shares_have_one_scale():
    """Attention of .4 at most would else be as dark as attention of .9."""
    mean, values = np.random.default_rng(0).random((4, 8)), of_heads((4, 8))
    values["scores"] |= spread(mean, name="mean")
    points = [container[0].get_ydata()[0] for container in picture("scores", values).axes[1].containers]
    np.testing.assert_allclose(points, np.sort(mean, axis=None)[::-1][:16])
    figure = picture("companions", values)
    limits = [ax.get_images()[0].get_clim() for ax in figure.axes if ax.get_images()]
    most = np.abs(values["companions"]["attribution"]).max()
    assert limits == [*[(0, 1)] * 3, (-most, most)]


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
    ("best", "first_said", "then"),
    [
        (
            (),
            "None of 32 heads has a prefix-matching score of 0.3 or more",
            " (5 sequences). The best is L",
        ),
        (
            BEST[:1],
            "One of 32 heads has a prefix-matching score of 0.3 or more, in layer 2",
            " (5 sequences). The best is L",
        ),
        (
            BEST,
            "Two of 32 heads have a prefix-matching score of 0.3 or more, in layer 2",
            " (5 sequences). The best is L2H6: 0.90 [0.",
        ),
    ],
)
def test_what_is_said_of_scores_is_what_was_measured(best, first_said, then):
    arrays = {"heads": head_scores(*best), "untrained": head_scores(), "setup": SETUP, "chosen": CHOSEN}
    values = {"model": "a model", **ASKED, **numbers.scores(arrays, None)}
    one, other = show.scores_say(values)
    assert one == first_said and other.startswith(first_said + then)
    assert "; untrained, at most 0.0" in other
    assert show.sequences_about(values) == "a model, 5 sequences of 50 random tokens, 4 times each"
    alone = numbers.scores(arrays | {"untrained": None}, None)
    assert alone["scores"]["untrained"] is None and "untrained" not in [*show.scores_say({**ASKED, **alone})][1]


def test_who_writes_the_next_token_most_is_said_and_what_the_chosen_write():
    def said(attribution):
        signed = np.zeros((4, 8))
        for head, value in attribution.items():
            signed[head] = value
        return title("companions", {"chosen": CHOSEN, "attribution": spread(signed)})

    assert said({(2, 6): 0.1, (3, 0): 1.0}) == (
        "L3H0 raises the next token most directly, by 1.00 [0.95, 1.05] logits; the 2 best induction heads by 0.00 to "
        "0.10"
    )
    assert said({(2, 6): np.nan}) == ""


def test_the_highest_head_is_named_of_what_a_class_has():
    written = np.zeros((3, 4, 8))
    written[:, 2, 6], written[:, 2, 4], written[:, 0] = 0.5, 0.7, 0.2
    arrays = {"heads": head_scores(*BEST), "chosen": CHOSEN, "attribution": 2 * written}
    found = numbers.companions(arrays, None)
    head, value, low, high = found["highest"]["attribution"]
    assert head == (2, 4) and (value, low, high) == pytest.approx((1.4,) * 3)
    assert found["highest"]["previous token"][1] == 0.01
    blind = numbers.companions(arrays | {"attribution": written * np.nan}, None)
    assert "attribution" not in blind["highest"]


def mechanism(without, *others):
    names = ["previous-token heads out", *(f"others out, {i}" for i in range(1, len(others) + 1))]
    left = {
        name: head_scores(((2, 6), value), ((2, 4), value), seed=i)
        for i, (name, value) in enumerate(zip(names, (without, *others), strict=True))
    }
    arrays = {"heads": head_scores(*BEST), "chosen": CHOSEN, "makers": [(0, 0), (1, 0)], "without": left}
    return {"chosen": CHOSEN, **numbers.mechanism(arrays, None)}


def test_the_mechanism_is_told_where_other_heads_cost_less():
    assert title("mechanism", mechanism(0.1)).startswith(
        "Without L0H0 and L1H0 prefix matching of the 2 best induction heads goes from 0.85 to 0.10 [0."
    )
    assert title("mechanism", mechanism(0.1, 0.5, 0.8)).endswith("; without as many others it is 0.50 to 0.80")
    assert title("mechanism", mechanism(0.1, 0.1)) == title("mechanism", mechanism(0.95)) == ""
    figure = picture("mechanism", mechanism(0.1, 0.5))
    assert legend(figure) == ["whole model", "without previous-token heads", "without as many others"]


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


def test_the_pattern_shows_the_last_token_and_the_end_of_the_querys_first_word():
    values, arrays = pattern(), np.tri(21) / np.arange(1, 22)[:, None]
    found = values["pattern"]
    assert [label for label, _ in found["labels"]] == ["Foo", "Bar"]
    assert [share for _, share in found["labels"]] == pytest.approx([0.7, 0.2])
    said = "From the last token L2H6 gives 0.90 of its attention to labels, 0.70 to Foo, the right answer"
    assert title("pattern", values) == f"{said}; from the query's first word most, 0.05, to the first token"
    assert found["from"] == ["the last token", "the query's first word, kiwi"]
    assert found["queries"] == [20, 18] and found["tokens"][18] == "wi"
    np.testing.assert_array_equal(found["rows"][1], arrays[18])
    attention = arrays.copy()
    attention[18, 15] = 0.5
    other = title("pattern", pattern(attention=attention))
    assert other.endswith("; from the query's first word most, 0.50, to “Bar”")
    assert PARTS["pattern"].about is not None
    assert PARTS["pattern"].about({"model": "a model", **values}) == "a model, one prompt of wordseq1, 2 demonstrations"


def test_prompts_without_demonstrations_and_words_of_one_letter_have_their_rows():
    tokens = ["<s>", "ki", "wi", ":"]
    bare = pattern(tokens=tokens, kinds=["", "fruit", "fruit", "colon"], attention=np.tri(4) / 4)
    assert bare["pattern"]["from"] == ["the last token"] and title("pattern", bare) == ""
    letters = pattern(
        tokens=TOKENS[:11] + ["A", " B", " A", " B", ":"], kinds=KINDS_OF[:11] + ["text"] * 4 + ["colon"],
        attention=np.tri(16) / 16,
    )  # fmt: skip
    assert letters["pattern"]["from"][1] == "the query's first word, A"


# ------------------------------------------------------------------------------------------------ tasks

TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")


def right(share):
    return first(60, share)


def accuracies(ablated=0.4, control=0.9, **changes):
    """Arrays of right answers, and the values that they make."""
    rows = {
        WHOLE: right(0.9),
        ABLATED: right(ablated),
        "norm-matched 1": right(control),
        "layer-matched 1": right(0.9),
        "pattern knocked out": right(0.5),
        "random keys": right(0.9),
    }
    edits = dict.fromkeys(rows, Edit()) | {ABLATED: Edit.ablate([(0, 0)])}
    answers = {task: rows if task.startswith("wordseq") else {WHOLE: right(0.5)} for task in TASKS}
    plan = Plan(SETUP, THREE, {"norm-matched": [[(0, 1)]]}, edits)
    arrays = {"plan": plan, "task": "wordseq1", "right": answers, "passed": {}, "done": ("wordseq1", "wordseq2")}
    arrays |= changes
    about = {"setup": SETUP, "chosen": THREE}
    return arrays, {"model": "a model", **ASKED, **about, **numbers.ablation(arrays, None)}


def test_what_the_primary_task_surely_loses_is_told():
    def said(**changes):
        return title("ablation", accuracies(**changes)[1])

    assert said().startswith("Without the 3 best induction heads accuracy on wordseq1 falls by 0.50 [0.")
    assert said().endswith("to 0.40")
    assert said(ablated=0.9) == said(ablated=0.95) == ""
    primary = [accuracies(control=share)[1]["primary"] for share in (0.9, 0.3)]
    assert [(one["p"], one["least p"]) for one in primary] == [(1 / 3, 1 / 3), (2 / 3, 1 / 3)], "among control sets"


def test_tasks_with_ablations_have_a_panel_and_published_accuracies_are_hollow():
    """Llama-3-8B on wordseq1 with ten demonstrations, Table 1: 99.4, ablated 96.2, random 99.3, knocked out 97.3."""
    values = accuracies()[1]
    figure = picture("ablation", values)
    assert [ax.get_title() for ax in figure.axes] == ["wordseq1", "wordseq2"]
    diamonds = [line.get_xdata() for line in figure.axes[0].get_lines() if line.get_marker() == "D"]
    assert sorted(float(*np.atleast_1d(x)) for x in diamonds) == pytest.approx([0.962, 0.973, 0.993, 0.994])
    assert {"here (95 %)", "published, Llama-3-8B, 1 % of heads"} <= {*legend(figure)}
    of_three = picture("ablation", values | {"request": {"k": 3}})  # the paper has 5 and 10
    assert not [line for ax in of_three.axes for line in ax.get_lines() if line.get_marker() == "D"]
    assert not [text for text in legend(of_three) if "published" in text]


@WIDTHS
def test_the_picture_of_tasks_can_be_read(width):
    rows = dict.fromkeys(("whole model", "top 31 ablated", "pattern knocked out", "random keys"), TRIPLE)
    rows |= {f"{group} {i}": (0.1 * i, 0.0, 1.0) for group in ("layer-matched", "norm-matched") for i in (1, 9)}
    values = {
        "model": LONG_NAME,
        "setup": {"primary": 31, "mode": "mean", "prompts": 60},
        "chosen": [(0, i) for i in range(31)],
        "primary": {"task": "centre_embedding", "lost": (0.65, 0.5, 0.77)},
        "done": ["repetition", "centre_embedding", "wordseq1", "wordseq2_4way"],
        "tasks_done": {},
        "accuracy": dict.fromkeys((*TASKS[:4], "wordseq2_4way"), rows)
        | {task: {"whole model": TRIPLE} for task in ("wordseq1_4way", "subj")},
    }
    assert faults(picture("ablation", values, width)) == []
