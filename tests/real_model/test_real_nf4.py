"""One part of a notebook in NF4: induction scores of 4-bit weights beside the reference with these dequantised."""

from typing import Any

import bitsandbytes
import numpy as np
import torch
from bitsandbytes.functional import dequantize_4bit

from tests.real_model import plain
from tests.real_model.conftest import NAME, PLAIN, Subject
from util.load_model_and_data import load_ICL_model
from util.prompts.induction_pattern import repeated_sequences
from util.roles.sequences_study import head_scores

LENGTH, COPIES = 20, 2


def test_induction_scores_in_4_bits_are_those_of_the_dequantised_weights(real: Subject) -> None:
    model, tokenizer = load_ICL_model(NAME, quantized=True, verbose=False)
    layers = {n: module for n, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)}
    assert len(layers) == real.reference.layers * 7
    drawn = repeated_sequences(tokenizer, LENGTH, COPIES, [0])
    ids = drawn.ids[0].tolist()
    asked = range(LENGTH + 1, COPIES * LENGTH + 1)
    cells = [(q, k) for q in asked for k in range(2, q + 1) if ids[k - 1] == ids[q]]
    unquantised = head_scores(real.model, drawn)["prefix_matching"][0]
    # in bfloat16 a sum in another order is another number now and then, and the next layer another by more
    for dtype, bound in ((torch.bfloat16, 1e-2), (torch.float32, real.bound)):
        for module in layers.values():
            module.compute_dtype = dtype
        ours = head_scores(model, drawn)["prefix_matching"][0]
        packed: dict[str, Any] = {f"{name}.weight": module.weight for name, module in layers.items()}
        maps = {name: dequantize_4bit(weight.data, weight.quant_state) for name, weight in packed.items()}
        reference = PLAIN(real.model.state_dict() | {n: w.to(dtype) for n, w in maps.items()}, real.model.config)
        weights = plain.observed(reference, torch.tensor([ids]))[0][:, 0]
        theirs = torch.stack([weights[:, :, q, k] for q, k in cells]).sum(0).numpy() / len(asked)
        gap = float(np.abs(ours - theirs).max())
        print(f"4-bit scores, {dtype}: largest difference {gap:.1e}")
        assert gap <= bound and np.abs(ours - unquantised).max() > 5 * gap
        assert {*np.argsort(ours, axis=None)[-5:]} == {*np.argsort(theirs, axis=None)[-5:]}
