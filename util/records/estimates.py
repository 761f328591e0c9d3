"""What a study will take before it runs: seconds, memory and disk.

Each figure says what its parts are made of (`figures.<stem>.costs`), as formulas of the study's arguments and of the
model's shape. How fast a model runs here is measured on it, or given. Both together are the estimate. The formulas are
held to the tokens that really run, and to the measured peak of memory, by `tests/figures/test_estimates.py`.

The unit is a token that runs through all layers of the model. A run that begins at a layer, or at a token, in the
middle counts as what is left of it. The backward pass that gives gradients of activations counts as another run.
"""

from __future__ import annotations

import contextlib
import io
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from util.engine import memory, replay
from util.engine.batches import TOKEN_BUDGET, Row, forward, run_rows
from util.load_model_and_data import model_config, resolve_dtype
from util.records import shards
from util.records.model import Model

PROBE_ROWS, PROBE_TOKENS, PROBE_RUNS = 32, 64, 3  # of the runs that the speed is measured on
SHORT = 8  # tokens of the row that shows what a pass takes beside its tokens
SECONDS_OF_A_LAYER = 7e-4  # that one pass takes beside its tokens, where it is not measured
LIBRARIES = 550_000_000  # bytes of a process that has imported the suite and read prompts
CONTROL = 200_000_000  # bytes that a planted model takes, with what is measured of it
KERNEL, KERNELS = 1_220_000, 1024  # bytes of a kernel, and how many are kept
REPEATED = 0.3  # the share of kernels that are made, of those that the tokens allow for at most
RECORD = 30_000  # bytes of a record on the disk, beside its arrays
REPLAYED = 0.5  # of what `engine.replay` allows for: not all runs are at the widest place of a layer together
PADDING = 1.07  # tokens that run for each token of prompts of like lengths


# ------------------------------------------------------------------------------------------------ the model


