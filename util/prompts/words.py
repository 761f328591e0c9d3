"""The word lists of the tasks, data/word_lists/*.csv: one header line, then one fact per line."""

import csv
from functools import cache

from util import paths


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of data/word_lists/<name>.csv, as dictionaries by column. Raises FileNotFoundError for another name."""
    with (paths.root() / "data" / "word_lists" / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def column(name: str, title: str) -> tuple[str, ...]:
    """One column of a word list."""
    return tuple(row[title] for row in table(name))
