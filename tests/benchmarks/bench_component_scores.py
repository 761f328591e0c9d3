"""Scores of all edges of the component graph: ours beside plain forward passes, TransformerLens and the loop.

    python -m tests.benchmarks.bench_component_scores [--oracles .venv-oracles/bin/python] [--rounds 5] [--save FILE]

Float32 on one thread; every contestant is a process of its own that runs once per round, in a drawn order. Times are
CPU seconds; a ratio is the median over rounds with its bootstrap interval. Peak memory is what one run takes above what
the process holds between runs; "extra" is this less the same of a plain forward pass.

EAP on a random GPT-2 small, 32 prompts of 15 tokens, 32,491 edges:

    plain      a forward pass of the same prompts by the class's own eager attention, nothing attached
    ours       `attribution.edge_scores` by EAP
    tl         transformer_lens.tools.analysis.attribution_patch at edge granularity: it linearises at the corrupted run
               towards the base run, prompt by prompt and token by token, and gives means over prompts; on two of them
    einsum     what EAP-IG's code does, in a few lines on hooks of TransformerLens: what all parts write, in both runs,
               kept as [N, T, nodes, width], and multiplied with the gradients of inputs that are split by head

ours and tl are compared where their definitions are the same: ours with base and corrupted prompts exchanged, negated.

Exact scores of all 1,519 edges of the embedded model, 4 prompts of 14 tokens:

    exact      `exact.exact_scores`
    loop       one whole pass with hooks for each edge (tests/scores/slow_edges.py), the class's own sdpa attention

SmolLM2, 32 IOI prompts: all 123,211 edges by EAP-IG inputs with 5 steps, in seconds of the clock on
all cores (the model is to be fetched first; --real 0 leaves this part out).
"""

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.benchmarks.referee import Team, comparison, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

GROUPS = {"EAP": ("plain", "ours", "tl", "einsum"), "exact": ("exact", "loop")}
OPPONENTS = ("tl", "einsum")
SHAPES = {  # class, layers, heads, width
    "gpt2": ("gpt2", 12, 12, 768),
    "tiny": ("gpt2", 3, 4, 64),
    "tiny llama": ("llama", 3, 4, 64),
}
PROMPTS, TOKENS, FIRST = 32, 15, 10  # prompts differ at one token
FEW = 2  # of the prompts, for `tl`, which takes them one by one: its seconds are extrapolated
EXACT_PROMPTS = 4
REAL_PROMPTS = 32

PEAKS = f"ours / tl, extra peak of {FEW} prompts"
REAL = "SmolLM2, EAP-IG inputs"
SETTING = "scores of the edges of the component graph, fp32, one thread"
GPT2 = "all 32,491 edges of a random GPT-2 small, 32 prompts"
EMBEDDED = "all 1,519 edges of the embedded model"
SMOLLM2 = "all 123,211 edges of SmolLM2, 32 prompts"
LINES = (
    Line(f"EAP, {GPT2}", ("EAP", "ours / plain"), most=4, unit="plain passes"),
    Line("the same by TransformerLens 4.3, extrapolated from two prompts", ("EAP", "tl / plain"), unit="plain passes"),
    Line("the same by EAP-IG's way, on hooks of TransformerLens", ("EAP", "einsum / plain"), unit="plain passes"),
    Line("EAP, two prompts: extra peak memory / TransformerLens'", ("EAP", PEAKS), most=0.2),
    Line("EAP, 32 prompts: extra peak memory", ("EAP", f"extra peak of {PROMPTS} prompts, MiB", "ours"), unit="MiB"),
    Line("the same by EAP-IG's way", ("EAP", f"extra peak of {PROMPTS} prompts, MiB", "einsum"), unit="MiB"),
    Line(f"exact scores, {EMBEDDED}: loop / ours, CPU time", ("exact", "loop / exact"), least=5),
    Line(f"EAP-IG inputs, 5 steps, {SMOLLM2}, by the clock, all cores", (REAL, "seconds"), most=180, unit="s"),
)


def model_of(shape: str) -> Any:
    """A random model in eval mode whose weights have a spread of 0.1."""
    kind, layers, heads, width = SHAPES[shape]
    torch.manual_seed(0)
    if kind == "gpt2":
        config = GPT2Config(n_layer=layers, n_head=heads, n_embd=width, initializer_range=0.1)
        return GPT2LMHeadModel(config).eval()
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=1000, intermediate_size=96, initializer_range=0.1)).eval()


