"""GGUF files: this file refuses those that transformers would silently load as a different model.

transformers dequantises a file's tensors and builds a config from its metadata. It drops what has no place in that
config, and the result is a model that computes something else. Such files are refused before anything is loaded.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

# Architectures (by their name in the file) for which transformers can build the config of a causal language model.
ARCHITECTURES = frozenset(
    "bloom falcon gemma2 gemma3 gpt-oss gpt2 lfm2 llama mamba minimax-m2 nemotron phi3 qwen2 qwen2moe qwen3 qwen3moe "
    "qwen35 qwen35moe stablelm starcoder2".split()
)
SPLITTING = ("tokenizer.ggml.model", "tokenizer.ggml.pre")  # the kind of tokenizer, how it splits texts
CURE = "load the original checkpoint instead, by its hub id or folder"


class GGUFError(ValueError):
    """A GGUF file would load as a different model than it holds, or not at all; the message says what to do."""


def check_file(file: str | Path) -> dict[str, Any]:
    """The metadata of a GGUF file as a dictionary, without the lists of tokens.

    Two entries are added: "elements", the number of all weights, and "output", the number of weights of the
    unembedding. Raises GGUFError for a file that is not a GGUF file, an architecture without a loader, scaled rotary
    positions (which the loader drops), and attention scales that the loader replaces by those of another model size.
    """
    file = Path(file)
    try:
        reader = GGUFReader(file)
        wanted = [name for name in reader.fields if not name.startswith("tokenizer.") or name in SPLITTING]
        fields = {name: reader.fields[name].contents() for name in wanted}
    except Exception as error:  # a damaged file makes the library raise anything
        raise GGUFError(f"{file.name} is no GGUF file, or is damaged ({error})") from error
    architecture = str(fields.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise GGUFError(
            f"{file.name} holds a model of the architecture {architecture!r}, which is not known to load right "
            f"(these are: {', '.join(sorted(ARCHITECTURES))}); {CURE}"
        )
    sizes = {tensor.name: math.prod(map(int, tensor.shape)) for tensor in reader.tensors}
    # Llama 3.1 and later, Phi-3 128k, Gemma-3 from 4B on; gpt-oss has the only loader that reads the scaling
    scaled = [key for key in fields if ".rope.scaling." in key and fields[key] not in ("none", 0, 1.0)]
    scaled += [tensor for tensor in sizes if tensor.startswith(("rope_freqs", "rope_factors"))]
    if architecture != "gpt-oss" and scaled:
        raise GGUFError(
            f"{file.name} scales its rotary positions ({', '.join(scaled)}), which the loader of GGUF files drops: the "
            f"model would read other positions than it was trained on; {CURE}"
        )
    # Gemma divides queries by a number that is not in the file
    size = fields.get(f"{architecture}.attention.key_length")
    if architecture in ("gemma2", "gemma3") and size != 256:
        raise GGUFError(
            f"{file.name} is a {architecture} with heads of {size} dimensions, whose scale of attention is not in the "
            f"file; the loader would take that of heads of 256 dimensions; {CURE}"
        )
    return {**fields, "elements": sum(sizes.values()), "output": sizes.get("output.weight", 0)}


def check_all_used(model: nn.Module, file: str | Path, fields: dict[str, Any]) -> None:
    """Raises GGUFError if a file and the model made from it do not hold equally many numbers.

    One difference is allowed: the file has an unembedding, but the class ties it to the embedding (Falcon, Bloom).
    """
    elements = sum(parameter.numel() for parameter in model.parameters())
    surplus = fields["elements"] - elements
    if surplus not in (0, fields["output"]):
        raise GGUFError(
            f"{Path(file).name} holds {fields['elements']:,} numbers and the {type(model).__name__} made from it "
            f"{elements:,}: the loader dropped or invented some (biases, for instance); {CURE}"
        )


def _save_tokenizer(source: dict[str, Any], fields: dict[str, Any], folder: Path) -> None:
    """Write the tokenizer of a GGUF file, which splits texts as the file says; warn if that way is not known.

    Where transformers does not know the way, it takes GPT-2's. SmolLM splits like GPT-2, but also makes every digit a
    piece of its own; this is mended here.
    """
    kind, split = map(fields.get, SPLITTING)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if kind == "gpt2" and split == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
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

    Raises GGUFError for what `check_file` and `check_all_used` refuse.
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
