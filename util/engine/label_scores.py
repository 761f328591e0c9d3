"""Log-probabilities of the labels that may follow a prompt, with instruments attached or without."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from util.engine.batches import (
    TOKEN_BUDGET,
    Arrays,
    Batch,
    Ids,
    Row,
    all_logits,
    array_type,
    check_context,
    layer_inputs,
    logits_at,
    may_branch,
    run_rows,
)
from util.engine.call import Instrument, at_least_float32, take
from util.engine.finite import check_finite
from util.engine.handshake import check_tokenizer, prepare
from util.engine.instruments import CaptureRows, Knockout, PatchHeads
from util.engine.replay import BaseRuns
from util.prompts.prompt import LabelledTokens, Prompt, UnsupportedTokenizer, labelled_tokens

Attach = Callable[[Batch], Sequence[Instrument]]
Label = Ids  # of one label
LOGITS = 1 << 27  # half a gigabyte in float32


def nothing(batch: Batch) -> Sequence[Instrument]:
    """No instruments: the model unchanged."""
    return ()


@dataclass(frozen=True)
class Scoring:
    """Prompts that are to be answered with one of their labels, as tokens.

    tokens: [N], each prompt followed by its gold label, with token roles; ids: [N], the tokens of each prompt up to the
    query's forerunner; labels: [N, C], all tokens of each label as they follow the prompt, in the order of the label
    space; gold: [N], the index of the right label.
    """

    tokens: list[LabelledTokens]
    ids: list[Ids]
    labels: list[tuple[Label, ...]]
    gold: np.ndarray

    @property
    def first_tokens(self) -> np.ndarray:
        """The first token of each label, [N, C]. Raises UnsupportedTokenizer where two labels begin with one token."""
        tokens = np.array([[label[0] for label in row] for row in self.labels])
        if any(len(set(row)) < len(row) for row in tokens.tolist()):
            raise UnsupportedTokenizer("two labels begin with the same token, so that their first tokens say not which")
        return tokens

    @property
    def lengths(self) -> list[int]:
        """The largest number of tokens that the model reads of each prompt with a label, [N].

        The last token of a label is predicted, not read.
        """
        return [len(ids) + max(map(len, row)) - 1 for ids, row in zip(self.ids, self.labels, strict=True)]


def scoring(model: PreTrainedModel, tokenizer: Any, prompts: Sequence[Prompt]) -> Scoring:
    """Tokenize prompts that share a label space, and each of their labels, for `label_log_probs`.

    Raises UnsupportedTokenizer where a label changes the tokens of the prompt before it, and where one label's tokens
    are the beginning of another's; and what `check_context` raises for prompts that are longer than the context.
    """
    prepare(model)
    check_tokenizer(model, tokenizer)
    count = len(prompts[0].labels)
    tokens = [labelled_tokens(prompts, tokenizer, offset) for offset in range(count)]
    labels = []
    for number, prompt in enumerate(prompts):
        for offset in range(count):
            if tokens[offset][number].ids[:-1] != tokens[0][number].ids[:-1]:
                raise UnsupportedTokenizer(
                    f"the label {prompt.label(offset)!r} changes the tokens before it in {prompt.text[-30:]!r}, so no "
                    "one prompt can be followed by every label; use other label words or another separator"
                )
        ordered = [tokens[(label - prompt.gold) % count][number] for label in range(count)]
        label_tokens = tuple((labelled.ids[-1], *labelled.rest) for labelled in ordered)
        labels.append(label_tokens)
        for i, j in permutations(range(count), 2):
            if label_tokens[j][: len(label_tokens[i])] == label_tokens[i]:
                raise UnsupportedTokenizer(
                    f"the tokens of the label {prompt.labels[i]!r} begin those of {prompt.labels[j]!r}, so no model "
                    "can give the longer one a higher probability; replace the label words (StaICC: change_label_space)"
                )
    ids = [labelled.ids[:-1] for labelled in tokens[0]]
    plan = Scoring(tokens[0], ids, labels, np.array([prompt.gold for prompt in prompts]))
    check_context(model, plan.lengths)
    return plan


def label_log_probs(
    model: PreTrainedModel,
    plan: Scoring,
    attach: Attach = nothing,
    token_budget: int = TOKEN_BUDGET,
    text: bool = False,
    runs: BaseRuns | None = None,
) -> Arrays:
    """log_prob [N, C]: the log-probability of each label after each prompt, in nats, summed over the label's tokens.

    float32, or float64 with a float64 model. All labels of a prompt are scored in one forward pass, labels of several
    tokens as branches after the prompt. If a model class does not allow branches, each label of several tokens runs
    after its own copy of the prompt.
    attach: gives the instruments of a batch; the batch's numbers are the numbers of the prompts. An instrument that
    acts on all positions (a head ablation) acts on the tokens of labels too; their positions are in `Batch.positions`.
    A knockout forbids only the cells that it names: if all its cells are in the prompt, the tokens of a label still
    read everything before them.
    text: also give text_loss [N], the mean next-token loss of each prompt, in nats, over all its tokens except the
    labels. It shows what the instruments do to language modelling.
    runs: where several edits of the same plan are scored, one for all of them, so that layers before an edit are not
    computed again; it changes no bit.
    """
    owners, rows, reads = zip(*_rows(model, plan), strict=True)
    dtype = array_type(model)
    results: Arrays = {"log_prob": np.zeros((len(plan.ids), len(plan.labels[0])), dtype)}
    if text:
        results["text_loss"] = np.empty(len(plan.ids), dtype)

    def visit(batch: Batch) -> None:
        attached = attach(replace(batch, numbers=batch.prompts))
        first = batch.lengths[:, None] - 1
        places = first + torch.arange(int((batch.ends - batch.lengths).max()) + 1)
        places = places.where(places < batch.ends[:, None], first)  # rows with fewer places repeat their first one
        with _started(runs, batch, attached):
            if text:
                everywhere = all_logits(model, batch, *attached)
                by_row = [_text_loss(everywhere[i], plan.tokens[prompt]) for i, prompt in enumerate(batch.prompts)]
                losses = torch.stack(by_row).cpu().numpy()
                results["text_loss"][batch.prompts] = losses
                check_finite(losses, "the losses", model, batch.rows, batch.prompts)
                logits = _at(model, batch, everywhere, places)
            else:
                logits = _logits_at(model, batch, places, *attached)
        normaliser = logits.logsumexp(-1).cpu().numpy()
        labels = [(i, *label) for i, number in enumerate(batch.numbers) for label in reads[number].items()]
        example, place, token = np.array([(i, *read) for i, _, of_label in labels for read in of_label]).T
        terms = logits[example, place, token].cpu().numpy() - normaliser[example, place]
        ends = np.cumsum([len(of_label) for *_, of_label in labels])
        for (i, label, _), of_label in zip(labels, np.split(terms, ends[:-1]), strict=True):
            results["log_prob"][batch.prompts[i], label] = of_label.sum()

    budget = _budget(model, token_budget) if text else token_budget
    run_rows(model, rows, visit, budget, prompts=owners)
    return results


def _budget(model: PreTrainedModel, token_budget: int) -> int:
    """The token budget where the logits of all tokens are kept, LOGITS of them at most, or those of one row."""
    return min(token_budget, max(1, LOGITS // model.config.get_text_config().vocab_size))


# For each label that a row scores, by its index, its tokens as pairs (place, the token that follows there). Place 0 is
# the end of the prompt, and the others are the branches.
Reads = dict[int, list[tuple[int, int]]]


def _rows(model: PreTrainedModel, plan: Scoring) -> list[tuple[int, Row, Reads]]:
    """The rows that score labels, with the numbers of their prompts: one for each prompt.

    Where the model does not allow branches, there is one for each label of several tokens.
    """
    support = prepare(model)
    rows = []
    for number, (ids, labels) in enumerate(zip(plan.ids, plan.labels, strict=True)):
        groups = [dict(enumerate(labels))]  # of labels that share a row
        long = [{c: label} for c, label in enumerate(labels) if len(label) > 1]
        # a single label of several tokens continues the prompt without branching
        if len(long) > 1 and not may_branch(support, len(_label_row(ids, groups[0])[0])):
            short = {c: label for c, label in enumerate(labels) if len(label) == 1}
            groups = [long[0] | short, *long[1:]]
        rows += [(number, *_label_row(ids, group)) for group in groups]
    return rows


def _label_row(ids: Ids, labels: Mapping[int, Label]) -> tuple[Row, Reads]:
    """The row for some labels of a prompt. Its branches are all tokens of the labels except the last of each.

    Labels that begin with the same tokens share their branches.
    """
    branches: dict[Label, int] = {}
    parents: list[int] = []
    for label in labels.values():
        for end in range(1, len(label)):
            if label[:end] not in branches:
                parents.append(branches.get(label[: end - 1], -1))
                branches[label[:end]] = len(branches)
    row = Row(ids, tuple(tokens[-1] for tokens in branches), tuple(parents))
    # by the beginning of a label, the place whose logits are those of its next token
    place_of = {(): 0} | {tokens: branch + 1 for tokens, branch in branches.items()}
    reads = {c: [(place_of[label[:i]], token) for i, token in enumerate(label)] for c, label in labels.items()}
    return row, reads


def _text_loss(logits: Tensor, tokens: LabelledTokens) -> Tensor:
    """The mean next-token loss [] over a prompt's tokens except its labels, from logits [T, V]."""
    spans = zip(tokens.labels, tokens.label_lengths, strict=True)
    labels = {start + i for start, length in spans for i in range(length)}
    targets = torch.tensor([t for t in range(1, tokens.labels[-1]) if t not in labels])
    ids = torch.tensor(tokens.ids)[targets].to(logits.device)
    return cross_entropy(at_least_float32(logits[(targets - 1).to(logits.device)]), ids)


