"""Prompts run with some of their edges ablated: each beside its donors, in lock-step (Bakalova et al., COLM 2025).

The rows of one prompt, its donors first, pass through the model together, and the prompt reads its donors' keys and
values of the same layer. What is done is said by `Ablation`, how attention does it by the instruments.

That is the reference. Many ablations of the same prompts go faster with a `Store`: it keeps the keys and values of
plain runs, and an ablation then computes only those tokens that it changes and that the answer depends on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel

from util.edges.ablation import WHOLE, Ablation
from util.edges.edge import check_matched
from util.engine.attention import instrument
from util.engine.batches import (
    TOKEN_BUDGET,
    Batch,
    Row,
    cache_for,
    check_context,
    check_writing,
    forward,
    keeps_rows_apart,
    logits_at,
    run_rows,
    shared_budget,
)
from util.engine.call import Instrument
from util.engine.finite import check_finite
from util.engine.handshake import input_device, prepare
from util.engine.instruments import CaptureStates, Knockout, Splice
from util.engine.label_scores import all_logits
from util.prompts.token_types import TypedTokens, check_aligned
from util.prompts.word_pair_prompts import WordPairPrompt, typed_tokens

NEW_TOKENS = 10  # of a continuation, as in the reference code
STORED = 2**30  # bytes of keys and values that a store keeps
States = dict[int, tuple[Tensor, Tensor]]  # keys and values [B, Hkv, T, d] by layer
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
            found = _in_blocks(compute())
            room = self.limit - _size(found)
            if room < 0:
                return found
            while self._kept and sum(map(_size, self._kept.values())) > room:
                self._kept.popitem(last=False)
            self._kept[key] = found
        self._kept.move_to_end(key)
        return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)


def _in_blocks(found: Kept) -> Kept:
    """The same; all layers' keys are in one block of memory, and so on, which goes back to the system as a whole.

    Many small blocks that are kept for long leave holes between them: a third of a gigabyte in notebook 04.
    """
    blocks: list[Any] = []
    for part in zip(*found.values(), strict=True):
        alike = len({(tensor.shape, tensor.dtype, tensor.device) for tensor in part}) == 1
        blocks.append(torch.stack(part) if alike else part)
    by_layer: Any = {layer: tuple(block[place] for block in blocks) for place, layer in enumerate(found)}
    return by_layer


def _size(found: Mapping[int, tuple[Tensor, ...]]) -> int:
    return sum(tensor.nbytes for parts in found.values() for tensor in parts)


@dataclass(frozen=True)
class Group:
    """A prompt with its answer, and its donors by corruption, as tokens. Raises Misaligned where these do not align."""

    base: TypedTokens
    donors: Mapping[int, TypedTokens]

    def __post_init__(self) -> None:
        for donor in self.donors.values():
            check_aligned(self.base, donor)

    @property
    def length(self) -> int:
        """Tokens of the prompt alone."""
        return self.base.types.index("target")

    @property
    def target(self) -> tuple[int, ...]:
        """The tokens of the answer."""
        return self.base.ids[self.length :]


def without_demonstrations(group: Group) -> Group:
    """The prompt's query alone, with its answer and without donors."""
    base, kept = group.base, ("bos", "query", "last_separator", "target")
    chosen = [place for place, kind in enumerate(base.types) if kind in kept]
    ids, types = (base.ids[place] for place in chosen), (base.types[place] for place in chosen)
    examples, slots = (base.examples[place] for place in chosen), (base.slots[place] for place in chosen)
    return Group(TypedTokens(tuple(ids), tuple(types), tuple(examples), tuple(slots)), {})


def groups_of(items: Sequence[WordPairPrompt], tokenizer: Any) -> list[Group]:
    """The prompts of a word-pair task as tokens. Raises Misaligned for a tokenizer that they were not made for."""
    return [
        Group(typed_tokens(item.clean, tokenizer), {c: typed_tokens(d, tokenizer) for c, d in item.donors.items()})
        for item in items
    ]


