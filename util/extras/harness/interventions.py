"""What is done to a model while lm-evaluation-harness asks it: ablations of heads, and knockouts of attention cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.batches import Batch
from util.engine.call import Instrument
from util.engine.handshake import prepare
from util.engine.label_scores import Attach, knockouts, replacements
from util.extras.harness import tasks
from util.figures.induction_scores.edits import Edit
from util.figures.induction_scores.task_study import TaskStudy
from util.models.files import sha256
from util.prompts import induction_pattern
from util.prompts.prompt import with_bos
from util.prompts.sequences import matched_cells
from util.records.model import Model
from util.roles.head_scores import heads_by_layer

POSITIONS = ("mean_pos", "input_mean")  # modes whose values differ by position
Instruments = Callable[[Edit, Sequence[int]], Attach]  # as TaskStudy.instruments
Attached = Callable[[Tensor], Sequence[Instrument]]  # the instruments of a batch of tokens [B, T]


# ------------------------------------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class Reading:
    """What the model reads for one request of the harness.

    ids: the tokens of the context and of its continuation, but for the last one, which is predicted. prompt: how many
    of them are the context's; all of them in a text whose whole log-likelihood is asked for. context: the context's
    text, None for such a text. cut: whether the harness has cut off its beginning, which the model has no room for.
    """

    ids: tuple[int, ...]
    prompt: int
    context: str | None
    cut: bool

    @classmethod
    def of(cls, request: tuple[Any, list[int], list[int]], longest: int) -> Reading:
        """Reads a request as the harness has it: (texts, tokens of the context, tokens of the continuation)."""
        texts, context, continuation = request
        whole = (*context, *continuation)[:-1]
        prompt = len(context) if texts is not None else len(whole)
        return cls(whole[-longest:], prompt, None if texts is None else texts[0], len(whole) > longest)


# ------------------------------------------------------------------------------------------------ references of means


@dataclass(frozen=True)
class Reference:
    """What the means of ablations are taken over.

    instruments: by the name of a task of the harness, what an edit attaches there, as `TaskStudy.instruments` does.
    request: in plain JSON, all that decides the means.
    """

    instruments: Callable[[str], Instruments]
    request: dict[str, Any]

    @classmethod
    def of_study(cls, study: TaskStudy) -> Reference:
        """The reference of a study, the same for every task of the harness."""
        return cls(lambda task: study.instruments, {"study": dict(study.own_request)})

    @classmethod
    def of_task(cls, model: Model, k: int, prompts: int | None, seed: int, **options: Any) -> Reference:
        """Other prompts of the task that is evaluated, as in a `TaskStudy` of so many queries; None means all.

        Raises ValueError for a task that is not the suite's.
        """

        @cache
        def instruments(task: str) -> Instruments:
            name = task.removeprefix(tasks.PREFIX)
            if not task.startswith(tasks.PREFIX):
                raise ValueError(
                    f"reference = 'task': {task} is no task of the suite, so that it has no other prompts to take "
                    "means over; give reference 'staicc' or a file of means"
                )
            rows = len(tasks.known(name).rows)
            study = TaskStudy(model, name, k, min(prompts or rows, rows), seed, **options)
            return study.instruments

        return cls(instruments, {"reference": "task", "k": k, "prompts": prompts, "seed": seed})

    @classmethod
    def of_texts(cls, model: Model, **options: Any) -> Reference:
        """Prompts of StaICC, which no task of the suite has."""
        study = TaskStudy(model, reference="staicc", **options)
        return cls(lambda task: study.instruments, {"reference": "staicc", "prompts": study.reference_prompts})

    @classmethod
    def of_file(cls, model: PreTrainedModel, file: str | Path) -> Reference:
        """Means that were saved with numpy: an .npz file with an array for each mode.

        "mean" is [L, H, dv], the L layers those that have attention; "mean_pos" and "input_mean" are [T, L, H, dv].
        Raises ValueError for arrays of other shapes than the model's, and for a mode or a length that the file has not.
        """
        with np.load(file, allow_pickle=False) as opened:
            saved = dict(opened)
        prepared = prepare(model)
        for name, array in saved.items():
            if array.ndim != 3 + (name in POSITIONS) or array.shape[-3:-1] != (len(prepared.layers), prepared.heads):
                raise ValueError(
                    f"{file}: {name} is {list(array.shape)}; the model has {len(prepared.layers)} layers of "
                    f"{prepared.heads} heads: [L, H, dv], or [T, L, H, dv] by position"
                )

        def instruments(edit: Edit, lengths: Sequence[int]) -> Attach:
            if edit.mode not in saved:
                raise ValueError(f"{file} has no means for mode {edit.mode!r}; it has {', '.join(sorted(saved))}")
            means = saved[edit.mode]
            if edit.mode in POSITIONS and max(lengths) > len(means):
                raise ValueError(f"{file}: {edit.mode} has {len(means)} positions, the longest text {max(lengths)}")
            by_layer = heads_by_layer(prepared, edit.heads)
            places = {layer: prepared.layers.index(layer) for layer in by_layer}
            return replacements(
                by_layer, {at: torch.from_numpy(means[..., places[at], by_layer[at], :]) for at in by_layer}
            )

        return cls(lambda task: instruments, {"file": Path(file).name, "sha256": sha256(Path(file))})


# ------------------------------------------------------------------------------------------------ interventions


def _batch(inps: Tensor, numbers: Sequence[int]) -> Batch:
    """The batch of the suite that tokens [B, T] of the harness are. The lengths of its rows are not known."""
    lengths = torch.full((len(inps),), inps.shape[1])
    return Batch(np.array(numbers), lengths, lengths, {"input_ids": inps}, None, np.array(numbers))


class Nothing:
    """No edit: the whole model."""

    knows_rows = False

    def check(self, task: str, readings: Sequence[Reading]) -> None:
        """Refuses nothing."""

    def attach(self, task: str, readings: Sequence[Reading]) -> Attached:
        """No instruments."""
        return lambda inps: ()


class Ablation(Nothing):
    """Replaces what heads write, at all positions. Raises ValueError for heads that there are not.

    reference: needed by every mode but "zero".
    """

    def __init__(self, model: PreTrainedModel, edit: Edit, reference: Reference | None) -> None:
        by_layer = heads_by_layer(prepare(model), edit.heads)
        if edit.mode != "zero" and reference is None:
            raise ValueError(f"mode = {edit.mode!r}: say what the means are taken over, with reference")
        self.edit, self.reference = edit, reference
        self.knows_rows = edit.mode in POSITIONS
        self._zeros = replacements(by_layer, dict.fromkeys(by_layer, 0.0))

    def attach(self, task: str, readings: Sequence[Reading]) -> Attached:
        """The ablation of one task. Measures the means of its reference, or loads them.

        Raises ValueError for texts that are longer than the reference of their positions.
        """
        attach = self._zeros
        if self.edit.mode != "zero":
            assert self.reference is not None
            attach = self.reference.instruments(task)(self.edit, [len(reading.ids) for reading in readings])
        return lambda inps: attach(_batch(inps, range(len(inps))))


class KnockOut(Nothing):
    """Forbids some heads the cells of a pattern in each prompt. Raises ValueError for heads that there are not.

    The cells are those of the prompt alone: the tokens of a continuation still read everything before them. A row of a
    batch is recognised by its tokens, since the harness sorts its requests, merges those that read the same tokens, and
    pads at the right with zeros.
    """

    knows_rows = True

    def __init__(self, model: PreTrainedModel, tokenizer: Any, edit: Edit) -> None:
        self.edit, self.tokenizer = edit, tokenizer
        self.heads = heads_by_layer(prepare(model), edit.heads)
        self._cells: dict[tuple[int, ...], np.ndarray] = {}  # by the tokens of a prompt

    def check(self, task: str, readings: Sequence[Reading]) -> None:
        """Finds the cells of every prompt, and which row each of them is in.

        Raises ValueError for a prompt that is longer than the model's context; where the pattern needs the parts of a
        prompt, for one that no known layout explains and for one whose tokens are not those of its text; and for two
        prompts that cannot be told apart by their rows.
        """
        self._rows(task, readings)

    def _rows(self, task: str, readings: Sequence[Reading]) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The tokens of the prompt in each row, by the row's tokens without zeros at the end."""
        rows: dict[tuple[int, ...], tuple[int, ...]] = {}
        for reading in readings:
            if reading.cut:
                raise ValueError(
                    f"{task}: a prompt is longer than the model's context, so that the harness cuts off its beginning, "
                    f"and the cells of {self.edit.pattern!r} cannot be placed; give fewer demonstrations"
                )
            prompt = reading.ids[: reading.prompt]
            if prompt not in self._cells:
                self._cells[prompt] = self._cells_of(task, reading.context, prompt)
            if rows.setdefault(_without_padding(reading.ids), prompt) != prompt:
                raise ValueError(
                    f"{task}: two prompts with their continuations are the same tokens, {reading.context!r:.200} is in "
                    "one of them, so that the cells to knock out cannot be told apart; evaluate them separately"
                )
        return rows

    def _cells_of(self, task: str, context: str | None, prompt: tuple[int, ...]) -> np.ndarray:
        """The cells [C, 2] of one prompt."""
        pattern = self.edit.pattern
        assert pattern is not None
        if pattern == "exact tokens":
            return matched_cells(np.array(prompt))
        parsed = None if context is None else tasks.prompt_of(context)
        if parsed is None:
            raise ValueError(
                f"{task}: pattern {pattern!r} needs the parts of a prompt, and no layout of the suite's tasks explains "
                f"{(context or '')[-80:]!r}; evaluate a task of the suite, or take pattern 'exact tokens'"
            )
        if with_bos(parsed.text, self.tokenizer).ids != prompt:
            raise ValueError(
                f"{task}: the harness reads other tokens than those of the prompt's text, so that the cells of "
                f"{pattern!r} cannot be placed; leave out add_bos_token, and take a separator that ends in no space"
            )
        return induction_pattern.cells(parsed, self.tokenizer, pattern, self.edit.seed)

    def attach(self, task: str, readings: Sequence[Reading]) -> Attached:
        """The knockout in the rows of one task. Raises what `check` raises."""
        rows = self._rows(task, readings)
        prompts = list(dict.fromkeys(rows.values()))
        number = {prompt: n for n, prompt in enumerate(prompts)}
        knock_out = knockouts([self._cells[prompt] for prompt in prompts], self.heads)

        def attached(inps: Tensor) -> Sequence[Instrument]:
            found = [rows[_without_padding(tuple(row))] for row in inps.tolist()]
            return knock_out(_batch(inps, [number[prompt] for prompt in found]))

        return attached


def _without_padding(row: tuple[int, ...]) -> tuple[int, ...]:
    """A row without the zeros at its end, with which the harness pads."""
    end = len(row)
    while end and row[end - 1] == 0:
        end -= 1
    return row[:end]


def intervention(model: PreTrainedModel, tokenizer: Any, edit: Edit, reference: Reference | None = None) -> Nothing:
    """What an edit does inside the harness.

    Raises ValueError for what is no `Edit`, and for heads that there are not.
    """
    if not isinstance(edit, Edit):
        raise ValueError(
            f"edit = {edit!r:.200}: give an Edit (Edit.ablate, Edit.knock_out, WHOLE). Edges cannot be ablated here: "
            "they are read from donor prompts, which the harness's tasks do not have; see `python -m util edges`"
        )
    if edit.pattern is not None and edit.heads:
        return KnockOut(model, tokenizer, edit)
    if edit.heads:
        return Ablation(model, edit, reference)
    return Nothing()
