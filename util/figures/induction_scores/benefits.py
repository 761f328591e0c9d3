"""What demonstrations are worth with and without induction heads: accuracies by shots, and verdicts on the claims.

The claims are those of Crosbie & Shutova's abstract and sections 5 and 6; the rules are our own. Each is about every
task that the whole model does:

1. pattern tasks lose more without induction heads than without others, by more than `margin`
2. that brings them close to chance: within `close` of it, where claim 1 holds of the task
3. forbidding the pattern alone costs as much: more than `margin`, and less than `close` less than ablation, where claim
   1 holds of the task
4. of text tasks the benefit of demonstrations shrinks by more than `margin` more than without other heads, where
   demonstrations surely help
5. few-shot answers come close to zero-shot ones: less than `close` above them, where demonstrations surely help by more
   than `close`
6. with labels that are unrelated to the classes, more is lost than without other heads, by more than `margin`
7. zero-shot answers are not hurt: less than `margin` is lost, where they are above chance

"Other heads" are control sets: the mean of all that were measured, of which single ones may cost more. A verdict is
about these sets, over endless queries. Each number of demonstrations has means of its own, over prompts with as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field

from util.figures.induction_scores import measures, published, task_plots
from util.figures.induction_scores.edits import Group, Row
from util.figures.induction_scores.plan import Plan
from util.figures.style import WIDTH
from util.records.checked import Number, checked
from util.stats.intervals import Interval, accuracy, mean_interval
from util.stats.task_check import TaskCheck
from util.stats.tests import rank_p
from util.stats.verdicts import (
    ERROR,
    HOLDS,
    NOT_ASKED,
    NOT_DONE,
    UNDECIDED,
    Claim,
    Part,
    Sample,
    Verdicts,
    all_of,
    compared,
)

Bools = NDArray[np.bool_]
Margin = Annotated[Number, Field(gt=0, lt=1)]
WHOLE = Row(Group.WHOLE)
KNOCKED_OUT = Row(Group.KNOCKED_OUT)
REPORTED = (published.FULL, published.ABLATED, published.KNOCKED_OUT)  # in the order of `task_plots.LINES`


@checked
class Rule:
    """What claims have to show. error: of a verdict, in either direction; 0.025 goes with intervals of 95 %."""

    margin: Margin = 0.05
    close: Margin = 0.1
    error: Margin = ERROR


RULE = Rule()


@dataclass(frozen=True, order=True)
class Labelled:
    """A task, with its own labels or with Foo and Bar, which are unrelated to its classes."""

    task: str
    unrelated: bool = False

    @property
    def name(self) -> str:
        """How figures, tables and values files call it."""
        return f"{self.task}, Foo/Bar" if self.unrelated else self.task


@dataclass(frozen=True)
class TaskShots:
    """One task at several numbers of demonstrations.

    right: answers by the number of demonstrations and by row, [R, N]; controls: the control sets among its rows.
    chance: what guessing and always answering with the most frequent class have at most. text: whether people wrote its
    texts. check: whether the whole model does the task, on other queries with the most demonstrations. available: how
    many queries there are. as_published: whether its rows are of the same kind as the paper's; StaICC's SST-2 are
    phrases of the training split, its SUBJ is another split.
    """

    labelled: Labelled
    right: Mapping[int, Mapping[Row, Bools]]
    ablated: Row
    controls: tuple[Row, ...]
    chance: float
    text: bool
    check: TaskCheck
    available: int
    as_published: bool = True

    @property
    def does(self) -> bool:
        """Whether the whole model does the task from its demonstrations."""
        return self.check.done

    @property
    def most(self) -> int:
        """The largest number of demonstrations."""
        return max(self.right)

    @property
    def queries(self) -> int:
        """How many queries were asked."""
        return self.right[self.most][WHOLE].shape[1]

    def place_in_tables(self, shots: int) -> str:
        """Returns how data/published calls this row of the paper's tables."""
        return measures.place_in_tables(self.labelled.task, shots, self.labelled.unrelated)

    def mean(self, shots: int, row: Row) -> Interval:
        """Returns an accuracy with its interval."""
        return accuracy(self.right[shots][row])

    def drawn(self, shots: int) -> list[float]:
        """Returns the accuracy of each control set."""
        rows = self.right[shots]
        return [float(rows[row].mean()) for row in self.controls if row in rows]

    def by_query(self, shots: int, row: Row) -> NDArray[np.float64]:
        """Returns how often each query is answered right, [N]; the mean of all runs."""
        return np.asarray(self.right[shots][row], dtype=np.float64).mean(axis=0)

    def others(self, shots: int) -> NDArray[np.float64]:
        """Returns how often each query is answered right without other heads, [N]; the mean of all control sets."""
        return np.mean([self.by_query(shots, row) for row in self.controls], axis=0)

    @property
    def benefit(self) -> NDArray[np.float64]:
        """What demonstrations are worth to the whole model, by query [N]."""
        return self.by_query(self.most, WHOLE) - self.by_query(0, WHOLE)

    @property
    def has_zero_shot(self) -> bool:
        """Whether it was also measured without demonstrations."""
        return 0 in self.right