def knockouts(cells: Sequence[np.ndarray], heads: Mapping[int, Sequence[int] | None]) -> Attach:
    """Instruments that knock out cells [C_n, 2] (query, key) of each prompt n, in some heads.

    heads: by layer, the heads that lose these cells, None for all of them.
    """

    def attach(batch: Batch) -> list[Knockout]:
        parts = [np.insert(cells[number], 0, place, axis=1) for place, number in enumerate(batch.numbers)]
        batch_cells = torch.from_numpy(np.concatenate(parts))
        return [Knockout(batch_cells, layer, chosen) for layer, chosen in heads.items() if len(batch_cells)]

    return attach


def replacements(heads: Mapping[int, Sequence[int]], values: Mapping[int, float | Tensor]) -> Attach:
    """Instruments that replace the outputs of some heads at all positions, the same in every batch.

    heads: by layer, the heads that are replaced. values: by layer, what stands for their outputs: a number, or a tensor
    [T, heads, dv] with a row for each position, which no text is longer than.
    """

    def attach(batch: Batch) -> list[PatchHeads]:
        return [PatchHeads(layer, chosen, at_positions(values[layer], batch)) for layer, chosen in heads.items()]

    def at_positions(value: float | Tensor, batch: Batch) -> float | Tensor:
        return value[batch.positions] if isinstance(value, Tensor) else value

    return attach


