"""What every study shares: a checked request, the model it is of, and its records, each cached on its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from transformers import PreTrainedModel

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer
from util.records import cache
from util.records.checked import checked
from util.records.model import AsModel, Model
from util.records.provenance import expectation, provenance

AnyStudy = TypeVar("AnyStudy", bound="Study")


@checked
class Study:
    """What is to be measured, of which model: the base of every figure's study.

    A study is frozen and checked when it is built; `replace` gives another one, which is checked again. Its parts are
    methods that measure, or load what was measured before, and give a frozen result.

    model: a `Model`, or the name of one. folder: where records are kept, default `paths.material()`. redo: measure
    again what is cached. A subclass adds what it measures (in the order data, k, prompts, seed; the rest by keyword),
    and defines `own_request` and `texts`.
    """

    model: AsModel = field(default_factory=Model)
    _: KW_ONLY
    folder: Path | None = field(default=None, compare=False, repr=False)
    redo: bool = field(default=False, compare=False, repr=False)

    stem: ClassVar[str]

    @property
    def own_request(self) -> Mapping[str, Any]:
        """The study's part of the request, in plain JSON: all that decides its numbers, but for the model."""
        raise NotImplementedError

    @property
    def texts(self) -> Iterable[str]:
        """The prompts, or what says which they are: their digest is part of the provenance."""
        raise NotImplementedError

    @property
    def request(self) -> cache.Request:
        """What is measured, in plain JSON; its digest names the record's file. No model is needed to form it."""
        return {"stem": self.stem, **self.model.request, **self.own_request}

    def replace(self: AnyStudy, **changes: Any) -> AnyStudy:
        """The same study with other arguments, checked like those; it shares the model, if that stays the same."""
        return replace(self, **changes)

    def twin(self: AnyStudy, seed: int = 0, **changes: Any) -> AnyStudy:
        """The same study of the model's untrained twin: the negative control."""
        return self.replace(model=self.model.twin(seed), **changes)

    @property
    def place(self) -> Path:
        """The folder of the records."""
        return paths.material() if self.folder is None else self.folder

    @cached_property
    def pair(self) -> tuple[PreTrainedModel, Any]:
        """(model, tokenizer), loaded now if it is not there. Raises what `Model.pair` raises."""
        check_tokenizer(*self.model.pair)
        return self.model.pair

    @cached_property
    def _expected_unloaded(self) -> dict[str, Any]:
        return expectation(self.request, None)

    @cached_property
    def _expected_loaded(self) -> dict[str, Any]:
        return expectation(self.request, self.model.pair)

    @property
    def expected(self) -> dict[str, Any]:
        """What cached records must agree with, as far as it is known: more, once the model is there."""
        return self._expected_unloaded if self.model.loaded is None else self._expected_loaded

    @cached_property
    def origin(self) -> dict[str, Any]:
        """The provenance of every result that is measured now."""
        return provenance(self.request, self.pair, self.texts)

    def record(self, part: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> cache.Record:
        """The record of one part of the study, `part` being what its request has besides: loaded, or computed now.

        Raises what `cache.load_or_compute` raises, and NotFinite for data that are no numbers.
        """
        return cache.load_or_compute(
            {**self.request, **part},
            lambda: (
                check_record(compute(), self.pair[0]),
                self.origin | {"finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())},
            ),
            self.place,
            self.expected,
            self.redo,
        )


def plain_heads(heads: Iterable[tuple[int, int]]) -> list[list[int]]:
    """A set of heads, (layer, head), in the one form that a request has for it."""
    return sorted([int(layer), int(head)] for layer, head in set(heads))
