"""First-order scores of all edges of the component graph: edge attribution patching, and with integrated gradients.

An edge u -> v is what node v reads of node u. Its exact effect is how far a metric falls when v alone reads u from a
corrupted run. To first order that is (base - corrupted output of u) . d metric / d input of v: two forward passes and
one backward pass for all edges (Syed et al. 2023, EAP). Averaged over points between the corrupted and the base run
(Hanna et al. 2024, EAP-IG) it sees past a metric that is flat at the base run. Positive scores help the metric.

Scores are arrays [N, U, V], prompt by sender by reader, in the order of `graph.ComponentGraph`; entries that are no
edges are 0. The metric is the logit of the first answer minus that of the second, behind the last token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.components import Components, Parts, Tap
from util.engine.finite import check_finite
from util.engine.handshake import prepare
from util.scores.graph import ComponentGraph
from util.scores.readers import attention_readers

Method = Literal["EAP", "EAP-IG inputs", "EAP-IG activations"]
STEPS = 5  # of integrated gradients, as in the MIB circuit track
TOGETHER = 128  # readers whose gradients are multiplied with what senders write at a time
BUDGET = 2**26  # bytes of what all senders write, for the prompts that are scored at a time


def edge_scores(
    model: PreTrainedModel,
    base: Tensor,
    corrupted: Tensor,
    answers: Tensor,
    method: Method = "EAP",
    steps: int = STEPS,
    first: int = 0,
    budget: int = BUDGET,
) -> Tensor:
    """Returns the score of every edge for every prompt, [N, U, V], float32 (float64 if the model is), on the CPU.

    base, corrupted: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one.
    steps: of EAP-IG. Step k of S stands (first + k) / S of the way from the corrupted run to the base run, k from 0 on.
    Hanna et al.'s code takes first = 0 for edges, 1 for nodes. "inputs" moves the embeddings along this way,
    "activations" one sublayer's output at a time, which takes S passes for each sublayer.
    budget: bytes of the writes of all senders, which decide how many prompts are scored at a time.
    Raises ValueError for prompts or answers of other shapes, UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(base, corrupted, answers)
    if method not in get_args(Method):
        raise ValueError(f"method = {method!r}: there are {', '.join(get_args(Method))}")
    if steps < 1 or first not in (0, 1):
        raise ValueError(f"steps = {steps}, first = {first}: give 1 step or more, the first of them 0 or 1")
    shares = [(first + step) / steps for step in range(steps)]
    found = []
    with tqdm(total=len(base), unit="prompt", leave=False, delay=5) as bar:
        for some in _chunks(model, base, base.shape[1] - first_difference(base, corrupted), budget):
            scored = _Scored(model, base[some], corrupted[some], answers[some], graph=method == "EAP")
            if method == "EAP":
                scores = scored.at_base()
            elif method == "EAP-IG inputs":
                scores = scored.along_inputs(shares)
            else:
                scores = scored.along_activations(shares)
            found.append(scores.to(torch.promote_types(scores.dtype, torch.float32)).cpu())
            bar.update(len(scores))
    together = torch.cat(found)
    check_finite(together, "the scores of edges", model, base)
    return together


def node_scores(model: PreTrainedModel, base: Tensor, corrupted: Tensor, answers: Tensor) -> Tensor:
    """Returns the first-order score of every sender [N, U]: what the metric loses if all read it in the corrupted run.

    Arguments and errors are those of `edge_scores`. Source: attribution patching (Nanda 2023).
    """
    check_pairs(base, corrupted, answers)
    parts = Components(model, base)
    intact, other = parts.base, Components(model, corrupted).base
    found = gradients(parts, intact.hidden[0], answers)
    scores = [_dot(intact.hidden[0] - other.hidden[0], found.hidden[0])[:, None]]
    for layer in range(parts.layers):
        change = intact.z[layer] - other.z[layer]
        scores.append((change * found.z[layer]).sum((1, 3)))
        scores.append(_dot(intact.mlp[layer] - other.mlp[layer], found.hidden[layer + 1])[:, None])
    together = torch.cat(scores, 1)
    together = together.to(torch.promote_types(together.dtype, torch.float32)).cpu()
    check_finite(together, "the scores of nodes", model, base)
    return together


def check_pairs(base: Tensor, corrupted: Tensor, answers: Tensor) -> None:
    """Raises ValueError unless base and corrupted are [N, T] alike, and answers [N, 2]."""
    if base.ndim != 2 or base.shape != corrupted.shape or not base.numel():
        raise ValueError(
            f"base {tuple(base.shape)}, corrupted {tuple(corrupted.shape)}: give token ids [N, T], and each corrupted "
            "prompt as many tokens as its base prompt; prompts of other lengths go into calls of their own"
        )
    if answers.shape != (len(base), 2):
        raise ValueError(f"answers {tuple(answers.shape)}: give [{len(base)}, 2], the right token and the wrong one")


