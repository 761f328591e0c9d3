"""What is done to a model while lm-evaluation-harness asks it: ablations of heads, and knockouts of attention cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from util.engine.batches import Batch
from util.engine.call import Instrument
from util.engine.handshake import prepare
from util.engine.label_scores import knockouts
from util.extras.harness import tasks
from util.figures.edits import Edit
from util.figures.task_study import BY_POSITION, TaskStudy
from util.prompts import induction_pattern
from util.prompts.induction_pattern import matched_cells
from util.prompts.prompt import with_bos
from util.roles.effects import heads_by_layer
from util.study.model import Model

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


def means_study(
    model: Model,
    task: str,
    *,
    k: int | None = None,
    prompts: int | None = None,
    seed: int = 42,
    **reference: Any,
) -> TaskStudy:
    """The study that has the means of ablations for a task of the harness.

    reference: `reference`, `reference_prompts` and `reference_data` of `TaskStudy`. k, prompts, seed: of the prompts
    that are evaluated, next to which "task" takes others; default the task's own number of demonstrations, and all of
    its rows. Raises ValueError for what there is not, and where the means are to be the task's own and it is none of
    the suite's.
    """
    if reference.get("reference", "task") != "task":
        return TaskStudy(model, **reference)
    if not task.startswith(tasks.PREFIX):
        raise ValueError(
            f"reference = 'task': {task} is no task of the suite, so that it has no other prompts to take means "
            "over; give reference 'staicc' or 'mnli'"
        )
    name = task.removeprefix(tasks.PREFIX)
    rows = len(tasks.known(name).rows)
    k = tasks.shots(name) if k is None else k
    return TaskStudy(
        model, k=k, prompts=min(prompts or rows, rows), seed=seed, **tasks.study_arguments(name), **reference
    )


def checked_reference(
    k: int | None = None, prompts: int | None = None, seed: int = 42, **reference: Any
) -> dict[str, Any]:
    """All that decides the means in plain JSON, premises by a digest. Raises ValueError for what there is not."""
    request = TaskStudy(Model("embedded"), **reference).own_request
    given = {name: value for name, value in request.items() if name.startswith("reference")}
    own = {"k": k, "prompts": prompts, "seed": seed} if given["reference"] == "task" else {}
    return given | own


def takes_means(edit: Edit) -> bool:
    """Whether an edit replaces what heads write by means."""
    return bool(edit.heads) and edit.mode not in (None, "zero")


def edit_of(plain: Mapping[str, Any]) -> Edit:
    """The edit that `Edit.plain` writes so. Raises ValueError for anything else."""
    given = dict(plain)
    heads = given.pop("ablate", None) or given.pop("knock_out", ())
    return Edit(heads, **given)


# ------------------------------------------------------------------------------------------------ interventions


def _batch(inps: Tensor, numbers: Sequence[int]) -> Batch:
    """The batch of the suite that tokens [B, T] of the harness are. The lengths of its rows are not known."""
    lengths = torch.full((len(inps),), inps.shape[1])
    return Batch([], np.array(numbers), lengths, lengths, {"input_ids": inps}, None, np.array(numbers))


class Intervention:
    """What an edit does inside the harness, whose tokenizer may differ from the model's; without heads nothing.

    An ablation replaces what heads write, at all positions. A knockout forbids heads the cells of a pattern in each
    prompt, and in the prompt alone: the tokens of a continuation still read everything before them. There a row of a
    batch is recognised by its tokens, since the harness sorts its requests, merges those that read the same tokens, and
    pads at the right with zeros.

    reference: see `means_study`. knows_rows: whether what is done depends on the rows of a batch, or on positions.
    Raises ValueError for what is no `Edit`, and for heads that there are not.
    """

    def __init__(self, model: Model, tokenizer: Any, edit: Edit, reference: Mapping[str, Any]) -> None:
        if not isinstance(edit, Edit):
            raise ValueError(
                f"edit = {edit!r:.200}: give an Edit (Edit.ablate, Edit.knock_out, WHOLE). Edges cannot be ablated "
                "here: they are read from donor prompts, which the harness's tasks do not have; see `python -m util "
                "edges`"
            )
        self.edit, self.tokenizer = edit, tokenizer
        self.heads = heads_by_layer(prepare(model.pair[0]), edit.heads)
        self.knocks_out = edit.pattern is not None and bool(edit.heads)
        self.knows_rows = self.knocks_out or edit.mode in BY_POSITION
        self.study = cache(
            partial(means_study, model, **reference) if takes_means(edit) else lambda _: TaskStudy(model)
        )
        self.cells: dict[tuple[int, ...], np.ndarray] = {}  # by the tokens of a prompt, kept once they are found

    def attach(self, task: str, readings: Sequence[Reading]) -> Attached:
        """What is attached to the requests of one task; see `ablation` and `knockout`, which say what they refuse."""
        return self.knockout(task, readings) if self.knocks_out else self.ablation(task, readings)

    def ablation(self, task: str, readings: Sequence[Reading]) -> Attached:
        """The ablation of one task. The first batch measures the means of its reference, or loads them.

        Raises ValueError for a task that the reference has no means for; before the first batch, for texts that are
        longer than the reference of their positions.
        """
        study, lengths = self.study(task), [len(reading.ids) for reading in readings]
        instruments = cache(lambda: study.instruments(self.edit, lengths))
        return lambda inps: instruments()(_batch(inps, range(len(inps))))

    def knockout(self, task: str, readings: Sequence[Reading]) -> Attached:
        """The knockout in the rows of one task.

        Raises ValueError for a prompt that is longer than the model's context; where the pattern needs the parts of a
        prompt, for one that no known layout explains and for one whose tokens are not those of its text; and for two
        prompts that cannot be told apart by their rows.
        """
        numbers: dict[tuple[int, ...], int] = {}  # of prompts, by their tokens
        rows: dict[tuple[int, ...], int] = {}  # which prompt each has, by its tokens without zeros at the end
        for reading in readings:
            if reading.cut:
                raise ValueError(
                    f"{task}: a prompt is longer than the model's context, so that the harness cuts off its beginning, "
                    f"and the cells of {self.edit.pattern!r} cannot be placed; give fewer demonstrations"
                )
            prompt = reading.ids[: reading.prompt]
            if prompt not in self.cells:
                self.cells[prompt] = self._cells_of(task, reading.context, prompt)
            number = numbers.setdefault(prompt, len(numbers))
            if rows.setdefault(_without_padding(reading.ids), number) != number:
                raise ValueError(
                    f"{task}: two prompts with their continuations are the same tokens, {reading.context!r:.200} is in "
                    "one of them, so that the cells to knock out cannot be told apart; evaluate them separately"
                )
        knock_out = knockouts([self.cells[prompt] for prompt in numbers], self.heads)
        return lambda inps: knock_out(_batch(inps, [rows[_without_padding(row)] for row in inps.tolist()]))

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


def _without_padding(row: Sequence[int]) -> tuple[int, ...]:
    """A row without the zeros at its end, with which the harness pads."""
    return tuple(np.trim_zeros(np.array(row), "b").tolist())