@dataclass(frozen=True)
class Benefits:
    """Accuracies by task and number of demonstrations, and what follows from them.

    left_out: why the model could not be asked, by the name of the task and the number of demonstrations.
    """

    plan: Plan
    model_title: str
    tasks: Sequence[TaskShots]
    left_out: Mapping[tuple[str, int], str] = field(default_factory=dict)

    # -------------------------------------------------------------------------------------------- tables

    def numbers(self) -> pd.DataFrame:
        """Returns accuracies with intervals, a line for each task and number of demonstrations.

        Columns: how many queries, the whole model, without the chosen heads, with the pattern forbidden, least, mean
        and most of the control sets; p of the ablation among them, and the least that it can be, see `rank_p`. Control
        sets have no interval: it is they that vary.
        """
        lines = {}
        for task in self.tasks:
            for shots, rows in task.right.items():
                line: dict[str, Any] = {"queries": task.queries, "whole": task.mean(shots, WHOLE)}
                if task.ablated in rows:
                    drawn = task.drawn(shots)
                    line |= {"ablated": task.mean(shots, task.ablated)}
                    line |= {"knocked out": task.mean(shots, KNOCKED_OUT)} if KNOCKED_OUT in rows else {}
                    line |= {"controls": (min(drawn), float(np.mean(drawn)), max(drawn))}
                    p, least = rank_p(float(rows[task.ablated].mean()), drawn, tail="low")
                    line |= {"p": p, "least p": least}
                lines[task.labelled.name, shots] = line
        columns = ["queries", "whole", "ablated", "knocked out", "controls", "p", "least p"]
        return pd.DataFrame(lines.values(), index=_places(lines), columns=columns)

    def table(self) -> pd.DataFrame:
        """Returns the numbers as text, and what is left out; "-" where nothing was measured."""

        def text(value: Any) -> str:
            if isinstance(value, Interval | int | np.integer):
                return str(value)
            if isinstance(value, tuple):
                return f"{value[0]:.2f} to {value[2]:.2f}"
            return "-" if pd.isna(value) else f"{value:.2f}"

        numbers = self.numbers().map(text)
        for place, why in self.left_out.items():
            numbers.loc[place, :] = [why, *["-"] * (len(numbers.columns) - 1)]
        return numbers

    def changed(self) -> dict[str, dict[str, float | None]]:
        """Returns the benefit of demonstrations, its standard error, and its change in per cent of it, by task.

        Benefit: accuracy with the most demonstrations minus that without any. The change is None where the benefit is
        not positive or no more than twice its standard error. Source: Crosbie & Shutova 2024, Fig. 4.
        """
        found: dict[str, dict[str, float | None]] = {}
        for task in self.tasks:
            if not task.has_zero_shot or task.ablated not in task.right[task.most]:
                continue
            benefit = task.benefit
            error = float(benefit.std(ddof=1) / len(benefit) ** 0.5)
            full, bare = (float(task.by_query(shots, WHOLE).mean()) for shots in (task.most, 0))
            left = {
                "without induction heads": [task.by_query(shots, task.ablated) for shots in (task.most, 0)],
                "without others": [task.others(shots) for shots in (task.most, 0)],
            }
            line: dict[str, float | None] = {"benefit": full - bare, "error": error}
            for name, (with_shots, without) in left.items():
                ablated = float(with_shots.mean()), float(without.mean())
                line[name] = measures.benefit_change((full, bare), ablated, error)[1]
            found[task.labelled.name] = line
        return found

    def changes(self) -> pd.DataFrame:
        """Returns `changed` as text, a line for each task; "small" stands for the change of a small benefit."""
        lines = {
            name: {
                "benefit": f"{line['benefit']:+.2f}",
                "its error": f"{line['error']:.2f}",
                **{
                    heads: "small" if line[heads] is None else f"{line[heads]:+.0f} %"
                    for heads in ("without induction heads", "without others")
                },
            }
            for name, line in self.changed().items()
        }
        columns = ["benefit", "its error", "without induction heads", "without others"]
        return pd.DataFrame.from_dict(lines, orient="index", columns=columns).rename_axis("task")

    def published(self, model: str = published.MODEL) -> pd.DataFrame:
        """Returns what the paper reports of a model in the same places: accuracies in per cent, Tables 1 and 3.

        Columns: full, without the best 1 % of heads (mean ablation), without as many random ones, with the pattern
        forbidden in them. They are another model's, and stand here to be read beside the table.
        """
        lines = {}
        for task in self.tasks:
            for shots in task.right:
                values = published.accuracies(task.place_in_tables(shots), model)
                if values:
                    texts = {name: f"{value:.1f}" for name, value in values.items()}
                    lines[task.labelled.name, shots] = [texts.get(name, "-") for name in published.QUANTITIES]
        return pd.DataFrame(lines.values(), index=_places(lines), columns=list(published.QUANTITIES))

    # -------------------------------------------------------------------------------------------- figure, values

    @property
    def asked(self) -> dict[str, Any]:
        """The settings that decide which question the claims are about."""
        setup = self.plan.setup
        return {"tasks": setup.tasks, "shots": setup.shots, "mode": setup.mode, "heads": setup.primary}

    @property
    def ablated(self) -> str:
        """The model, and what is ablated."""
        setup = self.plan.setup
        return f"{self.model_title}, {setup.mode} ablation of {setup.primary} heads"

    @property
    def setting(self) -> str:
        """The model, what is ablated, and how many queries are asked."""
        return f"{self.ablated}, {self.plan.setup.prompts} queries of each task"

    @property
    def finding(self) -> str | None:
        """What demonstrations are worth where they are worth most; None where they surely help in no task."""
        helped = [
            task
            for task in self.tasks
            if task.does and task.has_zero_shot and task.ablated in task.right[0] and _helps(task)
        ]
        if not helped:
            return None
        most = max(helped, key=lambda task: float(task.benefit.mean()))
        left = most.by_query(most.most, most.ablated) - most.by_query(0, most.ablated)
        worth, without = (mean_interval(benefit, within=(-1, 1)) for benefit in (most.benefit, left))
        name = most.labelled.name
        return f"{most.most} demonstrations of {name} are worth {worth} of accuracy, without induction heads {without}"

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns accuracies by the number of demonstrations, a panel for each task, and what the paper reports."""
        panels = [
            task_plots.ShotsPanel(
                task.labelled.name,
                list(task.right),
                {
                    name: {k: task.mean(k, row) for k, rows in task.right.items() if row in rows}
                    for name, row in zip(task_plots.LINES, (WHOLE, task.ablated, KNOCKED_OUT), strict=True)
                },
                {k: task.drawn(k) for k in task.right if task.drawn(k)},
                task.chance,
                {
                    name: {k: value for k in task.right if (value := _reported(task, k, quantity)) is not None}
                    for name, quantity in zip(task_plots.LINES, REPORTED, strict=True)
                },
            )
            for task in self.tasks
            if task.does or task.ablated in task.right[task.most]
        ]
        alone = [
            task_plots.NotDone(
                task.labelled.name.replace("_", " "),
                {k: task.mean(k, WHOLE) for k in task.right},
                task.chance,
                _reported(task, task.most, published.FULL),
            )
            for task in self.tasks
            if not (task.does or task.ablated in task.right[task.most])
        ]
        return task_plots.shots(panels, alone, self.finding, self.setting, model=self.model_title, width=width)

    def values(self) -> dict[str, Any]:
        """What the values file keeps: by task and number of demonstrations, and the claims with their verdicts."""
        accuracies = {
            task.labelled.name: {
                str(shots): {
                    "accuracy": {row.name: accuracy(right) for row, right in rows.items() if row not in task.controls},
                    "controls": task.drawn(shots),
                }
                for shots, rows in task.right.items()
            }
            for task in self.tasks
        }
        done = {
            task.labelled.name: {
                "queries": task.queries,
                "does": task.does,
                "chance": task.chance,
                "check": task.check,
            }
            for task in self.tasks
        }
        judged = self.verdicts.claims
        return {"accuracy by shots": accuracies, "tasks": done, "benefit": self.changed(), "claims": judged}

    def claims(self) -> dict[str, Any]:
        """The verdicts on the claims, and what they are about, for `report.save_claims`."""
        setup = self.plan.setup
        settings = {"prompts": setup.prompts, "text_tasks": setup.text_tasks, **self.asked}
        return {"model": self.model_title, "settings": settings, **self.values()}

    # -------------------------------------------------------------------------------------------- verdicts

    @cached_property
    def verdicts(self) -> Verdicts:
        """The verdicts by `RULE`."""
        return self.judged()

    def judged(self, rule: Rule = RULE) -> Verdicts:
        """Returns the verdicts on the seven claims by a rule."""
        own = [task for task in self.tasks if not task.labelled.unrelated]
        pattern, texts = [task for task in own if not task.text], [task for task in own if task.text]
        unrelated = [task for task in self.tasks if task.labelled.unrelated]
        lost = _claim(1, "pattern tasks lose more without induction heads than without others", pattern, rule, [MORE])
        surely = {part.name for part in lost.parts if part.verdict == HOLDS}
        costly = [task for task in pattern if task.labelled.name in surely]
        no_cost = ("no pattern task surely loses more", NOT_DONE if lost.verdict == NOT_DONE else UNDECIDED)
        compared_bare = [task for task in own if task.has_zero_shot and task.ablated in task.right[0]]
        helped = [task for task in texts if task.does and task in compared_bare and _helps(task)]
        no_help = ("demonstrations surely help in no text task that the model does", NOT_DONE)
        if not texts:
            no_help = ("", NOT_ASKED)
        return Verdicts(
            (
                lost,
                _claim(2, "that brings them close to chance", costly, rule, NEAR_CHANCE, *no_cost),
                _claim(3, "forbidding the pattern alone costs as much", costly, rule, AS_MUCH, *no_cost),
                _claim(4, "demonstrations of text tasks are worth less", helped, rule, [WORTH_LESS], *no_help),
                _claim(
                    5, "few-shot answers come close to zero-shot ones",
                    [task for task in helped if _helps(task, rule.close)], rule, [NEAR_ZERO_SHOT], *no_help,
                ),
                _claim(
                    6, "with unrelated labels more is lost than without others", unrelated, rule, [MORE], "", NOT_ASKED
                ),
                _claim(
                    7, "zero-shot answers are not hurt", [task for task in compared_bare if _does_it_bare(task)], rule,
                    [KEPT], "no task is done without demonstrations",
                ),
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One comparison that a claim makes in a task. name: what it is called behind the task's, where there are several.

    values: of a task, by query [N]; bound: of their mean, the name of a field of the rule; above: whether the claim
    wants the mean above it.
    """

    values: Callable[[TaskShots], NDArray[np.float64]]
    bound: Literal["margin", "close"]
    above: bool
    name: str = ""

    def judged(self, task: TaskShots, rule: Rule) -> Part:
        """Returns the comparison in a task; "task not done" where the whole model does not do it."""
        name = f"{task.labelled.name}{self.name and ': '}{self.name}"
        bound = getattr(rule, self.bound)
        if not task.does:
            missing = (np.nan, np.nan, np.nan)
            return Part(name, NOT_DONE, *missing, bound, self.above, task.queries, None, task.available, (1.0, 1.0))
        return _judged(name, self.values(task), bound, self.above, rule, task.available)


