"""The moment at which induction heads form, in a model of two layers that takes a minute to train on one core.

It reads random tokens that repeat with a random period and is asked for the repeated ones only. For a while it learns
little more than which tokens there are in the text; then previous-token heads and induction heads form at once, and
the loss on the copies falls (Olsson et al. 2022, there in language models and on text). Notebook 00 draws the log.

`python -m data.embedded_models.recipe.phase_change`, from the clone's root, writes `data/phase_change.json` again.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from data.embedded_models.recipe.train import EMBEDDING_STD, WARM_UP, WEIGHT_DECAY, descend
from util import paths
from util.engine.handshake import prepare
from util.figures.toy_induction_head.numbers import COPY, VOCABULARY
from util.prompts.induction_pattern import Sequences
from util.roles.sequences_study import head_scores

BOS = 0
WIDTH, LAYERS, HEADS = 64, 2, 4
ROWS, LENGTH, PERIODS = 32, 64, (4, 21)  # of a batch, BOS counted; from and to
RATE = 3e-3
HELD_OUT, COPIES = 16, 4  # sequences that scores and losses are measured on; they are as long as a row
SALT = 15  # in front of their seed: no batch is drawn from the same stream
SCORES = ("prefix_matching", "previous_token")
SEEDS = (0, 1, 2)


def train(steps: int = 800, seed: int = 0, every: int = 10) -> dict[str, Any]:
    """Train for `steps` batches, and measure before the first, after every `every`-th and after the last.

    Returns lists of one entry a measurement: tokens read; first_copy, later_copies, the loss on the held-out sequences
    in nats per token; prefix_matching, previous_token, the scores [LAYERS, HEADS], means of the sequences. Runs on one
    thread, so that the numbers depend on the arguments alone (and on the build of torch); global random states stay.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _run(steps, np.random.default_rng(seed), every)
    finally:
        torch.set_num_threads(threads)


def held_out() -> Sequences:
    """What is measured: BOS, then COPIES times the same COPY distinct tokens, ids [HELD_OUT, T]."""
    rng = np.random.default_rng((SALT, 0))
    ids = np.stack([np.r_[BOS, np.tile(_distinct(rng, COPY), COPIES)] for _ in range(HELD_OUT)])
    return Sequences(ids, COPY, COPIES, True, "uniform")


def _distinct(rng: Generator, count: int) -> np.ndarray:
    return rng.choice(np.arange(BOS + 1, VOCABULARY), count, replace=False)


def _run(steps: int, rng: Generator, every: int) -> dict[str, Any]:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=BOS,
    )
    model = LlamaForCausalLM(config).eval()  # for the instruments; it has no dropout, so training is the same
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY)
    log: dict[str, Any] = {name: [] for name in ("tokens", "first_copy", "later_copies", *SCORES)}
    for step in tqdm(range(steps + 1), desc="training", leave=False):
        if step % every == 0 or step == steps:
            for name, value in {"tokens": step * ROWS * LENGTH, **_measure(model)}.items():
                log[name].append(value)
        if step < steps:
            tokens, repeated = _batch(rng)
            loss = _losses(model, tokens)[repeated[:, 1:]].mean()
            descend(model, optimizer, loss, RATE * min(1.0, (step + 1) / WARM_UP))
    return log


def _batch(rng: Generator) -> tuple[Tensor, Tensor]:
    """Token ids [ROWS, LENGTH] and which of them are repeated; the period differs from row to row."""
    periods = rng.integers(PERIODS[0], PERIODS[1] + 1, ROWS)[:, None]
    patterns = np.stack([_distinct(rng, PERIODS[1]) for _ in range(ROWS)])
    place = np.arange(LENGTH - 1)[None]
    tokens = np.insert(np.take_along_axis(patterns, place % periods, axis=1), 0, BOS, axis=1)
    return torch.from_numpy(tokens), torch.from_numpy(np.insert(place >= periods, 0, False, axis=1))


def _losses(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Next-token losses [N, T - 1] of token ids [N, T], in nats."""
    logits = model(tokens, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def _measure(model: LlamaForCausalLM) -> dict[str, Any]:
    drawn = held_out()
    with torch.no_grad():
        losses = _losses(model, torch.from_numpy(drawn.ids)).double().numpy()
    scores = head_scores(model, drawn)
    measured = {"first_copy": losses[:, : drawn.length].mean(), "later_copies": losses[:, drawn.length :].mean()}
    measured |= {name: scores[name].mean(axis=0) for name in SCORES}
    return {name: np.round(value, 4).tolist() for name, value in measured.items()}


def main() -> None:
    """Train a model from each of three seeds, and write the log."""
    parser = argparse.ArgumentParser(
        prog="python -m data.embedded_models.recipe.phase_change", description=main.__doc__
    )
    parser.add_argument("--machine", default=platform.machine(), help="what trains, in words, for the log")
    machine, begun = parser.parse_args().machine, time.monotonic()
    runs = {str(seed): train(seed=seed) for seed in SEEDS}
    seconds, release = (time.monotonic() - begun) / len(runs), torch.__version__.partition("+")[0]
    about = f"python -m data.embedded_models.recipe.phase_change: {seconds:.0f} s a seed, on one thread of {machine}"
    file = paths.root() / "data" / "phase_change.json"
    file.write_text(json.dumps({"about": f"{about}, torch {release}", "seeds": runs}) + "\n", encoding="utf-8")
    print(f"saved to {file}")


if __name__ == "__main__":
    main()
