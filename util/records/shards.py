"""Shares of a study: what each of several processes measures, where they have nothing in common but a folder.

A piece is a record, or one block of a record that is measured in blocks. Every piece belongs to one shard, which a
digest of its name decides, so that all shards together measure everything and none of them measures what another does.
Nobody waits for a lock: shared file systems may have none, or keep those of processes that were killed. A shard that
was killed and starts again measures what it has not kept.

A study knows nothing of shards but `each`: a loop over records goes on where one of them is another shard's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Provenance = Mapping[str, Any]

# What the provenance of all blocks of a record has to agree in.
DECISIVE = ("revision", "weights", "dtype", "tokenizer_digest", "prompt_digest", "code_digest", "device")


@dataclass(frozen=True)
class Shard:
    """One of several shares, such as the third of 16, "3/16". Raises ValueError unless 1 <= number <= of."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"shard {self}: give a number from 1 to {max(1, self.of)}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def named(cls, text: str) -> Shard:
        """The shard that a text such as "3/16" names. Raises ValueError for any other text."""
        written = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if written is None:
            raise ValueError(f"shard {text!r}: write it like 3/16, the third of 16")
        return cls(int(written[1]), int(written[2]))


def owner(name: str, of: int, block: int = 0) -> int:
    """The number of the shard, of so many, that a record's name, or one of its blocks, belongs to."""
    return (int(sha256(name.encode()).hexdigest()[:8], 16) + block) % of + 1


@dataclass(frozen=True)
class Piece:
    """What is measured and kept at once: a record, or a block of one.

    file: where it is kept. block: its number in its record, None for a record. joined: whether this is a record that is
    made of blocks. chain: the name of the chain that it is a link of, see `chain`.
    """

    file: Path
    block: int | None = None
    joined: bool = False
    chain: str | None = None

    @property
    def record(self) -> str:
        """The name of the record, without that of its folder."""
        return self.file.stem if self.block is None else self.file.parent.name

    def owner(self, of: int) -> int:
        """The number of the shard, of so many, that measures this piece."""
        return owner(self.record, of, self.block or 0) if self.chain is None else owner(self.chain, of)

    def __str__(self) -> str:
        return self.record if self.block is None else f"block {self.block} of {self.record}"


class NotYet(RuntimeError):
    """Something that is asked for belongs to another shard, and is not there yet.

    pieces: what is missing. unknown: what cannot be known before, in words.
    """

    def __init__(self, pieces: Iterable[Piece] = (), unknown: Iterable[str] = ()) -> None:
        self.pieces = tuple(dict.fromkeys(pieces))
        self.unknown = tuple(dict.fromkeys(unknown))
        super().__init__("not there yet: " + "; ".join([*map(str, self.pieces), *self.unknown]))

    @classmethod
    def joined(cls, errors: Sequence[NotYet]) -> NotYet:
        """One error for several, with all that they miss."""
        return cls(
            (piece for error in errors for piece in error.pieces), (word for error in errors for word in error.unknown)
        )


@dataclass
class Share:
    """What one process may do of a study, and what it has seen of it so far.

    shard: whose pieces it measures; None: it measures nothing and loads no model. joins: whether it makes records of
    blocks that are all there. there: the provenance of the pieces that are there; measured: those that this process
    has measured; lacking: those that are not there. inside: whether a piece is measured now: what it asks for is
    measured as well, as no other shard may ever ask for it.
    """

    shard: Shard | None
    joins: bool = True
    there: dict[Piece, Provenance] = field(default_factory=dict)
    measured: list[Piece] = field(default_factory=list)
    lacking: list[Piece] = field(default_factory=list)
    inside: bool = False

    def owns(self, piece: Piece) -> bool:
        """Whether this process measures a piece."""
        return self.shard is not None and (self.inside or piece.owner(self.shard.of) == self.shard.number)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A piece is measured meanwhile."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before

    def found(self, piece: Piece, provenance: Provenance) -> None:
        """Note that a piece is there."""
        self.there[piece] = provenance

    def done(self, piece: Piece, provenance: Provenance) -> None:
        """Note that a piece is there, and that this process has measured it."""
        self.found(piece, provenance)
        self.measured.append(piece)

    def not_yet(self, pieces: Sequence[Piece], unknown: Iterable[str] = ()) -> NotYet:
        """Note that pieces are not there. Returns the error to be raised."""
        self.lacking += pieces
        return NotYet(pieces, unknown)


