"""Word-pair tasks: prompts against the lists, what each corruption keeps and changes, alignment, a user's own pairs."""

import copy
import csv
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from string import ascii_letters

import pytest
from tokenizers import AddedToken

from tests import toys
from tests.clone import ROOT
from tests.tiers import quick
from util.prompts import word_pair_prompts, word_pairs
from util.prompts.prompt import Misaligned, type_tokens
from util.prompts.word_pairs import ARROW, COLON, CORRUPTIONS, TAB, Pair, WordPairTask, pairs_from_file

TASKS = ("copying", "capitalization", "country_capital", "present_past", "person_sport", "ambiguous_present_past")
SPORTS = ("soccer", "football", "baseball", "basketball", "hockey")
RING = dict(zip(SPORTS, (*SPORTS[1:], SPORTS[0]), strict=True))
ALL = tuple(CORRUPTIONS)
by_task = pytest.mark.parametrize("name", quick(["country_capital", "ambiguous_present_past"], TASKS))


@cache
def rows(name):
    """A word list without its header, read here a second time."""
    file = ROOT / f"data/word_lists/{name}.csv"
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))[1:]


@cache
def facts(name):
    """(pairs, outputs of the other rule, list) of a task, from the lists alone."""
    words = [word for (word,) in rows("words")]
    upper, same = {word: word[0].upper() + word[1:] for word in words}, dict(zip(words, words, strict=True))
    past = {x: y for x, y in rows("present_past") if x != y or name.startswith("ambiguous")}
    capitals, sports = rows("country_capital"), dict(rows("person_sport"))
    return {
        "copying": (same, upper, "words"),
        "capitalization": (upper, same, "words"),
        "country_capital": ({x: y for x, y, _ in capitals}, {x: z for x, _, z in capitals}, "country_capital"),
        "person_sport": (sports, {x: RING[y] for x, y in sports.items()}, "person_sport"),
    }.get(name, (past, {x: x for x in past}, "present_past"))


@cache
def tokenizer(kind):
    """The toy tokenizer with one token also for capitalised words and for the arrow."""
    made = copy.deepcopy(toys.tokenizer(kind, on_tasks=True))
    words = [word.capitalize() for (word,) in rows("words")]
    made.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in words])
    made.add_tokens([AddedToken(" ->", normalized=False)])
    return made


@cache
def by_pattern(pattern):
    """A tokenizer whose tokens are what the pattern says; known are words of the lists, and letters."""
    words = {cell for name in word_pairs.LISTS for row in rows(name) for cell in row} | {*ascii_letters}
    return toys.by_pattern(pattern, ["\t", "\n", " ->", *sorted(words)])


WORDS = r"[^\t\n]+|\t|\n"  # one token for each word


@cache
def made(name, kind, n=10, k=10, corruptions=(0,), **options):
    return word_pair_prompts.prompts(name, tokenizer(kind), n, k=k, corruptions=corruptions, **options)


def parse(prompt):
    """([(x, y)], query) of a prompt with tabs, by splitting its string."""
    *lines, last = prompt.text.split("\n")
    assert last.endswith("\t")
    return [tuple(line.split("\t")) for line in lines], last[:-1]


def foreign(word, name):
    """Whether a word, or each of several words, is from the lists of other tasks and not from this task's."""
    listed = {other: {cell.casefold() for row in rows(other) for cell in row} for other in word_pairs.LISTS}
    own, beside = listed.pop(facts(name)[2]), set().union(*listed.values())
    word = word.casefold()
    return word not in own and (word in beside or all(part in beside - own for part in word.split(" ")))


@cache
def facts_with(word):
    """The rows of the lists that hold a word or, for several words of which no row is, one of them."""
    listed = [(name, number, row) for name in word_pairs.LISTS for number, row in enumerate(rows(name))]
    found = {(name, number) for name, number, row in listed if word in row}
    parts = word.split(" ") if " " in word and not found else []
    return found | {fact for part in parts for fact in facts_with(part)}


# ------------------------------------------------------------------------------------------------ clean prompts


