"""Records: what was measured of a model, each measured once, and kept in memory and in a file of a folder.

A file is a pickle of one `bytes` object, which is a safetensors file: `safetensors.numpy.load(pickle.load(file))` gives
its arrays. Its metadata have the rest: "record", the request, the provenance and the data as JSON, in which
{"$array": name} stands for an array, and "sha256", over all of the safetensors file with zeros in its own place. It is
read here without an unpickler, and written whole or not at all; its name depends on the request alone.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from tqdm import tqdm

from util import paths
from util.engine.finite import check_record
from util.engine.handshake import check_tokenizer
from util.load_model_and_data import resolved_revision
from util.study.checked import checked
from util.study.model import AsModel, Model, Pair, digest, lists_digest, provenance, refuse_hooks, versions

Fields = dict[str, Any]  # str, numbers, None, lists, dicts and arrays
Texts = Callable[[], Iterable[str]]
Compute = Callable[[], Fields]
Blocks = Callable[[], Sequence[Sequence[int]]]
ComputeBlock = Callable[[Sequence[int]], Fields]
Join = Callable[[list[Fields]], Fields]
ARRAY = "$array"
NO_DIGEST = b"0" * 64
MARGIN = 64 << 20  # bytes to leave free on the disk


@dataclass(frozen=True)
class Record:
    """What was asked, what it was measured with, and the result."""

    request: Fields
    provenance: Fields
    data: Fields


def encode(record: Record) -> bytes:
    """The bytes of a record's file. Raises TypeError for what JSON and arrays of numbers do not hold."""
    arrays: dict[str, np.ndarray] = {}

    def keep(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise TypeError(f"a record cannot hold {type(value).__name__} {value!r:.60}")
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value).reshape(value.shape)
        return {ARRAY: name}

    text = json.dumps(vars(record), default=keep, ensure_ascii=False)
    inside = save_arrays(arrays, {"record": text, "sha256": NO_DIGEST.decode()})
    inside = inside.replace(NO_DIGEST, sha256(inside).hexdigest().encode(), 1)
    return _pickled(inside)


def _pickled(inside: bytes) -> bytes:
    """The pickle of bytes: protocol 5, then the length in 8 bytes, and a dot behind."""
    return b"\x80\x05\x8e" + len(inside).to_bytes(8, "little") + inside + b"."


