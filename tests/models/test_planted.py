"""Planted models by themselves: forerunner heads, how far back names are seen, seeds, refusals.

That the other circuits do what their truth says, and need it, is seen by the studies that find them: IOI in
`tests/figures/ioi_patching` and `tests/scores`, look-ups in `tests/figures/edge_ablation`, all roles, those of
induction heads too, in `tests/figures/role_atlas`.
"""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests import eager_runs
from tests.tiers import quick
from util.load_model_and_data import load_tokenizer, staicc_prompts
from util.models import planted

families = pytest.mark.parametrize("family", quick(["gpt2"], planted.FAMILIES))


def eager(model, ids, writes=None):
    """By transformers alone, with heads replaced: logits [V] of the last token, and attention [L, H, T, T]."""
    run = eager_runs.read(model, ids, writes)
    return run.logits[0, -1], torch.cat([*run.weights.values()]).numpy()


def silent(ids, heads):
    """What leaves heads without an output at the last token."""
    return {(layer, 0, len(ids) - 1, head): torch.zeros(1) for layer, head in heads}


@pytest.mark.slow
@pytest.mark.parametrize("family", planted.FAMILIES)
def test_forerunner_heads_attend_where_their_names_say_and_the_answer_hangs_on_them(family):
    tokenizer = load_tokenizer("embedded")
    prompts = staicc_prompts("financial_phrasebank", 4)[:6]
    labels = [tokenizer.encode(f" {label}", add_special_tokens=False)[0] for label in prompts[0].labels]
    plant = planted.forerunner(len(tokenizer), labels, family=family)
    for prompt in prompts:
        ids = tokenizer(prompt.with_label())["input_ids"]
        logits, attention = eager(plant.model, ids)
        before = attention[..., range(2, len(ids)), range(1, len(ids) - 1)]
        elsewhere = before[..., ~np.isin(ids[2:], labels)].mean(-1)
        for role, at_label, at_others in (("labels only", 1, 0), ("any token", 1, 1), ("never", 0, 0)):
            for head in plant.heads[role]:
                assert_allclose([before[head][-1], elsewhere[head]], [at_label, at_others], atol=1e-3)
        without = eager(plant.model, ids, silent(ids, plant.heads["labels only"]))[0]
        assert logits.argmax() == ids[-2] != without.argmax()


@families
def test_a_name_is_marked_however_far_back_it_occurred(family):
    plant = planted.ioi(500, range(100, 110), family=family, bos=7)
    (layer, head), filler = plant.heads["duplicate token"][0], np.random.default_rng(0).integers(200, 500, 900)
    for distance in (2, 3, 20, 50, 131, 500):
        _, weights = eager(plant.model, [7, *filler[:3], 100, *filler[3 : 2 + distance], 100])
        assert weights[layer, head, 4 + distance, 4] > 0.999, distance
        assert weights[layer, head, 4, 0] > 0.999  # nothing before: BOS
    assert plant.model.config.bos_token_id == 7


@families
def test_a_backup_does_the_movers_work_where_the_mover_does_not(family):
    ids = [7, 300, 100, 301, 101, 302, 303, 101, 304]
    for backup in (False, True):
        plant = planted.ioi(500, range(100, 110), backup, family=family, bos=7)
        first = silent(ids, [head for head in plant.heads["mover"] if head[0] == 1])
        whole, without = (eager(plant.model, ids, writes)[0][[100, 101]] for writes in (None, first))
        assert whole[0] - whole[1] > 3 and (without[0] - without[1] > 3) == backup


def test_the_seed_decides_which_head_is_which():
    places = {planted.induction(300, seed=seed).heads["induction"] for seed in range(6)}
    assert len(places) > 1
    one, two = (planted.induction(300, seed=3).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="family"):
        planted.induction(300, family="falcon")
