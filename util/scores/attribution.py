"""First-order scores of all edges of the component graph: edge attribution patching, and with integrated gradients.

An edge u -> v is what node v reads of node u. Its exact effect is how far a metric falls when v alone reads u from the
source run, that of a corrupted prompt. To first order that is (output of u, base - source) . d metric / d input of v:
two forward passes and one backward pass for all edges (Syed et al. 2023, EAP). Averaged over points between the source
and the base run (Hanna et al. 2024, EAP-IG) it sees past a metric that is flat at the base run. Positive scores help
the metric. Before the first token that differs nothing changes, and nothing is computed but its keys and values.

Every head reads the stream three times, through the layer's norm. The gradient of one such reading goes back from the
head's own query, key or value alone. A head owns columns of the linear maps behind the norm; with their weights all
heads of a layer take one pass. Where heads share columns (a norm over all heads' queries) each takes a pass of its own.
Layers are called one at a time, each with a graph that is gone before the next.

Scores are arrays [N, U, V], prompt by sender by reader, in the order of `graph.ComponentGraph`; entries that are no
edges are 0. The metric is the logit of the first answer minus that of the second, behind the last token.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from util.engine.attention import instrument
from util.engine.call import Call
from util.engine.components import Block, Components, Parts, Tap, blocks_of, parallel_mlps, plain_weight
from util.engine.finite import check_finite
from util.engine.handshake import check_ids, prepare
from util.engine.replay import row_bytes
from util.scores.graph import ComponentGraph


class _CallTap(Tap):
    """Keeps the attention call, too; None before there is one."""

    call: Call | None = None

    def visit(self, call: Call, out: Tensor) -> Tensor:
        self.call = call
        return super().visit(call, out)


@contextmanager
def tapped(parts: Components, layer: int) -> Iterator[_CallTap]:
    """Inside the block the attention call and the outputs of the heads of a layer are kept."""
    tap = _CallTap(layer)
    with instrument(parts.model, tap):
        yield tap


class _Read(NamedTuple):
    """A linear map that was called on the way to queries, keys and values."""

    module: nn.Module
    input: Tensor
    output: Tensor


_Reads = list[_Read]


class LayerGradients:
    """Gradients of a metric at one layer, which is called once more for them, with a graph for a backward pass.

    parts, layer: which. hidden: what goes into the layer [N, T, d]. after: the gradient of what comes out of it
    [N, T, d]. Then `before` is the gradient of what goes into it, and z that of its heads' outputs [N, T, H, dv]. All
    of them are on the device of the layer.
    """

    def __init__(self, parts: Components, layer: int, hidden: Tensor, after: Tensor) -> None:
        self.parts, self.layer = parts, layer
        device = parts.base.hidden[layer].device
        self.hidden, self.after = hidden.detach().to(device).requires_grad_(), after.to(device)
        self.reads: _Reads = []
        with torch.enable_grad(), tapped(parts, layer) as self.tap, ExitStack() as stack:
            for module in parts.plan.layers[layer].modules():
                if isinstance(module, nn.Linear | Conv1D):
                    stack.callback(module.register_forward_hook(self._keep).remove)
            out = parts.whole(layer, self.hidden)
        self.before, self.z = torch.autograd.grad(out, [self.hidden, self.tap.z], self.after, retain_graph=True)

    def _keep(self, module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        if self.tap.call is None:  # what is called behind attention is not on the way to it
            self.reads.append(_Read(module, given[0], out))

    def readers(self) -> Tensor:
        """The gradients [N, 3 H + 1, T, d] of what each reader of the layer reads, before its norm.

        The gradient of a layer's input is that of its output, and what its readers add: the MLP's is the rest.
        """
        found = self.before.new_zeros(len(self.before), 3 * self.parts.heads + 1, *self.before.shape[1:])
        heads, mlp = found[:, :-1], found[:, -1]
        self._write_heads(heads)
        mlp[:] = self.before - self.after - heads.sum(1)
        return found

    def _write_heads(self, into: Tensor) -> None:
        """Write the gradients [N, 3 H, T, d] of what each head's query, key and value read.

        Heads that share keys and values have a reading of them each.
        """
        call = self.tap.call
        assert call is not None  # the layer was called
        states = (call.query, call.key, call.value)
        shared = self.parts.heads // call.key.shape[1]
        members = []  # of each group of heads that share keys and values, one head at a time
        for member in range(shared):
            own = torch.zeros_like(self.z)
            own[:, :, member::shared] = self.z[:, :, member::shared]
            members.append(torch.autograd.grad(self.tap.z, states, own, retain_graph=True))
        asked = torch.stack([member[0] for member in members]).sum(0)
        for part, (state, readings) in enumerate(zip(states, into.chunk(3, dim=1), strict=True)):
            owned = _columns(self.parts, self.layer, part, state, self.reads, self.hidden)
            gradients = [asked] if part == 0 else [member[part] for member in members]
            for member, gradient in enumerate(gradients):
                each = (
                    _one_by_one(state, gradient, self.hidden)
                    if owned is None
                    else owned.back(state, gradient, self.reads, self.hidden)
                )
                readings[:, member :: len(gradients)] = each.transpose(0, 1)


def _one_by_one(state: Tensor, gradient: Tensor, hidden: Tensor) -> Tensor:
    """The gradients [heads, N, T, d] that go back from each head of a state [N, heads, T, d'] alone."""
    found = []
    for head in range(state.shape[1]):
        own = torch.zeros_like(gradient)
        own[:, head] = gradient[:, head]
        found.append(torch.autograd.grad(state, hidden, own, retain_graph=True)[0])
    return torch.stack(found)


# ------------------------------------------------------------------------------------------------ columns of heads


@dataclass(frozen=True)
class _Columns:
    """read: which of the linear maps makes a state; columns [heads, c]: those of its output that each head owns."""

    read: int
    columns: Tensor

    def back(self, state: Tensor, gradient: Tensor, reads: _Reads, hidden: Tensor) -> Tensor:
        """The gradients [heads, N, T, d] that go back from each head of a state alone, see `_one_by_one`."""
        module, given, out = reads[self.read]
        after = torch.autograd.grad(state, out, gradient, retain_graph=True)[0]
        weight = plain_weight(module)
        assert weight is not None  # or it would own no columns
        columns = self.columns.to(after.device)
        before = torch.einsum("ntgc,gci->gnti", after[:, :, columns], weight[columns])
        if given is hidden:
            return before
        return torch.autograd.grad(given, hidden, before, retain_graph=True, is_grads_batched=True)[0]


_OWNED: "weakref.WeakKeyDictionary[Block, dict[int, _Columns | None]]" = weakref.WeakKeyDictionary()


def _columns(parts: Components, layer: int, part: int, state: Tensor, reads: _Reads, hidden: Tensor) -> _Columns | None:
    """The columns that heads own of a layer's queries, keys or values; found out once. None where they share some."""
    known = _OWNED.setdefault(parts.blocks[layer], {})
    if part not in known:
        spread = _found(state, reads)
        known[part] = spread if spread is not None and _is_right(spread, state, reads, hidden) else None
    return known[part]


def _is_right(columns: _Columns, state: Tensor, reads: _Reads, hidden: Tensor) -> bool:
    """Whether the columns give what a pass for each head gives: not where the stream has other ways to a state."""
    gradient = torch.randn(state.shape, generator=torch.Generator().manual_seed(1)).to(state)
    slow, fast = _one_by_one(state, gradient, hidden), columns.back(state, gradient, reads, hidden)
    coarse = state.dtype in (torch.bfloat16, torch.float16)
    return bool((slow - fast).abs().max() <= (5e-2 if coarse else 1e-3) * slow.abs().max())


def _found(state: Tensor, reads: _Reads) -> _Columns | None:
    for place in reversed(range(len(reads))):  # the last one on the way
        module, _, out = reads[place]
        if plain_weight(module) is None or out.ndim != 3:
            continue
        owned = []
        for head in range(state.shape[1]):
            own = torch.zeros_like(state)
            own[:, head] = torch.randn(own[:, head].shape, generator=torch.Generator().manual_seed(0)).to(own)
            after: Tensor | None = torch.autograd.grad(state, out, own, retain_graph=True, allow_unused=True)[0]
            if after is None:
                break
            owned.append((after != 0).flatten(0, -2).any(0).nonzero()[:, 0])
        else:
            every = torch.cat(owned)
            if len(every.unique()) < len(every) or len({len(columns) for columns in owned}) > 1:
                return None
            return _Columns(place, torch.stack(owned))
    return None


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
    prepared, width = prepare(model), model.config.get_text_config(decoder=True).hidden_size
    layers, heads = len(prepared.layers), prepared.heads
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
    right, wrong = parts.logits(hidden[:, -1], answers).unbind(1)
    return right - wrong


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
