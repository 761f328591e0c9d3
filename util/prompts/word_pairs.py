"""Word-pair tasks for in-context learning: maps from words to words, known by name or given by the user.

The tasks are those of Bakalova et al., COLM 2025, arXiv 2504.00132. The word lists and the form of the prompt are our
own definitions. `word_pair_prompts` makes prompts of the tasks.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from util.prompts import own_tasks
from util.prompts.own_tasks import column, table
from util.prompts.prompt import Ints, Layout, Strings

CORRUPTIONS = {
    0: "unrelated",  # x, y and query are words of other lists, unrelated to each other
    1: "same_task",  # other pairs of the task
    2: "shuffled",  # the clean inputs with the clean outputs permuted
    3: "other_inputs",  # x are words of other lists, y are outputs of other pairs
    4: "other_outputs",  # x are inputs of other pairs, y are words of other lists
    5: "other_rule",  # other pairs, with outputs by another rule
}
TAB, ARROW, COLON = Layout(), Layout(" ->", " "), Layout(":", " ")
LAYOUTS = {"tab": TAB, "arrow": ARROW, "colon": COLON}
LISTS = ("words", "country_capital", "present_past", "person_sport")
TRAINED = ("embedded_words", "country_capital", "embedded_verbs", "person_sport")  # with the embedded model's own words
# of a figure; the ambiguous one has most of its pairs from another
TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport")
NAMES = (*TASKS, "ambiguous_present_past")
WRONG_SPORT = {
    "soccer": "football",
    "football": "baseball",
    "baseball": "basketball",
    "basketball": "hockey",
    "hockey": "soccer",
}
Rule = Mapping[str, str] | Callable[[str], str]  # a map of inputs


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
    from all of them but list_name. donors: corruptions of one's own, by number: the input and output that stand for
    those of each input. source: the file that it was read from, if any. Raises ValueError for words that the layout
    cannot hold, empty words and repeated inputs, with the number of the pair.
    """

    kind: ClassVar[str] = "word-pair"
    columns: ClassVar[own_tasks.Columns] = own_tasks.PAIRS

    name: str
    pairs: tuple[Pair, ...]
    other_rule: Rule | None = None
    layout: Layout = TAB
    balanced: bool = False
    list_name: str = ""
    lists: Strings = LISTS
    donors: Mapping[int, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        where = self.source or f"task {self.name!r}"
        object.__setattr__(self, "pairs", _checked(self.pairs, self.layout, where))
        for c, of in self.donors.items():
            for number, pair in enumerate(self.pairs, 1):
                place, words = f"{where}, row {number}", of.get(pair.x, pair[:2])
                if tuple(words) == pair[:2]:
                    raise ValueError(f"{place}: corruption {CORRUPTIONS[c]} changes neither {pair.x!r} nor {pair.y!r}")
                _refuse(words, self.layout, place)

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[Mapping[str, Any]], source: str) -> "WordPairTask":
        """The task of rows with the columns input and output, or x and y, and these where they are wanted.

        mark: "*" for pairs that fit the other rule too; other_rule: the output by another rule; and for a corruption of
        one's own, by its name, such as unrelated_input and unrelated_output: the words that stand for those of the pair
        in a corrupted prompt (an empty cell, or no such column: the pair's own). Raises ValueError for a column
        of a corruption that there is not, and what `WordPairTask` raises.
        """
        cells = _cells(rows)
        # a name even for an input that is no text, which the task will refuse
        named = [(str(x), y, row) for (x, y, _), row in zip(cells, rows, strict=True)]
        other = {x: row["other_rule"] for x, _, row in named if row.get("other_rule")}
        for number, row in enumerate(rows, 1):
            _refuse(filter(None, [row.get("other_rule")]), TAB, f"{source}, row {number}")
        known = [f"{corruption}_{part}" for corruption in CORRUPTIONS.values() for part in ("input", "output")]
        given = {str(column) for column in rows[0] if str(column).endswith(("_input", "_output"))}
        if unknown := given - {*known}:
            raise ValueError(f"{source}: unknown column {min(unknown)!r}; corruptions have {', '.join(known)}")
        donors = {
            c: {x: (row.get(f"{corruption}_input") or x, row.get(f"{corruption}_output") or y) for x, y, row in named}
            for c, corruption in CORRUPTIONS.items()
            if given & {f"{corruption}_input", f"{corruption}_output"}
        }
        return cls(name, cells, other or None, donors=donors, source=source)  # type: ignore[arg-type]  # made pairs

    @property
    def corruptions(self) -> Ints:
        """The numbers of the possible corruptions; 5 needs another rule."""
        return tuple(c for c in CORRUPTIONS if c != 5 or self.other_rule is not None or c in self.donors)

    @property
    def words(self) -> tuple[Any, ...]:
        """What of requests corruptions of one's own decide: nothing where there are none."""
        return (self.donors,) if self.donors else ()

    @property
    def outputs(self) -> Strings:
        """The distinct outputs, in the order of the pairs."""
        return tuple(dict.fromkeys(pair.y for pair in self.pairs))

    def in_layout(self, layout: Mapping[Any, str] | None) -> "WordPairTask":
        """The same task in a layout of these fields, None: its own. Raises ValueError for words that it cannot hold."""
        return self if layout is None else replace(self, layout=Layout(**layout))

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
    lists = TRAINED if trained else LISTS
    other: Rule
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
            other = {person: WRONG_SPORT[sport] for person, sport, _ in pairs}
    return WordPairTask(name, tuple(pairs), other, balanced=name == "person_sport", list_name=list_name, lists=lists)


