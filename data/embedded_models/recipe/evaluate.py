"""What an embedded model can do: the rows of its model card, on material that training held out.

A row is hard (the figures of the repository rely on it) or soft (reported as it comes out). Each has its number of
units, a 95 % interval over them, and the bar that it is held against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from util.training import sources
from util.training.corpus import never_repeated
from util.training.tokenizer import BOS_ID, single_ids

from util.engine.attention import support
from util.engine.call import Instrument
from util.engine.instruments import PatchHeads
from util.engine.label_scores import next_token_logits
from util.figures.forerunner_heads import study as forerunner
from util.figures.forerunner_heads.measures import contrast
from util.load_model_and_data import load_ICL_model, staicc_prompts, untrained_twin
from util.models.embedded import names
from util.models.embedded_words import (
    HELD_OUT_FRAMES,
    HELD_OUT_LABELS,
    HELD_OUT_NAMES,
    LABEL_WORDS,
    LETTERS,
    PAIR_TASKS,
    held_out_inputs,
)
from util.prompts import classification, ioi, word_pair_prompts, word_pairs
from util.prompts.prompt import Prompt, with_bos
from util.prompts.sequences import repeated_sequences
from util.records.model import Model
from util.roles.attention_scores import INDUCTION_HEAD, uniform_prefix_matching
from util.roles.head_scores import head_scores
from util.stats import answers
from util.stats.intervals import mean_interval, wilson

SEED = 1_000_003  # of the evaluation: not a seed of any training step
LENGTH, COPIES = 50, 4
TOP = (1, 2, 4, 8)
Pair = tuple[PreTrainedModel, PreTrainedTokenizerFast]


@dataclass(frozen=True)
class Row:
    """One measurement. met: whether it clears its bar, None where there is none."""

    behaviour: str
    measure: str
    n: int
    value: float
    low: float
    high: float
    bar: str = ""
    met: bool | None = None
    hard: bool = True

    def line(self) -> str:
        """The row as a line of a Markdown table."""
        kind = "" if self.met is None else f"{'hard' if self.hard else 'soft'}: {self.bar}"
        verdict = {None: "", True: "yes", False: "**no**"}[self.met]
        interval = f"{self.low:.3f} to {self.high:.3f}" if np.isfinite(self.low) else ""
        return f"| {self.behaviour} | {self.measure} | {self.n} | {self.value:.3f} | {interval} | {kind} | {verdict} |"


HEADER = "| behaviour | measure | n | value | 95 % interval | bar | met |\n|---|---|---|---|---|---|---|"


def _mean(behaviour: str, measure: str, values: NDArray[np.floating], at_least: float | None = None) -> Row:
    value, low, high = mean_interval(values)
    met = None if at_least is None else value >= at_least
    return Row(behaviour, measure, len(values), value, low, high, f">= {at_least}", met)


def _share(
    behaviour: str, measure: str, right: NDArray[np.bool_], at_least: float | None = None, hard: bool = True
) -> Row:
    value, (low, high) = float(right.mean()), wilson(right.sum(), len(right))
    met = None if at_least is None else value >= at_least
    return Row(behaviour, measure, len(right), value, float(low), float(high), f">= {at_least}", met, hard)


def _single(
    behaviour: str, measure: str, n: int, value: float, bar: str = "", met: bool | None = None, hard: bool = True
) -> Row:
    return Row(behaviour, measure, n, float(value), np.nan, np.nan, bar, met, hard)


def rows(name: str, n: int = 512) -> Iterator[Row]:
    """All rows of the card, each on `n` prompts at most: 512 is the whole card, fewer a quick look."""
    pair = load_ICL_model(f"embedded/{name}" if name in names() else name, device="cpu", verbose=False)
    scores = prefix_matching(*pair, sequences=max(4, n // 16))
    yield from induction_rows(pair, scores, n)
    yield from ioi_rows(pair, n)
    yield from word_pair_rows(pair, n)
    yield from forerunner_rows(pair, n)
    yield from causal_rows(pair, scores.mean(0), n)
    yield from classification_rows(pair, n)
    yield from staicc_rows(pair, n)


# ------------------------------------------------------------------------------------------------ induction


def prefix_matching(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, sequences: int = 32
) -> NDArray[np.float64]:
    """The prefix-matching score of every head on every sequence, [N, L, H]."""
    drawn = repeated_sequences(tokenizer, LENGTH, COPIES, range(SEED, SEED + sequences))
    return head_scores(model, drawn)["prefix_matching"]


def induction_rows(pair: Pair, scores: NDArray[np.float64], n: int) -> Iterator[Row]:
    """Induction heads; scores [N, L, H]: their prefix-matching scores."""
    model, tokenizer = pair
    mean, sequences = scores.mean(0), max(4, n // 16)
    best = np.unravel_index(mean.argmax(), mean.shape)
    yield _mean("induction", f"prefix-matching score of head {best[0]}.{best[1]}, the best", scores[:, *best], 0.6)
    heads = (mean >= INDUCTION_HEAD).sum()
    met = bool(0.01 <= heads / mean.size <= 0.4)
    what = f"heads with a score >= {INDUCTION_HEAD}, of {mean.size}"
    yield _single("", what, len(scores), heads, "1 to 40 %", met)
    twin = prefix_matching(untrained_twin(model), tokenizer, 8).mean(0).max()
    uniform = uniform_prefix_matching(LENGTH, COPIES)
    yield _single("", f"best score of the untrained twin (uniform attention: {uniform:.3f})", 8, twin)
    ids = repeated_sequences(tokenizer, LENGTH, COPIES, range(SEED, SEED + sequences)).ids
    rng = np.random.default_rng(SEED)
    unseen = [np.tile(rng.choice(never_repeated(tokenizer), LENGTH, replace=False), COPIES) for _ in ids]
    for kind, drawn, bar in (
        ("all kinds", ids, 0.9),
        ("kinds never repeated in training", np.insert(unseen, 0, BOS_ID, axis=1), None),
    ):
        yield _mean("", f"next token in copies 2-4, tokens of {kind}", copied(model, drawn).mean(1), bar)


def copied(model: PreTrainedModel, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the tokens of copies 2-4 are predicted, [N, 150]; ids [N, 201]: BOS, then LENGTH tokens COPIES times."""
    with torch.inference_mode():
        guesses = model(torch.from_numpy(ids)).logits.argmax(-1).numpy()
    return guesses[:, LENGTH:-1] == ids[:, LENGTH + 1 :]


