"""Function-vector heads beside induction heads: sets of heads, ablations against plain hooks, numbers of arrays."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests import eager_runs
from util.edges.splicing import groups_of
from util.figures.edits import INTACT, WHOLE, Edit
from util.figures.role_atlas import measure, numbers, show
from util.figures.role_atlas.measure import WordPairs
from util.figures.role_atlas.numbers import (
    FUNCTION_VECTOR,
    FUNCTION_VECTOR_ALONE,
    INDUCTION,
    INDUCTION_ALONE,
    PAIRS,
    ablations,
    head_sets,
)
from util.stats.heads import top

KINDS = (INDUCTION, FUNCTION_VECTOR, INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
HEADS = ((0, 1), (2, 4))
EDITS = {"whole": INTACT, "ablated": Edit.ablate(HEADS)}
RNG = np.random.default_rng(0)
MATCHING, EFFECT, NORMS = RNG.uniform(0, 1, (6, 5)), RNG.normal(0, 1, (6, 5)), RNG.uniform(1, 2, (6, 5))


# ------------------------------------------------------------------------------------------------ sets of heads


def test_sets_are_the_best_heads_the_best_without_the_others_and_others():
    sets = head_sets(MATCHING, EFFECT, NORMS, 4, 10)
    by_matching, by_effect, chosen = top(MATCHING, 30), top(EFFECT, 30), sets["sets"]
    assert chosen[INDUCTION] == by_matching[:4] and chosen[FUNCTION_VECTOR] == by_effect[:4]
    assert chosen[INDUCTION_ALONE] == [head for head in by_matching if head not in by_effect[:4]][:4]
    assert chosen[FUNCTION_VECTOR_ALONE] == [head for head in by_effect if head not in by_matching[:4]][:4]
    for kind in KINDS:
        assert len(sets["controls"][kind]) == 10
        for heads in sets["controls"][kind]:
            assert len({*heads}) == 4 and not {*heads} & {*by_matching[:4], *by_effect[:4], *chosen[kind]}


def test_controls_are_of_the_same_layers_or_by_norm_where_these_have_too_few():
    for four, alike in (([(0, 0), (1, 0), (2, 0), (3, 0)], True), ([(2, 0), (2, 1), (2, 2), (2, 3)], False)):
        matching = np.zeros((6, 5))
        matching[tuple(np.array(four).T)] = [0.9, 0.8, 0.7, 0.6]
        found = head_sets(matching, EFFECT, NORMS, 4, 10)["controls"][INDUCTION]
        layers = [sorted(layer for layer, _ in heads) == [layer for layer, _ in four] for heads in found]
        assert len(found) == 10 and all(layers) == alike


# ------------------------------------------------------------------------------------------------ ablations


def by_hooks(model, ids, mean):
    """The logits [T, V] of plain hooks that write the mean into HEADS at every token."""
    writes = {(la, 0, t, h): torch.from_numpy(mean[la, h]).to(model.dtype) for la, h in HEADS for t in range(len(ids))}
    return eager_runs.read(model, ids, writes).logits[0]


@pytest.mark.oracle
def test_word_pairs_are_answered_as_plain_hooks_have_it(tmp_path, monkeypatch):
    """Without heads whose mean is over the tokens of all tasks."""
    monkeypatch.setattr(measure, "REFERENCE_PROMPTS", 3)
    pairs = WordPairs(tasks=("copying", "person_sport"), prompts=5, folder=tmp_path)
    model, tokenizer = pairs.pair
    found, mean, outputs = pairs.answers(EDITS)["ablated"], pairs.means()["mean"], []
    for item in (item for prompts in pairs.drawn["search"] for item in prompts.items):
        z = eager_runs.read(model, tokenizer(item.clean.text).input_ids).z
        outputs.append(np.stack([z[layer][0, 8:].double().numpy() for layer in sorted(z)], axis=1))
    assert_allclose(mean, np.concatenate(outputs).mean(axis=0), atol=1e-6)
    for task, prompts in zip(pairs.found, pairs.drawn["test"], strict=True):
        groups = groups_of(prompts.items, tokenizer)
        likeliest = [by_hooks(model, group.prompt, mean)[-1].argmax().item() for group in groups]
        right = [token == group.target[0] for token, group in zip(likeliest, groups, strict=True)]
        assert found[task.name].tolist() == right
    wrong = Edit.ablate([(2, head) for head in range(8)])
    assert sum(right.sum() for right in pairs.answers({"wrong": wrong})["wrong"].values()) < 6


# ------------------------------------------------------------------------------------------------ numbers of arrays


def made(room=0.7, **changes):
    """Arrays of sixteen heads in four layers; of the best four of either kind two are the same."""
    rng = np.random.default_rng(1)
    matching, effect = np.zeros((5, 4, 4)), np.zeros((8, 4, 4))
    matching[:, 1] = [0.9, 0.8, 0.7, 0.6]
    effect[:, 1, :2], effect[:, 3, 2:] = [0.3, 0.2], [0.25, 0.15]
    matching += rng.uniform(0, 0.05, matching.shape)
    effect += rng.normal(0, 0.02, effect.shape)
    heads = {"effects": effect, "room": room, "corruption": "shuffled", "left out": {}}
    matching = matching.mean(axis=0)
    sets = head_sets(matching, effect.mean(axis=0), np.ones((4, 4)), 4, 3)
    rate = {WHOLE: 0.9, INDUCTION: 0.3, FUNCTION_VECTOR: 0.4, INDUCTION_ALONE: 0.8, FUNCTION_VECTOR_ALONE: 0.5}
    right = {ablated: np.arange(20) < 20 * rate.get(ablated, 0.85) for ablated in ablations(sets)}
    pairs = {ablated: {"made": rows[:10], "other": rows[10:]} for ablated, rows in right.items()}
    arrays = {"prefix matching": matching, "effects": heads, "sets": sets, "pairs": pairs, "task": "wordseq1"}
    return {**arrays, "chance": 0.5, "classified": right, **changes}


def found(**changes):
    return numbers.function_vectors(made(**changes), None)["function vectors"]


def test_costs_are_those_of_the_arrays():
    result, rows = found(), ablations(made()["sets"])
    assert len(rows) == 1 + 4 * 4 and rows[WHOLE] == [] and result["both"] == [(1, 0), (1, 1)]
    assert result["accuracy"][PAIRS][INDUCTION].value == pytest.approx(0.3) and len(result["accuracy"][PAIRS]) == 17
    assert result["accuracy"]["wordseq1"][f"{FUNCTION_VECTOR}, control 3"].value == 0.85
    contrast = result["contrast"][PAIRS]
    assert contrast.value == pytest.approx(0.8 - 0.5) and contrast.low > 0  # paired: 6 of 20 queries change
    value, low, high = found(classified=dict.fromkeys(rows, np.ones(40, bool)))["contrast"]["wordseq1"]
    assert value == 0 and -0.2 < low < -0.05 and 0.05 < high < 0.2  # equal answers have an interval with width


def test_where_demonstrations_leave_no_room_this_is_said():
    *_, both, _ = show.vectors_say({"function vectors": found()})
    assert both == "2 of the 4 best induction heads are among the 4 best FV heads (1.0 by chance)."
    untitled, no_room, *_ = show.vectors_say({"function vectors": found(room=0.04)})
    assert untitled == "" and no_room.startswith("Intact demonstrations hardly raise the answer")