def is_trained(model: str) -> bool:
    """Whether a model is asked the words that the embedded model was trained on: every other has longer lists."""
    return model.partition("/")[0] == "embedded"


def names() -> Strings:
    """The names of the suite's tasks and of the registered ones."""
    return (*NAMES, *own_tasks.names(WordPairTask))


def register(task: WordPairTask) -> WordPairTask:
    """Make a task known by its name, and return it. Raises ValueError if the name is taken."""
    return own_tasks.register(task, NAMES)


def find(task: str | WordPairTask, *, trained: bool = False) -> WordPairTask:
    """The task of that name, or of a place, see `own_tasks`; a `WordPairTask` is returned unchanged.

    trained: use the words that the embedded model was trained on, if it is one of the suite's tasks, and as words of
    other lists. The model learnt these words by heart and cannot do the tasks with other words. Raises ValueError, with
    all names, for others, and for a file that is no task.
    """
    if isinstance(task, WordPairTask):
        return task
    given = own_tasks.find(task, WordPairTask, NAMES)
    if given is None:
        return _built_in(task, trained)
    return replace(given, lists=TRAINED) if trained and given.lists == LISTS else given


# ------------------------------------------------------------------------------------------------ pairs of a user


def pairs_from_file(path: str | Path) -> tuple[Pair, ...]:
    """Pairs from a file with the columns input and output, or x and y, see `own_tasks.rows_of`.

    Raises ValueError, naming the file, for any other content, and pairs that no task can have.
    """
    return _checked(_cells(own_tasks.rows_of(Path(path))), TAB, str(path))


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Input, output and mark of each row."""
    x, y = next((columns for columns in own_tasks.PAIRS if {*columns} <= {*rows[0]}), own_tasks.PAIRS[0])
    return [[row.get(x), row.get(y), row.get("mark") or ""] for row in rows]


def _checked(rows: Iterable[Any], layout: Layout, where: str) -> tuple[Pair, ...]:
    """The rows as pairs. Raises ValueError, which begins with `where`, for rows that are no pairs of this layout."""
    pairs: dict[str, Pair] = {}
    for number, row in enumerate(rows, 1):
        place = f"{where}, row {number}"
        cells = list(row) if isinstance(row, list | tuple) else []
        words, kind = cells[:2], cells[2:]
        if len(words) < 2 or not all(isinstance(word, str) for word in words) or kind not in ([], [""], ["*"]):
            raise ValueError(f"{place}: {row!r} is not an input and an output, with or without mark '*'")
        _refuse(words, layout, place)
        if words[0] in pairs:
            first = [*pairs].index(words[0]) + 1
            raise ValueError(f"{place}: {words[0]!r} is an input twice, also of row {first}; keep one of the two")
        pairs[words[0]] = Pair(*words, *kind)
    if len(pairs) < 2:
        raise ValueError(f"{where}: {len(pairs)} pairs; at least 2 are needed")
    return tuple(pairs.values())


def _refuse(words: Iterable[Any], layout: Layout, place: str) -> None:
    """Raises ValueError, which begins with `place`, for what is no text and words that the layout cannot hold."""
    for word in words:
        if reason := fault(word, layout) if isinstance(word, str) else "is no text":
            raise ValueError(f"{place}: {word!r} {reason}")


def fault(word: str, layout: Layout) -> str:
    """Why a word cannot be used in this layout; "" if it can."""
    if not word.strip():
        return "is empty"
    if word != word.strip():
        return "has white space at an end"
    for mark in (layout.separator, layout.end, "\t", "\n"):
        visible = mark.strip() or mark
        if visible in word:
            return f"contains {visible!r}, which ends a part of the prompt; choose another word or layout"
    return ""
