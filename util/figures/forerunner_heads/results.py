"""What the parts of the forerunner figure give: frozen results with their tables, figures and sentences.

Arrays have prompts N, conditions C (what is appended), layers L and heads H in this order; layers are counted among
those that have attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from util.figures.forerunner_heads import cuts, measures, plots
from util.figures.forerunner_heads.cuts import EVERYWHERE, WHOLE, Condition, Cut, Part
from util.figures.forerunner_heads.measures import (
    Contrast,
    Floats,
    Inducing,
    Reader,
    Series,
    Specificity,
    TaskCheck,
)
from util.prompts.prompt import Appended
from util.stats.answers import gold_log_probability, right
from util.stats.heads import Head, head_name
from util.stats.intervals import Interval, Intervals, accuracy, mean_interval, mean_intervals

NO_DEMONSTRATIONS = "k = 0: without demonstrations there is no step of the circuit to cut; left out"


@dataclass(frozen=True)
class Setting:
    """What titles say of a measurement."""

    model: str
    dataset: str
    k: int
    prompts: int

    def __str__(self) -> str:
        return f"{self.model}, {self.dataset}, k = {self.k}, {self.prompts} prompts"


def curve(intervals: Intervals) -> dict[str, NDArray[np.float64]]:
    """A curve as the values file has it, [L] each."""
    return {"mean": intervals.value, "low": intervals.low, "high": intervals.high}


def signed(interval: Interval) -> str:
    """A difference with its interval: -0.015 [-0.177, +0.146]."""
    value, low, high = interval
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


# ------------------------------------------------------------------------------------------------ copy magnitudes


@dataclass(frozen=True)
class Reading:
    """The attention of all heads to the previous token, behind one ending of the prompts.

    magnitude [N, L, H]: of the ending to the forerunner; control [N, L, H]: of other tokens; moved [N, L, H]: the
    value-weighted magnitude, how long a vector the head adds at the ending because of what it reads at the forerunner;
    n_t [N]: tokens of the prompt with its ending.
    """

    magnitude: Floats
    control: Floats
    moved: Floats
    n_t: NDArray[np.int64]

    def counts(self, c: float = measures.THRESHOLD) -> NDArray[np.int64]:
        """On how many prompts each head exceeds c / n_t, [L, H]."""
        return measures.head_counts(self.magnitude, self.n_t, c)

    def frequent(self, c: float = measures.THRESHOLD) -> Interval:
        """How many heads exceed c / n_t on three of four prompts."""
        return measures.frequent_heads(self.magnitude, self.n_t, c)

    def verdicts(self, c: float = measures.THRESHOLD) -> NDArray[np.str_]:
        """The verdict on each head, [L, H]."""
        return measures.verdicts(self.magnitude, self.control, self.n_t, c)

    def half(self, chosen: NDArray[np.int64]) -> Reading:
        """The same of some of the prompts."""
        return Reading(self.magnitude[chosen], self.control[chosen], self.moved[chosen], self.n_t[chosen])


@dataclass(frozen=True)
class Magnitudes:
    """The copy magnitudes of a study, of N prompts with each of C endings.

    magnitude [N, C, L, H]: A[y_q, s_q] (float32); control [N, L, H]: mean of A[t, t-1] over other tokens of the prompt,
    control_count [N] of them; value_norm [N, L, H]: |W_O^h v| of the forerunner (NaN where `Support.projections` has
    none); n_t and label_lengths [N, C]: tokens of the labelled prompt, and of the label; gold [N] and demonstrations
    [N, k]: indices of labels. origin: the model in words.
    """

    setting: Setting
    request: dict[str, Any]
    origin: str
    appended: tuple[Appended, ...]
    magnitude: Floats
    control: Floats
    control_count: NDArray[np.int64]
    value_norm: Floats
    n_t: NDArray[np.int64]
    label_lengths: NDArray[np.int64]
    gold: NDArray[np.int64]
    demonstrations: NDArray[np.int64]

    ARRAYS: ClassVar[tuple[str, ...]] = (
        "magnitude", "control", "control_count", "value_norm", "n_t", "label_lengths", "gold", "demonstrations",
    )  # fmt: skip

    def reading(self, appended: Appended = 0) -> Reading:
        """The arrays of one ending. Raises ValueError for one that the study does not append."""
        if appended not in self.appended:
            raise ValueError(f"appended = {appended!r}: the study appends {list(self.appended)}")
        place = self.appended.index(appended)
        magnitude = self.magnitude[:, place]
        return Reading(magnitude, self.control, magnitude * self.value_norm, self.n_t[:, place])

    @cached_property
    def moved(self) -> Floats:
        """How long a vector each head adds at the correct label, the mean of the prompts [L, H]."""
        return self.reading(0).moved.mean(axis=0)

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the shortest and the longest prompt with its correct label."""
        n_t = self.reading(0).n_t
        return int(n_t.min()), int(n_t.max())

    def __str__(self) -> str:
        fewest, most = self.tokens
        return (
            f"{self.origin}\n{self.setting}; tokens per prompt {fewest} to {most}\n"
            f"labels of several tokens, read at the first: {(self.label_lengths > 1).mean():.0%}"
        )


