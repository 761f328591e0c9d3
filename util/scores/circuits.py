"""Circuits run for real: every edge that a circuit leaves out is corrupted, all of them in one pass.

Each head's query, key and value, each MLP and the logits read a stream of their own: of senders by kept edges what they
put out in this very run, of all others what they put out in the source run. Source: Conmy et al. 2023; the circuit
localisation track of MIB (Mueller et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.call import Call
from util.engine.components import Components, Parts, parallel_mlps
from util.engine.finite import check_finite
from util.engine.replay import BUDGET, row_bytes
from util.scores.attribution import check_pairs, metric, model_graph


def circuit_metrics(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    circuits: NDArray[np.bool_] | Tensor,
    budget: int = BUDGET,
) -> Tensor:
    """Returns the metric of every circuit for every prompt [C, N], on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one; the metric is
    the difference of their logits. circuits: the edges that each keeps [C, U, V], senders and readers in the order of
    `graph.ComponentGraph`. budget: bytes of one batch. With all edges it is the base run's metric, with none the
    source run's. What stands where no edge is does not count. Raises ValueError, before any pass, for prompts,
    answers or circuits of other shapes or types, UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(model, base, source, answers)
    graph, kept = model_graph(model), torch.as_tensor(circuits).cpu()
    if kept.dtype != torch.bool or kept.shape[1:] != graph.shape:
        raise ValueError(f"circuits: {kept.dtype} {[*kept.shape]}; give bool [circuits, *{graph.shape}]")
    size = max(1, budget // (graph.width * row_bytes(model, base.shape[1], base.shape[1])))  # one reader each, at most
    metrics = torch.empty(len(kept), len(base), dtype=torch.promote_types(model.dtype, torch.float32))
    with tqdm(total=metrics.numel(), unit="run", leave=False, delay=5) as bar:
        for start in range(0, len(base), size):
            some = slice(start, start + size)
            parts = Components(model, base[some])
            source_run = parts.run(source[some])
            with torch.no_grad():
                blocks = zip(parts.blocks, source_run.z, strict=True)
                projected = [block.projection(z.flatten(-2)) for block, z in blocks]
            for number, circuit in enumerate(kept):
                metrics[number, some] = _metric(_Run(parts, source_run, projected), circuit, answers[some]).cpu()
                bar.update(len(base[some]))
    check_finite(metrics.T, "the metrics of circuits", model, base)
    return metrics


@torch.no_grad()
def _metric(run: _Run, kept: Tensor, answers: Tensor) -> Tensor:
    """The metric [N] of the circuit that keeps these edges [U, V]."""
    parts, heads = run.parts, run.parts.heads
    for layer in range(parts.layers):
        senders, column = 1 + layer * (heads + 1), layer * (3 * heads + 1)
        patterns, which = kept[:senders, column : column + 3 * heads].unique(dim=1, return_inverse=True)
        read = parts.reads(layer, run.streams(patterns).flatten(0, 1))
        z = _mixed_attention(read, patterns.shape[1], which.view(3, heads))
        run.heads.append(parts.head_writes(layer, z - run.source.z[layer]))
        of_layer = 0 if parallel_mlps(parts.model) else heads
        pattern = kept[: senders + of_layer, column + 3 * heads, None]
        run.mlps.append(parts.adds(layer, run.streams(pattern)[0]))
    return metric(parts, run.streams(kept[:, -1:])[0], answers)


class _Run:
    """What all senders up to some layer have put out in the run of a circuit, beside the source run.

    heads: by layer, what each adds to the output of the projection beyond the source run, which is `projected`; mlps:
    to the stream.
    """

    def __init__(self, parts: Components, source: Parts, projected: Sequence[Tensor]) -> None:
        self.parts, self.source, self.projected, self.embedded = parts, source, projected, parts.base.hidden[0]
        self.heads: list[Tensor] = []
        self.mlps: list[Tensor] = []

    def streams(self, kept: Tensor) -> Tensor:
        """What readers read [P, N, T, d], which read these senders of this run [S, P] and all others of the source.

        The first S senders; the last of them may be the heads of a layer whose MLP has not been called.
        """
        weights, heads = kept.T.to(self.embedded), self.parts.heads
        stream = _mixed(weights[:, 0], self.embedded, self.source.hidden[0])
        for layer, start in enumerate(range(1, len(kept), heads + 1)):
            block, device = self.parts.blocks[layer], self.source.z[layer].device
            stream, weights = stream.to(device), weights.to(device)
            own = torch.einsum("ph,nthd->pntd", weights[:, start : start + heads], self.heads[layer])
            stream = stream + block.added(self.projected[layer] + own)
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
    mask = None if read.mask is None else read.mask[:prompts]
    query, key, value = (state.unflatten(0, (patterns, prompts)) for state in (read.query, read.key, read.value))
    own = torch.arange(heads)
    z = None
    for member in range(shared):  # of the heads that share keys and values, one head of each group at a time
        asking = own[member::shared]
        call: Call = replace(
            read,
            mask=mask,
            query=query[which[0], :, own].transpose(0, 1),
            key=key[which[1, asking], :, asking // shared].transpose(0, 1),
            value=value[which[2, asking], :, asking // shared].transpose(0, 1),
        )
        out = call.plain()
        z = torch.empty_like(out) if z is None else z
        z[:, :, asking] = out[:, :, asking]
    assert z is not None
    return z
