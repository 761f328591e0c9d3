"""What a figure is made of: parts, which are data, and what its values say, in words. Nothing here needs a model.

The part of verdicts on a paper's claims is here too: `make claims` stores them among a figure's values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Picture

from util import paths
from util.models.table import PACKAGED
from util.show import files
from util.show.draw import WIDTH, Grid, draw
from util.stats import verdicts
from util.stats.intervals import Interval
from util.stats.verdicts import CANNOT_BE_TOLD, DOES_NOT_HOLD, HOLDS, NO_PREMISE, NOT_ASKED, NOT_DONE, Claim, claims_of

WORDS = 12  # of a title
STORED = ("embedded", *PACKAGED)  # models whose values are committed
ENDPOINT = "Primary endpoint"  # how the sentence begins that says whether it is met
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

    finds: the parts that say what a model does, in the order in which they are told. The others are controls, a seed's
    own panels, and what no model has a part in.
    """

    stem: str
    settings: type
    parts: Mapping[str, Part]
    finds: Sequence[str]


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


def findings(figure: Figure, values: Values, parts: Iterable[str] = ()) -> list[str]:
    """The first sentence of each part, by default of those that `Figure.finds`, or its primary endpoint, met or not.

    Endpoints stand first.
    """
    lines: list[str] = []
    for name in parts or figure.finds:
        says = list(figure.parts[name].says(values))
        lines += [sentence for sentence in says if sentence.startswith(ENDPOINT)] or says[:1]
    lines.sort(key=lambda line: not line.startswith(ENDPOINT))
    return [f"{line.rstrip('.')}." for line in dict.fromkeys(lines) if line]


def figure_of(stem: str) -> Figure:
    """A figure by its stem. Raises ValueError, with all that there are, for another name."""
    figures = Path(__file__).parent.parent / "figures"
    if not (figures / stem / "show.py").is_file():
        known = ", ".join(sorted(file.parent.name for file in figures.glob("*/show.py")))
        raise ValueError(f"unknown figure {stem!r}; there are {known}")
    return import_module(f"util.figures.{stem}.show").FIGURE


def stored(stem: str, model: str, *, latest: bool = False) -> dict[str, Any] | None:
    """The values of a figure that the clone has of a model; None if it has none.

    latest: entries that this run has written come first, wherever it writes, as `make claims` writes its own alone.
    """
    file = paths.root() / "data" / "values" / paths.model_folder(model) / f"{stem}.json"
    committed = files.read_values(file) if file.exists() else None
    if not latest or not (written := paths.output("values", model) / file.name).exists():
        return committed
    return (committed or {}) | files.read_values(written)


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


# ------------------------------------------------------------------------------------------------ claims of a paper

COUNTED = {  # of one claim, of several
    HOLDS: ("holds", "hold"),
    DOES_NOT_HOLD: ("does not hold in this model", "do not hold in this model"),
    CANNOT_BE_TOLD: ("cannot be told", "cannot be told"),
    NO_PREMISE: ("lacks its premise", "lack their premise"),
    NOT_DONE: ("has no task that is done", "have no task that is done"),
    NOT_ASKED: ("is not asked", "are not asked"),
}


NOTHING_DONE = "none of whose tasks this model is shown to learn from demonstrations"


def judged(values: Values) -> tuple[Claim, ...]:
    """The claims among the values of a figure, with their verdicts; none where nothing was judged."""
    return claims_of(values["claims"]) if values.get("claims") else ()


def claims_say(values: Values) -> Iterator[str]:
    """How many claims have each verdict, if any is decided; then a sentence for each verdict."""
    claims = judged(values)
    if not claims:
        yield ""
        yield "The paper's claims are not judged yet: `make claims MODEL=...` does so."
        return
    numbers = {name: [str(claim.number) for claim in claims if claim.verdict == name] for name in COUNTED}
    parts = [
        f"{len(those)} {COUNTED[name][len(those) > 1]} ({', '.join(those)})" for name, those in numbers.items() if those
    ]
    decided = numbers[HOLDS] or numbers[DOES_NOT_HOLD]
    yield f"Of {len(claims)} published claims {', '.join(parts)}" if decided else ""
    queries = max((part.queries for claim in claims for part in claim.parts), default=0)
    setting = f"up to {queries} queries of a task" if queries else NOTHING_DONE
    for name in dict.fromkeys(claim.verdict for claim in claims):
        texts = [f"{one.number}, {one.text}{made_of(one)}" for one in claims if one.verdict == name]
        yield f"The paper's claims, {setting}: **{name}**: {'; '.join(texts)}."


def made_of(claim: Claim) -> str:
    """What a verdict is made of, in brackets; "" where the verdict says all."""
    notes = [claim.note]
    for part in claim.parts:
        notes.append(f"{part.name}: {part.number}, wanted {'>' if part.above else '<'} {part.bound:g}")
        if part.verdict == CANNOT_BE_TOLD:
            notes.append(part.enough)
    text = "; ".join(filter(None, notes))
    return f" ({text})" if text else ""


def claims_table(values: Values) -> pd.DataFrame:
    """A row for each comparison."""
    return verdicts.table(judged(values))


def claims_stored(arrays: Arrays, settings: Any) -> dict[str, Any]:
    """What `make claims` has stored, as it stands; nothing where it has stored nothing."""
    return {"claims": arrays["claims"]} if arrays["claims"] else {}


def judged_of(stem: str, model: str) -> dict[str, Any]:
    """What `make claims` has stored of a model, by this run or in the clone; arrays of the part "claims"."""
    return {"claims": (stored(stem, model, latest=True) or {}).get("claims")}


CLAIMS = Part(claims_stored, "claims", claims_say, table=claims_table)
