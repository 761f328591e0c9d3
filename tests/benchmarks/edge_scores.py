"""Scores of all edges of the component graph: ours beside plain forward passes, TransformerLens and the loop.

EAP is of all 32,491 edges of a random GPT-2 small on prompts of 15 tokens, TransformerLens always on two, its time
extrapolated. Exact scores are of all 1,519 edges of the embedded model on 14.

    plain pass       a forward pass of the same prompts by the class's own eager attention, nothing attached
    ours             `attribution.edge_scores`, negated and prompts exchanged as TransformerLens does; `exact_scores`
    TransformerLens  its attribution_patch at edge granularity: it linearises at the corrupted run towards the base run,
                     prompt by prompt and token by token, and gives means over prompts
    EAP-IG's way     what its code does, in a few lines on hooks of TransformerLens
    loop             one whole pass with hooks for each edge (tests/scores/slow_edges.py, the class's sdpa attention)
"""

from functools import partial

import numpy as np
import torch

from tests.benchmarks.libraries import edge_scores_eap_ig, edge_scores_transformer_lens
from tests.benchmarks.referee import MEMORY, ORACLES, TIME, Bar, Contest
from tests.benchmarks.tasks import eap_prompts, model_of, prepared


def plain(model, prompts):
    whole = model_of(model, "eager")
    base = eap_prompts(whole.config.vocab_size, prompts)[0]

    @torch.inference_mode()
    def run():
        return whole(input_ids=base, use_cache=False, logits_to_keep=1).logits[:, 0, :2].numpy()

    return run


def eap(model, prompts):
    from util.scores.attribution import edge_scores

    scored = prepared(model)
    base, corrupted, answers = eap_prompts(scored.config.vocab_size, prompts)
    return lambda: -edge_scores(scored, corrupted, base, answers).mean(0).numpy()


def exact(model, prompts, every, loop):
    """every: of so many edges one is taken."""
    from tests.scores.slow_edges import SlowEdges
    from tests.scores.slow_paths import with_own_keys
    from util.scores.attribution import model_graph
    from util.scores.exact import exact_scores

    scored = model_of(model)
    base, source, answers = eap_prompts(scored.config.vocab_size, prompts, 14)
    wanted = [(int(u), int(v)) for u, v in np.argwhere(model_graph(scored).edges)][::every]
    if loop:
        scored = with_own_keys(scored)  # hooks cannot tell what two heads read of one key
        scored.set_attn_implementation("sdpa")

    @torch.no_grad()
    def slow():
        edges = SlowEdges(scored, base, source, answers)
        return torch.stack([edges.effect(*edge) for edge in wanted]).mean(1).numpy()

    return slow if loop else lambda: exact_scores(scored, base, source, answers, wanted).mean(0).numpy()


LIBRARIES = {"TransformerLens": edge_scores_transformer_lens, "EAP-IG's way": edge_scores_eap_ig}
PAIRS = (("ours", "plain pass", None, 4), ("TransformerLens", "plain pass"), ("EAP-IG's way", "plain pass"))
PYTHONS = dict.fromkeys(LIBRARIES, ORACLES)
CONTESTS = {
    "EAP, 32 prompts": Contest(
        {
            "plain pass": plain,
            "ours": eap,
            "EAP-IG's way": edge_scores_eap_ig,
            "TransformerLens": lambda model, prompts: edge_scores_transformer_lens(model, 2),
        },
        (*(Bar(TIME, *pair) for pair in PAIRS), Bar(MEMORY, "ours"), Bar(MEMORY, "EAP-IG's way")),
        {"model": "gpt2", "prompts": 32},
        {"model": "tiny", "prompts": 2},
        rounds=5,
        part={"TransformerLens": 16},
        beyond="plain pass",
        same=(("ours", "EAP-IG's way"),),
        pythons=PYTHONS,
    ),
    "EAP, two prompts": Contest(
        {"plain pass": plain, "ours": eap, **LIBRARIES},
        (Bar(MEMORY, "ours", "TransformerLens", most=0.2), Bar(MEMORY, "ours", "EAP-IG's way")),
        {"model": "gpt2", "prompts": 2},
        {"model": "tiny llama", "prompts": 2},
        rounds=0,
        beyond="plain pass",
        same=(("TransformerLens", "ours", "EAP-IG's way"),),
        pythons=PYTHONS,
    ),
    "exact scores, four prompts": Contest(
        {"ours": partial(exact, loop=False), "loop": partial(exact, loop=True)},
        (Bar(TIME, "loop", "ours", least=5),),
        {"model": "embedded", "prompts": 4, "every": 1},
        {"model": "embedded", "prompts": 1, "every": 100},
        rounds=5,
        same=(("loop", "ours"),),
    ),
}
