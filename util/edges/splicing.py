"""Prompts run, and continued, with some of their edges ablated (Bakalova et al., COLM 2025).

Donors run first, and the prompt reads their keys and values of the same layer. What is done is said by `Ablation`, how
attention does it by the instruments.

Many ablations of the same prompts go faster with a `Store`: it keeps the keys and values of plain runs, and an ablation
then computes only those tokens that it changes and that the answer depends on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel

from util.edges.edge import WHOLE, Ablation
from util.edges.states import Renewed, Store, of_rows, plain_states, takes_some_tokens
from util.engine.attention import instrument
from util.engine.batches import (
    TOKEN_BUDGET,
    Arrays,
    Batch,
    Ids,
    Row,
    all_logits,
    array_type,
    cache_for,
    check_context,
    check_writing,
    forward,
    logits_at,
    run_rows,
)
from util.engine.call import CACHE, NO_LIMIT, Instrument, at_least_float32, take
from util.engine.finite import check_finite
from util.engine.handshake import input_device, prepare
from util.engine.instruments import ByLayer, CaptureStates, Splice, States
from util.prompts.prompt import TypedTokens, check_aligned, type_tokens
from util.prompts.word_pair_prompts import WordPairPrompt

NEW_TOKENS = 10  # of a continuation, as in the reference code
Numbers = Sequence[int]  # of prompts
Layout = TypeVar("Layout")  # what the layout of a prompt decides


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
        """How many tokens the prompt alone has."""
        return self.base.types.index("target")

    @property
    def prompt(self) -> Ids:
        """The tokens of the prompt alone."""
        return self.base.ids[: self.length]

    @property
    def target(self) -> Ids:
        """The tokens of the answer."""
        return self.base.ids[self.length :]


def without_demonstrations(group: Group) -> Group:
    """The prompt's query alone, with its answer and without donors."""
    base, kept = group.base, ("bos", "query", "last_separator", "target")
    chosen = [kind in kept for kind in base.types]
    fields = {name: tuple(compress(field, chosen)) for name, field in vars(base).items()}
    return Group(replace(base, **fields), {})


def groups_of(items: Sequence[WordPairPrompt], tokenizer: Any) -> list[Group]:
    """The prompts of a word-pair task as tokens. Raises Misaligned for a tokenizer that they were not made for."""
    typed = partial(type_tokens, tokenizer=tokenizer, target=True)
    return [Group(typed(item.clean), {c: typed(donor) for c, donor in item.donors.items()}) for item in items]


def of_layouts(groups: Sequence[Group], compute: Callable[[TypedTokens], Layout]) -> list[Layout]:
    """What a function gives for each prompt, computed once for each layout, of which there are few."""
    known: dict[Any, Layout] = {}
    computed = []
    for tokens in (group.base for group in groups):
        layout = tokens.types, tokens.examples, tokens.slots
        if layout not in known:
            known[layout] = compute(tokens)
        computed.append(known[layout])
    return computed


