"""A study measured by several processes or machines, which have nothing in common but a folder.

On a cluster: write the study down once, with the arguments that its notebook gives it,

    {"study": "forerunner_heads", "model": "smollm2", "dataset": "trec", "k": 4, "prompts": 512}

start a process for each shard, with a GPU or with as many cores as the others, on a folder that all of them see,

    python -m util collect study.json --shard 1/3 --folder records --wait 10      (and 2/3, and 3/3)

look how far they are, on any machine,

    python -m util collect study.json --status --folder records

and when all is there, check it and tidy up, without a model or GPU:

    python -m util collect study.json --merge --folder records

The notebook reads the folder where ICL_MATERIAL names it. A process that is killed is started again with the same
command: it goes on where it stopped, a block of a minute at most is lost. Shards may be started in any order, one after
the other too: a shard ends when nothing is left that it can do, and says for which others it would wait. With --wait it
ends when nothing new of theirs has come for so many minutes, as when the queue holds them back.
The numbers are, bit for bit, those of one process on such a machine.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from util.commands import studies
from util.commands.estimate import estimate
from util.commands.studies import Collection
from util.engine.call import UnsupportedModel
from util.prompts.prompt import UnsupportedTokenizer
from util.records import shards
from util.records.cache import ensure_writable
from util.records.shards import NotYet, Piece, Shard, Share

LOOK_AGAIN = 3.0  # seconds between two looks at what other shards have done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("file", type=Path, metavar="STUDY.json", help="the study, its arguments and, if not all, parts")
    doing = parser.add_mutually_exclusive_group()
    about = "measure this share, such as 3/16 (default: 1/1, everything)"
    doing.add_argument("--shard", type=_shard, metavar="I/N", help=about)
    doing.add_argument("--status", action="store_true", help="say what is there and what it will still take")
    doing.add_argument("--merge", action="store_true", help="check what all shards have measured, and tidy up")
    about = "for other shards, so many minutes without anything new of theirs (default: end, and say what is missing)"
    parser.add_argument("--wait", type=float, metavar="MINUTES", help=about)
    parser.add_argument("--folder", type=Path, help="of the records (default: ICL_MATERIAL)")
    parser.set_defaults(error=parser.error)


def run(arguments: argparse.Namespace) -> None:
    """Measure a share, or say what is there, or check all of it. Raises ValueError for what there is not.

    Raises ValueError, too, where parts cannot be measured or merged.
    """
    if arguments.wait is not None and (arguments.shard is None or not arguments.wait > 0):
        arguments.error("--wait: give minutes above 0, and --shard; nothing else waits")
    collection = studies.read(arguments.file, arguments.folder)
    if arguments.status:
        print(*status_lines(collection), sep="\n")
    elif arguments.merge:
        print(*merge(collection), sep="\n")
    else:
        shard = arguments.shard or Shard(1, 1)
        measure(collection, shard, 60 * (arguments.wait or 0.0), partial(ahead_lines, collection, shard))


def _shard(text: str) -> Shard:
    try:
        return Shard.named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# ------------------------------------------------------------------------------------------------ measuring


def measure(collection: Collection, shard: Shard, wait: float = 0.0, tell: Callable[[], Sequence[str]] = tuple) -> None:
    """Measure a shard's share of all parts, and say what was measured.

    wait: seconds, at most, that it waits for other shards without anything new of theirs. tell: gives lines that are
    said before anything is measured. It is asked before every round until it has some: what a shard has to do may be
    known only when others have measured theirs. Raises ValueError for parts that cannot be measured on this model; the
    others are measured.
    """
    ensure_writable(collection.study.place)
    print(f"shard {shard} of {collection.title}, in {collection.study.place}", flush=True)
    ahead, refused, seen, end = dict(collection.parts), dict[str, str](), set[Piece](), time.monotonic() + wait
    told: Sequence[str] = ()
    while ahead:
        if not told:
            told = tell()
            print("".join(f"{line}\n" for line in told), end="", flush=True)
        lacking, before = list[Piece](), len(seen)
        for name in list(ahead):
            with shards.only(shard) as share:
                try:
                    ahead[name]()
                    del ahead[name]
                except NotYet:
                    lacking += share.lacking
                except ValueError as error:  # such as a class whose layers cannot be taken apart
                    refused[name] = str(error)
                    del ahead[name]
            if share.measured or name not in ahead or not before:
                said = refused.get(name) or _missing(share.lacking, shard)
                print(f"{name}: {_counted(share.measured)} measured; {said or 'all is there'}", flush=True)
            seen.update(share.there)
        if not ahead or len(seen) > before:
            end = time.monotonic() + wait
            continue
        if time.monotonic() >= end:
            break
        print(f"waiting: {_missing(lacking, shard)}", flush=True)
        _wait_for_one(lacking, end)
    if ahead:
        waited = f"; waited {wait / 60:.3g} minutes without anything new" if wait else ""
        said = f"the share that can be measured now is done; {_missing(lacking, shard)}{waited}"
        print(f"{said}; run again when they are done", flush=True)
    if refused:
        raise ValueError("\n".join(f"{name} cannot be measured: {why}" for name, why in refused.items()))


def ahead_lines(collection: Collection, shard: Shard) -> list[str]:
    """What all missing parts will take, in lines, for which the model is loaded.

    [], and no model is loaded, where nothing that is known to be missing is for this shard to measure.
    """
    found = look(collection)
    mine = {piece for one in found.values() for piece in one.missing if piece.owner(shard.of) == shard.number}
    if not mine:
        return []
    parts = [name for name, one in found.items() if not one.refused]
    try:
        first, *rest = estimate(collection.measuring, parts).lines
    except (UnsupportedModel, UnsupportedTokenizer):  # the parts say of what; others can be measured
        return []
    shared = f", shared by {shard.of} shards" if shard.of > 1 else ""
    return [f"what is missing takes {first}{shared}", *rest]


def _wait_for_one(pieces: Sequence[Piece], end: float) -> None:
    """Wait until one of some pieces is written, by another shard, or the time is over."""
    files = {piece.file for piece in pieces}
    before = {file: _written(file) for file in files}
    while time.monotonic() < end and before == {file: _written(file) for file in files}:
        time.sleep(min(LOOK_AGAIN, max(0.0, end - time.monotonic())))


def _written(file: Path) -> int | None:
    """When a file was written, None where there is none."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def _counted(pieces: Iterable[Piece]) -> str:
    """How many records and blocks some pieces are, in words. Records that are made of blocks take no time."""
    several = {piece for piece in pieces if not piece.joined}
    blocks = sum(piece.block is not None for piece in several)
    counts = {"record": len(several) - blocks, "block": blocks}
    return ", ".join(_number(count, what) for what, count in counts.items() if count) or "nothing"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def _missing(pieces: Iterable[Piece], shard: Shard) -> str:
    """What is missing, and whose it is, in words; "" for nothing."""
    several = [piece for piece in pieces if not piece.joined]
    owners = sorted({piece.owner(shard.of) for piece in several})
    if not several:
        return ""
    whose = "shard" if len(owners) == 1 else "shards"
    return f"missing: {_counted(several)} of {whose} {', '.join(map(str, owners))}"


