"""Mean outputs of heads over many prompts, summed in float64 while they are computed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import head_writes, instrument
from util.engine.batches import TOKEN_BUDGET, Batch, Row, array_type, forward, run_rows
from util.engine.call import UnsupportedModel, in_double, recorded
from util.engine.handshake import prepare
from util.engine.instruments import ByLayer, CaptureHeads, SumHeads


def mean_outputs(
    model: PreTrainedModel, rows: Sequence[Row], skip: int = 8, token_budget: int = TOKEN_BUDGET
) -> dict[str, Any]:
    """The mean output of every head over the tokens of all rows.

    Gives mean [L, H, dv]; norms [L, H], the mean norm of what each head writes at the last token of a row; tokens and
    prompts, how many were averaged. The first `skip` positions, BOS among them, are left out of the mean, because their
    outputs are outliers (attention sinks). Raises ValueError where no token is left, and what `check_widths` raises.
    """
    support = prepare(model)
    if max(map(len, rows), default=0) <= skip:
        raise ValueError(f"no prompt of the reference has more than the {skip} tokens that are left out")
    sums: dict[int, Any] = dict.fromkeys(support.layers, 0.0)
    norms = np.zeros((len(support.layers), support.heads))
    tokens = sum(max(0, len(row) - skip) for row in rows)

    def visit(batch: Batch) -> None:
        batch_sums = SumHeads(_weights(batch, skip))
        last = CaptureHeads(batch.lengths[:, None] - 1)
        forward(model, batch, batch_sums, last)
        check_widths(model, last.z)
        # all that may run out of memory comes first: a batch that does is visited again, in halves
        batch_norms = [
            _written_norms(support.projections.get(layer), last.z[layer][:, 0]).sum(0) for layer in support.layers
        ]
        for layer, total in batch_sums.sums.items():
            sums[layer] = sums[layer] + total
        norms[:] += batch_norms

    _run(model, rows, visit, token_budget)
    mean = np.stack([_array(model, total / tokens) for total in sums.values()])
    return {"mean": mean, "norms": norms / len(rows), "tokens": tokens, "prompts": len(rows)}


def check_widths(model: PreTrainedModel, z: ByLayer) -> None:
    """Raises UnsupportedModel unless the outputs of heads [..., H, dv], by layer, are as wide in all layers.

    No array [L, H, dv] holds those of a model such as Gemma 4, whose global layers have wider heads.
    """
    widths = {outputs.shape[-1] for outputs in z.values()}
    if len(widths) > 1:
        both = " and ".join(map(str, sorted(widths)))
        raise UnsupportedModel(
            f"{type(model).__name__} has heads of {both} numbers in different layers: "
            "their mean outputs are no array [L, H, dv]; take another model for what needs mean outputs"
        )


@torch.inference_mode()
def _written_norms(projection: nn.Module | None, z: Tensor) -> np.ndarray:
    """The norm [N, H] of what each head writes, from its outputs z [N, H, dv].

    Without a projection (a class that gates the outputs) it is the norm of the outputs themselves.
    """
    written = z if projection is None else head_writes(projection, z)
    return torch.linalg.vector_norm(in_double(written), dim=-1).cpu().numpy()


def position_means(
    model: PreTrainedModel, rows: Sequence[Row], layers: Sequence[int], token_budget: int = TOKEN_BUDGET
) -> dict[int, np.ndarray]:
    """The mean outputs of all heads at every position: by layer [T, H, dv], with T the length of the longest row."""

    def sums(batch: Batch, weights: Tensor) -> ByLayer:
        forward(model, batch, heads := SumHeads(weights, layers, by_position=True))
        return heads.sums

    return {layer: _array(model, mean) for layer, mean in _by_position(model, rows, sums, token_budget).items()}


def outputs_of_mean_inputs(
    model: PreTrainedModel, rows: Sequence[Row], layers: Sequence[int], token_budget: int = TOKEN_BUDGET
) -> dict[int, np.ndarray]:
    """The outputs of all heads of some layers when their attention gets its mean input: by layer [T, H, dv].

    The mean input is taken over rows, at every position. As attention is causal, the output at a position does not
    depend on T.
    """
    modules = {layer: module for module, layer in prepare(model).modules.items() if layer in layers}

    def sums(batch: Batch, weights: Tensor) -> ByLayer:
        with recorded(modules.values()) as calls:
            forward(model, batch)
        inputs = {layer: in_double(call.hidden) for layer, call in zip(modules, calls, strict=True)}
        return {layer: torch.einsum("bt,btd->td", weights.to(x.device), x) for layer, x in inputs.items()}

    means = _by_position(model, rows, sums, token_budget)
    with recorded(modules.values()) as calls:
        forward(model, Batch.of([max(rows, key=len)]))
    with torch.inference_mode(), instrument(model, heads := CaptureHeads(layers=layers)):
        for layer, call in zip(modules, calls, strict=True):
            call.again(means[layer][None].to(call.hidden))
    return {layer: _array(model, heads.z[layer][0]) for layer in layers}


def _by_position(
    model: PreTrainedModel, rows: Sequence[Row], sums: Callable[[Batch, Tensor], ByLayer], token_budget: int
) -> ByLayer:
    """Means over rows at every position, by layer [T, ...].

    sums: gives by layer the sum over the rows of a batch [T', ...], each token having its weight [B, T'].
    """
    totals: ByLayer = {}
    counts = torch.zeros(max(map(len, rows)), dtype=torch.float64)

    def visit(batch: Batch) -> None:
        weights = _weights(batch)
        new = sums(batch, weights)
        for layer, of_layer in new.items():
            if layer not in totals:
                totals[layer] = of_layer.new_zeros(len(counts), *of_layer.shape[1:])
        for layer, of_layer in new.items():  # no memory is asked for from here on, or a halved batch would count twice
            totals[layer][: len(of_layer)] += of_layer
        counts[: weights.shape[1]] += weights.sum(0)

    _run(model, rows, visit, token_budget)
    return {layer: (total.movedim(0, -1) / counts.to(total.device)).movedim(-1, 0) for layer, total in totals.items()}


def _run(model: PreTrainedModel, rows: Sequence[Row], visit: Callable[[Batch], None], token_budget: int) -> None:
    with tqdm(total=len(rows), desc="means", unit="prompt", leave=False, delay=5) as bar:  # for what takes long
        run_rows(model, rows, visit, token_budget, bar)


def _weights(batch: Batch, skip: int = 0) -> Tensor:
    """1 for the tokens of a batch from position `skip` on, 0 for those before and for padding: [B, T]."""
    places = torch.arange(batch.inputs["input_ids"].shape[1])
    return ((places >= skip) & (places < batch.lengths[:, None])).double()


def _array(model: PreTrainedModel, values: Tensor) -> np.ndarray:
    """Values as float32 (float64 of a float64 model), by way of float64, because numpy has no bfloat16."""
    return values.cpu().double().numpy().astype(array_type(model))
