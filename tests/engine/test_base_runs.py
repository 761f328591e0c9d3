"""Runs that start at their first edited layer, against whole forward passes: not a bit may differ."""

import pytest
import torch
from numpy.testing import assert_array_equal
from torch.utils.flop_counter import FlopCounterMode

from tests.architectures import ADAPTED, SUPPORTED, prepared
from tests.engine.test_label_scores import planned
from util.engine.attention import support
from util.engine.call import Instrument
from util.engine.instruments import Knockout, PatchHeads
from util.engine.label_scores import label_log_probs, text_losses
from util.engine.replay import BaseRuns, startable


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
    model, plan = prepared(name), planned()
    runs, text_runs = BaseRuns(model), BaseRuns(model)
    for title, attach in edits_of(support(model).layers).items():
        alone, shared = (label_log_probs(model, plan, attach, 32, runs=some)["log_prob"] for some in (None, runs))
        assert_array_equal(shared, alone, err_msg=title)
        alone, shared = (text_losses(model, plan.ids, attach, 32, some) for some in (None, text_runs))
        assert_array_equal(shared, alone, err_msg=title)


@pytest.mark.parametrize("rows, share", [(4, 0.75), (3, 1.0)])
def test_layers_before_the_edit_are_computed_once_where_there_is_room(rows, share):
    model = prepared("llama")
    last = support(model).layers[-1]
    runs = BaseRuns(model, limit=rows * 16 * model.config.hidden_size * 4)  # of up to 16 tokens in float32
    flops = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            label_log_probs(model, planned(), edits_of([last])[f"zero {last}"], runs=runs)
        flops.append(counter.get_total_flops())
    assert flops[1] <= share * flops[0] and (flops[1] == flops[0]) == (share == 1)


def test_a_model_whose_logits_change_runs_whole():
    """Layers that read what an earlier layer left behind cannot be started at."""
    model = prepared("llama")
    model.model.embed_tokens.register_forward_pre_hook(lambda *_: setattr(model, "seen", 0.0))
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, out: setattr(model, "seen", out.mean()))
    model.model.layers[-1].mlp.register_forward_hook(lambda _, __, out: out + model.seen)
    assert startable(model) is None
