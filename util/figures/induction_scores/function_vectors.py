"""Function-vector heads beside induction heads: which they are, and what is lost without either. No model is needed.

Sources: Todd et al. 2024, "Function Vectors in Large Language Models", for the scores; Yin & Steinhardt 2025, "Which
Attention Heads Matter for In-Context Learning?", sections 4 and 5, for the comparison. They exclude the best 2 % of the
heads of one kind from the other; here the best n of either kind are excluded from the other, n being the size of all
sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from util.figures.induction_scores import function_vector_plots
from util.figures.induction_scores.task_plots import RowPanel
from util.roles.results import FunctionVectorHeads, HeadScores
from util.show.style import WIDTH
from util.stats.controls import layer_matched, norm_matched, shortage
from util.stats.heads import Head, head_name, top
from util.stats.intervals import Interval, accuracy, bootstrap_interval, mean_interval, paired_interval, resampled
from util.stats.splits import halves
from util.stats.tests import Rank, rank_p

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

WHOLE = "whole model"
INDUCTION, FUNCTION_VECTOR = "induction", "FV"
INDUCTION_ALONE, FUNCTION_VECTOR_ALONE = "induction, not FV", "FV, not induction"
KINDS = (INDUCTION, FUNCTION_VECTOR, INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
PAIRS, COPIES = "word pairs", "copied tokens"  # what is measured, beside the classification task
ROOM = 0.05  # how much more probable intact demonstrations must make the answer, for indirect effects to be measured


class Ablated(NamedTuple):
    """A set of heads that is ablated: of a kind, or (draw from 1 on) a control set of that kind. WHOLE: none is."""

    kind: str
    draw: int = 0

    @property
    def name(self) -> str:
        """How values files call it."""
        return f"{self.kind}, control {self.draw}" if self.draw else self.kind


# ------------------------------------------------------------------------------------------------ sets of heads


@dataclass(frozen=True)
class HeadSets:
    """Sets of n heads by kind, and control sets of each.

    sets: the best heads by prefix matching and by AIE, and the best that are not among the best n of the other.
    controls: other heads, as many, that are in neither list of the best n. matched: "layers" where every layer has as
    many of them as of the set, "norms" where there are too few such sets: they write as much as the set then.
    """

    n: int
    sets: Mapping[str, list[Head]]
    controls: Mapping[str, list[list[Head]]]
    matched: Mapping[str, str]

    @property
    def ablations(self) -> dict[Ablated, list[Head]]:
        """The heads that are ablated, those of the whole model, none, first."""
        kinds = {Ablated(kind): heads for kind, heads in self.sets.items()}
        draws = {Ablated(kind, i): heads for kind in self.sets for i, heads in enumerate(self.controls[kind], 1)}
        return {Ablated(WHOLE): [], **kinds, **draws}


def check_size(n: int, heads: int) -> None:
    """Raises ValueError for sets of n heads that are too large for control sets, in a model of so many heads."""
    if not 1 <= n <= heads // 3:
        raise ValueError(f"n = {n}: give 1 to {heads // 3}, a third of the heads, so that there are others as controls")


def head_sets(matching: Floats, effect: Floats, norms: Floats, n: int, draws: int, seed: int = 0) -> HeadSets:
    """Returns the sets of n heads by prefix matching [L, H] and AIE [L, H], and control sets of each.

    norms [L, H]: how long what each head writes is. Raises what `check_size` raises.
    """
    check_size(n, matching.size)
    best = {INDUCTION: top(matching, n), FUNCTION_VECTOR: top(effect, n)}
    sets = best | {
        INDUCTION_ALONE: _top_without(matching, n, best[FUNCTION_VECTOR]),
        FUNCTION_VECTOR_ALONE: _top_without(effect, n, best[INDUCTION]),
    }
    eligible = np.ones(matching.shape, bool)
    eligible[tuple(np.array(best[INDUCTION] + best[FUNCTION_VECTOR]).T)] = False
    controls, matched = {}, {}
    for kind, heads in sets.items():
        drawn = [] if shortage(heads, eligible) else layer_matched(heads, eligible, draws, seed)
        by_layer = len(drawn) == draws
        matched[kind] = "layers" if by_layer else "norms"
        controls[kind] = drawn if by_layer else norm_matched(heads, eligible, norms, draws, seed)
    return HeadSets(n, sets, controls, matched)


def _top_without(score: Floats, n: int, others: list[Head]) -> list[Head]:
    """The n heads with the highest score that are none of the others."""
    return [head for head in top(score, n + len(others)) if head not in others][:n]


# ------------------------------------------------------------------------------------------------ the result


@dataclass(frozen=True)
class FunctionVectors:
    """Function-vector heads and induction heads of a model, and what it does without either.

    heads: indirect effects; scores: prefix matching. pairs: which word pairs are answered right, [N] by ablation and
    task; classified: which queries of the classification task `task` are, [N]; copied: the share of tokens that are
    copied in each repeated sequence, [N]. What heads are chosen by is not measured again: other queries are asked, and
    other sequences repeated. chance: the accuracy of guessing in the classification task.
    """

    heads: FunctionVectorHeads
    scores: HeadScores
    sets: HeadSets
    pairs: Mapping[Ablated, Mapping[str, Bools]]
    task: str
    chance: float
    classified: Mapping[Ablated, Bools]
    copied: Mapping[Ablated, Floats]

    # -------------------------------------------------------------------------------------------- scores

    @cached_property
    def correlation(self) -> Interval:
        """Spearman's rank correlation of prefix matching and AIE over all heads.

        The interval is over the sequences and the prompts that the scores are measured on, for these heads.
        """
        matching, units = self.scores.scores["prefix_matching"], self.heads.units
        drawn = zip(resampled(len(matching), 1000), resampled(len(units), 1000, seed=1), strict=True)
        redrawn = [
            _spearman(np.tensordot(of_sequences, matching, 1), np.tensordot(of_prompts, units, 1))
            for of_sequences, of_prompts in drawn
        ]
        return bootstrap_interval(_spearman(self.scores.mean(), self.heads.mean()), np.array(redrawn), within=(-1, 1))

    @property
    def reliability(self) -> float:
        """The rank correlation of the AIE of one half of the prompts with that of the other.

        Most heads have next to no effect, and are in an order that differs between prompts: no other score can agree
        with the AIE much better than it does with itself.
        """
        first, second = halves(len(self.heads.units))
        return _spearman(self.heads.units[first].mean(axis=0), self.heads.units[second].mean(axis=0))

    @property
    def both(self) -> list[Head]:
        """The heads that are among the best n by either score, best induction head first."""
        return [head for head in self.sets.sets[INDUCTION] if head in self.sets.sets[FUNCTION_VECTOR]]

    def depth(self, kind: str) -> float:
        """Returns the mean depth of a set: from 0, all in the first layer, to 1, all in the last."""
        layers = len(self.scores.mean())
        return float(np.mean([layer for layer, _ in self.sets.sets[kind]])) / max(layers - 1, 1)

    def best(self, count: int = 10) -> pd.DataFrame:
        """Returns the heads with the highest AIE, with intervals over prompts within tasks; a column for each task."""
        effects, matching = self.heads.intervals(), self.scores.intervals()
        by_task = {task.task: task.effects.mean(axis=0) for task in self.heads.tasks}
        rows = {}
        for head in top(effects.value, count):
            value, low, high = effects[head]
            row = {"AIE": f"{value:.3f} [{low:.3f}, {high:.3f}]", "prefix matching": str(matching[head])}
            rows[head_name(head)] = row | {task: f"{values[head]:.3f}" for task, values in by_task.items()}
        return pd.DataFrame.from_dict(rows, orient="index")

    # -------------------------------------------------------------------------------------------- ablations

    @cached_property
    def measured(self) -> dict[str, dict[Ablated, NDArray[Any]]]:
        """What is measured, by its name: right answers [N], or shares of each sequence [N], by ablation."""
        pairs = {ablated: np.concatenate([*tasks.values()]) for ablated, tasks in self.pairs.items()}
        return {PAIRS: pairs, self.task: dict(self.classified), COPIES: dict(self.copied)}

    @property
    def asked(self) -> dict[str, str]:
        """How much each measure is made of: "40 queries", or sequences where tokens are copied."""
        counts = {measure: len(rows[Ablated(WHOLE)]) for measure, rows in self.measured.items()}
        return {
            measure: f"{count} {'sequences' if measure == COPIES else 'queries'}" for measure, count in counts.items()
        }

    def interval(self, measure: str, ablated: Ablated) -> Interval:
        """Returns an accuracy with its interval: over queries, or over sequences."""
        return _share(self.measured[measure][ablated])

    def controls(self, measure: str, kind: str) -> list[float]:
        """Returns the accuracies of the control sets of a kind."""
        return [float(v.mean()) for a, v in self.measured[measure].items() if a.kind == kind and a.draw]

    def rank(self, measure: str, kind: str) -> Rank:
        """Returns the p of a kind's accuracy among its control sets: how seldom one of them costs as much."""
        value = float(self.measured[measure][Ablated(kind)].mean())
        return rank_p(value, self.controls(measure, kind), tail="low")

    def contrast(self, measure: str) -> Interval:
        """Returns how much more is lost without the FV heads alone than without the induction heads alone, paired."""
        without_induction, without_fv = (
            self.measured[measure][Ablated(kind)] for kind in (INDUCTION_ALONE, FUNCTION_VECTOR_ALONE)
        )
        more = without_induction.astype(np.float64) - without_fv
        return paired_interval(more) if without_fv.dtype == bool else mean_interval(more, within=(-1, 1))

    def table(self) -> pd.DataFrame:
        """Returns accuracies by what is measured and ablated: their interval, the range of control sets, and p."""
        rows = {}
        for measure, asked in self.asked.items():
            named = f"{measure}, {asked}"
            rows[named, WHOLE] = {"accuracy": str(self.interval(measure, Ablated(WHOLE))), "controls": "", "p": ""}
            for kind in KINDS:
                drawn, rank = self.controls(measure, kind), self.rank(measure, kind)
                rows[named, kind] = {
                    "accuracy": str(self.interval(measure, Ablated(kind))),
                    "controls": f"{min(drawn):.2f}-{max(drawn):.2f}",
                    "p": f"{rank.p:.2f}",
                }
        table = pd.DataFrame.from_dict(rows, orient="index")
        return table.set_axis(pd.MultiIndex.from_tuples(rows, names=["measured", "ablated"]))

    # -------------------------------------------------------------------------------------------- what is shown

    def lines(self) -> list[str]:
        """Returns how the two kinds of heads agree, where they are, and what is lost without either, in lines."""
        n, heads = self.sets.n, self.scores.mean().size
        demonstrations = ", ".join(
            f"{task.task} {task.corrupted.mean():.2f} to {task.intact.mean():.2f}" for task in self.heads.tasks
        )
        shared = ", ".join(map(head_name, self.both)) or "none"
        lines = [
            f"probability of the answer, {self.heads.corruption} to intact demonstrations: {demonstrations}",
            f"rank correlation of prefix matching and AIE: {self.correlation}; of the AIE on two halves of the "
            f"prompts: {self.reliability:.2f}",
            f"of the best {n} heads both have {len(self.both)} (by chance {n * n / heads:.1f}): {shared}",
            f"mean depth, 0 to 1: induction {self.depth(INDUCTION):.2f}, FV {self.depth(FUNCTION_VECTOR):.2f}",
        ]
        if self.heads.room < ROOM:
            lines.insert(1, "no room: indirect effects say nothing here")
        lines += [f"left out, {why}" for why in self.heads.left_out.values()]
        lost = [f"{measure} {self.contrast(measure)}" for measure in self.measured]
        lines.append(f"lost without FV alone, more than without induction alone: {'; '.join(lost)}")
        by_norm = [kind for kind, how in self.sets.matched.items() if how == "norms"]
        return [
            *lines,
            f"controls matched by norm, as there are too few sets by layer: {'; '.join(by_norm) or 'none'}",
        ]

    @property
    def setting(self) -> str:
        """The model and what heads are chosen by."""
        tasks, prompts = len(self.heads.tasks), len(self.heads.units)
        return (
            f"{self.heads.model_title}, {self.sets.n} heads of either kind; AIE on {prompts} prompts of {tasks} tasks"
        )

    @property
    def finding(self) -> str | None:
        """How far the two kinds of heads are the same; None where there is no room for indirect effects."""
        if self.heads.room < ROOM:
            return None
        n, by_chance = self.sets.n, self.sets.n**2 / self.scores.mean().size
        return (
            f"{len(self.both)} of the {n} best induction heads are among the {n} best FV heads ({by_chance:.1f} by "
            f"chance); rank correlation {self.correlation}"
        )

    def figure(self, *, width: float = WIDTH) -> Figure:
        """Returns the scores of all heads by both measures, the map of AIE, and accuracies by what is ablated."""
        panels = [
            RowPanel(
                f"{measure.replace('_', ' ')}\n{self.asked[measure]}",
                {name: self.interval(measure, Ablated(name)) for name in (WHOLE, *KINDS)},
                {name: self.controls(measure, name) for name in KINDS},
                self.chance if measure == self.task else None,
            )
            for measure in self.measured
        ]
        best = self.sets.sets
        return function_vector_plots.function_vectors(
            self.scores.mean(), self.heads.intervals(), best[INDUCTION], best[FUNCTION_VECTOR], panels, self.finding,
            self.setting, width=width,
        )  # fmt: skip

    def values(self) -> dict[str, Any]:
        """Returns what the values file keeps."""
        effects = self.heads.intervals()
        return {
            "corruption": self.heads.corruption,
            "AIE": {"mean": effects.value, "low": effects.low, "high": effects.high},
            "by_task": {task.task: task.effects.mean(axis=0) for task in self.heads.tasks},
            "probability": {
                task.task: {"intact": mean_interval(task.intact), "corrupted": mean_interval(task.corrupted)}
                for task in self.heads.tasks
            },
            "rank_correlation": self.correlation,
            "reliability": self.reliability,
            "sets": self.sets.sets,
            "both": self.both,
            "depth": {kind: self.depth(kind) for kind in KINDS},
            "controls": self.sets.controls,
            "matched": self.sets.matched,
            "asked": self.asked,
            "accuracy": {
                measure: {ablated.name: self.interval(measure, ablated) for ablated in rows}
                for measure, rows in self.measured.items()
            },
            "pairs": {
                ablated.name: {task: accuracy(right) for task, right in tasks.items()}
                for ablated, tasks in self.pairs.items()
                if not ablated.draw
            },
            "contrast": {measure: self.contrast(measure) for measure in self.measured},
        }

    def check_lines(self) -> list[str]:
        """Returns what a fresh run must reproduce, rounded as far as machines agree."""
        effect, best = self.heads.mean(), self.sets.sets[FUNCTION_VECTOR]
        lines = [f"best FV heads: {', '.join(f'{head_name(head)} {effect[head]:.2f}' for head in best)}"]
        lines += [f"among the best induction heads: {len(self.both)}"]
        for measure in self.measured:
            shown = [f"{kind} {self.interval(measure, Ablated(kind)).value:.2f}" for kind in (WHOLE, *KINDS)]
            lines.append(f"{measure}: {', '.join(shown)}")
        return lines


def _spearman(first: Floats, second: Floats) -> float:
    return float(spearmanr(first.ravel(), second.ravel()).statistic)


def _share(values: NDArray[Any]) -> Interval:
    """The share of right answers [N], or the mean of shares [N], with its interval."""
    return accuracy(values) if values.dtype == bool else mean_interval(values, within=(0, 1))
