"""Caches that models write on, and the check that writing on one is what whole forward passes give."""

import weakref
from collections.abc import Iterable

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from util.engine.attention import input_device, support, without_instruments
from util.engine.batches import context_length
from util.engine.call import UnsupportedModel
from util.engine.handshake import FAILURES, FIRST, check_length, out_of_memory, tolerance

# By model, the numbers of tokens of the prompts that were tried.
_TRIED: "weakref.WeakKeyDictionary[nn.Module, set[int]]" = weakref.WeakKeyDictionary()


def cache_for(model: PreTrainedModel) -> DynamicCache:
    """An empty cache with what each layer of this model keeps: keys and values, or a state.

    Layers with sliding windows drop keys outside of them after a pass, so that key indices of a second pass do not
    count from the first token. Attach instruments to the first pass alone.
    """
    return DynamicCache(config=model.config)


def keeps_rows_apart(model: PreTrainedModel) -> bool:
    """Whether a cache can be cut to some rows of a batch. Layers without attention may keep states in the model."""
    return len(support(model).layers) == model.config.get_text_config(decoder=True).num_hidden_layers


def check_writing(model: PreTrainedModel, lengths: Iterable[int], new_tokens: int) -> None:
    """Check that a prepared model that goes on from a cache gives what it gives without one.

    lengths: the tokens of the prompts; new_tokens: how many are written behind each. A prompt of 8 tokens is tried, and
    one beside each length at which the model's config switches its attention, where prompts reach that. Nothing is
    tried twice. Raises UnsupportedModel where the logits differ, or the class does not take the cache.
    """
    lengths, read = list(lengths), new_tokens - 1  # the last token that is written is not read
    check_length(model, max(lengths, default=0) + read)
    wanted = {FIRST}
    for switch in support(model).switches:
        if switch < max(lengths, default=0):
            wanted.add(switch + 1)
        if any(length <= switch < length + read for length in lengths):
            wanted.add(switch)
    tried = _TRIED.setdefault(model, set())
    for length in sorted(wanted - tried):
        _try_writing(model, length)
        tried.add(length)


@torch.no_grad()
def _try_writing(model: PreTrainedModel, length: int) -> None:
    """Read 3 tokens behind a random prompt, the second row of a batch of two, with and without a cache.

    They are fewer, but at least one, and the prompt may be a token shorter, where the model's context ends before.
    The bound is ten times that of the handshake, because states of layers without attention add up their rounding; a
    cache that does not fit changes logits as much as another prompt does.
    """
    size = model.config.get_text_config(decoder=True).vocab_size
    end = min(length + 3, context_length(model) or length + 3)
    length = min(length, end - 1)
    ids = torch.randint(size, (2, end), generator=torch.Generator().manual_seed(0)).to(input_device(model))
    name = f"{type(model).__name__} ({model.config.model_type})"
    with without_instruments():
        whole = model(ids[1:], use_cache=False).logits[0, length:].float()
        cache = cache_for(model)
        try:
            model(ids[:, :length], past_key_values=cache, use_cache=True)
            rows = ids
            if keeps_rows_apart(model):
                cache.reorder_cache(torch.tensor([1]))
                rows = ids[1:]
            steps = [
                model(rows[:, place : place + 1], past_key_values=cache, use_cache=True).logits[-1, -1].float()
                for place in range(length, end)
            ]
        except FAILURES as error:
            if out_of_memory(error):
                raise
            raise UnsupportedModel(
                f"{name} does not go on from a cache behind {length} tokens ({type(error).__name__}: {error}), so that "
                "what it writes cannot be computed; everything but continuations works"
            ) from error
    gap, bound = tolerance(model, torch.stack(steps), whole)
    if not gap <= 10 * bound:  # also catches NaN
        raise UnsupportedModel(
            f"{name} gives other logits from a cache than without one behind {length} tokens (off by {gap:.2g}, bound "
            f"{10 * bound:.2g}), so that what it writes would be wrong; everything but continuations works"
        )
