"""Which label a model gives: the logits of the label tokens where an answer is due, under instruments or without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from util.attention import instrument
from util.finite import check_finite
from util.handshake import check_tokenizer, input_device, prepare
from util.inference import TOKEN_BUDGET, Batch, Row, check_context, forward, run_rows
from util.instruments import CaptureRows, Instrument, Knockout
from util.prompts import Appended, LabelledTokens, Prompt, check_first_tokens, tokenize

Attach = Callable[[Batch], Sequence[Instrument]]


def nothing(batch: Batch) -> Sequence[Instrument]:
    """The instruments of the whole model: none."""
    return ()


@dataclass(frozen=True)
class Scoring:
    """Prompts to be answered with one of their labels, as tokens.

    tokens: the roles of each prompt with its gold label behind it; ids: [N] tokens up to the forerunner of the query;
    answers: [N, C] the first token of every label as it really follows the prompt, in the order of the label space;
    gold: [N] which of them is right.
    """

    tokens: list[LabelledTokens]
    ids: list[tuple[int, ...]]
    answers: np.ndarray
    gold: np.ndarray


def scoring(model: PreTrainedModel, tokenizer: Any, prompts: Sequence[Prompt]) -> Scoring:
    """Plan the scoring of prompts that share a label space.

    A label of several tokens is scored by its first. Raises ValueError where two labels share it, where a label changes
    the tokens of the prompt before it, and for prompts that are longer than the context.
    """
    prepare(model)
    check_tokenizer(model, tokenizer)
    labels = range(len(prompts[0].labels))
    tokens: dict[Appended, list[LabelledTokens]] = {offset: tokenize(prompts, tokenizer, offset) for offset in labels}
    check_first_tokens(prompts, tokens)
    for number, prompt in enumerate(prompts):
        for offset in labels:
            if tokens[offset][number].ids[:-1] != tokens[0][number].ids[:-1]:
                raise ValueError(
                    f"the label {prompt.label(offset)!r} changes the tokens before it in {prompt.text[-30:]!r}, so no "
                    "one prompt can be followed by every label; use other label words or another separator"
                )
    check_context(model, [len(t.ids) for t in tokens[0]])
    answers = [
        [tokens[(label - prompt.gold) % len(labels)][number].ids[-1] for label in labels]
        for number, prompt in enumerate(prompts)
    ]
    return Scoring(
        tokens[0], [t.ids[:-1] for t in tokens[0]], np.array(answers), np.array([prompt.gold for prompt in prompts])
    )


def label_logits(
    model: PreTrainedModel,
    plan: Scoring,
    attach: Attach = nothing,
    token_budget: int = TOKEN_BUDGET,
    text: bool = False,
) -> dict[str, np.ndarray]:
    """The logits of every label after every prompt, [N, C], under the instruments that `attach` gives for each batch.

    Also returns log_normaliser [N], the log of the sum over the whole vocabulary, so that logits minus it are
    log-probabilities; float32, or float64 with a float64 model. text: also text_loss [N], the mean next-token loss of
    each prompt, in nats, over all its tokens but the labels: what the instruments do to language modelling.
    """
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    found = {"logits": np.empty(plan.answers.shape, dtype), "log_normaliser": np.empty(len(plan.ids), dtype)}
    if text:
        found["text_loss"] = np.empty(len(plan.ids), dtype)

    def visit(batch: Batch) -> None:
        attached = attach(batch)
        if text:
            every = all_logits(model, batch, *attached)
            for place, number in enumerate(batch.numbers):
                found["text_loss"][number] = _text_loss(every[place], plan.tokens[number])
            check_finite(found["text_loss"][batch.numbers], "the losses", model, batch.tokens, batch.prompts)
            logits = _float(every[torch.arange(len(every)), batch.lengths - 1])
            check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
        else:
            logits = next_logits(model, batch, *attached)
        rows = torch.from_numpy(plan.answers[batch.numbers]).to(logits.device)
        found["logits"][batch.numbers] = logits.gather(1, rows).cpu().numpy()
        found["log_normaliser"][batch.numbers] = logits.logsumexp(1).cpu().numpy()

    run_rows(model, [Row(ids) for ids in plan.ids], visit, token_budget)
    return found


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
    places, which = (batch.lengths - 1).unique(return_inverse=True)
    logits = all_logits(model, batch, *instruments, logits_to_keep=places.to(input_device(model)))
    logits = _float(logits[torch.arange(len(which)), which.to(logits.device)])
    check_finite(logits, "the logits", model, batch.tokens, batch.prompts)
    return logits


def all_logits(model: PreTrainedModel, batch: Batch, *instruments: Instrument, **options: Any) -> Tensor:
    """The logits after every token of a batch, [B, T, V], on the device of the unembedding."""
    ids = batch.inputs["input_ids"].to(input_device(model))
    with torch.inference_mode(), instrument(model, *instruments):
        return model(input_ids=ids, use_cache=False, **options).logits


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
