"""Whether the model does a task, and what it loses when a step of the circuit is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import causal_plots, cuts
from util.figures.forerunner_heads.cuts import EVERYWHERE, WHOLE, Condition, Cut, Part
from util.figures.forerunner_heads.measures import Floats, TaskCheck
from util.figures.forerunner_heads.results.setting import Setting, signed
from util.figures.style import WIDTH
from util.stats.answers import gold_log_probability, right
from util.stats.intervals import Interval, accuracy, mean_interval


class Score(StrEnum):
    """What is compared between the whole model and an ablated one."""

    LOG_PROBABILITY = "log-probability"
    ACCURACY = "accuracy"
    TEXT_LOSS = "text loss"


@dataclass(frozen=True)
class Answers:
    """What the model says under one condition: log_prob [N, labels] behind the query, gold [N].

    text_loss [N]: the next-token loss on all of the prompt but its labels, of what is no control and spans all layers.
    """

    log_prob: Floats
    gold: NDArray[np.int64]
    text_loss: Floats | None = None

    @cached_property
    def scores(self) -> dict[Score, NDArray[np.float64]]:
        """The scores of every prompt, [N], that were measured."""
        scores = {
            Score.LOG_PROBABILITY: gold_log_probability(self.log_prob, self.gold).astype(np.float64),
            Score.ACCURACY: right(self.log_prob, self.gold).astype(np.float64),
        }
        if self.text_loss is not None:
            scores[Score.TEXT_LOSS] = np.asarray(self.text_loss, np.float64)
        return scores

    @property
    def accuracy(self) -> Interval:
        """The share of right answers with its Wilson interval."""
        return accuracy(right(self.log_prob, self.gold))


Table = dict[Part, dict[str, Interval]]  # by part of the layers and cut


def changes(
    answers: Mapping[Condition, Answers], score: Score = Score.LOG_PROBABILITY, comparisons: int = 1
) -> tuple[Table, Table]:
    """What each cut changes of a score, and what its controls change on average.

    The 95 % intervals are paired by prompt; comparisons: how many of them are to hold together (Bonferroni). Conditions
    that do not have the score are left out.
    """
    measured = [condition for condition, answer in answers.items() if score in answer.scores]
    cut = [condition for condition in measured if condition.cut is not None and condition.draw is None]
    control = [condition for condition in measured if condition.draw is not None]
    return _table(answers, cut, score, comparisons), _table(answers, control, score, comparisons)


def _table(
    answers: Mapping[Condition, Answers], conditions: Sequence[Condition], score: Score, comparisons: int
) -> Table:
    """The interval of the mean of the draws, by part and cut."""
    whole, table = answers[WHOLE].scores[score], Table()
    for part, cut in dict.fromkeys((condition.part, str(condition.cut)) for condition in conditions):
        draws = [answers[one].scores[score] - whole for one in conditions if (one.part, one.cut) == (part, cut)]
        table.setdefault(part, {})[cut] = mean_interval(np.mean(draws, axis=0), comparisons=comparisons)
    return table


def causal_finding(lost: Table, controls: Table, done: bool, cut: Cut = Cut.SI_TO_YI) -> str:
    """What cutting the labels from their forerunners in all layers tells, by its interval and that of its controls.

    A loss counts where the interval lies below 0 and below the controls' interval; a task that is not done tells
    nothing.
    """
    change, random = lost[EVERYWHERE][cut], controls[EVERYWHERE][cut]
    said = f"cut {cuts.TITLES[cut]} in all layers: {signed(change)} nats, random cells {signed(random)}: "
    if not done:
        return said + "task not done, so this tells nothing of in-context learning"
    if _used(change, random):
        return said + "the gold label becomes less likely (this alone does not tell which label takes its place)"
    if _harmful(change, random):
        return said + "the gold label becomes likelier"
    return said + "no effect on the gold label was detected"


def _used(change: Interval, random: Interval) -> bool:
    return change.high < min(0.0, random.low)


def _harmful(change: Interval, random: Interval) -> bool:
    return change.low > max(0.0, random.high)


def _minus(change: Interval) -> Interval:
    """What is lost by a change."""
    return Interval(-change.value, -change.high, -change.low)


# Entries of the values file that are measured on the data set that was chosen.
OF_TASK = ("ablation", "without demonstrations", "induction", "head effects")


@dataclass(frozen=True)
class Task:
    """The data sets that were tried, in this order, until the model did one; left_out: why others could not be."""

    checks: tuple[TaskCheck, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def check(self) -> TaskCheck:
        """The check of the data set that is measured: the one that is done, else the first."""
        return self.checks[-1] if self.checks[-1].done else self.checks[0]

    @property
    def mark(self) -> str:
        """What stands behind a setting."""
        return "" if self.check.done else "; TASK NOT DONE"

    @property
    def name(self) -> str:
        """The data set, and that the task is not done where it is not."""
        return f"{self.check.dataset}{self.mark}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), *(f"{dataset}: {why}" for dataset, why in self.left_out.items())])

    def check_lines(self) -> list[str]:
        return [str(self.check)]

    def values(self) -> dict[str, Any]:
        return {"task": [str(check) for check in self.checks], "chosen": dict.fromkeys(OF_TASK, self.check.dataset)}


@dataclass(frozen=True)
class Tables:
    """What the model loses when a step of the circuit is cut: answers by condition, with and without demonstrations.

    about: what it was measured on.
    """

    about: Setting
    task: Task
    cut: Mapping[Condition, Answers]
    alone: Mapping[Condition, Answers]

    @cached_property
    def together(self) -> tuple[Table, Table]:
        """Changes of the log-probability by cuts and by random cells; all intervals hold together."""
        return changes(self.cut, comparisons=len(self.cut) - 1)

    @property
    def verdict(self) -> str:
        """What the cut of the labels from their forerunners tells, in a line with its numbers."""
        return causal_finding(*changes(self.cut), self.task.check.done)

    @property
    def worth(self) -> str:
        """Accuracies of the whole model with and without demonstrations on the same queries, paired."""
        shown, bare = self.cut[WHOLE], self.alone[WHOLE]
        gained = {score: signed(mean_interval(shown.scores[score] - bare.scores[score])) for score in bare.scores}
        texts = [f"{a.value:.3f} [{a.low:.3f}, {a.high:.3f}]" for a in (shown.accuracy, bare.accuracy)]
        return (
            f"accuracy with demonstrations {texts[0]}, without {texts[1]}, of {len(shown.gold)} prompts: they change "
            f"it by {gained[Score.ACCURACY]}, and the gold label's log-probability by "
            f"{gained[Score.LOG_PROBABILITY]} nats"
        )

    def __str__(self) -> str:
        return f"{self.worth}\n{self.verdict}"

    def table(self) -> pd.DataFrame:
        """What cuts in all layers change, one row each, with 95 % intervals of one number each.

        Accuracy, the gold label's log-probability (also by random cells and without demonstrations), and the loss on
        the text.
        """
        lost, random = (table.get(EVERYWHERE, {}) for table in changes(self.cut))
        columns: dict[str, Mapping[str, Interval]] = {
            "accuracy": changes(self.cut, Score.ACCURACY)[0][EVERYWHERE],
            "gold label, nats": lost,
            "random cells, nats": random,
            "zero-shot, nats": changes(self.alone)[0].get(EVERYWHERE, {}),
            "text loss, nats": changes(self.cut, Score.TEXT_LOSS)[0][EVERYWHERE],
        }
        rows = {
            cuts.TITLES[cut]: [signed(column[cut]) if cut in column else "" for column in columns.values()]
            for cut in lost
        }
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(columns)).rename_axis("cut in all layers")

    @property
    def finding(self) -> str | None:
        """What the cut of the labels from their forerunners costs; None where the task is not done."""
        if not self.task.check.done:
            return None
        lost, controls = changes(self.cut)
        change, random = lost[EVERYWHERE][Cut.SI_TO_YI], controls[EVERYWHERE][Cut.SI_TO_YI]
        if _used(change, random):
            said = f"costs the gold label {_minus(change)} nats, random cells {_minus(random)}"
        elif _harmful(change, random):
            said = f"gains the gold label {change} nats, random cells {random}"
        else:
            said = (
                f"is not shown to cost the gold label more than random cells: {_minus(change)} nats, {_minus(random)}"
            )
        return f"Cutting the labels' reads of their forerunners {said}"

    @property
    def setting(self) -> str:
        """What it was measured on."""
        about = f"{self.about}{self.task.mark}"
        return f"change of the gold label's log-probability; {about}; intervals of all cells hold together"

    def figure(self, width: float = WIDTH) -> Figure:
        return causal_plots.cut_table(*self.together, cuts.TITLES, self.finding, self.setting, width)

    def check_lines(self) -> list[str]:
        return [self.verdict]

    def values(self) -> dict[str, Any]:
        lost, controls = self.together
        scores = {score.value: changes(self.cut, score)[0] for score in Score}
        return {
            "ablation": scores | {"corrected intervals": lost, "controls": controls, "finding": self.verdict},
            "without demonstrations": changes(self.alone)[0],
        }
