"""What an embedded model can do: the measurements of its model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from util.load_model_and_data import untrained_twin

from . import path, sources
from .corpus import Batch, Corpus
from .tokenizer import single_ids

SEED = 1_000_003  # of the evaluation rows: not a seed of any training step
THRESHOLD = 5  # a head reads the forerunner token where A[y_q, s_q] > THRESHOLD / n_t


def load(name: str) -> tuple[Any, PreTrainedTokenizerFast]:
    """An embedded model in float32 with eager attention, and its tokenizer."""
    folder = path(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder)


@torch.no_grad()
def accuracy(model: PreTrainedModel, batch: Batch) -> tuple[int, int]:
    """(right, all) over the tokens with the batch's highest weight; the arg max is over the whole vocabulary."""
    tokens, weights = batch
    asked = weights[:, 1:] > 0.5 * weights.max()
    guesses = model(torch.from_numpy(tokens[:, :-1])).logits.argmax(-1).numpy()
    return int((guesses == tokens[:, 1:])[asked].sum()), int(asked.sum())


@torch.no_grad()
def prefix_matching(model: PreTrainedModel, corpus: Corpus, period: int, copies: int = 4, rows: int = 32) -> np.ndarray:
    """[L, H] mean attention, in the second and later copies, to the position after the token's last occurrence."""
    tokens, _ = corpus.repeats(np.random.default_rng(SEED), rows, 1 + copies * period, (period, period))
    attention = _attention(model, tokens)
    here = np.arange(1 + period, tokens.shape[1])
    return attention[..., here, here - period + 1].mean(axis=(0, -1))


def forerunner(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: int = 128, data: str = "financial_phrasebank"
) -> dict[str, np.ndarray]:
    """Attention from the label to the forerunner token ':' on k = 4 prompts with the correct label appended.

    Returns [L, H] arrays: share (of prompts with A[y_q, s_q] > THRESHOLD / n_t), label (mean A[y_q, s_q]),
    other (mean A[t, t - 1] at all other tokens but the first) and specificity (label - other).
    """
    source = sources.load(data)
    colon, newline = single_ids(tokenizer, [":", "\n"])
    found = []
    for prompt, (_, gold) in zip(source.prompts[:prompts], source.queries, strict=False):
        tokens = np.array(tokenizer(prompt + gold).input_ids)
        after_colon = np.flatnonzero(tokens[:-1] == colon) + 1
        labels = after_colon[np.append(tokens, newline)[after_colon + 1] == newline]
        others = np.setdiff1d(np.arange(2, len(tokens)), labels)
        attention = _attention(model, tokens[None])[0]
        read = attention[..., -1, -2]
        found.append([read > THRESHOLD / len(tokens), read, attention[..., others, others - 1].mean(-1)])
    share, label, other = np.mean(np.array(found, dtype=float), axis=0)
    return {"share": share, "label": label, "other": other, "specificity": label - other}


@torch.no_grad()
def staicc_accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, data: str, queries: int = 256
) -> tuple[float, float, float]:
    """k = 4 accuracy of the label words at the last ':', the share of the most frequent label among the queries, and
    the accuracy of answering with the demonstrations' most frequent label (ties: the last)."""
    source = sources.load(data)
    label_ids = single_ids(tokenizer, [f" {word}" for word in source.label_space])
    gold = [label for _, label in source.queries[:queries]]
    right = copied = 0
    for prompt, label in zip(source.prompts, gold, strict=False):
        tokens = tokenizer(prompt.removesuffix(" "), return_tensors="pt").input_ids
        logits = model(tokens, logits_to_keep=1).logits[0, -1, label_ids]
        right += source.label_space[int(logits.argmax())] == label
        shown = [line.rsplit(" ", 1)[1] for line in prompt.split("\n")[:-1]]
        copied += Counter(reversed(shown)).most_common(1)[0][0] == label
    return right / len(gold), Counter(gold).most_common(1)[0][1] / len(gold), copied / len(gold)


def report(name: str = "generalist") -> str:
    """The measured part of the model card, as Markdown."""
    model, tokenizer = load(name)
    corpus = Corpus(tokenizer, names=())
    return "\n".join([*_induction_lines(model, corpus), "", *_forerunner_lines(model, tokenizer), "",
                      *_staicc_lines(model, tokenizer)])  # fmt: skip


def _induction_lines(model: PreTrainedModel, corpus: Corpus) -> Iterator[str]:
    yield "| next-token accuracy | rows | tokens asked | accuracy |"
    yield "|---|---|---|---|"
    for period, length in ((20, 81), (100, 401)):
        drawn = corpus.repeats(np.random.default_rng(SEED), 32, length, (period, period))
        right, asked = accuracy(model, drawn)
        yield f"| random tokens with period {period}, copies 2-4 | 32 | {asked} | {right / asked:.3f} |"
    for label, stream in (("associative maps, label of a key seen before", corpus.maps),
                          ("word classification, random labels, class seen before", corpus.words)):  # fmt: skip
        rng = np.random.default_rng(SEED)
        scores = np.array([accuracy(model, stream(rng, 4, 96)) for _ in range(64)]).sum(axis=0)
        yield f"| {label} | 256 | {scores[1]} | {scores[0] / scores[1]:.3f} |"
    yield ""
    yield "Prefix-matching score (32 rows, copies 2-4; layer and head count from 0):"
    yield ""
    yield "| period | best head | its score | all heads, layer by layer |"
    yield "|---|---|---|---|"
    for period in (20, 100):
        scores = prefix_matching(model, corpus, period)
        best = np.unravel_index(scores.argmax(), scores.shape)
        rows = " / ".join(" ".join(f"{score:.2f}" for score in layer) for layer in scores)
        yield f"| {period} | {best[0]}.{best[1]} | {scores.max():.3f} | {rows} |"


def _forerunner_lines(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Iterator[str]:
    scores = forerunner(model, tokenizer)
    yield "| head | share A[y_q, s_q] > 5/n_t | mean A[y_q, s_q] | mean A[t, t-1] elsewhere | difference |"
    yield "|---|---|---|---|---|"
    for layer, head in np.ndindex(scores["share"].shape):
        cells = " | ".join(f"{scores[key][layer, head]:.3f}" for key in ("share", "label", "other", "specificity"))
        yield f"| {layer}.{head} | {cells} |"
    twin = untrained_twin(model)
    twin.set_attn_implementation("eager")
    control = {key: values.max() for key, values in forerunner(twin, tokenizer).items()}
    cells = " | ".join(f"{control[key]:.3f}" for key in ("share", "label", "other", "specificity"))
    yield f"| untrained twin, maximum over heads | {cells} |"


def _staicc_lines(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Iterator[str]:
    yield "| StaICC data set, k = 4, 256 queries | accuracy | majority share | demonstrations' majority label |"
    yield "|---|---|---|---|"
    for data in sources.TRAINED_ON:
        cells = " | ".join(f"{value:.3f}" for value in staicc_accuracy(model, tokenizer, data))
        yield f"| {data} | {cells} |"


@torch.no_grad()
def _attention(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """[rows, L, H, T, T] attention weights (eager attention)."""
    output: Any = model(torch.from_numpy(tokens), output_attentions=True)
    return torch.stack(output.attentions, dim=1).numpy()
