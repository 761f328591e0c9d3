"""Prompts of indirect object identification: the words a tokenizer keeps, the corruptions, and both as tokens."""

import copy
import re
from dataclasses import replace
from functools import cache
from itertools import product
from typing import get_args
from unittest import mock

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests import toys
from tests.tiers import quick
from util.prompts import ioi
from util.prompts.ioi import (
    Corruption,
    group_by_shape,
    ioi_prompts,
    ioi_tokens,
    pair_from_texts,
    usable_words,
    word_lists,
)
from util.prompts.prompt import Misaligned

LISTS, CORRUPTIONS = word_lists(), get_args(Corruption)
FRAMES, NAMES = LISTS["frames"], LISTS["names"]
BASE = "When Emma and Mike went to the cafe, Mike gave a coffee to"
SWAPPED = "When Emma and Mike went to the cafe, Emma gave a coffee to"
drawn = pytest.mark.parametrize(
    "corruption, kind",
    quick(
        [(corruption, "bpe") for corruption in CORRUPTIONS] + [("abc", "unigram")],
        product(CORRUPTIONS, toys.KINDS),
    ),
)


@cache
def toy(kind="bpe", every=1):
    """A toy tokenizer trained on these lists alone, as its 3,000 tokens cannot hold all lists; or on a part of them."""
    words = [word for part in ("names", "places", "objects") for word in LISTS[part][::every]]
    texts = [f"{word} {word}, {word}.\n" for word in words] * 20 + [f"{frame}\n" for frame in FRAMES] * 20
    with mock.patch.object(toys, "task_texts", return_value=texts):
        return toys.tokenizer.__wrapped__(kind, on_tasks=True)


@cache
def usable(kind, every):
    return usable_words(toy(kind, every))


@cache
def made(kind="bpe", seed=0, corruption="s2_swap"):
    found = ioi_prompts(toy(kind), 120, seed, corruption)
    assert len(found) == 120
    return found


def with_tokens(*added):
    """The toy with tokens that are cut out first, whatever stands around them."""
    tokenizer = copy.deepcopy(toy())
    tokenizer.add_tokens(list(added))
    return tokenizer


def word_level(words, lower=False):
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", *words])}, unk_token="<unk>"))
    raw.normalizer = normalizers.Lowercase() if lower else None
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<unk>")


def ids(tokenizer, text):
    """Ids without special tokens, by way of the backend."""
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def filled(frame, **words):
    words = {"X": "Amy", "Y": "Tom", "S": "Amy", "PLACE": "store", "OBJECT": "ring"} | words
    return re.sub(r"\{(\w+)\}", lambda found: words[found[1]], frame)


def at(prompt, role):
    ((start, end),) = prompt.spans[role]
    return prompt.text[start:end]


# ------------------------------------------------------------------------------------------------ lists


def test_lists():
    words = [word for part in ("names", "places", "objects") for word in LISTS[part]]
    assert all(len(LISTS[part]) >= 60 for part in ("names", "places", "objects")) and 10 <= len(FRAMES) <= 16
    assert len({word.lower() for word in words}) == len(words) and len(set(FRAMES)) == len(FRAMES)
    assert all(re.fullmatch("[A-Z][a-z]+", word) for word in LISTS["names"])
    assert all(re.fullmatch("[a-z]+", word) for word in LISTS["places"])
    assert all(re.fullmatch("[b-df-hj-np-tv-z][a-z]+", word) for word in LISTS["objects"])  # "a", not "an"
    written = {word for frame in FRAMES for word in re.findall(r"\w+", re.sub(r"\{\w+\}", "", frame))}
    assert not written & set(words)


# ------------------------------------------------------------------------------------------------ words


def brute_force(kind, every):
    """The names that pass the suffix rule and keep the length of every frame, one by one in every place."""
    tokenizer, bad = toy(kind, every), set()
    for frame in FRAMES:
        before = ids(tokenizer, filled(frame))
        lengths = {field: len(ids(tokenizer, filled(frame, **{field: "Mike"}))) for field in "XYS"}
        for name in NAMES:
            after = ids(tokenizer, f"{filled(frame)} {name}")
            one_more = after[:-1] == before and tokenizer.decode(after[-1:]).strip() == name
            same = all(len(ids(tokenizer, filled(frame, **{field: name}))) == lengths[field] for field in "XYS")
            bad |= set() if one_more and same else {name}
    return tuple(name for name in NAMES if name not in bad)


