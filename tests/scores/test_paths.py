"""Path patching by query, key and value against whole forward passes with hooks, class by class, in float64."""

import pytest
import torch

from tests.architectures import HEADS, build
from tests.engine.test_replay import ANSWERS, LENGTH, prepared, prompts
from tests.scores import slow_paths
from tests.tiers import quick
from util.engine.replay import row_bytes
from util.scores.exact import CHANNELS, STATES, path_effects

BOUND = 1e-10
MEMBERS = [(1, 3), (0, 1), (2, 2), (0, 2), (2, 0), (1, 0)]  # in no order
BY_HOOKS = quick(["gpt2"], ["llama", "gemma2", "phi", "olmo2", "granite"])


# its norm of all keys is in float32, so that copies of keys are not the same to the last digits
NOT_SHARED = {"olmo2": {"num_key_value_heads": HEADS}}


def agrees(found, wanted):
    return (found - wanted).abs().max() <= BOUND * max(1.0, wanted.abs().max().item())


@pytest.mark.oracle
@pytest.mark.usefixtures("wide_softmax")
@pytest.mark.parametrize("name", BY_HOOKS)
def test_paths_equal_frozen_runs_by_hooks(name):
    """For classes with shared keys, on the same function with a key and a value for each head."""
    changes = NOT_SHARED.get(name, {})
    model, (base, source) = prepared(name, **changes), prompts()
    plain = build(name, torch.float64, **changes)
    plain = slow_paths.with_own_keys(plain) if hasattr(plain.config, "num_key_value_heads") else plain
    plain.set_attn_implementation("eager")
    slow = slow_paths.SlowPaths(plain, base, source, ANSWERS)
    direct, edges = path_effects(model, base, source, ANSWERS, MEMBERS)
    few = path_effects(model, base, source, ANSWERS, MEMBERS, budget=3 * len(base) * row_bytes(model, LENGTH, LENGTH))
    assert agrees(few[0], direct)
    torch.testing.assert_close(few[1], edges, atol=1e-12, rtol=0, equal_nan=True)
    assert direct.shape == (2, 6) and edges.shape == (2, 6, 6, 4) and edges.dtype == torch.float64
    for row, sender in enumerate(MEMBERS):
        assert agrees(direct[:, row], slow.direct(sender))
        for column, receiver in enumerate(MEMBERS):
            if receiver[0] <= sender[0]:
                assert edges[:, row, column].isnan().all()
                continue
            for channel, state in enumerate(CHANNELS):
                states = STATES if state == "together" else [state]
                wanted = slow.edge(sender, receiver, states)
                assert agrees(edges[:, row, column, channel], wanted), (sender, receiver, state)
    for channel in range(4):  # not vacuous
        seen = edges[..., channel]
        assert seen[~seen.isnan()].abs().median() > 1e-6


@pytest.mark.parametrize("heads", [[(0, 4)], [(3, 0)], [(-1, 0)], [(0, 1), (0, 1)], []], ids=str)
def test_heads_that_there_are_not_are_refused(heads):
    base, source = prompts()
    with pytest.raises(ValueError, match="at least one head of 3 layers of 4 heads, and none twice"):
        path_effects(prepared("gpt2"), base, source, ANSWERS, heads)
