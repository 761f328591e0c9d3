"""Copy magnitudes: how much a label's first token attends to its forerunner, for all heads (Cho et al. 2025)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine import memory
from util.engine.attention import head_writes, input_device
from util.engine.batches import TOKEN_BUDGET, Batch, Row, check_context, forward, may_branch, run_rows
from util.engine.call import Support
from util.engine.finite import check_finite
from util.engine.handshake import check_tokenizer, prepare
from util.engine.instruments import CaptureRows, CaptureValues
from util.prompts.prompt import Appended, LabelledTokens, Prompt, check_conditions, check_first_tokens, tokenize


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
    Raises ValueError for bad input of any prompt: see `tokenize`, `check_first_tokens`, `check_context`.
    """
    found = prepare(model)
    check_tokenizer(model, tokenizer)
    check_conditions(appended)
    tokens = {what: tokenize(prompts, tokenizer, what) for what in appended}
    check_first_tokens(prompts, tokens)
    check_context(model, [len(labelled.ids) for found_ in tokens.values() for labelled in found_])
    run = LabelRun(tokens, [], [], [])
    for number in range(len(prompts)):
        groups: dict[tuple[int, ...], list[int]] = {}
        for condition, what in enumerate(appended):
            groups.setdefault(tokens[what][number].ids[:-1], []).append(condition)
        for ids, conditions in groups.items():
            ends = [tokens[appended[condition]][number].ids[-1] for condition in conditions]
            together = may_branch(found, len(ids) + len(ends))
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
    bar: tqdm | None = None,
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
    found = prepare(model)
    first = next(iter(run.tokens.values()))
    numbers = range(len(first)) if numbers is None else numbers
    place = {number: i for i, number in enumerate(numbers)}
    mine = [r for r, owner in enumerate(run.owners) if owner in place]
    shape = (len(found.layers), found.heads)
    dtype = np.float64 if model.dtype == torch.float64 else np.float32
    magnitude = np.full((len(place), len(run.tokens), *shape), np.nan, dtype)
    control, value_norm = (np.full((len(place), *shape), np.nan, dtype) for _ in range(2))
    drawn = {number: draw_control_tokens(first[number], control_tokens, (seed, number)) for number in place}
    todo = {r: drawn[run.owners[r]] if 0 in run.served[r] else [] for r in mine}

    def visit(batch: Batch) -> None:
        rows, keys = [], []
        for i, length in zip(batch.numbers, batch.lengths.tolist(), strict=True):
            r = mine[i]
            branches = range(len(run.rows[r].branches))
            rows.append([length + b for b in branches] + todo[r])
            keys.append([length - 1 for _ in branches] + [t - 1 for t in todo[r]])
        captured = CaptureRows(_rectangle(rows), _rectangle(keys)[:, :, None])
        before = CaptureValues(batch.lengths[:, None] - 1)
        forward(model, batch, captured, before)
        weights = np.stack([captured.weights[layer][..., 0].cpu().numpy() for layer in found.layers], axis=1)
        norms = np.stack([_norms(found, layer, before) for layer in found.layers], axis=1)
        known = norms[:, [found.projections[layer] is not None for layer in found.layers]]
        check_finite(known, "the lengths of what heads write", model, batch.tokens, batch.prompts)
        for i, values, norm in zip(batch.numbers, weights, norms, strict=True):  # [L, H, R], [L, H]
            r = mine[i]
            at = place[run.owners[r]]
            for branch, condition in enumerate(run.served[r]):
                magnitude[at, condition] = values[..., branch]
            if todo[r]:
                start = len(run.served[r])
                control[at] = values[..., start : start + len(todo[r])].mean(-1)
            if 0 in run.served[r]:
                value_norm[at] = norm

    # a batch too large for a GPU is halved; on the CPU the system would end the process, so all of it must fit
    budget = token_budget if input_device(model).type == "cpu" else 1
    most = max((len(run.rows[r].branches) + len(todo[r]) for r in mine), default=0)
    memory.check(memory.estimate(model, [len(run.rows[r]) for r in mine], budget, captured=most, kept=1))
    halved = run_rows(model, [run.rows[r] for r in mine], visit, token_budget, bar, [run.owners[r] for r in mine])
    count = np.array([len(drawn[number]) for number in place], dtype=np.int64)
    return {
        "magnitude": magnitude,
        "control": control,
        "value_norm": value_norm,
        "control_count": count,
        "oom_backoff": halved,
    }


def _norms(found: Support, layer: int, captured: CaptureValues) -> np.ndarray:
    """The length of what each head would write of a value alone, [B, H]."""
    values, projection = captured.values[layer][:, 0], found.projections[layer]
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
