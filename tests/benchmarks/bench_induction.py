"""Induction scores, ablation and knockout beside plain runs of the same work, and beside TransformerLens' detect_head.

    python -m tests.benchmarks.bench_induction [--oracles .venv-oracles/bin/python] [--rounds 9] [--save FILE]

Two models: a random GPT-2 (small; one thread, float32) and the embedded one. Every contestant is a process of its own
that runs once per round; the order within a round is drawn. Times are CPU seconds; a ratio is the median over rounds
with its bootstrap interval.

    scores     `head_scores.head_scores` of all heads, five sequences of 201 tokens
    bare       the same batches through the same base model, nothing read
    tl         transformer_lens.head_detector.detect_head, "induction_head", the same sequences (eager, one at a time)
    plain      `label_scores.label_log_probs` of 16 prompts of 10 demonstrations
    ablated    the same with eight heads at their mean
    knocked    the same with the induction pattern knocked out in eight heads, cells planned beforehand
    planned    the planning of these cells
    one        `knocked`, one prompt to a batch
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.benchmarks.referee import Team, comparison, ratio, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

SHAPES = ("gpt2", "embedded", "tiny")  # the last for tests
SCORES, TASK = ("scores", "bare"), ("plain", "ablated", "knocked", "planned", "one")
LENGTH, COPIES, SEQUENCES, PROMPTS = 50, 4, 5, 16

SETTING = "induction scores, ablation and knockout on a random GPT-2 small, fp32, one thread"
SCORED = "prefix-matching and four other scores of all heads, five sequences of 201 tokens"
SPEED = "tokens per second, batches of 16 / of 1"
WEIGHTS = "difference / weights of one layer"
LINES = (
    Line(f"{SCORED} / bare forward pass, CPU time", ("gpt2", "scores / bare"), most=1.15),
    Line("extra memory of these scores / one layer's weights", ("gpt2", "extra peak memory", WEIGHTS), most=3),
    Line("TransformerLens 4.3 `detect_head`, one score / ours, CPU time", ("gpt2", "tl / scores")),
    Line("the same: largest difference to ours", ("gpt2", "largest difference to TransformerLens")),
    Line("16 prompts answered with eight heads at their mean / plain, CPU time", ("gpt2", "ablated / plain"), most=1.1),
    Line(
        "16 prompts answered with induction patterns knocked out in eight heads / plain, CPU time",
        ("gpt2", "knocked / plain"),
    ),
    Line("planning the cells of these patterns / plain, CPU time", ("gpt2", "planned / plain"), most=0.1),
    Line("tokens per second with knockout, batches of 16 / of 1", ("gpt2", SPEED), least=0.9),
    Line(f"embedded model: {SCORED} / bare forward pass, CPU time", ("embedded", "scores / bare")),
)


def gpt2(shape: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    layers, heads, width = (3, 4, 64) if shape == "tiny" else (12, 12, 768)
    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=heads, n_embd=width, initializer_range=0.1)).eval()


def ids_of(vocabulary: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = [np.tile(rng.choice(np.arange(1, vocabulary), LENGTH, replace=False), COPIES) for _ in range(SEQUENCES)]
    return np.insert(np.array(rows), 0, 0, axis=1)


def tl(shape: str) -> Callable[[], Any]:
    from transformer_lens.head_detector import detect_head
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model = gpt2(shape)
    model.set_attn_implementation("eager")
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config, model_name="random")
    bridge.eval()
    ids = torch.from_numpy(ids_of(model.config.vocab_size))
    bridge.to_tokens = lambda text, **_: ids[int(text)][None]  # it has no tokenizer

    @torch.no_grad()
    def run() -> Any:
        return torch.stack([detect_head(bridge, str(i), "induction_head") for i in range(SEQUENCES)]).mean(0).numpy()

    return run


def work(name: str, shape: str) -> Callable[[], Any]:
    from util.engine import batches
    from util.engine.attention import support
    from util.engine.handshake import prepare
    from util.engine.instruments import PatchHeads
    from util.engine.label_scores import knockouts, label_log_probs, scoring
    from util.load_model_and_data import load_ICL_model
    from util.prompts import classification, induction_pattern
    from util.prompts.sequences import Sequences
    from util.roles.attention_scores import variants
    from util.roles.head_scores import head_scores

    embedded = load_ICL_model("embedded", device="cpu", verbose=False)
    model, tokenizer = embedded if shape == "embedded" else (gpt2(shape), embedded[1])
    prepare(model)
    if name in SCORES:
        ids = ids_of(model.config.vocab_size)
        budget = batches.TOKEN_BUDGET

        def scores() -> Any:
            drawn = Sequences(ids, LENGTH, COPIES, True, "")
            mean = head_scores(model, drawn)["prefix_matching"].mean(0)
            return variants(mean, LENGTH, COPIES)["TransformerLens mul"]

        def bare() -> None:
            for numbers in batches.plan([ids.shape[1]] * SEQUENCES, budget):
                with torch.inference_mode():
                    model.base_model(torch.from_numpy(ids[numbers]), use_cache=False)

        return scores if name == "scores" else bare

    # ten demonstrations of equal length, so that batches of sixteen have no padding
    prompts = classification.prompts(classification.task("repetition"), 10, limit=PROMPTS)
    plan = scoring(model, tokenizer, prompts)
    assert len({len(ids) for ids in plan.ids}) == 1
    found = support(model)
    heads = {layer: list(range(min(4, found.heads))) for layer in found.layers[1:3]}
    if name == "planned":
        return lambda: [len(induction_pattern.cells(prompt, tokenizer)) for prompt in prompts]
    if name in ("knocked", "one"):
        attach: Any = knockouts([induction_pattern.cells(prompt, tokenizer) for prompt in prompts], heads)
    elif name == "ablated":
        config = model.config
        mean = torch.zeros(4, getattr(config, "head_dim", config.hidden_size // config.num_attention_heads))
        attach = lambda batch: [PatchHeads(layer, own, mean) for layer, own in heads.items()]  # noqa: E731
    else:
        attach = lambda batch: []  # noqa: E731
    budget = 1 if name == "one" else 16 * len(plan.ids[0])
    return lambda: label_log_probs(model, plan, attach, budget)["log_prob"]


def team_of(shape: str, oracles: str = "") -> Team:
    return Team("bench_induction", {"shape": shape}, pythons={"tl": oracles})


def scores_of(oracles: str, shape: str) -> tuple[np.ndarray, np.ndarray]:
    """The scores [L, H] of TransformerLens and ours, by its definition."""
    values = team_of(shape, oracles).values(("tl", "scores"))
    return values["tl"], values["scores"]


def times(oracles: str, shape: str, count: int) -> dict[str, Any]:
    """CPU seconds and their ratios; on the shape of GPT-2, beside TransformerLens, and what it finds."""
    opponents = ("tl",) if shape == "gpt2" else ()
    seconds = team_of(shape, oracles).seconds((*SCORES, *opponents, *TASK), count, shape)
    pairs = [("scores", "bare"), *((name, "plain") for name in ("ablated", "planned", "knocked"))]
    report = comparison(seconds, pairs)
    report[SPEED] = ratio(seconds["one"], seconds["knocked"])
    if opponents:
        report["tl / scores"] = ratio(seconds["tl"], seconds["scores"])
        theirs, ours = scores_of(oracles, shape)
        report["largest difference to TransformerLens"] = float(np.abs(theirs - ours).max())
    return report


def extra_peak(shape: str) -> dict[str, float]:
    """Memory above the bare pass, in units of one layer's read weights in float32."""
    peaks = team_of(shape).peaks(SCORES)
    heads = 12 if shape == "gpt2" else 8
    unit = SEQUENCES * heads * (COPIES - 1) * LENGTH * (COPIES * LENGTH + 1) * 4 / 2**20
    return {
        **{f"{name}, MiB": peak for name, peak in peaks.items()},
        WEIGHTS: (peaks["scores"] - peaks["bare"]) / unit,
    }


def main() -> None:
    parser = command_line(__doc__, 9, (*SCORES, "tl", *TASK), oracles=True)
    parser.add_argument("--shape", choices=SHAPES, help="one model alone")
    options = parser.parse_args()
    if options.contestant:
        return serve(tl(options.shape) if options.contestant == "tl" else work(options.contestant, options.shape))
    report = report_head(options.rounds)
    for shape in [options.shape] if options.shape else SHAPES[:2]:
        times_of_shape = times(options.oracles, shape, options.rounds)
        report[shape] = {**times_of_shape, "extra peak memory": extra_peak(shape)}
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