# ------------------------------------------------------------------------------------------------ IOI, word pairs


def ioi_rows(pair: Pair, n: int) -> Iterator[Row]:
    """Indirect object identification on names and frames that were not trained on."""
    difference, first, order = names_told(pair, n)
    yield _share("IOI, held-out frames and names", "logit difference > 0", difference > 0, 0.95)
    yield _mean("", "mean logit difference", difference, 2)
    for each in ioi.ORDERS:
        yield _share("", f"logit difference > 0, {each}", difference[order == each] > 0, 0.9)
    yield _share("", "the other name first in the whole vocabulary", first)


def names_told(pair: Pair, n: int) -> tuple[NDArray[np.floating], NDArray[np.bool_], NDArray[np.str_]]:
    """IOI on held-out names and frames, three arrays [N].

    The logit of the other name minus that of the repeated one; whether the other name is first in the whole vocabulary;
    the order of the prompt's names, of `ioi.ORDERS`.
    """
    model, tokenizer = pair
    drawn = ioi.ioi_prompts(tokenizer, n, SEED, frames=sorted(HELD_OUT_FRAMES), names=sorted(HELD_OUT_NAMES)).pairs
    tokens = [ioi.ioi_tokens(each, tokenizer) for each in drawn]
    logits = next_token_logits(model, [each.base for each in tokens])
    io, s = np.array([each.answers for each in tokens]).T
    difference = np.take_along_axis(logits, io[:, None], 1)[:, 0] - np.take_along_axis(logits, s[:, None], 1)[:, 0]
    return difference, logits.argmax(1) == io, np.array([each.order for each in drawn])


def word_pair_rows(pair: Pair, n: int) -> Iterator[Row]:
    """Word pairs, seen and unseen in training."""
    right, asked, unseen = dict[str, NDArray[np.bool_]](), dict[str, list[str]](), sorted(held_out_inputs())
    for name in PAIR_TASKS:
        right[name], asked[name] = pairs_told(pair, name, n)
        new = np.isin(asked[name], unseen)
        yield _share("word pairs, 10 shots" if name == "copying" else "", f"{name}, seen pairs", right[name][~new], 0.9)
        if new.any():
            yield _share("", f"{name}, held-out pairs", right[name][new])
    for name, other in (("copying", "capitalization"), ("capitalization", "copying")):
        shared = right[name][np.isin(asked[name], asked[other]) & ~np.isin(asked[name], unseen)]
        first_row = "the task is read from the prompt" if name == "copying" else ""
        yield _share(first_row, f"{name}, seen inputs that are asked in {other} as well", shared, 0.9)


