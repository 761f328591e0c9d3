"""Indirect effects of heads against the reference, one whole forward pass for each head."""

import numpy as np
import torch
from torch import Tensor

from tests.real_model import plain
from tests.real_model.conftest import NAME, Subject
from tests.real_model.test_real_patches import some_heads
from util.roles.function_vectors import last_outputs, patched_probabilities

WORDS = ("house", "river", "garden", "window", "stone", "cloud")
SHUFFLED = (2, 4, 1, 0, 3)
STRONG = {"smollm2": [(20, 5), (17, 5), (14, 1)], "gemma3": [(9, 3), (11, 2)]}[NAME]


def text(words: tuple[str, ...], order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    """Five words in capitals, in another order if one is given, and a sixth word to go on with."""
    shown = [f"{words[i]}\t{words[j].capitalize()}\n" for i, j in enumerate(order)]
    return "".join(shown) + f"{words[5]}\t"


def test_indirect_effects(subject: Subject) -> None:
    turned = [tuple(np.roll(WORDS, shift)) for shift in range(3)]
    intact = [tuple(subject.tokenizer(text(words)).input_ids) for words in turned]
    corrupted = [tuple(subject.tokenizer(text(words, SHUFFLED)).input_ids) for words in turned[:2]]
    answers = [subject.first(words[5].capitalize()) for words in turned[:2]]
    mean = last_outputs(subject.model, intact)
    last = [plain.observed(subject.reference, torch.tensor([ids]))[1][:, 0, :, -1].double() for ids in intact]
    subject.check("mean outputs", mean, torch.stack(last).mean(0))
    found = patched_probabilities(subject.model, corrupted, answers, mean)
    values = torch.from_numpy(mean)

    def patched(layer: int, head: int, z: Tensor) -> Tensor:
        return torch.cat([z[:, :-1], values[layer, head].expand(len(z), 1, -1)], dim=1)

    for ids, answer, ours, base in zip(corrupted, answers, found["patched"], found["corrupted"], strict=True):
        tokens = torch.tensor([ids])
        whole = subject.reference(tokens)[0, -1]
        alone = whole.softmax(-1)[answer]
        # a log-probability is a difference of logits, and no more exact than these
        subject.check("corrupted", np.log(base), alone.log(), float(whole.abs().max()))
        chosen = STRONG + some_heads(subject, 5, "function vectors")
        logits = [plain.with_heads(subject.reference, tokens, [head], patched)[0, -1] for head in chosen]
        plain_patched = torch.stack(logits).softmax(-1)[:, answer]
        subject.check("patched", [ours[head] for head in chosen], plain_patched)
        assert float((plain_patched - alone).abs().max()) > 0.05 * float(alone)  # some have an effect
