"""The model that a record is measured on: its name is checked at once, its weights are loaded when first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator
from transformers import PreTrainedModel

from util.load_model_and_data import (
    check_revision,
    dtype_name,
    load_ICL_model,
    origin,
    request_name,
    shown_name,
    untrained_twin,
)
from util.study.checked import Natural, Text, checked

Pair = tuple[PreTrainedModel, Any]  # a model and its tokenizer


@checked
class Model:
    """A model's name and how to load it. It is loaded once, when `pair` is first read.

    name: a hub id, a folder, a GGUF file, a packaged model ("smollm2") or "embedded"; a name that begins with "given:"
    is for a model of your own, see `given`. revision: a commit, branch or tag of the hub. dtype: "auto", or the name
    of a dtype. untrained_seed: if not None, the same architecture with fresh weights from this seed, see `twin`.
    planted: for a model with a planted circuit, a digest of everything that decides its weights.

    The other fields change no result and are not part of a request. device, device_map, verbose (whether loading is
    announced): see `load_ICL_model`. loader: a function that returns the pair, used instead of `load_ICL_model`.
    with_twin: whether loading asks for the memory of the untrained twin as well, see `expect_twin`.
    """

    name: Text = "embedded"
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
    with_twin: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_revision(self.name, self.revision)

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

    def _load(self) -> Pair:
        if self.untrained_seed is not None:
            trained = replace(self, untrained_seed=None, loader=None)
            trained.expect_twin()
            return trained.twin(self.untrained_seed).pair
        return load_ICL_model(
            self.name, self.device, quantized=self.quantized, revision=self.revision, device_map=self.device_map,
            dtype=self.dtype, verbose=self.verbose, with_twin=self.with_twin,
        )  # fmt: skip

    def expect_twin(self) -> None:
        """From now on, loading refuses the model where its untrained twin does not fit beside it.

        A study that measures both says so when it is built, so that hours of work do not end with the twin.
        """
        object.__setattr__(self, "with_twin", True)

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
