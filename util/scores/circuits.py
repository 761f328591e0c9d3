"""Circuits run for real: every edge that a circuit leaves out is corrupted, all of them in one pass.

Each head's query, key and value, each MLP and the logits read a stream of their own: of senders by kept edges what they
put out in this very run, of all others what they put out in the source run. Source: Conmy et al. 2023; the circuit
localisation track of MIB (Mueller et al. 2025).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.call import Call
from util.engine.components import Components, Parts
from util.engine.finite import check_finite
from util.engine.replay import BUDGET, row_bytes
from util.scores.attribution import check_pairs, metric, model_graph


def circuit_metrics(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    circuits: Sequence[NDArray[np.bool_] | Tensor],
    budget: int = BUDGET,
) -> Tensor:
    """Returns the metric of every circuit for every prompt [C, N], on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one; the metric is
    the difference of their logits. circuits: the edges that each keeps [U, V], senders and readers in the order of
    `graph.ComponentGraph`. budget: bytes of one batch. With all edges it is the base run's metric, with none the
    source run's. What stands where no edge is does not count. Raises ValueError, before any pass, for prompts,
    answers or circuits of other shapes or types and for no circuits, UnsupportedModel for a class that `Components`
    refuses.
    """
    check_pairs(model, base, source, answers)
    graph = model_graph(model)
    kept = [torch.as_tensor(circuit) for circuit in circuits]
    if wrong := [f"{c.dtype} {tuple(c.shape)}" for c in kept if c.dtype != torch.bool or tuple(c.shape) != graph.shape]:
        raise ValueError(f"circuits of {wrong[0]}: one is of bool, {graph.shape} senders and readers of this model")
    if not kept:
        raise ValueError("circuits: give at least one")
    rows = graph.width  # at most, of one prompt in one layer
    size = max(1, budget // (rows * row_bytes(model, base.shape[1], base.shape[1])))
    found = torch.empty(len(kept), len(base), dtype=torch.promote_types(model.dtype, torch.float32))
    with tqdm(total=len(kept) * len(base), unit="run", leave=False, delay=5) as bar:
        for start in range(0, len(base), size):
            some = slice(start, start + size)
            joint = _Joint(model, base[some], source[some], answers[some])
            for number, circuit in enumerate(kept):
                found[number, some] = joint.metric(circuit).cpu()
                bar.update(len(base[some]))
    check_finite(found.T, "the metrics of circuits", model, base)
    return found


class _Joint:
    """Circuits of one model on some prompts."""

    def __init__(self, model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor) -> None:
        self.parts, self.answers = Components(model, base), answers
        self.embedded, self.source = self.parts.base.hidden[0], self.parts.run(source)

    @torch.no_grad()
    def metric(self, kept: Tensor) -> Tensor:
        """The metric [N] of the circuit that keeps these edges [U, V]."""
        parts, heads, kept = self.parts, self.parts.heads, kept.cpu()
        run = _Run(parts, self.embedded, self.source)
        for layer in range(parts.layers):
            senders, column = 1 + layer * (heads + 1), layer * (3 * heads + 1)
            patterns, which = kept[:senders, column : column + 3 * heads].unique(dim=1, return_inverse=True)
            read = parts.reads(layer, run.streams(patterns).flatten(0, 1))
            run.add_heads(_mixed_attention(read, patterns.shape[1], which.view(3, heads)))
            own = 0 if parts.parallel else heads
            pattern = kept[: senders + own, column + 3 * heads, None]
            run.add_mlp(parts.adds(layer, run.streams(pattern)[0]))
        return metric(parts, run.streams(kept[:, -1:])[0], self.answers)


class _Run:
    """What all senders up to some layer have put out in the run of a circuit, beside the source run."""

    def __init__(self, parts: Components, embedded: Tensor, source: Parts) -> None:
        self.parts, self.embedded, self.source = parts, embedded, source
        self.heads: list[Tensor] = []  # by layer, what each adds to the projection's output beyond the source run
        self.mlps: list[Tensor] = []

    def add_heads(self, z: Tensor) -> None:
        """The heads of the next layer put out z [N, T, H, dv]."""
        layer = len(self.heads)
        self.heads.append(self.parts.head_writes(layer, z - self.source.z[layer]))

    def add_mlp(self, added: Tensor) -> None:
        """The MLP of the next layer adds this to the stream [N, T, d]."""
        self.mlps.append(added)

    def streams(self, kept: Tensor) -> Tensor:
        """What readers read [P, N, T, d], which read these senders of this run [S, P] and all others of the source.

        The first S senders; the last of them may be the heads of a layer whose MLP has not been called.
        """
        weights, heads = kept.T.to(self.embedded), self.parts.heads
        stream = _mixed(weights[:, 0], self.embedded, self.source.hidden[0])
        for layer, start in enumerate(range(1, len(kept), heads + 1)):
            block, device = self.parts.blocks[layer], self.source.z[layer].device
            stream, weights = stream.to(device), weights.to(device)
            projected = block.projection(self.source.z[layer].flatten(-2))
            own = torch.einsum("ph,nthd->pntd", weights[:, start : start + heads], self.heads[layer])
            stream = stream + block.added(projected + own)
            if start + heads < len(kept):
                stream = stream + _mixed(weights[:, start + heads], self.mlps[layer], self.source.mlp[layer])
        return stream


def _mixed(weights: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """One tensor [N, T, d] where the weight [P] is 1, the other where it is 0: [P, N, T, d]."""
    return torch.where(weights[:, None, None, None] > 0, one, other)


def _mixed_attention(read: Call, patterns: int, which: Tensor) -> Tensor:
    """The heads' outputs z [N, T, H, dv], where query, key and value of each head read streams of their own.

    read: the attention call of P patterns of N prompts, pattern by pattern. which [3, H]: the pattern that each head's
    query, key and value read.
    """
    prompts, heads = read.batch // patterns, read.query.shape[1]
    shared = heads // read.key.shape[1]
    alone = read.only(torch.arange(prompts))
    query, key, value = (state.unflatten(0, (patterns, prompts)) for state in (read.query, read.key, read.value))
    own = torch.arange(heads)
    z = None
    for member in range(shared):  # of the heads that share keys and values, one head of each group at a time
        asking = own[member::shared]
        call: Call = replace(
            alone,
            query=query[which[0], :, own].transpose(0, 1),
            key=key[which[1, asking], :, asking // shared].transpose(0, 1),
            value=value[which[2, asking], :, asking // shared].transpose(0, 1),
        )
        out = call.plain()
        z = torch.empty_like(out) if z is None else z
        z[:, :, asking] = out[:, :, asking]
    assert z is not None
    return z
