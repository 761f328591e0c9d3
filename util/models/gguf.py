"""GGUF files: which of them load as the model they hold, and which would load as another one without a word.

transformers dequantises a file's tensors and builds a config from its metadata. What has no place in that config is
dropped, and a model that computes something else comes out. Such files are refused here, before anything is loaded.
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
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

# Architectures whose metadata transformers turns into a config of a causal language model (by the name in the file).
ARCHITECTURES = frozenset(
    "bloom falcon gemma2 gemma3 gpt-oss gpt2 lfm2 llama mamba minimax-m2 nemotron phi3 qwen2 qwen2moe qwen3 qwen3moe "
    "qwen35 qwen35moe stablelm starcoder2".split()
)
CURE = "load the original checkpoint instead, by its hub id or folder"


class GGUFError(ValueError):
    """A GGUF file that would load as another model than it holds, or not at all; the message names the cure."""


def check_file(file: str | Path) -> dict[str, Any]:
    """The metadata of a GGUF file that can be loaded as what it is: keys and values, without the lists of tokens.

    Raises GGUFError for a file that is none, for an architecture without a loader, for scaled rotary positions (which
    the loader drops), and for attention scales that it sets to those of another size of the family.
    """
    file = Path(file)
    try:
        reader = GGUFReader(file)
        fields = {name: f.contents() for name, f in reader.fields.items() if not name.startswith("tokenizer.")}
        fields["tokenizer.ggml.pre"] = _content(reader, "tokenizer.ggml.pre")
        fields["tokenizer.ggml.model"] = _content(reader, "tokenizer.ggml.model")
    except Exception as error:  # the library raises whatever a damaged file makes it meet
        raise GGUFError(f"{file.name} is no GGUF file, or is damaged ({error})") from error
    architecture = str(fields.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise GGUFError(
            f"{file.name} holds a model of the architecture {architecture!r}, which is not known to load right "
            f"(these are: {', '.join(sorted(ARCHITECTURES))}); {CURE}"
        )
    _refuse_lost_positions(file.name, architecture, fields, [tensor.name for tensor in reader.tensors])
    _refuse_lost_scale(file.name, architecture, fields)
    fields["elements"] = sum(math.prod(map(int, tensor.shape)) for tensor in reader.tensors)
    fields["output"] = sum(
        math.prod(map(int, tensor.shape)) for tensor in reader.tensors if tensor.name == "output.weight"
    )
    return fields


def _content(reader: GGUFReader, name: str) -> Any:
    field = reader.fields.get(name)
    return None if field is None else field.contents()


def _refuse_lost_positions(name: str, architecture: str, fields: dict[str, Any], tensors: list[str]) -> None:
    """Rotary positions that are stretched for long contexts (Llama 3.1 and later, Phi-3 128k, Gemma-3 from 4B on)."""
    kept = architecture == "gpt-oss"  # whose loader reads them
    scaled = [key for key in fields if ".rope.scaling." in key and fields[key] not in ("none", 0, 1.0)]
    factors = [tensor for tensor in tensors if tensor.startswith(("rope_freqs", "rope_factors"))]
    if not kept and (scaled or factors):
        raise GGUFError(
            f"{name} scales its rotary positions ({', '.join([*scaled, *factors])}), which the loader of GGUF files "
            f"drops: the model would read other positions than it was trained on. {CURE[0].upper()}{CURE[1:]}"
        )


def _refuse_lost_scale(name: str, architecture: str, fields: dict[str, Any]) -> None:
    """Gemma divides queries by a number of its own, which files do not hold; the loader takes that of heads of 256."""
    size = fields.get(f"{architecture}.attention.key_length")
    if architecture in ("gemma2", "gemma3") and size != 256:
        raise GGUFError(
            f"{name} is a {architecture} with heads of {size} dimensions, whose scale of attention is not in the file; "
            f"the loader would take that of heads of 256 dimensions. {CURE[0].upper()}{CURE[1:]}"
        )


def check_all_used(model: nn.Module, file: str | Path, fields: dict[str, Any]) -> None:
    """Raises GGUFError where a file holds more numbers than the model that was made from it: some were dropped.

    An unembedding beside tied embeddings is allowed where the class ties them (Falcon, Bloom).
    """
    elements = sum(parameter.numel() for parameter in model.parameters())
    surplus = fields["elements"] - elements
    if surplus not in (0, fields["output"]):
        raise GGUFError(
            f"{Path(file).name} holds {fields['elements']:,} numbers and the {type(model).__name__} made from it "
            f"{elements:,}: the loader dropped or invented some (biases, for instance). {CURE[0].upper()}{CURE[1:]}"
        )


def mend_tokenizer(tokenizer: Any, fields: dict[str, Any], name: str) -> None:
    """Let a byte-level tokenizer split texts as the file says; warn where that is not known.

    transformers keeps GPT-2's way of splitting where it does not know the file's. SmolLM's is GPT-2's with every digit
    apart. Changes the tokenizer in place.
    """
    split, fast = fields["tokenizer.ggml.pre"], getattr(tokenizer, "backend_tokenizer", None)
    if fields["tokenizer.ggml.model"] != "gpt2" or fast is None:
        return
    if split == "smollm":
        fast.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        return
    plain = type(fast.pre_tokenizer) is pre_tokenizers.ByteLevel
    if plain and split not in (None, "gpt-2", "gpt2", "default"):
        warnings.warn(
            f"{name}: its tokenizer splits texts in the way {split!r}, which transformers does not know; GPT-2's was "
            "taken, so that some texts may become other tokens. Prefer the original checkpoint's tokenizer.",
            stacklevel=3,
        )


def forget_file(model: PreTrainedModel) -> None:
    """Let a dequantised model be an ordinary one, which can be saved and has a twin: its weights are plain numbers."""
    model.hf_quantizer = None
    for mark in ("is_quantized", "quantization_method"):
        vars(model).pop(mark, None)
    vars(model.config).pop("quantization_config", None)


def convert(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file into a folder, dequantised to float32 safetensors. Raises GGUFError."""
    fields, source = check_file(file), {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, attn_implementation="eager")
    check_all_used(model, file, fields)
    forget_file(model)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    mend_tokenizer(tokenizer, fields, file.name)
    tokenizer.save_pretrained(folder)
