"""The map of all single-head patches and direct effects of SmolLM2 against hooks, one whole forward pass for each."""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.real_model import plain
from tests.real_model.conftest import Subject
from util.figures.ioi_patching import measure
from util.figures.ioi_patching.show import EXAMPLE
from util.scores.paths import path_effects

BASE, SOURCE = EXAMPLE


class Pair(NamedTuple):
    base: Tensor
    source: Tensor
    answers: Tensor
    first: int


def pair_of(subject: Subject) -> Pair:
    """The project's pair as tokens, by plain tokenizer calls."""
    base, source = (subject.tokenizer(text, return_tensors="pt").input_ids for text in (BASE, SOURCE))
    mike, emma = (subject.tokenizer(f" {name}").input_ids for name in ("Mike", "Emma"))
    assert len(mike) == len(emma) == 1 and base.shape == source.shape
    (first,) = (base != source)[0].nonzero()[:, 0].tolist()
    return Pair(base, source, torch.tensor([[*mike, *emma]]), first)


def some_heads(count: int, what: str) -> list[plain.Head]:
    """Heads by a hash: the same in every run, chosen by nobody."""
    every = [(layer, head) for layer in range(30) for head in range(9)]
    return sorted(every, key=lambda head: hashlib.sha256(f"{what} {head}".encode()).hexdigest())[:count]


def difference(logits: Tensor, answers: Tensor) -> Tensor:
    return logits[:, -1].gather(1, answers) @ torch.tensor([1.0, -1.0], dtype=logits.dtype)


@pytest.fixture(params=["real", "exact"])
def subject(request: Any) -> Iterator[Subject]:
    return request.getfixturevalue(request.param)


def test_the_patch_map_is_that_of_hooks(subject: Subject) -> None:
    pair = pair_of(subject)
    ours, base = measure.patch_map(
        subject.model, pair.base, measure.heads_of(subject.model, pair.source), pair.answers, pair.first
    )
    assert ours.shape == (1, 30, 9)
    z = plain.outputs(subject.twin, pair.source)
    plainly = difference(subject.twin(pair.base, use_cache=False).logits, pair.answers)
    strongest = np.unravel_index(np.abs(ours[0] - base[0]).argmax(), ours[0].shape)
    chosen = [*some_heads(12, "patch map"), (int(strongest[0]), int(strongest[1]))]
    theirs = []
    for layer, head in chosen:

        def value(layer: int, head: int, own: Tensor) -> Tensor:
            return torch.cat([own[:, : pair.first], z[layer][:, pair.first :, head]], dim=1)

        theirs.append(difference(plain.with_heads(subject.twin, pair.base, [(layer, head)], value), pair.answers))
    subject.check("base run", base, plainly)
    change = torch.cat(theirs) - plainly
    subject.check("patched heads", [ours[0, *head] for head in chosen] - base[0], change, float(plainly.abs().max()))
    assert float(change.abs().max()) > 0.1 * float(plainly.abs())  # the strongest head carries something


def test_direct_effects_are_those_of_freezing_what_comes_later(subject: Subject) -> None:
    pair = pair_of(subject)
    z, other = measure.heads_of(subject.model, pair.base), measure.heads_of(subject.model, pair.source)
    ours = measure.direct_map(subject.model, pair.base, z, other, pair.answers)[0]
    plainly = difference(subject.twin(pair.base, use_cache=False).logits, pair.answers)
    base, source = (plain.outputs(subject.twin, ids) for ids in (pair.base, pair.source))
    strongest = np.unravel_index(np.abs(ours).argmax(), ours.shape)
    chosen = [*some_heads(6, "direct"), (29, 4), (int(strongest[0]), int(strongest[1]))]
    theirs = []
    for layer, head in chosen:
        changed = torch.cat([base[layer][:, :-1, head], source[layer][:, -1:, head]], dim=1)
        theirs.append(difference(plain.with_frozen_rest(subject.twin, pair.base, (layer, head), changed), pair.answers))
    change = torch.cat(theirs) - plainly
    subject.check("direct effects", [ours[head] for head in chosen], change, float(plainly.abs().max()))
    assert float(change.abs().max()) > 1e-3 * float(plainly.abs())


def test_paths_through_query_key_and_value_are_those_of_frozen_runs(subject: Subject) -> None:
    """Both runs written out: heads frozen but the sender, then one state of a receiver as the first run made it."""
    pair, llama = pair_of(subject), subject.written_out
    members: list[plain.Head] = [(17, 4), (20, 0), (23, 3), (23, 7), (24, 4), (29, 1)]
    ours = path_effects(subject.model, pair.base, pair.source, pair.answers, members)
    base, source = written(llama, pair.base), written(llama, pair.source)
    plainly = difference(llama(pair.base), pair.answers)
    scale, direct, edges = float(plainly.abs().max()), [], []
    found = []
    for row, sender in enumerate(members):
        heard: dict[int, tuple[Tensor, ...]] = {}

        def frozen(
            layer: int, *states: Tensor, sender: plain.Head = sender, heard: dict[int, tuple[Tensor, ...]] = heard
        ) -> Tensor:
            heard[layer] = states
            z = base[layer].clone()
            if layer == sender[0]:
                z[:, sender[1]] = source[layer][:, sender[1]]
            return z

        direct.append(difference(llama(pair.base, frozen), pair.answers) - plainly)
        for column, receiver in enumerate(members):
            if receiver[0] <= sender[0]:
                continue
            for channel, changed in enumerate(((0,), (1,), (2,), (0, 1, 2))):

                def hears(
                    layer: int, *states: Tensor, to: plain.Head = receiver, changed: tuple[int, ...] = changed,
                    heard: dict[int, tuple[Tensor, ...]] = heard,
                ) -> Tensor:  # fmt: skip
                    z = plain.attention(*states)
                    if layer == to[0]:
                        mixed = [heard[layer][place] if place in changed else states[place] for place in range(3)]
                        z[:, to[1]] = plain.attention(*mixed)[:, to[1]]
                    return z

                edges.append(difference(llama(pair.base, hears), pair.answers) - plainly)
                found.append(ours.edges[:, row, column, channel])
    subject.check("direct paths", ours.direct.T, torch.stack(direct), scale)
    subject.check("paths", torch.stack(found), torch.stack(edges), scale)
    assert float(torch.stack(edges).abs().max()) > 0.05 * scale  # some tell something


def written(llama: plain.Llama, ids: Tensor) -> dict[int, Tensor]:
    """The outputs z [B, H, T, d] of all heads, by layer."""
    kept: dict[int, Tensor] = {}

    def attend(layer: int, *states: Tensor) -> Tensor:
        kept[layer] = plain.attention(*states)
        return kept[layer].clone()

    llama(ids, attend)
    return kept
