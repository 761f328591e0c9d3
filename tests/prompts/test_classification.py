"""Synthetic classification tasks: rows, the shortcuts they leave open, the sampler, and prompts on tokenizers."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest
from transformers import AutoTokenizer

from tests import toys
from util.models import embedded
from util.models.embedded_words import CATEGORIES
from util.prompts import classification as tasks
from util.prompts.classification import Task, associative_map_prompts, prompts, shares_word
from util.prompts.prompt import Layout, Misaligned
from util.prompts.token_types import type_tokens

LETTER_TASKS = {  # regular expressions of the Foo and of the plain Bar rows
    "repetition": (r"(\w) (?!\1)(\w) \1 \2", r"(\w) (?!\1)(\w) (?!\1|\2)(\w) (?!\1|\2|\3)\w"),
    "recursion": (r"(\w) (?!\1)(\w) \2 \2", r"(\w) (?!\1)(\w) (?!\1|\2)(\w) (?!\1|\2|\3)\w"),
    "centre_embedding": (
        r"(\w) (?!\1)(\w) (?!\1|\2)\w \2 \1",
        r"(\w) (?!\1)(\w) (?!\1|\2)(\w) (?!\1|\2|\3)(\w) (?!\1|\2|\3|\4)\w",
    ),
}
WORD_TASKS = {
    "wordseq1": {"Foo": ("fruit", "animal"), "Bar": ("furniture", "profession")},
    "wordseq2": {"Foo": ("vegetable", "vehicle"), "Bar": ("body part", "instrument")},
}
WORD_TASKS["wordseq1_4way"] = WORD_TASKS["wordseq1"] | {
    "Mur": ("furniture", "animal"),
    "Res": ("fruit", "profession"),
}
WORD_TASKS["wordseq2_4way"] = WORD_TASKS["wordseq2"] | {
    "Mur": ("vegetable", "instrument"),
    "Res": ("body part", "vehicle"),
}
ALL = [(name, False) for name in (*LETTER_TASKS, *WORD_TASKS)] + [(name, True) for name in LETTER_TASKS]


@cache
def task(name, hard=False):
    return tasks.task(name, hard)


@cache
def made(name, hard, k, seed=42):
    return prompts(task(name, hard), k, seed)


def of(task_, label):
    return [text for text, own in task_.rows if own == label]


def parts(prompt, header=tasks.HEADER):
    """Demonstrations and query, read off the text alone."""
    assert prompt.text.startswith(header)
    *shown, query = prompt.text.removeprefix(header).split("\n\n")
    assert query.endswith(":")
    return [tuple(pair.split(":")) for pair in shown], query[:-1]


def repeats(text):
    return len(set(text.split())) < len(text.split())


# --- rows ------------------------------------------------------------------------------------------------------------


def test_categories_are_as_the_embedded_model_was_trained():
    assert [len(set(words)) for words in CATEGORIES.values()] == [16] * 8
    digest = hashlib.sha256(json.dumps(list(CATEGORIES.items())).encode()).hexdigest()
    assert digest[:16] == "dd8f413b236bb149"


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", LETTER_TASKS)
def test_letter_rows(name, hard):
    foo, bar = LETTER_TASKS[name]
    made = task(name, hard)
    assert made.labels == ("Foo", "Bar") and made.name == (f"{name}_hard" if hard else name)
    assert len({text for text, _ in made.rows}) == len(made.rows) == 500
    assert len(of(made, "Foo")) == len(of(made, "Bar")) == 250
    assert all(re.fullmatch(r"[A-Z]( [A-Z])+", text) for text, _ in made.rows)
    assert all(re.fullmatch(foo, text) for text in of(made, "Foo"))
    assert not any(re.fullmatch(foo, text) for text in of(made, "Bar"))
    plain = [text for text in of(made, "Bar") if re.fullmatch(bar, text)]
    negatives = [text for text in of(made, "Bar") if text not in plain]
    assert len(negatives) == (125 if hard else 0) and all(map(repeats, negatives))
    assert made == tasks.task(name, hard)


@pytest.mark.parametrize("name", LETTER_TASKS)
def test_any_repeated_letter_is_a_shortcut_that_hard_negatives_close(name):
    """So are two equal places, of which some decide the plain rows and none the hard ones."""

    def accuracy(rule, hard):
        return sum(rule(text.split()) == (label == "Foo") for text, label in task(name, hard).rows) / 500

    def any_repeat(letters):
        return len(set(letters)) < len(letters)

    assert accuracy(any_repeat, False) == 1
    assert accuracy(any_repeat, True) == 0.75
    pairs = [lambda letters, i=i, j=j: letters[i] == letters[j] for i, j in combinations(range(4), 2)]
    assert max(accuracy(rule, False) for rule in pairs) == 1
    assert max(accuracy(rule, True) for rule in pairs) < 0.95


@pytest.mark.parametrize("name", WORD_TASKS)
def test_word_rows_are_all_pairs_of_their_categories(name):
    made, classes = task(name), WORD_TASKS[name]
    assert made.labels == tuple(classes)
    assert len({text for text, _ in made.rows}) == len(made.rows) == 256 * len(classes)
    for label, (first, second) in classes.items():
        assert set(of(made, label)) == {f"{a} {b}" for a, b in product(CATEGORIES[first], CATEGORIES[second])}
    for place in (0, 1):
        told: dict[str, set[str]] = {}
        for text, label in made.rows:
            told.setdefault(text.split()[place], set()).add(label)
        assert {len(labels) for labels in told.values()} == {len(classes) // 2}  # in 4-way no single word decides


def test_unknown_tasks_and_impossible_negatives_are_refused():
    with pytest.raises(ValueError, match="there are repetition, recursion"):
        tasks.task("palindrome")
    for name in WORD_TASKS:
        with pytest.raises(ValueError, match=rf"take {name[:8]}_4way$"):
            tasks.task(name, hard_negatives=True)
    assert set(tasks.NAMES) == {*LETTER_TASKS, *WORD_TASKS}


# --- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [5, 10, 20])
@pytest.mark.parametrize("name, hard", ALL)
def test_every_query_has_balanced_demonstrations_without_itself(name, hard, k):
    rows, labels, words = dict(task(name, hard).rows), task(name, hard).labels, name in WORD_TASKS
    queries = []
    for prompt in made(name, hard, k):
        shown, query = parts(prompt)
        queries.append(query)
        counts = Counter(label for _, label in shown)
        assert len(shown) == k and max(counts.values()) - min(counts[label] for label in labels) <= 1
        assert len({text for text, _ in shown}) == k
        assert all(rows[text] == label for text, label in shown)
        assert prompt.labels == labels and prompt.label() == rows[query]
        assert query not in {text for text, _ in shown}
        if words:
            first, second = query.split()
            assert not any(text.split()[0] == first or text.split()[1] == second for text, _ in shown)
    assert sorted(queries) == sorted(rows)


@pytest.mark.parametrize("name, hard, k", [("repetition", False, 5), ("wordseq1_4way", False, 10)])
def test_the_remainder_and_the_order_of_demonstrations_tell_nothing(name, hard, k):
    """Which classes have one more, and which class comes last, is even and independent of the answer."""
    labels = task(name).labels
    more: Counter[str] = Counter()
    last: Counter[str] = Counter()
    agree = 0
    for prompt in made(name, hard, k):
        shown = [label for _, label in parts(prompt)[0]]
        extra = {label for label in labels if shown.count(label) > k // len(labels)}
        more.update(extra)
        last[shown[-1]] += 1
        agree += prompt.label() in extra
    n = len(made(name, hard, k))
    share = (k % len(labels)) / len(labels)
    assert all(
        abs(more[label] / n - share) < 0.06 and abs(last[label] / n - 1 / len(labels)) < 0.06 for label in labels
    )
    assert abs(agree / n - share) < 0.06


@pytest.mark.parametrize("name", ["recursion", "wordseq1_4way"])
def test_neither_limit_nor_the_order_of_rows_matters(name):
    whole = made(name, False, 10)
    for limit in (1, 7, 100, 10_000):
        assert prompts(task(name), 10, limit=limit) == whole[:limit]
    assert prompts(replace(task(name), rows=task(name).rows[::-1]), 10) == whole


@pytest.mark.parametrize("name", ["recursion", "wordseq1_4way"])
def test_every_limit_is_balanced_in_an_order_that_is_no_pattern_of_the_rows(name):
    labels = [prompt.label() for prompt in made(name, False, 5)]
    counts: Counter[str] = Counter()
    for label in labels:
        counts[label] += 1
        assert max(counts.values()) - min(counts[other] for other in task(name).labels) <= 1
    queries = [parts(prompt)[1] for prompt in made(name, False, 5)]
    assert [query for query, own in zip(queries, labels, strict=True) if own == "Foo"] != of(task(name), "Foo")
    assert queries == [parts(prompt)[1] for prompt in made(name, False, 10, 43)]


def test_seeds_differ_in_the_demonstrations_of_every_query():
    for trio in zip(*(made("centre_embedding", False, 10, seed) for seed in (42, 43, 44)), strict=True):
        assert len({parts(prompt)[1] for prompt in trio}) == 1
        assert len({frozenset(parts(prompt)[0]) for prompt in trio}) == 3


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
    "rows, labels, match",
    [
        ((*OWN, ("a b", "down")), ("up", "down"), r"\['a b'\] occur more than once"),
        (OWN, ("up", "down", "up"), "labels of own.*more than once"),
        (OWN, ("up",), "its rows have"),
        (OWN, ("up", "down", "left"), "its rows have"),
        ((*OWN, ("x:y", "up")), ("up", "down"), "separators"),
        ((*OWN, ("x\n\ny", "up")), ("up", "down"), "separators"),
        ((*OWN, ("", "up")), ("up", "down"), "empty"),
        ((*OWN, ("x", "left:")), ("up", "down", "left:"), "labels of own.*separators"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_refused(rows, labels, match):
    with pytest.raises(ValueError, match=match):
        Task("own", rows, labels)


# --- demonstrations of their own -------------------------------------------------------------------------------------

POOL = tuple((f"pool {n}", "up" if n % 3 else "down") for n in range(30))


@pytest.mark.parametrize("k", [0, 1, 2, 5, 10])
def test_demonstrations_come_from_the_pool(k):
    own = Task("own", OWN, ("up", "down"), pool=POOL)
    whole = prompts(own, k)
    assert sorted(parts(prompt)[1] for prompt in whole) == sorted(text for text, _ in OWN)
    for prompt in whole:
        shown, query = parts(prompt)
        counts = Counter(label for _, label in shown)
        assert len(dict(shown)) == k and abs(counts["up"] - counts["down"]) == k % 2
        assert set(shown) <= set(POOL) and prompt.label() == dict(OWN)[query]
    assert prompts(own, k, limit=4) == whole[:4]
    assert prompts(replace(own, pool=POOL[::-1]), k) == whole


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
    assert [prompt.text[slice(*span)] for span in prompt.spans["x"]][:2] == [
        text for text, _ in tasks.demonstrations(own, 2, 42, prompt.text[slice(*prompt.spans["x"][-1])])
    ]
    for text in ("a\n\nAnswer:", ""):
        with pytest.raises(ValueError, match="^rows of own: .* are empty or contain"):
            replace(own, rows=(*rows, (text, "up")))
        with pytest.raises(ValueError, match="^pool of own: .* are empty or contain"):
            replace(own, pool=(*rows, (text, "up")))
    with pytest.raises(ValueError, match="labels of own.*separators"):
        tasks.relabelled(own, ["a\n\nb", "c"])


DIGESTS = {  # of prompts as they were before there were pools
    "repetition": "223a993b198bd03b",
    "recursion": "6b8ed1ce7a762570",
    "centre_embedding": "5817bcc9feffb259",
    "wordseq1": "521c5037a7886f10",
    "wordseq2": "5ab7b2dfcca9261c",
    "wordseq1_4way": "253d90f5e86d0a2a",
    "wordseq2_4way": "e4f782ad76487b9f",
    "repetition_hard": "66c42a6a066038ec",
    "recursion_hard": "4e3cd86a5c0a720f",
    "centre_embedding_hard": "530f923bc52b9a38",
}


@pytest.mark.parametrize("name, hard", ALL)
def test_the_prompts_of_every_task_are_what_they_were(name, hard):
    """If this fails, all records of these tasks are lost."""
    drawn = []
    for k, seed, limit in ((0, 42, 20), (5, 42, None), (10, 43, 40), (21, 44, 40)):
        drawn += [[p.text, p.gold, p.demonstrations] for p in prompts(task(name, hard), k, seed, limit)]
    assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16] == DIGESTS[task(name, hard).name]


# --- associative maps ------------------------------------------------------------------------------------------------

WORDS = CATEGORIES["fruit"]


@pytest.mark.parametrize("labels, keys, k", [("Foo Bar", 5, 9), ("Foo Bar Mur", 7, 7), ("Foo Bar Mur Res A B", 4, 12)])
def test_the_answer_of_a_map_stands_in_the_prompt(labels, keys, k):
    labels = tuple(labels.split())
    found = associative_map_prompts(WORDS, labels, keys, k, 60)
    for prompt in found:
        *lines, query = prompt.text.split("\n")
        shown = [(word, label) for word, _, label in (line.partition(": ") for line in lines)]
        truth = dict(shown)
        assert len(shown) == k and len(set(shown)) == len(truth) == keys  # every key, always with the same label
        assert set(truth) <= set(WORDS) and query[-1] == ":" and prompt.label() == truth[query[:-1]]
        counts = Counter(truth.values())
        assert max(counts.values()) - min(counts[label] for label in labels) <= 1
        assert prompt.labels == labels and prompt.with_label() == f"{prompt.text} {truth[query[:-1]]}"
    assert len({prompt.text for prompt in found}) == 60
    assert {prompt.label() for prompt in found} == set(labels)


def test_places_in_a_map_tell_nothing():
    """Which line has which label, which line has the answer's key, and where keys recur."""
    found = associative_map_prompts(WORDS, ("Foo", "Bar"), 4, 8, 200)
    words = [[line.partition(":")[0] for line in prompt.text.split("\n")] for prompt in found]
    for place in range(8):
        assert 70 < sum(prompt.demonstrations[place] for prompt in found) < 130
        assert 20 < sum(shown[place] == shown[-1] for shown in words) < 80  # the query is last
    assert sum(len(set(shown[:4])) < 4 for shown in words) > 50
    maps = {line for prompt in found for line in prompt.text.split("\n")[:-1]}
    assert maps == {f"{word}: {label}" for word in WORDS for label in ("Foo", "Bar")}


