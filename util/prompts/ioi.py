"""Indirect object identification (IOI): two names occur, one of them a second time; the answer is the other name.

"When Mike and Emma went to the cafe, Mike gave a coffee to" -> " Emma". The task, the orders ABBA and BABA, the
corruption by three unrelated names and the flips of names are those of Wang et al. 2022, arXiv:2211.00593 (templates
in appendix E). The frames, the word lists (data/word_lists/ioi.json) and the rules that decide which words a tokenizer
keeps are our own definitions.

A pair of prompts does not say what is patched into what: the base run is the one that is patched, and the source run
the one that activations come from. Noising has an IOI prompt as base and "abc" as source; denoising exchanges the two.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from random import Random
from string import Formatter
from typing import Any, Literal

from util import paths
from util.prompts.prompt import (
    Ints,
    Misaligned,
    Prompt,
    Span,
    Strings,
    Tokens,
    UnsupportedTokenizer,
    tokens_of_each,
    with_bos,
    written,
)

Corruption = Literal[
    "s2_swap",  # S2 becomes IO: the first clause stays, the answer flips (IO <- S2 in the paper)
    "s2_rand",  # S2 becomes a third name: the first clause stays, no name occurs twice
    "names_swap",  # X and Y change places, S stays: the answer stays, the place of the repeated name flips
    "abc",  # three other names: only the frame stays, nothing tells the answer (p_ABC in the paper)
    "random_name",  # IO and S become two other names: the order, ABBA or BABA, stays
]
ORDERS = {"ABBA": ("IO", "S1"), "BABA": ("S1", "IO")}  # the roles of fields X and Y
FIELDS = {"names": ("X", "Y", "S"), "places": ("PLACE",), "objects": ("OBJECT",)}
NAMED = ("IO", "S1", "S2")
Words = Mapping[str, Strings]  # by FIELDS
MINIMUM = 8  # names; with fewer, results would be about these names rather than about the task


@dataclass(frozen=True)
class IOIPair:
    """A base prompt and a source prompt with the same frame; both are scored with the base's answers.

    Both prompts have the labels (IO, S) of the base, with gold 0, and the spans IO, S1, S2, END (the last word), and
    place and object if the frame has them. A role of the source marks the place that has this role in the base,
    whatever name stands there. order: that of the base. index: the number that seeds the drawing of the pair.
    """

    base: Prompt
    source: Prompt
    order: str
    frame: str = ""
    index: int = 0


@dataclass(frozen=True)
class IOITokens:
    """A pair as tokens. base, source: ids, [T] each.

    first: the first position where the ids differ; a prefix cache may hold the positions before it. positions: for
    every role, the position of its last token in both prompts. answers: the ids that IO and S begin with behind the
    base.
    """

    base: Ints
    source: Ints
    positions: Mapping[str, int]
    first: int
    answers: tuple[int, int]


# ------------------------------------------------------------------------------------------------ words


@cache
def word_lists() -> Mapping[str, Strings]:
    """The lists of data/word_lists/ioi.json: frames, names, places, objects."""
    text = (paths.root() / "data" / "word_lists" / "ioi.json").read_text(encoding="utf-8")
    return {name: tuple(words) for name, words in json.loads(text).items()}


def held_out(items: Iterable[str], count: int) -> frozenset[str]:
    """The first `count` distinct items by SHA-256: no training of embedded models shows them in their role."""
    return frozenset(sorted(set(items), key=lambda item: sha256(item.encode()).digest())[:count])


ALL_FRAMES, ALL_NAMES = word_lists()["frames"], word_lists()["names"]
HELD_OUT_NAMES = held_out(ALL_NAMES, 15)  # no sentence in training has two of them
HELD_OUT_FRAMES = held_out(ALL_FRAMES, 3)


def usable_words(tokenizer: Any, frames: Sequence[str] = ALL_FRAMES, names: Sequence[str] = ALL_NAMES) -> Words:
    """The names, places and objects that are a single token wherever the frames put them.

    A word is kept under these conditions:

    - in every field of every frame, one token holds the word and nothing else but white space;
    - this token has the same id everywhere, and the id decodes to the word, so that different words have different ids;
    - every frame has as many tokens with this word as with the other kept words;
    - a name can follow every prompt as its answer: ids(prompt + " " + name) is ids(prompt) plus that one id.

    Kinds of words that no frame uses are empty. Raises ValueError for impossible frames, and
    UnsupportedTokenizer for fewer than MINIMUM names, no place or object although frames need one, and a tokenizer
    without character offsets.
    """
    _check(frames)
    kept, lists = dict[str, Strings](), {**word_lists(), "names": names}
    for kind, fields in FIELDS.items():
        words = tuple(dict.fromkeys(lists[kind]))
        users = [frame for frame in frames if fields[0] in _fields(frame)]
        kept[kind] = _kept(kind, words, users, tokenizer) if users else ()
        needed = MINIMUM if kind == "names" else 1
        if users and len(kept[kind]) < needed:
            raise UnsupportedTokenizer(
                f"{type(tokenizer).__name__} keeps {len(kept[kind])} of {len(words)} {kind} as single tokens, and "
                f"{needed} are needed; take a tokenizer of a larger vocabulary, more {kind}, or other frames"
            )
    return kept


def _kept(kind: str, words: Sequence[str], frames: Sequence[str], tokenizer: Any) -> Strings:
    """The words of one kind that all frames keep. All frames use this kind."""
    fillers = {field: word_lists()[other][0] for other, fields in FIELDS.items() for field in fields}
    ids: dict[str, int] = {}
    for frame in frames:
        filled = [_filled(frame, fillers | dict.fromkeys(FIELDS[kind], word)) for word in words]
        texts = [text for text, _ in filled]
        answered = [f"{text} {word}" for text, word in zip(texts, words, strict=True)]
        alone = tokens_of_each(texts, tokenizer, add_special_tokens=False)
        answers = tokens_of_each(answered, tokenizer, add_special_tokens=False)
        lengths: dict[str, int] = {}
        for word, (text, spans), tokens, whole in zip(words, filled, alone, answers, strict=True):
            try:
                word_ids = {tokens.ids[t] for field in FIELDS[kind] for t in _positions(tokens, text, spans[field], 1)}
                if kind == "names":
                    word_ids.add(_answer(tokens, whole, text))
            except Misaligned:
                continue
            if word_ids == {ids.setdefault(word, min(word_ids))} and tokenizer.decode([ids[word]]).strip() == word:
                lengths[word] = len(tokens.ids)
        ((usual, _),) = Counter(lengths.values()).most_common(1) or [(0, 0)]
        words = [word for word, length in lengths.items() if length == usual]
    return tuple(words)


def _positions(tokens: Tokens, text: str, span: Span, most: int | None = None) -> Ints:
    """The positions of the tokens of the word at `span`.

    Raises Misaligned if these tokens hold anything but the word and white space, or if they are more than `most`.
    """
    positions, word = tokens.under(span), text[slice(*span)]
    spans = [tokens.spans[t] or span for t in positions]
    if not positions or text[spans[0][0] : spans[-1][1]].strip() != word:
        raise Misaligned("merged", f"no token boundaries around {word!r} at {span} of {text!r}")
    if most and len(positions) > most:
        raise Misaligned("several tokens", f"{word!r} is {len(positions)} tokens in {text!r}")
    return positions


def _answer(alone: Tokens, whole: Tokens, text: str) -> int:
    """The first id that the answer adds to the tokens of a text.

    alone: the text's tokens; whole: those of text and answer. Raises Misaligned if the answer changes earlier tokens.
    """
    count = len(alone.ids)
    if whole.ids[:count] != alone.ids or len(whole.ids) == count:
        raise Misaligned("answer merges", f"the tokens of {text!r} change before an answer")
    return whole.ids[count]


# ------------------------------------------------------------------------------------------------ prompts


def ioi_prompts(
    tokenizer: Any,
    count: int,
    seed: int = 0,
    corruption: Corruption = "s2_swap",
    frames: Sequence[str] = ALL_FRAMES,
    names: Sequence[str] = ALL_NAMES,
) -> list[IOIPair]:
    """`count` pairs of a base and a source prompt; the orders take turns.

    frames, names: those to draw from, for example to hold some out. Names, places and objects are single tokens (see
    `usable_words`). Pair i is drawn by its own generator, Random("ioi:seed:i"), so it depends on the kept words but not
    on `count`, and its base does not depend on the corruption. Every pair is compared token by token; a pair that
    `ioi_tokens` refuses is dropped, not replaced. Raises UnsupportedTokenizer if no pair is left, and what
    `usable_words` raises.
    """
    words = usable_words(tokenizer, frames, names)
    pairs = list[IOIPair]()
    for index in range(count):
        rng = Random(f"ioi:{seed}:{index}")  # seeded by a string: the same in every process
        pair = _pair(rng, rng.choice(frames), words, [*ORDERS][index % 2], corruption, index)
        try:
            ioi_tokens(pair, tokenizer)
        except Misaligned as error:
            fault = error
        else:
            pairs.append(pair)
    if not pairs:
        raise UnsupportedTokenizer(
            f"none of {count} IOI pairs lies on top of each other in the tokens of {type(tokenizer).__name__} "
            f"({fault}); take other frames or names"
        )
    return pairs


def _pair(rng: Random, frame: str, words: Words, order: str, corruption: Corruption, index: int) -> IOIPair:
    # draw all names, even if the corruption needs fewer, so that the base does not depend on the corruption
    io, s, a, b, c = rng.sample(words["names"], 5)
    others = {"PLACE": rng.choice(words["places"] or ("",)), "OBJECT": rng.choice(words["objects"] or ("",))}
    x, y = (io, s) if order == "ABBA" else (s, io)
    names = {
        "s2_swap": (x, y, io),
        "s2_rand": (x, y, a),
        "names_swap": (y, x, s),
        "abc": (a, b, c),
        "random_name": (a, b, b if order == "ABBA" else a),
    }[corruption]
    roles = dict(zip(("X", "Y", "S", "PLACE", "OBJECT"), (*ORDERS[order], "S2", "place", "object"), strict=True))

    def prompt(*filling: str) -> Prompt:
        text, fields = _filled(frame, others | dict(zip("XYS", filling, strict=True)))
        spans = {roles[field]: (span,) for field, span in fields.items()}
        return Prompt(text, spans | {"END": ((len(text) - 2, len(text)),)}, (io, s))

    return IOIPair(prompt(x, y, s), prompt(*names), order, frame, index)


def _filled(frame: str, words: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    """A frame with its fields filled by words, and the character span of each field."""
    parts = []
    for literal, field, _, _ in Formatter().parse(frame):
        parts += [("", literal), (field or "", words[field] if field else "")]
    text, spans = written(parts)
    return text, {field: span for field, (span,) in spans.items()}


def _fields(frame: str) -> list[str]:
    """The names of a frame's fields, from left to right."""
    return [field for _, field, _, _ in Formatter().parse(frame) if field is not None]


