"""What runs leave: keys and values by layer, kept for the next ablation, and renewed where some tokens change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from util.engine.attention import input_device, instrument, once, random_ids, support
from util.engine.batches import Batch, Ids, Row, all_logits, forward, logits_at
from util.engine.call import CACHE, Instrument
from util.engine.handshake import FAILURES, out_of_memory
from util.engine.instruments import CaptureStates, States

STORED = 2**30  # bytes of keys and values that a store keeps
Kept = TypeVar("Kept", bound=Mapping[int, tuple[Tensor, ...]])  # what a run leaves, by layer


class Store:
    """What runs of one model leave, such as keys and values, for the next ablation of the same prompts.

    Those used last are kept, up to `limit` bytes. Give it to several calls of `outcomes` for the same model only.
    """

    def __init__(self, limit: int = STORED) -> None:
        self.limit = limit
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Kept]) -> Kept:
        """What is kept under this key, computed where it is not there."""
        if key not in self._kept:
            states = _in_blocks(compute())
            room = self.limit - _size(states)
            if room < 0:
                return states
            while sum(map(_size, self._kept.values())) > room:
                self._kept.popitem(last=False)
            self._kept[key] = states
        self._kept.move_to_end(key)
        return self._kept[key]


def _in_blocks(states: Kept) -> Kept:
    """The same; all layers' keys are in one block of memory, and so on, which goes back to the system as a whole.

    Many small blocks that are kept for long leave holes between them: a third of a gigabyte in notebook 04.
    """
    blocks: list[Any] = []
    for part in zip(*states.values(), strict=True):
        alike = len({(tensor.shape, tensor.dtype, tensor.device) for tensor in part}) == 1
        blocks.append(torch.stack(part) if alike else part)
    by_layer: Any = dict(zip(states, zip(*blocks, strict=True), strict=True))
    return by_layer


def _size(states: Mapping[int, tuple[Tensor, ...]]) -> int:
    return sum(tensor.nbytes for parts in states.values() for tensor in parts)


def of_rows(states: States, rows: Sequence[int]) -> States:
    """The states of some rows."""
    return {layer: (pair[0][rows], pair[1][rows]) for layer, pair in states.items()}


class Renewed(DynamicCache):
    """The keys and values of a run that has been, of which those of some tokens are computed anew.

    states: by layer [B, Hkv, T, d]; places [B, n]: where in its row each token of the coming pass stands. renewed: the
    states after that pass.
    """

    def __init__(self, states: States, places: Tensor) -> None:
        super().__init__()
        self.states, self.places, self.renewed = states, places, dict(states)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        both = []
        for old, new in zip(self.states[layer_idx], (key_states, value_states), strict=True):
            at = self.places[:, None, :, None].to(new.device).expand_as(new)
            both.append(old.scatter(2, at, new))
        self.renewed[layer_idx] = both[0], both[1]
        return self.renewed[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def run(self, model: PreTrainedModel, tokens: Tensor, instruments: Sequence[Instrument], answer: int) -> Tensor:
        """The logits [B, answer, V] of a pass of these tokens [B, n]: the last ones."""
        device = input_device(model)
        keys = next(iter(self.states.values()))[0].shape[2]
        mask = (torch.arange(keys) <= self.places[..., None])[:, None].to(device)
        length = tokens.shape[1]
        last = torch.arange(length - answer, length)
        with torch.inference_mode(), instrument(model, *instruments), logits_at(model, last):
            return model(
                input_ids=tokens.to(device),
                position_ids=self.places.to(device),
                attention_mask=mask,
                use_cache=True,
                **{CACHE: self},
            ).logits


def plain_states(model: PreTrainedModel, ids: Sequence[Ids], store: Store) -> States:
    """The states of plain runs of these rows of tokens."""

    def run() -> States:
        forward(model, Batch.of([*map(Row, ids)]), kept := CaptureStates())
        return kept.states

    return store.get(tuple(ids), run)


@once
def takes_some_tokens(model: PreTrainedModel) -> bool:
    """Whether some tokens of a prompt can be passed alone, on the states of the others: tried once for each model.

    One token of eight is another one: the tokens behind it, computed alone, say what they say in a whole run.
    """
    if not support(model).branches:
        return False
    before, size = random_ids(model, 1, 8).cpu(), model.config.get_text_config().vocab_size
    after = before.clone()
    after[0, 3] = (after[0, 3] + size // 2) % size
    rows = [tuple(row.tolist()) for row in torch.cat([before, after])]
    old, new = all_logits(model, Batch.of([*map(Row, rows)]))[:, -1]
    places = torch.tensor([[0, 3, 4, 5, 6, 7]])
    try:
        cache = Renewed(plain_states(model, rows[:1], Store(0)), places)
        alone = cache.run(model, after[:, places[0]], [], 1)[0, -1]
    except FAILURES as error:  # the class has other ways
        if out_of_memory(error):
            raise
        return False
    return bool((alone - new).abs().max() <= 0.05 * (new - old).abs().max())
