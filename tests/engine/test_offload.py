"""4-bit weights and offloaded ones: every number is that of the plain model, with instruments active."""

import copy
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from bitsandbytes.functional import dequantize_4bit
from numpy.testing import assert_array_equal
from safetensors import SafetensorError
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from tests import architectures, toys
from tests.device_runs import capture_heads, instrumented, replayed
from tests.tiers import quick
from util import load_model_and_data as loading
from util.engine.attention import instrument
from util.engine.handshake import input_device
from util.engine.instruments import PatchHeads
from util.engine.replay import plan_of

CPU = torch.device("cpu")
# wide enough for 4-bit blocks of 64; the prompts are no longer than the window
WIDE = {"vocab_size": 1000, "hidden_size": 128, "max_position_embeddings": 1024}
FAMILIES = {
    "gpt2": WIDE,
    "llama": WIDE | {"intermediate_size": 256},
    "gemma2": WIDE | {"intermediate_size": 256, "head_dim": 32, "sliding_window": 1024},
    "mixtral": WIDE | {"intermediate_size": 96},
}
LAYERS = {"gpt2": "transformer.h"}


@pytest.fixture(scope="module", params=quick(["gpt2", "gemma2"], ["llama"]))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return save(family, tmp_path_factory.mktemp(family))


def save(family, folder, safetensors=True):
    model = architectures.build(family, **FAMILIES[family])
    toys.save(folder, model)
    if not safetensors:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def spread(family, first="cpu", others="disk"):
    """A device map by layer; what is no layer goes to the CPU."""
    layers = LAYERS.get(family, "model.layers")
    outside = ["embed_tokens", "norm", "rotary_emb"] if family not in LAYERS else ["wte", "wpe", "ln_f"]
    rest = [f"{layers.split('.')[0]}.{name}" for name in outside] + ["lm_head"]
    return {f"{layers}.{i}": others if i else first for i in range(3)} | dict.fromkeys(rest, "cpu")


def observe(model):
    """Everything that instruments give, and the gradient at a patch."""
    ids = torch.tensor([[5, 9, 33, 71]]).to(input_device(model))
    value = torch.zeros(1, 4, 2, capture_heads(model)["z 1"].shape[-1], requires_grad=True)
    with instrument(model, PatchHeads(1, [0, 2], value)):
        model(ids).logits[:, -1].logsumexp(-1).sum().backward()
    assert value.grad is not None and value.grad.abs().max() > 0
    return [*instrumented(model), value.grad.numpy()]


def assert_same(model, other):
    for ours, theirs in zip(observe(model), observe(other), strict=True):
        assert_array_equal(ours, theirs)


def assert_as_on_the_cpu(model, folder):
    assert_same(model, toys.load(folder, device="cpu"))


# ------------------------------------------------------------------------------------------------ 4 bits


class Dequantised(torch.nn.Linear):
    def forward(self, x):
        x, bias = x.to(torch.bfloat16), None if self.bias is None else self.bias.to(torch.bfloat16)
        return linear(x, self.weight, bias)


