"""Exact effects of edges of the component graph, the referee of all estimates, and of paths between heads.

**Edges.** An edge u -> v is corrupted where v alone reads what u adds to the stream in a source run, and everything
behind v is computed again. Only layers from v on are called, and many edges together, see `engine.replay`.

**Paths.** A sender's outputs are taken from the source prompts, and all other heads are frozen to the base run, so that
what the sender says spreads through MLPs and norms alone. The stream of this run gives the direct path to the output,
and the query, key and value that any later head, a receiver, would have. In a second run the receiver has one of these,
or all three together, and all else is free: the metric then moves by what the sender tells the receiver (Wang et al.
2022, appendix B). One frozen run serves all receivers of a sender.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.call import Call
from util.engine.components import Components, Parts
from util.engine.finite import check_finite
from util.engine.instruments import PatchHeads
from util.engine.layer_calls import repeated
from util.engine.replay import BUDGET, Edit, Place, replay, row_bytes
from util.scores.attribution import check_pairs, first_difference, metric, model_graph, senders_of

STATES = ("query", "key", "value")  # what a head reads the stream for
Edge = tuple[int, int]  # places of sender and reader in `graph.ComponentGraph`
Edges = Sequence[Edge]
Numbers = Sequence[int]
Edits = Iterator[tuple[Edge, Edit]]


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
    parts = Components(model, base)
    work = _Work(parts, parts.run(source), answers, first_difference(base, source), budget)
    at_once = max(1, budget // (prompts * row_bytes(model, tokens, tokens)))
    effects: dict[Edge, Tensor] = {}
    edits: dict[Edge, Edit] = {}  # of several layers, because they share the base's run
    for layer in range(graph.layers + 1):
        wanted = sorted({edge for edge in edges if graph.layer_of(edge[1]) == layer})
        senders = sorted({sender for sender, _ in wanted})
        for start in range(0, len(senders), at_once):
            some = senders[start : start + at_once]
            edits |= work.edits(layer, some, [edge for edge in wanted if edge[0] in some])
            if len(edits) >= at_once:
                effects |= work.effects(edits)
                edits = {}
    if edits:
        effects |= work.effects(edits)
    together = torch.stack([effects[edge] for edge in edges], 1)
    check_finite(together, "the effects of edges", model, base)
    return together


class _Work:
    """Effects of edges for some prompts, N of T tokens, whose plain runs are known."""

    def __init__(self, parts: Components, source: Parts, answers: Tensor, first: int, budget: int) -> None:
        self.parts, self.base, self.answers = parts, parts.base, answers
        self.first, self.budget = first, budget
        self.senders, self.graph = senders_of(parts, source), model_graph(parts.model)
        with torch.no_grad():
            self.metric = metric(parts, self.base.hidden[-1], answers).cpu()

    @torch.no_grad()
    def edits(self, layer: int, senders: Numbers, edges: Edges) -> dict[Edge, Edit]:
        """A run without each edge from these senders to readers of one layer."""
        changes = self._changes(senders, self.base.hidden[layer].device)
        return dict(self._edits(layer, senders, edges, changes))

    @torch.no_grad()
    def effects(self, edits: Mapping[Edge, Edit]) -> dict[Edge, Tensor]:
        """How far the metric [N] falls under each edit alone; layers ascend."""
        return dict(zip(edits, self.metric - self.metrics([*edits.values()]), strict=True))

    def _changes(self, senders: Numbers, device: torch.device) -> Tensor:
        """By how much senders change the stream, [senders, N, T, d], on the device of the layer that reads it."""
        changes = []
        for sender in self.senders:
            places = range(sender.places.start, sender.places.stop)
            if own := [places.index(place) for place in senders if place in places]:
                changes.append(sender.change()[:, own].transpose(0, 1).to(device))
        return torch.cat(changes)

    def _edits(self, layer: int, senders: Numbers, edges: Edges, changes: Tensor) -> Edits:
        """A run for each edge, those of heads first: its reader reads a changed stream."""
        if layer == self.graph.layers:
            for edge, change in zip(edges, changes, strict=True):
                yield edge, Edit(layer, _nothing, (self.base.hidden[-1] - change)[:, -1:])
            return
        of_mlp = [edge for edge in edges if self.graph.is_mlp(edge[1])]
        of_heads = [edge for edge in edges if edge not in of_mlp]
        if of_heads:
            yield from self._heads(layer, senders, of_heads, changes)
        if of_mlp:
            yield from self._mlps(layer, of_mlp, changes[[senders.index(sender) for sender, _ in of_mlp]])

    def _heads(self, layer: int, senders: Numbers, edges: Edges, changes: Tensor) -> Edits:
        """Heads whose query, key or value reads a changed stream."""
        hidden, heads = self.base.hidden[layer], self.graph.heads
        before, after = self.parts.reads(layer, hidden), self.parts.reads(layer, (hidden - changes).flatten(0, 1))
        for part, name in enumerate(STATES):
            chosen = [edge for edge in edges if edge[1] % self.graph.width // heads == part]
            if not chosen:
                continue
            z = heads_reading(before, after, name).unflatten(0, (len(senders), -1))
            for sender, reader in chosen:
                head = reader % self.graph.width % heads
                own = z[senders.index(sender), :, :, head : head + 1].clone()
                yield (sender, reader), head_edit(layer, head, own)

    def _mlps(self, layer: int, edges: Edges, changes: Tensor) -> Edits:
        """MLPs that read a changed stream."""
        read = self.base.hidden[layer]
        if not self.parts.blocks[layer].parallel:
            read = read + self.parts.writes(layer, self.base.z[layer])
        rows = (read - changes).flatten(0, 1)
        added = self.parts.adds(layer, rows).unflatten(0, (len(edges), -1)) - self.base.mlp[layer]
        after = self.base.hidden[layer + 1].to(added.device)
        for edge, own in zip(edges, added, strict=True):
            yield edge, Edit(layer + 1, _nothing, after + own)

    def metrics(self, edits: Sequence[Edit]) -> Tensor:
        """The metrics [E, N] under each edit alone; those behind the last layer come last."""
        within = [edit for edit in edits if edit.start < self.graph.layers]
        ends = [edit.hidden[:, -1:] for edit in edits[len(within) :] if edit.hidden is not None]
        metrics = []
        if within:
            ids = self.parts.ids.cpu()
            logits = replay(self.parts.model, ids, within, self.answers, self.first, budget=self.budget).logits
            metrics.append((logits[..., 0] - logits[..., 1]).to(self.metric))
        if ends:
            metrics.append(metric(self.parts, torch.cat(ends), self.answers).to(self.metric).view(len(ends), -1))
        return torch.cat(metrics)


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
    layers, work = range(parts.layers), _Work(parts, other, answers, first, budget)
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
    changes = (work.metrics([edits[place] for place in order]) - work.metric)[np.argsort(order)]
    effects = changes.new_zeros(len(STREAMS), parts.layers, *base.shape)
    effects[..., first:] = changes.view(len(STREAMS), parts.layers, -1, len(base)).transpose(2, 3)
    check_finite(effects.movedim(2, 0), "the effects of streams", model, base)
    return effects, work.metric


def _nothing(_: Place) -> tuple[()]:
    return ()


def heads_reading(before: Call, after: Call, name: str) -> Tensor:
    """The outputs [R, T, H, dv] of heads whose query, key or value is that of `after` [R], the others of `before`."""
    states: dict[str, Any] = {other: repeated(getattr(before, other), after.batch) for other in STATES if other != name}
    return replace(after, **states).plain()


def head_edit(layer: int, head: int, z: Tensor) -> Edit:
    """A run in which a head puts out z [N, T, 1, dv]."""

    def instruments(place: Place) -> list[PatchHeads]:
        if place.layer != layer:
            return []
        return [PatchHeads(layer, head, z[place.prompts, place.tokens], examples=place.examples)]

    return Edit(layer, instruments)


CHANNELS = (*STATES, "together")
Head = tuple[int, int]  # (layer, head)
Path = tuple[int, int, int]  # places of sender, receiver and channel


@dataclass(frozen=True)
class PathEffects:
    """By how much the metric changes, for N prompts and K heads, on the CPU.

    direct [N, K]: through the direct path of a sender to the output. edges [N, K, K, 4]: from sender to receiver,
    through one of CHANNELS; NaN where the receiver is in no later layer.
    """

    direct: Tensor
    edges: Tensor


@torch.no_grad()
def path_effects(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    heads: Sequence[Head],
    budget: int = BUDGET,
) -> PathEffects:
    """Returns what heads (layer, head) tell each other and the output, in runs of the base prompts.

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
    base_run, source_run = parts.base, parts.run(source)
    size = max(1, budget // (len(base) * row_bytes(model, base.shape[1], base.shape[1])))
    order = sorted(range(len(heads)), key=lambda place: heads[place])
    paths: dict[Path, Edit] = {}
    direct = torch.empty(len(base), len(heads), dtype=torch.promote_types(model.dtype, torch.float32))
    plain = metric(parts, base_run.hidden[-1], answers).cpu()
    for start in range(0, len(order), size):
        run = _FrozenRun(parts, base_run, source_run, heads, order[start : start + size])
        paths |= run.heard()
        direct[:, run.senders] = (metric(parts, run.stream, answers).cpu().unflatten(0, (-1, len(base))) - plain).T
    edges = direct.new_full((len(base), len(heads), len(heads), len(CHANNELS)), torch.nan)
    if paths:
        first = first_difference(base, source)
        replayed = replay(model, base, list(paths.values()), answers, first, budget=budget)
        after, before = (logits[..., 0] - logits[..., 1] for logits in (replayed.logits, replayed.base))
        sender, receiver, channel = torch.tensor(list(paths)).T
        edges[:, sender, receiver, channel] = (after - before).T.to(edges)
    check_finite(direct, "the direct paths of heads", model, base)
    return PathEffects(direct, edges)


class _FrozenRun:
    """Runs of the base prompts, one for each sender: it is from the source, and all other heads are frozen.

    senders: their places in `heads`, in the order of their layers; each joins the batch at its own layer.
    """

    def __init__(
        self, parts: Components, base: Parts, source: Parts, heads: Sequence[Head], senders: Sequence[int]
    ) -> None:
        self.parts, self.base, self.source, self.heads = parts, base, source, heads
        self.senders = list(senders)
        self.stream: Tensor = base.hidden[0][:0]  # [senders N, T, d], behind the last layer in the end

    def heard(self) -> dict[Path, Edit]:
        """Every path from these senders to other heads, as a run in which the receiver puts out what it then would."""
        paths: dict[Path, Edit] = {}
        joined = 0
        for layer in range(self.heads[self.senders[0]][0], self.parts.layers):
            if joined:
                paths |= dict(self._paths(layer, self.senders[:joined]))
            coming = [place for place in self.senders if self.heads[place][0] == layer]
            self._go_on(layer, [self.heads[place][1] for place in coming])
            joined += len(coming)
        return paths

    def _go_on(self, layer: int, senders: Sequence[int]) -> None:
        """Take the streams through a layer; heads of it that are senders begin theirs here."""
        hidden, z = self.base.hidden[layer], self.base.z[layer]
        streams, added = [self.stream.to(hidden.device)], [repeated(self.parts.writes(layer, z), len(self.stream))]
        for head in senders:
            changed = z.clone()
            changed[:, :, head] = self.source.z[layer][:, :, head]
            streams.append(hidden)
            added.append(self.parts.writes(layer, changed))
        self.stream = self.parts.behind(layer, torch.cat(streams), torch.cat(added))

    def _paths(self, layer: int, senders: Sequence[int]) -> Iterator[tuple[Path, Edit]]:
        """Paths to receivers in this layer, from senders in earlier ones."""
        receivers = [place for place, head in enumerate(self.heads) if head[0] == layer]
        if not receivers:
            return
        before = self.parts.reads(layer, self.base.hidden[layer])
        after = self.parts.reads(layer, self.stream)
        for channel, name in enumerate(CHANNELS):
            z = after.plain() if name == "together" else heads_reading(before, after, name)
            z = z.unflatten(0, (len(senders), -1))
            for sender, own in zip(senders, z, strict=True):
                for receiver in receivers:
                    head = self.heads[receiver][1]
                    yield (sender, receiver, channel), head_edit(layer, head, own[:, :, head : head + 1].clone())
