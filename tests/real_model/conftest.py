"""A published model and what it is compared with. Without it (no network, nothing cached) these tests fail and say so.

MODEL in the environment, which `make` sets, names it: smollm2, which is meant by embedded and by nothing, or gemma3.

Two models share the tests. `real` computes as everybody does: float32. `exact` has the same weights in float64, and
nothing of it rounds to float32: transformers' norm, rotary angles and eager softmax do, and are written anew here for
as long as it is used. What is equal there to ten digits is the same function.
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
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama

from tests.real_model import plain
from util.engine import call
from util.engine.handshake import prepare
from util.load_model_and_data import load_ICL_model
from util.study.model import Model

REFERENCES = {"smollm2": (plain.Llama, modeling_llama), "gemma3": (plain.Gemma3, modeling_gemma3)}
NAME = os.environ.get("MODEL", "embedded")
NAME = "smollm2" if NAME == "embedded" else NAME
assert NAME in REFERENCES, f"MODEL={NAME}: there is a reference for {' and '.join(REFERENCES)} only"
PLAIN, MODULE = REFERENCES[NAME]


@dataclass(frozen=True)
class Subject:
    """A prepared model, its tokenizer, the reference, and how far it may be from that, relative to the largest."""

    model: PreTrainedModel
    tokenizer: Any
    reference: plain.Llama
    bound: float

    @property
    def given(self):
        """The model of a study."""
        return Model.given(self.model, self.tokenizer, NAME)

    def ids(self, text):
        """The tokens [1, T] of a text."""
        return self.tokenizer(text, return_tensors="pt").input_ids

    def first(self, text):
        """The first token of a text, behind BOS if the tokenizer puts one in front."""
        return self.tokenizer(text, add_special_tokens=False).input_ids[0]

    def check(self, what, ours, theirs, scale=None):
        """Two arrays are the same; scale: what a difference is relative to, by default the largest of theirs."""
        ours, theirs = (torch.from_numpy(np.asarray(part, np.float64)) for part in (ours, theirs))
        assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
        assert bool(ours.isfinite().all() and theirs.isfinite().all()), f"{what}: not all numbers are finite"
        largest = float(theirs.abs().max()) if scale is None else scale
        gap = float((ours - theirs).abs().max()) / largest
        print(f"{what}: largest difference {gap:.1e} of {largest:.3g}")
        assert largest > 0 and gap <= self.bound, f"{what}: largest difference {gap:.2e} of {largest:.3g}"


@pytest.fixture(scope="session")
def real():
    model, tokenizer = load_ICL_model(NAME, verbose=False)
    return Subject(model, tokenizer, PLAIN(model.state_dict(), model.config), 1e-5)


@pytest.fixture(scope="session")
def doubled(real):
    model = copy.deepcopy(real.model).double()
    prepare(model)
    return Subject(model, real.tokenizer, PLAIN(model.state_dict(), model.config), 1e-10)


@pytest.fixture(params=["real", "exact"])
def subject(request, real, monkeypatch):
    if request.param == "real":
        yield real
        return
    found = request.getfixturevalue("doubled")
    _round_nowhere(monkeypatch)
    yield found
    monkeypatch.undo()
    call._eager_function.cache_clear()


def _round_nowhere(patch):
    def norm(self, states):
        epsilon, gain = (self.eps, 1 + self.weight) if hasattr(self, "eps") else (self.variance_epsilon, self.weight)
        return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + epsilon) * gain

    def angles(self, states, position_ids, *kind):
        width, rope = self.config.head_dim, self.config.rope_parameters
        speed = (rope[kind[0]] if kind else rope)["rope_theta"] ** -(torch.arange(0, width, 2).double() / width)
        turned = (position_ids[..., None].double() * speed).repeat(1, 1, 2)
        return turned.cos(), turned.sin()

    def eager(module, query, key, value, mask, scaling, **_):
        key, value = (part.repeat_interleave(module.num_key_value_groups, dim=1) for part in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    for part, forward in (("RMSNorm", norm), ("RotaryEmbedding", angles)):
        patch.setattr(getattr(MODULE, f"{PLAIN.__name__}{part}"), "forward", forward)
    patch.setattr(MODULE, "eager_attention_forward", eager)
    call._eager_function.cache_clear()
