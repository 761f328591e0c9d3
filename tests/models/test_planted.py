"""Planted models by themselves: forerunner heads, how far back names are seen, seeds, refusals.

That the other circuits do what their truth says, and need it, is seen by the studies that find them: induction heads in
`tests/figures/induction_scores`, IOI with its backup in `tests/figures/ioi_patching` and `tests/scores`, look-ups in
`tests/figures/edge_ablation`, all roles in `tests/figures/role_atlas`.
"""

import numpy as np
import pytest
import torch

from tests import eager_runs
from tests.tiers import quick
from util.engine.attention import instrument
from util.engine.handshake import prepare
from util.engine.instruments import PatchHeads
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.models import planted

families = pytest.mark.parametrize("family", quick(["gpt2"], planted.FAMILIES))


def forward(model, ids, *instruments):
    """Logits [B, T, V] with instruments attached, the way every experiment runs a model."""
    with torch.no_grad(), instrument(model, *instruments):
        return model(torch.as_tensor(ids), use_cache=False).logits.numpy()


@torch.no_grad()
def eager(model, ids):
    """Attention of every head by transformers alone, [B, L, H, T, T]."""
    weights = eager_runs.run(eager_runs.reference(model), {"input_ids": torch.as_tensor(ids)}).weights
    return torch.stack([*weights.values()], 1).double().numpy()


def removal(heads):
    return [PatchHeads(layer, head, 0.0) for layer, head in heads]


def check_expected(plant, found, **expected):
    """`found` [L, H] is what is expected of a role's heads."""
    for role, value in expected.items():
        for head in plant.heads[role.replace("_", " ")]:
            assert abs(found[head] - value) <= 1e-3, (role, head, found[head])


def check_parts(plant, behaviour, needed):
    """behaviour(*instruments) is 1 with the circuit whole, and hangs on the needed role but on no other head."""
    assert behaviour() == 1
    assert behaviour(*removal(plant.heads[needed])) <= 0.25
    others = [head for head, role in plant.names.items() if role != needed] + list(plant.decoys)
    for head in others[::3]:
        assert behaviour(*removal([head])) == 1, head
    assert behaviour(*removal(others)) == 1


def check_decoys(plant, ids):
    """Decoys attend nearly uniformly, and what they write does not reach the output but through the norms."""
    uniform = 1 / (1 + np.arange(ids.shape[1]))[:, None]
    for head in plant.decoys:
        off = np.abs(eager(plant.model, ids)[:, head[0], head[1]] / uniform - 1)[:, np.tri(ids.shape[1]) > 0]
        assert off.mean() < 0.5, head
    whole, without = forward(plant.model, ids), forward(plant.model, ids, *removal(plant.decoys))
    assert not np.array_equal(whole, without)
    assert np.abs(whole - without).max() < 0.05 * np.abs(whole).max()


@pytest.mark.slow
@pytest.mark.parametrize("family", planted.FAMILIES)
def test_forerunner(family):
    tokenizer = load_ICL_model("embedded", verbose=False)[1]
    prompts = staicc_prompts("financial_phrasebank", 4)[:6]
    labels = [tokenizer.encode(f" {label}", add_special_tokens=False)[0] for label in prompts[0].labels]
    plant = planted.forerunner(len(tokenizer), labels, family=family)
    load_ICL_model((plant.model, tokenizer), verbose=False)
    rows = [np.array([tokenizer(prompt.with_label())["input_ids"]]) for prompt in prompts]
    at_label, elsewhere = [], []
    for ids in rows:
        attention = eager(plant.model, ids)[0]
        queries = np.arange(2, ids.shape[1])
        before = attention[..., queries, queries - 1]
        at_label.append(before[..., -1])
        elsewhere.append(before[..., ~np.isin(ids[0, queries], labels)].mean(-1))
    check_expected(plant, np.mean(at_label, 0), labels_only=1, any_token=1, never=0)
    check_expected(plant, np.mean(elsewhere, 0), labels_only=0, any_token=1, never=0)

    def names_the_forerunner(*instruments):
        return np.mean([forward(plant.model, ids, *instruments)[0, -1].argmax() == ids[0, -2] for ids in rows])

    check_parts(plant, names_the_forerunner, "labels only")
    check_decoys(plant, rows[0])


@families
def test_a_name_is_marked_however_far_back_it_occurred(family):
    plant = planted.ioi(500, range(100, 110), family=family, bos=7)
    prepare(plant.model)
    (layer, head), filler = plant.heads["duplicate token"][0], np.random.default_rng(0).integers(200, 500, 900)
    for distance in (2, 3, 20, 50, 131, 500):
        ids = np.array([[7, *filler[:3], 100, *filler[3 : 2 + distance], 100]])
        weights = eager(plant.model, ids)[0, layer, head]
        assert weights[4 + distance, 4] > 0.999, distance
        assert weights[4, 0] > 0.999  # nothing before: BOS
    assert plant.model.config.bos_token_id == 7


def test_the_seed_decides_which_head_is_which():
    places = {planted.induction(300, seed=seed).heads["induction"] for seed in range(6)}
    assert len(places) > 1
    one, two = (planted.induction(300, seed=3).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="family"):
        planted.induction(300, family="falcon")
