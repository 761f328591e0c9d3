"""Exact effects of edges of the component graph, one at a time: the referee of all estimates.

An edge u -> v is corrupted where v alone reads what u adds to the stream in a source run, and everything behind v is
computed again. Only layers from v on are called, and many edges together, see `engine.replay`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index

import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.components import Components, Parts
from util.engine.finite import check_finite
from util.engine.instruments import PatchHeads
from util.engine.layer_calls import repeated
from util.engine.replay import BUDGET, Edit, Place, replay, row_bytes
from util.scores.attribution import check_pairs, first_difference, graph_of, metric, model_graph, senders_of


def exact_scores(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    edges: Sequence[tuple[int, int]],
    budget: int = BUDGET,
) -> Tensor:
    """Returns how far the metric falls where one edge alone is corrupted [N, E], on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one; the metric is
    the difference of their logits. edges: (sender, reader), their places in `graph.ComponentGraph`. budget: bytes of
    one batch. Raises ValueError, before any pass, for prompts or answers of other shapes, for pairs that are no edges
    and for none at all; UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(model, base, source, answers)
    graph = model_graph(model)
    wanted: dict[int, dict[int, list[int]]] = {}  # by layer and sender, which readers
    for sender, reader in {*map(_checked_edge, edges)}:
        graph.name((sender, reader))  # it refuses what is no edge
        wanted.setdefault(graph.layer_of(reader), {}).setdefault(sender, []).append(reader)
    if not wanted:
        raise ValueError("edges: name at least one")
    parts = Components(model, base)
    source_run = parts.run(source)
    work = _Work(parts, source_run, answers, first_difference(base, source), budget)
    found: dict[tuple[int, int], Tensor] = {}
    for layer, readers in sorted(wanted.items()):
        for chunk in work.chunks(sorted(readers)):
            found |= work.effects(layer, {sender: sorted(readers[sender]) for sender in chunk})
    together = torch.stack([found[_checked_edge(edge)] for edge in edges], 1)
    check_finite(together, "the effects of edges", model, base)
    return together


def _checked_edge(edge: tuple[int, int]) -> tuple[int, int]:
    """The sender and the reader as plain integers. Raises ValueError for anything else."""
    try:
        sender, reader = map(index, edge)
    except (TypeError, ValueError) as error:
        raise ValueError(f"an edge is two integers, the places of its sender and its reader, not {edge!r}") from error
    return sender, reader


def _nothing(_: Place) -> tuple[()]:
    return ()


