"""The loader: names, dtypes, refusals before work, the doors of the reference code."""

import importlib
import json
import os
import pickle
import shutil
from functools import partial

import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from transformers import AutoConfig, OpenAIGPTLMHeadModel, PreTrainedConfig

from tests import toys
from util import load_model_and_data as loading
from util.engine import attention, call
from util.study.model import Model


@pytest.fixture
def folder(toy_folder):
    return toy_folder


def test_a_folder_and_a_built_model_are_ready_for_instruments(folder, capsys):
    model, tokenizer = loading.load_ICL_model(str(folder), device="cpu")
    assert not model.training and attention.support(model).heads == 4 and tokenizer.is_fast
    assert "LlamaForCausalLM, 3 layers x 4 heads, 0.2 M parameters, float32 on cpu" in capsys.readouterr().out
    built = toys.model("gpt2").train()
    again = toys.load(built)
    assert again is built and attention.support(built).layers == (0, 1, 2)


def test_dtypes(folder, tmp_path, monkeypatch):
    model = toys.load(folder, dtype="bfloat16")
    assert model.dtype == torch.bfloat16 and "bfloat16" in loading.describe(model)
    assert toys.load(folder, dtype=torch.float64).dtype == torch.float64
    half = toys.save(tmp_path, toys.model().half())  # the stored dtype does not leak in
    assert toys.load(half).dtype == torch.float32
    for unknown in ("fp32", "float8_e4m3fn"):
        with pytest.raises(ValueError, match=f"unknown dtype '{unknown}'"):
            toys.load(folder, dtype=unknown)
    config = AutoConfig.from_pretrained(folder)
    assert loading.resolve_dtype("auto", "cpu", config) == torch.float32
    assert loading.resolve_dtype(None, "cuda", config) == torch.float32
    monkeypatch.setattr(loading, "LARGE", 1000)
    assert loading.resolve_dtype(None, "cuda:1", config) == torch.bfloat16


def test_quantized_is_nf4_with_bfloat16_compute(tmp_path):
    toys.save(tmp_path, toys.model("wide"))
    model = toys.load(tmp_path, device="cpu", quantized=True)
    config = model.config.quantization_config
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_compute_dtype) == ("nf4", torch.bfloat16)
    exact, _ = loading.load_ICL_model(tmp_path, "cpu", None, False, False, None, verbose=False)  # as in the reference
    assert loading.describe(model).replace(", 4-bit NF4", "").replace("bfloat16", "float32") == loading.describe(exact)
    assert not getattr(loading.untrained_twin(model), "is_quantized", False)


@pytest.mark.parametrize("name", ["embedded", "embedded/generalist", "smollm2", "a folder", "a missing folder"])
def test_a_revision_of_what_is_not_on_the_hub_is_refused(name, folder, tmp_path):
    place = {"a folder": str(folder), "a missing folder": str(tmp_path / "missing")}.get(name, name)
    for refused in (Model, partial(loading.load_ICL_model, verbose=False)):
        with pytest.raises(ValueError, match="^revision = 'main': .* does not come from the hub"):
            refused(place, revision="main")
    assert Model("org/model", "main").revision == Model("given:mine", "main").revision == "main"


DAMAGED = [
    ({"num_key_value_heads": 3}, "the checkpoint of damaged lacks model.layers.0.self_attn.k_proj.weight"),
    ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ({"hidden_act": None}, "'hidden_act' expected str"),
    ({"num_hidden_layers": 10**9}, "^damaged: num_hidden_layers = 1000000000, and no model has more than 10000"),
    ({"model_type": ["llama"]}, "unhashable type: 'list'"),
    ({"rope_parameters": {"rope_type": "unknown"}}, "KeyError: 'unknown'"),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, r"\(AssertionError: \)"),
    ("[" * 100_000, "RecursionError: maximum recursion depth exceeded while decoding a JSON array"),
]


