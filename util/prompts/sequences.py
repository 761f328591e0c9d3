"""Random repeated sequences of tokens: the diagnostic text of induction heads.

Source: Crosbie & Shutova 2024, section 4.2 (50 tokens in 4 copies after BOS, five seeds), after Bansal et al. 2023 and
Olsson et al. 2022 (data of the head scores). Their code seeds another generator than the one it draws with; here every
sequence has a generator of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from util.prompts.prompt import bos_token

SALT = 2024  # in front of every seed, so that nobody else who counts seeds from 0 draws the same numbers


@dataclass(frozen=True, eq=False)
class Sequences:
    """N sequences of `copies` times the same `length` distinct tokens, a BOS in front where `bos`.

    ids: [N, T] int64, T = copies * length + bos. ranking: how the tokens' frequency was ranked.
    """

    ids: np.ndarray
    length: int
    copies: int
    bos: bool
    ranking: str


def repeated_sequences(
    tokenizer: Any,
    length: int = 50,
    copies: int = 4,
    seeds: Sequence[int] = range(5),
    bos: bool = True,
    exclude: float = 0.04,
) -> Sequences:
    """One sequence for each seed, which depends on that seed alone; with copies=1 nothing is repeated.

    The share `exclude` of the most and of the least frequent tokens is never drawn, nor are special and added tokens.
    The tokens of a sequence are distinct, so that only whole copies match. Raises ValueError for impossible numbers,
    repeated seeds, too few tokens, a tokenizer without a BOS where one is asked for, and what `ranked_tokens` refuses.
    """
    if length < 2 or copies < 1 or not 0 <= exclude < 0.5:
        raise ValueError(
            f"length = {length}, copies = {copies}, exclude = {exclude}: take at least 2 tokens, at least 1 copy, and "
            "leave out a share from 0 to below 0.5 at either end"
        )
    seeds = [int(seed) for seed in seeds]
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"seeds = {seeds}: name at least one, each once, none below 0")
    ranked, ranking = ranked_tokens(tokenizer)
    drop = int(exclude * len(ranked))
    candidates = np.array(ranked[drop : len(ranked) - drop], dtype=np.int64)
    if len(candidates) < length:
        raise ValueError(
            f"{len(candidates)} tokens of {type(tokenizer).__name__} can be drawn, fewer than length = {length}; "
            "take a smaller length or exclude, or a tokenizer of a larger vocabulary"
        )
    front = [bos_token(tokenizer)] if bos else []
    base = [np.random.default_rng((SALT, seed)).choice(candidates, size=length, replace=False) for seed in seeds]
    ids = np.stack([np.concatenate([front, *[tokens] * copies]).astype(np.int64) for tokens in base])
    return Sequences(ids, length, copies, bos, ranking)


def matched_cells(ids: np.ndarray) -> np.ndarray:
    """The cells [C, 2] (query, key) of one text [T] in which the token before the key is the query's own.

    What an induction head reads, token by token; a key is earlier than its query.
    """
    follows = np.insert(ids[None, :-1] == ids[:, None], 0, False, axis=1)
    return np.argwhere(np.tril(follows, -1))


def ranked_tokens(tokenizer: Any) -> tuple[list[int], str]:
    """The ordinary tokens' ids from frequent to rare, and in words what stands for their frequency.

    BPE: the order of the merges, as in the code of Bansal et al. 2023 and Crosbie & Shutova 2024; what no merge makes,
    such as single bytes, has no rank. Unigram: the scores, which are log-probabilities. Others: the order of the ids.
    Raises ValueError for a tokenizer without the Rust backend, which alone tells its merges.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
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
        # no corpus gives a piece probability 1: a score of 0 marks byte, control and user-defined pieces
        ids = dict.fromkeys(sorted((i for i, score in enumerate(scores) if score < 0), key=lambda i: -scores[i]))
        ranking = "Unigram scores, log-probabilities of the tokens"
    else:
        ids = dict.fromkeys(sorted(vocabulary.values()))
        ranking = f"token ids, as a {model['type']} vocabulary tells no frequency"
    never = {*tokenizer.all_special_ids, *(token["id"] for token in state["added_tokens"])}
    return [i for i in ids if i not in never], ranking
