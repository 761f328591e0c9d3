"""What all studies have in common: a checked request, a model, and records that are cached one by one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedModel

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer, refuse_hooks
from util.records import cache, shards
from util.records.checked import checked
from util.records.model import AsModel, Model
from util.records.provenance import code_digest, digest, expectation, lists_digest, provenance

AnyStudy = TypeVar("AnyStudy", bound="Study")
Item = TypeVar("Item")


@checked
class Study:
    """What is to be measured on which model. This is the base class of every figure's study.

    A study is frozen, and checked when it is built; `replace` returns another study, which is checked again. The parts
    of a study are methods: each of them measures, or loads what was measured before, and returns a frozen result.

    model: a `Model` or a model's name. folder: where records are kept, default `paths.material()`. redo: measure again
    even if there is a record. A subclass adds its own arguments (in the order data, k, prompts, seed; the rest by
    keyword) and defines `own_request` and `texts`. Where prompts are drawn from files of data/word_lists whose content
    is not part of the request, it names these files in `word_lists`. In `parts` it names its methods without arguments
    that measure, or load, all that a section of its notebook shows.
    """

    model: AsModel = field(default_factory=Model)
    _: KW_ONLY
    folder: Path | None = field(default=None, compare=False, repr=False)
    redo: bool = field(default=False, compare=False, repr=False)

    stem: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ()
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
    def request(self) -> cache.Request:
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

    def record(self, part: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> cache.Record:
        """The record of one part of the study, loaded or computed now.

        part: the fields that the request of this part has in addition to `request`. compute: measures the data. Raises
        what `cache.load_or_compute` raises, and NotFinite for data that are NaN or infinite where they may not be. And
        NotYet for a record that is not there and belongs to another shard, see `shards`.
        """
        request, share = {**self.request, **part}, shards.active()
        get = partial(self._computed, request, compute)
        if share is not None:
            get = partial(self._shared, share, request, compute)
        return self._noted(cache.record_path(request, self.place), get)

    def _noted(self, file: Path, get: Callable[[], cache.Record]) -> cache.Record:
        """A record, whose provenance is kept among `origins`; those of what it asks for are not."""
        asked_before = dict(self.origins)
        try:
            asked_before[file.name] = (record := get()).provenance
        finally:
            self.origins.clear()
            self.origins.update(asked_before)
        return record

    def _computed(
        self, request: cache.Request, compute: Callable[[], dict[str, Any]], more: Mapping[str, Any] | None = None
    ) -> cache.Record:
        """The record of a request, loaded or computed now. more: what else its provenance says."""

        def measured() -> tuple[dict[str, Any], dict[str, Any]]:
            began = time.monotonic()
            data = check_record(compute(), self.pair[0])
            return data, self.origin | _finished() | shards.noted(time.monotonic() - began) | dict(more or {})

        lock = shards.active() is None
        return cache.load_or_compute(request, measured, self.place, self.expected, self.redo, lock=lock)

    def record_in_blocks(
        self,
        part: Mapping[str, Any],
        blocks: Callable[[], Sequence[Sequence[int]]],
        measure: Callable[[Sequence[int]], dict[str, Any]],
        join: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
    ) -> cache.Record:
        """The record of a part that takes long, see `record`; what was measured of it outlives an interruption.

        blocks: gives the numbers of the prompts that are measured together, a minute's work at most. measure: measures
        one block. join: makes the record's data of those of all blocks, in order. None of the three is called if there
        is a record. A block is kept until the record is there, and is not measured again before, not even under redo.
        """
        request = {**self.request, **part}
        whole = cache.record_path(request, self.place)
        kept = self.place / "blocks" / whole.stem
        share = shards.active()
        if share is not None:
            return self._noted(whole, _SharedBlocks(self, share, part, blocks, measure, join).record)

        def compute() -> dict[str, Any]:
            bar = self.progress(blocks(), self._shown(part), unit="block")
            return join([self._block(request, list(numbers), partial(measure, numbers), kept).data for numbers in bar])

        record = self.record(part, compute)
        _remove_older(kept, whole)
        return record

    def progress(self, items: Iterable[Item], what: str, *, unit: str = "record") -> tqdm[Item]:
        """The items, with a bar that says what is measured, how much of it is left, and where its records are kept."""
        return tqdm(items, desc=what, unit=unit, leave=False, postfix=f"kept in {self.place.name}")

    def _shown(self, part: Mapping[str, Any]) -> str:
        """What bars say of a part."""
        name = cache.record_path({**self.request, **part}, self.place).stem
        return ", ".join([name.rpartition("-")[0], *filter(None, [part.get("part")])])

    @property
    def _decisive(self) -> dict[str, Any]:
        """What the provenance of a block has to say."""
        return {name: self.origin[name] for name in (*shards.DECISIVE, "settings")}

    def _block(
        self, request: cache.Request, numbers: list[int], measure: Callable[[], dict[str, Any]], kept: Path
    ) -> cache.Record:
        """The record of one block, measured now or kept by a run of the same code on the same weights and prompts.

        The provenance of the record of all blocks is that of the run that joins them, so device and versions are the
        same as well.
        """

        def measured() -> tuple[dict[str, Any], dict[str, Any]]:
            began = time.monotonic()
            data = check_record(measure(), self.pair[0])
            return data, self.origin | shards.noted(time.monotonic() - began)

        named = _block_request(request, numbers, self.origin["versions"])
        return cache.load_or_compute(named, measured, kept, self._decisive, lock=shards.active() is None)

    # -------------------------------------------------------------------------------------------- shards

    def _shared(
        self, share: shards.Share, request: cache.Request, compute: Callable[[], dict[str, Any]]
    ) -> cache.Record:
        """A record that is there, or belongs to the shard of this process. Raises NotYet for any other."""
        piece = shards.piece(cache.record_path(request, self.place))
        record = self._loaded(request)
        if record is not None:
            share.found(piece, record.provenance)
            return record
        if not share.owns(piece):
            raise share.not_yet([piece])
        with share.measuring():
            record = self._computed(request, compute)
        share.done(piece, record.provenance)
        return record

    def _loaded(self, request: cache.Request) -> cache.Record | None:
        """The record where it is there. Raises ValueError under redo, which several processes cannot share."""
        if self.redo:
            raise ValueError("redo = True: shards measure what is not there; give them another folder")
        return cache.load(request, self.place, self.expected)


@dataclass
class _SharedBlocks:
    """A record in blocks, see `Study.record_in_blocks`, of which this process measures those of its shard.

    Who finds all blocks joins them. They stay, as other shards may be about to read them, unless there is one shard
    only, or none is at work any more.
    """

    study: Study
    share: shards.Share
    part: Mapping[str, Any]
    blocks: Callable[[], Sequence[Sequence[int]]]
    measure: Callable[[Sequence[int]], dict[str, Any]]
    join: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]

    @cached_property
    def request(self) -> cache.Request:
        """That of the whole record."""
        return {**self.study.request, **self.part}

    @cached_property
    def whole(self) -> shards.Piece:
        """The whole record."""
        return shards.piece(cache.record_path(self.request, self.study.place), joined=True)

    @property
    def kept(self) -> Path:
        """The folder of the blocks."""
        return self.study.place / "blocks" / self.whole.record

    def record(self) -> cache.Record:
        """The record, loaded or joined now. Raises NotYet where blocks are missing."""
        record = self.study._loaded(self.request) or self._joined()
        self.share.found(self.whole, record.provenance)
        alone = self.share.shard is None or self.share.shard.of == 1
        if self.share.joins and alone:
            _remove(self.kept)
        return record

    @cached_property
    def pieces(self) -> dict[shards.Piece, cache.Request]:
        """The blocks, and their requests. Raises NotYet where no shard has written down yet which there are.

        The first shard does, so that others can look at the blocks without a model.
        """
        study, looking = self.study, self.share.shard is None
        request = {**self.request, "planned": "blocks"}
        known = study.expected if looking else {**study.expected, "code_digest": code_digest()}
        plan = cache.load(request, self.kept, known)
        if plan is None and looking:
            raise self.share.not_yet([self.whole], ["which blocks some records have"])
        if plan is None:
            plan = cache.load_or_compute(request, self._planned, self.kept, known, lock=False)
        versions = plan.provenance["versions"] if looking else study.expected["versions"]
        pieces = {}
        for place, numbers in enumerate(np.split(plan.data["numbers"], plan.data["ends"][:-1])):
            named = _block_request(self.request, numbers.tolist(), versions)
            pieces[shards.piece(cache.record_path(named, self.kept), place)] = named
        return pieces

    def _planned(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The numbers of all blocks, one after the other, and where each block ends."""
        blocks = [list(numbers) for numbers in self.blocks()]
        numbers = np.array([number for block in blocks for number in block], np.int64)
        return {"numbers": numbers, "ends": np.cumsum([len(block) for block in blocks])}, dict(self.study.origin)

    def _joined(self) -> cache.Record:
        """The record of all blocks, after those of this process's shard were measured."""
        unknown: list[str] = []
        own = [piece for piece in self.pieces if self.share.owns(piece) and not piece.file.exists()]
        try:
            shards.each(self._block, self.study.progress(own, self.study._shown(self.part), unit="block"))
        except shards.NotYet as error:  # they need another record, which is missing
            self.share.lacking += error.pieces
            unknown += error.unknown
        there = [piece for piece in self.pieces if piece.file.exists()]
        if len(there) < len(self.pieces):
            missing = [piece for piece in self.pieces if piece not in there]
            if self.share.shard is None:
                with suppress(shards.NotYet):  # of a damaged one
                    shards.each(self._block, there)
            else:
                self.share.there.update({piece: {} for piece in there if piece not in self.share.there})
            raise self.share.not_yet([*missing, self.whole], unknown)
        records = dict(zip(self.pieces, shards.each(self._block, self.pieces), strict=True))
        if self.share.shard is None:
            return self._joined_unloaded(records)
        data = [record.data for record in records.values()]
        made_by = shards.made_by(record.provenance for record in records.values())
        return self.study._computed(self.request, lambda: self.join(data), made_by)

    def _block(self, piece: shards.Piece) -> cache.Record:
        """A block that is there, or belongs to the shard of this process. Raises NotYet for any other."""
        study, request = self.study, self.pieces[piece]
        record = cache.load(request, self.kept, None if self.share.shard is None else study._decisive)
        if record is not None:
            self.share.found(piece, record.provenance)
            return record
        if not self.share.owns(piece):
            raise self.share.not_yet([piece, self.whole])
        with self.share.measuring():
            record = study._block(self.request, request["block"], partial(self.measure, request["block"]), self.kept)
        self.share.done(piece, record.provenance)
        return record

    def _joined_unloaded(self, records: Mapping[shards.Piece, cache.Record]) -> cache.Record:
        """The record of all blocks, with the provenance of these. Raises NotYet where joining needs the model."""
        study, origins = self.study, {piece: record.provenance for piece, record in records.items()}
        if not self.share.joins:
            raise self.share.not_yet([self.whole])
        if other := shards.differences(origins):
            raise self.share.not_yet([self.whole], other)
        try:
            data = check_record(self.join([record.data for record in records.values()]), None)
        except shards.NotYet:
            how = f"the blocks of {self.whole} are all there, and to join them needs the model: run any shard again"
            raise self.share.not_yet([self.whole], [how]) from None
        first = next(iter(origins.values()))
        origin = {name: value for name, value in first.items() if name not in ("seconds", "shard")}
        provenance = origin | _finished() | shards.made_by(origins.values())
        return cache.load_or_compute(self.request, lambda: (data, provenance), study.place, study.expected, lock=False)


