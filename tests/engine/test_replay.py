"""Replayed runs against the naive loop: one whole forward pass of the class for every edit, on every architecture."""

import re
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tests import architectures
from tests.architectures import ADAPTED, HEADS, SINCE_5_24, SUPPORTED
from tests.device_runs import ids
from tests.tiny_models import tiny_model
from util.engine import replay as room
from util.engine.attention import instrument, support
from util.engine.batches import check_writing
from util.engine.components import blocks_of, direct_effects
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, Knockout, PatchHeads
from util.engine.replay import Edit, Place, replay

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Knockout")]

LENGTH, FIRST = 14, 9
ANSWERS = torch.tensor([[5, 7], [8, 9]])
# float32 inside a float64 model: the router of experts, the rotation of positions, attention
SINGLE_INSIDE = dict.fromkeys(("deepseek_v2", "deepseek_v3", *(SUPPORTED.keys() & SINCE_5_24)), 1e-6)
names = pytest.mark.parametrize("name", [*SUPPORTED, *(name for name in ADAPTED if name != "xglm")])  # no float64


prepared = partial(architectures.prepared, dtype=torch.float64)


def prompts(count=2):
    base = ids(count, LENGTH, seed=1)
    source = base.clone()
    source[:, FIRST] = ids(1, count)[0]
    return base, source


def heads_of(model, ids):
    with instrument(model, heads := CaptureHeads()):
        model(ids, use_cache=False)
    return heads.z


def patch(z, layer, head):
    def instruments(place):
        value = z[layer][place.prompts, place.tokens, head : head + 1]
        return [PatchHeads(layer, head, value, examples=place.examples)]

    return Edit(layer, instruments)


def cut(cells, layer, heads=None):
    def instruments(place):
        start, stop = place.queries.start, place.queries.stop
        here = cells[(cells[:, 0] >= start) & (cells[:, 0] < stop)] - torch.tensor([start, 0])
        if not len(here):
            return []
        rows = place.examples.repeat_interleave(len(here))[:, None]
        return [Knockout(torch.cat([rows, here.repeat(len(place.examples), 1)], 1), layer, heads)]

    return Edit(layer, instruments)


def naive(model, ids, edits, answers):
    """The logits of whole forward passes, edit by edit, and of the plain one."""

    def logits(instruments):
        with instrument(model, *instruments):
            return model(ids, use_cache=False).logits[:, -1].gather(1, answers)

    place = Place(slice(0, len(ids)), torch.arange(len(ids)), range(LENGTH))
    return torch.stack([logits(edit.instruments(place)) for edit in edits]), logits([])


def every_head(model, source):
    """Patches of every single head from a run on other prompts."""
    z = heads_of(model, source)
    return [patch(z, layer, head) for layer in support(model).layers for head in range(HEADS)]


def check(model, first, bound, budget=room.BUDGET, count=2):
    base, source = prompts(count)
    cells = torch.tensor([[11, 10], [13, 12]])
    edits = every_head(model, source) + [cut(cells, layer) for layer in support(model).layers]
    edits = [edits[i] for i in torch.randperm(len(edits), generator=torch.Generator().manual_seed(0))]
    wanted, plain = naive(model, base, edits, ANSWERS[:count])
    logits, whole = replay(model, base, edits, ANSWERS[:count], first, budget=budget)
    assert room.plan_of(model).path == "replayed layers"
    assert logits.shape == (len(edits), count, 2) and logits.dtype == model.dtype
    limit = bound * max(1.0, plain.abs().max().item())
    assert (whole - plain).abs().max() <= limit and (logits - wanted).abs().max() <= limit
    assert (wanted - plain).abs().amax((1, 2)).median() > 1e-3  # not vacuous


@names
@pytest.mark.parametrize("first", [FIRST, 0])
def test_every_single_head_patch_equals_the_naive_loop(name, first):
    check(prepared(name), first, SINGLE_INSIDE.get(name, 1e-12))


