"""Run prompts through an instrumented model: batches, progress, and smaller batches where memory runs out.

Here is also what a model writes on: its cache, and the check that writing on it is what whole forward passes give.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel

from util.engine.attention import input_device, instrument, once, random_ids, support, without_instruments
from util.engine.call import CACHE, NO_LIMIT, Instrument, Support, UnsupportedModel
from util.engine.finite import check_finite
from util.engine.handshake import (
    FAILURES,
    FIRST,
    check_ids,
    check_length,
    context_length,
    out_of_memory,
    rope_switch,
    tolerance,
)
from util.engine.instruments import Knockout

# Tokens of one batch, padding included. The last bits of a prompt's numbers depend on the batch that it runs in.
TOKEN_BUDGET = 2048
Ids = tuple[int, ...]  # tokens
Arrays = dict[str, np.ndarray]  # by what they are


# ------------------------------------------------------------------------------------------------ batches


@dataclass(frozen=True)
class Row:
    """One row of a batch: the tokens `ids`, then `branches`, a tree of tokens that may follow them.

    parents: for each branch the number of the branch that it follows, which is smaller than its own; -1 where it
    follows `ids`, as all branches do if no parents are given. A branch sees only `ids` and the branches that it
    follows, so the model computes exactly what it computes for this continuation alone.
    """

    ids: Ids
    branches: Ids = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids) + len(self.branches)


@dataclass(frozen=True)
class Batch:
    """Rows padded at the right. No padding mask is needed, because causal attention never looks to the right.

    rows and numbers [B]: the rows, and which of those that were given they are; lengths [B]: tokens in `ids` of each
    row; ends [B]: tokens in `ids` and branches; inputs: what the model is called with; siblings: the knockout that
    hides branches from each other, None without branches; prompts [B]: the prompt that each row belongs to, for
    messages.
    """

    rows: list[Row]
    numbers: np.ndarray
    lengths: Tensor
    ends: Tensor
    inputs: dict[str, Tensor]
    siblings: Knockout | None
    prompts: np.ndarray

    @classmethod
    def of(
        cls, rows: Sequence[Row], numbers: Sequence[int] | None = None, prompts: Sequence[int] | None = None
    ) -> "Batch":
        """The batch of the rows with these numbers, default all. prompts: that of each row, default its number."""
        numbers = range(len(rows)) if numbers is None else numbers
        chosen = [rows[i] for i in numbers]
        tokens = [torch.tensor(row.ids + row.branches, dtype=torch.long) for row in chosen]
        ids, lengths = pad_sequence(tokens, batch_first=True), torch.tensor([len(row.ids) for row in chosen])
        # padding repeats the last position, because the model may have no later one
        places = torch.arange(ids.shape[1]).minimum(lengths[:, None] - 1)
        cells = []
        for i, row in enumerate(chosen):
            start, paths = len(row.ids), list[list[int]]()  # of each branch those that lead to it, and itself
            for b, parent in enumerate(row.parents or [-1] * len(row.branches)):
                paths.append([*(paths[parent] if parent >= 0 else ()), b])
                places[i, start + b] = start + len(paths[b]) - 1
                cells += [(i, start + b, start + a) for a in range(b) if a not in paths[b]]
        inputs = {"input_ids": ids}
        if cells:
            # An explicit all-ones mask keeps transformers from reading equal positions as packed sequences.
            inputs["position_ids"] = places
            inputs["attention_mask"] = torch.ones_like(ids)
        siblings = Knockout(torch.tensor(cells)) if cells else None
        owners = numbers if prompts is None else [prompts[number] for number in numbers]
        ends = torch.tensor(list(map(len, chosen)))
        return cls(chosen, np.array(numbers), lengths, ends, inputs, siblings, np.array(owners))

    @property
    def positions(self) -> Tensor:
        """The position of each token in its text, [T] or [B, T]. A branch stands right after the token it follows."""
        return self.inputs.get("position_ids", torch.arange(self.inputs["input_ids"].shape[1]))


def plan(lengths: Sequence[int], token_budget: int = TOKEN_BUDGET, bound: int = NO_LIMIT) -> list[list[int]]:
    """Row numbers in batches of similar length, longest first; a batch has at most `token_budget` tokens or one row.

    Padding counts as tokens. bound: rows of up to this many tokens and longer ones are never in one batch.

    Raises ValueError for a budget below 1.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget = {token_budget}: a batch has at least one token")
    batches: list[list[int]] = []
    longest = 0  # row of the last batch
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = batches and (len(batches[-1]) + 1) * longest <= token_budget
        if fits and not lengths[i] <= bound < longest:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = lengths[i]
    return batches


