"""Which label a model gives: the log-probabilities of labels where an answer is due, under instruments or without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from util.engine.batches import TOKEN_BUDGET, Batch, Row, all_logits, check_context, forward, may_branch, run_rows
from util.engine.call import Instrument
from util.engine.finite import check_finite
from util.engine.handshake import check_tokenizer, input_device, prepare
from util.engine.instruments import CaptureRows, Knockout
from util.prompts.prompt import Appended, LabelledTokens, Prompt, tokenize

Attach = Callable[[Batch], Sequence[Instrument]]
Label = tuple[int, ...]  # the tokens of one


def nothing(batch: Batch) -> Sequence[Instrument]:
    """The instruments of the whole model: none."""
    return ()


@dataclass(frozen=True)
class Scoring:
    """Prompts to be answered with one of their labels, as tokens.

    tokens: the roles of each prompt with its gold label behind it; ids: [N] tokens up to the forerunner of the query;
    labels: [N, C] all tokens of every label as it really follows the prompt, in the order of the label space;
    gold: [N] which of them is right.
    """

    tokens: list[LabelledTokens]
    ids: list[tuple[int, ...]]
    labels: list[tuple[Label, ...]]
    gold: np.ndarray

    @property
    def answers(self) -> np.ndarray:
        """The first token of every label, [N, C]."""
        return np.array([[label[0] for label in row] for row in self.labels])

    @property
    def lengths(self) -> list[int]:
        """Tokens that the model sees at most of each prompt with a label, whose last token it only gives, [N]."""
        return [len(ids) + max(map(len, row)) - 1 for ids, row in zip(self.ids, self.labels, strict=True)]


def scoring(model: PreTrainedModel, tokenizer: Any, prompts: Sequence[Prompt]) -> Scoring:
    """Plan the scoring of prompts that share a label space.

    Raises ValueError where a label changes the tokens of the prompt before it, where all tokens of a label begin
    another one, and for prompts that are longer than the context.
    """
    prepare(model)
    check_tokenizer(model, tokenizer)
    count = len(prompts[0].labels)
    tokens: dict[Appended, list[LabelledTokens]] = {
        offset: tokenize(prompts, tokenizer, offset) for offset in range(count)
    }
    labels = []
    for number, prompt in enumerate(prompts):
        for offset in range(count):
            if tokens[offset][number].ids[:-1] != tokens[0][number].ids[:-1]:
                raise ValueError(
                    f"the label {prompt.label(offset)!r} changes the tokens before it in {prompt.text[-30:]!r}, so no "
                    "one prompt can be followed by every label; use other label words or another separator"
                )
        ordered = [tokens[(label - prompt.gold) % count][number] for label in range(count)]
        labels.append(tuple((each.ids[-1], *each.rest) for each in ordered))
        for one, two in permutations(range(count), 2):
            if labels[-1][two][: len(labels[-1][one])] == labels[-1][one]:
                raise ValueError(
                    f"the tokens of the label {prompt.labels[one]!r} begin those of {prompt.labels[two]!r}, so that no "
                    "model could find the longer one likelier; replace the label words (StaICC: change_label_space)"
                )
    plan = Scoring(tokens[0], [t.ids[:-1] for t in tokens[0]], labels, np.array([prompt.gold for prompt in prompts]))
    check_context(model, [length + 1 for length in plan.lengths])
    return plan


def label_log_probs(
    model: PreTrainedModel,
    plan: Scoring,
    attach: Attach = nothing,
    token_budget: int = TOKEN_BUDGET,
    text: bool = False,
) -> dict[str, np.ndarray]:
    """log_prob [N, C]: the log-probability of every label after every prompt, in nats, the sum over its tokens.

    float32, or float64 with a float64 model. The labels of a prompt share its pass, those of several tokens as branches
    behind it; where a class does not allow that, each such label is run behind a copy of the prompt.
    attach: the instruments of a batch, whose numbers are those of the prompts in it. What acts on all positions (a head
    ablation) acts on the tokens of labels too, which stand at `Batch.positions`; a knockout cuts the cells that it
    names, so that with cells of the prompt alone the tokens of a label still read all that stands before them.
    text: also text_loss [N], the mean next-token loss of each prompt, in nats, over all its tokens but the labels: what
    the instruments do to language modelling.
    """
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    rows = _rows(model, plan)
    owners = np.array([row.prompt for row in rows])
    found: dict[str, np.ndarray] = {"log_prob": np.zeros((len(plan.ids), len(plan.labels[0])), dtype)}
    if text:
        found["text_loss"] = np.empty(len(plan.ids), dtype)

    def visit(batch: Batch) -> None:
        mine = [rows[number] for number in batch.numbers]
        attached = attach(replace(batch, numbers=owners[batch.numbers]))
        wide = max(len(row.places) for row in mine)
        places = torch.tensor([[*row.places, *row.places[:1] * (wide - len(row.places))] for row in mine])
        if text:
            every = all_logits(model, batch, *attached)
            for place, row in enumerate(mine):
                found["text_loss"][row.prompt] = _text_loss(every[place], plan.tokens[row.prompt])
            losses = found["text_loss"][owners[batch.numbers]]
            check_finite(losses, "the losses", model, batch.tokens, batch.prompts)
            logits = _float(every[torch.arange(len(every))[:, None], places])
            check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
        else:
            logits = _logits_at(model, batch, places, *attached)
        normaliser = logits.logsumexp(-1).cpu().numpy()
        for i, row in enumerate(mine):
            for label, reads in row.reads.items():
                which, token = np.array(reads).T
                terms = logits[i, which, token].cpu().numpy() - normaliser[i, which]
                found["log_prob"][row.prompt, label] = terms.sum()

    run_rows(model, [row.row for row in rows], visit, token_budget, prompts=owners.tolist())
    return found


@dataclass(frozen=True)
class _LabelRow:
    """A row that scores labels of a prompt: by label, the reads (which of the `places`, token that is to follow)."""

    row: Row
    prompt: int
    places: tuple[int, ...]
    reads: dict[int, list[tuple[int, int]]]


def _rows(model: PreTrainedModel, plan: Scoring) -> list[_LabelRow]:
    """One row for each prompt, or, where labels of several tokens cannot be its branches, one for each of these."""
    found = prepare(model)
    rows = []
    for number, (ids, labels) in enumerate(zip(plan.ids, plan.labels, strict=True)):
        one_row = _label_row(number, ids, dict(enumerate(labels)))
        long = {c: label for c, label in enumerate(labels) if len(label) > 1}
        if len(long) < 2 or may_branch(found, len(one_row.row)):  # a single one just goes on
            rows.append(one_row)
            continue
        left = {c: label for c, label in enumerate(labels) if len(label) == 1}
        for c, label in long.items():
            rows.append(_label_row(number, ids, {c: label} | left))
            left = {}
    return rows


def _label_row(prompt: int, ids: tuple[int, ...], labels: Mapping[int, Label]) -> _LabelRow:
    """A row whose branches are all tokens of these labels but the last ones, common beginnings once."""
    branches: dict[Label, int] = {}
    parents: list[int] = []
    for label in labels.values():
        for end in range(1, len(label)):
            if label[:end] not in branches:
                parents.append(branches.get(label[: end - 1], -1))
                branches[label[:end]] = len(branches)
    row = Row(ids, tuple(tokens[-1] for tokens in branches), tuple(parents))
    before = {(): 0} | {tokens: branch + 1 for tokens, branch in branches.items()}  # which place gives what follows
    reads = {c: [(before[label[:i]], token) for i, token in enumerate(label)] for c, label in labels.items()}
    return _LabelRow(row, prompt, tuple(range(len(ids) - 1, len(row))), reads)


def _text_loss(logits: Tensor, tokens: LabelledTokens) -> float:
    labels = {t + i for t, length in zip(tokens.labels, tokens.label_lengths, strict=True) for i in range(length)}
    targets = torch.tensor([t for t in range(1, tokens.labels[-1]) if t not in labels])
    ids = torch.tensor(tokens.ids)[targets].to(logits.device)
    return float(cross_entropy(_float(logits[(targets - 1).to(logits.device)]), ids))


def knockouts(cells: Sequence[np.ndarray], heads: Mapping[int, Sequence[int] | None]) -> Attach:
    """Knock out the cells [C_n, 2] (query, key) of each prompt n, by layer in these heads (None: in all of them)."""

    def attach(batch: Batch) -> list[Knockout]:
        parts = [np.insert(cells[number], 0, place, axis=1) for place, number in enumerate(batch.numbers)]
        together = torch.from_numpy(np.concatenate(parts))
        sets: dict[tuple[int, ...] | None, list[int]] = {}
        for layer, chosen in heads.items():
            sets.setdefault(None if chosen is None else tuple(chosen), []).append(layer)
        return [Knockout(together, layers, chosen) for chosen, layers in sets.items()] if len(together) else []

    return attach


def text_losses(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    attach: Attach = nothing,
    token_budget: int = TOKEN_BUDGET,
) -> np.ndarray:
    """The mean next-token loss of each text, given as tokens, in nats: [N]. Raises ValueError where one is too long."""
    check_context(model, [len(ids) for ids in texts])
    found = np.empty(len(texts), np.float64 if model.dtype == torch.float64 else np.float32)

    def visit(batch: Batch) -> None:
        logits = all_logits(model, batch, *attach(batch))
        for place, number in enumerate(batch.numbers):
            ids = torch.tensor(texts[number])[1:].to(logits.device)
            found[number] = float(cross_entropy(_float(logits[place, : len(ids)]), ids))
        check_finite(found[batch.numbers], "the losses", model, batch.tokens, batch.prompts)

    run_rows(model, [Row(tuple(ids)) for ids in texts], visit, token_budget)
    return found


def next_logits(model: PreTrainedModel, batch: Batch, *instruments: Instrument) -> Tensor:
    """The logits after every row of a batch, [B, V], float32 at least, on the device of the unembedding."""
    return _logits_at(model, batch, batch.lengths[:, None] - 1, *instruments)[:, 0]


def _logits_at(model: PreTrainedModel, batch: Batch, places: Tensor, *instruments: Instrument) -> Tensor:
    """The logits after the tokens at places [B, P] of each row, [B, P, V]: no others are computed."""
    kept, which = places.unique(return_inverse=True)
    logits = all_logits(model, batch, *instruments, logits_to_keep=kept.to(input_device(model)))
    logits = _float(logits[torch.arange(len(which))[:, None], which.to(logits.device)])
    check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
    return logits


def _float(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def label_reads(model: PreTrainedModel, plan: Scoring, token_budget: int = TOKEN_BUDGET) -> dict[str, np.ndarray]:
    """What the query's forerunner reads of the demonstrations: what induction heads are made of (Cho et al., Fig. 6).

    reads [N, L, H, k]: the attention A[s_q, y_i] to the first token of each label; similarity [N, L, k]: the cosine of
    the states of s_i and s_q where layer l takes them in, float32 both. Raises ValueError for prompts without
    demonstrations.
    """
    found = prepare(model)
    s = torch.tensor([tokens.forerunners for tokens in plan.tokens])
    y = torch.tensor([tokens.labels[:-1] for tokens in plan.tokens])
    if not y.shape[1]:
        raise ValueError("the prompts have no demonstrations, so there are no labels to read; take k of 1 or more")
    shape = (len(plan.ids), len(found.layers))
    reads = np.empty((*shape, found.heads, y.shape[1]), np.float32)
    similarity = np.empty((*shape, y.shape[1]), np.float32)

    def visit(batch: Batch) -> None:
        rows = CaptureRows(s[batch.numbers, -1:], y[batch.numbers][:, None])
        states = forward(model, batch, rows, output_hidden_states=True).hidden_states
        for place, layer in enumerate(found.layers):
            reads[batch.numbers, place] = rows.weights[layer][:, :, 0].cpu().numpy()
            at = s[batch.numbers, :, None].to(states[layer].device)
            state = states[layer].gather(1, at.expand(-1, -1, states[layer].shape[-1])).float()
            cosine = torch.cosine_similarity(state[:, :-1], state[:, -1:], dim=-1)
            similarity[batch.numbers, place] = cosine.cpu().numpy()

    run_rows(model, [Row(ids) for ids in plan.ids], visit, token_budget)
    return {"reads": reads, "similarity": similarity}


def next_token_logits(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *instruments: Instrument, token_budget: int = TOKEN_BUDGET
) -> np.ndarray:
    """The logits of what follows each prompt, given as tokens: [N, V] float32 (float64 with a float64 model).

    instruments stay attached throughout, so they cannot tell examples apart. Raises ValueError for a prompt that is
    longer than the context.
    """
    prepare(model)
    check_context(model, [len(ids) for ids in prompts])
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    found = np.empty((len(prompts), model.config.get_text_config().vocab_size), dtype)

    def visit(batch: Batch) -> None:
        found[batch.numbers] = next_logits(model, batch, *instruments).cpu().numpy()

    run_rows(model, [Row(tuple(ids)) for ids in prompts], visit, token_budget)
    return found
