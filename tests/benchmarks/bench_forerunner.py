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
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.referee import Team, comparison, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

COPIES, SCORED = ("ours", "bare", "opponent"), ("scored", "cut")
MEMORY = ("ours", "opponent")
FEW, MANY = 64, 512  # prompts that memory is compared between
# their results, token ids, and 16 MiB
ALLOWED = (MANY * 8 * 16 * 4 * (2 + 1) + MANY * 8 * 3 + MANY * 66 * 8) / 2**20 + 16

SHORT, LONG = "512 tokens, 16 prompts", "1024 tokens, 4 prompts"
CUT = "cut / scored, a run of its own"
PEAKS = "opponent / ours, extra peak memory"
GROWTH = "512 prompts minus 64, 64 tokens each"
SETTING = "random Llama (8 layers, 16 heads, width 512, fp32), two conditions, one CPU thread"
LINES = (
    Line(f"{SHORT}: ours / bare forward pass of the same batches, CPU time", (SHORT, "ours / bare"), most=1.1),
    Line(f"{LONG}: the same", (LONG, "ours / bare")),
    Line(f"{SHORT}: labels scored, s_i -> y_i cut in all heads / nothing cut, CPU time", (SHORT, CUT), most=1.25),
    Line(f"{LONG}: the same", (LONG, CUT)),
    Line(f"{SHORT}: published code's way / ours, CPU time", (SHORT, "opponent / ours"), least=3),
    Line(f"{LONG}: the same", (LONG, "opponent / ours")),
    Line(f"{SHORT}: published code's way / ours, extra peak memory at batch 1", (SHORT, PEAKS), least=8),
    Line(f"{LONG}: the same", (LONG, PEAKS)),
    Line(f"extra peak memory, {GROWTH}", (GROWTH, "extra peak memory, MiB"), most=round(ALLOWED, 1), unit="MiB"),
)


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

    if contestant in SCORED:
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


# ------------------------------------------------------------------------------------------------ the referee


def team_of(length: int, prompts: int, token_budget: int) -> Team:
    return Team("bench_forerunner", {"length": length, "prompts": prompts, "budget": token_budget})


def measured(length: int, prompts: int, count: int, token_budget: int) -> dict[str, Any]:
    """The report's part on prompts of one length."""
    team, title = team_of(length, prompts, token_budget), f"{length} tokens, {prompts} prompts"
    times = comparison(team.seconds(COPIES, count, title), [("ours", "bare"), ("opponent", "ours")])
    peaks = team_of(length, 4, 1).peaks(MEMORY)  # a budget of 1 token means batches of one prompt
    scored = comparison(team.seconds(SCORED, count, f"{title}, labels"), [("cut", "scored")])
    return {
        **times,
        "extra peak memory at batch 1, MiB": peaks,
        PEAKS: peaks["opponent"] / peaks["ours"],
        CUT: scored["cut / scored"],
    }


def main() -> None:
    parser = command_line(__doc__, 9, (*COPIES, *SCORED))
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--prompts", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=2048, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        if options.prompts > 1:
            work(options.contestant, options.length, 1, options.budget)()  # first-call costs, on one prompt
        run = work(options.contestant, options.length, options.prompts, options.budget)
        return serve(run, warm=options.prompts == 1)
    report = report_head(options.rounds)
    for length, prompts in ((512, 16), (1024, 4)):
        report[f"{length} tokens, {prompts} prompts"] = measured(length, prompts, options.rounds, options.budget)
    few, many = (team_of(64, prompts, 2048).peaks(["ours"])["ours"] for prompts in (FEW, MANY))
    report[GROWTH] = {"extra peak memory, MiB": many - few, "allowed, MiB": ALLOWED}
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
