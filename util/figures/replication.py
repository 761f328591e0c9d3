"""Whether numbers hold on fresh prompts: a figure's stored values beside those of a second run, interval by interval.

Two independent means differ by more than 1.96 of their joint standard errors in one case of twenty, even if nothing is
different. So single numbers that moved say little. How many of all numbers moved, and which claims changed, says more.
The intervals of a map hold together: of those numbers fewer move by chance, one in twenty maps has any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    """One number, measured twice. name: those of the entries around it. first, second: with 95 % intervals."""

    name: str
    first: Interval
    second: Interval

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
class Replication:
    """The numbers that two values files of one figure share; remarks: claims that changed, and what was not compared.

    missing: the names of numbers that only one of them has.
    """

    stem: str
    pairs: Sequence[Pair]
    remarks: Sequence[str]
    missing: Sequence[str]

    @classmethod
    def of(cls, stem: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Replication:
        """Compares the values of one figure, as `files.save_values` writes them, with those of another run.

        Where a figure chooses by the data what to measure, such as the first data set that the model does, its values
        say under "chosen", by part, what that was. Parts of which the runs chose another are not compared, nor claims
        that one run alone has.
        """
        chosen, other = ({**values["chosen"]} if _is_by_part(values) else {} for values in (first, second))
        unlike = [part for part in chosen if part in other and chosen[part] != other[part]]
        judged, again = ({one["number"]: one for one in _claims(values)} for values in (first, second))
        left_out = {*unlike} | ({"claims"} & (first.keys() ^ second.keys()))
        ours, theirs = (
            {": ".join(map(str, place)): interval for place, interval in intervals(values)}
            for values in ({name: run[name] for name in run if name not in left_out} for run in (first, second))
        )
        verdicts = ((claim, again[number]["verdict"]) for number, claim in judged.items() if number in again)
        return cls(
            stem,
            [Pair(name, ours[name], theirs[name]) for name in ours if name in theirs],
            [
                *(
                    f"claim {claim['number']}, {claim['text']}: {claim['verdict']}, now {now}"
                    for claim, now in verdicts
                    if claim["verdict"] != now
                ),
                *(f"not compared: {part}: measured on {chosen[part]}, now on {other[part]}" for part in unlike),
            ],
            sorted(ours.keys() ^ theirs.keys()),
        )

    @property
    def moved(self) -> list[Pair]:
        """The numbers that moved, the farthest first."""
        return sorted((pair for pair in self.pairs if pair.moved), key=lambda pair: -pair.errors)

    def lines(self) -> list[str]:
        """What held and what moved, in sentences."""
        held = f"{len(self.pairs) - len(self.moved)} of {len(self.pairs)} numbers held"
        alone = [f"in one of the runs alone: {len(self.missing)}"] * bool(self.missing)
        notes = [f"  {note}" for note in (*self.remarks, *alone)]
        return [f"{self.stem}: {held}; by chance at most 1 in 20 moves.", *notes]

    def table(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """Some numbers: both intervals, and how many joint standard errors lie between them."""
        rows = [
            {"first": str(pair.first), "again": str(pair.second), "standard errors": round(pair.errors, 1)}
            for pair in pairs
        ]
        return pd.DataFrame(rows, index=[pair.name for pair in pairs])


def _is_by_part(values: Mapping[str, Any]) -> bool:
    """Whether "chosen" says what was chosen to measure, by part; other figures list chosen heads under this name."""
    return isinstance(values.get("chosen"), Mapping)


def _claims(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return values["claims"]["claims"] if "claims" in values else ()


def intervals(values: Any, place: Place = ()) -> Iterator[tuple[Place, Interval]]:
    """Every interval in the values of a figure, with its place; places without a value (null) are left out.

    An interval is a list (value, low, high) with low <= value <= high, or an entry with numbers or arrays
    "low", "high", and one of `VALUES`. Those of control sets are left out, because every run draws its own.
    """
    if isinstance(values, Mapping):
        value = next((name for name in VALUES if name in values), "")
        ends = (value, "low", "high") if value and {"low", "high"} <= values.keys() else ()
        if ends:
            arrays = np.array([values[name] for name in ends], dtype=float)  # null becomes NaN
            for cell in np.ndindex(arrays.shape[1:]):
                if not np.isnan(ends_of := arrays[(slice(None), *cell)]).any():
                    yield (*place, *cell), Interval(*ends_of.tolist())
        for name, entry in values.items():
            if name not in (*LISTS_OF_RUNS, *ends) and not str(name).startswith(CONTROLS):
                for inner, interval in intervals(entry, (*place, str(name))):
                    yield _with_heads(inner, values.get("heads"), len(place) + 1), interval
    elif isinstance(values, list):
        numbers = [type(entry) in (int, float) for entry in values]
        if numbers == [True] * 3 and values[1] <= values[0] <= values[2]:
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
