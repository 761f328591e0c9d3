"""Fake CUDA devices on a machine without any: tensors that say `cuda:0` or `cuda:1` and keep their numbers on the CPU.

PyTorch's own `FakeTensorMode` makes fake CUDA tensors too, and raises where devices mix. Two things stand in its way
here. Its tensors have no numbers, so that the handshake, checks for NaN and plans of replays, which look at numbers,
cannot run. And a build without CUDA aborts the process where a fake CUDA tensor enters the graph of a backward pass.
So a `FakeCuda` tensor wraps a tensor of the CPU. What devices an operation may mix is asked of `FakeTensorMode`.

Inside `with Devices() as devices:` tensors can be made on the fake devices, moved to them and back. An operation on
tensors of different devices raises `Misplaced`, as it raises RuntimeError on real ones. `devices.transfers` names every
copy from a device to the CPU, and every other operation that waits for a device.
"""

from contextlib import nullcontext
from typing import Any

import torch
from accelerate import dispatch_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CPU = torch.device("cpu")


class Misplaced(RuntimeError):
    """An operation on tensors of different devices."""


TensorClass: Any = Tensor  # whose attributes, such as the device, have types that a subclass may not change


class FakeCuda(TensorClass):
    """A tensor that says it is on a CUDA device, and keeps its numbers in a tensor of the CPU, `inner`.

    For C++ it is a tensor of the device "meta": no build lacks support for that in backward passes.
    """

    inner: Tensor
    index: int

    @staticmethod
    def __new__(cls, inner, index=0, requires_grad=False):
        if isinstance(inner, FakeCuda):  # accelerate makes a parameter again by its type
            return nn.Parameter(inner, requires_grad)
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device("meta", index),
            requires_grad=requires_grad,
        )
        made.inner, made.index = inner, index
        return made

    @property
    def device(self):
        return torch.device("cuda", self.index)

    @property
    def is_cuda(self):
        return True

    @property
    def is_meta(self):
        return False

    def to(self, *args, **options):
        """The tensor itself where it is there already. C++ would copy it, to which no tensor is on a CUDA device."""
        if not options.get("copy", False) and not (args and isinstance(args[0], Tensor)):
            device, dtype, *_ = torch._C._nn._parse_to(*args, **options)
            place = None if device is None else device.index or 0
            stays = device is None or (device.type == "cuda" and place == self.index)
            if stays and dtype in (None, self.dtype) and options.get("memory_format") is None:
                return self
        return super().to(*args, **options)

    def new_tensor(self, data, *, dtype=None, device=None, **options):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self):
        return f"FakeCuda({self.inner!r}, cuda:{self.index})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise Misplaced(f"{func}: a tensor of a fake device is used outside `with Devices()`")


def _place(tensor):
    """The number of a tensor's fake device, None for the CPU."""
    return tensor.index if type(tensor) is FakeCuda else None


class _Given:
    """What an operation is given: how many tensors, the fake devices of those that have one, and devices by name."""

    def __init__(self):
        self.tensors = 0
        self.fakes: list[int] = []
        self.devices: list[torch.device] = []

    def taken(self, value):
        """The argument as the CPU takes it."""
        if type(value) is FakeCuda:
            self.tensors += 1
            self.fakes.append(value.index)
            return value.inner
        if isinstance(value, Tensor):
            self.tensors += 1
        elif isinstance(value, list | tuple):
            return type(value)([self.taken(entry) for entry in value])
        elif isinstance(value, torch.device):
            self.devices.append(value)
            return CPU
        return value


def _wrapped(out, place):
    if isinstance(out, Tensor):
        return FakeCuda(out, place)
    if isinstance(out, list | tuple):
        return type(out)([_wrapped(entry, place) for entry in out])
    return out


# Operations that take indices from the CPU, or from the device of what they index.
INDEXES = {
    aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
}  # fmt: skip
# Operations that fill a tensor from any device.
FILLS = {aten.copy_.default, aten.copy.default}
# Operations that copy a tensor to a device.
COPIES = {aten._to_copy.default, aten.to.device, aten.to.dtype_layout, aten.to.other}
# Operations that tell the CPU something of the numbers on a device, and wait for it.
WAITS = {
    aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default, aten.equal.default,
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default,
}  # fmt: skip


# Operations that are done in another way here: the CPU has no histogram of integers, and no product in another dtype;
# zeros that take no memory cannot be wrapped.
INSTEAD = {
    aten.mm.dtype: lambda one, other, dtype: one.to(dtype) @ other.to(dtype),
    aten.histc.default: lambda numbers, *rest, **more: aten.histc(numbers.float(), *rest, **more).to(numbers.dtype),
    aten._efficientzerotensor.default: torch.zeros,
}


