"""The engine's attention against the slow references of eager_runs.py, on every supported architecture.

Bound everywhere: 1e-5 * max(1, max |reference|) in float32, on real tokens; every edit must also move the logits by
1e-3 somewhere, so that no comparison is vacuous.
"""

import copy
import gc
import threading
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaAttention

from tests import architectures, eager_runs
from tests.architectures import (
    ADAPTED,
    ALIBI,
    BYPASSING,
    GATED,
    HEADS,
    LAYERS,
    OWN_KERNEL,
    SINKS,
    SOFTCAP,
    SUPPORTED,
    WINDOW,
    WINDOWED,
    attention_layers,
    build,
)
from tests.device_runs import INSTRUMENTS
from tests.device_runs import ids as random_ids
from util.engine.attention import IMPLEMENTATION, instrument, support
from util.engine.call import NO_LIMIT, UnsupportedModel
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, CaptureRows, Knockout, PatchHeads

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:Knockout"),  # cells outside a window are closed already
]

LAYOUTS = ("plain", "right", "left")
LENGTHS = (14, 9, 11)
BATCH, TOTAL = len(LENGTHS), max(LENGTHS)
Batch = namedtuple("Batch", "inputs real start")  # start: first real column per example


# ---------------------------------------------------------------------------------------------------- the stage


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@lru_cache
def batch(layout):
    """Three prompts: of equal length; padded right, no mask; padded left with mask and positions."""
    ids, lengths = random_ids(BATCH, TOTAL), torch.tensor(LENGTHS)
    columns = torch.arange(TOTAL).expand(BATCH, -1)
    if layout == "plain":
        return Batch(dict(input_ids=ids, use_cache=False), torch.ones_like(ids, dtype=torch.bool), [0] * BATCH)
    if layout == "right":
        real = columns < lengths[:, None]
        return Batch(dict(input_ids=ids * real, use_cache=False), real, [0] * BATCH)
    real = columns >= TOTAL - lengths[:, None]
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    inputs = dict(input_ids=ids * real, attention_mask=real.long(), position_ids=positions, use_cache=False)
    return Batch(inputs, real, [TOTAL - length for length in LENGTHS])


PLAIN = batch("plain").inputs
prepared = lru_cache(architectures.prepared)


@lru_cache
def reference(name, dtype=torch.float32):
    return eager_runs.reference(build(name, dtype))


def expected(name, layout, writes=None, cuts=None, dtype=torch.float32):
    """The oracle's run."""
    return eager_runs.run(reference(name, dtype), batch(layout).inputs, writes, cuts)


@lru_cache
def baseline(name, layout, dtype=torch.float32):
    return expected(name, layout, dtype=dtype)


def logits(model, inputs, *instruments):
    with instrument(model, *instruments):
        return model(**inputs).logits


def close(actual, reference, bound=1e-5):
    __tracebackhide__ = True
    assert actual.shape == reference.shape
    limit = bound * max(1.0, reference.abs().max().item())
    error = (actual - reference).abs().max().item()
    assert error <= limit, f"off by {error:.2g}, bound {limit:.2g}"


def moved(edited, plain):
    __tracebackhide__ = True
    assert (edited - plain).abs().max() > 1e-3, "the edit has no visible effect: the comparison is vacuous"


def has_own_storage(tensor):
    """Is the tensor no view of something larger, which it would keep in memory?"""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def pick(tensor, positions, dim=1):
    """tensor [B, ..., T at dim, ...] at positions [P] or [B, P], by a plain loop."""
    positions = positions.expand(len(tensor), -1)
    return torch.stack([one.index_select(dim - 1, index) for one, index in zip(tensor, positions, strict=True)])


def shared_positions(layout):
    """Positions that are real in every example."""
    return torch.tensor({"plain": [0, 6, 13], "right": [0, 5, 8], "left": [5, 9, 13]}[layout])