def pairs_told(pair: Pair, name: str, n: int) -> tuple[NDArray[np.bool_], list[str]]:
    """Whether the answer's first token is first in the whole vocabulary [N], and the inputs that are asked, N words.

    name: of a task of PAIR_TASKS; there are ten demonstrations.
    """
    model, tokenizer = pair
    task = word_pairs.find(name, trained=True)
    prompts = [item.clean for item in word_pair_prompts.prompts(task, tokenizer, n, 10, SEED, ()).items]
    answered = [word_pair_prompts.typed_tokens(prompt, tokenizer).ids for prompt in prompts]
    alone = [with_bos(prompt.text, tokenizer).ids for prompt in prompts]
    first = [whole[len(ids)] for whole, ids in zip(answered, alone, strict=True)]
    asked = [prompt.text.rsplit("\n", 1)[-1].strip() for prompt in prompts]
    return next_token_logits(model, alone).argmax(1) == first, asked


# ------------------------------------------------------------------------------------------------ forerunner heads


def forerunner_rows(pair: Pair, n: int) -> Iterator[Row]:
    """Forerunner heads, beside the untrained twin."""
    with TemporaryDirectory() as folder:
        model = Model.given(*pair, "given:evaluated")
        study = forerunner.Study(model, prompts=n, appended=(0,), folder=Path(folder))
        reading = study.magnitudes().reading()
        twin = Model.given(untrained_twin(pair[0]), pair[1], "given:twin")
        untrained = study.replace(model=twin).magnitudes().reading()
    counts, found = reading.counts(), contrast(reading.magnitude, reading.control)
    reads = (counts >= 0.75 * n) & (found.difference >= 0.3) & (found.low > 0)
    what = "heads over the threshold on 3 of 4 prompts, label-specificity >= 0.3, interval above 0"
    yield _single("label forerunner head", what, n, reads.sum(), ">= 1", bool(reads.any()))
    best = np.unravel_index(np.where(reads, found.difference, found.difference - 1).argmax(), reads.shape)
    what = f"label-specificity of head {best[0]}.{best[1]}, over the threshold on {counts[best]} prompts"
    yield Row("", what, n, float(found.difference[best]), float(found.low[best]), float(found.high[best]))
    over = untrained.counts().max()
    yield _single("", "prompts over the threshold, best head of the untrained twin", n, over)


# ------------------------------------------------------------------------------------------------ classification


def correct(pair: Pair, prompts: Sequence[Prompt], *instruments: Instrument) -> NDArray[np.bool_]:
    """Whether the gold label has the highest logit among a prompt's labels, [N]; labels are one token each."""
    model, tokenizer = pair
    logits = next_token_logits(model, [with_bos(p.text, tokenizer).ids for p in prompts], *instruments)
    labels = [single_ids(tokenizer, [p.label_join + label for label in p.labels]) for p in prompts]
    return np.array([row[own].argmax() == p.gold for row, own, p in zip(logits, labels, prompts, strict=True)])


def maps(n: int, labels: Sequence[str] = sorted(HELD_OUT_LABELS)) -> list[Prompt]:
    """Associative maps from held-out words to held-out labels: four keys, twelve lines."""
    words = [x for x, _ in PAIR_TASKS["copying"] if x in held_out_inputs()]
    return classification.associative_map_prompts(words, labels, 4, 12, n, SEED)


def word_sequences(name: str, k: int, n: int, labels: Sequence[str] | None = None) -> list[Prompt]:
    """A word sequence task; or one a line, with a space before its labels, which are `labels`, where some are given."""
    task = classification.task(name)
    if labels:
        task = replace(classification.relabelled(task, labels[: len(task.labels)]), layout=classification.LINES)
    return classification.prompts(task, k, limit=n)


