"""Estimate, before a run, the memory it needs: for the weights, and for one batch of activations."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import get_max_memory
from torch.nn import Linear
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from util.engine.call import EAGER_CHUNK
from util.engine.handshake import input_device

AUTO = ("auto", "balanced", "balanced_low_0", "sequential")  # device maps that accelerate computes
CGROUP = Path("/sys/fs/cgroup")
CURES = "use a smaller token budget, quantized=True, or device_map='auto' to spread the model"


@dataclass(frozen=True)
class Estimate:
    """Bytes by device ("cpu", "cuda:0", "disk").

    weights: the model's weights; activations: what one batch needs at the widest place of the model; loaded: whether
    the weights are in memory already, so that `check` does not count them.
    """

    weights: dict[str, int]
    activations: dict[str, int]
    loaded: bool

    @property
    def total(self) -> int:
        """The sum of all, in bytes."""
        return sum(self.weights.values()) + sum(self.activations.values())

    @property
    def needed(self) -> Counter[str]:
        """The bytes that are not in memory yet, by device."""
        return Counter(self.activations) + Counter({} if self.loaded else self.weights)

    def __str__(self) -> str:
        weights, devices = sum(self.weights.values()), ", ".join(sorted({*self.weights, *self.activations}))
        parts = f"{weights / 1e9:.2f} weights + {(self.total - weights) / 1e9:.2f} activations"
        return f"{self.total / 1e9:.2f} GB: {parts} on {devices}"


def estimate(
    model: PreTrainedModel | PreTrainedConfig,
    rows: Sequence[int] = (),
    token_budget: int = 2048,
    captured: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    quantized: bool = False,
    device_map: Any = None,
    with_twin: bool = False,
) -> Estimate:
    """The memory that running prompts through the base model needs, in batches of `token_budget` tokens.

    rows: the number of tokens of each prompt; captured: how many query rows are captured of each prompt, in all heads
    and layers. dtype, quantized (4-bit NF4) and device_map (a place or a map of places; None: the GPU if there is one)
    are those of `load_ICL_model`. with_twin: an untrained twin is to lie beside the model; it is not quantised, and it
    is where the model takes its input. These four are used only where `model` is a configuration, for which no weight
    is made or loaded. Pages of a checkpoint that stay mapped while its dtype is changed are not counted, because the
    system can reclaim them.
    """
    loaded = isinstance(model, PreTrainedModel)
    if loaded:
        dtype, device_map = model.dtype, getattr(model, "hf_device_map", None) or input_device(model)
    else:
        quantized = quantized or getattr(model, "quantization_config", None) is not None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model, dtype=dtype, trust_remote_code=False)
    tensors = dict((*model.named_parameters(), *model.named_buffers()))  # tied weights are in it once
    states = {name: getattr(tensor, "quant_state", None) for name, tensor in tensors.items()}
    # how many numbers each 4-bit weight holds
    quantized_sizes = {name: math.prod(state.shape) for name, state in states.items() if state is not None}
    if quantized and not loaded:
        quantized_sizes = {name: tensors[name].numel() for name in _matrices(model)}
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    sizes |= {name: nf4_bytes(count) for name, count in quantized_sizes.items()}
    places = _places(sizes, device_map)
    used = set(places.values())
    weights = {device: sum(size for name, size in sizes.items() if places[name] == device) for device in used}
    if with_twin and not loaded:
        embedding = model.get_input_embeddings().weight
        device = next(places[name] for name, tensor in tensors.items() if tensor is embedding)
        weights[device] += sum(tensor.nbytes for tensor in tensors.values())
    computing = sorted(used - {"cpu", "disk"}) or ["cpu"]
    shapes = {(max(1, min(len(rows), token_budget // length)), length) for length in rows}
    activations = _activations(model, shapes, captured, dtype.itemsize)
    # a 4-bit weight is unpacked to 16 bits and copied; an offloaded weight is moved to where it is used; one at a time
    activations += 4 * max(quantized_sizes.values(), default=0)
    activations += max((size for name, size in sizes.items() if places[name] not in computing), default=0)
    return Estimate(weights, dict.fromkeys(computing, activations), loaded)


def check(estimated: Estimate, others: Callable[[], Mapping[str, Estimate]] | None = None) -> None:
    """Raises MemoryError where a device has less memory free than is needed; warns where over 80 % of it is needed.

    others: gives the estimates with other settings, by their names; the error names those that fit.
    """
    free_bytes = free()
    for device, need in estimated.needed.items():
        room = free_bytes.get(device, math.inf)
        message = f"{need / 1e9:.2f} GB are needed on {device} and {room / 1e9:.2f} GB are free ({estimated}); {CURES}"
        if need > room:
            raise MemoryError(message + ("" if others is None else _what_fits(others(), free_bytes)))
        if need > 0.8 * room:
            warnings.warn(message, stacklevel=2)


def _what_fits(others: Mapping[str, Estimate], free_bytes: Mapping[str, int]) -> str:
    """The settings whose estimate is less than what is free, in words."""
    fitting = [
        f"{name} ({estimated.total / 1e9:.2f} GB)"
        for name, estimated in others.items()
        if all(need <= free_bytes.get(device, math.inf) for device, need in estimated.needed.items())
    ]
    if not fitting:
        return f". Of {', '.join(others)} none fits here: it takes a smaller model or a larger machine"
    return f". This fits here: {', '.join(fitting)}"


def free() -> dict[str, int]:
    """Free bytes by device.

    On a GPU this includes what torch has reserved and does not use; on the CPU a container's limit is respected.
    """
    free_bytes = {device_name(device): int(size) for device, size in get_max_memory().items()}
    files = [CGROUP / name for name in ("memory.max", "memory.current", "memory.stat")]
    if all(file.exists() for file in files):
        limit, used, stat = (file.read_text().split() for file in files)
        if limit != ["max"]:
            # the system can reclaim the cache of files that nobody uses
            reclaimable = int(stat[stat.index("inactive_file") + 1])
            free_bytes["cpu"] = min(free_bytes["cpu"], int(limit[0]) - int(used[0]) + reclaimable)
    for i in range(torch.cuda.device_count()):
        free_bytes[device_name(i)] += torch.cuda.memory_reserved(i) - torch.cuda.memory_allocated(i)
    return free_bytes


def device_name(device: Any) -> str:
    """The name of a device by which `Estimate` counts: 0 and "cuda" are "cuda:0"."""
    if isinstance(device, int):
        return f"cuda:{device}"
    return "cuda:0" if str(device) == "cuda" else str(device)


def nf4_bytes(numbers: int) -> int:
    """The bytes that so many numbers take in NF4 with double quantisation.

    That is half a byte for each number, one byte for each block of 64, four bytes for each 256 blocks, two code books
    (16 and 256 entries) and an offset, each entry four bytes.
    """
    blocks = math.ceil(numbers / 64)
    return math.ceil(numbers / 2) + blocks + 4 * math.ceil(blocks / 256) + 4 * (16 + 256 + 1)


def _matrices(model: PreTrainedModel) -> dict[str, Any]:
    """The linear modules that NF4 stores in 4 bits (not the unembedding), by the name of their weight."""
    modules, head = model.named_modules(), model.get_output_embeddings()
    return {f"{name}.weight": m for name, m in modules if isinstance(m, Linear | Conv1D) and m is not head}


def _places(names: Iterable[str], device_map: Any) -> dict[str, str]:
    """The device of each named weight under a device map."""
    if device_map is None:
        device_map = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = device_map if isinstance(device_map, dict) else {"": device_map}

    def place(name: str) -> str:
        """The device of the innermost module around a weight that the map names; "cpu" if it names none."""
        if name in wanted or not name:
            return device_name(wanted.get(name, "cpu"))
        return place(name.rpartition(".")[0])

    return {name: place(name) for name in names}


def _activations(model: PreTrainedModel, shapes: set[tuple[int, int]], captured: int, item: int) -> int:
    """Bytes of one batch at the widest place of any layer.

    shapes: (examples, tokens of each) of the batches; captured: query rows; item: bytes of one number.
    """
    config = model.config.get_text_config(decoder=True)
    tokens = max((examples * length for examples, length in shapes), default=0)
    square = max((examples * length**2 for examples, length in shapes), default=0)
    widths = [getattr(m, "out_features", None) or m.nf for m in _matrices(model).values()]
    # experts are one tensor [E, out, in]; each token uses a few of them
    experts_per_token = getattr(config, "num_experts_per_tok", None) or 1
    widths += [experts_per_token * max(p.shape[1:]) for p in model.parameters() if p.ndim == 3]
    # the residual stream, its norm, what attention or the MLP returns; a hidden layer, its nonlinearity in three steps,
    # and freed memory that the allocator keeps
    layer = tokens * item * (4 * config.hidden_size + 5 * max(widths))
    heads = getattr(config, "num_attention_heads", 0)  # Mamba has none, and is refused by name when it is prepared
    weights = heads * tokens * captured
    if getattr(config, "attn_logit_softcapping", None) or any(n.endswith("sinks") for n, _ in model.named_parameters()):
        # there is no fast kernel: all rows are computed as captured rows are
        weights = max(weights, min(heads * square, EAGER_CHUNK))
    windowed = any(getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    scores_and_softmax = 3 * weights * max(4, item)
    masks = windowed * square * (1 + item)  # as booleans and as numbers
    return layer + scores_and_softmax + masks
