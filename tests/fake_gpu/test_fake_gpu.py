"""Everything that runs on a GPU, on fake ones: devices, dtypes, and copies to the CPU; the numbers are the CPU's.

Every layout of `tests/architectures.py` is spread over two fake devices, whose layers, prompts and indices can get
mixed up in all the ways of one device, and more. One device is tried for a few. Scores of components and of units take
long: they run for the ways in which layers are built (`BUILT`), which is what their code depends on. `make classes`
tries every class of transformers so, `tests/engine/test_classes.py` those that have something of their own.
"""

from collections import Counter
from functools import cache

import pytest
import torch

from tests import architectures, device_runs
from tests.device_runs import INSTRUMENTS, WHOLE
from tests.fake_gpu.comparison import assert_alike, assert_dtypes, assert_placed, measured
from tests.fake_gpu.fake_cuda import Devices, Misplaced, put, spread
from util.engine import call, instruments
from util.engine.handshake import prepare

pytestmark = pytest.mark.slow

# A layer: grouped keys; Conv1D and absolute positions; attention beside the MLP; norms behind heads and a soft cap; a
# factor; an adapter and keys that all heads share.
BUILT = ("llama", "gpt2", "phi", "gemma2", "granite", "falcon_7b")
LONG = ("direct effects", "spliced edges", "continuations", "scores of units", "scores of components")
SHORT = [name for name in WHOLE if name not in LONG]


@cache
def on_cpu(name):
    model = architectures.build(name)
    prepare(model)
    return model


@cache
def on_gpus(name, dtype=torch.float32, count=2, **changes):
    model = architectures.build(name, dtype, **changes)
    with Devices():
        model = spread(model) if count == 2 else put(model)
        prepare(model)
    return model


# ------------------------------------------------------------------------------------------------ devices


@pytest.mark.parametrize("name", architectures.SUPPORTED | architectures.ADAPTED)
def test_a_model_on_two_gpus(name):
    model = on_gpus(name)
    assert {str(weights.device) for weights in model.parameters()} == {"cuda:0", "cuda:1"}
    assert_alike(model, on_cpu(name), [*INSTRUMENTS, *SHORT])


def test_a_model_on_one_gpu():
    assert_alike(on_gpus("llama", count=1), on_cpu("llama"), [*INSTRUMENTS, *WHOLE])


@pytest.mark.parametrize("name", BUILT)
def test_scores_of_a_model_on_two_gpus(name):
    model = on_gpus(name)
    with Devices():
        assert device_runs.direct(model)["direct"] is not None
    assert_alike(model, on_cpu(name), LONG)


# ------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt_oss", "bloom"])
def test_what_is_promised_in_float32_of_a_model_in_bfloat16(name):
    model = on_gpus(name, torch.bfloat16)
    for run in (*INSTRUMENTS.values(), *WHOLE.values()):
        with Devices():
            assert_dtypes(model, measured(run, model))


# ------------------------------------------------------------------------------------------------ copies


def copies(run, model, **options):
    """How often a run waits for a device, by what for; what is found out once for a model has been before."""
    with Devices() as devices:
        run(model, **options)
        devices.transfers.clear()
        run(model, **options)
    return Counter(devices.transfers)


TOKENS = [(run, {"tokens": 9}, {"tokens": 14}) for run in (*INSTRUMENTS, "replay")]
PROMPTS = [(run, {"count": 3}, {"count": 9}) for run in ("label scores", "means")]


@pytest.mark.parametrize("run, few, many", [*TOKENS, *PROMPTS])
def test_no_token_and_no_prompt_is_copied_alone(run, few, many):
    once, again = (copies((INSTRUMENTS | WHOLE)[run], on_gpus("llama"), **options) for options in (few, many))
    assert once == again and once


@pytest.mark.parametrize("run", [name for name in (*INSTRUMENTS, *WHOLE) if name != "continuations"])
def test_no_head_is_copied_alone(run):
    models = (on_gpus("llama", num_attention_heads=heads, num_key_value_heads=heads // 2) for heads in (4, 8))
    few, many = (copies((INSTRUMENTS | WHOLE)[run], model) for model in models)
    if run == "direct effects":  # a head has a pass of its own, in which transformers asks whether prompts are packed
        del few["is_nonzero"], many["is_nonzero"]
    assert few == many and few


# ------------------------------------------------------------------------------------------------ mutations


MUTATIONS = [
    ("capture rows", call.Call, "_additive"),
    ("capture heads", instruments, "take"),
    ("capture heads", instruments, "in_double"),
    ("patch heads", instruments, "writable"),
    ("knockout", instruments.Knockout, "apply"),
    ("splice edges", instruments.Splice, "apply"),
]


@pytest.mark.parametrize("run, owner, name", MUTATIONS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_tensor_that_is_misplaced_is_found(run, owner, name, count, monkeypatch):
    model, own = on_gpus("llama", count=count), getattr(owner, name)

    def misplaced(*args, **kwargs):
        out = own(*args, **kwargs)
        return tuple(part.cpu() for part in out) if isinstance(out, tuple) else out.cpu()

    monkeypatch.setattr(owner, name, misplaced)
    with Devices(), pytest.raises((Misplaced, AssertionError), match="cpu"):
        assert_placed(model, INSTRUMENTS[run](model))