def test_a_map_depends_on_its_number_alone():
    ten = associative_map_prompts(WORDS, ("Foo", "Bar"), 4, 8, 10)
    assert associative_map_prompts(WORDS, ("Foo", "Bar"), 4, 8, 3) == ten[:3]
    tabs = associative_map_prompts(WORDS, ("Foo", "Bar"), 4, 8, 10, layout=Layout())
    assert [p.text.replace("\t", ": ").removesuffix(" ") for p in tabs] == [p.text for p in ten]


@pytest.mark.parametrize(
    "words, labels, keys, match",
    [
        ("a b c", "x y", 4, "k = 3"),
        ("a b b", "x y", 3, r"\['b'\] occur more than once"),
        ("a b c", "b x", 3, r"\['b'\] occur more than once"),
        ("a b:c d", "x y", 3, "separators"),
    ],
)
def test_impossible_maps_are_refused(words, labels, keys, match):
    with pytest.raises(ValueError, match=match):
        associative_map_prompts(words.split(), labels.split(), keys, 3, 1)


# --- on tokenizers ---------------------------------------------------------------------------------------------------


def a_tokenizer(kind):
    if kind == "embedded":
        return AutoTokenizer.from_pretrained(embedded.path())
    return toys.tokenizer(kind, on_tasks=True)


@pytest.mark.parametrize("name", ["repetition", "wordseq1_4way"])
@pytest.mark.parametrize("kind", [*toys.KINDS, "embedded"])
def test_token_types_want_an_end_of_one_token(kind, name):
    """A blank line is two tokens for these tokenizers, as for GPT-2's; with single line ends all parts are found."""
    tokenizer = a_tokenizer(kind)
    with pytest.raises(Misaligned, match=r"split: the separator '\\n\\n' is 2 tokens"):
        type_tokens(prompts(task(name), 5, limit=1)[0], tokenizer)
    lines = replace(task(name), layout=replace(tasks.LAYOUT, end="\n"))
    for prompt in prompts(lines, 5, limit=8):
        typed = type_tokens(prompt, tokenizer, target=True)
        assert typed.types[0] == "bos" and typed.types[-1] == "target" and typed.types.count("header") > 3
        assert (typed.types.count("t"), typed.types.count("n"), typed.types.count("last_separator")) == (5, 5, 1)
        assert len(typed.sizes) == 1 + 1 + 4 * 5 + 3  # BOS, header, four parts a demonstration, query, colon, target
