"""Which heads are ablated, how, and what they are compared with: all that is decided before tasks are measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from util.figures.induction_scores.edits import MODES, WHOLE, Edit, Group, Mode, Row
from util.prompts import text_tasks
from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.controls import layer_matched, norm_matched, shortage
from util.stats.heads import Head, top

Floats = NDArray[np.floating]
TASKS = ("repetition", "recursion", "centre_embedding", "wordseq1", "wordseq2")
TEXT_TASKS = ("sst2", "subj")  # those whose texts come with StaICC
FOUR_WAY_SHOTS = (20,)  # of tasks of four classes
PAPER_SHARES = (0.01, 0.03)  # of all heads


@dataclass(frozen=True)
class Preset:
    """Settings by name; what is None follows from the model.

    four_way, text_tasks, shots: see `Setup`. all_texts: whether all queries of text tasks are asked.
    """

    seeds: tuple[int, ...] = (42,)
    mode: Mode = "mean"
    reference: str = "task"
    reference_prompts: int = 64
    prompts: int | None = None
    control_sets: int | None = None
    all_tasks: bool = False
    all_sizes: bool = False
    four_way: tuple[str, ...] = ()
    text_tasks: tuple[str, ...] = TEXT_TASKS
    all_texts: bool = False
    shots: tuple[int, ...] = (0, 5, 10)


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
        all_sizes=True,
        four_way=("wordseq1_4way", "wordseq2_4way"),
        text_tasks=text_tasks.TEXT_TASKS,
        all_texts=True,
    ),
}


@dataclass(frozen=True)
class Setup:
    """What is ablated and how it is measured, for one model.

    prompts: queries of each task; seeds: of their demonstrations; mode: of ablations; sizes: of the sets of best heads;
    primary: the size that has controls; control_sets: of either kind on the primary task; other_sets: on other tasks;
    all_tasks: whether ablations are measured on tasks, too, that the whole model does not do; all_sizes: whether all
    sizes have knockouts and layer-matched controls; full_grid: whether the primary set is ablated in all modes.
    """

    tasks: tuple[str, ...]
    primary_task: str
    prompts: int
    seeds: tuple[int, ...]
    mode: Mode
    sizes: tuple[int, ...]
    primary: int
    control_sets: int
    other_sets: int
    all_tasks: bool
    all_sizes: bool
    full_grid: bool
    four_way: tuple[str, ...]
    text_tasks: tuple[str, ...]
    shots: tuple[int, ...]

    def shots_of(self, task: str) -> tuple[int, ...]:
        """Returns the numbers of demonstrations that a task is measured with."""
        return FOUR_WAY_SHOTS if task.endswith("_4way") else self.shots


@dataclass(frozen=True)
class Plan:
    """The edits that are compared, by their rows.

    chosen: the primary set of heads; controls: sets of other heads, of both kinds; short: layers with too few other
    heads, see `stats.controls.shortage`.
    """

    setup: Setup
    chosen: list[Head]
    controls: dict[Group, list[list[Head]]]
    short: dict[int, tuple[int, int]]
    edits: dict[Row, Edit]

    @property
    def ablated(self) -> Row:
        """The primary ablation."""
        return Row(Group.ABLATED, self.setup.primary)

    def draws(self, group: Group, size: int | None = None) -> list[Row]:
        """Returns the draws of one control: of the primary set, or of the set of another size."""
        return [row for row in self.edits if row.group is group and row.size == size and row.draw is not None]

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

    def few(self, ablations: bool = True, sets: int = 5) -> dict[Row, Edit]:
        """Returns the edits that are measured without demonstrations and on plain text.

        These are the whole model and, where there are ablations, the primary one and some norm-matched control sets.
        """
        rows = [self.ablated, *self.draws(Group.NORM_MATCHED)[:sets]] if ablations else []
        return {row: self.edits[row] for row in (Row(Group.WHOLE), *rows)}

    def benefit_rows(self) -> dict[Row, Edit]:
        """Returns the edits that are measured with several numbers of demonstrations.

        These are the whole model, the primary ablation and knockout, and `other_sets` control sets: layer-matched ones,
        then norm-matched ones where there are too few. With `all_sizes` they are all edits.
        """
        if self.setup.all_sizes:
            return self.edits
        controls = [row for group in self.controls for row in self.draws(group)][: self.setup.other_sets]
        return {row: self.edits[row] for row in (Row(Group.WHOLE), self.ablated, Row(Group.KNOCKED_OUT), *controls)}

    def without_pattern(self, edits: Mapping[Row, Edit]) -> dict[Row, Edit]:
        """Returns those of the edits that do something to prompts without demonstrations: they have no pattern."""
        return {row: edit for row, edit in edits.items() if edit.pattern is None}


def plan(score: Floats, norms: Floats, setup: Setup, seed: int = 0) -> Plan:
    """Returns the sets of heads and the edits for prefix-matching scores [L, H].

    norms: the lengths [L, H] of what heads write. No head of a control set has a score of 0.3 or more. Raises
    ValueError where there are too few heads for norm-matched sets.
    """
    chosen = top(score, setup.primary)
    eligible = score < INDUCTION_HEAD
    short = shortage(chosen, eligible)
    controls = {
        Group.LAYER_MATCHED: [] if short else layer_matched(chosen, eligible, setup.control_sets, seed),
        Group.NORM_MATCHED: norm_matched(chosen, eligible, norms, setup.control_sets, seed),
    }
    edits = {Row(Group.WHOLE): WHOLE, Row(Group.ABLATED, setup.primary): Edit.ablate(chosen, setup.mode)}
    for mode in MODES if setup.full_grid else ():
        if mode != setup.mode:
            edits[Row(Group.OTHER_MODE, setup.primary, mode=mode)] = Edit.ablate(chosen, mode)
    for group, sets in controls.items():
        edits |= _numbered(group, [Edit.ablate(heads, setup.mode) for heads in sets])
    edits |= {Row(Group.SIZE, n): Edit.ablate(top(score, n), setup.mode) for n in setup.sizes}
    edits[Row(Group.KNOCKED_OUT)] = Edit.knock_out(chosen)
    others = (controls[Group.LAYER_MATCHED] or controls[Group.NORM_MATCHED])[:3]
    edits |= _numbered(Group.KNOCKED_OUT_IN_OTHERS, [Edit.knock_out(heads) for heads in others])
    for group in (Group.RANDOM_KEYS, Group.PREVIOUS_PART):
        edits[Row(group)] = Edit.knock_out(chosen, group.value, seed)
    for n in setup.sizes if setup.all_sizes else ():
        if n != setup.primary:
            heads = top(score, n)
            edits[Row(Group.KNOCKED_OUT, n)] = Edit.knock_out(heads)
            drawn = [] if shortage(heads, eligible) else layer_matched(heads, eligible, 3, seed)
            edits |= _numbered(Group.LAYER_MATCHED, [Edit.ablate(other, setup.mode) for other in drawn], n)
    return Plan(setup, chosen, controls, short, edits)


def _numbered(group: Group, edits: Sequence[Edit], size: int | None = None) -> dict[Row, Edit]:
    return {Row(group, size, draw): edit for draw, edit in enumerate(edits, 1)}
