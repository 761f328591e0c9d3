"""Verdicts on the five claims about edges, from arrays alone, and how many queries a verdict needs.

The claims are Bakalova et al.'s (COLM 2025), the rules are our own. A claim is a mean over distinct queries that should
be above or below a bound:

1. few edges explain most of the performance: acc(C) / acc(FULL) > `share`, and C keeps less than `size` of all pairs
2. without contextualisation some task loses: acc(FULL) - acc(AGG-ONLY) > `margin` in a task
3. contextualisation brings it back: acc(FULL) - acc(CTX+AGG) < `margin` in every task that loses
4. it loses more with ambiguous demonstrations: by more than `margin`, on prompts that the whole model solves
5. first contextualise, then aggregate: less than `margin` is lost without either in its other half of the layers

A claim on several tasks or parts of the model keeps its error: what has to be true of one of them is corrected (Holm),
what has to be true of all of them needs no correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy import stats

from util.edges import names
from util.edges.edge import TYPE_PAIRS
from util.figures.edge_ablation.measures import Rows, by_query
from util.prompts import word_pairs
from util.records.checked import Count, Number, Share, checked
from util.stats.intervals import Interval, wilson
from util.stats.tests import holm

AMBIGUOUS = "ambiguous_present_past"  # the task of claim 4
HOLDS, REFUTED, UNDECIDED, NOT_DONE = "holds", "refuted", "undecided", "task not done"
MOST = 10**7  # queries: what needs more has no number
Margin = Annotated[Number, Field(gt=0, lt=1)]


@checked
class Rule:
    """What claims have to show, fixed before they are measured.

    floor: a model does a task when its accuracy is surely above chance and above this; it is twice the margin or more,
    as a loss of the margin would else be more than half of what there is. solved: prompts that claim 4 asks for. error:
    of a verdict, in either direction; 0.025 goes with intervals of 95 %.
    """

    share: Share = 0.9
    size: Share = 0.5
    margin: Margin = 0.1
    floor: Annotated[Number, Field(ge=0, lt=1)] = 0.4
    solved: Count = 10
    error: Margin = 0.025


RULE = Rule()


@dataclass(frozen=True)
class Part:
    """One comparison of a claim, in one task or part of the model: value [low, high] (95 %) against the bound.

    above: whether the claim wants it above the bound. queries: distinct ones that were asked. needed: the least number
    of them that decides at the measured effect (half of the time: no more is known), None where that is no number.
    available: how many the list has. p: one-sided, that the claim is not so and that it is so, without correction.
    """

    name: str
    verdict: str
    value: float
    low: float
    high: float
    bound: float
    above: bool
    queries: int
    needed: int | None
    available: int | None
    p: tuple[float, float]

    @property
    def extent(self) -> str:
        """The queries that were asked; where they do not decide, those that are needed and those that there are."""
        asked = f"{self.queries} queries"
        if self.verdict != UNDECIDED:
            return asked
        return f"{asked}; needs {self.needed or 'no number'}, has {self.available or 'unknown'}"


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict, the comparisons that it is from, and what else there is to say."""

    number: int
    text: str
    verdict: str
    parts: tuple[Part, ...]
    note: str = ""


@dataclass(frozen=True)
class Verdicts:
    """The five claims, in order."""

    claims: tuple[Claim, ...]

    @property
    def short(self) -> str:
        """Every claim and its verdict."""
        return "; ".join(f"{claim.number}. {claim.text} {claim.verdict}" for claim in self.claims)

    def table(self) -> pd.DataFrame:
        """A row for each comparison; a claim without one has a row of its own."""
        rows = []
        for claim in self.claims:
            title = f"{claim.number}. {claim.text}"
            for part in claim.parts:
                value = Interval(part.value, part.low, part.high)
                bound = f"{'>' if part.above else '<'} {part.bound:g}"
                rows.append((title, claim.verdict, part.name, part.verdict, str(value), bound, part.extent))
            if not claim.parts:
                rows.append((title, claim.verdict, claim.note, "", "", "", ""))
        columns = ["claim", "verdict", "comparison", "of it", "value", "bound", "queries"]
        return pd.DataFrame(rows, columns=columns).set_index(["claim", "verdict", "comparison"])


# ------------------------------------------------------------------------------------------------ one comparison


