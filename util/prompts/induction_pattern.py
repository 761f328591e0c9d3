"""The induction pattern of a classification prompt: which tokens an induction head would read, as cells to knock out.

Source: Crosbie & Shutova 2024, section 4.4, in the form of their code: the parts of a prompt are of a few classes and a
token may not attend to what directly followed an earlier part of its own class. Parts are found by character offsets;
their code looks for strings in rebuilt words, which takes "car" for a part of "carrot" and misses the blank lines of
byte-level tokenizers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from util.prompts.prompt import Prompt, Span, with_bos
from util.prompts.words import table

Cells = NDArray[np.int64]  # [C, 2]: query, key
# label and blank line are read by one token after them alone: the blank line's first, the next example's first
FIRST_TOKEN_ONLY = ("label", "blank line")
PATTERNS = ("induction", "random keys", "previous part")


class Part(NamedTuple):
    """A part of a prompt: its class (None: no other part is like it) and its characters."""

    kind: str | None
    span: Span


def parts(prompt: Prompt) -> list[Part]:
    """The parts of a prompt of `prompts.classification` in their order.

    Words of the word lists are of the class of their category; letters have none. All labels are one class, and so are
    the colons, and the blank lines with the one behind the instruction.
    """
    found, demonstrations = [], len(prompt.spans["y"])
    header = prompt.spans.get("header", ())
    for start, end in header:
        blank = len(prompt.text[start:end]) - len(prompt.text[start:end].rstrip())
        found.append(Part("blank line", (end - blank, end)))
    for number, (start, end) in enumerate(prompt.spans["x"]):
        at = start
        for word in prompt.text[start:end].split(" "):
            found.append(Part(_categories().get(word), (at, at + len(word))))
            at += len(word) + 1
        found.append(Part("colon", prompt.spans["s"][number]))
        if number < demonstrations:
            found += [Part("label", prompt.spans["y"][number]), Part("blank line", prompt.spans["n"][number])]
    return found


@cache
def _categories() -> dict[str, str]:
    return {row["word"]: row["category"] for row in table("categories")}


def cells(prompt: Prompt, tokenizer: Any, pattern: str = "induction", seed: int = 0) -> Cells:
    """The cells [C, 2] (query, key) of one of PATTERNS in the tokens of a prompt.

    "random keys": for the same queries as many earlier tokens each, drawn at random, others than the induction
    pattern's as far as there are any; "previous part": the same queries, cut off from the part directly before theirs.
    Raises ValueError for an unknown pattern, and for a prompt of which a part has no token of its own.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"unknown pattern {pattern!r}; there are {', '.join(PATTERNS)}")
    tokens = with_bos(prompt.text, tokenizer)
    found = parts(prompt)
    at = tokens.under_each([part.span for part in found])
    twice = [t for a, b in zip(at, at[1:], strict=False) for t in a if t in b]
    if twice or not all(at):
        where = tokens.spans[twice[0]] if twice else found[at.index(())].span
        assert where is not None
        around = prompt.text[max(0, where[0] - 12) : where[1] + 12]
        raise ValueError(
            f"{type(tokenizer).__name__} does not split a prompt at its parts, so they cannot be cut: {around!r}"
        )
    cut: list[tuple[int, int]] = []
    read: dict[str, list[int]] = {}  # by kind: the tokens that followed its parts so far
    for i, part in enumerate(found):
        if part.kind is None:
            continue
        keys = read.setdefault(part.kind, [])
        if keys:
            given = at[i - 1] if pattern == "previous part" else keys
            cut += [(query, key) for query in at[i] for key in given if key < query]
        if i + 1 < len(found):
            keys += at[i + 1][: 1 if part.kind in FIRST_TOKEN_ONLY else None]
    own = np.array(cut, dtype=np.int64).reshape(-1, 2)
    return _random_keys(own, tokens.spans.count(None), (seed, len(prompt.text))) if pattern == "random keys" else own


def _random_keys(own: Cells, special: int, seed: tuple[int, int]) -> Cells:
    rng, found = np.random.default_rng(seed), []
    for query in np.unique(own[:, 0]).tolist():
        taken = own[own[:, 0] == query, 1].tolist()
        others = rng.permutation([key for key in range(special, query) if key not in taken]).tolist()
        found += [(query, int(key)) for key in sorted((others + taken)[: len(taken)])]
    return np.array(found, dtype=np.int64).reshape(-1, 2)