def run_rows(
    model: PreTrainedModel,
    rows: Sequence[Row],
    visit: Callable[[Batch], None],
    token_budget: int = TOKEN_BUDGET,
    bar: tqdm | None = None,
    prompts: Sequence[int] | None = None,
) -> bool:
    """Call `visit` on batches that cover every row once. A batch that runs out of memory is halved and tried again.

    Because of that, `visit` must give the same when it is called again. `bar` counts rows; prompts: see `Batch.of`.
    Returns whether any batch had to be halved. Raises MemoryError when one row alone does not fit. Raises ValueError,
    before the first forward pass, for a token without an embedding and for a budget below 1, and UnsupportedModel for
    rows of a length at which the model cannot be instrumented.

    A model with longrope rotates all positions of a batch by the longest row, so that rows within its original context
    and longer ones have batches of their own.
    """
    check_ids(model, [max((*row.ids, *row.branches)) for row in rows if len(row)])
    lengths = [len(row) for row in rows]
    check_length(model, max(lengths, default=0))
    todo = plan(lengths, token_budget, rope_switch(model, "longrope"))[::-1]
    halved = False
    while todo:
        numbers = todo.pop()
        try:
            visit(Batch.of(rows, numbers, prompts))
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if len(numbers) == 1:
                raise MemoryError(
                    f"one prompt of {len(rows[numbers[0]])} tokens does not fit into memory; use fewer "
                    "demonstrations, quantized=True, or device_map='auto' to spread the model"
                ) from error
            halved = True
            middle = len(numbers) // 2
            todo += [numbers[middle:], numbers[:middle]]
            torch.cuda.empty_cache()  # does nothing without a GPU
            continue
        if bar is not None:
            bar.update(len(numbers))
    return halved


def forward(model: PreTrainedModel, batch: Batch, *instruments: Instrument, **options: Any) -> Any:
    """Run the model without its unembedding on one batch, with instruments attached.

    Raises NotFinite where the last hidden states are not finite. Checking these is enough: a number in an earlier layer
    that is not finite makes them so too.
    """
    with torch.inference_mode():
        out = called(model, model.base_model, batch, *instruments, **options)
    counted = torch.arange(batch.inputs["input_ids"].shape[1]) < batch.ends[:, None]
    check_finite(out[0], "the hidden states", model, batch.rows, batch.prompts, counted)
    return out


def layer_inputs(model: PreTrainedModel, batch: Batch, *instruments: Instrument) -> tuple[Tensor, ...]:
    """The hidden states [B, T, d] before every layer, and behind the last one, on the devices of their layers.

    Raises UnsupportedModel for a class that has several streams of them (Gemma 3n), or several attentions between two
    (LongCat): these cannot be told apart by the numbers of layers.
    """
    states: tuple[Tensor, ...] = forward(model, batch, *instruments, output_hidden_states=True).hidden_states
    if len(states) <= max(support(model).layers) or states[0].ndim != 3:
        raise UnsupportedModel(
            f"{type(model).__name__} gives {len(states)} hidden states {list(states[0].shape)}, not one [B, T, d] "
            "before each attention: what a head reads cannot be told from them; take another model for it"
        )
    return states


def all_logits(model: PreTrainedModel, batch: Batch, *instruments: Instrument) -> Tensor:
    """The logits after every token of a batch, [B, T, V], on the device of the unembedding."""
    with torch.inference_mode():
        return called(model, model, batch, *instruments).logits


