"""Whether numbers hold on fresh prompts: a figure's stored values beside those of a second run, interval by interval.

Two independent means differ by more than 1.96 of their joint standard errors in one case of twenty, even if nothing is
different. So single numbers that moved say little. How many of all numbers moved, and which claims changed, says more.
The intervals of a map hold together: of those numbers fewer move by chance, one in twenty maps has any.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from util.stats.heads import head_name
from util.stats.intervals import Interval

NORMAL = 1.96  # a 95 % interval reaches so many standard errors to either side
VALUES = ("value", "mean", "log_prob")  # what an entry may call the number between "low" and "high"
LISTS_OF_RUNS = ("random", "by_draw", "trace", "steps", "request", "undefined")  # of three numbers, but no interval
# Sets of heads that every run draws for itself, so that two runs measure different ones.
CONTROLS = ("layer-matched", "norm-matched", "in others", "others out")
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Pair:
    """One number, measured twice. place: the names of the entries around it. first, second: with 95 % intervals."""

    place: Place
    first: Interval
    second: Interval

    @property
    def name(self) -> str:
        """The place as text."""
        return ": ".join(map(str, self.place))

    @property
    def errors(self) -> float:
        """How many joint standard errors lie between the two, by the sides of the intervals that face each other.

        Of intervals that hold together for a whole map the sides are longer, and 1.96 is the bound for the whole map.
        Infinite where the two differ and neither interval has a width.
        """
        down, up = sorted((self.first, self.second), key=lambda interval: interval.value)
        apart = up.value - down.value
        joint = math.hypot(down.high - down.value, up.value - up.low) / NORMAL
        return 0.0 if apart == 0 else apart / joint if joint > 0 else math.inf

    @property
    def moved(self) -> bool:
        """Whether the difference of the two has a 95 % interval that is beyond 0."""
        return self.errors > NORMAL


@dataclass(frozen=True)
class Claim:
    """A claim that was judged twice."""

    number: int
    text: str
    first: str
    second: str


@dataclass(frozen=True)
class Replication:
    """The numbers and claims that two values files of one figure share, and the places that only one of them has.

    unlike: parts whose numbers are not compared, because the runs chose something else to measure them on.
    """

    stem: str
    pairs: tuple[Pair, ...]
    claims: tuple[Claim, ...]
    missing: tuple[str, ...]
    unlike: tuple[str, ...] = ()

    @classmethod
    def of(cls, stem: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> "Replication":
        """Compares the values of one figure, as `files.save_values` writes them, with those of another run.

        Where a figure chooses by the data what to measure, such as the first data set that the model does, its values
        say under "chosen", by part, what that was. Parts of which the runs chose another are not compared, nor claims
        that one run alone has.
        """
        chosen, other = (_choices(values) for values in (first, second))
        unlike = [part for part in chosen if part in other and chosen[part] != other[part]]
        left_out = {*unlike} | ({"claims"} & (first.keys() ^ second.keys()))
        first, second = ({name: values[name] for name in values if name not in left_out} for values in (first, second))
        ours, theirs = dict(intervals(first)), dict(intervals(second))
        judged = {claim["number"]: claim for claim in _verdicts(second)}
        return cls(
            stem,
            tuple(Pair(place, ours[place], theirs[place]) for place in ours if place in theirs),
            tuple(
                Claim(claim["number"], claim["text"], claim["verdict"], judged[claim["number"]]["verdict"])
                for claim in _verdicts(first)
                if claim["number"] in judged
            ),
            tuple(": ".join(map(str, place)) for place in sorted(ours.keys() ^ theirs.keys(), key=str)),
            tuple(f"{part}: measured on {chosen[part]}, now on {other[part]}" for part in unlike),
        )

    @property
    def moved(self) -> list[Pair]:
        """The numbers that moved, the farthest first."""
        return sorted((pair for pair in self.pairs if pair.moved), key=lambda pair: -pair.errors)

    def lines(self) -> list[str]:
        """What held and what moved, in sentences."""
        count = len(self.pairs)
        text = [f"{self.stem}: {count - len(self.moved)} of {count} numbers held; by chance at most 1 in 20 moves."]
        text += [f"  claim {c.number}, {c.text}: {c.first}, now {c.second}" for c in self.claims if c.first != c.second]
        text += [f"  not compared: {part}" for part in self.unlike]
        return text + [f"  in one of the runs alone: {len(self.missing)}"] * bool(self.missing)

    def table(self, pairs: Sequence[Pair] | None = None) -> pd.DataFrame:
        """The numbers that moved, or others: both intervals, and how many joint standard errors lie between them."""
        shown = self.moved if pairs is None else pairs
        rows = [
            {"first": str(pair.first), "again": str(pair.second), "standard errors": round(pair.errors, 1)}
            for pair in shown
        ]
        return pd.DataFrame(rows, index=[pair.name for pair in shown])


def _choices(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the values say was chosen to measure, by part; other figures list chosen heads under this name."""
    chosen = values.get("chosen")
    return chosen if isinstance(chosen, Mapping) else {}


def _verdicts(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The verdicts on claims, where they are compared."""
    return values["claims"]["claims"] if "claims" in values else ()


def intervals(values: Any, place: Place = ()) -> Iterator[tuple[Place, Interval]]:
    """Every interval in the values of a figure, with its place; places without a value (null) are left out.

    An interval is a list (value, low, high) with low <= value <= high, or an entry with numbers or arrays
    "low", "high", and one of `VALUES`. Those of control sets are left out, because every run draws its own.
    """
    if isinstance(values, Mapping):
        value = next((name for name in VALUES if name in values), "")
        parts = {value, "low", "high"} if value and {"low", "high"} <= values.keys() else set()
        if parts:
            yield from _cells(values[value], values["low"], values["high"], place)
        for name, entry in values.items():
            if name not in LISTS_OF_RUNS and name not in parts and not str(name).startswith(CONTROLS):
                for inner, interval in intervals(entry, (*place, str(name))):
                    yield _with_heads(inner, values.get("heads"), len(place) + 1), interval
    elif isinstance(values, list):
        if _is_interval(values):
            yield place, Interval(*map(float, values))
        else:
            for number, entry in enumerate(values):
                yield from intervals(entry, (*place, number))


def _with_heads(place: Place, heads: Any, start: int) -> Place:
    """A place whose numbers from `start` on are places in a list of heads (layer, head), with the heads' names instead.

    Which heads the list has may differ from run to run. heads: None, or something else, where there is no such list.
    """
    if not isinstance(heads, list):
        return place
    return (*place[:start], *(head_name(heads[step]) if isinstance(step, int) else step for step in place[start:]))


def _cells(value: Any, low: Any, high: Any, place: Place) -> Iterator[tuple[Place, Interval]]:
    """The intervals of three nested lists, or numbers, of one shape."""
    if isinstance(value, list):
        for number, cells in enumerate(zip(value, low, high, strict=True)):
            yield from _cells(*cells, (*place, number))
    elif None not in (value, low, high):
        yield place, Interval(float(value), float(low), float(high))


def _is_interval(values: list[Any]) -> bool:
    if len(values) != 3 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return False
    value, low, high = values
    return low <= value <= high
