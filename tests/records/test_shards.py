"""Shares of a study: the same bits by one, two and three shards, in any order, killed or not, and none of it twice."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import shard_runs
from tests.shard_runs import Numbers, collection, contents, measured, tiny
from util.commands import collect
from util.records import cache, shards
from util.records.model import Model
from util.records.shards import NotYet, Piece, Shard, owner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a run without shards gives: the digests of all records, and what it has measured."""
    folder = tmp_path_factory.mktemp("alone")
    Numbers(tiny(), folder=folder).everything()
    assert set(measured(folder).values()) == {1}
    return contents(folder), set(measured(folder))


def in_turn(folder, order, of, rounds=30):
    """Run shards one after the other, each as often as something is missing. Returns how many rounds there were."""
    for number in range(1, rounds + 1):
        for shard in order:
            collect.measure(collection(folder), Shard(shard, of))
        if all(one.is_whole for one in collect.look(collection(folder)).values()):
            return number
    pytest.fail(f"not whole after {rounds} rounds")


def merged(folder):
    """Merge a folder where no model can be loaded."""
    lines = collect.merge(unloadable(folder))
    assert not (folder / "blocks").exists()
    return lines


def unloadable(folder):
    """The study with a model that cannot be loaded."""
    study = Numbers(Model("given:tiny", loader=lambda: pytest.fail("the model is loaded")), folder=folder)
    return collect.Collection(study, study.stem, (study,), {part: getattr(study, part) for part in study.parts})


# ------------------------------------------------------------------------------------------------ owners


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_every_piece_belongs_to_just_one_shard(of):
    names = [Piece(Path(f"record {number}.pickle")) for number in range(40)]
    blocks = [Piece(Path(f"blocks/record {n}/{b}.pickle"), block=b) for n in range(5) for b in range(9)]
    owners = Counter[int]()
    for piece in names + blocks:
        shares = [shards.Share(Shard(number, of)) for number in range(1, of + 1)]
        assert [share.owns(piece) for share in shares].count(True) == 1
        owners[piece.owner(of)] += 1
    assert set(owners) == set(range(1, of + 1))


def test_blocks_of_a_record_go_round():
    owners = [owner("a record", 3, block) for block in range(9)]
    assert owners == owners[:3] * 3 and sorted(owners[:3]) == [1, 2, 3]


def test_owners_are_those_of_other_machines():
    """Not of Python's own hashes, which differ from one process to the next."""
    assert [owner(name, 16) for name in ("a", "b", "c")] == [3, 7, 4]


