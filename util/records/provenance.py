"""Provenance of a record: which weights, tokenizer, prompts, packages and device were really used."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from util import paths
from util.engine.handshake import input_device
from util.load_model_and_data import (
    describe,
    resolved_revision,
)
from util.models.files import sha256

LARGE = 4 << 30  # bytes of weights: two seconds
_LARGE_MODELS: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()  # digests of models of more bytes

PACKAGES = ("torch", "transformers", "tokenizers", "StaICC", "numpy")


def digest(texts: Iterable[str]) -> str:
    """16 hex digits of the sha256 of a sequence of texts."""
    return hashlib.sha256(json.dumps(list(texts), ensure_ascii=False).encode()).hexdigest()[:16]


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of a tokenizer's vocabulary and rules."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return digest([fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab())])


def weights_digest(model: PreTrainedModel) -> str | None:
    """A digest of all weights: the bytes of every parameter and stored buffer; None if any is offloaded.

    It takes a second for 2 GB of weights. Those of a model of more than LARGE bytes are read once in a process, so that
    changing such a model in place goes unnoticed.
    """
    if model in _LARGE_MODELS:
        return _LARGE_MODELS[model]
    stored = model.state_dict()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in stored]
    weights = [*model.named_parameters(), *buffers]
    if any(tensor.device.type == "meta" for _, tensor in weights):
        return None
    taken = hashlib.sha256()
    for name, tensor in weights:
        taken.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        taken.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy())
    if sum(tensor.nbytes for _, tensor in weights) > LARGE:
        _LARGE_MODELS[model] = taken.hexdigest()[:16]
    return taken.hexdigest()[:16]


def lists_digest(names: Iterable[str]) -> str:
    """A digest of some files of data/word_lists. Raises FileNotFoundError if one is missing."""
    return digest(sha256(paths.root() / "data" / "word_lists" / name) for name in names)


def code_digest() -> str:
    """A digest of the suite's source code, so that a record shows which code made it."""
    folder = Path(__file__).resolve().parents[1]
    return digest(file.read_text() for file in sorted(folder.rglob("*.py")))


def versions() -> dict[str, str]:
    """The installed versions of PACKAGES."""
    return {package: importlib.metadata.version(package) for package in PACKAGES}


def expectation(request: dict[str, Any], pair: tuple[PreTrainedModel, Any] | None) -> dict[str, Any]:
    """What the provenance of a cached record must say; entries that are not known are None.

    pair: (model, tokenizer) if they are loaded; without them less is known.
    """
    return {
        "revision": resolved_revision(request["model"], pair[0] if pair else None),
        "weights": weights_digest(pair[0]) if pair else None,
        "dtype": None if request["dtype"] == "auto" else request["dtype"],
        "tokenizer_digest": tokenizer_digest(pair[1]) if pair else None,
        "versions": versions(),
    }


def provenance(request: dict[str, Any], pair: tuple[PreTrainedModel, Any], prompts: Iterable[str]) -> dict[str, Any]:
    """The provenance of a measurement on this pair (model, tokenizer) and these prompts."""
    model, tokenizer = pair
    device = input_device(model)  # model.device says nothing if weights are offloaded
    return {
        "revision": resolved_revision(request["model"], model),
        "weights": weights_digest(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "prompt_digest": digest(prompts),
        "versions": versions(),
        "code_digest": code_digest(),
        "model": describe(model, request["model"]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }
