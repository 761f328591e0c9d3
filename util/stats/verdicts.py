"""Verdicts on claims, from arrays alone, and how many queries a verdict needs.

A claim is a mean over distinct queries that should be above or below a bound; it holds, does not hold in this
model, or is undecided. It is "task not done" where the model does none of its tasks, and "not asked" where none of them
was asked. A claim on several tasks or parts of the model keeps its error: what has to be true of one of them is
corrected (Holm), what has to be true of all of them needs no correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from util.stats.intervals import Interval
from util.stats.tests import holm

HOLDS, DOES_NOT_HOLD, UNDECIDED = "holds", "does not hold in this model", "undecided"
NOT_DONE, NOT_ASKED = "task not done", "not asked"
ERROR = 0.025  # of a verdict, in either direction; it goes with intervals of 95 %
MOST = 10**7  # queries: what needs more has no number


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
    """Claims, in order."""

    claims: tuple[Claim, ...]

    @property
    def queries(self) -> int:
        """The most distinct queries that a comparison is made of, 0 without comparisons."""
        return max((part.queries for claim in self.claims for part in claim.parts), default=0)

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
                value = "" if np.isnan(part.value) else Interval(part.value, part.low, part.high)
                bound = f"{'>' if part.above else '<'} {part.bound:g}"
                rows.append((title, claim.verdict, part.name, part.verdict, str(value), bound, part.extent))
            if not claim.parts:
                rows.append((title, claim.verdict, claim.note, "", "", "", ""))
        columns = ["claim", "verdict", "comparison", "of it", "value", "bound", "queries"]
        return pd.DataFrame(rows, columns=columns).set_index(["claim", "verdict", "comparison"])


def verdicts_of(values: Mapping[str, Any]) -> Verdicts:
    """The verdicts of the claims of a values file: their entry "claims", as `figures.report.plain` wrote it.

    Null is a number that is not defined.
    """
    return Verdicts(tuple(Claim(**{**row, "parts": tuple(map(_part, row["parts"]))}) for row in values["claims"]))


def _part(stored: Mapping[str, Any]) -> Part:
    numbers = {name: _number(stored[name]) for name in ("value", "low", "high")}
    first, second = map(_number, stored["p"])
    return Part(**{**stored, **numbers, "p": (first, second)})


def _number(stored: float | None) -> float:
    return np.nan if stored is None else stored


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


def interval(samples: Sequence[Sample], error: float = ERROR) -> Interval:
    """The value, and the bounds that `tail_p` does not refuse."""
    mean, variance, raw, n = _combined(samples)
    width, least, net = float(stats.norm.isf(error) * np.sqrt(variance)), 1 - error ** (1 / n), n * raw
    if len(samples) > 1:
        return Interval(raw, min(mean - width, raw - least), max(mean + width, raw + least))
    low = float(stats.beta.ppf(error, net, n - net + 1)) if net > 0 else -_most(-net, n, error)
    return Interval(raw, min(mean - width, low), max(mean + width, _most(net, n, error)))


def paired_interval(differences: ArrayLike, comparisons: int = 1) -> Interval:
    """The mean of paired differences of right answers [N], each in [-1, 1], with its interval, which ends there.

    Unlike Student's interval it has width where all differences are equal. comparisons: how many such intervals are to
    hold together (Bonferroni's correction).
    """
    value, low, high = interval([Sample.of(differences)], ERROR / comparisons)
    return Interval(value, max(low, -1.0), min(high, 1.0))


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
    samples: Sequence[Sample], bound: float, error: float = ERROR, queries: int | None = None
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
    *,
    above: bool,
    error: float = ERROR,
    queries: int | None = None,
    available: int | None = None,
) -> Part:
    """One comparison, without correction; see `Part`. queries: how many were asked, default the first sample's."""
    over, under = tail_p(samples, bound)
    p = (over, under) if above else (under, over)
    asked = samples[0].n if queries is None else queries
    verdict = HOLDS if p[0] <= error else DOES_NOT_HOLD if p[1] <= error else UNDECIDED
    needed = queries_needed(samples, bound, error, asked)
    return Part(name, verdict, *interval(samples), bound, above, asked, needed, available, p)


def any_of(parts: Sequence[Part], error: float = ERROR) -> tuple[str, tuple[Part, ...]]:
    """The verdict on "in some of them": holds where one holds after Holm's correction, does not where none does."""
    return _joint(parts, error, want=0)


def all_of(parts: Sequence[Part], error: float = ERROR) -> tuple[str, tuple[Part, ...]]:
    """The verdict on "in all of them": does not hold where one does not after the correction, holds where all hold."""
    return _joint(parts, error, want=1)


def _joint(parts: Sequence[Part], error: float, want: int) -> tuple[str, tuple[Part, ...]]:
    judged = [part for part in parts if part.verdict != NOT_DONE]
    corrected = dict(zip((part.name for part in judged), holm([part.p[want] for part in judged]), strict=True))
    one, all_ = (HOLDS, DOES_NOT_HOLD) if want == 0 else (DOES_NOT_HOLD, HOLDS)
    told = tuple(
        replace(part, verdict=UNDECIDED) if part.verdict == one and corrected[part.name] > error else part
        for part in parts
    )
    verdicts = [part.verdict for part in told if part.verdict != NOT_DONE]
    if not verdicts:
        return NOT_DONE, told
    return one if one in verdicts else all_ if {*verdicts} == {all_} else UNDECIDED, told
