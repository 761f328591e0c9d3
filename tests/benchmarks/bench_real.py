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
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.benchmarks.hook_loop import hook_loop
from tests.benchmarks.referee import Team, comparison, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

NAME = "smollm2"
MAPS, ROWS = ("map", "loop", "last"), ("rows", "bare")
SOME = 1  # heads of each layer that the loop is timed on
PROMPTS, TOKENS, READ = 4, 256, 35
PAIRS = (("loop", "map"), ("last", "map"), ("rows", "bare"))

SETTING = "on SmolLM2, fp32, one thread"
LINES = (
    Line(
        "loop of hooks for the map of all 270 single-head patches (a ninth of it timed) / ours, CPU time",
        ("loop / map",),
        least=10,
    ),
    Line("the same with the last token's logits alone / ours, CPU time", ("last / map",)),
    Line(
        "capture of 35 rows of each of four prompts of 256 tokens / bare forward pass, CPU time",
        ("rows / bare",),
        most=1.1,
    ),
    Line("largest difference of ours to the loop's map, in logits", ("largest difference of the maps",)),
)


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


def work(name: str, some: int | None) -> Callable[[], Any]:
    """What a contestant runs. some: heads of each layer that a loop takes, None for all."""
    from util.load_model_and_data import load_ICL_model

    model, tokenizer = load_ICL_model(NAME, device="cpu", verbose=False)
    if name == "map":
        return ours(model, tokenizer)
    if name in MAPS:
        return loop(model, tokenizer, name == "last", some)
    return reading(model, name == "rows")


def main() -> None:
    parser = command_line(__doc__, 5, (*MAPS, *ROWS))
    parser.add_argument("--some", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        return serve(work(options.contestant, options.some), warm=options.contestant not in MAPS[1:])

    from util.load_model_and_data import full_name

    team = Team("bench_real", {"some": SOME})
    seconds = team.seconds(MAPS, options.rounds, "maps")
    maps = {name: values.astype(float) for name, values in team.values(("map", "loop")).items()}
    for name in MAPS[1:]:
        seconds[name] = [maps["map"].shape[1] / SOME * timed for timed in seconds[name]]
    seconds |= team.seconds(ROWS, options.rounds, "rows")
    gaps = np.abs(maps["map"] - maps["loop"])[:, :SOME]
    report = {
        "model": full_name(NAME),
        **report_head(options.rounds),
        "heads of each layer timed in the loop, the rest extrapolated": SOME,
        "largest difference of the maps": float(gaps.max()),
        "largest logit difference of the map": float(np.abs(maps["map"]).max()),
        **comparison(seconds, PAIRS),
    }
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
