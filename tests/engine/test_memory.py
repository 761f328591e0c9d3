"""The memory estimate: its arithmetic by hand, its captures against arrays, one measured case, and what is refused."""

import re
import warnings
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, Gemma2Config, LlamaConfig, LlamaForCausalLM

from tests import architectures, toys
from util.engine import memory
from util.engine.memory import Estimate, check, estimate
from util.figures.forerunner_heads import measure as magnitudes
from util.load_model_and_data import staicc_prompts, untrained_twin
from util.study.model import Model
from util.study.study import Study

LLAMA = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64}
# embeddings, the layers' matrices and norms, the last norm, the unembedding; twice the 8 frequencies of positions
NUMBERS = 64_000 + 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64 + 64_000 + 2 * 8
TOKEN = 4 * (4 * 64 + 5 * 96)  # bytes at the widest place
MATRICES = [64 * 64, 64 * 64, 64 * 32, 64 * 32, 64 * 96, 64 * 96, 64 * 96] * 3


@pytest.fixture
def room(monkeypatch):
    """What is free on each device, for the test to say."""
    found = {"cpu": 10**18}
    monkeypatch.setattr(memory, "free", lambda: found)
    return found


@pytest.mark.parametrize("name", architectures.SUPPORTED)
def test_a_configuration_is_as_good_as_its_model(name):
    model, state = architectures.build(name), torch.random.get_rng_state()
    rows = [30, 12, 40]
    alone, built = (estimate(m, rows, captured=2, device_map="cpu") for m in (model.config, model))
    tensors = [*model.parameters(), *model.buffers()]
    assert alone.weights == built.weights == {"cpu": sum(t.nbytes for t in tensors)}
    assert alone.activations == built.activations
    assert built.loaded and not alone.loaded and torch.equal(state, torch.random.get_rng_state())


def test_4_bit_weights_are_estimated_as_they_are_loaded(tmp_path):
    four = estimate(LlamaConfig(**LLAMA), quantized=True, device_map="cpu")
    assert four.activations == {"cpu": 4 * 64 * 96}  # the largest matrix, unpacked
    toys.save(tmp_path, toys.model("wide"))
    model = toys.load(tmp_path, device="cpu", quantized=True)
    states = [p.quant_state for p in model.parameters() if hasattr(p, "quant_state")]
    parts = [t for s in states for t in (s.absmax, s.code, s.offset, s.state2.absmax, s.state2.code)]
    size = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *parts))
    config = AutoConfig.from_pretrained(tmp_path)
    assert estimate(model).weights == estimate(config, quantized=True, device_map="cpu").weights == {"cpu": size}
    assert estimate(model.config, device_map="cpu").weights == {"cpu": size}  # as a checkpoint stored in 4 bits has it


def test_activations_by_hand():
    def bytes_of(config, rows, budget=2048, captured=0, **options):
        return estimate(config, rows, budget, captured, device_map="cpu", **options).activations["cpu"]

    llama = LlamaConfig(**LLAMA)
    assert [bytes_of(llama, [10] * 7, *budget) for budget in ((), (40,), (1,))] == [70 * TOKEN, 40 * TOKEN, 10 * TOKEN]
    assert bytes_of(llama, [10, 30, 30], 60, captured=5) == 60 * TOKEN + 3 * 4 * 60 * 4 * 5
    bf16 = bytes_of(llama, [10], captured=5, dtype=torch.bfloat16)
    assert bf16 == 10 * TOKEN // 2 + 3 * 4 * 10 * 4 * 5  # softmax is float32 in 16-bit models too
    mixtral = architectures.build("mixtral").config  # 2 of 4 experts, whose first matrix has 2 * 96 rows
    assert bytes_of(mixtral, [10]) == 10 * 4 * (4 * 64 + 5 * 2 * 192) + 10 * 10 * 5
    gemma = Gemma2Config(**LLAMA, head_dim=16, sliding_window=5)
    assert bytes_of(gemma, [10, 10]) == 20 * TOKEN + 3 * 4 * 20 * 10 * 4 + 200 * 5  # every row eager, and the mask


