"""Run prompts through an instrumented model: batches, progress, memory back-off, and the reads that figures need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util import memory
from util.attention import Support, head_writes, input_device, instrument
from util.finite import check_finite
from util.handshake import check_ids, check_tokenizer, prepare
from util.instruments import CaptureRows, CaptureValues, Instrument, Knockout
from util.load_model_and_data import context_length
from util.prompts import Appended, LabelledTokens, Prompt, check_conditions, check_first_tokens, tokenize

# Tokens of one batch with padding. Part of every request, because the batch a prompt runs in decides its last bits.
TOKEN_BUDGET = 2048


# ------------------------------------------------------------------------------------------------ batches


@dataclass(frozen=True)
class Row:
    """One row of a batch: tokens `ids`, then a tree of tokens that may follow, `branches`.

    parents: the branch that each branch follows, by its number, which is smaller than its own; -1, or no parents given:
    it follows `ids`. A branch sees `ids` and what it follows alone, so that it is exactly what the model computes for
    this one continuation.
    """

    ids: tuple[int, ...]
    branches: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids) + len(self.branches)

    def path(self, branch: int) -> list[int]:
        """The branches that a branch follows, and itself: the place of a token in its continuation is one less."""
        parent = self.parents[branch] if self.parents else -1
        return [*(self.path(parent) if parent >= 0 else []), branch]


@dataclass(frozen=True)
class Batch:
    """Right-padded rows. numbers [B] index the rows given; lengths [B] count `ids`, ends [B] branches too; no padding
    mask is needed, because causal attention never looks right. prompts [B]: whose rows they are, for messages."""

    numbers: np.ndarray
    lengths: Tensor
    ends: Tensor
    inputs: dict[str, Tensor]
    siblings: Knockout | None
    prompts: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row], numbers: Sequence[int], prompts: Sequence[int] | None = None) -> "Batch":
        """The rows of these numbers; prompts: by row, the prompt that it is of, default the row's own number."""
        chosen = [rows[i] for i in numbers]
        width = max(map(len, chosen))
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        lengths = torch.tensor([len(row.ids) for row in chosen])
        places = torch.arange(width).expand(len(chosen), -1).minimum(lengths[:, None])
        cells = []
        for i, row in enumerate(chosen):
            ids[i, : len(row)] = torch.tensor(row.ids + row.branches)
            start = len(row.ids)
            for b in range(len(row.branches)):
                seen = row.path(b)
                places[i, start + b] = start + len(seen) - 1
                cells += [(i, start + b, start + a) for a in range(b) if a not in seen]
        inputs = {"input_ids": ids}
        if cells:
            # An explicit all-ones mask keeps transformers from reading equal positions as packed sequences.
            inputs["position_ids"] = places
            inputs["attention_mask"] = torch.ones_like(ids)
        siblings = Knockout(torch.tensor(cells)) if cells else None
        named = numbers if prompts is None else [prompts[number] for number in numbers]
        ends = torch.tensor(list(map(len, chosen)))
        return cls(np.array(numbers), lengths, ends, inputs, siblings, np.array(named))

    @property
    def tokens(self) -> list[list[int]]:
        """The rows' tokens, without padding."""
        return [ids[:end] for ids, end in zip(self.inputs["input_ids"].tolist(), self.ends.tolist(), strict=True)]

    @property
    def positions(self) -> Tensor:
        """Where each token stands in its text, [T] or [B, T]: branches stand behind what they follow."""
        return self.inputs.get("position_ids", torch.arange(self.inputs["input_ids"].shape[1]))