def dequantised(model):
    """The same model with every 4-bit weight as the bfloat16 matrix that it stands for, and how many there were."""
    reference = copy.deepcopy(model)
    found = [(name, m) for name, m in reference.named_modules() if isinstance(m, bnb.nn.Linear4bit)]
    for name, module in found:
        packed: Any = module.weight
        weight = dequantize_4bit(packed.data, packed.quant_state)
        plain = Dequantised(module.in_features, module.out_features, bias=module.bias is not None)
        plain.weight = torch.nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)
        plain.bias = module.bias
        plain.register_forward_hook(lambda m, x, out: out.to(x[0].dtype))
        parent, _, own = name.rpartition(".")
        setattr(reference.get_submodule(parent), own, plain)
    return reference, len(found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_4_bit_weights_act_as_the_matrices_they_stand_for(family, folder, dtype):
    model = toys.load(folder, device="cpu", quantized=True, dtype=dtype)
    reference, count = dequantised(model)
    toys.load(reference)
    assert count == (12 if family == "gpt2" else 21)  # Conv1D too, never the unembedding
    assert_same(model, reference)
    for name, parameter in dequantised(model)[0].named_parameters():
        assert torch.equal(parameter, reference.get_parameter(name)), f"running the model changed {name}"


def test_shapes_that_the_repacking_kernels_refuse_are_loaded_in_4_bit(tmp_path):
    built = architectures.build("llama", **WIDE | {"hidden_size": 96, "intermediate_size": 72})
    model = toys.load(toys.save(tmp_path, built), device="cpu", quantized=True)
    assert_same(model, toys.load(dequantised(model)[0]))


def in_4_bits(folder):
    """The model of a folder as transformers packs it."""
    options = {"quantization_config": loading._nf4(), "device_map": {"": "cpu"}, "dtype": torch.float32}
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def test_a_stored_or_built_4_bit_model_is_kept_exact_too(folder, tmp_path):
    model = in_4_bits(folder)
    toys.save(tmp_path, model)
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = True  # as bitsandbytes has it on such a CPU
    reference = toys.load(dequantised(toys.load(model))[0])
    assert_same(model, reference)
    assert_same(toys.load(tmp_path, device="cpu"), reference)


def test_a_4_bit_model_that_was_repacked_is_refused(tmp_path):
    model = in_4_bits(save("llama", tmp_path))
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    repacked = model.model.layers[0].mlp.up_proj.weight.quant_state
    repacked.packing_format_for_cpu = True  # as the forward pass leaves it on a CPU with AVX512-BF16
    with pytest.raises(ValueError, match="has run already"):
        toys.load(model)


def test_4_bit_weights_cannot_be_offloaded(tmp_path):
    save("llama", tmp_path)
    with pytest.raises(ValueError, match="dispatched on the CPU or the disk"):
        toys.load(tmp_path, quantized=True, device_map=spread("llama"))


# ------------------------------------------------------------------------------------------------ offload


MAPS = {"auto": "auto", "one place": {"": "cpu"}, "disk": {"": "disk"}}


@pytest.mark.parametrize("kind", quick(["disk", "layers from the second"], [*MAPS, "layers"]))
def test_device_maps_change_no_bit(family, folder, kind):
    chosen = MAPS.get(kind) or spread(family, "disk" if kind == "layers" else "cpu")
    model = toys.load(folder, device_map=chosen, dtype="float32")
    assert ("meta" in {p.device.type for p in model.parameters()}) == (kind in {"disk", "layers"} or "second" in kind)
    assert_as_on_the_cpu(model, folder)


def test_replayed_runs_of_offloaded_layers_are_those_of_the_plain_model(tmp_path):
    folder, runs = save("gpt2", tmp_path), []
    for where in ({"device": "cpu"}, {"device_map": spread("gpt2")}, {"device_map": spread("gpt2", "disk", "cpu")}):
        model = toys.load(folder, dtype="float32", **where)
        assert plan_of(model).replays
        runs.append(replayed(model))
    for name, plain in runs[0].items():
        for offloaded in runs[1:]:
            torch.testing.assert_close(offloaded[name], plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", quick(["disk_offload"], ["cpu_offload"]))
def test_accelerates_own_offload_changes_no_bit(folder, kind, tmp_path):
    built = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    built = cpu_offload(built, CPU) if kind == "cpu_offload" else disk_offload(built, tmp_path, CPU)
    model = toys.load(built)
    assert model.device.type == "meta" and input_device(model) == CPU
    assert_as_on_the_cpu(model, folder)


@pytest.mark.parametrize("family_", ["llama", "mixtral"])
def test_weights_that_are_written_anew_need_a_folder_with_room(family_, tmp_path, monkeypatch):
    folder = save(family_, tmp_path / "model", safetensors=family_ == "mixtral")  # whose experts are merged on loading
    options = {"device_map": spread(family_), "dtype": "float32"}
    with pytest.raises(ValueError, match=r"pass offload_folder=\.\.\., a folder with room"):
        toys.load(folder, **options)
    model = toys.load(folder, offload_folder=tmp_path / "room", **options)
    assert any((tmp_path / "room").iterdir())
    assert_as_on_the_cpu(model, folder)

    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.integrations.accelerate.save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        toys.load(folder, offload_folder=tmp_path / "full", **options)