def text_losses(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    attach: Attach = nothing,
    token_budget: int = TOKEN_BUDGET,
    runs: BaseRuns | None = None,
    by_token: bool = False,
) -> np.ndarray:
    """The mean next-token loss [N] of each text in nats. Texts are given as tokens.

    runs: see `label_log_probs`. by_token: of each token but the first, [N, T - 1], of texts of one length. Raises
    ValueError for a text that is longer than the context.
    """
    check_context(model, [len(ids) for ids in texts])
    shape = (len(texts), len(texts[0]) - 1) if by_token else (len(texts),)
    losses: np.ndarray = np.empty(shape, array_type(model))

    def visit(batch: Batch) -> None:
        attached = attach(batch)
        with _started(runs, batch, attached):
            logits = all_logits(model, batch, *attached)
        by_text = []  # copied together
        for place, number in enumerate(batch.numbers):
            ids = torch.tensor(texts[number])[1:].to(logits.device)
            reduction = "none" if by_token else "mean"
            by_text.append(cross_entropy(at_least_float32(logits[place, : len(ids)]), ids, reduction=reduction))
        losses[batch.numbers] = torch.stack(by_text).cpu().numpy()
        check_finite(losses[batch.numbers], "the losses", model, batch.rows, batch.prompts)

    run_rows(model, [Row(tuple(ids)) for ids in texts], visit, _budget(model, token_budget))
    return losses


