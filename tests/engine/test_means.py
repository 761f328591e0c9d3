"""Means over prompts whose batches run out of memory."""

import numpy as np
import torch

from tests import toys
from util.engine import means
from util.engine.batches import Row


def test_a_batch_that_ran_out_of_memory_is_not_counted_twice(monkeypatch):
    """Nothing is added to a mean before all that may fail has been done."""
    model = toys.model("llama")
    rows = [Row(tuple(range(3 + i, 15 + i))) for i in range(6)]
    whole, norms = means.mean_outputs(model, rows), means._written_norms

    def short_of_memory(projection, z):
        if len(z) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return norms(projection, z)

    monkeypatch.setattr(means, "_written_norms", short_of_memory)
    halved = means.mean_outputs(model, rows)
    assert halved["tokens"] == whole["tokens"]
    np.testing.assert_allclose(halved["mean"], whole["mean"], atol=1e-6)
    np.testing.assert_allclose(halved["norms"], whole["norms"], rtol=1e-5)
