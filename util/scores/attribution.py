"""First-order scores of all edges of the component graph: edge attribution patching, and with integrated gradients.

An edge u -> v is what node v reads of node u. Its exact effect is how far a metric falls when v alone reads u from a
corrupted run. To first order that is (base - corrupted output of u) . d metric / d input of v: two forward passes and
one backward pass for all edges (Syed et al. 2023, EAP). Averaged over points between the corrupted and the base run
(Hanna et al. 2024, EAP-IG) it sees past a metric that is flat at the base run. Positive scores help the metric.

Scores are arrays [N, U, V], prompt by sender by reader, in the order of `graph.ComponentGraph`; entries that are no
edges are 0. The metric is the logit of the first answer minus that of the second, behind the last token.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.engine.attention import instrument
from util.engine.components import Components, Parts, Tap
from util.engine.finite import check_finite

Method = Literal["EAP", "EAP-IG inputs", "EAP-IG activations"]
STEPS = 5  # of integrated gradients, as in the MIB circuit track


def edge_scores(
    model: PreTrainedModel,
    base: Tensor,
    corrupted: Tensor,
    answers: Tensor,
    method: Method = "EAP",
    steps: int = STEPS,
    first: int = 0,
) -> Tensor:
    """Returns the score of every edge for every prompt, [N, U, V], float32 (float64 for a float64 model), on the CPU.

    base, corrupted: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one.
    steps: of EAP-IG. Step k of S stands at corrupted + (first + k) / S of the way to the base run, k from 0 on: Hanna
    et al.'s code for edges takes first = 0, their code for nodes takes 1.
    Raises ValueError for prompts or answers of other shapes, UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(base, corrupted, answers)
    if method not in get_args(Method):
        raise ValueError(f"method = {method!r}: there are {', '.join(get_args(Method))}")
    if steps < 1 or first not in (0, 1):
        raise ValueError(f"steps = {steps}, first = {first}: give 1 step or more, the first of them 0 or 1")
    parts = Components(model, base)
    with torch.no_grad():
        intact, other = parts.run(), Components(model, corrupted).run()
    senders = senders_of(parts, intact, other)
    shares = [(first + step) / steps for step in range(steps)]
    if method == "EAP":
        scores = _contracted(parts, senders, gradients(parts, intact.hidden[0], answers))
    elif method == "EAP-IG inputs":
        points = (torch.lerp(other.hidden[0], intact.hidden[0], share) for share in shares)
        scores = sum_of(_contracted(parts, senders, gradients(parts, point, answers)) for point in points) / steps
    else:
        scores = sum_of(
            _contracted(parts, [sender], gradients(parts, intact.hidden[0], answers, sender.between(share)))
            for sender in senders
            for share in shares
        )
        scores = scores / steps
    check_finite(scores, "the scores of edges", model, base)
    return scores.cpu()


def node_scores(model: PreTrainedModel, base: Tensor, corrupted: Tensor, answers: Tensor) -> Tensor:
    """The first-order score of every sender [N, U]: what the metric loses if all its readers read the corrupted run.

    Arguments and errors are those of `edge_scores`. Source: attribution patching (Nanda 2023).
    """
    check_pairs(base, corrupted, answers)
    parts = Components(model, base)
    with torch.no_grad():
        intact, other = parts.run(), Components(model, corrupted).run()
    found = gradients(parts, intact.hidden[0], answers)
    scores = [_dot(intact.hidden[0] - other.hidden[0], found.hidden[0])[:, None]]
    for layer in range(parts.layers):
        change = intact.z[layer] - other.z[layer]
        scores.append((change * found.z[layer]).sum((1, 3)))
        scores.append(_dot(intact.mlp[layer] - other.mlp[layer], found.hidden[layer + 1])[:, None])
    together = torch.cat(scores, 1)
    check_finite(together, "the scores of nodes", model, base)
    return together.cpu()


