"""Numbers that are committed for a published model, data/values/<model>/, measured again by the reference.

These are the maps of induction scores, and 20 heads of the IOI pair. What is a mean over hundreds of prompts would take
as long as the notebook did, and is not measured again.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.real_model import plain
from tests.real_model.conftest import NAME, PLAIN
from tests.real_model.test_real_patches import some_heads
from util import paths
from util.load_model_and_data import untrained_twin
from util.prompts.induction_pattern import repeated_sequences
from util.roles.attention_scores import uniform_prefix_matching
from util.show import files

ROUNDED = 6e-7  # values are written with six decimals
BOUND = 1e-5  # of the largest: float32 on a GPU, as for Gemma, is within 4e-5 of that on a CPU at values of 5 to 7


def stored(stem):
    """The committed values of a figure, and their request."""
    place = paths.root() / "data" / "values" / paths.model_folder(NAME) / f"{stem}.json"
    if not place.exists():
        pytest.skip(f"{place.name} of {NAME} is not among the committed values")
    values = files.read_values(place)
    assert (values["request"]["model"], values["request"]["figure"]) == (NAME, stem)
    return values, values["request"]


def check(what, mine, theirs, scale=0.0):
    ours, committed = np.asarray(mine, float), np.asarray(theirs, float)
    assert ours.shape == committed.shape
    gap, largest = float(np.abs(ours - committed).max()), scale or float(np.abs(committed).max())
    print(f"{what}: largest difference {gap:.1e} of {largest:.3g}")
    assert gap <= BOUND * largest + ROUNDED, f"{what}: largest difference {gap:.2e} of {largest:.3g}"


def scores(reference, drawn):
    """Mean prefix-matching scores [L, H], read off attention matrices."""
    start, total = drawn.bos + drawn.length, torch.zeros(reference.layers, reference.heads, dtype=torch.float64)
    for row in torch.from_numpy(drawn.ids):
        weights = plain.observed(reference, row[None])[0][:, 0]
        same = (row[:, None] == row).tril(-1)
        same[:, : drawn.bos] = False
        cells = same.roll(1, 1)[start:].double()
        total += torch.einsum("lhqk,qk->lh", weights[:, :, start:].double(), cells) / (len(row) - start)
    return total / len(drawn.ids)


def test_committed_induction_scores(real):
    values, request = stored("induction_scores")
    seeds = range(request["seed"], request["seed"] + request["sequences"])
    drawn = repeated_sequences(real.tokenizer, request["length"], request["copies"], seeds, request["bos"])
    check("scores", scores(real.reference, drawn), values["scores"]["mean"])
    fresh = untrained_twin(real.model, 0)
    untrained = scores(PLAIN(fresh.state_dict(), fresh.config), drawn)
    check("untrained", untrained, values["scores"]["untrained"])
    uniform = uniform_prefix_matching(request["length"], request["copies"], request["bos"])
    check("uniform", uniform, values["scores"]["uniform"])


def test_committed_patches_of_the_ioi_pair(real):
    values, request = stored("ioi_patching")
    base, source = map(real.ids, request["texts"])
    answer, other = (real.first(f" {name}") for name in request["names"])
    first, z = int((base != source)[0].nonzero()[0]), plain.observed(real.reference, source)[1]

    def difference(logits):
        return float(logits[0, -1, answer] - logits[0, -1, other])

    def patched(layer, head, own):
        return torch.cat([own[:, :first], z[layer, :, head, first:]], dim=1)

    def permuted(layer, head, own):
        order = np.random.default_rng((request["seed"], layer, head)).permutation(own.numel())  # tokens, dimensions
        return own.flatten()[torch.from_numpy(order)].view_as(own)

    runs = [difference(real.reference(ids)) for ids in (base, source)]
    check("scores", runs, values["scores"])
    heads = some_heads(real, 20, "committed")
    for name, value in (("patched", patched), ("permuted", permuted)):
        changes = [difference(plain.with_heads(real.reference, base, [head], value)) - runs[0] for head in heads]
        # changes are as exact as the logit differences that change
        check(name, changes, [values[name][layer][head] for layer, head in heads], max(map(abs, runs)))
