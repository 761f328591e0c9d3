"""Classification tasks, and few-shot prompts for them with balanced demonstrations.

The tasks here are synthetic; those with texts that people wrote are in `text_tasks`.

Source: Crosbie & Shutova 2024, section 5 and Table 1. Three tasks are about patterns of letters. Two are about pairs of
words, and each of these has a 4-way version. Our rows differ from their files on purpose: their files have degenerate
letter patterns, duplicates (a third of the 4-way rows) and two tasks with the same Bar rows. Their sampler drops the
query after drawing, which leaves the classes unbalanced.

Your own task is one object:

    vowels = Task(
        name="vowels",
        rows=(("apple", "Foo"), ("otter", "Foo"), ..., ("pear", "Bar"), ("wolf", "Bar"), ...),
        labels=("Foo", "Bar"),
    )
    prompts(vowels, k=10)

Its demonstrations are drawn from its rows; with `pool=` they are drawn from other rows (a training split). `register`
makes it known by its name; a file with the columns text and label is a task, too, see `own_tasks`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product, zip_longest
from random import Random
from string import ascii_uppercase
from typing import Any, ClassVar

from util.prompts import own_tasks
from util.prompts.own_tasks import column_text, table
from util.prompts.prompt import Example, Layout, Prompt, Strings

LABELS = ("Foo", "Bar", "Mur", "Res")
HEADER = (
    "Below are sequences, each with a colon and its class behind it. "
    "One and the same hidden rule decides the class of every sequence. "
    "Use the examples to name the class of the last one.\n\n"
)
LAYOUT = Layout(":", "", "\n\n", HEADER)  # the blank line is several tokens in most tokenizers: see `type_tokens`
OF_TEXTS = Layout("\nLabel:", " ", "\n\n")  # of texts in files, which may have colons

CLASS_ROWS = 250
# The pattern of Foo and that of Bar. The rule "any letter is repeated" solves these tasks.
PATTERNS = {"repetition": ("abab", "abcd"), "recursion": ("abbb", "abcd"), "centre_embedding": ("abcba", "abcde")}
# The categories of the first and the second word, for each class. The binary tasks have the first two classes.
PAIRS = {
    "wordseq1": (("fruit", "animal"), ("furniture", "profession"), ("furniture", "animal"), ("fruit", "profession")),
    "wordseq2": (
        ("vegetable", "vehicle"),
        ("body part", "instrument"),
        ("vegetable", "instrument"),
        ("body part", "vehicle"),
    ),
}
NAMES = (*PATTERNS, *PAIRS, *(f"{name}_4way" for name in PAIRS))


Rows = tuple[Example, ...]  # each a text and its label


@dataclass(frozen=True)
class Task:
    """A classification task. rows: (text, label), the queries; pool: (text, label), what demonstrations are drawn from.

    Without a pool, demonstrations are drawn from the rows. Within rows and within the pool every text occurs once and
    every label has texts. A text may be in both: then it is no demonstration for itself.
    forbids(query, candidate): whether the candidate text may not be a demonstration for this query; the query's own
    text never may.
    Raises ValueError for duplicate texts or labels, labels that are unknown or have no rows, and a text or label that
    is empty or contains a separator of the layout. Where the separator itself contains the layout's end (as
    "\\n\\nAnswer:" does), a text may contain the end: it is over where the separator begins. source: the file that it
    was read from, if any.
    """

    kind: ClassVar[str] = "classification"
    columns: ClassVar[own_tasks.Columns] = own_tasks.CLASSES

    name: str
    rows: Rows
    labels: Strings
    layout: Layout = LAYOUT
    forbids: Callable[[str, str], bool] = operator.eq
    pool: Rows = ()
    source: str = field(default="", compare=False)

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[Mapping[str, Any]], source: str) -> Task:
        """The task of rows with the columns text and label, in the layout OF_TEXTS; labels in the order of the rows.

        Raises ValueError with the number of a row, from 1, that has no text or label, or a label that differs from
        another one in case alone; for a single label; and what `Task` raises.
        """
        made, labels = list[Example](), dict[str, str]()
        for number, row in enumerate(rows, 1):
            try:
                text, label = (column_text(row, column).strip() for column in ("text", "label"))
            except ValueError as error:
                raise ValueError(f"{source}, row {number}: {error}") from None
            if (known := labels.setdefault(label.casefold(), label)) != label:
                raise ValueError(f"{source}, row {number}: label {label!r} is {known!r} before; write it in one way")
            made.append((text, label))
        if len(labels) < 2:
            raise ValueError(f"{source}: all rows have the label {made[0][1]!r}; two labels or more are needed")
        return cls(name, tuple(made), tuple(labels.values()), OF_TEXTS, source=source)

    def __post_init__(self) -> None:
        separator, end = self.layout.separator, self.layout.end
        _check_words(self.labels, (separator, end), f"labels of {self.name}: number")
        marks_of_texts = (separator,) if end in separator else (separator, end)
        for what, rows in {"rows": self.rows, "pool": self.pool or self.rows}.items():
            place = self.source or f"{what} of {self.name}"
            _check_words((text for text, _ in rows), marks_of_texts, f"{place}, row")
            used = {label for _, label in rows}
            if used != set(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}, but its {what} have {sorted(used)}")

    @cached_property
    def candidates(self) -> dict[str, list[str]]:
        """The texts that demonstrations are drawn from, sorted, by label."""
        return _texts_by_label(self.pool or self.rows, self.labels)


def shares_word(query: str, candidate: str) -> bool:
    """Whether two texts have the same word at the same position, so that the answer could be copied from there."""
    return any(map(operator.eq, query.split(), candidate.split()))


def register(task: Task) -> Task:
    """Make a task known by its name, and return it. Raises ValueError if the name is taken."""
    return own_tasks.register(task, NAMES)


def task(name: str) -> Task:
    """The task of that name, one of NAMES or of one's own, see `own_tasks`. Raises ValueError for an unknown name.

    Letter tasks have 500 rows, word-pair tasks 512, or 1,024 in four classes; all classes have equally many rows.
    """
    if given := own_tasks.find(name, Task, NAMES):
        return given
    if name in PATTERNS:
        classes = [_letter_rows(name, pattern) for pattern in PATTERNS[name]]
    else:
        pairs = PAIRS[name.removesuffix("_4way")][: 4 if name.endswith("_4way") else 2]
        classes = [[" ".join(words) for words in product(*map(category, pair))] for pair in pairs]
    rows = tuple((text, label) for label, texts in zip(LABELS, classes, strict=False) for text in texts)
    return Task(name, rows, LABELS[: len(classes)], forbids=operator.eq if name in PATTERNS else shares_word)


def relabelled(task: Task, labels: Sequence[str]) -> Task:
    """The same task with other labels; labels[i] replaces task.labels[i].

    Raises ValueError for another number of labels, and what `Task` raises.
    """
    if len(labels) != len(task.labels):
        raise ValueError(
            f"labels = {list(labels)}: {task.name} has {len(task.labels)} classes, give each a word of its own"
        )
    new = dict(zip(task.labels, labels, strict=True))
    rows, pool = (tuple((x, new[y]) for x, y in some) for some in (task.rows, task.pool))
    return replace(task, rows=rows, pool=pool, labels=tuple(labels))


def prompts(task: Task, k: int, seed: int = 42, limit: int | None = None) -> list[Prompt]:
    """One prompt per row of the task, which is its query, with k balanced demonstrations.

    limit: how many prompts, default all rows. The order of the queries takes turns among the classes as long as all of
    them have queries left; it depends on the task's name and rows alone. Raises what `demonstrations` raises.
    """
    return [
        task.layout.prompt(demonstrations(task, k, seed, text), text, label, task.labels)
        for text, label in _queries(task)[:limit]
    ]


def demonstrations(task: Task, k: int, seed: int, query: str) -> list[Example]:
    """The k demonstrations (text, label) of the prompt for a query.

    With c classes, every class gets k // c demonstrations, and the remaining k % c go to random classes, one each. They
    are drawn without replacement, without the query, and shuffled. They depend on the task's name and on what they are
    drawn from, on k, the seed and the query. Raises ValueError for k < 0, and if the query leaves too few candidates in
    a class.

    Source: Crosbie & Shutova 2024, Table 2 (seeds 42, 43 and 44); there the query is taken out after the draw.
    """
    rng = Random(f"{task.name}:{seed}:{query}")
    per_class, rest = divmod(k, len(task.labels))
    extra = rng.sample(task.labels, rest)
    drawn = []
    for label, texts in task.candidates.items():
        candidates = [text for text in texts if text != query and not task.forbids(query, text)]
        number = per_class + (label in extra)
        if len(candidates) < number:
            raise ValueError(
                f"{task.name}: {k} demonstrations take {number} of class {label!r}, but the query {query!r} leaves "
                f"{len(candidates)}; take a smaller k or give the class more rows"
            )
        drawn += [(text, label) for text in rng.sample(candidates, number)]
    rng.shuffle(drawn)
    return drawn


def associative_map_prompts(words: Sequence[str], labels: Sequence[str], keys: int, count: int) -> list[Prompt]:
    """Prompts that contain their answer: each demonstrates a random map from `keys` words to as many labels.

    One key is the query. A prompt depends on the other arguments and its own number, not on `count`. Raises ValueError
    for more keys than words or labels.
    """
    drawn = []
    for number in range(count):
        rng = Random(f"associative map:42:{number}")
        values = rng.sample(labels, keys)
        pairs = list(zip(rng.sample(words, keys), values, strict=True))
        shown = list(pairs)
        rng.shuffle(shown)
        drawn.append(Layout().prompt(shown, *rng.choice(pairs), labels))
    return drawn


def _texts_by_label(rows: Rows, labels: Iterable[str]) -> dict[str, list[str]]:
    """The texts of each label, sorted."""
    return {label: sorted(text for text, of_text in rows if of_text == label) for label in labels}


def _queries(task: Task) -> list[Example]:
    """All rows (text, label), shuffled, the classes in turn: of one twice as large as the smallest two rows a turn."""
    rng = Random(task.name)
    queues = [
        [(text, label) for text in rng.sample(texts, len(texts))]
        for label, texts in _texts_by_label(task.rows, task.labels).items()
    ]
    rng.shuffle(queues)
    sizes = [len(queue) // min(map(len, queues)) for queue in queues]
    turns = zip_longest(*(queue[i::size] for queue, size in zip(queues, sizes, strict=True) for i in range(size)))
    return [query for turn in turns for query in turn if query is not None]


def _letter_rows(name: str, pattern: str) -> list[str]:
    """CLASS_ROWS different rows of letters in a pattern."""
    rng = Random(f"{name}:{pattern}")
    rows: dict[str, None] = {}  # an ordered set
    while len(rows) < CLASS_ROWS:
        letters = dict(zip("abcde", rng.sample(ascii_uppercase, 5), strict=True))
        rows[" ".join(letters[symbol] for symbol in pattern)] = None
    return list(rows)


def category(name: str) -> Strings:
    """The words of one category of data/word_lists/categories.csv."""
    return tuple(row["word"] for row in table("categories") if row["category"] == name)


def _check_words(words: Iterable[str], marks: Sequence[str], what: str) -> None:
    """Raises ValueError for a word that is repeated or empty, or that contains a mark (one that is empty is none)."""
    numbers, marks = dict[str, int](), [mark for mark in marks if mark]
    for number, word in enumerate(words, 1):
        shown = repr(word if len(word) <= 60 else f"{word[:60]}…")
        if word in numbers:
            raise ValueError(f"{what} {number}: {shown} occurs more than once, as {numbers[word]}; keep one of each")
        if not word or any(mark in word for mark in marks):
            raise ValueError(f"{what} {number}: {shown} is empty or contains one of the layout's separators {marks}")
        numbers[word] = number
