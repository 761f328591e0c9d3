"""The induction pattern of prompts with real texts, words and letters."""

import itertools
import re
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests import toys
from tests.text_rows import ROWS, splits
from util.load_model_and_data import load_tokenizer
from util.prompts import classification, induction_pattern, text_tasks
from util.prompts.classification import LAYOUT, Task, prompts
from util.prompts.prompt import Layout, with_bos
from util.prompts.text_tasks import TEXT_TASKS, labelled_rows


def tokenizer_of(pieces):
    """A tokenizer whose tokens are the pieces that an expression finds; spaces belong to none."""
    raw = Tokenizer(models.WordLevel({"<s>": 0}, unk_token="<s>"))
    split = [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex(pieces), "isolated")]
    raw.pre_tokenizer = pre_tokenizers.Sequence(split)
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<s>")


APART = tokenizer_of(r"\n\n|\n|\w+|[^\w\s]")


def prompt_of(name, shown, asked):
    """A prompt of a text task with made-up rows by their numbers."""
    definition = text_tasks.find(name)
    rows = labelled_rows(definition, [ROWS[name](n) | {"label": n % 2} for n in (*shown, asked)], "rows")
    return definition.layout.prompt(rows[:-1], *rows[-1], tuple(definition.labels.values()))


# Say which sentiment the review expresses | .\n\n | Review : film 3 is long | .\n\n | Sentiment : | Positive | \n\n |
#  0    1       2       3    4       5     |   6   |   7    8  9  10 11 12  |   13  |    14     15 |    16    |  17  |
# Review : film 2 is long | .\n\n | Sentiment : | Negative | \n\n | Review : film 5 is long | .\n\n | Sentiment :
#  18    19  20 21 22 23  |  24   |    25     26 |   27     |  28  |  29    30 31  32 33 34 |   35   |   36      37
BY_HAND = {  # query: keys, where a full stop and the blank line after it are one token
    17: [7], 28: [7, 18],  # a blank line after a label: the first tokens of the examples before
    25: [16], 26: [16], 36: [16, 27], 37: [16, 27],  # a separator, which is Sentiment and colon: the labels before
    27: [17],  # a label: the first token after the label before
}  # fmt: skip


def test_the_pattern_of_reviews_is_the_one_written_down():
    prompt, tokenizer = prompt_of("sst2", (3, 2), 5), tokenizer_of(r"\.\n\n|\n\n|\n|\w+|[^\w\s]")  # as for Llama-3
    assert len(tokenizer(prompt.text)["input_ids"]) == max(BY_HAND) + 1
    found = induction_pattern.cells(prompt, tokenizer)
    assert sorted(map(tuple, found.tolist())) == sorted((query, key) for query in BY_HAND for key in BY_HAND[query])


def by_the_table(prompt, tokenizer, colon):
    """Crosbie & Shutova's rule, read off the text with an expression; colon: that of what stands before labels."""
    encoded = tokenizer(prompt.text, return_offsets_mapping=True)["offset_mapping"]

    def at(span):
        return [token for token, (a, b) in enumerate(encoded) if a < b and a < span[1] and span[0] < b]

    start = prompt.text.index("\n\n")
    parts, kinds, classes = [(start, start + 2)], ["end"], CLASSES if colon == ":" else {}
    line = rf"(?P<colon>{colon})(?: ?(?P<label>{'|'.join(prompt.labels)})(?P<end>\n\n))?|(?P<word>\w+)"
    for found in re.compile(line).finditer(prompt.text, start + 2):
        for kind, text in found.groupdict().items():
            if text:
                parts.append(found.span(kind))
                kinds.append(classes.get(text, len(parts)) if kind == "word" else kind)
    same = [(i, j) for i, j in product(range(len(parts)), repeat=2) if j < i and kinds[i] == kinds[j]]
    read = {j: at(parts[j + 1])[: 1 if kinds[j] in ("label", "end") else None] for _, j in same}
    return {cell for i, j in same for cell in product(at(parts[i]), read[j])}


CLASSES = {
    word: name
    for classes in classification.PAIRS.values()
    for name in itertools.chain(*classes)
    for word in classification.category(name)
}
SEPARATORS = dict.fromkeys(TEXT_TASKS, r"\n\n(?:Output|Answer|Sentiment):")
SYNTHETIC = ("wordseq1", "wordseq2_4way", "centre_embedding")
SEPARATORS |= dict.fromkeys(SYNTHETIC, ":")


