"""Importance scores beside plain runs of the same rows: what all units by token type cost.

    python -m tests.benchmarks.bench_units [--rounds 9] [--part units] [--model smollm2] [--save FILE]

Two models, float32 on one thread: the embedded one and SmolLM2. Eight prompts of 128 tokens with one donor each, all of
random ids, in batches of eight rows. Every contestant is a process of its own that runs once per round; the order
within a round is drawn. Times are CPU seconds; a ratio is the median over rounds with its bootstrap interval. Peak
memory is what one run takes above what the process holds between runs.

    plain        the same rows, prompts and donors, through the fast attention of transformers, nothing attached
    backward     the same, and a backward pass to the embeddings
    local_exact  `token_types.scores` of all head and edge units: the softmax of every head recomputed by unit
    linear       the same, to first order
    pruned       `local_exact` in a circuit with half of its units pruned
    integrated   with the mean gradient of five steps

The bars: local_exact and linear take at most 6 plain passes, and at most 3 times the memory of backward.
"""

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks.bench_edges import LENGTH, ROWS, groups_of
from tests.benchmarks.referee import Contestant, ratio, rounds, save, serve

MODELS = ("embedded", "smollm2")
UNITS = ("plain", "backward", "local_exact", "linear", "pruned", "integrated")
PARTS = {"units": UNITS}  # by part, its contestants


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
    method = "local_exact" if name == "pruned" else name
    return lambda: scores(model, groups, circuit, method, token_budget=ROWS * LENGTH).edges.signed


def contestant_of(name: str, model: str, memory: bool = False) -> Contestant:
    return Contestant("bench_units", ("--contestant", name, "--model", model), threads=1, memory=memory)


def times(part: str, model: str, count: int) -> dict[str, Any]:
    contestants = {name: contestant_of(name, model) for name in PARTS[part]}
    seconds = rounds(contestants, count, f"{part}, {model}")
    for contestant in contestants.values():
        contestant.close()
    first = PARTS[part][0]
    ratios = {f"{name} / {first}": ratio(values, seconds[first]) for name, values in seconds.items() if name != first}
    return {"cpu_seconds": {name: float(np.median(values)) for name, values in seconds.items()}, **ratios}


def extra_peak(part: str, model: str) -> dict[str, float]:
    peaks = {}
    for name in PARTS[part]:
        contestant = contestant_of(name, model, memory=True)
        peaks[f"{name}, MiB"] = contestant.ask("peak") / 2**20
        contestant.close()
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--part", choices=PARTS, help="one part alone")
    parser.add_argument("--model", choices=MODELS, help="one model alone")
    parser.add_argument("--save", type=Path)
    parser.add_argument(
        "--contestant", choices=[name for part in PARTS.values() for name in part], help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.contestant:
        torch.set_num_threads(1)
        run = work(options.contestant, options.model)
        run()  # first-call costs
        serve(run)
        return

    import transformers

    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread per process",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rounds": options.rounds,
    }
    for part in [options.part] if options.part else PARTS:
        report[part] = {}
        for model in [options.model] if options.model else MODELS:
            report[part][model] = times(part, model, options.rounds)
            report[part][model]["extra peak memory"] = extra_peak(part, model)
    save(report, options.save)


if __name__ == "__main__":
    main()
