"""Runs that start at their first edited layer, against whole forward passes: not a bit may differ."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests import architectures
from tests.architectures import ADAPTED, SUPPORTED
from util.engine import base_runs
from util.engine.attention import support
from util.engine.base_runs import BaseRuns, startable
from util.engine.handshake import prepare
from util.engine.instruments import Knockout, PatchHeads
from util.engine.label_scores import Scoring, label_log_probs, text_losses

# of several tokens, so that rows have branches where the class allows them
LABELS = ((11,), (12, 13), (12, 14, 15))


def planned(lengths=(9, 12, 7, 12)):
    rng = np.random.default_rng(0)
    ids = [tuple(rng.integers(20, architectures.VOCABULARY, length).tolist()) for length in lengths]
    return Scoring([], ids, [LABELS] * len(ids), np.zeros(len(ids), int))


def edits_of(layers):
    """Ablations and knockouts from each layer on, and none."""
    cells = torch.tensor([[4, 2], [6, 3]])

    def attached(*instruments):
        return lambda batch: list(instruments)

    edits = {"whole": attached()}
    for layer in layers:
        edits[f"zero {layer}"] = attached(PatchHeads(layer, [0], 0.0))
        edits[f"knockout {layer}"] = attached(Knockout(cells, [layer, layers[-1]], [1]))
    return edits


@pytest.mark.parametrize("name", [*SUPPORTED, *ADAPTED])
@pytest.mark.filterwarnings("ignore:Knockout")
def test_every_bit_is_that_of_whole_passes(name):
    model = architectures.build(name, torch.float32)
    layers, plan = prepare(model).layers, planned()
    runs = BaseRuns(model, layers, sum(plan.lengths))
    for title, attach in edits_of(layers).items():
        alone = label_log_probs(model, plan, attach, token_budget=32)["log_prob"]
        shared = label_log_probs(model, plan, attach, token_budget=32, runs=runs)["log_prob"]
        np.testing.assert_array_equal(shared, alone, err_msg=title)
        texts = text_losses(model, plan.ids, attach, token_budget=32)
        text_runs = BaseRuns(model, layers, sum(map(len, plan.ids)))
        text_losses(model, plan.ids, token_budget=32, runs=text_runs)
        np.testing.assert_array_equal(text_losses(model, plan.ids, attach, 32, text_runs), texts, err_msg=title)


def built():
    model = architectures.build("llama", torch.float32)
    prepare(model)
    return model


def work(model, plan, attach, runs):
    with FlopCounterMode(display=False) as counter:
        label_log_probs(model, plan, attach, runs=runs)
    return counter.get_total_flops()


def test_layers_before_the_edit_are_computed_once():
    model, plan = built(), planned()
    layers = support(model).layers
    last = edits_of(layers)[f"zero {layers[-1]}"]
    runs = BaseRuns(model, [layers[-1]], sum(plan.lengths))
    first, second = (work(model, plan, last, runs) for _ in range(2))
    assert first == work(model, plan, last, None)
    assert second < 0.75 * first


def test_the_first_layer_can_be_edited():
    model, plan = built(), planned()
    runs = BaseRuns(model, [0, 1], sum(plan.lengths))
    zero = edits_of([0])["zero 0"]
    for _ in range(2):
        np.testing.assert_array_equal(
            label_log_probs(model, plan, zero, runs=runs)["log_prob"], label_log_probs(model, plan, zero)["log_prob"]
        )


def test_memory_is_bounded_and_runs_start_from_the_last_kept_layer_before_them():
    model, plan = built(), planned()
    layers, tokens = support(model).layers, sum(plan.lengths)
    one = tokens * model.config.hidden_size * 4
    assert len(layers) > 2
    assert BaseRuns(model, layers, tokens, limit=10 * one).layers == [layer for layer in layers if layer]
    few = BaseRuns(model, layers, tokens, limit=one)
    assert few.layers == [1]
    last = edits_of(layers)[f"zero {layers[-1]}"]
    for _ in range(2):
        np.testing.assert_array_equal(
            label_log_probs(model, plan, last, runs=few)["log_prob"], label_log_probs(model, plan, last)["log_prob"]
        )
    assert BaseRuns(model, layers, tokens, limit=0).layers == []


def test_a_model_whose_logits_change_runs_whole(monkeypatch):
    """Layers that read what an earlier layer left behind cannot be started at."""
    model = built()
    layers = model.model.layers

    class Counting(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hidden, *arguments, **keywords):
            return self.inner(hidden, *arguments, **keywords) + model.seen

    def first(module, arguments, out):
        model.seen = out.mean()

    def reset(module, arguments):
        model.seen = 0.0

    model.seen = 0.0
    model.model.embed_tokens.register_forward_pre_hook(reset)
    handle = layers[0].mlp.register_forward_hook(first)
    layers[-1].mlp = Counting(layers[-1].mlp)
    base_runs._LAYERS.pop(model, None)
    assert startable(model) is None
    handle.remove()
    plan = planned()
    runs = BaseRuns(model, support(model).layers, sum(plan.lengths))
    assert runs.layers == []
    assert np.isfinite(label_log_probs(model, plan, runs=runs)["log_prob"]).all()
