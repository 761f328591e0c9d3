"""Indirect object identification (IOI): two names, one of them again, and the answer is the other one.

"When Mike and Emma went to the cafe, Mike gave a coffee to" -> " Emma". The task, the orders ABBA and BABA, the
corruption by three unrelated names and the flips of names are those of Wang et al. 2022, arXiv:2211.00593 (templates
in appendix E). Frames and word lists (data/word_lists/ioi.json) and the rules by which
words are kept for a tokenizer are our own definitions.

A pair of prompts is neutral about what is patched into what: the base run is the one intervened on, the source run the
one that activations come from. Noising takes an IOI prompt as base and "abc" as source; denoising exchanges the two.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from string import Formatter
from typing import Any, Literal, get_args

from util import paths
from util.prompts.prompt import Misaligned, Prompt, Span, Tokens, with_bos

Corruption = Literal[
    "s2_swap",  # S2 becomes IO: keeps both names and their places, the answer flips (theirs: IO <- S2)
    "s2_rand",  # S2 becomes a third name: keeps the clause before it, no name stands there twice
    "names_swap",  # X and Y change places, S stays: keeps the answer, the place of the repeated name flips
    "abc",  # three other names: keeps the frame alone, nothing tells the answer (p_ABC)
    "random_name",  # IO and S become two other names: keeps the pattern, ABBA or BABA
]
CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)
ORDERS = {"ABBA": ("IO", "S1"), "BABA": ("S1", "IO")}  # the roles of X and Y
FIELDS = {"names": ("X", "Y", "S"), "places": ("PLACE",), "objects": ("OBJECT",)}
NAMED = ("IO", "S1", "S2")
MINIMUM = 8  # names; fewer would say more about these names than about the task


@dataclass(frozen=True)
class IOIPair:
    """A base prompt and its source, which has the same frame and is scored with the base's answers.

    labels of both prompts: (IO, S) of the base, gold 0. spans: IO, S1, S2, END (the last word), place and object where
    the frame has them. In the source a role marks the place where the base has it, whatever name stands there.
    order: of the base. index: the number of the prompt, under which it is drawn.
    """

    base: Prompt
    source: Prompt
    order: str
    corruption: str = ""
    frame: str = ""
    index: int = 0


@dataclass(frozen=True)
class Words:
    """What a tokenizer keeps of the word lists, and how many words it does not, by kind and reason."""

    names: tuple[str, ...]
    places: tuple[str, ...]
    objects: tuple[str, ...]
    rejected: Mapping[str, int]


@dataclass(frozen=True)
class IOIPrompts:
    """Pairs, the words they are made from, and by reason how many pairs do not lie on top of each other in tokens."""

    pairs: tuple[IOIPair, ...]
    words: Words
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class IOITokens:
    """A pair as tokens. base, source: ids, [T] each, equal before position `first`, the P of prefix caches.

    positions: the last token of every role, in both prompts. answers: the ids of IO and S after the base.
    """

    base: tuple[int, ...]
    source: tuple[int, ...]
    positions: Mapping[str, int]
    first: int
    answers: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """(T, P): pairs of one shape can share a batch without padding."""
        return len(self.base), self.first


# ------------------------------------------------------------------------------------------------ words


@cache
def word_lists() -> Mapping[str, tuple[str, ...]]:
    """The lists of data/word_lists/ioi.json: frames, names, places, objects."""
    text = (paths.root() / "data" / "word_lists" / "ioi.json").read_text(encoding="utf-8")
    return {name: tuple(words) for name, words in json.loads(text).items()}


def usable_words(tokenizer: Any, frames: Sequence[str] | None = None, names: Sequence[str] | None = None) -> Words:
    """The names, places and objects that are one token of their own wherever the frames put them.

    A word is kept if at every place of every frame one token holds it and nothing else but white space, with the same
    id everywhere, which decodes to the word (so that ids are distinct); and if frames have as many tokens as with the
    other kept words. A name, moreover, must follow every prompt as the answer does: ids(prompt + " " + name) is
    ids(prompt) and that id. Kinds of words that the frames do not use are empty.

    Raises ValueError for impossible frames, fewer than MINIMUM names, no place or object where frames need one, and a
    tokenizer without character offsets.
    """
    frames = _checked(frames)
    with_bos(frames[0], tokenizer)  # refuses a tokenizer without offsets in the same words as everywhere
    kept, rejected = dict[str, tuple[str, ...]](), Counter[str]()
    for kind, fields in FIELDS.items():
        words = tuple(dict.fromkeys(names if kind == "names" and names is not None else word_lists()[kind]))
        asking = [frame for frame in frames if fields[0] in _fields(frame)]
        kept[kind] = _kept(kind, words, asking, tokenizer, rejected) if asking else ()
        if asking and len(kept[kind]) < (needed := MINIMUM if kind == "names" else 1):
            raise ValueError(
                f"{type(tokenizer).__name__} keeps {len(kept[kind])} of {len(words)} {kind}, and {needed} are needed "
                f"({dict(rejected)}); take a tokenizer of a larger vocabulary, "
                + ("pass more names, or other frames" if kind == "names" else f"or frames without {fields[0]}")
            )
    return Words(kept["names"], kept["places"], kept["objects"], rejected)


def _kept(
    kind: str, words: Sequence[str], frames: Sequence[str], tokenizer: Any, rejected: Counter[str]
) -> tuple[str, ...]:
    """The words of one kind that every one of the frames, all of which have its fields, keeps; counts the others."""
    fillers = {field: word_lists()[other][0] for other, fields in FIELDS.items() for field in fields}
    ids: dict[str, int] = {}
    for frame in frames:
        if not words:
            break
        filled = [_filled(frame, fillers | dict.fromkeys(FIELDS[kind], word)) for word in words]
        alone = _batch([text for text, _ in filled], tokenizer)
        answers = [f"{text} {word}" for (text, _), word in zip(filled, words, strict=True)]
        whole = _batch(answers, tokenizer) if kind == "names" else alone
        lengths: dict[str, int] = {}
        for word, (text, spans), tokens, answered in zip(words, filled, alone, whole, strict=True):
            try:
                found = {tokens.ids[t] for field in FIELDS[kind] for t in _own(tokens, text, spans[field], 1)}
                if kind == "names":
                    found.add(_answer(tokens, answered, text))
                if len(found | {ids.setdefault(word, min(found))}) > 1:
                    raise Misaligned("several ids", f"{word!r} is {sorted(found)} in {text!r}, {ids[word]} before")
                if tokenizer.decode([ids[word]]).strip() != word:
                    raise Misaligned("decodes otherwise", f"token {ids[word]} of {word!r}")
                lengths[word] = len(tokens.ids)
            except Misaligned as error:
                rejected[f"{kind}: {error.reason}"] += 1
        usual = max(lengths.values(), key=[*lengths.values()].count, default=0)
        words = [word for word, length in lengths.items() if length == usual]
        if others := len(lengths) - len(words):
            rejected[f"{kind}: unequal lengths"] += others
    return tuple(words)


def _batch(texts: list[str], tokenizer: Any) -> list[Tokens]:
    """Texts as tokens without special ones, in one call: one by one the lists would take seconds."""
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    both = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [Tokens(tuple(ids), tuple(map(tuple, spans))) for ids, spans in both]


def _own(tokens: Tokens, text: str, span: Span, most: int | None = None) -> tuple[int, ...]:
    """The positions of a word's tokens. Raises Misaligned where they hold more than it and white space, or too many."""
    found, word = tokens.under(span), text[slice(*span)]
    at = [tokens.spans[t] or span for t in found]
    if not found or text[at[0][0] : at[-1][1]].strip() != word:
        raise Misaligned("merged", f"no token boundaries around {word!r} at {span} of {text!r}")
    if most and len(found) > most:
        raise Misaligned("several tokens", f"{word!r} is {len(found)} tokens in {text!r}")
    return found