class Ablated:
    """An ablation of these prompts, checked as a whole before any forward pass.

    target: run the answers too, but for their last tokens, as a teacher forces them. Raises ValueError for a corruption
    that a prompt has no donor of, for layers and heads that there are not, for edges that would have two donors, and
    for prompts that are too long; warns of edges that are in no prompt.
    """

    def __init__(
        self, model: PreTrainedModel, groups: Sequence[Group], ablation: Ablation, target: bool = True
    ) -> None:
        self.model, self.groups, self.ablation = model, groups, ablation
        self.found = prepare(model)
        lacking = sorted({c for group in groups for c in ablation.corruptions if c not in group.donors})
        if lacking:
            raise ValueError(f"the prompts have no donors of corruption {lacking}; ask for them: corruptions=(0, ...)")
        check_matched(ablation.named, [group.base for group in groups])
        self.lengths = [len(group.base.ids) - 1 if target else group.length for group in groups]
        check_context(model, [length + (0 if target else NEW_TOKENS - 1) for length in self.lengths])
        known: dict[Any, Tensor] = {}  # by layout, of which there are few
        self.codes: list[Tensor] = []
        for group in groups:
            key = group.base.types, group.base.examples, group.base.slots
            if key not in known:
                known[key] = torch.from_numpy(ablation.codes(group.base))
            self.codes.append(known[key])
        self.tables = self._tables()
        parts = known.values(), self.tables.values()
        # where nothing is read from donors, the prompt runs alone: it is the whole model to the last bit
        self.donors = ablation.corruptions if all(any(map(torch.any, part)) for part in parts) else ()

    @property
    def members(self) -> int:
        """Rows of one prompt in lock-step."""
        return len(self.donors) + 1

    def _tables(self) -> dict[int, Tensor]:
        layers, chosen = self.ablation.layers, self.ablation.heads
        there = {(layer, head) for layer in range(len(self.found.layers)) for head in range(self.found.heads)}
        if wrong := sorted({*((layer, 0) for layer in layers or ()), *(chosen or ())} - there):
            raise ValueError(f"the model has {len(self.found.layers)} layers of {self.found.heads} heads, not {wrong}")
        number = {c: place for place, c in enumerate(self.ablation.corruptions, 1)}
        row = torch.tensor([0, number.get(0, 0), *(number.get(c, 0) for _, c in self.ablation.probed)])
        tables = {}
        for place, layer in enumerate(self.found.layers):
            if layers is None or place in layers:
                heads = [chosen is None or (place, head) in chosen for head in range(self.found.heads)]
                tables[layer] = torch.tensor(heads)[:, None] * row
        return tables

    def batch(self, numbers: Sequence[int], donors: bool = True) -> Batch:
        """The rows of these prompts, [donor ..., prompt] for one after the other, or the prompts alone."""
        rows = []
        for number in numbers:
            group = self.groups[number]
            members = [*(group.donors[c] for c in self.donors if donors), group.base]
            rows += [Row(tokens.ids[: self.lengths[number]]) for tokens in members]
        return Batch.of(rows, range(len(rows)))

    def instruments(self, numbers: Sequence[int]) -> list[Instrument]:
        """What acts on `batch(numbers)`."""
        own = self._padded(numbers)
        if self.ablation.mode == "knockout":
            return self._knockouts(own)
        if not self.donors:
            return []
        within = [own * (own == 1) * (self.ablation.inside and c != 0) for c in self.donors]
        codes = torch.stack([*within, own], dim=1).flatten(0, 1)
        first = self.members * torch.arange(len(numbers))[:, None, None]
        donors = (first + torch.arange(len(self.donors))).expand(-1, self.members, -1).flatten(0, 1)
        return [Splice(codes, self.tables, donors, self.ablation.channel)]

    def _padded(self, numbers: Sequence[int]) -> Tensor:
        """The codes of these prompts, [B, T, T]."""
        width = max(self.lengths[number] for number in numbers)
        codes = torch.zeros(len(numbers), width, width, dtype=torch.long)
        for place, number in enumerate(numbers):
            size = self.lengths[number]
            codes[place, :size, :size] = self.codes[number][:size, :size]
        return codes

    def _knockouts(self, codes: Tensor) -> list[Instrument]:
        cells, heads = (codes == 1).nonzero(), self.ablation.heads
        if not len(cells):
            return []
        if heads is None:
            return [Knockout(cells, list(self.tables))]
        own = {layer: [head for place, head in heads if self.found.layers[place] == layer] for layer in self.tables}
        return [Knockout(cells, layer, chosen) for layer, chosen in own.items() if chosen]

    def apart(self, numbers: Sequence[int], store: Store | None = None) -> list[Instrument]:
        """What acts on `batch(numbers, donors=False)` once the donors have run before it, one after the other."""
        ran = self._donor_states(numbers, store)
        return [self._splice(self._padded(numbers), self.tables, ran)] if ran else self.instruments(numbers)

    def _splice(
        self, codes: Tensor, tables: dict[int, Tensor], ran: Sequence[States], places: Tensor | None = None
    ) -> Splice:
        """Reads from donors that have run, one row of each for every row of codes."""
        rows = len(codes)
        donors = torch.arange(rows)[:, None] + rows * torch.arange(len(ran))
        states = {}
        for layer in tables:
            keys, values = zip(*(states[layer] for states in ran), strict=True)
            states[layer] = torch.cat(keys), torch.cat(values)
        return Splice(codes, tables, donors, self.ablation.channel, states, places)

    def _donor_states(self, numbers: Sequence[int], store: Store | None) -> list[States]:
        """The states of the donors, corruption after corruption."""
        ran: list[States] = []
        for c in self.donors:
            ids = [self.groups[n].donors[c].ids[: self.lengths[n]] for n in numbers]
            if not (self.ablation.inside and c != 0 and 0 in self.donors):
                ran.append(_plain_states(self.model, ids, store))
                continue
            outside = [self.groups[n].donors[0].ids[: self.lengths[n]] for n in numbers]
            key = tuple(ids), tuple(outside), replace(self.ablation, probed=())
            run = partial(self._inside, numbers, ids, ran[0], store)
            ran.append(store.get(key, run) if store is not None else run())
        return ran

    def _inside(
        self, numbers: Sequence[int], ids: Sequence[tuple[int, ...]], first: States, store: Store | None
    ) -> States:
        """The states of donors that read their removed edges from the first donors."""
        codes = self._padded(numbers)
        codes = codes * (codes == 1)
        tables = {layer: table[:, :2] for layer, table in self.tables.items()}
        if store is None or not self.renewable(numbers):
            kept = CaptureStates()
            forward(self.model, Batch.of([*map(Row, ids)], range(len(ids))), self._splice(codes, tables, [first]), kept)
            return kept.states
        edits = self._reads(tables)
        again = [_rows_again(own[: len(row), : len(row)], *edits) for own, row in zip(codes, ids, strict=True)]
        return self._renew(_plain_states(self.model, ids, store), ids, again, codes, tables, [first])[1]

    # -------------------------------------------------------------------------------- the tokens that change, alone

    def renewable(self, numbers: Sequence[int], more: int = 0) -> bool:
        """Whether tokens of these prompts, and `more`, can be computed alone, on the states of a run that has been."""
        switch = self.found.switch
        fits = switch is None or max(self.lengths[number] for number in numbers) + more <= switch
        return self.ablation.mode != "knockout" and fits and takes_some_tokens(self.model)

    def _reads(self, tables: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
        """By kind of cell: whether anything is read from a donor, and whether nothing is left of the own run."""
        kinds = 2 + len(self.ablation.probed)
        every = torch.stack([*tables.values()]).flatten(0, -2) if tables else torch.zeros(1, kinds, dtype=torch.long)
        whole = len(tables) == len(self.found.layers) and self.ablation.channel == "kv"
        return every.any(0), every.all(0) & whole

    def answered(self, numbers: Sequence[int], store: Store) -> list[Tensor]:
        """The logits [A, V] after each of these prompts and the tokens of its answer, of which there are A.

        What the plain run says of a token is used where the ablation does not change it.
        """
        edits = self._reads(self.tables)
        sizes = [self.lengths[number] for number in numbers]
        again = [
            _rows_again(self.codes[n][:size, :size], *edits, self.groups[n].length - 1)
            for n, size in zip(numbers, sizes, strict=True)
        ]
        answers = [len(self.groups[number].target) for number in numbers]
        logits: list[Tensor] = [torch.empty(0)] * len(numbers)
        # states are read for all prompts together, as they are stored, and computed for those with as many tokens
        ran, own, ids = self._donor_states(numbers, store), *self._own_states(numbers, store)
        codes = self._padded(numbers)
        for some in _alike([*map(len, again)]):
            rows, there = torch.tensor(some), [of_rows(states, some) for states in ran]
            tables = self.tables if ran else {}
            parts = [ids[place] for place in some], [again[place] for place in some], codes[rows]
            answer = max(answers[place] for place in some)
            found = self._renew(of_rows(own, some), *parts, tables, there, answer)[0]
            for place, rows_ in zip(some, found, strict=True):
                logits[place] = rows_[len(rows_) - answers[place] :]
        return logits

    def prompted(self, numbers: Sequence[int], store: Store) -> tuple[Tensor, States]:
        """The logits [B, V] after these prompts, and the states of all tokens up to there."""
        edits, sizes = self._reads(self.tables), [self.groups[number].length for number in numbers]
        again = []
        for number, size in zip(numbers, sizes, strict=True):
            changed = _rows_again(self.codes[number][:size, :size], *edits)
            again.append(torch.cat([changed[changed < size - 1], torch.tensor([size - 1])]))
        ran, own, ids = self._donor_states(numbers, store), *self._own_states(numbers, store)
        logits, states = self._renew(own, ids, again, self._padded(numbers), self.tables if ran else {}, ran)
        return logits[:, -1], states

    def _own_states(self, numbers: Sequence[int], store: Store) -> tuple[States, list[tuple[int, ...]]]:
        """The states of the plain run of these prompts, and their tokens."""
        ids = [self.groups[number].base.ids[: self.lengths[number]] for number in numbers]
        return _plain_states(self.model, ids, store), ids

    def _renew(
        self,
        states: States,
        ids: Sequence[tuple[int, ...]],
        again: Sequence[Tensor],
        codes: Tensor,
        tables: dict[int, Tensor],
        ran: Sequence[States],
        answer: int = 1,
    ) -> tuple[Tensor, States]:
        """The last `answer` logits of rows of which the tokens `again` are computed, and the states of all tokens."""
        most = max(map(len, again))
        if not most:
            return torch.empty(0), states
        # before shorter rows stands their first token, which sees itself alone and comes out as it was
        places = torch.stack([torch.cat([row.new_zeros(most - len(row)), row]) for row in again])
        wanted = torch.stack([own[row] for own, row in zip(codes, places, strict=True)])
        splices = [self._splice(wanted, tables, ran, places)] if tables and bool(wanted.any()) else []
        tokens = torch.tensor([[row[place] for place in at] for row, at in zip(ids, places.tolist(), strict=True)])
        cache = Renewed(states, places)
        logits = cache.run(self.model, tokens, splices, answer)
        return logits, cache.renewed


def _rows_again(codes: Tensor, edited: Tensor, gone: Tensor, wanted: int | None = None) -> Tensor:
    """The tokens of a prompt to be computed again, in order: those that read something edited, or a token that does.

    wanted: only those that the tokens from this one on depend on, and these themselves in any case.
    codes: [T, T]; edited, gone: see `Ablated._reads`.
    """
    before = torch.ones_like(codes).tril(-1).bool()
    reads, changed = (before & ~gone[codes]).numpy(), edited[codes].any(1).numpy()
    size = len(changed)
    for token in range(size):
        changed[token] |= (reads[token] & changed).any()
    needed = np.arange(size) >= (0 if wanted is None else wanted)
    for token in range(size)[::-1]:
        if needed[token]:
            needed |= reads[token]
    if wanted is not None:
        changed[wanted:] = True
    return torch.from_numpy((changed & needed).nonzero()[0])


def _alike(sizes: Sequence[int], waste: int = 32) -> list[list[int]]:
    """Places of a list in sets of sizes so alike that no more than `waste` tokens pad those of a set."""
    sets: list[list[int]] = []
    room = 0
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        room -= sizes[sets[-1][0]] - sizes[place] if sets else 1
        if room < 0:
            sets.append([])
            room = waste
        sets[-1].append(place)
    return sets


def of_rows(states: States, rows: Sequence[int]) -> States:
    """The states of some rows."""
    if [*rows] == [*range(len(next(iter(states.values()))[0]))]:
        return states
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
        with torch.inference_mode(), instrument(model, *instruments), logits_at(model, last) as options:
            return model(
                input_ids=tokens.to(device),
                position_ids=self.places.to(device),
                attention_mask=mask,
                past_key_values=self,
                use_cache=True,
                **options,
            ).logits


def _plain_states(model: PreTrainedModel, ids: Sequence[tuple[int, ...]], store: Store | None) -> States:
    """The states of plain runs of these rows of tokens."""

    def run() -> States:
        batch = Batch.of([*map(Row, ids)], range(len(ids)))
        forward(model, batch, kept := CaptureStates())
        return kept.states

    return run() if store is None else store.get(tuple(ids), run)


_SOME_TOKENS: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def takes_some_tokens(model: PreTrainedModel) -> bool:
    """Whether some tokens of a prompt can be passed alone, on the states of the others: tried once for each model."""
    if model not in _SOME_TOKENS:
        _SOME_TOKENS[model] = prepare(model).branches and _tried(model)
    return _SOME_TOKENS[model]


def _tried(model: PreTrainedModel) -> bool:
    """One token of eight is another one: the tokens behind it, computed alone, say what they say in a whole run."""
    size = model.config.get_text_config().vocab_size
    before = torch.randint(size, (8,), generator=torch.Generator().manual_seed(0)).tolist()
    after = [*before[:3], (before[3] + size // 2) % size, *before[4:]]
    whole = [all_logits(model, Batch.of([Row(tuple(ids))], [0]))[0, -1] for ids in (before, after)]
    try:
        cache = Renewed(_plain_states(model, [tuple(before)], None), torch.tensor([[0, 3, 4, 5, 6, 7]]))
        alone = cache.run(model, torch.tensor([[before[0], *after[3:]]]), [], 1)[0, -1]
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError, IndexError):  # the class has other ways
        return False
    return bool((alone - whole[1]).abs().max() <= 0.05 * (whole[1] - whole[0]).abs().max())


# ------------------------------------------------------------------------------------------------ what is said


def _after(
    run: Ablated, numbers: Sequence[int], two_pass: bool, store: Store | None
) -> tuple[Tensor, list[int], Tensor]:
    """The logits [S, V] after the tokens of each prompt that are answered, float64; whose they are; where each begins.

    One row for each token of an answer, prompt after prompt.
    """
    sizes = [len(run.groups[number].target) for number in numbers]
    owners = [place for place, size in enumerate(sizes) for _ in range(size)]
    steps = torch.tensor([step for size in sizes for step in range(size)])
    if two_pass and store is not None and run.renewable(numbers):
        rows = torch.cat(run.answered(numbers, store))
    else:
        instruments = run.apart(numbers, store) if two_pass else run.instruments(numbers)
        batch = run.batch(numbers, donors=not two_pass)
        wanted = torch.tensor([run.groups[numbers[owner]].length - 1 for owner in owners]) + steps
        kept, which = wanted.unique(return_inverse=True)
        with logits_at(run.model, kept) as options:
            logits = all_logits(run.model, batch, *instruments, **options)
        rows = logits[(1 if two_pass else run.members) * (torch.tensor(owners) + 1) - 1, which.to(logits.device)]
    return rows.cpu(), owners, steps


def whole_logits(
    model: PreTrainedModel, groups: Sequence[Group], token_budget: int = TOKEN_BUDGET, store: Store | None = None
) -> np.ndarray:
    """The logits of the whole model after each prompt, [N, V]: float32, or float64 with a float64 model.

    store: fill it with the plain runs of the prompts.
    """
    run = Ablated(model, groups, WHOLE)
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    found = np.empty((len(groups), model.config.get_text_config().vocab_size), dtype)

    def visit(batch: Batch) -> None:
        numbers = [int(number) for number in batch.numbers]
        rows, _, steps = _after(run, numbers, store is not None, store)
        found[numbers] = rows[steps == 0].to(torch.promote_types(rows.dtype, torch.float32)).numpy()

    rows = [Row(group.base.ids[:length]) for group, length in zip(groups, run.lengths, strict=True)]
    run_rows(model, rows, visit, token_budget)
    return found


def outcomes(
    model: PreTrainedModel,
    groups: Sequence[Group],
    ablation: Ablation = WHOLE,
    whole: np.ndarray | None = None,
    token_budget: int = TOKEN_BUDGET,
    two_pass: bool = False,
    store: Store | None = None,
) -> dict[str, np.ndarray]:
    """What the model says after each prompt under an ablation, [N] each.

    top: the first token it would say; right: whether that is the answer's (acc_first); log_prob: of the whole answer,
    teacher-forced, in nats. whole: the logits [N, V] of the whole model after the prompts; with them also kl, that of
    the ablated model's next token from the whole one's, in nats, and agrees, whether both say the same.
    two_pass: run the donors before the prompts, not beside them, and hold their keys and values meanwhile: the same
    values up to rounding. store: keeps them for the next ablation of these prompts, with those of the plain run of the
    prompts: then only tokens that the ablation changes and the answer depends on are computed, where the class allows
    it (see `takes_some_tokens`).
    Raises what `Ablated` raises.
    """
    return outcomes_of(Ablated(model, groups, ablation), whole, token_budget, two_pass, store)


def outcomes_of(
    run: Ablated,
    whole: np.ndarray | None = None,
    token_budget: int = TOKEN_BUDGET,
    two_pass: bool = False,
    store: Store | None = None,
) -> dict[str, np.ndarray]:
    """What the model says under an ablation that is checked already, [N] each, see `outcomes`; whole: [N, V]."""
    model, groups, n = run.model, run.groups, len(run.groups)
    found: dict[str, np.ndarray] = {"top": np.zeros(n, np.int64), "right": np.zeros(n, bool), "log_prob": np.zeros(n)}
    if whole is not None:
        found |= {"kl": np.zeros(n), "agrees": np.zeros(n, bool)}

    def visit(batch: Batch) -> None:
        numbers = [int(number) for number in batch.numbers]
        rows, owners, steps = _after(run, numbers, two_pass, store)
        ids = [groups[numbers[owner]].base.ids for owner in owners]
        check_finite(rows, "the logits", model, ids, [numbers[owner] for owner in owners])
        said = rows.double().log_softmax(-1)
        targets = torch.tensor([token for number in numbers for token in groups[number].target])
        scores, first = said.gather(1, targets[:, None])[:, 0], steps == 0
        found["top"][numbers] = said[first].argmax(-1).numpy()
        found["right"][numbers] = found["top"][numbers] == targets[first].numpy()
        found["log_prob"][numbers] = np.bincount(owners, weights=scores.numpy())
        if whole is not None:
            theirs = torch.from_numpy(whole[numbers]).double().log_softmax(-1)
            found["kl"][numbers] = (theirs.exp() * (theirs - said[first])).sum(-1).numpy()
            found["agrees"][numbers] = found["top"][numbers] == whole[numbers].argmax(-1)

    rows = [Row(group.base.ids[:length]) for group, length in zip(groups, run.lengths, strict=True)]
    with _bar(n) as bar:
        run_rows(model, rows, visit, shared_budget(token_budget, 1 if two_pass else run.members), bar)
    return found


def _bar(prompts: int) -> tqdm:
    return tqdm(total=prompts, unit="prompt", leave=False, delay=5)  # for what takes long


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
    run = Ablated(model, groups, ablation, target=False)
    written = [list[int]() for _ in groups]
    ends = {tokenizer.eos_token_id}

    def open_(number: int) -> bool:
        text = tokenizer.decode(written[number])
        return not ends & {*written[number]} and "\n" not in text.lstrip() and len(written[number]) < NEW_TOKENS

    def write(numbers: Sequence[int], logits: Tensor, go_on: Callable[[Tensor], Tensor]) -> None:
        for number in numbers:
            written[number].clear()
        while True:
            check_finite(logits, "the logits", model, [groups[number].base.ids for number in numbers], numbers)
            token = logits.argmax(-1)
            for number, own in zip(numbers, token.tolist(), strict=True):
                if open_(number):
                    written[number].append(own)
            if not any(map(open_, numbers)):
                break
            logits = go_on(token[:, None])

    with _bar(len(groups)) as bar:
        if store is not None and run.renewable(range(len(groups)), NEW_TOKENS - 1):
            _write_together(Ablated(model, groups, ablation), store, write, token_budget, bar)
        else:
            _write_by_length(run, write, token_budget, bar)
    return [tokenizer.decode([token for token in own if token not in ends]) for own in written]


Write = Callable[[Sequence[int], Tensor, Callable[[Tensor], Tensor]], None]  # prompts, first logits, one more token


def _write_together(run: Ablated, store: Store, write: Write, token_budget: int, bar: tqdm) -> None:
    """Prompts of any lengths, on states that are there; each new token has its place behind those of its own row."""

    def visit(batch: Batch) -> None:
        numbers = [int(number) for number in batch.numbers]
        logits, states = run.prompted(numbers, store)
        states = {layer: (_longer(pair[0]), _longer(pair[1])) for layer, pair in states.items()}
        places = torch.tensor([[run.groups[number].length] for number in numbers])

        def go_on(tokens: Tensor) -> Tensor:
            nonlocal states, places
            cache = Renewed(states, places)
            logits = cache.run(run.model, tokens, [], 1)
            states, places = cache.renewed, places + 1
            return logits[:, -1]

        write(numbers, logits, go_on)

    rows = [Row(group.base.ids[:length]) for group, length in zip(run.groups, run.lengths, strict=True)]
    run_rows(run.model, rows, visit, token_budget, bar)


def _longer(states: Tensor) -> Tensor:
    return torch.cat([states, states.new_zeros(*states.shape[:2], NEW_TOKENS, states.shape[3])], 2)


def _write_by_length(run: Ablated, write: Write, token_budget: int, bar: tqdm) -> None:
    """Prompts of one length at a time, so that nothing is padded, beside their donors."""
    model = run.model
    check_writing(model, run.lengths, NEW_TOKENS)
    apart = keeps_rows_apart(model)
    for length in sorted(set(run.lengths)):
        chosen = [number for number, own in enumerate(run.lengths) if own == length]

        @torch.inference_mode()
        def visit(batch: Batch, chosen: Sequence[int] = chosen) -> None:
            numbers, cache = [chosen[place] for place in batch.numbers], cache_for(model)
            base = torch.arange(len(numbers)) * run.members + run.members - 1
            ids = run.batch(numbers).inputs["input_ids"].to(input_device(model))
            with instrument(model, *run.instruments(numbers)):
                logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            logits = logits[base.to(logits.device)]
            if apart:
                cache.reorder_cache(base)

            def go_on(tokens: Tensor) -> Tensor:
                tokens = tokens if apart else tokens.repeat_interleave(run.members, dim=0)
                logits = model(input_ids=tokens.to(ids.device), past_key_values=cache, use_cache=True).logits[:, -1]
                return logits if apart else logits[base.to(logits.device)]

            write(numbers, logits[:, -1], go_on)

        rows = [Row(run.groups[number].base.ids[:length]) for number in chosen]
        run_rows(model, rows, visit, shared_budget(token_budget, run.members), bar)