class Ablated:
    """An ablation of these prompts, checked as a whole before any forward pass.

    store: keeps what runs leave for the next ablation of these prompts. target: run the answers too, but for their last
    tokens, as a teacher forces them. Raises ValueError for a corruption that a prompt has no donor of, for layers and
    heads that there are not, for edges that would have two donors, and for prompts that are too long; warns of edges
    that are in no prompt.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        groups: Sequence[Group],
        ablation: Ablation,
        store: Store | None = None,
        target: bool = True,
    ) -> None:
        self.model, self.groups, self.ablation = model, groups, ablation
        self.support, self.renews = prepare(model), store is not None
        self.store = Store(0) if store is None else store
        lacking = sorted({c for group in groups for c in ablation.corruptions if c not in group.donors})
        if lacking:
            raise ValueError(f"the prompts have no donors of corruption {lacking}; ask for them: corruptions=(0, ...)")
        for edge in ablation.named:
            if not any(edge.cells(group.base).any() for group in groups):
                warnings.warn(
                    f"the edge {edge} is in none of the {len(groups)} prompts", stacklevel=1
                )  # once, whoever asks
        self.lengths = [len(group.base.ids) - 1 if target else group.length for group in groups]
        check_context(model, [length + (0 if target else NEW_TOKENS - 1) for length in self.lengths])
        self.codes = of_layouts(groups, lambda tokens: torch.from_numpy(ablation.codes(tokens)))
        self.acts = torch.from_numpy(ablation.acts(len(self.support.layers), self.support.heads))
        number = {c: place for place, c in enumerate(ablation.corruptions, 1)}
        sources = torch.tensor([0, number.get(0, 0), *(number[c] for _, c in ablation.probed)])
        by_layer = zip(self.support.layers, self.acts, strict=True)
        tables = {layer: acts[:, None] * sources for layer, acts in by_layer if acts.any()}
        # where nothing is read from donors, the prompt runs alone: it is the whole model to the last bit
        cut = tables and any(map(torch.any, self.codes))
        self.donors, self.tables = (ablation.corruptions, tables) if cut else ((), {})

    def run(
        self, visit: Callable[[list[int]], None], token_budget: int, bar: tqdm | None = None, length: int | None = None
    ) -> None:
        """Call `visit` on the numbers of prompts, a batch at a time; length: of those with so many tokens alone."""
        chosen = [number for number, size in enumerate(self.lengths) if length in (None, size)]
        rows = [*map(Row, self.ids(chosen))]
        run_rows(self.model, rows, lambda batch: visit([chosen[row] for row in batch.numbers]), token_budget, bar)

    def ids(self, numbers: Numbers, donor: int | None = None) -> list[Ids]:
        """The tokens of these prompts, or of their donors of a corruption."""
        rows = []
        for number in numbers:
            group = self.groups[number]
            tokens = group.base if donor is None else group.donors[donor]
            rows.append(tokens.ids[: self.lengths[number]])
        return rows

    def answer_places(self, numbers: Numbers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the tokens [S] of the answers, prompt after prompt: whose they are, and their places in these.

        And where the logits are that tell them: places [P] in prompts, in order, and which of these each token is told
        by [S].
        """
        sizes = [len(self.groups[number].target) for number in numbers]
        owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        steps = torch.cat([*map(torch.arange, sizes)])
        ends = torch.tensor([self.groups[number].length - 1 for number in numbers])
        return owners, steps, *(ends[owners] + steps).unique(return_inverse=True)

    def instruments(self, numbers: Numbers) -> list[Instrument]:
        """What acts on a pass of these prompts, whose donors run now."""
        if not self.donors:
            return []
        return [Splice(self.padded(numbers), self.tables, self._donor_states(numbers))]

    def padded(self, numbers: Numbers) -> Tensor:
        """The codes of these prompts, [B, T, T]."""
        sizes = [self.lengths[number] for number in numbers]
        codes = [self.codes[number][:size, :size] for number, size in zip(numbers, sizes, strict=True)]
        return torch.stack([pad(code, (0, max(sizes) - len(code)) * 2) for code in codes])

    def _donor_states(self, numbers: Numbers) -> list[States]:
        """The states of the donors, corruption after corruption."""
        ran: list[States] = []
        for c in self.donors:
            ids = self.ids(numbers, c)
            if c != 0 and 0 in self.donors:
                key = tuple(ids), tuple(self.ids(numbers, 0)), replace(self.ablation, probed=())
                ran.append(self.store.get(key, partial(self._inside, numbers, ids, ran[0])))
            else:
                ran.append(plain_states(self.model, ids, self.store))
        return ran

    def _inside(self, numbers: Numbers, ids: Sequence[Ids], first: States) -> States:
        """The states of donors that read their removed edges from the first donors."""
        codes = self.padded(numbers)
        codes = codes * (codes == 1)
        tables = {layer: table[:, :2] for layer, table in self.tables.items()}
        if not self.renewable(numbers):
            kept = CaptureStates()
            forward(self.model, Batch.of([*map(Row, ids)]), Splice(codes, tables, [first]), kept)
            return kept.states
        edits = self._reads(tables)
        again = [_rows_again(code[: len(row), : len(row)], *edits) for code, row in zip(codes, ids, strict=True)]
        return self._renew(plain_states(self.model, ids, self.store), ids, again, codes, tables, [first])[1]

    # -------------------------------------------------------------------------------- the tokens that change, alone

    def renewable(self, numbers: Numbers, more: int = 0) -> bool:
        """Whether tokens of these prompts, and `more`, can be computed alone, on the states of a run that has been."""
        fits = max(self.lengths[number] for number in numbers) + more <= self.support.switch
        return self.renews and fits and takes_some_tokens(self.model)

    def _reads(self, tables: ByLayer) -> tuple[Tensor, Tensor]:
        """By kind of cell: whether anything is read from a donor, and whether nothing is left of the own run."""
        kinds = 2 + len(self.ablation.probed)
        every = torch.cat([*tables.values()]) if tables else torch.zeros(1, kinds, dtype=torch.long)
        return every.any(0), every.all(0) & (len(tables) == len(self.support.layers))

    def answered(self, numbers: Numbers) -> Tensor:
        """The logits [S, V] after each of these prompts and the tokens of its answer, prompt after prompt.

        What the plain run says of a token is used where the ablation does not change it.
        """
        edits, codes = self._reads(self.tables), self.padded(numbers)
        again, answers = [], []
        for code, number in zip(codes, numbers, strict=True):
            size, group = self.lengths[number], self.groups[number]
            last = group.length - 1
            again.append(_rows_again(code[:size, :size], *edits, matter=last, anyway=last))
            answers.append(len(group.target))
        # states are read for all prompts together, as they are stored, and computed for those with as many tokens
        ran, ids = self._donor_states(numbers), self.ids(numbers)
        states, logits = plain_states(self.model, ids, self.store), dict[int, Tensor]()
        for some in _alike([*map(len, again)]):
            donors, answer = [of_rows(one, some) for one in ran], max(answers[place] for place in some)
            parts = [ids[place] for place in some], [again[place] for place in some], codes[torch.tensor(some)]
            rows = self._renew(of_rows(states, some), *parts, self.tables, donors, answer)[0]
            logits |= {place: code[len(code) - answers[place] :] for place, code in zip(some, rows, strict=True)}
        return torch.cat([logits[place] for place in range(len(numbers))])

    def prompted(self, numbers: Numbers) -> tuple[Tensor, States]:
        """The logits [B, V] after these prompts, and the states of all tokens up to there."""
        edits, again = self._reads(self.tables), []
        for number in numbers:
            size = self.groups[number].length
            again.append(_rows_again(self.codes[number][:size, :size], *edits, anyway=size - 1))
        ran, ids = self._donor_states(numbers), self.ids(numbers)
        states = plain_states(self.model, ids, self.store)
        logits, states = self._renew(states, ids, again, self.padded(numbers), self.tables, ran)
        return logits[:, -1], states

    def _renew(
        self,
        states: States,
        ids: Sequence[Ids],
        again: list[Tensor],
        codes: Tensor,
        tables: ByLayer,
        ran: Sequence[States],
        answer: int = 1,
    ) -> tuple[Tensor, States]:
        """The last `answer` logits of rows of which the tokens `again` are computed, and the states of all tokens."""
        # before shorter rows stands their first token, which sees itself alone and comes out as it was
        places = pad_sequence(again, batch_first=True, padding_side="left")
        if not places.numel():
            return torch.empty(0), states
        wanted = take(codes, places, dim=1)
        splices = [Splice(wanted, tables, ran, places)] if tables and wanted.any() else []
        tokens = torch.tensor([[row[place] for place in at] for row, at in zip(ids, places.tolist(), strict=True)])
        cache = Renewed(states, places)
        logits = cache.run(self.model, tokens, splices, answer)
        return logits, cache.renewed