@dataclass(frozen=True)
class Sample:
    """Values in [-1, 1], one of each query, by what the rule needs of them: how many, mean, mean of squares."""

    n: int
    mean: float
    square: float

    @classmethod
    def of(cls, values: ArrayLike) -> Sample:
        """The sample of values [N]."""
        array = np.asarray(values, dtype=np.float64)
        return cls(len(array), float(array.mean()), float((array**2).mean()))

    def moments(self) -> tuple[float, float]:
        """The mean and its variance, with a value of 1 and one of -1 added (Bonett & Price 2012, for paired shares)."""
        mean = self.n * self.mean / (self.n + 2)
        return mean, max(0.0, (self.n * self.square + 2) / (self.n + 2) - mean**2) / (self.n + 2)


def tail_p(samples: Sequence[Sample], bound: float) -> tuple[float, float]:
    """p-values of the first mean (minus the second, if there are two): that it is not above a bound, and not below it.

    The larger of two: Wald's test with the added values, and an exact one. Of one sample that is the binomial test, as
    if all changes went in one direction (0 < bound < 1); of two, the chance that none of so many queries shows what
    would bring the difference to the bound, (1 - |difference - bound|)^n.
    """
    mean, variance, raw, n = _combined(samples)
    z, gap, net = (mean - bound) / np.sqrt(variance), raw - bound, n * raw
    above, below = float(stats.norm.sf(z)), float(stats.norm.cdf(z))
    if len(samples) > 1:
        exact = float(np.clip(1 - abs(gap), 0, 1) ** n)
        return (max(above, exact) if gap > 0 else 1.0), (max(below, exact) if gap < 0 else 1.0)
    many = float(stats.beta.cdf(bound, net, n - net + 1)) if net > 0 else 1.0  # as many of n, or more
    few = float(stats.beta.sf(bound, max(net, 0) + 1, n - max(net, 0))) if net < n else 1.0  # as few, or fewer
    return max(above, many), max(below, few)


def interval(samples: Sequence[Sample], error: float = 0.025) -> Interval:
    """The value, and the bounds that `tail_p` does not refuse."""
    mean, variance, raw, n = _combined(samples)
    width, least, net = float(stats.norm.isf(error) * np.sqrt(variance)), 1 - error ** (1 / n), n * raw
    if len(samples) > 1:
        return Interval(raw, min(mean - width, raw - least), max(mean + width, raw + least))
    low = float(stats.beta.ppf(error, net, n - net + 1)) if net > 0 else -_most(-net, n, error)
    return Interval(raw, min(mean - width, low), max(mean + width, _most(net, n, error)))


def _most(count: float, n: int, error: float) -> float:
    """The upper bound of a share of which n show so many (Clopper & Pearson 1934)."""
    return float(stats.beta.isf(error, max(count, 0) + 1, n - max(count, 0))) if count < n else 1.0


def _combined(samples: Sequence[Sample]) -> tuple[float, float, float, int]:
    signs = (1, -1)[: len(samples)]
    mean = sum(sign * sample.moments()[0] for sign, sample in zip(signs, samples, strict=True))
    variance = sum(sample.moments()[1] for sample in samples)
    raw = sum(sign * sample.mean for sign, sample in zip(signs, samples, strict=True))
    return mean, variance, raw, min(sample.n for sample in samples)


def queries_needed(
    samples: Sequence[Sample], bound: float, error: float = 0.025, queries: int | None = None
) -> int | None:
    """The least number of queries with which this effect, at this spread, would be beyond the bound.

    queries: how many were asked to get the samples (default: the first sample's); of several samples, each keeps its
    share of them. At that number the verdict comes half of the time, as the effect is itself measured. None where the
    effect is at the bound, or so near that MOST queries do not tell.
    """
    asked = samples[0].n if queries is None else queries

    def decides(n: int) -> bool:
        scaled = [replace(sample, n=max(1, int(sample.n * n / asked))) for sample in samples]
        return min(tail_p(scaled, bound)) <= error

    high = 2
    while not decides(high):
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:  # decides(high), not decides(low)
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def compared(
    name: str,
    samples: Sequence[Sample],
    bound: float,
    rule: Rule,
    *,
    above: bool,
    queries: int | None = None,
    available: int | None = None,
) -> Part:
    """One comparison, without correction; see `Part`."""
    over, under = tail_p(samples, bound)
    p = (over, under) if above else (under, over)
    asked = samples[0].n if queries is None else queries
    verdict = HOLDS if p[0] <= rule.error else REFUTED if p[1] <= rule.error else UNDECIDED
    needed = queries_needed(samples, bound, rule.error, asked)
    return Part(name, verdict, *interval(samples), bound, above, asked, needed, available, p)


