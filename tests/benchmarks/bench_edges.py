"""Ablation of edges beside plain runs of the same rows: what donors in lock-step cost.

    python -m tests.benchmarks.bench_edges [--rounds 9] [--shape gpt2] [--save FILE]

Two models, float32 on one thread: a random GPT-2 (small) and the embedded one. Eight prompts of 128 tokens with one
donor each, all of random ids, in batches of eight rows. Every contestant is a process of its own that runs once per
round; the order within a round is drawn. Times are CPU seconds; a ratio is the median over rounds with its bootstrap
interval. Peak memory is what one run takes above what the process holds between runs.

    lock_step  `splicing.outcomes` with all edges but the circuit AGG-ONLY from the donors: most rows are cut
    plain      the same rows, prompts and donors, through the class's own eager attention, nothing attached
    sdpa       the same with the fast attention of transformers
    two_pass   `lock_step` with the donors before the prompts, not beside them
    single     `lock_step` with one edge from the donors, y->last_separator: one row of each prompt is cut
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.benchmarks.bench_induction import SHAPES, gpt2
from tests.benchmarks.referee import Team, comparison, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

PLAIN = {"plain": "eager", "sdpa": "sdpa"}  # by contestant, the attention it runs
NAMES = ("lock_step", "plain", "sdpa", "two_pass", "single")
PAIRS = (("lock_step", "plain"), ("lock_step", "sdpa"), ("two_pass", "lock_step"), ("single", "plain"))
MEMORY = ("lock_step", "plain", "two_pass")
PROMPTS, ROWS, DEMONSTRATIONS, LONG = 8, 8, 30, 5  # the x of LONG demonstrations has two tokens
LENGTH = 1 + 4 * DEMONSTRATIONS + LONG + 2  # bos, x t y n of each, query and last separator; the answer is not run

SETTING = "edge ablation, prompts of 128 tokens and one donor each, fp32, one thread"


def lines_of(shape: str, model: str, most: float | None = None) -> tuple[Line, ...]:
    """The report's lines on one model. most: plain runs that the ablation may take."""
    peak = "extra peak memory"
    circuit = "prompts beside their donors, `AGG-ONLY` kept / plain eager run of the same rows, CPU time"
    return (
        Line(f"{model}: {circuit}", (shape, "lock_step / plain"), most=most),
        Line(f"{model}: one edge (y -> last separator) ablated / plain run, CPU time", (shape, "single / plain")),
        Line(f"{model}: donors before the prompts / beside them, CPU time", (shape, "two_pass / lock_step")),
        Line(f"{model}: extra peak memory, donors beside the prompts", (shape, peak, "lock_step, MiB"), unit="MiB"),
        Line(f"{model}: extra peak memory, plain run", (shape, peak, "plain, MiB"), unit="MiB"),
        Line(f"{model}: extra peak memory, donors before the prompts", (shape, peak, "two_pass, MiB"), unit="MiB"),
    )


LINES = (*lines_of("gpt2", "random GPT-2 small", most=1.5), *lines_of("embedded", "embedded model"))


def groups_of(vocabulary: int) -> list[Any]:
    """Prompts with a donor of corruption 0: one layout, random ids."""
    from util.edges.splicing import Group
    from util.prompts.token_types import TypedTokens

    k = DEMONSTRATIONS
    parts = [("bos", 0)] + [(kind, i) for i in range(1, k + 1) for kind in "xtyn"]
    parts += [(kind, k + 1) for kind in ("query", "last_separator", "target")]
    laid = [
        (kind, example, slot)
        for slot, (kind, example) in enumerate(parts)
        for _ in range(2 if kind == "x" and example <= LONG else 1)
    ]
    types, examples, slots = zip(*laid, strict=True)
    assert len(types) == LENGTH + 1
    drawn = np.random.default_rng(0).integers(1, vocabulary, (PROMPTS, 2, len(types))).tolist()
    typed = [[TypedTokens(tuple(ids), types, examples, slots) for ids in pair] for pair in drawn]
    return [Group(base, {0: donor}) for base, donor in typed]


def work(name: str, shape: str) -> Callable[[], Any]:
    """What a contestant runs: it returns the log-probability of each prompt's answer, [N]."""
    from util.edges.ablation import Ablation
    from util.edges.edge import CIRCUITS, edges
    from util.edges.splicing import outcomes
    from util.engine.handshake import prepare
    from util.load_model_and_data import load_ICL_model

    model = load_ICL_model("embedded", device="cpu", verbose=False)[0] if shape == "embedded" else gpt2(shape)
    groups = groups_of(model.config.vocab_size)
    if name in PLAIN:
        model.set_attn_implementation(PLAIN[name])
        rows = [tokens.ids[:LENGTH] for group in groups for tokens in (group.donors[0], group.base)]
        batches = torch.tensor(rows).split(ROWS)
        answers = torch.tensor([group.target for group in groups])

        def plain() -> Any:
            with torch.inference_mode():
                logits = [model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[1::2, 0] for ids in batches]
                return torch.cat(logits).log_softmax(-1).gather(1, answers)[:, 0].numpy()

        return plain

    prepare(model)
    ablation = Ablation(removed=edges("y->last_separator")) if name == "single" else Ablation(kept=CIRCUITS["AGG-ONLY"])
    options: dict[str, Any] = {"token_budget": ROWS * LENGTH, "two_pass": name == "two_pass"}
    return lambda: outcomes(model, groups, ablation, **options)["log_prob"]


def team_of(shape: str) -> Team:
    return Team("bench_edges", {"shape": shape})


def values_of(shape: str) -> dict[str, np.ndarray]:
    """The log-probabilities [N] that every contestant finds."""
    return team_of(shape).values(NAMES)


def measured(shape: str, count: int) -> dict[str, Any]:
    """The report's part on one model."""
    team = team_of(shape)
    times = comparison(team.seconds(NAMES, count, shape), PAIRS)
    peaks = {f"{name}, MiB": peak for name, peak in team.peaks(MEMORY).items()}
    return {**times, "extra peak memory": peaks}


def main() -> None:
    parser = command_line(__doc__, 9, NAMES)
    parser.add_argument("--shape", choices=SHAPES, help="one model alone")
    options = parser.parse_args()
    if options.contestant:
        return serve(work(options.contestant, options.shape))
    report = report_head(options.rounds)
    for shape in [options.shape] if options.shape else SHAPES[:2]:
        report[shape] = measured(shape, options.rounds)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
