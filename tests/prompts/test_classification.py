"""Synthetic classification tasks: rows, the shortcuts they leave open, the sampler, and prompts on tokenizers."""

import hashlib
import json
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from data.embedded_models.recipe.words import CATEGORIES
from tests import toys
from tests.tiers import quick
from util.load_model_and_data import load_tokenizer
from util.prompts import classification as tasks
from util.prompts.classification import Task, associative_map_prompts, prompts, shares_word
from util.prompts.prompt import Layout, Misaligned, type_tokens


@cache
def task(name):
    return tasks.task(name)


def parts(prompt, header=tasks.HEADER):
    """Demonstrations and query, read off the text alone."""
    assert prompt.text.startswith(header)
    *shown, query = prompt.text.removeprefix(header).split("\n\n")
    assert query.endswith(":")
    return [tuple(pair.split(":")) for pair in shown], query[:-1]


# --- sampling --------------------------------------------------------------------------------------------------------


def check_prompts(made, k, queries, pool, labels):
    """Each query is asked once, behind k demonstrations, as many of each class as can be, never behind itself."""
    for prompt in made:
        shown, query = parts(prompt)
        counts = [[label for _, label in shown].count(label) for label in labels]
        assert len(dict(shown)) == len(shown) == k and max(counts) - min(counts) <= 1
        assert {*shown} <= {*pool} and query not in dict(shown)
        assert prompt.labels == labels and prompt.label() == dict(queries)[query]
    assert sorted(parts(prompt)[1] for prompt in made) == sorted(dict(queries))


@pytest.mark.parametrize("name, k", quick([("repetition", 5), ("wordseq1_4way", 10)], product(tasks.NAMES, [5])))
def test_every_query_has_balanced_demonstrations_without_itself(name, k):
    made, rows = prompts(task(name), k), task(name).rows
    check_prompts(made, k, rows, rows, task(name).labels)
    if name.startswith("wordseq"):
        for shown, query in map(parts, made):
            first, second = query.split()
            assert not any(text.split()[0] == first or text.split()[1] == second for text, _ in shown)


DIGESTS = {  # of prompts as they always were
    "repetition": "223a993b198bd03b",
    "recursion": "6b8ed1ce7a762570",
    "centre_embedding": "5817bcc9feffb259",
    "wordseq1": "521c5037a7886f10",
    "wordseq2": "5ab7b2dfcca9261c",
    "wordseq1_4way": "253d90f5e86d0a2a",
    "wordseq2_4way": "e4f782ad76487b9f",
}


@pytest.mark.parametrize("name", quick(["repetition", "wordseq1", "wordseq1_4way"], DIGESTS))
def test_the_prompts_of_every_task_are_what_they_were(name):
    """If this fails, all records of these tasks are lost. With five demonstrations every row is a query."""
    drawn = []
    for k, seed, limit in ((0, 42, 20), (5, 42, None), (10, 43, 40), (21, 44, 40)):
        drawn += [[p.text, p.gold, p.demonstrations] for p in prompts(task(name), k, seed, limit)]
    assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16] == DIGESTS[name]


def test_halves_of_skewed_classes_have_the_same_mix():
    """The half that says whether a task is done had the larger class alone, so that none could be."""
    rows = [(f"text {number}", "rare" if number < 20 else "common") for number in range(100)]
    golds = [prompt.label() for prompt in prompts(Task("skewed", rows, ("rare", "common")), 2)]
    assert golds[:50].count("rare") == golds[50:].count("rare") == 10


# --- tasks of one's own ----------------------------------------------------------------------------------------------

OWN = (("a b", "up"), ("a c", "up"), ("d b", "up"), ("e f", "down"), ("g h", "down"), ("e h", "down"))


def test_a_rule_adds_to_the_ban_on_the_query():
    for rule in (lambda query, candidate: False, lambda query, candidate: candidate == "a c"):
        own = Task("own", OWN, ("up", "down"), forbids=rule)
        for prompt in prompts(own, 2):
            shown, query = parts(prompt)
            assert query not in dict(shown) and not any(rule(query, text) for text, _ in shown)
    assert shares_word("a b", "a c") and shares_word("a b", "d b") and not shares_word("a b", "b a")