def decode(file: bytes) -> Record:
    """The record of a file's bytes. Raises ValueError for a damaged file."""
    inside = file[11:-1]
    if file != _pickled(inside):
        raise ValueError("it is not a pickle of one bytes object")
    try:
        metadata = json.loads(inside[8 : 8 + int.from_bytes(inside[:8], "little")])["__metadata__"]
        text, stored = metadata["record"], metadata["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"it holds no record: {error!r:.200}") from None
    if sha256(inside.replace(stored.encode(), NO_DIGEST, 1)).hexdigest() != stored:
        raise ValueError("its digest is another")
    arrays = load_arrays(inside)
    return Record(**json.loads(text, object_hook=lambda made: arrays[made[ARRAY]] if [*made] == [ARRAY] else made))


def place_of(request: Mapping[str, Any], folder: Path) -> Path:
    """`<measure>-<model>-<digest>.pickle`. Raises TypeError where the request is not plain JSON."""
    text = json.dumps(request, sort_keys=True, allow_nan=False)
    if json.loads(text) != request:
        raise TypeError(f"a request has to be plain JSON: {request!r:.200}")
    words = [re.sub(r"[^A-Za-z0-9._]+", "-", str(request[name]))[-40:].strip("-._") for name in ("measure", "model")]
    return folder / f"{'-'.join(words)}-{sha256(text.encode()).hexdigest()[:16]}.pickle"


def read(request: Mapping[str, Any], folder: Path, expected: Mapping[str, Any]) -> Record | None:
    """The record of a request; None, after a line that says why, where there is none that can be relied on.

    expected: what its provenance must say, as far as that is known; entries that are None on either side are not
    known, and other "versions" of packages are said, but do not matter. A damaged file, for which `decode` raises a
    ValueError, is renamed.
    """
    file = place_of(request, folder)
    try:
        record = decode(file.read_bytes())
        if record.request != request:
            raise ValueError("it is the record of another request")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        with suppress(OSError):
            file.replace(file.with_suffix(".damaged"))
        _tell(f"{file.name} is damaged ({error}) and is measured again")
        return None
    differ = {
        name: f"{name} {record.provenance[name]!r} and not {value!r}"
        for name, value in expected.items()
        if None not in (value, record.provenance.get(name)) and value != record.provenance[name]
    }
    if packages := differ.pop("versions", None):
        _tell_once(f"{file.parent} has records that were measured with {packages}")
    if differ:
        _tell(f"{file.name} has {'; '.join(differ.values())}: it is measured again")
        return None
    return record


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_tell_once = cache(_tell)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Makes a folder to write to. Raises OSError, naming the cure, where there is no room or no permission."""
    try:
        if paths.clone() is None and not folder.exists():
            _tell(f"what is measured is kept in {folder}; ICL_MATERIAL names another folder")
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        cure = "free space, or choose another folder with ICL_MATERIAL"
        raise OSError(f"cannot write to {folder} ({error.strerror or error}): {cure}") from error


def write(record: Record, folder: Path) -> None:
    """Writes a record's file whole. Raises OSError, naming the cure, where there is no room or no permission."""
    file, content = place_of(record.request, folder), encode(record)
    with _writing(folder):
        if shutil.disk_usage(folder).free < len(content) + MARGIN:
            raise OSError("the disk is full")
        paths.write_whole(file, content)


@contextmanager
def kept(request: Fields, folder: Path, expected: Mapping[str, Any], *, redo: bool = False) -> Iterator[list[Record]]:
    """Gives a list with the stored record of a request; who finds it empty measures, and appends the record to be kept.

    Of several processes one measures, and the others wait. Raises OSError as `write` does, before anything is measured
    where the folder cannot be written to.
    """
    file = place_of(request, folder)

    def stored() -> list[Record]:
        record = None if redo else read(request, folder, expected)
        return [record] if record else []

    if records := stored():
        yield records
        return
    with _writing(folder):
        lock = paths.locked(file, f"measures {file.name}")
    with lock:
        records = stored()  # what another process has measured meanwhile
        missing = not records
        yield records
        if missing:
            write(records[0], folder)


def chunks(numbers: Sequence[int], size: int) -> list[list[int]]:
    """Returns numbers in blocks of at most `size`, in their order."""
    return [list(numbers[start : start + size]) for start in range(0, len(numbers), size)]


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

    @property
    def places(self) -> Fields:
        """`folder` and `redo`, for what is measured beside it."""
        return {"folder": self.folder, "redo": self.redo}

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

    @property
    def _provenance(self) -> Fields:
        """What all records have in common, found out again where weights were changed in place.

        Its digests of weights and code take seconds for large models.
        """
        changes = sum(0 if weight.is_inference() else weight._version for weight in self.pair[0].parameters())
        if changes not in self._provenances:
            self._provenances[changes] = provenance(self.model.request, self.pair) | self._lists
        return self._provenances[changes]

    @cached_property
    def _provenances(self) -> dict[int, Fields]:
        return {}

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
        return {
            name: value for name, value in self._provenance.items() if name not in ("code_digest", "model", "device")
        }

    @property
    def origins(self) -> dict[str, Fields]:
        """The provenance of every record that was asked for so far, by the name of its file.

        Records that another one was measured from are left out, so that measuring and loading agree.
        """
        return {file.name: self._records[file].provenance for file in self._asked}

    @contextmanager
    def _asked_for(self, request: Fields, texts: Texts) -> Iterator[list[Record]]:
        """Gives the record of a request as `kept` does; what could not be written stays in memory."""
        file, before = place_of(request, self.folder), dict(self._asked)
        if file in self._records:
            yield [self._records[file]]
        else:
            expected = self.expected | ({} if self.model.loaded is None else {"prompt_digest": digest(texts())})
            with kept(request, self.folder, expected, redo=self.redo) as records:
                yield records
                self._records[file] = records[0]
        self._asked.clear()
        self._asked.update(before | {file: None})

    def _made(self, request: Fields, data: Fields, texts: Texts) -> Record:
        """The record of what is measured now. Raises NotFinite."""
        more = data.pop("provenance", {}) | {"finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
        origin = self._provenance | {"prompt_digest": digest(texts())}
        return Record(request, origin | more, check_record(data, self.pair[0]))

    def record(self, measure: str, compute: Compute, texts: Texts, **fields: Any) -> Record:
        """The record of one measurement, loaded or computed now.

        measure: its name, with a version where its numbers have changed. fields: all that decides its numbers beside
        the model, in plain JSON. compute: its data, and as "provenance", if anything, what the record's has more.
        texts: gives its prompts, or texts that determine them, for the record's digest. Raises what `compute` and
        `kept` raise, and NotFinite.
        """
        request = {"measure": measure, **self.model.request, **fields}
        with self._asked_for(request, texts) as records:
            if not records:
                records.append(self._made(request, compute(), texts))
        return records[0]

    def blocks(
        self, measure: str, blocks: Blocks, compute: ComputeBlock, join: Join, texts: Texts, **fields: Any
    ) -> Record:
        """The record of a measurement that takes long, see `record`; what was measured of it outlives an interruption.

        blocks: gives the numbers of the prompts that are measured together, a minute's work at most. compute: measures
        a block; join: makes the data of those of all blocks, in order. A block is kept until the record is there, and
        is not measured again before, not even under redo.
        """
        request = {"measure": measure, **self.model.request, **fields}
        folder = self.folder / "blocks" / place_of(request, self.folder).stem
        with self._asked_for(request, texts) as records:
            if not records:
                origin, parts = self._provenance | {"prompt_digest": digest(texts())}, list[Record]()
                for numbers in self.progress(blocks(), measure, "block"):
                    named = {**request, "block": list(numbers)}
                    with kept(named, folder, origin) as part:
                        if not part:
                            part.append(Record(named, origin, check_record(compute(numbers), self.pair[0])))
                    parts += part
                records.append(self._made(request, join([part.data for part in parts]), texts))
        shutil.rmtree(folder, ignore_errors=True)
        return records[0]

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

    def replace(self, **changes: Any) -> Self:
        """The same with some arguments changed, and checked again. It shares the model unless that is changed."""
        return replace(self, **changes)

    def twin(self) -> Self:
        """The same on the model's untrained twin."""
        return self.replace(model=self.model.twin())

    def measured(self, compute: Compute, **part: Any) -> Record:
        """The record of one part, see `record`. part: what its request has in addition to `request`."""
        return self.record(self.stem, compute, lambda: self.texts, **self.request, **part)

    def measured_in_blocks(self, blocks: Blocks, compute: ComputeBlock, join: Join, **part: Any) -> Record:
        """The record of a part that takes long, see `blocks`."""
        return self.blocks(self.stem, blocks, compute, join, lambda: self.texts, **self.request, **part)