def prompts_of(vocabulary: int, count: int = PROMPTS, tokens: int = TOKENS) -> tuple[Any, Any, Any]:
    """Random base and corrupted prompts [N, T], one pair of answers for all of them [N, 2]."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randint(vocabulary, (count, tokens), generator=generator)
    corrupted = base.clone()
    corrupted[:, min(FIRST, tokens - 1)] = torch.randint(vocabulary, (count,), generator=generator)
    return base, corrupted, torch.tensor([[5, 6]] * count)


# ---------------------------------------------------------------------------------------- the contestants


def plain(shape: str, count: int) -> Callable[[], Any]:
    model = model_of(shape)
    model.set_attn_implementation("eager")
    base = prompts_of(model.config.vocab_size, count)[0]

    def run() -> Any:
        with torch.inference_mode():
            return model(input_ids=base, use_cache=False, logits_to_keep=1).logits[:, 0, :2].numpy()

    return run


def ours(shape: str, count: int) -> Callable[[], Any]:
    from util.engine.handshake import prepare
    from util.scores.attribution import edge_scores

    model = model_of(shape)
    prepare(model)
    base, corrupted, answers = prompts_of(model.config.vocab_size, count)
    # TransformerLens' definition: the gradient of the corrupted run
    return lambda: -edge_scores(model, corrupted, base, answers).mean(0).numpy()


def bridge_of(shape: str) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model = model_of(shape)
    model.set_attn_implementation("eager")
    name = type(model).__name__
    bridge = build_bridge_from_module(model, name, hf_config=model.config, model_name="random")
    bridge.eval()
    return bridge


def difference(logits: Any) -> Any:
    return logits[..., -1, 5] - logits[..., -1, 6]


def tl(shape: str, count: int) -> Callable[[], Any]:
    from transformer_lens.tools.analysis import attribution_patching as library

    bridge = bridge_of(shape)
    _, layers, heads, _ = SHAPES[shape]
    base, corrupted, _ = prompts_of(bridge.cfg.d_vocab, count)
    config = library.EdgeAttributionConfig(granularity="edge")
    senders = {"embed": lambda n: 0, "attn_head_out": lambda n: 1 + n.layer * (heads + 1) + n.head}
    senders["mlp_out"] = lambda n: (n.layer + 1) * (heads + 1)
    parts = ("q_input", "k_input", "v_input")

    def reader(node: Any) -> int:
        if node.kind == "logits":
            return layers * (3 * heads + 1)
        own = 3 * heads if node.kind == "mlp_in" else parts.index(node.kind) * heads + node.head
        return int(node.layer * (3 * heads + 1) + own)

    def run() -> Any:
        found = library.attribution_patch(bridge, base, corrupted, lambda out: difference(out).sum(), config)
        scores = np.zeros((1 + layers * (heads + 1), layers * (3 * heads + 1) + 1))
        for (writer, read), score in found.edge_scores.items():
            scores[senders[writer.kind](writer), reader(read)] += score
        return scores

    return run


def einsum(shape: str, count: int) -> Callable[[], Any]:
    from transformer_lens.tools.analysis import attribution_patching as library

    bridge = bridge_of(shape)
    _, layers, heads, _ = SHAPES[shape]
    base, corrupted, _ = prompts_of(bridge.cfg.d_vocab, count)
    written = ["hook_embed"]  # what senders write; readers: what they read
    for layer in range(layers):
        written += [f"blocks.{layer}.attn.hook_result", f"blocks.{layer}.hook_mlp_out"]
    readers = []
    for layer in range(layers):
        readers += [f"blocks.{layer}.attn.hook_{part}_input" for part in "qkv"] + [f"blocks.{layer}.hook_mlp_in"]
    readers.append(f"blocks.{layers - 1}.hook_resid_post")

    def run() -> Any:
        metric = lambda out: difference(out).sum()  # noqa: E731
        with library._edge_hook_flags(bridge):
            other = library.cache_activation_and_gradient(bridge, base, metric, written, compute_gradient=False)
            own = library.cache_activation_and_gradient(bridge, corrupted, metric, written + readers)
        writes = torch.cat([by_head(other.activations[n] - own.activations[n]) for n in written], 2)
        gradients = torch.cat([by_head(own.gradients[n]) for n in readers], 2)
        return (torch.einsum("ntud,ntvd->uv", writes, gradients) / len(base)).numpy()

    return run


def by_head(tensor: Any) -> Any:
    """Tensors [N, T, heads, d]; what has no heads is one."""
    return tensor if tensor.ndim == 4 else tensor[:, :, None]


def exact(shape: str, count: int) -> Callable[[], Any]:
    from util.scores.exact import exact_scores

    model, (base, corrupted, answers), wanted = embedded(count)
    return lambda: exact_scores(model, base, corrupted, answers, wanted).mean(0).numpy()


def loop(shape: str, count: int) -> Callable[[], Any]:
    from tests.scores.slow_edges import SlowEdges

    model, pairs, wanted = embedded(count)
    model.set_attn_implementation("sdpa")

    @torch.no_grad()
    def run() -> Any:
        slow = SlowEdges(model, *pairs)
        return torch.stack([slow.effect(*edge) for edge in wanted]).mean(1).numpy()

    return run


def embedded(count: int) -> tuple[Any, Any, Any]:
    """The embedded model, prompts for it and all of its edges."""
    from util.engine.components import Components
    from util.load_model_and_data import load_ICL_model
    from util.scores.attribution import graph_of

    model, _ = load_ICL_model("embedded", device="cpu", verbose=False)
    pairs = prompts_of(model.config.vocab_size, count, 14)
    graph = graph_of(Components(model, pairs[0]))
    return model, pairs, [(int(sender), int(reader)) for sender, reader in np.argwhere(graph.edges)]


def real(prompts: int) -> dict[str, float]:
    """SmolLM2 by EAP-IG inputs: seconds of the clock and of the CPU, and how many edges and prompts."""
    from util.figures.ioi_patching.study import Study
    from util.prompts.ioi import group_by_shape
    from util.scores.attribution import edge_scores

    pairs = Study("smollm2", prompts=prompts).pairs
    model, _ = pairs.pair
    began, used, edges = time.perf_counter(), time.process_time(), 0
    for numbers in group_by_shape(pairs.tokens).values():
        scores = edge_scores(model, *pairs.batch(numbers), "EAP-IG inputs", steps=5)
        edges = int((scores != 0).any(0).sum())
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "prompts": prompts,
        "edges with a score": edges,
    }


# ---------------------------------------------------------------------------------------- the referee


def team_of(oracles: str, shape: str, count: int, own: Mapping[str, Any] | None = None) -> Team:
    pythons = dict.fromkeys(OPPONENTS, oracles)
    return Team("bench_component_scores", {"shape": shape, "count": count}, own or {}, pythons=pythons)


def values_of(oracles: str, names: tuple[str, ...], shape: str, count: int) -> dict[str, np.ndarray]:
    """What every contestant finds: of EAP the mean scores [U, V], with 0 where no edge is; of exact, [E]."""
    from util.scores.graph import ComponentGraph

    found = team_of(oracles, shape, count).values(names)
    if "einsum" in found:  # it has products of all senders with all readers
        found["einsum"] = np.where(ComponentGraph(*SHAPES[shape][1:3]).edges, found["einsum"], 0)
    return found


def times(oracles: str, group: str, count: int, repeats: int) -> dict[str, Any]:
    """CPU seconds of a group's contestants, and their ratios to the first."""
    names = GROUPS[group]
    seconds = team_of(oracles, "gpt2", count, {"tl": {"count": FEW}}).seconds(names, repeats, group)
    if "tl" in seconds:
        seconds["tl"] = [count / FEW * timed for timed in seconds["tl"]]
    return comparison(seconds, [(name, names[0]) for name in names[1:]])


