"""Induction by hand: attention that matches one-hot vectors, and the two layers that make an induction head of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import softmax

from util.figures.style import WIDTH
from util.figures.toy_induction_head import plots
from util.roles import attention_scores

Floats = NDArray[np.floating]
SLOTS = ("token", "previous", "output")  # of the residual stream
SCORES = ("prefix matching", "previous token")


def attention(queries: Floats, keys: Floats, beta: float) -> Floats:
    """Returns the causal softmax of queries [T, d] times keys [T, d], times beta: [T, T]."""
    causal = np.where(np.tri(len(queries)), 0, -np.inf)
    return softmax(beta * queries @ keys.T + causal, axis=-1)


def role_scores(pattern: Floats, length: int, copies: int, bos: bool = True) -> dict[str, float]:
    """Returns the SCORES of attention [T, T] on a repeated sequence, by name."""
    rows = pattern[attention_scores.queries(length, copies, bos)]
    before = attention_scores.cells(length, copies, bos)["previous_token"]
    values = float(attention_scores.prefix_matching(rows, length, copies, bos)), float(rows[before].mean())
    return dict(zip(SCORES, values, strict=True))


@dataclass(frozen=True)
class Aligned:
    """Attention [T, T] of one-hot positions, by how many places the queries and the keys were moved down."""

    patterns: Mapping[tuple[int, int], Floats]

    @property
    def finding(self) -> str | None:
        """That the offset alone counts; None where attention does not read as far back as queries lie below keys."""
        back = {moved: plots.reads_back(pattern) for moved, pattern in self.patterns.items()}
        if any(back[queries, keys] != queries - keys for queries, keys in back):
            return None
        return "Attention reads as far back as queries are moved against keys: only the offset counts"

    @property
    def setting(self) -> str:
        """What the patterns are of."""
        return f"one-hot positions, {len(next(iter(self.patterns.values())))} tokens, by hand"

    def figure(self, width: float = WIDTH) -> Figure:
        panels = {_moved(*places): pattern for places, pattern in self.patterns.items()}
        return plots.shifts(panels, self.finding, self.setting, width)


def _moved(queries: int, keys: int) -> str:
    """What was moved, in words."""
    if queries == keys:
        return f"both by {keys}" if keys else "nothing moved"
    moved = [f"{what} by {places}" for what, places in (("queries", queries), ("keys", keys)) if places]
    return ", ".join(moved)


@dataclass(frozen=True)
class Stream:
    """The residual stream of one head: attention [T, T] and the stream at each step [T, d], the logits last.

    tokens: a name for each row, vocabulary: for each dimension; the step before the last is what the head copies.
    """

    attention: Floats
    steps: Mapping[str, Floats]
    tokens: Sequence[str]
    vocabulary: Sequence[str]

    @property
    def predicted(self) -> dict[str, str]:
        """What is predicted after each token, by the largest logit: "a or b" where two are equal."""
        return predicted(list(self.steps.values())[-1], self.tokens, self.vocabulary)

    @property
    def finding(self) -> str:
        """In how many rows what the head copies is predicted, alone or beside the token itself."""
        copied, logits = list(self.steps.values())[-2:]
        from_head = plots.predictions(copied) & copied.any(axis=1, keepdims=True)
        largest = plots.predictions(logits)
        alone = int((largest.any(axis=1) & (~largest | from_head).all(axis=1)).sum())
        tied = int((largest & from_head).any(axis=1).sum()) - alone
        said = f"What the head copies is predicted in {alone or 'none'} of {len(logits)} rows"
        return f"{said}, and ties with the token itself in {tied or 'none'}"

    @property
    def setting(self) -> str:
        """What the stream is of."""
        return "one head by hand; framed: the largest logit, dashed where two are equal"

    def figure(self, width: float = WIDTH) -> Figure:
        shown = self.attention, self.steps, self.tokens, self.vocabulary
        return plots.residual_stream(*shown, self.finding, self.setting, width)


@dataclass(frozen=True)
class Construction:
    """Two layers of one head each that continue any pattern.

    tokens: how many there are, BOS counted; beta: how sharp attention is. The residual stream has three slots of
    one-hot vectors.
    """

    tokens: int
    beta: float

    def _slot(self, name: str) -> Floats:
        """Returns the matrix [tokens, 3 tokens] that puts tokens into a slot."""
        return np.kron(np.eye(len(SLOTS))[SLOTS.index(name)], np.eye(self.tokens))

    @cached_property
    def embedding(self) -> Floats:
        """From tokens to the slot "token", [tokens, 3 tokens]."""
        return self._slot("token")

    @cached_property
    def unembedding(self) -> Floats:
        """From the slot "output" to tokens, [3 tokens, tokens]."""
        return self._slot("output").T

    @cached_property
    def ov_0(self) -> Floats:
        """Layer 0 copies the token it reads into the slot "previous": [3 V, 3 V]."""
        return self._slot("token").T @ self._slot("previous")

    @cached_property
    def qk_1(self) -> Floats:
        """Layer 1 matches the query's token with the key's previous one: [3 V, 3 V]."""
        return self._slot("token").T @ self._slot("previous")

    @cached_property
    def ov_1(self) -> Floats:
        """Layer 1 copies the token it reads to the output: [3 V, 3 V]."""
        return self._slot("token").T @ self._slot("output")

    @property
    def qk_circuit(self) -> Floats:
        """What layer 1 matches, through both layers, from embedding to embedding: [tokens, tokens]."""
        return self.embedding @ self.qk_1 @ (self.embedding @ self.ov_0).T

    @property
    def ov_circuit(self) -> Floats:
        """What layer 1 adds to the logits, from embedding to unembedding: [tokens, tokens]."""
        return self.embedding @ self.ov_1 @ self.unembedding

    def logits(self, ids: Sequence[int] | NDArray[np.integer]) -> Floats:
        """Returns the logits [T, tokens] of token ids [T], BOS in front."""
        x = self.embedding[ids]
        x = x + attention(np.eye(len(x), k=-1), np.eye(len(x)), self.beta) @ x @ self.ov_0
        x = x + attention(x @ self.qk_1, x, self.beta) @ x @ self.ov_1
        return x @ self.unembedding

    @property
    def finding(self) -> str | None:
        """That both circuits are the identity; None where they are not."""
        if not all((circuit == np.eye(self.tokens)).all() for circuit in (self.qk_circuit, self.ov_circuit)):
            return None
        return "Both circuits are the identity: match what followed this token, and predict it"

    @property
    def setting(self) -> str:
        """What the matrices are of."""
        return (
            f"two layers of one head, written by hand, {self.tokens} tokens; framed: what one writes, the other reads"
        )

    def figure(self, letters: str, width: float = WIDTH) -> Figure:
        """Returns the matrices of both layers and the circuits; an arrow shows how the layers compose.

        letters: a name for each token.
        """
        panels = {
            "layer 0: OV": (self.ov_0, "reads", "writes"),
            "layer 1: OV": (self.ov_1, "reads", "writes"),
            "OV to logits": (self.ov_circuit, "token of the key", "predicted"),
            "layer 0: QK": (np.eye(self.tokens * 2, k=-1), "query position", "key position"),
            "layer 1: QK": (self.qk_1, "query reads", "key reads"),
            "QK, both layers": (self.qk_circuit, "token of the query", "token before the key"),
        }
        composed = ("layer 0: OV", "layer 1: QK", "previous")  # what the one writes there, the keys of the other read
        return plots.circuits(panels, SLOTS, letters, composed, self.finding, self.setting, width)


@dataclass(frozen=True)
class Likeliest:
    """The letters that the construction predicts after some texts, with their shares, by text."""

    shares: Mapping[str, Mapping[str, float]]

    def lines(self) -> list[str]:
        """The likeliest next letters of each text, in lines."""
        return [f"{text!r:22} {_words(shares)}" for text, shares in self.shares.items()]

    def check_lines(self) -> list[str]:
        """The same, as the notebook's check prints it."""
        return [f"after {text!r}: {_words(shares)}" for text, shares in self.shares.items()]