def check_pairs(base: Tensor, corrupted: Tensor, answers: Tensor) -> None:
    """Raises ValueError unless base and corrupted are [N, T] alike, and answers [N, 2]."""
    if base.ndim != 2 or base.shape != corrupted.shape:
        raise ValueError(
            f"base {tuple(base.shape)}, corrupted {tuple(corrupted.shape)}: give token ids [N, T], and each corrupted "
            "prompt as many tokens as its base prompt; prompts of other lengths go into calls of their own"
        )
    if answers.shape != (len(base), 2):
        raise ValueError(f"answers {tuple(answers.shape)}: give [{len(base)}, 2], the right token and the wrong one")


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).flatten(1).sum(1)


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of tensors of one shape [...], one of which is there at a time."""
    return reduce(torch.add, tensors)


# ------------------------------------------------------------------------------------------------ what senders change


@dataclass(frozen=True)
class Sender:
    """Senders that write together: the input, the heads of a layer, or its MLP.

    layer: theirs, -1 for the input; kind; places: their columns among all senders. base, corrupted: what they put out
    in both runs, z [N, T, H, dv] or what they add to the stream [N, T, d].
    """

    parts: Components
    layer: int
    kind: Literal["input", "heads", "mlp"]
    places: slice
    base: Tensor
    corrupted: Tensor

    @torch.no_grad()
    def change(self, first_order: bool = False) -> Tensor:
        """By how much each of them alone changes the stream [N, T, places, d], base minus corrupted.

        first_order: of a norm behind the heads of a layer, where the class has one; all else is linear anyway.
        """
        if self.kind != "heads":
            return (self.base - self.corrupted)[:, :, None]
        block = self.parts.blocks[self.layer]
        change = self.parts.head_writes(self.layer, self.base - self.corrupted)
        if not block.normed:
            return change * block.factor
        total = block.projection(self.base.flatten(-2))[:, :, None].expand(change.shape).contiguous()
        if first_order:
            return torch.func.jvp(block.attention, (total,), (change,))[1] * block.factor
        return self.parts.added(self.layer, total) - self.parts.added(self.layer, total - change)

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
        value = metric(parts, streams[-1], answers).sum()
        found = torch.autograd.grad(value, [*streams, *z])
    hidden, outputs = found[: len(streams)], list(found[len(streams) :])
    if patch is not None and patch.kind == "heads":
        outputs[patch.layer] = torch.zeros_like(outputs[patch.layer])  # what these heads read changes nothing
    return Gradients(hidden, tuple(outputs), tuple(stream.detach() for stream in streams))


def metric(parts: Components, hidden: Tensor, answers: Tensor) -> Tensor:
    """The metric [R] for the stream [R, T, d] behind the last layer; answers [N, 2]."""
    logits = parts.logits(hidden[:, -1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    pair = logits.gather(1, answers.to(logits.device).repeat(len(logits) // len(answers), 1))
    return pair[:, 0] - pair[:, 1]


def attention_readers(parts: Components, layer: int, hidden: Tensor, z_gradient: Tensor) -> Tensor:
    """The gradients [N, T, 3 H, d] of what each head's query, key and value read, before the layer's norm.

    hidden: what the layer reads [N, T, d]; z_gradient [N, T, H, dv]. Heads that share keys and values have one each.
    """
    with torch.enable_grad():
        hidden = hidden.detach().requires_grad_()
        call = parts.reads(layer, hidden)
        states = (call.query, call.key, call.value)
        alone = [state.detach().requires_grad_() for state in states]
        z = replace(call, query=alone[0], key=alone[1], value=alone[2]).plain()
        heads, shared = z.shape[2], z.shape[2] // call.key.shape[1]
        members = []  # of each group of heads that share keys and values, one head at a time
        for member in range(shared):
            own = torch.zeros_like(z_gradient)
            own[:, :, member::shared] = z_gradient[:, :, member::shared]
            members.append(torch.autograd.grad(z, alone, own, retain_graph=True))
        found = hidden.new_empty(*hidden.shape[:2], 3 * heads, hidden.shape[2])
        for head in range(heads):
            group, member = divmod(head, shared)
            for part, place in enumerate((head, group, group)):
                gradient = torch.zeros_like(states[part])
                gradient[:, place] = members[member][part][:, place]
                found[:, :, part * heads + head] = torch.autograd.grad(
                    states[part], hidden, gradient, retain_graph=True
                )[0]
    return found


def _contracted(parts: Components, senders: Iterable[Sender], found: Gradients) -> Tensor:
    """Scores [N, U, V] of the edges out of these senders, 0 elsewhere: their changes times the readers' gradients."""
    senders, heads = list(senders), parts.heads
    width = 3 * heads + 1
    scores = found.hidden[0].new_zeros(len(found.hidden[0]), 1 + parts.layers * (heads + 1), parts.layers * width + 1)
    for layer in range(min(max(sender.layer, 0) for sender in senders), parts.layers):
        readers = attention_readers(parts, layer, found.streams[layer], found.z[layer])
        # the gradient of a layer's input is that of its output, and what its readers add: the MLP's is the rest
        mlp = (found.hidden[layer] - found.hidden[layer + 1] - readers.sum(2))[:, :, None]
        readers, column = torch.cat([readers, mlp], 2), layer * width
        for sender in senders:
            if sender.layer < layer:
                scores[:, sender.places, column : column + width] = _products(sender.change(first_order=True), readers)
            elif sender.layer == layer and sender.kind == "heads" and not parts.blocks[layer].parallel:
                scores[:, sender.places, column + width - 1 : column + width] = _products(
                    sender.change(first_order=True), mlp
                )
    for sender in senders:
        scores[:, sender.places, -1:] = _products(sender.change(first_order=True), found.hidden[-1][:, :, None])
    return scores


def _products(writes: Tensor, readers: Tensor) -> Tensor:
    """The products [N, U, V] of writes [N, T, U, d] and gradients [N, T, V, d], summed over tokens and width."""
    return torch.einsum("ntud,ntvd->nuv", writes, readers)