def test_every_device_has_its_own_weights():
    config = LlamaConfig(**LLAMA)
    layer = 4 * (sum(MATRICES) // 3 + 2 * 64)
    layers = {"model.layers.0": 0, "model.layers.1": "cpu", "model.layers.2": "disk"}
    rest = {"model.embed_tokens": "cuda", "model.norm": 1, "model.rotary_emb": 1, "lm_head": torch.device("cuda", 1)}
    found = estimate(config, [10], captured=2, device_map=layers | rest)
    ends = {"cuda:0": layer + 4 * 64_000, "cuda:1": 4 * (64_000 + 64 + 16)}
    assert found.weights == ends | {"cpu": layer, "disk": layer}
    # the largest offloaded weight visits; what runs on neither needs nothing
    assert found.activations == dict.fromkeys(ends, 10 * TOKEN + 3 * 4 * 10 * 4 * 2 + 4 * 64 * 96)


def test_check_raises_above_what_is_free_and_warns_above_80_percent(room):
    found = Estimate({"cpu": 5 * 10**9, "disk": 10**15}, {"cpu": 3 * 10**9}, loaded=False)
    cures = r"8.00 GB are needed on cpu .* smaller token budget, quantized=True, or device_map='auto'"
    room["cpu"] = 8 * 10**9 - 1
    with pytest.raises(MemoryError, match=cures):
        check(found)
    room["cpu"] = 10**10 - 1
    with pytest.warns(UserWarning, match=cures):
        check(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        room["cpu"] = 10**10
        check(found)
        room["cpu"] = 4 * 10**9
        check(replace(found, loaded=True))  # of 3 GB


def test_what_is_free_ends_where_a_container_does(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    contents = {"memory.max": "1000000", "memory.current": "700000", "memory.stat": "anon 5\ninactive_file 2000\n"}
    for name, text in contents.items():
        assert memory.free()["cpu"] > 1e8
        (tmp_path / name).write_text(text)
    assert memory.free()["cpu"] == 1000000 - 700000 + 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free()["cpu"] > 1e8


def test_weights_that_do_not_fit_are_refused_before_they_are_read_with_settings_that_fit(tmp_path, room):
    """And says where none does. Weights take 4 bytes a number in float32, 2 in bfloat16, and less in 4 bits."""
    folder = toys.save(tmp_path, LlamaForCausalLM(LlamaConfig(**LLAMA)))
    config = AutoConfig.from_pretrained(folder)
    sizes = [estimate(config, dtype=torch.bfloat16, quantized=bits, device_map="cpu").total for bits in (False, True)]
    room["cpu"] = 2 * NUMBERS
    toys.load(folder, device_map="auto")  # which would take the disk
    room["cpu"] = 3 * NUMBERS
    toys.load(folder, device="cpu", dtype="bfloat16")
    (folder / "model.safetensors").unlink()
    for free, ending in (
        (sizes[0], "This fits here: dtype='bfloat16' (0.00 GB), quantized=True (0.00 GB)"),
        (sizes[1], "This fits here: quantized=True (0.00 GB)"),
        (sizes[1] - 1, "none fits here: it takes a smaller model or a larger machine"),
    ):
        room["cpu"] = free
        for place in ({"device": "cpu"}, {"device_map": {"": "cpu"}}):
            with pytest.raises(MemoryError, match=re.escape(ending) + "$"):
                toys.load(folder, dtype="float32", **place)


def test_an_untrained_twin_that_does_not_fit_is_refused_before_it_is_made(tmp_path, room):
    folder = toys.save(tmp_path / "model", LlamaForCausalLM(LlamaConfig(**LLAMA)))
    config = AutoConfig.from_pretrained(folder)
    assert estimate(config, device_map="cpu", with_twin=True).weights == {"cpu": 8 * NUMBERS}
    room["cpu"] = 6 * NUMBERS
    alone, both = (
        Study(
            "forerunner_heads", Model(str(folder), dtype="float32", device="cpu", verbose=False), k=1, prompts=4,
            untrained_control=twin, folder=tmp_path,
        )
        for twin in (False, True)
    )  # fmt: skip
    with pytest.raises(MemoryError, match=re.escape("untrained_control=False (0.00 GB)")):
        both.pair  # noqa: B018
    model, _ = alone.pair
    assert both.replace(untrained_control=False).pair  # as the message advises
    room["cpu"] = 4 * NUMBERS - 1
    with pytest.raises(MemoryError, match="on cpu"):
        untrained_twin(model)


def test_a_run_that_does_not_fit_is_refused_before_the_first_forward(room, monkeypatch):
    model, tokenizer = toys.model(), toys.tokenizer()
    run = magnitudes.label_run(model, tokenizer, staicc_prompts(2, 2)[:4])
    needed = estimate(model, [len(row) for row, *_ in run[1]], captured=2 + 32)
    size = needed.activations["cpu"]
    room["cpu"] = size - 1
    monkeypatch.setattr(magnitudes, "forward", None)
    with pytest.raises(MemoryError, match="on cpu"):
        magnitudes.copy_magnitudes(model, run)
    room["cpu"] = 2 * size
    with pytest.raises(TypeError, match="NoneType"):  # there it goes to its first forward
        magnitudes.copy_magnitudes(model, run)