def _lost_to_others(task: TaskShots) -> NDArray[np.float64]:
    return task.others(task.most) - task.by_query(task.most, task.ablated)


def _above_chance(task: TaskShots) -> NDArray[np.float64]:
    return task.by_query(task.most, task.ablated) - task.chance


def _benefit_lost_to_others(task: TaskShots) -> NDArray[np.float64]:
    few, none = (task.others(shots) - task.by_query(shots, task.ablated) for shots in (task.most, 0))
    return few - none


MORE = Comparison(_lost_to_others, "margin", True)
NEAR_CHANCE = (
    Comparison(_above_chance, "close", False, "not above"),
    Comparison(lambda task: -_above_chance(task), "close", False, "not below"),
)
AS_MUCH = (
    Comparison(
        lambda task: task.by_query(task.most, WHOLE) - task.by_query(task.most, KNOCKED_OUT), "margin", True, "costs"
    ),
    Comparison(
        lambda task: task.by_query(task.most, KNOCKED_OUT) - task.by_query(task.most, task.ablated), "close", False,
        "as much",
    ),
)  # fmt: skip
WORTH_LESS = Comparison(_benefit_lost_to_others, "margin", True)
NEAR_ZERO_SHOT = Comparison(
    lambda task: task.by_query(task.most, task.ablated) - task.by_query(0, WHOLE), "close", False
)
KEPT = Comparison(lambda task: task.by_query(0, WHOLE) - task.by_query(0, task.ablated), "margin", False)


