"""What is done to a model whose answers are scored: an ablation of heads, a knockout of attention cells, or nothing."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from util.prompts import classification, own_tasks
from util.prompts.induction_pattern import Pattern
from util.prompts.text_tasks import DATASETS, TEXT_TASKS
from util.roles import heads as head_arguments
from util.roles.heads import Heads
from util.study.checked import Natural, checked

Mode = Literal["mean", "zero", "mean_pos", "input_mean"]


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
        heads = head_arguments.plain(self.heads)
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
    own = own_tasks.find(name, classification.Task, (*classification.NAMES, *TEXT_TASKS, *DATASETS))
    return own.name if own else name


TaskName = Annotated[str, AfterValidator(known_task)]
