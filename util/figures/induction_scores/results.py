"""The results of this figure: numbers, tables, figures and sentences, without any model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures import report
from util.figures.induction_scores import measures, plots
from util.figures.induction_scores.benefits import Benefits
from util.figures.induction_scores.edits import CONTROL_SETS, Group, Row
from util.figures.induction_scores.function_vectors import FunctionVectors
from util.figures.induction_scores.plan import Plan
from util.prompts import classification
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.results import HeadScores
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval, Intervals, accuracy, mean_interval

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
NOT_MEASURED = Interval(np.nan, np.nan, np.nan)
KNOCKOUT_CONTROLS = (Group.RANDOM_KEYS, Group.PREVIOUS_PART)


def _places(heads: Sequence[Head]) -> tuple[NDArray[np.integer], ...]:
    """Returns an index of heads in arrays [L, H]."""
    return tuple(np.array(heads).T)


# ------------------------------------------------------------------------------------------------ scores


@dataclass(frozen=True)
class Scores:
    """Prefix-matching scores of all heads, and the best ones, chosen. untrained: those of the untrained twin."""

    heads: HeadScores
    chosen: list[Head]
    untrained: HeadScores | None = None

    @property
    def mean(self) -> Floats:
        """The scores [L, H], means of the sequences."""
        return self.heads.mean()

    @property
    def best_untrained(self) -> float | None:
        """The best score of the untrained twin."""
        return None if self.untrained is None else float(self.untrained.mean().max())

    def figure(self) -> Figure:
        """Returns a map of all scores, and the best heads with their intervals."""
        count = self.heads.induction_heads.sum()
        title = f"{self.heads.model_title}: {count} of {self.mean.size} heads continue patterns"
        bound = INDUCTION_HEAD
        return plots.scores(self.heads.intervals(), self.heads.uniform, bound, title, self.best_untrained)

    def lines(self) -> list[str]:
        """Returns what model it is, how tokens are ranked, and the best score by several definitions."""
        best = {"best score": self.mean, "with the authors' boundary": self.heads.mean("bansal")}
        best |= self.heads.variants()
        definitions = ", ".join(f"{name} {values.max():.3f}" for name, values in best.items())
        return [self.heads.description, f"tokens ranked by: {self.heads.ranking}", definitions]

    def values(self) -> dict[str, Any]:
        """What the values file keeps."""
        intervals = self.heads.intervals()
        untrained = None if self.untrained is None else self.untrained.mean()
        values = {"mean": intervals.value, "low": intervals.low, "high": intervals.high}
        return {**values, "uniform": self.heads.uniform, "untrained": untrained}


@dataclass(frozen=True)
class Companions:
    """What else heads do. scores: the attention scores, and the chosen heads.

    copying, weights_copying: [L, H]; attribution: [L, H], with intervals over sequences. See `Study.companions`; NaN
    where the class has none.
    """

    scores: Scores
    copying: Floats
    weights_copying: Floats
    attribution: Intervals

    @property
    def maps(self) -> dict[str, Floats]:
        """Every score [L, H] by its name in the figure."""
        attended = {
            "previous token": "previous_token",
            "duplicate token": "duplicate_token",
            "first token (BOS)": "sink",
        }
        maps = {shown: self.scores.heads.mean(name) for shown, name in attended.items()}
        written = {"copying": self.copying, "copying, weights alone": self.weights_copying}
        return {**maps, **written, "attribution": self.attribution.value}

    def figure(self) -> Figure:
        """Returns a map of each score."""
        return plots.companions(self.maps, f"{self.scores.heads.model_title}: companions of the prefix-matching score")

    def writes(self) -> pd.DataFrame:
        """Returns what the chosen heads write beside those that are no induction heads, see `measures.writes`."""
        written = {"copying": self.copying, "copying, weights alone": self.weights_copying}
        written["logits"] = self.attribution.value
        return measures.writes(written, self.scores.chosen, self.scores.mean)


@dataclass(frozen=True)
class PromptPattern:
    """What one head attends to in a prompt: attention [T, T], tokens as text, and the kinds of parts they are of."""

    head: Head
    task: str
    model_title: str
    attention: Floats
    tokens: list[str]
    kinds: list[str]

    def figure(self) -> Figure:
        """Returns the whole matrix, and what the last token reads of the labels."""
        title = f"{self.model_title}: {head_name(self.head)} on a prompt of {self.task}"
        return plots.pattern(self.attention, self.tokens, self.kinds, title)


@dataclass(frozen=True)
class Mechanism:
    """Prefix matching without previous-token heads.

    companions: scores and direct attribution of the whole model. makers: the previous-token heads of earlier layers.
    removed: the sets of heads that were ablated, by name; without: the scores that are left.
    previous: attention to the token before [L, H], 0 in later layers.
    """

    companions: Companions
    makers: list[Head]
    removed: Mapping[str, list[Head]]
    without: Mapping[str, HeadScores]
    previous: Floats

    @property
    def left(self) -> dict[str, Floats]:
        """The prefix-matching scores of the chosen heads, by what was ablated."""
        places = _places(self.companions.scores.chosen)
        return {name: scores.mean()[places] for name, scores in self.without.items()}

    @property
    def means_left(self) -> dict[str, Interval]:
        """The mean prefix-matching score of the chosen heads, by what was ablated, with intervals over sequences."""
        layers, heads = _places(self.companions.scores.chosen)
        return {
            name: mean_interval(scores.scores["prefix_matching"][:, layers, heads].mean(axis=1), within=(0, 1))
            for name, scores in self.without.items()
        }

    def lines(self) -> list[str]:
        """Returns which heads were ablated, with their attention to the token before."""
        return [
            f"{name}: " + ", ".join(f"{head_name(head)} ({self.previous[head]:.2f})" for head in heads)
            for name, heads in self.removed.items()
        ]

    def figure(self) -> Figure:
        """Returns the scores that are left, and the direct attribution of all heads."""
        scores = self.companions.scores
        title = f"{scores.heads.model_title}: what induction heads are made of"
        whole = scores.mean[_places(scores.chosen)]
        return plots.mechanism(whole, self.left, self.companions.attribution.value, scores.chosen, title)


# ------------------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Accuracies:
    """Right answers with demonstrations.

    right: by task and row, [R, N], a run for each seed; passed: tasks that the whole model does better than chance,
    with its accuracy on other queries; done: those that count as done.
    """

    plan: Plan
    k: int
    model_title: str
    right: Mapping[str, Mapping[Row, Bools]]
    passed: Mapping[str, Interval]
    done: tuple[str, ...]

    @property
    def done_line(self) -> str:
        """Which tasks the whole model does, in a line."""
        return f"tasks that the whole model does: {', '.join(self.done) or 'none'}"

    @property
    def measured(self) -> list[str]:
        """The tasks with ablations."""
        return [task for task, rows in self.right.items() if self.plan.ablated in rows]

    def interval(self, task: str, row: Row) -> Interval:
        """Returns an accuracy and its interval; NaN where it was not measured."""
        return accuracy(self.right[task][row]) if row in self.right[task] else NOT_MEASURED

    def by_size(self, task: str) -> list[Interval]:
        """Returns the accuracies with none of the best heads ablated, then with each of the sizes."""
        rows = [Row(Group.WHOLE), *(Row(Group.SIZE, n) for n in self.plan.setup.sizes)]
        return [self.interval(task, row) for row in rows]

    def shown(self) -> dict[str, dict[str, Interval]]:
        """Returns the accuracies of the figure by task and name; NaN for the names that stand for control sets."""
        rows = [*self.plan.single_rows, *(Row(group) for group in (*CONTROL_SETS, Group.KNOCKED_OUT))]
        rows += [Row(group) for group in (Group.KNOCKED_OUT_IN_OTHERS, *KNOCKOUT_CONTROLS)]
        return {task: {row.name: self.interval(task, row) for row in rows} for task in self.right}

    def drawn(self) -> dict[str, dict[str, list[float]]]:
        """Returns the accuracies of control sets by task and kind."""
        groups = (*CONTROL_SETS, Group.KNOCKED_OUT_IN_OTHERS)
        return {
            task: {
                group.value: [float(rows[row].mean()) for row in self.plan.draws(group) if row in rows]
                for group in groups
            }
            for task, rows in self.right.items()
        }

    def figure(self) -> Figure:
        """Returns the accuracies of all tasks, with chance and control sets."""
        setup = self.plan.setup
        title = f"{self.model_title}: {self.k} shots, {setup.prompts} queries, "
        title += f"{setup.mode} ablation of {setup.primary} heads"
        notes = {task: "task\nnot done" for task in setup.tasks if task not in self.done}
        grey = [group.value for group in KNOCKOUT_CONTROLS]
        return plots.accuracies(self.shown(), self.drawn(), chances(setup.tasks), title, grey=grey, notes=notes)

    def values(self) -> dict[str, dict[str, Interval]]:
        """Accuracies with intervals, by task and row."""
        return {task: _by_name(rows) for task, rows in self.right.items()}


def chances(tasks: Iterable[str]) -> dict[str, float]:
    """Returns the accuracy of guessing, by task."""
    return {task: 1 / len(label_space(task)) for task in tasks}


def _by_name(rows: Mapping[Row, Bools]) -> dict[str, Interval]:
    return {row.name: accuracy(right) for row, right in rows.items()}


@dataclass(frozen=True)
class Doses:
    """How much is lost with how many heads, without demonstrations, and on plain text.

    without_examples: right answers by task and row, [R, N]; losses: of plain texts by row, [N] in nats; uniform: the
    loss of equal probabilities for all tokens.
    """

    accuracies: Accuracies
    without_examples: Mapping[str, Mapping[Row, Bools]]
    losses: Mapping[Row, Floats]
    uniform: float

    @property
    def zero_shot(self) -> dict[str, dict[str, Interval]]:
        """Accuracies without demonstrations, by task and name."""
        return {task: _by_name(rows) for task, rows in self.without_examples.items()}

    @property
    def mean_losses(self) -> dict[str, Interval]:
        """Losses by name, with intervals over texts."""
        return {row.name: mean_interval(losses) for row, losses in self.losses.items()}

    def figure(self) -> Figure:
        """Returns accuracies by size, those without demonstrations, and losses."""
        setup = self.accuracies.plan.setup
        task = setup.primary_task
        by_size = {name: self.accuracies.by_size(name) for name in self.accuracies.measured}
        title = f"{self.accuracies.model_title}, {setup.mode} ablation; B: {task}"
        return plots.doses(
            by_size, [0, *setup.sizes], self.zero_shot[task], self.mean_losses, title, chances([task])[task],
            self.uniform,
        )  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """What the primary ablation costs, numbers with a line for each task, see `measures.costs`."""

    numbers: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Returns the numbers as text of two digits, "-" where there are none; a column for each task."""
        return self.numbers.map(_two_digits).T

    def lines(self) -> list[str]:
        """Returns how right the rule "any letter repeated" is on each letter task."""
        shares = {
            task: [classification.any_repeat(classification.task(task, hard)) for hard in (False, True)]
            for task in self.numbers.index
            if task in classification.PATTERNS
        }
        return [
            f"{task}: the rule 'any letter repeated' is right on {plain:.2f}; with hard negatives on {hard:.2f}"
            for task, (plain, hard) in shares.items()
        ]