def _answer(alone: Tokens, whole: Tokens, text: str) -> int:
    """The one id that an answer adds to a text's tokens (`alone`). Raises Misaligned where it does anything else."""
    added = whole.ids[len(alone.ids) :]
    if whole.ids[: len(alone.ids)] != alone.ids:
        raise Misaligned("answer merges", f"the tokens of {text!r} change before an answer")
    if len(added) != 1:
        raise Misaligned("several tokens", f"an answer is {len(added)} tokens after {text!r}")
    return added[0]


# ------------------------------------------------------------------------------------------------ prompts


def ioi_prompts(
    tokenizer: Any,
    count: int,
    seed: int = 0,
    corruption: str = "s2_swap",
    frames: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    orders: Sequence[str] = ("ABBA", "BABA"),
) -> IOIPrompts:
    """`count` pairs of prompts by one of CORRUPTIONS; frames and names replace those of the lists, to hold some out.

    Prompt i has a generator of its own, Random("ioi:seed:i"), and the orders take turns: it depends on the kept words,
    not on count, and its base not on the corruption. Names, places and objects are single tokens (see `usable_words`).
    Every pair is compared token by token; one that `ioi_tokens` refuses is dropped and counted, not replaced.
    Raises ValueError for a number, corruption or order that there is not, where no pair is left, and like
    `usable_words`.
    """
    if count < 1 or corruption not in CORRUPTIONS or not orders or not set(orders) <= set(ORDERS):
        raise ValueError(
            f"count = {count}, corruption = {corruption!r}, orders = {orders!r}: ask for at least 1 prompt, one of "
            f"{', '.join(CORRUPTIONS)}, and a sequence of {', '.join(ORDERS)}"
        )
    frames = _checked(frames)
    words = usable_words(tokenizer, frames, names)
    pairs, dropped = list[IOIPair](), Counter[str]()
    for index in range(count):
        rng = Random(f"ioi:{seed}:{index}")  # seeded by a string: the same in every process
        pair = _pair(rng, rng.choice(frames), words, orders[index % len(orders)], corruption, index)
        try:
            ioi_tokens(pair, tokenizer)
        except Misaligned as error:
            dropped[error.reason] += 1
        else:
            pairs.append(pair)
    if not pairs:
        raise ValueError(
            f"none of {count} IOI pairs lies on top of each other in the tokens of {type(tokenizer).__name__} "
            f"({dict(dropped)}); take other frames or names"
        )
    return IOIPrompts(tuple(pairs), words, dropped)