# ------------------------------------------------------------------------------------------------ looking


@dataclass
class Look:
    """What is there of a part. share: which pieces; unknown: what cannot be known yet; refused: why it cannot be."""

    share: Share
    unknown: tuple[str, ...] = ()
    refused: str = ""
    missing: set[Piece] = field(default_factory=set)

    @property
    def is_whole(self) -> bool:
        """Whether all of the part is there."""
        return not (self.unknown or self.missing or self.refused)


def look(collection: Collection, *, joins: bool = False) -> dict[str, Look]:
    """What is there of each part; no model is loaded. joins: see `shards.looking`."""
    found = {}
    for name, part in collection.parts.items():
        with shards.looking(joins=joins) as share, contextlib.redirect_stdout(io.StringIO()):
            found[name] = Look(share)
            try:
                part()
            except NotYet as error:
                found[name].unknown = error.unknown
            except ValueError as error:  # as the part says of a model that it cannot be measured on
                found[name].refused = str(error)
            found[name].missing = set(share.lacking) - {*share.there}
    return found


def status_lines(collection: Collection) -> list[str]:
    """What is there of each part, and how long the rest will take, in lines. No model is loaded."""
    found = look(collection)
    width = max(map(len, found))
    lines = [f"{collection.title}, in {collection.study.place}"]
    lines += [f"{name:{width}}  {_of_part(one)}" for name, one in found.items()]
    there = {piece: origin for one in found.values() for piece, origin in one.share.there.items()}
    missing = {piece for one in found.values() for piece in one.missing}
    made_by = {str(origin["shard"]) for origin in there.values() if "shard" in origin}
    of = max((Shard.named(text).of for text in made_by), default=1)
    lines.append(f"shards seen: {', '.join(sorted(made_by)) or 'none'}")
    left: float | None = 0.0
    for what, is_block in (("block", True), ("record", False)):
        taken = [
            float(origin["seconds"])
            for piece, origin in there.items()
            if "seconds" in origin and not piece.joined and (piece.block is not None) == is_block
        ]
        ahead = sum(not piece.joined and (piece.block is not None) == is_block for piece in missing)
        mean = sum(taken) / len(taken) if taken else None
        said = "not known yet" if mean is None else f"{mean:.3g} s each"
        if ahead:
            lines.append(f"{_number(ahead, what)} to measure, {said}")
            left = None if left is None or mean is None else left + ahead * mean
    if all(one.is_whole for one in found.values()):
        return [*lines, "all is there; --merge checks it and removes the blocks"]
    time_left = "not known yet" if left is None else f"about {left / 60 / of:.1f} minutes with {_number(of, 'shard')}"
    return [*lines, f"still to take: {time_left}, and what is not known yet"]


