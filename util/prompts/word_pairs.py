"""Word-pair tasks of in-context learning: maps from words to words, by name, and pairs of a user's own.

The tasks are those of Bakalova et al., COLM 2025, arXiv 2504.00132; the word lists and the prompt string are our own
definitions. `word_pair_prompts` makes prompts of them.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from util.prompts.prompt import Layout
from util.prompts.words import column, table

CORRUPTIONS = {
    0: "unrelated",  # x, y and query: words of other lists, unrelated to each other
    1: "same_task",  # other pairs of the task
    2: "shuffled",  # the clean inputs, the clean outputs permuted
    3: "other_inputs",  # x: words of other lists, y: outputs of other pairs
    4: "other_outputs",  # x: inputs of other pairs, y: words of other lists
    5: "other_rule",  # other pairs, their outputs by another rule
}
TAB, ARROW, COLON = Layout(), Layout(" ->", " "), Layout(":", " ")
LISTS = ("words", "country_capital", "present_past", "person_sport")
TRAINED = {"words": "embedded_words", "present_past": "embedded_verbs"}  # the lists that the embedded model has learnt
SPORTS = ("soccer", "football", "baseball", "basketball", "hockey")  # the wrong sport is the next one, in a ring


class Pair(NamedTuple):
    """An input and its output; kind "*" marks pairs that obey the other rule too, and becomes Prompt.marks."""

    x: str
    y: str
    kind: str = ""


@dataclass(frozen=True)
class WordPairTask:
    """A map from words to words.

    pairs: Pair, or plain (x, y). other_rule: another map of the inputs, for corruption 5; a mapping need not have all.
    balanced, for tasks of few outputs: none stands more than ceil(k / outputs) + 1 times among k demonstrations.
    lists: the lists in data/word_lists that the words of "other lists" are from, without list_name, the task's.
    Raises ValueError for pairs that this layout cannot hold, and for empty or repeated words.
    """

    name: str
    pairs: tuple[Pair, ...]
    other_rule: Mapping[str, str] | Callable[[str], str] | None = None
    layout: Layout = TAB
    balanced: bool = False
    list_name: str = ""
    lists: tuple[str, ...] = LISTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", _checked(self.pairs, self.layout, f"task {self.name!r}"))

    @property
    def corruptions(self) -> tuple[int, ...]:
        """The corruptions there are: 5 needs another rule."""
        return tuple(c for c in CORRUPTIONS if c != 5 or self.other_rule is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The distinct outputs, in the order of the list."""
        return tuple(dict.fromkeys(pair.y for pair in self.pairs))

    def other(self, x: str) -> str | None:
        """The output of the other rule; None where it has none."""
        if isinstance(self.other_rule, Mapping):
            return self.other_rule.get(x)
        return self.other_rule(x) if self.other_rule else None

    def limit(self, k: int) -> int:
        """How often one output may stand among k demonstrations."""
        return -(-k // len(self.outputs)) + 1 if self.balanced else k

    def queries(self, split: str = "all") -> frozenset[str]:
        """The inputs that are queries of a split, half of the unmarked ones each (of an odd number, test has one more).

        They are ranked by SHA-256: no tokenizer, seed or task moves a word. Raises ValueError for an unknown split.
        """
        inputs = sorted((p.x for p in self.pairs if not p.kind), key=lambda x: hashlib.sha256(x.encode()).digest())
        half = len(inputs) // 2
        parts = {"all": inputs, "search": inputs[:half], "test": inputs[half:]}
        if split not in parts:
            raise ValueError(f"unknown split {split!r}; choose one of {', '.join(parts)}")
        return frozenset(parts[split])


# ------------------------------------------------------------------------------------------------ tasks by name


def capitalised(word: str) -> str:
    """The word with its first letter upper."""
    return word[:1].upper() + word[1:]


def copied(word: str) -> str:
    """The word."""
    return word


def _lists(trained: bool) -> tuple[str, ...]:
    return tuple(TRAINED.get(name, name) for name in LISTS) if trained else LISTS


def _words(name: str, rule: Callable[[str], str], other: Callable[[str], str], trained: bool) -> WordPairTask:
    lists = _lists(trained)
    words = [word for word in column(lists[0], "word") if capitalised(word) != word]
    return WordPairTask(name, tuple(Pair(word, rule(word)) for word in words), other, list_name=lists[0], lists=lists)


def _verbs(name: str, trained: bool) -> WordPairTask:
    lists, ambiguous = _lists(trained), name.startswith("ambiguous")
    found = [(row["present"], row["past"]) for row in table(lists[2])]
    pairs = tuple(Pair(x, y, "*" if x == y else "") for x, y in found if ambiguous or x != y)
    return WordPairTask(name, pairs, copied, list_name=lists[2], lists=lists)


def _country_capital(name: str, trained: bool) -> WordPairTask:
    rows = table(name)
    currencies = {row["country"]: row["currency"] for row in rows}
    pairs = tuple(Pair(row["country"], row["capital"]) for row in rows)
    return WordPairTask(name, pairs, currencies, list_name=name, lists=_lists(trained))


def _person_sport(name: str, trained: bool) -> WordPairTask:
    pairs = tuple(Pair(row["person"], row["sport"]) for row in table(name))
    wrong = {x: SPORTS[(SPORTS.index(sport) + 1) % len(SPORTS)] for x, sport, _ in pairs}
    return WordPairTask(name, pairs, wrong, balanced=True, list_name=name, lists=_lists(trained))


_MAKERS: dict[str, Callable[[str, bool], WordPairTask]] = {
    "copying": lambda name, trained: _words(name, copied, capitalised, trained),
    "capitalization": lambda name, trained: _words(name, capitalised, copied, trained),
    "country_capital": _country_capital,
    "present_past": _verbs,
    "person_sport": _person_sport,
    "ambiguous_present_past": _verbs,
}


@cache
def _built_in(name: str, trained: bool) -> WordPairTask:
    """Made when it is asked for: the module can be imported where there are no lists."""
    return _MAKERS[name](name, trained)


_REGISTERED: dict[str, WordPairTask] = {}


def names() -> tuple[str, ...]:
    """The tasks that can be called by name."""
    return (*_MAKERS, *_REGISTERED)


def register(task: WordPairTask) -> WordPairTask:
    """Let a task be called by its name. Raises ValueError where the name is taken."""
    if task.name in names():
        raise ValueError(f"there is a word-pair task {task.name!r} already; give yours another name")
    _REGISTERED[task.name] = task
    return task


def find(task: str | WordPairTask, *, trained: bool = False) -> WordPairTask:
    """The task of that name; a task is handed back as it is. Raises ValueError listing the names.

    trained: of the suite's tasks, with the words that the embedded model was trained on. It learnt them by heart, and
    does not do the tasks on others.
    """
    if isinstance(task, WordPairTask):
        return task
    if task not in names():
        raise ValueError(f"unknown word-pair task {task!r}; there are {', '.join(names())}")
    return _REGISTERED[task] if task in _REGISTERED else _built_in(task, trained)


# ------------------------------------------------------------------------------------------------ pairs of a user


def pairs_from_file(
    path: str | Path, columns: tuple[str, str] | None = None, layout: Layout = TAB, least: int = 3
) -> tuple[Pair, ...]:
    """Pairs from a CSV file, or from JSON: a list of [x, y] or {"input": x, "output": y}, or one object x -> y.

    columns: the columns of a CSV file by the names in its header. Without it, a first line with "input" and "output" is
    a header; otherwise the first two columns are read, from the first line on. Marks of `Pair` come from JSON rows of
    three only.
    Raises ValueError, naming the file, for anything else, fewer than `least` pairs, and pairs that no task can have.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = _json_rows(text) if path.suffix.lower() == ".json" else _csv_rows(text, columns)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"cannot read pairs from {path}: {error}") from error
    return _checked(rows, layout, str(path), least)


def _json_rows(text: str) -> list[Any]:
    rows = json.loads(text, object_pairs_hook=tuple)  # a dictionary would hide inputs that are there twice
    if not isinstance(rows, list | tuple):
        raise ValueError("neither a list nor an object")
    if isinstance(rows, tuple):
        return list(rows)
    return [[dict(row).get(key) for key in ("input", "output")] if isinstance(row, tuple) else row for row in rows]


def _csv_rows(text: str, columns: tuple[str, str] | None) -> list[Any]:
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True, strict=True) if row]
    header, named = rows[0] if rows else [], columns or ("input", "output")
    if set(named) <= set(header):
        return [[dict(zip(header, row, strict=False)).get(name) for name in named] for row in rows[1:]]
    if columns:
        raise ValueError(f"no columns {columns} in its first line {header}")
    return [row[:2] for row in rows]


def _checked(rows: Iterable[Any], layout: Layout, where: str, least: int = 2) -> tuple[Pair, ...]:
    pairs: dict[str, Pair] = {}
    for number, row in enumerate(rows, 1):
        cells = list(row) if isinstance(row, list | tuple) else []
        words, kind = cells[:2], cells[2:]
        if len(words) < 2 or not all(isinstance(word, str) for word in words) or kind not in ([], [""], ["*"]):
            raise ValueError(
                f"{where}: pair {number}, {row!r}, is not an input and an output, with or without mark '*'"
            )
        faults = [f"{word!r} {why}" for word in words if (why := fault(word, layout))]
        if faults or words[0] in pairs:
            raise ValueError(f"{where}: pair {number}: {faults[0] if faults else f'{words[0]!r} is an input twice'}")
        pairs[words[0]] = Pair(*words, *kind)
    if len(pairs) < least:
        raise ValueError(f"{where}: {len(pairs)} pairs; at least {least} are needed")
    return tuple(pairs.values())


def fault(word: str, layout: Layout) -> str:
    """Why a word cannot stand in a layout, if so."""
    if not word.strip():
        return "is empty"
    if word != word.strip():
        return "has white space at an end"
    marks = (layout.separator.strip() or layout.separator, layout.end.strip() or layout.end, "\t", "\n")
    found = [mark for mark in marks if mark in word]
    return f"contains {found[0]!r}, which ends a part of the prompt; choose another word or layout" if found else ""
