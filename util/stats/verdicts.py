"""Verdicts on claims, from arrays alone; data/published/VERDICTS.md says how a claim is judged.

A claim is an effect that should be above or below a margin. An effect is a ratio of two sums over tasks of means over
distinct queries: the share of what is above chance that is lost, the share of the benefit. Control sets are a sample
as well: their spread is part of its error. What has to be true of one of several parts is corrected (Holm), what has
to be true of all of them needs no correction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, TypeAdapter
from scipy import stats

from util.stats.intervals import ERROR, Floats, Interval, holm

HOLDS, DOES_NOT_HOLD, CANNOT_BE_TOLD = "holds", "does not hold in this model", "cannot be told"
NO_PREMISE, NOT_DONE, NOT_ASKED = "premise not met", "task not done", "not asked"
MOST = 10**7  # queries: what needs more has no number
FAR = 10  # times the queries that there are: how many more would do is not told
# what null stands for in a values file is not defined
Defined = Annotated[float, BeforeValidator(lambda number: np.nan if number is None else number)]


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: value [low, high] (95 %) against the bound.

    verdict: "" of what is shown beside a claim and not judged. above: whether the claim wants it above the bound.
    queries: distinct ones that were asked of a task. needed: the least number of them that decides at the measured
    effect (half of the time: no more is known), None where that is no number. available: how many the list has. p:
    one-sided, that the claim is not so and that it is so, without correction.
    """

    name: str
    verdict: str
    value: Defined
    low: Defined
    high: Defined
    bound: float
    above: bool
    queries: int
    needed: int | None
    available: int | None
    p: tuple[float, float]

    @property
    def number(self) -> str:
        """The value with its interval, which has no ends where there may be nothing to lose."""
        written = Interval(self.value, self.low, self.high)
        return str(written) if np.isfinite(self.low) else f"{self.value:.2f}, no interval"

    @property
    def enough(self) -> str:
        """How many queries would decide, and how many there are."""
        if not self.needed:
            return "no number of queries would do"
        if self.needed <= self.queries:
            return "alone it could, but not after the correction for all"
        if self.available and self.needed > FAR * self.available:
            return f"it would take far more than the {self.available:,} queries that there are"
        return f"{self.needed:,} queries would do" + (f"; there are {self.available:,}" if self.available else "")


Parts = Sequence[Part]
Judged = tuple[str, tuple[Part, ...]]  # the verdict, and its parts


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict, the comparisons that it is from, what else there is to say, and what is shown beside."""

    number: int
    text: str
    verdict: str
    parts: tuple[Part, ...] = ()
    note: str = ""
    beside: tuple[Part, ...] = ()


CLAIMS = TypeAdapter(tuple[Claim, ...])


def table(claims: Iterable[Claim]) -> pd.DataFrame:
    """A row for each comparison; a claim without one has a row of its own."""
    rows = []
    for claim in claims:
        title = f"{claim.number}. {claim.text}"
        for part in (*claim.parts, *claim.beside):
            bound = f"{'>' if part.above else '<'} {part.bound:g}" if part.verdict else ""
            queries = f"{part.queries} queries" + (f"; {part.enough}" if part.verdict == CANNOT_BE_TOLD else "")
            rows.append((title, claim.verdict, part.name, part.verdict, part.number, bound, queries))
        if not claim.parts:
            rows.append((title, claim.verdict, claim.note, "", "", "", ""))
    columns = ["claim", "verdict", "comparison", "alone", "value", "bound", "queries"]
    return pd.DataFrame(rows, columns=columns).set_index(["claim", "verdict", "comparison"])


def claims_of(values: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The claims of a values file, with their verdicts: its entry "claims", as `show.files.plain` wrote it.

    Null is a number that is not defined.
    """
    return CLAIMS.validate_python(values["claims"])


# ------------------------------------------------------------------------------------------------ one comparison


