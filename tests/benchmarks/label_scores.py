"""Labels scored with cells cut, with heads at their mean and with patterns knocked out, beside the same with no edit.

scored               `label_log_probs`: what follows each prompt of random ids, nothing cut
cut                  the same with the cells s_i -> y_i of four demonstrations cut in all layers and heads
plain                `label_log_probs` of prompts of ten demonstrations of equal length: batches have no padding
heads at their mean  the same with eight heads at their mean
knocked out          the same with the induction pattern knocked out in eight heads, cells planned beforehand
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from tests.benchmarks.referee import TIME, Bar, Contest
from tests.benchmarks.tasks import packaged, prepared, random_ids


def random_labels(model, length, prompts, cut):
    from util.engine.attention import support
    from util.engine.label_scores import Scoring, knockouts, label_log_probs, nothing
    from util.prompts.prompt import LabelledTokens

    llama = prepared(model)
    ids = random_ids(prompts, length, llama.config.vocab_size).tolist()
    roles = LabelledTokens((), (length - 1,), (length,), (1,), length + 1)
    plan = Scoring([roles] * prompts, [tuple(row) for row in ids], [((1,), (2,))] * prompts, np.zeros(prompts, int))
    ends = [length * i // 5 for i in range(1, 5)]
    cells = [np.array([(end, end - 1) for end in ends])] * prompts
    attach = knockouts(cells, dict.fromkeys(support(llama).layers)) if cut else nothing
    return lambda: label_log_probs(llama, plan, attach, 2048)["log_prob"]


def demonstrations(model, prompts, edit):
    from util.engine.attention import support
    from util.engine.instruments import PatchHeads
    from util.engine.label_scores import knockouts, label_log_probs, nothing, scoring
    from util.prompts import classification, induction_pattern

    gpt2, tokenizer = prepared(model), packaged("embedded")[1]
    drawn = classification.prompts(classification.task("repetition"), 10, limit=prompts)
    plan, found = scoring(gpt2, tokenizer, drawn), support(gpt2)
    heads = {layer: list(range(min(4, found.heads))) for layer in found.layers[1:3]}
    attach: Any = nothing
    if edit == "knocked out":
        attach = knockouts([induction_pattern.cells(prompt, tokenizer) for prompt in drawn], heads)
    elif edit == "heads at their mean":
        mean = torch.zeros(4, gpt2.config.hidden_size // found.heads)
        attach = lambda batch: [PatchHeads(layer, own, mean) for layer, own in heads.items()]  # noqa: E731
    return lambda: label_log_probs(gpt2, plan, attach, prompts * len(plan.ids[0]))["log_prob"]


EDITS = ("plain", "heads at their mean", "knocked out")


CONTESTS = {
    "512 tokens, 16 prompts": Contest(
        {"scored": partial(random_labels, cut=False), "cut": partial(random_labels, cut=True)},
        (Bar(TIME, "cut", "scored", most=1.25),),
        {"model": "llama", "length": 512, "prompts": 16},
        {"model": "tiny llama", "length": 20, "prompts": 2},
    ),
    "ten demonstrations, 16 prompts": Contest(
        {edit: partial(demonstrations, edit=edit) for edit in EDITS},
        (
            Bar(TIME, "heads at their mean", "plain", most=1.1),
            Bar(TIME, "knocked out", "plain"),
        ),
        {"model": "gpt2", "prompts": 16},
        {"model": "tiny", "prompts": 2},
    ),
}
