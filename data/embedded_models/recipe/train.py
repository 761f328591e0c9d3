"""Trains the embedded model: `python -m data.embedded_models.recipe.train`, from the clone's root. See README.md."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from data.embedded_models.recipe.corpus import Batch, Corpus
from data.embedded_models.recipe.texts import BOS_ID, MAX_LENGTH, PAD_ID, VOCABULARY, build_tokenizer
from util.models.table import embedded_home


@dataclass(frozen=True)
class Stage:
    """One part of a recipe: batches of `rows` x `length` tokens until `tokens` are read.

    shares: of the streams of `Corpus` in each batch. periods: the range of periods of the stream repeats.
    """

    tokens: int
    rows: int
    length: int
    shares: Mapping[str, float]
    periods: tuple[int, int]
    rates: tuple[float, float]  # learning rate: warm-up, then cosine from the first to the second
    keep: tuple[int, ...] | None = None  # grow the model first: layer i becomes layer keep[i], others are new
    layers: int = 4
    heads: int = 8  # query heads; there are always four heads of keys and values

    @property
    def steps(self) -> int:
        """The number of steps of the stage."""
        return math.ceil(self.tokens / (self.rows * self.length))


_FEW = 1 / 16
MIXTURE = {"repeats": 3 / 16, "maps": 3 / 16, "words": 3 / 16, "pairs": 1 / 8, "ioi": 3 / 16, "episodes": 1 / 8}
LONG_LINES = dict.fromkeys(("repeats", "maps", "words", "pairs"), _FEW) | {
    "long_maps": 1 / 8,
    "ioi": 1 / 8,
    "recurring": 1 / 4,
    "relabelled": 1 / 16,
    "episodes": 3 / 16,
}
SHORT_EPISODES = dict.fromkeys(("repeats", "maps", "words", "pairs"), _FEW) | {
    "ioi": 1 / 8,
    "relabelled": 1 / 16,
    "episodes": 9 / 16,
}
EPISODES = dict.fromkeys(("repeats", "maps", "long_maps", "words", "pairs", "recurring"), _FEW) | {
    "ioi": 1 / 8,
    "relabelled": 3 / 16,
    "episodes": 5 / 16,
}
RECIPE = (
    Stage(1_600_000, 32, 64, {"repeats": 1.0}, (4, 21), (3e-3, 3e-3), layers=2, heads=4),
    Stage(4_000_000, 16, 256, MIXTURE, (4, 100), (2e-3, 2e-3), keep=(0, 2)),
    Stage(2_000_000, 16, 256, LONG_LINES, (4, 100), (1.5e-3, 1.5e-3)),
    Stage(8_000_000, 32, 128, SHORT_EPISODES, (4, 50), (2e-3, 1e-3)),
    Stage(4_000_000, 16, 512, EPISODES, (4, 200), (1e-3, 5e-5)),
)
WARM_UP, WEIGHT_DECAY, CLIP = 50, 0.01, 1.0
EMBEDDING_STD = 0.04
BLOCKS, BLOCK = "training blocks", 64  # the name of attention in blocks; the number of queries in a block


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Causal attention without padding, BLOCK queries at a time; it takes half the time of PyTorch's CPU kernel.

    query: [B, H, T, d]; key, value: [B, 4, T, d]. Returns (output [B, T, H, d], None).
    """
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else query.dtype
    rows, heads, length, width = query.shape
    shared = key.shape[1]
    query = (query * scaling).to(dtype).view(rows, shared, -1, length, width)  # group heads by key
    key, value = (states.to(dtype).reshape(rows * shared, length, width) for states in (key, value))
    outs = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        scores = torch.bmm(query[..., start:end, :].reshape(rows * shared, -1, width), key[:, :end].transpose(1, 2))
        above = torch.full((end - start, end), -1e30, dtype=dtype).triu(start + 1).repeat(heads // shared, 1)
        weights = torch.softmax(scores + above, -1)
        outs.append(torch.bmm(weights, value[:, :end]).view(rows, shared, -1, end - start, width))
    return torch.cat(outs, 3).view(rows, heads, length, width).transpose(1, 2), None


AttentionInterface.register(BLOCKS, attend)
AttentionMaskInterface.register(BLOCKS, lambda *_, **__: None)


def new_model(layers: int, seed: int, heads: int = 4) -> LlamaForCausalLM:
    """A Llama with seeded random weights: width 128, heads of width 32, 4 heads of keys and values, tied embeddings."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.02,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        pad_token_id=PAD_ID,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=BLOCKS)
        # twice the default of transformers: induction forms sooner if tokens differ more from the start
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
        return model


def grow(model: LlamaForCausalLM, layers: int, keep: Sequence[int], seed: int, heads: int = 4) -> LlamaForCausalLM:
    """A model with the same logits, but with more layers and as many or more query heads.

    Layer i of `model` becomes layer keep[i]. The output projections of other layers and of new heads are zero, so that
    they add nothing to the residual stream until they are trained. Raises ValueError if `keep` does not give every old
    layer a place, in order.
    """
    if len(keep) != len(model.model.layers) or sorted(set(keep)) != list(keep) or keep[-1] >= layers:
        raise ValueError(f"keep={tuple(keep)} does not place {len(model.model.layers)} layers, in order, in {layers}")
    grown = new_model(layers, seed, heads)
    grown.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    grown.model.norm.load_state_dict(model.model.norm.state_dict())
    for old, place in zip(model.model.layers, keep, strict=True):
        layer = grown.model.layers[place]
        layer.load_state_dict(_more_heads(old.state_dict(), layer.state_dict(), grown.config.head_dim))
    for place in set(range(layers)) - set(keep):
        torch.nn.init.zeros_(grown.model.layers[place].self_attn.o_proj.weight)
        torch.nn.init.zeros_(grown.model.layers[place].mlp.down_proj.weight)
    return grown


def _more_heads(old: dict[str, Tensor], new: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """A layer's weights with more query heads: each old head is the first of a group, the new heads write nothing."""
    names = ("self_attn.q_proj.weight", "self_attn.o_proj.weight")
    query, out = new[names[0]].clone(), torch.zeros_like(new[names[1]])
    size = len(old[names[0]])
    leads = torch.arange(0, len(query), len(query) // size * width)[:, None] + torch.arange(width)
    query[leads.flatten()], out[:, leads.flatten()] = (old[name] for name in names)
    return old | dict(zip(names, (query, out), strict=True))


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """The weighted next-token loss [] (a scalar); logits are computed only where there is weight.

    Matrix products run in bfloat16 (a quarter faster on one core); weights and residual stream stay in float32.
    """
    tokens, weights = (torch.from_numpy(array) for array in batch)
    chosen = weights[:, 1:] > 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1][chosen])
    losses = F.cross_entropy(logits.float(), tokens[:, 1:][chosen], reduction="none")
    return (losses * weights[:, 1:][chosen]).sum()