@pytest.mark.parametrize(
    "name, kind", quick([(name, "bpe") for name in TASKS] + [("copying", "unigram")], product(TASKS, toys.KINDS))
)
def test_prompts_hold_what_the_lists_say(name, kind):
    pairs = facts(name)[0]
    drawn = made(name, kind)
    assert len(drawn.items) == 10 and not drawn.dropped
    for number, item in enumerate(drawn.items):
        shown, query = parse(item.clean)
        assert item.index == number and len(shown) == 10
        assert len({x for x, _ in shown}) == 10 and query not in [word for pair in shown for word in pair]
        assert all(pairs[x] == y for x, y in [*shown, (query, item.clean.label())])
        typed = type_tokens(item.clean, tokenizer(kind))
        assert len(typed.sizes) == 1 + 10 * 4 + 2 and sum(typed.sizes) == len(typed.ids)
        if name == "ambiguous_present_past":
            assert query != item.clean.label() and item.clean.marks.count("*") == 7
        else:
            assert item.clean.marks == ()


@by_task
def test_a_prompt_depends_on_its_index_alone(name):
    ten = made(name, "bpe")
    assert ten.items[:3] == made(name, "bpe", n=3).items
    texts = [item.clean.text for item in (*ten.items, *made(name, "bpe", seed=1).items)]
    assert len(set(texts)) == 20


def test_donor_seeds_leave_clean_prompts_alone():
    drawn = [made("country_capital", "bpe", k=4, corruptions=ALL, donor_seed=seed) for seed in (0, 1)]
    both = [({item.index: item for item in found.items}) for found in drawn]
    common = both[0].keys() & both[1].keys()
    assert len(common) >= 8 and all(both[0][i].clean == both[1][i].clean for i in common)
    for c in (0, 1, 3, 4, 5):  # of four outputs in two sizes, there is one shuffle
        assert sum(both[0][i].donors[c] != both[1][i].donors[c] for i in common) >= 5


@by_task
def test_splits_are_disjoint_halves_of_the_queries(name):
    task = word_pairs.find(name)
    search, test = task.queries("search"), task.queries("test")
    clear = {x for x, y in facts(name)[0].items() if not (name.startswith("ambiguous") and x == y)}
    assert not search & test and search | test == clear == task.queries() and 0 <= len(test) - len(search) <= 1
    asked = {parse(item.clean)[1] for item in made(name, "unigram", n=12, split="test").items}
    assert asked <= test and len(asked) > 6
    first = sorted(clear)[:50]  # the halves depend on the words alone
    again = WordPairTask("again", tuple(Pair(x, x) for x in reversed(first)))
    assert again.queries("search") == WordPairTask("other", tuple(Pair(x, "y") for x in first)).queries("search")


def test_queries_in_turn_are_asked_once_before_any_is_asked_again():
    few = WordPairTask("few", tuple(Pair(x, x.upper()) for x in "abcdefghijklmnopqrstuvw"), other_rule=str.title)

    def asked(n, seed=0):
        drawn = word_pair_prompts.prompts(few, by_pattern(WORDS), n, 3, seed, (1,), "test", in_turn=True)
        return [parse(item.clean)[1] for item in drawn.items]

    half = few.queries("test")
    assert len(half) == 12 and {*asked(24)[:12]} == half and asked(24) == 2 * asked(12) and asked(12) != sorted(half)
    assert asked(5) == asked(24)[:5] and asked(12, seed=1) != asked(12)


def made_of_words(name, n=6, **options):
    return word_pair_prompts.prompts(name, by_pattern(WORDS), n, **options)


def test_queries_whose_answer_begins_as_a_copy_would_are_not_asked():
    """As of regular verbs in published tokenizers: the first token of the answer would be right for a copy, too."""
    letters, verbs = by_pattern(r"[^\t\n]|\t|\n"), ("walk", "jump", "climb", "order", "enter", "touch")
    regular = [Pair(verb, f"{verb}ed") for verb in verbs]
    told = [Pair("one", "two"), Pair("cat", "dog"), Pair("red", "hue"), Pair("sun", "ray")]
    same = [Pair("cut", "cut"), Pair("hit", "hit")]  # a copy is the answer, and counts as one
    task = WordPairTask("past", (*regular, *told, *same), other_rule=str)
    drawn = word_pair_prompts.prompts(task, letters, 40, k=3, corruptions=(1,))
    asked = {parse(item.clean)[1] for item in drawn.items}
    assert asked and asked <= {pair.x for pair in (*told, *same)} and drawn.askable == len(told) + len(same)
    assert drawn.rejected["query: its answer begins as the query said again"] == len(regular)
    shown = {x for item in drawn.items for x, _ in parse(item.clean)[0]}
    assert shown & {*verbs}  # among the demonstrations nothing is left out


