"""What a metric feels of each stream that the parts of a layer read: gradients of queries, keys, values and MLP apart.

Every head reads the stream three times, through the layer's norm. The gradient of one such reading goes back from the
head's own query, key or value alone. A head owns columns of the linear maps behind the norm; with their weights all
heads of a layer take one pass. Where heads share columns (a norm over all heads' queries) each takes a pass of its own.

Layers are called one at a time, each with a graph that is gone before the next: no backward graph of a whole run is
ever kept.
"""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from util.engine.attention import instrument
from util.engine.call import Call
from util.engine.components import Block, Components, Tap, plain_weight


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
        found = _found(state, reads)
        known[part] = found if found is not None and _is_right(found, state, reads, hidden) else None
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
