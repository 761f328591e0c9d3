"""What is done to a model whose answers are scored: an ablation of heads, a knockout of attention cells, or nothing."""

from __future__ import annotations

import json
import operator
import re
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from util.prompts import classification, own_tasks
from util.prompts.induction_pattern import Pattern
from util.prompts.text_tasks import DATASETS, TEXT_TASKS
from util.stats.heads import Head, place_of
from util.study.checked import Natural, as_list, checked

Mode = Literal["mean", "zero", "mean_pos", "input_mean"]


def checked_heads(values: Any) -> tuple[Head, ...]:
    """Returns a set of heads in the one form that requests have for it: sorted, each once, of plain integers.

    Raises ValueError, for anything but pairs of whole numbers from 0 on.
    """
    heads = set[Head]()
    for value in as_list(values):
        try:
            layer, head = map(operator.index, value)
            if min(layer, head) < 0 or bool in map(type, value):
                raise ValueError
        except (TypeError, ValueError):
            message = f"heads = {value!r}: a head is (layer, head), two whole numbers from 0 on"
            raise ValueError(message) from None
        heads.add((layer, head))
    return tuple(sorted(heads))


def named_heads(text: str) -> tuple[Head, ...]:
    """Returns heads by their names, such as "L5H1,L11H3" or "5.1,11.3", or of a JSON list [[layer, head], ...].

    text: the names, the list, or a file whose name ends in .json and that holds either. Raises ValueError for what
    names no heads, and OSError for a file that cannot be read.
    """
    if text.endswith(".json"):
        text = Path(text).read_text(encoding="utf-8-sig").strip()
    heads: list[Any] = json.loads(text) if text.startswith("[") else text.split(",")
    for place, entry in enumerate(heads):
        if isinstance(entry, str):
            if not re.fullmatch(r"L\d+H\d+|\d+\.\d+", entry.strip()):
                raise ValueError(f"{entry!r} is no head; write L5H1,L11H3")
            heads[place] = place_of(entry)
    return checked_heads(heads)


Heads = Annotated[tuple[Head, ...], BeforeValidator(checked_heads)]


@checked
class Edit:
    """An ablation of heads, a knockout in heads, or nothing: see `ablate`, `knock_out` and `INTACT`.

    heads: (layer, head), the layer counted among those that have attention; sorted, each once.
    """

    heads: Heads = ()
    mode: Mode | None = None
    pattern: Pattern | None = None
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.mode is not None and self.pattern is not None:
            raise ValueError(f"mode = {self.mode!r}, pattern = {self.pattern!r}: an edit has one of the two")
        if self.heads and self.mode is None and self.pattern is None:
            raise ValueError(f"heads = {self.heads}: give a mode to ablate them, or a pattern to knock out")

    @classmethod
    def ablate(cls, heads: Any, mode: str = "mean") -> Edit:
        """Replaces what these heads write at all positions.

        mode: "zero"; "mean": their mean output over the tokens of a reference; "mean_pos": the same position by
        position; "input_mean": what they make of the mean input of their layer, position by position, as Crosbie &
        Shutova's code does (queries, keys and values of the ablated heads alone come from it).
        """
        return cls(heads, mode=mode)  # type: ignore[arg-type]  # checked when it is built

    @classmethod
    def knock_out(cls, heads: Any, pattern: str = "induction", seed: int = 0) -> Edit:
        """Forbids these heads the cells of a pattern, see `prompts.induction_pattern`."""
        return cls(heads, pattern=pattern, seed=seed)  # type: ignore[arg-type]  # checked when it is built

    def plain(self) -> dict[str, Any]:
        """Returns the edit in the JSON of a request."""
        heads = [*map(list, self.heads)]
        if self.mode is not None:
            return {"ablate": heads, "mode": self.mode}
        if self.pattern is not None:
            return {"knock_out": heads, "pattern": self.pattern, "seed": self.seed}
        return {}


INTACT = Edit()  # the whole model
WHOLE = "whole model"  # a row of tables, where nothing is done
PAPER_SHARES = (0.01, 0.03)  # of all heads


def how_many(share: float, heads: int) -> int:
    """How many heads are a share of them, rounded up as Crosbie & Shutova do."""
    return ceil(round(share * heads, 9))


def known_task(name: str) -> str:
    """The name of a classification task: of the suite, of StaICC, or of one's own, which may be a file.

    Raises ValueError, with all names, for a task that there is not.
    """
    task = own_tasks.find(name, classification.Task, (*classification.NAMES, *TEXT_TASKS, *DATASETS))
    return task.name if task else name


TaskName = Annotated[str, AfterValidator(known_task)]
