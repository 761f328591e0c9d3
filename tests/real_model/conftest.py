"""SmolLM2 and what it is compared with. Without the model (no network, nothing cached) these tests fail and say so.

Two models share the tests. `real` computes as everybody does: float32. `exact` has the same weights in float64, and
nothing of it rounds to float32: transformers' norm, rotary angles and eager softmax do, and are written anew here for
as long as it is used. What is equal there to ten digits is the same function.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

from tests.real_model import plain
from util.engine import call
from util.engine.handshake import prepare
from util.load_model_and_data import load_ICL_model
from util.study.model import Model

NAME = "smollm2"


@dataclass(frozen=True)
class Subject:
    """A prepared model, its tokenizer, the reference, and how far it may be from that, relative to the largest."""

    model: PreTrainedModel
    tokenizer: Any
    llama: plain.Llama
    bound: float

    @property
    def given(self) -> Model:
        """The model of a study."""
        return Model.given(self.model, self.tokenizer, NAME)

    def ids(self, text: str) -> Tensor:
        """The tokens [1, T] of a text."""
        return self.tokenizer(text, return_tensors="pt").input_ids

    def check(self, what: str, ours: Any, theirs: Any, scale: float | None = None) -> None:
        """Two arrays are the same; scale: what a difference is relative to, by default the largest of theirs."""
        ours, theirs = (torch.from_numpy(np.asarray(part, np.float64)) for part in (ours, theirs))
        assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
        assert bool(ours.isfinite().all() and theirs.isfinite().all()), f"{what}: not all numbers are finite"
        largest = float(theirs.abs().max()) if scale is None else scale
        gap = float((ours - theirs).abs().max()) / largest
        print(f"{what}: largest difference {gap:.1e} of {largest:.3g}")
        assert largest > 0 and gap <= self.bound, f"{what}: largest difference {gap:.2e} of {largest:.3g}"


@pytest.fixture(scope="session")
def real() -> Subject:
    model, tokenizer = load_ICL_model(NAME, verbose=False)
    return Subject(model, tokenizer, plain.Llama(model.state_dict(), model.config), 1e-5)


@pytest.fixture(scope="session")
def doubled(real: Subject) -> Subject:
    model = copy.deepcopy(real.model).double()
    prepare(model)
    return Subject(model, real.tokenizer, plain.Llama(model.state_dict(), model.config), 1e-10)


@pytest.fixture(params=["real", "exact"])
def subject(request: pytest.FixtureRequest, real: Subject, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    if request.param == "real":
        yield real
        return
    found = request.getfixturevalue("doubled")
    _round_nowhere(monkeypatch)
    yield found
    monkeypatch.undo()
    call._eager_function.cache_clear()


def _round_nowhere(patch: pytest.MonkeyPatch) -> None:
    def norm(self: Any, states: Tensor) -> Tensor:
        return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.variance_epsilon) * self.weight

    def angles(self: Any, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        width = self.config.head_dim
        speed = self.config.rope_parameters["rope_theta"] ** -(torch.arange(0, width, 2).double() / width)
        turned = (position_ids[..., None].double() * speed).repeat(1, 1, 2)
        return turned.cos(), turned.sin()

    def eager(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, Tensor]:
        key, value = (part.repeat_interleave(module.num_key_value_groups, dim=1) for part in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    patch.setattr(modeling_llama.LlamaRMSNorm, "forward", norm)
    patch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", angles)
    patch.setattr(modeling_llama, "eager_attention_forward", eager)
    call._eager_function.cache_clear()
