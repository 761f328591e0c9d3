"""Prefix-matching and four other scores of all heads, five sequences of 201 tokens, beside bare passes and a library.

scores           `sequences_study.head_scores`
bare pass        the same batches through the same base model, nothing read
TransformerLens  transformer_lens.head_detector.detect_head, "induction_head", one score, sequences one by one
"""

import torch

from tests.benchmarks.libraries import prefix_scores_transformer_lens
from tests.benchmarks.referee import DIFFERENCE, MEMORY, ORACLES, TIME, Bar, Contest
from tests.benchmarks.tasks import COPIES, SEQUENCES, prepared, repeated


def scores(model, length):
    from util.prompts.induction_pattern import Sequences
    from util.roles.sequences_study import head_scores

    read = prepared(model)
    drawn = Sequences(repeated(read.config.vocab_size, length), length, COPIES, True, "")

    def run():
        mean = head_scores(read, drawn)["prefix_matching"].mean(0)
        return mean * (COPIES - 1) * length / (COPIES * length + 1)  # the library averages over all rows

    return run


def bare(model, length):
    from util.engine.batches import TOKEN_BUDGET, plan

    read = prepared(model)
    ids = torch.from_numpy(repeated(read.config.vocab_size, length))

    @torch.inference_mode()
    def run():
        for numbers in plan([ids.shape[1]] * SEQUENCES, TOKEN_BUDGET):
            read.base_model(ids[numbers], use_cache=False)

    return run


LAYER = SEQUENCES * 12 * (COPIES - 1) * 50 * (COPIES * 50 + 1) * 4 / 2**20  # MiB of a layer's read weights
CONTESTS = {
    "random GPT-2 small": Contest(
        {"scores": scores, "bare pass": bare, "TransformerLens": prefix_scores_transformer_lens},
        (
            Bar(TIME, "scores", "bare pass", most=1.15),
            Bar(MEMORY, "scores", most=3 * LAYER),
            Bar(TIME, "TransformerLens", "scores"),
            Bar(DIFFERENCE, "scores"),
        ),
        {"model": "gpt2", "length": 50},
        {"model": "tiny", "length": 6},
        beyond="bare pass",
        same=(("TransformerLens", "scores"),),
        pythons={"TransformerLens": ORACLES},
    )
}
