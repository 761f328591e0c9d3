"""A published model beside its class's own eager attention under plain hooks, in which nothing of the suite is.

MODEL in the environment, which `make` sets, names it: smollm2, which is meant by embedded and by nothing, or gemma3.
Without it (no network, nothing cached) these tests fail and say so. Two models share the tests: `real` computes as
everybody does, in float32; `exact` has the same weights in float64. What is equal there to ten digits is the same
function.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests import eager_runs
from util.engine.handshake import prepare
from util.load_model_and_data import load_ICL_model

NAME = os.environ.get("MODEL", "embedded").replace("embedded", "smollm2")


@dataclass(frozen=True)
class Subject:
    """A prepared model, its tokenizer, the reference, and how far it may be from that, relative to the largest."""

    model: PreTrainedModel
    tokenizer: Any
    reference: PreTrainedModel
    bound: float

    def ids(self, text):
        """The tokens [1, T] of a text."""
        return self.tokenizer(text, return_tensors="pt").input_ids

    def first(self, text):
        """The first token of a text, behind BOS if the tokenizer puts one in front."""
        return self.tokenizer(text, add_special_tokens=False).input_ids[0]

    @torch.no_grad()
    def run(self, ids, writes=None, cuts=None):
        """The reference's run of tokens [B, T], see `tests.eager_runs`."""
        return eager_runs.run(self.reference, {"input_ids": ids}, writes, cuts)

    @property
    def every(self):
        """All (layer, head)."""
        return [*np.ndindex(self.model.config.num_hidden_layers, self.model.config.num_attention_heads)]

    def check(self, what, ours, theirs, scale=None, rounded=0.0):
        """Two arrays are the same; scale: what a difference is relative to, by default the largest of theirs.

        rounded: what theirs may be off by.
        """
        ours, theirs = (torch.from_numpy(np.asarray(part, np.float64)) for part in (ours, theirs))
        assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
        assert bool(ours.isfinite().all() and theirs.isfinite().all()), f"{what}: not all numbers are finite"
        largest = float(theirs.abs().max()) if scale is None else scale
        gap = float((ours - theirs).abs().max())
        print(f"{what}: largest difference {gap:.1e}, largest {largest:.3g}")
        assert largest > 0 and gap <= self.bound * largest + rounded, f"{what}: off by {gap:.2e}, largest {largest:.3g}"


@pytest.fixture(scope="session")
def real():
    model, tokenizer = load_ICL_model(NAME, verbose=False)
    return Subject(model, tokenizer, eager_runs.reference(model), 1e-5)


@pytest.fixture(scope="session")
def exact(real):
    model = copy.deepcopy(real.model).double()
    prepare(model)
    return Subject(model, real.tokenizer, eager_runs.reference(model), 1e-10)


@pytest.fixture(params=["real", "exact"])
def subject(request, wide_softmax):
    return request.getfixturevalue(request.param)
