"""Building, growing and training the embedded models; every run resumes exactly from its last checkpoint."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from .corpus import Batch, Corpus
from .tokenizer import BOS_ID, MAX_LENGTH, PAD_ID, VOCABULARY


@dataclass(frozen=True)
class Stage:
    """One part of a recipe: batches of `rows` x `length` tokens until `tokens` are read."""

    tokens: int
    rows: int
    length: int
    shares: Mapping[str, float]
    periods: tuple[int, int]
    rates: tuple[float, float]  # learning rate: cosine from the first to the second after the warm-up
    keep: tuple[int, ...] | None = None  # grow before this stage: where the layers so far go, others are new
    layers: int = 2

    @property
    def steps(self) -> int:
        return math.ceil(self.tokens / (self.rows * self.length))


MIXTURE = {"repeats": 0.25, "maps": 0.25, "words": 0.25, "episodes": 0.25}
LONG_LINES = {"repeats": 0.125, "maps": 0.125, "long_maps": 0.125, "words": 0.125, "recurring": 0.25, "episodes": 0.25}
EPISODES = {"repeats": 0.125, "words": 0.125, "recurring": 0.125, "episodes": 0.625}
RECIPES: dict[str, tuple[Stage, ...]] = {
    "generalist": (
        Stage(1_600_000, 32, 64, {"repeats": 1.0}, (4, 21), (3e-3, 3e-3)),
        Stage(3_500_000, 16, 256, MIXTURE, (4, 100), (2e-3, 2e-3), keep=(0, 2), layers=4),
        Stage(1_000_000, 16, 256, LONG_LINES, (4, 100), (1.5e-3, 1.2e-3), layers=4),
        Stage(4_500_000, 8, 512, EPISODES, (4, 200), (1.2e-3, 5e-5), layers=4),
    )
}
WARM_UP, WEIGHT_DECAY, CLIP = 50, 0.01, 1.0


def new_model(layers: int, seed: int) -> LlamaForCausalLM:
    """A small Llama (width 128, 4 heads, tied embeddings) with seeded random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.02,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        pad_token_id=PAD_ID,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def grow(model: LlamaForCausalLM, layers: int, keep: Sequence[int], seed: int) -> LlamaForCausalLM:
    """A deeper model with the same logits, bit for bit.

    Layer i of `model` becomes layer keep[i]; the other layers are new, and their output projections are zero, so that
    they add nothing to the residual stream until they are trained.
    """
    if len(keep) != len(model.model.layers) or sorted(set(keep)) != list(keep) or keep[-1] >= layers:
        raise ValueError(f"keep={tuple(keep)} does not place {len(model.model.layers)} layers, in order, in {layers}")
    grown = new_model(layers, seed)
    grown.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    grown.model.norm.load_state_dict(model.model.norm.state_dict())
    for old, place in zip(model.model.layers, keep, strict=True):
        grown.model.layers[place].load_state_dict(old.state_dict())
    for place in set(range(layers)) - set(keep):
        torch.nn.init.zeros_(grown.model.layers[place].self_attn.o_proj.weight)
        torch.nn.init.zeros_(grown.model.layers[place].mlp.down_proj.weight)
    return grown


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted next-token loss (a scalar); logits are computed only where there is weight.

    Matrix products run in bfloat16 (a quarter faster on one core), weights and residual stream stay in float32.
    """
    tokens, weights = (torch.from_numpy(part) for part in batch)
    chosen = weights[:, 1:] > 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[chosen])
    losses = F.cross_entropy(logits.float(), tokens[:, 1:][chosen], reduction="none")
    return (losses * weights[:, 1:][chosen]).sum()


def learning_rate(stage: Stage, step: int) -> float:
    """Linear warm-up, then cosine from rates[0] to rates[1]."""
    first, last = stage.rates
    rate = last + (first - last) * (1 + math.cos(math.pi * step / stage.steps)) / 2
    return rate * min(1.0, (step + 1) / WARM_UP)


class Trainer:
    """A model, its optimizer and its place in a recipe; `folder` holds the checkpoint and log.jsonl."""

    def __init__(self, recipe: Sequence[Stage], corpus: Corpus, folder: Path, seed: int = 0) -> None:
        self.recipe, self.corpus, self.folder, self.seed = tuple(recipe), corpus, folder, seed
        self.stage = self.step = 0
        self.seconds = 0.0
        self.model = new_model(recipe[0].layers, seed)
        self.optimizer = self._new_optimizer()
        if self.checkpoint.exists():
            self._restore()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def done(self) -> bool:
        return self.stage == len(self.recipe)

    def train_step(self) -> float:
        """One optimizer step; returns the loss. The batch depends on (seed, stage, step) alone."""
        stage = self.recipe[self.stage]
        rng = np.random.default_rng([self.seed, self.stage, self.step])
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(stage, self.step)
        batch = self.corpus.batch(rng, stage.shares, stage.rows, stage.length, stage.periods)
        loss = loss_of(self.model, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.step += 1
        if self.step == stage.steps:
            self._next_stage()
        return loss.item()

    def run(self, minutes: float = math.inf, log_every: int = 50, save_every: float = 120) -> None:
        """Train to the end of the recipe, or for `minutes`; saves every `save_every` seconds and at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model.train()
        begun = saved = ticked = time.monotonic()
        losses: list[float] = []
        while not self.done and time.monotonic() - begun < 60 * minutes:
            place = {"stage": self.stage, "step": self.step}
            losses.append(self.train_step())
            now = time.monotonic()
            self.seconds, ticked = self.seconds + now - ticked, now
            if place["step"] % log_every == 0:
                line = {**place, "loss": round(sum(losses) / len(losses), 4), "tokens": self.tokens,
                        "seconds": round(self.seconds, 1)}  # fmt: skip
                with (self.folder / "log.jsonl").open("a") as log:
                    log.write(json.dumps(line) + "\n")
                losses.clear()
            if now - saved > save_every:
                self.save()
                saved = now
        self.save()

    @property
    def tokens(self) -> int:
        """Tokens read so far."""
        steps = [stage.steps for stage in self.recipe[: self.stage]] + ([] if self.done else [self.step])
        return sum(n * stage.rows * stage.length for n, stage in zip(steps, self.recipe, strict=False))

    def save(self) -> None:
        """Write the checkpoint atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"seed": self.seed, "stage": self.stage, "step": self.step, "seconds": self.seconds,
                 "layers": len(self.model.model.layers), "model": self.model.state_dict(),
                 "optimizer": self.optimizer.state_dict()}  # fmt: skip
        scratch = self.checkpoint.with_suffix(".tmp")
        torch.save(state, scratch)
        os.replace(scratch, self.checkpoint)

    def _restore(self) -> None:
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        if state["seed"] != self.seed:
            raise ValueError(f"{self.checkpoint} was trained with seed {state['seed']}, not {self.seed}")
        self.stage, self.step, self.seconds = state["stage"], state["step"], state["seconds"]
        self.model = new_model(state["layers"], self.seed)
        self.model.load_state_dict(state["model"])
        self.optimizer = self._new_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])

    def _next_stage(self) -> None:
        self.stage, self.step = self.stage + 1, 0
        if not self.done:
            stage = self.recipe[self.stage]
            if stage.keep is not None:
                self.model = grow(self.model, stage.layers, stage.keep, self.seed + self.stage).train()
            self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))
