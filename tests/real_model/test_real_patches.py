"""The map of all single-head patches and direct effects: one forward pass of the reference for each head."""

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.real_model import plain
from tests.real_model.conftest import NAME
from util.figures.ioi_patching import measure
from util.figures.ioi_patching.show import EXAMPLE
from util.scores.exact import path_effects

MEMBERS = {
    "smollm2": [(17, 4), (20, 0), (23, 3), (23, 7), (24, 4), (29, 1)],
    "gemma3": [(9, 3), (11, 3), (12, 1), (13, 3), (15, 1), (17, 2)],
}[NAME]
DIRECT = {"smollm2": (29, 4), "gemma3": (17, 2)}[NAME]


class Pair(NamedTuple):
    base: Tensor
    source: Tensor
    answers: Tensor
    first: int
    plain: Tensor  # the logit difference of the base run

    @classmethod
    def of(cls, subject):
        """The project's pair as tokens, by plain tokenizer calls."""
        base, source = map(subject.ids, EXAMPLE)
        answers = torch.tensor([[subject.first(f" {name}") for name in ("Mike", "Emma")]])
        (first,) = (base != source)[0].nonzero()[:, 0].tolist()
        return cls(base, source, answers, first, difference(subject.reference(base), answers))


def some_heads(subject, count, what):
    """Heads by a hash: the same in every run, chosen by nobody."""
    digests = {head: hashlib.sha256(f"{what} {head}".encode()).hexdigest() for head in subject.reference.every}
    return sorted(digests, key=lambda head: digests[head])[:count]


def difference(logits, answers):
    return logits[:, -1].gather(1, answers) @ torch.tensor([1.0, -1.0], dtype=logits.dtype)


def strongest(effects):
    layer, head = np.unravel_index(np.abs(effects).argmax(), effects.shape)
    return int(layer), int(head)


def test_the_patch_map(subject):
    pair, reference = Pair.of(subject), subject.reference
    heads = measure.heads_of(subject.model, pair.source)
    ours, base = measure.patch_map(subject.model, pair.base, heads, pair.answers, pair.first)
    assert ours.shape == (1, reference.layers, reference.heads)
    z = plain.observed(reference, pair.source)[1]

    def value(layer, head, own):
        return torch.cat([own[:, : pair.first], z[layer, :, head, pair.first :]], dim=1)

    chosen = [*some_heads(subject, 12, "patch map"), strongest(ours[0] - base[0])]
    theirs = [difference(plain.with_heads(reference, pair.base, [head], value), pair.answers) for head in chosen]
    subject.check("base run", base, pair.plain)
    change, scale = torch.cat(theirs) - pair.plain, float(pair.plain.abs().max())
    subject.check("patched heads", [ours[0, *head] for head in chosen] - base[0], change, scale)
    assert float(change.abs().max()) > 0.1 * scale  # the strongest head carries something


def test_direct_effects_reach_the_logits_alone(subject):
    pair, reference = Pair.of(subject), subject.reference
    z, other = measure.heads_of(subject.model, pair.base), measure.heads_of(subject.model, pair.source)
    ours = measure.direct_map(subject.model, pair.base, z, other, pair.answers)[0]
    base, source = (plain.observed(reference, ids)[1] for ids in (pair.base, pair.source))
    chosen = [*some_heads(subject, 6, "direct"), DIRECT, strongest(ours)]
    theirs = []
    for layer, head in chosen:
        change = torch.zeros_like(base[layer, :, head])
        change[:, -1] = (source - base)[layer, :, head, -1]
        theirs.append(difference(reference.with_written(pair.base, (layer, head), change), pair.answers) - pair.plain)
    scale = float(pair.plain.abs().max())
    subject.check("direct effects", [ours[head] for head in chosen], torch.cat(theirs), scale)
    assert float(torch.cat(theirs).abs().max()) > 1e-3 * scale


def test_paths_through_query_key_and_value_are_those_of_frozen_runs(subject):
    """Both runs written out: heads frozen but the sender, then one state of a receiver as the first run made it."""
    pair, reference = Pair.of(subject), subject.reference
    ours_direct, ours_edges = path_effects(subject.model, pair.base, pair.source, pair.answers, MEMBERS)
    base, source = (plain.observed(reference, ids)[1] for ids in (pair.base, pair.source))
    scale, direct, edges, found = float(pair.plain.abs().max()), [], [], []
    for row, sender in enumerate(MEMBERS):
        heard: dict[int, tuple[Tensor, ...]] = {}

        def frozen(layer, *states, sender=sender, heard=heard):
            heard[layer] = states
            z = base[layer].clone()
            if layer == sender[0]:
                z[:, sender[1]] = source[layer][:, sender[1]]
            return z

        direct.append(difference(reference(pair.base, frozen), pair.answers) - pair.plain)
        for column, receiver in enumerate(MEMBERS):
            if receiver[0] <= sender[0]:
                continue
            for channel, changed in enumerate(((0,), (1,), (2,), (0, 1, 2))):

                def hears(
                    layer, *states, to=receiver, changed=changed,
                    heard=heard,
                ):  # fmt: skip
                    z = plain.attention(*states)
                    if layer == to[0]:
                        mixed = [heard[layer][place] if place in changed else states[place] for place in range(3)]
                        z[:, to[1]] = plain.attention(*mixed)[:, to[1]]
                    return z

                edges.append(difference(reference(pair.base, hears), pair.answers) - pair.plain)
                found.append(ours_edges[:, row, column, channel])
    subject.check("direct paths", ours_direct.T, torch.stack(direct), scale)
    subject.check("paths", torch.stack(found), torch.stack(edges), scale)
    assert float(torch.stack(edges).abs().max()) > 0.05 * scale  # some tell something
