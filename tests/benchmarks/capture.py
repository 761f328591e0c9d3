"""Copy magnitudes and captured rows beside bare passes of the same batches, and beside the published code's way.

A random Llama (8 layers, 16 heads, width 512) reads prompts with two label conditions each; SmolLM2 is read in as many
rows as notebook 01 reads.

    ours            `copy_magnitudes`: both conditions in one pass, 32 control rows
    published code  eager, output_attentions and output_hidden_states, logits, batch 1, once per condition
    rows            `CaptureRows`
    bare pass       the same batches through the same base model with plain sdpa, nothing captured
"""

from contextlib import nullcontext
from functools import partial

import torch

from tests.benchmarks.referee import MEMORY, TIME, Bar, Contest
from tests.benchmarks.tasks import model_of, prepared, random_ids


def published(model, length, prompts, budget):
    llama = model_of(model, "eager")
    drawn = random_ids(prompts, length + 1, llama.config.vocab_size)

    @torch.no_grad()
    def one(ids):
        out = llama(ids[None], output_attentions=True, output_hidden_states=True)
        return [weights[0, :, -1, -2].tolist() for weights in out.attentions]

    return lambda: [[one(torch.cat([row[:-2], row[-2 + c :][:1]])) for c in (0, 1)] for row in drawn]


def magnitudes(model, length, prompts, budget, bare=False):
    from util.engine.batches import Batch, Row, plan
    from util.figures.forerunner_heads.measure import copy_magnitudes
    from util.prompts.prompt import LabelledTokens

    llama = model_of(model, "sdpa") if bare else prepared(model)
    drawn = random_ids(prompts, length + 1, llama.config.vocab_size).tolist()
    rows = [Row(tuple(row[:-2]), tuple(row[-2:])) for row in drawn]

    @torch.inference_mode()
    def passes():
        for numbers in plan([len(row) for row in rows], budget):
            llama.base_model(Batch.of(rows, numbers).inputs["input_ids"], use_cache=False)

    if bare:
        return passes
    tokens = {
        c: [LabelledTokens((*row[:-2], row[-2 + c]), (length - 2,), (length - 1,), (1,), length) for row in drawn]
        for c in (0, 1)
    }
    run = tokens, [(row, number, [0, 1]) for number, row in enumerate(rows)]
    return lambda: copy_magnitudes(llama, run, token_budget=budget)["magnitude"]


def rows(model, prompts, length, read, bare=False):
    """The last hidden states of the last tokens; read: rows of each prompt."""
    from util.engine.attention import instrument
    from util.engine.instruments import CaptureRows

    real = model_of(model, "sdpa" if bare else "")
    ids = random_ids(prompts, length, real.config.vocab_size)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(length, generator=generator)[:read].sort()[0] for _ in ids])

    @torch.inference_mode()
    def run():
        with nullcontext() if bare else instrument(real, CaptureRows(chosen)):
            return real.base_model(ids, use_cache=False).last_hidden_state[:, -1].numpy()

    return run


BOTH = {"ours": magnitudes, "published code": published}
ALL = BOTH | {"bare pass": partial(magnitudes, bare=True)}
LLAMA, TINY = {"model": "llama", "budget": 2048}, {"model": "tiny llama", "length": 12, "prompts": 2, "budget": 30}
SLOWER = ("published code", "ours")
# more prompts may take what their results and token ids take, and 16 MiB
GROWTH = (512 * 8 * 16 * 4 * (2 + 1) + 512 * 8 * 3 + 512 * 66 * 8) / 2**20 + 16


def contest(contestants, bars, rounds=9, **setting):
    return Contest(contestants, bars, LLAMA | setting, TINY, rounds, same=(SLOWER,))


CONTESTS = {
    "512 tokens, 16 prompts": contest(
        ALL, (Bar(TIME, "ours", "bare pass", most=1.1), Bar(TIME, *SLOWER, least=3)), length=512, prompts=16
    ),
    # a budget of one token means batches of one prompt
    "512 tokens, batches of one prompt": contest(
        BOTH, (Bar(MEMORY, *SLOWER, least=8),), 0, length=512, prompts=4, budget=1
    ),
    "64 tokens, beyond what 64 prompts take": Contest(
        {f"{count} prompts": partial(magnitudes, prompts=count) for count in (64, 512)},
        (Bar(MEMORY, "512 prompts", most=GROWTH),),
        LLAMA | {"length": 64},
        {name: value for name, value in TINY.items() if name != "prompts"},
        rounds=0,
        beyond="64 prompts",
    ),
    "SmolLM2, 35 rows of each of four prompts of 256 tokens": Contest(
        {"rows": rows, "bare pass": partial(rows, bare=True)},
        (Bar(TIME, "rows", "bare pass", most=1.1),),
        {"model": "smollm2", "prompts": 4, "length": 256, "read": 35},
        {"model": "embedded", "prompts": 2, "length": 20, "read": 5},
        rounds=5,
        same=(("bare pass", "rows"),),
    ),
}