def any_of(parts: Sequence[Part], rule: Rule) -> tuple[str, tuple[Part, ...]]:
    """The verdict on "in some of them": holds where one holds after Holm's correction, refuted where all are."""
    return _joint(parts, rule, want=0)


def all_of(parts: Sequence[Part], rule: Rule) -> tuple[str, tuple[Part, ...]]:
    """The verdict on "in all of them": refuted where one is refuted after the correction, holds where all hold."""
    return _joint(parts, rule, want=1)


def _joint(parts: Sequence[Part], rule: Rule, want: int) -> tuple[str, tuple[Part, ...]]:
    judged = [part for part in parts if part.verdict != NOT_DONE]
    corrected = dict(zip((part.name for part in judged), holm([part.p[want] for part in judged]), strict=True))
    one, all_ = (HOLDS, REFUTED) if want == 0 else (REFUTED, HOLDS)
    told = tuple(
        replace(part, verdict=UNDECIDED) if part.verdict == one and corrected[part.name] > rule.error else part
        for part in parts
    )
    verdicts = [part.verdict for part in told if part.verdict != NOT_DONE]
    if not verdicts:
        return NOT_DONE, told
    return one if one in verdicts else all_ if {*verdicts} == {all_} else UNDECIDED, told


# ------------------------------------------------------------------------------------------------ the claims


def does_it(full: NDArray, queries: ArrayLike, chance: float, rule: Rule) -> bool:
    """Whether the whole model does a task, from its right answers [N] or [D, N] and the query of each prompt [N].

    It does where the lower Wilson bound, counting distinct queries, is above chance and the floor.
    """
    right = by_query(full, queries)
    return bool(wilson(right.sum(), len(right))[0] > max(chance, rule.floor))


def lost(rows: Rows, name: str) -> Sample:
    """What an ablation loses, acc(FULL) - acc(name), by query."""
    return Sample.of(
        by_query(np.subtract(rows[names.FULL]["right"], rows[name]["right"], dtype=float), rows[names.FULL]["query"])
    )


def _loss(part: str, rows: Rows, name: str, rule: Rule, chance: float, available: int | None, above: bool) -> Part:
    judged = compared(part, [lost(rows, name)], rule.margin, rule, above=above, available=available)
    done = does_it(rows[names.FULL]["right"], rows[names.FULL]["query"], chance, rule)
    return judged if done else replace(judged, verdict=NOT_DONE)


def few_edges(
    rows: Rows, kept: int, pairs: int, rule: Rule = RULE, chance: float = 0.0, available: int | None = None
) -> Claim:
    """Claim 1, of the ablations "FULL" and "found", a circuit that keeps some of so many type pairs.

    acc(C) / acc(FULL) is above the share where share * acc(FULL) - acc(C) is below 0: that is tested, with 1 - share
    added, so that it is the share of answers that the circuit loses where the whole model has all. Its interval is
    shown as one of the ratio.
    """
    text = f"few edges explain {rule.share:.0%}"
    full, query = rows[names.FULL]["right"], rows[names.FULL]["query"]
    most = 1 - rule.share
    less = Sample.of(by_query(rule.share * np.asarray(full, dtype=float) - rows[names.FOUND]["right"] + most, query))
    part = compared(f"{kept} of {pairs} pairs", [less], most, rule, above=False, available=available)
    worth = float(by_query(full, query).mean())
    if not does_it(full, query, chance, rule):
        part = replace(part, verdict=NOT_DONE)
    if worth:
        value, high, low = (rule.share + (most - value) / worth for value in (part.value, part.low, part.high))
        part = replace(part, value=value, low=low, high=high, bound=rule.share, above=True)
    small = kept < rule.size * pairs
    if part.verdict != NOT_DONE and not small:
        return Claim(
            1, text, REFUTED, (part,), f"the circuit keeps {kept} of {pairs} pairs, not less than {rule.size:.0%}"
        )
    return Claim(1, text, part.verdict, (part,))


def some_lose(
    tasks: Mapping[str, Rows],
    rule: Rule = RULE,
    chance: Mapping[str, float] | None = None,
    available: Mapping[str, int | None] | None = None,
) -> Claim:
    """Claim 2, of "FULL" and "AGG-ONLY" by task."""
    parts = [
        _loss(task, rows, names.AGG_ONLY, rule, (chance or {}).get(task, 0.0), (available or {}).get(task), above=True)
        for task, rows in tasks.items()
    ]
    return Claim(2, f"without contextualisation some task loses {rule.margin:g}", *any_of(parts, rule))


