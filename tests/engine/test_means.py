"""Means over prompts whose batches run out of memory, and of heads that have no mean in one array."""

import pytest
import torch
from numpy.testing import assert_allclose

from tests import toys
from tests.tiny_models import tiny_model
from util.engine import means
from util.engine.batches import Row
from util.engine.call import UnsupportedModel
from util.roles.function_vectors import each_last_output

ROWS = [Row(tuple(range(3 + i, 15 + i))) for i in range(6)]


def test_a_batch_that_ran_out_of_memory_is_not_counted_twice(monkeypatch):
    """Nothing is added to a mean before all that may fail has been done."""
    model = toys.model()
    whole, norms = means.mean_outputs(model, ROWS), means._written_norms

    def short_of_memory(projection, z):
        if len(z) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return norms(projection, z)

    monkeypatch.setattr(means, "_written_norms", short_of_memory)
    halved = means.mean_outputs(model, ROWS)
    assert halved["tokens"] == whole["tokens"]
    assert_allclose(halved["mean"], whole["mean"], atol=1e-6)
    assert_allclose(halved["norms"], whole["norms"], rtol=1e-5)


def test_totals_that_do_not_fit_beside_a_batch_do_not_count_it_twice(monkeypatch):
    """The first layer's was added to before that of the second was made, and again by the halves."""
    model = toys.model()
    whole, zeros, made = means.position_means(model, ROWS, [0, 1]), torch.Tensor.new_zeros, list[None]()

    def short_of_memory(self, *shape, **options):
        made.extend([None] * (self.dtype == torch.float64))
        if len(made) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return zeros(self, *shape, **options)

    monkeypatch.setattr(torch.Tensor, "new_zeros", short_of_memory)
    halved = means.position_means(model, ROWS, [0, 1])
    assert len(made) > 2
    for layer in (0, 1):
        assert_allclose(halved[layer], whole[layer], atol=1e-6)


def test_heads_of_different_widths_are_refused_by_name():
    """Those of Gemma 4's global layers are wider: NumPy said that arrays must have the same shape."""
    model = tiny_model("gemma4_text", per_layer_config={"01": {"head_dim": 32}, "03": {"head_dim": 32}})
    for measure in (lambda: means.mean_outputs(model, ROWS), lambda: each_last_output(model, [ROWS[0].ids])):
        with pytest.raises(UnsupportedModel, match="Gemma4ForCausalLM has heads of 16 and 32 numbers"):
            measure()
