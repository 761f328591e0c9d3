"""What all studies have in common: a checked request, a model, and records that are cached one by one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm
from transformers import PreTrainedModel

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer, refuse_hooks
from util.study import store
from util.study.checked import checked
from util.study.model import AsModel, Model
from util.study.provenance import digest, expectation, lists_digest, provenance
from util.study.store import Record

AnyStudy = TypeVar("AnyStudy", bound="Study")
Item = TypeVar("Item")

# What the provenance of all blocks of a record has to agree in.
DECISIVE = ("revision", "weights", "dtype", "tokenizer_digest", "prompt_digest", "code_digest", "device", "settings")


@checked
class Study:
    """What is to be measured on which model. This is the base class of every figure's study.

    A study is frozen, and checked when it is built; `replace` returns another study, which is checked again. The parts
    of a study are methods: each of them measures, or loads what was measured before, and returns a frozen result.

    model: a `Model` or a model's name. folder: where records are kept, default `paths.material()`. redo: measure again
    even if there is a record. A subclass adds its own arguments (in the order data, k, prompts, seed; the rest by
    keyword) and defines `own_request` and `texts`. Where prompts are drawn from files of data/word_lists whose content
    is not part of the request, it names these files in `word_lists`.
    """

    model: AsModel = field(default_factory=Model)
    _: KW_ONLY
    folder: Path | None = field(default=None, compare=False, repr=False)
    redo: bool = field(default=False, compare=False, repr=False)

    stem: ClassVar[str]
    word_lists: ClassVar[tuple[str, ...]] = ()

    @property
    def own_request(self) -> Mapping[str, Any]:
        """Everything that decides the study's numbers, except for the model, in plain JSON."""
        raise NotImplementedError

    @property
    def texts(self) -> Iterable[str]:
        """The prompts, or texts that determine them; their digest is part of the provenance."""
        raise NotImplementedError

    @property
    def request(self) -> dict[str, Any]:
        """What is measured, in plain JSON; its digest is in the name of the record's file. It needs no loaded model."""
        return {"stem": self.stem, **self.model.request, **self.own_request}

    def replace(self: AnyStudy, **changes: Any) -> AnyStudy:
        """The same study with some arguments changed, and checked again. It shares the model unless that is changed."""
        return replace(self, **changes)

    def twin(self: AnyStudy, seed: int = 0, **changes: Any) -> AnyStudy:
        """The same study on the model's untrained twin: the negative control."""
        return self.replace(model=self.model.twin(seed), **changes)

    @property
    def place(self) -> Path:
        """The folder of the records."""
        return paths.material() if self.folder is None else self.folder

    @cached_property
    def pair(self) -> tuple[PreTrainedModel, Any]:
        """(model, tokenizer), loaded when first read. Raises what `Model.pair` raises."""
        check_tokenizer(*self.model.pair)
        return self.model.pair

    @property
    def _lists(self) -> dict[str, str]:
        return {"word_lists": lists_digest(self.word_lists)} if self.word_lists else {}

    @cached_property
    def _expected_unloaded(self) -> dict[str, Any]:
        return expectation(self.request, None) | self._lists

    @cached_property
    def _expected_loaded(self) -> dict[str, Any]:
        return expectation(self.request, self.pair) | self._lists | {"prompt_digest": digest(self.texts)}

    @property
    def expected(self) -> dict[str, Any]:
        """What the provenance of cached records must say, as far as it is known: more if the model is loaded.

        Raises UnsupportedModel for a loaded model with hooks of which no record would know.
        """
        if self.model.loaded is None:
            return self._expected_unloaded
        refuse_hooks(self.model.loaded[0])
        return self._expected_loaded

    @cached_property
    def origin(self) -> dict[str, Any]:
        """The provenance of results that this study measures now; it loads the model."""
        return provenance(self.request, self.pair, self.texts) | self._lists

    @cached_property
    def origins(self) -> dict[str, dict[str, Any]]:
        """The provenance of every record that this study was asked for so far, by the name of its file.

        Records that were asked for while another one was measured are left out, so that measuring and loading agree.
        """
        return {}

    @cached_property
    def _unsaved(self) -> dict[Path, Record]:
        """What was measured and could not be written."""
        return {}

    def record(self, part: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> Record:
        """The record of one part of the study, loaded or computed now.

        part: the fields that the request of this part has in addition to `request`. compute: measures the data. Raises
        what `store.kept` raises, and NotFinite for data that are NaN or infinite where they may not be.
        """
        request = {"measure": self.stem, **self.request, **part}
        file = store.place_of(request, self.place)

        def measured() -> Record:
            data = check_record(compute(), self.pair[0])
            finished = {"finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
            self._unsaved[file] = Record(request, self.origin | finished, data)
            return self._unsaved[file]

        asked_before = dict(self.origins)
        try:
            record = self._unsaved.get(file) or store.kept(request, measured, self.place, self.expected, self.redo)
            self._unsaved.pop(file, None)
            asked_before[file.name] = record.provenance
        finally:
            self.origins.clear()
            self.origins.update(asked_before)
        return record

    def record_in_blocks(
        self,
        part: Mapping[str, Any],
        blocks: Callable[[], Sequence[Sequence[int]]],
        measure: Callable[[Sequence[int]], dict[str, Any]],
        join: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
    ) -> Record:
        """The record of a part that takes long, see `record`; what was measured of it outlives an interruption.

        blocks: gives the numbers of the prompts that are measured together, a minute's work at most. measure: measures
        one block. join: makes the record's data of those of all blocks, in order. None of the three is called if there
        is a record. A block is kept until the record is there, and is not measured again before, not even under redo.
        """
        request = {"measure": self.stem, **self.request, **part}
        name = store.place_of(request, self.place).stem
        kept = self.place / "blocks" / name

        def block(numbers: Sequence[int]) -> dict[str, Any]:
            named = {**request, "block": list(numbers)}
            decisive = {entry: self.origin[entry] for entry in DECISIVE}

            def measured() -> Record:
                return Record(named, self.origin, check_record(measure(numbers), self.pair[0]))

            return store.kept(named, measured, kept, decisive).data

        def compute() -> dict[str, Any]:
            what = ", ".join([name.rpartition("-")[0], *filter(None, [part.get("part")])])
            return join([block(numbers) for numbers in self.progress(blocks(), what, unit="block")])

        record = self.record(part, compute)
        shutil.rmtree(kept, ignore_errors=True)
        return record

    def progress(self, items: Iterable[Item], what: str, *, unit: str = "record") -> tqdm[Item]:
        """The items, with a bar that says what is measured, how much of it is left, and where its records are kept."""
        return tqdm(items, desc=what, unit=unit, leave=False, postfix=f"kept in {self.place.name}")


def plain_heads(heads: Iterable[tuple[int, int]]) -> list[list[int]]:
    """A set of heads (layer, head) as a request writes it: a sorted list of [layer, head]."""
    return sorted([int(layer), int(head)] for layer, head in set(heads))
