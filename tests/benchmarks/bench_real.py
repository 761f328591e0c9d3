"""On SmolLM2's weights: the map of all single-head patches beside the loop of hooks, row capture beside the bare pass.

    python -m tests.benchmarks.bench_real [--rounds 5] [--save data/benchmarks/real_cpu.json]

float32, one thread. Every contestant is a process of its own that runs once per round; the order within a round is
drawn. Times are CPU seconds; a ratio is the median over rounds with its bootstrap interval. The opponents run
transformers' own sdpa attention, ours the engine. Both maps are compared.

    map        `patching.patch_map` of the project's pair, with the capture of the source
    loop       a pre-hook on one output projection, all logits: a forward pass for every head; SOME heads of each layer
               are timed and the rest extrapolated
    last       the same with the last token's logits alone
    rows       `CaptureRows` of 35 rows of each of four prompts of 256 tokens: as many as notebook 01 reads
    bare       the same batch through the same base model, nothing attached
"""

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks.hook_loop import hook_loop
from tests.benchmarks.referee import Contestant, ratio, rounds, save, serve

NAME = "smollm2"
MAPS, ROWS = ("map", "loop", "last"), ("rows", "bare")
SOME = 1  # heads of each layer that the loop is timed on
PROMPTS, TOKENS, READ = 4, 256, 35


def tokens_of(tokenizer: Any) -> tuple[Any, Any, Any]:
    from util.figures.ioi_patching.study import EXAMPLE

    base, source = (tokenizer(text, return_tensors="pt").input_ids for text in EXAMPLE)
    return base, source, torch.tensor([[tokenizer(f" {name}").input_ids[0] for name in ("Mike", "Emma")]])


def ours(model: Any, tokenizer: Any) -> Callable[[], Any]:
    from util.figures.ioi_patching.patching import heads_of, patch_map

    base, source, answers = tokens_of(tokenizer)
    first = int((base != source)[0].nonzero()[0])
    return lambda: patch_map(model, base, heads_of(model, source), answers, first)[0][0]


def loop(model: Any, tokenizer: Any, last: bool, some: int | None) -> Callable[[], Any]:
    model.set_attn_implementation("sdpa")
    base, source, ((mike, emma),) = tokens_of(tokenizer)
    projections = [block.self_attn.o_proj for block in model.model.layers]
    kept = {"logits_to_keep": 1} if last else {}

    def difference(logits: Any) -> Any:
        return logits[:, -1, mike] - logits[:, -1, emma]

    return hook_loop(model, projections, (base, source), difference, some, use_cache=False, **kept)


def reading(model: Any, captured: bool) -> Callable[[], Any]:
    from util.engine.attention import instrument
    from util.engine.instruments import CaptureRows

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (PROMPTS, TOKENS), generator=generator)
    rows = torch.stack([torch.randperm(TOKENS, generator=generator)[:READ].sort()[0] for _ in range(PROMPTS)])
    if not captured:
        model.set_attn_implementation("sdpa")

    @torch.inference_mode()
    def run() -> None:
        if not captured:
            model.base_model(ids, use_cache=False)
            return
        with instrument(model, CaptureRows(rows)):
            model.base_model(ids, use_cache=False)

    return run


def contest(name: str, some: int | None) -> None:
    from util.load_model_and_data import load_ICL_model

    torch.set_num_threads(1)
    model, tokenizer = load_ICL_model(NAME, device="cpu", verbose=False)
    if name == "map":
        run = ours(model, tokenizer)
    elif name in MAPS:
        run = loop(model, tokenizer, name == "last", some)
    else:
        run = reading(model, name == "rows")
    if name not in MAPS[1:]:
        run()  # first-call costs, of which minutes know nothing
    serve(run)


def contestants_of(names: tuple[str, ...], some: int | None = None) -> dict[str, Contestant]:
    extra = [] if some is None else ["--some", some]
    return {name: Contestant("bench_real", ["--contestant", name, *extra], threads=1) for name in names}


def times(names: tuple[str, ...], count: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The CPU seconds of some contestants, and what each map says of the heads that the loop is timed on."""
    contestants = contestants_of(names, SOME)
    seconds = rounds(contestants, count, ", ".join(names))
    maps = {name: np.array(contestants[name].ask("value"), float) for name in names if name in ("map", "loop")}
    for contestant in contestants.values():
        contestant.close()
    return seconds, maps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--contestant", choices=(*MAPS, *ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--some", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contest(options.contestant, options.some)
        return

    import transformers

    from util.load_model_and_data import full_name

    seconds, maps = times(MAPS, options.rounds)
    heads = maps["map"].shape[1]
    for name in MAPS[1:]:
        seconds[name] = [heads / SOME * each for each in seconds[name]]
    read, _ = times(ROWS, options.rounds)
    gaps = np.abs(maps["map"] - maps["loop"])[:, :SOME]
    report: dict[str, Any] = {
        "model": full_name(NAME),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread per process",
        "other work on the machine, its load": round(os.getloadavg()[2], 1),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rounds": options.rounds,
        "heads of each layer timed in the loop, the rest extrapolated": SOME,
        "largest difference of the maps": float(gaps.max()),
        "largest logit difference of the map": float(np.abs(maps["map"]).max()),
        "cpu_seconds": {name: float(np.median(values)) for name, values in (seconds | read).items()},
        **{f"{name} / map": ratio(seconds[name], seconds["map"]) for name in MAPS[1:]},
        "rows / bare": ratio(read["rows"], read["bare"]),
    }
    save(report, options.save)


if __name__ == "__main__":
    main()
