"""Prompts of indirect object identification: the words a tokenizer keeps, the corruptions, and both as tokens."""

import copy
import re
from dataclasses import replace
from functools import cache
from unittest import mock

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests import toys
from util.prompts import ioi
from util.prompts.ioi import (
    CORRUPTIONS,
    group_by_shape,
    ioi_prompts,
    ioi_tokens,
    pair_from_texts,
    usable_words,
    word_lists,
)
from util.prompts.prompt import Misaligned

LISTS = word_lists()
FRAMES, NAMES = LISTS["frames"], LISTS["names"]
BASE = "When Emma and Mike went to the cafe, Mike gave a coffee to"
SWAPPED = "When Emma and Mike went to the cafe, Emma gave a coffee to"
CHANGED = {  # the roles whose names change
    "s2_swap": {"S2"},
    "s2_rand": {"S2"},
    "names_swap": {"IO", "S1"},
    "abc": {"IO", "S1", "S2"},
    "random_name": {"IO", "S1", "S2"},
}


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
    assert len(found.pairs) == 120 and not found.dropped and found.words == usable(kind, 1)
    return found.pairs


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


def test_shipped_frames():
    for frame in FRAMES:
        fields = re.findall(r"\{(\w+)\}", frame)
        assert [field for field in fields if len(field) == 1] == ["X", "Y", "S"], frame
        assert re.fullmatch(r"[A-Z][^{}]*(\{\w+\}[^{}]+)+(?<= to)", frame) and len(set(fields)) == len(fields)
        assert "{OBJECT}" not in frame or re.search(r" (a|the) \{OBJECT\}", frame)
        assert "{PLACE}" not in frame or re.search("[Tt]he {PLACE}", frame)
    lacking = [sum(field not in frame for frame in FRAMES) for field in ("{PLACE}", "{OBJECT}")]
    assert lacking == [1, 1]


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


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("every", [1, 2])
def test_kept_names_are_those_that_pass_the_suffix_rule(kind, every):
    words = usable(kind, every)
    assert words.names == brute_force(kind, every)
    assert "Mike" in words.names  # what the other lengths are compared with
    assert len({ids(toy(kind, every), f"Give it to {name}")[-1] for name in words.names}) == len(words.names)
    for part in ("names", "places", "objects"):
        lost = len(LISTS[part]) - len(getattr(words, part))
        counted = {reason: count for reason, count in words.rejected.items() if reason.startswith(part)}
        assert counted == ({f"{part}: several tokens": lost} if every == 2 else {})
        assert (0 < lost <= len(LISTS[part]) // 2) == (every == 2)


@pytest.mark.parametrize(
    "added, frame, lost, reasons",
    [
        ("to Mike", FRAMES[0], {"Mike"}, {"names: answer merges": 1}),
        ("and Emma", FRAMES[0], {"Emma"}, {"names: merged": 1}),
        ("Anna", FRAMES[0], {"Anna"}, {"names: several tokens": 1}),  # a space, then the name: two tokens
        ("Then Anna", "When {X} and {Y} sang. Then {S} waved to", {"Anna"}, {"names: merged": 1}),
        ("(Paul", "When {X} and {Y} sang (as {S} wished) to", set(), {}),
        ("a lamp", FRAMES[0], {"lamp"}, {"objects: merged": 1}),
        ("school", FRAMES[0], {"school"}, {"places: unequal lengths": 1}),  # the space is a token more
    ],
)
def test_tokenizers_that_merge_are_counted_by_reason(added, frame, lost, reasons):
    words = usable_words(with_tokens(added), frames=[frame])
    everything = {*NAMES} | ({*LISTS["places"], *LISTS["objects"]} if "PLACE" in frame else set())
    assert everything - {*words.names, *words.places, *words.objects} == lost
    assert words.rejected == reasons


def test_words_have_the_same_id_everywhere():
    frame = "{X} and {Y} went home, where {S} spoke to"
    with pytest.raises(ValueError, match="keeps 0 of 66 names.*'names: several ids': 66.*or other frames"):
        usable_words(toy(), [frame])
    assert usable_words(toy("unigram"), [frame]).names == NAMES  # which marks the first word as well
    frames = ["When {X} met {Y} (in the {PLACE}), {S} spoke to", "When {X} met {Y} ({PLACE}), {S} spoke to"]
    assert [len(usable_words(toy(), [frame]).places) for frame in frames] == [64, 64]
    with pytest.raises(ValueError, match="keeps 0 of 64 places.*'places: several ids': 64"):
        usable_words(toy(), frames)


def test_a_tokenizer_that_cannot_spell_a_name_does_not_keep_it():
    tokenizer = word_level([word.lower() for word in NAMES], lower=True)
    with pytest.raises(ValueError, match=r"keeps 0 of 66 names.*'names: decodes otherwise': 66"):
        usable_words(tokenizer)
    some = word_level(NAMES[:10])  # all others are one token, <unk>
    frame = "When {X} met {Y}, {S} spoke to"
    assert usable_words(some, [frame]) == ioi.Words(NAMES[:10], (), (), {"names: decodes otherwise": 56})


def test_too_few_words():
    with pytest.raises(ValueError, match=r"of 66 names, and 8 are needed \(.*several tokens.*larger vocabulary"):
        usable_words(toys.tokenizer("bpe"))
    assert len(usable_words(toy(), names=NAMES[:8]).names) == 8
    with pytest.raises(ValueError, match="keeps 7 of 7 names, and 8 are needed.*pass more names"):
        usable_words(toy(), names=[*NAMES[:7], NAMES[0]])
    with pytest.raises(ValueError, match="keeps 0 of 0 names"):
        ioi_prompts(toy(), 1, names=[])
    frames = ["When {X} met {Y} in the {PLACE}, {S} spoke to", "When {X} met {Y}, {S} sent a {OBJECT} to"]
    for frame, field in zip(frames, ("PLACE", "OBJECT"), strict=True):
        some = word_level([*NAMES, "When", "met", "in", "the", "spoke", "sent", "a", "to", ","])
        with pytest.raises(ValueError, match=f"keeps 0 of 64 .*, and 1 are needed.*frames without {field}"):
            usable_words(some, [frame])


class AlwaysBOS:
    """A tokenizer that puts BOS in front also when it is asked not to."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text, add_special_tokens=True, **options):
        return self.tokenizer(text, add_special_tokens=True, **options)


def test_answers_are_never_the_bos():
    tokenizer = AlwaysBOS(toy("bpe"))
    assert tokenizer(" Mike", add_special_tokens=False)["input_ids"][0] == tokenizer(" Emma")["input_ids"][0]
    found = ioi_prompts(tokenizer, 40)
    assert found.words.names == NAMES and found.pairs == made()[:40]
    for pair in found.pairs:
        answers = ioi_tokens(pair, tokenizer).answers
        assert tokenizer.bos_token_id not in answers and answers[0] != answers[1]
        assert [tokenizer.decode(answer) for answer in answers] == [f" {name}" for name in pair.base.labels]


def test_a_token_behind_every_text_does_not_matter():
    tokenizer = copy.deepcopy(toy())
    template = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    tokenizer.backend_tokenizer.post_processor = template
    assert tokenizer("Mike")["input_ids"][-1] == tokenizer.bos_token_id
    found = ioi_prompts(tokenizer, 10, frames=FRAMES[:2])
    assert found == ioi_prompts(toy(), 10, frames=FRAMES[:2]) and found.words.names == NAMES
    assert [ioi_tokens(pair, tokenizer) for pair in found.pairs] == [ioi_tokens(pair, toy()) for pair in found.pairs]


# ------------------------------------------------------------------------------------------------ prompts


def grouped(frame):
    """The frame as a regular expression with its fields as groups."""
    return re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[A-Za-z]+)", re.escape(frame))


@pytest.mark.parametrize("kind", toys.KINDS)
def test_structure_of_base_prompts(kind):
    pairs = made(kind)
    assert {pair.frame for pair in pairs} == {*FRAMES}
    assert [pair.order for pair in pairs] == ["ABBA", "BABA"] * 60
    assert [pair.index for pair in pairs] == [*range(120)]
    for pair in pairs:
        found = re.fullmatch(grouped(pair.frame), pair.base.text)
        assert found
        io, s = pair.base.labels
        assert io != s and {io, s} <= {*NAMES}
        assert (found["X"], found["Y"], found["S"]) == ((io, s, s) if pair.order == "ABBA" else (s, io, s))
        fields = dict(zip(("IO", "S1") if pair.order == "ABBA" else ("S1", "IO"), "XY", strict=True)) | {"S2": "S"}
        fields |= {part.lower(): part for part in ("PLACE", "OBJECT") if part in found.groupdict()}
        end = len(pair.base.text)
        assert pair.base.spans == {role: (found.span(field),) for role, field in fields.items()} | {
            "END": ((end - 2, end),)
        }
        assert at(pair.base, "END") == "to" and pair.base.with_label() == f"{pair.base.text} {io}"
        assert pair.base.with_label(1) == f"{pair.base.text} {s}"
        for part, word in found.groupdict().items():
            assert len(part) == 1 or word in LISTS[f"{part.lower()}s"]


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_corruptions_change_the_names_they_say(kind, corruption):
    tokenizer = toy(kind)
    for pair in made(kind, corruption=corruption):
        base, source = pair.base, pair.source
        assert pair.corruption == corruption and source.labels == base.labels and source.gold == base.gold == 0
        assert base.spans.keys() == source.spans.keys() and source.label_join == " "
        words, others = (re.findall(r"\w+|\W+", prompt.text) for prompt in (base, source))
        assert len(words) == len(others)
        changed = {i for i, (a, b) in enumerate(zip(words, others, strict=True)) if a != b}
        places = {role: len(re.findall(r"\w+|\W+", base.text[: span[0]])) for role, (span,) in base.spans.items()}
        there = {role: len(re.findall(r"\w+|\W+", source.text[: span[0]])) for role, (span,) in source.spans.items()}
        assert places == there and {places[role] for role in CHANGED[corruption]} == changed
        assert all(at(source, role) == others[place] for role, place in places.items())
        (io, s), now = base.labels, {role: at(source, role) for role in ("IO", "S1", "S2")}
        assert {*now.values()} <= {*NAMES}
        if corruption == "s2_swap":
            assert now == {"IO": io, "S1": s, "S2": io}
        elif corruption == "s2_rand":
            assert now["S2"] not in (io, s)
        elif corruption == "names_swap":
            assert now == {"IO": s, "S1": io, "S2": s}
        else:
            assert not {*now.values()} & {io, s}
            assert len({*now.values()}) == (3 if corruption == "abc" else 2)
            assert (now["S1"] == now["S2"]) == (corruption == "random_name")
        assert len(ids(tokenizer, base.text)) == len(ids(tokenizer, source.text))


def test_base_depends_on_seed_and_number_alone():
    for corruption in CORRUPTIONS:
        pairs = made(corruption=corruption)
        assert [pair.base for pair in pairs] == [pair.base for pair in made()]
        few = [ioi_prompts(toy(), count, 3, corruption, FRAMES[:2]).pairs for count in (7, 20)]
        assert few[0] == few[1][:7]
    texts = [pair.base.text for seed in range(3) for pair in made(seed=seed)]
    assert len(set(texts)) == len(texts) == 360
    # literal, as the same prompts must come in every process
    assert texts[0] == "Because Olivia and Eric were bored at the museum, Eric passed a snack to"


@pytest.mark.parametrize("corruption", ioi.CORRUPTIONS)
def test_other_answers_are_names_that_neither_prompt_holds(corruption):
    tokenizer = toy("bpe")
    found = ioi_prompts(tokenizer, 12, corruption=corruption, names=NAMES[:8])
    drawn = []
    for pair in found.pairs:
        ids = ioi.other_answers(pair, found.words.names, tokenizer)
        names = [tokenizer.decode([token]).strip() for token in ids]
        assert len({*names}) == 2 and {*names} <= {*found.words.names}
        assert not any(name in prompt.text.split() for prompt in (pair.base, pair.source) for name in names)
        assert list(ids) == [tokenizer(f"{pair.base.text} {name}")["input_ids"][-1] for name in names]
        assert ids == ioi.other_answers(pair, found.words.names, tokenizer)
        drawn.append(ids)
    assert len({*drawn}) > 4
    with pytest.raises(ValueError, match="larger than population"):
        ioi.other_answers(found.pairs[0], found.pairs[0].base.labels, tokenizer)


def test_frames_and_names_can_be_held_out():
    frames, names = FRAMES[3:6], NAMES[10:22]
    for corruption in CORRUPTIONS:
        found = ioi_prompts(toy(), 60, corruption=corruption, frames=frames, names=names)
        assert {pair.frame for pair in found.pairs} == {*frames} and found.words.names == names
        shown = {at(p, role) for pair in found.pairs for p in (pair.base, pair.source) for role in ("IO", "S1", "S2")}
        assert shown == {*names}
    bare = ioi_prompts(toy(), 3, frames=["When {X} met {Y}, {S} spoke to"])
    assert not bare.words.places and not bare.words.objects
    assert all(pair.base.spans.keys() == {"IO", "S1", "S2", "END"} for pair in bare.pairs)


def test_pairs_that_do_not_align_are_dropped_and_counted():
    eight = ["Mike", "Emma", "John", "Mary", "James", "Sarah", "David", "Laura"]
    asked = {"count": 300, "corruption": "names_swap", "frames": FRAMES[:1], "names": eight}
    whole = ioi_prompts(toy(), **asked).pairs
    fewer = ioi_prompts(with_tokens("Mike and Emma"), **asked)
    hit = [any("Mike and Emma" in prompt.text for prompt in (pair.base, pair.source)) for pair in whole]
    assert 0 < sum(hit) < 60
    assert fewer.pairs == tuple(pair for pair, bad in zip(whole, hit, strict=True) if not bad)
    assert fewer.words.names == tuple(eight) and sum(fewer.dropped.values()) == sum(hit)
    all_merged = with_tokens(*(f"{x} and {y}" for x in eight for y in eight if x != y))
    with pytest.raises(ValueError, match="none of 300 IOI pairs .*take other frames or names"):
        ioi_prompts(all_merged, **asked)


@pytest.mark.parametrize(
    "frame",
    [
        "When {X} met {Y}, {S} spoke to ",
        "When {X} met {Y}, he spoke to",
        "When {X} met {Y}, {S} and {S} spoke to",
        "When {Y} met {X}, {S} spoke to",
        "When {X} met {Y}, {S} lent the {THING} to",
        "In the {PLACE} near the {PLACE} {X} met {Y} and {S} spoke to",
    ],
)
def test_wrong_frames(frame):
    with pytest.raises(ValueError, match="write {X}, {Y} and {S} once each, in this order"):
        ioi_prompts(toy(), 1, frames=[FRAMES[0], frame])
    with pytest.raises(ValueError, match="corruption = 's2'; choose one of s2_swap"):
        ioi_prompts(toy(), 1, corruption="s2")


# ------------------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_tokens(kind, corruption):
    tokenizer = toy(kind)
    front = [tokenizer.bos_token_id] if kind != "bpe-no-bos" else []
    for pair in made(kind, corruption=corruption)[:12]:
        tokens = ioi_tokens(pair, tokenizer)
        assert list(tokens.base) == front + ids(tokenizer, pair.base.text)
        assert list(tokens.source) == front + ids(tokenizer, pair.source.text)
        differing = [t for t, (a, b) in enumerate(zip(tokens.base, tokens.source, strict=True)) if a != b]
        assert tokens.first == differing[0] and [*group_by_shape([tokens])] == [(len(tokens.base), differing[0])]
        assert {*differing} == {tokens.positions[role] for role in CHANGED[corruption]}
        assert tokens.positions["END"] == len(tokens.base) - 1 and tokens.positions.keys() == pair.base.spans.keys()
        for prompt, found in ((pair.base, tokens.base), (pair.source, tokens.source)):
            for role, position in tokens.positions.items():
                assert tokenizer.decode(found[position]).strip() == at(prompt, role)
        io, s = tokens.answers
        assert (tokens.base[tokens.positions["IO"]], tokens.base[tokens.positions["S1"]]) == (io, s)
        assert tokens.base[tokens.positions["S2"]] == s
        assert [io, s] == [ids(tokenizer, f"{pair.base.text} {name}")[-1] for name in pair.base.labels]


def test_pairs_that_are_not_aligned():
    pair = made()[0]
    tokenizer = toy()

    def fault(pair_, tokenizer_=tokenizer):
        with pytest.raises(Misaligned) as raised:
            ioi_tokens(pair_, tokenizer_)
        return raised.value.reason

    assert fault(replace(pair, source=pair.base)) == "other tokens"
    ahead = replace(pair.source, text=pair.source.text[:-2] + "the to")
    assert fault(replace(pair, source=ahead)) == "unequal lengths"
    other_end = replace(pair.source, text=pair.source.text[:-2] + "the")
    assert fault(replace(pair, source=other_end)) == "merged"  # END is two letters of it
    elsewhere = {**pair.source.spans, "END": pair.source.spans["S1"]}
    assert fault(replace(pair, source=replace(pair.source, spans=elsewhere))) == "other tokens"
    place = at(pair.base, "place")
    moved = replace(pair.source, text=pair.source.text.replace(place, "cinema"))
    assert len(place) == len("cinema") and fault(replace(pair, source=moved)) == "other tokens"
    labels = replace(pair.base, labels=("Wilhelmina", pair.base.labels[1]))
    assert fault(replace(pair, base=labels)) == "several tokens"
    assert fault(pair, with_tokens(f"to {pair.base.labels[1]}")) == "answer merges"
    assert fault(pair, with_tokens(f"{at(pair.base, 'IO')} and")) == "merged"
    unknown = word_level(re.findall(r"[a-z]+", pair.base.text))
    assert fault(pair, unknown) == "same answers"


# ------------------------------------------------------------------------------------------------ given texts


def found_in(text, *words):
    """The span of each (word, occurrence)."""
    return [[match.span() for match in re.finditer(word, text)][number] for word, number in words]


def test_pair_from_texts():
    pair = pair_from_texts(BASE, SWAPPED, "Emma", "Mike")
    assert (pair.order, pair.base.text, pair.source.text) == ("ABBA", BASE, SWAPPED)
    assert pair.base.labels == pair.source.labels == ("Emma", "Mike") and pair.base.with_label() == f"{BASE} Emma"
    roles = ("IO", "S1", "S2", "END")
    spans = found_in(BASE, ("Emma", 0), ("Mike", 0), ("Mike", 1), ("to", 1))
    assert pair.base.spans == {role: (span,) for role, span in zip(roles, spans, strict=True)}
    spans = found_in(SWAPPED, ("Emma", 0), ("Mike", 0), ("Emma", 1), ("to", 1))
    assert pair.source.spans == {role: (span,) for role, span in zip(roles, spans, strict=True)}
    back = pair_from_texts(SWAPPED, BASE, "Mike", "Emma")
    assert back.order == "BABA" and back.source.spans["IO"] == back.base.spans["IO"] == pair.base.spans["S1"]


def test_a_first_word_of_several_tokens_counts_by_its_last():
    texts = [f"Charlie and Emma sang until {name} spoke to" for name in ("Charlie", "Emma")]
    tokenizer = copy.deepcopy(toys.tokenizer("bpe-no-bos"))
    tokenizer.add_tokens([" Charlie", " Emma"])
    tokens = ioi_tokens(pair_from_texts(texts[0], texts[1], "Emma", "Charlie"), tokenizer)
    spelled = len(ids(tokenizer, "Charlie"))
    assert spelled > 1 and tokens.positions["S1"] == spelled - 1 and tokens.positions["IO"] == spelled + 1


@pytest.mark.parametrize(
    "base, source, io, s, message",
    [
        (BASE, BASE, "Emma", "Mike", "exactly one word"),
        (BASE, SWAPPED.replace("a coffee", "coffee"), "Emma", "Mike", "exactly one word"),
        (BASE, SWAPPED.replace(",", ";"), "Emma", "Mike", "exactly one word"),
        (BASE, SWAPPED, "Emm", "Mike", "needs the name 'Emm'"),
        (BASE, SWAPPED, "Mike", "Emma", "another name 'Emma' at least twice"),
        (BASE, BASE.replace("gave", "sold"), "Emma", "Mike", "'gave', is none of the names"),
        (BASE + " ", SWAPPED + " ", "Emma", "Mike", "must end in the word before the answer"),
        (BASE + " Mike", SWAPPED + " Mike", "Emma", "Mike", "must end in the word before the answer"),
    ],
)
def test_texts_that_are_no_pair(base, source, io, s, message):
    with pytest.raises(ValueError, match=message):
        pair_from_texts(base, source, io, s)