@dataclass(frozen=True, eq=False)
class Shape:
    """What costs depend on of a model, which is loaded or made of its config without weights.

    layers: those that have attention; heads: of each; width: of the hidden states; vocabulary: how many tokens there
    are; unembedding: what the logits behind one token cost, in tokens.
    """

    model: PreTrainedModel
    layers: int
    heads: int
    width: int
    vocabulary: int
    unembedding: float

    @classmethod
    def of(cls, model: PreTrainedModel | PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Shape:
        """The shape of a model, or of the model that a configuration describes, in a dtype."""
        if not isinstance(model, PreTrainedModel):
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(model, dtype=dtype)
        config = model.config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
        with_attention = [kind for kind in kinds if "attention" in kind and "linear" not in kind]
        head = model.get_output_embeddings()
        return cls(
            model,
            len(with_attention) or config.num_hidden_layers,
            config.num_attention_heads,
            config.hidden_size,
            config.vocab_size,
            config.vocab_size * config.hidden_size / max(1, _used_numbers(model, head)),
        )

    @classmethod
    def of_model(cls, model: Model) -> Shape:
        """The shape of a study's model: of the model itself where it is loaded, else of its configuration.

        No weight is loaded. Raises what `load_model_and_data.model_config` raises.
        """
        if model.loaded is not None:
            return cls.of(model.loaded[0])
        config = model_config(model.name, model.revision)
        return cls.of(config, resolve_dtype(model.dtype, _device(model), config))

    @property
    def all_heads(self) -> int:
        """How many heads there are."""
        return self.layers * self.heads

    @property
    def item(self) -> int:
        """The bytes of one number of an activation."""
        return self.model.dtype.itemsize

    @property
    def small_vocabulary(self) -> bool:
        """Whether the tokenizer has so few tokens that texts are longer than `prompts.lengths` says."""
        return self.vocabulary < 8192

    def after_first(self, heads: int) -> float:
        """The share of the layers from the first of so many heads on, the mean over heads drawn at random."""
        before = sum(((self.layers - layer) / self.layers) ** heads for layer in range(1, self.layers))
        return 1 - before / self.layers

    @property
    def replayed(self) -> float:
        """The share of the layers that a replayed run takes from a random layer on: of the last, keys and values."""
        return ((self.layers + 1) / 2 - 0.7) / self.layers

    # -------------------------------------------------------------------------------------------- memory

    def weights(self, *, quantized: bool = False, with_twin: bool = False) -> int:
        """The bytes of the weights, with those of an untrained twin beside them if there is to be one."""
        own = sum(memory.estimate(self.model, quantized=quantized).weights.values())
        every = sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers()))
        return own + (every if with_twin else 0)

    def batch(self, length: float, rows: float = math.inf, captured: int = 0, kept: int | None = None) -> int:
        """The bytes of one batch of rows of so many tokens. captured, kept: see `engine.memory.estimate`."""
        tokens = max(1, round(length))
        together = round(min(rows, max(1, TOKEN_BUDGET // tokens)))
        needed = memory.estimate(self.model, [tokens] * together, TOKEN_BUDGET, captured, kept)
        return sum(needed.activations.values()) + sum(needed.captures.values())

    def logits(self, tokens: float, copies: int = 1) -> int:
        """The bytes of the logits behind so many tokens, with so many copies in float32 or better."""
        return round(tokens * self.vocabulary * (self.item + (copies - 1) * max(4, self.item)))

    def replay(self, runs: float, length: float, keys: float) -> int:
        """The bytes of edited runs that are replayed together: `length` tokens are computed, which read `keys`."""
        one = replay.row_bytes(self.model, max(1, round(length)), max(1, round(keys)))
        return round(REPLAYED * min(replay.BUDGET, runs * one))

    def kernels(self, tokens: float) -> float:
        """The bytes of the kernels that the CPU keeps of a mixture of experts in 16 bits, after so many tokens.

        oneDNN makes one for each number of rows that a matrix of an expert is multiplied by, and keeps the last ones.
        Different numbers 1, 2, ..., n add up to n²/2 rows, so that R rows in all are at most √(2R) different numbers.
        """
        experts = max((p.shape[0] for p in self.model.parameters() if p.ndim == 3), default=0)
        on_cpu = self.model.device.type in ("cpu", "meta")
        if not experts or self.item > 2 or not on_cpu:
            return 0.0
        config = self.model.config.get_text_config(decoder=True)
        rows = tokens * config.num_hidden_layers * (getattr(config, "num_experts_per_tok", None) or 1)
        return KERNEL * min(KERNELS, 2 * REPEATED * math.sqrt(2 * rows))  # an expert has two matrices

    def states(self, tokens: float) -> int:
        """The bytes of keys and values of so many tokens in all layers."""
        config = self.model.config.get_text_config(decoder=True)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shared = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return round(2 * tokens * self.layers * shared * size * self.item)


def _used_numbers(model: PreTrainedModel, head: Any) -> float:
    """The weights that one token is multiplied by in all layers: of experts only those that are used."""
    config = model.config.get_text_config(decoder=True)
    chosen = getattr(config, "num_experts_per_tok", None) or 1
    matrices = [p for module in model.modules() if module is not head for p in module.parameters(recurse=False)]
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    used = [p.numel() for p in matrices if p.ndim == 2 and id(p) not in embeddings]
    experts = [p.numel() * chosen / p.shape[0] for p in matrices if p.ndim == 3]
    return sum(used) + sum(experts)


def _device(model: Model) -> str:
    if model.device != "auto":
        return model.device
    return "cuda" if torch.cuda.is_available() else "cpu"


# ------------------------------------------------------------------------------------------------ the work


@dataclass(frozen=True)
class Work:
    """What some part of a study is made of. Sums of works add up, but for the room: one part follows the other.

    tokens: through all layers; unembedded: whose logits are computed; passes: calls of the model; seconds: what takes
    its time whatever the model, such as prompts that are drawn and intervals that are taken; room: bytes of memory at
    once, beside the weights; stored: bytes of records.
    """

    tokens: float = 0.0
    unembedded: float = 0.0
    passes: float = 0.0
    seconds: float = 0.0
    room: float = 0.0
    stored: float = 0.0

    def __add__(self, other: Work) -> Work:
        summed = {name: getattr(self, name) + getattr(other, name) for name in vars(self)}
        return Work(**summed | {"room": max(self.room, other.room)})

    def times(self, count: float) -> Work:
        """The same so many times, one after the other."""
        scaled = {name: count * value for name, value in vars(self).items()}
        return Work(**scaled | {"room": self.room if count else 0.0})


NOTHING = Work()


def together(works: Sequence[Work]) -> Work:
    """The sum of works."""
    return sum(works, NOTHING)


def batches(rows: float, length: float) -> float:
    """How many batches hold so many rows of about so many tokens."""
    return math.ceil(rows / max(1, TOKEN_BUDGET // max(1, round(length)))) if rows else 0


def loading() -> Work:
    """A model is loaded and checked on short prompts."""
    return Work(tokens=100, unembedded=100, passes=13)


def plain_runs(shape: Shape, rows: float, length: float, share: float = 1.0, **room: Any) -> Work:
    """Rows of so many tokens, run in batches through a share of the layers. room: see `Shape.batch`."""
    return Work(
        tokens=PADDING * share * rows * length,
        passes=share * batches(rows, length),
        room=shape.batch(length, max(1, rows), **room),
    )


@dataclass(frozen=True)
class Part:
    """A part of a study: what it is made of, and what measures it, or loads it where it was measured before."""

    work: Work
    measure: Callable[[], object]

    @cached_property
    def is_stored(self) -> bool:
        """Whether all its records are there. They are read; nothing is measured, and no weights are loaded for it."""
        try:
            with shards.looking(), contextlib.redirect_stderr(io.StringIO()):  # bars of what is only looked at
                self.measure()
        except shards.NotYet:
            return False
        return True


# ------------------------------------------------------------------------------------------------ how fast, how much


@dataclass(frozen=True)
class Speed:
    """How fast a model runs. tokens: a second, in wide batches; passes: the seconds of a pass of few tokens."""

    tokens: float
    passes: float

    @classmethod
    def given(cls, tokens: float, layers: int) -> Speed:
        """So many tokens a second. Raises ValueError unless that is a number above 0."""
        if not 0 < tokens < math.inf:
            raise ValueError(f"speed = {tokens}: give a number of tokens a second, above 0")
        return cls(tokens, SECONDS_OF_A_LAYER * layers)

    @classmethod
    def measured(cls, model: PreTrainedModel) -> Speed:
        """The speed of a loaded model, here and now: of a full batch, and of one short row."""
        vocabulary = model.config.get_text_config(decoder=True).vocab_size

        def seconds(rows: int, length: int) -> float:
            probe = [Row(tuple((7 * place + n) % vocabulary for place in range(length))) for n in range(rows)]
            taken = []
            for _ in range(1 + PROBE_RUNS):  # the first run makes what later ones find
                begun = time.perf_counter()
                run_rows(model, probe, lambda batch: forward(model, batch))
                taken.append(time.perf_counter() - begun)
            return min(taken[1:])

        tokens = PROBE_ROWS * PROBE_TOKENS / seconds(PROBE_ROWS, PROBE_TOKENS)
        return cls(tokens, max(0.0, seconds(1, SHORT) - SHORT / tokens))

    def seconds(self, work: Work, shape: Shape) -> float:
        """How long some work takes."""
        tokens = work.tokens + shape.unembedding * work.unembedded
        return work.seconds + tokens / self.tokens + work.passes * self.passes


@dataclass(frozen=True)
class Estimate:
    """What a study takes: seconds; gigabytes, the peak of memory; disk_gigabytes of records.

    parts: the seconds of each part, 0 where its records are there. speed: what the seconds rest on.
    """

    seconds: float
    gigabytes: float
    disk_gigabytes: float
    parts: Mapping[str, float]
    speed: Speed
    stored: tuple[str, ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        """The estimate in plain JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "gigabytes": round(self.gigabytes, 3),
            "disk_gigabytes": round(self.disk_gigabytes, 4),
            "parts": {name: round(seconds, 1) for name, seconds in self.parts.items()},
            "stored": list(self.stored),
            "tokens_per_second": round(self.speed.tokens, 1),
        }

    @property
    def lines(self) -> list[str]:
        """The estimate in words: one line of all, then one for each part that takes a tenth of it or more.

        The first is such as "about 12 min here (3,400 tokens a second), 1.6 GB of memory, 0.01 GB of records".
        """
        there = f"; {len(self.stored)} of {len(self.parts)} parts are there already" if self.stored else ""
        first = (
            f"about {in_words(self.seconds)} here ({self.speed.tokens:,.0f} tokens a second), "
            f"{self.gigabytes:.1f} GB of memory, {self.disk_gigabytes:.2g} GB of records{there}"
        )
        long = {name: seconds for name, seconds in self.parts.items() if seconds >= 0.1 * self.seconds > 0}
        return [first, *(f"    {name}: about {in_words(seconds)}" for name, seconds in long.items())]


def in_words(seconds: float) -> str:
    """A time as one says it: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(parts: Mapping[str, Part], model: Model, shape: Shape, speed: Speed) -> Estimate:
    """The estimate of some parts of a study of a model. Parts whose records are there count nothing.

    The memory is that of the whole process on the CPU. On a GPU it is what is allocated there: weights and the room of
    the largest part.
    """
    stored = tuple(name for name, part in parts.items() if part.is_stored)
    ahead = {name: part.work for name, part in parts.items() if name not in stored}
    seconds = {name: speed.seconds(ahead.get(name, NOTHING), shape) for name in parts}
    all_work = together(list(ahead.values()))
    room = all_work.room + shape.kernels(all_work.tokens)
    return Estimate(
        seconds=sum(seconds.values()),
        gigabytes=(process_bytes(model, shape, with_weights=bool(ahead)) + room) / 1e9,
        disk_gigabytes=all_work.stored / 1e9,
        parts=seconds,
        speed=speed,
        stored=stored,
    )


def process_bytes(model: Model, shape: Shape, *, with_weights: bool = True) -> float:
    """The bytes of the process with the model in it, and its untrained twin where the study has one, before it runs."""
    on_gpu = shape.model.device.type == "cuda" or (model.loaded is None and _device(model).startswith("cuda"))
    weights = shape.weights(quantized=model.quantized, with_twin=model.with_twin) if with_weights else 0
    if on_gpu:
        return weights
    loaded = 0 if model.loaded is None else shape.weights()
    return max(LIBRARIES, peak_bytes() - loaded) + weights


def peak_bytes() -> int:
    """The most memory that this process has had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux kilobytes


def with_control(work: Work, seconds: float, room: float = CONTROL) -> Work:
    """A planted model, or several, beside some work: so many seconds and bytes, whatever the model of the study."""
    return replace(work, seconds=work.seconds + seconds, room=max(work.room, room))
