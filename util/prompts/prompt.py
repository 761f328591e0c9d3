"""Prompts with the roles of their parts, and where those parts lie among a tokenizer's tokens.

A prompt is a string plus character spans by role. In an in-context-learning prompt the roles are x (input texts,
demonstrations then query), s (the forerunner: the last visible character before a label, Cho et al. 2025, section 3)
and y (label words of the demonstrations). Tokens are found by character offsets, never by matching token ids, so that
double spaces, missing BOS tokens and labels of several tokens cannot shift a position silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Span = tuple[int, int]
Appended = int | str  # what stands after the query: a label, counted from the gold one in the label space, or a word
CUTS = ("none", "label_words", "last_sentence_token")


@dataclass(frozen=True)
class Prompt:
    """One prompt, up to where its answer is due: the query's forerunner, or the last word of an IOI sentence.

    spans: character spans [start, end) by role. With k demonstrations there are k + 1 of x and s and k of y, and in
    prompts of `Layout` k of n (what ends a demonstration); in IOI prompts IO, S1, S2, END, place and object.
    labels: the answers to choose from; gold and demonstrations index them. label_join stands before an answer.
    marks: a suffix for the token types of each demonstration, where some are of a kind of their own.
    """

    text: str
    spans: Mapping[str, tuple[Span, ...]]
    labels: tuple[str, ...]
    gold: int = 0
    demonstrations: tuple[int, ...] = ()
    label_join: str = " "
    marks: tuple[str, ...] = ()

    def label(self, appended: Appended = 0) -> str:
        """The gold label (0), the label so many places after it in the label space, cyclically, or just that word."""
        return appended if isinstance(appended, str) else self.labels[(self.gold + appended) % len(self.labels)]

    def with_label(self, appended: Appended = 0) -> str:
        """The prompt followed by the correct label (0), the reference code's wrong label (1), or another word."""
        return self.text + self.label_join + self.label(appended)

    def cut(self, mode: str, offset: int = 0) -> str:
        """The string of one of the reference's prompt cuts, see CUTS. Raises ValueError for another name."""
        if mode == "none":
            return self.text
        if mode == "label_words":
            return self.with_label(offset)
        if mode == "last_sentence_token":
            return self.text[: self.spans["x"][-1][1]]
        raise ValueError(f"unknown prompt cut {mode!r}; choose one of {', '.join(CUTS)}")


@dataclass(frozen=True)
class LabelledTokens:
    """A prompt with one label appended, as tokens.

    ids ends with the *first* token of the appended label: later ones, `rest`, cannot influence its row. forerunners and
    labels are positions, k + 1 each, the query's last; label_lengths counts the tokens of each label; n_t counts all
    tokens of the string, special tokens in front and the whole label included.
    """

    ids: tuple[int, ...]
    forerunners: tuple[int, ...]
    labels: tuple[int, ...]
    label_lengths: tuple[int, ...]
    n_t: int
    rest: tuple[int, ...] = ()


def tokenize(prompts: Sequence[Prompt], tokenizer: Any, appended: Appended = 0) -> list[LabelledTokens]:
    """Token roles of every prompt with a label, or another word, appended.

    The forerunner is the token that covers the last visible character before a label and the label's first token is the
    next one, so that an attention read from the one to the other is always between neighbours. Where attention to a
    label of several tokens is read, its first token stands for it; `label_lengths` says how often that happened.
    Raises ValueError for a tokenizer without character offsets and where one token covers both forerunner and label.
    """
    _check_offsets(tokenizer)
    texts = [prompt.with_label(appended) for prompt in prompts]
    encoded = tokenizer(texts, return_offsets_mapping=True, return_attention_mask=False)
    return [
        _locate(prompt, text, ids, offsets, tokenizer)
        for prompt, text, ids, offsets in zip(
            prompts, texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
        )
    ]


def _locate(prompt: Prompt, text: str, ids: list[int], offsets: list[Span], tokenizer: Any) -> LabelledTokens:
    first, last = [-1] * len(text), [-1] * len(text)  # tokens of each character: several may share one
    for token, (start, end) in enumerate(offsets):
        last[start:end] = [token] * (end - start)
        first[start:end] = [token if known < 0 else known for known in first[start:end]]
    label_ends = [end for _, end in prompt.spans["y"]] + [len(text)]
    forerunners, labels, lengths = [], [], []
    for (_, s_end), label_end in zip(prompt.spans["s"], label_ends, strict=True):
        forerunner, label_last = first[s_end - 1], last[label_end - 1]
        if forerunner < 0 or label_last <= forerunner or offsets[forerunner][1] > label_end - 1:
            around = text[max(0, s_end - 20) : label_end]
            raise ValueError(
                f"{type(tokenizer).__name__} has no token boundary between forerunner and label in {around!r}; "
                "use other label words or another separator before the label"
            )
        forerunners.append(forerunner)
        labels.append(forerunner + 1)
        lengths.append(label_last - forerunner)
    return LabelledTokens(
        ids=tuple(ids[: labels[-1] + 1]),
        forerunners=tuple(forerunners),
        labels=tuple(labels),
        label_lengths=tuple(lengths),
        n_t=labels[-1] + lengths[-1],
        rest=tuple(ids[labels[-1] + 1 : labels[-1] + lengths[-1]]),
    )


def check_conditions(appended: Sequence[Appended]) -> None:
    """Raises ValueError unless there is at least one condition and each is named once."""
    if not appended or len(set(appended)) < len(appended):
        raise ValueError(f"appended = {list(appended)}: name at least one condition, and each once")


