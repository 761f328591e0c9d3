"""Indirect effects of heads of SmolLM2 against hooks, one whole forward pass for each head."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.real_model import plain
from tests.real_model.conftest import Subject
from tests.real_model.test_real_patches import some_heads
from util.roles.function_vectors import last_outputs, patched_probabilities

WORDS = ("house", "river", "garden", "window", "stone", "cloud")
SHUFFLED = (2, 4, 1, 0, 3)
STRONG = [(20, 5), (17, 5), (14, 1)]


def text(words: tuple[str, ...], order: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    """Five words in capitals, in another order if one is given, and a sixth word to go on with."""
    shown = [f"{words[i]}\t{words[j].capitalize()}\n" for i, j in enumerate(order)]
    return "".join(shown) + f"{words[5]}\t"


@pytest.fixture(params=["real", "exact"])
def subject(request: Any) -> Iterator[Subject]:
    return request.getfixturevalue(request.param)


def test_indirect_effects_are_those_of_hooks(subject: Subject) -> None:
    turned = [tuple(np.roll(WORDS, shift)) for shift in range(3)]
    intact = [tuple(subject.tokenizer(text(words)).input_ids) for words in turned]
    corrupted = [tuple(subject.tokenizer(text(words, SHUFFLED)).input_ids) for words in turned[:2]]
    answers = [subject.tokenizer(words[5].capitalize()).input_ids[0] for words in turned[:2]]
    mean = last_outputs(subject.model, intact)
    written = [plain.outputs(subject.twin, torch.tensor([ids])) for ids in intact]
    plainly = np.stack(
        [torch.stack([z[layer][0, -1].double() for z in written]).mean(0).numpy() for layer in sorted(written[0])]
    )
    subject.check("mean outputs", mean, plainly)
    found = patched_probabilities(subject.model, corrupted, answers, mean)
    values = torch.from_numpy(mean)

    def patched(layer: int, head: int, z: Tensor) -> Tensor:
        return torch.cat([z[:, :-1], values[layer, head].expand(len(z), 1, -1)], dim=1)

    for ids, answer, ours, base in zip(corrupted, answers, found["patched"], found["corrupted"], strict=True):
        tokens = torch.tensor([ids])
        alone = subject.twin(tokens, use_cache=False).logits[0, -1].softmax(-1)[answer]
        subject.check("corrupted", base, alone)
        chosen = STRONG + some_heads(5, "function vectors")
        logits = [plain.with_heads(subject.twin, tokens, [head], patched)[0, -1] for head in chosen]
        plain_patched = torch.stack(logits).softmax(-1)[:, answer]
        subject.check("patched", [ours[head] for head in chosen], plain_patched)
        assert float((plain_patched - alone).abs().max()) > 0.05 * float(alone)  # some have an effect
