"""The model that a record is measured on: its name is checked at once, its weights are loaded when first needed.

Its provenance says which weights, settings, tokenizer, prompts, packages and device were really used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from pydantic import BeforeValidator
from transformers import PreTrainedModel

from util import paths
from util.engine.call import UnsupportedModel
from util.engine.handshake import input_device
from util.load_model_and_data import (
    LOCAL,
    check_name,
    describe,
    dtype_name,
    load_ICL_model,
    load_tokenizer,
    origin,
    request_name,
    resolved_revision,
    shown_name,
    untrained_twin,
)
from util.paths import sha256
from util.study.checked import Natural, Text, checked

Pair = tuple[PreTrainedModel, Any]  # a model and its tokenizer
LARGE = 4 << 30  # bytes of weights: two seconds
_LARGE_MODELS: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()  # digests of models of more bytes

UNRELATED = {
    *("_name_or_path", "name_or_path", "transformers_version", "dtype", "architectures", "use_cache"),  # of a config
    *("training", "forward", "max_seq_len_cached", "gradient_checkpointing"),  # of a module
}
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "add_bos_token", "add_eos_token")
PLAIN = (bool, int, float, str, tuple, list, dict, type(None))

OWNERS = {"accelerate", "bitsandbytes", "transformers", "util"}  # packages whose hooks are known
PACKAGES = ("torch", "transformers", "tokenizers", "StaICC", "numpy")


def digest(texts: Iterable[str]) -> str:
    """16 hex digits of the sha256 of a sequence of texts."""
    return hashlib.sha256(json.dumps(list(texts), ensure_ascii=False).encode()).hexdigest()[:16]


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of a tokenizer's vocabulary and rules."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return digest([fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab())])


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


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
        taken.update(_bytes(tensor))
    sixteen = taken.hexdigest()[:16]
    if sum(tensor.nbytes for _, tensor in weights) > LARGE:
        _LARGE_MODELS[model] = sixteen
    return sixteen


def refuse_hooks(model: PreTrainedModel) -> None:
    """Raises UnsupportedModel for a hook, or a replaced `forward`, of which no record would know."""
    for name, module in model.named_modules():
        kinds = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
        unknown = [("hook", hook) for hooks in kinds for hook in hooks.values()]
        forward = vars(module).get("forward")
        replaced = getattr(forward, "__func__", forward) not in (None, type(module).forward)
        if replaced and not hasattr(module, "_hf_hook"):
            unknown.append(("forward", forward))
        for kind, function in unknown:
            function = getattr(function, "func", function)  # of a partial
            owner = getattr(function, "__module__", None) or type(function).__module__
            if owner.partition(".")[0] not in OWNERS:
                raise UnsupportedModel(
                    f"{name or 'the model itself'} has the {kind} "
                    f"{getattr(function, '__qualname__', type(function).__name__)} of {owner}, "
                    f"which no record would know of: remove it before measuring"
                )


def settings_digest(model: PreTrainedModel, tokenizer: Any) -> str | None:
    """A digest of what decides a result beside weights, vocabulary and rules; None if a part of it is offloaded.

    These are the config, the special tokens, and of every module its class, its plain attributes and the tensors that
    are not stored. Of classes and functions the name counts, not the code. Raises what `refuse_hooks` raises.
    """
    refuse_hooks(model)
    config = {name: value for name, value in model.config.to_dict().items() if name not in UNRELATED}
    settings = [json.dumps(config, sort_keys=True, default=str)]
    settings += [f"{name} {getattr(tokenizer, name, None)}" for name in SPECIAL]
    for place, module in model.named_modules():
        base = next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("util."))  # not its adapter
        settings.append(f"{place} {base.__qualname__}")
        if base.__module__.startswith("bitsandbytes"):  # they note there what has run
            continue
        attributes = {name: value for name, value in vars(module).items() if name[0] != "_" and name not in UNRELATED}
        if module is model:  # it has notes of the loader too
            attributes = {name: value for name, value in attributes.items() if isinstance(value, int | float)}
        passing = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
        for name, value in sorted((attributes | passing).items()):
            if isinstance(value, torch.Tensor):
                if value.device.type == "meta":
                    return None
                if "longrope" in str(getattr(module, "rope_type", "")) and not name.endswith("original_inv_freq"):
                    continue  # each pass sets it anew
                taken = hashlib.sha256(_bytes(value)).hexdigest()
                settings.append(f"{place}.{name} {tuple(value.shape)} {value.dtype} {taken}")
            elif isinstance(value, PLAIN) or callable(value):
                text = getattr(value, "__qualname__", None) or re.sub(r" at 0x\w+", "", repr(value))
                settings.append(f"{place}.{name} {text}")
    return digest(settings)


def lists_digest(names: Iterable[str]) -> str:
    """A digest of some files of data/word_lists. Raises FileNotFoundError if one is missing."""
    return digest(sha256(paths.root() / "data" / "word_lists" / name) for name in names)


def versions() -> dict[str, str]:
    """The installed versions of PACKAGES."""
    return {package: importlib.metadata.version(package) for package in PACKAGES}


def provenance(request: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """The provenance of measurements on this pair (model, tokenizer), but for their prompts."""
    model, tokenizer = pair
    device = input_device(model)  # model.device says nothing if weights are offloaded
    code = sorted(Path(__file__).resolve().parents[1].rglob("*.py"))  # of the suite
    return {
        "revision": resolved_revision(request["model"], model),
        "weights": weights_digest(model),
        "settings": settings_digest(model, tokenizer),
        "dtype": str(model.dtype).removeprefix("torch."),
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "versions": versions(),
        "code_digest": digest(file.read_text() for file in code),
        "model": describe(model, request["model"]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


@checked
class Model:
    """A model's name and how to load it. It is loaded once, when `pair` is first read.

    name: a hub id, a folder, a GGUF file, a packaged model ("smollm2") or "embedded"; a name that begins with "given:"
    is for a model of your own, see `given`. revision: a commit, branch or tag of the hub. dtype: "auto", or the name
    of a dtype. untrained_seed: if not None, the same architecture with fresh weights from this seed, see `twin`.
    planted: for a model with a planted circuit, a digest of everything that decides its weights.

    The other fields change no result and are not part of a request. device, device_map, cache_dir, verbose (whether
    loading is announced): see `load_ICL_model`. loader: a function that returns the pair, used instead of
    `load_ICL_model`. with_twin: whether loading asks for the memory of the untrained twin as well, see `expect_twin`.
    """

    name: Text = "embedded"
    revision: str | None = None
    dtype: Annotated[str, BeforeValidator(dtype_name)] = "auto"
    quantized: bool = False
    untrained_seed: Natural | None = None
    _: KW_ONLY
    device: str = field(default="auto", compare=False)
    device_map: Any = field(default=None, compare=False)
    cache_dir: Text | None = field(default=None, compare=False)
    verbose: bool = field(default=True, compare=False)
    planted: str | None = None
    loader: Callable[[], Pair] | None = field(default=None, compare=False, repr=False)
    with_twin: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name, self.revision)

    @classmethod
    def given(cls, model: PreTrainedModel, tokenizer: Any, name: str, **options: Any) -> Model:
        """A `Model` of a model that is loaded already. Raises ValueError unless it is what its name and options say."""
        made = cls(name, **options, loader=lambda: (model, tokenizer))
        made.pair  # noqa: B018  # reading it checks the model and keeps the pair
        return made

    @property
    def request(self) -> dict[str, Any]:
        """The fields of a request that say which model it is about."""
        named: dict[str, Any] = {
            "model": request_name(self.name),
            "revision": self.revision,
            "dtype": self.dtype,
            "quantized": self.quantized,
            "untrained_seed": self.untrained_seed,
        }
        return named if self.planted is None else {**named, "planted": self.planted}

    @property
    def shown_name(self) -> str:
        """The model's name in titles, values and records; it never contains a path."""
        return shown_name(self.name)

    @property
    def stored(self) -> dict[str, str]:
        """What values have of a folder or file in place of its name in requests, which has a digest of its path.

        model: its shown name; folder: that of its own figures and values, as others may have that name.
        """
        if not self.request["model"].startswith(LOCAL):
            return {}
        return {"model": self.shown_name, "folder": paths.model_folder(self.name)}

    @property
    def title(self) -> str:
        """The shown name, and for an untrained twin that it is one."""
        return self.shown_name if self.untrained_seed is None else f"{self.shown_name}, untrained"

    @property
    def loaded(self) -> Pair | None:
        """(model, tokenizer) if they are loaded already, else None."""
        return self.__dict__.get("pair")

    @cached_property
    def pair(self) -> Pair:
        """(model, tokenizer), loaded when first read.

        Raises what `load_ICL_model` raises. Raises ValueError if the loaded model is not what the name and options say,
        so that no result is ever stored under another model's name.
        """
        pair = self.loader() if self.loader is not None else self._load()
        model = pair[0]
        dtype = str(model.dtype).removeprefix("torch.")
        if self.dtype not in ("auto", dtype):
            raise ValueError(f"dtype {self.dtype} was asked for, but the model given is {dtype}")
        if self.quantized != bool(getattr(model, "is_quantized", False)):
            raise ValueError(f"quantized = {self.quantized} was asked for, which the model given is not")
        name = self.request["model"]
        wanted = origin(name, self.untrained_seed)
        if not name.startswith("given:") and model.name_or_path != wanted:
            raise ValueError(
                f"the request is for {shown_name(wanted)!r}, but the model given is "
                f"{shown_name(model.name_or_path) if model.name_or_path else 'built, not loaded'!r}; "
                "to measure a model of your own, ask for it under a name that begins with 'given:'"
            )
        return pair

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, read without the weights where these are not loaded yet and the model has a name."""
        given = self.planted or self.name.startswith("given:") or (self.loader and self.untrained_seed is None)
        if self.loaded or given:
            return self.pair[1]
        return load_tokenizer(self.name, self.revision, self.cache_dir)

    def _load(self) -> Pair:
        if self.untrained_seed is not None:
            trained = replace(self, untrained_seed=None, loader=None)
            trained.expect_twin()
            return trained.twin(self.untrained_seed).pair
        return load_ICL_model(
            self.name, self.device, quantized=self.quantized, revision=self.revision, device_map=self.device_map,
            dtype=self.dtype, cache_dir=self.cache_dir, verbose=self.verbose, with_twin=self.with_twin,
        )  # fmt: skip

    def expect_twin(self, with_twin: bool = True) -> None:
        """Whether loading, from now on, refuses the model where its untrained twin does not fit beside it.

        A study that measures both says so when it is built, so that hours of work do not end with the twin.
        """
        object.__setattr__(self, "with_twin", with_twin)

    def twin(self, seed: int = 0) -> Model:
        """The untrained twin: the same architecture and tokenizer, fresh weights, never quantised."""
        return replace(
            self,
            untrained_seed=seed,
            quantized=False,
            loader=lambda: (untrained_twin(self.pair[0], seed), self.pair[1]),
        )


def as_model(value: Any) -> Model:
    """A `Model` made from a name or path; a `Model` is returned unchanged. Raises ValueError for anything else."""
    return value if isinstance(value, Model) else Model(value)


AsModel = Annotated[Model, BeforeValidator(as_model)]
