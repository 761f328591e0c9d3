"""Path patching between 16 heads, by query, key, value and all three, beside plain passes of the same rows.

    python -m tests.benchmarks.bench_paths [--rounds 5] [--save data/benchmarks/paths_cpu.json]

The 32 fresh pairs of notebook 03 and its 16 strongest heads, float32, one thread. Both contestants take the same groups
of prompts of one length, and are processes of their own that run once per round; the order within a round is drawn.
Times are CPU seconds; a ratio is the median over rounds with its bootstrap interval.

    paths      `scores.paths.path_effects`: what all pairs tell each other, and the output
    plain      one forward pass of the base prompts, transformers' own sdpa attention, all logits
"""

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks.referee import Contestant, ratio, rounds, save, serve

BOUND = 4  # plain passes that a member may cost
CONTESTANTS = ("paths", "plain")
MEMBERS = {
    "smollm2": [
        (17, 4), (19, 1), (19, 2), (20, 0), (21, 5), (23, 0), (23, 1), (23, 2), (23, 3), (23, 7), (24, 4), (24, 5),
        (24, 7), (29, 0), (29, 1), (29, 2),
    ],
    "embedded": [
        (0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 6), (0, 7), (1, 4), (2, 0), (2, 4), (2, 5), (2, 6), (3, 2), (3, 4),
        (3, 6), (3, 7),
    ],
}  # fmt: skip


def contest(name: str, model_name: str) -> None:
    from util.figures.ioi_patching.study import Study
    from util.prompts.ioi import group_by_shape
    from util.records.model import Model

    torch.set_num_threads(1)
    pairs = Study(Model(model_name, verbose=False)).fresh
    model, groups = pairs.pair[0], [pairs.batch(numbers) for numbers in group_by_shape(pairs.tokens).values()]
    run = paths(model, groups, MEMBERS[model_name]) if name == "paths" else plain(model, groups)
    run()  # first-call costs, of which minutes know nothing
    serve(run)


def paths(model: Any, groups: Any, members: Any) -> Callable[[], Any]:
    from util.engine.handshake import prepare
    from util.scores.paths import path_effects

    prepare(model)
    return lambda: float(
        sum(path_effects(model, base, source, answers, members).direct.sum() for base, source, answers in groups)
    )


def plain(model: Any, groups: Any) -> Callable[[], Any]:
    model.set_attn_implementation("sdpa")

    @torch.inference_mode()
    def run() -> None:
        for base, _, _ in groups:
            model(base, use_cache=False)

    return run


def times(model_name: str, count: int) -> dict[str, Any]:
    options = ["--model", model_name]
    contestants = {name: Contestant("bench_paths", ["--contestant", name, *options], threads=1) for name in CONTESTANTS}
    seconds = rounds(contestants, count, model_name)
    for contestant in contestants.values():
        contestant.close()
    passes = [each / len(MEMBERS[model_name]) for each in seconds["paths"]]
    return {
        "cpu_seconds": {name: float(np.median(values)) for name, values in seconds.items()},
        f"plain passes for each member, at most {BOUND}": ratio(passes, seconds["plain"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=tuple(MEMBERS), help="one model alone")
    options = parser.parse_args()
    if options.contestant:
        contest(options.contestant, options.model)
        return

    import transformers

    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread per process",
        "other work on the machine, its load": round(os.getloadavg()[2], 1),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rounds": options.rounds,
        **{name: times(name, options.rounds) for name in ([options.model] if options.model else MEMBERS)},
    }
    save(report, options.save)


if __name__ == "__main__":
    main()
