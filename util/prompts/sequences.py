"""Random sequences of tokens, repeated: the text on which induction heads are measured.

Source: Crosbie & Shutova 2024, section 4.2 (50 tokens in 4 copies after BOS, five seeds), after Bansal et al. 2023 and
Olsson et al. 2022 (data of the head scores). The code of Crosbie & Shutova seeds a generator that it does not draw
from; here every sequence has its own seeded generator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from util import paths
from util.prompts.prompt import UnsupportedTokenizer, bos_token, with_bos

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
    exclude: float = 0.04,
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
