"""Ablation of edges beside plain runs of the same rows: what donors cost.

Eight prompts of 128 tokens with one donor each, all of random ids, in batches of eight rows.

    two passes  `splicing.outcomes` with all edges but the circuit AGG-ONLY from the donors: most rows are cut
    one edge    `splicing.outcomes` with one edge from the donors, y->last_separator: one row of each prompt is cut
    plain       the same rows, prompts and donors, through the class's own eager attention, nothing attached
"""

from functools import partial

import numpy as np
import torch

from tests.benchmarks.referee import MEMORY, TIME, Bar, Contest
from tests.benchmarks.tasks import model_of, prepared

ROWS, DEMONSTRATIONS, LONG = 8, 30, 5  # the x of LONG demonstrations has two tokens
LENGTH = 1 + 4 * DEMONSTRATIONS + LONG + 2  # bos, x t y n of each, query and last separator; the answer is not run


def groups_of(vocabulary, prompts):
    """Prompts with a donor of corruption 0: one layout, random ids."""
    from util.edges.splicing import Group
    from util.prompts.prompt import TypedTokens

    k = DEMONSTRATIONS
    parts = [("bos", 0)] + [(kind, i) for i in range(1, k + 1) for kind in "xtyn"]
    parts += [(kind, k + 1) for kind in ("query", "last_separator", "target")]
    twice = [2 if kind == "x" and example <= LONG else 1 for kind, example in parts]
    laid = [(*part, slot) for slot, part in enumerate(parts) for _ in range(twice[slot])]
    types, examples, slots = zip(*laid, strict=True)
    drawn = np.random.default_rng(0).integers(1, vocabulary, (prompts, 2, len(types))).tolist()
    typed = [[TypedTokens(tuple(ids), types, examples, slots) for ids in pair] for pair in drawn]
    return [Group(base, {0: donor}) for base, donor in typed]


def plain(model, prompts):
    """The log-probability of each prompt's answer, [N]; so have the others."""
    whole = model_of(model, "eager")
    groups = groups_of(whole.config.vocab_size, prompts)
    rows = [tokens.ids[:LENGTH] for group in groups for tokens in (group.donors[0], group.base)]
    answers = torch.tensor([group.target for group in groups])

    @torch.inference_mode()
    def run():
        batches = torch.tensor(rows).split(ROWS)
        logits = [whole(input_ids=ids, use_cache=False, logits_to_keep=1).logits[1::2, 0] for ids in batches]
        return torch.cat(logits).log_softmax(-1).gather(1, answers)[:, 0].numpy()

    return run


def ablated(model, prompts, removed=""):
    from util.edges.edge import CIRCUITS, Ablation, edges
    from util.edges.splicing import outcomes

    spliced = prepared(model)
    groups = groups_of(spliced.config.vocab_size, prompts)
    ablation = Ablation(removed=edges(removed)) if removed else Ablation(kept=CIRCUITS["AGG-ONLY"])
    return lambda: outcomes(spliced, groups, ablation, token_budget=ROWS * LENGTH)["log_prob"]


CONTESTS = {
    "random GPT-2 small, 128 tokens, a donor each": Contest(
        {
            "two passes": ablated,
            "one edge": partial(ablated, removed="y->last_separator"),
            "plain": plain,
        },
        (
            Bar(TIME, "two passes", "plain", most=1.5),
            Bar(TIME, "one edge", "plain"),
            *(Bar(MEMORY, name) for name in ("two passes", "plain")),
        ),
        {"model": "gpt2", "prompts": 8},
        {"model": "tiny", "prompts": 2},
    )
}
