"""Provenance of a record: which weights, tokenizer, prompts, packages and device were really used."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from util.engine.handshake import input_device
from util.load_model_and_data import (
    describe,
    resolved_revision,
)

PACKAGES = ("torch", "transformers", "tokenizers", "StaICC", "numpy")


def digest(texts: Iterable[str]) -> str:
    """16 hex digits of the sha256 of a sequence of texts."""
    return hashlib.sha256(json.dumps(list(texts), ensure_ascii=False).encode()).hexdigest()[:16]


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of a tokenizer's vocabulary and rules."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return digest([fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab())])


def weights_digest(model: PreTrainedModel) -> str | None:
    """A digest of up to 16 numbers of every parameter, to tell models of one shape apart; None if any is offloaded."""
    parts = []
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            return None
        flat = parameter.detach().flatten()
        step = max(1, flat.numel() // 16)
        parts.append(f"{name} {tuple(parameter.shape)} {flat[::step][:16].float().tolist()}")
    return digest(parts)


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
