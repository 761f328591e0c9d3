"""What is left of the time before `records.study`; goes with the last caller."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer
from util.load_model_and_data import (
    dtype_name,
    load_ICL_model,
    origin,
    request_name,
    shown_name,
    untrained_twin,
)
from util.records import cache
from util.records.provenance import expectation, provenance

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
        self.expected = expectation(asked, loaded(model))

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