def _rows_again(codes: Tensor, edited: Tensor, gone: Tensor, matter: int = 0, anyway: int = NO_LIMIT) -> Tensor:
    """The tokens of a prompt to be computed again, in order: those that read something edited, or a token that does.

    matter: only those that the tokens from this one on depend on; anyway: those from this one on in any case.
    codes: [T, T]; edited, gone: see `Ablated._reads`.
    """
    before = torch.ones_like(codes).tril(-1).bool()
    reads, changed = (before & ~gone[codes]).numpy(), edited[codes].any(1).numpy()
    size = len(changed)
    for token in range(size):
        changed[token] |= (reads[token] & changed).any()
    needed = np.arange(size) >= matter
    for token in range(size)[::-1]:
        if needed[token]:
            needed |= reads[token]
    changed[anyway:] = True
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


# ------------------------------------------------------------------------------------------------ what is said


def _rows_after(run: Ablated, numbers: Numbers) -> tuple[Tensor, Tensor, Tensor]:
    """The logits [S, V] after the tokens of each prompt that are answered, float64; whose they are; where each begins.

    One row for each token of an answer, prompt after prompt.
    """
    owners, steps, places, which = run.answer_places(numbers)
    if run.renewable(numbers):
        return run.answered(numbers).cpu(), owners, steps
    instruments, batch = run.instruments(numbers), Batch.of([*map(Row, run.ids(numbers))])
    with logits_at(run.model, places):
        logits = all_logits(run.model, batch, *instruments)
    return logits[owners.to(logits.device), which.to(logits.device)].cpu(), owners, steps


