"""What models write after prompts of which some edges are ablated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from util.edges.ablation import WHOLE, Ablation
from util.edges.splicing import NEW_TOKENS, Ablated, Group, progress
from util.edges.states import Renewed, Store
from util.engine.attention import instrument
from util.engine.batches import TOKEN_BUDGET, cache_for, check_writing
from util.engine.finite import check_finite
from util.engine.handshake import input_device


def continuations(
    model: PreTrainedModel,
    tokenizer: Any,
    groups: Sequence[Group],
    ablation: Ablation = WHOLE,
    token_budget: int = TOKEN_BUDGET,
    store: Store | None = None,
) -> list[str]:
    """What the model goes on to write, greedily: up to NEW_TOKENS tokens, until a line or the text ends.

    As in the reference code the ablation acts in the prompt alone; what follows reads what it left there.
    store: see `outcomes`. Raises what `Ablated` raises, and UnsupportedModel for a class of models that gives other
    logits from a cache than without one.
    """
    run = Ablated(model, groups, ablation, store, target=False)
    lengths: list[int | None] = [*sorted(set(run.lengths))]
    together = run.renewable(range(len(groups)), NEW_TOKENS - 1)
    if together:
        run, lengths = Ablated(model, groups, ablation, store), [None]
    else:
        check_writing(model, run.lengths, NEW_TOKENS)
    written = [list[int]() for _ in groups]
    ends = {tokenizer.eos_token_id}

    def open_(number: int) -> bool:
        text = tokenizer.decode(written[number])
        return not ends & {*written[number]} and "\n" not in text.lstrip() and len(written[number]) < NEW_TOKENS

    @torch.inference_mode()
    def visit(numbers: list[int]) -> None:
        logits, go_on = _together(run, numbers) if together else _of_one_length(run, numbers)
        for number in numbers:
            written[number].clear()
        while True:
            check_finite(logits, "the logits", model, [groups[number].base.ids for number in numbers], numbers)
            token = logits.argmax(-1)
            for number, one in zip(numbers, token.tolist(), strict=True):
                if open_(number):
                    written[number].append(one)
            if not any(map(open_, numbers)):
                break
            logits = go_on(token[:, None])

    with progress(len(groups)) as bar:
        for length in lengths:
            run.run(visit, token_budget, bar, length)
    return [tokenizer.decode([token for token in tokens if token not in ends]) for tokens in written]


GoOn = Callable[[Tensor], Tensor]  # the logits [B, V] after one more token of each prompt [B, 1]


def _together(run: Ablated, numbers: list[int]) -> tuple[Tensor, GoOn]:
    """The logits after prompts of any lengths, on states that are there.

    Each new token has its place behind those of its own row.
    """
    logits, states = run.prompted(numbers)
    room = 0, 0, 0, NEW_TOKENS
    states = {layer: (pad(keys, room), pad(values, room)) for layer, (keys, values) in states.items()}
    places = torch.tensor([[run.groups[number].length] for number in numbers])

    def go_on(tokens: Tensor) -> Tensor:
        nonlocal states, places
        cache = Renewed(states, places)
        logits = cache.run(run.model, tokens, [], 1)
        states, places = cache.renewed, places + 1
        return logits[:, -1]

    return logits, go_on


def _of_one_length(run: Ablated, numbers: list[int]) -> tuple[Tensor, GoOn]:
    """The logits after prompts of one length, so that nothing is padded."""
    model, cache = run.model, cache_for(run.model)

    def go_on(tokens: Tensor) -> Tensor:
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        return model(input_ids=tokens.to(input_device(model)), **options).logits[:, -1]

    with instrument(model, *run.instruments(numbers)):
        return go_on(torch.tensor(run.ids(numbers))), go_on