def check_first_tokens(prompts: Sequence[Prompt], tokens: Mapping[Appended, Sequence[LabelledTokens]]) -> None:
    """Refuse appended words that share their first token, so that two conditions would be one.

    tokens: per condition the tokens of every prompt. Raises ValueError naming the two words.
    """
    for number, prompt in enumerate(prompts):
        seen: dict[int, str] = {}
        for appended, labelled in tokens.items():
            label, token = prompt.label(appended), labelled[number].ids[-1]
            if label in seen.values():
                raise ValueError(
                    f"two conditions append the same word {label!r}: {list(tokens)} on the labels {prompt.labels}; "
                    "choose offsets below the number of labels, and words that are no labels"
                )
            if seen.setdefault(token, label) != label:
                raise ValueError(
                    f"the labels {seen[token]!r} and {label!r} begin with the same token ({token}) in this tokenizer, "
                    "so their attention rows are the same; replace the label words (StaICC: change_label_space)"
                )


def _check_offsets(tokenizer: Any) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} gives no character offsets, which token roles need; "
            "load the fast (Rust) tokenizer of this model, or convert it with transformers' conversion script"
        )


# ------------------------------------------------------------------------------------------------ writing prompts


@dataclass(frozen=True)
class Layout:
    """How a prompt is written: header, `x separator join y end` for each demonstration, then the query's `x separator`.

    The default is that of the edge figure: input, tab, output, newline. With " ->" or ":" as separator, join is " ".
    """

    separator: str = "\t"
    join: str = ""
    end: str = "\n"
    header: str = ""

    def prompt(
        self,
        demonstrations: Sequence[tuple[str, str]],
        query: str,
        answer: str,
        labels: Sequence[str] = (),
        marks: Sequence[str] = (),
    ) -> Prompt:
        """The prompt of (input, output) demonstrations and a query.

        labels: the label space; by default the outputs of this prompt, in order of appearance, and the answer.
        Raises ValueError for an output or answer that is not in the labels, and for marks that are not one for each
        demonstration.
        """
        labels = tuple(labels) or tuple(dict.fromkeys([*(y for _, y in demonstrations), answer]))
        unknown = {answer, *(y for _, y in demonstrations)} - set(labels)
        if unknown:
            raise ValueError(f"outputs {sorted(unknown)} are not among the labels {labels}")
        if marks and len(marks) != len(demonstrations):
            raise ValueError(f"{len(marks)} marks for {len(demonstrations)} demonstrations")
        text, spans = self.header, {role: [] for role in "xsyn"}  # type: str, dict[str, list[Span]]

        def write(role: str, part: str, before: str = "") -> None:
            nonlocal text
            text += before
            spans[role].append((len(text), len(text) + len(part)))
            text += part

        for x, y in demonstrations:
            write("x", x)
            write("s", self.separator)
            write("y", y, self.join)
            write("n", self.end)
        write("x", query)
        write("s", self.separator)
        roles = {role: tuple(found) for role, found in spans.items()}
        if self.header:
            roles["header"] = ((0, len(self.header)),)
        indices = tuple(labels.index(y) for _, y in demonstrations)
        return Prompt(text, roles, labels, labels.index(answer), indices, self.join, tuple(marks))


# ------------------------------------------------------------------------------------------------ token positions


class Misaligned(ValueError):
    """A prompt whose parts are not tokens of their own in this tokenizer. `reason` is short, to be counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True)
class Tokens:
    """A text as tokens. spans[t] are the characters of token t, None for special tokens in front."""

    ids: tuple[int, ...]
    spans: tuple[Span | None, ...]

    def under(self, span: Span) -> tuple[int, ...]:
        """The positions of the tokens that share a character with `span`."""
        return self.under_each([span])[0]

    def under_each(self, spans: Sequence[Span]) -> list[tuple[int, ...]]:
        """The same for many spans."""
        starts, ends = np.array([at or (-1, -1) for at in self.spans]).reshape(-1, 2).T
        return [tuple(np.flatnonzero((starts < end) & (start < ends)).tolist()) for start, end in spans]


def with_bos(text: str, tokenizer: Any, bos: bool | None = None) -> Tokens:
    """The tokens of a text, with the special tokens that the tokenizer puts in front (and none behind).

    bos: None leaves the front as the tokenizer makes it; True adds a token where it makes none, its BOS or, as Phi-2
    and SmolLM have no other, its EOS token; False takes the front away. Raises ValueError where there is none to add,
    and for a tokenizer without character offsets.
    """
    _check_offsets(tokenizer)
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    special = encoded["special_tokens_mask"]
    start = special.index(0) if 0 in special else len(special)
    stop = len(special) - special[::-1].index(0) if 0 in special else len(special)
    ids, spans = encoded["input_ids"][start:stop], [tuple(at) for at in encoded["offset_mapping"][start:stop]]
    front = encoded["input_ids"][:start] if bos is not False else []
    if bos and not front:
        front = [bos_token(tokenizer)]
    return Tokens((*front, *ids), (*[None] * len(front), *spans))


def bos_token(tokenizer: Any) -> int:
    """The id of the token that stands first: BOS, else EOS. Raises ValueError for a tokenizer with neither."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ValueError(
        f"{type(tokenizer).__name__} has neither a BOS nor an EOS token to put first; set tokenizer.bos_token"
    )
