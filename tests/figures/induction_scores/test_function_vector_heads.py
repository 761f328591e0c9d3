"""Function-vector heads beside induction heads: sets of heads, ablations against plain hooks, numbers of arrays."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests import eager_runs
from util.engine.batches import Row
from util.engine.means import mean_outputs
from util.figures.induction_scores import measure, show, vectors, vectors_measure
from util.figures.induction_scores.edits import WHOLE, Edit
from util.figures.induction_scores.pictures import FUNCTION_VECTOR, INDUCTION
from util.figures.induction_scores.plan import WHOLE as NOTHING
from util.figures.induction_scores.vectors import (
    COPIES,
    FUNCTION_VECTOR_ALONE,
    INDUCTION_ALONE,
    PAIRS,
    ablations,
    head_sets,
)
from util.figures.induction_scores.vectors_measure import WordPairs, copied
from util.roles.function_vectors import FunctionVectorHeads, FunctionVectorStudy, IndirectEffects
from util.roles.head_scores import HeadScores
from util.roles.sequences_study import SequenceStudy
from util.show.part import drawn
from util.stats.heads import top
from util.study.study import Study

KINDS = (INDUCTION, FUNCTION_VECTOR, INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
HEADS = ((0, 1), (2, 4))
EDITS = {"whole": WHOLE, "ablated": Edit.ablate(HEADS)}
RNG = np.random.default_rng(0)
MATCHING, EFFECT, NORMS = RNG.uniform(0, 1, (6, 5)), RNG.normal(0, 1, (6, 5)), RNG.uniform(1, 2, (6, 5))


# ------------------------------------------------------------------------------------------------ sets of heads


def test_sets_are_the_best_heads_and_the_best_without_the_others():
    sets = head_sets(MATCHING, EFFECT, NORMS, 4, 10)
    by_matching, by_effect = top(MATCHING, 30), top(EFFECT, 30)
    assert sets["sets"][INDUCTION] == by_matching[:4] and sets["sets"][FUNCTION_VECTOR] == by_effect[:4]
    assert sets["sets"][INDUCTION_ALONE] == [head for head in by_matching if head not in by_effect[:4]][:4]
    assert sets["sets"][FUNCTION_VECTOR_ALONE] == [head for head in by_effect if head not in by_matching[:4]][:4]


def test_no_control_set_has_a_head_of_either_list_or_of_its_own_set():
    sets = head_sets(MATCHING, EFFECT, NORMS, 4, 10)
    best = {*sets["sets"][INDUCTION], *sets["sets"][FUNCTION_VECTOR]}
    for kind in KINDS:
        assert len(sets["controls"][kind]) == 10
        for heads in sets["controls"][kind]:
            assert len({*heads}) == 4 and not {*heads} & (best | {*sets["sets"][kind]})
            if sets["matched"][kind] == "layers":
                assert sorted(layer for layer, _ in heads) == sorted(layer for layer, _ in sets["sets"][kind])


def test_controls_are_matched_by_norm_where_there_are_too_few_of_the_same_layers():
    matching = np.zeros((6, 5))
    matching[2, :4] = [0.9, 0.8, 0.7, 0.6]  # one head of the layer is left
    sets = head_sets(matching, EFFECT, NORMS, 4, 10)
    assert sets["matched"][INDUCTION] == "norms" and len(sets["controls"][INDUCTION]) == 10


# ------------------------------------------------------------------------------------------------ ablations


@torch.no_grad()
def by_hooks(study, ids, mean):
    """The logits [T, V] of plain hooks that write the mean into HEADS at every token."""
    twin = eager_runs.reference(study.pair[0])
    writes = {(la, 0, t, h): torch.from_numpy(mean[la, h]).to(twin.dtype) for la, h in HEADS for t in range(len(ids))}
    return eager_runs.run(twin, {"input_ids": torch.tensor([ids])}, writes).logits[0]


@pytest.mark.oracle
def test_word_pairs_are_answered_as_plain_hooks_have_it(tmp_path):
    study = Study("induction_scores", folder=tmp_path)
    pairs = WordPairs(study, ("copying", "person_sport"), 5)
    found, mean = pairs.answers(EDITS)["ablated"], pairs.ablations.means().mean
    for task, (rows, answers) in zip(pairs.names, pairs.rows("test"), strict=True):
        told = [by_hooks(study, row.ids, mean)[-1].argmax().item() for row in rows]
        assert found[task].tolist() == [token == answer for token, answer in zip(told, answers, strict=True)]
    wrong = Edit.ablate([(2, head) for head in range(8)])
    assert sum(right.sum() for right in pairs.answers({"wrong": wrong})["wrong"].values()) < 6


@pytest.mark.oracle
def test_the_means_of_word_pairs_are_over_the_tokens_of_all_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors_measure, "REFERENCE_PROMPTS", 3)
    study = Study("induction_scores", folder=tmp_path)
    pairs = WordPairs(study, ("copying", "person_sport"), 2)
    twin, outputs = eager_runs.reference(study.pair[0]), []
    for prompts in pairs.drawn("search"):
        for item in prompts.items:
            ids = study.pair[1](item.clean.text).input_ids
            with torch.no_grad():
                z = eager_runs.run(twin, {"input_ids": torch.tensor([ids])}).z
            outputs.append(np.stack([z[layer][0, 8:].double().numpy() for layer in sorted(z)], axis=1))
    np.testing.assert_allclose(pairs.ablations.means().mean, np.concatenate(outputs).mean(axis=0), atol=1e-6)


@pytest.mark.oracle
def test_tokens_are_copied_as_plain_hooks_have_it(tmp_path):
    """The means are those of other sequences."""
    study = SequenceStudy(length=10, copies=3, sequences=3, folder=tmp_path)
    shares = copied(study, EDITS)
    others = study.replace(seed=vectors_measure.OTHER_SEQUENCES).drawn.ids.tolist()
    mean = mean_outputs(study.pair[0], [Row(tuple(ids)) for ids in others], 8)["mean"]
    for ids, share in zip(study.drawn.ids.tolist(), shares["ablated"], strict=True):
        said = by_hooks(study, ids, mean).argmax(-1).tolist()
        right = [said[place] == ids[place + 1] for place in range(11, 30)]  # BOS, and ten tokens of the first copy
        assert share == np.mean(right)
    assert not np.array_equal(shares["whole"], shares["ablated"])


# ------------------------------------------------------------------------------------------------ numbers of arrays


def made(**changes):
    """Arrays of sixteen heads in four layers; of the best four of either kind two are the same."""
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
    right = {ablated: np.arange(20) < 20 * rate.get(ablated, 0.85) for ablated in ablations(sets)}
    pairs = {ablated: {"made": rows[:10], "other": rows[10:]} for ablated, rows in right.items()}
    copied = {ablated: rows.reshape(5, 4).mean(axis=1) for ablated, rows in right.items()}
    return {
        "heads": scores, "effects": heads, "sets": sets, "pairs": pairs, "task": "wordseq1", "chance": 0.5,
        "classified": right, "copied": copied, **changes,
    }  # fmt: skip


def values(arrays):
    scores = {"scores": {"mean": arrays["heads"].mean()}}
    return {"model": "made model", **scores, **vectors.numbers(arrays, None)}


def found(**changes):
    return values(made(**changes))["function vectors"]


def without_room():
    heads = made()["effects"]
    task = replace(heads.tasks[0], intact=heads.tasks[0].corrupted + 0.04)
    return values(made(effects=replace(heads, tasks=(task,))))


def test_what_both_kinds_have_in_common():
    arrays, result = made(), found()
    assert result["both"] == [(1, 0), (1, 1)]
    expected = spearmanr(arrays["heads"].mean().ravel(), arrays["effects"].mean().ravel()).statistic
    value, low, high = result["rank_correlation"]
    assert value == pytest.approx(expected) and low < expected < high
    assert 0 < result["reliability"] < 1
    same = replace(arrays["heads"], scores={"prefix_matching": arrays["effects"].units})
    assert found(heads=same)["rank_correlation"][::2] == pytest.approx((1, 1))


def test_costs_are_those_of_the_arrays():
    result = found()
    assert result["accuracy"][PAIRS][INDUCTION].value == pytest.approx(0.3)
    assert len(result["accuracy"][PAIRS]) == 1 + 4 * 4
    assert result["accuracy"]["wordseq1"][f"{FUNCTION_VECTOR}, control 3"].value == 0.85
    contrast = result["contrast"][PAIRS]
    assert contrast.value == pytest.approx(0.8 - 0.5) and contrast.low > 0  # paired: 6 of 20 queries change
    assert result["contrast"][COPIES].value == pytest.approx(0.3)


def test_equal_answers_have_an_interval_with_width_and_equal_shares_none():
    rows = ablations(made()["sets"])
    assert len(rows) == 1 + 4 * 4 and rows[NOTHING] == []
    same = found(classified=dict.fromkeys(rows, np.ones(40, bool)), copied=dict.fromkeys(rows, np.ones(40)))
    value, low, high = same["contrast"]["wordseq1"]
    assert value == 0 and -0.2 < low < -0.05 and 0.05 < high < 0.2
    assert same["contrast"][COPIES] == (0, 0, 0)


def test_what_is_said_of_both_kinds_follows_from_the_numbers():
    finding, best, *contrasts = vectors.says(values(made()))
    assert finding.startswith("2 of the 4 best induction heads are among the 4 best FV heads (1.0 by chance); rank ")
    assert best.startswith("The function-vector (FV) head with the largest average indirect effect is L1H0: 0.3")
    assert "Of the best four of either kind two are the same. AIE on two halves of the prompts correlate by 0." in best
    assert contrasts[0].startswith("Word pairs rest more on FV heads (20 queries): without FV heads that are no ")
    assert "induction heads 0.30 [" in contrasts[0]
    no_room = "Intact demonstrations hardly raise the answer, so that indirect effects say nothing here."
    assert no_room not in contrasts
    finding, _, second, *_ = vectors.says(without_room())
    assert (finding, second) == ("", no_room)


def test_the_picture_of_both_kinds_shows_every_measure():
    figure = drawn(show.FIGURE.parts["function_vectors"], values(made()))
    assert figure is not None
    axes = [ax for ax in figure.axes if ax.get_title()]
    titles = [f"B) {PAIRS}\n20 queries", "wordseq1\n20 queries", f"{COPIES}\n5 sequences"]
    assert [ax.get_title() for ax in axes][1:] == titles
    assert "L1H0" in [text.get_text() for text in axes[0].texts]
    assert [label.get_text() for label in axes[1].get_yticklabels()] == [NOTHING, *KINDS]


# ------------------------------------------------------------------------------------------------ the whole


def small(folder):
    return Study("induction_scores", prompts=4, sequences=2, untrained_control=False, folder=folder)


@pytest.mark.slow
def test_a_study_compares_both_kinds_of_heads(tmp_path, monkeypatch):
    """Few prompts, tasks and control sets; else it is what is measured."""
    asked = []

    def few(model, task, k, prompts, seed, **more):
        asked.append(more["corruption"])
        return FunctionVectorStudy(model, task, k, 4, seed, **more | {"intact": 6})

    monkeypatch.setattr(vectors_measure, "TASKS", vectors_measure.TASKS[:2])
    monkeypatch.setattr(vectors_measure, "FunctionVectorStudy", few)
    monkeypatch.setattr(
        vectors_measure, "head_sets", lambda matching, effect, norms, *_: head_sets(matching, effect, norms, 3, 2)
    )
    study = small(tmp_path)
    result = study.numbers("function_vectors")["function vectors"]
    assert asked == ["shuffled"] * 2 + ["other_outputs"] * 2  # shuffled ones leave this model nothing to give back
    assert result["corruption"] == "other_outputs" and result["room"] >= vectors.ROOM
    assert {len(sets) for sets in result["controls"].values()} == {2} and len(result["sets"][INDUCTION]) == 3
    assert result["asked"] == {PAIRS: "40 queries", "wordseq1": "40 queries", COPIES: "2 sequences"}
    assert result["accuracy"][COPIES][INDUCTION].value < result["accuracy"][COPIES][NOTHING].value
    chosen_on = {tuple(ids) for ids in measure.on_sequences(study).drawn.ids[:, 1:51].tolist()}
    copies = SequenceStudy(study.model, 50, 2, 2, 2, folder=tmp_path).drawn.ids[:, 1:51].tolist()
    assert not chosen_on & {*map(tuple, copies)}
