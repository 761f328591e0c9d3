"""Which answers are right: from label log-probabilities, and of baselines that need no model."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def gold_log_probability(log_prob: Floats, gold: NDArray[np.integer]) -> Floats:
    """The gold label's log-probability, [N] in nats, of those of all labels [N, C]."""
    return np.take_along_axis(log_prob, gold[:, None], axis=1)[:, 0]


def right(log_prob: Floats, gold: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether the gold label is the likeliest of all labels [N, C], [N]."""
    return log_prob.argmax(axis=1) == gold


def majority_right(gold: NDArray[np.integer]) -> NDArray[np.float64]:
    """How right the label is that most queries have, [N]; labels that are equally frequent share the answer."""
    counts = np.bincount(gold)
    return (counts[gold] == counts.max()) / (counts == counts.max()).sum()


def vote_right(gold: NDArray[np.integer], demonstrations: NDArray[np.integer], classes: int) -> NDArray[np.float64]:
    """How right the label is that most demonstrations [N, k] of a prompt have, [N]; equal ones share the answer."""
    votes = (demonstrations[:, :, None] == np.arange(classes)).sum(axis=1)
    winners = votes == votes.max(axis=1, keepdims=True)
    return np.take_along_axis(winners / winners.sum(axis=1, keepdims=True), gold[:, None], axis=1)[:, 0]