def extra_peaks(oracles: str, count: int, names: tuple[str, ...]) -> dict[str, float]:
    """The peaks of memory of contestants, above that of a plain forward pass of the same prompts, MiB."""
    peaks = team_of(oracles, "gpt2", count).peaks(("plain", *names))
    return {name: peaks[name] - peaks["plain"] for name in names}


def main() -> None:
    parser = command_line(__doc__, 5, [name for names in GROUPS.values() for name in names], oracles=True)
    parser.add_argument("--loops", type=int, default=1, help="rounds of the loop of whole passes; 0: without")
    parser.add_argument("--real", type=int, default=REAL_PROMPTS, help="IOI prompts on SmolLM2; 0: without")
    parser.add_argument("--shape", choices=tuple(SHAPES), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        run = globals()[options.contestant](options.shape, options.count)
        return serve(run, warm=options.contestant != "loop")

    oracles, report = options.oracles, report_head(options.rounds)
    found = values_of(oracles, GROUPS["EAP"][1:], "gpt2", FEW)
    report["EAP, largest difference to ours, of the largest score"] = {
        name: float(np.abs(found[name] - found["ours"]).max() / np.abs(found["ours"]).max()) for name in OPPONENTS
    }
    few = extra_peaks(oracles, FEW, ("ours", *OPPONENTS))
    report["EAP"] = {
        **times(oracles, "EAP", PROMPTS, options.rounds),
        f"extra peak of {FEW} prompts, MiB": few,
        PEAKS: few["ours"] / few["tl"],
        f"extra peak of {PROMPTS} prompts, MiB": extra_peaks(oracles, PROMPTS, ("ours", "einsum")),
    }
    if options.loops:
        report["exact"] = times(oracles, "exact", EXACT_PROMPTS, options.loops)
    if options.real:
        report[REAL] = real(options.real)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