def _started(runs: BaseRuns | None, batch: Batch, attached: Sequence[Instrument]) -> AbstractContextManager[None]:
    """Let a forward pass of the batch start where its instruments allow it."""
    return nullcontext() if runs is None else runs.run(tuple(batch.numbers.tolist()), attached)


def _logits_at(model: PreTrainedModel, batch: Batch, places: Tensor, *instruments: Instrument) -> Tensor:
    """The logits [B, P, V] after the tokens at places [B, P] of each row, in float32 or better.

    The unembedding runs at these places only (at each of them for all rows).
    """
    kept, index = places.unique(return_inverse=True)
    with logits_at(model, kept):
        logits = all_logits(model, batch, *instruments)
    return _at(model, batch, logits, index)


def _at(model: PreTrainedModel, batch: Batch, logits: Tensor, places: Tensor) -> Tensor:
    """Of logits [B, T, V] those at places [B, P] of each row, in float32 or better. Raises NotFinite."""
    logits = at_least_float32(logits[torch.arange(len(places))[:, None], places.to(logits.device)])
    check_finite(logits, "the logits", model, batch.rows, batch.prompts)
    return logits


def label_reads(model: PreTrainedModel, plan: Scoring, token_budget: int = TOKEN_BUDGET) -> Arrays:
    """How the query's forerunner reads the labels of demonstrations, as induction heads do (Cho et al., Fig. 6).

    reads [N, L, H, k]: the attention A[s_q, y_i] to the first token of each label; similarity [N, L, k]: the cosine
    similarity of the hidden states of s_i and s_q at the input of each layer. Both are float32. Raises ValueError for
    prompts without demonstrations, and what `batches.layer_inputs` raises.
    """
    support = prepare(model)
    s = torch.tensor([tokens.forerunners for tokens in plan.tokens])
    y = torch.tensor([tokens.labels[:-1] for tokens in plan.tokens])
    if not y.shape[1]:
        raise ValueError("the prompts have no demonstrations, so there are no labels to read; take k of 1 or more")
    shape = (len(plan.ids), len(support.layers))
    reads = np.empty((*shape, support.heads, y.shape[1]), np.float32)
    similarity = np.empty((*shape, y.shape[1]), np.float32)

    def visit(batch: Batch) -> None:
        rows = CaptureRows(s[batch.numbers, -1:], y[batch.numbers][:, None])
        states = layer_inputs(model, batch, rows)
        for place, layer in enumerate(support.layers):
            reads[batch.numbers, place] = rows.weights[layer][:, :, 0].cpu().numpy()
            state = take(states[layer], s[batch.numbers], dim=1).float()
            cosine = torch.cosine_similarity(state[:, :-1], state[:, -1:], dim=-1)
            similarity[batch.numbers, place] = cosine.cpu().numpy()

    run_rows(model, [Row(ids) for ids in plan.ids], visit, token_budget)
    return {"reads": reads, "similarity": similarity}


def next_token_logits(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *instruments: Instrument,
    token_budget: int = TOKEN_BUDGET,
    runs: BaseRuns | None = None,
) -> np.ndarray:
    """The logits [N, V] of what follows each prompt, float32 (float64 with a float64 model).

    Prompts are given as tokens. The same instruments are attached in all batches, so they cannot treat prompts
    differently. runs: see `label_log_probs`. Raises ValueError for a prompt that is longer than the context.
    """
    prepare(model)
    check_context(model, [len(ids) for ids in prompts])
    logits = np.empty((len(prompts), model.config.get_text_config().vocab_size), array_type(model))

    def visit(batch: Batch) -> None:
        with _started(runs, batch, instruments):
            last = _logits_at(model, batch, batch.lengths[:, None] - 1, *instruments)
        logits[batch.numbers] = last[:, 0].cpu().numpy()

    run_rows(model, [Row(tuple(ids)) for ids in prompts], visit, token_budget)
    return logits