@pytest.mark.parametrize("name", ["gpt2", "mistral", "bloom", "qwen3_next"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("count", [1, 2])
def test_chunks_and_single_prompts_change_nothing(name, rows, count):
    model = prepared(name)
    check(model, FIRST, 1e-12, rows * room.row_bytes(model, LENGTH, LENGTH), count)


def test_a_class_that_keeps_a_second_bias_of_the_unembedding_replays_and_is_left_as_it_was():
    """BERT's is a parameter, which took no tensor in its place: the model kept an unembedding of four tokens."""
    model = tiny_model("bert").double()
    prepare(model)
    head = model.get_output_embeddings()
    check(model, FIRST, 1e-12)
    assert model.get_output_embeddings() is head and model.cls.predictions.bias is head.bias


def test_log_probabilities_are_those_of_the_whole_vocabulary():
    model, (base, source) = prepared("cohere"), prompts()
    edits = every_head(model, source)
    logits, _ = replay(model, base, edits, ANSWERS, FIRST)
    found, whole = replay(model, base, edits, ANSWERS, FIRST, log_probabilities=True)
    wanted = model(base).logits[:, -1].log_softmax(-1).gather(1, ANSWERS)
    assert (whole - wanted).abs().max() < 1e-12
    assert (found.diff(dim=-1) - logits.diff(dim=-1)).abs().max() < 1e-12
    none, whole = replay(model, base, [], ANSWERS)
    assert none.shape == (0, 2, 2) and whole.shape == (2, 2)


# ------------------------------------------------------------------------------------------------ where it cannot be


class Shares(nn.Module):
    """A layer that adds what the layer before it read: not a function of its own arguments."""

    def __init__(self, layer, memory):
        super().__init__()
        self.layer, self.memory = layer, memory

    def forward(self, hidden_states, *args, **kwargs):
        out = self.layer(hidden_states, *args, **kwargs)
        if self.memory and self.memory[-1].shape == out.shape:
            out = out + 0.5 * self.memory[-1]
        self.memory.append(hidden_states.mean(0, keepdim=True).expand_as(hidden_states).clone())
        return out


def test_a_layer_that_reads_more_than_its_arguments_takes_whole_forward_passes():
    model, memory = prepared("gpt2"), list[Tensor]()
    model.transformer.h = nn.ModuleList(Shares(layer, memory) for layer in model.transformer.h)
    assert re.match(r"whole forward passes \(.*(change the logits|Error)", room.plan_of(model).path)


@pytest.mark.parametrize(
    "owner, method, trial",
    [
        (room._Base, "edited", room.plan_of),
        (room._Base, "edited", blocks_of),
        (DynamicCache, "reorder_cache", lambda model: check_writing(model, [8], 3)),
    ],
)
def test_lack_of_memory_is_no_fault_of_a_class(owner, method, trial, monkeypatch):
    model = prepared("gpt2")

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    with monkeypatch.context() as short:
        short.setattr(owner, method, full)
        with pytest.raises(torch.OutOfMemoryError):
            trial(model)
    trial(model)  # with memory again it is found out
    assert room.plan_of(model).replays


def test_each_range_of_lengths_has_a_plan_that_is_made_well_past_its_switch():
    """Doge drops keys beyond its window for single tokens, so that a replay of one token more still looks right."""
    model = tiny_model("doge", keep_window_size=12)
    prepare(model)
    for length, replays in ((13, False), (8, True), (24, False), (8, True)):  # whatever length comes first
        assert room.plan_of(model, length).replays == replays
    change = {0: torch.zeros(2, 1, HEADS, 16)}
    assert direct_effects(model, torch.full((2, 8), 5), change, ANSWERS) is None  # nor can its layers be taken apart


def test_whole_forward_passes_give_the_same():
    model, (base, source) = prepared("llama"), prompts()
    edits = every_head(model, source)
    ours, _ = replay(model, base, edits, ANSWERS, FIRST)
    other = prepared("llama")
    other.model.more = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))
    theirs, _ = replay(other, base, edits, ANSWERS, FIRST, budget=7 * room.row_bytes(other, LENGTH, LENGTH))
    assert room.plan_of(other).path == "whole forward passes (its layers are not in one list)"
    assert (ours - theirs).abs().max() <= 1e-12


# ------------------------------------------------------------------------------------------------ order


def state(model):
    return [
        (name, id(module), sorted(vars(module)), len(module._forward_pre_hooks), len(module._forward_hooks))
        for name, module in model.named_modules()
    ]


def broken(place):
    raise KeyboardInterrupt


