"""Kill every study at random moments: `make torture`, half an hour at most.

A study that was killed and started again must give the same bits as an undisturbed one, with at most ALLOWED times its
work. Work is counted in multiplications of the linear maps that a run calls. All counts are printed as JSON, and
written to the file that --out names. The exit status is 1 where anything is wrong. That no damaged record is read is
tested in tests/study/test_store.py.
"""

import argparse
import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.golden.compare import digests, flat
from util import paths
from util.figures.forerunner_heads import measure as forerunner
from util.figures.ioi_patching import measure
from util.study import records
from util.study.model import Model
from util.study.study import Study

ALLOWED = 1.2  # how much work a killed and resumed run may take, in undisturbed runs

# ------------------------------------------------------------------------------------------------ the studies, small


class Small(NamedTuple):
    """A small study: the stem of its figure, its parts, and its settings, once for each draw."""

    stem: str
    parts: Sequence[str]
    draws: Sequence[dict[str, Any]]


STUDIES = {
    # a kill costs the record that it meets: attention scores are half of a draw's work
    "toy": Small(
        "toy_induction_head", ("heads", "patterns"),
        [{"length": 20, "copies": 3, "sequences": 8, "seed": seed} for seed in (0, 8, 16, 24)],
    ),
    "forerunner_heads": Small(
        "forerunner_heads", ("counts", "specificity", "grid", "task", "ablation"),
        [{"dataset": "agnews", "k": 1, "prompts": 16, "ablated": 8, "choice_prompts": 8, "grid_prompts": 8,
          "causal_datasets": ["agnews"], "causal_k": [1], "grid_datasets": ["sst5", "trec"],
          "untrained_control": False}],
    ),
    "induction_scores": Small(
        "induction_scores", ("scores", "pattern", "ablation"),
        [{"tasks": ["wordseq1", "repetition"], "k": 4, "prompts": 8, "control_sets": 2, "sequences": 2, "primary": 3,
          "seed": seed} for seed in (0, 8)],
    ),
    "ioi_patching": Small(
        "ioi_patching", ("p1", "population", "circuit", "paths"), [{"prompts": 16, "path_heads": 4}]
    ),
    "edge_ablation": Small(
        "edge_ablation", ("circuits", "map", "windows"),
        [{"tasks": ["capitalization", "present_past"], "k": 4, "prompts": 8, "donor_seeds": [0, 1],
          "random_circuits": 2, "corruptions": [1, 2]}],
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ kills


def run(name, folder, seconds=None):
    """Run a study in a process of its own; kill it after some seconds. Returns its work, and how long it took."""
    work = mmap.mmap(-1, 8)  # shared with the process, and there when it is killed
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _measure(STUDIES[name], folder, work)
        except BaseException as error:
            print(f"{name}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"{name} failed")
    return struct.unpack("q", work[:8])[0], time.monotonic() - started


def _measure(small, folder, work):
    done = 0

    def count(module, inputs):
        nonlocal done
        if isinstance(module, nn.Linear | Conv1D) and inputs:
            done += inputs[0].shape[:-1].numel() * module.weight.numel()
            work[:8] = struct.pack("q", done)

    torch.nn.modules.module.register_module_forward_pre_hook(count)
    forerunner.BLOCK, measure.PATCHED = 4, 128  # small studies have small blocks
    model = Model("embedded", verbose=False)
    for settings in small.draws:
        study = Study(small.stem, model, **settings, folder=folder)
        for part in small.parts:
            study.numbers(part)


def contents(folder):
    """What each record holds, arrays by their digests, by the name of its file. Raises ValueError for other files."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix != ".lock" and not file.name.startswith(paths.UNFINISHED):
            leaves = dict(flat(records.decode(file.read_bytes()).data))
            arrays = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, np.ndarray)}
            found[file.name] = repr(leaves | digests(arrays))  # not the bytes: the header's entries have no order
    return found


def kills(name, times, scratch):
    """Kill a study at random moments, each time once, and start it again. Returns the counts."""
    draw = random.Random(name)
    whole, seconds = run(name, scratch / name)
    expected, ratios, wrong = contents(scratch / name), [], 0
    for number in range(times):
        folder = scratch / f"{name}-{number}"
        before, after = run(name, folder, draw.uniform(0, seconds))[0], run(name, folder)[0]
        wrong += contents(folder) != expected
        ratios.append((before + after) / whole)
    return {
        "records": len(expected),
        "seconds undisturbed": round(seconds, 1),
        "kills": times,
        "other bits": wrong,
        "work, mean": round(float(np.mean(ratios)), 3),
        "work, most": round(max(ratios), 3),
        "more work than allowed": sum(ratio > ALLOWED for ratio in ratios),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each study")
    parser.add_argument("--studies", nargs="*", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--out", type=Path, help="a file for the counts")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = {}
    with tempfile.TemporaryDirectory(prefix="icl-torture-") as scratch:
        for name in arguments.studies:
            counts[name] = kills(name, arguments.kills, Path(scratch))
            print(name, json.dumps(counts[name]), file=sys.stderr, flush=True)
    text = json.dumps({"kills": counts}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return int(any(study["other bits"] + study["more work than allowed"] for study in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
