"""How the rows of seven NLP data sets are written, and what is made of their classes."""

import pytest

from tests.text_rows import ROWS, splits
from util.prompts import text_tasks
from util.prompts.text_tasks import TEXT_TASKS, held_out, labelled_rows

# Row 3, whose label is 1, and row 2 as the query: written by hand after the configurations of Crosbie & Shutova's code.
WRITTEN = {
    "boolq": (
        "Use the passage to answer the question that follows it.\n\n"
        "Input: Tower 3 is 3 m high.\n\nIt is old.\n\nIs tower 3 high?\n\nOutput: Yes\n\n"
        "Input: Tower 2 is 2 m high.\n\nIt is old.\n\nIs tower 2 high?\n\nOutput: No"
    ),
    "ethos": (
        "Say whether the input is hate speech.\n\n"
        "Input: comment number 3\n\nOutput: Yes\n\nInput: comment number 2\n\nOutput: No"
    ),
    "rte": (
        "Say whether the hypothesis follows from the premise.\n\n"
        "Premise: There are 3 boats.\nHypothesis: Some 3 boats are there.\n\nAnswer: No\n\n"
        "Premise: There are 2 boats.\nHypothesis: Some 2 boats are there.\n\nAnswer: Yes"
    ),
    "sst2": (
        "Say which sentiment the review expresses.\n\n"
        "Review: film 3 is long .\n\nSentiment: Positive\n\nReview: film 2 is long .\n\nSentiment: Negative"
    ),
    "subj": (
        "Say whether the input expresses what a person thinks, feels or believes.\n\n"
        "Input: scene 3 is dark .\n\nOutput: Yes\n\nInput: scene 2 is dark .\n\nOutput: No"
    ),
    "wic": (
        "Say whether the word means the same in both sentences.\n\n"
        "Word: banks\nSentence 1: He sat 3 times on banks.\nSentence 2: The bank has 3 doors.\n\nAnswer: Yes\n\n"
        "Word: banks\nSentence 1: He sat 2 times on banks.\nSentence 2: The bank has 2 doors.\n\nAnswer: No"
    ),
    "wsc": (
        "Say whether the pronoun stands for the noun in the sentence.\n\n"
        "Sentence: Ann 3 told Eve that she was late.\nPronoun: she\nNoun: Ann 3\n\nAnswer: Yes\n\n"
        "Sentence: Ann 2 told Eve that she was late.\nPronoun: she\nNoun: Ann 2\n\nAnswer: No"
    ),
}
# What is Foo where labels are unrelated to the classes (their section 6), and its number in the data set.
FOO = {
    "boolq": ("true", 1), "ethos": ("hate_speech", 1), "rte": ("entailment", 0), "sst2": ("positive", 1),
    "subj": ("subjective", 1), "wic": ("true", 1), "wsc": ("true", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_prompts_are_written_as_in_the_paper(name):
    definition = text_tasks.find(name)
    shown, asked = labelled_rows(definition, [ROWS[name](n) | {"label": n % 2} for n in (3, 2)], "rows")
    prompt = definition.layout.prompt([shown], *asked, tuple(definition.labels.values()))
    assert prompt.with_label() == WRITTEN[name]
    at = {role: prompt.texts(role) for role in prompt.spans}
    assert at["s"] == [f"\n\n{definition.answer}:"] * 2 and at["n"] == ["\n\n"] and at["y"] == [shown[1]]
    assert at["header"] == [f"{definition.instruction}\n\n"] and "\n" not in definition.instruction


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_classes_become_labels(name):
    definition = text_tasks.find(name)
    foo, number = FOO[name]
    assert definition.classes[number] == foo and next(iter(definition.labels)) == foo
    other = definition.classes[1 - number]
    for value, label in ((number, foo), (f" {number}", foo), (foo.title(), foo), (1 - number, other)):
        ((_, found),) = labelled_rows(definition, [ROWS[name](0) | {"label": value}], "rows")
        assert found == definition.labels[label]


def test_questions_have_a_capital_and_one_mark_and_of_the_same_text_the_first_is_kept():
    questions = ["is it high", "Is it high?", " is it high ?"]
    rows = [{"passage": "A tower.", "question": question, "label": n % 2} for n, question in enumerate(questions)]
    assert labelled_rows(text_tasks.find("boolq"), rows, "rows") == (("Input: A tower.\n\nIs it high?", "No"),)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("rte", {"premise": None}, "validation, row 1: premise is 'None', and no text"),
        ("rte", {"premise": " "}, "row 1: premise is ' ', and no text"),
        ("rte", {"premise": ["a"]}, "row 1: premise is .* and no text"),
        ("rte", {"label": -1}, "row 1: label is '-1'; give 0 or 'entailment', 1 or 'not_entailment'"),
        ("rte", {"label": True}, "row 1: label is 'true'; give 0 or 'entailment'"),
        ("rte", {"label": 2}, "row 1: label is '2'"),
        ("rte", {"label": 0.0}, "row 1: label is '0.0', and no text"),
        ("wic", {"start1": "x"}, "row 1: invalid literal"),
        ("wic", {"start1": 900, "end1": 905}, "row 1: start1 = 900, end1 = 905: no word is there in sentence1"),
    ],
)
def test_rows_that_lack_something_say_what(name, change, message):
    rows = splits(name)["validation"]
    rows[1] |= change
    with pytest.raises(ValueError, match=message):
        labelled_rows(text_tasks.find(name), rows, "validation")
    for rows, fault in (
        ([{"label": 0}], "row 0: there is no column '.*'; it has label"),
        (["text"], "row 0: there is no column .* no columns"),
        ([], "there are no rows"),
    ):
        with pytest.raises(ValueError, match=f"^train.*{fault}"):
            labelled_rows(text_tasks.find(name), rows, "train")


def test_a_fifth_is_held_out_without_looking_at_labels():
    rows = tuple((f"text {n}", "Yes" if n % 3 else "No") for n in range(998))
    pool, queries = held_out(rows, "ethos")
    assert (len(pool), len(queries)) == (798, 200) and {*pool, *queries} == {*rows}
    flipped = tuple((text, "No" if label == "Yes" else "Yes") for text, label in rows)
    assert [text for text, _ in held_out(flipped, "ethos")[1]] == [text for text, _ in queries]
    assert [text for text, _ in queries[:3]] == ["text 5", "text 15", "text 16"]  # the draw is fixed
