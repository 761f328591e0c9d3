"""Runs that start at their first edited layer, against whole forward passes: not a bit may differ."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests import architectures
from tests.architectures import ADAPTED, SUPPORTED
from util.engine.attention import PREPARED, support
from util.engine.call import Instrument
from util.engine.handshake import prepare
from util.engine.instruments import Knockout, PatchHeads
from util.engine.label_scores import Scoring, label_log_probs, text_losses
from util.engine.replay import BaseRuns, startable

# of several tokens, so that rows have branches where the class allows them
LABELS = ((11,), (12, 13), (12, 14, 15))


def planned(lengths=(9, 12, 7, 12)):
    rng = np.random.default_rng(0)
    ids = [tuple(rng.integers(20, architectures.VOCABULARY, length).tolist()) for length in lengths]
    return Scoring([], ids, [LABELS] * len(ids), np.zeros(len(ids), int))


def edits_of(layers):
    """Ablations and knockouts from each layer on, and none."""
    cells = torch.tensor([[4, 2], [6, 3]])
    edits: dict[str, list[Instrument]] = {"whole": []}
    for layer in layers:
        edits[f"zero {layer}"] = [PatchHeads(layer, [0], 0.0)]
        edits[f"knockout {layer}"] = [Knockout(cells, [layer, layers[-1]], [1])]
    return {name: lambda batch, instruments=instruments: instruments for name, instruments in edits.items()}


@pytest.mark.parametrize("name", [*SUPPORTED, *ADAPTED])
@pytest.mark.filterwarnings("ignore:Knockout")
def test_every_bit_is_that_of_whole_passes(name):
    model = architectures.build(name, torch.float32)
    layers, plan = prepare(model).layers, planned()
    runs, text_runs = BaseRuns(model), BaseRuns(model)
    for title, attach in edits_of(layers).items():
        alone, shared = (label_log_probs(model, plan, attach, 32, runs=some)["log_prob"] for some in (None, runs))
        np.testing.assert_array_equal(shared, alone, err_msg=title)
        alone, shared = (text_losses(model, plan.ids, attach, 32, some) for some in (None, text_runs))
        np.testing.assert_array_equal(shared, alone, err_msg=title)


def built():
    model = architectures.build("llama", torch.float32)
    prepare(model)
    return model


def work(model, attach, runs):
    """The operations of one run, and what it gives."""
    with FlopCounterMode(display=False) as counter:
        scores = label_log_probs(model, planned(), attach, runs=runs)["log_prob"]
    return counter.get_total_flops(), scores


@pytest.mark.parametrize(("rows", "share"), [(100, 0.75), (1, 0.9), (0, 1.0)])
def test_layers_before_the_edit_are_computed_once_as_far_as_memory_goes(rows, share):
    """Kept are the outputs of as many batches and layers as there is room for."""
    model = built()
    last = support(model).layers[-1]
    zero = edits_of([last])[f"zero {last}"]
    batch = 4 * 14 * model.config.hidden_size * 4  # four rows of up to 14 tokens in float32
    runs = BaseRuns(model, [1, last] if rows == 1 else [last], limit=rows * batch)
    whole, wanted = work(model, zero, None)
    for allowed in (1.0, share):
        flops, scores = work(model, zero, runs)
        assert flops <= allowed * whole
        np.testing.assert_array_equal(scores, wanted)


def test_a_model_whose_logits_change_runs_whole():
    """Layers that read what an earlier layer left behind cannot be started at."""
    model = built()
    first, last = model.model.layers[0], model.model.layers[-1]

    def leave(module, arguments, out):
        model.seen = out.mean()

    model.seen = 0.0
    model.model.embed_tokens.register_forward_pre_hook(lambda *_: setattr(model, "seen", 0.0))
    first.mlp.register_forward_hook(leave)
    last.mlp.register_forward_hook(lambda _, __, out: out + model.seen)
    PREPARED[model].facts.clear()
    assert startable(model) is None
    runs = BaseRuns(model)
    np.testing.assert_array_equal(*(label_log_probs(model, planned(), runs=some)["log_prob"] for some in (None, runs)))
