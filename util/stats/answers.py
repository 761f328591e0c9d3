"""What a model answers, from its label log-probabilities, and baselines that need no model."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
TERMS = ("which label", "label mass")  # the halves of log P(right label): `which_label`, `label_mass`


def gold_log_probability(log_prob: Floats, gold: NDArray[np.integer]) -> Floats:
    """The log-probability of each prompt's gold label, [N] in nats.

    log_prob: log-probabilities of all labels [N, C] in nats. gold: index of the gold label [N].
    """
    return np.take_along_axis(log_prob, gold[:, None], axis=1)[:, 0]


def label_mass(log_prob: Floats) -> Floats:
    """The log-probability that any of the labels follows, [N] in nats, from those of all labels [N, C].

    No label may be the beginning of another, as `label_scores.scoring` demands.
    """
    return np.logaddexp.reduce(log_prob, axis=1)


def which_label(log_prob: Floats, gold: NDArray[np.integer]) -> Floats:
    """The log-probability of each prompt's gold label, given that a label follows: log P(gold | labels), [N] in nats.

    With `label_mass` it adds up to `gold_log_probability`.
    """
    return gold_log_probability(log_prob, gold) - label_mass(log_prob)


def right(log_prob: Floats, gold: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether the gold label [N] has the highest log-probability of all labels [N, C]: booleans [N]."""
    return log_prob.argmax(axis=1) == gold


def majority_right(gold: NDArray[np.integer]) -> NDArray[np.float64]:
    """The credit [N] of a baseline that always answers with the most frequent gold label [N].

    Credit is 1 where the answer is right and 0 where it is wrong. If m labels are equally frequent, each of them gets
    the credit 1 / m.
    """
    counts = np.bincount(gold)
    return (counts[gold] == counts.max()) / (counts == counts.max()).sum()


def vote_right(gold: NDArray[np.integer], demonstrations: NDArray[np.integer], classes: int) -> NDArray[np.float64]:
    """The credit [N] of a baseline that answers with the most frequent label of the prompt's demonstrations [N, k].

    gold: index of the gold label [N]; classes: how many labels there are. Credit is 1 where the answer is right and 0
    where it is wrong. If m labels are equally frequent in a prompt, each of them gets the credit 1 / m.
    """
    votes = (demonstrations[:, :, None] == np.arange(classes)).sum(axis=1)
    winners = votes == votes.max(axis=1, keepdims=True)
    return np.take_along_axis(winners / winners.sum(axis=1, keepdims=True), gold[:, None], axis=1)[:, 0]
