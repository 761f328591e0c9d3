"""Word-pair tasks for in-context learning: maps from words to words, known by name or given by the user.

The tasks are those of Bakalova et al., COLM 2025, arXiv 2504.00132. The word lists and the form of the prompt are our
own definitions. `word_pair_prompts` makes prompts of the tasks.
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

from util.prompts import row_files
from util.prompts.prompt import Layout
from util.prompts.row_files import column, table

CORRUPTIONS = {
    0: "unrelated",  # x, y and query are words of other lists, unrelated to each other
    1: "same_task",  # other pairs of the task
    2: "shuffled",  # the clean inputs with the clean outputs permuted
    3: "other_inputs",  # x are words of other lists, y are outputs of other pairs
    4: "other_outputs",  # x are inputs of other pairs, y are words of other lists
    5: "other_rule",  # other pairs, with outputs by another rule
}
TAB, ARROW, COLON = Layout(), Layout(" ->", " "), Layout(":", " ")
LISTS = ("words", "country_capital", "present_past", "person_sport")
TRAINED = {"words": "embedded_words", "present_past": "embedded_verbs"}  # lists of the embedded model's training words
NAMES = ("copying", "capitalization", "country_capital", "present_past", "person_sport", "ambiguous_present_past")
SPORTS = ("soccer", "football", "baseball", "basketball", "hockey")  # the wrong sport is the next one, cyclically


class Pair(NamedTuple):
    """An input and its output. kind: "*" for pairs that fit the other rule too; it becomes the mark in Prompt.marks."""

    x: str
    y: str
    kind: str = ""


@dataclass(frozen=True)
class WordPairTask:
    """A map from words to words.

    pairs: `Pair`s, or plain (x, y). other_rule: another map of the inputs, for corruption 5; a mapping need not contain
    all inputs. balanced: for tasks with few outputs; no output occurs more than ceil(k / outputs) + 1 times among k
    demonstrations. list_name: the task's own list in data/word_lists. lists: the lists there; corruptions take words
    from all of them but list_name. Raises ValueError for words that the layout cannot hold, empty words and repeated
    inputs.
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
        """The numbers of the possible corruptions; 5 needs another rule."""
        return tuple(c for c in CORRUPTIONS if c != 5 or self.other_rule is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The distinct outputs, in the order of the pairs."""
        return tuple(dict.fromkeys(pair.y for pair in self.pairs))

    def other(self, x: str) -> str | None:
        """The output of the other rule for an input; None if it has none."""
        if isinstance(self.other_rule, Mapping):
            return self.other_rule.get(x)
        return self.other_rule(x) if self.other_rule else None

    def limit(self, k: int) -> int:
        """How often the same output may occur among k demonstrations."""
        return -(-k // len(self.outputs)) + 1 if self.balanced else k

    def queries(self, split: str = "all") -> frozenset[str]:
        """The inputs that may be queries of a split: "all", "search" or "test".

        "all" are the inputs of pairs without mark. "search" and "test" are halves of them; if the number is odd, "test"
        has one more. The halves are made by SHA-256 rank, so they do not depend on tokenizer, seed or task. Raises
        ValueError for an unknown split.
        """
        unmarked = [pair.x for pair in self.pairs if not pair.kind]
        inputs = sorted(unmarked, key=lambda x: hashlib.sha256(x.encode()).digest())
        half = len(inputs) // 2
        splits = {"all": inputs, "search": inputs[:half], "test": inputs[half:]}
        if split not in splits:
            raise ValueError(f"unknown split {split!r}; choose one of {', '.join(splits)}")
        return frozenset(splits[split])


# ------------------------------------------------------------------------------------------------ tasks by name


def capitalised(word: str) -> str:
    """The word with its first letter in upper case."""
    return word[:1].upper() + word[1:]


def copied(word: str) -> str:
    """The word itself."""
    return word


@cache
def _built_in(name: str, trained: bool) -> WordPairTask:
    """One of NAMES; it is made on demand, so that the module can be imported where there are no lists."""
    lists = tuple(TRAINED.get(listed, listed) for listed in LISTS) if trained else LISTS
    other: Mapping[str, str] | Callable[[str], str]
    if name in ("copying", "capitalization"):
        list_name = lists[0]
        rule, other = (copied, capitalised) if name == "copying" else (capitalised, copied)
        pairs = [Pair(word, rule(word)) for word in column(list_name, "word") if capitalised(word) != word]
    elif name.endswith("present_past"):
        list_name, other = lists[2], copied
        verbs = [(row["present"], row["past"]) for row in table(list_name)]
        pairs = [Pair(x, y, "*" if x == y else "") for x, y in verbs if name.startswith("ambiguous") or x != y]
    else:
        list_name = name
        x, y = name.split("_")
        pairs = [Pair(row[x], row[y]) for row in table(name)]
        if name == "country_capital":
            other = {row[x]: row["currency"] for row in table(name)}
        else:
            other = {person: SPORTS[(SPORTS.index(sport) + 1) % len(SPORTS)] for person, sport, _ in pairs}
    balanced = name == "person_sport"
    return WordPairTask(name, tuple(pairs), other, balanced=balanced, list_name=list_name, lists=lists)


def is_trained(model: str) -> bool:
    """Whether a model is asked the words that the embedded model was trained on: every other has longer lists."""
    return model.partition("/")[0] == "embedded"


_REGISTERED: dict[str, WordPairTask] = {}


def names() -> tuple[str, ...]:
    """The names of the suite's tasks and of the registered ones."""
    return (*NAMES, *_REGISTERED)


def register(task: WordPairTask) -> WordPairTask:
    """Make a task known by its name, and return it. Raises ValueError if the name is taken."""
    if task.name in names():
        raise ValueError(f"there is a word-pair task {task.name!r} already; give yours another name")
    _REGISTERED[task.name] = task
    return task


def find(task: str | WordPairTask, *, trained: bool = False) -> WordPairTask:
    """The task of that name; a `WordPairTask` is returned unchanged. Raises ValueError, with all names, for others.

    The name may be that of a folder with a saved data set, see `pairs_from_saved`.

    trained: use the words that the embedded model was trained on, if it is one of the suite's tasks. The model learnt
    these words by heart and cannot do the tasks with other words.
    """
    if isinstance(task, WordPairTask):
        return task
    if is_saved(task):
        return WordPairTask(shown_task(task), pairs_from_saved(task), lists=_built_in(NAMES[0], trained).lists)
    if task not in names():
        raise ValueError(f"unknown word-pair task {task!r}; there are {', '.join(names())}")
    return _REGISTERED[task] if task in _REGISTERED else _built_in(task, trained)


def shown_task(task: str) -> str:
    """The name of a task in requests, titles and values; it never contains a path."""
    return Path(task).resolve().name if is_saved(task) else task


# ------------------------------------------------------------------------------------------------ pairs of a user


def is_saved(task: str) -> bool:
    """Whether this is no task's name but a folder that `datasets` has written with `save_to_disk`."""
    return task not in names() and row_files.is_saved(Path(task))


def pairs_from_saved(folder: str | Path) -> tuple[Pair, ...]:
    """Pairs of a data set that Hugging Face's package `datasets` has written with `save_to_disk`.

    Its columns are x and y, or input and output. Raises ValueError, naming the folder, for other columns and for
    several splits, and where the package is missing.
    """
    rows = [*row_files.saved(Path(folder))]
    for x, y in (("x", "y"), ("input", "output")):
        if rows and {x, y} <= {*rows[0]}:
            return _checked([[row[x], row[y]] for row in rows], TAB, str(folder))
    raise ValueError(f"{folder}: one split with the columns x and y, or input and output is needed")


def pairs_from_file(path: str | Path, columns: tuple[str, str] | None = None, layout: Layout = TAB) -> tuple[Pair, ...]:
    """Pairs from a CSV file or a JSON file.

    JSON: a list of [x, y] or {"input": x, "output": y}, or one object x -> y. A row [x, y, "*"] marks a pair (see
    `Pair`); CSV files cannot do this. CSV: columns names the input and output columns in the header. Without it, a
    first line that has "input" and "output" is the header; otherwise the first two columns are read, from the first
    line on. Raises ValueError, naming the file, for any other content, and pairs that no task can have.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = _json_rows(text) if path.suffix.lower() == ".json" else _csv_rows(text, columns)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"cannot read pairs from {path}: {error}") from error
    return _checked(rows, layout, str(path))


def _json_rows(text: str) -> list[Any]:
    rows = json.loads(text, object_pairs_hook=tuple)  # a dictionary would hide repeated inputs
    if not isinstance(rows, list):
        return list(rows)
    return [[dict(row).get(key) for key in ("input", "output")] if isinstance(row, tuple) else row for row in rows]


def _csv_rows(text: str, columns: tuple[str, str] | None) -> list[Any]:
    rows = list(csv.reader(io.StringIO(text), skipinitialspace=True, strict=True))
    named = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    x, y = columns or ("input", "output")
    if {x, y} <= {*(named.fieldnames or ())}:
        return [[row[x], row[y]] for row in named]
    if columns:
        raise ValueError(f"no columns {columns} in its first line {named.fieldnames}")
    return [row[:2] for row in rows if row]


def _checked(rows: Iterable[Any], layout: Layout, where: str) -> tuple[Pair, ...]:
    """The rows as pairs. Raises ValueError, which begins with `where`, for rows that are no pairs of this layout."""
    pairs: dict[str, Pair] = {}
    for number, row in enumerate(rows, 1):
        cells = list(row) if isinstance(row, list | tuple) else []
        words, kind = cells[:2], cells[2:]
        if len(words) < 2 or not all(isinstance(word, str) for word in words) or kind not in ([], [""], ["*"]):
            raise ValueError(
                f"{where}: pair {number}, {row!r}, is not an input and an output, with or without mark '*'"
            )
        for word in words:
            reason = fault(word, layout)
            if reason:
                raise ValueError(f"{where}: pair {number}: {word!r} {reason}")
        if words[0] in pairs:
            raise ValueError(f"{where}: pair {number}: {words[0]!r} is an input twice")
        pairs[words[0]] = Pair(*words, *kind)
    if len(pairs) < 2:
        raise ValueError(f"{where}: {len(pairs)} pairs; at least 2 are needed")
    return tuple(pairs.values())


def fault(word: str, layout: Layout) -> str:
    """Why a word cannot be used in this layout; "" if it can."""
    if not word.strip():
        return "is empty"
    if word != word.strip():
        return "has white space at an end"
    marks = [
        mark.strip() or mark for mark in (layout.separator, layout.end, "\t", "\n") if (mark.strip() or mark) in word
    ]
    return f"contains {marks[0]!r}, which ends a part of the prompt; choose another word or layout" if marks else ""