@dataclass(frozen=True)
class Effect:
    """A ratio of two sums of means, with what a test of it needs.

    means [2]: numerator and denominator; over_queries, over_sets [2, 2]: their covariance, as other queries and other
    control sets would have it; queries: the fewest of a task.
    """

    means: Floats
    over_queries: Floats
    over_sets: Floats
    queries: int

    @classmethod
    def of(cls, *tasks: tuple[ArrayLike, ArrayLike], sets: ArrayLike = ()) -> Effect:
        """tasks: what each query of a task adds to numerator and denominator, [N] each, or one number for all.

        sets [S, 2]: both sums with each control set alone in the place of their mean. The covariance has two more
        queries in each task, a gain and a loss of 1, so that it is not 0 where no query changes (Bonett & Price 2012).
        """
        means, over_queries, fewest = np.zeros(2), np.zeros((2, 2)), MOST
        for task in tasks:
            values = np.stack(np.broadcast_arrays(*task)).astype(np.float64)
            n = values.shape[1]
            means += values.mean(axis=1)
            over_queries += np.cov(values) / n + np.diag([2 / (n + 2) ** 2, 0])
            fewest = min(fewest, n)
        drawn = np.asarray(sets, dtype=np.float64).reshape(-1, 2)
        over_sets = np.cov(drawn.T) / len(drawn) if len(drawn) > 1 else np.zeros((2, 2))
        return cls(means, over_queries, over_sets, fewest)

    def interval(self) -> Interval:
        """The ratio with Fieller's interval (1954); without ends where the denominator is not shown to be above 0."""
        z = stats.norm.isf(ERROR)
        (c, b), (_, a) = np.outer(self.means, self.means) - z**2 * (self.over_queries + self.over_sets)
        value = np.divide(*self.means) if self.means[1] else np.nan
        if a <= 0 or self.means[1] <= 0:
            return Interval(float(value), np.nan, np.nan)
        root = np.sqrt(max(0.0, b**2 - a * c))
        return Interval(float(value), float((b - root) / a), float((b + root) / a))


def judged(name: str, effect: Effect, bound: float, *, above: bool, available: int | None = None) -> Part:
    """One comparison, without correction; see `Part`. It decides where the interval lies beyond the bound."""
    weights = np.array([1.0, -bound])
    gap = float(weights @ effect.means)
    queries, sets = (float(weights @ covariance @ weights) for covariance in (effect.over_queries, effect.over_sets))
    interval = effect.interval()
    p, needed = (1.0, 1.0), None
    if np.isfinite(interval.low):
        z = gap / np.sqrt(queries + sets) * (1 if above else -1)
        p = float(stats.norm.sf(z)), float(stats.norm.cdf(z))
        spread = (gap / stats.norm.isf(ERROR)) ** 2 - sets  # what is left for the queries
        if spread > 0 and (least := np.ceil(effect.queries * queries / spread)) <= MOST:
            needed = int(least)
    return Part(name, _verdict(p), *interval, bound, above, effect.queries, needed, available, p)


def _verdict(p: tuple[float, float]) -> str:
    return HOLDS if p[0] <= ERROR else DOES_NOT_HOLD if p[1] <= ERROR else CANNOT_BE_TOLD


def shown(name: str, effect: Effect) -> Part:
    """What stands beside a claim: its value, without a verdict."""
    return Part(name, "", *effect.interval(), 0.0, True, effect.queries, None, None, (1.0, 1.0))


def weakest(parts: Parts) -> Part:
    """Several comparisons that have to hold together, as the one that holds least."""
    last = max(parts, key=lambda part: part.p[0])
    p = last.p[0], min(1.0, len(parts) * min(part.p[1] for part in parts))
    return replace(last, p=p, verdict=_verdict(p))


def any_of(parts: Parts) -> Judged:
    """The verdict on "in some of them": holds where one holds after Holm's correction, does not where none does."""
    return _joint(parts, want=0)


def all_of(parts: Parts) -> Judged:
    """The verdict on "in all of them": does not hold where one does not after the correction, holds where all hold."""
    return _joint(parts, want=1)


def _joint(parts: Parts, want: int) -> Judged:
    one, every = (HOLDS, DOES_NOT_HOLD) if want == 0 else (DOES_NOT_HOLD, HOLDS)
    corrected = holm([part.p[want] for part in parts])
    decided = tuple(
        replace(part, verdict=CANNOT_BE_TOLD) if part.verdict == one and p > ERROR else part
        for part, p in zip(parts, corrected, strict=True)
    )
    verdicts = {part.verdict for part in decided}
    return one if one in verdicts else every if verdicts == {every} else CANNOT_BE_TOLD, decided