def own_positions(layout):
    """Positions of each example: an early one, a middle one and its last, in no order."""
    start = torch.tensor(batch(layout).start)
    length = batch(layout).real.sum(1)
    return torch.stack([start + length - 1, start + 2, start + length // 2], dim=1)


def every_cell(cells, layers=range(LAYERS), heads=range(HEADS)):
    """Cells [C, 2] or [C, 3] written out as (layer, head, example, query, key)."""
    rows = cells.tolist()
    if cells.shape[1] == 2:
        rows = [(b, *cell) for cell in rows for b in range(BATCH)]
    return {(layer, head, *row) for row in rows for layer in layers for head in heads}


def every_write(layer, heads, value, positions):
    """`value` [B, P, len(heads), dv] written out as {(layer, example, position, head): vector}."""
    positions = positions.expand(BATCH, -1)
    return {
        (layer, b, int(positions[b, p]), head): value[b, p, h]
        for b, p, (h, head) in product(range(BATCH), range(positions.shape[1]), enumerate(heads))
    }


names = pytest.mark.parametrize("name", SUPPORTED | ADAPTED)
some = pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss", *ADAPTED])
layouts = pytest.mark.parametrize("layout", LAYOUTS)


# ------------------------------------------------------------------------------------------- every architecture


@names
def test_handshake(name):
    model = prepared(name)
    found = prepare(model)
    assert found is support(model)
    stock = build(name)
    own = stock.config._attn_implementation
    assert model.config._attn_implementation == (own if name in ADAPTED else IMPLEMENTATION)
    if name not in SINKS | SOFTCAP | OWN_KERNEL:
        assert own == "sdpa" and torch.equal(model(**PLAIN).logits, stock(**PLAIN).logits)
    assert found.layers == attention_layers(name)
    assert found.heads == HEADS
    assert {module is None for module in found.projections.values()} == {name in GATED}
    assert found.switch == (WINDOW if name in WINDOWED else 4 if name == "llama4_text" else NO_LIMIT)
    assert name not in ADAPTED or found.branches == (name not in ALIBI)  # which counts tokens, not position ids


def check_captures(name, layout, dtype=torch.float32, bound=1e-5):
    """Logits; rows whole or at some keys (in the future, too), and z, at positions that prompts share or have alone."""
    model, (inputs, real, _) = prepared(name, dtype), batch(layout)
    plain, wanted, layers = logits(model, inputs), baseline(name, layout, dtype), attention_layers(name)
    close(plain[real], wanted.logits[real], bound)
    shared, own, last = shared_positions(layout), own_positions(layout), layers[-1:]
    keys = torch.stack([shared, shared.flip(0)], dim=1)  # [R, 2]
    own_keys = torch.stack([own, (own - 1).clamp(min=0)], dim=2)  # [B, R, 2]
    cases = [(shared, None, None), (shared, keys, None), (own, None, None), (own, own_keys, None), (own, keys, last)]
    rows = [CaptureRows(*case) for case in cases]
    everywhere, some, each = CaptureHeads(), CaptureHeads(shared, layers=last), CaptureHeads(own)
    assert torch.equal(logits(model, inputs, *rows, everywhere, some, each), plain)
    for (queries, columns, chosen), capture in zip(cases, rows, strict=True):
        assert set(capture.weights) == set(chosen or layers)
        for layer, found in capture.weights.items():
            weights = pick(wanted.weights[layer], queries, 2)
            if columns is not None:
                weights = weights.gather(3, columns.expand(BATCH, -1, -1)[:, None].expand(-1, HEADS, -1, -1))
            close(found, weights, bound)
            assert has_own_storage(found) and found.dtype == dtype
            assert columns is not None or (found - found.mean(-1, keepdim=True)).abs().max() > 0.1  # far from uniform
    assert set(some.z) == {*last} and set(everywhere.z) == set(each.z) == set(layers)
    for layer, full in wanted.z.items():
        close(everywhere.z[layer][real], full[real], bound)
        close(each.z[layer], pick(full, own), bound)
        assert has_own_storage(everywhere.z[layer]) and has_own_storage(each.z[layer])
    close(some.z[last[0]], pick(wanted.z[last[0]], shared), bound)


@names
@layouts
def test_captured_rows_and_heads(name, layout):
    check_captures(name, layout)


def patches(name, layout, dtype):
    """Patches of a layer in the middle, and their values [B, P, 1 or 2, dv] at positions."""
    layers, heads, real = attention_layers(name), (3, 1), batch(layout).real
    layer, own, shared = layers[len(layers) // 2], own_positions(layout), shared_positions(layout)
    z, everywhere = baseline(name, layout, dtype).z[layer][:, :, heads], torch.arange(TOTAL)
    donor, mean = noise(BATCH, 3, 2, z.shape[-1], dtype=dtype), z[real].mean(0)
    for patch, value, positions in (
        (PatchHeads(layer, heads, 0.0), torch.zeros_like(z), everywhere),
        (PatchHeads(layer, heads, donor, positions=own), donor, own),
        (PatchHeads(layer, heads, donor[:1], positions=shared), donor[:1].expand_as(donor), shared),
        (PatchHeads(layer, heads, mean), mean.expand_as(z), everywhere),
        (PatchHeads(layer, 2, donor[:, :, :1], positions=own), donor[:, :, :1], own),
    ):
        yield [patch], every_write(layer, (2,) if value.shape[2] == 1 else heads, value, positions), None


def knockouts(name, layout):
    """Knock-outs of cells that prompts share or have of their own, in all layers and heads or some, one on another."""
    queries = [int(q) for q in shared_positions(layout)[1:]]
    diagonal = name != "llama4_text"  # the first token of a chunk sees itself only
    shared = torch.tensor([(q, q - back) for q in queries for back in ([1, 0] if diagonal else [1, 2])])
    each = torch.tensor(
        [(b, q, q - 1) for b, first in enumerate(batch(layout).start) for q in (first + 3, first + 6 + b % 2)]
    )
    layers, heads = attention_layers(name)[-2:], (0, 3)
    some, first = Knockout(shared, layers=layers, heads=heads), Knockout(shared, layers=layers[0], heads=heads)
    yield [Knockout(shared)], None, every_cell(shared)
    yield [some], None, every_cell(shared, layers, heads)
    yield [Knockout(each)], None, every_cell(each)
    both = every_cell(each, heads=[2]) | every_cell(shared, layers[:1], heads)
    yield [Knockout(each, heads=2), first], None, both
    overlapping = every_cell(shared[:1]) | every_cell(shared[:2], heads=[1])
    yield [Knockout(shared[:1]), Knockout(shared[:2], heads=[1])], None, overlapping


def check_edits(name, layout, dtype=torch.float32, bound=1e-5):
    model, (inputs, real, _) = prepared(name, dtype), batch(layout)
    plain, rows = baseline(name, layout, dtype), CaptureRows(own := own_positions(layout))
    for instruments, writes, cuts in (*patches(name, layout, dtype), *knockouts(name, layout)):
        after = expected(name, layout, writes, cuts, dtype)
        close(logits(model, inputs, rows, *instruments)[real], after.logits[real], bound)
        moved(after.logits[real], plain.logits[real])
        for layer, full in after.weights.items():
            close(rows.weights[layer], pick(full, own, 2), bound)


@names
@layouts
def test_patches_and_knockouts(name, layout):
    check_edits(name, layout)


@layouts
@pytest.mark.parametrize("check", [check_captures, check_edits])
def test_double_precision_leaves_rounding_alone(check, layout):
    """What float32 leaves open: in float64 the difference to the oracle falls to 1e-12."""
    check("gpt2", layout, torch.float64, 1e-12)


# ------------------------------------------------------------------------------------------ composition and order


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", *ADAPTED])
def test_order_of_entry(name):
    """A capture sees the patches that were attached before it."""
    model, z = prepared(name), baseline(name, "plain").z[1].clone()
    first, second, third = (CaptureHeads(layers=1) for _ in range(3))
    with instrument(model, first, PatchHeads(1, 0, 1.0)):
        logits(model, PLAIN, second, PatchHeads(1, [0, 1], 2.0, torch.tensor([3])), third)
    close(first.z[1], z)
    z[:, :, 0] = 1.0
    close(second.z[1], z)
    z[:, 3, :2] = 2.0
    close(third.z[1], z)


@names
def test_restored_bit_for_bit_after_an_exception(name):
    model = prepared(name)
    before = model(**PLAIN).logits
    first = attention_layers(name)[0]
    edits = Knockout(torch.tensor([[6, 5]])), PatchHeads(first, 0, 0.0)

    def failing():
        moved(model(**PLAIN).logits, before)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), instrument(model, *edits), instrument(model, CaptureHeads()):
        failing()
    assert torch.equal(model(**PLAIN).logits, before)


# --------------------------------------------------------------------------- autograd, modes, caches, types, memory


@some
@pytest.mark.parametrize("length", [1, TOTAL])
def test_gradients_equal_those_of_eager_attention(name, length):
    """Of logits, z and rows behind a knockout and a patch, by the embeddings and by what is patched in.

    One query leaves the kernel's output a view of what autograd saved: a patch may not write into it.
    """
    cells, last = torch.tensor([[6, 5], [9, 8]])[: length - 1], torch.tensor([length - 1])
    grads = []
    for model in (prepared(name), reference(name)):
        vectors = model.get_input_embeddings()(random_ids(BATCH, length)).detach().requires_grad_()
        inputs, value = dict(inputs_embeds=vectors, use_cache=False), noise(BATCH, 1, 1, 16).requires_grad_()
        if model is prepared(name):
            z, rows = CaptureHeads(), CaptureRows(last)
            with instrument(model, Knockout(cells), PatchHeads(1, 2, value, last), z, rows):
                out = model(**inputs).logits
            parts = [out, z.z[2], rows.weights[2]]
        else:
            run = eager_runs.run(model, inputs, every_write(1, [2], value, last), every_cell(cells))
            parts = [run.logits, run.z[2], run.weights[2][:, :, last]]
        losses = [(part * noise(*part.shape)).sum() for part in parts[: 3 if length > 1 else 2]]
        grads.append([torch.autograd.grad(loss, (vectors, value), retain_graph=True) for loss in losses])
    for ours, theirs in zip(*grads, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            close(one, other, 1e-4)
            assert other.abs().max() > 1e-3


@some
@pytest.mark.parametrize("prefix", [6, TOTAL - 1])
def test_suffix_on_a_cached_prefix(name, prefix):
    """Rows and positions count the suffix, keys count from the first token; a suffix of one token included.

    Edits of a suffix: test_replay.py.
    """
    model, ids, full = prepared(name), PLAIN["input_ids"], baseline(name, "plain")
    last = torch.tensor([TOTAL - 1 - prefix])
    rows, z, cache = CaptureRows(last), CaptureHeads(last), DynamicCache()
    model(ids[:, :prefix], past_key_values=cache)
    close(logits(model, dict(input_ids=ids[:, prefix:], past_key_values=cache), rows, z), full.logits[:, prefix:])
    for layer in range(LAYERS):
        close(rows.weights[layer], full.weights[layer][:, :, TOTAL - 1 :])
        close(z.z[layer], full.z[layer][:, TOTAL - 1 :])


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        out = function(*arguments, **(keywords or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", *sorted(ADAPTED.keys() - ALIBI)])
def test_no_square_matrix_per_head(name):
    length = 1024
    model = architectures.prepared(name, max_position_embeddings=length)
    inputs = dict(input_ids=random_ids(1, length), use_cache=False, logits_to_keep=1)
    last = torch.tensor([length - 1])
    rows, z = CaptureRows(last), CaptureHeads(last)
    with LargestTensor() as memory:
        logits(model, inputs, rows, z, Knockout(torch.tensor([[length - 1, length - 2]])), PatchHeads(0, 1, 0.0))
    assert length < memory.largest <= length * length  # a boolean mask [T, T] is all a sliding class may build


def test_a_dropped_model_is_freed():
    model = architectures.prepared("llama")
    logits(model, PLAIN, CaptureHeads())
    gone = weakref.ref(model), weakref.ref(next(model.parameters()))
    del model
    gc.collect()
    assert [pointer() for pointer in gone] == [None, None]


# --------------------------------------------------------------------------------------------------- properties


def test_nothing_to_do():
    """No cells, or cells that were closed already, change nothing; the latter are pointed out."""
    model = prepared("llama")
    plain = logits(model, PLAIN)
    assert torch.equal(logits(model, PLAIN, Knockout(torch.zeros(0, 2, dtype=torch.long))), plain)
    with pytest.warns(UserWarning, match="Knockout"):
        close(logits(model, PLAIN, Knockout(torch.tensor([[5, 9]]))), plain)


# ------------------------------------------------------------------------------------------------------- errors

ROW, OF_TWO = torch.tensor([3]), torch.tensor([[1], [2]])  # a row, and one of each of two prompts
WRONG: dict[str, tuple[Any, ...]] = {  # what is raised, with which instrument and which arguments
    "CaptureRows rows: negative index -1": (CaptureRows, torch.tensor([-1])),
    "CaptureRows: layers .3. have no attention": (CaptureRows, ROW, None, [1, LAYERS]),
    "PatchHeads heads: index 4 is out of range": (PatchHeads, 0, [0, HEADS], 0.0),
    "rows of .query, key. or": (Knockout, torch.tensor([[0, 0, 3, 1]])),
    "CaptureRows rows: expected integers": (CaptureRows, torch.tensor([1.0])),
    "CaptureRows rows: index 14 is out of range": (CaptureRows, torch.tensor([TOTAL])),
    "CaptureRows rows: given for 2 examples, the batch has 3": (CaptureRows, OF_TWO),
    "CaptureRows keys: index 14 is out of range": (CaptureRows, ROW, torch.tensor([[TOTAL]])),
    "2 rows of keys for 1 rows": (CaptureRows, ROW, OF_TWO),
    "PatchHeads positions: given for 2": (PatchHeads, 0, 0, 0.0, OF_TWO),
    "Knockout queries: index 14 is out of range": (Knockout, torch.tensor([[TOTAL, 0]])),
    "Knockout keys: index 14 is out of range": (Knockout, torch.tensor([[3, TOTAL]])),
    "Knockout examples: index 3 is out of range": (Knockout, torch.tensor([[BATCH, 3, 1]])),
    "some row without any key": (Knockout, torch.tensor([[1, 1, 0], [1, 1, 1]]), 2, 3),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_refused_and_leave_the_model_as_it_was(message):
    model = prepared("llama")
    before = logits(model, PLAIN)
    kind, *arguments = WRONG[message]
    with pytest.raises(ValueError, match=message):
        logits(model, PLAIN, kind(*arguments))
    assert torch.equal(logits(model, PLAIN), before)


def test_a_row_may_not_be_emptied_by_any_means():
    """By the union of two knock-outs, inside a window, behind left padding, where a sink remains."""
    row, window = torch.tensor([[2, 0], [2, 1], [2, 2]]), torch.tensor([[9, 9 - back] for back in range(WINDOW)])
    first = batch("left").start[1]
    cases = [
        ("llama", "plain", [Knockout(row[:2]), Knockout(row[2:])]),
        ("mistral", "plain", [Knockout(window)]),
        ("llama", "left", [Knockout(torch.tensor([[1, first, first]]))]),
        ("gpt_oss", "plain", [Knockout(row)]),  # a sink is no key
    ]
    for name, layout, knockouts in cases:
        with pytest.raises(ValueError, match="Knockout"):
            logits(prepared(name), batch(layout).inputs, *knockouts)
    logits(prepared("llama"), PLAIN, Knockout(window))


def test_unprepared_training_and_switched_models():
    model = build("llama")
    for use in (lambda: support(model), lambda: logits(model, PLAIN, CaptureHeads())):
        with pytest.raises(ValueError, match="prepare"):
            use()
    model.train()
    with pytest.raises(ValueError, match="train|eval"):
        prepare(model)
    model.eval()
    prepare(model)
    model.train()
    with pytest.raises(ValueError, match="train|eval"):
        logits(model, PLAIN, CaptureHeads())
    model.eval()
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="prepare"):  # silence would mean an instrument that does nothing
        logits(model, PLAIN, CaptureHeads())
    plain = model(**PLAIN).logits
    prepare(model)
    assert model.config._attn_implementation == IMPLEMENTATION
    close(logits(model, PLAIN), plain)


# ----------------------------------------------------------------------------------------------------- refusals


def check_refused(model, message):
    """The handshake fails, and leaves the model as it was."""
    implementation, before = model.config._attn_implementation, model(**PLAIN).logits
    with pytest.raises(UnsupportedModel, match=message):
        prepare(model)
    assert model.config._attn_implementation == implementation
    assert torch.equal(model(**PLAIN).logits, before)
    with pytest.raises(ValueError, match="prepare"):
        logits(model, PLAIN, CaptureHeads())


@pytest.mark.parametrize("name", BYPASSING)
def test_bypassing_classes_are_refused_by_name(name):
    check_refused(build(name), BYPASSING[name][2])
    assert issubclass(UnsupportedModel, ValueError)


class CalledTwice(LlamaAttention):
    """Asks the interface twice per forward."""

    def forward(self, *arguments, **keywords):
        super().forward(*arguments, **keywords)
        return super().forward(*arguments, **keywords)


class IgnoresTheMask(LlamaAttention):
    """Attends everywhere."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **keywords):
        return super().forward(hidden_states, position_embeddings, attention_mask=None, **keywords)


class LosesThePadding(LlamaAttention):
    """Understands additive masks only and drops a boolean one: right until something is padded."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **keywords):
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            attention_mask = None
        return super().forward(hidden_states, position_embeddings, attention_mask=attention_mask, **keywords)


class ScalesAfterwards(LlamaAttention):
    """Treats the registered implementation differently from eager."""

    def forward(self, *arguments, **keywords):
        out, weights = super().forward(*arguments, **keywords)
        return (out if self.config._attn_implementation == "eager" else 1.01 * out), weights


@pytest.mark.parametrize("broken", [CalledTwice, IgnoresTheMask, LosesThePadding, ScalesAfterwards])
@pytest.mark.parametrize("layers", [(0, 1, 2), (1,)])
def test_a_broken_attention_fails_the_handshake(broken, layers):
    model = build("llama")
    for layer in layers:
        model.model.layers[layer].self_attn.__class__ = broken
    check_refused(model, "LlamaForCausalLM")


@pytest.mark.parametrize("pair", [("gpt2", "llama"), ("gemma2", "mistral"), ("llama", "llama")])
def test_two_threads_equal_serial_runs(pair):
    """Each has instruments of its own, on models of their own or on one."""
    runs = [("capture heads", "patch heads"), ("knockout", "capture rows")]

    def work(side, wait=lambda: None):
        results = []
        for run in runs[side] * 10:
            wait()
            results.append(INSTRUMENTS[run](prepared(pair[side])))
        return results

    serial, barrier = [work(0), work(1)], threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        threads = list(pool.map(lambda side: work(side, barrier.wait), range(2)))
    for alone, together in zip(serial, threads, strict=True):
        for one, other in zip(alone, together, strict=True):
            assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@some
def test_bfloat16(name):
    """Rows, heads and logits of a bfloat16 model stay within 2e-2 of the float32 reference of the same weights.

    The one with experts is held against its own bfloat16 eager path: in float32 its router chooses others.
    """
    model = build(name, torch.bfloat16, spread=0.06)
    twin = eager_runs.reference(copy.deepcopy(model).to(torch.bfloat16 if name == "gpt_oss" else torch.float32))
    prepare(model)
    cells, positions = torch.tensor([[9, 8]]), torch.tensor([9, 13])
    rows, z = CaptureRows(positions), CaptureHeads(positions)
    ours = logits(model, PLAIN, rows, z, Knockout(cells))
    after = eager_runs.run(twin, PLAIN, cuts=every_cell(cells))
    close(ours.float(), after.logits.float(), 2e-2)
    for layer in range(LAYERS):
        assert rows.weights[layer].dtype == torch.float32
        assert not rows.weights[layer][:, :, 0, 8].any()
        close(rows.weights[layer], after.weights[layer][:, :, positions].float(), 2e-2)
        close(z.z[layer].float(), after.z[layer][:, positions].float(), 2e-2)