def learning_rate(stage: Stage, step: int) -> float:
    """The learning rate of a step: linear warm-up, then cosine from rates[0] to rates[1]."""
    first, last = stage.rates
    rate = last + (first - last) * (1 + math.cos(math.pi * step / stage.steps)) / 2
    return rate * min(1.0, (step + 1) / WARM_UP)


def new_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW; norms do not decay."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))


def descend(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """Take a step down the gradients of a loss, which are clipped."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


def train(corpus: Corpus, seed: int = 0, recipe: Sequence[Stage] = RECIPE) -> tuple[LlamaForCausalLM, list[float]]:
    """The trained model and the loss of each step in nats. A batch depends on seed, stage and step alone."""
    model, losses = new_model(recipe[0].layers, seed, recipe[0].heads), list[float]()
    for number, stage in enumerate(recipe):
        if stage.keep is not None:
            model = grow(model, stage.layers, stage.keep, seed + number, stage.heads)
        optimizer = new_optimizer(model)
        for step in tqdm(range(stage.steps), desc=f"stage {number}", leave=False):
            rng = np.random.default_rng((seed, number, step))
            loss = loss_of(model, corpus.batch(rng, stage.shares, stage.rows, stage.length, stage.periods))
            descend(model, optimizer, loss, learning_rate(stage, step))
            losses.append(loss.item())
    return model, losses


def main() -> None:
    """Train on one thread, and save tokenizer and weights, rounded to bfloat16."""
    parser = argparse.ArgumentParser(prog="python -m data.embedded_models.recipe.train", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the committed weights have 0")
    parser.add_argument(
        "--out", type=Path, default=embedded_home() / "generalist", help="default: the committed weights"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # sums in the same order on every machine; two threads gain little
    tokenizer = build_tokenizer()
    model, losses = train(Corpus(tokenizer), arguments.seed)
    tokenizer.save_pretrained(arguments.out)
    model.set_attn_implementation("sdpa")
    model.bfloat16().save_pretrained(arguments.out)
    print(f"last loss {losses[-1]:.3f}; saved to {arguments.out}")


if __name__ == "__main__":
    main()
