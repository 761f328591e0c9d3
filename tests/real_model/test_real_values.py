"""Numbers that are committed for a published model, data/values/<model>/, measured again by eager attention.

These are the maps of induction scores, and 20 heads of the IOI pair. What is a mean over hundreds of prompts would take
as long as the notebook did, and is not measured again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tests import eager_runs
from tests.real_model.conftest import NAME
from tests.roles.test_attention_scores import by_definition
from tests.stored import read
from util.load_model_and_data import untrained_twin
from util.prompts.induction_pattern import repeated_sequences
from util.roles.attention_scores import uniform_prefix_matching

ROUNDED = 6e-7  # values are written with six decimals


def stored(stem):
    """The committed values of a figure, and their request."""
    values = read(stem, NAME)
    assert (values["request"]["model"], values["request"]["figure"]) == (NAME, stem)
    return values, values["request"]


def scores(run, drawn):
    """Mean prefix-matching scores [L, H], read off attention matrices."""
    found = []
    for ids in torch.from_numpy(drawn.ids):
        weights = torch.cat([*run(ids[None]).weights.values()]).double().numpy()
        found.append(by_definition(weights, drawn.length, drawn.copies, drawn.bos)["prefix_matching"])
    return np.mean(found, axis=0)


def test_committed_induction_scores(real):
    values, request = stored("induction_scores")
    seeds = range(request["seed"], request["seed"] + request["sequences"])
    drawn = repeated_sequences(real.tokenizer, request["length"], request["copies"], seeds, request["bos"])
    check = partial(real.check, rounded=ROUNDED)
    check("scores", scores(real.run, drawn), values["scores"]["mean"])
    fresh = replace(real, reference=eager_runs.reference(untrained_twin(real.model, 0)))
    check("untrained", scores(fresh.run, drawn), values["scores"]["untrained"])
    uniform = uniform_prefix_matching(request["length"], request["copies"], request["bos"])
    check("uniform", uniform, values["scores"]["uniform"])


def test_committed_patches_of_the_ioi_pair(real):
    values, request = stored("ioi_patching")
    base, source = map(real.ids, request["texts"])
    answer, other = (real.first(f" {name}") for name in request["names"])
    first, plain, z = int((base != source)[0].nonzero()[0]), real.run(base), real.run(source).z

    def difference(run):
        return float(run.logits[0, -1, answer] - run.logits[0, -1, other])

    def patched(layer, head):
        return torch.cat([plain.z[layer][0, :first, head], z[layer][0, first:, head]])

    def permuted(layer, head):
        own = plain.z[layer][0, :, head]
        order = np.random.default_rng((request["seed"], layer, head)).permutation(own.numel())  # tokens, dimensions
        return own.flatten()[torch.from_numpy(order)].view_as(own)

    runs = [difference(plain), difference(real.run(source))]
    check = partial(real.check, rounded=ROUNDED)
    check("scores", runs, values["scores"])
    heads = [real.every[place] for place in np.random.default_rng(0).permutation(len(real.every))[:20]]
    for name, value in (("patched", patched), ("permuted", permuted)):
        writes = [{(la, 0, t, h): vector for t, vector in enumerate(value(la, h))} for la, h in heads]
        changes = [difference(real.run(base, write)) - runs[0] for write in writes]
        # changes are as exact as the logit differences that change
        check(name, changes, [values[name][layer][head] for layer, head in heads], max(map(abs, runs)))