def whole_logits(
    model: PreTrainedModel, groups: Sequence[Group], token_budget: int = TOKEN_BUDGET, store: Store | None = None
) -> np.ndarray:
    """The logits of the whole model after each prompt, [N, V]: float32, or float64 with a float64 model.

    store: fill it with the plain runs of the prompts.
    """
    run = Ablated(model, groups, WHOLE, store)
    logits = np.empty((len(groups), model.config.get_text_config().vocab_size), array_type(model))

    def visit(numbers: list[int]) -> None:
        rows, _, steps = _rows_after(run, numbers)
        logits[numbers] = at_least_float32(rows[steps == 0]).numpy()

    run.run(visit, token_budget)
    return logits


def outcomes(
    model: PreTrainedModel,
    groups: Sequence[Group],
    ablation: Ablation = WHOLE,
    whole: np.ndarray | None = None,
    token_budget: int = TOKEN_BUDGET,
    store: Store | None = None,
) -> Arrays:
    """What the model says after each prompt under an ablation, [N] each.

    top: the first token it would say; right: whether that is the answer's (acc_first); log_prob: of the whole answer,
    teacher-forced, in nats. whole: the logits [N, V] of the whole model after the prompts; with them also kl, that of
    the ablated model's next token from the whole one's, in nats, and agrees, whether both say the same.
    store: keeps the keys and values of donors and of the plain run of the prompts for the next ablation of these
    prompts: then only tokens that the ablation changes and the answer depends on are computed, where the class allows
    it (see `takes_some_tokens`).
    Raises what `Ablated` raises.
    """
    return outcomes_of(Ablated(model, groups, ablation, store), whole, token_budget)


def outcomes_of(run: Ablated, whole: np.ndarray | None = None, token_budget: int = TOKEN_BUDGET) -> Arrays:
    """What the model says under an ablation that is checked already, [N] each, see `outcomes`; whole: [N, V]."""
    groups, n = run.groups, len(run.groups)
    data: Arrays = {"top": np.zeros(n, np.int64), "right": np.zeros(n, bool), "log_prob": np.zeros(n)}
    if whole is not None:
        data |= {"kl": np.zeros(n), "agrees": np.zeros(n, bool)}

    def visit(numbers: list[int]) -> None:
        rows, owners, steps = _rows_after(run, numbers)
        owned = [numbers[owner] for owner in owners.tolist()]
        check_finite(rows, "the logits", run.model, [groups[number].base.ids for number in owned], owned)
        log_probs, first = rows.double().log_softmax(-1), steps == 0
        targets = torch.tensor([token for number in numbers for token in groups[number].target])
        scores, after = log_probs.gather(1, targets[:, None])[:, 0], log_probs[first]
        top = after.argmax(-1)
        data["top"][numbers], data["right"][numbers] = top, top == targets[first]
        data["log_prob"][numbers] = np.bincount(owners, weights=scores)
        if whole is not None:
            reference = torch.from_numpy(whole[numbers]).double().log_softmax(-1)
            data["kl"][numbers] = (reference.exp() * (reference - after)).sum(-1)
            data["agrees"][numbers] = top.numpy() == whole[numbers].argmax(-1)

    with progress(n) as bar:
        run.run(visit, token_budget, bar)
    return data


def progress(prompts: int) -> tqdm:
    """A bar for what takes long."""
    return tqdm(total=prompts, unit="prompt", leave=False, delay=5)


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
    end = tokenizer.eos_token_id

    def open_(number: int) -> bool:
        text = tokenizer.decode(written[number])
        return end not in written[number] and "\n" not in text.lstrip() and len(written[number]) < NEW_TOKENS

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
    return [tokenizer.decode([token for token in tokens if token != end]) for tokens in written]


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
        options = {CACHE: cache, "use_cache": True, "logits_to_keep": 1}
        return model(input_ids=tokens.to(input_device(model)), **options).logits[:, -1]

    with instrument(model, *run.instruments(numbers)):
        return go_on(torch.tensor(run.ids(numbers))), go_on