# ------------------------------------------------------------------------------------------------ donors


def check_donor(c, name, clean, donor, marks):
    """What a corruption keeps and what it changes, against the lists."""
    pairs, other, _ = facts(name)
    (shown, query), (given, asked) = parse(clean), parse(donor)
    assert len(given) == len(shown) and (asked == query) == (c != 0) and donor.label() == clean.label()
    (old_xs, old_ys), (xs, ys) = zip(*shown, strict=True), zip(*given, strict=True)
    used = {query, *old_xs}
    if c == 2:
        assert xs == old_xs and Counter(ys) == Counter(old_ys)
    else:
        assert len({*xs}) == len(xs) and not used & {*xs}
    if c != 2 or name != "person_sport":
        assert not any(map(str.__eq__, old_ys, ys))
    if strangers := {0: (*xs, *ys, asked), 3: xs, 4: ys}.get(c):
        related = Counter(fact for word in strangers for fact in facts_with(word))
        assert all(foreign(word, name) for word in strangers) and max(related.values()) == 1
    if c == 3:
        assert {*ys} <= {y for x, y in pairs.items() if x not in used}
    if c in (1, 4, 5):
        assert {*xs} <= {*pairs}
    if rule := {1: pairs, 5: other}.get(c):
        assert all(rule[x] == y for x, y in given)
    if c == 5:
        assert all(pairs[x] != y for (x, y), mark in zip(given, marks or [""] * len(given), strict=True) if not mark)
    own = {1: xs, 3: ys, 4: xs, 5: xs}.get(c, ())  # words of the task, marked as those of the prompt
    for mark, word in zip(marks, own, strict=False):
        assert (pairs.get(word) == word) == (mark == "*")


@pytest.mark.parametrize(
    "name, several",
    quick([(name, False) for name in TASKS] + [("country_capital", True)], product(TASKS, [True])),
)
def test_each_corruption_keeps_and_changes_what_it_says(name, several):
    words = toys.tokenizer() if several else tokenizer("bpe")
    drawn = word_pair_prompts.prompts(name, words, 10, k=3 if several else 4, corruptions=ALL)
    assert len(drawn.items) >= (2 if several else 9) and len(drawn.items) + sum(drawn.dropped.values()) == 10
    assert not several or drawn.rejected
    for item in drawn.items:
        both = [item.clean, *item.donors.values()]
        typed = [type_tokens(prompt, words) for prompt in both]
        whole = [type_tokens(prompt, words, target=True) for prompt in both]
        assert len({found.sizes for found in typed}) == 1 and tuple(item.donors) == ALL
        assert len({found.types for found in typed}) == len({found.types for found in whole}) == 1
        assert all(long.ids[: len(short.ids)] == short.ids for short, long in zip(typed, whole, strict=True))
        for c, donor in item.donors.items():
            check_donor(c, name, item.clean, donor, item.clean.marks)


