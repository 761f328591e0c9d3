"""What a card says that a model loses without heads: its controls, its tasks, and the loss beyond controls."""

from types import SimpleNamespace

import numpy as np
import pytest

from util.card import costs
from util.card.costs import CostStudy
from util.card.results import COPIES, PATTERNS, PLAIN_TEXT, word_pair_name
from util.figures.induction_scores.edits import WHOLE
from util.figures.induction_scores.function_vector_study import CopiesStudy, WordPairsStudy
from util.figures.induction_scores.task_study import TaskStudy
from util.roles.function_vectors import TASKS
from util.roles.pair_task import PairTask

SHAPE = (4, 8)


@pytest.fixture
def study(tmp_path):
    return CostStudy("embedded", queries=8, sequences=4, texts=4, control_sets=3, places={"folder": tmp_path})


# ------------------------------------------------------------------------------------------------ controls


def test_controls_have_no_role_and_do_not_count_in_ioi(study):
    sets = {"all": [(0, 1), (2, 3), (2, 5)], "induction": [(2, 3)], "nobody": []}
    in_ioi = [(0, 0), (2, 0)]
    found = study.ablations(sets, SHAPE, in_ioi)
    assert [one.name for one in found] == ["all", "induction"]
    for one in found:
        assert len(one.controls) == 3 and one.matched == "of the same layers"
        for control in one.controls:
            assert sorted(layer for layer, _ in control) == sorted(layer for layer, _ in one.heads)
            assert not {*control} & {*sets["all"], *in_ioi}


def test_where_a_layer_has_too_few_other_heads_controls_are_of_a_like_norm(study, monkeypatch):
    norms = np.ones(SHAPE)
    means = SimpleNamespace(means=lambda: SimpleNamespace(norms=norms))
    monkeypatch.setattr(CostStudy, "pattern_task", means)
    heads = [(0, head) for head in range(5)]
    (one,) = study.ablations({"all": heads}, SHAPE, [(3, 0)])
    assert one.matched == "of a like norm" and len(one.controls) == 3
    assert all(len(control) == 5 and not {*control} & {*heads, (3, 0)} for control in one.controls)


def test_where_most_heads_have_a_role_there_are_no_controls(study):
    heads = [(layer, head) for layer in range(4) for head in range(5)]
    (one,) = study.ablations({"all": heads}, SHAPE)
    assert (one.controls, one.matched) == ((), "")


# ------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize("does", [False, True])
def test_whether_a_task_is_done_is_decided_on_other_prompts(does, study, monkeypatch):
    """What is asked and what decides disagree here: the decision counts, and what is reported is what was asked."""

    def answer(is_other):
        return float(is_other == does)  # right on the others where they are to say that the model does it

    def copied(self, edits):
        return {name: np.full(4, answer(self.seed != study.copies.seed)) for name in edits}

    def words(self, edits):
        return {name: {task: np.full(8, bool(answer(False))) for task in TASKS} for name in edits}

    terms = np.zeros((8, 2))

    def patterns(self, edits):
        return {name: SimpleNamespace(right=np.full(8, bool(answer(self.start > 0))), terms=terms) for name in edits}

    monkeypatch.setattr(CopiesStudy, "copied", copied)
    monkeypatch.setattr(WordPairsStudy, "answers", words)
    monkeypatch.setattr(TaskStudy, "answers", patterns)
    monkeypatch.setattr(TaskStudy, "losses", lambda self, edits: {name: np.arange(4.0) for name in edits})
    monkeypatch.setattr(costs, "check_task", lambda task: SimpleNamespace(done=bool(answer(task.start > 0))))
    monkeypatch.setattr(costs, "task_checks", lambda *_, **__: dict.fromkeys(TASKS, SimpleNamespace(done=does)))
    whole, measured, of_labels = study._measured({("", 0): WHOLE})
    assert of_labels == ({("", 0): terms} if does else {})
    tasks = (COPIES, PATTERNS, word_pair_name(""))
    assert [*measured] == ([*tasks, PLAIN_TEXT] if does else [PLAIN_TEXT])
    named = [name for name in whole if name != PLAIN_TEXT]
    assert all(whole[name][0] == float(not does) and whole[name][3] == does for name in named)


def test_word_pairs_that_decide_are_none_of_those_that_are_asked(study):
    def queries(prompts):
        return {prompt.text[slice(*prompt.spans["x"][-1])] for prompt in prompts}

    for task, drawn in zip(TASKS, study.word_pairs.drawn, strict=True):
        asked, deciding = queries(item.clean for item in drawn.items), queries(PairTask("embedded", task).items)
        assert asked and deciding and not asked & deciding


# ------------------------------------------------------------------------------------------------ losses


def test_the_loss_beyond_controls_is_what_their_mean_does_not_lose(study, monkeypatch):
    rng = np.random.default_rng(0)
    given = {("", 0): rng.normal(size=12)}
    heads = [(0, 1), (2, 3)]
    (one,) = study.ablations({"all": heads}, SHAPE)
    for number in range(len(one.controls) + 1):
        given["all", number] = rng.normal(size=12)
    asked = {}

    def measured(self, edits):
        asked.update(edits)
        terms = {name: np.stack([values, 2 * values], axis=1) for name, values in given.items()}
        return {PLAIN_TEXT: (0.0, 0.0, 0.0, True)}, {PLAIN_TEXT: given}, terms

    monkeypatch.setattr(CostStudy, "_measured", measured)
    found = study.losses({"all": heads}, SHAPE)
    (loss,) = found.each
    assert [edit.heads for name, edit in asked.items() if name[0]] == [tuple(heads), *one.controls]
    lost = given["", 0] - given["all", 0]
    others = [given["", 0] - given["all", number + 1] for number in range(len(one.controls))]
    assert loss.lost == pytest.approx(lost.mean()) and loss.controls == pytest.approx([o.mean() for o in others])
    assert loss.beyond.value == pytest.approx((lost - np.mean(others, axis=0)).mean())
    assert loss.beyond.low < loss.beyond.value < loss.beyond.high
    of_labels = {name: interval.value for name, interval in found.of_labels["all"].items()}
    assert of_labels == pytest.approx({"which label": lost.mean(), "label mass": 2 * lost.mean()})