def _of_part(one: Look) -> str:
    """What is there of a part, in words."""
    if one.refused:
        return f"cannot be measured: {one.refused}"
    pieces = {*one.share.there, *one.missing}
    records = [piece for piece in pieces if piece.block is None]
    blocks = [piece for piece in pieces if piece.block is not None]
    told = [f"{sum(piece in one.share.there for piece in records)} of {_number(len(records), 'record')}"]
    if blocks:
        told.append(f"{sum(piece in one.share.there for piece in blocks)} of {_number(len(blocks), 'block')}")
    if not pieces and not one.unknown:
        return "those of the parts above"
    unknown = [*one.unknown, *(["what depends on missing ones"] if one.missing else [])]
    return ", ".join(told) + (f"; not known yet: {', '.join(unknown)}" if unknown else "")


def merge(collection: Collection) -> list[str]:
    """Check all parts, make records of blocks that are all there, and remove the blocks; what was done, in lines.

    No model is loaded. Raises ValueError, which says what of whom, where something is missing, or blocks do not agree
    in what made them.
    """
    found = look(collection, joins=True)
    lines = []
    for name, one in found.items():
        if not one.is_whole:
            shard = _shards_of(one.share)
            told = (
                [_missing(one.missing, shard) if shard else f"missing: {_counted(one.missing)}"] if one.missing else []
            )
            lines.append(f"{name}: {'; '.join(filter(None, [one.refused, *told, *one.unknown]))}")
    if lines:
        raise ValueError("\n".join([f"{collection.title} is not whole in {collection.study.place}", *lines]))
    with contextlib.suppress(OSError):  # it is not empty, or not there
        (collection.study.place / "blocks").rmdir()
    records = {piece for one in found.values() for piece in one.share.there if piece.block is None}
    return [f"{collection.title}: {_number(len(found), 'part')}, {_number(len(records), 'record')}, all there"]


def _shards_of(share: Share) -> Shard | None:
    """One of the shards that have made the pieces of a share; None where these were not as many as each other."""
    counts = {Shard.named(str(origin["shard"])).of for origin in share.there.values() if "shard" in origin}
    return Shard(1, counts.pop()) if len(counts) == 1 else None