def _pair(rng: Random, frame: str, words: Words, order: str, corruption: str, index: int) -> IOIPair:
    # all names are drawn whatever the corruption needs, so that the base does not depend on it
    io, s, a, b, c = rng.sample(words.names, 5)
    others = {"PLACE": rng.choice(words.places or ("",)), "OBJECT": rng.choice(words.objects or ("",))}
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
        text, at = _filled(frame, others | dict(zip("XYS", filling, strict=True)))
        spans = {roles[field]: (span,) for field, span in at.items()}
        return Prompt(text, spans | {"END": ((len(text) - 2, len(text)),)}, (io, s))

    return IOIPair(prompt(x, y, s), prompt(*names), order, corruption, frame, index)


def _filled(frame: str, words: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    """A frame with words in its fields, and the span of each."""
    text, spans = "", {}
    for literal, field, _, _ in Formatter().parse(frame):
        text += literal
        if field is not None:
            spans[field] = (len(text), len(text) + len(words[field]))
            text += words[field]
    return text, spans


def _fields(frame: str) -> list[str]:
    return [field for _, field, _, _ in Formatter().parse(frame) if field is not None]


def _checked(frames: Sequence[str] | None) -> tuple[str, ...]:
    frames = tuple(word_lists()["frames"] if frames is None else frames)
    known = {field for fields in FIELDS.values() for field in fields}
    for frame in frames:
        fields = _fields(frame)
        names = [field for field in fields if field in FIELDS["names"]]
        if names != ["X", "Y", "S"] or len({*fields}) < len(fields) or {*fields} - known or not frame.endswith(" to"):
            raise ValueError(
                f"frame {frame!r}: write {{X}}, {{Y}} and {{S}} once each, in this order, at most one {{PLACE}} and "
                "{OBJECT}, and ' to' at the end"
            )
    if not frames:
        raise ValueError("no frames; name at least one")
    return frames


def pair_from_texts(base: str, source: str, io: str, s: str) -> IOIPair:
    """A pair from two given texts that differ in one name, such as the example at the top of this module.

    io, s: the answer and the repeated name of the base. S1 and IO are their first occurrences, S2 the last one of s,
    END is the last word. Raises ValueError unless exactly one word differs, at one of these names, each of them a word
    of the base, s twice or more, and the base ends in another word.
    """
    old, new = ([*re.finditer(r"\w+", text)] for text in (base, source))
    changed = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a[0] != b[0]]
    if re.split(r"\w+", base) != re.split(r"\w+", source) or len(changed) != 1:
        raise ValueError(f"the texts must differ in exactly one word: {base!r}, {source!r}")
    words = [found[0] for found in old]
    if io == s or io not in words or words.count(s) < 2:
        raise ValueError(f"{base!r} needs the name {io!r}, and another name {s!r} at least twice")
    last = len(words) - 1
    places = {"IO": words.index(io), "S1": words.index(s), "S2": last - words[::-1].index(s), "END": last}
    if words[last] in (io, s) or not base.endswith(words[last]):
        raise ValueError(f"{base!r} must end in the word before the answer, without a space")
    if changed[0] not in [places[role] for role in NAMED]:
        raise ValueError(f"the word that differs, {words[changed[0]]!r}, is none of the names {io!r} and {s!r}")
    both = [
        Prompt(text, {role: (found[i].span(),) for role, i in places.items()}, (io, s))
        for text, found in ((base, old), (source, new))
    ]
    return IOIPair(both[0], both[1], "ABBA" if places["IO"] < places["S1"] else "BABA")