@pytest.mark.parametrize("changes, said", DAMAGED, ids=lambda value: f"{value!s:.40}")
def test_a_damaged_config_ends_in_one_sentence(changes, said, folder, tmp_path):
    file = shutil.copytree(folder, tmp_path / "damaged") / "config.json"
    text = changes if isinstance(changes, str) else json.dumps(json.loads(file.read_text()) | changes)
    file.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        toys.load(tmp_path / "damaged", device="cpu")
    assert "damaged" in str(caught.value) or isinstance(caught.value, call.UnsupportedModel)
    assert "\n" not in str(caught.value)


WRONG = [
    ("", {}, ValueError, "^name = '': give a hub id"),
    (None, {}, ValueError, "^name = None: give a hub id"),
    ("no/such-model", {}, OSError, "(?s)could not load 'no/such-model'.*embedded/generalist"),
    ("~no-such-user/x", {}, OSError, "^could not load '~no-such-user/x'"),
    ("/exp-4013/missing", {}, OSError, "could not load"),  # its name looks like a refusal
    ("/aggregated/missing", {}, OSError, "could not load"),
    ("tiny", {"device": "foo"}, ValueError, "^device 'foo' cannot be used here .*; pass device='cpu' or 'auto'$"),
    ("tiny", {"device": "cuda"}, ValueError, "^device 'cuda' cannot be used here"),
    ("bare", {}, ValueError, "^bare has no tokenizer"),
    ("pickled", {}, ValueError, r"^pickled cannot be loaded \(UnpicklingError: .*\). Are its files whole"),
    ("built", {}, TypeError, r"load_ICL_model\(\(model, tokenizer\)\)"),
]


@pytest.mark.parametrize("name, options, error, said", WRONG, ids=lambda value: f"{value!s:.30}")
def test_what_cannot_be_loaded_is_refused_in_words(name, options, error, said, folder, tmp_path):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("a GPU is there")
    if name == "bare":
        toys.model().save_pretrained(tmp_path / "bare")
    if name == "pickled":
        copied = shutil.copytree(folder, tmp_path / "pickled")
        (copied / "model.safetensors").unlink()
        (copied / "pytorch_model.bin").write_bytes(pickle.dumps(print))
    place = {"tiny": folder, "bare": tmp_path / "bare", "pickled": tmp_path / "pickled", "built": toys.model()}
    with pytest.raises(error, match=said) as caught:
        loading.load_ICL_model(place.get(name, name), verbose=False, **options)
    assert not isinstance(caught.value, PermissionError)


@pytest.mark.parametrize("use", [Model, loading.load_ICL_model])
def test_a_folder_without_a_model_is_refused_at_once(use, tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json; give a folder that `save_pretrained` wrote"):
        use(str(tmp_path))


@pytest.mark.parametrize("device_map", [{"": 999}, {"": None}, {"": [1]}, {}], ids=str)
def test_a_device_map_that_does_not_fit_is_refused(device_map, folder):
    with pytest.raises(ValueError, match=r"^tiny cannot be loaded \(.*, and device_map=\{.*\} one for its modules"):
        toys.load(folder, device_map=device_map)


def test_kernels_that_are_turned_off_are_not_missed(caplog):
    logger = importlib.import_module("bitsandbytes.backends.cpu.ops").logger
    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "No module named 'kernels'")
    logger.warning("something else")
    assert caplog.messages == ["something else"]


def test_a_gated_model_without_access_says_how_to_get_it(monkeypatch):
    def gated(*args, **kwargs):
        response = type("Response", (), {"status_code": 403, "headers": {}, "request": None, "text": ""})()
        try:
            raise GatedRepoError("403 Client Error. Access to this repo is restricted", response=response)
        except GatedRepoError as error:
            raise OSError("You are trying to access a gated repo.") from error

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", gated)
    with pytest.raises(PermissionError, match="set HF_TOKEN"):
        toys.load("meta-llama/Meta-Llama-3-70B")


