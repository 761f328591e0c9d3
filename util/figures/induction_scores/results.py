"""The results of this figure: numbers, tables, figures and sentences, without any model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.induction_scores import measures, plots, published, task_plots
from util.figures.induction_scores.benefits import Benefits
from util.figures.induction_scores.edits import CONTROL_SETS, Group, Row
from util.figures.induction_scores.function_vectors import FunctionVectors
from util.figures.induction_scores.plan import Plan
from util.prompts.text_tasks import label_space
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.results import HeadScores
from util.show import files
from util.show.style import BLUE, GREY, PALE_RED, WIDTH
from util.show.tokens import TokenRows
from util.stats.heads import Head, head_name, top
from util.stats.intervals import Interval, Intervals, accuracy, mean_interval, paired_interval
from util.stats.task_check import TaskCheck
from util.stats.tests import rank_p

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
NOT_MEASURED = Interval(np.nan, np.nan, np.nan)
SAME_LOSS = 0.05  # nats per token: a loss that surely changes by less is told as well
KNOCKOUT_CONTROLS = (Group.RANDOM_KEYS, Group.PREVIOUS_PART)


def _the_best(count: int) -> str:
    """So many best induction heads, in words."""
    return "the best induction head" if count == 1 else f"the {count} best induction heads"


def _sentence(text: str) -> str:
    """A text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


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

    @property
    def setting(self) -> str:
        """The model, and what the heads are scored on."""
        heads = self.heads
        tokens = f"{len(heads.ids)} sequences of {heads.length} random tokens, {heads.copies} times each"
        return f"{heads.model_title}, {tokens}"

    @property
    def finding(self) -> str:
        """How many heads have a score that counts, and the best of them."""
        count, [best] = int(self.heads.induction_heads.sum()), top(self.mean, 1)
        attend = "attends" if count < 2 else "attend"
        return (
            f"{count or 'None'} of {self.mean.size} heads {attend} to what followed the same token before "
            f"(score {INDUCTION_HEAD} or more); most {head_name(best)}: {self.heads.intervals()[best]}"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns a map of all scores, and the best heads with their intervals."""
        return plots.scores(
            self.heads.intervals(), self.heads.uniform, INDUCTION_HEAD, self.finding, self.setting,
            self.best_untrained, width=width,
        )  # fmt: skip

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

    copying, attribution: [L, H], with intervals over sequences; weights_copying: [L, H]. See `Study.companions`; NaN
    where the class has none.
    """

    scores: Scores
    copying: Intervals
    weights_copying: Floats
    attribution: Intervals

    @property
    def attention(self) -> dict[str, Intervals]:
        """The shares of attention [L, H] by their names in the figure."""
        names = {
            "previous token": "previous_token",
            "duplicate token": "duplicate_token",
            "first token (BOS)": "sink",
        }
        return {shown: self.scores.heads.intervals(name) for shown, name in names.items()}

    @property
    def written(self) -> dict[str, Intervals]:
        """What heads write, [L, H] by its names in the figure. Weights have no interval: they are not sampled."""
        none = np.full(self.weights_copying.shape, np.nan)
        alone = Intervals(self.weights_copying.astype(np.float64), none, none)
        return {"copying": self.copying, "copying, weights alone": alone, "attribution": self.attribution}

    @property
    def maps(self) -> dict[str, Floats]:
        """Every score [L, H] by its name in the figure."""
        return {name: intervals.value for name, intervals in (self.attention | self.written).items()}

    @property
    def setting(self) -> str:
        """The model, and what is scored."""
        return self.scores.setting

    @property
    def finding(self) -> str | None:
        """Whether the best induction heads write the next token themselves, or another head does."""
        if np.isnan(self.attribution.value).any():
            return None
        chosen, [best] = self.scores.chosen, top(self.attribution.value, 1)
        of_chosen = [self.attribution[head] for head in chosen]
        most, name = self.attribution[best], head_name(best)
        if best in chosen and all(interval.low > 0 for interval in of_chosen):
            themselves = "also raises" if len(chosen) == 1 else "also raise"
            return _sentence(f"{_the_best(len(chosen))} {themselves} the next token directly, {name} by {most} logits")
        if best not in chosen and most.low > max(interval.high for interval in of_chosen):
            strongest = max(of_chosen)
            return (
                f"{name} raises the next token most, by {most} logits; {_the_best(len(chosen))} by at most {strongest}"
            )
        return None

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns a map of each score."""
        return plots.companions(
            self.attention, self.written, self.scores.chosen, self.finding, self.setting, width=width
        )

    def writes(self) -> pd.DataFrame:
        """Returns what the chosen heads write beside those that are no induction heads, see `measures.writes`."""
        written = {"copying": self.copying.value, "copying, weights alone": self.weights_copying}
        written["logits"] = self.attribution.value
        return measures.writes(written, self.scores.chosen, self.scores.mean)


@dataclass(frozen=True)
class PromptPattern:
    """What one head attends to in a prompt.

    attention: [T, T], query by key; tokens: as text; kinds: of the parts that they are of; answer: the right label.
    """

    head: Head
    task: str
    model_title: str
    answer: str
    attention: Floats
    tokens: list[str]
    kinds: list[str]

    @property
    def labels(self) -> list[tuple[str, float]]:
        """The labels of the demonstrations with the attention of the last token to all tokens of each."""
        places = groupby(range(len(self.kinds)), lambda token: self.kinds[token])
        parts = [list(part) for kind, part in places if kind == "label"]
        row = self.attention[-1]
        return [("".join(self.tokens[t] for t in part).strip(), float(row[part].sum())) for part in parts]

    @property
    def first_word(self) -> list[int]:
        """The tokens of the first word of the query; none where no demonstration ends before it."""
        ends = [place for place, kind in enumerate(self.kinds) if kind == "blank line"]
        start = ends[-1] + 1 if ends else len(self.tokens)
        end = start + 1
        while end < len(self.tokens) - 1 and self.kinds[end] == self.kinds[start] and self.tokens[end][:1].isalnum():
            end += 1
        return list(range(start, end)) if end < len(self.tokens) else []

    @property
    def rows(self) -> TokenRows:
        """The prompt shaded by the attention of the last token, and of the end of the query's first word.

        Source: Crosbie & Shutova 2024, Figs. 6 and 7, which show the last colon and a word of a pair.
        """
        word = self.first_word
        queries = {len(self.tokens) - 1: f"{head_name(self.head)} from the last token"}
        if word:
            text = "".join(self.tokens[token] for token in word).strip()
            queries[word[-1]] = f"{head_name(self.head)} from the query's first word, {text}"
        return TokenRows(
            self.tokens,
            self.attention[list(queries)],
            list(queries.values()),
            list(queries),
            self.finding,
            self.setting,
        )

    @property
    def setting(self) -> str:
        """The model and the prompt."""
        return f"{self.model_title}, one prompt of {self.task}, {len(self.labels)} demonstrations"

    @property
    def finding(self) -> str | None:
        """What the last token reads of labels, and the query's first word most; None without demonstrations."""
        if not self.labels:
            return None
        read = sum(share for _, share in self.labels)
        right = sum(share for text, share in self.labels if text == self.answer)
        said = (
            f"From the last token {head_name(self.head)} gives {read:.2f} of its attention to labels, {right:.2f} to "
            f"{self.answer}, the right answer"
        )
        if not self.first_word:
            return said
        row = self.attention[self.first_word[-1]]
        most = int(row.argmax())
        token = "the first token" if most == 0 else f"“{self.tokens[most].strip()}”"
        return f"{said}; from the query's first word most, {row[most]:.2f}, to {token}"

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns the prompt as coloured tokens, see `rows`."""
        return self.rows.figure(width=width)


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

    @property
    def setting(self) -> str:
        """The model, and what the heads are scored on."""
        return self.companions.scores.setting

    @property
    def finding(self) -> str | None:
        """What previous-token heads are to prefix matching; None where other heads surely or perhaps are as much."""
        scores = self.companions.scores
        layers, heads = _places(scores.chosen)
        whole = mean_interval(scores.heads.scores["prefix_matching"][:, layers, heads].mean(axis=1), within=(0, 1))
        without, *others = self.means_left.values()
        if not without.high < min(other.low for other in (whole, *others)):
            return None
        names = ", ".join(map(head_name, self.makers))
        finding = f"Without {names} prefix matching of {_the_best(len(heads))} falls "
        finding += f"from {whole.value:.2f} to {without}"
        if not others:
            return finding
        least, most = (f"{end(other.value for other in others):.2f}" for end in (min, max))
        return f"{finding}; without as many others it is {least if least == most else f'{least} to {most}'}"

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns the scores that are left, and the direct attribution of all heads."""
        companions = self.companions
        chosen = companions.scores.chosen
        layers, heads = _places(chosen)
        left = {"whole model": companions.scores.heads.intervals()}
        for number, (name, removed) in enumerate(self.removed.items()):
            names = ", ".join(map(head_name, removed))
            left[f"without {names}: {'others' if number else 'previous-token heads'}"] = self.without[name].intervals()
        of_chosen = {
            name: Intervals(score.value[layers, heads], score.low[layers, heads], score.high[layers, heads])
            for name, score in left.items()
        }
        return plots.mechanism(of_chosen, companions.attribution, chosen, self.finding, self.setting, width=width)


# ------------------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Accuracies:
    """Right answers with demonstrations.

    right: by task and row, [R, N], a run for each seed; passed: tasks that the whole model does, on other queries;
    done: those that count as done.
    """

    plan: Plan
    k: int
    model_title: str
    right: Mapping[str, Mapping[Row, Bools]]
    passed: Mapping[str, TaskCheck]
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

    @property
    def rank(self) -> tuple[float, float]:
        """p of the primary ablation on the primary task among its control sets, and the least that it can be."""
        rows = self.right[self.plan.setup.primary_task]
        if self.plan.ablated not in rows:
            return math.nan, math.nan
        controls = [right.mean() for row, right in rows.items() if row.is_control_set]
        return rank_p(rows[self.plan.ablated].mean(), controls, tail="low")

    @property
    def setting(self) -> str:
        """The model, the prompts, and what is ablated."""
        setup = self.plan.setup
        ablated = f"{setup.mode} ablation of {_the_best(setup.primary)}"
        return f"{self.model_title}, {self.k} demonstrations, {setup.prompts} queries of each task, {ablated}"

    @property
    def finding(self) -> str | None:
        """What the primary task loses; None where that may be nothing."""
        task = self.plan.setup.primary_task
        rows = self.right[task]
        lost = lost_without(rows[Row(Group.WHOLE)], rows[self.plan.ablated])
        if lost.low <= 0:
            return None
        left = rows[self.plan.ablated].mean()
        drawn = [value for group in CONTROL_SETS for value in self.drawn()[task][group.value]]
        as_much = sum(value <= left for value in drawn)
        costs = "costs" if as_much < 2 else "cost"
        return (
            f"Without {_the_best(self.plan.setup.primary)} accuracy on {task} falls by {lost}, to "
            f"{left:.2f}; {as_much or 'none'} of {len(drawn)} control sets {costs} as much"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns the accuracies of all tasks, with chance, control sets, and what the paper reports of its model."""
        setup, shown, drawn, chance = self.plan.setup, self.shown(), self.drawn(), chances(self.plan.setup.tasks)
        reported = {task: self._published(task) for task in setup.tasks}
        panels = [
            task_plots.RowPanel(
                task.replace("_", "\n") + ("" if task in self.done else "\n(not done)"),
                shown[task],
                drawn[task],
                chance[task],
                reported[task],
            )
            for task in self.measured
        ]
        alone = [
            task_plots.NotDone(
                task.replace("_", " "),
                {self.k: self.interval(task, Row(Group.WHOLE))},
                chance[task],
                reported[task].get(Group.WHOLE.value),
            )
            for task in setup.tasks
            if task not in self.measured
        ]
        controls = (*CONTROL_SETS, Group.KNOCKED_OUT_IN_OTHERS, *KNOCKOUT_CONTROLS)
        colours = {Group.WHOLE.value: BLUE, Group.KNOCKED_OUT.value: PALE_RED, **{row.value: GREY for row in controls}}
        return task_plots.accuracies(
            panels, alone, self.finding, self.setting, model=self.model_title, colours=colours, width=width
        )

    def _published(self, task: str) -> dict[str, float]:
        """What the paper reports in the same place, by the names of the rows here."""
        names = {published.ABLATED: self.plan.ablated.name}
        reported = published.accuracies(measures.place_in_tables(task, self.k))
        return {names.get(name, published.GROUPS[name].value): value / 100 for name, value in reported.items()}

    def values(self) -> dict[str, dict[str, Interval]]:
        """Accuracies with intervals, by task and row."""
        return {task: _by_name(rows) for task, rows in self.right.items()}


def lost_without(whole: Bools, ablated: Bools) -> Interval:
    """Returns how much less often queries are answered right, [R, N] each: the mean, paired by query."""
    return paired_interval(whole.mean(axis=0) - ablated.mean(axis=0))


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

    @property
    def setting(self) -> str:
        """The model and the ablations."""
        setup, texts = self.accuracies.plan.setup, len(next(iter(self.losses.values())))
        ablated = f"{setup.mode} ablation"
        return (
            f"{self.accuracies.model_title}, {ablated}; A: {self.accuracies.k} demonstrations; B, C: "
            f"{_the_best(setup.primary)}; {setup.prompts} queries, {texts} plain texts"
        )

    @property
    def finding(self) -> str | None:
        """What most heads cost the primary task, and the primary set plain text; None where neither is sure."""
        plan, rows = self.accuracies.plan, self.accuracies.right[self.accuracies.plan.setup.primary_task]
        most = max(plan.setup.sizes)
        task = lost_without(rows[Row(Group.WHOLE)], rows[Row(Group.SIZE, most)])
        text = mean_interval(self.losses[plan.ablated] - self.losses[Row(Group.WHOLE)])
        said = []
        if task.low > 0:
            said.append(f"without {_the_best(most)} accuracy on {plan.setup.primary_task} falls by {task}")
        if text.low > 0 or max(abs(text.low), abs(text.high)) < SAME_LOSS:
            heads = _the_best(plan.setup.primary)
            said.append(f"without {heads} plain text costs {text} nats more per token")
        return _sentence("; ".join(said)) or None

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns accuracies by size, those without demonstrations, and losses."""
        setup = self.accuracies.plan.setup
        task = setup.primary_task
        by_size = {name: self.accuracies.by_size(name) for name in self.accuracies.measured}
        controls = self.accuracies.plan.draws(Group.NORM_MATCHED)
        names = {row.name: f"control set {row.draw}" for row in controls}
        zero_shot, losses = (
            {names.get(name, name): interval for name, interval in rows.items()}
            for rows in (self.zero_shot[task], self.mean_losses)
        )
        return task_plots.doses(
            by_size, [0, *setup.sizes], zero_shot, losses, self.finding, self.setting,
            task=task.replace("_", " "), chance=chances([task])[task], uniform=self.uniform, width=width,
        )  # fmt: skip


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
        return files.comparison(str(self.request["stem"]), self.model_name, here)

    def values(self) -> dict[str, Any]:
        """Returns what the file of values holds."""
        controls = {group.value: sets for group, sets in self._plan.controls.items()}
        p, least = self.accuracies.rank
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
            "primary": {"task": self._plan.setup.primary_task, "p": p, "least p": least},
            "tasks_done": self.accuracies.passed,
            "queries": {task: rows[Row(Group.WHOLE)].shape[1] for task, rows in self.accuracies.right.items()},
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
        p, least = self.accuracies.rank
        lines += [f"{sets} p = {p:.3f}, at least {least:.3f}"]
        lines += [f"layers with too few other heads: {self._plan.short or 'none'}"]
        return lines + self.function_vectors.check_lines() + self.planted.lines()
