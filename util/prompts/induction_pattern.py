"""What induction heads are told by: the cells of attention that they would use, and random tokens that are repeated.

The induction pattern of a classification prompt is knocked out. Source: Crosbie & Shutova 2024, section 4.4, as in
their code: every part of a prompt has a class, and a token may not attend to the tokens that directly follow an earlier
part of its own class. We find parts by character offsets. Their code searches for strings in rebuilt words, so it finds
"car" in "carrot" and misses the blank lines of byte-level tokenizers.

Repeated sequences are the text on which induction heads are measured. Source: section 4.2 (50 tokens in 4 copies after
BOS, five seeds), after Bansal et al. 2023 and Olsson et al. 2022 (data of the head scores). The code of Crosbie &
Shutova seeds a generator that it does not draw from; here every sequence has its own seeded generator.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from util import paths
from util.prompts.own_tasks import table
from util.prompts.prompt import Ints, Prompt, Span, Strings, UnsupportedTokenizer, bos_token, with_bos

Cells = NDArray[np.int64]  # [C, 2]: query, key
# After these parts only the first token counts as what follows them: a blank line's first, the next example's first.
FIRST_TOKEN_ONLY = ("label", "blank line")
VISIBLE = re.compile(r"\S+")
Pattern = Literal["induction", "random keys", "previous part", "exact tokens"]
PATTERNS: Strings = get_args(Pattern)


def parts(prompt: Prompt) -> list[tuple[str | None, Span]]:
    """The parts of a prompt of `prompts.classification`, from left to right: their class, if any, and characters.

    All labels are one class. All colons are one, a colon being the whole separator before a label, such as
    "\\n\\nAnswer:". All blank lines after labels are one, with the blank line after the instruction. The class of a
    word is its category in the word lists, if all words of the input are in them. Letters have no class, nor do the
    words of real texts, not even those that the lists happen to have.
    """
    prompt_parts: list[tuple[str | None, Span]] = []
    for start, end in prompt.spans.get("header", ()):
        visible = prompt.text[start:end].rstrip()
        prompt_parts.append(("blank line", (start + len(visible), end)))
    for number, (start, end) in enumerate(prompt.spans["x"]):
        words = list(VISIBLE.finditer(prompt.text, start, end))
        classes = [_categories().get(word[0]) for word in words]
        for word, kind in zip(words, classes, strict=True):
            prompt_parts.append((kind if all(classes) else None, word.span()))
        prompt_parts.append(("colon", prompt.spans["s"][number]))
        if number < len(prompt.spans["y"]):
            prompt_parts += [("label", prompt.spans["y"][number]), ("blank line", prompt.spans["n"][number])]
    return prompt_parts


@cache
def _categories() -> dict[str, str]:
    return {row["word"]: row["category"] for row in table("categories")}


def cells(prompt: Prompt, tokenizer: Any, pattern: str = "induction", seed: int = 0) -> Cells:
    """The cells [C, 2] (query, key) of one of PATTERNS, as positions in the tokens of a prompt.

    "induction": the induction pattern. Two are controls with the same queries. "random keys": each query has as many
    keys as in the induction pattern, drawn at random from earlier tokens; keys of the induction pattern are used only
    if there are too few others. "previous part": the keys are the part directly before the query's. "exact tokens"
    needs no parts: the keys directly follow earlier tokens that equal the query, see `matched_cells`.

    A token that a part without class shares with the next part belongs to the former: where a text's full stop and the
    blank line after it are one token, the separator is what follows. Raises ValueError for an unknown pattern, and
    UnsupportedTokenizer for a prompt in which a part that has a class has no tokens of its own.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"unknown pattern {pattern!r}; there are {', '.join(PATTERNS)}")
    tokens = with_bos(prompt.text, tokenizer)
    if pattern == "exact tokens":
        return matched_cells(np.array(tokens.ids))
    prompt_parts = parts(prompt)
    positions = tokens.under_each([span for _, span in prompt_parts])
    pairs: list[tuple[int, int]] = []
    followers = defaultdict[str | None, list[int]](list)  # by class: the tokens that followed its parts so far
    last, owner = -1, None  # the last token of the parts so far, and the class of the part that it belongs to
    former: str | None = None  # the class of the part before, and its tokens
    before: Ints = ()
    for (kind, (start, end)), touched in zip(prompt_parts, positions, strict=True):
        new = tuple(token for token in touched if token > last)
        if (len(new) < len(touched) and owner is not None) or (kind is not None and not new):
            around = prompt.text[max(0, start - 12) : end + 12]
            raise UnsupportedTokenizer(
                f"the tokenizer does not split a prompt at its parts, so they cannot be cut: {around!r}"
            )
        if new:
            last, owner = new[-1], kind
        followers[former] += new[:1] if former in FIRST_TOKEN_ONLY else new
        keys = [] if kind is None else followers[kind]
        part_keys = before if keys and pattern == "previous part" else keys
        pairs += [(query, key) for query in new for key in part_keys if key < query]
        former, before = kind, new
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


# ------------------------------------------------------------------------------------------------ repeated sequences

