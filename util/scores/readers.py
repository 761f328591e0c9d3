"""What a metric feels of each stream that the heads of a layer read: gradients of queries, keys and values apart.

Every head reads the stream three times, through the layer's norm. The gradient of one such reading goes back from the
head's own query, key or value alone. A head owns columns of the linear maps behind the norm; with their weights all
heads of a layer take one pass. Where heads share columns (a norm over all heads' queries) each takes a pass of its own.
"""

import weakref
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from util.engine.components import Components, plain_weight


class _Read(NamedTuple):
    """A linear map that was called on the way to queries, keys and values."""

    module: nn.Module
    input: Tensor
    output: Tensor


def attention_readers(parts: Components, layer: int, hidden: Tensor, z_gradient: Tensor, start: int = 0) -> Tensor:
    """The gradients [N, 3 H, T - start, d] of what each head's query, key and value read, before the layer's norm.

    hidden: what the layer reads [N, T, d]; z_gradient [N, T, H, dv]: the gradient of the heads' outputs. start: the
    first token that is asked for. Heads that share keys and values have a reading of them each.
    """
    with torch.enable_grad():
        hidden = hidden.detach().requires_grad_()
        reads: list[_Read] = []
        with ExitStack() as stack:
            for module in parts.plan.layers[layer].modules():
                if isinstance(module, nn.Linear | Conv1D):
                    stack.callback(module.register_forward_hook(_keeping(reads)).remove)
            call = parts.reads(layer, hidden)
        states = (call.query, call.key, call.value)
        alone = [state.detach().requires_grad_() for state in states]
        z = replace(call, query=alone[0], key=alone[1], value=alone[2]).plain()
        shared = z.shape[2] // call.key.shape[1]
        members = []  # of each group of heads that share keys and values, one head at a time
        for member in range(shared):
            own = torch.zeros_like(z_gradient)
            own[:, :, member::shared] = z_gradient[:, :, member::shared]
            members.append(torch.autograd.grad(z, alone, own, retain_graph=True))
        asked = torch.stack([member[0] for member in members]).sum(0)
        found = []
        for part, state in enumerate(states):
            owned = _columns(parts, layer, part, state, reads, hidden)
            gradients = [asked] if part == 0 else [member[part] for member in members]
            by_group = [
                _one_by_one(state, gradient, hidden)[:, :, start:]
                if owned is None
                else owned.back(state, gradient, reads, hidden, start)
                for gradient in gradients
            ]  # [groups, N, T - start, d] each
            found.append(torch.stack(by_group, 1).flatten(0, 1) if len(by_group) > 1 else by_group[0])
    return torch.cat(found).transpose(0, 1)


def _keeping(reads: list[_Read]) -> Any:
    def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        reads.append(_Read(module, given[0], out))

    return keep


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

    def back(self, state: Tensor, gradient: Tensor, reads: list[_Read], hidden: Tensor, start: int) -> Tensor:
        """The gradients [heads, N, T - start, d] that go back from each head of a state alone, see `_one_by_one`."""
        module, given, out = reads[self.read]
        after = torch.autograd.grad(state, out, gradient, retain_graph=True)[0]
        weight = plain_weight(module)
        assert weight is not None  # or it would own no columns
        columns = self.columns.to(after.device)
        before = torch.einsum("ntgc,gci->gnti", after[:, start:, columns], weight[columns])
        if given is hidden:
            return before
        whole = before.new_zeros(*before.shape[:2], given.shape[1], before.shape[3])
        whole[:, :, start:] = before
        return torch.autograd.grad(given, hidden, whole, retain_graph=True, is_grads_batched=True)[0][:, :, start:]


_OWNED: "weakref.WeakKeyDictionary[nn.Module, dict[int, _Columns | None]]" = weakref.WeakKeyDictionary()


def _columns(
    parts: Components, layer: int, part: int, state: Tensor, reads: list[_Read], hidden: Tensor
) -> _Columns | None:
    """The columns that heads own of a layer's queries, keys or values; found out once. None where they share some."""
    known = _OWNED.setdefault(parts.plan.layers[layer], {})
    if part not in known:
        found = _found(state, reads)
        known[part] = found if found is not None and _is_right(found, state, reads, hidden) else None
    return known[part]


def _is_right(columns: _Columns, state: Tensor, reads: list[_Read], hidden: Tensor) -> bool:
    """Whether the columns give what a pass for each head gives: not where the stream has other ways to a state."""
    gradient = torch.randn(state.shape, generator=torch.Generator().manual_seed(1)).to(state)
    slow, fast = _one_by_one(state, gradient, hidden), columns.back(state, gradient, reads, hidden, 0)
    coarse = state.dtype in (torch.bfloat16, torch.float16)
    return bool((slow - fast).abs().max() <= (5e-2 if coarse else 1e-3) * slow.abs().max())


def _found(state: Tensor, reads: list[_Read]) -> _Columns | None:
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
