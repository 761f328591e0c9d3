"""Records of a model: each is measured once, and kept in memory and in a folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from tqdm import tqdm

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer
from util.load_model_and_data import resolved_revision
from util.study import store
from util.study.checked import checked
from util.study.model import AsModel, Model, Pair
from util.study.provenance import digest, lists_digest, provenance, refuse_hooks, versions
from util.study.store import Fields, Record

Texts = Callable[[], Iterable[str]]
Compute = Callable[[], Fields]
Blocks = Callable[[], Sequence[Sequence[int]]]
ComputeBlock = Callable[[Sequence[int]], Fields]
Join = Callable[[list[Fields]], Fields]
AnyMeasurement = TypeVar("AnyMeasurement", bound="Measurement")


def joined(*names: str, axis: int = 0, by: str = "") -> Join:
    """Returns what joins blocks: the named arrays one behind the other, in the order of the numbers `by`, if any."""

    def join(blocks: list[Fields]) -> Fields:
        data = {name: np.concatenate([block[name] for block in blocks], axis) for name in {*names, by} - {""}}
        order = np.argsort(data[by]) if by else slice(None)
        return {name: data[name][order] for name in names}

    return join


class Records:
    """What measures a model, and keeps what it measured. Whatever derives from it has a model, a folder and redo.

    folder: where records are kept. redo: measure again even if there is a record. word_lists: files of data/word_lists
    that prompts are drawn from and that no request has the content of. What was measured or loaded stays in memory.
    """

    model: Model
    folder: Path
    redo: bool
    word_lists: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def pair(self) -> Pair:
        """(model, tokenizer), loaded when first read. Raises what `Model.pair` raises."""
        check_tokenizer(*self.model.pair)
        return self.model.pair

    @cached_property
    def _records(self) -> dict[Path, Record]:
        """What was measured or loaded so far, and what could not be written, by the place of its file."""
        return {}

    @cached_property
    def _asked(self) -> dict[Path, None]:
        """The files of records that were asked for, but for those that another one was measured from."""
        return {}

    @cached_property
    def _lists(self) -> dict[str, str]:
        return {"word_lists": lists_digest(self.word_lists)} if self.word_lists else {}

    @cached_property
    def _provenance(self) -> Fields:
        """What all records have in common; its digests of weights and code take seconds for large models."""
        return provenance(self.model.request, self.pair) | self._lists

    @cached_property
    def _expectation(self) -> Fields:
        """What the provenance of records must say, as far as that is known without the model."""
        dtype = {} if self.model.dtype == "auto" else {"dtype": self.model.dtype}
        revision = resolved_revision(self.model.request["model"])
        return {"revision": revision, "versions": versions(), **dtype, **self._lists}

    @property
    def expected(self) -> Fields:
        """What the provenance of stored records must say, but for their prompts: more is known of a loaded model.

        Raises UnsupportedModel for a loaded model with hooks, of which no record would know.
        """
        if self.model.loaded is None:
            return self._expectation
        refuse_hooks(self.model.loaded[0])
        return {name: said for name, said in self._provenance.items() if name not in ("code_digest", "model", "device")}

    @property
    def origins(self) -> dict[str, Fields]:
        """The provenance of every record that was asked for so far, by the name of its file.

        Records that another one was measured from are left out, so that measuring and loading agree.
        """
        return {file.name: self._records[file].provenance for file in self._asked}

    def record(self, measure: str, compute: Compute, texts: Texts, **asked: Any) -> Record:
        """The record of one measurement, loaded or computed now.

        measure: its name, with a version where its numbers have changed. asked: all that decides its numbers beside
        the model, in plain JSON. compute: its data, and as "provenance", if anything, what the record's has more.
        texts: gives its prompts, or texts that determine them, for the record's digest. Raises what `compute` and
        `store.kept` raise, and NotFinite.
        """
        request = {"measure": measure, **self.model.request, **asked}
        file = store.place_of(request, self.folder)

        def measured() -> Record:
            data = compute()
            more = data.pop("provenance", {}) | {"finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
            self._records[file] = Record(request, self._origin(texts) | more, check_record(data, self.pair[0]))
            return self._records[file]

        asked_before = dict(self._asked)
        if file not in self._records:
            expected = self.expected | ({} if self.model.loaded is None else {"prompt_digest": digest(texts())})
            self._records[file] = store.kept(request, measured, self.folder, expected, self.redo)
        self._asked.clear()
        self._asked.update(asked_before | {file: None})
        return self._records[file]

    def _origin(self, texts: Texts) -> Fields:
        """The provenance of a record that is measured now."""
        return self._provenance | {"prompt_digest": digest(texts())}

    def blocks(
        self, measure: str, blocks: Blocks, compute: ComputeBlock, join: Join, texts: Texts, **asked: Any
    ) -> Record:
        """The record of a measurement that takes long, see `record`; what was measured of it outlives an interruption.

        blocks: gives the numbers of the prompts that are measured together, a minute's work at most. compute: measures
        a block; join: makes the data of those of all blocks, in order. A block is kept until the record is there, and
        is not measured again before, not even under redo.
        """
        request = {"measure": measure, **self.model.request, **asked}
        kept = self.folder / "blocks" / store.place_of(request, self.folder).stem

        def whole() -> Fields:
            origin = self._origin(texts)

            def block(numbers: Sequence[int]) -> Fields:
                named = {**request, "block": list(numbers)}

                def measured() -> Record:
                    return Record(named, origin, check_record(compute(numbers), self.pair[0]))

                return store.kept(named, measured, kept, origin).data

            return join([block(numbers) for numbers in self.progress(blocks(), measure, "block")])

        record = self.record(measure, whole, texts, **asked)
        shutil.rmtree(kept, ignore_errors=True)
        return record

    def progress(self, items: Iterable[Any], what: str, unit: str = "record") -> Any:
        """The items, with a bar that says what is measured, how much is left, and where records are kept."""
        return tqdm(items, desc=what, unit=unit, leave=False, postfix=f"kept in {self.folder.name}")


@checked
class Measurement(Records):
    """Something that is measured of a model with settings of its own: frozen, and checked when it is built.

    model: a `Model` or a model's name. folder: default `paths.material()`. A subclass adds its settings (in the order
    data, k, prompts, seed; the rest by keyword), and defines `own_request` and `texts`. Its parts are methods: each of
    them measures, or loads what was measured before. stem: the name of the measure of all its records.
    """

    model: AsModel = field(default_factory=Model)
    _: KW_ONLY
    folder: Path = field(default_factory=paths.material, compare=False, repr=False)
    redo: bool = field(default=False, compare=False, repr=False)

    stem: ClassVar[str]

    @property
    def own_request(self) -> Fields:
        """Everything that decides the numbers, except for the model, in plain JSON."""
        raise NotImplementedError

    @property
    def texts(self) -> Iterable[str]:
        """The prompts, or texts that determine them."""
        raise NotImplementedError

    @property
    def request(self) -> Fields:
        """What all records ask for, in plain JSON. It needs no loaded model."""
        return {"stem": self.stem, **self.model.request, **self.own_request}

    def replace(self: AnyMeasurement, **changes: Any) -> AnyMeasurement:
        """The same with some arguments changed, and checked again. It shares the model unless that is changed."""
        return replace(self, **changes)

    def twin(self: AnyMeasurement) -> AnyMeasurement:
        """The same on the model's untrained twin."""
        return self.replace(model=self.model.twin())

    def measured(self, compute: Compute, **part: Any) -> Record:
        """The record of one part, see `record`. part: what its request has in addition to `request`."""
        return self.record(self.stem, compute, lambda: self.texts, **self.request, **part)

    def measured_in_blocks(self, blocks: Blocks, compute: ComputeBlock, join: Join, **part: Any) -> Record:
        """The record of a part that takes long, see `blocks`."""
        return self.blocks(self.stem, blocks, compute, join, lambda: self.texts, **self.request, **part)