WRONG = {
    "0/3": "from 1 to 3",
    "4/3": "from 1 to 3",
    "1/0": "from 1 to 1",
    "a/b": "write it like 3/16",
    "3": "like 3/16",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(ValueError, match=WRONG[text]):
        Shard.named(text)


# ------------------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("order", [order for of in (1, 2, 3) for order in itertools.permutations(range(1, of + 1))])
def test_shards_in_any_order_give_the_same_bits_and_measure_nothing_twice(order, alone, tmp_path):
    in_turn(tmp_path, order, len(order))
    merged(tmp_path)
    assert contents(tmp_path) == alone[0]
    assert measured(tmp_path) == dict.fromkeys(alone[1], 1)


def test_processes_at_the_same_time_killed_or_not_give_the_same_bits(alone, tmp_path):
    """Killed at random moments, nothing is measured twice but what was at work then."""
    runs = [
        (str(tmp_path / str(number)), of, kills, number) for number, (of, kills) in enumerate([(3, 0), (2, 4), (3, 6)])
    ]
    command = [sys.executable, "-m", "tests.shard_runs", json.dumps(runs)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    for folder, _, kills, _ in runs:
        assert contents(Path(folder)) == alone[0]
        times = measured(Path(folder))
        assert set(times) == alone[1] and sum(times.values()) <= len(alone[1]) + 2 * kills
        merged(Path(folder))


def test_numbers_of_shards_may_change_on_the_way(alone, tmp_path):
    collect.measure(collection(tmp_path), Shard(2, 3))
    in_turn(tmp_path, (1, 2), 2)
    merged(tmp_path)
    assert contents(tmp_path) == alone[0] and set(measured(tmp_path).values()) == {1}


def test_without_shards_the_rest_is_measured(alone, tmp_path):
    collect.measure(collection(tmp_path), Shard(2, 3))
    Numbers(tiny(), folder=tmp_path).everything()
    assert contents(tmp_path) == alone[0] and set(measured(tmp_path).values()) == {1}


def test_a_record_of_shards_says_how_many_made_it_and_its_request_says_nothing(three):
    records = [cache.read(file) for file in three.glob("*.pickle")]
    blocks = [record for record in records if record.request["part"] == "blocks"]
    assert [record.provenance["shards"] for record in blocks] == [3]
    assert all("shard" not in str(record.request) for record in records)
    assert all(record.provenance["seconds"] >= 0 for record in records)


# ------------------------------------------------------------------------------------------------ what is missing


def test_what_is_not_there_is_named_with_all_that_is_missing(tmp_path):
    study = Numbers(tiny(), folder=tmp_path)
    with shards.only(Shard(1, 3)) as share, pytest.raises(NotYet) as error:
        study.many()
    missing = {piece for piece in error.value.pieces}
    assert missing == set(share.lacking) and {piece.owner(3) for piece in missing} == {2, 3}
    assert len(missing) + len(share.measured) == 7


def test_not_yet_is_no_error_that_a_card_takes_for_a_refusal():
    assert not issubclass(NotYet, ValueError)


def test_each_is_a_plain_loop_without_shards():
    seen = []

    def stop(number):
        seen.append(number)
        raise NotYet(unknown=["this"])

    with pytest.raises(NotYet):
        shards.each(stop, [1, 2])
    assert seen == [1] and shards.each(str, [1, 2]) == ["1", "2"]
    with shards.only(Shard(1, 1)), pytest.raises(NotYet):
        shards.each(stop, [1, 2])
    assert seen == [1, 1, 2]


def test_redo_is_refused(tmp_path):
    with shards.only(Shard(1, 2)), pytest.raises(ValueError, match="redo = True: shards"):
        Numbers(tiny(), folder=tmp_path, redo=True).many()


def test_looking_measures_nothing_and_loads_nothing(tmp_path):
    found = collect.look(unloadable(tmp_path))
    assert not any(one.is_whole for one in found.values()) and not any(tmp_path.iterdir())
    collect.measure(collection(tmp_path), Shard(1, 3))
    there = sorted(file.name for file in tmp_path.rglob("*"))
    found = collect.look(unloadable(tmp_path))
    blocks = [piece for piece in found["joined"].share.there if piece.block is not None]
    lacking = [piece for piece in found["joined"].missing if piece.block is not None]
    assert len(blocks) + len(lacking) == 7 and {piece.owner(3) for piece in lacking} == {2, 3}
    assert sorted(file.name for file in tmp_path.rglob("*")) == there


def test_a_shard_that_has_nothing_left_to_do_loads_no_model(tmp_path):
    collect.measure(collection(tmp_path), Shard(1, 2))
    collect.measure(unloadable(tmp_path), Shard(1, 2))


# ------------------------------------------------------------------------------------------------ damage, differences


def blocks_of(folder):
    """The files of the blocks of a record, by number."""
    kept = next(place for place in (folder / "blocks").iterdir() if len(list(place.glob("*.pickle"))) == 8)
    read = {file: cache.read(file).request for file in kept.glob("*.pickle")}
    return {request["block"][0] // 2: file for file, request in read.items() if "block" in request}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A folder of three shards, whose blocks are still there."""
    folder = tmp_path_factory.mktemp("three")
    in_turn(folder, (1, 2, 3), 3)
    return folder


@pytest.fixture
def unjoined(three, tmp_path):
    """A folder where all is there but the record of the seven blocks, which are."""
    folder = tmp_path / "records"
    shutil.copytree(three, folder)
    for file in folder.glob("*.pickle"):
        if cache.read(file).request["part"] == "blocks":
            file.unlink()
    return folder


def test_blocks_that_are_all_there_are_joined_without_the_model(unjoined, alone):
    merged(unjoined)
    assert contents(unjoined) == alone[0]


@pytest.mark.parametrize("age", [-60, 60], ids=["before the record", "after it"])
def test_what_a_killed_shard_had_begun_to_write_is_removed_with_the_blocks(age, three, tmp_path):
    """Killed while it writes, a process leaves half a file; a late one, a block that nobody needs."""
    folder = tmp_path / "records"
    shutil.copytree(three, folder)
    for kept in (folder / "blocks").iterdir():
        (kept / f"{cache.TEMPORARY}1").write_bytes(b"half a rec")
        for file in kept.iterdir():
            written = folder.stat().st_mtime + age
            os.utime(file, (written, written))
    merged(folder)


def test_a_run_without_shards_removes_what_a_killed_one_had_begun_to_write(tmp_path):
    study = Numbers(tiny(), folder=tmp_path)
    whole = cache.record_path({**study.request, "part": "blocks"}, tmp_path).stem
    left = tmp_path / "blocks" / whole / f"{cache.TEMPORARY}1"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a rec")
    study.joined()
    assert not left.parent.exists()


def test_a_damaged_block_is_named_and_measured_again(unjoined, alone):
    file = blocks_of(unjoined)[3]
    file.write_bytes(file.read_bytes()[:-1])
    before = measured(unjoined)
    with pytest.warns(cache.CacheWarning, match=f"{file.name} is no record"), pytest.raises(ValueError) as error:
        collect.merge(unloadable(unjoined))
    record = file.parent.name
    place = Piece(file, block=3).owner(3)
    assert f"joined: missing: 1 block of shard {place}" in str(error.value) and (unjoined / "blocks" / record).exists()
    in_turn(unjoined, (1, 2, 3), 3)
    again = {name for name, times in measured(unjoined).items() if times > before[name]}
    assert again == {"blocks [6, 7]"}
    (file.parent / f"{file.name}.corrupt").unlink()
    merged(unjoined)
    assert contents(unjoined) == alone[0]


@pytest.mark.parametrize("name", shards.DECISIVE)
def test_blocks_that_others_made_otherwise_are_refused_by_field(name, unjoined):
    file = blocks_of(unjoined)[5]
    record = cache.read(file)
    cache.save(record.request, record.data, {**record.provenance, name: "another"}, file.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=f"block 5 of .* \\(shard ./3\\): {name} 'another' instead of"):
            collect.merge(unloadable(unjoined))


def test_a_block_of_other_weights_is_measured_again_by_its_own_shard(unjoined, alone):
    file = blocks_of(unjoined)[5]
    record = cache.read(file)
    cache.save(record.request, {"x": record.data["x"] + 1}, {**record.provenance, "weights": "others"}, file.parent)
    place = Piece(file, block=5).owner(3)
    before = measured(unjoined)
    for number in {1, 2, 3} - {place}:
        with shards.only(Shard(number, 3)), pytest.raises(NotYet), pytest.warns(cache.CacheWarning, match="'others'"):
            Numbers(tiny(), folder=unjoined).joined()
    assert measured(unjoined) == before
    with shards.only(Shard(place, 3)), pytest.warns(cache.CacheWarning, match="'others'"):
        Numbers(tiny(), folder=unjoined).joined()
    merged(unjoined)
    assert contents(unjoined) == alone[0]


def test_two_shards_that_join_at_the_same_time_both_give_the_record(unjoined, alone):
    """The second finds the record that the first has just written, and blocks that are gone."""
    first, second = (Numbers(tiny(), folder=unjoined) for _ in range(2))
    with shards.only(Shard(1, 3)):
        joined = first.joined()
    with shards.only(Shard(2, 3)):
        assert (second.joined() == joined).all()
    merged(unjoined)
    with shards.only(Shard(2, 3)):
        assert (Numbers(tiny(), folder=unjoined).joined() == joined).all()
    assert contents(unjoined) == alone[0]


def test_blocks_that_vanish_while_they_are_read_are_not_yet_there(unjoined, monkeypatch):
    """Another process has joined them, and merged."""
    load = cache.load

    def vanishing(request, folder, expect=None):
        found = load(request, folder, expect)
        if "block" in request:
            for file in Path(folder).glob("*.pickle"):
                file.unlink()
        return found

    monkeypatch.setattr(cache, "load", vanishing)
    with shards.only(Shard(1, 3)), pytest.raises(NotYet, match="block"):
        Numbers(tiny(), folder=unjoined).joined()


def test_no_file_is_locked(tmp_path, monkeypatch):
    """A shared file system may have no locks, or keep those of processes that were killed."""
    monkeypatch.setattr(cache, "locked", lambda *_: pytest.fail("a lock is taken"))
    in_turn(tmp_path, (1, 2), 2)
    assert not list(tmp_path.rglob("*.lock"))
    with pytest.raises(pytest.fail.Exception):
        Numbers(tiny(), folder=tmp_path).one("another")


def test_waiting_ends_when_the_others_are_done(tmp_path, monkeypatch, alone):
    monkeypatch.setattr(collect, "LOOK_AGAIN", 0.0)
    others = iter([2, 2, 2, 2, 2])

    def look_again(_):
        collect.measure(collection(tmp_path), Shard(next(others), 2))

    monkeypatch.setattr(collect.time, "sleep", look_again)
    collect.measure(collection(tmp_path), Shard(1, 2), 60.0)
    assert contents(tmp_path) == alone[0]


def test_what_is_ahead_is_said_when_it_is_known(tmp_path, monkeypatch, capsys):
    """And once: what a shard has to do may be known only when others have measured theirs."""
    said = iter([[], ["three minutes"]])
    monkeypatch.setattr(collect, "LOOK_AGAIN", 0.0)
    monkeypatch.setattr(collect.time, "sleep", lambda _: collect.measure(collection(tmp_path), Shard(2, 2)))
    collect.measure(collection(tmp_path), Shard(1, 2), 60.0, lambda: next(said))
    assert capsys.readouterr().out.count("three minutes") == 1 and next(said, None) is None


def test_waiting_in_vain_ends_with_who_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(collect, "LOOK_AGAIN", 0.01)
    collect.measure(collection(tmp_path), Shard(1, 3), 0.1)
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"missing: \d+ records?, \d+ blocks? of shards 2, 3; waited 0.0\d* minutes without anything", said)
    assert shard_runs.measured(tmp_path)


def test_waiting_goes_on_as_long_as_something_new_comes(tmp_path, monkeypatch, alone):
    """Each round of the others takes longer than it is waited for; the clock is a number here."""
    clock, rounds = [0.0], []

    def look_again(_):
        clock[0] += 50.0
        rounds.append(1)
        if len(rounds) % 2 == 0:  # waited for 100 s, it brings something
            collect.measure(collection(tmp_path), Shard(2 + len(rounds) // 2 % 2, 3))

    monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=look_again))
    collect.measure(collection(tmp_path), Shard(1, 3), 120.0)
    assert contents(tmp_path) == alone[0] and clock[0] > 120.0