EXCLUDE = 0.04  # of the most frequent tokens, and of the least frequent ones, as in the code of the paper
SALT = 2024  # joined to every seed, so that other code with seeds 0, 1, ... does not draw the same numbers


@dataclass(frozen=True, eq=False)
class Sequences:
    """N sequences; each is `length` distinct tokens, repeated `copies` times, with BOS in front if `bos`.

    ids: [N, T] int64, T = copies * length + bos. ranking: in words, how tokens were ranked by frequency.
    """

    ids: np.ndarray
    length: int
    copies: int
    bos: bool
    ranking: str


def excerpts(tokenizer: Any, length: int, count: int) -> np.ndarray:
    """Excerpts of a novel (data/texts), one after the other, as tokens [N, length], N at most `count`.

    Each begins with the special tokens that the tokenizer puts in front.
    """
    text = (paths.root() / "data" / "texts" / "alice.txt").read_text(encoding="utf-8")
    one = with_bos("a", tokenizer)
    front = one.ids[: one.spans.count(None)]
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    step = length - len(front)
    starts = range(0, len(ids) - step + 1, step)[:count]
    return np.array([[*front, *ids[start : start + step]] for start in starts], np.int64)


def repeated_sequences(
    tokenizer: Any,
    length: int = 50,
    copies: int = 4,
    seeds: Sequence[int] = range(5),
    bos: bool = True,
    exclude: float = EXCLUDE,
) -> Sequences:
    """One sequence per seed; it does not depend on the other seeds. With copies=1 nothing is repeated.

    exclude: the share of the most frequent tokens, and of the least frequent ones, that are never drawn; special and
    added tokens never are either. The tokens of a sequence are distinct, so that only whole copies match. Raises
    ValueError for impossible numbers and repeated seeds; UnsupportedTokenizer for too few tokens, a tokenizer without
    BOS and EOS if `bos`, and for what `ranked_tokens` refuses.
    """
    seeds = [int(seed) for seed in seeds]
    if length < 2 or copies < 1 or not 0 <= exclude < 0.5 or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"length = {length}, copies = {copies}, exclude = {exclude}, seeds = {seeds}: take at least 2 tokens and 1 "
            "copy, leave out a share from 0 to below 0.5 at either end, and name each seed once"
        )
    ranked, ranking = ranked_tokens(tokenizer)
    drop = int(exclude * len(ranked))
    candidates = np.array(ranked[drop : len(ranked) - drop], dtype=np.int64)
    if len(candidates) < length:
        raise UnsupportedTokenizer(
            f"{len(candidates)} tokens of {type(tokenizer).__name__} can be drawn, fewer than length = {length}; "
            "take a smaller length or exclude, or a tokenizer of a larger vocabulary"
        )
    front = [bos_token(tokenizer)] if bos else []
    base = [np.random.default_rng((SALT, seed)).choice(candidates, size=length, replace=False) for seed in seeds]
    ids = np.stack([np.concatenate([front, *[tokens] * copies]).astype(np.int64) for tokens in base])
    return Sequences(ids, length, copies, bos, ranking)


def matched_cells(ids: np.ndarray) -> np.ndarray:
    """The cells [C, 2] (query, key) of a text [T] in which the token before the key equals the query's token.

    These are the cells that an induction head attends to. A key is always earlier than its query.
    """
    follows = np.insert(ids[None, :-1] == ids[:, None], 0, False, axis=1)
    return np.argwhere(np.tril(follows, -1))


def ranked_tokens(tokenizer: Any) -> tuple[list[int], str]:
    """The ids of ordinary tokens from frequent to rare, and a description of what was used as their frequency.

    BPE: the order of the merges, as in the code of Bansal et al. 2023 and Crosbie & Shutova 2024; tokens that no merge
    makes, such as single bytes, are left out. Unigram: the scores, which are log-probabilities. Others: the order of
    the ids. Raises UnsupportedTokenizer where it has no Rust backend, because only that shows the merges.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedTokenizer(
            f"{type(tokenizer).__name__} has no Rust backend to read token ranks from; load the fast tokenizer"
        )
    state = json.loads(backend.to_str())
    model, vocabulary = state["model"], state["model"]["vocab"]
    if model["type"] == "BPE":
        prefix = model.get("continuing_subword_prefix") or ""
        # pairs are lists, or one string in older files; several merges may make the same token
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        ids = dict.fromkeys(vocabulary[left + right.removeprefix(prefix)] for left, right in pairs)
        ranking = "order of the BPE merges that make the tokens"
    elif model["type"] == "Unigram":
        scores = [score for _, score in vocabulary]
        # no corpus gives a piece the probability 1, so a score of 0 marks byte, control and user-defined pieces
        ids = dict.fromkeys(sorted((i for i, score in enumerate(scores) if score < 0), key=lambda i: -scores[i]))
        ranking = "Unigram scores, log-probabilities of the tokens"
    else:
        ids = dict.fromkeys(sorted(vocabulary.values()))
        ranking = f"token ids, as a {model['type']} vocabulary tells no frequency"
    never = {*tokenizer.all_special_ids, *(token["id"] for token in state["added_tokens"])}
    return [i for i in ids if i not in never], ranking
