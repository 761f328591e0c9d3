"""What every experiment shares: where a model comes from, its records and their provenance, planted controls."""

import functools
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from util import cache, paths
from util.embedded import planted
from util.embedded.planted import Planted
from util.finite import check_record
from util.handshake import check_tokenizer, input_device
from util.load_model_and_data import (
    describe,
    dtype_name,
    load_ICL_model,
    origin,
    request_name,
    resolved_revision,
    shown_name,
    untrained_twin,
)

PACKAGES = ("torch", "transformers", "tokenizers", "StaICC", "numpy")
ModelSource = Callable[[], tuple[PreTrainedModel, Any]] | tuple[PreTrainedModel, Any] | None


class LazyModel:
    """A model that is loaded when it is first called for, and once: a cached figure never loads it.

    Call it to get (model, tokenizer); arguments are those of `load_ICL_model`. twin(seed) is another lazy model with
    the same architecture and tokenizer and freshly initialised weights.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self._load: Callable[[], tuple[PreTrainedModel, Any]] = lambda: load_ICL_model(name, **options)
        self._pair: tuple[PreTrainedModel, Any] | None = None

    def __call__(self) -> tuple[PreTrainedModel, Any]:
        if self._pair is None:
            self._pair = self._load()
        return self._pair

    @property
    def loaded(self) -> tuple[PreTrainedModel, Any] | None:
        """The pair if it was loaded already, else None."""
        return self._pair

    def twin(self, seed: int = 0) -> "LazyModel":
        twin = LazyModel(self.name)
        twin._load = lambda: (untrained_twin(self()[0], seed), self()[1])
        return twin


def model_request(
    model: str = "embedded",
    dtype: Any = "auto",
    quantized: bool = False,
    revision: str | None = None,
    untrained_seed: int | None = None,
) -> cache.Request:
    """The part of every request that says which model; untrained_seed: its architecture with fresh weights instead."""
    return {
        "model": request_name(model),
        "revision": revision,
        "dtype": dtype_name(dtype),
        "quantized": quantized,
        "untrained_seed": untrained_seed,
    }


def twin_request(request: cache.Request, seed: int = 0) -> cache.Request:
    """The same request for the model's untrained twin, which is never quantised (see `untrained_twin`)."""
    return {**request, "untrained_seed": seed, "quantized": False}


def loaded(source: ModelSource) -> tuple[PreTrainedModel, Any] | None:
    """The (model, tokenizer) of a source where it is there without loading anything."""
    return source.loaded if isinstance(source, LazyModel) else source if isinstance(source, tuple) else None


