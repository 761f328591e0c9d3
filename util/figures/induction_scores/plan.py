"""What is done to a model, an ablation of heads or a knockout of attention cells, and which heads it is done to.

All is decided before tasks are measured. Edits have names, the rows of figures, tables and values files; control sets
are numbered from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.figures.edits import INTACT, WHOLE, Edit
from util.prompts.text_tasks import TEXT_TASKS
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.answers import TaskCheck
from util.stats.heads import Head, layer_matched, norm_matched, shortage, top

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
KNOCKED_OUT, KNOCKED_OUT_IN_OTHERS = "pattern knocked out", "pattern in others"
LAYER_MATCHED, NORM_MATCHED = "layer-matched", "norm-matched"
OTHER_PATTERNS = ("random keys", "previous part")
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
PRESETS: Mapping[str, Mapping[str, Any]] = {  # what follows from `settings`; what is None there follows from the model
    "default": {
        "tasks": TASKS,
        "demonstration_seeds": (42,),
        "mode": "mean",
        "reference": "task",
        "all_tasks": False,
        "text_tasks": ("sst2", "subj"),  # those whose texts come with StaICC
    },
    # Crosbie & Shutova: three draws of demonstrations and of random heads, the mode of their code with means over 500
    # samples of MNLI's premises, texts of the hub
    "paper": {
        "tasks": (*TASKS, "wordseq1_4way", "wordseq2_4way"),
        "demonstration_seeds": (42, 43, 44),
        "mode": "input_mean",
        "reference": "mnli",
        "all_tasks": True,
        "text_tasks": TEXT_TASKS,
        "text_data": "hub",
        "prompts": 500,
        "control_sets": 3,
    },
}


def ablated_row(heads: int) -> str:
    """The row of the ablation of so many of the best heads."""
    return f"top {heads} ablated"


def is_control_set(row: str) -> bool:
    """Whether as many other heads are ablated in a row."""
    return row.startswith((LAYER_MATCHED, NORM_MATCHED))


@dataclass(frozen=True)
class Plan:
    """The edits that are compared, by their rows.

    setup: what is measured of the model, see `measure.setup_for`; chosen: the heads that are ablated; controls: sets of
    other heads, of either kind.
    """

    setup: Mapping[str, Any]
    chosen: list[Head]
    controls: Mapping[str, list[list[Head]]]
    edits: Mapping[str, Edit]

    @property
    def ablated(self) -> str:
        """The row of the ablation of the chosen heads."""
        return ablated_row(len(self.chosen))

    def by_shots(self, shots: int) -> dict[str, Edit]:
        """The edits that are measured with some number of demonstrations.

        These are the whole model, the ablation, the knockout, and `other_sets` control sets: layer-matched ones, then
        norm-matched ones where there are too few. Prompts without demonstrations have no pattern to knock out.
        """
        controls = [row for row in self.edits if is_control_set(row)][: self.setup["other_sets"]]
        return {row: self.edits[row] for row in (WHOLE, self.ablated, *[KNOCKED_OUT] * bool(shots), *controls)}


def plan(score: Floats, norms: Floats, setup: Mapping[str, Any], seed: int = 0) -> Plan:
    """The sets of heads and the edits for prefix-matching scores [L, H].

    norms: the lengths [L, H] of what heads write. No head of a control set has a score of 0.3 or more; layers with too
    few such heads leave no layer-matched sets. Raises ValueError where there are too few heads for norm-matched sets.
    """
    chosen, eligible = top(score, setup["primary"]), score < INDUCTION_HEAD
    sets = setup["control_sets"]
    controls = {
        LAYER_MATCHED: [] if shortage(chosen, eligible) else layer_matched(chosen, eligible, sets, seed),
        NORM_MATCHED: norm_matched(chosen, eligible, norms, sets, seed),
    }
    others = (controls[LAYER_MATCHED] or controls[NORM_MATCHED])[:3]

    def numbered(kind: str, drawn: Sequence[Sequence[Head]], edit: Callable[[Any], Edit]) -> dict[str, Edit]:
        return {f"{kind} {draw}": edit(heads) for draw, heads in enumerate(drawn, 1)}

    ablate = partial(Edit.ablate, mode=setup["mode"])
    edits = {WHOLE: INTACT, ablated_row(len(chosen)): ablate(chosen)}
    for kind, drawn in controls.items():
        edits |= numbered(kind, drawn, ablate)
    edits |= {KNOCKED_OUT: Edit.knock_out(chosen), **numbered(KNOCKED_OUT_IN_OTHERS, others, Edit.knock_out)}
    edits |= {pattern: Edit.knock_out(chosen, pattern, seed) for pattern in OTHER_PATTERNS}
    return Plan(setup, chosen, controls, edits)


# ------------------------------------------------------------------------------------------------ what was measured


@dataclass(frozen=True)
class TaskShots:
    """Right answers to one task at several numbers of demonstrations, each with means of its own.

    unrelated: whether the labels are Foo and Bar, which are unrelated to its classes. right: answers by the number of
    demonstrations and by row, [R, N]; controls: the control sets among its rows. chance: what guessing and always
    answering with the most frequent class have at most. check: whether the whole model does the task, on other queries
    with the most demonstrations; does_bare: whether it is above chance without any. available: how many queries there
    are.
    """

    task: str
    unrelated: bool
    right: Mapping[int, Mapping[str, Bools]]
    ablated: str
    controls: tuple[str, ...]
    chance: float
    check: TaskCheck
    available: int
    does_bare: bool = False

    @property
    def name(self) -> str:
        """How figures, tables and values files call it."""
        return f"{self.task}, Foo/Bar" if self.unrelated else self.task

    @property
    def most(self) -> int:
        """The largest number of demonstrations."""
        return max(self.right)

    @property
    def queries(self) -> int:
        """How many queries were asked."""
        return self.right[self.most][WHOLE].shape[1]

    def by_query(self, shots: int, row: str) -> NDArray[np.float64]:
        """How often each query is answered right, [N]; the mean of all runs."""
        return np.asarray(self.right[shots][row], dtype=np.float64).mean(axis=0)

    def benefit(self, row: str = WHOLE) -> NDArray[np.float64]:
        """What demonstrations are worth under an edit, by query [N]."""
        return self.by_query(self.most, row) - self.by_query(0, row)
