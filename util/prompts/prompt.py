"""Prompts, the roles of their parts, and the positions of these parts among a tokenizer's tokens.

A prompt is a string with character spans by role. The roles of an in-context-learning prompt are x (the input texts of
the demonstrations, then of the query), s (the forerunner: the last visible character before a label, Cho et al. 2025,
section 3) and y (the label words of the demonstrations). Tokens are found by character offsets, never by matching token
ids, so that double spaces, missing BOS tokens and labels of several tokens cannot shift a position unnoticed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
Ints = tuple[int, ...]
Strings = tuple[str, ...]
Example = tuple[str, str]  # an input and its output
Appended = int | str  # what follows the query: a label, by its offset from gold in the label space, or any word


class UnsupportedTokenizer(ValueError):
    """Prompts of a kind cannot be made, or not be told apart, in the tokens of this tokenizer; the message says why."""


@dataclass(frozen=True)
class Prompt:
    """One prompt without its answer: it ends with the query's forerunner, or the last word of an IOI sentence.

    spans: character spans [start, end) by role. A prompt with k demonstrations has k + 1 spans of x and of s, and k of
    y; prompts of `Layout` also have k of n (the end of a demonstration), and header if there is one. IOI prompts have
    the roles IO, S1, S2, END, place and object. labels: the answers to choose from. gold: the index of the right one.
    demonstrations: the index of the label of each demonstration. label_join: the text between prompt and answer.
    marks: empty, or for each demonstration a suffix for the token types of its input and output (see `type_tokens`).
    """

    text: str
    spans: Mapping[str, tuple[Span, ...]]
    labels: Strings
    gold: int = 0
    demonstrations: Ints = ()
    label_join: str = " "
    marks: Strings = ()

    def label(self, appended: Appended = 0) -> str:
        """The gold label (0), the label so many places after it in the label space (cyclic), or the word itself."""
        return appended if isinstance(appended, str) else self.labels[(self.gold + appended) % len(self.labels)]

    def texts(self, role: str) -> list[str]:
        """The texts of the parts that have a role, from left to right."""
        return [self.text[slice(*span)] for span in self.spans[role]]

    def with_label(self, appended: Appended = 0) -> str:
        """The prompt followed by the gold label (0), the wrong label of the reference code (1), or another word."""
        return self.text + self.label_join + self.label(appended)

    def permuted(self, seed: int) -> "Prompt":
        """The prompt with the labels of its demonstrations permuted among them: inputs, labels and format stay.

        Of twenty random permutations it is the one that gives most demonstrations another label.
        """
        random, words = np.random.default_rng(seed), self.texts("y")
        orders = [random.permutation(len(words)) for _ in range(20)]
        order = max(orders, key=lambda order: sum(words[new] != word for new, word in zip(order, words, strict=True)))
        parts, end, other_words = list[tuple[str, str]](), 0, iter([words[new] for new in order])
        for (start, stop), role in sorted((span, role) for role, spans in self.spans.items() for span in spans):
            word = next(other_words) if role == "y" else self.text[start:stop]
            parts += [("", self.text[end:start]), (role, word)]
            end = stop
        text, moved = written([*parts, ("", self.text[end:])], self.spans)
        shown = tuple(self.demonstrations[new] for new in order)
        return replace(self, text=text, spans=moved, demonstrations=shown)


@dataclass(frozen=True)
class LabelledTokens:
    """A prompt with one label appended, as tokens.

    ids: the tokens up to the *first* token of the appended label, because later ones cannot influence that token's row.
    rest: the other tokens of the appended label. forerunners, labels: the positions of the forerunners and of the first
    tokens of the labels, k + 1 each, the query's last. label_lengths: the number of tokens of each label. n_t: the
    number of tokens of the whole string, with special tokens in front and all tokens of the appended label.
    """

    ids: Ints
    forerunners: Ints
    labels: Ints
    label_lengths: Ints
    n_t: int
    rest: Ints = ()

    @property
    def label_tokens(self) -> list[range]:
        """The tokens of each label, the query's last."""
        spans = zip(self.labels, self.label_lengths, strict=True)
        return [range(start, start + length) for start, length in spans]

    @property
    def others(self) -> NDArray[np.int64]:
        """The tokens that are no part of a label, without the first two: their predecessor is no sink."""
        return np.setdiff1d(np.arange(2, self.labels[-1]), np.concatenate(self.label_tokens))


