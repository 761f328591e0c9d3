"""Mean outputs of heads over many prompts, summed in float64 while they are computed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from util.engine.attention import head_writes, instrument
from util.engine.batches import TOKEN_BUDGET, Batch, Row, forward, run_rows
from util.engine.call import UnsupportedModel, in_double
from util.engine.handshake import prepare
from util.engine.instruments import CaptureHeads, SumHeads
from util.engine.layer_calls import called_again, recorded


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
    sums = _Sums()
    norms = np.zeros((len(support.layers), support.heads))
    tokens = 0.0

    def visit(batch: Batch) -> None:
        nonlocal tokens
        weights = _weights(batch, skip)
        batch_sums = SumHeads(weights)
        last = CaptureHeads(batch.lengths[:, None] - 1)
        forward(model, batch, batch_sums, last)
        check_widths(model, last.z)
        # all that may run out of memory comes first: a batch that does is visited again, in halves
        batch_norms = [
            _written_norms(support.projections.get(layer), last.z[layer][:, 0]).sum(0) for layer in support.layers
        ]
        sums.add(batch_sums.sums)
        tokens += float(weights.sum())
        norms[:] += batch_norms

    with _bar(rows) as bar:
        run_rows(model, rows, visit, token_budget, bar)
    mean = np.stack([(sums[layer] / tokens).cpu().numpy() for layer in support.layers])
    return {"mean": mean.astype(_dtype(model)), "norms": norms / len(rows), "tokens": int(tokens), "prompts": len(rows)}


def check_widths(model: PreTrainedModel, z: Mapping[int, Tensor]) -> None:
    """Raises UnsupportedModel unless the outputs of heads [..., H, dv], by layer, are as wide in all layers.

    No array [L, H, dv] holds those of a model such as Gemma 4, whose global layers have wider heads.
    """
    widths = {found.shape[-1] for found in z.values()}
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
    sums, counts = _Sums(), _Sums()

    def visit(batch: Batch) -> None:
        weights = _weights(batch)
        batch_sums = SumHeads(weights, layers, by_position=True)
        forward(model, batch, batch_sums)
        sums.add(batch_sums.sums)
        counts.add({0: weights.sum(0)})

    with _bar(rows) as bar:
        run_rows(model, rows, visit, token_budget, bar)
    return {layer: _mean(total, counts[0]).cpu().numpy().astype(_dtype(model)) for layer, total in sums.items()}


def outputs_of_mean_inputs(
    model: PreTrainedModel, rows: Sequence[Row], layers: Sequence[int], token_budget: int = TOKEN_BUDGET
) -> dict[int, np.ndarray]:
    """The outputs of all heads of some layers when their attention gets its mean input: by layer [T, H, dv].

    The mean input is taken over rows, at every position. As attention is causal, the output at a position does not
    depend on T.
    """
    modules = {layer: module for module, layer in prepare(model).modules.items() if layer in layers}
    sums, counts = _Sums(), _Sums()

    def visit(batch: Batch) -> None:
        weights = _weights(batch)
        with recorded(modules.values()) as calls:
            forward(model, batch)
        inputs = {layer: in_double(call.hidden) for layer, call in zip(modules, calls, strict=True)}
        sums.add({layer: torch.einsum("bt,btd->td", weights.to(x.device), x) for layer, x in inputs.items()})
        counts.add({0: weights.sum(0)})

    with _bar(rows) as bar:
        run_rows(model, rows, visit, token_budget, bar)
    with recorded(modules.values()) as calls:
        forward(model, Batch.of([max(rows, key=len)], [0]))
    means = [_mean(sums[layer], counts[0])[None] for layer in modules]
    with torch.inference_mode(), instrument(model, heads := CaptureHeads(layers=layers)):
        called_again(list(modules.values()), calls, means)
    # float64 in between, because numpy has no bfloat16
    return {layer: heads.z[layer][0].cpu().double().numpy().astype(_dtype(model)) for layer in layers}


def _bar(rows: Sequence[Row]) -> tqdm:
    return tqdm(total=len(rows), desc="means", unit="prompt", leave=False, delay=5)  # for what takes long


class _Sums(dict[int, Tensor]):
    """Sums by layer. The tensors that are added may differ in the length of their first dimension."""

    def add(self, new: dict[int, Tensor]) -> None:
        """Add tensors [T, ...] to the sums of their layers; the sum is as long as the longest of them."""
        for layer, tensor in new.items():
            before = self.get(layer)
            if before is None:
                self[layer] = tensor
                continue
            short, long = sorted((before, tensor), key=len)
            long = long.clone()
            long[: len(short)] += short
            self[layer] = long


def _weights(batch: Batch, skip: int = 0) -> Tensor:
    """1 for the tokens of a batch from position `skip` on, 0 for those before and for padding: [B, T]."""
    places = torch.arange(batch.inputs["input_ids"].shape[1])
    return ((places >= skip) & (places < batch.lengths[:, None])).double()


def _mean(total: Tensor, counts: Tensor) -> Tensor:
    """Sums [T, ...] divided by the counts [T] of their positions."""
    return total / counts.to(total.device).view(-1, *[1] * (total.ndim - 1))


def _dtype(model: PreTrainedModel) -> type:
    return np.float64 if model.dtype == torch.float64 else np.float32