def _two_digits(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return "-" if np.isnan(value) else f"{value:.2g}"


# ------------------------------------------------------------------------------------------------ controls


@dataclass(frozen=True)
class PlantedControl:
    """The same measurement of heads that are known.

    scores: prefix-matching scores [L, H] of the planted model; exact: whether the bound of 0.3 finds its induction
    heads and no others. errors: "false alarms" and "misses", each of how many, by the noise on planted weights.
    """

    scores: Floats
    exact: bool
    errors: Mapping[float, Mapping[str, tuple[int, int]]]

    def lines(self) -> list[str]:
        """Whether the planted heads are found, in lines."""
        first = f"planted induction heads found exactly: {self.exact}"
        counts = {
            noise: ", ".join(f"{name} {wrong} of {n}" for name, (wrong, n) in by_name.items())
            for noise, by_name in self.errors.items()
        }
        return [first, *(f"noise {noise}: {text}" for noise, text in counts.items())]


@dataclass(frozen=True)
class Results:
    """All results of a study, for the file of values, the comparison with the paper and the check."""

    model_name: str
    request: Mapping[str, Any]
    mechanism: Mechanism
    accuracies: Accuracies
    doses: Doses
    costs: Costs
    benefits: Benefits
    function_vectors: FunctionVectors
    planted: PlantedControl

    @property
    def scores(self) -> Scores:
        """The scores that everything else starts from."""
        return self.mechanism.companions.scores

    @cached_property
    def _plan(self) -> Plan:
        return self.accuracies.plan

    def comparison(self) -> str:
        """Returns the published values beside these, as text."""
        setup, heads = self._plan.setup, self.scores.heads
        places = {
            measures.place_in_tables(task, self.accuracies.k): rows for task, rows in self.accuracies.right.items()
        }
        places = {
            task.place_in_tables(k): rows for task in self.benefits.tasks for k, rows in task.right.items()
        } | places
        here = measures.comparable(places, setup.mode, self.scores.mean.size, setup.primary)
        best = heads.scores["prefix_matching"].max((1, 2))
        error = float(best.std(ddof=1) / len(best) ** 0.5)
        here["best prefix-matching score"] = (float(self.scores.mean.max()), error)
        here["heads with prefix matching >= 0.3, share"] = (float(heads.induction_heads.mean()), 0.0)
        return report.comparison(str(self.request["stem"]), self.model_name, here)

    def values(self) -> dict[str, Any]:
        """Returns what the file of values holds."""
        controls = {group.value: sets for group, sets in self._plan.controls.items()}
        return {
            "request": self.request,
            "model": self.scores.heads.description,
            "scores": self.scores.values(),
            "companions": self.mechanism.companions.maps,
            "attribution": self.mechanism.companions.attribution,
            "chosen": self.scores.chosen,
            "mechanism": {
                "previous_token_heads": self.mechanism.makers,
                "scores": self.mechanism.left,
                "mean scores": self.mechanism.means_left,
            },
            "controls": controls | {"short of": self._plan.short},
            "tasks_done": self.accuracies.passed,
            "accuracy": self.accuracies.values(),
            "zero_shot": self.doses.zero_shot,
            "losses": self.doses.mean_losses | {"uniform": self.doses.uniform},
            "benefits": self.benefits.values(),
            "function vectors": self.function_vectors.values(),
            "planted": {"scores": self.planted.scores, "errors": self.planted.errors},
        }

    def check_lines(self) -> list[str]:
        """Returns what a fresh run must reproduce, rounded as far as machines agree."""
        scores, task = self.scores, self._plan.setup.primary_task
        best = "" if scores.best_untrained is None else f", of the best untrained head {scores.best_untrained:.3f}"
        chosen = ", ".join(f"{head_name(head)} {scores.mean[head]:.2f}" for head in scores.chosen)
        lines = [
            f"heads {len(scores.mean)} x {scores.mean.shape[1]}; score of uniform attention {scores.heads.uniform:.4f}"
            f"{best}",
            f"chosen: {chosen}",
            self.mechanism.companions.writes().round(1).to_string(),
        ]
        lines += [f"{name}: prefix matching {left.mean():.1f}" for name, left in self.mechanism.left.items()]
        rows = [Row(Group.WHOLE), self._plan.ablated, Row(Group.KNOCKED_OUT), *map(Row, KNOCKOUT_CONTROLS)]
        lines += [f"{task}, {row.name}: {self.accuracies.interval(task, row).value:.2f}" for row in rows]
        sets = {group.value: len(drawn) for group, drawn in self._plan.controls.items()}
        p, least = (self.costs.numbers.loc[task, column] for column in ("p", "least p"))
        lines += [f"{sets} p = {p:.3f}, at least {least:.3f}"]
        lines += [f"layers with too few other heads: {self._plan.short or 'none'}"]
        lines += [f"claim {claim.number}: {claim.verdict}" for claim in self.benefits.verdicts.claims]
        return lines + self.function_vectors.check_lines() + self.planted.lines()