@pytest.mark.parametrize(
    "more, labels, match",
    [
        ([("a b", "down")], ("up", "down"), "rows of own, row 7: 'a b' occurs more than once, as 1"),
        ([], ("up", "down", "up"), "labels of own.*more than once"),
        ([], ("up",), "its rows have"),
        ([], ("up", "down", "left"), "its rows have"),
        ([("x:y", "up")], ("up", "down"), "separators"),
        ([("x\n\ny", "up")], ("up", "down"), "separators"),
        ([("", "up")], ("up", "down"), "empty"),
        ([("x", "left:")], ("up", "down", "left:"), "labels of own.*separators"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_refused(more, labels, match):
    with pytest.raises(ValueError, match="there are repetition, recursion"):
        tasks.task("palindrome")
    with pytest.raises(ValueError, match=match):
        Task("own", (*OWN, *more), labels)


# --- demonstrations of their own -------------------------------------------------------------------------------------

POOL = tuple((f"pool {n}", "up" if n % 3 else "down") for n in range(30))


@pytest.mark.parametrize("k", [0, 1, 2, 5, 10])
def test_demonstrations_come_from_the_pool(k):
    own = Task("own", OWN, ("up", "down"), pool=POOL)
    whole = prompts(own, k)
    check_prompts(whole, k, OWN, POOL, own.labels)
    assert prompts(own, k, limit=4) == whole[:4]
    assert prompts(replace(own, rows=OWN[::-1], pool=POOL[::-1]), k) == whole


def test_a_query_that_is_in_the_pool_is_no_demonstration_for_itself():
    shared = Task("own", OWN, ("up", "down"), pool=(*OWN, ("a", "up"), ("b", "down")))
    seen = set()
    for seed in range(20):
        for prompt in prompts(shared, 4, seed):
            shown, query = parts(prompt)
            assert query not in dict(shown) and len(dict(shown)) == 4
            seen |= {text for text, _ in shown}
    assert seen == dict(shared.pool).keys()  # so they are demonstrations for others
    with pytest.raises(ValueError, match="8 demonstrations take 4 of class '(up|down)'.* leaves 3"):
        prompts(shared, 8)


def test_what_a_text_may_contain_is_decided_by_the_separator():
    """A blank line in a text is fine where the separator begins with one; the separator itself never is."""
    layout = Layout("\n\nAnswer:", " ", "\n\n")
    rows = (("first\n\nsecond", "up"), ("first:", "down"))
    own = Task("own", rows, ("up", "down"), layout, pool=tuple((f"{text} 2", label) for text, label in rows))
    prompt = prompts(own, 2)[0]
    assert {*prompt.texts("x")[:2]} == {f"{text} 2" for text, _ in rows}
    for text in ("a\n\nAnswer:", ""):
        for part in ("rows", "pool"):
            with pytest.raises(ValueError, match=f"^{part} of own, row 3: .* is empty or contains"):
                replace(own, **{part: (*rows, (text, "up"))})
    with pytest.raises(ValueError, match="labels of own.*separators"):
        tasks.relabelled(own, ["a\n\nb", "c"])


def test_the_answer_of_a_map_stands_in_the_prompt():
    labels = ("A", "B", "C", "D", "E", "F")
    found = associative_map_prompts(CATEGORIES["fruit"], labels, 5, 60)
    for prompt in found:
        *lines, query = prompt.text.split("\n")
        shown = dict(line.split("\t") for line in lines)
        assert len(lines) == len(shown) == len({*shown.values()}) == 5 and prompt.label() == shown[query[:-1]]
    assert len({prompt.text for prompt in found}) == 60 and {prompt.label() for prompt in found} == {*labels}
    assert associative_map_prompts(CATEGORIES["fruit"], labels, 5, 3) == found[:3]


@pytest.mark.parametrize("kind", quick(["embedded"], ["bpe"]))
def test_token_types_want_an_end_of_one_token(kind):
    """A blank line is two tokens for these tokenizers, as for GPT-2's; with single line ends all parts are found."""
    tokenizer = load_tokenizer("embedded") if kind == "embedded" else toys.tokenizer(kind, on_tasks=True)
    with pytest.raises(Misaligned, match=r"split: the separator '\\n\\n' is 2 tokens"):
        type_tokens(prompts(task("wordseq1"), 5, limit=1)[0], tokenizer)
    lines = replace(task("wordseq1"), layout=replace(tasks.LAYOUT, end="\n"))
    typed = type_tokens(prompts(lines, 5, limit=1)[0], tokenizer, target=True)
    assert typed.types[0] == "bos" and typed.types[-1] == "target" and typed.types.count("header") > 3
    assert (typed.types.count("t"), typed.types.count("n"), typed.types.count("last_separator")) == (5, 5, 1)
    assert len(typed.sizes) == 1 + 1 + 4 * 5 + 3  # BOS, header, four parts a demonstration, query, colon, target
