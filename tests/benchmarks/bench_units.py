"""Importance scores beside plain runs of the same rows: what all units by token type cost.

    python -m tests.benchmarks.bench_units [--rounds 9] [--model smollm2] [--save FILE]

Two models, float32 on one thread: the embedded one and SmolLM2. Eight prompts of 128 tokens with one donor each, all of
random ids, in batches of eight rows. Every contestant is a process of its own that runs once per round; the order
within a round is drawn. Times are CPU seconds; a ratio is the median over rounds with its bootstrap interval. Peak
memory is what one run takes above what the process holds between runs.

    plain        the same rows, prompts and donors, through the fast attention of transformers, nothing attached
    backward     the same, and a backward pass to the embeddings
    local_exact  `token_types.scores` of all head and edge units: the softmax of every head recomputed by unit
    pruned       the same in a circuit with half of its units pruned

The bars: scores take at most 6 plain passes, and at most 3 times the memory of backward.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.benchmarks.bench_edges import LENGTH, ROWS, groups_of
from tests.benchmarks.referee import Team, comparison, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

MODELS = ("embedded", "smollm2")
UNITS = ("plain", "backward", "local_exact", "pruned")

SETTING = "scores of all units by token type, prompts of 128 tokens and one donor each, fp32, one thread"


def lines_of(model: str, title: str) -> tuple[Line, ...]:
    """The report's lines on one model."""
    unit = "plain passes"
    peak = "extra peak memory / backward"
    beside = "extra peak memory / that of a plain pass forwards and backwards"
    return (
        Line(f"{title}: `local_exact`, CPU time", (model, "local_exact / plain"), most=6, unit=unit),
        Line(f"{title}: `local_exact`, half of the units pruned, CPU time", (model, "pruned / plain"), unit=unit),
        Line(f"{title}: `local_exact`, {beside}", (model, peak, "local_exact"), most=3),
    )


LINES = (*lines_of("embedded", "embedded model"), *lines_of("smollm2", "SmolLM2"))


def work(name: str, model_name: str) -> Callable[[], Any]:
    """What a contestant runs."""
    from util.load_model_and_data import load_ICL_model
    from util.scores.token_types import scores
    from util.scores.units import Circuit

    model = load_ICL_model(model_name, device="cpu", dtype="float32", verbose=False)[0]
    groups = groups_of(model.config.vocab_size)
    rows = torch.tensor([tokens.ids[:LENGTH] for group in groups for tokens in (group.donors[0], group.base)])
    targets = torch.tensor([group.target[0] for group in groups for _ in range(2)])
    if name in ("plain", "backward"):
        model.set_attn_implementation("sdpa")
        model.requires_grad_(False)

        def plain() -> Any:
            losses = []
            for ids, target in zip(rows.split(ROWS), targets.split(ROWS), strict=True):
                with torch.set_grad_enabled(name == "backward"):
                    embedded = model.get_input_embeddings()(ids).requires_grad_(name == "backward")
                    logits = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=1).logits[:, 0]
                    lost = -logits.log_softmax(-1).gather(1, target[:, None])[:, 0]
                    if name == "backward":
                        torch.autograd.grad(lost.sum(), embedded)
                losses.append(lost.detach())
            return torch.cat(losses).numpy()

        return plain

    config = model.config
    circuit = Circuit.whole(config.num_hidden_layers, config.num_attention_heads, [group.base for group in groups])
    if name == "pruned":
        rng = np.random.default_rng(0)
        for sort in ("head", "edge"):
            circuit = circuit.keeping(sort, rng.random(circuit.units(sort).shape) > 0.5)
    return lambda: scores(model, groups, circuit, token_budget=ROWS * LENGTH).edges


def measured(model: str, count: int) -> dict[str, Any]:
    """The report's part on one model."""
    team = Team("bench_units", {"model": model})
    times = comparison(team.seconds(UNITS, count, model), [(name, "plain") for name in UNITS[1:]])
    peaks = team.peaks(UNITS)
    return {
        **times,
        "extra peak memory": {f"{name}, MiB": peak for name, peak in peaks.items()},
        "extra peak memory / backward": {name: peaks[name] / peaks["backward"] for name in UNITS[2:]},
    }


def main() -> None:
    parser = command_line(__doc__, 9, UNITS)
    parser.add_argument("--model", choices=MODELS, help="one model alone")
    options = parser.parse_args()
    if options.contestant:
        return serve(work(options.contestant, options.model))
    report = report_head(options.rounds)
    for model in [options.model] if options.model else MODELS:
        report[model] = measured(model, options.rounds)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
