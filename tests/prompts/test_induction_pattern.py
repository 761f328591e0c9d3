"""The induction pattern of prompts with real texts. That of synthetic tasks is in the tests of the induction figure."""

import re
from itertools import product

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.text_rows import ROWS, splits
from util.models.table import embedded_path
from util.prompts import induction_pattern, text_tasks
from util.prompts.classification import LAYOUT, Task, prompts
from util.prompts.prompt import Layout
from util.prompts.text_tasks import TEXT_TASKS, labelled_rows


def tokenizer_of(pieces):
    """A tokenizer whose tokens are the pieces that an expression finds; spaces belong to none."""
    raw = Tokenizer(models.WordLevel({"<s>": 0}, unk_token="<s>"))
    split = [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex(pieces), "isolated")]
    raw.pre_tokenizer = pre_tokenizers.Sequence(split)
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", unk_token="<s>")


APART = tokenizer_of(r"\n\n|\n|\w+|[^\w\s]")
STOP_AND_BLANK_LINE = tokenizer_of(r"\.\n\n|\n\n|\n|\w+|[^\w\s]")  # one token, as for Llama-3


def prompt_of(name, shown, asked):
    """A prompt of a text task with made-up rows by their numbers."""
    definition = text_tasks.find(name)
    rows = labelled_rows(definition, [ROWS[name](n) | {"label": n % 2} for n in (*shown, asked)], "rows")
    return definition.layout.prompt(rows[:-1], *rows[-1], tuple(definition.labels.values()))


# Say which sentiment the review expresses . | \n\n | Review : film 3 is long . | \n\n Sentiment : | Positive | \n\n |
#  0    1       2       3    4       5     6 |  7   |   8    9  10 11 12 13  14 |  15     16    17 |    18    |  19  |
# Review : film 2 is long . | \n\n Sentiment : | Negative | \n\n | Review : film 5 is long . | \n\n Sentiment :
#  20   21  22 23 24 25  26 |  27     28    29 |    30    |  31  |  32   33  34 35 36 37  38 |  39     40    41
BY_HAND = {  # query: keys
    19: [8], 31: [8, 20],  # a blank line after a label: the first tokens of the examples before
    27: [18], 28: [18], 29: [18], 39: [18, 30], 40: [18, 30], 41: [18, 30],  # a separator: the labels before
    30: [19],  # a label: the first token after the label before
}  # fmt: skip
# The same where a full stop and the blank line after it are one token: there the separator is Sentiment and colon.
BY_HAND_IN_ONE_TOKEN = {17: [7], 28: [7, 18], 25: [16], 26: [16], 36: [16, 27], 37: [16, 27], 27: [17]}


@pytest.mark.parametrize("tokenizer, expected", [(APART, BY_HAND), (STOP_AND_BLANK_LINE, BY_HAND_IN_ONE_TOKEN)])
def test_the_pattern_of_reviews_is_the_one_written_down(tokenizer, expected):
    prompt = prompt_of("sst2", (3, 2), 5)
    assert len(tokenizer(prompt.text)["input_ids"]) == max(expected) + 1
    found = induction_pattern.cells(prompt, tokenizer)
    assert sorted(map(tuple, found.tolist())) == sorted((query, key) for query in expected for key in expected[query])


def by_the_table(prompt, tokenizer):
    """Crosbie & Shutova's rule, read off the text with an expression: no word has a class."""
    encoded = tokenizer(prompt.text, return_offsets_mapping=True)["offset_mapping"]

    def at(start, end):
        return [token for token, (a, b) in enumerate(encoded) if a < b and a < end and start < b]

    def first_after(place):
        return [next(token for token, (a, b) in enumerate(encoded) if a < b and b > place)]

    answers = "|".join(prompt.labels)
    start = prompt.text.index("\n\n")
    classes = {"colon": [], "label": [], "blank line": [(at(start, start + 2), first_after(start + 2))]}
    for found in re.finditer(rf"(\n\n(?:Output|Answer|Sentiment):)(?: ({answers})(\n\n))?", prompt.text):
        label = at(*found.span(2)) if found[2] else []
        classes["colon"].append((at(*found.span(1)), label))
        if label:
            classes["label"].append((label, first_after(found.end(2))))
            classes["blank line"].append((at(*found.span(3)), first_after(found.end(3))))
    return {
        cell
        for parts in classes.values()
        for i, (queries, _) in enumerate(parts)
        for _, keys in parts[:i]
        for cell in product(queries, keys)
    }, at


@pytest.mark.parametrize("name", TEXT_TASKS)
@pytest.mark.parametrize("kind", ["apart", "embedded"])
def test_the_pattern_of_every_layout_is_that_of_the_table(kind, name):
    tokenizer = APART if kind == "apart" else AutoTokenizer.from_pretrained(embedded_path())
    definition = text_tasks.find(name)
    pool, queries = (labelled_rows(definition, rows, "rows") for rows in (*splits(name).values(), [])[:2])
    task = Task(name, queries, tuple(definition.labels.values()), definition.layout, pool=pool)
    for prompt in prompts(task, 6, limit=2):
        expected, at = by_the_table(prompt, tokenizer)
        found = induction_pattern.cells(prompt, tokenizer)
        assert {*map(tuple, found.tolist())} == expected and len(found) == len(expected)
        labels = {token for span in prompt.spans["y"] for token in at(*span)}
        last = max(at(*prompt.spans["s"][-1]))
        assert {*found[found[:, 0] == last, 1].tolist()} == labels  # what the answer could be read from
        kinds = {kind for kind, _ in induction_pattern.parts(prompt)}
        assert kinds == {None, "colon", "label", "blank line"}
        for control in ("random keys", "previous part"):
            cut = induction_pattern.cells(prompt, tokenizer, control)
            assert {*cut[:, 0].tolist()} == {*found[:, 0].tolist()} and (cut[:, 1] < cut[:, 0]).all()


def test_words_have_classes_only_where_all_words_of_the_input_are_in_the_lists():
    def kinds(text):
        return [kind for kind, _ in induction_pattern.parts(LAYOUT.prompt([], text, "Foo", ("Foo", "Bar")))][1:-1]

    assert kinds("dog doctor") == ["animal", "profession"]
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
