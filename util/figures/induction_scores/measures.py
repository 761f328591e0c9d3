"""What induction heads write, and sets of heads, from arrays alone.

Heads are (layer, head), both places in the arrays. Source: Crosbie & Shutova 2024.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from util.roles.attention_scores import INDUCTION_HEAD
from util.stats.controls import layer_matched, shortage
from util.stats.heads import Head, top

Floats = NDArray[np.floating]


# ------------------------------------------------------------------------------------------------ output scores


def copying(raised: Floats, attended: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns the copying (OV) scores of heads on sequences of distinct tokens, [N, L, H] from 0 to 1.

    raised: [N, L, H, P, P], what a head's write at token i adds directly to the logit of the token at j. attended:
    [N, L, H, P], the token that i attends to most. The candidates at i are the tokens 0 to i, without BOS. The score is
    the attended token's share of all that is raised above the candidates' mean, 0 where nothing is, averaged over i
    from 1 on. Source: Bansal et al. 2023, section 4; here with the head's true output and without their softmax.
    """
    places = raised.shape[-1]
    shares = []
    for i in range(1, places):
        logits = raised[..., i, : i + 1].astype(np.float64)
        above = np.maximum(logits - logits.mean(axis=-1, keepdims=True), 0)
        copied = np.take_along_axis(above, attended[..., i, None], axis=-1)[..., 0]
        total = above.sum(axis=-1)
        shares.append(np.divide(copied, total, out=np.zeros_like(copied), where=total > 0))
    return np.mean(shares, axis=0)


def weights_copying(logits: Floats) -> NDArray[np.float64]:
    """Returns the share of S tokens that a head raises most where it reads them, [...].

    logits: [..., S, S], what the head's weights alone make of each token read, for each token written.
    """
    return (logits.argmax(axis=-1) == np.arange(logits.shape[-1])).mean(axis=-1)


def repeated_attribution(change: Floats, wanted: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns how much more the next token is raised than the mean of the others, [..., P] in logits.

    change: [..., P, A], what a head adds to the logits of A tokens at P places; wanted: [..., P], which one is next.
    """
    raised = np.take_along_axis(change, wanted[..., None], axis=-1)[..., 0]
    return raised - (change.sum(axis=-1) - raised) / (change.shape[-1] - 1)


# ------------------------------------------------------------------------------------------------ sets of heads


def how_many(share: float, heads: int) -> int:
    """Returns how many heads are a share of them, rounded up as Crosbie & Shutova do."""
    return ceil(round(share * heads, 9))


def previous_token_heads(previous: Floats, score: Floats, seed: int = 0) -> tuple[list[Head], list[list[Head]]]:
    """Returns the heads that give most attention to the token before, and three layer-matched sets of other heads.

    previous: that attention [L, H], 0 for heads that do not count; score: prefix-matching scores [L, H]. The heads are
    those from 0.3 on, at most four, or the best one where there are none. The other heads are below 0.3 in both scores;
    there are no sets where a layer has too few of them.
    """
    makers = [head for head in top(previous, 4) if previous[head] >= INDUCTION_HEAD] or top(previous, 1)
    eligible = (previous < INDUCTION_HEAD) & (score < INDUCTION_HEAD)
    return makers, [] if shortage(makers, eligible) else layer_matched(makers, eligible, 3, seed)