_SHARE: ContextVar[Share | None] = ContextVar("share", default=None)
_CHAIN: ContextVar[str | None] = ContextVar("chain", default=None)


def active() -> Share | None:
    """The share of this process, None where it measures everything."""
    return _SHARE.get()


@contextmanager
def _sharing(share: Share) -> Iterator[Share]:
    before = _SHARE.set(share)
    try:
        yield share
    finally:
        _SHARE.reset(before)


@contextmanager
def only(shard: Shard) -> Iterator[Share]:
    """Measure the pieces of one shard alone; asking for others raises NotYet unless they are there."""
    with _sharing(Share(shard)) as share:
        yield share


@contextmanager
def looking(*, joins: bool = False) -> Iterator[Share]:
    """Measure nothing and load no model: asking for what is not there raises NotYet.

    joins: make records of blocks that are all there, where that needs no model, and remove blocks of records that are.
    """
    with _sharing(Share(None, joins)) as share:
        yield share


def check_loading(model: str) -> None:
    """Raises NotYet inside of `looking`, where no model is loaded. model: its name."""
    share = active()
    if share is not None and share.shard is None:
        raise share.not_yet([], [f"what the model {model} is needed for"])


# ------------------------------------------------------------------------------------------------ pieces


def piece(file: Path, block: int | None = None, *, joined: bool = False) -> Piece:
    """A record that is kept in a file, or a block of one. Inside of `chain` it is one of its links."""
    return Piece(file, block, joined, _CHAIN.get())


@contextmanager
def chain(name: str) -> Iterator[None]:
    """All records that are asked for inside belong to one shard, which the name decides.

    For steps of which each needs the one before: several shards would do nothing but wait for each other.
    """
    before = _CHAIN.set(name)
    try:
        yield
    finally:
        _CHAIN.reset(before)


def each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The function of every item, in order.

    Where this process measures a share only, an item that is not there yet stops none of those after it. Raises NotYet
    for all of them at the end.
    """
    if active() is None:
        return [function(item) for item in items]
    results, errors = [], list[NotYet]()
    for item in items:
        try:
            results.append(function(item))
        except NotYet as error:
            errors.append(error)
    if errors:
        raise NotYet.joined(errors)
    return results


def beforehand(function: Callable[[Item], Any], items: Iterable[Item]) -> None:
    """Ask for what several of the following records need, where this process measures a share only.

    A record that is asked for while another one is measured is measured too, whoever it belongs to. Asked for
    beforehand it is measured once: raises NotYet until the shard that it belongs to has done so.
    """
    if active() is not None:
        each(function, items)


# ------------------------------------------------------------------------------------------------ provenance


def noted(seconds: float) -> dict[str, Any]:
    """What a piece's provenance has where this process measures a share: the seconds that it took, and whose it is."""
    share = active()
    if share is None or share.shard is None:
        return {}
    return {"seconds": round(seconds, 3), "shard": str(share.shard)}


def made_by(blocks: Iterable[Provenance]) -> dict[str, Any]:
    """What the provenance of a record of blocks has beside that of a record: how many shards have made them."""
    return {"shards": len({block.get("shard") for block in blocks})}


def differences(pieces: Mapping[Piece, Provenance]) -> list[str]:
    """What the provenance of a record's blocks does not agree in, a line for each block that is not like most."""
    lines = []
    usual = {name: Counter(repr(one.get(name)) for one in pieces.values()).most_common(1) for name in DECISIVE}
    for one, provenance in pieces.items():
        found = [
            f"{name} {provenance.get(name)!r} instead of {most[0][0]}"
            for name, most in usual.items()
            if repr(provenance.get(name)) != most[0][0]
        ]
        if found:
            lines.append(f"{one} (shard {provenance.get('shard', 'unknown')}): {', '.join(found)}")
    return lines