def obtain(source: ModelSource, request: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    """The (model, tokenizer) of a source; with none given, the request's own model is loaded.

    Raises ValueError unless it is what the request asks for: nothing is ever stored under another model's name.
    """
    seed = request["untrained_seed"]
    if source is None:
        pair = load_ICL_model(
            request["model"], quantized=request["quantized"], revision=request["revision"], dtype=request["dtype"]
        )
        pair = pair if seed is None else (untrained_twin(pair[0], seed), pair[1])
    else:
        pair = source if isinstance(source, tuple) else source()
    model = pair[0]
    dtype = str(model.dtype).removeprefix("torch.")
    if request["dtype"] not in ("auto", dtype):
        raise ValueError(f"dtype {request['dtype']} was asked for, but the model given is {dtype}")
    if request["quantized"] != bool(getattr(model, "is_quantized", False)):
        raise ValueError(f"quantized = {request['quantized']} was asked for, which the model given is not")
    wanted = origin(request["model"], seed)
    if not request["model"].startswith("given:") and model.name_or_path != wanted:
        raise ValueError(
            f"the request is for {shown_name(wanted)!r}, but the model given is "
            f"{shown_name(model.name_or_path) if model.name_or_path else 'built, not loaded'!r}; "
            "to measure a model of your own, ask for it under a name that begins with 'given:'"
        )
    return pair


def once(source: ModelSource, request: cache.Request) -> ModelSource:
    """The same source, which is asked for its model once at most, for several requests of one model."""
    if isinstance(source, tuple | LazyModel):
        return source
    lazy = LazyModel(request["model"])
    lazy._load = lambda: obtain(source, request)
    return lazy


class Run:
    """What all results of one request share, each cached on its own; the model is there once the first is missing."""

    def __init__(self, asked: cache.Request, model: ModelSource, folder: str | Path | None, redo: bool) -> None:
        self.asked, self.model, self.redo = asked, model, redo
        self.folder = Path(folder) if folder is not None else paths.material()
        self.expected = expectation(asked, model)

    @cached_property
    def pair(self) -> tuple[PreTrainedModel, Any]:
        pair = obtain(self.model, self.asked)
        check_tokenizer(*pair)
        self.expected = expectation(self.asked, pair)  # all that follows is to be of these weights
        return pair

    @property
    def texts(self) -> Iterable[str]:
        """The prompts, or what says which they are, for the provenance."""
        raise NotImplementedError

    @cached_property
    def origin(self) -> dict[str, Any]:
        """The provenance of every result."""
        return provenance(self.asked, self.pair, self.texts)

    def record(self, own: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> cache.Record:
        """The result of the request and what is its `own`: from the cache, or computed now."""
        return cache.load_or_compute(
            {**self.asked, **own},
            lambda: (
                check_record(compute(), self.pair[0]),
                self.origin | {"finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())},
            ),
            self.folder,
            self.expected,
            self.redo,
        )


def plain_heads(heads: Iterable[tuple[int, int]]) -> list[list[int]]:
    """A set of heads, (layer, head), in the one form that a request has for it."""
    return sorted([int(layer), int(head)] for layer, head in set(heads))


def planted_model(
    build: Callable[..., Planted], options: Mapping[str, Any], tokens: Callable[[Any], list[int]] | None = None
) -> tuple[LazyModel, Planted, cache.Request]:
    """A model whose circuit is known, on the embedded model's tokenizer, the truth, and the request's part on models.

    build: a circuit of `embedded.planted`; options: of its own (family, copies, noise, seed); tokens: those that it is
    about, by the tokenizer. The model is built when it is first called for. As its weights are not known before, the
    request names what decides them: the code of the circuits, the tokenizer and those tokens.
    """
    tokenizer = _planted_tokenizer()
    about = [] if tokens is None else [tokens(tokenizer)]
    truth = build(len(tokenizer), *about, **{"bos": tokenizer.bos_token_id, **options})
    given = " ".join([f"given:planted {build.__name__}", *(f"{key}={value}" for key, value in sorted(options.items()))])
    code = Path(planted.__file__).read_text(encoding="utf-8")
    lazy = LazyModel(given)
    lazy._load = lambda: load_ICL_model((truth.model, tokenizer), verbose=False)
    return lazy, truth, {**model_request(given), "planted": digest([code, tokenizer_digest(tokenizer), str(about)])}


@functools.cache
def _planted_tokenizer() -> Any:
    return load_ICL_model("embedded", device="cpu", verbose=False)[1]


def errors_by_noise(
    judge: Callable[[float, int], Iterable[tuple[bool, bool]]], noises: Sequence[float], seeds: Sequence[int]
) -> dict[float, dict[str, tuple[int, int]]]:
    """How often planted heads are misjudged, by the noise on their weights: "false alarms" and "misses", of how many.

    judge(noise, seed): of every head whether it should be found, and whether it was misjudged.
    """
    errors = {}
    for noise in noises:
        judged = [each for seed in seeds for each in judge(noise, seed)]
        alarms = [wrong for one, wrong in judged if not one]
        misses = [wrong for one, wrong in judged if one]
        errors[noise] = {"false alarms": (sum(alarms), len(alarms)), "misses": (sum(misses), len(misses))}
    return errors


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts), ensure_ascii=False).encode()).hexdigest()[:16]


def tokenizer_digest(tokenizer: Any) -> str:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return digest([fast.to_str() if fast is not None else json.dumps(tokenizer.get_vocab())])


def weights_digest(model: PreTrainedModel) -> str | None:
    """A digest of a few numbers of every parameter, so that two models of one shape differ; None where offloaded."""
    parts = []
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            return None
        flat = parameter.detach().flatten()
        step = max(1, flat.numel() // 16)
        parts.append(f"{name} {tuple(parameter.shape)} {flat[::step][:16].float().tolist()}")
    return digest(parts)


def code_digest() -> str:
    """A digest of the suite's own source, so that a record tells which code made it."""
    folder = Path(__file__).resolve().parent.parent
    return digest(file.read_text() for file in sorted(folder.rglob("*.py")))


def versions() -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in PACKAGES}


def expectation(request: dict[str, Any], source: ModelSource) -> dict[str, Any]:
    """What a cached record must agree with, as far as it can be known without loading a model. None means unknown."""
    pair = loaded(source)
    return {
        "revision": resolved_revision(request["model"], pair[0] if pair else None),
        "weights": weights_digest(pair[0]) if pair else None,
        "dtype": None if request["dtype"] == "auto" else request["dtype"],
        "tokenizer_digest": tokenizer_digest(pair[1]) if pair else None,
        "versions": versions(),
    }


def provenance(request: dict[str, Any], pair: tuple[PreTrainedModel, Any], prompts: Iterable[str]) -> dict[str, Any]:
    """What really ran."""
    model, tokenizer = pair
    device = input_device(model)  # of offloaded weights, model.device says nothing
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
