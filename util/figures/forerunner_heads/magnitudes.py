"""Copy magnitudes: how much a label's first token attends to its forerunner, for all heads (Cho et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine import memory
from util.engine.attention import input_device
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, may_branch, run_rows
from util.engine.handshake import check_tokenizer, prepare
from util.engine.instruments import CaptureRows
from util.prompts.prompt import Appended, LabelledTokens, Prompt, check_conditions, check_first_tokens, labelled_tokens


@dataclass(frozen=True)
class LabelRun:
    """Prompts with labels, as tokens and as rows: all that a copy-magnitude run will do, checked before it starts.

    tokens[appended][n] is prompt n with that label or word after it; row r serves prompt owners[r] and the conditions
    served[r], one for each of its branches.
    """

    tokens: dict[Appended, list[LabelledTokens]]
    rows: list[Row]
    owners: list[int]
    served: list[list[int]]

    @property
    def n_t(self) -> np.ndarray:
        """Tokens of each labelled prompt, [N, C]."""
        return np.array([[t.n_t for t in tokens] for tokens in self.tokens.values()], dtype=np.int64).T

    @property
    def label_lengths(self) -> np.ndarray:
        """Tokens of each appended label, [N, C]."""
        lengths = [[t.label_lengths[-1] for t in tokens] for tokens in self.tokens.values()]
        return np.array(lengths, dtype=np.int64).T


def label_run(
    model: PreTrainedModel, tokenizer: Any, prompts: Sequence[Prompt], appended: Sequence[Appended] = (0, 1)
) -> LabelRun:
    """Plan one pass over prompts with each of `appended` after them (0 correct label, 1 wrong one, or a word).

    Labels of one prompt share a row where the model supports branches, the window is long enough and the tokenizer
    splits the prompt in the same way for each; otherwise they get rows of their own, with the same result.
    Raises ValueError for bad input of any prompt: see `labelled_tokens`, `check_first_tokens`, `check_context`.
    """
    support = prepare(model)
    check_tokenizer(model, tokenizer)
    check_conditions(appended)
    tokens = {what: labelled_tokens(prompts, tokenizer, what) for what in appended}
    check_first_tokens(prompts, tokens)
    check_context(model, [len(labelled.ids) for of_condition in tokens.values() for labelled in of_condition])
    run = LabelRun(tokens, [], [], [])
    for number in range(len(prompts)):
        groups: dict[tuple[int, ...], list[int]] = {}
        for condition, what in enumerate(appended):
            groups.setdefault(tokens[what][number].ids[:-1], []).append(condition)
        for ids, conditions in groups.items():
            ends = [tokens[appended[condition]][number].ids[-1] for condition in conditions]
            together = may_branch(support, len(ids) + len(ends))
            for part in [slice(None)] if together else [slice(i, i + 1) for i in range(len(ends))]:
                run.rows.append(Row(ids, tuple(ends[part])))
                run.owners.append(number)
                run.served.append(conditions[part])
    return run


def copy_magnitudes(
    model: PreTrainedModel,
    run: LabelRun,
    control_tokens: int = 32,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    token_budget: int = TOKEN_BUDGET,
) -> dict[str, Any]:
    """Attention from an appended label to its forerunner, A[y_q, s_q], of every head (Cho et al. 2025, Fig. 5 middle).

    The control is A[t, t-1], averaged over up to `control_tokens` other tokens t of the same prompt, drawn by seed and
    prompt; label tokens and the token after the first one (which would read an attention sink) are never drawn.

    Returns magnitude [n, C, L, H] and control [n, L, H], float32 or, with a float64 model, float64; n prompts of
    `numbers`, default all; C conditions; and oom_backoff (bool). One pass serves all conditions, because no label can
    change what stands before it. Raises MemoryError before it where memory is too short for it.
    """
    support = prepare(model)
    tokens = next(iter(run.tokens.values()))
    place = {number: i for i, number in enumerate(range(len(tokens)) if numbers is None else numbers)}
    drawn = {number: draw_control_tokens(tokens[number], control_tokens, (seed, number)) for number in place}
    planned = [  # the row, its prompt, the conditions of its branches, and which other tokens' attention is read
        (row, owner, labels, drawn[owner] if 0 in labels else [])
        for row, owner, labels in zip(run.rows, run.owners, run.served, strict=True)
        if owner in place
    ]
    # a batch too large for a GPU is halved; on the CPU the system would end the process, so all of it must fit
    budget = token_budget if input_device(model).type == "cpu" else 1
    most = max((len(labels) + len(others) for _, _, labels, others in planned), default=0)
    memory.check(memory.estimate(model, [len(row) for row, *_ in planned], budget, captured=most))
    heads = (len(support.layers), support.heads)
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    magnitude = np.full((len(place), len(run.tokens), *heads), np.nan, dtype)
    control = np.full((len(place), *heads), np.nan, dtype)

    def visit(batch: Batch) -> None:
        here = [planned[i] for i in batch.numbers]
        queries = [[*range(len(row.ids), len(row)), *others] for row, _, _, others in here]
        keys = [[len(row.ids) - 1] * len(labels) + [t - 1 for t in others] for row, _, labels, others in here]
        attention = CaptureRows(_rectangle(queries), _rectangle(keys)[:, :, None])
        forward(model, batch, attention)
        weights = np.stack([attention.weights[layer][..., 0].cpu().numpy() for layer in support.layers], axis=1)
        for (_, owner, labels, others), read in zip(here, weights, strict=True):  # read: [L, H, R]
            magnitude[place[owner], labels] = np.moveaxis(read[..., : len(labels)], -1, 0)
            if others:
                control[place[owner]] = read[..., len(labels) : len(labels) + len(others)].mean(-1)

    rows, owners = [row for row, *_ in planned], [owner for _, owner, *_ in planned]
    halved = run_rows(model, rows, visit, token_budget, prompts=owners)
    return {"magnitude": magnitude, "control": control, "oom_backoff": halved}


def draw_control_tokens(labelled: LabelledTokens, count: int, seed: Sequence[int]) -> list[int]:
    """Up to `count` positions t of a prompt, sorted, that are no label tokens and have 1 <= t - 1."""
    labels = {y + i for y, n in zip(labelled.labels, labelled.label_lengths, strict=True) for i in range(n)}
    eligible = [t for t in range(2, labelled.labels[-1]) if t not in labels]
    chosen = np.random.default_rng(seed).permutation(len(eligible))[:count]
    return sorted(eligible[i] for i in chosen)


def _rectangle(lists: Sequence[Sequence[int]]) -> Tensor:
    """Lists of different lengths as one tensor; a short list repeats its first entry."""
    width = max(map(len, lists))
    return torch.tensor([[*entries, *[entries[0]] * (width - len(entries))] for entries in lists])
