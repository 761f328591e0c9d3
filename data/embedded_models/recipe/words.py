"""Words that are one token each in the embedded models' tokenizer, and words held out from training."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase

from util.prompts.classification import category
from util.prompts.ioi import held_out, word_lists
from util.prompts.own_tasks import column
from util.prompts.word_pairs import find

LABEL_WORDS: tuple[str, ...] = tuple(
    "negative positive neutral poor bad good great short entity description person location number world sports"
    " business science false true anger joy sad normal hate skip relation".split()
)
"""The label words of StaICC's ten data sets, each once."""

TOY_LABELS: tuple[str, ...] = ("Foo", "Bar", "Mur", "Res")
LETTERS: tuple[str, ...] = tuple(ascii_uppercase + ascii_lowercase)

CATEGORIES: dict[str, tuple[str, ...]] = {name: category(name) for name in column("categories", "category")}
"""Eight categories of sixteen words, for the word classification tasks."""

PAIR_TASKS: dict[str, tuple[tuple[str, str], ...]] = {
    name: tuple((pair.x, pair.y) for pair in find(name, trained=True).pairs)
    for name in ("copying", "capitalization", "country_capital", "present_past", "person_sport")
}
"""The (input, output) pairs of the word-pair tasks on which the tokenizer and the committed model were trained.

Words and verbs come from separate, frozen lists, so that the tasks' own lists may grow.
"""


def held_out_inputs() -> frozenset[str]:
    """A tenth of the words, of the verbs and of the countries; no word pair in training has them as input."""
    lists = [[x for x, _ in PAIR_TASKS[task]] for task in ("copying", "present_past", "country_capital")]
    return frozenset().union(*(held_out(inputs, len(inputs) // 10) for inputs in lists))


HELD_OUT_LABELS = held_out(LABEL_WORDS[LABEL_WORDS.index("anger") :], 4) | held_out(LETTERS, 6)  # never a label


def promised() -> list[str]:
    """The strings that the tokenizer promises to keep as one token each.

    With a leading space: label words, toy labels, letters, category words and the words of IOI. Without it: toy labels,
    category words, and those inputs and outputs of the word-pair tasks that are a single word.
    """
    category_words = [word for words in CATEGORIES.values() for word in words]
    bare = [*TOY_LABELS, *category_words]
    spaced = [
        *LABEL_WORDS,
        *LETTERS,
        *bare,
        *(w for kind in ("names", "places", "objects") for w in word_lists()[kind]),
    ]
    pairs = [word for pairs in PAIR_TASKS.values() for pair in pairs for word in pair if " " not in word]
    return [*(f" {word}" for word in dict.fromkeys(spaced)), *dict.fromkeys([*bare, *pairs])]
