"""What a GPU can get wrong, on the GPU of this machine (`make test-gpu`), and rehearsed on the CPU: the same code.

    float32     what a model gives on the device and on the CPU, TF32 off: the largest difference
    bfloat16    a model in bfloat16 on the device, and the same weights in float32 on the CPU: the mean difference
    NF4         a model in 4 bits with instruments that only read, and without any: the largest difference
    device maps a model that is spread or offloaded, and the same one on the device alone
    memory      a batch that does not fit is halved, and gives what it gives whole

All differences are shares of the largest number that is compared (of 1 at least). Each is printed beside its bound.
"""

from functools import cache

import bitsandbytes
import numpy as np
import pytest
import torch

from tests import architectures, device_runs, toys
from tests.device_runs import INSTRUMENTS, WHOLE
from tests.fake_gpu.comparison import plain
from util.engine.attention import instrument, support
from util.engine.batches import all_logits, run_rows
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureHeads, CaptureRows
from util.load_model_and_data import untrained_twin

MODELS = ("llama", "gpt2", "gemma2", "mixtral")
FLOAT32, BFLOAT16, HALVED = 1e-4, 5e-2, 1e-5  # bounds
# wide enough for 4-bit blocks of 64
WIDE = {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 1024}
CHUNK = 100 * 2**20  # bytes that a row takes while memory is short

pytestmark = pytest.mark.filterwarnings("ignore:Knockout")


WITHOUT = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(
    scope="module",
    params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=[pytest.mark.gpu, WITHOUT])],
)
def device(request):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return request.param


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a toy model and tokenizer that the loader takes."""
    return toys.save(tmp_path_factory.mktemp("toy"), architectures.build("llama", **WIDE))


def within(what, ours, theirs, bound, reduce=np.nanmax):
    """A difference of two tensors or arrays is at most so large."""
    one, other = plain(ours), plain(theirs)
    gap = float(reduce(np.abs(one - other)) / max(1.0, np.nanmax(np.abs(other))))
    print(f"{what}: {gap:.2g}, at most {bound:g}")
    assert gap <= bound, what


@cache
def built(name, dtype, device, computed=None):
    """A tiny model with weights of this dtype on a device; computed: another dtype that they have then."""
    model = architectures.build(name, dtype).to(device, computed or dtype)
    prepare(model)
    return model


def compared(run, model, other, bound, reduce=np.nanmax):
    """All that a run gives of two models."""
    ours, theirs = ((INSTRUMENTS | WHOLE)[run](one) for one in (model, other))
    for name, numbers in theirs.items():
        if numbers is not None:
            within(f"{run}, {name}", ours[name], numbers, bound, reduce)


@pytest.mark.parametrize("run", INSTRUMENTS | WHOLE)
@pytest.mark.parametrize("name", MODELS[:3])  # a mixture of experts may send a token to another expert
def test_float32_beside_the_cpu(name, run, device):
    compared(run, built(name, torch.float32, device), built(name, torch.float32, "cpu"), FLOAT32)


@pytest.mark.parametrize("run", [*INSTRUMENTS, "replay", "label scores", "means"])
@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_beside_float32(name, run, device):
    wide = built(name, torch.bfloat16, "cpu", torch.float32)
    compared(run, built(name, torch.bfloat16, device), wide, BFLOAT16, np.nanmean)


def packed(model):
    return sum(isinstance(module, bitsandbytes.nn.Linear4bit) for module in model.modules())


def test_nf4(device, place):
    """4-bit weights: loaded, instrumented, and with a twin that is not in 4 bits."""
    model = toys.load(place, device=device, quantized=True, dtype="bfloat16")
    ids = device_runs.ids(2).to(input_device(model))

    def logits(*instruments):
        with torch.inference_mode(), instrument(model, *instruments):
            return model(ids, use_cache=False).logits.float()

    rows = CaptureRows(torch.tensor([4, 8]))
    assert packed(model) == 7 * len(support(model).layers) and packed(untrained_twin(model)) == 0
    within("logits under instruments that read, beside none", logits(rows, CaptureHeads()), logits(), 0)
    for weights in rows.weights.values():
        within("sums of captured rows", weights.sum(-1), torch.ones_like(weights[..., 0]), 1e-2)
    with pytest.raises(ValueError, match="disk"):
        toys.load(place, quantized=True, device_map={"": "disk"})


@pytest.mark.parametrize("others", ["auto", "disk", "cpu", 1])
def test_device_maps(device, place, others):
    """Models whose layers but the first are elsewhere give what they give on one device."""
    if others == 1 and torch.cuda.device_count() < 2:
        pytest.skip("one GPU at most; on fake ones: make test-all TESTS=tests/fake_gpu")
    first = 0 if device == "cuda" else "cpu"
    around = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), first)
    layers = {f"model.layers.{layer}": others if layer else first for layer in range(architectures.LAYERS)}
    alone = toys.load(place, device=device, dtype="float32")
    device_map = "auto" if others == "auto" else around | layers
    model = toys.load(place, device_map=device_map, dtype="float32")
    for run in ("capture rows", "patch heads", "knockout", "label scores"):
        compared(run, model, alone, FLOAT32)


def take(device, rows):
    """Take CHUNK bytes for each row, and leave them again. On the CPU it only says whether they would be there."""
    if device != "cpu":
        torch.empty(rows * CHUNK, dtype=torch.uint8, device=device)
    elif rows > 2.5:
        raise torch.OutOfMemoryError("out of memory (rehearsed)")


def logits_of(device, short):
    """Logits of eight prompts in batches of four, and whether batches were halved. short: there is memory for 2.5."""
    model, rows = built("llama", torch.float32, device), device_runs.rows(8)
    found = np.empty((len(rows), architectures.VOCABULARY), np.float32)

    def visit(batch):
        if short:
            take(device, len(batch.numbers))
        logits = all_logits(model, batch)[torch.arange(len(batch.rows)), batch.lengths - 1]
        found[batch.numbers] = logits.cpu().numpy()

    if short and device != "cpu":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2.5 * CHUNK) / total)
    try:
        return found, run_rows(model, rows, visit, token_budget=4 * device_runs.TOKENS)
    finally:
        if device != "cpu":
            torch.cuda.set_per_process_memory_fraction(1.0)


def test_batches_that_do_not_fit_are_halved(device):
    (whole, not_halved), (halved, was_halved) = logits_of(device, short=False), logits_of(device, short=True)
    assert was_halved and not not_halved
    within("logits of halved batches, beside whole ones", halved, whole, HALVED)
