"""What a run will take of memory, said before any work: the weights, one batch of activations, what is captured."""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import infer_auto_device_map
from accelerate.utils import get_max_memory
from torch.nn import Linear
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from util.engine.call import EAGER_CHUNK
from util.engine.handshake import input_device

AUTO = ("auto", "balanced", "balanced_low_0", "sequential")  # device maps that accelerate works out
CGROUP = Path("/sys/fs/cgroup")
CURES = "use a smaller token budget, quantized=True, or device_map='auto' to spread the model"


@dataclass(frozen=True)
class Estimate:
    """Bytes by device ("cpu", "cuda:0", "disk"): the weights, what one batch needs at the model's widest place, and
    what row captures keep of it. loaded: the weights are in memory already, so `check` does not ask for them again."""

    weights: dict[str, int]
    activations: dict[str, int]
    captures: dict[str, int]
    loaded: bool

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return sum(sum(part.values()) for part in (self.weights, self.activations, self.captures))

    def __str__(self) -> str:
        parts = {name: sum(getattr(self, name).values()) / 1e9 for name in ("weights", "activations", "captures")}
        shown = " + ".join(f"{value:.2f} {name}" for name, value in parts.items())
        return f"{self.total / 1e9:.2f} GB: {shown} on {', '.join(sorted({*self.weights, *self.activations}))}"


