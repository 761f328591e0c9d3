"""The map of all single-head patches of one pair of prompts: ours, the loop of hooks, TransformerLens, nnsight, pyvene.

    ours             `patching.patch_map`, with the capture of the source
    loop of hooks    a pre-hook on one output projection, batch 1, all logits: a forward pass for every head
    last logits      the same with the last token's logits alone
    TransformerLens  transformer_lens.patching.get_act_patch_attn_head_out_all_pos
    nnsight          one trace with an invoke for every head
    pyvene           VanillaIntervention on one head's output; two forward passes for every head

Opponents run eager attention, on SmolLM2 sdpa, ours the engine.
"""

from functools import partial

import torch

from tests.benchmarks import libraries
from tests.benchmarks.referee import DIFFERENCE, ORACLES, TIME, Bar, Contest
from tests.benchmarks.tasks import pair_of, prepared


def ours(model):
    from util.figures.ioi_patching.measure import heads_of, patch_map

    patched = prepared(model)
    base, source, names = pair_of(model)
    first, answers = int((base != source)[0].nonzero()[0]), torch.tensor([names])
    return lambda: patch_map(patched, base, heads_of(patched, source), answers, first)[0][0]


LIBRARIES = {
    "TransformerLens": libraries.patch_map_transformer_lens,
    "nnsight": libraries.patch_map_nnsight,
    "pyvene": libraries.patch_map_pyvene,
}
SAMPLED = partial(libraries.hook_loop, some=1, attention="sdpa", use_cache=False)
CONTESTS = {
    "random GPT-2 small, 14 tokens": Contest(
        {"ours": ours, "loop of hooks": libraries.hook_loop, **LIBRARIES},
        (
            Bar(TIME, "loop of hooks", "ours", least=12),
            Bar(TIME, "TransformerLens", "ours", least=12),
            Bar(TIME, "nnsight", "ours", least=2.5),
            Bar(TIME, "pyvene", "ours"),
            Bar(DIFFERENCE, "ours"),
        ),
        {"model": "gpt2"},
        {"model": "tiny"},
        threads=2,
        same=(("loop of hooks", "ours", *LIBRARIES),),
        pythons=dict.fromkeys(LIBRARIES, ORACLES),
    ),
    "SmolLM2, loops extrapolated from a ninth of the heads": Contest(
        {"ours": ours, "loop of hooks": SAMPLED, "last logits": partial(SAMPLED, logits_to_keep=1)},
        (Bar(TIME, "loop of hooks", "ours", least=10), Bar(TIME, "last logits", "ours"), Bar(DIFFERENCE, "ours")),
        {"model": "smollm2"},
        {"model": "embedded"},
        rounds=5,
        part={"loop of hooks": 9, "last logits": 9},
        same=(("loop of hooks", "ours", "last logits"),),
    ),
}
