"""All single-head patches of a model, side by side: ours, the loop of hooks, TransformerLens, nnsight, pyvene.

    python -m tests.benchmarks.bench_ioi [--oracles .venv-oracles/bin/python] [--rounds 9] [--save FILE]

A random GPT-2 (small; weights with a spread of 0.1, float32, two threads) and the pair of prompts of the project, as
GPT-2's tokens. Every contestant is a process of its own that runs once per round; the order within a round is drawn.
Times are CPU seconds; a ratio is the median over rounds with its bootstrap interval. All maps are compared with the
loop's. The opponents run eager attention, ours the engine (sdpa). They are called as their own documents recommend, and
live in an environment of their own, `make .venv-oracles`.

    ours       `patching.patch_map`, with the capture of the source
    naive      a pre-hook on one output projection, batch 1, all logits: L x H forward passes
    tl         transformer_lens.patching.get_act_patch_attn_head_out_all_pos
    nnsight    one trace with an invoke for every head
    pyvene     VanillaIntervention on one head's output; two forward passes for every head
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.benchmarks.hook_loop import hook_loop
from tests.benchmarks.referee import Team, comparison, rounds, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

OWN, OPPONENTS = ("ours", "naive"), ("tl", "nnsight", "pyvene")
SHAPES = {"gpt2": (12, 12, 768), "gpt2-large": (36, 20, 1280), "tiny": (3, 4, 64)}
BASE = [2215, 4995, 290, 18966, 1816, 284, 262, 26725, 11, 18966, 2921, 257, 6891, 284]  # ... Emma gave a coffee to
SOURCE = [*BASE[:9], 4995, *BASE[10:]]  # ... Mike gave a coffee to
MIKE, EMMA, FIRST = 4995, 18966, 9
MANY = 32  # prompts at a time: random tokens, each pair with one that differs

SETTING = "all single-head patches of a random GPT-2 small, 14 tokens, fp32, two threads"
SPEED = "prompt-heads per CPU second"
LARGE = "shape of gpt2-large, the loop extrapolated from a twentieth of its heads, one round"
LINES = (
    Line("loop of hooks, one forward pass for every head / ours, CPU time", ("gpt2", "naive / ours"), least=12),
    Line("TransformerLens 4.3 / ours, CPU time", ("gpt2", "tl / ours"), least=12),
    Line("nnsight 0.8, one trace / ours, CPU time", ("gpt2", "nnsight / ours"), least=2.5),
    Line("pyvene 0.1.8 / ours, CPU time", ("gpt2", "pyvene / ours")),
    Line("32 pairs of prompts, one round: TransformerLens / ours, CPU time", ("gpt2, 32 prompts", "tl / ours")),
    Line("the same: ours", ("gpt2, 32 prompts", SPEED, "ours"), unit=SPEED),
    Line("the same: TransformerLens", ("gpt2, 32 prompts", SPEED, "tl"), unit=SPEED),
    Line(f"{LARGE}: loop / ours, CPU time", ("gpt2-large", "naive / ours")),
    Line("the same: ours, CPU time", ("gpt2-large", "cpu_seconds", "ours"), unit="s"),
    Line("the same: ours, extra peak memory", ("gpt2-large", "ours, extra peak memory, MiB"), unit="MiB"),
)


def model_of(shape: str) -> Any:
    layers, heads, width = SHAPES[shape]
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=width, initializer_range=0.1)
    return GPT2LMHeadModel(config).eval()


def pairs(count: int) -> tuple[Any, Any]:
    """Tokens [N, T] of base and source: the project's pair, or that many random ones."""
    if count == 1:
        return torch.tensor([BASE]), torch.tensor([SOURCE])
    generator = torch.Generator().manual_seed(0)
    base = torch.randint(50257, (count, len(BASE)), generator=generator)
    source = base.clone()
    source[:, FIRST] = torch.randint(50257, (count,), generator=generator)
    return base, source


def difference(logits: Any) -> Any:
    return logits[..., -1, MIKE] - logits[..., -1, EMMA]


# ---------------------------------------------------------------------------------------- the contestants


def ours(model: Any, count: int = 1) -> Callable[[], Any]:
    from util.engine.handshake import prepare
    from util.figures.ioi_patching.patching import heads_of, patch_map

    prepare(model)
    base, source = pairs(count)
    answers = torch.tensor([[MIKE, EMMA]] * count)

    def run() -> Any:
        return patch_map(model, base, heads_of(model, source), answers, FIRST)[0].mean(0)

    return run


def naive(model: Any, some: int | None = None) -> Callable[[], Any]:
    """some: only so many heads of each layer."""
    model.set_attn_implementation("eager")
    projections = [block.attn.c_proj for block in model.transformer.h]
    return hook_loop(model, projections, pairs(1), difference, some)


def tl(model: Any, count: int = 1) -> Callable[[], Any]:
    from transformer_lens import patching
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model.set_attn_implementation("eager")
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config, model_name="random")
    bridge.eval()
    base, source = pairs(count)

    @torch.no_grad()
    def run() -> Any:
        _, cache = bridge.run_with_cache(source, names_filter=lambda name: name.endswith("attn.hook_z"))
        metric = lambda logits: difference(logits).mean()  # noqa: E731
        return patching.get_act_patch_attn_head_out_all_pos(bridge, base, cache, metric).numpy()

    return run


