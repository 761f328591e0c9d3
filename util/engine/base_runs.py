"""Runs that are edited from some layer on, started there: the layers before give what they gave in the unedited run.

Many edits of the same prompts (ablations, knockouts) differ from the whole model in late layers alone. What the layers
before them return is kept from the first run that leaves them unedited, and they are not computed again. Masks,
positions, later layers and the unembedding are the model's own, so that results do not change by a bit. Whether that is
so for a class is found out on a short prompt, layer by layer; where it is not, every run is a whole forward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from util.engine.call import Instrument
from util.engine.handshake import FAILURES, input_device, out_of_memory, prepare
from util.engine.layer_calls import bypassed
from util.engine.replay import SHORT, plan_of

LIMIT = 2**30  # bytes of kept layer outputs
_LAYERS: weakref.WeakKeyDictionary[nn.Module, nn.ModuleList | None] = weakref.WeakKeyDictionary()


class BaseRuns:
    """What layers returned in unedited runs of batches; batches are told apart by any key.

    starts: the first edited layer of each run that is to come, the model's own number, once for each run. tokens: of
    all batches together. limit: bytes; where outputs of all layers before `starts` are more, some of them are kept,
    and a run starts from the last kept layer before its edits.
    """

    def __init__(self, model: PreTrainedModel, starts: Sequence[int], tokens: int, limit: int = LIMIT) -> None:
        prepare(model)
        self._layers = startable(model)
        self._kept: dict[tuple[Hashable, int], Any] = {}
        width = model.config.get_text_config(decoder=True).hidden_size
        fitting = limit // max(1, tokens * width * model.dtype.itemsize)
        self.layers = _chosen([start for start in starts if start > 0], fitting) if self._layers is not None else []

    @contextmanager
    def run(self, key: Hashable, attached: Sequence[Instrument]) -> Iterator[None]:
        """Let one forward pass of the batch `key`, with these instruments attached, start where they allow it.

        What layers before the first instrument return in the pass is kept for later ones.
        """
        if self._layers is None:
            yield
            return
        first = min((0 if each.layers is None else min(each.layers) for each in attached), default=len(self._layers))
        known = [start for start in self.layers if start <= first and (key, start) in self._kept]
        start = max(known, default=0)
        wanted = [at for at in self.layers if start < at <= first]
        hooks = [self._layers[at - 1].register_forward_hook(self._keep(key, at)) for at in wanted]
        skipped = bypassed(self._layers[:start], self._kept[key, start]) if start else nullcontext()
        try:
            with skipped:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, key: Hashable, start: int) -> Any:
        def hook(_: nn.Module, __: Any, out: Any) -> None:
            self._kept[key, start] = out

        return hook


def _chosen(starts: Sequence[int], most: int) -> list[int]:
    """Returns at most so many of the starts: each once, those that many runs share first."""
    distinct = sorted(set(starts))
    if len(distinct) <= most:
        return distinct
    if most < 1:
        return []
    ordered = sorted(starts)
    return sorted({ordered[int(place)] for place in np.linspace(0, len(ordered) - 1, most)})


def startable(model: PreTrainedModel) -> nn.ModuleList | None:
    """Returns the layers of a model whose runs may start at any of them; None where the logits change.

    Found out once, on a short prompt, from every layer on. Raises an error of memory as it is.
    """
    if model not in _LAYERS:
        _LAYERS[model] = _found(model)
    return _LAYERS[model]


def _found(model: PreTrainedModel) -> nn.ModuleList | None:
    plan = plan_of(model)
    if not plan.replays:
        return None
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    ids = torch.randint(vocabulary, (2, SHORT), generator=torch.Generator().manual_seed(0)).to(input_device(model))
    returned: dict[int, Any] = {}
    hooks = [
        layer.register_forward_hook(lambda _, __, out, number=number: returned.update({number: out}))
        for number, layer in enumerate(plan.layers)
    ]
    try:
        with torch.inference_mode():
            whole = model(ids, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    try:
        for start in range(1, len(plan.layers)):
            with torch.inference_mode(), bypassed(plan.layers[:start], returned[start - 1]):
                if not torch.equal(model(ids, use_cache=False).logits, whole):
                    return None
    except FAILURES as error:
        if out_of_memory(error):
            raise
        return None
    return plan.layers
