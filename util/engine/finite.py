"""Checks for NaN and infinity: a logit, score or attention row that is not finite stops a run before it is stored.

The arg max of NaN is token 0, and NaN is never larger than anything. Without a check, a damaged checkpoint or an
overflow in float16 would give accuracies of 0 and p-values of 1. So what a forward pass returns is checked at once.
The check is one sum, which is finite only if all its terms are. Only after a failure is the cause looked for.
"""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from util.stats.intervals import NAN_IN_RECORDS


class NotFinite(FloatingPointError):
    """A number of a run is NaN or infinite; the message names the prompt and the likely cause."""


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
    prompts: Sequence[Sized] | Tensor,
    numbers: Sequence[int] | np.ndarray | None = None,
    counted: Tensor | None = None,
) -> None:
    """Raises NotFinite unless all values [B, ...] are finite.

    what: the name of the values in the message ("the logits"); prompts: each of the B prompts, as tokens; numbers:
    the number of each prompt in the message, default 0, 1, ...; counted: [B, T], false where the values [B, T, ...]
    belong to padding, which is not checked.
    """
    values = torch.as_tensor(values)
    if all_finite(values):
        return
    bad = ~values.isfinite()
    if counted is not None:
        bad[~counted.to(bad.device)] = False
    if not bad.any():
        return
    first = int(bad.nonzero()[0, 0])
    kind = "NaN" if (bad[first] & values[first].isnan()).any() else "infinite"
    number = first if numbers is None else int(numbers[first])
    raise NotFinite(f"{what} of prompt {number} ({len(prompts[first])} tokens) are {kind}. {_cause(model)}")


def check_record(data: Mapping[str, Any], model: PreTrainedModel | None) -> dict[str, Any]:
    """The data of a record, unchanged. Raises NotFinite for infinity, and for NaN that has no reason.

    model: that computed them, for the message; None where it is not loaded.
    """
    for name, array in data.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            continue
        wrong = np.isinf(array) if name in NAN_IN_RECORDS else ~np.isfinite(array)
        if wrong.any():
            place = np.argwhere(wrong)[0].tolist()
            cause = "" if model is None else _cause(model)
            raise NotFinite(
                f"{name!r} is {array[tuple(place)]} at {place} of {list(array.shape)}; nothing was stored. {cause}"
            )
    return dict(data)


def _cause(model: PreTrainedModel) -> str:
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
        return 'The weights are finite, in 16 or 4 bits: try dtype="float32", unquantised.'
    return "The weights are finite: are they really this model's? If so, an edit or a measure divides by zero."