def estimate(
    model: PreTrainedModel | PreTrainedConfig,
    rows: Sequence[int] = (),
    token_budget: int = 2048,
    captured: int = 0,
    kept: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    quantized: bool = False,
    device_map: Any = None,
) -> Estimate:
    """What running prompts of `rows` tokens each through the base model takes, in batches of `token_budget` tokens.

    captured: query rows captured of each prompt, in all heads and layers; kept: keys kept of each (None all). dtype,
    quantized (4-bit NF4) and device_map, as `load_ICL_model` takes them (None: the GPU if there is one), are for a
    configuration, of which no weight is made or loaded; a loaded model brings its own. The pages of a checkpoint that
    stay mapped while its dtype is changed are the system's to reclaim and not counted.
    """
    loaded = isinstance(model, PreTrainedModel)
    if loaded:
        dtype, device_map = model.dtype, getattr(model, "hf_device_map", None) or input_device(model)
    else:
        quantized = quantized or getattr(model, "quantization_config", None) is not None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model, dtype=dtype)
    tensors = dict((*model.named_parameters(), *model.named_buffers()))  # tied ones once
    states = {name: getattr(tensor, "quant_state", None) for name, tensor in tensors.items()}
    numbers = {name: math.prod(state.shape) for name, state in states.items() if state is not None}
    if quantized and not loaded:
        numbers = {name: tensors[name].numel() for name in _matrices(model)}
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    sizes |= {name: nf4_bytes(count) for name, count in numbers.items()}
    places = _places(model, sizes, device_map)
    used = set(places.values())
    weights = {device: sum(size for name, size in sizes.items() if places[name] == device) for device in used}
    computing = sorted(used - {"cpu", "disk"}) or ["cpu"]
    shapes = {(max(1, min(len(rows), token_budget // length)), length) for length in rows}
    activations = _activations(model, shapes, captured, dtype.itemsize)
    # a 4-bit weight is unpacked to 16 bits and laid out anew, an offloaded one visits where it is used: one at a time
    activations += 4 * max(numbers.values(), default=0)
    activations += max((size for name, size in sizes.items() if places[name] not in computing), default=0)
    config = model.config.get_text_config(decoder=True)
    cells = captured * max((examples * (kept or length) for examples, length in shapes), default=0)
    captures = config.num_hidden_layers * config.num_attention_heads * cells * max(4, dtype.itemsize)
    return Estimate(weights, dict.fromkeys(computing, activations), dict.fromkeys(computing, captures), loaded)


def check(found: Estimate) -> None:
    """Raises MemoryError where a device has less free than `found` still needs; warns above 80 % of what is free."""
    room, parts = free(), [found.activations, found.captures, {} if found.loaded else found.weights]
    for device, need in sum(map(Counter, parts), Counter[str]()).items():
        there = room.get(device, math.inf)
        said = f"{need / 1e9:.2f} GB are needed on {device} and {there / 1e9:.2f} GB are free ({found}); {CURES}"
        if need > there:
            raise MemoryError(said)
        if need > 0.8 * there:
            warnings.warn(said, stacklevel=2)


def free() -> dict[str, int]:
    """Free bytes by device, with what torch holds of a GPU and does not use, within the limit of a container."""
    found = {device_name(device): int(size) for device, size in get_max_memory().items()}
    files = [CGROUP / name for name in ("memory.max", "memory.current", "memory.stat")]
    if all(file.exists() for file in files):
        limit, used, stat = (file.read_text().split() for file in files)
        if limit != ["max"]:  # the cache of files that nobody uses is the system's to reclaim
            unused = int(stat[stat.index("inactive_file") + 1])
            found["cpu"] = min(found["cpu"], int(limit[0]) - int(used[0]) + unused)
    for i in range(torch.cuda.device_count()):
        found[device_name(i)] += torch.cuda.memory_reserved(i) - torch.cuda.memory_allocated(i)
    return found


def device_name(device: Any) -> str:
    """The name that accelerate has for a device: 0 and "cuda" are "cuda:0"."""
    return f"cuda:{device}" if isinstance(device, int) else {"cuda": "cuda:0"}.get(str(device), str(device))


def nf4_bytes(numbers: int) -> int:
    """Half a byte each, a byte for every 64, four for every 256 of those, two code books and an offset."""
    blocks = math.ceil(numbers / 64)
    return math.ceil(numbers / 2) + blocks + 4 * math.ceil(blocks / 256) + 4 * (16 + 256 + 1)


def _matrices(model: PreTrainedModel) -> dict[str, Any]:
    """The layers' matrices by the name of their weight: what NF4 stores in 4 bits, so not the unembedding."""
    modules, head = model.named_modules(), model.get_output_embeddings()
    return {f"{name}.weight": m for name, m in modules if isinstance(m, Linear | Conv1D) and m is not head}


def _places(model: PreTrainedModel, names: Iterable[str], device_map: Any) -> dict[str, str]:
    if device_map in AUTO:
        room = {device: int(0.9 * size) for device, size in get_max_memory().items()}  # as transformers leaves it
        device_map = infer_auto_device_map(model, room, no_split_module_classes=list(model._no_split_modules or ()))
    elif device_map is None:
        device_map = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = device_map if isinstance(device_map, dict) else {"": device_map}

    def place(name: str) -> str:
        return device_name(wanted.get(name, "cpu")) if name in wanted or not name else place(name.rpartition(".")[0])

    return {name: place(name) for name in names}


def _activations(model: PreTrainedModel, shapes: set[tuple[int, int]], captured: int, item: int) -> int:
    """Bytes of one batch at the widest place of any layer; shapes: the batches' (examples, tokens of each)."""
    config = model.config.get_text_config(decoder=True)
    tokens = max((examples * length for examples, length in shapes), default=0)
    square = max((examples * length**2 for examples, length in shapes), default=0)
    widths = [getattr(m, "out_features", None) or m.nf for m in _matrices(model).values()]
    # experts are one tensor [E, out, in], of which each token goes through a few
    few = getattr(config, "num_experts_per_tok", None) or 1
    widths += [few * max(p.shape[1:]) for p in model.parameters() if p.ndim == 3]
    # the residual stream, its norm, what attention or the MLP returns; a hidden layer, its nonlinearity in three steps,
    # and what the allocator keeps of what was freed
    layer = tokens * item * (4 * config.hidden_size + 5 * max(widths))
    weights = config.num_attention_heads * tokens * captured
    if getattr(config, "attn_logit_softcapping", None) or any(n.endswith("sinks") for n, _ in model.named_parameters()):
        # no fast kernel: all rows are computed as captured ones are
        weights = max(weights, min(config.num_attention_heads * square, EAGER_CHUNK))
    windowed = any(getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return layer + 3 * weights * max(4, item) + windowed * square * (1 + item)  # scores and softmax; the mask, twice
