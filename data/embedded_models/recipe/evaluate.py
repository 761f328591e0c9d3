"""What the embedded model can do, on material that training held out: the table of the model card.

`python -m data.embedded_models.recipe.evaluate`, from the clone's root, prints it (with the folder of another model, if
one is given). What its heads do is the subject of the notebooks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from data.embedded_models.recipe.corpus import never_repeated
from data.embedded_models.recipe.texts import BOS_ID, TRAINED_ON, single_ids
from data.embedded_models.recipe.words import HELD_OUT_LABELS, LABEL_WORDS, LETTERS, PAIR_TASKS, held_out_inputs
from util.engine.label_scores import next_token_logits
from util.load_model_and_data import load_ICL_model, staicc_prompts
from util.prompts import classification, ioi, word_pair_prompts, word_pairs
from util.prompts.induction_pattern import repeated_sequences
from util.prompts.prompt import Layout, Prompt, type_tokens, with_bos
from util.roles.attention_scores import INDUCTION_HEAD
from util.roles.sequences_study import head_scores
from util.stats import answers
from util.stats.intervals import accuracy, mean_interval

LINES = Layout(":", " ", "\n")

SEED = 1_000_003  # of the evaluation: not a seed of any training step
PROMPTS, SEQUENCES = 512, 32
LENGTH, COPIES = 50, 4
Pair = tuple[PreTrainedModel, PreTrainedTokenizerFast]
HEADER = "| measure | n | value | 95 % interval | bar | met |\n|---|---|---|---|---|---|"


def _row(measure: str, n: int, value: float, interval: str, bar: str = "", *, met: bool | None = None) -> str:
    """A line of the table: a measurement on n units, and whether it met its bar, if it is held against one."""
    answer = {None: "", True: "yes", False: "**no**"}[met]
    return f"| {measure} | {n} | {value:.3f} | {interval} | {bar} | {answer} |"


def _mean(measure: str, values: NDArray[Any], at_least: float | None = None) -> str:
    """The line of a mean of values [N], or of the share of those that are True. at_least: its bar."""
    mean = accuracy(values) if values.dtype == bool else mean_interval(values)
    interval = f"{mean.low:.3f} to {mean.high:.3f}"
    if at_least is None:
        return _row(measure, len(values), mean.value, interval)
    return _row(measure, len(values), mean.value, interval, f">= {at_least}", met=mean.value >= at_least)


def rows(pair: Pair) -> Iterator[str]:
    """All lines of the card's table, in its order."""
    yield from induction_rows(pair)
    yield from ioi_rows(pair)
    yield from word_pair_rows(pair)
    yield from word_sequence_rows(pair)
    for labels, least in (("true labels", 5), ("random label words", 3)):
        for k in (4, 8):
            above = sum(mean_interval(above_chance(pair, data, k, labels)).low > 0 for data in TRAINED_ON)
            measure = f"StaICC, k = {k}, {labels}: data sets above chance"
            yield _row(measure, len(TRAINED_ON), above, "", f">= {least}", met=above >= least)


def induction_rows(pair: Pair) -> Iterator[str]:
    """Induction heads, and how right the copies of a repeated sequence are predicted."""
    model, tokenizer = pair
    drawn = repeated_sequences(tokenizer, LENGTH, COPIES, range(SEED, SEED + SEQUENCES))
    scores = head_scores(model, drawn)["prefix_matching"]  # [N, L, H]
    mean = scores.mean(0)
    best = np.unravel_index(mean.argmax(), mean.shape)
    yield _mean("prefix-matching score of the best head", scores[:, *best], 0.6)
    heads = int((mean >= INDUCTION_HEAD).sum())
    met = 0.01 <= heads / mean.size <= 0.4
    yield _row(f"heads with a score >= {INDUCTION_HEAD}, of {mean.size}", SEQUENCES, heads, "", "1 to 40 %", met=met)
    rng = np.random.default_rng(SEED)
    unseen = [np.tile(rng.choice(never_repeated(tokenizer), LENGTH, replace=False), COPIES) for _ in drawn.ids]
    for kind, ids, bar in (
        ("all kinds", drawn.ids, 0.9),
        ("kinds never repeated in training", np.insert(unseen, 0, BOS_ID, axis=1), None),
    ):
        with torch.inference_mode():
            guesses = model(torch.from_numpy(ids)).logits.argmax(-1).numpy()
        right = guesses[:, LENGTH:-1] == ids[:, LENGTH + 1 :]
        yield _mean(f"next token in copies 2-4, tokens of {kind}", right.mean(1), bar)