# ------------------------------------------------------------------------------------------------ tokens


def ioi_tokens(pair: IOIPair, tokenizer: Any, bos: bool | None = None) -> IOITokens:
    """A pair as tokens, with `bos` in front as `with_bos` has it.

    Raises Misaligned, a ValueError, unless both prompts have as many tokens, every role at the same tokens, which hold
    nothing else, and different tokens at names only, at least one; and unless the answers are two single tokens.
    """
    texts = (pair.base.text, pair.source.text)
    base, source = (with_bos(text, tokenizer, bos) for text in texts)
    if len(base.ids) != len(source.ids):
        raise Misaligned("unequal lengths", f"{len(base.ids)} and {len(source.ids)} tokens: {texts}")
    at, there = (
        {role: _own(tokens, prompt.text, span) for role, (span,) in prompt.spans.items()}
        for prompt, tokens in ((pair.base, base), (pair.source, source))
    )
    io, s = (_answer(base, with_bos(pair.base.with_label(n), tokenizer, bos), texts[0]) for n in (0, 1))
    if io == s:
        raise Misaligned("same answers", f"{pair.base.labels} are both token {io}")
    named = {t for role in NAMED for t in at[role]}
    differing = [t for t, (a, b) in enumerate(zip(base.ids, source.ids, strict=True)) if a != b]
    if at != there or not differing or not named.issuperset(differing):
        raise Misaligned("other tokens", f"tokens {differing} differ, names are {sorted(named)}: {texts}")
    return IOITokens(base.ids, source.ids, {role: found[-1] for role, found in at.items()}, differing[0], (io, s))


def group_by_shape(tokens: Iterable[IOITokens]) -> dict[tuple[int, int], list[int]]:
    """The numbers of the pairs of each shape (T, P), which fit into one batch without padding."""
    groups = defaultdict[tuple[int, int], list[int]](list)
    for number, each in enumerate(tokens):
        groups[each.shape].append(number)
    return dict(groups)