BASE = prompts()[0]
GIVEN, NOTHING = (BASE, ANSWERS, FIRST), Edit(0, lambda place: [])
WRONG = [  # prompts, answers and more arguments of a replay
    (GIVEN, Edit(1, broken), KeyboardInterrupt, None),
    (GIVEN, Edit(7, NOTHING.instruments), ValueError, None),
    (GIVEN, Edit(0, lambda place: [PatchHeads(0, 99, 0.0)]), ValueError, "99"),
    *(
        (arguments, NOTHING, ValueError, "different lengths")
        for arguments in ((BASE[0], ANSWERS), (BASE, ANSWERS[:1]), (BASE, ANSWERS, LENGTH), (BASE, ANSWERS, -1))
    ),
    ((*GIVEN, False, 100), NOTHING, MemoryError, "budget"),
]


@pytest.mark.parametrize("arguments, wrong, error, message", WRONG)
def test_the_model_is_left_as_it_was_after_errors(arguments, wrong, error, message):
    model = prepared("gpt2")
    before, logits = state(model), model(BASE).logits
    edits = [*every_head(model, BASE), wrong]
    base, *others = arguments
    with pytest.raises(error, match=message):
        replay(model, base, edits, *others)
    assert state(model) == before and torch.equal(model(BASE).logits, logits)


# ------------------------------------------------------------------------------------------------ what it costs


def test_a_prefix_and_a_last_layer_save_what_they_should(monkeypatch):
    model, (base, source) = prepared("gpt2"), prompts()
    seen: list[tuple[int, int]] = []
    layer = model.transformer.h[-1]
    layer.mlp.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[:2])))
    edits = every_head(model, source)
    room.plan_of(model)
    seen.clear()
    replay(model, base, edits, ANSWERS, FIRST)
    assert seen == [(2, FIRST), (2, LENGTH - FIRST), (2, 1), (2 * len(edits), 1)]


# ------------------------------------------------------------------------------------------------ direct effects

NORMED = {"gemma2", "gemma3_text", "olmo2", "olmo3", "glm4"}  # a norm behind attention
SCALED = {"granite"}  # a multiplier


def frozen(model, base, source, layer, head, place, answers=ANSWERS):
    """The logits with one head from the source at one token, all other heads and the MLPs as in the base run."""
    z, other = heads_of(model, base), heads_of(model, source)
    z[layer][:, place, head] = other[layer][:, place, head]
    mlps = [module for name, module in model.named_modules() if name.endswith(".mlp")]
    assert len(mlps) == len(support(model).layers)
    kept = []
    # Falcon adds to it in place
    hooks = [mlp.register_forward_hook(lambda _, __, out: kept.append(out.clone())) for mlp in mlps]
    model(base, use_cache=False)
    for hook in hooks:
        hook.remove()
    values = dict(zip(mlps, kept, strict=True))
    hooks = [mlp.register_forward_hook(lambda mlp, _, __: values[mlp].clone()) for mlp in mlps]
    with instrument(model, *(PatchHeads(at, range(HEADS), value) for at, value in z.items())):
        logits = model(base, use_cache=False).logits[:, place].gather(1, answers)
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mistral", "phi", "gptj", "gpt_neox", "falcon_7b", *sorted(NORMED | SCALED)]
)
def test_direct_effects_equal_runs_in_which_all_else_is_frozen(name):
    model, (base, source) = prepared(name), prompts()
    z, places = [heads_of(model, ids) for ids in (base, source)], [11, LENGTH - 1]
    changes = {at: (z[1][at] - z[0][at])[:, places] for at in support(model).layers}
    found = direct_effects(model, base, changes, ANSWERS, places)
    assert found is not None
    logits, plain = found
    assert logits.shape == (3, HEADS, 2, 2, 2)
    whole = model(base, use_cache=False).logits
    for number, place in enumerate(places):
        assert (plain[:, number] - whole[:, place].gather(1, ANSWERS)).abs().max() < 1e-12
        for layer in support(model).layers:
            for head in range(HEADS):
                wanted = frozen(model, base, source, layer, head, place)
                assert (logits[layer, head, :, number] - wanted).abs().max() < 1e-12
    assert (logits - plain).abs().amax((2, 3, 4)).min() > 1e-6  # not vacuous