@dataclass(frozen=True)
class Counts:
    """On how many of its prompts each head exceeds the threshold, by series.

    prompts: of each series; maps: [L, H]; frequent: how many heads exceed it on three of four prompts.
    """

    setting: Setting
    prompts: Mapping[Series, int]
    maps: Mapping[Series, NDArray[np.int64]]
    frequent: Mapping[Series, Interval]

    @classmethod
    def of(cls, setting: Setting, series: Mapping[Series, Reading], c: float) -> Counts:
        return cls(
            setting,
            prompts={name: len(reading.n_t) for name, reading in series.items()},
            maps={name: reading.counts(c) for name, reading in series.items()},
            frequent={name: reading.frequent(c) for name, reading in series.items()},
        )

    def table(self) -> pd.DataFrame:
        """One row for each series."""
        rows = {
            name.label: {
                "prompts": self.prompts[name],
                "heads on three quarters of the prompts": count_text(self.frequent[name]),
                "heads on any prompt": int((self.maps[name] > 0).sum()),
            }
            for name in self.maps
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def figure(self) -> Figure:
        heads = next(iter(self.maps.values())).size
        title = f"Heads above the threshold on three of four prompts, of {heads}\n{self.setting}"
        return plots.count_maps(self.maps, self.prompts, self.frequent, title)

    def lines(self) -> list[str]:
        return [
            f"{name.label}: {count_text(number)} heads on three quarters of the prompts"
            for name, number in self.frequent.items()
        ]


def count_text(number: Interval) -> str:
    """A number of heads with its interval, in whole numbers: 4 [4, 5]."""
    return f"{number.value} [{number.low}, {number.high}]"


@dataclass(frozen=True)
class Layers:
    """By series and layer [L]: how many heads exceed the threshold on a prompt, and the largest copy magnitude.

    on_a_prompt: heads of all layers together; uniform: the mean magnitude of uniform attention; c: of the threshold
    c / n_t; heads: of the model.
    """

    setting: Setting
    counts: Mapping[Series, Intervals]
    largest: Mapping[Series, Intervals]
    on_a_prompt: Mapping[Series, Interval]
    uniform: float
    c: float
    heads: int

    @classmethod
    def of(cls, setting: Setting, series: Mapping[Series, Reading], c: float) -> Layers:
        correct = series[Series.CORRECT]
        pairs = {name: (reading.magnitude, reading.n_t) for name, reading in series.items()}
        return cls(
            setting,
            counts={name: measures.mean_head_count(*pair, c) for name, pair in pairs.items()},
            largest={name: measures.mean_max_magnitude(magnitude) for name, (magnitude, _) in pairs.items()},
            on_a_prompt={name: measures.heads_on_a_prompt(*pair, c) for name, pair in pairs.items()},
            uniform=measures.uniform_magnitude(correct.n_t),
            c=c,
            heads=int(np.prod(correct.magnitude.shape[1:])),
        )

    def figure(self) -> Figure:
        texts = [f"{name.label} {v:.1f} [{low:.1f}, {high:.1f}]" for name, (v, low, high) in self.on_a_prompt.items()]
        said = f"Of {self.heads} heads, above threshold on a prompt:\n{', '.join(texts[:2])},\n{', '.join(texts[2:])}"
        title = f"{said}\n{self.setting}"
        return plots.layer_curves(self.counts, self.largest, self.c * self.uniform, self.uniform, title)


# ------------------------------------------------------------------------------------------------ specificity


@dataclass(frozen=True)
class HeldOut:
    """Heads that were chosen on one half of the prompts, and what they do on the other.

    judged: how many of them are confirmed; against: by what the magnitude is compared with, the contrasts on the
    held-out half; verdicts [L, H]: on the half that chooses, of `chosen_on` prompts; frequent: heads above the
    threshold on three of four of all prompts; level: the mean threshold.
    """

    setting: Setting
    judged: Specificity
    against: Mapping[str, Contrast]
    verdicts: NDArray[np.str_]
    chosen_on: int
    frequent: int
    level: float

    @classmethod
    def of(
        cls,
        setting: Setting,
        series: Mapping[Series, Reading],
        c: float,
        choose: NDArray[np.int64],
        measure: NDArray[np.int64],
    ) -> HeldOut:
        """choose, measure: the numbers of the prompts in the halves. Raises ValueError where a series is missing."""
        if missing := {Series.CORRECT, Series.WRONG, Series.OTHER_WORD} - set(series):
            raise ValueError(f"specificity needs what is not appended: {', '.join(sorted(missing))}")
        whole = series[Series.CORRECT]
        chosen = whole.half(choose).verdicts(c)
        correct = whole.half(measure)
        wrong = series[Series.WRONG].half(measure).magnitude
        other = series[Series.OTHER_WORD].half(measure).magnitude
        against = {
            "than at other tokens": measures.contrast(correct.magnitude, correct.control),
            "than with a wrong label": measures.contrast(correct.magnitude, wrong),
            "than with another word": measures.contrast(correct.magnitude, other),
        }
        judged = measures.specificity(chosen, correct.verdicts(c), correct.magnitude, wrong, other, correct.control)
        frequent = int(whole.frequent(c).value)
        level = c * measures.uniform_magnitude(whole.n_t)
        return cls(setting, judged, against, chosen, len(choose), frequent, level)

    def __str__(self) -> str:
        return str(self.judged)

    def table(self) -> pd.DataFrame:
        """The most specific heads, one row each: the magnitude on the held-out half, and how much more that is."""
        rows = {
            head_name(head): {
                "magnitude": f"{next(iter(self.against.values())).first[head]:.2f}",
                **{name: measures.difference_text(contrast, head) for name, contrast in self.against.items()},
            }
            for head in self.judged.strongest
        }
        return pd.DataFrame.from_dict(rows, orient="index", columns=["magnitude", *self.against])

    def lines(self, most: int | None = None) -> list[str]:
        """The judgement, and a line for each of the most specific heads."""
        return [str(self.judged), *measures.head_lines(self.judged.strongest[:most], self.against)]

    def figure(self, planted: Planted) -> Figure:
        """Beside the model's heads the planted ones."""
        judged = self.judged
        named = {head: head_name(head) for head in judged.strongest}
        title = (
            f"{self.frequent} of {self.verdicts.size} heads read the token before the label, {judged.confirmed} more "
            f"than elsewhere;\nof these {judged.than_other} read it more than behind another word, "
            f"{judged.than_wrong} more than behind a wrong label\n{self.setting}"
        )
        panels = [
            plots.Panel(
                f"{self.setting.model}, held-out half", self.against["than at other tokens"], self.verdicts, named
            ),
            plots.Panel("planted heads, by what they read", planted.contrast, planted.verdicts, planted.roles),
        ]
        return plots.specificity(panels, self.level, title)

    def values(self) -> dict[str, Any]:
        return {
            "judged": self.judged,
            "held out": self.against,
            "chosen on": self.chosen_on,
            "verdicts": self.verdicts,
        }


@dataclass(frozen=True)
class Planted:
    """Heads whose role is known: the contrast of label and other tokens, and the verdicts [L, H]."""

    contrast: Contrast
    verdicts: NDArray[np.str_]
    roles: Mapping[Head, str]

    @classmethod
    def of(cls, reading: Reading, c: float, roles: Mapping[Head, str]) -> Planted:
        return cls(measures.contrast(reading.magnitude, reading.control), reading.verdicts(c), roles)

    def __str__(self) -> str:
        return "planted heads: " + "; ".join(f"{role} -> {self.verdicts[head]}" for head, role in self.roles.items())


@dataclass(frozen=True)
class PlantedErrors:
    """How often planted heads are misjudged, by the noise on their weights: times and number of each kind of error."""

    by_noise: Mapping[float, Mapping[str, tuple[int, int]]]

    def lines(self) -> list[str]:
        lines = []
        for noise, errors in self.by_noise.items():
            texts = [f"{times} of {number} {kind}" for kind, (times, number) in errors.items()]
            lines.append(f"planted heads with noise of {noise} on their weights: {', '.join(texts)}")
        return lines


# ------------------------------------------------------------------------------------------------ the two grids


@dataclass(frozen=True)
class DataSets:
    """On how many prompts each head exceeds the threshold, by data set and series [L, H]."""

    setting: Setting
    maps: Mapping[str, Mapping[Series, NDArray[np.int64]]]

    def figure(self) -> Figure:
        model, k, prompts = self.setting.model, self.setting.k, self.setting.prompts
        title = "On how many prompts each head reads the token before the label"
        title += f"\n{model}, k = {k}, {prompts} prompts per data set"
        return plots.count_grid(self.maps, dict.fromkeys(self.maps, prompts), title)


@dataclass(frozen=True)
class Growth:
    """How many heads exceed the threshold on a prompt, by the number of demonstrations."""

    setting: Setting
    growth: measures.Growth

    def table(self) -> pd.DataFrame:
        """One row for each k."""
        columns = {f"{name.label}, c / n_t": values for name, values in self.growth.counts.items()}
        columns["correct label, one threshold"] = self.growth.fixed
        texts = {name: {k: str(Interval(*value)) for k, value in values.items()} for name, values in columns.items()}
        return pd.DataFrame(texts).rename_axis("k")

    def figure(self) -> Figure:
        ks, (first, last, fixed_first, fixed_last) = sorted(self.growth.fixed), self.growth.ends()
        title = (
            f"Heads above c / n_t on a prompt, k = {ks[0]} to {ks[-1]}: {first:.1f} to {last:.1f}; above one threshold "
            f"{fixed_first:.1f} to {fixed_last:.1f}"
            f"\n{self.setting.model}, {self.setting.dataset}, {self.setting.prompts} prompts for each k"
        )
        counts, fixed, maps = self.growth.counts, self.growth.fixed, self.growth.maps
        return plots.by_demonstrations(counts, fixed, maps, self.setting.prompts, title)


# ------------------------------------------------------------------------------------------------ cuts


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
    whole = answers[WHOLE].scores
    cut: dict[tuple[Part, str], list[NDArray[np.float64]]] = {}
    control: dict[tuple[Part, str], list[NDArray[np.float64]]] = {}
    for condition, answer in answers.items():
        if condition.cut is not None and score in answer.scores:
            kind = cut if condition.draw is None else control
            kind.setdefault((condition.part, str(condition.cut)), []).append(answer.scores[score] - whole[score])
    return _table(cut, comparisons), _table(control, comparisons)


def _table(differences: Mapping[tuple[Part, str], list[NDArray[np.float64]]], comparisons: int) -> Table:
    """The interval of the mean of the draws, by part and cut."""
    table: Table = {}
    for (part, name), draws in differences.items():
        table.setdefault(part, {})[name] = paired(np.mean(draws, axis=0), comparisons)
    return table


def paired(differences: NDArray[np.floating], comparisons: int = 1) -> Interval:
    """The mean of differences [N] with its interval."""
    return mean_interval(differences, comparisons=comparisons)


def causal_finding(lost: Table, controls: Table, done: bool, cut: Cut = Cut.SI_TO_YI) -> str:
    """What cutting the labels from their forerunners in all layers tells, by its interval and that of its controls.

    A loss counts where the interval lies below 0 and below the controls' interval; a task that is not done tells
    nothing.
    """
    change, random = lost[EVERYWHERE][cut], controls[EVERYWHERE][cut]
    said = f"cut {cuts.TITLES[cut]} in all layers: {signed(change)} nats, random cells {signed(random)}: "
    if not done:
        return said + "task not done, so this tells nothing of in-context learning"
    if change.high < min(0.0, random.low):
        return said + "the copying is used"
    if change.low > max(0.0, random.high):
        return said + "without the copying the label is likelier"
    return said + "a causal null, the copying was not shown to be used"


@dataclass(frozen=True)
class Task:
    """The data sets that were tried, in this order, until the model did one."""

    checks: tuple[TaskCheck, ...]

    @property
    def check(self) -> TaskCheck:
        """The check of the data set that is measured: the one that is done, else the first."""
        return self.checks[-1] if self.checks[-1].done else self.checks[0]

    @property
    def mark(self) -> str:
        """What stands in front of a title."""
        return "" if self.check.done else "TASK NOT DONE: "

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))

    def table(self) -> pd.DataFrame:
        """One row for each data set that was tried."""
        rows = {
            check.dataset: {
                "task done": check.done,
                "accuracy": f"{check.accuracy:.3f}",
                "at least": f"{check.bound:.3f}",
                "majority label": f"{check.majority:.3f}",
                "vote of the demonstrations": f"{check.vote:.3f}",
                "prompts": check.n,
            }
            for check in self.checks
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def check_lines(self) -> list[str]:
        return [str(self.check)]

    def values(self) -> dict[str, Any]:
        return {"task": [str(check) for check in self.checks]}


@dataclass(frozen=True)
class Tables:
    """What the model loses when a step of the circuit is cut: answers by condition, with and without demonstrations."""

    setting: Setting
    task: Task
    cut: Mapping[Condition, Answers]
    alone: Mapping[Condition, Answers]

    @cached_property
    def together(self) -> tuple[Table, Table]:
        """Changes of the log-probability by cuts and by random cells; all intervals hold together."""
        return changes(self.cut, comparisons=len(self.cut) - 1)

    @property
    def finding(self) -> str:
        """What the cut of the labels from their forerunners tells."""
        return causal_finding(*changes(self.cut), self.task.check.done)

    @property
    def worth(self) -> str:
        """Accuracies of the whole model with and without demonstrations on the same queries, paired."""
        shown, bare = self.cut[WHOLE], self.alone[WHOLE]
        gained = {score: signed(paired(shown.scores[score] - bare.scores[score])) for score in bare.scores}
        texts = [f"{a.value:.3f} [{a.low:.3f}, {a.high:.3f}]" for a in (shown.accuracy, bare.accuracy)]
        return (
            f"accuracy with demonstrations {texts[0]}, without {texts[1]}, of {len(shown.gold)} prompts: they change "
            f"it by {gained[Score.ACCURACY]}, and the gold label's log-probability by "
            f"{gained[Score.LOG_PROBABILITY]} nats"
        )

    def __str__(self) -> str:
        return f"{self.worth}\n{self.finding}"

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

    def figure(self) -> Figure:
        s = self.setting
        title = f"{self.task.mark}{s}: change of the gold label's log-probability"
        return plots.ablation_map(*self.together, cuts.TITLES, title)

    def check_lines(self) -> list[str]:
        return [self.finding]

    def values(self) -> dict[str, Any]:
        lost, controls = self.together
        scores = {score.value: changes(self.cut, score)[0] for score in Score}
        return {
            "ablation": scores | {"corrected intervals": lost, "controls": controls, "finding": self.finding},
            "without demonstrations": changes(self.alone)[0],
        }


# ------------------------------------------------------------------------------------------------ induction heads


@dataclass(frozen=True)
class LabelReads:
    """What the query's forerunner reads of the labels (Fig. 6 left, middle).

    reads [N, L, H, k]: A[s_q, y_i]; similarity [N, L, k]: of the forerunners' states; gold, n_t [N]; demonstrations
    [N, k]; classes: number of labels.
    """

    reads: Floats
    similarity: Floats
    gold: NDArray[np.int64]
    demonstrations: NDArray[np.int64]
    n_t: NDArray[np.int64]
    classes: int


@dataclass(frozen=True)
class InductionHeads:
    """Induction heads by layer [L], and the share of the query's own label in what is read.

    heads: how many on a prompt; shares: of each reader; null: what the best head has by chance; levels: the share of
    uniform attention, and the largest one that is possible; correct [N, L, H]: whether each head prefers the query's
    own label. request: of the record.
    """

    setting: Setting
    task: Task
    heads: Mapping[Inducing, Intervals]
    shares: Mapping[Reader, Intervals]
    null: Intervals
    levels: Mapping[str, float]
    correct: NDArray[np.bool_]
    request: dict[str, Any]

    @classmethod
    def of(
        cls, setting: Setting, task: Task, reads: LabelReads, k: int, c: float, request: dict[str, Any]
    ) -> InductionHeads:
        gold, shown = reads.gold, reads.demonstrations
        induction = measures.induction(reads.reads, gold, shown)
        some, correct = measures.induction_counts(induction, reads.n_t, reads.classes, k, c)
        shares = {
            Reader.BEST: induction.likelihood.max(axis=2),
            Reader.MEAN: induction.likelihood.mean(axis=2),
            Reader.SIMILARITY: measures.similarity_likelihood(reads.similarity, gold, shown),
        }
        uniform, ceiling = measures.uniform_likelihood(gold, shown)
        return cls(
            setting,
            task,
            heads={
                Inducing.ANY: mean_intervals(some.sum(axis=2)),
                Inducing.CORRECT: mean_intervals(correct.sum(axis=2)),
            },
            shares={name: mean_intervals(values) for name, values in shares.items()},
            null=measures.best_head_null(reads.reads, gold, shown),
            levels={"uniform": uniform, "ceiling": ceiling},
            correct=correct,
            request=request,
        )

    @property
    def beyond_chance(self) -> list[int]:
        """The layers whose best head prefers the query's label beyond chance."""
        return measures.beyond_chance(self.shares[Reader.BEST], self.null)

    def __str__(self) -> str:
        beyond, layers = self.beyond_chance, len(self.null.value)
        return f"layers whose best head prefers the query's label beyond chance: {len(beyond)} of {layers}: {beyond}"

    def figure(self) -> Figure:
        beyond, layers = len(self.beyond_chance), len(self.null.value)
        title = f"{self.task.mark}In {beyond} of {layers} layers the best head prefers the query's label beyond chance"
        return plots.induction_layers(self.heads, self.shares, self.null, self.levels, f"{title}\n{self.setting}")

    def values(self) -> dict[str, Any]:
        return {
            "induction": {
                "heads": {name: curve(values) for name, values in self.heads.items()},
                "likelihood": {name: curve(values) for name, values in self.shares.items()},
                "null": curve(self.null),
                "levels": self.levels,
            }
        }


# ------------------------------------------------------------------------------------------------ head by head


@dataclass(frozen=True)
class HeadCuts:
    """The gold label's log-probability, in nats, over the whole vocabulary; of a label of several tokens, its first.

    whole [N]: of the whole model; cut [N, M]: where in one head alone no label of the demonstrations may read its
    forerunner; control [N, M]: where each may not read another token, drawn at random. heads: those M.
    """

    heads: tuple[Head, ...]
    whole: Floats
    cut: Floats
    control: Floats

    @property
    def contrast(self) -> Contrast:
        """What each head's copying is worth, [M]: with other cells cut, minus with those to the forerunners cut."""
        return measures.contrast(self.control, self.cut)


@dataclass(frozen=True)
class HeadEffects:
    """Attention is not copying: what heads read, what they move, and what the gold label loses without them.

    counts, moved [L, H]: on the prompts of `setting`; worth: maps [L, H], NaN where a head was not cut; number: heads
    that were cut, each on `prompts` prompts.
    """

    setting: Setting
    task: Task
    counts: NDArray[np.int64]
    moved: Floats
    worth: Contrast
    number: int
    prompts: int

    @classmethod
    def of(cls, setting: Setting, task: Task, counts: NDArray[np.int64], moved: Floats, cut: HeadCuts) -> HeadEffects:
        worth = measures.on_map(cut.contrast, cut.heads, (moved.shape[0], moved.shape[1]))
        return cls(setting, task, counts, moved, worth, len(cut.heads), len(cut.whole))

    @property
    def costly(self) -> int:
        """How many of the heads cost the gold label more than other cells do."""
        return int((self.worth.low > 0).sum())

    def figure(self) -> Figure:
        title = (
            f"{self.task.mark}{self.costly} of {self.number} heads, each cut alone, cost the gold label more than "
            f"other cells do\n{self.setting}; cut on {self.prompts} prompts of {self.task.check.dataset}"
        )
        return plots.head_effects(self.counts, self.setting.prompts, self.moved, self.worth, title)

    def values(self) -> dict[str, Any]:
        return {"head effects": self.worth}


# ------------------------------------------------------------------------------------------------ all together


@dataclass(frozen=True)
class NoDemonstrations:
    """What stands in the place of every causal result where k = 0: nothing to draw or to store."""

    def __str__(self) -> str:
        return NO_DEMONSTRATIONS

    def table(self) -> None:
        return None

    def figure(self) -> None:
        return None

    def values(self) -> dict[str, Any]:
        return {}


def check_lines(
    measured: Magnitudes,
    counts: Counts,
    held_out: HeldOut,
    planted: Planted,
    errors: PlantedErrors,
    task: Task | NoDemonstrations,
    tables: Tables | NoDemonstrations,
) -> list[str]:
    """What a fresh run of the notebook must reproduce."""
    layers, heads = measured.magnitude.shape[2:]
    fewest, most = measured.tokens
    lines = [f"heads {layers} x {heads}; prompts {measured.setting.prompts}; tokens {fewest}-{most}"]
    lines += [*counts.lines(), *held_out.lines(3), str(planted), *errors.lines()]
    if isinstance(task, NoDemonstrations) or isinstance(tables, NoDemonstrations):
        return [*lines, NO_DEMONSTRATIONS]
    return [*lines, *task.check_lines(), *tables.check_lines()]


def published(
    layers: Layers, counts: Counts, induction: InductionHeads | NoDemonstrations
) -> dict[str, tuple[float, float]]:
    """What the paper's values are compared with, see `measures.published_here`."""
    correct = Series.CORRECT
    ours = layers.counts[correct], layers.largest[correct], counts.frequent[correct]
    if isinstance(induction, NoDemonstrations):
        return measures.published_here(*ours)
    return measures.published_here(*ours, induction.correct, induction.request)


Causal = Task | Tables | InductionHeads | HeadEffects | NoDemonstrations


def values(
    measured: Magnitudes,
    counts: Counts,
    layers: Layers,
    held_out: HeldOut,
    planted: Planted,
    datasets: DataSets,
    growth: Growth,
    causal: Sequence[Causal],
) -> dict[str, Any]:
    """The plotted numbers, as the values file has them; causal: the parts that need demonstrations."""
    stored: dict[str, Any] = {
        "request": measured.request,
        "model": measured.origin,
        "counts": counts.maps,
        "frequent_heads": counts.frequent,
        "mean_head_count": {name: curve(intervals) for name, intervals in layers.counts.items()},
        "mean_max_magnitude": {name: curve(intervals) for name, intervals in layers.largest.items()},
        "specificity": held_out.values(),
        "grid_counts": datasets.maps,
        "by_k": growth.growth,
        "planted_verdicts": planted.verdicts,
        "moved": measured.moved,
    }
    for part in causal:
        stored |= part.values()
    return stored
