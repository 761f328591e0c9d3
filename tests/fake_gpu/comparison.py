"""What a run gives on fake GPUs beside what it gives on the CPU: the numbers, the devices, the dtypes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from tests.device_runs import INSTRUMENTS, OWN_DTYPE, WHOLE
from tests.fake_gpu.fake_cuda import Devices
from util.engine.attention import support
from util.engine.call import UnsupportedModel


def measured(run, model):
    """What a run gives, or why it is refused; arrays and tensors as they are."""
    try:
        return run(model)
    except UnsupportedModel as error:
        return {str(error): None}


def plain(numbers):
    """A tensor or an array as an array."""
    return numbers.detach().cpu().double().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers, np.float64)


def assert_same(found, wanted):
    """What is found is what is wanted, as near as float32 is."""
    assert found.keys() == wanted.keys(), f"{[*found]} instead of {[*wanted]}"
    for name, numbers in wanted.items():
        assert (found[name] is None) == (numbers is None), name
        if numbers is not None:
            ours, theirs = plain(found[name]), plain(numbers)
            assert_allclose(ours, theirs, atol=1e-4 * max(1, np.nanmax(np.abs(theirs))), err_msg=name)


def assert_placed(model, found):
    """What an instrument gives of a layer is on the device of that layer."""
    places = {layer: next(module.parameters()).device for module, layer in support(model).modules.items()}
    for name, numbers in found.items():
        layer = name.split()[-1]
        if layer.isdigit():
            wanted = places[int(layer)]
            assert numbers.device == wanted, f"{name} is on {numbers.device}, its layer on {wanted}"


def assert_dtypes(model, found):
    """What is promised in float32 is that or wider; what is the model's own has its dtype."""
    for name, numbers in found.items():
        if numbers is None:
            continue
        dtype = numbers.dtype if isinstance(numbers, Tensor) else torch.from_numpy(numbers).dtype
        if name.split()[0] in OWN_DTYPE:
            assert dtype == model.dtype, f"{name} is {dtype}"
        else:
            assert dtype in (torch.float32, torch.float64), f"{name} is {dtype}"


def assert_alike(model, on_cpu, runs):
    """A prepared model on fake GPUs gives in these runs, by name, what the same one gives on the CPU."""
    for run in runs:
        with Devices():
            found = measured((INSTRUMENTS | WHOLE)[run], model)
            if run in INSTRUMENTS:
                assert_placed(model, found)
            assert_dtypes(model, found)
            assert_same(found, measured((INSTRUMENTS | WHOLE)[run], on_cpu))
