"""Path patching between 16 heads, by query, key, value and all three, beside plain passes of the same rows.

    python -m tests.benchmarks.bench_paths [--rounds 5] [--save data/benchmarks/paths_cpu.json]

The 32 fresh pairs of notebook 03 and its 16 strongest heads, float32, one thread. Both contestants take the same groups
of prompts of one length, and are processes of their own that run once per round; the order within a round is drawn.
Times are CPU seconds; a ratio is the median over rounds with its bootstrap interval.

    paths      `scores.paths.path_effects`: what all pairs tell each other, and the output
    plain      one forward pass of the base prompts, transformers' own sdpa attention, all logits
"""

from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks.referee import Team, comparison, ratio, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

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

EACH = "plain passes for each member"
PATHS = "all paths between the members, for each member"
SETTING = "path patching between 16 heads, fp32, one thread"
LINES = (
    Line(f"SmolLM2: {PATHS}", ("smollm2", EACH), most=4, unit="plain passes"),
    Line(f"embedded model: {PATHS}", ("embedded", EACH), most=4, unit="plain passes"),
)


def work(name: str, model_name: str) -> Callable[[], Any]:
    """What a contestant runs."""
    from util.figures.ioi_patching.study import Study
    from util.prompts.ioi import group_by_shape
    from util.records.model import Model

    pairs = Study(Model(model_name, verbose=False)).fresh
    model, groups = pairs.pair[0], [pairs.batch(numbers) for numbers in group_by_shape(pairs.tokens).values()]
    return paths(model, groups, MEMBERS[model_name]) if name == "paths" else plain(model, groups)


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


def measured(model_name: str, count: int) -> dict[str, Any]:
    """The report's part on one model."""
    seconds = Team("bench_paths", {"model": model_name}).seconds(CONTESTANTS, count, model_name)
    of_a_member = [whole / len(MEMBERS[model_name]) for whole in seconds["paths"]]
    return {**comparison(seconds, []), EACH: ratio(of_a_member, seconds["plain"])}


def main() -> None:
    parser = command_line(__doc__, 5, CONTESTANTS)
    parser.add_argument("--model", choices=tuple(MEMBERS), help="one model alone")
    options = parser.parse_args()
    if options.contestant:
        return serve(work(options.contestant, options.model))
    report = report_head(options.rounds)
    for name in [options.model] if options.model else MEMBERS:
        report[name] = measured(name, options.rounds)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