def prompts_of(name):
    """Two prompts of a task with six demonstrations."""
    if name not in TEXT_TASKS:
        return prompts(classification.task(name), 6, limit=2)
    definition = text_tasks.find(name)
    pool, queries = (labelled_rows(definition, rows, "rows") for rows in splits(name).values())
    return prompts(Task(name, queries, tuple(definition.labels.values()), definition.layout, pool=pool), 6, limit=2)


@pytest.mark.parametrize("kind, name", [*product(["apart", "embedded"], SEPARATORS), *product(["unigram"], SYNTHETIC)])
def test_the_pattern_of_every_layout_is_that_of_the_table(kind, name):
    """And controls have the same queries."""
    tokenizers = {"apart": lambda: APART, "embedded": lambda: load_tokenizer("embedded")}
    tokenizer = tokenizers.get(kind, lambda: toys.tokenizer(kind, on_tasks=True))()
    for prompt in prompts_of(name):
        expected, found = by_the_table(prompt, tokenizer, SEPARATORS[name]), induction_pattern.cells(prompt, tokenizer)
        assert {*map(tuple, found.tolist())} == expected and len(found) == len(expected) > 0
        for control in ("random keys", "previous part"):
            cut = induction_pattern.cells(prompt, tokenizer, control)
            assert {*cut[:, 0].tolist()} == {*found[:, 0].tolist()} and (cut[:, 1] < cut[:, 0]).all()


def test_random_keys_are_others_and_exact_tokens_need_no_parts():
    tokenizer, names = toys.words(), ("induction", "random keys", "exact tokens")
    for prompt in prompts_of("wordseq1"):
        own, drawn, exact = (induction_pattern.cells(prompt, tokenizer, name) for name in names)
        for query in np.unique(own[:, 0]):
            read, random = ({*cut[cut[:, 0] == query, 1].tolist()} for cut in (own, drawn))
            assert len(random) == len(read) and 0 not in random
            assert not random & read or len(read) > (query - 1) / 2  # others, as far as there are any
        ids = np.array(with_bos(prompt.text, tokenizer).ids)
        assert_array_equal(exact, induction_pattern.matched_cells(ids))
    with pytest.raises(ValueError, match="there are induction, random keys, previous part"):
        induction_pattern.cells(prompt, tokenizer, "diagonal")


def test_words_have_classes_only_where_all_words_of_the_input_are_in_the_lists():
    def kinds(text):
        return [kind for kind, _ in induction_pattern.parts(LAYOUT.prompt([], text, "Foo", ("Foo", "Bar")))][1:-1]

    assert kinds("dog doctor") == ["animal", "profession"]
    assert kinds("carrot car") == ["vegetable", "vehicle"]  # "car" is not found in "carrot"
    assert kinds("the dog sees a doctor") == [None] * 5
    assert kinds("dog") == ["animal"] and kinds("D O G") == [None] * 3


@pytest.mark.parametrize(
    "pieces",
    [
        r"\.\n\n\w+:|\n\n|\w+|[^\w\s]",  # the separator is in one token with the text before it
        r"\w+\n\n|\n\n|\w+|[^\w\s]",  # the label with the blank line
        r"\w+\n|\n|\w+|[^\w\s]",  # the label with half of the blank line
        r":\w+|\n\n|\w+|[^\w\s]",  # the separator with the label
    ],
)
def test_parts_without_tokens_of_their_own_are_refused(pieces):
    layout = Layout("\n\nOutput:", "", "\n\n")
    prompt = layout.prompt([("It is so.", "Yes"), ("b", "No")], "a", "No", ("Yes", "No"))
    with pytest.raises(ValueError, match="does not split a prompt at its parts"):
        induction_pattern.cells(prompt, tokenizer_of(pieces))


def test_a_token_of_several_words_belongs_to_the_first_of_them():
    """The word between shares its only token with the words around it, and the separator keeps what is its own."""
    tokenizer = tokenizer_of(r"a,b\.\n\n|\n\n|\w+|[^\w\s]")
    layout = Layout("\n\nOutput:", " ", "\n\n")
    prompt = layout.prompt([("a,b.", "Yes")], "a,b.", "No", ("Yes", "No"))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(prompt.text)["input_ids"])
    assert len(tokens) == 8  # a,b.\n\n Output : Yes \n\n | a,b.\n\n Output :
    assert sorted(map(tuple, induction_pattern.cells(prompt, tokenizer).tolist())) == [(6, 3), (7, 3)]
