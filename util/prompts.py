"""Prompts with the roles of their parts, and where those parts lie among a tokenizer's tokens.

A prompt is a string plus character spans by role. In an in-context-learning prompt the roles are x (input texts,
demonstrations then query), s (the forerunner: the last visible character before a label, Cho et al. 2025, section 3)
and y (label words of the demonstrations). Tokens are found by character offsets, never by matching token ids, so that
double spaces, missing BOS tokens and labels of several tokens cannot shift a position silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Span = tuple[int, int]
Appended = int | str  # what stands after the query: a label, counted from the gold one in the label space, or a word
CUTS = ("none", "label_words", "last_sentence_token")


@dataclass(frozen=True)
class Prompt:
    """One prompt that ends at the query's forerunner, its last visible character.

    spans: character spans [start, end) by role; with k demonstrations there are k + 1 of x and s and k of y.
    labels: the label space; gold and demonstrations index it. label_join stands between forerunner and label.
    """

    text: str
    spans: Mapping[str, tuple[Span, ...]]
    labels: tuple[str, ...]
    gold: int
    demonstrations: tuple[int, ...]
    label_join: str = " "

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

    ids ends with the *first* token of the appended label: later ones cannot influence its row. forerunners and labels
    are positions, k + 1 each, the query's last; label_lengths counts the tokens of each label; n_t counts all tokens
    of the string, special tokens in front and the whole label included.
    """

    ids: tuple[int, ...]
    forerunners: tuple[int, ...]
    labels: tuple[int, ...]
    label_lengths: tuple[int, ...]
    n_t: int


def tokenize(prompts: Sequence[Prompt], tokenizer: Any, appended: Appended = 0) -> list[LabelledTokens]:
    """Token roles of every prompt with a label, or another word, appended.

    The forerunner is the token that covers the last visible character before a label and the label's first token is the
    next one, so that an attention read from the one to the other is always between neighbours. Policy for a label of
    several tokens: its first token stands for it; `label_lengths` says how often that happened.
    Raises ValueError for a tokenizer without character offsets and where one token covers both forerunner and label.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} gives no character offsets, which token roles need; "
            "load the fast (Rust) tokenizer of this model, or convert it with transformers' conversion script"
        )
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
