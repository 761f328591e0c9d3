"""Which heads are ablated, how, and what they are compared with: all that is decided before tasks are measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from util.figures.induction_scores.edits import WHOLE, Edit, Group, Mode, Row
from util.prompts import text_tasks
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.heads import Head, layer_matched, norm_matched, shortage, top

Floats = NDArray[np.floating]
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
TEXT_TASKS = ("sst2", "subj")  # those whose texts come with StaICC
FOUR_WAY_SHOTS = (20,)  # of tasks of four classes
PAPER_SHARES = (0.01, 0.03)  # of all heads


@dataclass(frozen=True)
class Preset:
    """Settings by name; what is None follows from the model.

    four_way, text_tasks: see `Setup`. all_texts: whether all queries of text tasks are asked.
    """

    seeds: tuple[int, ...] = (42,)
    mode: Mode = "mean"
    reference: str = "task"
    reference_prompts: int = 64
    prompts: int | None = None
    control_sets: int | None = None
    all_tasks: bool = False
    four_way: tuple[str, ...] = ()
    text_tasks: tuple[str, ...] = TEXT_TASKS
    all_texts: bool = False


PRESETS = {
    "default": Preset(),
    # Crosbie & Shutova: all queries, three draws of demonstrations and of random heads, the mode of their code with
    # means over 500 samples of MNLI's premises
    "paper": Preset(
        seeds=(42, 43, 44),
        mode="input_mean",
        reference="mnli",
        reference_prompts=500,
        prompts=500,
        control_sets=3,
        all_tasks=True,
        four_way=("wordseq1_4way", "wordseq2_4way"),
        text_tasks=text_tasks.TEXT_TASKS,
        all_texts=True,
    ),
}


@dataclass(frozen=True)
class Setup:
    """What is ablated and how it is measured, for one model.

    prompts: queries of each task; mode: of ablations; primary: how many of the best heads are ablated; control_sets: of
    either kind on the primary task; other_sets: on other tasks; all_tasks: whether ablations are measured on tasks,
    too, that the whole model does not do.
    """

    tasks: tuple[str, ...]
    primary_task: str
    prompts: int
    mode: Mode
    primary: int
    control_sets: int
    other_sets: int
    all_tasks: bool
    four_way: tuple[str, ...]
    text_tasks: tuple[str, ...]
    shots: tuple[int, ...]

    def shots_of(self, task: str) -> tuple[int, ...]:
        """Returns the numbers of demonstrations that a task is measured with."""
        return FOUR_WAY_SHOTS if task.endswith("_4way") else self.shots


@dataclass(frozen=True)
class Plan:
    """The edits that are compared, by their rows.

    chosen: the heads that are ablated; controls: sets of other heads, of both kinds.
    """

    setup: Setup
    chosen: list[Head]
    controls: dict[Group, list[list[Head]]]
    edits: dict[Row, Edit]

    @property
    def ablated(self) -> Row:
        """The ablation of the chosen heads."""
        return Row(Group.ABLATED, self.setup.primary)

    def draws(self, group: Group) -> list[Row]:
        """Returns the draws of one control."""
        return [row for row in self.edits if row.group is group]

    def of_task(self, task: str, done: Collection[str]) -> dict[Row, Edit]:
        """Returns the edits of a task: all on the primary one, fewer control sets on others that the model does.

        done: the tasks that the whole model does. On others the whole model is measured alone.
        """
        if task == self.setup.primary_task:
            return self.edits
        if task not in done:
            return {Row(Group.WHOLE): WHOLE}
        left_out = {row for group in self.controls for row in self.draws(group)[self.setup.other_sets :]}
        return {row: edit for row, edit in self.edits.items() if row not in left_out}

    def by_shots(self, shots: int) -> dict[Row, Edit]:
        """Returns the edits that are measured with some number of demonstrations.

        These are the whole model, the ablation, the knockout, and `other_sets` control sets: layer-matched ones, then
        norm-matched ones where there are too few. Prompts without demonstrations have no pattern to knock out.
        """
        controls = [row for group in self.controls for row in self.draws(group)][: self.setup.other_sets]
        knockout = [Row(Group.KNOCKED_OUT)] if shots else []
        return {row: self.edits[row] for row in (Row(Group.WHOLE), self.ablated, *knockout, *controls)}


def how_many(share: float, heads: int) -> int:
    """Returns how many heads are a share of them, rounded up as Crosbie & Shutova do."""
    return ceil(round(share * heads, 9))


def plan(score: Floats, norms: Floats, setup: Setup, seed: int = 0) -> Plan:
    """Returns the sets of heads and the edits for prefix-matching scores [L, H].

    norms: the lengths [L, H] of what heads write. No head of a control set has a score of 0.3 or more; layers with too
    few such heads leave no layer-matched sets. Raises ValueError where there are too few heads for norm-matched sets.
    """
    chosen = top(score, setup.primary)
    eligible = score < INDUCTION_HEAD
    controls = {
        Group.LAYER_MATCHED: []
        if shortage(chosen, eligible)
        else layer_matched(chosen, eligible, setup.control_sets, seed),
        Group.NORM_MATCHED: norm_matched(chosen, eligible, norms, setup.control_sets, seed),
    }
    edits = {Row(Group.WHOLE): WHOLE, Row(Group.ABLATED, setup.primary): Edit.ablate(chosen, setup.mode)}
    for group, sets in controls.items():
        edits |= _numbered(group, [Edit.ablate(heads, setup.mode) for heads in sets])
    edits[Row(Group.KNOCKED_OUT)] = Edit.knock_out(chosen)
    others = (controls[Group.LAYER_MATCHED] or controls[Group.NORM_MATCHED])[:3]
    edits |= _numbered(Group.KNOCKED_OUT_IN_OTHERS, [Edit.knock_out(heads) for heads in others])
    for group in (Group.RANDOM_KEYS, Group.PREVIOUS_PART):
        edits[Row(group)] = Edit.knock_out(chosen, group.value, seed)
    return Plan(setup, chosen, controls, edits)


def _numbered(group: Group, edits: Sequence[Edit]) -> dict[Row, Edit]:
    return {Row(group, draw=draw): edit for draw, edit in enumerate(edits, 1)}


def previous_token_heads(previous: Floats, score: Floats, seed: int = 0) -> tuple[list[Head], list[list[Head]]]:
    """Returns the heads that give most attention to the token before, and three layer-matched sets of other heads.

    previous: that attention [L, H], 0 for heads that do not count; score: prefix-matching scores [L, H]. The heads are
    those from 0.3 on, at most four, or the best one where there are none. The other heads are below 0.3 in both scores;
    there are no sets where a layer has too few of them.
    """
    makers = [head for head in top(previous, 4) if previous[head] >= INDUCTION_HEAD] or top(previous, 1)
    eligible = (previous < INDUCTION_HEAD) & (score < INDUCTION_HEAD)
    return makers, [] if shortage(makers, eligible) else layer_matched(makers, eligible, 3, seed)