@pytest.mark.parametrize("k", [2, 5, 10])
def test_sports_are_balanced_in_prompts_and_donors(k):
    cap = -(-k // 5) + 1
    drawn = made("person_sport", "bpe", n=20, k=k, corruptions=(1, 2, 3, 5))
    assert drawn.items
    for item in drawn.items:
        counts = [Counter(y for _, y in parse(prompt)[0]) for prompt in (item.clean, *item.donors.values())]
        assert max(max(count.values()) for count in counts) <= cap
        old, new = ([y for _, y in parse(prompt)[0]] for prompt in (item.clean, item.donors[2]))
        tokens_of = type_tokens(item.clean, tokenizer("bpe")).sizes
        by_size = Counter(zip(tokens_of[3 : 4 * k : 4], old, strict=True))  # of outputs with as many tokens
        sizes = {size: [count for (other, _), count in by_size.items() if other == size] for size, _ in by_size}
        fewest = sum(max(0, 2 * max(own) - sum(own)) for own in sizes.values())
        assert sum(map(str.__eq__, old, new)) == fewest < k  # a shuffle leaves as few in place as there can be
    assert word_pairs.find("person_sport").limit(k) == cap and set(word_pairs.find("person_sport").outputs) == {*RING}


# ------------------------------------------------------------------------------------------------ ambiguous pairs


@pytest.mark.parametrize("order", quick(["random", "ambiguous last"], ["ambiguous first"]))
@pytest.mark.parametrize("k, asked, m", quick([(10, None, 7), (3, 0, 0)], [(3, None, 2), (10, 4, 4), (3, 3, 3)]))
def test_ambiguous_demonstrations_are_as_many_as_asked_for_and_where(k, asked, m, order):
    drawn = made_of_words("ambiguous_present_past", n=4, k=k, ambiguous=asked, order=order, corruptions=ALL)
    assert len(drawn.items) == 4
    for item in drawn.items:
        marks = ["*" if x == y else "" for x, y in parse(item.clean)[0]]
        assert item.clean.marks == tuple(marks) and marks.count("*") == m
        types = type_tokens(item.clean, by_pattern(WORDS)).types
        assert [types.count(t) for t in ("x*", "y*", "x", "y")] == [m, m, k - m, k - m]
        assert order == "random" or marks == sorted(marks, reverse=order == "ambiguous first")
        for c, donor in item.donors.items():
            assert donor.marks == item.clean.marks
            check_donor(c, "ambiguous_present_past", item.clean, donor, item.clean.marks)


# ------------------------------------------------------------------------------------------------ alignment


def test_prompts_without_donors_are_resampled_then_dropped_and_keep_their_index():
    # every word is as many tokens as it has letters: hardly a draw of capitals can be shuffled
    letters = by_pattern(r"[^\t\n]|\t|\n")
    drawn = word_pair_prompts.prompts("country_capital", letters, 40, k=3, corruptions=(2,))
    assert drawn.resampled["no donor for shuffled"] > 50 and drawn.dropped["no donor for shuffled"]
    assert len(drawn.items) + sum(drawn.dropped.values()) == 40
    indices = [item.index for item in drawn.items]
    assert indices == sorted(set(indices)) != list(range(len(indices)))
    fewer = word_pair_prompts.prompts("country_capital", letters, 30, k=3, corruptions=(2,))
    assert fewer.items == tuple(item for item in drawn.items if item.index < 30)


def test_donors_are_measured_in_the_prompt_not_only_word_by_word():
    # the first letter of a line is a token of its own after a line that ends with "d"
    context = by_pattern(r"(?<=d\n)[^\t\n]|[^\t\n]+|\t|\n")
    verbs = word_pairs.find("present_past", trained=True)  # among many regular verbs no prompt would be aligned
    drawn = word_pair_prompts.prompts(verbs, context, 10, k=4, corruptions=(1, 3, 4))
    assert drawn.items
    for item in drawn.items:
        assert len({type_tokens(p, context).sizes for p in (item.clean, *item.donors.values())}) == 1


@pytest.mark.parametrize("separator, layout", [("\\t", TAB), (":", COLON)])
def test_a_separator_merged_into_words_is_refused_with_a_cure(separator, layout):
    merging = by_pattern(rf" ->|{separator} ?[A-Za-z ]+|[A-Za-z]+|\n|{separator}")
    with pytest.raises(
        ValueError, match=r"no prompt can be made .*pair: merged \d+.*another layout \(tab, arrow, colon"
    ):
        word_pair_prompts.prompts(replace(word_pairs.find("copying"), layout=layout), merging, 3)
    assert len(word_pair_prompts.prompts(replace(word_pairs.find("copying"), layout=ARROW), merging, 3).items) == 3


def test_an_answer_that_changes_the_prompt_is_refused():
    # a word before a final tab falls into letters
    merging = by_pattern(r"\w(?=\w*\t\z)|[^\t\n]+|\t|\n")
    with pytest.raises(ValueError, match=r"pair: answer merges \d+"):
        word_pair_prompts.prompts("copying", merging, 1)
    with pytest.raises(Misaligned, match="answer merges") as caught:
        type_tokens(TAB.prompt([("again", "again")], "walk", "walk"), merging, target=True)
    assert caught.value.reason == "answer merges"


AMBIGUOUS = "ambiguous_present_past"
CLASH = WordPairTask("mine", (("a:b", "c"), ("d", "e"), ("f", "g")))
REFUSED = [
    ({"k": 0}, "k = 0"),
    ({"n": 0}, "n = 0"),
    ({"k": 5000}, r"has \d+ clear pairs; k = 5000 .* smaller k"),
    ({"corruptions": (0, 6)}, r"missing corruption index \[6\]: task 'copying' has 0 \(unrelated\), 1 \(same_task\)"),
    ({"k": 1, "corruptions": (2,)}, r"missing corruption index \[2\].* 2 from k = 2 on"),
    ({"tokenizer": toys.Slow()}, "gives no character offsets"),
    ({"split": "train"}, "unknown split 'train'; choose one of all, search, test"),
    ({"task": CLASH, "k": 1, "corruptions": (5,)}, r"missing corruption index \[5\]"),
    (
        {"task": AMBIGUOUS, "k": 30, "ambiguous": 30, "corruptions": (1,)},
        "30 ambiguous needs 60, .*smaller k",
    ),
    ({"task": "present_past", "ambiguous": 1}, "has 0 ambiguous pairs"),
    ({"task": AMBIGUOUS, "k": 3, "ambiguous": 4}, "0 to k ambiguous"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_bad_requests_name_the_cure(options, message):
    with pytest.raises(ValueError, match=message):
        word_pair_prompts.prompts(**{"task": "copying", "tokenizer": by_pattern(WORDS), "n": 1} | options)


def test_words_that_a_layout_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="task 'mine', row 1: 'a:b' contains ':'.* or layout"):
        replace(CLASH, layout=COLON)


# ------------------------------------------------------------------------------------------------ a user's own tasks


def test_another_rule_need_not_be_of_all_inputs():
    rule = {x: x for x in "abcde"}
    task = WordPairTask("letters", tuple(Pair(x, x.upper()) for x in "abcdefghijkl"), other_rule=rule)
    for item in word_pair_prompts.prompts(task, by_pattern(WORDS), 5, k=2, corruptions=(5,)).items:
        assert {*parse(item.donors[5])[0]} <= {*rule.items()}


GOOD = {
    "plain.csv": "hot,cold\nbig, small\nup,down\n",
    "header.csv": "n,output,input\n1,cold,hot\n2,small,big\n3,down,up\n",
    "marked.CSV": "\ufeffhot,cold,very\nbig,small,\n\nup,down\n",
    "pairs.json": '[["hot", "cold"], ["big", "small"], ["up", "down"]]',
    "named.json": '[{"input": "hot", "output": "cold"}, {"output": "small", "input": "big"}, '
    '{"input": "up", "output": "down", "note": "x"}]',
    "object.json": '{"hot": "cold", "big": "small", "up": "down"}',
}
BAD = {  # the others: test_own_tasks.py, test_row_files.py
    "few.csv": ("hot,cold\n", "1 pairs; at least 2 are needed"),
    "one.csv": ("hot\nbig\nup\n", r"row 1: \['hot', None, ''\] is not an input and an output"),
    "short.csv": ("input,output\nhot,cold\nbig\nup,down\n", "row 2: .* is not an input and an output"),
    "number.json": ("3", "cannot read a task from .*number.json: "),
    "list.json": ('["hot", "cold", "big"]', "row 1: .*'hot'.* is not an input and an output"),
    "deep.json": ('{"hot": {"a": "b"}, "big": "c", "up": "d"}', "is not an input and an output"),
    "three.json": ('[["hot", "cold", "very"]]', "is not an input and an output"),
    "none.json": ("[]", "none.json: there are no rows"),
    "nowhere.csv": ("", "cannot read a task from .*nowhere.csv"),
}


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_pairs_of_a_file(tmp_path, name):
    text, message = (GOOD[name], None) if name in GOOD else BAD[name]
    if text:
        (tmp_path / name).write_text(text)
    if message is None:
        assert pairs_from_file(tmp_path / name) == (Pair("hot", "cold"), Pair("big", "small"), Pair("up", "down"))
    else:
        with pytest.raises(ValueError, match=message) as caught:
            pairs_from_file(str(tmp_path / name))
        assert name in str(caught.value)


def test_no_donor_output_is_the_query():
    words = [word for (word,) in rows("words")][:40]
    chain = WordPairTask("chain", tuple(zip(words, [*words[1:], words[0]], strict=True)))
    found = word_pair_prompts.prompts(chain, tokenizer("bpe"), 60, k=5, corruptions=(1, 3))
    assert len(found.items) > 30
    for item in found.items:
        query = item.clean.texts("x")[-1]
        for donor in item.donors.values():
            assert query not in [donor.labels[i] for i in donor.demonstrations]