@pytest.mark.parametrize("kind, every", quick([("bpe", 1), ("unigram", 2)], product(toys.KINDS, [1, 2])))
def test_kept_names_are_those_that_pass_the_suffix_rule(kind, every):
    words = usable(kind, every)
    assert words["names"] == brute_force(kind, every)
    assert "Mike" in words["names"]  # what the other lengths are compared with
    assert len({ids(toy(kind, every), f"Give it to {name}")[-1] for name in words["names"]}) == len(words["names"])
    for part in ("names", "places", "objects"):
        lost = len(LISTS[part]) - len(words[part])
        assert (0 < lost <= len(LISTS[part]) // 2) == (every == 2)


@pytest.mark.parametrize(
    "added, frame, lost",
    [
        ("to Mike", FRAMES[0], {"Mike"}),  # the answer merges
        ("and Emma", FRAMES[0], {"Emma"}),
        ("Anna", FRAMES[0], {"Anna"}),  # a space, then the name: two tokens
        ("Then Anna", "When {X} and {Y} sang. Then {S} waved to", {"Anna"}),
        ("(Paul", "When {X} and {Y} sang (as {S} wished) to", set()),
        ("a lamp", FRAMES[0], {"lamp"}),
        ("school", FRAMES[0], {"school"}),  # the space is a token more
    ],
)
def test_words_that_a_tokenizer_merges_are_not_kept(added, frame, lost):
    words = usable_words(with_tokens(added), frames=[frame])
    everything = {*NAMES} | ({*LISTS["places"], *LISTS["objects"]} if "PLACE" in frame else set())
    assert everything - {*words["names"], *words["places"], *words["objects"]} == lost


MET = "When {X} met {Y}, {S} spoke to"
PLACED = ["When {X} met {Y} (in the {PLACE}), {S} spoke to", "When {X} met {Y} ({PLACE}), {S} spoke to"]
REFUSED = [  # tokenizer, options, message
    (toy, {"frames": ["{X} and {Y} went home, where {S} spoke to"]}, "keeps 0 of 66 names.*other frames"),
    (toy, {"frames": PLACED}, "keeps 0 of 64 places"),  # another id in each
    (lambda: word_level([word.lower() for word in NAMES], lower=True), {}, "keeps 0 of 66 names"),
    (
        lambda: word_level([*NAMES[:7], *MET.split()]),
        {"frames": [MET]},
        "7 of 66 names as single tokens, and 8 are needed.*larger vocabulary",
    ),
    (toy, {"names": [*NAMES[:7], NAMES[0]]}, "keeps 7 of 7 names as single tokens, and 8 are needed"),
    (toy, {"names": []}, "keeps 0 of 0 names"),
    (
        lambda: word_level([*NAMES, *"When met in the spoke to ,".split()]),
        {"frames": PLACED[:1]},
        "keeps 0 of 64 places",
    ),
    (toys.Slow, {}, "gives no character offsets"),
    *[
        (toy, {"frames": [MET, frame]}, "write {X}, {Y} and {S} once each, in this order")
        for frame in (
            f"{MET} ",
            "When {X} met {Y}, he spoke to",
            "When {X} met {Y}, {S} and {S} spoke to",
            "When {Y} met {X}, {S} spoke to",
            "When {X} met {Y}, {S} lent the {THING} to",
            "In the {PLACE} near the {PLACE} {X} met {Y} and {S} spoke to",
        )
    ],
]


@pytest.mark.parametrize("tokenizer, options, message", REFUSED)
def test_what_makes_no_prompts_is_refused(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        ioi_prompts(tokenizer(), 1, **options)


def test_tokens_that_stand_for_unknown_words_hold_no_name():  # all other names are <unk>
    assert usable_words(word_level(NAMES[:10]), [MET]) == {"names": NAMES[:10], "places": (), "objects": ()}


def test_a_token_behind_every_text_does_not_matter():
    tokenizer = copy.deepcopy(toy())
    template = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    tokenizer.backend_tokenizer.post_processor = template
    found = ioi_prompts(tokenizer, 10, frames=FRAMES[:2])
    assert found == ioi_prompts(toy(), 10, frames=FRAMES[:2])
    assert [ioi_tokens(pair, tokenizer) for pair in found] == [ioi_tokens(pair, toy()) for pair in found]


# ------------------------------------------------------------------------------------------------ prompts


def roles_of(pair, prompt):
    """The words of a prompt by role, read off its text by the frame; its spans are theirs."""
    frame = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[A-Za-z]+)", re.escape(pair.frame))
    found = re.fullmatch(frame, prompt.text)
    assert found
    fields = dict(zip(("IO", "S1") if pair.order == "ABBA" else ("S1", "IO"), "XY", strict=True)) | {"S2": "S"}
    fields |= {part.lower(): part for part in ("PLACE", "OBJECT") if part in found.groupdict()}
    spans, end = {role: (found.span(field),) for role, field in fields.items()}, len(prompt.text)
    assert prompt.spans == spans | {"END": ((end - 2, end),)} and prompt.text.endswith(" to")
    return {role: found[field] for role, field in fields.items()}


@drawn
def test_corruptions_change_the_names_they_say(kind, corruption):
    pairs = made(kind, corruption=corruption)
    assert {pair.frame for pair in pairs} == {*FRAMES}
    assert [(pair.order, pair.index) for pair in pairs] == [(["ABBA", "BABA"][i % 2], i) for i in range(120)]
    for pair in pairs:
        (io, s), prompts = pair.base.labels, (pair.base, pair.source)
        base, source = (roles_of(pair, prompt) for prompt in prompts)
        assert pair.source.labels == pair.base.labels and pair.source.gold == pair.base.gold == 0
        assert [base.pop(role) for role in ("IO", "S1", "S2")] == [io, s, s] and io != s
        now = {role: source.pop(role) for role in ("IO", "S1", "S2")}
        assert {io, s, *now.values()} <= {*NAMES} and base == source
        assert all(word in LISTS[f"{part}s"] for part, word in base.items())
        if corruption == "s2_swap":
            assert now == {"IO": io, "S1": s, "S2": io}
        elif corruption == "s2_rand":
            assert now["S2"] not in (io, s) and (now["IO"], now["S1"]) == (io, s)
        elif corruption == "names_swap":
            assert now == {"IO": s, "S1": io, "S2": s}
        else:
            assert not {*now.values()} & {io, s}
            assert len({*now.values()}) == (3 if corruption == "abc" else 2)
            assert (now["S1"] == now["S2"]) == (corruption == "random_name")
        assert len({len(ids(toy(kind), prompt.text)) for prompt in prompts}) == 1


def test_base_depends_on_seed_and_number_alone():
    for corruption in CORRUPTIONS:
        assert [pair.base for pair in made(corruption=corruption)] == [pair.base for pair in made()]
    few = [ioi_prompts(toy(), count, 3, "abc", FRAMES[:2]) for count in (7, 20)]
    assert few[0] == few[1][:7]
    texts = [pair.base.text for seed in range(2) for pair in made(seed=seed)]
    assert len(set(texts)) == len(texts) == 240
    # literal, as the same prompts must come in every process
    assert texts[0] == "Because Olivia and Eric were bored at the museum, Eric passed a snack to"


def test_other_answers_are_names_that_neither_prompt_holds():
    found, drawn = ioi_prompts(toy(), 12, corruption="abc", names=NAMES[:8]), set()
    for pair in found:
        answers = ioi.other_answers(pair, NAMES[:8], toy())
        names = [toy().decode([token]).strip() for token in answers]
        assert len({*names}) == 2 and {*names} <= {*NAMES[:8]}
        assert not any(name in prompt.text.split() for prompt in (pair.base, pair.source) for name in names)
        drawn.add(answers)
    assert len(drawn) > 4
    with pytest.raises(ValueError, match="larger than population"):
        ioi.other_answers(found[0], found[0].base.labels, toy())


def test_pairs_that_do_not_align_are_dropped():
    options = {"count": 300, "corruption": "names_swap", "frames": FRAMES[:1], "names": NAMES[:8]}
    both = " and ".join(NAMES[:2])
    whole, fewer = ioi_prompts(toy(), **options), ioi_prompts(with_tokens(both), **options)
    hit = [any(both in prompt.text for prompt in (pair.base, pair.source)) for pair in whole]
    assert 0 < sum(hit) < 60 and fewer == [pair for pair, bad in zip(whole, hit, strict=True) if not bad]
    all_merged = with_tokens(*(f"{x} and {y}" for x in NAMES[:8] for y in NAMES[:8] if x != y))
    with pytest.raises(ValueError, match="none of 300 IOI pairs .*take other frames or names"):
        ioi_prompts(all_merged, **options)


# ------------------------------------------------------------------------------------------------ tokens


@drawn
def test_tokens(kind, corruption):
    tokenizer = toy(kind)
    front = [tokenizer.bos_token_id] if kind != "bpe-no-bos" else []
    for pair in made(kind, corruption=corruption)[:12]:
        tokens = ioi_tokens(pair, tokenizer)
        both = ((pair.base, tokens.base), (pair.source, tokens.source))
        for prompt, found in both:
            assert list(found) == front + ids(tokenizer, prompt.text)
            for role, position in tokens.positions.items():
                assert tokenizer.decode(found[position]).strip() == at(prompt, role)
        first = next(t for t, (a, b) in enumerate(zip(tokens.base, tokens.source, strict=True)) if a != b)
        assert tokens.first == first and [*group_by_shape([tokens])] == [(len(tokens.base), first)]
        assert tokens.positions["END"] == len(tokens.base) - 1 and tokens.positions.keys() == pair.base.spans.keys()
        assert [*tokens.answers] == [ids(tokenizer, f"{pair.base.text} {name}")[-1] for name in pair.base.labels]


def test_pairs_that_are_not_aligned():
    pair = made()[0]
    text, spans, place = pair.source.text, pair.source.spans, at(pair.base, "place")
    for reason, base, source, tokenizer in (
        ("other tokens", pair.base, pair.base, toy()),
        ("unequal lengths", pair.base, replace(pair.source, text=f"{text[:-2]}the to"), toy()),
        ("merged", pair.base, replace(pair.source, text=f"{text[:-2]}the"), toy()),  # END is two letters of it
        ("other tokens", pair.base, replace(pair.source, spans={**spans, "END": spans["S1"]}), toy()),
        ("other tokens", pair.base, replace(pair.source, text=text.replace(place, "cinema")), toy()),
        ("answer merges", pair.base, pair.source, with_tokens(f"to {pair.base.labels[1]}")),
        ("merged", pair.base, pair.source, with_tokens(f"{at(pair.base, 'IO')} and")),
        ("same answers", pair.base, pair.source, word_level(re.findall(r"[a-z]+", pair.base.text))),
    ):
        with pytest.raises(Misaligned) as raised:
            ioi_tokens(replace(pair, base=base, source=source), tokenizer)
        assert raised.value.reason == reason


# ------------------------------------------------------------------------------------------------ given texts


def test_pair_from_texts():
    pair = pair_from_texts(BASE, SWAPPED, "Emma", "Mike")
    assert (pair.order, pair.base.text, pair.source.text) == ("ABBA", BASE, SWAPPED)
    assert pair.base.labels == pair.source.labels == ("Emma", "Mike")
    first, second, third, end = [match.span() for match in re.finditer(r"Emma|Mike|to$", BASE)]
    assert pair.base.spans == {"IO": (first,), "S1": (second,), "S2": (third,), "END": (end,)} == pair.source.spans
    back = pair_from_texts(SWAPPED, BASE, "Mike", "Emma")
    assert back.order == "BABA" and back.source.spans["IO"] == back.base.spans["IO"] == pair.base.spans["S1"]


def test_names_of_several_tokens_are_answered_with_their_first():
    base, source = (text.replace("Emma", "Petronel").replace("Mike", "Torvald") for text in (BASE, SWAPPED))
    tokens = ioi_tokens(pair_from_texts(base, source, "Petronel", "Torvald"), toy())
    (first, *others), (second, *more) = (ids(toy(), f" {name}") for name in ("Petronel", "Torvald"))
    assert others and len(others) == len(more) and tokens.answers == (first, second)


@pytest.mark.parametrize(
    "base, source, io, s",
    [
        (BASE, BASE, "Emma", "Mike"),
        (BASE, SWAPPED.replace("a coffee", "coffee"), "Emma", "Mike"),
        (BASE, SWAPPED.replace(",", ";"), "Emma", "Mike"),
        (BASE, SWAPPED, "Emm", "Mike"),
        (BASE, SWAPPED, "Mike", "Emma"),
        (BASE, BASE.replace("gave", "sold"), "Emma", "Mike"),
        (BASE + " ", SWAPPED + " ", "Emma", "Mike"),
        (BASE + " Mike", SWAPPED + " Mike", "Emma", "Mike"),
        ("", "", "Emma", "Mike"),
    ],
)
def test_texts_that_are_no_pair(base, source, io, s):
    with pytest.raises(ValueError, match="give two texts that differ in exactly one word, which is one of the names"):
        pair_from_texts(base, source, io, s)
