"""Checks for NaN and infinity: a logit, score or attention row that is not finite stops a run before it is stored.

The arg max of NaN is token 0, and NaN is never larger than anything. Without a check, a damaged checkpoint or an
overflow in float16 would give accuracies of 0 and p-values of 1. So what a forward pass returns is checked at once.
The check is one sum, which is finite only if all its terms are. Only after a failure is the faulty module looked for.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from util.engine.attention import PREPARED, input_device
from util.stats.undefined import IN_RECORDS

WORDS = 12  # how many tokens of a prompt an error quotes

# The tokenizer of a model, where it is known, so that errors can quote prompts in words.
TOKENIZERS: "weakref.WeakKeyDictionary[nn.Module, Any]" = weakref.WeakKeyDictionary()


class NotFinite(FloatingPointError):
    """A number of a run is NaN or infinite; the message names the prompt, the layer, the dtype and the likely cure."""


def all_finite(values: Tensor) -> bool:
    """Whether all values [...] are finite. This usually costs one sum, which NaN and infinity make not finite."""
    wide = torch.promote_types(values.dtype, torch.float32)
    if bool(values.sum(dtype=wide).isfinite()):
        return True
    # the sum of finite numbers may overflow, so a sum that is not finite proves nothing
    return bool(values.isfinite().all())


def check_finite(
    values: Tensor | np.ndarray,
    what: str,
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]] | Tensor,
    numbers: Sequence[int] | np.ndarray | None = None,
    counted: Tensor | None = None,
) -> None:
    """Raises NotFinite unless all values [B, ...] are finite.

    what: the name of the values in the message ("the logits"); prompts: the tokens of each of the B prompts; numbers:
    the number of each prompt in the message, default 0, 1, ...; counted: [B, T], false where the values [B, T, ...]
    belong to padding, which is not checked.
    """
    values = torch.as_tensor(values)
    if all_finite(values):
        return
    bad = ~values.isfinite()
    if counted is not None:
        bad &= counted.to(bad.device).reshape(*counted.shape, *[1] * (values.ndim - counted.ndim))
    if not bool(bad.any()):
        return
    first = int(bad.nonzero()[0, 0])
    kind = "NaN" if bool((bad[first] & values[first].isnan()).any()) else "infinite"
    number = first if numbers is None else int(numbers[first])
    ids = [int(token) for token in prompts[first]]
    place = first_fault(model, ids)
    raise NotFinite(
        f"{what} of prompt {number} ({len(ids)} tokens, beginning with {_words(model, ids)}) are {kind}: "
        + (f"first in {place}" if place else "not so where it runs alone, without instruments and padding")
        + f", computed in {_dtype(model)}. {_cure(model)}"
    )


def check_record(data: Mapping[str, Any], model: PreTrainedModel | None) -> dict[str, Any]:
    """The data of a record, unchanged. Raises NotFinite for infinity, and for NaN in arrays that `IN_RECORDS` lacks.

    model: that computed them, for the message; None where it is not loaded.
    """
    for name, array in data.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            continue
        wrong = np.isinf(array) if name in IN_RECORDS else ~np.isfinite(array)
        if wrong.any():
            place = np.argwhere(wrong)[0].tolist()
            wrong_number = f"{name!r} is {array[tuple(place)]} at {place} of {list(array.shape)}"
            if model is None:
                raise NotFinite(f"{wrong_number}; nothing was stored.")
            raise NotFinite(f"{wrong_number}, computed in {_dtype(model)}; nothing was stored. {_cure(model)}")
    return dict(data)


def first_fault(model: PreTrainedModel, ids: Sequence[int]) -> str:
    """The first module, in words, whose output is not finite when the model runs this prompt alone; "" if none is."""
    seen: list[str] = []
    # an empty context detaches the instruments of the run that failed: they fit another batch
    with _watched(model, seen):
        logits = Context().run(_logits, model, torch.tensor([list(ids)]))
    if not seen and not all_finite(logits):
        seen.append("the unembedding")
    return seen[0] if seen else ""


@torch.inference_mode()
def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(input_ids=ids.to(input_device(model)), use_cache=False).logits


@contextmanager
def _watched(model: PreTrainedModel, seen: list[str]) -> Iterator[None]:
    """Append to `seen` the name of every module whose output is not finite, in the order in which modules finish."""
    names: dict[nn.Module, str] = {model.get_input_embeddings(): "the embeddings"}
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    for layers in lists[:1]:
        names |= {module: f"layer {number}, behind its attention" for number, module in enumerate(layers)}
    if model in PREPARED:
        names |= {module: f"the attention of layer {number}" for module, number in PREPARED[model].modules.items()}
    names[model.base_model] = "the final norm"

    def watch(module: nn.Module, _: Any, out: Any) -> None:
        states = out[0] if isinstance(out, tuple) else getattr(out, "last_hidden_state", out)
        if isinstance(states, Tensor) and not all_finite(states):
            seen.append(names[module])

    hooks = [module.register_forward_hook(watch) for module in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _words(model: PreTrainedModel, ids: Sequence[int]) -> str:
    """The beginning of a prompt, in words if the model's tokenizer is known."""
    tokenizer = TOKENIZERS.get(model)
    start = list(ids[:WORDS])
    return f"the tokens {start}" if tokenizer is None else repr(tokenizer.decode(start))


def _dtype(model: PreTrainedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


def _cure(model: PreTrainedModel) -> str:
    """The likely cause and what to do, for a message."""
    damaged = [
        name
        for name, weights in model.named_parameters()
        if weights.is_floating_point() and weights.device.type != "meta" and not all_finite(weights.detach())
    ]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return f"The checkpoint is damaged: {damaged[0]}{more} is not finite; fetch it again, or take another revision."
    if model.dtype == torch.float16:
        return 'The weights are finite, but float16 ends at 65504: take dtype="bfloat16" or "float32".'
    if model.dtype == torch.bfloat16 or getattr(model, "is_quantized", False):
        return 'The weights are finite: try dtype="float32", unquantised.'
    return "The weights are finite: are they really this model's? If so, an edit or a measure divides by zero."