def _block_request(request: cache.Request, numbers: list[int], versions: Mapping[str, str]) -> cache.Request:
    """The request of a block of a record."""
    return {**request, "block": numbers, "versions": versions}


def _finished() -> dict[str, str]:
    """What the provenance of a record says of when it was made."""
    return {"finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}


def _remove_older(kept: Path, whole: Path) -> None:
    """Remove the blocks in a folder that are no newer than the record that was made of them.

    Newer ones are those of a redo that another process has begun.
    """
    with suppress(OSError):
        _remove(kept, whole.stat().st_mtime_ns)


def _remove(kept: Path, until: float = math.inf) -> None:
    """Remove the blocks in a folder that were written until then, and what processes that were killed left of others.

    until: in nanoseconds, as files have it.
    """
    with suppress(OSError):  # gone already, or in a folder that may only be read
        for file in [*kept.glob("*.pickle"), *kept.glob(f"{cache.TEMPORARY}*")]:
            if file.stat().st_mtime_ns <= until:
                file.unlink()
                Path(f"{file}.lock").unlink(missing_ok=True)
        kept.rmdir()


def plain_heads(heads: Iterable[tuple[int, int]]) -> list[list[int]]:
    """A set of heads (layer, head) as a request writes it: a sorted list of [layer, head]."""
    return sorted([int(layer), int(head)] for layer, head in set(heads))
