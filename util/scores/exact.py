"""Exact effects of edges, the referee of all estimates, and of paths between heads; circuits of edges, run.

**Edges.** An edge u -> v is corrupted where v alone reads what u adds to the stream in a source run, and everything
behind v is computed again. Only layers from v on are called, and many edges together, see `engine.replay`.

**Paths.** A sender's outputs are taken from the source prompts, and all other heads are frozen to the base run, so that
what the sender says spreads through MLPs and norms alone. The stream of this run gives the direct path to the output,
and the query, key and value that any later head, a receiver, would have. In a second run the receiver has one of these,
or all three together, and all else is free: the metric then moves by what the sender tells the receiver (Wang et al.
2022, appendix B). One frozen run serves all receivers of a sender.

**Circuits.** Every edge that a circuit leaves out is corrupted, all of them in one pass. Each head's query, key and
value, each MLP and the logits read a stream of their own: of senders by kept edges what they put out in this very run,
of all others what they put out in the source run (Conmy et al. 2023; the circuit localisation track of MIB, Mueller et
al. 2025).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import head_writes
from util.engine.call import Call, repeated
from util.engine.components import Components, Parts, parallel_mlps
from util.engine.finite import check_finite
from util.engine.replay import BUDGET, Edit, Place, head_edit, replay, row_bytes
from util.scores.attribution import check_pairs, first_difference, metric, model_graph, sent
from util.scores.graph import ComponentGraph
from util.stats.heads import Bools, Head
from util.study.records import chunks

STATES = ("query", "key", "value")  # what a head reads the stream for
Edge = tuple[int, int]  # places of sender and reader in `graph.ComponentGraph`
Edges = Sequence[Edge]


# ------------------------------------------------------------------------------------------------ edges


@torch.no_grad()
def exact_scores(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    edges: Edges,
    budget: int = BUDGET,
) -> Tensor:
    """Returns how far the metric falls where one edge alone is corrupted [N, E], on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one; the metric is
    the difference of their logits. edges: (sender, reader), their places in `graph.ComponentGraph`. budget: bytes of
    one batch. Raises ValueError, before any pass, for prompts or answers of other shapes, for pairs that are no edges
    and for none at all; UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(model, base, source, answers)
    graph, (prompts, tokens) = model_graph(model), base.shape
    for edge in edges:
        graph.name(edge)  # it refuses what is no edge
    if not edges:
        raise ValueError("edges: name at least one")
    parts, first = Components(model, base), first_difference(base, source)
    source_run, plain = parts.run(source), metric(parts, parts.base.hidden[-1], answers).cpu()
    at_once = max(1, budget // (prompts * row_bytes(model, tokens, tokens)))
    effects: dict[Edge, Tensor] = {}
    for edits in _batches(parts, graph, source_run, edges, at_once):
        effects |= zip(edits, plain - _metrics(parts, [*edits.values()], answers, first, budget), strict=True)
    together = torch.stack([effects[edge] for edge in edges], 1)
    check_finite(together, "the effects of edges", model, base)
    return together


def _batches(
    parts: Components, graph: ComponentGraph, source: Parts, edges: Edges, at_once: int
) -> Iterator[dict[Edge, Edit]]:
    """A run for each edge, about so many at a time: of several layers, because they share the base's run."""
    edits: dict[Edge, Edit] = {}
    for layer in range(graph.layers + 1):
        wanted = sorted({edge for edge in edges if edge[1] // graph.width == layer})
        writers = sorted({sender for sender, _ in wanted})
        for some in chunks(writers, at_once):
            edits |= _edits(parts, graph, source, layer, [edge for edge in wanted if edge[0] in some])
            if len(edits) >= at_once:
                yield edits
                edits.clear()
    if edits:
        yield edits


def _edits(parts: Components, graph: ComponentGraph, source: Parts, layer: int, edges: Edges) -> dict[Edge, Edit]:
    """A run for each edge to readers of one layer, those of heads first: its reader alone reads a changed stream."""
    hidden, writers = parts.base.hidden[layer], sorted({sender for sender, _ in edges})
    sends = sent(parts, source, writers)
    changes = torch.cat([change.transpose(0, 1).to(hidden.device) for _, change in sends])  # [writers, N, T, d]
    if layer == graph.layers:
        ends = (hidden - changes)[:, :, -1:]
        return {edge: Edit(layer, _nothing, end) for edge, end in zip(edges, ends, strict=True)}
    edits: dict[Edge, Edit] = {}
    # readers of a layer: queries of all heads, keys, values, and the MLP
    *of_heads, of_mlp = ([edge for edge in edges if edge[1] % graph.width // graph.heads == part] for part in range(4))
    if any(of_heads):
        before, after = parts.reads(layer, hidden), parts.reads(layer, (hidden - changes).flatten(0, 1))
        for name, chosen in zip(STATES, of_heads, strict=True):
            if chosen:
                z = heads_reading(before, after, name).unflatten(0, (len(writers), -1))
            for sender, reader in chosen:
                head = reader % graph.width % graph.heads
                edits[sender, reader] = head_edit(layer, head, z[writers.index(sender)])
    if of_mlp:
        read = hidden if graph.parallel else hidden + parts.writes(layer, parts.base.z[layer])
        rows = (read - changes[[writers.index(sender) for sender, _ in of_mlp]]).flatten(0, 1)
        added = parts.adds(layer, rows).unflatten(0, (len(of_mlp), -1)) - parts.base.mlp[layer]
        behind = parts.base.hidden[layer + 1].to(added.device)
        edits |= {edge: Edit(layer + 1, _nothing, behind + term) for edge, term in zip(of_mlp, added, strict=True)}
    return edits


def _metrics(parts: Components, edits: Sequence[Edit], answers: Tensor, first: int, budget: int) -> Tensor:
    """The metrics [E, N] under each edit alone, on the CPU; those behind the last layer come last."""
    within = [edit for edit in edits if edit.start < parts.layers]
    ends = [edit.hidden[:, -1:] for edit in edits[len(within) :] if edit.hidden is not None]
    metrics = []
    if within:
        logits, _ = replay(parts.model, parts.ids.cpu(), within, answers, first, budget=budget)
        metrics.append(logits[..., 0] - logits[..., 1])
    if ends:
        metrics.append(metric(parts, torch.cat(ends), answers).cpu().view(len(ends), -1))
    return torch.cat(metrics)


# ------------------------------------------------------------------------------------------------ streams

STREAMS = ("residual stream before the layer", "attention's output", "MLP's output")


@torch.no_grad()
def stream_effects(
    model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor, budget: int = BUDGET
) -> tuple[Tensor, Tensor]:
    """Returns how the metric changes where one of STREAMS at one token is the source's, [3, L, N, T], and it [N].

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the metric is the logit of the first minus that of
    the second, behind the last token. L counts all layers. Before the first token that differs nothing changes. budget:
    bytes of one batch. Raises ValueError for prompts or answers of other shapes; UnsupportedModel for a class that
    `Components` refuses.
    """
    check_pairs(model, base, source, answers)
    parts, first = Components(model, base), first_difference(base, source)
    run, other = parts.base, parts.run(source)
    layers, plain = range(parts.layers), metric(parts, run.hidden[-1], answers).cpu()
    streams = [(layer, other.hidden[layer]) for layer in layers]  # from which layer on it stands for the base run's
    for layer in layers:
        between = run.hidden[layer] + parts.writes(layer, other.z[layer])
        parallel = parts.blocks[layer].parallel
        streams.append((layer + 1, between + (run.mlp[layer] if parallel else parts.adds(layer, between))))
    streams += [(layer + 1, run.hidden[layer + 1] + other.mlp[layer] - run.mlp[layer]) for layer in layers]
    edits = []
    for layer, stream in streams:
        for token in range(first, base.shape[1]):
            hidden = run.hidden[layer].clone()
            hidden[:, token] = stream[:, token]
            edits.append(Edit(layer, _nothing, hidden))
    order = sorted(range(len(edits)), key=lambda place: edits[place].start)  # those behind the last layer come last
    metrics = _metrics(parts, [edits[place] for place in order], answers, first, budget)
    changes = (metrics - plain)[np.argsort(order)]
    effects = changes.new_zeros(len(STREAMS), parts.layers, *base.shape)
    effects[..., first:] = changes.view(len(STREAMS), parts.layers, -1, len(base)).transpose(2, 3)
    check_finite(effects.movedim(2, 0), "the effects of streams", model, base)
    return effects, plain


def _nothing(_: Place) -> tuple[()]:
    return ()


def heads_reading(before: Call, after: Call, name: str) -> Tensor:
    """The outputs [R, T, H, dv] of heads whose query, key or value is that of `after` [R], the others of `before`.

    name: of STATES, or "together": all three.
    """
    states: dict[str, Any] = {
        other: repeated(getattr(before, other), after.batch) for other in STATES if name not in (other, "together")
    }
    return replace(after, **states).plain()


# ------------------------------------------------------------------------------------------------ paths

CHANNELS = (*STATES, "together")
Path = tuple[int, int, int]  # places of sender, receiver and channel


@torch.no_grad()
def path_effects(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    heads: Sequence[Head],
    budget: int = BUDGET,
) -> tuple[Tensor, Tensor]:
    """Returns by how much the metric of base prompts changes by what K heads (layer, head) tell the output and others.

    That is [N, K], through the direct path of a sender to the output; and [N, K, K, 4], from sender to receiver through
    one of CHANNELS, NaN where the receiver is in no later layer. Both are on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the metric is the logit of the first minus that of
    the second, behind the last token. budget: bytes of one batch. Raises ValueError for prompts or answers of other
    shapes and for heads that the model does not have or that come twice, UnsupportedModel for a class that `Components`
    refuses.
    """
    check_pairs(model, base, source, answers)
    parts = Components(model, base)
    if not heads or len({*heads} & {*np.ndindex(parts.layers, parts.heads)}) < len(heads):
        shape = f"{parts.layers} layers of {parts.heads} heads"
        raise ValueError(f"heads = {list(heads)}: name at least one head of {shape}, and none twice")
    source_run = parts.run(source)
    size = max(1, budget // (len(base) * row_bytes(model, base.shape[1], base.shape[1])))
    order = sorted(range(len(heads)), key=lambda place: heads[place])
    paths: dict[Path, Edit] = {}
    direct = torch.empty(len(base), len(heads), dtype=torch.promote_types(model.dtype, torch.float32))
    plain = metric(parts, parts.base.hidden[-1], answers).cpu()
    for senders in chunks(order, size):
        heard, stream = _frozen_runs(parts, source_run, heads, senders)
        paths |= heard
        direct[:, senders] = (metric(parts, stream, answers).cpu().unflatten(0, (-1, len(base))) - plain).T
    edges = direct.new_full((len(base), len(heads), len(heads), len(CHANNELS)), torch.nan)
    if paths:
        first = first_difference(base, source)
        replayed = replay(model, base, list(paths.values()), answers, first, budget=budget)
        after, before = (logits[..., 0] - logits[..., 1] for logits in replayed)
        sender, receiver, channel = torch.tensor(list(paths)).T
        edges[:, sender, receiver, channel] = (after - before).T.to(edges)
    check_finite(direct, "the direct paths of heads", model, base)
    return direct, edges


def _frozen_runs(
    parts: Components, source: Parts, heads: Sequence[Head], senders: Sequence[int]
) -> tuple[dict[Path, Edit], Tensor]:
    """Runs of the base prompts, one for each sender: it is from the source, and all other heads are frozen.

    senders: their places in `heads`, in the order of their layers; each joins the batch at its own layer. Returns every
    path from them to other heads, as a run in which the receiver puts out what it then would, and their streams
    [senders N, T, d] behind the last layer.
    """
    base, paths, joined = parts.base, dict[Path, Edit](), 0
    stream = base.hidden[0][:0]
    for layer in range(heads[senders[0]][0], parts.layers):
        hidden, z = base.hidden[layer], base.z[layer]
        receivers = [place for place, head in enumerate(heads) if head[0] == layer]
        if joined and receivers:
            before, after = parts.reads(layer, hidden), parts.reads(layer, stream)
            for channel, name in enumerate(CHANNELS):
                heard = heads_reading(before, after, name).unflatten(0, (joined, -1))
                for sender, receiver in product(range(joined), receivers):
                    edit = head_edit(layer, heads[receiver][1], heard[sender])
                    paths[senders[sender], receiver, channel] = edit
        streams, added = [stream.to(hidden.device)], [repeated(parts.writes(layer, z), len(stream))]
        for place in senders:
            if heads[place][0] == layer:
                changed, head = z.clone(), heads[place][1]
                changed[:, :, head] = source.z[layer][:, :, head]
                streams.append(hidden)
                added.append(parts.writes(layer, changed))
        joined += len(streams) - 1
        stream = parts.behind(layer, torch.cat(streams), torch.cat(added))
    return paths, stream


# ------------------------------------------------------------------------------------------------ circuits


def circuit_metrics(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    circuits: Bools | Tensor,
) -> Tensor:
    """Returns the metric of every circuit for every prompt [C, N], on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one; the metric is
    the difference of their logits. circuits: the edges that each keeps [C, U, V], senders and readers in the order of
    `graph.ComponentGraph`. With all edges it is the base run's metric, with none the source run's. What stands where no
    edge is does not count. Raises ValueError, before any pass, for prompts, answers or circuits of other shapes or
    types, UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(model, base, source, answers)
    graph, kept = model_graph(model), torch.as_tensor(circuits).cpu()
    if kept.dtype != torch.bool or kept.shape[1:] != graph.shape:
        raise ValueError(f"circuits: {kept.dtype} {[*kept.shape]}; give bool [circuits, *{graph.shape}]")
    size = max(1, BUDGET // (graph.width * row_bytes(model, base.shape[1], base.shape[1])))  # one reader each, at most
    metrics = torch.empty(len(kept), len(base), dtype=torch.promote_types(model.dtype, torch.float32))
    with tqdm(total=metrics.numel(), unit="run", leave=False, delay=5) as bar:
        for some in torch.arange(len(base)).split(size):
            parts = Components(model, base[some])
            source_run = parts.run(source[some])
            with torch.no_grad():
                blocks = zip(parts.blocks, source_run.z, strict=True)
                projected = [block.projection(z.flatten(-2)) for block, z in blocks]
            for number, circuit in enumerate(kept):
                metrics[number, some] = _metric(parts, source_run, projected, circuit, answers[some]).cpu()
                bar.update(len(base[some]))
    check_finite(metrics.T, "the metrics of circuits", model, base)
    return metrics


@torch.no_grad()
def _metric(parts: Components, source: Parts, projected: Sequence[Tensor], kept: Tensor, answers: Tensor) -> Tensor:
    """The metric [N] of the circuit that keeps these edges [U, V].

    projected: by layer, what the projection makes of all heads in the source run.
    """
    of_heads, of_mlps = list[Tensor](), list[Tensor]()  # by layer: what each adds to `projected`, and to the stream
    heads, embedded = parts.heads, parts.base.hidden[0]

    def streams(kept: Tensor) -> Tensor:
        """What readers read [P, N, T, d], which read these senders of this run [S, P] and all others of the source.

        The first S senders; the last of them may be the heads of a layer whose MLP has not been called.
        """
        weights = kept.T.to(embedded)
        stream = _mixed(weights[:, 0], embedded, source.hidden[0])
        for layer, start in enumerate(range(1, len(kept), heads + 1)):
            device = source.z[layer].device
            stream, weights = stream.to(device), weights.to(device)
            from_heads = torch.einsum("ph,nthd->pntd", weights[:, start : start + heads], of_heads[layer])
            stream = stream + parts.blocks[layer].added(projected[layer] + from_heads)
            if start + heads < len(kept):
                stream = stream + _mixed(weights[:, start + heads], of_mlps[layer], source.mlp[layer])
        return stream

    for layer in range(parts.layers):
        senders, column = 1 + layer * (heads + 1), layer * (3 * heads + 1)
        patterns, which = kept[:senders, column : column + 3 * heads].unique(dim=1, return_inverse=True)
        read = parts.reads(layer, streams(patterns).flatten(0, 1))
        z = _mixed_attention(read, patterns.shape[1], which.view(3, heads))
        of_heads.append(head_writes(parts.blocks[layer].projection, z - source.z[layer]))
        of_layer = 0 if parallel_mlps(parts.model) else heads
        pattern = kept[: senders + of_layer, column + 3 * heads, None]
        of_mlps.append(parts.adds(layer, streams(pattern)[0]))
    return metric(parts, streams(kept[:, -1:])[0], answers)


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
    indices, z = torch.arange(heads), []
    for member in range(shared):  # of the heads that share keys and values, one head of each group at a time
        asking = indices[member::shared]
        call: Call = replace(
            read,
            mask=mask,
            query=query[which[0], :, indices].transpose(0, 1),
            key=key[which[1, asking], :, asking // shared].transpose(0, 1),
            value=value[which[2, asking], :, asking // shared].transpose(0, 1),
        )
        z.append(call.plain()[:, :, asking])
    return torch.stack(z, 3).flatten(2, 3)
