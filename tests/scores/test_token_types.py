"""Scores of units by token type, and pruned runs, against attention written out by hand in a stock model.

The models are random ones in float64: grouped keys, a soft cap with a window, attention beside the MLP.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests import eager_runs
from tests.architectures import HEADS, LAYERS
from tests.edges.test_splicing import few, groups, near, toy
from tests.scores.test_units import whole
from tests.tiers import quick
from tests.tiny_models import tiny_model
from tests.toys import words
from util.edges.edge import TYPE_PAIRS, Ablation, Edge, together
from util.edges.splicing import Group
from util.edges.states import Store
from util.engine.attention import support
from util.engine.call import Call
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads
from util.scores import token_types
from util.scores.pruning import SORTS, Circuit
from util.scores.token_types import PrunedRun, answers, scores

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("wide_softmax")]

OWN_SOFTMAX = torch.nn.functional.softmax  # the fixture wide_softmax has another in its place
NAMES = ("llama", "gemma2", "phi")
names = pytest.mark.parametrize("name", NAMES)
REMOVED = Ablation(removed=("x->t:same", "y->x:earlier"), heads=((0, 0), (0, 1), (1, 2), (2, 3)))


def pruned(seed=0, share=0.3, **options):
    """A circuit without some of its units, drawn at random."""
    circuit, rng = whole(**options), np.random.default_rng(seed)
    circuit = circuit.keeping("head", rng.random(circuit.living_heads.shape) > share)
    return circuit.keeping("edge", circuit.living_edges & (rng.random(circuit.living_edges.shape) > share))


CIRCUITS = {
    "whole": whole,
    "pruned": pruned,
    "started": lambda: pruned(start=REMOVED),
    "start": lambda: whole(start=REMOVED),
}
circuits = pytest.mark.parametrize("circuit", quick(["started"], CIRCUITS))


# ------------------------------------------------------------------------------------------------ attention by hand


@dataclass
class ByHand:
    """Attention of a stock model written out. moved: by layer, how far each cell has moved to the donor [H, T, T]."""

    donor: dict = field(default_factory=dict)  # layer -> keys, values, outputs of a plain run
    moved: dict = field(default_factory=dict)
    swapped: dict = field(default_factory=dict)  # layer -> [T, H], outputs that are the donor's
    z: dict = field(default_factory=dict)
    seen: dict = field(default_factory=dict)


NOW: list[ByHand] = [ByHand()]


def attention(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
    now, layer = NOW[0], module.layer_idx
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scaling = module.head_dim**-0.5 if scaling is None else scaling

    def cells(keys):
        found = query @ keys.transpose(2, 3) * scaling
        return found if softcap is None else softcap * torch.tanh(found / softcap)

    scores_, z = cells(key), None
    if layer in now.moved:
        far, (donor_key, donor_value, _) = now.moved[layer], now.donor[layer]
        scores_ = scores_ + far * (cells(donor_key) - scores_)
        weights = (scores_ + attention_mask).softmax(-1)
        z = weights @ value + (weights * far) @ (donor_value - value)
    else:
        z = (scores_ + attention_mask).softmax(-1) @ value
    z = z.transpose(1, 2)
    if layer in now.swapped:
        z = torch.where(now.swapped[layer][..., None], now.donor[layer][2], z)
    if torch.is_grad_enabled():
        z = z.detach().requires_grad_() if not now.z else z
    now.z[layer], now.seen[layer] = z, (key, value)
    return z, None


AttentionInterface.register("by_hand", attention)
AttentionMaskInterface.register("by_hand", eager_mask)


@cache
def hand_model(name):
    twin = eager_runs.reference(toy(name))
    twin.config._attn_implementation = "by_hand"
    return twin


@contextmanager
def by_hand(now):
    NOW[0] = now
    try:
        yield
    finally:
        NOW[0] = ByHand()


def loss_by_hand(name, group, now):
    now.z.clear()
    with by_hand(now):
        said = hand_model(name)(torch.tensor([group.base.ids[:-1]]), use_cache=False).logits[0].log_softmax(-1)
    return -torch.stack([said[group.length - 1 + i, token] for i, token in enumerate(group.target)]).mean()


def donor_by_hand(name, group):
    now = ByHand()
    with by_hand(now), torch.no_grad():
        hand_model(name)(torch.tensor([group.donors[0].ids[:-1]]), use_cache=False)
    return {layer: (*now.seen[layer], now.z[layer]) for layer in now.z}


def cells_of(group, edge):
    return torch.from_numpy(edge.cells(group.base)[:-1, :-1]).double()


def set_by_hand(name, group, circuit):
    """What is dead in a circuit, for one prompt."""
    size = len(group.base.ids) - 1
    now = ByHand(donor_by_hand(name, group))
    removed = torch.from_numpy(together(circuit.start.removed, group.base)[:size, :size]).double()
    for layer in range(LAYERS):
        now.moved[layer] = torch.zeros(HEADS, size, size, dtype=torch.float64)
        now.swapped[layer] = torch.zeros(size, HEADS, dtype=torch.bool)
        for head in range(HEADS):
            if circuit.start.heads is None or (layer, head) in circuit.start.heads:
                now.moved[layer][head] += removed
    for layer, head, kind in np.argwhere(~circuit.living_edges):
        now.moved[layer][head] += cells_of(group, circuit.kinds[kind])
    for layer in now.moved:
        now.moved[layer].clamp_(max=1)
    for layer, head, kind in np.argwhere(~circuit.living_heads):
        for token, name in enumerate(group.base.types[:-1]):
            now.swapped[layer][token, head] |= name == circuit.types[kind]
    return now


def one_less(circuit, sort, place):
    """The circuit without one more unit."""
    living = circuit.living(sort).copy()
    living[tuple(place)] = False
    return circuit.keeping(sort, living)


def ours(name, chosen, circuit):
    """The loss of each prompt in lock-step and beside donors that ran before."""
    run, numbers = PrunedRun(toy(name), chosen, circuit), list(range(len(chosen)))
    apart = run.losses(numbers, run.run_donors(numbers))[0]
    said = answers(toy(name), chosen, circuit, token_budget=10**6)
    together = -said["log_prob"] / [len(group.target) for group in chosen]
    near(apart, together)
    return apart


# ------------------------------------------------------------------------------------------------ pruned runs


@names
@circuits
def test_a_pruned_run_is_attention_by_hand(name, circuit):
    chosen, circuit = few(), CIRCUITS[circuit]()
    with torch.no_grad():
        wanted = torch.stack([loss_by_hand(name, group, set_by_hand(name, group, circuit)) for group in chosen])
        plain = torch.stack([loss_by_hand(name, group, ByHand()) for group in chosen])
    assert (ours(name, chosen, circuit) - wanted).abs().max() < 1e-10
    assert ((wanted - plain).abs().max() > 1e-3) == (circuit.digest != whole().digest)


# ------------------------------------------------------------------------------------------------ scores


def gradients_by_hand(name, group, now):
    loss = loss_by_hand(name, group, now)
    return dict(zip(now.z, torch.autograd.grad(loss, list(now.z.values())), strict=True))


@names
@circuits
def test_local_exact_scores_are_the_gradient_times_what_the_head_puts_out_otherwise(name, circuit):
    group, circuit = few()[0], CIRCUITS[circuit]()
    found = scores(toy(name), [group], circuit)
    now = set_by_hand(name, group, circuit)
    gradient = gradients_by_hand(name, group, now)
    before = {layer: z.detach() for layer, z in now.z.items()}
    for sort in SORTS:
        living = np.argwhere(circuit.living(sort))
        for place in np.random.default_rng(0).permutation(living)[:24]:
            now = set_by_hand(name, group, one_less(circuit, sort, place))
            with torch.no_grad():
                loss_by_hand(name, group, now)
            change = now.z[place[0]] - before[place[0]]
            assert float(change.abs().sum(dim=(0, 1, 3))[[h for h in range(HEADS) if h != place[1]]].max()) < 1e-12
            wanted = abs(float((gradient[place[0]] * change).sum()))
            assert abs(found[sort][tuple(place)] - wanted) < 1e-10


def make_linear(monkeypatch, layer):
    """From now on the loss is linear in what the heads of a layer put out."""
    losses = PrunedRun.losses

    def linear(run, numbers, donors, *watching):
        said = losses(run, numbers, donors, *watching, watch := CaptureHeads())[1]
        z = watch.z[layer]
        weights = torch.randn(z.shape[1:], dtype=z.dtype, generator=torch.Generator().manual_seed(0))
        return (z * weights).sum(dim=(1, 2, 3)), said

    monkeypatch.setattr(PrunedRun, "losses", linear)


def pruned_alone(model, chosen, circuit):
    """The mean over prompts of how far the loss changes where one living unit more is pruned [L, H, K], by sort."""
    run, numbers = PrunedRun(model, chosen, circuit), list(range(len(chosen)))
    found = {}
    donors = run.run_donors(numbers)
    before = run.losses(numbers, donors)[0]
    for sort in SORTS:
        found[sort] = np.zeros(circuit.living(sort).shape)
        for place in np.argwhere(circuit.living(sort)):
            run.set_circuit(one_less(circuit, sort, place))
            found[sort][tuple(place)] = float((run.losses(numbers, donors)[0] - before).abs().mean())
    return found


def of_last_layer(layers):
    """A circuit of some units of the last of so many layers that have attention."""
    circuit = Circuit.whole(layers, HEADS, [group.base for group in few()])
    rng, at = np.random.default_rng(0), np.arange(layers)[:, None, None] == layers - 1
    for sort in ("head", "edge"):
        circuit = circuit.keeping(sort, at & (rng.random(circuit.living(sort).shape) > 0.3))
    return circuit


@names
def test_dead_units_and_donors_that_are_the_prompt_have_no_score(name):
    circuit = pruned(share=0.6)
    same = scores(toy(name), [Group(group.base, {0: group.base}) for group in few()], circuit)
    found = scores(toy(name), few(), circuit)
    for sort in SORTS:
        living = circuit.living(sort)
        assert same[sort].max() < 1e-12 and not found[sort][~living].any() and found[sort][living].any()
    into_dead = circuit.living_edges & ~circuit.without_idle_edges().living_edges
    assert into_dead.any() and not found["edge"][into_dead].any()


@names
def test_batches_padding_and_pieces_change_no_score(name, monkeypatch):
    circuit = pruned()
    one = scores(toy(name), groups(), circuit, token_budget=10**6)
    monkeypatch.setattr(token_types, "CELLS", 2**12)  # rows in pieces
    two = scores(toy(name), groups(), circuit, token_budget=1, store=(store := Store()))
    stored, plain = (answers(toy(name), groups(), circuit, store=kept)["log_prob"] for kept in (store, None))
    near(stored, plain, 1e-12)  # what donors left in a run serves others
    for sort in SORTS:
        near(one[sort], two[sort])
    near(one["losses"], two["losses"])
    near(one["losses"], ours(name, groups(), circuit))


def test_weights_want_the_gradients_that_they_wanted(monkeypatch):
    model, wanted = toy("llama"), list[bool]()
    chosen = model.model.layers[1].mlp.up_proj.weight.requires_grad_(True)
    losses = PrunedRun.losses
    monkeypatch.setattr(PrunedRun, "losses", lambda *a: wanted.append(chosen.requires_grad) or losses(*a))
    scores(model, few(), whole())
    assert chosen.requires_grad and chosen.grad is None and wanted == [False]
    chosen.requires_grad_(False)


EXPERTS = ("gpt_oss", "qwen3_next", "deepseek_v2")  # their routers are in float32
OTHERS = ("gpt2", "gpt_oss", "bloom", "falcon_alibi", "llama4_text", "qwen3_next", "deepseek_v2", "olmo2")


@pytest.mark.parametrize("name", OTHERS)
def test_classes_with_sinks_alibi_chunks_gates_and_other_layers(name, monkeypatch):
    """Local-exact scores of the last layer that has attention, where the rest is made linear, are those of runs."""
    check_last_layer(toy(name), monkeypatch, 1e-4 if name in EXPERTS else 1e-10)


@pytest.mark.slow
def test_a_class_whose_sinks_scale_outputs(monkeypatch):
    prepare(model := tiny_model("granite_swa", vocab_size=len(words())))
    check_last_layer(model, monkeypatch, 1e-4)


def check_last_layer(model, monkeypatch, tolerance):
    layers = support(model).layers
    circuit = of_last_layer(len(layers))
    make_linear(monkeypatch, layers[-1])
    found, wanted = scores(model, few(), circuit), pruned_alone(model, few(), circuit)
    for sort in SORTS:
        near(found[sort], wanted[sort], tolerance)
        assert wanted[sort].max() > 1e-2


# ------------------------------------------------------------------------------------------------ far donors

TIMES = 30.0  # so much longer keys give scores some hundred above and below the prompt's


@pytest.mark.parametrize("name", quick(["gpt_oss"], ["llama", "phi"]))
def test_local_exact_scores_are_true_where_donors_score_far_above_the_prompt(name, monkeypatch):
    """The softmax is the class's own, which is one in float32: all weights of the prompt vanish beside the donor's."""
    run_donors, joint_scores, gaps = PrunedRun.run_donors, Call.joint_scores, list[float]()

    def far(*arguments):
        return {layer: (TIMES * keys, *others) for layer, (keys, *others) in run_donors(*arguments).items()}

    def measured(call, others, rows):
        found = joint_scores(call, others, rows)
        own, theirs = found[0].chunk(2, -1)
        assert (own[:, :, torch.arange(call.keys) > rows[:, None]] == -torch.inf).all()  # what no row can read
        gaps.append(float((theirs.amax(-1) - own.amax(-1)).max()))
        return found

    monkeypatch.setattr(PrunedRun, "run_donors", far)
    monkeypatch.setattr(Call, "joint_scores", measured)
    monkeypatch.setattr(torch.nn.functional, "softmax", OWN_SOFTMAX)
    check_last_layer(toy(name), monkeypatch, 1e-4)
    assert max(gaps) > 200


def test_what_does_not_fit_is_refused_before_a_pass():
    model, group = toy("llama"), few()[0]
    for circuit, chosen, words_ in (
        (Circuit.whole(LAYERS + 1, HEADS, [group.base]), [group], "layers and heads"),
        (whole(), [Group(group.base, {1: group.donors[1]})], "no donor of corruption 0"),
        (replace(whole(), kinds=(*TYPE_PAIRS, Edge("x", "y"))), [group], "cells in common"),
    ):
        with pytest.raises(ValueError, match=words_):
            scores(model, chosen, circuit)
    with pytest.raises(ValueError, match="nothing else goes with pruning"):
        whole(start=Ablation(probed={"x->y": 1}))