def ioi_rows(pair: Pair) -> Iterator[str]:
    """Indirect object identification on names and frames that were not trained on."""
    model, tokenizer = pair
    drawn = ioi.ioi_prompts(
        tokenizer, PROMPTS, SEED, frames=sorted(ioi.HELD_OUT_FRAMES), names=sorted(ioi.HELD_OUT_NAMES)
    )
    tokens = [ioi.ioi_tokens(prompts, tokenizer) for prompts in drawn]
    logits = next_token_logits(model, [prompts.base for prompts in tokens])
    io, s = np.array([prompts.answers for prompts in tokens]).T
    row, order = np.arange(PROMPTS), np.array([prompts.order for prompts in drawn])
    difference = logits[row, io] - logits[row, s]
    yield _mean("IOI, held-out frames and names: logit difference > 0", difference > 0, 0.95)
    yield _mean("IOI: mean logit difference", difference, 2)
    for name in ioi.ORDERS:
        yield _mean(f"IOI: logit difference > 0, {name}", difference[order == name] > 0, 0.9)
    yield _mean("IOI: the other name first in the whole vocabulary", logits.argmax(1) == io)


def word_pair_rows(pair: Pair) -> Iterator[str]:
    """Word pairs with ten demonstrations, seen and unseen in training: is the answer's first token the likeliest?"""
    model, tokenizer = pair
    right, queries, unseen = dict[str, NDArray[np.bool_]](), dict[str, list[str]](), sorted(held_out_inputs())
    for name in PAIR_TASKS:
        task = word_pairs.find(name, trained=True)
        prompts = [item.clean for item in word_pair_prompts.prompts(task, tokenizer, PROMPTS, 10, SEED, ()).items]
        answered = [type_tokens(prompt, tokenizer, target=True).ids for prompt in prompts]
        alone = [with_bos(prompt.text, tokenizer).ids for prompt in prompts]
        first = [whole[len(ids)] for whole, ids in zip(answered, alone, strict=True)]
        queries[name] = [prompt.text.rsplit("\n", 1)[-1].strip() for prompt in prompts]
        right[name] = next_token_logits(model, alone).argmax(1) == first
        new = np.isin(queries[name], unseen)
        yield _mean(f"word pairs: {name}, seen pairs", right[name][~new], 0.9)
        if new.any():
            yield _mean(f"word pairs: {name}, held-out pairs", right[name][new])
    for name, other in (("copying", "capitalization"), ("capitalization", "copying")):
        shared = np.isin(queries[name], queries[other]) & ~np.isin(queries[name], unseen)
        yield _mean(f"word pairs: {name}, seen inputs that occur in {other} as well", right[name][shared], 0.9)


def correct(pair: Pair, prompts: Sequence[Prompt]) -> NDArray[np.bool_]:
    """Whether the gold label has the highest logit among a prompt's labels, [N]; labels are one token each."""
    model, tokenizer = pair
    logits = next_token_logits(model, [with_bos(p.text, tokenizer).ids for p in prompts])
    labels = [single_ids(tokenizer, [p.label_join + label for label in p.labels]) for p in prompts]
    return np.array([row[ids].argmax() == p.gold for row, ids, p in zip(logits, labels, prompts, strict=True)])


def word_sequence_rows(pair: Pair) -> Iterator[str]:
    """Word sequence tasks, also with held-out label words (one line each, with a space before the label)."""
    plain = classification.prompts(classification.task("wordseq1"), 10, limit=PROMPTS)
    yield _mean("wordseq1, 10 shots", correct(pair, plain))
    words = sorted(label for label in HELD_OUT_LABELS if len(label) > 1)
    for name, k, bar in (
        ("wordseq1", 10, 0.9),
        ("wordseq2", 10, 0.9),
        ("wordseq1_4way", 20, 0.7),
        ("wordseq2_4way", 20, 0.7),
    ):
        task = classification.task(name)
        task = replace(classification.relabelled(task, words[: len(task.labels)]), layout=LINES)
        right = correct(pair, classification.prompts(task, k, limit=PROMPTS))
        yield _mean(f"{name}, {k} shots, held-out label words", right, bar)


def above_chance(pair: Pair, data: str, k: int, labels: str) -> NDArray[np.float64]:
    """How much more often right [N] than chance, on prompts of a StaICC data set.

    labels: "true labels", beside the better of the majority label and the demonstrations' vote; or "random label
    words", of the prompts whose gold label is demonstrated, beside a guess among the demonstrated ones.
    """
    prompts: Sequence[Prompt] = staicc_prompts(data, k)[:PROMPTS]
    if labels == "random label words":
        prompts = [relabelled(p, number) for number, p in enumerate(prompts) if p.gold in p.demonstrations]
        return correct(pair, prompts) - np.array([1 / len(p.labels) for p in prompts])
    gold, shown = np.array([p.gold for p in prompts]), np.array([p.demonstrations for p in prompts])
    both = [answers.majority_right(gold), answers.vote_right(gold, shown, len(prompts[0].labels))]
    return correct(pair, prompts) - max(both, key=lambda credit: float(credit.mean()))


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


def main() -> None:
    """Print the table of the model card."""
    parser = argparse.ArgumentParser(prog="python -m data.embedded_models.recipe.evaluate", description=main.__doc__)
    parser.add_argument("model", nargs="?", default="embedded", help="another model: the folder that it is saved in")
    print(HEADER)
    for row in rows(load_ICL_model(parser.parse_args().model, device="cpu", verbose=False)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
