"""Sentences from numbers: singular and plural, lists, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from util.stats.intervals import Interval

SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            one, many = format_spec.split("|")
            return one if (value if isinstance(value, int) else len(value)) == 1 else many
        if format_spec in ("words", "none"):
            return in_words(value) if value or format_spec == "words" else "none"
        if isinstance(value, list | tuple):
            return written(value) if not isinstance(value[0], str) else listed(value)
        return format(value, format_spec or ("," if type(value) is int else ""))


def say(sentence: str, **values: Any) -> str:
    """A sentence with values in it.

    In braces: {n}, a number, an interval [value, low, high] as 0.44 [0.38, 0.50], or words as "a, b and c"; {n:words},
    a small count in words, {n:none} with "none" for 0; {n:head is|heads are}, the first for one, the second for others.
    The first letter becomes a capital one.

    >>> say("{n:words} {n:head is|heads are} frequent: {names}", n=2, names=["L2H6", "L0H1"])
    'Two heads are frequent: L2H6 and L0H1'
    """
    text = _Words().vformat(sentence, (), values)
    return text[:1].upper() + text[1:]


def written(triple: Sequence[float]) -> str:
    """A stored value with its interval: counts as they are, all else with two decimals."""
    if all(isinstance(number, int) for number in triple):
        value, low, high = triple
        return f"{value} [{low}, {high}]"
    return str(Interval(*triple))


def sign(triple: Sequence[float | None]) -> int:
    """1 or -1 where a stored interval lies above or below 0, else 0."""
    _, low, high = triple
    return 0 if low is None or high is None else int(low > 0) - int(high < 0)


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def in_words(count: int) -> str:
    """A number as it stands in a sentence: small ones as words."""
    return SMALL[count] if 0 <= count < len(SMALL) else f"{count:,}"


def none_or(count: int) -> str:
    """A number as `in_words`, where it stands for a noun: "none" of them, "three" of them."""
    return in_words(count) if count else "none"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: "no heads", "one head", "three heads"."""
    return f"{in_words(count)} {noun if count == 1 else plural or noun + 's'}"


def interval_at(arrays: Mapping[str, Any], *place: int, value: str = "value") -> Interval:
    """The interval at a place of stored arrays of values, lower and upper ends."""
    found = []
    for name in (value, "low", "high"):
        entry = arrays[name]
        for index in place:
            entry = entry[index]
        found.append(float(entry))
    return Interval(*found)