def first_difference(base: Tensor, corrupted: Tensor) -> int:
    """The first position [0, T) where prompts [N, T] differ from their corrupted ones; 0 where none does."""
    different = (base != corrupted).any(0).nonzero()
    return int(different[0]) if len(different) else 0


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).flatten(1).sum(1)


def graph_of(parts: Components) -> ComponentGraph:
    """The component graph of a model."""
    return ComponentGraph(parts.layers, parts.heads, parts.parallel)


def _chunks(model: PreTrainedModel, base: Tensor, tokens: int, budget: int) -> list[slice]:
    """Prompts [N, T] in parts, of which what all senders write at so many tokens takes no more than these bytes."""
    found, width = prepare(model), model.config.get_text_config(decoder=True).hidden_size
    senders = 1 + len(found.layers) * (found.heads + 1)
    size = max(1, budget // (tokens * width * senders * model.dtype.itemsize))
    return [slice(start, start + size) for start in range(0, len(base), size)]


# ------------------------------------------------------------------------------------------------ what senders change


@dataclass(frozen=True)
class Sender:
    """Senders that write together: the input, the heads of a layer, or its MLP.

    layer: theirs, -1 for the input; kind; places: theirs among all senders. base, corrupted: what they put out in both
    runs, z [N, T, H, dv] or what they add to the stream [N, T, d].
    """

    parts: Components
    layer: int
    kind: Literal["input", "heads", "mlp"]
    places: slice
    base: Tensor
    corrupted: Tensor

    @torch.no_grad()
    def change(self, first_order: bool = False, start: int = 0) -> Tensor:
        """By how much each of them alone changes the stream [N, places, T - start, d], base minus corrupted.

        first_order: of a norm behind the heads of a layer, where the class has one; all else is linear anyway.
        start: the first token that is asked for.
        """
        base, corrupted = self.base[:, start:], self.corrupted[:, start:]
        if self.kind != "heads":
            return (base - corrupted)[:, None]
        block = self.parts.blocks[self.layer]
        change = self.parts.head_writes(self.layer, base - corrupted)
        if not block.normed:
            changed = change * block.factor
        else:
            total = block.projection(base.flatten(-2))[:, :, None].expand(change.shape).contiguous()
            if first_order:
                changed = torch.func.jvp(block.attention, (total,), (change,))[1] * block.factor
            else:
                changed = self.parts.added(self.layer, total) - self.parts.added(self.layer, total - change)
        return changed.transpose(1, 2)

    def between(self, share: float) -> "Patch":
        """An output that lies this share of the way from the corrupted run to the base run."""
        return Patch(self.layer, self.kind, torch.lerp(self.corrupted, self.base, share))


class Patch(NamedTuple):
    """What some senders put out instead of what they compute, see `Sender`."""

    layer: int
    kind: str
    value: Tensor


def senders_of(parts: Components, base: Parts, corrupted: Parts) -> list[Sender]:
    """All senders, in their order."""
    senders = [Sender(parts, -1, "input", slice(0, 1), base.hidden[0], corrupted.hidden[0])]
    for layer in range(parts.layers):
        start = 1 + layer * (parts.heads + 1)
        heads, mlp = slice(start, start + parts.heads), slice(start + parts.heads, start + parts.heads + 1)
        senders.append(Sender(parts, layer, "heads", heads, base.z[layer], corrupted.z[layer]))
        senders.append(Sender(parts, layer, "mlp", mlp, base.mlp[layer], corrupted.mlp[layer]))
    return senders


# ------------------------------------------------------------------------------------------------ what readers feel


class Gradients(NamedTuple):
    """Gradients of the metric: by layer of the hidden states [N, T, d] before it (L + 1), and of the outputs z.

    streams: the hidden states themselves, where the gradients were taken.
    """

    hidden: tuple[Tensor, ...]
    z: tuple[Tensor, ...]
    streams: tuple[Tensor, ...]


def gradients(parts: Components, embedded: Tensor, answers: Tensor, patch: Patch | None = None) -> Gradients:
    """Gradients of the metric in a run from these embeddings [N, T, d], with the output of some senders replaced."""
    if patch is not None and patch.kind == "input":
        embedded = patch.value
    with torch.enable_grad():
        streams, z = [embedded.detach().requires_grad_()], []
        for layer in range(parts.layers):
            kind, value = (patch.kind, patch.value) if patch is not None and patch.layer == layer else ("", None)
            tap = Tap(layer, value if kind == "heads" else None)
            with instrument(parts.model, tap), parts.mlp_adding(layer, value if kind == "mlp" else None):
                streams.append(parts.whole(layer, streams[-1]))
            z.append(tap.z)
        found = torch.autograd.grad(metric(parts, streams[-1], answers).sum(), [*streams, *z])
    hidden, outputs = found[: len(streams)], list(found[len(streams) :])
    if patch is not None and patch.kind == "heads":
        outputs[patch.layer] = torch.zeros_like(outputs[patch.layer])  # what these heads read changes nothing
    return Gradients(hidden, tuple(outputs), tuple(stream.detach() for stream in streams))


def base_gradients(parts: Components, answers: Tensor) -> Gradients:
    """Gradients of the metric in the base run, whose graph was kept and is gone afterwards; answers [N, 2]."""
    run = parts.base
    with torch.enable_grad():
        found = torch.autograd.grad(metric(parts, run.hidden[-1], answers).sum(), [*run.hidden, *run.z])
    parts.base = run.detached()
    return Gradients(found[: len(run.hidden)], found[len(run.hidden) :], parts.base.hidden)


def metric(parts: Components, hidden: Tensor, answers: Tensor) -> Tensor:
    """The metric [R] for the stream [R, T, d] behind the last layer; answers [N, 2]."""
    logits = parts.logits(hidden[:, -1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    pair = logits.gather(1, answers.to(logits.device).repeat(len(logits) // len(answers), 1))
    return pair[:, 0] - pair[:, 1]


# ------------------------------------------------------------------------------------------------ both together


class _Scored:
    """Prompts [N, T] that are scored together.

    writes [N, U, T - start, d]: by how much each sender changes the stream, from the first token on that differs.
    """

    def __init__(
        self, model: PreTrainedModel, base: Tensor, corrupted: Tensor, answers: Tensor, *, graph: bool = False
    ) -> None:
        self.parts, self.answers = Components(model, base, graph=graph), answers
        self.gradients = base_gradients(self.parts, answers) if graph else None
        self.base, self.corrupted = self.parts.base, Components(model, corrupted).base
        self.senders = senders_of(self.parts, self.base, self.corrupted)
        self.start = first_difference(base, corrupted)  # before it nothing changes
        self.writes = torch.cat([sender.change(first_order=True, start=self.start) for sender in self.senders], 1)
        self.edges = torch.tensor(graph_of(self.parts).edges).to(self.writes)

    def at_base(self) -> Tensor:
        """Scores [N, U, V] with the gradients of the base run, whose graph was kept."""
        assert self.gradients is not None
        return self._products(self.gradients, slice(None))

    def at(self, embedded: Tensor, patch: Patch | None = None, only: slice = slice(None)) -> Tensor:
        """Scores [N, U, V] with the gradients of one run; only: of edges out of these senders, 0 for all others."""
        return self._products(gradients(self.parts, embedded, self.answers, patch), only)

    def _products(self, found: Gradients, only: slice) -> Tensor:
        """Scores [N, U, V] with these gradients, of edges out of some senders."""
        parts = self.parts
        start, stop, _ = only.indices(self.writes.shape[1])
        scores = self.writes.new_zeros(*self.writes.shape[:2], parts.layers * (3 * parts.heads + 1) + 1)
        waiting: list[Tensor] = []  # of some layers, because few readers at a time make slow products
        column = max(0, (start - 1) // (parts.heads + 1)) * (3 * parts.heads + 1)
        for layer in range(column // (3 * parts.heads + 1), parts.layers + 1):
            waiting.append(self._readers(layer, found))
            together = sum(readers.shape[1] for readers in waiting)
            if together >= TOGETHER or layer == parts.layers:
                senders = slice(start, min(stop, 1 + (layer + 1) * (parts.heads + 1)))
                gradient = torch.cat(waiting, 1).flatten(2)
                products = self.writes[:, senders].flatten(2) @ gradient.mT
                scores[:, senders, column : column + together] = products
                column, waiting = column + together, []
        return scores * self.edges

    def _readers(self, layer: int, found: Gradients) -> Tensor:
        """The gradients [N, readers, T - start, d] of what a layer reads; behind the last one, of what the logits read.

        The gradient of a layer's input is that of its output, and what its readers add: the MLP's is the rest.
        """
        after = found.hidden[min(layer + 1, self.parts.layers)][:, self.start :]
        if layer == self.parts.layers:
            return after[:, None]
        readers = attention_readers(self.parts, layer, found.streams[layer], found.z[layer], self.start)
        mlp = (found.hidden[layer][:, self.start :] - after - readers.sum(1))[:, None]
        return torch.cat([readers, mlp], 1)

    def along_inputs(self, shares: Iterable[float]) -> Tensor:
        """The mean of scores with the gradients at points between the corrupted and the base run's embeddings."""
        ends = self.corrupted.hidden[0], self.base.hidden[0]
        return _mean([self.at(torch.lerp(*ends, share)) for share in shares])

    def along_activations(self, shares: Iterable[float]) -> Tensor:
        """The same between the outputs of one sublayer at a time, for the edges out of it."""
        embedded, shares = self.base.hidden[0], list(shares)
        return reduce(
            torch.add,
            (
                _mean([self.at(embedded, sender.between(share), sender.places) for share in shares])
                for sender in self.senders
            ),
        )


def _mean(scores: list[Tensor]) -> Tensor:
    return reduce(torch.add, scores) / len(scores)
