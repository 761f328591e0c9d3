"""Slow references for the instrumented attention, from the class's own eager code and plain module hooks.

Nothing of the suite is imported. An edit is written out cell by cell: `writes` maps (layer, batch row, position, head)
to the vector that replaces z there; `cuts` is a set of (layer, head, batch row, query, key) that may not be attended.
"""

import contextlib
import copy
import inspect
from collections.abc import MutableMapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

ATTENTIONS = ("attn", "self_attn", "attention", "self_attention")
OUTPUT_PROJECTIONS = ("o_proj", "c_proj", "dense", "out_proj")


@dataclass
class Run:
    """What one forward of the reference gives; index tensors by batch row, position, head."""

    logits: torch.Tensor  # [B, T, V]
    weights: dict[int, torch.Tensor]  # layer -> [B, H, T, S]
    z: dict[int, torch.Tensor]  # layer -> [B, T, H, dv], before the writes of this run


def reference(model):
    """A deep copy of `model` on the class's eager attention."""
    twin = copy.deepcopy(model).eval()
    twin.config._attn_implementation = "eager"  # the classes that read it do so at every call
    if getattr(twin.config, "alibi", False):  # falcon's eager code adds it to a mask that has it already
        for module in attention_modules(twin).values():
            module.register_forward_pre_hook(_no_second_alibi, with_kwargs=True)
    return twin


_TWINS: MutableMapping[torch.nn.Module, torch.nn.Module] = WeakKeyDictionary()


def twin(model):
    """The reference of a model that stays as it is, made once."""
    if model not in _TWINS:
        _TWINS[model] = reference(model)
    return _TWINS[model]


@torch.no_grad()
def read(model, ids, writes=None, cuts=None):
    """The run of a model's reference on a prompt [T], or on several of one length [B, T]."""
    return run(twin(model), {"input_ids": torch.atleast_2d(torch.as_tensor(ids))}, writes, cuts)


def _no_second_alibi(module, arguments, keywords):
    return arguments, keywords | {"alibi": torch.zeros_like(keywords["alibi"])}


def attention_modules(model):
    """layer -> its attention module: the one that has both a number and an output projection."""
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ATTENTIONS and any(hasattr(module, name) for name in OUTPUT_PROJECTIONS):
            layer = module.layer_id if hasattr(module, "layer_id") else module.layer_idx
            assert layer not in found
            found[layer] = module
    return found


def output_projection(module):
    """The linear map after the heads."""
    (name,) = [name for name in OUTPUT_PROJECTIONS if hasattr(module, name)]
    return getattr(module, name)


def run(model, inputs, writes=None, cuts=None):
    """One forward of an eager model with the edits, its attention matrices and its per-head outputs.

    `inputs` are the model's keyword arguments. In a class that gates the heads, z is what the gate multiplies.
    """
    z: dict = {}
    writes, cuts = writes or {}, cuts or set()
    modules = attention_modules(model)
    with contextlib.ExitStack() as stack:
        for layer, module in modules.items():
            gate = _gate(module, stack)
            own = {cell[1:]: vector for cell, vector in writes.items() if cell[0] == layer}
            hook = _head_hook(layer, model.config.num_attention_heads, own, z, gate)
            stack.enter_context(output_projection(module).register_forward_pre_hook(hook))
            closed = [cell[1:] for cell in cuts if cell[0] == layer]
            if closed:
                hook = _mask_hook(model.config.num_attention_heads, closed)
                stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        output = model(**inputs, output_attentions=True)
    weights = [w for w in output.attentions if w is not None]
    assert len(weights) == len(modules)
    return Run(output.logits, dict(zip(sorted(modules), weights, strict=True)), z)


def _gate(module, stack):
    """A list that holds the factor [B, T, H, dv] on z after the query projection ran; None without a gate."""
    query = getattr(module, "q_proj", None)
    if query is None or query.out_features != 2 * output_projection(module).in_features:
        return None
    factor: list = []

    def hook(_, arguments, output):
        both = output.view(*output.shape[:-1], -1, 2 * module.head_dim)
        factor[:] = [torch.sigmoid(both[..., module.head_dim :])]

    stack.enter_context(query.register_forward_hook(hook))
    return factor


def _head_hook(layer, heads, writes, store, gate):
    def hook(_, arguments):
        flat = arguments[0]
        z = flat.reshape(*flat.shape[:-1], heads, -1)
        if gate:
            z = z / gate[0]
        store[layer] = z
        if not writes:
            return None
        z = z.clone()
        for (b, t, h), vector in writes.items():
            z[b, t, h] = vector
        if gate:
            z = z * gate[0]
        return (z.reshape(flat.shape), *arguments[1:])

    return hook


class _PerHead(torch.Tensor):
    """A mask with its own values for every head, which passes for one that has not: xglm asks for its size."""

    # what is computed from it is an ordinary tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def size(self):  # type: ignore[override]
        return torch.Size([*self.shape[:1], 1, *self.shape[2:]])


def _mask_hook(heads, cuts):
    def hook(module, arguments, keywords):
        names = list(inspect.signature(module.forward).parameters)
        given = dict(zip(names, arguments, strict=False)) | keywords
        mask = given["attention_mask"]
        assert torch.is_floating_point(mask) or module.__class__.__name__ == "MptAttention", "no additive mask"
        batch = given[names[0]].shape[0]
        mask = mask.expand(batch, heads, -1, -1).clone()
        for h, b, q, k in cuts:
            mask[b, h, q, k] = True if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        mask = mask.as_subclass(_PerHead)
        if "attention_mask" in keywords:
            return arguments, keywords | {"attention_mask": mask}
        return tuple(mask if name == "attention_mask" else given[name] for name in names[: len(arguments)]), keywords

    return hook