def comes_back(
    tasks: Mapping[str, Rows], losing: Claim, rule: Rule = RULE, available: Mapping[str, int | None] | None = None
) -> Claim:
    """Claim 3, of "FULL" and "CTX+AGG" in the tasks where claim 2 holds; undecided where there is none."""
    text = "contextualisation brings it back"
    tasks_lost = [part.name for part in losing.parts if part.verdict == HOLDS]
    if not tasks_lost:
        nothing = losing.verdict == NOT_DONE
        return Claim(3, text, NOT_DONE if nothing else UNDECIDED, (), "nothing to bring back: no task surely loses")
    parts = [
        _loss(task, tasks[task], names.CTX_AGG, rule, 0.0, (available or {}).get(task), above=False)
        for task in tasks_lost
    ]
    return Claim(3, text, *all_of(parts, rule))


def more_if_ambiguous(
    counts: Mapping[int, Rows], k: int, rule: Rule = RULE, chance: float = 0.0, available: int | None = None
) -> Claim:
    """Claim 4, of "FULL" and "AGG-ONLY" by how many of k demonstrations are ambiguous.

    Prompts that the whole model solves are compared: those of the most ambiguous demonstrations that leave a clear one
    and `Rule.solved` queries, with those of the fewest.
    """
    text = "it loses more with ambiguous demonstrations"
    least = min(counts)
    solved = {}
    for count, rows in counts.items():
        told = np.atleast_2d(rows[names.FULL]["right"]).all(axis=0)
        if count < k and len({*rows[names.FULL]["query"][told]}) >= rule.solved:
            solved[count] = lost(
                {
                    name: {"right": np.atleast_2d(row["right"])[:, told], "query": row["query"][told]}
                    for name, row in rows.items()
                },
                names.AGG_ONLY,
            )
    first = counts[least][names.FULL]
    if not does_it(first["right"], first["query"], chance, rule) or least not in solved:
        right = by_query(first["right"], first["query"])
        return Claim(4, text, NOT_DONE, (), f"the whole model: {right.mean():.2f} of {len(right)} queries")
    if max(solved) == least:
        return Claim(4, text, UNDECIDED, (), f"with ambiguous ones the model solves fewer than {rule.solved} prompts")
    most, asked = max(solved), len({*first["query"]})
    samples = [solved[most], solved[least]]
    name = f"{most} against {least} ({samples[0].n}, {samples[1].n} solved)"
    part = compared(name, samples, rule.margin, rule, above=True, queries=asked, available=available)
    return Claim(4, text, part.verdict, (part,))


def first_then(
    rows: Rows, late: str, early: str, rule: Rule = RULE, chance: float = 0.0, available: int | None = None
) -> Claim:
    """Claim 5, of "FULL" and the ablations of CONTEXT in the late, and of AGG in the early layers."""
    parts = [_loss(name, rows, name, rule, chance, available, above=False) for name in (late, early)]
    return Claim(5, "first contextualise, then aggregate", *all_of(parts, rule))


# ------------------------------------------------------------------------------------------------ all five


def judge(
    rule: Rule,
    tasks: Mapping[str, Rows],
    *,
    primary: str,
    circuit: Rows,
    kept: int,
    ambiguous: Mapping[int, Rows],
    halves: Rows,
    layers: int,
    askable: Mapping[str, int | None],
    trained: bool,
    k: int = 10,
) -> Verdicts:
    """The five claims, in order; rows are those of `measures.aligned`.

    tasks: with FULL, AGG-ONLY and CTX+AGG, by task. circuit: with FULL and the circuit found in the primary task, which
    keeps so many type pairs (kept). ambiguous: with FULL and AGG-ONLY, by how many of k demonstrations are ambiguous.
    halves: with FULL and the two ablations of `names.halves`, of the primary task, in a model of so many layers.
    askable: by task, how many queries there are for the tokenizer, None where the record does not say; trained: whether
    the words are the embedded model's.
    """
    chance = {task: 1 / len(word_pairs.find(task, trained=trained).outputs) for task in {*tasks, primary, AMBIGUOUS}}
    here = (rule, chance[primary], askable[primary])
    losing = some_lose(tasks, rule, chance, askable)
    late, early = names.halves(layers)
    return Verdicts(
        (
            few_edges(circuit, kept, len(TYPE_PAIRS), *here),
            losing,
            comes_back(tasks, losing, rule, askable),
            more_if_ambiguous(ambiguous, k, rule, chance[AMBIGUOUS], askable[AMBIGUOUS]),
            first_then(halves, late, early, *here),
        )
    )