def _words(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{letter!r} {share:.2f}" for letter, share in shares.items())


def likeliest(texts: Iterable[str], beta: float, most: int = 3) -> Likeliest:
    """Returns the letters that the construction predicts after each text, `most` of them, with their shares.

    ^ is BOS. Shares of a millionth or less are left out; equal ones come in the order of the alphabet.
    """
    texts = list(texts)
    alphabet = ["^", *sorted(set("".join(texts)))]
    construction = Construction(len(alphabet), beta)
    said = {}
    for text in texts:
        last = construction.logits([alphabet.index(letter) for letter in f"^{text}"])[-1]
        shares = dict(zip(alphabet, last, strict=True))
        best = sorted(shares, key=lambda letter: -round(shares[letter], 6))[:most]
        said[text] = {letter: shares[letter] for letter in best if shares[letter] > 1e-6}
    return Likeliest(said)


def predicted(logits: Floats, tokens: Sequence[str], vocabulary: Sequence[str]) -> dict[str, str]:
    """Returns what is predicted after each token, by the largest of its logits [T, V]: "a or b" where two are equal."""
    largest = plots.predictions(logits)
    names = [" or ".join(np.array(vocabulary)[row]) for row in largest]
    return dict(zip(tokens, names, strict=True))


@dataclass(frozen=True)
class Lecture:
    """The head of the lecture: attention [4, 4], what it copies [4, 3], its scores on a repeated sequence by name, and
    what is predicted through the residual stream, by token."""

    attention: Floats
    copied: Floats
    scores: Mapping[str, float]
    predicted: Mapping[str, str]

    def values(self) -> dict[str, object]:
        """What the values file keeps."""
        matching, previous = (self.scores[name] for name in SCORES)
        return {
            "attention": self.attention,
            "copied": self.copied,
            "prefix_matching": matching,
            "previous": previous,
        }

    def check_lines(self) -> list[str]:
        """What a fresh run must give again."""
        matching, previous = (self.scores[name] for name in SCORES)
        largest, first = self.attention.max(), self.attention[0].sum()
        return [
            f"the lecture's head: largest weight {largest:.8f}, row 0 sums to {first}; prefix matching {matching}, "
            f"previous token {previous:.8f}",
            f"predicted through the residual stream: {', '.join(self.predicted.values())}",
        ]


@dataclass(frozen=True)
class Built:
    """The construction on one repeated sequence: scores by layer and name, accuracy by copy, and whether both circuits
    are the identity."""

    scores: Mapping[str, Mapping[str, float]]
    accuracy: Mapping[str, float]
    identity: bool

    @property
    def accuracy_text(self) -> str:
        """The accuracy on first and later copies, in words."""
        return ", ".join(f"{copy} {share:.3f}" for copy, share in self.accuracy.items())

    def values(self) -> dict[str, object]:
        return {"scores": self.scores, "accuracy": self.accuracy}

    def lines(self, vocabulary: int) -> list[str]:
        """Returns the scores and the accuracy beside that of guessing among `vocabulary` tokens."""
        matching, previous = SCORES
        lines = [
            f"{layer}: {matching} {values[matching]:.3g}, {previous} {values[previous]:.3f}"
            for layer, values in self.scores.items()
        ]
        return [*lines, f"accuracy of the next token: {self.accuracy_text}; guessing {1 / vocabulary}"]

    def check_lines(self) -> list[str]:
        scores = [
            f"construction, {layer}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items())
            for layer, values in self.scores.items()
        ]
        return [f"circuits are the identity: {self.identity}", *scores, f"accuracy: {self.accuracy_text}"]


def built(
    layer_0: Floats, layer_1: Floats, right: NDArray[np.bool_], length: int, copies: int, circuits: Sequence[Floats]
) -> Built:
    """Returns what comes of attention [T, T] in both layers, BOS in front, and of right answers [T - 1].

    circuits: those that should be the identity.
    """
    scores = {
        "layer 0": role_scores(layer_0, length, copies),
        "layer 1": role_scores(layer_1, length, copies),
    }
    later = attention_scores.queries(length, copies)[:-1]
    accuracy = {"first copy": float(right[1:length].mean()), "later copies": float(right[later].mean())}
    return Built(scores, accuracy, all(bool((circuit == np.eye(len(circuit))).all()) for circuit in circuits))
