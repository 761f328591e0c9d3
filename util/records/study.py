"""What every study shares: its records, each cached on its own, of one model."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer
from util.records import cache
from util.records.model import ModelSource, obtain
from util.records.provenance import expectation, provenance


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