class Devices(TorchDispatchMode):
    """Fake CUDA devices inside the block, see above."""

    def __init__(self):
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE  # PyTorch then does not look for a driver
        self.rules = FakeTensorMode()
        self.transfers: list[str] = []
        self._before: list[tuple[bool, Any]] = []

    def __enter__(self):
        self._before.append((torch._C._only_lift_cpu_tensors(), torch.cuda.get_device_capability))
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(..., device="cuda")` copies a tensor of the CPU
        torch.cuda.get_device_capability = lambda device=None: (9, 0)  # transformers asks it which kernels there are
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        lifting, torch.cuda.get_device_capability = self._before.pop()
        torch._C._set_only_lift_cpu_tensors(lifting)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = _Given()
        inner_args, inner_kwargs = given.taken(args), {key: given.taken(value) for key, value in kwargs.items()}
        if not given.fakes and not any(device.type != "cpu" for device in given.devices):
            return func(*args, **kwargs)
        place = self._place_of_result(func, args, kwargs, given)
        out = INSTEAD.get(func, func)(*inner_args, **inner_kwargs)
        self._count(func, args, place)
        if func._schema.is_mutable:
            return _changed(func, args, kwargs, out)
        if func in COPIES and out is inner_args[0] and _place(args[0]) != place:
            out = out.clone()
        if place is None:
            return out
        # a view of a tensor that was made outside of inference mode is no tensor of inference mode
        outside = func.is_view and torch.is_inference_mode_enabled() and not args[0].is_inference()
        with torch.inference_mode(False) if outside else nullcontext():
            return _wrapped(out, place)

    def _place_of_result(self, func, args, kwargs, given):
        """Where the result of an operation is, None for the CPU. Raises Misplaced where its tensors are apart."""
        if given.devices:  # it names a device: a copy, or a new tensor
            device = given.devices[-1]
            return None if device.type == "cpu" else device.index or 0
        if given.tensors == len(given.fakes) and len(set(given.fakes)) == 1:
            return given.fakes[0]
        if func in FILLS:
            return _place(args[0])
        if func in INDEXES:
            return self._indexed(func, args)
        return self._by_rule(func, args, kwargs)

    def _count(self, func, args, place):
        """Note an operation that takes numbers from a device to the CPU."""
        source = args[1] if func in FILLS else args[0] if func in COPIES | WAITS else None
        if type(source) is FakeCuda and (func in WAITS or place is None):
            self.transfers.append(func.__name__.split(".")[0])

    def _indexed(self, func, args):
        """Where what is indexed is. Its indices are on the CPU or beside it, the values that are put in beside it."""
        place = _place(args[0])
        for index in args[1]:
            if index is not None and _place(index) not in (None, place):
                raise Misplaced(f"{func}: {args[0].device} is indexed by a tensor on {index.device}")
        for value in args[2:3]:
            if _place(value) != place and (_place(value) is not None or value.ndim):
                raise Misplaced(f"{func}: a tensor on {value.device} is put into one on {args[0].device}")
        return place

    def _by_rule(self, func, args, kwargs):
        """What PyTorch says of the devices of this operation."""
        with self.rules:
            stand_ins = tree_map(_stand_in, (args, kwargs))
            try:
                out = func(*stand_ins[0], **stand_ins[1])
            except RuntimeError as error:
                raise Misplaced(f"{func}: {error}") from error
        first = next(value for value in tree_flatten(out)[0] if isinstance(value, Tensor))
        return None if first.device.type == "cpu" else first.device.index


def _changed(func, args, kwargs, out):
    """What an operation returns that changes its first argument, or `out`."""
    target = kwargs.get("out", args[0])
    if type(target) is not FakeCuda:
        return out
    if target.shape != target.inner.shape or target.stride() != target.inner.stride():
        raise NotImplementedError(f"{func} changes the shape of a tensor on a fake device")
    return target


def _stand_in(value):
    """The same tensor without numbers, for PyTorch's own rules."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def put(model, index=0):
    """Move a model to a fake device."""
    fakes: dict[int, Tensor] = {}  # tied weights stay tied
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                if id(tensor) not in fakes:
                    fake: Tensor = FakeCuda(tensor.detach(), index)
                    fakes[id(tensor)] = nn.Parameter(fake, False) if isinstance(tensor, nn.Parameter) else fake
                own[name] = fakes[id(tensor)]
    return model


def spread(model):
    """Spread a model over two fake devices, as `device_map="auto"` does.

    The first layer is on the first one with what comes before it; the other layers are on the second one with what
    comes after them, and an unembedding that is not tied to the embeddings. The hooks that move hidden states from
    device to device are accelerate's.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [
        found
        for part in (model.get_decoder(), model.base_model)  # the first is no decoder in all classes
        for found in (part or model).modules()
        if isinstance(found, nn.ModuleList) and len(found)
    ]
    layers = next((found for found in lists if len(found) == count), lists[0])
    names = {module: name for name, module in model.named_modules()}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head.weight is embedding.weight
    places: dict[str, str] = {}
    place = "cuda:0"

    def go_on(module):
        nonlocal place
        for child in module.children():
            if child is layers:
                places.update({names[layer]: "cuda:1" if at else "cuda:0" for at, layer in enumerate(layers)})
                place = "cuda:1"
            elif any(inner is layers for inner in child.modules()):
                go_on(child)
            else:
                shares = tied and any(inner is head for inner in child.modules())
                places[names[child]] = "cuda:0" if shares else place

    go_on(model)
    return dispatch_model(model, places, main_device="cuda:0", skip_keys="past_key_values", force_hooks=True)
