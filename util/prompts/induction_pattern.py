"""The induction pattern of a classification prompt: the cells of attention that an induction head would use.

These cells are knocked out. Source: Crosbie & Shutova 2024, section 4.4, as in their code: every part of a prompt has a
class, and a token may not attend to the tokens that directly follow an earlier part of its own class. We find parts by
character offsets. Their code searches for strings in rebuilt words, so it finds "car" in "carrot" and misses the blank
lines of byte-level tokenizers.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from util.prompts.prompt import Prompt, Span, Tokens, UnsupportedTokenizer, with_bos
from util.prompts.row_files import table
from util.prompts.sequences import matched_cells

Cells = NDArray[np.int64]  # [C, 2]: query, key
# After these parts only the first token counts as what follows them: a blank line's first, the next example's first.
FIRST_TOKEN_ONLY = ("label", "blank line")
Pattern = Literal["induction", "random keys", "previous part", "exact tokens"]
PATTERNS: tuple[str, ...] = get_args(Pattern)


class Part(NamedTuple):
    """A part of a prompt: its class (None if it has no class) and its characters."""

    kind: str | None
    span: Span


def parts(prompt: Prompt) -> list[Part]:
    """The parts of a prompt of `prompts.classification`, from left to right.

    All labels are one class. All colons are one, a colon being the whole separator before a label, such as
    "\\n\\nAnswer:". All blank lines after labels are one, with the blank line after the instruction. The class of a
    word is its category in the word lists, if all words of the input are in them. Letters have no class, nor do the
    words of real texts, not even those that the lists happen to have.
    """
    prompt_parts = []
    for start, end in prompt.spans.get("header", ()):
        visible = prompt.text[start:end].rstrip()
        prompt_parts.append(Part("blank line", (start + len(visible), end)))
    for number, (start, end) in enumerate(prompt.spans["x"]):
        words = list(re.finditer(r"\S+", prompt.text[start:end]))
        classes = [_categories().get(word[0]) for word in words]
        for word, kind in zip(words, classes, strict=True):
            prompt_parts.append(Part(kind if all(classes) else None, (start + word.start(), start + word.end())))
        prompt_parts.append(Part("colon", prompt.spans["s"][number]))
        if number < len(prompt.spans["y"]):
            prompt_parts += [Part("label", prompt.spans["y"][number]), Part("blank line", prompt.spans["n"][number])]
    return prompt_parts


@cache
def _categories() -> dict[str, str]:
    return {row["word"]: row["category"] for row in table("categories")}


def cells(prompt: Prompt, tokenizer: Any, pattern: str = "induction", seed: int = 0) -> Cells:
    """The cells [C, 2] of a pattern in a prompt as a tokenizer reads it, see `cells_among`."""
    return cells_among(prompt, with_bos(prompt.text, tokenizer), pattern, seed)


def cells_among(prompt: Prompt, tokens: Tokens, pattern: str = "induction", seed: int = 0) -> Cells:
    """The cells [C, 2] (query, key) of one of PATTERNS, as positions in the tokens of a prompt.

    "induction": the induction pattern. Two are controls with the same queries. "random keys": each query has as many
    keys as in the induction pattern, drawn at random from earlier tokens; keys of the induction pattern are used only
    if there are too few others. "previous part": the keys are the part directly before the query's. "exact tokens"
    needs no parts: the keys directly follow earlier tokens that equal the query, see `sequences.matched_cells`.

    A token that a part without class shares with the next part belongs to the former: where a text's full stop and the
    blank line after it are one token, the separator is what follows. Raises ValueError for an unknown pattern, and
    UnsupportedTokenizer for a prompt in which a part that has a class has no tokens of its own.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"unknown pattern {pattern!r}; there are {', '.join(PATTERNS)}")
    if pattern == "exact tokens":
        return matched_cells(np.array(tokens.ids))
    prompt_parts = parts(prompt)
    positions = tokens.under_each([part.span for part in prompt_parts])
    last, owner = -1, None  # the last token of the parts so far, and the class of the part that it belongs to
    for i, part in enumerate(prompt_parts):
        own = tuple(token for token in positions[i] if token > last)
        shares = len(own) < len(positions[i])
        if (shares and owner is not None) or (part.kind is not None and not own):
            start, end = part.span
            around = prompt.text[max(0, start - 12) : end + 12]
            raise UnsupportedTokenizer(
                f"the tokenizer does not split a prompt at its parts, so they cannot be cut: {around!r}"
            )
        positions[i] = own
        if own:
            last, owner = own[-1], part.kind
    pairs: list[tuple[int, int]] = []
    followers: dict[str, list[int]] = {}  # by class: the tokens that followed its parts so far
    for i, part in enumerate(prompt_parts):
        if part.kind is None:
            continue
        keys = followers.setdefault(part.kind, [])
        if keys:
            part_keys = positions[i - 1] if pattern == "previous part" else keys
            pairs += [(query, key) for query in positions[i] for key in part_keys if key < query]
        if i + 1 < len(prompt_parts):
            following = positions[i + 1]
            keys += following[:1] if part.kind in FIRST_TOKEN_ONLY else following
    induction = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    if pattern == "random keys":
        return _random_keys(induction, tokens.spans.count(None), (seed, len(prompt.text)))
    return induction


def _random_keys(induction: Cells, special: int, seed: tuple[int, int]) -> Cells:
    """Cells [C, 2] with the queries of the induction pattern and random keys; no key is below `special`."""
    rng = np.random.default_rng(seed)
    pairs = []
    for query in np.unique(induction[:, 0]).tolist():
        taken = induction[induction[:, 0] == query, 1].tolist()
        others = rng.permutation([key for key in range(special, query) if key not in taken]).tolist()
        pairs += [(query, int(key)) for key in sorted((others + taken)[: len(taken)])]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