def plan(lengths: Sequence[int], token_budget: int = TOKEN_BUDGET) -> list[list[int]]:
    """Batches of similar length, longest first, each at most `token_budget` tokens with padding (or one row).

    Raises ValueError for a budget below 1.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget = {token_budget}: a batch has at least one token")
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= token_budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def shared_budget(token_budget: int, rows: int) -> int:
    """What is left of a budget for the first of several rows that must be in one batch, 1 at least; see `plan`."""
    return token_budget if token_budget < 1 else max(1, token_budget // rows)


def run_rows(
    model: PreTrainedModel,
    rows: Sequence[Row],
    visit: Callable[[Batch], None],
    token_budget: int = TOKEN_BUDGET,
    bar: tqdm | None = None,
    prompts: Sequence[int] | None = None,
) -> bool:
    """Call `visit` on batches that cover every row once. A batch that runs out of memory is halved and tried again.

    `visit` must be repeatable; `bar` counts rows; prompts: see `Batch.of`. Returns whether any batch had to be halved.
    Raises MemoryError when one row alone does not fit, and before the first pass ValueError for a token without an
    embedding and for a budget below 1.
    """
    check_ids(model, [max((*row.ids, *row.branches)) for row in rows if len(row)])
    todo, halved = plan([len(row) for row in rows], token_budget)[::-1], False
    while todo:
        numbers = todo.pop()
        try:
            visit(Batch.of(rows, numbers, prompts))
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            if len(numbers) == 1:
                raise MemoryError(
                    f"one prompt of {len(rows[numbers[0]])} tokens does not fit into memory; use fewer "
                    "demonstrations, quantized=True, or device_map='auto' to spread the model"
                ) from error
            halved = True
            middle = len(numbers) // 2
            todo += [numbers[middle:], numbers[:middle]]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        if bar is not None:
            bar.update(len(numbers))
    return halved


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def forward(model: PreTrainedModel, batch: Batch, *instruments: Instrument, **options: Any) -> Any:
    """The model without its unembedding, on one batch, with instruments attached.

    Raises NotFinite where its last hidden states are not: whatever is not finite before them makes them so.
    """
    out = _called(model, model.base_model, batch, instruments, options)
    counted = torch.arange(batch.inputs["input_ids"].shape[1]) < batch.ends[:, None]
    check_finite(out[0], "the hidden states", model, batch.tokens, batch.prompts, counted)
    return out


def all_logits(model: PreTrainedModel, batch: Batch, *instruments: Instrument, **options: Any) -> Tensor:
    """The logits after every token of a batch, [B, T, V], on the device of the unembedding."""
    return _called(model, model, batch, instruments, options).logits


def _called(
    model: PreTrainedModel, what: Any, batch: Batch, instruments: tuple[Instrument, ...], options: dict[str, Any]
) -> Any:
    inputs = {name: tensor.to(input_device(model)) for name, tensor in batch.inputs.items()}
    attached = instruments if batch.siblings is None else (batch.siblings, *instruments)
    with torch.inference_mode(), instrument(model, *attached):
        return what(**inputs, use_cache=False, **options)


def check_context(model: PreTrainedModel, lengths: Sequence[int]) -> None:
    """Raises ValueError, before any forward pass, when a prompt has more tokens than the model can place."""
    limit = context_length(model)
    if limit is not None and max(lengths, default=0) > limit:
        raise ValueError(
            f"the longest prompt has {max(lengths)} tokens, this model places {limit}; "
            "use fewer demonstrations or a data set with shorter texts"
        )


# ------------------------------------------------------------------------------------------------ copy magnitude


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


def may_branch(support: Support, length: int) -> bool:
    """Whether a row of so many tokens, branches included, is exact with this model."""
    return support.branches and (support.window is None or length <= support.window)


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


# ------------------------------------------------------------------------------------------------ the reference's doors


def step2_get_fl_feature_and_lastftol_attention(
    model: PreTrainedModel, tokenizer: Any, prompts_with_label: Sequence[str]
) -> tuple[list[list[Tensor]], list[list[list[Tensor]]]]:
    """The reference code's door: hidden states and last-row attention at the last two tokens of each string.

    Returns hidden[sample][layer 0..L] of [2, d] (forerunner, label) and attention[sample][layer][head] of [2]: the last
    token's attention to the token before it and to itself. Like the reference it takes the last token for the label, so
    it raises ValueError for strings of fewer than two tokens; labels of several tokens want `label_run`.
    """
    found = prepare(model)
    check_tokenizer(model, tokenizer)
    ids = [tuple(tokenizer(text)["input_ids"]) for text in prompts_with_label]
    if min(map(len, ids), default=2) < 2:
        raise ValueError("a prompt with label needs at least two tokens")
    check_context(model, [len(tokens) for tokens in ids])
    hidden: list[list[Tensor]] = [[] for _ in ids]
    attention: list[list[list[Tensor]]] = [[] for _ in ids]

    def visit(batch: Batch) -> None:
        ends = batch.lengths[:, None] - torch.tensor([2, 1])
        captured = CaptureRows(ends[:, 1:], ends[:, None])
        states = forward(model, batch, captured, output_hidden_states=True).hidden_states
        for i, number in enumerate(batch.numbers):
            hidden[number] = [state[i, ends[i].to(state.device)].cpu().clone() for state in states]
            attention[number] = [list(captured.weights[layer][i, :, 0].cpu().clone()) for layer in found.layers]

    with tqdm(total=len(ids), unit="prompt") as bar:
        run_rows(model, [Row(tokens) for tokens in ids], visit, bar=bar)
    return hidden, attention


def get_copy_magnitude_for_single_layer(
    ICL_attention: Sequence[Sequence[Sequence[Tensor]]], sample_index: int, layer: int
) -> list[float]:
    """The reference code's door: A[last, last-1] of every head of one layer, for one sample."""
    return [float(head[0]) for head in ICL_attention[sample_index][layer]]
