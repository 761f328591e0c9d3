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
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from util.engine.attention import head_writes, instrument, plain_weight
from util.engine.components import Block, Components, Parts, blocks_of, parallel_mlps
from util.engine.finite import check_finite
from util.engine.handshake import check_ids, prepare
from util.engine.instruments import CaptureCalls
from util.engine.replay import row_bytes
from util.scores.graph import ComponentGraph

Read = tuple[nn.Module, Tensor, Tensor]  # a linear map that was called on the way to a state; its input and output
Columns = tuple[int, Tensor]  # which read makes a state; [heads, c]: the columns of its output that each head owns


def layer_gradients(parts: Components, layer: int, hidden: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a metric at one layer, which is called once more for them, with a graph for a backward pass.

    hidden: what goes into the layer [N, T, d]; after: the gradient of what comes out of it [N, T, d]. Returns that of
    what goes into it, and those [N, 3 H + 1, T, d] of what each reader of the layer reads, before its norm. Both are on
    the device of the layer. Heads that share keys and values have a reading of them each. The gradient of a layer's
    input is that of its output, and what its readers add: the MLP's is the rest.
    """
    device, reads, captured = parts.base.hidden[layer].device, list[Read](), CaptureCalls(layer)
    hidden, after = hidden.detach().to(device).requires_grad_(), after.to(device)

    def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        if layer not in captured.calls:  # what is called behind attention is not on the way to it
            reads.append((module, given[0], out))

    with torch.enable_grad(), instrument(parts.model, captured), ExitStack() as stack:
        for module in parts.plan.layers[layer].modules():
            if isinstance(module, nn.Linear | Conv1D):
                stack.callback(module.register_forward_hook(keep).remove)
        out = parts.whole(layer, hidden)
    call, z = captured.calls[layer], captured.z[layer]
    before, of_z = torch.autograd.grad(out, [hidden, z], after, retain_graph=True)
    states = (call.query, call.key, call.value)
    shared = parts.heads // call.key.shape[1]
    members = []  # of each group of heads that share keys and values, one head at a time
    for member in range(shared):
        direction = torch.zeros_like(of_z)
        direction[:, :, member::shared] = of_z[:, :, member::shared]
        members.append(torch.autograd.grad(z, states, direction, retain_graph=True))
    query = torch.stack([member[0] for member in members]).sum(0)
    readers = before.new_zeros(len(before), 3 * parts.heads + 1, *before.shape[1:])
    heads, mlp = readers[:, :-1], readers[:, -1]
    for part, (state, readings) in enumerate(zip(states, heads.chunk(3, dim=1), strict=True)):
        owned = _columns(parts, layer, part, state, reads, hidden)
        gradients = [query] if part == 0 else [member[part] for member in members]
        for member, gradient in enumerate(gradients):
            by_head = _back(owned, state, gradient, reads, hidden)
            readings[:, member :: len(gradients)] = by_head.transpose(0, 1)
    mlp[:] = before - after - heads.sum(1)
    return before, readers


def _back(owned: Columns | None, state: Tensor, gradient: Tensor, reads: list[Read], hidden: Tensor) -> Tensor:
    """The gradients [heads, N, T, d] that go back from each head of a state [N, heads, T, d'] alone.

    In one pass where heads own columns, else in a pass for each.
    """
    if owned is None:
        heads = range(state.shape[1])
        passes = [torch.autograd.grad(state, hidden, _of(head, gradient), retain_graph=True)[0] for head in heads]
        return torch.stack(passes)
    module, given, out = reads[owned[0]]
    after = torch.autograd.grad(state, out, gradient, retain_graph=True)[0]
    weight = plain_weight(module)
    assert weight is not None  # or it would own no columns
    columns = owned[1].to(after.device)
    before = torch.einsum("ntgc,gci->gnti", after[:, :, columns], weight[columns])
    if given is hidden:
        return before
    return torch.autograd.grad(given, hidden, before, retain_graph=True, is_grads_batched=True)[0]


def _of(head: int, gradient: Tensor) -> Tensor:
    """The gradient of a state [N, heads, T, d'] where only this head has one."""
    of_head = torch.zeros_like(gradient)
    of_head[:, head] = gradient[:, head]
    return of_head


_OWNED: "weakref.WeakKeyDictionary[Block, dict[int, Columns | None]]" = weakref.WeakKeyDictionary()


def _columns(
    parts: Components, layer: int, part: int, state: Tensor, reads: list[Read], hidden: Tensor
) -> Columns | None:
    """The columns that heads own of a layer's queries, keys or values; found out once. None where they share some."""
    known = _OWNED.setdefault(parts.blocks[layer], {})
    if part not in known:
        owned = _found(state, reads)
        known[part] = owned if owned is not None and _is_right(owned, state, reads, hidden) else None
    return known[part]


def _is_right(owned: Columns, state: Tensor, reads: list[Read], hidden: Tensor) -> bool:
    """Whether the columns give what a pass for each head gives: not where the stream has other ways to a state."""
    gradient = torch.randn(state.shape, generator=torch.Generator().manual_seed(1)).to(state)
    slow, fast = (_back(columns, state, gradient, reads, hidden) for columns in (None, owned))
    coarse = state.dtype in (torch.bfloat16, torch.float16)
    return bool((slow - fast).abs().max() <= (5e-2 if coarse else 1e-3) * slow.abs().max())


def _found(state: Tensor, reads: list[Read]) -> Columns | None:
    noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(0)).to(state)
    for place, (module, _, out) in reversed([*enumerate(reads)]):  # the last one on the way
        if plain_weight(module) is None or out.ndim != 3:
            continue
        backward: Any = partial(torch.autograd.grad, state, out, retain_graph=True, allow_unused=True)
        after = [backward(_of(head, noise))[0] for head in range(state.shape[1])]
        if after[0] is None:
            continue
        owned = [(gradient != 0).flatten(0, -2).any(0).nonzero()[:, 0] for gradient in after]
        every = torch.cat(owned)
        alike = len({len(columns) for columns in owned}) == 1
        return (place, torch.stack(owned)) if alike and len(every.unique()) == len(every) else None
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
    return int((base != source).any(0).int().argmax())


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
    graph, width = model_graph(model), model.config.get_text_config(decoder=True).hidden_size
    senders, readers = graph.shape
    later = length - first
    numbers = later * width * (senders + graph.width + 3 * (3 * graph.layers + 1))
    numbers += 2 * graph.layers * first * width + 3 * senders * readers
    return numbers * model.dtype.itemsize + 2 * row_bytes(model, later, length)


# ------------------------------------------------------------------------------------------------ what senders change


@torch.no_grad()
def sent(
    parts: Components, source: Parts, senders: Collection[int], *, first_order: bool = False
) -> Iterator[tuple[list[int], Tensor]]:
    """By how much each of some senders alone changes the stream [N, S, T, d], base minus source, and which these are.

    Those that write together come together, in their order: the input, the heads of a layer, its MLP. source: the run
    that changes them. first_order: of a norm behind the heads of a layer, where the class has one; all else is linear
    anyway.
    """
    base = parts.base
    if 0 in senders:
        yield [0], (base.hidden[0] - source.hidden[0])[:, None]
    for layer, block in enumerate(parts.blocks):
        *heads, mlp = range(1 + layer * (parts.heads + 1), 1 + (layer + 1) * (parts.heads + 1))
        if some := [head for head in heads if head in senders]:
            writes = head_writes(parts.blocks[layer].projection, base.z[layer] - source.z[layer])
            if block.normed and first_order:
                total = block.projection(base.z[layer].flatten(-2))[:, :, None].expand(writes.shape).contiguous()
                change = torch.func.jvp(block.attention, (total,), (writes,))[1] * block.factor
            else:
                change = -block.change(-writes, base.z[layer])
            yield some, change.transpose(1, 2)[:, [head - heads[0] for head in some]]
        if mlp in senders:
            yield [mlp], (base.mlp[layer] - source.mlp[layer])[:, None]


# ------------------------------------------------------------------------------------------------ what readers feel


@torch.no_grad()
def hidden_states(parts: Components, embedded: Tensor) -> list[Tensor]:
    """What goes into each layer, and what comes out of the last one, in a run from these embeddings [N, T, d]."""
    hidden = [embedded]
    for layer in range(parts.layers):
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
    for senders, change in sent(parts, source_run, range(graph.shape[0]), first_order=True):
        writes[:, senders] = change.to(writes.device)
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

    with torch.enable_grad():
        end = hidden[-1].detach().requires_grad_()
        gradient = torch.autograd.grad(metric(parts, end, answers).sum(), end)[0]
    multiply(gradient[:, None], parts.layers)
    for layer in reversed(range(parts.layers)):
        gradient, readers = layer_gradients(parts, layer, hidden[layer], gradient)
        multiply(readers, layer)
        del readers  # before the next layer has its own
    return scores * torch.tensor(graph.edges).to(writes)
