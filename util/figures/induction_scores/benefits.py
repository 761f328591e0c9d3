"""What demonstrations are worth with and without induction heads: accuracies by the number of demonstrations.

Each number of demonstrations has means of its own, over prompts with as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.induction_scores import measures, published, task_plots
from util.figures.induction_scores.edits import Group, Row
from util.figures.induction_scores.plan import Plan
from util.show.style import WIDTH
from util.stats.answers import TERMS
from util.stats.intervals import Interval, accuracy, mean_interval
from util.stats.task_check import TaskCheck
from util.stats.tests import rank_p

Bools = NDArray[np.bool_]
WHOLE = Row(Group.WHOLE)
KNOCKED_OUT = Row(Group.KNOCKED_OUT)
REPORTED = (published.FULL, published.ABLATED, published.KNOCKED_OUT)  # in the order of `task_plots.LINES`


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
    phrases of the training split, its SUBJ is another split. terms: the halves of log P(right label),
    [R, N, 2] in nats, where `right` has its answers; empty for answers that have none.
    """

    labelled: Labelled
    right: Mapping[int, Mapping[Row, Bools]]
    ablated: Row
    controls: tuple[Row, ...]
    chance: float
    text: bool
    check: TaskCheck
    available: int
    does_bare: bool = False
    as_published: bool = True
    terms: Mapping[int, Mapping[Row, NDArray[np.floating]]] = field(default_factory=dict)

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

    @property
    def benefit(self) -> NDArray[np.float64]:
        """What demonstrations are worth to the whole model, by query [N]."""
        return self.by_query(self.most, WHOLE) - self.by_query(0, WHOLE)

    @property
    def has_zero_shot(self) -> bool:
        """Whether it was also measured without demonstrations."""
        return 0 in self.right


def without_others(task: TaskShots, shots: int) -> NDArray[np.float64]:
    """Returns how often each query is answered right without other heads, [N]; the mean of all control sets."""
    return np.mean([task.by_query(shots, row) for row in task.controls], axis=0)


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
                "without others": [without_others(task, shots) for shots in (task.most, 0)],
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
            if task.does
            and task.has_zero_shot
            and task.ablated in task.right[0]
            and mean_interval(task.benefit).low > 0
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
        """What the values file keeps: by task and number of demonstrations, and what demonstrations are worth."""
        accuracies = {
            task.labelled.name: {
                str(shots): {
                    "accuracy": {row.name: accuracy(right) for row, right in rows.items() if row not in task.controls},
                    "controls": task.drawn(shots),
                    **{
                        term: {
                            row.name: mean_interval(by_query[..., place].mean(axis=0))
                            for row, by_query in task.terms.get(shots, {}).items()
                            if row not in task.controls
                        }
                        for place, term in enumerate(TERMS)
                    },
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
        return {"accuracy by shots": accuracies, "tasks": done, "benefit": self.changed()}


def _reported(task: TaskShots, shots: int, quantity: str) -> float | None:
    """What the paper reports in the place of a task, as a share."""
    value = published.accuracies(task.place_in_tables(shots)).get(quantity)
    return None if value is None else value / 100


def _places(lines: Iterable[tuple[str, int]]) -> pd.MultiIndex:
    return pd.MultiIndex.from_tuples(lines, names=["task", "shots"])
