"""A small study of every kind of record, measured by processes of their own that are killed; for the tests of shards.

As a program it forks before anything is computed, so that PyTorch's threads are not in the way: one import serves all
processes. Every measurement is a line of a log, in the folder of the records.
"""

import json
import os
import random
import signal
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from tests import toys
from util.commands import collect
from util.commands.studies import Collection
from util.records import cache, shards
from util.records.checked import Count, checked
from util.records.file_format import encode
from util.records.model import Model
from util.records.shards import Shard
from util.records.study import Study

LOG = "measured.log"


@checked
class Numbers(Study):
    """Numbers that are drawn by seed, in records and blocks that need each other. pause: seconds for each of them."""

    seed: Count = 1
    pause: float = 0.0

    stem = "numbers"
    parts = ("many", "joined", "steps", "both", "whole_of_two")

    @property
    def own_request(self):
        return {"schema": 1, "seed": self.seed}

    @property
    def texts(self):
        return ["a text"]

    def drawn(self, name, *more):
        """Twelve numbers, and a line in the log: what was measured."""
        if self.pause:
            time.sleep(self.pause)
        self.place.mkdir(parents=True, exist_ok=True)
        with (self.place / LOG).open("a") as log:
            log.write(f"{name}\n")
        given = int(sha256(f"{name} {self.seed} {more}".encode()).hexdigest()[:8], 16)
        return np.random.default_rng(given).normal(size=12)

    def one(self, name):
        """A record of its own."""
        return self.record({"part": "one", "name": name}, lambda: {"x": self.drawn(name)}).data["x"]

    def many(self):
        """Records in a loop."""
        return np.stack(shards.each(lambda number: self.one(f"one {number}"), range(7)))

    def blocks_of(self, name, count, needed=None):
        """A record of blocks, each of which asks for another record where one is named."""

        def measure(numbers):
            more = () if needed is None else (self.one(needed).tolist(),)
            return {"x": self.drawn(f"{name} {list(numbers)}", *more)}

        return self.record_in_blocks(
            {"part": name},
            lambda: [[2 * number, 2 * number + 1] for number in range(count)],
            measure,
            lambda measured: {"x": np.stack([block["x"] for block in measured])},
        ).data["x"]

    def joined(self):
        """A record of blocks that need no other one."""
        return self.blocks_of("blocks", 7)

    def steps(self):
        """Records of which each needs the one before."""
        with shards.chain("steps"):
            last = np.zeros(12)
            for number in range(4):
                before = last.tolist()

                def compute(number=number, before=before):
                    return {"x": self.drawn(f"step {number}", before)}

                last = self.record({"part": "step", "number": number}, compute).data["x"]
        return last

    def both(self):
        """Blocks that all need a record that nothing else asks for, and a record that needs another one."""
        shards.beforehand(self.one, ["needed by all"])

        def compute():
            return {"x": self.drawn("outer", self.one("needed by one").tolist())}

        return self.blocks_of("needing blocks", 3, "needed by all"), self.record({"part": "outer"}, compute).data["x"]

    def whole_of_two(self):
        """Two records of blocks, in a loop."""
        return shards.each(lambda number: self.blocks_of(f"pair {number}", 3), range(2))

    def everything(self):
        """All parts, as one process measures them."""
        return [getattr(self, part)() for part in self.parts]


def tiny():
    """A model that nothing is asked of, and a study's name for it."""
    return Model("given:tiny", loader=lambda: (toys.model(), toys.tokenizer()), verbose=False)


def collection(folder, pause=0.0):
    """All parts of the study."""
    study = Numbers(tiny(), folder=folder, pause=pause)
    return Collection(study, study.stem, {part: getattr(study, part) for part in study.parts})


def contents(folder):
    """A digest of the data of every record in a folder, by the name of its file; blocks are left out."""
    return {file.name: sha256(encode({"data": cache.read(file).data})).hexdigest() for file in folder.glob("*.pickle")}


def measured(folder):
    """How often each thing was measured."""
    lines = (folder / LOG).read_text().splitlines() if (folder / LOG).exists() else []
    return {line: lines.count(line) for line in lines}


# ------------------------------------------------------------------------------------------------ processes


def start(folder, shard, pause, wait):
    """Start a process that measures a shard; its number."""
    child = os.fork()
    if child:
        return child
    try:
        collect.LOOK_AGAIN = 0.05
        with open(os.devnull, "w") as nowhere:
            sys.stdout = nowhere
            collect.measure(collection(folder, pause), shard, wait)
    except BaseException as error:
        print(f"shard {shard}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def together(folder, of, pause, wait, kills, draw):
    """All shards at the same time. kills: how many of them are killed at random moments, and started again."""
    alive = {start(folder, Shard(number, of), pause, wait): Shard(number, of) for number in range(1, of + 1)}
    killed = 0
    while alive:
        if killed < kills:
            time.sleep(draw.uniform(0.0, 6 * pause))
            child = draw.choice(list(alive))
            shard = alive.pop(child)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            killed += 1
            alive[start(folder, shard, pause, wait)] = shard
            continue
        child, status = os.waitpid(-1, 0)
        alive.pop(child, None)
        if status:
            raise RuntimeError(f"a shard ended with {status}")


def main():
    """folder, number of shards, kills and seed, for each run: a list in JSON."""
    torch.set_num_threads(1)
    toys.tokenizer()  # made once for all processes
    for folder, of, kills, seed in json.loads(sys.argv[1]):
        together(Path(folder), of, 0.01, 60.0, kills, random.Random(seed))


if __name__ == "__main__":
    main()