def labelled_tokens(prompts: Sequence[Prompt], tokenizer: Any, appended: Appended = 0) -> list[LabelledTokens]:
    """The tokens of every prompt with a label, or another word, appended.

    The forerunner is the token that covers the last visible character before a label. The next token is the first token
    of the label, so attention from the label to its forerunner is always attention to a neighbour. A label of several
    tokens is represented by its first token; `label_lengths` shows where this happens. Raises ValueError for a
    tokenizer without character offsets, and if one token covers both forerunner and label.
    """
    texts = [prompt.with_label(appended) for prompt in prompts]
    tokens = tokens_of_each(texts, tokenizer)
    return [_locate(*one, tokenizer) for one in zip(prompts, texts, tokens, strict=True)]


def _locate(prompt: Prompt, text: str, whole: "Tokens", tokenizer: Any) -> LabelledTokens:
    label_ends = [end for _, end in prompt.spans["y"]] + [len(text)]
    s_ends = [end for _, end in prompt.spans["s"]]
    # the tokens of the last character of every forerunner and label; several tokens may share one character
    tokens = whole.under_each([(end - 1, end) for end in (*s_ends, *label_ends)])
    forerunners, lengths = [], []
    for s_end, label_end, before, last in zip(s_ends, label_ends, tokens, tokens[len(s_ends) :], strict=False):
        if not before or not last or last[0] <= before[0]:
            around = text[max(0, s_end - 20) : label_end]
            raise UnsupportedTokenizer(
                f"{type(tokenizer).__name__} has no token boundary between forerunner and label in {around!r}; "
                "use other label words or another separator before the label"
            )
        forerunners.append(before[0])
        lengths.append(last[-1] - before[0])
    labels = tuple(forerunner + 1 for forerunner in forerunners)
    first, end = labels[-1], labels[-1] + lengths[-1]
    rest = whole.ids[first + 1 : end]
    return LabelledTokens(whole.ids[: first + 1], tuple(forerunners), labels, tuple(lengths), end, rest)


def check_first_tokens(prompts: Sequence[Prompt], tokens: Mapping[Appended, Sequence[LabelledTokens]]) -> None:
    """Raises ValueError if two conditions append the same word, UnsupportedTokenizer for words with one first token.

    Their attention would be the same. tokens: for each condition, the tokens of every prompt.
    """
    for number, prompt in enumerate(prompts):
        words = [prompt.label(appended) for appended in tokens]
        if len(set(words)) < len(words):
            raise ValueError(
                f"conditions {list(tokens)} append the same word on the labels {prompt.labels}; choose offsets below "
                "the number of labels, and words that are no labels"
            )
        first = [labelled[number].ids[-1] for labelled in tokens.values()]
        if len(set(first)) < len(first):
            raise UnsupportedTokenizer(
                f"of the labels {words} some begin with the same token ({first}) in this tokenizer, so their attention "
                "rows are the same; replace the label words (StaICC: change_label_space)"
            )


def _check_offsets(tokenizer: Any) -> None:
    """Raises UnsupportedTokenizer for a tokenizer without character offsets."""
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedTokenizer(
            f"{type(tokenizer).__name__} gives no character offsets, which token roles need; "
            "load the fast (Rust) tokenizer of this model, or convert it with transformers' conversion script"
        )


# ------------------------------------------------------------------------------------------------ writing prompts


