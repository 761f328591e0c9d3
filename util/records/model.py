"""Which model a record is of: checked when it is named, loaded when it is first called for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from transformers import PreTrainedModel

from util.load_model_and_data import (
    dtype_name,
    load_ICL_model,
    origin,
    request_name,
    shown_name,
    untrained_twin,
)
from util.records import cache
from util.records.checked import Natural, checked

Pair = tuple[PreTrainedModel, Any]  # a model and its tokenizer


@checked
class Model:
    """A model by its name, and how it is loaded. It is loaded once, when `pair` is first read.

    name: a hub id, a folder, a GGUF file, a packaged model ("smollm2") or "embedded"; a name that begins with "given:"
    is for a model of your own, see `given`. revision: a commit, branch or tag of the hub. dtype: "auto", or the name of
    one. untrained_seed: the same architecture with fresh weights, see `twin`.
    planted: of a model that is built here, a digest of what decides its weights.
    The rest changes no result and is no part of a request: device, device_map, and whether loading is announced
    (verbose), see `load_ICL_model`; loader: what gives the pair, in the place of `load_ICL_model`.
    """

    name: Annotated[
        str, Field(min_length=1), BeforeValidator(lambda name: str(name) if isinstance(name, Path) else name)
    ] = "embedded"
    revision: str | None = None
    dtype: Annotated[str, BeforeValidator(dtype_name)] = "auto"
    quantized: bool = False
    untrained_seed: Natural | None = None
    _: KW_ONLY
    device: str = field(default="auto", compare=False)
    device_map: Any = field(default=None, compare=False)
    verbose: bool = field(default=True, compare=False)
    planted: str | None = None
    loader: Callable[[], Pair] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def given(cls, model: PreTrainedModel, tokenizer: Any, name: str, **options: Any) -> Model:
        """A model that is there already. Raises ValueError unless it is what its name and the options say."""
        made = cls(name, **options, loader=lambda: (model, tokenizer))
        made.pair  # noqa: B018  # known from now on
        return made

    @property
    def request(self) -> cache.Request:
        """The part of every request that says which model."""
        named: cache.Request = {
            "model": request_name(self.name),
            "revision": self.revision,
            "dtype": self.dtype,
            "quantized": self.quantized,
            "untrained_seed": self.untrained_seed,
        }
        return named if self.planted is None else {**named, "planted": self.planted}

    @property
    def shown_name(self) -> str:
        """How it is called in titles, values and records: never by a path."""
        return shown_name(self.name)

    @property
    def loaded(self) -> Pair | None:
        """(model, tokenizer) where it is there without loading anything."""
        return self.__dict__.get("pair")

    @cached_property
    def pair(self) -> Pair:
        """(model, tokenizer), loaded now if it is not there.

        Raises what `load_ICL_model` raises, and ValueError where a given model is not what the name and options say:
        nothing is ever stored under another model's name.
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

    def _load(self) -> Pair:
        if self.untrained_seed is not None:
            return self.trained.twin(self.untrained_seed).pair
        return load_ICL_model(
            self.name, self.device, quantized=self.quantized, revision=self.revision, device_map=self.device_map,
            dtype=self.dtype, verbose=self.verbose,
        )  # fmt: skip

    @property
    def trained(self) -> Model:
        """The same without `untrained_seed`."""
        return replace(self, untrained_seed=None, loader=None)

    def twin(self, seed: int = 0) -> Model:
        """The untrained twin: the same architecture and tokenizer, fresh weights, never quantised."""
        return replace(
            self,
            untrained_seed=seed,
            quantized=False,
            loader=lambda: (untrained_twin(self.pair[0], seed), self.pair[1]),
        )


def as_model(value: Any) -> Model:
    """A model by its name alone, or a `Model` as it is. Raises ValueError for anything else."""
    if isinstance(value, Model):
        return value
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("give the name of a model, a folder or file, or a records.model.Model")
    return Model(str(value))


AsModel = Annotated[Model, BeforeValidator(as_model)]
