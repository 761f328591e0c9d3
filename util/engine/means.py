"""What heads put out on average over many prompts, summed up in float64 while it is computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from util.engine.attention import head_writes, instrument
from util.engine.batches import TOKEN_BUDGET, Batch, Row, forward, run_rows
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, SumHeads
from util.engine.layer_calls import called_again, recorded


def mean_outputs(
    model: PreTrainedModel, rows: Sequence[Row], skip: int = 8, token_budget: int = TOKEN_BUDGET
) -> dict[str, Any]:
    """Every head's mean output over tokens: mean [L, H, dv]; norms [L, H] of what they write last; tokens; prompts.

    The first `skip` positions, BOS among them, are left out: they hold the outliers that serve as attention sinks.
    Raises ValueError where nothing is left.
    """
    found = prepare(model)
    if max(map(len, rows), default=0) <= skip:
        raise ValueError(f"no prompt of the reference has more than the {skip} tokens that are left out")
    sums, norms, tokens = _Sums(), np.zeros((len(found.layers), found.heads)), 0.0

    def visit(batch: Batch) -> None:
        nonlocal tokens
        weights = _weights(batch, skip)
        part, last = SumHeads(weights), CaptureHeads(batch.lengths[:, None] - 1)
        forward(model, batch, part, last)
        sums.add(part.sums)
        tokens += float(weights.sum())
        for place, layer in enumerate(found.layers):
            norms[place] += _lengths(found.projections.get(layer), last.z[layer][:, 0]).sum(0)

    run_rows(model, rows, visit, token_budget)
    mean = np.stack([(sums[layer] / tokens).cpu().numpy() for layer in found.layers])
    return {"mean": mean.astype(_dtype(model)), "norms": norms / len(rows), "tokens": int(tokens), "prompts": len(rows)}


@torch.inference_mode()
def _lengths(projection: nn.Module | None, z: Tensor) -> np.ndarray:
    """How long what each head writes is, [N, H], from outputs [N, H, dv]; of the outputs, where a class gates them."""
    written = z if projection is None else head_writes(projection, z)
    return torch.linalg.vector_norm(written.double(), dim=-1).cpu().numpy()


def position_means(
    model: PreTrainedModel, rows: Sequence[Row], layers: Sequence[int], token_budget: int = TOKEN_BUDGET
) -> dict[int, np.ndarray]:
    """The mean outputs of all heads at every position, by layer [T, H, dv], T of the longest row."""
    sums, counts = _Sums(), _Sums()

    def visit(batch: Batch) -> None:
        weights = _weights(batch)
        forward(model, batch, part := SumHeads(weights, layers, by_position=True))
        sums.add(part.sums)
        counts.add({0: weights.sum(0)})

    run_rows(model, rows, visit, token_budget)
    return {layer: _mean(total, counts[0]).cpu().numpy().astype(_dtype(model)) for layer, total in sums.items()}


def outputs_of_mean_inputs(
    model: PreTrainedModel, rows: Sequence[Row], layers: Sequence[int], token_budget: int = TOKEN_BUDGET
) -> dict[int, np.ndarray]:
    """What all heads of some layers put out where the layer's attention is given its mean input, [T, H, dv] by layer.

    The mean is taken over rows at every position. As attention is causal, the output at a position is the same in every
    longer prompt.
    """
    modules = {layer: module for module, layer in prepare(model).modules.items() if layer in layers}
    sums, counts = _Sums(), _Sums()

    def visit(batch: Batch) -> None:
        weights = _weights(batch)
        with recorded(modules.values()) as calls:
            forward(model, batch)
        own = {layer: call.hidden.double() for layer, call in zip(modules, calls, strict=True)}
        sums.add({at: torch.einsum("bt,btd->td", weights.to(part.device), part) for at, part in own.items()})
        counts.add({0: weights.sum(0)})

    run_rows(model, rows, visit, token_budget)
    with recorded(modules.values()) as calls:
        forward(model, Batch.of([max(rows, key=len)], [0]))
    means = [_mean(sums[layer], counts[0])[None] for layer in modules]
    with torch.inference_mode(), instrument(model, heads := CaptureHeads(layers=layers)):
        called_again(list(modules.values()), calls, means)
    # by way of float64, because numpy has no bfloat16
    return {layer: heads.z[layer][0].double().cpu().numpy().astype(_dtype(model)) for layer in layers}


class _Sums(dict[int, Tensor]):
    """Sums by layer, to which shorter and longer ones may be added along their first dimension."""

    def add(self, new: dict[int, Tensor]) -> None:
        for layer, part in new.items():
            before = self.get(layer)
            if before is None:
                self[layer] = part
                continue
            short, long = sorted((before, part), key=len)
            long = long.clone()
            long[: len(short)] += short
            self[layer] = long


def _weights(batch: Batch, skip: int = 0) -> Tensor:
    """1 for the tokens [B, T] of a batch from position `skip` on, 0 for padding."""
    places = torch.arange(batch.inputs["input_ids"].shape[1])
    return ((places >= skip) & (places < batch.lengths[:, None])).double()


def _mean(total: Tensor, counts: Tensor) -> Tensor:
    return total / counts.to(total.device).view(-1, *[1] * (total.ndim - 1))


def _dtype(model: PreTrainedModel) -> type:
    return np.float64 if model.dtype == torch.float64 else np.float32