@dataclass(frozen=True)
class Layout:
    """How a prompt is written: header, then `x separator join y end` for each demonstration, then `x separator`.

    The default is the layout of the edge-ablation figure: input, tab, output, newline. If the separator is " ->" or
    ":", join is " ".
    """

    separator: str = "\t"
    join: str = ""
    end: str = "\n"
    header: str = ""

    def prompt(
        self,
        demonstrations: Sequence[Example],
        query: str,
        answer: str,
        labels: Sequence[str] = (),
        marks: Sequence[str] = (),
    ) -> Prompt:
        """A prompt from (input, output) demonstrations and a query.

        labels: the label space; by default the outputs of the demonstrations, in order of appearance, and the answer.
        marks: none, or one per demonstration. Raises ValueError for an output or answer that is not in the labels.
        """
        labels = tuple(labels) or tuple(dict.fromkeys([*(y for _, y in demonstrations), answer]))
        parts = [("header", self.header)] * bool(self.header)
        for x, y in demonstrations:
            parts += [("x", x), ("s", self.separator), ("", self.join), ("y", y), ("n", self.end)]
        text, spans = written([*parts, ("x", query), ("s", self.separator)], "xsyn")
        indices = tuple(labels.index(y) for _, y in demonstrations)
        return Prompt(text, spans, labels, labels.index(answer), indices, self.join, tuple(marks))


def written(parts: Iterable[tuple[str, str]], roles: Iterable[str] = ()) -> tuple[str, dict[str, tuple[Span, ...]]]:
    """The text of parts (role, text), and the character spans of each role; a part of the role "" has none.

    roles: those that have an entry even where no part has them.
    """
    text, spans = "", {role: () for role in roles}  # type: str, dict[str, tuple[Span, ...]]
    for role, part in parts:
        if role:
            spans[role] = (*spans.get(role, ()), (len(text), len(text) + len(part)))
        text += part
    return text, spans


# ------------------------------------------------------------------------------------------------ token positions


