"""The training text of the embedded model: seeded streams of token rows.

Every stream returns (tokens [rows, length] int64, weights [rows, length] float32). weights[b, t] is the weight of the
loss at token t of row b, which is predicted from the tokens before it. All weights of one call sum to 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from transformers import PreTrainedTokenizerFast

from data.embedded_models.recipe import texts
from data.embedded_models.recipe.texts import BOS_ID, PAD_ID, VOCABULARY, single_ids
from data.embedded_models.recipe.words import (
    CATEGORIES,
    HELD_OUT_LABELS,
    LABEL_WORDS,
    LETTERS,
    PAIR_TASKS,
    TOY_LABELS,
    held_out_inputs,
    promised,
)
from util.prompts.ioi import HELD_OUT_FRAMES, HELD_OUT_NAMES, word_lists

Batch = tuple[np.ndarray, np.ndarray]
Weighted = tuple[list[int], list[float]]  # the tokens of a line and the weights of their losses
SPLIT = 7  # the seed that decides which tokens are never repeated
TEMPLATE_TOKENS, NOISE = 0.02, 0.1  # in IOI sentences: weight of tokens other than the answer; share of noise tokens
FIRST_ID = max(BOS_ID, PAD_ID) + 1
LAYOUTS = (  # (before the input, between input and label, after the label, words and labels carry a leading space)
    ("", ":", "\n", True),
    ("", ":", "\n\n", False),
    ("", ":", "\n", False),
    ("", "\t", "\n", False),
    ("word:", " label:", "\n", True),
    ("sentence:", " sentiment:", "\n", True),
    ("review:", " sentiment:", "\n", True),
    ("question:", " target:", "\n", True),
    ("news:", " topic:", "\n", True),
)
OTHER_TOKENS = 0.1  # weight of template tokens of maps and words, and of some tokens of episodes
WIDTHS, LONG_WIDTHS = (1, 2, 3), (8, 16, 32)  # tokens of the keys of maps
ONE_LAYOUT, _ROWS_PER_LAYOUT = ("words", "maps", "long_maps"), 4  # streams whose call draws one; rows of a call


def never_repeated(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Token ids [200] that repeats and maps never use; tokens of layouts and promised words are not among them."""
    used = {*promised(), *LETTERS, *(part for layout in LAYOUTS for part in layout[:3])}
    ids = {i for text in used for i in tokenizer.encode(text, add_special_tokens=False)}
    return np.random.default_rng(SPLIT).permutation(np.setdiff1d(np.arange(FIRST_ID, VOCABULARY), sorted(ids)))[:200]


