"""First-order scores of all edges of the component graph: edge attribution patching, and with integrated gradients.

An edge u -> v is what node v reads of node u. Its exact effect is how far a metric falls when v alone reads u from the
source run, that of a corrupted prompt. To first order that is (output of u, base - source) . d metric / d input of v:
two forward passes and one backward pass for all edges (Syed et al. 2023, EAP). Averaged over points between the source
and the base run (Hanna et al. 2024, EAP-IG) it sees past a metric that is flat at the base run. Positive scores help
the metric. Before the first token that differs nothing changes, and nothing is computed but its keys and values.

Scores are arrays [N, U, V], prompt by sender by reader, in the order of `graph.ComponentGraph`; entries that are no
edges are 0. The metric is the logit of the first answer minus that of the second, behind the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.components import Components, Parts, blocks_of, parallel_mlps
from util.engine.finite import check_finite
from util.engine.handshake import check_ids, prepare
from util.engine.replay import row_bytes
from util.scores.graph import ComponentGraph
from util.scores.readers import LayerGradients, tapped

Method = Literal["EAP", "EAP-IG inputs"]
STEPS = 5  # of integrated gradients, as in the MIB circuit track
BUDGET = 2**26  # bytes of the prompts that are scored at a time


def edge_scores(
    model: PreTrainedModel,
    base: Tensor,
    source: Tensor,
    answers: Tensor,
    method: Method = "EAP",
    steps: int = STEPS,
    budget: int = BUDGET,
) -> Tensor:
    """Returns the score of every edge for every prompt, [N, U, V], float32 (float64 if the model is), on the CPU.

    base, source: the tokens of both prompts [N, T]. answers [N, 2]: the right token and the wrong one.
    steps: of EAP-IG. Its embeddings stand k / S of the way from the source run to the base run, k from 0 to S - 1.
    budget: bytes of the prompts that are scored at a time, see `prompt_bytes`; there is one prompt at least.
    Raises ValueError for prompts or answers of other shapes, UnsupportedModel for a class that `Components` refuses.
    """
    check_pairs(model, base, source, answers)
    if method not in get_args(Method):
        raise ValueError(f"method = {method!r}: there are {', '.join(get_args(Method))}")
    if steps < 1:
        raise ValueError(f"steps = {steps}: give 1 step or more")
    size = max(1, budget // prompt_bytes(model, base.shape[1], first_difference(base, source)))
    scored = []
    with tqdm(total=len(base), unit="prompt", leave=False, delay=5) as bar:
        for some in zip(base.split(size), source.split(size), answers.split(size), strict=True):
            scored.append(_scores(model, *some, method, steps))
            bar.update(len(scored[-1]))
    together = torch.cat(scored)
    check_finite(together, "the scores of edges", model, base)
    return together


def check_pairs(model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor) -> None:
    """Raises ValueError, before any pass, unless base and source are [N, T] alike, answers [N, 2], and all are tokens
    of the model."""
    if base.ndim != 2 or base.shape != source.shape or not base.numel():
        raise ValueError(
            f"base {tuple(base.shape)}, source {tuple(source.shape)}: give token ids [N, T], and each source prompt as "
            "many tokens as its base prompt; prompts of other lengths go into calls of their own"
        )
    if answers.shape != (len(base), 2):
        raise ValueError(f"answers {tuple(answers.shape)}: give [{len(base)}, 2], the right token and the wrong one")
    for ids in (base, source, answers):
        if int(ids.min()) < 0:
            raise ValueError("token ids are integers from 0 on")
        check_ids(model, ids.flatten())


def first_difference(base: Tensor, source: Tensor) -> int:
    """The first position [0, T) where prompts [N, T] differ from their source ones; 0 where none does."""
    different = (base != source).any(0).nonzero()
    return int(different[0]) if len(different) else 0


def model_graph(model: PreTrainedModel) -> ComponentGraph:
    """The component graph of a model, for which no prompt is run. Raises UnsupportedModel as `Components` does."""
    heads = prepare(model).heads
    return ComponentGraph(len(blocks_of(model)), heads, parallel_mlps(model))


def prompt_bytes(model: PreTrainedModel, length: int, first: int) -> int:
    """The bytes that one prompt of `length` tokens takes while it is scored, whose runs differ from token `first` on.

    Of each token from there on these are vectors of the stream's width: what all senders write, what the readers of
    one layer feel, and the hidden states, z and MLPs of three runs. Then there are one layer with its graph, the keys
    and values of the tokens before, and the scores.
    """
    found, width = prepare(model), model.config.get_text_config(decoder=True).hidden_size
    layers, heads = len(found.layers), found.heads
    graph = ComponentGraph(layers, heads)
    senders, readers = graph.shape
    later = length - first
    numbers = later * width * (senders + graph.width + 3 * (3 * layers + 1))
    numbers += 2 * layers * first * width + 3 * senders * readers
    return numbers * model.dtype.itemsize + 2 * row_bytes(model, later, length)


# ------------------------------------------------------------------------------------------------ what senders change


@dataclass(frozen=True)
class Sender:
    """Senders that write together: the input, the heads of a layer, or its MLP.

    layer: theirs, -1 for the input; kind; places: theirs among all senders. base, source: what they put out in both
    runs, z [N, T, H, dv] or what they add to the stream [N, T, d].
    """

    parts: Components
    layer: int
    kind: Literal["input", "heads", "mlp"]
    places: slice
    base: Tensor
    source: Tensor

    @torch.no_grad()
    def change(self, first_order: bool = False) -> Tensor:
        """By how much each of them alone changes the stream [N, places, T, d], base minus source.

        first_order: of a norm behind the heads of a layer, where the class has one; all else is linear anyway.
        """
        if self.kind != "heads":
            return (self.base - self.source)[:, None]
        block = self.parts.blocks[self.layer]
        writes = self.parts.head_writes(self.layer, self.base - self.source)
        if block.normed and first_order:
            total = block.projection(self.base.flatten(-2))[:, :, None].expand(writes.shape).contiguous()
            change = torch.func.jvp(block.attention, (total,), (writes,))[1] * block.factor
        else:
            change = -block.change(-writes, self.base)
        return change.transpose(1, 2)


def senders_of(parts: Components, source: Parts) -> list[Sender]:
    """All senders, in their order; source: the run that changes them."""
    base = parts.base
    senders = [Sender(parts, -1, "input", slice(0, 1), base.hidden[0], source.hidden[0])]
    for layer in range(parts.layers):
        start = 1 + layer * (parts.heads + 1)
        heads, mlp = slice(start, start + parts.heads), slice(start + parts.heads, start + parts.heads + 1)
        senders.append(Sender(parts, layer, "heads", heads, base.z[layer], source.z[layer]))
        senders.append(Sender(parts, layer, "mlp", mlp, base.mlp[layer], source.mlp[layer]))
    return senders


# ------------------------------------------------------------------------------------------------ what readers feel


@torch.no_grad()
def hidden_states(parts: Components, embedded: Tensor) -> list[Tensor]:
    """What goes into each layer, and what comes out of the last one, in a run from these embeddings [N, T, d]."""
    hidden = [embedded]
    for layer in range(parts.layers):
        with tapped(parts, layer):
            hidden.append(parts.whole(layer, hidden[-1]))
    return hidden


def metric(parts: Components, hidden: Tensor, answers: Tensor) -> Tensor:
    """The metric [R] for the stream [R, T, d] behind the last layer; answers [N, 2]."""
    logits = parts.logits(hidden[:, -1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    pair = logits.gather(1, answers.to(logits.device).repeat(len(logits) // len(answers), 1))
    return pair[:, 0] - pair[:, 1]


# ------------------------------------------------------------------------------------------------ both together


def _scores(
    model: PreTrainedModel, base: Tensor, source: Tensor, answers: Tensor, method: Method, steps: int
) -> Tensor:
    """The scores [N, U, V] of prompts [N, T] that are scored together; only tokens from the first on that differs
    take part."""
    parts = Components(model, base, first_difference(base, source))
    source_run, graph = parts.run(source), model_graph(model)
    ends = source_run.hidden[0], parts.base.hidden[0]
    writes = ends[1].new_empty(len(base), graph.shape[0], *ends[1].shape[1:])  # by how much senders change the stream
    for sender in senders_of(parts, source_run):
        writes[:, sender.places] = sender.change(first_order=True)
    if method == "EAP":
        scores = _products(parts, writes, parts.base.hidden, answers)
    else:
        points = (hidden_states(parts, torch.lerp(*ends, step / steps)) for step in range(steps))
        scores = reduce(torch.add, (_products(parts, writes, hidden, answers) for hidden in points)) / steps
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).cpu()


def _products(parts: Components, writes: Tensor, hidden: Sequence[Tensor], answers: Tensor) -> Tensor:
    """Scores [N, U, V]: what senders change, `writes` [N, U, T, d], times the gradients of a run.

    hidden: the hidden states of the run, see `hidden_states`.
    """
    graph = model_graph(parts.model)
    scores = writes.new_zeros(len(writes), *graph.shape)

    def multiply(readers: Tensor, layer: int) -> None:  # with senders up to this layer
        senders, column = slice(1 + (layer + 1) * (parts.heads + 1)), layer * graph.width
        products = writes[:, senders].flatten(2) @ readers.to(writes.device).flatten(2).mT
        scores[:, senders, column : column + readers.shape[1]] = products

    def before(layer: int, after: Tensor) -> Tensor:  # the gradient, and nothing else is kept of the layer
        gradients = LayerGradients(parts, layer, hidden[layer], after)
        multiply(gradients.readers(), layer)
        return gradients.before

    with torch.enable_grad():
        end = hidden[-1].detach().requires_grad_()
        gradient = torch.autograd.grad(metric(parts, end, answers).sum(), end)[0]
    multiply(gradient[:, None], parts.layers)
    for layer in reversed(range(parts.layers)):
        gradient = before(layer, gradient)
    return scores * torch.tensor(graph.edges).to(writes)
