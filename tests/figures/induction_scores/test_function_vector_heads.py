"""Function-vector heads beside induction heads: sets of heads, ablations against plain hooks, results from arrays."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests import eager_runs
from tests.figures.legible import LONG_NAME, SHAPES, faults
from util.figures.induction_scores import function_vector_plots, function_vector_study
from util.figures.induction_scores import study as study_module
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.function_vector_study import CopiesStudy, WordPairsStudy
from util.figures.induction_scores.function_vectors import (
    COPIES,
    FUNCTION_VECTOR,
    FUNCTION_VECTOR_ALONE,
    INDUCTION,
    INDUCTION_ALONE,
    KINDS,
    PAIRS,
    Ablated,
    FunctionVectors,
    head_sets,
)
from util.figures.induction_scores.function_vectors import WHOLE as NOTHING
from util.figures.induction_scores.study import Study
from util.figures.induction_scores.task_plots import RowPanel
from util.records.model import Model
from util.roles.results import FunctionVectorHeads, HeadScores, IndirectEffects
from util.show.style import COLUMN, WIDTH
from util.stats.heads import top
from util.stats.intervals import Interval, Intervals

HEADS = ((0, 1), (2, 4))
EDITS = {"whole": WHOLE, "ablated": Edit.ablate(HEADS)}
RNG = np.random.default_rng(0)
MATCHING, EFFECT, NORMS = RNG.uniform(0, 1, (6, 5)), RNG.normal(0, 1, (6, 5)), RNG.uniform(1, 2, (6, 5))


# ------------------------------------------------------------------------------------------------ sets of heads


def test_sets_are_the_best_heads_and_the_best_without_the_others():
    sets = head_sets(MATCHING, EFFECT, NORMS, 4, 10)
    by_matching, by_effect = top(MATCHING, 30), top(EFFECT, 30)
    assert sets.sets[INDUCTION] == by_matching[:4] and sets.sets[FUNCTION_VECTOR] == by_effect[:4]
    assert sets.sets[INDUCTION_ALONE] == [head for head in by_matching if head not in by_effect[:4]][:4]
    assert sets.sets[FUNCTION_VECTOR_ALONE] == [head for head in by_effect if head not in by_matching[:4]][:4]


def test_no_control_set_has_a_head_of_either_list_or_of_its_own_set():
    sets = head_sets(MATCHING, EFFECT, NORMS, 4, 10)
    best = {*sets.sets[INDUCTION], *sets.sets[FUNCTION_VECTOR]}
    for kind in KINDS:
        assert len(sets.controls[kind]) == 10
        for heads in sets.controls[kind]:
            assert len({*heads}) == 4 and not {*heads} & (best | {*sets.sets[kind]})
            if sets.matched[kind] == "layers":
                assert sorted(layer for layer, _ in heads) == sorted(layer for layer, _ in sets.sets[kind])


def test_controls_are_matched_by_norm_where_there_are_too_few_of_the_same_layers():
    matching = np.zeros((6, 5))
    matching[2, :4] = [0.9, 0.8, 0.7, 0.6]  # one head of the layer is left
    sets = head_sets(matching, EFFECT, NORMS, 4, 10)
    assert sets.matched[INDUCTION] == "norms" and len(sets.controls[INDUCTION]) == 10


def test_all_ablations_have_a_name_and_the_whole_model_none():
    ablations = head_sets(MATCHING, EFFECT, NORMS, 4, 10).ablations
    assert len(ablations) == 1 + 4 * 11 == len({ablated.name for ablated in ablations})
    assert ablations[Ablated(NOTHING)] == [] and ablations[Ablated(INDUCTION)] == top(MATCHING, 4)


@pytest.mark.parametrize("n", [0, 11])
def test_a_size_without_controls_names_itself(n):
    with pytest.raises(ValueError, match=f"^n = {n}: give 1 to 10"):
        head_sets(MATCHING, EFFECT, NORMS, n, 10)


# ------------------------------------------------------------------------------------------------ ablations


@torch.no_grad()
def by_hooks(study, ids, mean):
    """The logits [T, V] of plain hooks that write the mean into HEADS at every token."""
    twin = eager_runs.reference(study.pair[0])
    writes = {(la, 0, t, h): torch.from_numpy(mean[la, h]).to(twin.dtype) for la, h in HEADS for t in range(len(ids))}
    return eager_runs.run(twin, {"input_ids": torch.tensor([ids])}, writes).logits[0]


@pytest.mark.oracle
def test_word_pairs_are_answered_as_plain_hooks_have_it(tmp_path):
    study = WordPairsStudy(tasks=("copying", "person_sport"), prompts=5, reference_prompts=4, folder=tmp_path)
    answers, mean = study.answers(EDITS), study.means().mean
    for task, groups in zip(study.tasks, study.groups, strict=True):
        said = [by_hooks(study, group.base.ids[: group.length], mean)[-1].argmax().item() for group in groups]
        right = [token == group.target[0] for token, group in zip(said, groups, strict=True)]
        assert answers["ablated"][task].tolist() == right
    wrong = Edit.ablate([(2, head) for head in range(8)])
    assert sum(right.sum() for right in study.answers({"wrong": wrong})["wrong"].values()) < 6


@pytest.mark.oracle
def test_the_means_of_word_pairs_are_over_the_tokens_of_all_tasks(tmp_path):
    study = WordPairsStudy(tasks=("copying", "person_sport"), prompts=2, reference_prompts=3, folder=tmp_path)
    twin, outputs = eager_runs.reference(study.pair[0]), []
    for drawn in study._reference:
        for item in drawn.items:
            ids = study.pair[1](item.clean.text).input_ids
            with torch.no_grad():
                z = eager_runs.run(twin, {"input_ids": torch.tensor([ids])}).z
            outputs.append(np.stack([z[layer][0, 8:].double().numpy() for layer in sorted(z)], axis=1))
    np.testing.assert_allclose(study.means().mean, np.concatenate(outputs).mean(axis=0), atol=1e-6)


@pytest.mark.oracle
def test_tokens_are_copied_as_plain_hooks_have_it(tmp_path):
    study = CopiesStudy(length=10, copies=3, sequences=3, folder=tmp_path)
    copied, mean = study.copied(EDITS), study.means().mean
    for ids, share in zip(study.drawn.ids.tolist(), copied["ablated"], strict=True):
        said = by_hooks(study, ids, mean).argmax(-1).tolist()
        right = [said[place] == ids[place + 1] for place in range(11, 30)]  # BOS, and ten tokens of the first copy
        assert share == np.mean(right)
    assert not np.array_equal(copied["whole"], copied["ablated"])


def test_means_of_copies_are_of_other_sequences(tmp_path):
    study = CopiesStudy(length=10, copies=2, sequences=2, folder=tmp_path)
    assert study.means().tokens == 2 * (21 - 8)
    assert not np.array_equal(
        study.means().mean, study.replace(seed=function_vector_study.OTHER_SEQUENCES).means().mean
    )


@pytest.mark.parametrize("study", [WordPairsStudy(prompts=2), CopiesStudy(sequences=2)])
@pytest.mark.parametrize("edit", [Edit.ablate(HEADS, "zero"), Edit.knock_out(HEADS), Edit.ablate([(4, 0)])])
def test_wrong_edits_are_told_before_anything_is_run(study, edit, tmp_path, monkeypatch):
    monkeypatch.setattr(function_vector_study, "mean_outputs", lambda *a: pytest.fail("the model ran"))
    monkeypatch.setattr(function_vector_study, "run_rows", lambda *a: pytest.fail("the model ran"))
    monkeypatch.setattr(function_vector_study, "next_token_logits", lambda *a: pytest.fail("the model ran"))
    measure = study.replace(folder=tmp_path).answers if isinstance(study, WordPairsStudy) else study.copied
    with pytest.raises(ValueError, match=r"no ablation by the mean|\(4, 0\)"):
        measure({"whole": WHOLE, "wrong": edit})


@pytest.mark.parametrize("wrong", [{"tasks": ["copyng"]}, {"prompts": 41}, {"k": 100}, {"reference_prompts": 0}])
def test_wrong_arguments_name_themselves(wrong, monkeypatch):
    monkeypatch.setattr(Model, "pair", property(lambda self: pytest.fail("the model was loaded")))
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}"):
        WordPairsStudy(**wrong)


# ------------------------------------------------------------------------------------------------ results from arrays


def made() -> FunctionVectors:
    """Sixteen heads in four layers; of the best four of either kind two are the same."""
    rng = np.random.default_rng(1)
    matching, effect = np.zeros((5, 4, 4)), np.zeros((8, 4, 4))
    matching[:, 1] = [0.9, 0.8, 0.7, 0.6]
    effect[:, 1, :2], effect[:, 3, 2:] = [0.3, 0.2], [0.25, 0.15]
    matching += rng.uniform(0, 0.05, matching.shape)
    effect += rng.normal(0, 0.02, effect.shape)
    corrupted = np.full(8, 0.1)
    task = IndirectEffects("made", "shuffled", np.arange(8), np.full(8, 0.8), corrupted, effect + corrupted[0])
    heads = FunctionVectorHeads((task,), "made model")
    scores = HeadScores({"prefix_matching": matching}, np.zeros((5, 9), int), range(4), "", 4, 2, True, "", "")
    sets = head_sets(scores.mean(), heads.mean(), np.ones((4, 4)), 4, 3)
    rate = {NOTHING: 0.9, INDUCTION: 0.3, FUNCTION_VECTOR: 0.4, INDUCTION_ALONE: 0.8, FUNCTION_VECTOR_ALONE: 0.5}
    right = {ablated: np.arange(20) < 20 * (0.85 if ablated.draw else rate[ablated.kind]) for ablated in sets.ablations}
    pairs = {ablated: {"made": rows[:10], "other": rows[10:]} for ablated, rows in right.items()}
    copied = {ablated: rows.reshape(5, 4).mean(axis=1) for ablated, rows in right.items()}
    return FunctionVectors(heads, scores, sets, pairs, "wordseq1", 0.5, right, copied)


def test_what_both_kinds_have_in_common():
    result = made()
    assert result.both == [(1, 0), (1, 1)]
    assert result.depth(INDUCTION) == pytest.approx(1 / 3) and result.depth(FUNCTION_VECTOR) == pytest.approx(2 / 3)
    expected = spearmanr(result.scores.mean().ravel(), result.heads.mean().ravel()).statistic
    assert result.correlation.value == pytest.approx(expected)
    assert result.correlation.low < expected < result.correlation.high
    same = replace(result, scores=replace(result.scores, scores={"prefix_matching": result.heads.units}))
    assert same.correlation.value == pytest.approx(1) == same.correlation.high
    assert 0 < result.reliability < 1


def test_costs_are_those_of_the_arrays():
    result = made()
    assert result.interval(PAIRS, Ablated(INDUCTION)).value == pytest.approx(0.3)
    assert result.controls("wordseq1", FUNCTION_VECTOR) == [0.85] * 3
    assert result.rank(COPIES, FUNCTION_VECTOR).p == 1 / 4 == result.rank(COPIES, FUNCTION_VECTOR).least
    assert result.rank(PAIRS, NOTHING).p == 1
    contrast = result.contrast(PAIRS)
    assert contrast.value == pytest.approx(0.8 - 0.5) and contrast.low > 0  # paired: 6 of 20 queries change
    assert result.contrast(COPIES).value == pytest.approx(0.3)


def test_the_table_the_lines_and_the_values_say_the_same():
    result = made()
    table = result.table()
    assert table.loc[(f"{PAIRS}, 20 queries", INDUCTION), "accuracy"].startswith("0.30 [")
    assert table.loc[("wordseq1, 20 queries", FUNCTION_VECTOR_ALONE), ["controls", "p"]].tolist() == [
        "0.85-0.85",
        "0.25",
    ]
    assert list(result.best(3).index) == ["L1H0", "L3H2", "L1H1"]
    values = result.values()
    assert values["accuracy"][COPIES][INDUCTION] == result.interval(COPIES, Ablated(INDUCTION))
    assert len(values["accuracy"][PAIRS]) == 1 + 4 * 4 and len(values["pairs"]) == 5
    assert any("L1H0, L1H1" in line for line in result.lines())
    assert "probability of the answer, shuffled to intact demonstrations: made 0.10 to 0.80" in result.lines()
    assert result.check_lines()[0].startswith("best FV heads: L1H0 0.3")
    assert "wordseq1: whole model 0.90, induction 0.30, FV 0.40" in result.check_lines()[3]


def test_equal_answers_have_an_interval_with_width_and_equal_shares_none():
    result = made()
    answered = {ablated: np.ones(40, bool) for ablated in result.sets.ablations}
    same = replace(result, classified=answered, copied={a: np.ones(40) for a in answered})
    value, low, high = same.contrast("wordseq1")
    assert value == 0 and -0.2 < low < -0.05 and 0.05 < high < 0.2
    assert same.contrast(COPIES) == (0, 0, 0)


def test_effects_without_room_are_said_to_say_nothing():
    result, line = made(), "no room: indirect effects say nothing here"
    task = replace(result.heads.tasks[0], intact=result.heads.tasks[0].corrupted + 0.04)
    assert line not in result.lines()
    assert replace(result, heads=replace(result.heads, tasks=(task,))).lines().count(line) == 1


def test_the_figure_shows_every_measure():
    figure = made().figure()
    axes = [ax for ax in figure.axes if ax.get_title()]
    titles = [f"C) {PAIRS}\n20 queries", "wordseq1\n20 queries", f"{COPIES}\n5 sequences"]
    assert [ax.get_title() for ax in axes][2:] == titles
    assert "L1H0" in [text.get_text() for text in axes[0].texts]
    names = [label.get_text() for label in axes[2].get_yticklabels()]
    assert names == [NOTHING, *KINDS]
    figure.draw_without_rendering()


@pytest.mark.parametrize("width", [COLUMN, WIDTH])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_figure_can_be_read_at_any_width(shape, width):
    rng = np.random.default_rng(0)
    matching, effect = rng.random(shape) ** 4, rng.normal(0, 0.05, shape)
    induction, others = (top(score, 31 if matching.size > 1000 else 4) for score in (matching, effect))
    interval = Interval(1.0, 0.83, 1.0)
    drawn = {name: [0.0, 0.3, 0.9] for name in KINDS}
    panels = [RowPanel(name, dict.fromkeys((NOTHING, *KINDS), interval), drawn, 0.5) for name in (PAIRS, "t", COPIES)]
    effects = Intervals(effect, effect - 0.03, effect + 0.05)
    finding = f"{len(induction)} of the best heads of either kind are the same"
    figure = function_vector_plots.function_vectors(
        matching, effects, induction, others, panels, finding, LONG_NAME, width=width
    )
    assert faults(figure) == []


def test_the_finding_counts_the_heads_of_both_kinds_where_there_are_effects():
    result = made()
    assert result.finding is not None and result.finding.startswith(f"{len(result.both)} of the ")
    task = replace(result.heads.tasks[0], intact=result.heads.tasks[0].corrupted + 0.04)
    assert replace(result, heads=replace(result.heads, tasks=(task,))).finding is None


# ------------------------------------------------------------------------------------------------ the whole


def test_a_study_compares_both_kinds_of_heads(tmp_path):
    study = Study(prompts=4, sequences=2, untrained_control=False, folder=tmp_path)
    result = study.function_vectors(4, 6, 2, n=3, control_sets=2)
    assert result.heads.corruption == "other_outputs"  # shuffled outputs leave the embedded model nothing to give back
    assert study.function_vector_heads(4, 6, "shuffled").room < 0.05
    assert result.sets.n == 3 and {len(sets) for sets in result.sets.controls.values()} == {2}
    assert {measure: len(rows[Ablated(NOTHING)]) for measure, rows in result.measured.items()} == {
        PAIRS: 10, "wordseq1": 4, COPIES: 2,
    }  # fmt: skip
    assert result.interval(COPIES, Ablated(INDUCTION)).value < result.interval(COPIES, Ablated(NOTHING)).value
    chosen_on = {tuple(ids) for ids in study.on_sequences.drawn.ids[:, 1:51].tolist()}
    asked = CopiesStudy(study.model, 50, 2, 2, 2, folder=tmp_path).drawn.ids[:, 1:51].tolist()
    assert not chosen_on & {*map(tuple, asked)}


@pytest.mark.parametrize(("shape", "n"), [((2, 4), 2), ((4, 8), 4)])
def test_the_default_size_leaves_heads_for_controls(shape, n, tmp_path, monkeypatch):
    """Scores stand for those of a model of such a shape; what comes behind the sizes is not measured."""
    study = Study(prompts=4, sequences=2, untrained_control=False, folder=tmp_path)
    scores = SimpleNamespace(mean=np.arange(np.prod(shape), dtype=float).reshape(shape))
    asked = []
    monkeypatch.setattr(Study, "scores", lambda self: scores)
    monkeypatch.setattr(study_module, "check_size", lambda *sizes: asked.append(sizes))
    monkeypatch.setattr(Study, "function_vector_heads", lambda *a: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        study.function_vectors()
    assert asked == [(n, np.prod(shape))]


@pytest.mark.parametrize("wrong", [{"n": 11}, {"prompts": 40}, {"queries": 41}, {"prompts": 1}, {"queries": 1}])
def test_a_study_tells_wrong_numbers_before_it_measures_effects(wrong, tmp_path, monkeypatch):
    from util.roles import function_vectors

    study = Study(prompts=4, sequences=2, untrained_control=False, folder=tmp_path)
    monkeypatch.setattr(function_vectors, "last_outputs", lambda *a: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="^n = 11|^prompts = |^queries = 1"):
        study.function_vectors(**wrong)