def causal_rows(pair: Pair, scores: NDArray[np.float64], n: int, sets: int = 10) -> Iterator[Row]:
    """What zeroing the heads of the best scores [L, H] costs, beyond zeroing as many that are no induction heads."""
    ranked, others = np.argsort(-scores, axis=None), np.flatnonzero(scores < INDUCTION_HEAD)

    def without(heads: NDArray[np.int64]) -> list[PatchHeads]:
        layers, places = support(pair[0]).layers, [divmod(int(head), scores.shape[1]) for head in heads]
        return [PatchHeads(layers[at], [h for a, h in places if a == at], 0.0) for at in {at for at, _ in places}]

    for task, prompts in (
        ("associative map", maps(n // 2)),
        ("binary word sequences", word_sequences("wordseq1", 10, n // 2)),
    ):
        yield _share(f"causal: {task}", f"{task}: accuracy of the whole model", correct(pair, prompts))
        for top in TOP:
            rng = np.random.default_rng((SEED, top))
            controls = [correct(pair, prompts, *without(rng.choice(others, top, replace=False))) for _ in range(sets)]
            lost = np.array(controls, dtype=float) - correct(pair, prompts, *without(ranked[:top]))  # [sets, N]
            value, (low, high) = float(lost.mean()), _crossed_interval(lost)
            what = f"{task}: lost by zeroing the top {top} heads rather than {top} others ({sets} sets)"
            bar = (">= 0.15, above 0", value >= 0.15 and low > 0) if top == 4 else ("", None)
            yield Row("", what, len(prompts), value, low, high, *bar)


def _crossed_interval(values: NDArray[np.float64], draws: int = 2000) -> tuple[float, float]:
    """The bootstrap interval of the mean of values [A, B] where both axes were sampled."""
    rng, sizes = np.random.default_rng(SEED), values.shape
    first, second = (rng.multinomial(size, np.full(size, 1 / size), size=draws) / size for size in sizes)
    low, high = np.quantile(np.einsum("da,ab,db->d", first, values, second, optimize=True), [0.025, 0.975])
    return float(low), float(high)


def classification_rows(pair: Pair, n: int) -> Iterator[Row]:
    """Synthetic classification tasks."""
    yield _share("word sequences", "wordseq1, 10 shots", correct(pair, word_sequences("wordseq1", 10, n)))
    for name, k, bar in (
        ("wordseq1", 10, 0.9),
        ("wordseq2", 10, 0.9),
        ("wordseq1_4way", 20, 0.7),
        ("wordseq2_4way", 20, 0.7),
    ):
        words = sorted(label for label in HELD_OUT_LABELS if len(label) > 1)
        found = correct(pair, word_sequences(name, k, n, words))
        yield _share("", f"{name}, {k} shots, held-out label words", found, bar, hard=False)


def staicc_rows(pair: Pair, n: int) -> Iterator[Row]:
    """StaICC's data sets, beside the majority label and the vote of demonstrations."""
    for kind, against, needed in (
        ("true labels", "majority or demonstration vote", 5),
        ("random label words", "uniform over the labels present", 3),
    ):
        above = Counter[int]()
        for k in (4, 8):
            for data in sources.TRAINED_ON:
                prompts = staicc_prompts(data, k)[:n]
                if kind != "true labels":
                    prompts = [relabelled(p, i) for i, p in enumerate(prompts) if p.gold in p.demonstrations]
                right = correct(pair, prompts)
                chance = baseline(prompts) if kind == "true labels" else np.array([1 / len(p.labels) for p in prompts])
                what = f"{data}, k = {k}, {kind}: accuracy {right.mean():.3f} minus {chance.mean():.3f}, {against}"
                row = _mean(
                    f"StaICC, {kind}" if not above and data == sources.TRAINED_ON[0] else "", what, right - chance
                )
                above[k] += bool(row.low > 0)
                yield row
        for k, count in above.items():
            what = f"{kind}, k = {k}: data sets with the interval above 0"
            yield _single("", what, 6, count, f">= {needed} of 6", count >= needed, hard=kind == "true labels")


def baseline(prompts: Sequence[Prompt]) -> NDArray[np.float64]:
    """How right, without reading the text, the label of most queries is or the label of most demonstrations, [N].

    Of the two the one that is right more often.
    """
    gold, shown = np.array([p.gold for p in prompts]), np.array([p.demonstrations for p in prompts])
    both = [answers.majority_right(gold), answers.vote_right(gold, shown, len(prompts[0].labels))]
    return max(both, key=lambda found: float(found.mean()))


def relabelled(prompt: Prompt, number: int) -> Prompt:
    """The prompt with random label words, seeded by its number; its labels are those among its demonstrations."""
    words = Random(f"labels:{SEED}:{number}").sample(
        [w for w in (*LABEL_WORDS, *LETTERS) if w not in HELD_OUT_LABELS], len(prompt.labels)
    )
    text, at = "", 0
    for (start, end), label in zip(prompt.spans["y"], prompt.demonstrations, strict=True):
        text, at = text + prompt.text[at:start] + words[label], end
    shown = sorted({*prompt.demonstrations})
    return Prompt(text + prompt.text[at:], {}, tuple(words[c] for c in shown), shown.index(prompt.gold))