class _Work:
    """Effects of edges for some prompts, N of T tokens, whose plain runs are known."""

    def __init__(self, parts: Components, source: Parts, answers: Tensor, first: int, budget: int) -> None:
        self.parts, self.base, self.answers, self.first = parts, parts.base, answers, first
        self.senders = senders_of(parts, parts.base, source)
        self.graph, self.budget = graph_of(parts), budget
        with torch.no_grad():
            self.metric = metric(parts, self.base.hidden[-1], answers).cpu()

    def chunks(self, senders: Sequence[int]) -> Iterator[Sequence[int]]:
        """Senders, so many at a time as the budget allows."""
        prompts, tokens = self.parts.ids.shape
        size = max(1, self.budget // (prompts * row_bytes(self.parts.model, tokens, tokens)))
        for start in range(0, len(senders), size):
            yield senders[start : start + size]

    @torch.no_grad()
    def effects(self, layer: int, wanted: dict[int, list[int]]) -> dict[tuple[int, int], Tensor]:
        """How far the metric [N] falls, by sender and reader; wanted: by sender, readers of one layer."""
        changes = self._changes(sorted(wanted), self.base.hidden[layer].device)
        if layer == self.graph.layers:
            rows = (self.base.hidden[-1][:, -1] - changes[:, :, -1]).flatten(0, 1)
            metrics = metric(self.parts, rows[:, None], self.answers).cpu().unflatten(0, (len(wanted), -1))
            return {
                (s, r): self.metric - own
                for (s, readers), own in zip(wanted.items(), metrics, strict=True)
                for r in readers
            }
        edges: list[tuple[int, int]] = []
        edits: list[Edit] = []
        for edge, edit in (*self._heads(layer, wanted, changes), *self._mlps(layer, wanted, changes)):
            edges.append(edge)
            edits.append(edit)
        return dict(zip(edges, self.metric - self.run(edits), strict=True))

    def _changes(self, wanted: Sequence[int], device: torch.device) -> Tensor:
        """By how much senders change the stream, [senders, N, T, d], on the device of the layer that reads it."""
        found = []
        for sender in self.senders:
            own = [place - sender.places.start for place in wanted if sender.places.start <= place < sender.places.stop]
            if own:
                found.append(sender.change()[:, own].transpose(0, 1).to(device))
        return torch.cat(found)

    def _heads(
        self, layer: int, wanted: dict[int, list[int]], changes: Tensor
    ) -> Iterator[tuple[tuple[int, int], Edit]]:
        """Heads whose query, key or value reads a changed stream."""
        asked = {s: [r % self.graph.width for r in rs if not self.graph.is_mlp(r)] for s, rs in wanted.items()}
        if not any(asked.values()):
            return
        rows = (self.base.hidden[layer] - changes).flatten(0, 1)
        before, after = self.parts.reads(layer, self.base.hidden[layer]), self.parts.reads(layer, rows)
        for part, name in enumerate(("query", "key", "value")):
            of_part = {
                s: [r % self.graph.heads for r in rs if r // self.graph.heads == part] for s, rs in asked.items()
            }
            if not any(of_part.values()):
                continue
            states = {n: repeated(getattr(before, n), len(rows)) for n in ("query", "key", "value")}
            states[name] = getattr(after, name)
            z = (
                replace(after, query=states["query"], key=states["key"], value=states["value"])
                .plain()
                .unflatten(0, (len(wanted), -1))
            )
            for (sender, heads), own in zip(of_part.items(), z, strict=True):
                for head in heads:
                    reader = layer * self.graph.width + part * self.graph.heads + head
                    yield (sender, reader), head_edit(layer, head, own[:, :, head : head + 1].clone())

    def _mlps(
        self, layer: int, wanted: dict[int, list[int]], changes: Tensor
    ) -> Iterator[tuple[tuple[int, int], Edit]]:
        """MLPs that read a changed stream."""
        chosen = [place for place, readers in enumerate(wanted.values()) if any(map(self.graph.is_mlp, readers))]
        if not chosen:
            return
        read = self.base.hidden[layer]
        if not self.parts.blocks[layer].parallel:
            read = read + self.parts.writes(layer, self.base.z[layer])
        rows = (read - changes[chosen]).flatten(0, 1)
        added = self.parts.adds(layer, rows).unflatten(0, (len(chosen), -1)) - self.base.mlp[layer]
        reader, after = (layer + 1) * self.graph.width - 1, self.base.hidden[layer + 1].to(added.device)
        for sender, own in zip([list(wanted)[place] for place in chosen], added, strict=True):
            yield (sender, reader), Edit(layer + 1, _nothing, after + own)

    def run(self, edits: Sequence[Edit]) -> Tensor:
        """The metrics [E, N] under each edit alone."""
        last = [edit.start == self.graph.layers for edit in edits]
        found = torch.empty(len(edits), len(self.metric), dtype=self.metric.dtype)
        within = [edit for edit, at_end in zip(edits, last, strict=True) if not at_end]
        if within:
            logits = replay(
                self.parts.model, self.parts.ids.cpu(), within, self.answers, self.first, budget=self.budget
            ).logits
            found[~torch.tensor(last)] = (logits[..., 0] - logits[..., 1]).to(found)
        ends = [edit.hidden[:, -1:] for edit in edits if edit.start == self.graph.layers and edit.hidden is not None]
        if ends:
            metrics = metric(self.parts, torch.cat(ends), self.answers).cpu()
            found[torch.tensor(last)] = metrics.unflatten(0, (len(ends), -1)).to(found)
        return found


def head_edit(layer: int, head: int, z: Tensor) -> Edit:
    """A run in which a head puts out z [N, T, 1, dv]."""

    def instruments(place: Place) -> list[PatchHeads]:
        if place.layer != layer:
            return []
        return [PatchHeads(layer, head, z[place.prompts, place.tokens], examples=place.examples)]

    return Edit(layer, instruments)