def _reported(task: TaskShots, shots: int, quantity: str) -> float | None:
    """What the paper reports in the place of a task, as a share."""
    value = published.accuracies(task.place_in_tables(shots)).get(quantity)
    return None if value is None else value / 100


def _helps(task: TaskShots, by: float = 0.0) -> bool:
    """Whether demonstrations surely help the whole model by more than that."""
    return mean_interval(task.benefit).low > by


def _does_it_bare(task: TaskShots) -> bool:
    """Whether the whole model is above chance without demonstrations."""
    return task.mean(0, WHOLE).low > task.chance


def _places(lines: Iterable[tuple[str, int]]) -> pd.MultiIndex:
    return pd.MultiIndex.from_tuples(lines, names=["task", "shots"])


def _judged(name: str, values: NDArray[np.float64], bound: float, above: bool, rule: Rule, available: int) -> Part:
    """One comparison of a mean over queries, values [N], with a bound.

    Differences of differences may lie outside -1 to 1; they are judged in units of 2, in which they do not.
    """
    unit = 2.0 if np.abs(values).max() > 1 else 1.0
    part = compared(name, [Sample.of(values / unit)], bound / unit, above=above, error=rule.error, available=available)
    return replace(part, value=unit * part.value, low=unit * part.low, high=unit * part.high, bound=bound)


def _claim(
    number: int,
    text: str,
    tasks: Sequence[TaskShots],
    rule: Rule,
    comparisons: Sequence[Comparison],
    none: str = "",
    nothing: str = NOT_DONE,
) -> Claim:
    """Returns the verdict on a claim about all of these tasks; `nothing` and the note `none` where there are none."""
    parts = [comparison.judged(task, rule) for task in tasks for comparison in comparisons]
    if not parts:
        return Claim(number, text, nothing, (), none)
    return Claim(number, text, *all_of(parts, rule.error))