def logits_at(model: PreTrainedModel, places: Tensor) -> AbstractContextManager[Any]:
    """Forward passes inside the block give the logits after the tokens at places [P] alone.

    A hook on the unembedding makes the choice. An option for it, `logits_to_keep`, not all classes have, and some take
    it and do nothing; and of a model on several devices accelerate moves options to the first one.
    """

    def choose(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return given[0][:, places.to(given[0].device)], *given[1:]

    head: Any = model.get_output_embeddings()
    return head.register_forward_pre_hook(choose)


def called(model: PreTrainedModel, module: Any, batch: Batch, *instruments: Instrument, **options: Any) -> Any:
    """What a model, or a module of it that takes the same, returns for a batch; a backward pass can follow."""
    inputs = {name: tensor.to(input_device(model)) for name, tensor in batch.inputs.items()}
    attached = instruments if batch.siblings is None else (batch.siblings, *instruments)
    with instrument(model, *attached):
        return module(**inputs, use_cache=False, **options)


class TooLong(UnsupportedModel):
    """A prompt has more tokens than the model has positions. extent: how many, in words for a table."""

    def __init__(self, tokens: int, limit: int, cure: str) -> None:
        super().__init__(f"the longest prompt has {tokens} tokens, this model places {limit}; use {cure}")
        self.extent = f"left out, {tokens} tokens, {limit} positions"


def check_context(
    model: PreTrainedModel, lengths: Sequence[int], cure: str = "a smaller k, or a data set with shorter texts"
) -> None:
    """Raises TooLong, before any forward pass, for a prompt of more tokens than the model has positions.

    cure: the setting that makes prompts shorter, for the error.
    """
    limit = context_length(model)
    if max(lengths, default=0) > limit:
        raise TooLong(max(lengths), limit, cure)


# ------------------------------------------------------------------------------------------------ what a model allows


def array_type(model: PreTrainedModel) -> type:
    """The type of arrays of a model's numbers: float64 for a float64 model, else float32."""
    return np.float64 if model.dtype == torch.float64 else np.float32


def may_branch(support: Support, length: int) -> bool:
    """Whether this model computes a row with branches exactly. length: the tokens of the row, branches included."""
    return support.branches and length <= support.switch


def cache_for(model: PreTrainedModel) -> DynamicCache:
    """An empty cache with what each layer of this model keeps: keys and values, or a state.

    Layers with sliding windows drop keys outside of them after a pass, so that key indices of a second pass do not
    count from the first token. Attach instruments to the first pass alone.
    """
    return DynamicCache(config=model.config)


def check_writing(model: PreTrainedModel, lengths: Sequence[int], new_tokens: int) -> None:
    """Check that a prepared model that goes on from a cache gives what it gives without one.

    lengths: the tokens of the prompts; new_tokens: how many are written behind each. A prompt of 8 tokens is tried, and
    one beside each length at which the model's config switches its attention, where prompts reach that. Nothing is
    tried twice. Raises UnsupportedModel where the logits differ, or the class does not take the cache.
    """
    longest, read = max(lengths, default=0), new_tokens - 1  # the last token that is written is not read
    check_length(model, longest + read)
    switches = support(model).switches
    reached = {switch for switch in switches if any(length <= switch < length + read for length in lengths)}
    for length in sorted({FIRST, *reached, *(switch + 1 for switch in switches if switch < longest)}):
        _try_writing(model, length)


@once
@torch.no_grad()
def _try_writing(model: PreTrainedModel, length: int) -> None:
    """Read 3 tokens behind a random prompt, the second row of a batch of two, with and without a cache.

    They are fewer, but at least one, and the prompt may be a token shorter, where the model's context ends before.
    The bound is ten times that of the handshake, because states of layers without attention add up their rounding; a
    cache that does not fit changes logits as much as another prompt does.
    """
    end = min(length + 3, context_length(model))
    length = min(length, end - 1)
    ids, cache, steps = random_ids(model, 2, end), cache_for(model), []
    with without_instruments():
        whole = model(ids[1:], use_cache=False).logits[0, length:].float()
        try:
            model(ids[:, :length], **{CACHE: cache}, use_cache=True)
            # layers without attention may keep states in the model, for all rows
            if len(support(model).layers) == model.config.get_text_config(decoder=True).num_hidden_layers:
                cache.reorder_cache(torch.tensor([1]))
                ids = ids[1:]
            for place in range(length, end):
                out = model(ids[:, place : place + 1], **{CACHE: cache}, use_cache=True)
                steps.append(out.logits[-1, -1].float())
            gap, bound = tolerance(model, torch.stack(steps), whole)
            wrong = not gap <= 10 * bound  # also catches NaN
            fault = f"gives other logits from a cache (off by {gap:.2g}, bound {10 * bound:.2g})" if wrong else ""
        except FAILURES as error:
            if out_of_memory(error):
                raise
            fault = f"does not go on from a cache ({type(error).__name__}: {error})"
    if fault:
        raise UnsupportedModel(
            f"{type(model).__name__} ({model.config.model_type}) {fault} behind {length} tokens, so that what it "
            "writes cannot be computed; everything but continuations works"
        )