def test_the_token_is_passed_on_and_never_written(monkeypatch, folder):
    seen = []
    original = AutoConfig.from_pretrained.__func__
    monkeypatch.setattr(
        AutoConfig,
        "from_pretrained",
        classmethod(lambda cls, *a, **k: (seen.append(k.get("token")), original(cls, *a, **k))[1]),
    )
    model, tokenizer = loading.load_ICL_model(folder, huggingface_token="secret-token-value", verbose=False)
    assert set(seen) == {"secret-token-value"}
    assert "secret-token-value" not in repr(vars(model.config)) + repr(tokenizer.init_kwargs)


def test_a_bypassing_class_is_refused_by_name_before_its_weights_are_read(tmp_path):
    toys.bypassing().save_pretrained(tmp_path)  # a config alone: reading weights would fail in another way
    with pytest.raises(call.UnsupportedModel, match="OpenAIGPTLMHeadModel"):
        toys.load(tmp_path)
    with pytest.raises(call.UnsupportedModel, match="OpenAIGPTLMHeadModel"):
        toys.load(OpenAIGPTLMHeadModel(toys.bypassing()))


OWN_CODE = {
    "config": ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}),
    "tokenizer": (
        "tokenizer_config.json",
        {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}},
    ),
}


@pytest.mark.parametrize("kind", OWN_CODE)
def test_code_that_a_model_brings_is_refused_and_nothing_is_asked(kind, folder, tmp_path, monkeypatch):
    place, ran = tmp_path / "own", tmp_path / "ran"
    shutil.copytree(folder, place)
    name, changes = OWN_CODE[kind]
    (place / name).write_text(json.dumps(json.loads((place / name).read_text()) | changes))
    (place / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="own brings code of its own, which the suite never runs"):
        toys.load(place)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["merges.txt", "modeling_own.py", "code/config.json"])
def test_revision_follows_every_file_that_may_decide_what_the_model_does(name, folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "model")
    said = [loading.resolved_revision(copied)]
    assert said == [loading.resolved_revision(folder)]
    (copied / name).parent.mkdir(parents=True, exist_ok=True)
    for text in ("one", "two!"):
        (copied / name).write_text(text)
        said.append(loading.resolved_revision(copied))
    assert len(set(said)) == 3 and all(str(revision).startswith("content:") for revision in said)
    for other in ("README.md", ".cache/download.json", "__pycache__/modeling_own.pyc"):
        (copied / other).parent.mkdir(exist_ok=True)
        (copied / other).write_text("other")
    assert loading.resolved_revision(copied) == said[-1]
    assert loading.resolved_revision("meta-llama/Meta-Llama-3-8B") is None


def test_a_large_folder_is_read_once_and_again_when_its_content_changes(material, tmp_path, monkeypatch):
    """Also where names, sizes and times stay as they are, and where what is kept of it is damaged."""
    read, original = [], loading._content
    monkeypatch.setattr(loading, "_content", lambda *a: (read.append(a), original(*a))[1])
    monkeypatch.setattr(loading, "SMALL", 1)
    (texts := tmp_path / "texts").mkdir()
    (file := texts / "train.jsonl").write_text("one")
    first = loading.resolved_revision(texts)
    assert first == loading.resolved_revision(texts) and len(read) == 2  # it was just written
    monkeypatch.setattr(loading, "SETTLED", -(10**9))
    assert [loading.resolved_revision(texts) for _ in range(3)] == [first] * 3 and len(read) == 3
    times = file.stat()
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = loading.resolved_revision(texts)
    assert second != first
    for kept in (tmp_path / "material" / "folders").iterdir():
        kept.write_text("{")
    assert loading.resolved_revision(texts) == second and len(read) == 5


def test_untrained_twin_has_the_shape_and_other_weights(folder):
    model = toys.load(folder)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, two = loading.untrained_twin(model, 3), loading.untrained_twin(model, 3)
    assert torch.equal(state, torch.random.get_rng_state())
    for (name, p), q, r in zip(model.named_parameters(), one.parameters(), two.parameters(), strict=True):
        assert p.shape == q.shape and torch.equal(q, r) and ("norm" in name or not torch.equal(p, q))