def _check(frames: Sequence[str]) -> None:
    """Raises ValueError for frames that make no IOI prompt."""
    known = {field for fields in FIELDS.values() for field in fields}
    for frame in frames:
        fields = _fields(frame)
        names = [field for field in fields if field in FIELDS["names"]]
        if names != ["X", "Y", "S"] or len({*fields}) < len(fields) or {*fields} - known or not frame.endswith(" to"):
            raise ValueError(
                f"frame {frame!r}: write {{X}}, {{Y}} and {{S}} once each, in this order, at most one {{PLACE}} and "
                "{OBJECT}, and ' to' at the end"
            )


def pair_from_texts(base: str, source: str, io: str, s: str) -> IOIPair:
    """A pair from two given texts that differ in one name; for a base, see the example at the top of this file.

    io, s: the answer and the repeated name of the base. IO is the first occurrence of io, S1 the first and S2 the last
    occurrence of s, END the last word. Raises ValueError unless exactly one word differs and it is IO, S1 or S2, io
    occurs in the base, s occurs in it at least twice, and the base ends in a word that is neither.
    """
    old, new = ([*re.finditer(r"\w+", text)] for text in (base, source))
    changed = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a[0] != b[0]]
    words = [match[0] for match in old]
    last, places = len(words) - 1, dict[str, int]()
    if io != s and io in words and words.count(s) > 1:
        places = {"IO": words.index(io), "S1": words.index(s), "S2": last - words[::-1].index(s), "END": last}
    alike = re.split(r"\w+", base) == re.split(r"\w+", source) and len(changed) == 1
    ended = words[last:] not in ([], [io], [s]) and base.endswith(words[last])
    if not (places and alike and ended and changed[0] in [places[role] for role in NAMED]):
        raise ValueError(
            f"{base!r}, {source!r}: give two texts that differ in exactly one word, which is one of the names ({io!r} "
            f"once and {s!r} twice in the first text), and that end in the word before the answer"
        )
    both = [
        Prompt(text, {role: (matches[i].span(),) for role, i in places.items()}, (io, s))
        for text, matches in ((base, old), (source, new))
    ]
    return IOIPair(both[0], both[1], "ABBA" if places["IO"] < places["S1"] else "BABA")