def nnsight(model: Any) -> Callable[[], Any]:
    import nnsight as library
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.set_attn_implementation("eager")
    raw = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>")
    nn = library.TransformersModel(model, tokenizer=tokenizer, task="text-generation")
    base, source = torch.tensor([BASE]), torch.tensor([SOURCE])
    layers, heads = model.config.n_layer, model.config.n_head
    width = model.config.n_embd // heads

    @torch.no_grad()
    def run() -> Any:
        z = {}
        with nn.trace(source):
            for layer in range(layers):
                z[layer] = nn.transformer.h[layer].attn.c_proj.input.save()
        with nn.trace() as tracer:
            found = library.save([])
            for layer in range(layers):
                for head in range(heads):
                    with tracer.invoke(base):
                        part = slice(head * width, (head + 1) * width)
                        nn.transformer.h[layer].attn.c_proj.input[:, :, part] = z[layer][:, :, part]
                        logits = nn.lm_head.output[:, -1]
                        found.append(logits[0, MIKE] - logits[0, EMMA])
        return np.array([float(value) for value in found]).reshape(layers, heads)

    return run


def pyvene(model: Any) -> Callable[[], Any]:
    import pyvene as library

    model.set_attn_implementation("eager")
    base, source = {"input_ids": torch.tensor([BASE])}, {"input_ids": torch.tensor([SOURCE])}
    layers, heads, positions = model.config.n_layer, model.config.n_head, list(range(len(BASE)))

    def patched(layer: int) -> Any:
        one = {
            "layer": layer,
            "component": "head_attention_value_output",
            "unit": "h.pos",
            "max_number_of_units": 1,
            "intervention_type": library.VanillaIntervention,
        }
        return library.IntervenableModel(library.IntervenableConfig([one]), model)

    @torch.no_grad()
    def run() -> Any:
        scores = np.empty((layers, heads))
        for layer in range(layers):
            intervenable = patched(layer)
            for head in range(heads):
                at = [[[[head]], [positions]]]
                _, out = intervenable(base, [source], {"sources->base": (at, at)})
                scores[layer, head] = difference(out.logits)[0]
        return scores

    return run


def work(name: str, shape: str, some: int | None, count: int) -> Callable[[], Any]:
    """What a contestant runs. some: heads of each layer that the loop takes, None for all; count: pairs of prompts."""
    model = model_of(shape)
    numbers = {"naive": (some,), "ours": (count,), "tl": (count,)}.get(name, ())
    return globals()[name](model, *numbers)


# ---------------------------------------------------------------------------------------- the referee


def team_of(oracles: str, shape: str, some: int | None = None, count: int = 1) -> Team:
    options = {"shape": shape, "some": some, "count": count}
    return Team("bench_ioi", options, threads=2, pythons=dict.fromkeys(OPPONENTS, oracles))


def maps(oracles: str, shape: str, names: tuple[str, ...] = (*OWN, *OPPONENTS)) -> dict[str, Any]:
    """Every contestant's map [L, H]."""
    return team_of(oracles, shape).values(names)


def measured(
    oracles: str, shape: str, repeats: int, names: tuple[str, ...], some: int | None = None, count: int = 1
) -> dict[str, Any]:
    """The report's part on one shape and number of prompts."""
    with team_of(oracles, shape, some, count).started(names) as contestants:
        seconds = rounds(contestants, repeats, f"{shape}, {count} prompts")
        peak = contestants["ours"].ask("peak") / 2**20
    layers, heads, _ = SHAPES[shape]
    extra: dict[str, Any] = {}
    if some:  # of the loop only a sample of its heads is timed
        seconds["naive"] = [heads / some * timed for timed in seconds["naive"]]
        extra["heads of each layer timed in the loop, the rest extrapolated"] = some
    report = comparison(seconds, [(name, "ours") for name in names if name != "ours"])
    if count > 1:
        extra[SPEED] = {name: count * layers * heads / s for name, s in report["cpu_seconds"].items()}
    return {"rounds": repeats, **report, **extra, "ours, extra peak memory, MiB": peak}


def main() -> None:
    names = (*OWN, *OPPONENTS)
    parser = command_line(__doc__, 9, names, oracles=True)
    parser.add_argument("--large", type=int, default=1, help="rounds of gpt2-large, the loop from a sample")
    parser.add_argument("--many", type=int, default=1, help=f"rounds with {MANY} prompts")
    parser.add_argument("--shape", choices=tuple(SHAPES), help=argparse.SUPPRESS)
    parser.add_argument("--some", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        run = work(options.contestant, options.shape, options.some, options.count)
        return serve(run, warm=options.contestant != "naive" and options.count == 1)

    found = maps(options.oracles, "gpt2", names)
    differences = {n: float(np.abs(found[n] - found["naive"]).max()) for n in names if n != "naive"}
    report = {
        **report_head(options.rounds, threads=2),
        "spread of the loop's map": float(found["naive"].std()),
        "largest difference to the loop's map": differences,
        "gpt2": measured(options.oracles, "gpt2", options.rounds, names),
    }
    if options.many:
        many = measured(options.oracles, "gpt2", options.many, ("ours", "tl"), count=MANY)
        report[f"gpt2, {MANY} prompts"] = many
    if options.large:
        report["gpt2-large"] = measured(options.oracles, "gpt2-large", options.large, OWN, some=1)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