class Misaligned(UnsupportedTokenizer):
    """A prompt's parts do not fall on tokens as they have to; `reason` says why in a few words, to count cases."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True)
class Tokens:
    """A text as tokens. spans[t]: the characters [start, end) of token t, None for special tokens in front."""

    ids: Ints
    spans: tuple[Span | None, ...]

    def under(self, span: Span) -> Ints:
        """The positions of all tokens that share a character with `span`."""
        return self.under_each([span])[0]

    def under_each(self, spans: Sequence[Span]) -> list[Ints]:
        """For each span, the positions of all tokens that share a character with it."""
        starts, ends = np.array([span or (-1, -1) for span in self.spans]).reshape(-1, 2).T
        firsts, lasts = np.array(spans).reshape(-1, 1, 2).T  # [1, S], to be compared with every token
        return [tuple(np.flatnonzero(row).tolist()) for row in (starts < lasts.T) & (ends > firsts.T)]


def tokens_of_each(texts: Sequence[str], tokenizer: Any, **options: Any) -> list[Tokens]:
    """Texts as tokens, in one call of the tokenizer, because single calls would take seconds. options: of the call.

    Raises UnsupportedTokenizer for a tokenizer without character offsets.
    """
    _check_offsets(tokenizer)
    if not texts:
        return []
    encoded = tokenizer(texts, return_offsets_mapping=True, return_attention_mask=False, **options)
    both = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [Tokens(tuple(ids), tuple(spans)) for ids, spans in both]


def with_bos(text: str, tokenizer: Any, bos: bool = False) -> Tokens:
    """The tokens of a text, with the special tokens that the tokenizer puts in front of it but not those after it.

    bos: add a token where there are none in front: BOS, or EOS for tokenizers without BOS, such as those of Phi-2 and
    SmolLM. Raises ValueError if there is no token to add, and for a tokenizer without character offsets.
    """
    _check_offsets(tokenizer)
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    ordinary = [place for place, mark in enumerate(special) if not mark] or [len(special)]
    start, stop = ordinary[0], ordinary[-1] + 1
    front = ids[:start] or ([bos_token(tokenizer)] if bos else [])
    spans = map(tuple, encoded["offset_mapping"][start:stop])
    return Tokens((*front, *ids[start:stop]), (*[None] * len(front), *spans))


def bos_token(tokenizer: Any) -> int:
    """The id of the token to put first: BOS, or else EOS. Raises UnsupportedTokenizer where there is neither."""
    token = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if token is None:
        raise UnsupportedTokenizer(
            f"{type(tokenizer).__name__} has neither a BOS nor an EOS token to put first; set tokenizer.bos_token"
        )
    return int(token)


# ------------------------------------------------------------------------------------------------ token types


@dataclass(frozen=True)
class TypedTokens:
    """A prompt of `Layout` as tokens with their types, each [T] (Bakalova et al. 2025, token types).

    types: bos, header, x, t (separator), y, n (end of a demonstration), query, last_separator, target; if a
    demonstration has a mark, it is a suffix of the types of its x and y. examples: 1 to k for demonstrations, k + 1 for
    query, last separator and target, 0 for BOS and header. slots: the number of the token's part, counted from left to
    right with BOS as 0; all tokens of one input have the same slot.
    """

    ids: Ints
    types: Strings
    examples: Ints
    slots: Ints

    @property
    def sizes(self) -> Ints:
        """The number of tokens of each slot; prompts of equal sizes are aligned token by token."""
        return tuple(np.bincount(self.slots).tolist())


def check_aligned(clean: TypedTokens, donor: TypedTokens) -> None:
    """Raises Misaligned (reason "unequal sizes") unless two prompts have the same slots and types, token by token."""
    if (clean.slots, clean.types) != (donor.slots, donor.types):
        raise Misaligned(
            "unequal sizes", f"slots of {clean.sizes} tokens in the clean prompt, {donor.sizes} in its donor"
        )


def type_tokens(prompt: Prompt, tokenizer: Any, target: bool = False) -> TypedTokens:
    """The tokens of a prompt with their types. BOS always stands first (see `with_bos`).

    target: append the answer. Raises Misaligned, a ValueError that names the place, unless every token lies in exactly
    one slot and every separator and end is one token; and where the answer changes the tokens before it (reason "answer
    merges"): what the model would have to continue is not the prompt. The text that joins a separator and an output
    counts as part of the output. (For prompts with other ends, such as blank lines, use `with_bos(...).under(span)`.)
    """
    alone = type_tokens(prompt, tokenizer).ids if target else ()
    text = prompt.with_label() if target else prompt.text
    tokens = with_bos(text, tokenizer, bos=True)
    slots = _slots(prompt) + [(len(text), "target", len(prompt.demonstrations) + 1)] * target
    token, start = tokens.spans.count(None), 0
    typed = [("bos", 0, 0)] * token
    for number, (stop, name, example) in enumerate(slots, 1):
        first = token
        while token < len(tokens.ids) and tokens.spans[token][1] <= stop:  # type: ignore[index]
            token += 1
        around = repr(text[max(0, start - 12) : stop + 12])
        crossing = token < len(tokens.ids) and tokens.spans[token][0] < stop  # type: ignore[index]
        if crossing or token == first:
            raise Misaligned("merged", f"no token boundary at an end of {text[start:stop]!r} in {around}")
        if name in ("t", "last_separator", "n") and token - first > 1:
            raise Misaligned("split", f"the separator {text[start:stop]!r} is {token - first} tokens in {around}")
        typed += [(name, example, number)] * (token - first)
        start = stop
    if tokens.ids[: len(alone)] != alone:
        raise Misaligned("answer merges", f"the tokens of {prompt.text[-30:]!r} change before {prompt.label()!r}")
    return TypedTokens(tokens.ids, *zip(*typed, strict=True))


def _slots(prompt: Prompt) -> list[tuple[int, str, int]]:
    """(end, type, example) of the parts of a prompt, from left to right; each part begins where the last one ends."""
    slots = []
    for role, spans in prompt.spans.items():
        for i, (_, stop) in enumerate(spans):
            if i == len(prompt.demonstrations) and role in "xs":
                name = {"x": "query", "s": "last_separator"}[role]
            else:
                name = {"s": "t"}.get(role, role) + (prompt.marks[i] if prompt.marks and role in "xy" else "")
            slots.append((stop, name, 0 if role == "header" else i + 1))
    return sorted(slots)
