"""One part of a notebook in NF4: induction scores of 4-bit weights beside an eager model that has them dequantised."""

from typing import Any

import bitsandbytes
import numpy as np
import torch
from bitsandbytes.functional import dequantize_4bit
from torch import Tensor, nn

from tests.real_model import plain
from tests.real_model.conftest import NAME, Subject
from util.load_model_and_data import load_ICL_model
from util.prompts.sequences import repeated_sequences
from util.roles.head_scores import head_scores

LENGTH, COPIES = 20, 2


class Dequantised(nn.Module):
    """A linear map of dequantised weights that computes in one dtype, whatever comes in."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)


def dequantised(real: Subject, layers: dict[str, Any], dtype: torch.dtype) -> Any:
    """An eager model with the weights of 4-bit layers."""
    twin = plain.eager(real.model)
    for name, module in layers.items():
        twin.set_submodule(name, Dequantised(dequantize_4bit(module.weight.data, module.weight.quant_state), dtype))
    return twin


def test_induction_scores_in_4_bits_are_those_of_the_dequantised_weights(real: Subject) -> None:
    model, tokenizer = load_ICL_model(NAME, quantized=True, verbose=False)
    layers = {n: module for n, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)}
    assert len(layers) == 30 * 7
    drawn = repeated_sequences(tokenizer, LENGTH, COPIES, [0])
    ids = drawn.ids[0].tolist()
    asked = range(LENGTH + 1, COPIES * LENGTH + 1)
    cells = [(q, k) for q in asked for k in range(2, q + 1) if ids[k - 1] == ids[q]]
    unquantised = head_scores(real.model, drawn)["prefix_matching"][0]
    # a sum in another order is another bfloat16 now and then, and the next layer another by more: in float32 it is not
    for dtype, bound in ((torch.bfloat16, 1e-2), (torch.float32, real.bound)):
        assert all(module.compute_dtype == torch.bfloat16 for module in layers.values()) or dtype == torch.float32
        for module in layers.values():
            module.compute_dtype = dtype
        ours = head_scores(model, drawn)["prefix_matching"][0]
        with torch.no_grad():
            twin = dequantised(real, layers, dtype)
            weights = torch.stack(twin(torch.tensor([ids]), use_cache=False, output_attentions=True).attentions)[:, 0]
        theirs = torch.stack([weights[:, :, q, k] for q, k in cells]).sum(0).numpy() / len(asked)
        gap = float(np.abs(ours - theirs).max())
        seen = float(np.abs(ours - unquantised).max())
        print(f"4-bit scores, {dtype}: largest difference {gap:.1e}; from those of unquantised weights {seen:.1e}")
        assert ours.shape == (30, 9) and np.isfinite(ours).all()
        assert gap <= bound, f"largest difference {gap:.2e} of scores up to {theirs.max():.2f}"
        assert seen > 5 * gap
        strongest = [set(np.argsort(scores, axis=None)[-5:].tolist()) for scores in (ours, theirs)]
        assert strongest[0] == strongest[1]
