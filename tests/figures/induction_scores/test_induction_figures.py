"""The figures of induction heads: what they say, that it is true, and that it can be read at any width."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from util.figures.induction_scores.results import Accuracies, Companions, Doses, Mechanism, PromptPattern, Scores

from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.induction_scores import plots, task_plots
from util.figures.induction_scores.edits import WHOLE, Edit, Group, Row
from util.figures.induction_scores.plan import Plan, Setup
from util.roles.results import HeadScores
from util.show.style import COLUMN, GREY, WIDTH
from util.stats.heads import top
from util.stats.intervals import Interval, Intervals

WIDTHS = pytest.mark.parametrize("width", [COLUMN, WIDTH])
OF_SHAPES = pytest.mark.parametrize("shape", SHAPES, ids=str)
FINDING = "Without the 31 best induction heads accuracy on centre_embedding falls by 0.65 [0.50, 0.77], to 0.35"
SETTING = f"{LONG_NAME}, 5 sequences of 50 random tokens, 4 times each"
INTERVAL = Interval(0.5, 0.4, 0.6)


def intervals(values, reach=0.05):
    return Intervals(values, values - reach, values + reach)


def head_scores(values, title="a model"):
    """values: [N, L, H] by name."""
    scores = dict.fromkeys(("prefix_matching", "previous_token", "duplicate_token", "sink"), None) | values
    shape = values["prefix_matching"].shape
    scores = {name: np.full(shape, 0.01) if value is None else value for name, value in scores.items()}
    ids = np.zeros((shape[0], 201), np.int64)
    return HeadScores(scores, ids, range(shape[1]), "order", 50, 4, True, title, "a model of no class")


def matching(*best, shape=(4, 8), sequences=5, seed=0):
    """Prefix matching [N, L, H] of about .02, and of these heads as given."""
    scores = np.random.default_rng(seed).uniform(0.01, 0.03, (sequences, *shape))
    for head, score in best:
        scores[:, *head] += score - 0.02
    return scores


BEST = (((2, 6), 0.9), ((2, 4), 0.8))


def scores(*best, chosen=2):
    heads = head_scores({"prefix_matching": matching(*best)})
    return Scores(heads, top(heads.mean(), chosen))


# ------------------------------------------------------------------------------------------------ heads


@WIDTHS
@OF_SHAPES
def test_the_figures_of_heads_can_be_read(shape, width):
    rng = np.random.default_rng(0)
    mean, signed = rng.random(shape) ** 3, rng.normal(size=shape)
    chosen = top(mean, 31 if mean.size > 1000 else 4)
    maps = {"previous token": intervals(mean), "duplicate token": intervals(mean), "first token": intervals(mean)}
    none = intervals(np.full(shape, np.nan))
    left = {"whole model": intervals(np.linspace(0.97, 0.9, len(chosen)))}
    left |= {f"without L46H30, L45H31, L44H30, L43H2{i}: previous-token heads": intervals(rng.random(len(chosen)))
             for i in range(4)}  # fmt: skip
    figures = {
        "scores": plots.scores(intervals(mean), 0.02, 0.3, FINDING, SETTING, 0.03, width=width),
        "companions": plots.companions(
            maps, {"copying": intervals(mean), "weights alone": none, "attribution": intervals(signed)}, chosen,
            FINDING, SETTING, width=width,
        ),
        "mechanism": plots.mechanism(left, intervals(signed), chosen, FINDING, SETTING, width=width),
    }  # fmt: skip
    assert {name: found for name, figure in figures.items() if (found := faults(figure))} == {}
    np.testing.assert_array_equal(figures["scores"].axes[0].get_images()[0].get_array(), mean.T)


@WIDTHS
def test_figures_of_heads_that_do_nothing_can_be_read(width):
    mean = np.full((4, 8), 0.02)
    none = intervals(np.full((4, 8), np.nan))
    left = {"whole model": intervals(mean[0, :2]), "without L0H1": intervals(mean[0, :2])}
    assert faults(plots.scores(intervals(mean, 0.01), 0.02, 0.3, None, SETTING, width=width)) == []
    assert faults(plots.mechanism(left, none, [(0, 1), (2, 3)], None, SETTING, width=width)) == []


def test_bars_are_the_best_heads_in_their_order():
    mean = np.random.default_rng(0).random((4, 8))
    figure = plots.scores(intervals(mean), 0.02, 0.3, None, SETTING)
    [bars] = figure.axes[1].containers[:1]
    np.testing.assert_allclose([bar.get_height() for bar in bars], np.sort(mean, axis=None)[::-1][:16])


def test_maps_of_one_quantity_have_one_scale():
    """Attention of .4 at most would else be as dark as attention of .9."""
    mean = np.random.default_rng(0).random((4, 8))
    maps = {"one": intervals(mean), "another": intervals(0.4 * mean)}
    figure = plots.companions(maps, {"copying": intervals(0.1 * mean)}, [(0, 0)], None, SETTING)
    limits = [ax.get_images()[0].get_clim() for ax in figure.axes if ax.get_images()]
    assert limits == [(0, mean.max()), (0, mean.max()), (0, 0.1 * mean.max())]


@pytest.mark.parametrize(
    ("best", "said"),
    [
        ((), "None of 32 heads attends to what followed the same token before (score 0.3 or more); most L"),
        (BEST[:1], "1 of 32 heads attends to"),
        (BEST, "2 of 32 heads attend to what followed the same token before (score 0.3 or more); most L2H6: 0.90 [0."),
    ],
)
def test_the_finding_of_scores_is_what_was_measured(best, said):
    assert scores(*best).finding.startswith(said)
    assert scores(*best).setting == "a model, 5 sequences of 50 random tokens, 4 times each"


def companions(attribution, reach=0.05):
    signed = np.zeros((4, 8))
    for head, value in attribution.items():
        signed[head] = value
    found = scores(*BEST)
    return Companions(found, intervals(signed), np.zeros((4, 8)), intervals(signed, reach))


def test_the_finding_of_companions_is_who_writes_the_next_token():
    themselves = companions({(2, 6): 2.0, (2, 4): 1.0})
    assert themselves.finding == (
        "The 2 best induction heads also raise the next token directly, L2H6 by 2.00 [1.95, 2.05] logits"
    )
    another = companions({(2, 6): 0.1, (3, 0): 1.0})
    assert another.finding == (
        "L3H0 raises the next token most, by 1.00 [0.95, 1.05] logits; the 2 best induction heads by at most "
        "0.10 [0.05, 0.15]"
    )
    assert companions({(2, 6): 2.0, (2, 4): 0.01}).finding is None  # of one of them it is not sure
    assert companions({(2, 6): 0.9, (3, 0): 1.0}, reach=0.2).finding is None
    assert companions({(2, 6): np.nan}).finding is None


def mechanism(without, *others):
    names = ["previous-token heads out", *(f"others out, {i}" for i in range(1, len(others) + 1))]
    left = {
        name: head_scores({"prefix_matching": matching(((2, 6), value), ((2, 4), value), seed=i)})
        for i, (name, value) in enumerate(zip(names, (without, *others), strict=True))
    }
    removed = {name: [(0, i), (1, i)] for i, name in enumerate(names)}
    return Mechanism(companions({}), [(0, 0), (1, 0)], removed, left, np.zeros((4, 8)))


def test_the_finding_of_the_mechanism_is_told_where_other_heads_cost_less():
    assert mechanism(0.1).finding.startswith(
        "Without L0H0, L1H0 prefix matching of the 2 best induction heads falls from 0.85 to 0.10 [0."
    )
    assert mechanism(0.1, 0.5, 0.8).finding.endswith("; without as many others it is 0.50 to 0.80")
    assert mechanism(0.1, 0.1).finding is None and mechanism(0.95).finding is None


def test_the_mechanisms_legend_names_the_heads_that_are_out():
    figure = mechanism(0.1, 0.5).figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "whole model", "without L0H0, L1H0: previous-token heads", "without L0H1, L1H1: others",
    ]  # fmt: skip
    assert [ax.get_ylabel() for ax in figure.axes] == ["prefix-matching score", "logits of the next token"]


# ------------------------------------------------------------------------------------------------ a prompt

TOKENS = ["<s>", "List", "\n\n", "gr", "ape", " dog", ":", "F", "oo", "\n", "\n", "c", "ab", " cat", ":", "Bar"]
KINDS = ["", "text", "blank line", "fruit", "fruit", "animal", "colon", "label", "label", "blank line", "blank line"]
KINDS += ["fruit", "fruit", "animal", "colon", "label"]
QUERY = ["\n\n", "ki", "wi", " cow", ":"]
OF_QUERY = ["blank line", "fruit", "fruit", "animal", "colon"]


def pattern(**changes):
    tokens, kinds = TOKENS + QUERY, KINDS + OF_QUERY
    attention = np.tri(len(tokens)) / np.arange(1, len(tokens) + 1)[:, None]
    attention[-1] = 0
    attention[-1, [7, 8, 15, 1]] = [0.3, 0.4, 0.2, 0.1]
    return replace(PromptPattern((2, 6), "wordseq1", "a model", "Foo", attention, tokens, kinds), **changes)


def test_the_pattern_shows_the_last_token_and_the_end_of_the_querys_first_word():
    found = pattern()
    rows = found.rows
    assert [label for label, _ in found.labels] == ["Foo", "Bar"]
    assert [share for _, share in found.labels] == pytest.approx([0.7, 0.2])
    said = "From the last token L2H6 gives 0.90 of its attention to labels, 0.70 to Foo, the right answer"
    assert found.finding == f"{said}; from the query's first word most, 0.05, to the first token"
    attention = found.attention.copy()
    attention[18, 15] = 0.5
    assert pattern(attention=attention).finding == (
        f"{said}; from the query's first word most, 0.50, to “{found.tokens[15].strip()}”"
    )
    assert rows.names == ["L2H6 from the last token", "L2H6 from the query's first word, kiwi"]
    assert rows.queries == [20, 18] and rows.tokens[18] == "wi"
    np.testing.assert_array_equal(rows.weights, found.attention[[20, 18]])


def test_a_prompt_without_demonstrations_has_the_row_of_its_last_token():
    tokens = ["<s>", "ki", "wi", ":"]
    found = pattern(tokens=tokens, kinds=["", "fruit", "fruit", "colon"], attention=np.tri(4) / 4)
    assert found.rows.names == ["L2H6 from the last token"] and found.finding is None


def test_letters_are_words_of_one_token():
    letters = ["A", " B", " A", " B", ":"]
    found = pattern(
        tokens=TOKENS[:11] + letters, kinds=KINDS[:11] + ["text"] * 4 + ["colon"], attention=np.tri(16) / 16
    )
    assert found.rows.names[1] == "L2H6 from the query's first word, A"


@WIDTHS
def test_the_pattern_can_be_read(width):
    assert faults(pattern(model_title=LONG_NAME).figure(width=width)) == []


# ------------------------------------------------------------------------------------------------ tasks

ABLATED, CONTROL = Row(Group.ABLATED, 3), Row(Group.NORM_MATCHED, None, 1)
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")


def setup():
    return Setup(
        tasks=TASKS, primary_task="wordseq1", prompts=60, seeds=(42,), mode="mean", sizes=(3, 9), primary=3,
        control_sets=1, other_sets=1, all_tasks=False, all_sizes=False, full_grid=False, four_way=(), text_tasks=(),
        shots=(0, 10),
    )  # fmt: skip


def right(share, n=60):
    return (np.arange(n) < round(share * n))[None]


def accuracies(ablated=0.4, control=0.9, k=10):
    rows = {
        Row(Group.WHOLE): right(0.9),
        ABLATED: right(ablated),
        CONTROL: right(control),
        Row(Group.SIZE, 3): right(ablated),
        Row(Group.SIZE, 9): right(ablated),
        Row(Group.KNOCKED_OUT): right(0.5),
        Row(Group.RANDOM_KEYS): right(0.9),
    }
    edits = dict.fromkeys(rows, WHOLE) | {ABLATED: Edit.ablate([(0, 0)])}
    alone = {Row(Group.WHOLE): right(0.5)}
    answers = {task: rows if task.startswith("wordseq") else alone for task in TASKS}
    made = Plan(setup(), [(0, 0)], {Group.NORM_MATCHED: [[(0, 1)]]}, {}, edits)
    return Accuracies(made, k, "a model", answers, {}, ("wordseq1", "wordseq2"))


def test_the_finding_of_accuracies_is_what_the_primary_task_surely_loses():
    assert accuracies().finding.startswith("Without the 3 best induction heads accuracy on wordseq1 falls by 0.50 [0.")
    assert accuracies().finding.endswith("to 0.40; none of 1 control sets costs as much")
    assert accuracies(control=0.4).finding.endswith("to 0.40; 1 of 1 control sets costs as much")
    assert accuracies(ablated=0.9).finding is None and accuracies(ablated=0.95).finding is None
    assert accuracies().rank == (0.5, 0.5) and accuracies(control=0.3).rank == (1.0, 0.5), "among control sets"


def test_tasks_that_are_not_done_have_a_row_and_no_panel():
    figure = accuracies().figure()
    assert [ax.get_title() for ax in figure.axes] == ["wordseq1", "wordseq2", ""]
    rows = [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    assert rows == ["repetition", "recursion", "centre embedding"]


def test_published_accuracies_are_hollow_and_called_another_models():
    """Llama-3-8B on wordseq1 with ten demonstrations, Table 1: 99.4, ablated 96.2, random 99.3, knocked out 97.3."""
    figure = accuracies().figure()
    diamonds = [line.get_xdata() for line in figure.axes[0].get_lines() if line.get_marker() == "D"]
    assert [float(*np.atleast_1d(x)) for x in diamonds] == pytest.approx([0.994, 0.962, 0.993, 0.973])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "here, a model (95 %)" in names and "published, Llama-3-8B, 1 % of heads" in names
    of_three = accuracies(k=3).figure()  # the paper has 5 and 10
    assert not [line for ax in of_three.axes for line in ax.get_lines() if line.get_marker() == "D"]
    assert not [text for text in of_three.legends[0].get_texts() if "published" in text.get_text()]


def doses(more=0.0, ablated=0.4):
    rows = {Row(Group.WHOLE): right(0.5), ABLATED: right(0.5), CONTROL: right(0.5)}
    texts = np.random.default_rng(0).normal(5, 1, 64)
    noise = np.random.default_rng(1).normal(0, 0.01, 64)
    losses = {Row(Group.WHOLE): texts, ABLATED: texts + more + noise, CONTROL: texts}
    return Doses(accuracies(ablated), {"wordseq1": rows}, losses, 8.0)


def test_the_finding_of_doses_is_what_is_sure_of_it():
    fell = "Without the 9 best induction heads accuracy on wordseq1 falls by 0.50 [0."
    assert doses(0.5).finding.startswith(fell)
    assert (
        "; without the 3 best induction heads plain text costs 0.50 [0.50, 0.50] nats more per token"
        in doses(0.5).finding
    )
    assert doses().finding.startswith(fell) and "plain text costs" in doses().finding
    assert doses(0.5, ablated=0.9).finding.startswith("Without the 3 best induction heads plain text costs 0.50 [")


def test_a_loss_that_falls_is_no_cost():
    assert "plain text" not in doses(-0.5).finding and doses(-0.5, ablated=0.9).finding is None


def test_control_sets_are_called_so():
    names = [label.get_text() for label in doses().figure().axes[1].get_yticklabels()]
    assert names == ["whole model", "top 3 ablated", "control set 1"]


@WIDTHS
@pytest.mark.parametrize("sizes", [3, 5])
def test_the_figures_of_tasks_can_be_read(sizes, width):
    names = [
        "whole model",
        "top 31 ablated",
        "top 31, input_mean",
        "layer-matched",
        "pattern knocked out",
        "random keys",
    ]
    reported = dict.fromkeys(names[:2], 0.994)
    panels = [
        task_plots.RowPanel(title, dict.fromkeys(names, INTERVAL), {names[3]: [0.1, 1.0]}, 0.5, reported)
        for title in ("repetition", "recursion\n(not done)", "centre\nembedding", "wordseq1", "wordseq2\n4way")
    ]
    alone = [task_plots.NotDone(title, {0: INTERVAL, 10: INTERVAL}, 0.5, 0.9) for title in ("wordseq1 4way", "subj")]
    by_size = {task: [Interval(1.0, 0.9, 1.0), *[INTERVAL] * (sizes - 1)] for task in TASKS}
    rows = {name: INTERVAL for name in ("whole model", "top 31 ablated", *(f"control set {i}" for i in range(1, 6)))}
    figures = {
        "accuracies": task_plots.accuracies(
            panels, alone, FINDING, SETTING, model=LONG_NAME, colours={names[3]: GREY}, width=width
        ),
        "doses": task_plots.doses(
            by_size, [0, 1, 2, 4, 8][:sizes], rows, {name: Interval(9.2, 9.1, 9.3) for name in rows}, FINDING, SETTING,
            task="centre embedding", chance=0.5, uniform=10.8, width=width,
        ),
    }  # fmt: skip
    assert {name: found for name, figure in figures.items() if (found := faults(figure))} == {}
    frames = [patch for ax in figures["doses"].axes for patch in ax.patches if isinstance(patch, Rectangle)]
    assert frames == []  # bars would hide that there are intervals