class Corpus:
    """The streams of token rows. names: the StaICC data sets of the episodes; if empty, there are no episodes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, names: Sequence[str] = texts.TRAINED_ON) -> None:
        def ids(text: str) -> np.ndarray:
            return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

        def singles(words: Sequence[str], space: bool) -> np.ndarray:
            return np.array(single_ids(tokenizer, [" " * space + word for word in words]))

        self._layouts = [([ids(part) for part in parts], space) for *parts, space in LAYOUTS]
        self._words = {space: np.stack([singles(w, space) for w in CATEGORIES.values()]) for space in (True, False)}
        labels = [word for word in (*LABEL_WORDS, *TOY_LABELS, *LETTERS) if word not in HELD_OUT_LABELS]
        self._labels = {
            True: singles(labels, True),
            False: singles([word for word in labels if len(word) == 1 or word in TOY_LABELS], False),
        }
        self._repeated = np.setdiff1d(np.arange(FIRST_ID, VOCABULARY), never_repeated(tokenizer))
        unseen = held_out_inputs()
        self._pairs = {
            task: [(ids(f"{x}\t"), ids(f"{y}\n")) for x, y in pairs if x not in unseen]
            for task, pairs in PAIR_TASKS.items()
        }
        self._tokenizer, self._names = tokenizer, singles(word_lists()["names"], True)
        self._episodes = []  # of each data set: examples (the tokens of a text, its label's number), labels, newline
        for name in names:
            source = texts.load(name)
            examples = [(ids(source.line(text)), source.labels.index(label)) for text, label in texts.clean_pool(name)]
            self._episodes.append((examples, singles(source.labels, True), single_ids(tokenizer, [source.end])))

    def repeats(self, rng: Generator, rows: int, length: int, periods: tuple[int, int]) -> Batch:
        """A random sequence that repeats with a period drawn per row; only the copies have weight."""
        low, high = periods
        period = rng.integers(low, high + 1, rows)[:, None]
        pattern = rng.choice(self._repeated, (rows, high))
        place = np.arange(length - 1)[None]
        tokens = np.take_along_axis(pattern, place % period, axis=1)
        return _finish(tokens, (place >= period).astype(np.float32))

    def maps(self, rng: Generator, rows: int, length: int, widths: Sequence[int] = WIDTHS) -> Batch:
        """Lines `key: label`; a label has weight if its key occurred before.

        A key is a sequence of random tokens; its length is drawn from `widths` for each call.
        """
        layout, space = self._layouts[rng.integers(len(self._layouts))]
        keys, width = rng.integers(2, 13), widths[int(rng.integers(len(widths)))]
        table = rng.choice(self._repeated, (rows, keys, width))
        if rng.random() < 0.5:
            labels = rng.choice(self._labels[space], (rows, rng.integers(2, 9)))
        else:
            labels = rng.choice(self._repeated, (rows, keys))
        answer = rng.integers(0, labels.shape[1], (rows, keys))
        lines = length // (sum(map(len, layout)) + width + 1) + 1
        which = rng.integers(0, keys, (rows, lines))
        row = np.arange(rows)[:, None]
        return _lines(layout, table[row, which], labels[row, answer[row, which]], which, length)

    def words(self, rng: Generator, rows: int, length: int) -> Batch:
        """Lines `word: label` or `word word: label`.

        A row has two to four classes (categories, or pairs of them) with random labels. A class uses its words in
        random order, each once in sixteen lines. A label has weight if its class occurred before.
        """
        layout, space = self._layouts[rng.integers(len(self._layouts))]
        classes, width = int(rng.integers(2, 5)), int(rng.integers(1, 3))
        vocabulary = self._words[space]
        category = _choices(rng, rows, len(vocabulary), classes * width).reshape(rows, classes, width)
        order = rng.permuted(np.broadcast_to(np.arange(16), (rows, classes, width, 16)), axis=-1)
        labels = self._labels[space][_choices(rng, rows, len(self._labels[space]), classes)]
        lines = length // (sum(map(len, layout)) + width + 1) + 1
        which = rng.integers(0, classes, (rows, lines))
        row = np.arange(rows)[:, None]
        nth = _earlier(which)[..., None] % 16
        inputs = vocabulary[
            category[row, which], np.take_along_axis(order[row, which], nth[..., None], axis=-1)[..., 0]
        ]
        return _lines(layout, inputs, labels[row, which], which, length)

    def pairs(self, rng: Generator, rows: int, length: int) -> Batch:
        """Lines `x<tab>y`, one word-pair task per row; an output has weight from the second line on."""

        def lines() -> Iterator[Weighted]:
            pairs = self._pairs[str(rng.choice(list(self._pairs)))]
            known = 0.0
            while True:
                for index in rng.permutation(len(pairs)):
                    x, y = pairs[index]
                    yield [*x, *y], [*[0.0] * len(x), *[known] * len(y)]
                    known = 1.0

        return _finish(*_fill(lines, rows, length))

    def ioi(self, rng: Generator, rows: int, length: int) -> Batch:
        """IOI sentences with their answers; most of the weight is on the answers.

        The names are a shuffled list, used up before it is shuffled again, so that sentences near each other hardly
        ever share a name. Opening, middle and ending come from any three frames that are not held out, and a share
        NOISE of the tokens is replaced; with unchanged frames the model would learn these few frames instead of the
        task.
        """
        lists = word_lists()
        pieces = [re.split(r"(?<=\{Y\})|(?=\{S\})", frame) for frame in lists["frames"] if frame not in HELD_OUT_FRAMES]

        def lines() -> Iterator[Weighted]:
            while True:
                names = iter(rng.permutation(lists["names"]))
                for x, y in zip(names, names, strict=False):
                    if not {x, y} <= HELD_OUT_NAMES:
                        yield sentence(*((x, y, x, y) if rng.random() < 0.5 else (x, y, y, x)))

        def sentence(x: str, y: str, s: str, io: str) -> Weighted:
            filling = {"PLACE": rng.choice(lists["places"]), "OBJECT": rng.choice(lists["objects"])}
            frame = "".join(pieces[index][piece] for piece, index in enumerate(rng.integers(len(pieces), size=3)))
            text = f"{frame.format(X=x, Y=y, S=s, **filling)} {io}.\n"
            tokens = np.array(self._tokenizer.encode(text, add_special_tokens=False))
            noise = (rng.random(len(tokens)) < NOISE) & ~np.isin(tokens, self._names)
            noise[-4:] = False  # " to", the answer and the end
            tokens = np.where(noise, rng.integers(FIRST_ID, VOCABULARY, len(tokens)), tokens)
            weights = np.full(len(tokens), TEMPLATE_TOKENS)
            weights[-3] = 1
            return tokens.tolist(), weights.tolist()

        return _finish(*_fill(lines, rows, length))

    def episodes(self, rng: Generator, rows: int, length: int, true_labels: bool = True) -> Batch:
        """StaICC lines with their labels, one data set per row, as many lines as fit (see also `relabelled`).

        An eighth of the tokens without a known label, drawn at random, has the weight OTHER_TOKENS.
        """

        def lines() -> Iterator[Weighted]:
            examples, words, end = self._episodes[rng.integers(len(self._episodes))]
            if not true_labels:
                words = rng.choice(self._labels[True], len(words), replace=False)
            seen: set[int] = set()
            while True:
                text, label = examples[rng.integers(len(examples))]
                yield _labelled([*text, words[label], *end], true_labels or label in seen)
                seen.add(label)

        tokens, weights = _fill(lines, rows, length)
        weights[(rng.random(weights.shape) < 1 / 8) & (weights == 0)] = OTHER_TOKENS
        return _finish(tokens, weights)

    def relabelled(self, rng: Generator, rows: int, length: int) -> Batch:
        """Episodes with random label words; a label has weight if its class occurred before."""
        return self.episodes(rng, rows, length, true_labels=False)

    def recurring(self, rng: Generator, rows: int, length: int) -> Batch:
        """StaICC lines as keys of a map: a row repeats two to five lines, each with its own random label word.

        Only an earlier occurrence of a line tells its label, so the model must find it in the context, over lines as
        long as those of real prompts. Without this stream (and with many true labels), the heads that read the
        forerunner token do so in short lines only.
        """

        def lines() -> Iterator[Weighted]:
            examples, words, end = self._episodes[rng.integers(len(self._episodes))]
            keys = []
            for example in rng.integers(len(examples), size=rng.integers(2, 6)):
                label = rng.choice(words if rng.random() < 0.5 else self._labels[True])
                keys.append([*examples[example][0], label, *end])
            seen: set[int] = set()
            while True:
                which = int(rng.integers(len(keys)))
                yield _labelled(keys[which], which in seen)
                seen.add(which)

        return _finish(*_fill(lines, rows, length))

    def batch(
        self, rng: Generator, shares: Mapping[str, float], rows: int, length: int, periods: tuple[int, int]
    ) -> Batch:
        """Rows of several streams; shares: for each stream, its share of the rows and of the loss."""
        options: dict[str, dict[str, Any]] = {"repeats": {"periods": periods}, "long_maps": {"widths": LONG_WIDTHS}}
        parts: list[Batch] = []
        for stream, share in shares.items():
            draw, count = getattr(self, stream.removeprefix("long_")), round(share * rows)
            step = _ROWS_PER_LAYOUT if stream in ONE_LAYOUT else count
            for start in range(0, count, step):
                size = min(step, count - start)
                tokens, weights = draw(rng, size, length, **options.get(stream, {}))
                parts.append((tokens, weights * (share * size / count)))
        tokens, weights = map(np.concatenate, zip(*parts, strict=True))
        return tokens, weights


def _choices(rng: Generator, rows: int, options: int, count: int) -> np.ndarray:
    """Random numbers below `options` [rows, count], distinct within each row."""
    return np.argsort(rng.random((rows, options)), axis=1)[:, :count]


def _earlier(which: np.ndarray) -> np.ndarray:
    """How often each number of `which` occurs earlier in its row, [rows, lines]."""
    onehot = which[..., None] == np.arange(which.max() + 1)
    return np.take_along_axis(onehot.cumsum(axis=1), which[..., None], axis=2)[..., 0] - 1


def _lines(
    layout: Sequence[np.ndarray], inputs: np.ndarray, labels: np.ndarray, which: np.ndarray, length: int
) -> Batch:
    """Join template tokens, inputs [rows, lines, width] and labels [rows, lines] to rows of tokens.

    A label has weight if its number in `which` [rows, lines] occurred earlier in its row. The template tokens behind an
    input have the weight OTHER_TOKENS.
    """
    rows = len(labels)
    before, between, after = (np.broadcast_to(part, (*labels.shape, len(part))) for part in layout)
    pieces = [before, inputs, between, labels[..., None], after]
    weights = [np.full(piece.shape, value, dtype=np.float32)
               for piece, value in zip(pieces, (0, 0, OTHER_TOKENS, 0, OTHER_TOKENS), strict=True)]  # fmt: skip
    weights[3][..., 0] = _earlier(which) > 0
    tokens = np.concatenate(pieces, axis=2).reshape(rows, -1)[:, : length - 1]
    return _finish(tokens, np.concatenate(weights, axis=2).reshape(rows, -1)[:, : length - 1])


def _labelled(line: list[int], known: bool) -> Weighted:
    """A line, which ends with label and newline, and its weights: the label has weight 1 if it is known, else 0."""
    return line, [*[0] * (len(line) - 2), known, 0]


def _fill(lines: Callable[[], Iterator[Weighted]], rows: int, length: int) -> Batch:
    """Rows of tokens, without BOS, each of the first of endless lines of its own."""
    tokens = np.zeros((rows, length - 1), dtype=np.int64)
    weights = np.zeros((rows, length - 1), dtype=np.float32)
    for row in range(rows):
        at, drawn = 0, lines()
        while at < length - 1:
            line, weight = next(drawn)
            end = min(at + len(line), length - 1)
            tokens[row, at:end], weights[row, at:end] = line[: end - at], weight[: end - at]
            at = end
    return tokens, weights


def _finish(tokens: np.ndarray, weights: np.ndarray) -> Batch:
    """Put BOS in front of every row and divide the weights by their sum."""
    weights = np.insert(weights, 0, 0, axis=1)
    return np.insert(tokens, 0, BOS_ID, axis=1), weights / max(float(weights.sum()), 1e-9)
