"""Prompts run with some of their edges ablated: each beside its donors, in lock-step (Bakalova et al., COLM 2025).

The rows of one prompt, its donors first, pass through the model together, and the prompt reads its donors' keys and
values of the same layer. What is done is said by `edges.Ablation`, how attention does it by the instruments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel

from util.attention import instrument
from util.edges import WHOLE, Ablation, check_matched
from util.finite import check_finite
from util.handshake import input_device, prepare
from util.inference import TOKEN_BUDGET, Batch, Row, check_context, forward, run_rows, shared_budget
from util.instruments import CaptureStates, Instrument, Knockout, Splice
from util.prompts import TypedTokens, check_aligned
from util.scoring import all_logits
from util.tasks.word_pair_prompts import WordPairPrompt, typed_tokens

NEW_TOKENS = 10  # of a continuation, as in the reference code
STORED = 2**30  # bytes of donors' keys and values that are kept for the next ablation
States = dict[int, tuple[Tensor, Tensor]]  # keys and values by layer
Store = dict[tuple[int, Ablation | None, tuple[int, ...]], States]  # by corruption, what the donor is inside, prompts


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
        self.codes = []
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
        base, codes = torch.arange(len(numbers)), self._padded(numbers)
        ran: list[States] = []
        for c in self.donors:
            within: list[Instrument] = []
            if self.ablation.inside and c != 0 and 0 in self.donors:
                removal = {layer: table[:, :2] for layer, table in self.tables.items()}
                within = [Splice(codes * (codes == 1), removal, base[:, None], self.ablation.channel, ran[0])]
            kept, key = CaptureStates(), (c, replace(self.ablation, probed=()) if within else None, tuple(numbers))
            if store is not None and key in store:
                kept.states = store[key]
            else:
                rows = [Row(self.groups[n].donors[c].ids[: self.lengths[n]]) for n in numbers]
                forward(self.model, Batch.of(rows, range(len(rows))), *within, kept)
                if store is not None and _size([*store.values(), kept.states]) <= STORED:
                    store[key] = kept.states
            ran.append(kept.states)
        if not ran:
            return self.instruments(numbers)
        states = {}
        for layer in self.tables:
            keys, values = zip(*(each[layer] for each in ran), strict=True)
            states[layer] = torch.cat(keys), torch.cat(values)
        donors = base[:, None] + len(numbers) * torch.arange(len(ran))
        return [Splice(codes, self.tables, donors, self.ablation.channel, states)]


def _size(found: Sequence[States]) -> int:
    return sum(part.nbytes for states in found for pair in states.values() for part in pair)


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
    values up to rounding. store: a dictionary that keeps donors, up to STORED bytes, so that they need not run
    again for the next ablation of the very same prompts.
    Raises what `Ablated` raises.
    """
    run, n = Ablated(model, groups, ablation), len(groups)
    found: dict[str, np.ndarray] = {"top": np.zeros(n, np.int64), "right": np.zeros(n, bool), "log_prob": np.zeros(n)}
    if whole is not None:
        found |= {"kl": np.zeros(n), "agrees": np.zeros(n, bool)}

    def visit(asked: Batch) -> None:
        numbers = [int(number) for number in asked.numbers]
        instruments = run.apart(numbers, store) if two_pass else run.instruments(numbers)
        batch = run.batch(numbers, donors=not two_pass)
        owners = [place for place, number in enumerate(numbers) for _ in groups[number].target]
        wanted = torch.tensor([groups[n].length - 1 + i for n in numbers for i in range(len(groups[n].target))])
        kept, which = wanted.unique(return_inverse=True)
        logits = all_logits(model, batch, *instruments, logits_to_keep=kept.to(input_device(model)))
        rows = logits[(1 if two_pass else run.members) * (torch.tensor(owners) + 1) - 1, which.to(logits.device)]
        check_finite(
            rows, "the logits", model, [groups[numbers[o]].base.ids for o in owners], [numbers[o] for o in owners]
        )
        said = rows.cpu().double().log_softmax(-1)
        targets = torch.tensor([token for number in numbers for token in groups[number].target])
        scores = said.gather(1, targets[:, None])[:, 0]
        first = [owners.index(place) for place in range(len(numbers))]
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
) -> list[str]:
    """What the model goes on to write, greedily: up to NEW_TOKENS tokens, until a line or the text ends.

    As in the reference code the ablation acts in the prompt alone; what follows reads what it left there.
    Raises what `Ablated` raises.
    """
    run = Ablated(model, groups, ablation, target=False)
    written = [list[int]() for _ in groups]
    ends = {tokenizer.eos_token_id}

    def open_(number: int) -> bool:
        text = tokenizer.decode(written[number])
        return not ends & {*written[number]} and "\n" not in text.lstrip() and len(written[number]) < NEW_TOKENS

    bar = _bar(len(groups))
    for length in sorted(set(run.lengths)):  # rows of one length, so that nothing is padded
        chosen = [number for number, own in enumerate(run.lengths) if own == length]

        @torch.inference_mode()
        def visit(asked: Batch, chosen: Sequence[int] = chosen) -> None:
            numbers, cache = [chosen[place] for place in asked.numbers], DynamicCache()
            base = torch.arange(len(numbers)) * run.members + run.members - 1
            ids = run.batch(numbers).inputs["input_ids"].to(input_device(model))
            with instrument(model, *run.instruments(numbers)):
                logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            logits = logits[base.to(logits.device)]
            cache.batch_select_indices(base)
            for number in numbers:
                written[number].clear()
            while True:
                check_finite(logits, "the logits", model, [groups[number].base.ids for number in numbers], numbers)
                token = logits[:, -1].argmax(-1).to(ids.device)
                for number, own in zip(numbers, token.tolist(), strict=True):
                    if open_(number):
                        written[number].append(own)
                if not any(map(open_, numbers)):
                    break
                logits = model(input_ids=token[:, None], past_key_values=cache, use_cache=True).logits

        rows = [Row(groups[number].base.ids[:length]) for number in chosen]
        run_rows(model, rows, visit, shared_budget(token_budget, run.members), bar)
    bar.close()
    return [tokenizer.decode([token for token in own if token not in ends]) for own in written]
