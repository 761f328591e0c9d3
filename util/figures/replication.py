"""Whether numbers hold on fresh prompts: a figure's stored values beside those of a second run, interval by interval.

Two independent means differ by more than 1.96 of their joint standard errors in one case of twenty, even if nothing is
different. So single numbers that moved say little. How many of all numbers moved, and which claims changed, says more.
The intervals of a map hold together: of those numbers fewer move by chance, one in twenty maps has any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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


def compared(stem: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], pd.DataFrame]:
    """What held and what moved between the values of a figure, as values files hold them, and those of another run.

    Returns sentences, and the numbers that moved, the farthest first: both intervals, and how many joint standard
    errors lie between them. Where a figure chooses by the data what to measure, its values say under "chosen", by part,
    what that was. Parts of which the runs chose another are not compared, nor claims that one run alone has.
    """
    chosen, other = (values["chosen"] if isinstance(values.get("chosen"), dict) else {} for values in (first, second))
    unlike = [part for part in chosen if part in other and chosen[part] != other[part]]
    left_out = {*unlike} | ({"claims"} & (first.keys() ^ second.keys()))
    ours, theirs = (
        {
            ": ".join(map(str, place)): interval
            for place, interval in intervals({name: run[name] for name in run if name not in left_out})
        }
        for run in (first, second)
    )
    shared = [name for name in ours if name in theirs]
    errors = [standard_errors(ours[name], theirs[name]) for name in shared]
    table = {"first": [str(ours[name]) for name in shared], "again": [str(theirs[name]) for name in shared]}
    apart = pd.DataFrame({**table, "standard errors": errors}, index=shared)
    moved = apart[np.greater(errors, NORMAL)].sort_values("standard errors", ascending=False, kind="stable")
    judged, again = (
        {one["number"]: one for one in run.get("claims", {"claims": ()})["claims"]} for run in (first, second)
    )
    remarks = [
        *(
            f"claim {number}, {claim['text']}: {claim['verdict']}, now {again[number]['verdict']}"
            for number, claim in judged.items()
            if number in again and claim["verdict"] != again[number]["verdict"]
        ),
        *(f"not compared: {part}: measured on {chosen[part]}, now on {other[part]}" for part in unlike),
        *[f"in one of the runs alone: {len(ours.keys() ^ theirs.keys())}"] * (ours.keys() != theirs.keys()),
    ]
    held = f"{len(shared) - len(moved)} of {len(shared)} numbers held"
    lines = [f"{stem}: {held}; by chance at most 1 in 20 moves.", *(f"  {remark}" for remark in remarks)]
    return lines, moved.round(1)


def standard_errors(first: Interval, second: Interval) -> float:
    """How many joint standard errors lie between two numbers, by the sides of their intervals that face each other.

    Of intervals that hold together for a whole map the sides are longer, and 1.96 is the bound for the whole map.
    Infinite where the two differ and neither interval has a width.
    """
    down, up = sorted((first, second), key=lambda interval: interval.value)
    apart = up.value - down.value
    joint = math.hypot(down.high - down.value, up.value - up.low) / NORMAL
    return 0.0 if apart == 0 else apart / joint if joint > 0 else math.inf


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
                if not np.isnan(numbers := arrays[(slice(None), *cell)]).any():
                    yield (*place, *cell), Interval(*numbers.tolist())
        for name, entry in values.items():
            if name not in (*LISTS_OF_RUNS, *ends) and not str(name).startswith(CONTROLS):
                for inner, interval in intervals(entry, (*place, str(name))):
                    yield _with_heads(inner, values.get("heads"), len(place) + 1), interval
    elif isinstance(values, list):
        plain = [type(entry) in (int, float) for entry in values]
        if plain == [True] * 3 and values[1] <= values[0] <= values[2]:
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
