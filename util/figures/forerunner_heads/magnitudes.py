"""Copy magnitudes: how much a label's first token attends to its forerunner, for all heads (Cho et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine import memory
from util.engine.attention import head_writes, input_device
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, may_branch, run_rows
from util.engine.call import Support
from util.engine.finite import check_finite
from util.engine.handshake import check_tokenizer, prepare
from util.engine.instruments import CaptureRows, CaptureValues
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

    Returns magnitude [n, C, L, H] and control [n, L, H]; n prompts of `numbers`, default all; C conditions. value_norm
    [n, L, H] is |W_O^h v| of the forerunner: times a magnitude, the length of what the head moves to the label
    (Kobayashi et al. 2020); NaN where a class does something between heads and projection. All three are float32, or
    float64 with a float64 model. Then control_count [n] and oom_backoff (bool). One pass serves all conditions, because
    no label can change what stands before it. Raises MemoryError before it where memory is too short for it.
    """
    support = prepare(model)
    tokens = next(iter(run.tokens.values()))
    numbers = range(len(tokens)) if numbers is None else numbers
    place = {number: i for i, number in enumerate(numbers)}
    drawn = {number: draw_control_tokens(tokens[number], control_tokens, (seed, number)) for number in numbers}
    planned = [
        _PlannedRow(row, owner, place[owner], conditions, drawn[owner] if 0 in conditions else [])
        for row, owner, conditions in zip(run.rows, run.owners, run.served, strict=True)
        if owner in place
    ]
    _check_memory(model, planned, token_budget)
    arrays = _empty_arrays(model, support, len(set(numbers)), len(run.tokens))

    def visit(batch: Batch) -> None:
        here = [planned[i] for i in batch.numbers]
        weights, norms = _read_batch(model, support, batch, here)
        for row, weights_of_row, norms_of_row in zip(here, weights, norms, strict=True):
            _write_row(arrays, row, weights_of_row, norms_of_row)

    rows = [row.row for row in planned]
    halved = run_rows(model, rows, visit, token_budget, prompts=[row.owner for row in planned])
    count = np.array([len(controls) for controls in drawn.values()], dtype=np.int64)
    return {**arrays, "control_count": count, "oom_backoff": halved}


@dataclass(frozen=True)
class _PlannedRow:
    """A row that will run, and where the attention that is read in it belongs.

    owner: the number of its prompt; place: that prompt's place in the arrays; conditions: one for each branch of the
    row; controls: the control tokens that are read in it, none unless the row serves the first condition.
    """

    row: Row
    owner: int
    place: int
    conditions: list[int]
    controls: list[int]

    def queries(self, length: int) -> list[int]:
        """Whose attention is read: the labels, which follow a prompt of `length` tokens, and the control tokens."""
        return [length + branch for branch in range(len(self.conditions))] + self.controls

    def keys(self, length: int) -> list[int]:
        """What each of the queries is to read: the forerunner, which every label follows, and the token before."""
        return [length - 1] * len(self.conditions) + [t - 1 for t in self.controls]


def _check_memory(model: PreTrainedModel, planned: Sequence[_PlannedRow], token_budget: int) -> None:
    """Raises MemoryError where the rows do not fit.

    A batch too large for a GPU is halved; on the CPU the system would end the process, so all of it must fit.
    """
    budget = token_budget if input_device(model).type == "cpu" else 1
    most = max((len(row.conditions) + len(row.controls) for row in planned), default=0)
    memory.check(memory.estimate(model, [len(row.row) for row in planned], budget, captured=most, kept=1))


def _empty_arrays(model: PreTrainedModel, support: Support, prompts: int, conditions: int) -> dict[str, np.ndarray]:
    """The three results, all NaN."""
    heads = (len(support.layers), support.heads)
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    return {
        "magnitude": np.full((prompts, conditions, *heads), np.nan, dtype),
        "control": np.full((prompts, *heads), np.nan, dtype),
        "value_norm": np.full((prompts, *heads), np.nan, dtype),
    }


def _read_batch(
    model: PreTrainedModel, support: Support, batch: Batch, rows: Sequence[_PlannedRow]
) -> tuple[np.ndarray, np.ndarray]:
    """Run a batch: the attention [B, L, H, R] that its rows read, and the value norms [B, L, H] of their forerunners.

    R: the most that a row reads; what a shorter one has behind its own has no meaning. Raises NotFinite.
    """
    lengths = batch.lengths.tolist()
    queries = _rectangle([row.queries(length) for row, length in zip(rows, lengths, strict=True)])
    keys = _rectangle([row.keys(length) for row, length in zip(rows, lengths, strict=True)])
    attention = CaptureRows(queries, keys[:, :, None])
    values = CaptureValues(batch.lengths[:, None] - 1)
    forward(model, batch, attention, values)
    weights = np.stack([attention.weights[layer][..., 0].cpu().numpy() for layer in support.layers], axis=1)
    norms = np.stack([_norms(support, layer, values) for layer in support.layers], axis=1)
    known = norms[:, [support.projections[layer] is not None for layer in support.layers]]
    check_finite(known, "the lengths of what heads write", model, batch.tokens, batch.prompts)
    return weights, norms


def _write_row(arrays: dict[str, np.ndarray], row: _PlannedRow, weights: np.ndarray, norms: np.ndarray) -> None:
    """Put what one row has read, weights [L, H, R] and norms [L, H], in its place."""
    for branch, condition in enumerate(row.conditions):
        arrays["magnitude"][row.place, condition] = weights[..., branch]
    if row.controls:
        start = len(row.conditions)
        arrays["control"][row.place] = weights[..., start : start + len(row.controls)].mean(-1)
    if 0 in row.conditions:
        arrays["value_norm"][row.place] = norms


def _norms(support: Support, layer: int, captured: CaptureValues) -> np.ndarray:
    """The length of what each head would write of a value alone, [B, H]."""
    values, projection = captured.values[layer][:, 0], support.projections[layer]
    if projection is None:
        return np.full(values.shape[:2], np.nan)
    with torch.inference_mode():
        written = head_writes(projection, values)
    return torch.linalg.vector_norm(written.to(torch.promote_types(written.dtype, torch.float32)), dim=-1).cpu().numpy()


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
