"""Copy magnitudes side by side: our pass, a bare forward pass, and eager attention with everything switched on.

    python -m tests.benchmarks.bench_forerunner [--rounds 9] [--save data/benchmarks/forerunner_cpu.json]

A random Llama (8 layers, 16 heads, width 512, vocabulary 32,000, fp32, one thread) reads prompts with two label
conditions each. Every contestant is a process of its own that runs once per round; the rounds are paired, the order
within a round is drawn. Times are CPU seconds of the process; a ratio is the median over rounds with its bootstrap
interval.

    ours      `copy_magnitudes`: both conditions in one pass, 32 control rows, same batches as bare
    bare      the same batches through the same base model with plain sdpa, nothing captured
    opponent  the published way: eager, output_attentions and output_hidden_states, logits, batch 1, once per condition
    scored    `label_log_probs`: what follows each prompt, nothing cut
    cut       the same with the cells s_i -> y_i of four demonstrations cut in all layers and heads
"""

import argparse
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.referee import Contestant, ratio, rounds, save, serve

CONTESTANTS = ("ours", "bare", "opponent", "scored", "cut")
MEMORY = ("ours", "opponent")


# ---------------------------------------------------------------------------------------- a contestant's process


def work(contestant: str, length: int, prompts: int, token_budget: int) -> Callable[[], Any]:
    """The work of one contestant on `prompts` prompts of `length` tokens, as a function of nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from util.engine import batches
    from util.engine.attention import support
    from util.engine.handshake import prepare
    from util.engine.label_scores import Scoring, knockouts, label_log_probs, nothing
    from util.figures.forerunner_heads import magnitudes
    from util.prompts.prompt import LabelledTokens

    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 16, "intermediate_size": 1376}
    model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=32000, max_position_embeddings=2048)).eval()
    ids = torch.randint(32000, (prompts, length + 2), generator=torch.Generator().manual_seed(1)).tolist()
    stems, labels = [row[: length - 1] for row in ids], [row[length : length + 2] for row in ids]

    if contestant == "opponent":
        model.set_attn_implementation("eager")

        def run() -> None:
            for stem, ends in zip(stems, labels, strict=True):
                for end in ends:
                    with torch.no_grad():
                        out = model(torch.tensor([[*stem, end]]), output_attentions=True, output_hidden_states=True)
                    [a[0, :, -1, -2].clone() for a in out.attentions]

        return run

    if contestant in ("scored", "cut"):
        prepare(model)
        roles = LabelledTokens((), (length - 1,), (length,), (1,), length + 1)
        scored = Scoring(
            [roles] * prompts,
            [tuple(row[:length]) for row in ids],
            [((1,), (2,))] * prompts,
            np.zeros(prompts, int),
        )
        ends = [length * i // 5 for i in range(1, 5)]
        cells = [np.array([(end, end - 1) for end in ends])] * prompts
        every = dict.fromkeys(support(model).layers)
        attach = knockouts(cells, every) if contestant == "cut" else nothing
        return lambda: label_log_probs(model, scored, attach, token_budget)

    tokens = {
        c: [
            LabelledTokens((*s, e[c]), (length - 2,), (length - 1,), (1,), length)
            for s, e in zip(stems, labels, strict=True)
        ]
        for c in (0, 1)
    }
    rows = [batches.Row(tuple(s), tuple(e)) for s, e in zip(stems, labels, strict=True)]
    if contestant == "ours":
        prepare(model)
        plan = magnitudes.LabelRun(tokens, rows, list(range(prompts)), [[0, 1]] * prompts)
        return lambda: magnitudes.copy_magnitudes(model, plan, token_budget=token_budget)

    model.set_attn_implementation("sdpa")

    def bare() -> None:
        for numbers in batches.plan([len(row) for row in rows], token_budget):
            with torch.inference_mode():
                model.base_model(batches.Batch.of(rows, numbers).inputs["input_ids"], use_cache=False)

    return bare


def contest(contestant: str, length: int, prompts: int, token_budget: int) -> None:
    run = work(contestant, length, prompts, token_budget)
    work_once = work(contestant, length, 1, token_budget) if prompts > 1 else run
    work_once()  # first-call costs
    serve(run)


# ------------------------------------------------------------------------------------------------ the referee


def contestant_of(name: str, length: int, prompts: int, token_budget: int, memory: bool = False) -> Contestant:
    options = ("--contestant", name, "--length", length, "--prompts", prompts, "--budget", token_budget)
    return Contestant("bench_forerunner", options, threads=1, memory=memory)


def times(length: int, prompts: int, count: int, token_budget: int) -> dict[str, Any]:
    contestants = {name: contestant_of(name, length, prompts, token_budget) for name in CONTESTANTS}
    seconds = rounds(contestants, count, f"{length} tokens, {prompts} prompts")
    for contestant in contestants.values():
        contestant.close()
    return {
        "cpu_seconds": {name: float(np.median(values)) for name, values in seconds.items()},
        "ours / bare": ratio(seconds["ours"], seconds["bare"]),
        "opponent / ours": ratio(seconds["opponent"], seconds["ours"]),
        "cut / scored": ratio(seconds["cut"], seconds["scored"]),
    }


def extra_peak(name: str, length: int, prompts: int, token_budget: int) -> float:
    contestant = contestant_of(name, length, prompts, token_budget, memory=True)
    peak = contestant.ask("peak")
    contestant.close()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, default=512, help=argparse.SUPPRESS)
    parser.add_argument("--prompts", type=int, default=16, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=2048, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contest(options.contestant, options.length, options.prompts, options.budget)
        return

    import torch
    import transformers

    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, one thread per process",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rounds": options.rounds,
    }
    for length, prompts in ((512, 16), (1024, 4)):
        report[f"{length} tokens, {prompts} prompts"] = found = times(length, prompts, options.rounds, options.budget)
        peaks = {
            name: extra_peak(name, length, 4, 1) for name in MEMORY
        }  # a budget of 1 token means batches of one prompt
        found["extra peak memory at batch 1, MiB"] = {name: peak / 2**20 for name, peak in peaks.items()}
        found["opponent / ours, extra peak memory"] = peaks["opponent"] / peaks["ours"]
    few, many = (extra_peak("ours", 64, prompts, 2048) for prompts in (64, 512))
    results = 512 * 8 * 16 * 4 * (2 + 1) + 512 * 8 * 3
    ids = 512 * 66 * 8
    report["512 prompts minus 64, 64 tokens each"] = {
        "extra peak memory, MiB": (many - few) / 2**20,
        "allowed, MiB": (results + ids) / 2**20 + 16,
    }
    save(report, options.save)


if __name__ == "__main__":
    main()
