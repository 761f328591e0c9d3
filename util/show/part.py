"""What a figure is made of: parts, which are data, and what its values say, in words. Nothing here needs a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Picture

from util import paths
from util.models.table import PACKAGED
from util.show import files
from util.show.draw import WIDTH, Grid, draw
from util.stats.intervals import Interval

WORDS = 12  # of a title
STORED = ("embedded", *PACKAGED)  # models whose values are committed
ANY = "whichever the model"
Values = Mapping[str, Any]  # of a values file: "request", "model", and the numbers of all parts
Arrays = Mapping[str, Any]


def nothing(values: Values) -> Iterable[str]:
    """No sentence."""
    return ()


@dataclass(frozen=True)
class Part:
    """A section of a figure: from arrays to numbers, and from these to sentences, a picture and a table.

    numbers: from arrays and settings to entries of the values file. measure: a function of the figure's `measure.py`,
    from a study to its arrays; "" where the settings alone decide. says: sentences; of a part with a picture the first
    has its title, see `headline`, and is "" where there is none. about: the setting, below the title. panels: None
    where the values have no picture. needs: parts whose numbers it shows beside its own. All but `numbers` need values
    only.
    """

    numbers: Callable[[Arrays, Any], dict[str, Any]]
    measure: str = ""
    says: Callable[[Values], Iterable[str]] = nothing
    about: Callable[[Values], str] | None = None
    panels: Callable[[Values], Grid | None] | None = None
    table: Callable[[Values], pd.DataFrame] | None = None
    needs: Sequence[str] = ()

    def first(self, values: Values) -> str:
        """The first sentence; "" where there is none."""
        return next(iter(self.says(values)), "")


@dataclass(frozen=True)
class Figure:
    """The parts of a figure by name, in their order, and its settings, a checked class.

    concludes: what the values say of a model, where that is not all that its parts say.
    """

    stem: str
    settings: type
    parts: Mapping[str, Part]
    concludes: Callable[[Values], Iterable[str]] | None = None


def drawn(part: Part, values: Values, width: float = WIDTH) -> Picture | None:
    """The picture of a part, `width` inches wide; None where there is none."""
    grid = part.panels(values) if part.panels else None
    if grid is None:
        return None
    return draw(grid, headline(part, values), part.about(values) if part.about else "", width)


def headline(part: Part, values: Values) -> str:
    """The title of a part's picture: its first sentence, without what is in brackets, such as intervals.

    It ends at the first semicolon or dot, and where it has more than WORDS words, at the last comma or colon that
    leaves as many.
    """
    shorter = re.sub(r" \[[^]]*\]", "", part.first(values))
    shorter = re.sub(r" \([^)]*\)", "", shorter)
    clauses = re.split(r"(?=[,:] )", re.split(r"; |\. ", shorter)[0])
    while len(clauses) > 1 and words("".join(clauses)) > WORDS:
        clauses.pop()
    return "".join(clauses).rstrip(".")


def beside(part: Part, values: Values, *, pictured: bool) -> tuple[list[str], pd.DataFrame | None]:
    """What stands beside the picture of a part, if it has one: sentences, but for its title; and the table, if any."""
    sentences = [sentence for sentence in part.says(values) if sentence]
    table = part.table(values) if part.table else None
    titled = pictured and sentences[:1] == [headline(part, values)]
    return sentences[titled:], None if table is None or table.empty else table


def words(text: str) -> int:
    """How many words a text has; a unit is part of its number."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def sentences(figure: Figure, values: Values, *, measured: bool) -> list[str]:
    """What the values of a figure say, of the parts that a model has a part in, or the first of each of the others.

    Primary endpoints stand first, met or not.
    """
    parts = [part for part in figure.parts.values() if bool(part.measure) == measured]
    if not measured:
        lines = [part.first(values) for part in parts]
    elif figure.concludes:
        lines = list(figure.concludes(values))
    else:
        lines = [sentence for part in parts for sentence in part.says(values)]
    lines.sort(key=lambda sentence: not sentence.startswith("Primary endpoint"))
    return [f"{sentence.rstrip('.')}." for sentence in dict.fromkeys(lines) if sentence]


def checks(figure: Figure, values: Values) -> list[str]:
    """The first sentence of every part, each once."""
    firsts = dict.fromkeys(part.first(values) for part in figure.parts.values())
    return [first for first in firsts if first]


@dataclass(frozen=True)
class Conclusions:
    """The sentences on each model, by its title. Jupyter shows them as Markdown, a point for each."""

    sentences: Mapping[str, Sequence[str]]

    def _repr_markdown_(self) -> str:
        return "\n\n".join("\n- ".join([f"**{name}**\n", *lines]) for name, lines in self.sentences.items())

    __str__ = _repr_markdown_


def figure_of(stem: str) -> Figure:
    """A figure by its stem."""
    return import_module(f"util.figures.{stem}.show").FIGURE


def conclusions(stem: str, model: str) -> Conclusions:
    """What the stored values of a figure say of the models that are committed, and of `model`, if it is another one.

    The values of `model` are those that were written last, see `files.save_values`; the others are those of the clone.
    What is about no model stands first.
    """
    figure, by_model = figure_of(stem), dict[str, list[str]]()
    for name in dict.fromkeys((*STORED, model)):
        values = stored(stem, name, latest=name == model)
        if values is None:
            continue
        if ANY not in by_model and (general := sentences(figure, values, measured=False)):
            by_model[ANY] = general
        by_model[title(values)] = sentences(figure, values, measured=True)
    return Conclusions(by_model)


def stored(stem: str, model: str, *, latest: bool = False) -> dict[str, Any] | None:
    """The values of a figure that the clone has of a model; None if it has none.

    latest: those that this run has written come first, wherever it writes, with the clone's verdicts on claims where
    it has judged none.
    """
    file = paths.root() / "data" / "values" / paths.model_folder(model) / f"{stem}.json"
    committed = files.read_values(file) if file.exists() else None
    if not latest or not (written := paths.output("values", model) / file.name).exists():
        return committed
    judged = {"claims": committed["claims"]} if committed and "claims" in committed else {}
    return judged | files.read_values(written)


def title(values: Values) -> str:
    """The name of the model that values are of, and what was done to it."""
    return str(values["model"]).split(": ")[0]


# ------------------------------------------------------------------------------------------------ words

SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            one, many = format_spec.split("|")
            return one if (value if isinstance(value, int) else len(value)) == 1 else many
        if format_spec in ("words", "none"):
            return none_or(value) if format_spec == "none" else in_words(value)
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


def interval_at(arrays: Mapping[str, Any], *place: int, value: str = "value") -> Interval:
    """The interval at a place of stored arrays of values, lower and upper ends."""
    return Interval(*(float(np.asarray(arrays[name], dtype=float)[place]) for name in (value, "low", "high")))