# ------------------------------------------------------------------------------------------------ tokens


def ioi_tokens(pair: IOIPair, tokenizer: Any) -> IOITokens:
    """A pair as tokens, with the special tokens that the tokenizer puts in front.

    Raises Misaligned, a ValueError, unless all of this holds: both prompts have the same number of tokens; every role
    has the same positions in both, and its tokens hold nothing else; the ids differ somewhere, and only at names; the
    answers begin with two different tokens. A name of several tokens, which texts of one's own may have, is answered
    with its first, as in Cohen's project 41.
    """
    texts = (pair.base.text, pair.source.text)
    base, source = (with_bos(text, tokenizer) for text in texts)
    if len(base.ids) != len(source.ids):
        lengths = f"{len(base.ids)} and {len(source.ids)} tokens"
        raise Misaligned("unequal lengths", f"{lengths}: {texts}; take names of equally many tokens")
    base_positions, source_positions = (
        {role: _positions(tokens, prompt.text, span) for role, (span,) in prompt.spans.items()}
        for prompt, tokens in ((pair.base, base), (pair.source, source))
    )
    io, s = (_answer(base, with_bos(pair.base.with_label(n), tokenizer), texts[0]) for n in (0, 1))
    if io == s:
        raise Misaligned(
            "same answers", f"{pair.base.labels} both begin with {tokenizer.decode([io])!r}: take other names"
        )
    named = {t for role in NAMED for t in base_positions[role]}
    differing = [t for t, (a, b) in enumerate(zip(base.ids, source.ids, strict=True)) if a != b]
    if base_positions != source_positions or not differing or not named.issuperset(differing):
        raise Misaligned("other tokens", f"tokens {differing} differ, names are {sorted(named)}: {texts}")
    last = {role: positions[-1] for role, positions in base_positions.items()}
    return IOITokens(base.ids, source.ids, last, differing[0], (io, s))


def other_answers(pair: IOIPair, names: Sequence[str], tokenizer: Any, seed: int = 0) -> tuple[int, int]:
    """The ids that two names have after the base, drawn from those that neither prompt of the pair holds.

    names: those that the tokenizer keeps, see `usable_words`. Raises ValueError where fewer than two are left.
    """
    named = {prompt.texts(role)[0] for prompt in (pair.base, pair.source) for role in NAMED}
    drawn = Random(f"ioi:{seed}:{pair.index}:other names").sample(sorted({*names} - named), 2)
    text = pair.base.text
    first, second = (_answer(with_bos(text, tokenizer), with_bos(f"{text} {name}", tokenizer), text) for name in drawn)
    return first, second


def group_by_shape(tokens: Iterable[IOITokens]) -> dict[tuple[int, int], list[int]]:
    """The indices of the pairs, grouped by (T, first); a group fits into one batch without padding."""
    groups = defaultdict[tuple[int, int], list[int]](list)
    for index, one in enumerate(tokens):
        groups[len(one.base), one.first].append(index)
    return dict(groups)
