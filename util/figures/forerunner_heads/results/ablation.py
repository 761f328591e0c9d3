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
from util.figures.forerunner_heads.measures import Floats
from util.figures.forerunner_heads.results.setting import Setting
from util.show.style import WIDTH
from util.stats.answers import gold_log_probability, label_mass, right, which_label
from util.stats.intervals import Interval, accuracy, mean_interval, signed
from util.stats.task_check import TaskCheck, chosen


class Score(StrEnum):
    """What is compared between the whole model and an ablated one.

    The gold label's log-probability is the sum of two: log P(gold | labels), which label it is, and log P(any label),
    the label mass. Demonstrations teach the first; the second says that a label comes.
    """

    WHICH_LABEL = "which label"
    LABEL_MASS = "label mass"
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
        log_prob = self.log_prob.astype(np.float64)
        scores: dict[Score, Any] = {
            Score.WHICH_LABEL: which_label(log_prob, self.gold),
            Score.LABEL_MASS: label_mass(log_prob),
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


def changes(answers: Mapping[Condition, Answers], score: Score, comparisons: int = 1) -> tuple[Table, Table]:
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


LEAST = 0.01  # nats: a smaller rise of label mass is none, as in `roles.rules`
STEP = Cut.SI_TO_YI  # the paper's second step: labels copy from their forerunners


def told(what: str, lost: Table, controls: Table) -> str:
    """What cutting the labels from their forerunners in all layers costs, by its interval and that of its controls.

    A loss counts where the interval lies below 0 and below the controls' interval. what: that may lose.
    """
    change, random = lost[EVERYWHERE][STEP], controls[EVERYWHERE][STEP]
    if change.high < min(0.0, random.low):
        return f"costs {what} {_minus(change)} nats, random cells {_minus(random)}"
    if change.low > max(0.0, random.high):
        return f"gains {what} {change} nats, random cells {random}"
    return f"is not shown to cost {what} more than random cells: {_minus(change)} nats, {_minus(random)}"


def _minus(change: Interval) -> Interval:
    """What is lost by a change."""
    return Interval(-change.value, -change.high, -change.low)


# Entries of the values file that are measured on the data set that was chosen.
OF_TASK = ("ablation", "induction", "head effects")


@dataclass(frozen=True)
class Task:
    """The data sets that were tried, in this order, until the model did one; left_out: why others could not be."""

    checks: tuple[TaskCheck, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def check(self) -> TaskCheck:
        """The check of the data set that is measured: the one that is done, else the first."""
        return chosen(self.checks)

    @property
    def endpoint(self) -> Score:
        """What a single head may cost: which label, on a task that is done; else label mass."""
        return Score.WHICH_LABEL if self.check.done else Score.LABEL_MASS

    @property
    def mark(self) -> str:
        """What stands behind a setting."""
        return "" if self.check.done else "; TASK NOT DONE"

    @property
    def name(self) -> str:
        """The data set and k, and that the task is not done where it is not."""
        return f"{self.check.name}, k = {self.check.k}{self.mark}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), *(f"{what}: {why}" for what, why in self.left_out.items())])

    def check_lines(self) -> list[str]:
        return [str(self.check)]

    def values(self) -> dict[str, Any]:
        checks = [{"done": check.done, **vars(check)} for check in self.checks]
        chosen = {"dataset": self.check.name, "k": self.check.k, "done": self.check.done}
        return {"task": checks, "chosen": dict.fromkeys(OF_TASK, chosen)}


@dataclass(frozen=True)
class Tables:
    """What the model loses when a step of the circuit is cut: answers by condition, and without demonstrations.

    about: what it was measured on.
    """

    about: Setting
    task: Task
    cut: Mapping[Condition, Answers]
    alone: Answers

    @cached_property
    def together(self) -> dict[Score, tuple[Table, Table]]:
        """Changes of which label and of label mass by cuts and by random cells; all intervals hold together."""
        comparisons = 2 * (len(self.cut) - 1)
        return {score: changes(self.cut, score, comparisons) for score in (Score.WHICH_LABEL, Score.LABEL_MASS)}

    @cached_property
    def gained(self) -> dict[Score, Interval]:
        """What demonstrations change of every score, paired by prompt."""
        shown = self.cut[WHOLE].scores
        return {
            score: mean_interval(shown[score] - bare) for score, bare in self.alone.scores.items() if score in shown
        }

    @property
    def findings(self) -> list[str]:
        """What the cut of the labels from their forerunners tells of both scores, as far as their premises are met."""
        which, mass = (changes(self.cut, score) for score in (Score.WHICH_LABEL, Score.LABEL_MASS))
        said = ["Which label: no in-context learning to explain"]
        if self.task.check.done:
            said = [f"Which label: cutting the labels' reads of their forerunners {told('the right label', *which)}"]
        if self.gained[Score.LABEL_MASS].low > LEAST:
            said.append(f"Label mass: cutting the labels' reads of their forerunners {told('labels', *mass)}")
        return said

    @property
    def worth(self) -> str:
        """Accuracies of the whole model with and without demonstrations on the same queries, paired."""
        texts = [f"{a.value:.3f} [{a.low:.3f}, {a.high:.3f}]" for a in (self.cut[WHOLE].accuracy, self.alone.accuracy)]
        gained = {score: signed(interval) for score, interval in self.gained.items()}
        return (
            f"accuracy with demonstrations {texts[0]}, without {texts[1]}, of {len(self.alone.gold)} prompts: they "
            f"change it by {gained[Score.ACCURACY]}, log P(right label | labels) by {gained[Score.WHICH_LABEL]} nats, "
            f"label mass by {gained[Score.LABEL_MASS]} nats"
        )

    def __str__(self) -> str:
        return "\n".join([self.worth, *self.findings])

    def table(self) -> pd.DataFrame:
        """What cuts in all layers change, one row each, with 95 % intervals of one number each.

        Accuracy, which label and label mass (also by random cells), and the loss on the text.
        """
        columns: dict[str, Mapping[str, Interval]] = {"accuracy": changes(self.cut, Score.ACCURACY)[0][EVERYWHERE]}
        for score in (Score.WHICH_LABEL, Score.LABEL_MASS):
            lost, random = changes(self.cut, score)
            columns[f"{score}, nats"] = lost[EVERYWHERE]
            columns["random cells" if score == Score.WHICH_LABEL else "random cells, mass"] = random.get(EVERYWHERE, {})
        columns["text loss, nats"] = changes(self.cut, Score.TEXT_LOSS)[0][EVERYWHERE]
        rows = {
            cuts.TITLES[cut]: [signed(column[cut], 2) if cut in column else "" for column in columns.values()]
            for cut in columns["accuracy"]
        }
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(columns)).rename_axis("cut in all layers")

    @property
    def setting(self) -> str:
        """What it was measured on."""
        return f"changes in nats; {self.about}{self.task.mark}; intervals of all cells hold together"

    @property
    def finding(self) -> str:
        """The findings as the figure's title."""
        return ". ".join(self.findings)

    def figure(self, width: float = WIDTH) -> Figure:
        return causal_plots.cut_table(self.together, cuts.TITLES, self.finding, self.setting, width)

    def check_lines(self) -> list[str]:
        return self.findings

    def values(self) -> dict[str, Any]:
        together = {score.value: {"cut": lost, "random": random} for score, (lost, random) in self.together.items()}
        alone = {score.value: changes(self.cut, score)[0] for score in Score}
        gained = {score.value: interval for score, interval in self.gained.items()}
        return {"ablation": {**alone, "together": together, "gained": gained, "findings": self.findings}}
